"""A store over memory that can be reopened, crashed, and looked into."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from uuid import UUID

from penstock.model.errors import PenstockError
from penstock.ports.data.segments import NO_EVENT, Append, Appended
from penstock.ports.data.service import LocalSegmentService
from penstock.segmentstore.parts import StoreParts
from penstock.segmentstore.settings import StoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.storage.memory.memory_chunks import MemoryChunks
from penstock.storage.memory.memory_keyvalue import MemoryKeyValue
from penstock.storage.memory.memory_log import MemoryLog, MemoryLogState
from penstock.storage.memory.memory_objects import MemoryObjects

PATIENCE_S = 20.0


class TestClock:
    __test__ = False

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms


class SeededRng:
    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def random(self) -> float:
        return self._random.random()

    def randrange(self, stop: int) -> int:
        return self._random.randrange(stop)

    def uuid(self) -> UUID:
        return UUID(int=self._random.getrandbits(128))


class InlineOffload:
    async def run(self, work):
        await asyncio.sleep(0)
        return work()


class Figures:
    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.gauges: dict[str, float] = {}

    def add(self, name: str, amount: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + amount

    def gauge(self, name: str, value: float) -> None:
        self.gauges[name] = value


SMALL = {"containers": 2, "tier_gather_bytes": 1, "flush_interval_s": 3600.0, "checkpoint_interval_s": 3600.0}


class World:
    """The disks, and the store that is open on them. ``crash`` leaves without a checkpoint, ``reopen`` recovers."""

    def __init__(self, *, make: type[SegmentStore] = SegmentStore, catalogue: bool = False, **settings) -> None:
        self.settings = StoreSettings(**(SMALL | settings))
        self.log_state = MemoryLogState()
        self.keyvalue = MemoryKeyValue()
        self.chunks = MemoryChunks(brings_back=True)
        self.clock = TestClock()
        self.rng = SeededRng()
        self.figures = Figures()
        self.make = make
        self.objects: MemoryObjects | None = MemoryObjects() if catalogue else None
        self.store: SegmentStore

    def make_log(self) -> MemoryLog:
        return MemoryLog(self.log_state)

    async def open(self) -> SegmentStore:
        self.store = self.make(
            self.make_log(),
            StoreParts(
                keyvalue=self.keyvalue,
                chunks=self.chunks,
                clock=self.clock,
                rng=self.rng,
                offload=InlineOffload(),
                telemetry=self.figures,
                settings=self.settings,
                catalogue=self.objects,
            ),
        )
        await self.store.recover()
        self.store.start()
        return self.store

    async def crash(self) -> SegmentStore:
        await self.store.close(checkpoint=False)
        return await self.open()

    async def blackout(self) -> SegmentStore:
        """Crash, and lose what tier 2 was not told to sync."""
        await self.store.close(checkpoint=False)
        self.chunks.lose_unsynced()
        return await self.open()

    async def restart(self) -> SegmentStore:
        await self.store.close()
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
