"""Reads: from the tail cache, else from chunks; parked at the tail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from penstock.model.errors import (
    CorruptDataError,
    InvalidArgumentError,
    SegmentNotFoundError,
    ThrottledError,
    TruncatedError,
)
from penstock.ports.data.chunks import ChunkBlock, ChunkRange
from penstock.ports.data.segments import READ_MAX_BYTES, SegmentRead
from penstock.ports.files import Buffer
from penstock.segmentstore.parts import StoreParts
from penstock.segmentstore.segment import Chunk, Segment, bytes_lost
from penstock.segmentstore.state import ContainerState
from penstock.segmentstore.tiering.blocks import BlockReader, named_blocks


class TailWatch:
    """Implements ``Watch`` and ``Waiter``: reads that wait at the tail of ``segment``."""

    __slots__ = ("_changed", "_count", "_reads", "_segment")

    def __init__(self, reads: Reads, segment: Segment, changed: Callable[[], None]) -> None:
        self._reads = reads
        self._segment = segment
        self._changed = changed
        self._count = 1
        segment.waiters[self] = None
        reads.parked += 1

    @property
    def gone(self) -> bool:
        return self._segment.gone

    def join(self) -> bool:
        reads = self._reads
        if reads.parked >= reads.limit:
            return False
        self._count += 1
        reads.parked += 1
        return True

    def cancel(self) -> None:
        waiters = self._segment.waiters
        if self in waiters:
            self._count -= 1
            self._reads.parked -= 1
            if not self._count:
                del waiters[self]

    def wake(self) -> None:
        self._reads.parked -= self._count
        try:
            self._changed()
        except Exception as error:  # noqa: BLE001 - a caller's bug must neither stop the container nor stay unseen
            asyncio.get_running_loop().call_exception_handler(
                {"message": "callback of a waiting read failed", "exception": error}
            )


class Reads:
    """The reads of one container. ``parked``: how many reads wait at tails, of ``limit``."""

    def __init__(
        self, state: ContainerState, parts: StoreParts, blocks: BlockReader, serves: Callable[[], bool]
    ) -> None:
        """``serves``: False once the container has stopped."""
        self._state = state
        self._segments = state.segments
        self._blocks = blocks
        self._chunks = parts.chunks
        self.limit = parts.settings.max_parked_reads
        self._serves = serves
        self.parked = 0

    async def read(self, name: str, offset: int, max_bytes: int, *, wait: bool) -> SegmentRead:
        """See ``SegmentService.read``."""
        if offset < 0 or max_bytes <= 0:
            raise InvalidArgumentError("read needs an offset and a size", offset=offset, max_bytes=max_bytes)
        max_bytes = min(max_bytes, READ_MAX_BYTES)
        uid: int | None = None
        while True:
            segment = (await self._segments.find_visible(name)).require_plain()
            if uid is not None and segment.uid != uid:
                # A waiting read must not continue on another segment of the same name.
                raise SegmentNotFoundError("no such segment", segment=name)
            uid = segment.uid
            _check_offset(segment, offset)
            if offset < segment.length:
                with segment.pinned():
                    found = await self._bytes(segment, offset, max_bytes)
                    if found is not None:
                        return _answer(segment, offset, found)
                    continue
            if segment.sealed or not wait:
                return _answer(segment, offset, [])
            await self._park(segment)

    async def _bytes(self, segment: Segment, offset: int, max_bytes: int) -> list[memoryview] | None:
        """The data of a pinned segment from ``offset`` on; None: the segment has changed, try again."""
        views = segment.cache.views(offset, max_bytes)
        if views:
            return views
        chunk = segment.chunks.find(offset)
        if chunk is None:
            raise bytes_lost(segment, offset)
        start = chunk.start
        with segment.pinned():
            try:
                found = await self._blocks.views(chunk, offset - start, max_bytes)
            except (SegmentNotFoundError, CorruptDataError) as error:
                if segment.gone or offset < segment.start_offset or not segment.chunks.holds(chunk):
                    return None
                if isinstance(error, CorruptDataError):
                    raise
                raise CorruptDataError("chunk is missing", segment=segment.name, chunk=chunk.name) from error
            # During the read, the head may have passed the offset, the segment may have been merged, or the bytes erased.
            if segment.gone or offset < segment.start_offset or not segment.chunks.holds(chunk):
                return None
            return found or None

    def read_now(self, name: str, offset: int, max_bytes: int) -> SegmentRead | None:
        """See ``LocalSegmentService.read_now``."""
        segment = self._in_memory(name)
        if segment is None or max_bytes <= 0 or not segment.start_offset <= offset <= segment.length:
            return None
        views = segment.cache.views(offset, min(max_bytes, READ_MAX_BYTES)) if offset < segment.length else []
        if offset < segment.length and not views:
            return None
        segment.touched = True
        return _answer(segment, offset, views)

    def _in_memory(self, name: str) -> Segment | None:
        segment = self._segments.visible(name)
        return segment if segment is not None and segment.table is None and self._serves() else None

    def watch(self, name: str, offset: int, changed: Callable[[], None]) -> TailWatch | None:
        """See ``LocalSegmentService.watch``."""
        segment = self._in_memory(name)
        if segment is None or segment.sealed or offset < segment.length:
            return None
        if self.parked >= self.limit:
            return None
        segment.touched = True
        return TailWatch(self, segment, changed)

    async def _park(self, segment: Segment) -> None:
        """Wait until the segment changes. Cancellation leaves nothing behind."""
        if self.parked >= self.limit:
            raise ThrottledError("too many reads wait", resource="parked_reads", limit=self.limit)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def changed() -> None:
            if not waiter.done():
                waiter.set_result(None)

        parked = TailWatch(self, segment, changed)
        try:
            await waiter
        finally:
            parked.cancel()

    async def chunk_ranges(self, name: str, start: int, end: int) -> Sequence[ChunkRange]:
        """See ``SegmentService.chunk_ranges``."""
        if not 0 <= start <= end:
            raise InvalidArgumentError("range is not ordered", start=start, end=end)
        while True:
            segment = (await self._segments.find_visible(name)).require_plain()
            _check_offset(segment, start)
            ranges = await self._tiered(segment, start, end)
            if ranges is not None:
                return ranges

    async def _tiered(self, segment: Segment, start: int, end: int) -> Sequence[ChunkRange] | None:
        """None: the segment has changed, try again."""
        chunks: list[tuple[Chunk, int, int]] = []
        position = start
        while position < end:
            chunk = segment.chunks.find(position)
            if chunk is None:
                break
            chunks.append((chunk, chunk.start, chunk.length))
            position = chunk.end
        ranges: list[ChunkRange] = []
        with segment.pinned():
            for chunk, begin, length in chunks:
                # A plan lists all chunks of a stream, once: their blocks would fill the memory.
                blocks = await named_blocks(self._state, segment, chunk, keep=False)
                if blocks is None:
                    return None
                # If more was written since, return only what existed at first.
                shifted = [_shifted(block, begin, chunk.joined_ms) for block in blocks if block.end_offset <= length]
                ranges.append(
                    ChunkRange(
                        name=chunk.name,
                        location=self._chunks.location(chunk.name),
                        start_offset=begin,
                        end_offset=begin + length,
                        blocks=shifted,
                    )
                )
        return ranges

    async def next_event_boundary(self, name: str, offset: int) -> int:
        """See ``SegmentService.next_event_boundary``."""
        while True:
            segment = (await self._segments.find_visible(name)).require_plain()
            if offset <= segment.start_offset:
                return segment.start_offset
            found: int | None = offset
            begins: bool | None = False
            with segment.pinned():
                while found is not None and begins is False and found < segment.length:
                    found = await self._next_bound(segment, found)
                    if found is not None:
                        begins = await self._begins_event(segment, found)
                        found += begins is False
                if found is not None and begins is not None:
                    return min(found, segment.length)

    async def _next_bound(self, segment: Segment, offset: int) -> int | None:
        """The smallest known append boundary at or behind ``offset``. None: the segment has changed, try again."""
        chunk = segment.chunks.find(offset)
        if chunk is None:
            found = segment.cache.boundary(offset)
            return segment.length if found is None else min(found, segment.length)
        begin, length = chunk.start, segment.length
        blocks = await named_blocks(self._state, segment, chunk)
        if blocks is None:
            return None
        for block in blocks:
            if begin + block.start_offset >= offset:
                return begin + block.start_offset
            if begin + block.end_offset >= offset:
                return begin + block.end_offset
        return length

    async def _begins_event(self, segment: Segment, offset: int) -> bool | None:
        """Whether an event begins, or would begin, at a bound: a large one takes several appends. None: try again."""
        if offset >= segment.length:
            return True
        chunk = segment.chunks.find(offset)
        if chunk is None:
            entry = segment.cache.entry_at(offset)
            return entry is not None and entry.start == offset and entry.events > 0
        position = offset - chunk.start
        blocks = await named_blocks(self._state, segment, chunk)
        if blocks is None:
            return None
        return any(block.start_offset == position and block.event_count > 0 for block in blocks)


def _check_offset(segment: Segment, offset: int) -> None:
    if offset < segment.start_offset:
        raise TruncatedError(
            "data has been truncated", segment=segment.name, offset=offset, start_offset=segment.start_offset
        )
    if offset > segment.length and segment.sealed:
        raise InvalidArgumentError(
            "offset lies behind the end of a sealed segment", segment=segment.name, offset=offset, length=segment.length
        )


def _answer(segment: Segment, offset: int, parts: Sequence[Buffer]) -> SegmentRead:
    end = offset + sum(len(part) for part in parts)
    return SegmentRead(
        offset=offset,
        parts=parts,
        at_tail=end >= segment.length,
        end_of_segment=segment.sealed and end == segment.length,
    )


def _shifted(block: ChunkBlock, shift: int, joined_ms: int | None) -> ChunkBlock:
    """The block as the segment has it: at its offset there, and no older than the merge that moved it."""
    first_ms, last_ms = block.first_ms, block.last_ms
    if joined_ms is not None:
        first_ms, last_ms = max(first_ms or 0, joined_ms), max(last_ms or 0, joined_ms)
    return ChunkBlock(
        first_ms=first_ms,
        last_ms=last_ms,
        start_offset=block.start_offset + shift,
        end_offset=block.end_offset + shift,
        crc32c=block.crc32c,
        event_count=block.event_count,
    )
