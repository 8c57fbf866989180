"""Stores and controllers on a coordinator that fails: no answer is out of date, and in the end all is served.

In virtual time, with containers that only know their epoch.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from penstock.app.cluster.holding import Holding, HoldingLimits, UnitHost
from penstock.app.cluster.keeper import keep_assignment
from penstock.app.cluster.node import NodeLimits, StoreNode
from penstock.app.cluster.registration import FailedOpenings
from penstock.app.cluster.unit_links import UnitLinks
from penstock.app.cluster.units_router import UnitsRouter
from penstock.codec.store.cluster_nodes import (
    ASSIGNMENT,
    HOLDERS,
    REQUESTS,
    STORES,
    TERM,
    Assignment,
    HeldContainer,
    Requests,
    StoreEntry,
    Term,
    decode_node,
    encode_node,
)
from penstock.model.errors import (
    ContainerOfflineError,
    CoordinatorUnavailableError,
    SessionEndedError,
    UnavailableError,
)
from penstock.segmentstore.store import SegmentStore
from penstock.testing.simulation.machine.coordination import SimCoordination, SimCoordinator
from penstock.testing.simulation.machine.loop import make_loop
from tests.cluster.cluster_kit import LoopClock

CONTAINERS, STORE_NAMES, SEEDS = 6, ("a", "b", "c"), range(6)
SESSION_S, FAULTS_S, HEALED_S, LOOK_S = 4.0, 60.0, 120.0, 0.02


class Unit:
    """A container that is open, as far as its store knows."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.offline: ContainerOfflineError | None = None
        self._stopped = asyncio.Event()

    def go_offline(self) -> None:
        self.offline = ContainerOfflineError("log was fenced by a later opening")
        self._stopped.set()

    async def until_offline(self) -> None:
        await self._stopped.wait()

    async def flush(self) -> None:
        await asyncio.sleep(0.1)


@dataclass(slots=True)
class World:
    """``newest``: the last complete opening of each container. ``stale``: answers that were out of date."""

    rng: random.Random
    coordinator: SimCoordinator
    machines: list[Machine] = field(default_factory=list)
    newest: dict[int, Unit] = field(default_factory=dict)
    stale: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def opened(self, number: int) -> AsyncIterator[Unit]:
        await asyncio.sleep(self.rng.uniform(0.05, 1.0))
        if self.rng.random() < 0.1:
            raise UnavailableError("planted: bookies do not answer")
        before = self.newest.get(number)
        unit = self.newest[number] = Unit(1 if before is None else before.epoch + 1)
        if before is not None:
            # The earlier owner finds out with its next append, or its next checkpoint.
            asyncio.get_running_loop().call_later(self.rng.uniform(0.0, 20.0), before.go_offline)
        self.look()
        yield unit
        await asyncio.sleep(self.rng.uniform(0.0, 0.5))

    def look(self) -> None:
        """Note whether a store would answer now from a container that another opening has taken over."""
        for machine in self.machines:
            for number, unit in machine.units().items():
                if unit is not self.newest[number] and machine.node.answer_check()():
                    now_s = asyncio.get_running_loop().time()
                    self.stale.append(f"{machine.name} answers from container {number} at {now_s:.2f} s")


@dataclass(slots=True, eq=False)
class Machine:
    """A machine with a store, which can be cut off."""

    world: World
    name: str
    client: SimCoordination | None = None
    linked: asyncio.Event = field(default_factory=asyncio.Event)
    router: UnitsRouter = field(default_factory=lambda: UnitsRouter(CONTAINERS))
    node: StoreNode = field(init=False)

    def __post_init__(self) -> None:
        self.linked.set()
        host = UnitHost(
            open=cast("Any", self.world.opened), router=self.router, links=UnitLinks(self.router.container_of)
        )
        limits = NodeLimits(holding=HoldingLimits(pause_max_s=2.0))
        self.node = StoreNode(
            host, open_session=self.open_session, boot_clock=asyncio.get_running_loop().time, limits=limits
        )

    def units(self) -> dict[int, Unit]:
        return cast("dict[int, Unit]", self.router._units)

    @asynccontextmanager
    async def open_session(self) -> AsyncIterator[SimCoordination]:
        if not self.linked.is_set():
            await asyncio.sleep(1.0)
            raise CoordinatorUnavailableError("planted: cut off")
        self.client = self.world.coordinator.open()
        try:
            yield self.client
        finally:
            await self.client.close()

    def cut(self, seconds: float) -> None:
        self.linked.clear()
        if self.client is not None:
            self.client.cut()
        asyncio.get_running_loop().call_later(seconds, self.heal)

    def heal(self) -> None:
        self.linked.set()
        if self.client is not None:
            self.client.heal()

    async def run(self) -> None:
        await self.node.run(StoreEntry(store=self.name, clients=f"{self.name}:1", links=f"{self.name}:2", pid=1))


async def control(coordinator: SimCoordinator) -> None:
    """A controller, which is started again when its session ends."""
    while True:
        client = coordinator.open()
        try:
            await keep_assignment(client, containers=CONTAINERS, clock=LoopClock())
        except SessionEndedError:
            continue
        finally:
            await client.close()


