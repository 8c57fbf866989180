"""The laws of the segment service, for the store."""

from __future__ import annotations

import inspect
from contextlib import asynccontextmanager

from store_world import World

from penstock.testing.conformance.erasure import ErasureLaws
from penstock.testing.conformance.segments import SegmentLaws


class Between:
    """A store with which something happens before each call."""

    def __init__(self, world: World, what: str) -> None:
        self.world = world
        self.what = what

    def __getattr__(self, name: str):
        method = getattr(self.world.store, name)
        if not inspect.iscoroutinefunction(method) or name in ("limits_reached", "rates_reported"):
            return method

        async def call(*arguments, **keywords):
            await getattr(self, self.what)()
            return await getattr(self.world.store, name)(*arguments, **keywords)

        return call

    async def nothing(self) -> None:
        """As it is."""

    async def flush(self) -> None:
        await self.world.store.flush()

    async def checkpoint(self) -> None:
        for container in self.world.store.containers:
            await container.checkpointer.checkpoint()

    async def evict(self) -> None:
        await self.world.evict()


class StoreLaws(SegmentLaws, ErasureLaws):
    def __init__(self, what: str, reopening: str, **settings) -> None:
        self.world = World(**settings)
        self.what = what
        self.reopening = reopening

    @asynccontextmanager
    async def open(self):
        await self.world.open()
        try:
            yield Between(self.world, self.what)
        finally:
            await self.world.store.close(checkpoint=self.reopening == "restart")
        if self.reopening == "blackout":
            self.world.chunks.lose_unsynced()
