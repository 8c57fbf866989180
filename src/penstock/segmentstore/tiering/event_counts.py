"""Count the events in a range: from the counts of chunks and blocks, and from event headers if a bound cuts a block.

The writer of an append states how many events it holds. If a bound cuts a block whose headers agree with that count,
the answer is exact. Other blocks, such as raw bytes of a byte stream, count in proportion to bytes. So counts of
adjacent ranges always add up.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Coroutine
from operator import attrgetter
from typing import Any

from penstock.codec.events import event_bounds
from penstock.model.errors import (
    CorruptDataError,
    InvalidArgumentError,
    SegmentNotFoundError,
    TruncatedError,
)
from penstock.ports.data.chunks import ChunkBlock
from penstock.ports.offload import Offload
from penstock.segmentstore.segment import Chunk, Segment, bytes_lost
from penstock.segmentstore.state import ContainerState
from penstock.segmentstore.tiering.blocks import BlockReader, load_blocks, sum_of_events

_REMEMBERED = 4096  # positions whose counts are remembered
_OFFLOADED_BYTES = 256 << 10
"""From this size on counting small events takes milliseconds, and leaves the event loop."""

_START = attrgetter("start_offset")


class EventCounter:
    """Counts of one container. The latest answers for positions inside blocks are cached, because every inspection of a
    stream uses the same cuts."""

    def __init__(self, state: ContainerState, blocks: BlockReader, offload: Offload) -> None:
        self._state = state
        self._blocks = blocks
        self._offload = offload
        self._known: OrderedDict[tuple[str, int], int] = OrderedDict()

    async def count(self, name: str, start: int, end: int) -> int:
        """See ``SegmentService.count_events``."""
        uid: int | None = None
        while True:
            segment = (await self._state.segments.find_visible(name)).require_plain()
            if uid is not None and segment.uid != uid:
                raise SegmentNotFoundError("no such segment", segment=name)
            uid = segment.uid
            _check(segment, start, end)
            count = await self._count(segment, start, end)
            if count is not None:
                return count

    async def _count(self, segment: Segment, start: int, end: int) -> int | None:
        """None: the segment has changed; try again."""
        count = 0
        chunks = list(segment.chunks.items)
        waits: list[Coroutine[Any, Any, int]] = []
        with segment.pinned():
            try:
                # Read everything needed from the segment before the first await.
                count = self._walk(segment, start, end, waits)
                while waits:
                    count += await waits.pop(0)
            except (SegmentNotFoundError, CorruptDataError):
                # During the read, the segment was merged, or its head passed the position.
                if segment.gone or start < segment.kept_offset or chunks != segment.chunks.items:
                    return None
                raise
            finally:
                for left in waits:
                    left.close()
            return count

    def _walk(self, segment: Segment, start: int, end: int, waits: list[Coroutine[Any, Any, int]]) -> int:
        """The count that is known without I/O; the rest is added to ``waits``."""
        count = 0
        position = start
        while position < end:
            chunk = segment.chunks.find(position)
            if chunk is not None:
                upto = min(end, chunk.end)
                if position == chunk.start and upto == chunk.end and chunk.event_count is not None:
                    count += chunk.event_count
                else:
                    waits.append(self._in_chunk(chunk, position - chunk.start, upto - chunk.start))
            else:
                entry = segment.cache.entry_at(position)
                if entry is None:
                    raise bytes_lost(segment, position)
                upto = min(end, entry.end)
                if position == entry.start and upto == entry.end:
                    count += entry.events
                else:
                    data = bytes(entry.view(entry.start, entry.end))
                    waits.append(self._in_entry(data, entry.events, position - entry.start, upto - entry.start))
            position = upto
        return count

    async def _in_entry(self, data: bytes, events: int, start: int, end: int) -> int:
        before_start, before_end = await self._before(data, events, [start, end])
        return before_end - before_start

    async def _in_chunk(self, chunk: Chunk, start: int, end: int) -> int:
        if start == 0 and end == chunk.length and chunk.block_count:
            length = chunk.length
            total = await sum_of_events(self._state, chunk)
            if end == length == chunk.length:
                chunk.event_count = total
            return total
        blocks = await load_blocks(self._state, chunk)
        low = bisect_right(blocks, start, key=_START) - 1
        high = bisect_left(blocks, end, key=_START)
        whole = sum(block.event_count for block in blocks[low:high])
        first, last = blocks[low], blocks[high - 1]
        return whole - await self._until(chunk.name, first, start) - await self._behind(chunk.name, last, end)

    async def _behind(self, chunk: str, block: ChunkBlock, position: int) -> int:
        return block.event_count - await self._until(chunk, block, position)

    async def _until(self, chunk: str, block: ChunkBlock, position: int) -> int:
        """Events of the block that begin before a position in the chunk."""
        if position <= block.start_offset:
            return 0
        if position >= block.end_offset:
            return block.event_count
        key = (chunk, position)
        count = self._known.get(key)
        if count is None:
            data = bytes(await self._blocks.whole(chunk, block))
            (count,) = await self._before(data, block.event_count, [position - block.start_offset])
            self._known[key] = count
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return count

    async def _before(self, data: bytes, events: int, positions: list[int]) -> list[int]:
        if len(data) < _OFFLOADED_BYTES:
            return events_before(data, events, positions)
        return await self._offload.run(lambda: events_before(data, events, positions))


def events_before(data: bytes, events: int, positions: list[int]) -> list[int]:
    """How many of the events that the writers of ``data`` counted begin before each position."""
    try:
        bounds = event_bounds(data)
        framed = bounds[-1] == len(data) and len(bounds) - 1 == events
    except CorruptDataError:
        framed = False
    if framed:
        return [bisect_left(bounds, position) for position in positions]
    return [events * position // len(data) for position in positions]


def _check(segment: Segment, start: int, end: int) -> None:
    if not 0 <= start <= end or end > segment.length:
        raise InvalidArgumentError(
            "range lies outside the segment", segment=segment.name, start=start, end=end, length=segment.length
        )
    if start < segment.kept_offset:
        raise TruncatedError(
            "data has been truncated", segment=segment.name, offset=start, start_offset=segment.kept_offset
        )
