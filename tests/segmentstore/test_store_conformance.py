"""The real store keeps the laws of its port, whatever it tiers, forgets and recovers between two calls."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import asynccontextmanager

import pytest
from store_world import World

from penstock.testing.conformance import laws
from penstock.testing.conformance.erasure import ErasureLaws
from penstock.testing.conformance.segments import SegmentLaws

PATIENCE_S = 30.0


class Between:
    """A store with which something happens before each call."""

    def __init__(self, world: World, what: str) -> None:
        self.world = world
        self.what = what

    def __getattr__(self, name: str):
        method = getattr(self.world.store, name)
        if not inspect.iscoroutinefunction(method) or name == "limits_reached":
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


@pytest.mark.parametrize("reopening", ["restart", "blackout"])
@pytest.mark.parametrize("what", ["nothing", "flush", "checkpoint", "evict"])
@pytest.mark.parametrize("law", [*laws(SegmentLaws), *laws(ErasureLaws)])
def test_laws_of_segments(law: str, what: str, reopening: str) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await getattr(StoreLaws(what, reopening, flush_bytes=30, chunk_bytes=100, free_head_bytes=1), law)()

    asyncio.run(main())
