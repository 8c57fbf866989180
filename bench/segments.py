"""W5: one writer and 100,000 keys over 1, 1,000 and 10,000 segments.

Each number of segments has a server of its own, one after the other: what a store still tiers of ten thousand segments would
else be counted against the one that is measured next. Binding a writer to its segments is measured by itself. The garbage
collector starts anew before each: a full collection of the writer's process takes as long as 15,000 events, and what was
imported before would decide into which measurement it falls. With a small ``scale`` some runs have one and others have none:
compare versions over many runs.
"""

from __future__ import annotations

import gc
import shutil
from pathlib import Path

import penstock
from bench.measure import Figure, figure, seconds
from bench.store import payloads
from penstock.testing.server import ServerProcess

SEGMENTS = {1: "", 1000: ">= 0.9", 10_000: ">= 0.7"}


class SegmentsBench:
    """``scale`` is the share of 300,000 events in each run."""

    def __init__(self, directory: Path, runs: int, scale: float) -> None:
        self.directory = directory
        self.runs = runs
        count = int(300_000 * scale)
        self.events = payloads(100, count)
        self.keys = [f"key-{number * 7919 % 100_003}" for number in range(count)]

    def run(self) -> list[Figure]:
        found: list[Figure] = []
        for segments, target in SEGMENTS.items():
            bound_s, rates = self._measure(segments)
            limit = ("one segment", found[0].median) if found else None
            work = f"durable ingest, 100 B, one write() each, {segments:,} segments, 100,000 keys"
            found.append(figure("W5", work, "events/s", rates, limit=limit, target=target))
            found.append(figure("W5", f"binding a writer and first write, {segments:,} segments", "s", [bound_s]))
        return found

    def _measure(self, segments: int) -> tuple[float, list[float]]:
        directory = self.directory / str(segments)
        shutil.rmtree(directory, ignore_errors=True)
        with ServerProcess(directory) as server, penstock.connect(server.address) as store:
            stream = store.create_stream("bench/many", segments=segments, create_scope=True)
            with stream.writer() as writer:

                def work() -> None:
                    for event, key in zip(self.events, self.keys, strict=True):
                        writer.write(event, key)
                    writer.flush()

                gc.collect()
                bound_s = seconds(work)
                rates = [len(self.events) / seconds(work) for _ in range(self.runs)]
        shutil.rmtree(directory, ignore_errors=True)
        return bound_s, rates
