"""What the catalogue costs ingest: CPU time of the same appends with and without it, alternating, on real files.

    python bench/catalogue.py [--rounds 5] [--appends 40000] [--bytes 1000] [--interval 0.25]

Prints one JSON object: seconds of CPU of each round, the ratio of the medians, what noting a writer's number costs an append.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import UUID

from penstock.app.telemetry import Counters
from penstock.ports.data.segments import Append
from penstock.segmentstore.parts import StoreParts
from penstock.segmentstore.settings import StoreSettings
from penstock.segmentstore.store import open_segment_store
from penstock.segmentstore.tiering.tail_cache import CacheMemory, TailCache
from penstock.storage.chunks.file_chunks import FileChunks
from penstock.storage.log.local_log import open_local_log
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.files import RealFiles
from penstock.storage.machine.offload import ThreadOffload
from penstock.storage.machine.rng import RealRng
from penstock.storage.objects.file_objects import FileObjects
from penstock.storage.rows.sqlite_keyvalue import SqliteKeyValue

SEGMENTS = 16


async def ingest(directory: Path, *, catalogue: bool, appends: int, size: int, interval_s: float) -> float:
    async with AsyncExitStack() as stack:
        offload = ThreadOffload()
        stack.push_async_callback(offload.close)
        files = RealFiles(directory, offload)
        await files.make_dir("metadata")
        rng, clock = RealRng(), RealClock()
        log = await stack.enter_async_context(open_local_log(files, rng=rng))
        keyvalue = await SqliteKeyValue.open(directory / "metadata" / "store.db", offload)
        stack.push_async_callback(keyvalue.close)
        chunks = FileChunks(files)
        stack.push_async_callback(chunks.close)
        store = await stack.enter_async_context(
            open_segment_store(
                log,
                StoreParts(
                    keyvalue=keyvalue,
                    chunks=chunks,
                    clock=clock,
                    rng=rng,
                    offload=offload,
                    telemetry=Counters(),
                    settings=StoreSettings(
                        checkpoint_interval_s=interval_s, catalogue_interval_s=interval_s, flush_interval_s=1.0
                    ),
                    catalogue=FileObjects(files) if catalogue else None,
                ),
            )
        )
        names = [f"bench/stream/{number}.#epoch.0" for number in range(SEGMENTS)]
        for name in names:
            await store.create_segment(name)
        await store.flush()
        data = bytes(size)
        last = [await store.setup_append(name, UUID(int=number)) for number, name in enumerate(names)]
        started = time.process_time()
        window = 2000
        for first in range(0, appends, window):
            waiting = asyncio.get_running_loop().create_future()
            left = min(window, appends - first)

            def done(result: object, waiting: asyncio.Future[None] = waiting) -> None:
                nonlocal left
                left -= 1
                if isinstance(result, Exception):
                    waiting.set_exception(result)
                elif not left and not waiting.done():
                    waiting.set_result(None)

            for number in range(first, first + left):
                at = number % SEGMENTS
                number = max(last[at], -1) + 10
                store.submit_append(
                    Append(
                        segment=names[at],
                        writer=UUID(int=at),
                        data=data,
                        event_number=number,
                        event_count=10,
                        previous=last[at],
                    ),
                    done,
                )
                last[at] = number
            await waiting
        await store.flush()
        return time.process_time() - started


def noting_ns() -> float:
    """Cost of noting a writer's number, nanoseconds an append."""
    cache = TailCache(CacheMemory(1 << 30))
    cache.append(0, b"x", 1, 1, 0)
    started = time.process_time_ns()
    for number in range(200_000):
        cache.wrote(7, number, number - 1)
    return (time.process_time_ns() - started) / 200_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--appends", type=int, default=40_000)
    parser.add_argument("--bytes", type=int, default=1000)
    parser.add_argument("--interval", type=float, default=0.25, help="seconds between checkpoints; a store's own are 5")
    asked = parser.parse_args()
    cpu: dict[bool, list[float]] = {False: [], True: []}
    for number in range(2 * asked.rounds):
        with tempfile.TemporaryDirectory() as scratch:
            wanted = bool(number % 2)
            cpu[wanted].append(
                asyncio.run(
                    ingest(
                        Path(scratch),
                        catalogue=wanted,
                        appends=asked.appends,
                        size=asked.bytes,
                        interval_s=asked.interval,
                    )
                )
            )
    without, with_it = statistics.median(cpu[False]), statistics.median(cpu[True])
    print(
        json.dumps(
            {
                "appends": asked.appends,
                "bytes": asked.bytes,
                "interval_s": asked.interval,
                "cpu_s_without": [round(value, 3) for value in cpu[False]],
                "cpu_s_with": [round(value, 3) for value in cpu[True]],
                "ratio": round(with_it / without, 4),
                "ratio_of_the_least": round(min(cpu[True]) / min(cpu[False]), 4),
                "us_an_append": round(without / asked.appends * 1e6, 2),
                "noting_ns_an_append": round(noting_ns()),
            }
        )
    )


if __name__ == "__main__":
    main()
