"""Load by the official client, as a process of its own.

    python -m tests.crash.official_load write HOST:PORT SCOPE/STREAM LOG STOPFILE WRITER KEYS [PAUSE_S]
    python -m tests.crash.official_load read  HOST:PORT SCOPE/STREAM LOG STOPFILE GROUP

The writer appends ``key sequence`` to LOG once the client has reported the events durable (``flush``); the reader appends
every event that it was handed. Both end when STOPFILE exists and (reader) nothing more comes.
"""

import asyncio
import os
import sys
import time
from typing import Any

import pravega_client


def write(manager: Any, stream: str, log: str, stop: str, writer_name: str, keys: str, pause_s: str = "0.005") -> None:
    scope, name = stream.split("/")
    writer = manager.create_writer(scope, name)
    sequence = 0
    with open(log, "a", buffering=1) as acked:
        while not os.path.exists(stop):
            lines = []
            for _ in range(20):
                for key in range(int(keys)):
                    event = f"{writer_name}-{key} {sequence}"
                    writer.write_event(event, routing_key=f"{writer_name}-{key}")
                    lines.append(event)
                sequence += 1
            writer.flush()
            acked.write("\n".join(lines) + "\n")
            time.sleep(float(pause_s))


def read(manager: Any, stream: str, log: str, stop: str, group: str) -> None:
    scope, name = stream.split("/")
    reader = manager.create_reader_group(group, scope, name).create_reader("r")

    async def go() -> None:
        with open(log, "a") as out:
            while True:
                waiting = asyncio.ensure_future(reader.get_segment_slice_async())
                done, _ = await asyncio.wait({waiting}, timeout=45)
                if not done:
                    if os.path.exists(stop):
                        return
                    continue
                part = waiting.result()
                for event in part:
                    out.write(bytes(event.data()).decode() + "\n")
                out.flush()
                reader.release_segment(part)

    asyncio.run(go())


if __name__ == "__main__":
    verb, address, *rest = sys.argv[1:]
    connected = pravega_client.StreamManager(f"tcp://{address}", False, False)
    if verb == "write":
        write(connected, *rest)
    else:
        read(connected, *rest)
