"""S7: one source over ten streams beside one over a single stream: latency, memory and processes of the same query."""

from __future__ import annotations

import os
import random
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench.measure import Row, figure
from bench.spark.world import World

_STREAMS = 10
_WARM, _EVENTS = 8, 40
_WAIT_S = 60


@dataclass(slots=True)
class _Taken:
    """Of all runs with so many streams: latencies in ms, and of each run the memory in MB and the number of processes."""

    latencies: list[float] = field(default_factory=list)
    megabytes: list[float] = field(default_factory=list)
    processes: list[float] = field(default_factory=list)


def many_streams(world: World) -> list[Row]:
    """Single events at random times, from the write call to ``foreachBatch``; Python processes of the session beside it."""
    taken = {1: _Taken(), _STREAMS: _Taken()}
    for turn in range(world.runs):
        for count, found in taken.items():
            _run(world, f"many{turn}x{count}", count, found)
    one, ten = taken[1], taken[_STREAMS]
    rows: list[Row] = []
    for unit, ours, alone, target in (
        ("ms p50", [median(ten.latencies)], [median(one.latencies)], "<= 1.3"),
        ("MB", ten.megabytes, one.megabytes, "<= 1.3"),
        ("processes", ten.processes, one.processes, "<= 1"),
    ):
        single = figure("S7", "one source, one stream", unit, alone)
        limit = ("one stream", single.median)
        rows += [figure("S7", f"one source, {_STREAMS} streams", unit, ours, limit=limit, target=target), single]
    return rows


def _run(world: World, name: str, count: int, found: _Taken) -> None:
    writers = [world.stream(f"{name}-{number}", 1).writer() for number in range(count)]
    frame = world.spark.readStream.format("penstock").option("controller", world.address).option("columns", "event")
    frame = frame.option("streamPattern", f"bench/{name}-.*").option("start_stream_cut", "earliest").load()
    arrived: list[float] = []
    seen = threading.Semaphore(0)

    def collect(rows: Any, _: int) -> None:
        times = [float(row.event) for row in rows.collect()]
        now = time.time()
        for sent in times:
            arrived.append((now - sent) * 1000)
            seen.release()

    query = frame.writeStream.foreachBatch(collect).option("checkpointLocation", world.checkpoint(name)).start()
    rng = random.Random(count)
    try:
        for _ in range(_WARM + _EVENTS):
            writer = rng.choice(writers)
            writer.write(str(time.time()).encode())
            writer.flush()
            if not seen.acquire(timeout=_WAIT_S):
                raise RuntimeError(f"an event did not arrive. query={name}")
            time.sleep(rng.uniform(0.05, 0.2))
        workers = _workers()
        found.latencies += arrived[_WARM:]
        found.megabytes.append(sum(_megabytes(pid) for pid in workers))
        found.processes.append(len(workers))
    finally:
        query.stop()
        for writer in writers:
            writer.close()


def _workers() -> list[int]:
    """Python processes below the session's Java."""
    parents = {int(path.name): _parent(path) for path in Path("/proc").iterdir() if path.name.isdecimal()}
    names = {pid: _name(pid) for pid in parents}
    java = {pid for pid, parent in parents.items() if names[pid] == "java" and parent == os.getpid()}
    below = set(java)
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return sorted(pid for pid in below if names[pid].startswith("python"))


def _parent(path: Path) -> int:
    try:
        return int((path / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0  # ended meanwhile


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _megabytes(pid: int) -> float:
    """Proportional memory: what processes share counts once."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
