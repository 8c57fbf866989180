"""The controller over the real segment store, with storage in memory that outlives both."""

from __future__ import annotations

from uuid import UUID

from controller_world import QUIET

from penstock.codec.events import frame_events
from penstock.controller.settings import ControllerSettings
from penstock.ports.data.segments import NO_EVENT, Append
from penstock.segmentstore.store import SegmentStore
from penstock.testing.world import World

WRITER = UUID(int=77)


class Disks(World):
    """A world with the settings of these tests."""

    def __init__(self, settings: ControllerSettings = QUIET) -> None:
        super().__init__(controller=settings, containers=4)

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
