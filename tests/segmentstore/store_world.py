"""A store over memory that can be reopened, crashed, and looked into."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from uuid import UUID

from penstock.model.errors import PenstockError
from penstock.ports.data.segments import NO_EVENT, Append, Appended
from penstock.ports.data.service import LocalSegmentService
from penstock.segmentstore.store import SegmentStore
from penstock.testing import world as testing

PATIENCE_S = 20.0


class World(testing.World):
    """A store without a controller, and what else can be done to one."""

    async def blackout(self) -> SegmentStore:
        """Crash, and lose what tier 2 did not sync."""
        await self.store.close(checkpoint=False)
        self.chunks.lose_unsynced()
        return await self.open()

    async def settle(self) -> None:
        """Tier, checkpoint and free all that can be, orphans included."""
        while not all(container.reclaimer.orphans_known for container in self.store.containers):
            await asyncio.sleep(0)
        for _ in range(2):
            await self.store.flush()

    async def evict(self) -> None:
        """Make every segment leave memory that no call works with."""
        for _ in range(2):  # What the first gives back is accounted for by the second.
            await self.store.flush()
        for container in self.store.containers:
            for _ in range(2):
                container.segments.evict_idle(0)
            assert all(segment.pins for segment in container.segments.loaded())


@asynccontextmanager
async def world(**settings) -> AsyncIterator[World]:
    made = World(**settings)
    await made.open()
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield made
    finally:
        await made.store.close(checkpoint=False)


def run(test: Callable[[World], object], **settings) -> None:
    async def main() -> None:
        async with world(**settings) as made:
            await test(made)

    asyncio.run(main())


def writer(number: int) -> UUID:
    return UUID(int=number)


class Writer:
    """One writer's appends to one segment, numbered from where the store says it is."""

    def __init__(self, store: LocalSegmentService, segment: str, number: int = 1) -> None:
        self.store = store
        self.segment = segment
        self.id = writer(number)
        self.last = NO_EVENT

    async def setup(self) -> Writer:
        self.last = await self.store.setup_append(self.segment, self.id)
        return self

    def request(self, data, *, expected_offset: int | None = None, count: int = 1) -> Append:
        number = max(self.last, -1) + count
        return Append(
            segment=self.segment,
            writer=self.id,
            data=data,
            event_number=number,
            event_count=count,
            previous=self.last,
            expected_offset=expected_offset,
        )

    async def append(self, data, **how) -> int:
        request = self.request(data, **how)
        end = (await self.store.append(request)).end_offset
        self.last = request.event_number
        return end

    def submit(self, data, results: list[Appended | PenstockError], **how) -> None:
        request = self.request(data, **how)
        self.last = request.event_number
        self.store.submit_append(request, results.append)


async def append(store: LocalSegmentService, segment: str, data, number: int = 1) -> int:
    return await (await Writer(store, segment, number).setup()).append(data)


async def content(store: LocalSegmentService, segment: str, start: int | None = None) -> bytes:
    """All that can be read of a segment now."""
    info = await store.info(segment)
    offset = info.start_offset if start is None else start
    found = bytearray()
    while offset < info.length:
        part = await store.read(segment, offset, 1 << 20, wait=False)
        assert part.offset == offset
        data = b"".join(part.parts)
        assert data, "nothing to read before the length"
        found += data
        offset += len(data)
    return bytes(found)
