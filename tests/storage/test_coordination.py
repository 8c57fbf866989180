"""Coordination in memory and simulated is held to the laws of its port; ZooKeeper's is in tests/cluster."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from penstock.ports.cluster.coordination import Coordination
from penstock.storage.memory.memory_coordination import MemoryCoordinator
from penstock.testing.conformance import laws, run_conformance
from penstock.testing.conformance.coordination import CoordinationLaws
from penstock.testing.simulation.machine.coordination import SimCoordination, SimCoordinator
from penstock.testing.simulation.machine.loop import make_loop

LAWS = laws(CoordinationLaws)


class MemoryLaws(CoordinationLaws):
    def __init__(self) -> None:
        self.coordinator = MemoryCoordinator()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Coordination]:
        session = self.coordinator.open()
        yield session
        await session.close()

    async def expire(self, session: Coordination) -> None:
        self.coordinator.expire(session.session().id)


class SimulatedLaws(CoordinationLaws):
    def __init__(self, seed: int) -> None:
        self.coordinator = SimCoordinator(random.Random(seed))

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Coordination]:
        session = self.coordinator.open()
        try:
            yield session
        finally:
            await session.close()

    async def expire(self, session: Coordination) -> None:
        assert isinstance(session, SimCoordination)
        self.coordinator.end(session.session().id)


@pytest.mark.parametrize("law", LAWS)
def test_the_laws_hold_in_memory(law: str) -> None:
    run_conformance(MemoryLaws, law=law)


@pytest.mark.parametrize("law", LAWS)
def test_the_laws_hold_in_many_simulated_orders(law: str) -> None:
    for seed in range(5):
        loop = make_loop(seed)
        loop.run(getattr(SimulatedLaws(seed), law)(), max_seconds=600)
