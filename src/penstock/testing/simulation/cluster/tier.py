"""Tier 2 in memory, shared by all machines: requests are slow, lost, or arrive minutes late."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from contextvars import Context
from typing import TypeVar

from penstock.model.errors import AlreadyExistsError, NotConnectedError
from penstock.storage.memory.memory_objects import MemoryObjects
from penstock.testing.simulation.machine.files import NodeCrashed
from penstock.testing.simulation.machine.loop import current_process

T = TypeVar("T")

_REQUEST_S = (0.001, 0.02)
_LATE_S = 180.0
"""How late a request can arrive whose sender no longer waits for it."""


class SharedTier:
    """Object stores by URL. ``slow_s``: longest duration of slow requests. ``loss``: share of requests without an answer."""

    def __init__(self, rng: random.Random, is_cut: Callable[[], bool]) -> None:
        self.rng = rng
        self.is_cut = is_cut
        """Whether the process that runs now cannot reach tier 2."""
        self.slow_s = 0.0
        self.loss = 0.0
        self.late = 0
        """Requests that arrived after their sender had given up."""
        self.parts: dict[str, MemoryObjects] = {}
        self.on_written: Callable[[str], None] = lambda name: None
        self.on_deleted: Callable[[str], None] = lambda name: None
        """Called by the process that has written or deleted the object."""

    def open(self, url: str, endpoint: str | None = None) -> TierObjects:
        """The objects below the URL."""
        return TierObjects(self, self.parts.setdefault(url, MemoryObjects()))

    async def enter(self) -> None:
        """One way to tier 2. Raises NotConnectedError, NodeCrashed."""
        slow = self.slow_s and self.rng.random() < 0.3
        await asyncio.sleep(self.rng.uniform(0, self.slow_s) if slow else self.rng.uniform(*_REQUEST_S))
        process = current_process()
        if process is not None and not process.alive:
            raise NodeCrashed
        if self.is_cut():
            await asyncio.sleep(0.5)
            raise NotConnectedError("planted: tier 2 does not answer")

    def loses(self) -> bool:
        return self.rng.random() < self.loss

    def arrive_late(self, change: Callable[[], object]) -> None:
        """Let a change happen after its sender was refused an answer, up to minutes later."""
        self.late += 1
        delay_s = self.rng.uniform(0, 1) ** 3 * _LATE_S
        asyncio.get_running_loop().call_later(delay_s, change, context=Context())


class TierObjects:
    """Implements ``ports.objects.Objects`` for one process."""

    def __init__(self, tier: SharedTier, objects: MemoryObjects) -> None:
        self._tier = tier
        self._objects = objects

    async def put(self, name: str, data: bytes) -> None:
        await self._change(lambda: self._objects._objects.__setitem__(name, data), lambda: self._tier.on_written(name))

    async def create(self, name: str, data: bytes) -> None:
        await self._tier.enter()
        kept = self._objects._objects
        if self._tier.loses():
            self._tier.arrive_late(lambda: kept.setdefault(name, data))
            raise NotConnectedError("planted: tier 2 gave no answer, and the request may still arrive")
        if name in kept:
            raise AlreadyExistsError("object exists", object=name)
        kept[name] = data
        self._tier.on_written(name)
        if self._tier.loses():  # the library has sent the request twice
            self._tier.arrive_late(lambda: kept.setdefault(name, data))
        await self._tier.enter()

    async def overwrite(self, name: str, data: bytes) -> None:
        await self._tier.enter()
        await self._objects.size(name)
        await self._change(lambda: self._objects._objects.__setitem__(name, data), lambda: self._tier.on_written(name))

    async def keeps_versions(self, name: str) -> bool:
        await self._tier.enter()
        return await self._objects.keeps_versions(name)

    async def delete(self, name: str) -> None:
        await self._change(lambda: self._objects._objects.pop(name, None), lambda: self._tier.on_deleted(name))

    async def read(self, name: str, start: int, length: int) -> bytes:
        await self._tier.enter()
        return await self._objects.read(name, start, length)

    async def size(self, name: str) -> int:
        await self._tier.enter()
        return await self._objects.size(name)

    async def list(self, directory: str) -> Mapping[str, int]:
        await self._tier.enter()
        return await self._objects.list(directory)

    def location(self, name: str) -> str | None:
        return None

    async def _change(self, change: Callable[[], object], changed: Callable[[], None]) -> None:
        await self._tier.enter()
        if self._tier.loses():
            self._tier.arrive_late(change)
            raise NotConnectedError("planted: tier 2 gave no answer, and the request may still arrive")
        change()
        changed()
        await self._tier.enter()
