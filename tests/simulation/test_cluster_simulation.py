"""Three stores of a cluster under faults, and the bugs that are planted in them are found."""

from __future__ import annotations

import asyncio

import pytest
from planted_cluster import PLANTED

from penstock.codec.store.container_record import CataloguePosition, ContainerRecord, ListedLedger
from penstock.core.cluster import ownership
from penstock.testing.simulation.cluster.aims import Moment, Moments, moments_of
from penstock.testing.simulation.cluster.run import ClusterRunResult, run_cluster_seed
from penstock.testing.simulation.machine.loop import Process, make_loop

SEEDS = range(6)
SECONDS = 20.0
PLANTED_SEEDS_MAX = 20
RARE = {"log_recovery_without_fence": 60}
"""The lease of a deposed owner protects too, so this one shows in a cluster where an append was already sent. The simulation
of the log alone, which has no leases, finds it within twenty seeds."""


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
    assert sum(result.aimed for result in results) > 3 * len(SEEDS)


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


def test_a_resumed_process_receives_what_has_arrived_before_its_timers() -> None:
    loop = make_loop(1)
    done: list[str] = []

    class Link(asyncio.Transport):
        def deliver(self) -> None:
            done.append("arrived")

    async def main() -> None:
        process = Process("paused")
        loop.call_later(1.0, done.append, "timer", context=process.context)
        loop.call_later(2.0, Link().deliver, context=process.context)
        loop.pause(process)
        await asyncio.sleep(3.0)
        loop.resume(process)
        await asyncio.sleep(0.1)

    loop.run(main())
    assert done == ["arrived", "timer"]


def test_a_moment_is_met_by_those_who_wait_for_it() -> None:
    loop, moments = make_loop(1), Moments()

    async def main() -> list[object]:
        waiting = [
            loop.create_task(moments.next((Moment.FROZEN,), within_s=5.0)),
            loop.create_task(moments.next((Moment.FROZEN,), within_s=5.0, but="a")),
            loop.create_task(moments.next((Moment.DELETED,), within_s=5.0)),
        ]
        await asyncio.sleep(1.0)
        assert moments.awaits(Moment.DELETED)
        assert not moments.awaits(Moment.LEASED)
        moments.note(Moment.FROZEN, "a")
        await asyncio.sleep(1.0)
        Process("b.7").context.run(moments.note, Moment.FROZEN)
        return [await one for one in waiting]

    assert loop.run(main()) == ["a", "b", None]
    assert loop.time() == 5.0
    assert not moments.awaits(Moment.FROZEN)


def test_a_change_of_a_record_is_a_step_of_a_takeover() -> None:
    before = ContainerRecord(uid="u")
    frozen = ownership.frozen(before, owner="o")
    extended = ownership.extended(frozen, ListedLedger(ledger=1, first=1))
    published = ownership.published(extended, truncated=3, catalogue=CataloguePosition(run=1, included=0, batch=2))
    assert moments_of(before, frozen) == [Moment.FROZEN]
    assert moments_of(frozen, extended) == [Moment.EXTENDED]
    assert moments_of(extended, published) == [Moment.PUBLISHED, Moment.TRUNCATED]
    assert moments_of(published, published) == []


def test_a_run_may_end_with_the_first_broken_promise() -> None:
    with PLANTED["released_before_it_is_closed"]():
        runs = (run_cluster_seed(seed, seconds=SECONDS, stops=True) for seed in range(PLANTED_SEEDS_MAX))
        found = next(one for one in runs if one.anomalies)
    assert found.virtual_s < SECONDS


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_the_cluster_simulation_finds(name: str) -> None:
    seeds = RARE.get(name, PLANTED_SEEDS_MAX)
    for seed in range(seeds):
        with PLANTED[name]():
            result = run_cluster_seed(seed, seconds=SECONDS, stops=True)
        if result.anomalies:
            return
    pytest.fail(f"{name} was not found within {seeds} seeds")
