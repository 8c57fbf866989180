"""The simulated coordinator under lost answers, cuts and failed leaders: what clients may rely on, and what they may not."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing

import pytest

from penstock.model.errors import (
    CoordinatorUnavailableError,
    NodeChangedError,
    NodeNotFoundError,
    SessionEndedError,
    UnknownOutcomeError,
)
from penstock.testing.conformance.coordination import outcome
from penstock.testing.simulation.machine import coordination
from penstock.testing.simulation.machine.coordination import SimCoordination, SimCoordinator
from penstock.testing.simulation.machine.loop import make_loop

SEEDS = range(10)
SESSION_S = 4.0


async def break_things(coordinator: SimCoordinator, clients: list[SimCoordination], rng: random.Random, seconds: float):
    """Cut clients off and fail leaders, then heal everything."""
    loop = asyncio.get_running_loop()
    stop_at = loop.time() + seconds
    coordinator.loss = 0.05
    while loop.time() < stop_at:
        await asyncio.sleep(rng.uniform(0.1, 2.0))
        if rng.random() < 0.2:
            coordinator.fail_leader(rng.uniform(0.2, 3.0))
        else:
            client = rng.choice(clients)
            client.cut()
            loop.call_later(rng.uniform(0.1, 1.5 * SESSION_S), client.heal)
    coordinator.loss = 0.0
    await asyncio.sleep(2 * SESSION_S)


async def count_up(client: SimCoordination, counts: Counter[object]) -> None:
    """Set the next version until the session ends. Each version that was confirmed is counted."""
    while True:
        await asyncio.sleep(0.1)
        try:
            version = (await client.read("a")).version
            counts[await client.set("a", client.session().id.encode(), version)] += 1
        except NodeChangedError:
            counts["changed"] += 1
        except CoordinatorUnavailableError:
            counts["unavailable"] += 1
        except UnknownOutcomeError:
            counts["unknown"] += 1
        except SessionEndedError:
            return


def counted(seed: int) -> tuple[Counter[object], int, int]:
    """What three writers of one node counted, its last version, and the sessions that expired."""
    loop = make_loop(seed)
    counts: Counter[object] = Counter()

    async def main() -> tuple[int, int]:
        coordinator = SimCoordinator(loop.fork("coordinator"), session_s=SESSION_S, patience_s=3.0)
        clients = [coordinator.open() for _ in range(3)]
        await clients[0].create("a", b"")
        for client in clients:
            await client.sync()
        writers = [asyncio.ensure_future(count_up(client, counts)) for client in clients]
        await break_things(coordinator, clients, loop.fork("faults"), 30)
        for client in clients:
            await client.close()
        await asyncio.gather(*writers)
        return coordinator.tree["a"].node.version, coordinator.expired

    return counts, *loop.run(main(), max_seconds=300)


def test_each_version_is_confirmed_to_one_writer_and_none_is_lost() -> None:
    total: Counter[object] = Counter()
    expiries = 0
    for seed in SEEDS:
        counts, last, expired = counted(seed)
        confirmed = {version: count for version, count in counts.items() if isinstance(version, int)}
        assert set(confirmed.values()) == {1}, seed
        # Three sessions end with one change under way.
        assert len(confirmed) <= last <= len(confirmed) + counts["unknown"] + 3, seed
        total += counts
        expiries += expired
    # The faults that this is about did happen.
    assert min(total["unknown"], total["unavailable"], total["changed"], expiries) > 5


def too_long_leases(seed: int, rate: float) -> int:
    """Sessions whose end others could see while their own lease still ran. ``rate``: of the clients' clocks."""
    loop = make_loop(seed)
    found = 0

    async def main() -> None:
        nonlocal found
        coordinator = SimCoordinator(loop.fork("coordinator"), session_s=SESSION_S, patience_s=3.0)

        def clock() -> float:
            return loop.time() * rate

        clients = [coordinator.open(clock=clock) for _ in range(4)]
        for client in clients:
            await client.register(client.session().id, b"")
        faults = asyncio.ensure_future(break_things(coordinator, clients, loop.fork("faults"), 40))
        while not faults.done():
            for client in clients:
                state = client.session()
                found += state.id not in coordinator.tree and not state.ended and clock() < state.lease_end_s
            await asyncio.sleep(0.05)
        await faults
        for client in clients:
            await client.close()

    loop.run(main(), max_seconds=300)
    return found


@pytest.mark.parametrize("rate", [1.0, 0.8, 1.2])
def test_no_lease_outlives_its_session(rate: float) -> None:
    assert [too_long_leases(seed, rate) for seed in SEEDS[:7]] == [0] * 7


def test_a_lease_that_is_too_long_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordination, "lease_end_s", lambda sent_s, session_s: sent_s + 1.3 * session_s)
    assert any(too_long_leases(seed, 1.0) for seed in SEEDS)


def test_a_clock_that_runs_far_too_slow_is_detected() -> None:
    assert any(too_long_leases(seed, 0.5) for seed in SEEDS)


def simulated(main: Callable[[SimCoordinator], object], seed: int = 1) -> None:
    loop = make_loop(seed)
    coordinator = SimCoordinator(loop.fork("coordinator"), session_s=SESSION_S)
    loop.run(main(coordinator), max_seconds=300)  # type: ignore[arg-type]


def test_an_expired_client_learns_of_its_expiry_last() -> None:
    async def main(coordinator: SimCoordinator) -> None:
        loop = asyncio.get_running_loop()
        one, other = coordinator.open(), coordinator.open()
        await one.register("here", b"")
        one.cut()
        async with aclosing(other.notices("")) as notices:
            async for _ in notices:
                if list(await other.members("")) == []:
                    break
        assert not one.session().ended
        assert one.session().lease_end_s < loop.time()
        healed_at = loop.time() + 60
        loop.call_at(healed_at, one.heal)
        await one.ended()
        assert healed_at <= loop.time() < healed_at + 1
        assert await outcome(one.read("here")) is SessionEndedError
        await other.close()
        await one.close()

    simulated(main)


def test_an_election_ends_no_session() -> None:
    async def main(coordinator: SimCoordinator) -> None:
        one = coordinator.open()
        await one.register("here", b"")
        coordinator.fail_leader(2 * SESSION_S)
        await one.sync()
        assert list(await one.members("")) == ["here"]
        assert coordinator.expired == 0
        await one.close()

    simulated(main)


def test_a_change_of_unknown_outcome_may_happen_later() -> None:
    happened = Counter[bool]()
    for seed in range(40):

        async def main(coordinator: SimCoordinator) -> None:
            one = coordinator.open()
            coordinator.loss = 1.0
            found = await outcome(one.create("a", b""))
            coordinator.loss = 0.0
            if found is UnknownOutcomeError:
                before = await outcome(one.read("a")) is not NodeNotFoundError
                await asyncio.sleep(SESSION_S)
                happened[before, "a" in coordinator.tree] += 1
            await one.close()

        simulated(main, seed)
    assert happened[False, True]


def test_a_change_of_unknown_outcome_does_not_happen_after_a_later_one() -> None:
    unknown = 0
    for seed in range(40):

        async def main(coordinator: SimCoordinator) -> None:
            nonlocal unknown
            one = coordinator.open()
            coordinator.loss = 1.0
            found = await outcome(one.create("a", b""))
            coordinator.loss = 0.0
            unknown += found is UnknownOutcomeError
            await one.sync()
            before = "a" in coordinator.tree
            await asyncio.sleep(SESSION_S)
            assert ("a" in coordinator.tree) == before
            await one.close()

        simulated(main, seed)
    assert unknown > 5
