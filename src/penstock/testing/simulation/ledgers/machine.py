"""A coordinator and connections on virtual time, and the processes of owners."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from penstock.model.errors import NotConnectedError, PenstockError
from penstock.testing.bookkeeper.bookies import SimBookKeeper
from penstock.testing.bookkeeper.nodes import MemoryNodes
from penstock.testing.simulation.machine.loop import current_process

T = TypeVar("T")

_HOP_S = (0.0002, 0.002)  # one way to a server in the same building
_SLOW_S = (0.05, 0.6)  # a packet that was sent again
_SLOW_SHARE = 0.02  # of all messages
_LATE_S = 120.0
"""How late a change can arrive whose sender was cut off, and whose deletion nobody waits for."""


class SimNodes(MemoryNodes):
    """Implements ``ports.cluster.nodes.Nodes``. Calls are lost before or after they happen, or happen much later.

    ``loss``: the share of calls of which that is true. ``slow_s``: by how much longer a message may be under way. A dead
    process reaches nothing. ``on_lost``: called when a change was made and its answer is lost, so that something can
    happen before it is repeated. ``on_changed``: called with each path that was created, changed or deleted, and with
    what it held before.
    """

    def __init__(self, nodes: dict[str, tuple[bytes, int]], rng: random.Random) -> None:
        super().__init__(nodes)
        self.rng = rng
        self.loss = self.slow_s = 0.0
        self.on_lost: Callable[[], None] = lambda: None
        self.on_changed: Callable[[str, bytes], None] = lambda path, before: None

    async def read(self, path: str) -> tuple[bytes, int]:
        return await self._call(lambda: MemoryNodes.read(self, path), late=False)

    async def create(self, path: str, data: bytes) -> None:
        await self._call(lambda: self._changed(path, MemoryNodes.create(self, path, data)))

    async def next_number(self, prefix: str) -> int:
        return await self._call(lambda: MemoryNodes.next_number(self, prefix), late=False)

    async def set(self, path: str, data: bytes, *, version: int) -> int:
        return await self._call(lambda: self._changed(path, MemoryNodes.set(self, path, data, version=version)))

    async def delete(self, path: str) -> None:
        await self._call(lambda: self._changed(path, MemoryNodes.delete(self, path)))

    async def children(self, path: str) -> Sequence[str]:
        return await self._call(lambda: MemoryNodes.children(self, path), late=False)

    async def _changed(self, path: str, change: Awaitable[T]) -> T:
        before = self.nodes.get(path, (b"", 0))[0]
        made = await change
        self.on_changed(path, before)
        return made

    async def _call(self, work: Callable[[], Awaitable[T]], *, late: bool = True) -> T:
        await self._hop()
        if self.rng.random() < self.loss:
            if late and self.rng.random() < 0.5:
                loop = asyncio.get_running_loop()
                loop.call_later(self.rng.uniform(0, 1) ** 3 * _LATE_S, lambda: loop.create_task(_arrive(work)))
            raise NotConnectedError("answer was lost; the call may still happen")
        try:
            made = await work()
        finally:
            await self._hop()
        if self.rng.random() < self.loss:
            if late:
                self.on_lost()
            raise NotConnectedError("answer was lost; the call happened")
        return made

    async def _hop(self) -> None:
        slow_s = self.rng.uniform(0.0, self.slow_s) if self.slow_s else 0.0
        await asyncio.sleep(link_delay_s(self.rng) + slow_s)
        process = current_process()
        if process is not None and not process.alive:
            raise NotConnectedError("the process is gone")


async def _arrive(work: Callable[[], Awaitable[object]]) -> None:
    try:
        await work()
    except PenstockError:
        return  # nobody waits for this answer any more


def link_delay_s(rng: random.Random) -> float:
    """How long a message is under way."""
    return rng.uniform(*(_SLOW_S if rng.random() < _SLOW_SHARE else _HOP_S))


def make_bookkeeper(count: int, rng: random.Random, *, sync_s: float) -> SimBookKeeper:
    """Bookies behind connections that are sometimes slow, and a coordinator that can lose answers."""
    world = SimBookKeeper(count, sync_s=sync_s)
    world.nodes = SimNodes(world.nodes.nodes, rng)
    world.delay_s = lambda: link_delay_s(rng)
    return world
