"""Chunks in HDFS beside chunks in a directory, on one disk, in turns.

    python scripts/hdfs_engine.py && python -m bench.hdfs --directory /var/tmp/bench-hdfs

A namenode and two datanodes, which both sync each chunk on the disk that the directory is on too: twice the bytes of the
directory. Prints MB/s with one chunk at a time and with four, and the CPU of this process.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from penstock.ports.chunks import ChunkStorage
from penstock.storage.chunks.file_chunks import FileChunks
from penstock.storage.chunks.object_chunks import ObjectChunks
from penstock.storage.machine.files import RealFiles
from penstock.storage.machine.offload import ThreadOffload
from penstock.storage.objects.hdfs_objects import HdfsObjects

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

import hdfs_engine

READ_BYTES = 1 << 20
"""One block, as readers fetch it."""


async def write(chunks: ChunkStorage, names: Sequence[str], data: bytes) -> None:
    for name in names:
        await chunks.append(name, 0, [data])
        await chunks.sync(name)


async def read(chunks: ChunkStorage, names: Sequence[str], data: bytes) -> None:
    for name in names:
        for start in range(0, len(data), READ_BYTES):
            if len(await chunks.read(name, start, READ_BYTES)) != min(READ_BYTES, len(data) - start):
                raise SystemExit(f"{name} is short at {start}")


async def timed(
    work: Callable[[ChunkStorage, Sequence[str], bytes], Awaitable[None]],
    chunks: ChunkStorage,
    names: Sequence[str],
    data: bytes,
    lanes: int,
) -> tuple[float, float]:
    """MB/s, and milliseconds of CPU of this process for each MB."""
    begun, cpu = time.perf_counter(), sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    async with asyncio.TaskGroup() as group:
        for lane in range(lanes):
            group.create_task(_awaited(work(chunks, names[lane::lanes], data)))
    taken, spent = time.perf_counter() - begun, sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) - cpu
    total_mb = len(names) * len(data) / 1e6
    return total_mb / taken, spent * 1e3 / total_mb


async def _awaited(work: Awaitable[None]) -> None:
    await work


async def compare(hdfs: str, directory: Path, *, rounds: int, count: int, size_bytes: int) -> None:
    offload = ThreadOffload()
    places: dict[str, ChunkStorage] = {
        "directory": FileChunks(RealFiles(directory, offload), directory="chunks"),
        "hdfs": ObjectChunks(HdfsObjects(hdfs)),
    }
    data = os.urandom(size_bytes)
    found: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
    for number in range(rounds):
        for lanes in (1, 4):
            names = [f"0/{number + 1:x}-{lanes:x}-{chunk:x}" for chunk in range(count)]
            for place, chunks in places.items():
                for verb, work in (("write", write), ("read", read)):
                    found.setdefault((verb, place, lanes), []).append(await timed(work, chunks, names, data, lanes))
                for name in names:
                    await chunks.delete(name)
    for (verb, place, lanes), figures in sorted(found.items()):
        rates = [rate for rate, _ in figures]
        cpu_ms = statistics.median(cpu for _, cpu in figures)
        print(
            f"{verb:5} {place:9} {size_bytes / (1 << 20):g} MiB x{lanes}: median {statistics.median(rates):6.1f} MB/s"
            f" ({min(rates):.1f} to {max(rates):.1f}), {cpu_ms:.1f} ms of CPU per MB",
            flush=True,
        )
    for chunks in places.values():
        await chunks.close()
    await offload.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=8)
    wanted = parser.parse_args()
    wanted.directory.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=wanted.directory) as name, hdfs_engine.Hdfs(Path(name) / "hdfs") as engine:
        for size_bytes in (16 << 20, 8 << 20, 1 << 16):
            (place := Path(name) / f"chunks-{size_bytes}").mkdir()
            url = f"{engine.url}/bench-{size_bytes}"
            asyncio.run(compare(url, place, rounds=wanted.rounds, count=wanted.count, size_bytes=size_bytes))


if __name__ == "__main__":
    main()
