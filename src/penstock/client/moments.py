"""Find the cut for a time: where the events of that time begin, and how positions continue in successor segments.

The store keeps the time of the first and last append of each block in tier 2, and of the last change of a segment. So the
cut for a time is exact to one block per segment. Source: docs/reference/spark.md, "Append time".
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol, TypeAlias

from penstock.core.cuts.read_order import Followers, enter_successors, predecessors_named, settled
from penstock.model.cuts import StreamCut
from penstock.model.errors import (
    InvalidArgumentError,
    SegmentNotFoundError,
    TruncatedError,
    UnavailableError,
    leaves,
)
from penstock.model.names import StreamName, segment_name
from penstock.model.segments import KeyRange, SegmentId
from penstock.model.values.dataclass import dataclass
from penstock.ports.control.layout import Successor
from penstock.ports.data.chunks import ChunkBlock, ChunkRange
from penstock.ports.data.segments import SegmentInfo

if TYPE_CHECKING:
    # For Spark's planners, which import this to find the source: these two load 50 modules.
    from penstock.ports.control.plane import ControlPlane
    from penstock.ports.data.service import SegmentService

_TRIES = 8  # times that the head may move during one search

Positions: TypeAlias = dict[SegmentId, int]


def append_times(
    start: int, end: int, chunks: Sequence[ChunkRange], modified_ms: int | None
) -> tuple[tuple[int, int | None], ...]:
    """Append times for ``start <= offset < end``, from the chunks that hold some of the range, in order.

    The time of an event is that of the last append of its block; it was appended then or up to one block earlier. Events
    in no chunk were appended at ``modified_ms`` or earlier; None: it is not known.
    """
    found: list[tuple[int, int | None]] = []
    at = start
    for block in (block for chunk in chunks for block in chunk.blocks):
        if block.end_offset <= at or block.start_offset >= end:
            continue
        if block.start_offset > at:
            found.append((block.start_offset, modified_ms))
        at = min(end, block.end_offset)
        found.append((at, block.last_ms))
    if at < end:
        found.append((end, modified_ms))
    return tuple(found)


class Services(Protocol):
    """The two services of a store."""

    @property
    def segments(self) -> SegmentService: ...

    @property
    def controller(self) -> ControlPlane: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BothServices:
    """The two services of a store, for callers that have them apart."""

    segments: SegmentService
    controller: ControlPlane


def past_ms(at: datetime, *, now_ms: int, name: str = "start") -> int:
    """A time with a zone, in milliseconds since the Unix epoch. Raises InvalidArgumentError if it is in the future."""
    at_ms = round(at.timestamp() * 1000)
    if at_ms > now_ms:
        raise InvalidArgumentError(
            f"the time is in the future; use latest to {'end' if name == 'end' else 'begin'} at the tail",
            **{name: at.isoformat()},
        )
    return at_ms


def followers_of(successors: Mapping[SegmentId, Sequence[Successor]]) -> Followers:
    """Convert the controller's answer to the form that ``core.cuts.read_order`` takes."""
    return {segment: [(item.range, item.predecessors) for item in found] for segment, found in successors.items()}


async def entered(
    controller: ControlPlane,
    stream: StreamName,
    positions: Positions,
    successors: Mapping[SegmentId, Sequence[Successor]],
    ahead: Positions | None = None,
) -> Positions:
    """The positions after finished segments; see ``read_order.enter_successors``."""
    followers = followers_of(successors)
    if not any(followers.values()):
        return {item: positions[item] for item in sorted(positions)}
    involved = predecessors_named(followers) | positions.keys()
    ranges = await controller.layout.ranges(stream, sorted(involved))
    return enter_successors(positions, followers, ranges, ahead)


def from_cut(cut: StreamCut, ranges: Mapping[SegmentId, KeyRange]) -> Positions:
    """Positions of a cut. A segment that is not started stays so while an older segment of the cut shares keys with it.

    ``ranges`` are the key ranges of the segments; they are used only if a segment is not started.
    """
    if all(offset >= 0 for offset in cut.positions.values()):
        return {segment: cut.positions[segment] for segment in sorted(cut.positions)}
    return settled(cut.positions, ranges)[0]


async def cut_at(services: Services, stream: StreamName, time_ms: int, *, end: bool) -> StreamCut:
    """The cut for a time: events after it include all that were appended at ``time_ms`` or later. With ``end``, events
    before it include all that were appended before ``time_ms``.

    The cut may include up to one block per segment too much, and at the tail what is not tiered. A time before the head
    gives the head, one after the tail gives the tail. This holds if the clocks of the stores never go back, and agree
    between a segment and its successors.
    """
    for _ in range(_TRIES):
        try:
            return await _cut_at(services, stream, time_ms, end=end)
        except (TruncatedError, SegmentNotFoundError):
            pass  # The head has moved: look again.
    raise UnavailableError("stream is truncated faster than it can be searched", stream=stream)


