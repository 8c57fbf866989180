"""S5: what a change of policy would remove from very many streams, beside the planner alone in one process."""

from __future__ import annotations

import shutil

from bench.fleet import FleetBench
from bench.measure import Row
from bench.spark.world import World


def rows(world: World) -> list[Row]:
    directory = world.directory / "fleet"
    directory.mkdir()
    bench = FleetBench(directory, world.rows(1_000_000), world.runs)
    try:
        return [*bench.changed(world.spark, late=world.late)]
    finally:
        shutil.rmtree(directory)