async def break_things(world: World, loss: float) -> None:
    loop, rng = asyncio.get_running_loop(), world.rng
    stop_at = loop.time() + FAULTS_S
    world.coordinator.loss = loss
    while loop.time() < stop_at:
        await asyncio.sleep(rng.uniform(0.2, 4.0))
        if rng.random() < 0.2:
            world.coordinator.fail_leader(rng.uniform(0.2, 3.0))
        elif rng.random() < 0.3:
            unit = rng.choice(list(world.newest.values()))
            unit.go_offline()
        else:
            rng.choice(world.machines).cut(rng.uniform(0.1, 3 * SESSION_S))
    world.coordinator.loss = 0.0


def serving(coordinator: SimCoordinator) -> dict[int, str]:
    entries = {
        path: decode_node(HeldContainer, entry.node.data)
        for path, entry in coordinator.tree.items()
        if path.startswith(f"{HOLDERS}/")
    }
    return {int(path.removeprefix(f"{HOLDERS}/")): one.store for path, one in entries.items() if one.serving}


def stale_answers(seed: int, *, loss: float = 0.05) -> list[str]:
    """What was out of date in one run, which ends with all containers served. ``loss``: share of requests without an
    answer."""
    loop = make_loop(seed)

    async def look(world: World) -> None:
        while True:
            world.look()
            await asyncio.sleep(LOOK_S)

    async def main() -> list[str]:
        coordinator = SimCoordinator(loop.fork("coordinator"), session_s=SESSION_S, patience_s=3.0)
        first = coordinator.open()
        nodes = {REQUESTS: Requests(), ASSIGNMENT: Assignment(), TERM: Term(term=1, controller="c")}
        for path in (STORES, HOLDERS):
            await first.create(path, b"")
        for path, node in nodes.items():
            await first.create(path, encode_node(node))
        await first.close()
        world = World(loop.fork("world"), coordinator)
        world.machines += [Machine(world, name) for name in STORE_NAMES]
        tasks = [asyncio.ensure_future(one.run()) for one in world.machines]
        others = [asyncio.ensure_future(control(coordinator)) for _ in range(2)]
        others.append(asyncio.ensure_future(look(world)))
        await until(lambda: len(serving(coordinator)) == CONTAINERS)
        await break_things(world, loss)
        # A store that was lost three times may have none of them.
        await until(lambda: sum(len(one.units()) for one in world.machines) == CONTAINERS == len(serving(coordinator)))
        assert not any(task.done() for task in tasks)
        for machine in world.machines:
            machine.node.stop()
        for task in others[:2]:
            task.cancel()
        await asyncio.wait(tasks, timeout=HEALED_S)
        for task in tasks:
            task.result()
        assert [path for path in coordinator.tree if path.startswith((f"{HOLDERS}/", f"{STORES}/"))] == []
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        return world.stale

    return cast("list[str]", loop.run(main(), max_seconds=600))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(HEALED_S):
        while not condition():
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_store_answers_for_a_container_that_another_one_has_taken_over(seed: int) -> None:
    assert stale_answers(seed) == []


@pytest.mark.parametrize("seed", range(6, 9))
def test_nothing_is_lost_with_many_unknown_outcomes(seed: int) -> None:
    assert stale_answers(seed, loss=0.35) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(9, 100))
def test_stores_survive_more_worlds(seed: int) -> None:
    assert stale_answers(seed, loss=random.Random(seed).choice((0.02, 0.1, 0.35))) == []


def test_planted_a_store_that_ignores_its_lease_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoreNode, "answer_check", lambda self: lambda: self._session is not None)
    assert any(stale_answers(seed) for seed in SEEDS)


def test_planted_a_store_that_lets_go_before_it_closes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Holding._flush

    async def flush(self: Holding, store: SegmentStore) -> None:
        await self._registration.drop()
        await asyncio.sleep(2.0)
        await original(self, store)

    monkeypatch.setattr(Holding, "_flush", flush)
    assert any(stale_answers(seed) for seed in SEEDS)


def test_a_container_that_is_dropped_as_its_session_ends_leaves_no_error_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python reports an error that nobody takes, and the simulated loop fails with it."""

    async def hold(self: Holding) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise SessionEndedError("planted: the session has ended")

    async def main() -> None:
        session = SimCoordinator(loop.fork("coordinator")).open()
        host = UnitHost(open=cast("Any", None), router=UnitsRouter(CONTAINERS), links=UnitLinks(lambda _: 0))
        entry = HeldContainer(store="a", clients="a:1", links="a:2", serving=False, session="s")
        limits = HoldingLimits()
        failures = FailedOpenings(session, again_s=limits.again_s, again_max_s=limits.again_max_s)
        holding = Holding(0, session, entry, host, slots=asyncio.Semaphore(1), failures=failures, limits=limits)
        running = asyncio.ensure_future(holding.run())
        await asyncio.sleep(0.1)
        running.cancel()
        await asyncio.wait({running})
        assert running.cancelled()
        del holding, running
        gc.collect()
        await session.close()

    monkeypatch.setattr(Holding, "_hold", hold)
    loop = make_loop(1)
    loop.run(main())
