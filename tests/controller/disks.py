"""The controller over the real segment store, with storage in memory that outlives both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from controller_world import (
    QUIET,
    Counters,
    FakeClock,
    SeededRng,
)

from penstock.codec.events import frame_events
from penstock.controller.controller import Controller, open_controller
from penstock.controller.settings import ControllerSettings
from penstock.ports.control.layout import Endpoint
from penstock.ports.data.segments import NO_EVENT, Append
from penstock.segmentstore.parts import StoreParts
from penstock.segmentstore.settings import StoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.storage.memory.memory_chunks import MemoryChunks
from penstock.storage.memory.memory_keyvalue import MemoryKeyValue
from penstock.storage.memory.memory_log import MemoryLog, MemoryLogState
from penstock.storage.memory.memory_objects import MemoryObjects

WRITER = UUID(int=77)


class InlineOffload:
    async def run(self, work):
        await asyncio.sleep(0)
        return work()


class Disks:
    def __init__(self, settings: ControllerSettings = QUIET) -> None:
        self.settings = settings
        self.log, self.keyvalue, self.chunks = MemoryLogState(), MemoryKeyValue(), MemoryChunks()
        self.catalogue: MemoryObjects | None = None
        self.clock = FakeClock()
        self.written: dict[str, int] = {}

    @asynccontextmanager
    async def opened(self, *, crash: bool = False) -> AsyncIterator[tuple[SegmentStore, Controller]]:
        """``crash``: leave without a checkpoint, so that the next opening replays the log."""
        store = SegmentStore(
            MemoryLog(self.log),
            StoreParts(
                keyvalue=self.keyvalue,
                chunks=self.chunks,
                clock=self.clock,
                rng=SeededRng(2),
                offload=InlineOffload(),
                telemetry=Counters(),
                settings=StoreSettings(containers=4),
                catalogue=self.catalogue,
            ),
        )
        await store.recover()
        store.start()
        try:
            async with open_controller(
                store,
                self.clock,
                SeededRng(),
                lambda _: Endpoint(host="h", port=1),
                Counters(),
                self.settings,
                steady=self.clock.passed_s,
            ) as controller:
                yield store, controller
        finally:
            await store.close(checkpoint=not crash)

    async def write(self, store: SegmentStore, name: str, data: bytes) -> None:
        previous = await store.setup_append(name, WRITER)
        number = 0 if previous == NO_EVENT else previous + 1
        await store.append(Append(segment=name, writer=WRITER, data=data, event_number=number, previous=previous))


async def everything(store: SegmentStore, name: str) -> bytes:
    info = await store.info(name)
    data, offset = b"", info.start_offset
    while offset < info.length:
        read = await store.read(name, offset, 1 << 20, wait=False)
        part = b"".join(bytes(item) for item in read.parts)
        data, offset = data + part, offset + len(part)
    return data


EVENT_WRITER = UUID(int=78)


async def write_events(store: SegmentStore, name: str, sizes: list[int]) -> int:
    """Append events of these sizes in one append; returns how many bytes that took."""
    previous = await store.setup_append(name, EVENT_WRITER)
    data = frame_events([b"e" * size for size in sizes])
    await store.append(
        Append(
            segment=name,
            writer=EVENT_WRITER,
            data=data,
            event_number=(0 if previous == NO_EVENT else previous) + len(sizes),
            event_count=len(sizes),
            previous=previous,
        )
    )
    return len(data)
