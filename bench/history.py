"""Reading what lies in chunks: raw, as objects, and as Arrow; with and without the page cache."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import penstock
from bench.limits import Limits
from bench.measure import Figure, figure, seconds
from bench.store import payloads
from penstock.testing.server import ServerProcess

SIZE = 100
FRAMED = SIZE + 8


class HistoryBench:
    """One stream of one segment, nine tenths of which its server cannot hold in memory."""

    def __init__(self, directory: Path, limits: Limits, runs: int, scale: float) -> None:
        self.directory = directory / "history"
        self.limits = limits
        self.runs = runs
        self.count = int(3_000_000 * scale)

    def run(self) -> list[Figure]:
        shutil.rmtree(self.directory, ignore_errors=True)
        try:
            with (
                ServerProcess(self.directory / "store", "--memory", "96MiB") as server,
                penstock.connect(server.address) as store,
            ):
                stream = store.create_stream("bench/history", segments=1, create_scope=True)
                with stream.writer() as writer:
                    for start in range(0, self.count, 100_000):
                        writer.write_many(payloads(SIZE, min(100_000, self.count - start)))
                    writer.flush()
                self.settle(stream)
                return self._measure(stream)
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)

    def settle(self, stream: Any) -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            found = stream.describe()
            if found.disk_bytes >= found.size_bytes:
                return
            time.sleep(0.2)
        raise RuntimeError("the stream was not tiered in time")

    def _measure(self, stream: Any) -> list[Figure]:
        def raw() -> None:
            with stream.reader(until_tail=True) as reader:
                assert sum(len(block.framed) for block in reader.read_blocks()) == self.count * FRAMED

        def objects() -> None:
            with stream.reader(until_tail=True) as reader:
                assert sum(len(block.events()) for block in reader.read_blocks()) == self.count

        def arrow() -> None:
            with stream.reader(until_tail=True) as reader:
                assert sum(batch.num_rows for batch in reader.read_arrow()) == self.count

        kinds: dict[str, Callable[[], None]] = {"cold": raw, "cached": raw, "objects": objects, "arrow": arrow}
        rates: dict[str, list[float]] = {name: [] for name in kinds}
        arrow()  # loads the libraries
        for _ in range(self.runs):
            for name, read in kinds.items():
                if name == "cold":
                    self.drop_cache()
                rates[name].append(self.count / seconds(read))
        bytes_of = {name: [rate * FRAMED for rate in found] for name, found in rates.items()}
        cold, loopback = self.limits.cold_read_bytes_s, self.limits.loopback_bytes_s
        return [
            figure(
                "R2",
                "catch up, raw, chunks not in the page cache",
                "bytes/s",
                bytes_of["cold"],
                limit=("cold file read", cold),
                target=">= 0.7",
            ),
            figure(
                "R2",
                "catch up, raw, cached",
                "bytes/s",
                bytes_of["cached"],
                limit=("loopback", loopback),
                target=">= 0.5",
            ),
            figure(
                "R3",
                "catch up to bytes objects, 100 B",
                "events/s",
                rates["objects"],
                limit=("loopback", loopback / FRAMED),
                target=">= 3 M",
            ),
            figure(
                "R3",
                "catch up to Arrow, 100 B",
                "events/s",
                rates["arrow"],
                limit=("loopback", loopback / FRAMED),
                target=">= 8 M",
            ),
        ]

    def drop_cache(self) -> None:
        for path in (self.directory / "store" / "chunks").rglob("*"):
            if path.is_file():
                handle = os.open(path, os.O_RDONLY)
                os.fsync(handle)
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(handle)
