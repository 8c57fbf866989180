"""Read the results with the official Pravega Python client: ``python -m penstock.app.demo.official``.

Prints one JSON object: how many events it read, and the first few.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os

import pravega_client


async def read(reader: pravega_client.StreamReader, expected: int) -> list[bytes]:
    """``expected`` events, in the order in which the client hands them out."""
    found: list[bytes] = []
    while len(found) < expected:
        part = await reader.get_segment_slice_async()
        found.extend(bytes(event.data()) for event in part)
        reader.release_segment(part)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--controller", required=True)
    parser.add_argument("--scope", required=True)
    parser.add_argument("--stream", required=True)
    parser.add_argument("--expected", type=int, required=True)
    parser.add_argument("--group", required=True)
    given = parser.parse_args()

    manager = pravega_client.StreamManager(f"tcp://{given.controller}")
    group = manager.create_reader_group(given.group, given.scope, given.stream)
    reader = group.create_reader("demo")
    found = asyncio.run(read(reader, given.expected))
    reader.reader_offline()
    print(json.dumps({"read": len(found), "first": [event.decode() for event in found[:3]]}), flush=True)
    # The client's threads keep running. Sometimes one uses a Python object while the interpreter shuts down, which would be
    # a segmentation fault after a successful read.
    os._exit(0)


if __name__ == "__main__":
    main()
