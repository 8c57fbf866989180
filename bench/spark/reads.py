"""S1: batch reads. S6: the first row of a fresh session. W9: writers while Spark reads history at full speed."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

from bench.measure import Row, figure, percentile
from bench.spark.world import KAFKA, PARQUET, World, beside, scan

_SIZES = {100: (3_000_000, "100 B", ">= 5"), 1024: (500_000, "1 KiB", ">= 2.5")}

_FIRST_ROW = """
import sys, time
from pathlib import Path
from bench.spark.world import session
kind, where, address, directory = sys.argv[1:]
spark = session(Path(directory), "first-row")
started = time.perf_counter()
if kind == "parquet":
    frame = spark.read.parquet(where)
else:
    reader = spark.read.format("penstock").option("controller", address)
    frame = reader.option("columns", "event,segment_id,offset").load(where)
row = frame.first()
print("took", time.perf_counter() - started, len(row["event"]), flush=True)
spark.stop()
"""


def batch_reads(world: World) -> list[Row]:
    rows: list[Row] = []
    for size, (full, label, wanted) in _SIZES.items():
        count = world.rows(full)
        name = f"read{size}"
        world.fill(name, size, count)
        frames: dict[str, tuple[Any, int]] = {
            "ours": (world.ours(name), count),
            PARQUET: (world.spark.read.parquet(world.parquet_of(name, count)), count),
        }
        if world.kafka is not None:
            # A third of the rows: the figure is rows a second, and Kafka takes several times as long.
            world.fill_topic(name, size, count // 3)
            frames[KAFKA] = (world.theirs(name).select("value", "partition", "offset"), count // 3)
        rates: dict[str, list[float]] = {who: [] for who in frames}
        for turn in range(world.runs + 1):
            for who, (frame, total) in frames.items():
                took = scan(frame)
                if turn:  # the first is a warm-up
                    rates[who].append(total / took)
        work = f"batch read, {label}: event, segment_id, offset"
        ours = rates.pop("ours")
        rows += beside("S1", work, "rows/s", ours, rates, {PARQUET: ">= 0.8", KAFKA: wanted})
    return rows + world.without_kafka("S1", "batch read")


def first_row(world: World) -> list[Row]:
    """In a process and session of its own each; from ``spark.read`` to the row in hand."""
    count = world.rows(500_000)
    name = "read100"
    if name not in world.parquet:
        world.fill(name, 100, count)
        world.parquet_of(name, count)
    times: dict[str, list[float]] = {"ours": [], PARQUET: []}
    for _ in range(min(3, world.runs)):
        for who, kind, where in (("ours", "penstock", f"bench/{name}"), (PARQUET, "parquet", world.parquet[name])):
            if world.late() and times[PARQUET]:
                break
            times[who].append(_first(world, kind, where))
    return beside(
        "S6", "first row after session start", "s", times["ours"], {PARQUET: times[PARQUET]}, {PARQUET: "<= 1.2"}
    )


def _first(world: World, kind: str, where: str) -> float:
    command = [sys.executable, "-c", _FIRST_ROW, kind, where, world.address, str(world.directory / "first")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL)
    for line in done.stdout.splitlines():
        if line.startswith("took "):
            return float(line.split()[1])
    raise RuntimeError(f"no first row. kind={kind} said={done.stderr[-400:]}")


def beside_writers(world: World) -> list[Row]:
    """p99 of single durable events, alone, while Spark reads the history of another stream, and while it reads Parquet."""
    count = world.rows(3_000_000)
    name = "read100"
    if name not in world.parquet:
        world.fill(name, 100, count)
        world.parquet_of(name, count)
    world.stream("live", 1)
    loads: dict[str, Any] = {
        "alone": None,
        "while Spark reads Parquet": world.spark.read.parquet(world.parquet[name]),
        "while Spark reads history": world.ours(name),
    }
    medians: dict[str, list[float]] = {who: [] for who in loads}
    lates: dict[str, list[float]] = {who: [] for who in loads}
    for _ in range(world.runs):
        for who, frame in loads.items():
            stop, begun = threading.Event(), threading.Event()

            def read(frame: Any = frame, stop: Any = stop, begun: Any = begun) -> None:
                while not stop.is_set():
                    scan(frame)
                    begun.set()

            thread = threading.Thread(target=read) if frame is not None else None
            if thread is not None:
                thread.start()
                begun.wait(60)
            taken = world.clients["ours"].ask("single", topic="live", count=max(200, int(1000 * world.scale)))
            stop.set()
            if thread is not None:
                thread.join()
            medians[who].append(percentile(taken, 0.5))
            lates[who].append(percentile(taken, 0.99))
    work = "one durable event at a time, "
    alone = figure("W9", f"{work}alone", "us p99", lates["alone"])
    rows: list[Row] = [figure("W9", f"{work}alone", "us p50", medians["alone"]), alone]
    for who in list(loads)[1:]:
        rows.append(figure("W9", work + who, "us p50", medians[who]))
        target = "<= 1.2" if "history" in who else ""
        rows.append(figure("W9", work + who, "us p99", lates[who], limit=("alone", alone.median), target=target))
    return rows