async def _cut_at(services: Services, stream: StreamName, time_ms: int, *, end: bool) -> StreamCut:
    head = await services.controller.cuts.head(stream)
    ranges = await services.controller.layout.ranges(stream, sorted(head.positions))
    positions = from_cut(head, ranges)
    places: dict[SegmentId, _Place] = {}
    followed: dict[SegmentId, Sequence[Successor]] = {}
    while True:
        new = [segment for segment, offset in positions.items() if offset >= 0 and segment not in places]
        places |= await _places(services.segments, stream, {item: positions[item] for item in new}, time_ms, end=end)
        positions |= {segment: places[segment].offset for segment in new}
        behind = [segment for segment in new if places[segment].passed]
        if not behind:
            return StreamCut(stream, positions)
        for segment in behind:
            followed[segment] = await services.controller.layout.successors(stream, segment)
        here = {segment: found for segment, found in followed.items() if segment in positions}
        positions = await entered(services.controller, stream, positions, here)


async def _places(
    segments: SegmentService, stream: StreamName, starts: Positions, time_ms: int, *, end: bool
) -> dict[SegmentId, _Place]:
    """The place of the time in each segment. Raises the first error of a call, which the caller may retry."""
    try:
        async with asyncio.TaskGroup() as group:
            asked = {
                segment: group.create_task(_place(segments, segment_name(stream, segment), low, time_ms, end=end))
                for segment, low in starts.items()
            }
    except ExceptionGroup as errors:
        raise next(leaves(errors)) from None
    return {segment: task.result() for segment, task in asked.items()}


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a time in a segment. ``passed``: it is after the segment's end, so the successors must be
    searched."""

    offset: int
    passed: bool


async def _place(segments: SegmentService, name: str, low: int, time_ms: int, *, end: bool) -> _Place:
    info = await segments.info(name)
    finder = _Finder(segments, info, time_ms, end=end)
    offset = await finder.find(max(low, info.start_offset))
    return _Place(offset, info.sealed and offset >= info.length)


class _Finder:
    """Binary search for a time in one segment: blocks are in the order of their times."""

    def __init__(self, segments: SegmentService, info: SegmentInfo, time_ms: int, *, end: bool) -> None:
        self._segments = segments
        self._info = info
        self._time_ms = time_ms
        self._end = end

    async def find(self, start: int) -> int:
        """The offset of the first event at or after the time; the length of the segment if there is none."""
        low, high = await self._known_from(start), self._info.length
        first, before_ms = low, None
        while low < high:
            middle = low + (high - low) // 2
            chunk = await self._chunk(middle)
            if chunk is None:
                high = middle
                continue
            behind = [block for block in chunk.blocks if self._is_behind(block)]
            if len(behind) == len(chunk.blocks):
                high = chunk.start_offset
            elif not behind:
                low, before_ms = chunk.end_offset, chunk.blocks[-1].last_ms
            else:
                low = high = behind[0].start_offset
        low = await self._settled(start, first, low, before_ms)
        return low if low in (start, self._info.length) else await self._boundary(max(start, low))

    async def _settled(self, start: int, first: int, low: int, before_ms: int | None) -> int:
        """The place in the segment, from the place ``low`` among the blocks with times. Those begin at ``first``; the
        last block before ``low`` has the time ``before_ms``."""
        length = self._info.length
        tiered = low < length and await self._chunk(low) is not None
        if self._end:
            return low if tiered or (before_ms is not None and before_ms >= self._time_ms) else length
        if not tiered and (low > first or first == start) and low >= length:
            return length
        if not tiered and self._info.last_modified_ms < self._time_ms:
            return length
        # If even the first block with a time is after the searched time, blocks without a time may be, too.
        return start if low == first else low

    def _is_behind(self, block: ChunkBlock) -> bool:
        at_ms = block.first_ms if self._end else block.last_ms
        return at_ms is not None and at_ms >= self._time_ms

    async def _known_from(self, start: int) -> int:
        """The offset from which on blocks have times. Earlier versions of the store wrote blocks without them."""
        low, high = start, self._info.length
        while low < high:
            # The first probe is at the start: it is the only one if all blocks have times.
            middle = low if low == start else low + (high - low) // 2
            chunk = await self._chunk(middle)
            if chunk is None or chunk.blocks[0].last_ms is not None:
                high = middle if chunk is None else max(low, chunk.start_offset)
            else:
                low = chunk.end_offset
        return high

    async def _chunk(self, offset: int) -> ChunkRange | None:
        """The chunk that holds the byte; None if it is not tiered yet."""
        if offset >= self._info.length:
            return None
        found = await self._segments.chunk_ranges(self._info.name, offset, offset + 1)
        return found[0] if found and found[0].start_offset <= offset and found[0].blocks else None

    async def _boundary(self, offset: int) -> int:
        """The place itself, or the next event boundary if it is inside a large event."""
        return await self._segments.next_event_boundary(self._info.name, offset)
