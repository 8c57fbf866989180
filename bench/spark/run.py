"""The parts of the measurement of the pipeline, each by name; ``--part`` picks some."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.measure import Row, Skipped
from bench.peers.client_process import WorkError
from bench.spark.batches import micro_batches
from bench.spark.many import many_streams
from bench.spark.reads import batch_reads, beside_writers, first_row
from bench.spark.sinks import sinks
from bench.spark.world import World, open_world

BUDGET_S = 450

Part = Callable[[World], list[Row]]


def _job(name: str, row: str, work: str) -> Part:
    """A place for a job on Spark: ``bench.spark.job_NAME`` has ``rows(world)``; without it, or the job, that is said."""

    def measure(world: World) -> list[Row]:
        for module in (f"penstock.spark.jobs.{name}", f"bench.spark.job_{name}"):
            if importlib.util.find_spec(module) is None:
                return [Skipped(id=row, work=work, who="ours", reason=f"there is no {module} yet")]
        found: list[Row] = importlib.import_module(f"bench.spark.job_{name}").rows(world)
        return found

    return measure


PARTS: dict[str, Part] = {
    "S1": batch_reads,
    "S2": micro_batches,
    "S3": sinks,
    "S4-load": _job("load", "S4", "load"),
    "S4-export": _job("export", "S4", "export"),
    "S5": _job("fleet", "S5", "fleet what-if, 1,000,000 streams"),
    "S6": first_row,
    "S7": many_streams,
    "W9": beside_writers,
}


class SparkBench:
    """One session for all. What does not fit into the time, or fails, is left out by name."""

    def __init__(
        self, directory: Path, runs: int, scale: float, parts: Sequence[str] = (), budget_s: float = BUDGET_S
    ) -> None:
        self.directory = directory
        self.runs = runs
        self.scale = scale
        self.parts = parts or list(PARTS)
        self.budget_s = budget_s

    def run(self) -> list[Row]:
        rows: list[Row] = []
        began = time.monotonic()
        with open_world(self.directory, self.runs, self.scale, self.budget_s) as world:
            for name in self.parts:
                if world.late():
                    rows.append(
                        Skipped(id=name, work="all", who="ours", reason=f"no time left of {self.budget_s:.0f} s")
                    )
                    continue
                print(f"spark: {name}, {time.monotonic() - began:.0f} s", flush=True)
                try:
                    rows += PARTS[name](world)
                except (WorkError, RuntimeError) as error:
                    rows.append(Skipped(id=name, work="all", who="ours", reason=str(error)))
        return rows
