"""What tests of a cluster's controllers share: an initialised cluster in memory, and a clock that follows the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.app.cluster.election import leading
from penstock.app.cluster.init import ClusterPlan, create_nodes
from penstock.codec.store.cluster_nodes import (
    ASSIGNMENT,
    STORES,
    Assignment,
    StoreEntry,
    Term,
    decode_node,
    encode_node,
)
from penstock.ports.cluster.coordination import Coordination
from penstock.storage.memory.memory_coordination import MemoryCoordination, MemoryCoordinator
from penstock.storage.memory.memory_objects import MemoryObjects
from penstock.testing.fakes import START_MS, SeededRng

CONTAINERS = 4


class LoopClock:
    """Wall time that passes as the event loop's does."""

    def now_ms(self) -> int:
        return START_MS + round(asyncio.get_running_loop().time() * 1000)


async def new_cluster(containers: int = CONTAINERS) -> MemoryCoordinator:
    coordinator = MemoryCoordinator()
    config = ClusterPlan(tier2="s3://bucket/tests", containers=containers).config("ours")
    await create_nodes(coordinator.open(), config, MemoryObjects(), SeededRng(1))
    return coordinator


async def join(coordinator: MemoryCoordinator, store: str) -> MemoryCoordination:
    """Register a store, in a session of its own."""
    session = coordinator.open()
    entry = StoreEntry(store=store, clients=f"{store}:1", links=f"{store}:2", pid=1)
    await session.register(f"{STORES}/{store}", encode_node(entry))
    return session


async def assignment(session: Coordination) -> Assignment:
    return decode_node(Assignment, (await session.read(ASSIGNMENT)).data)


async def until(session: Coordination, wanted: Callable[[Assignment], bool]) -> Assignment:
    """Wait for an assignment, in virtual time."""
    while not wanted(found := await assignment(session)):
        await asyncio.sleep(0.05)
    return found


def boot_clock() -> float:
    return asyncio.get_running_loop().time()


class Candidate:
    """A controller: leads until it is stopped, and notes its term."""

    def __init__(self, session: Coordination, name: str) -> None:
        self.session = session
        self.stop = asyncio.Event()
        self.term: Term | None = None
        self.task = asyncio.ensure_future(self._run(name))

    async def _run(self, name: str) -> str:
        async with leading(self.session, name, boot_clock=boot_clock) as term:
            self.term = term
            await self.stop.wait()
        return "resigned"


async def until_leading(*candidates: Candidate) -> list[Candidate]:
    while not (found := [one for one in candidates if one.term is not None]):
        await asyncio.sleep(0.01)
    return found
