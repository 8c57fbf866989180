"""Writing while retention truncates at the rate of writing, beside writing while it does nothing (W8).

    python -m bench --only truncation

Both streams live in one server, whose retention looks every second, and take turns. The policy leaves 32 to 64 MiB, so that
once they are full each second's bytes go as they come. Throughput is that of 1 KiB events written as fast as they are taken;
latency is of single durable events written beside 50 MB/s of others.
"""

from __future__ import annotations

import shutil
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import penstock
from bench.measure import Figure, figure, percentile
from bench.store import payloads
from penstock.testing.server import ServerProcess

POLICY = {"retain": {"min_bytes": 32 << 20, "max_bytes": 64 << 20}}
KINDS = ("none", "retention")
_STEP = 1000
_PACED_BYTES_S = 50e6


class TruncationBench:
    """Runs against one server of its own."""

    def __init__(self, directory: Path, runs: int, scale: float) -> None:
        self.directory = directory
        self.runs = runs
        self.seconds = 8 * scale
        self.events = payloads(1024, _STEP)
        self.keys = [f"key-{number}" for number in range(_STEP)]

    def run(self) -> list[Figure]:
        shutil.rmtree(self.directory, ignore_errors=True)
        rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
        tails: dict[str, list[float]] = {kind: [] for kind in KINDS}
        freed: list[float] = []
        with (
            ServerProcess(self.directory, "--retention-cycle", "1s") as server,
            penstock.connect(server.address) as store,
        ):
            store.create_scope("bench", if_absent=True)
            for number in range(self.runs):
                for kind in KINDS if number % 2 == 0 else reversed(KINDS):
                    stream = store.create_stream(f"bench/{kind}-{number}", segments=4)
                    if kind == "retention":
                        stream.retention.set(POLICY)
                    rates[kind].append(self._throughput(stream))
                    tails[kind].append(self._latency(stream))
                    if kind == "retention":
                        reported = stream.describe()
                        freed.append((reported.written_bytes - reported.size_bytes) / reported.written_bytes)
                    stream.truncate(stream.tail())
        shutil.rmtree(self.directory, ignore_errors=True)
        work = "durable ingest, 1 KiB, list[bytes], 4 segments"
        late = "one durable event of 1 KiB at a time beside 50 MB/s of others"
        rate, tail = statistics.median(rates["none"]), statistics.median(tails["none"])
        return [
            figure("W8", f"{work}, no retention", "MB/s", rates["none"]),
            figure(
                "W8",
                f"{work}, retention truncating each second",
                "MB/s",
                rates["retention"],
                limit=("no retention", rate),
                target=">= 0.95",
            ),
            figure("W8", f"{late}, no retention", "us p99", tails["none"]),
            figure(
                "W8",
                f"{late}, retention truncating each second",
                "us p99",
                tails["retention"],
                limit=("no retention", tail),
                target="<= 1.2",
            ),
            figure("W8", "share of the bytes written that retention took meanwhile", "of 1", freed),
        ]

    def _throughput(self, stream: Any) -> float:
        """MB/s over the time that retention has work: the first 64 MiB are written before."""
        with stream.writer() as writer:
            for _ in range((64 << 20) // (_STEP * 1024)):
                writer.write_many(self.events, self.keys)
            writer.flush()
            started = time.perf_counter()
            count = 0
            while time.perf_counter() - started < self.seconds:
                writer.write_many(self.events, self.keys)
                count += _STEP
            writer.flush()
            return count * 1024 / 1e6 / (time.perf_counter() - started)

    def _latency(self, stream: Any) -> float:
        """The 99th percentile of single durable writes, in microseconds."""
        ended = threading.Event()

        def load() -> None:
            with stream.writer() as writer:
                due = time.perf_counter()
                while not ended.is_set():
                    writer.write_many(self.events, self.keys)
                    due += _STEP * 1024 / _PACED_BYTES_S
                    ended.wait(max(0.0, due - time.perf_counter()))

        thread = threading.Thread(target=load)
        thread.start()
        times: list[float] = []
        try:
            with stream.writer(linger_s=0) as writer:
                end = time.perf_counter() + self.seconds
                while time.perf_counter() < end:
                    started = time.perf_counter()
                    writer.write(self.events[0], "probe")
                    writer.flush()
                    times.append((time.perf_counter() - started) * 1e6)
                    time.sleep(0.002)
        finally:
            ended.set()
            thread.join()
        return percentile(times, 0.99)
