"""Three stores of a cluster under faults, and the bugs that are planted in them are found."""

from __future__ import annotations

import asyncio

import pytest
from planted_cluster import PLANTED

from penstock.testing.simulation.cluster.run import ClusterRunResult, run_cluster_seed
from penstock.testing.simulation.machine.loop import Process, make_loop

SEEDS = range(7)
SECONDS = 30.0
PLANTED_SEEDS_MAX = 60
"""The rarest bugs show in one of twenty seeds."""


def failing_text(result: ClusterRunResult) -> str:
    return "\n".join([f"seed {result.seed}:", *map(str, result.anomalies[:10]), "last events:", *result.last])


def test_no_promise_is_broken_by_takeovers() -> None:
    results = [run_cluster_seed(seed, seconds=SECONDS) for seed in SEEDS]
    for result in results:
        assert not result.anomalies, failing_text(result)
    # What is not exercised is not shown.
    assert sum(result.acked for result in results) > 60 * len(SEEDS)
    assert sum(result.openings for result in results) > 8 * len(SEEDS)
    assert sum(result.expired for result in results) > 5 * len(SEEDS)
    assert len({name for result in results for name in result.faults}) > 12


def test_one_seed_is_one_run() -> None:
    first, second = (run_cluster_seed(11, seconds=8.0) for _ in range(2))
    assert (first.trace, first.acked, first.steps) == (second.trace, second.acked, second.steps)
    assert run_cluster_seed(12, seconds=8.0).trace != first.trace


def test_nothing_of_a_paused_process_runs_until_it_is_resumed() -> None:
    loop = make_loop(1)
    done: list[tuple[str, float]] = []

    async def tick(name: str) -> None:
        await asyncio.sleep(1.0)
        done.append((name, loop.time()))
        await asyncio.sleep(1.0)
        done.append((name, loop.time()))

    async def main() -> None:
        process = Process("paused")
        task = loop.create_task(tick("paused"), context=process.context)
        other = loop.create_task(tick("other"))
        await asyncio.sleep(0.5)
        loop.pause(process)
        loop.call_later(9.5, loop.resume, process)
        await asyncio.wait({task, other})

    loop.run(main())
    assert done == [("other", 1.0), ("other", 2.0), ("paused", 10.0), ("paused", 11.0)]


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_the_cluster_simulation_finds(name: str) -> None:
    for seed in range(PLANTED_SEEDS_MAX):
        with PLANTED[name]():
            result = run_cluster_seed(seed, seconds=SECONDS)
        if result.anomalies:
            return
    pytest.fail(f"{name} was not found within {PLANTED_SEEDS_MAX} seeds")
