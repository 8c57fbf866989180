"""A task attempt that writes its rows to tier 2 itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import field

from penstock.codec.store.chunk_builder import BuiltChunk, ChunkBuilder
from penstock.model.errors import UnsupportedError
from penstock.model.names import StreamName, segment_name, transaction_segment_name
from penstock.model.segments import SegmentId
from penstock.model.values.dataclass import dataclass
from penstock.ports.control.transactions import Transaction
from penstock.ports.data.imports import ChunkImports, ImportedChunk, ImportGrant
from penstock.spark.connect import Services, patiently
from penstock.spark.writing.frames import Framed
from penstock.storage.chunks.imports import ImportPlace, open_place

HELD_BYTES = 128 << 20
"""The bytes that an attempt buffers for all segments before it writes incomplete chunks."""

_IN_FLIGHT = 3
"""Chunks written at the same time: two are synced while the next one is framed."""

Names = Callable[[SegmentId], str]


@dataclass(slots=True)
class _Lane:
    """One segment of the transaction: its place for chunks, the buffered events, and the chunks written, in order."""

    place: ImportPlace
    builder: ChunkBuilder
    begun: int = 0
    written: dict[int, ImportedChunk] = field(default_factory=dict)


class DirectAttempt:
    """Chunks of one attempt, for the segments of a shared transaction. Made by ``open_attempt``."""

    def __init__(self, services: Services, stream: StreamName, transaction: Transaction) -> None:
        self._services = services
        self._stream = stream
        self._transaction = transaction
        self._lanes: dict[int, _Lane] = {}
        self._held = 0
        self._block_bytes = 0
        self._writing: dict[asyncio.Task[None], int] = {}

    @property
    def block_bytes(self) -> int:
        """The largest recommended run of events, in bytes."""
        return self._block_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes that are buffered or in flight."""
        return self._held + sum(self._writing.values())

    async def relieve(self) -> None:
        """Return once fewer bytes are held: writes the largest part, or waits for a chunk in flight."""
        if self._held:
            await self._finish_lane(max(self._lanes.values(), key=lambda item: item.builder.size_bytes))
        if self._writing:
            await self._settle(asyncio.FIRST_COMPLETED)

    async def open(self, index: int) -> bool:
        """Whether this process can write to the store's tier 2. ``index`` is a segment that has rows.

        Raises what the store raises when it grants a place, except that the call is not offered."""
        if not isinstance(self._services.segments, ChunkImports):
            return False
        try:
            grant = await self._grant(index)
        except UnsupportedError:
            return False  # An older store.
        self._block_bytes = grant.block_bytes
        return await self._open_lane(index, grant) is not None

    async def _grant(self, index: int) -> ImportGrant:
        imports = self._services.segments
        if not isinstance(imports, ChunkImports):
            raise UnsupportedError("this store does not adopt chunks")
        parent = segment_name(self._stream, self._transaction.segments[index].segment)
        return await patiently(lambda: imports.grant_import(transaction_segment_name(parent, self._transaction.id)))

    async def _open_lane(self, index: int, grant: ImportGrant) -> _Lane | None:
        place = await open_place(grant)
        if place is None:
            return None
        builder = ChunkBuilder(block_bytes=grant.block_bytes, chunk_bytes=grant.chunk_bytes)
        lane = self._lanes[index] = _Lane(place, builder)
        return lane

    async def add(self, part: Framed) -> None:
        """Take framed events for one segment.

        Raises what an earlier write raised, and UnsupportedError if another worker's tier 2 cannot be accessed from
        here."""
        lane = self._lanes.get(part.index)
        if lane is None:
            lane = await self._open_lane(part.index, await self._grant(part.index))
            if lane is None:
                raise UnsupportedError(
                    "a part of the store's tier 2 cannot be accessed from here; use option direct=false",
                    stream=self._stream,
                    segment=self._transaction.segments[part.index].segment,
                )
        full = lane.builder.add(part.data, part.count)
        self._held += len(part.data)
        if full is not None:
            await self._write(lane, full)
        while self._held > HELD_BYTES:
            largest = max(self._lanes.values(), key=lambda item: item.builder.size_bytes)
            await self._finish_lane(largest)

    async def _finish_lane(self, lane: _Lane) -> None:
        built = lane.builder.finish()
        if built is not None:
            await self._write(lane, built)

    async def _write(self, lane: _Lane, built: BuiltChunk) -> None:
        """Begin to write a chunk, once there is a free slot."""
        self._held -= built.size_bytes
        number, lane.begun = lane.begun, lane.begun + 1

        async def write() -> None:
            lane.written[number] = await lane.place.write(number, built)

        self._writing[asyncio.ensure_future(write())] = built.size_bytes
        while len(self._writing) >= _IN_FLIGHT:
            await self._settle(asyncio.FIRST_COMPLETED)
        # Let it begin before the caller blocks on its next rows.
        await asyncio.sleep(0)

    async def _settle(self, when: str) -> None:
        done, _ = await asyncio.wait(self._writing, return_when=when)
        for task in done:
            del self._writing[task]
        for task in done:
            task.result()

    async def finish(self) -> tuple[tuple[SegmentId, tuple[ImportedChunk, ...]], ...]:
        """Make all rows durable; returns the chunks of each segment in order."""
        for lane in self._lanes.values():
            await self._finish_lane(lane)
        while self._writing:
            await self._settle(asyncio.ALL_COMPLETED)
        for lane in self._lanes.values():
            if lane.begun:
                await lane.place.settle()
        return tuple(
            (self._transaction.segments[index].segment, _in_order(lane))
            for index, lane in sorted(self._lanes.items())
            if lane.begun
        )

    async def cancel(self) -> None:
        """Stop, and delete the written chunks as far as possible."""
        tasks: Sequence[asyncio.Task[None]] = list(self._writing)
        # Threads write the files and cannot be stopped: wait for them, so that no file appears after the removal.
        await asyncio.gather(*tasks, return_exceptions=True)
        self._writing.clear()
        for lane in self._lanes.values():
            await lane.place.remove(range(lane.begun))


def _in_order(lane: _Lane) -> tuple[ImportedChunk, ...]:
    return tuple(lane.written[number] for number in range(lane.begun))
