"""Where a micro-batch ends: event boundaries within a limit of bytes or events, found on the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from penstock.codec.events import HEADER_BYTES, event_bounds, missing_bytes
from penstock.model.errors import UnavailableError
from penstock.model.names import StreamName, segment_name
from penstock.model.segments import SegmentId
from penstock.model.values.dataclass import dataclass
from penstock.ports.data.segments import READ_MAX_BYTES
from penstock.ports.data.service import SegmentService
from penstock.spark.reading.segment_reads import chunk_pages

Place: TypeAlias = tuple[StreamName, SegmentId]
"""A segment of a stream."""

Places: TypeAlias = dict[Place, int]
"""Offsets of segments of one or several streams."""

_LIST_BYTES = 16 << 20
_SHARE_BYTES_MIN = 64 << 10
_SHARE_EVENTS_MIN = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The most that may still be taken; None: no limit."""

    bytes: int | None = None
    events: int | None = None

    @property
    def is_none(self) -> bool:
        return self.bytes is None and self.events is None

    @property
    def is_used(self) -> bool:
        return self.bytes == 0 or self.events == 0

    def takes(self, size_bytes: int, events: int) -> bool:
        """Whether this much fits."""
        return (self.bytes is None or size_bytes <= self.bytes) and (self.events is None or events <= self.events)

    def less(self, size_bytes: int, events: int) -> Limit:
        """The limit that is left after taking this much."""
        return Limit(
            bytes=None if self.bytes is None else max(0, self.bytes - size_bytes),
            events=None if self.events is None else max(0, self.events - events),
        )

    def at_most(self, size_bytes: int) -> Limit:
        """The limit with so many bytes at most, not below 0."""
        least = size_bytes if self.bytes is None else min(self.bytes, size_bytes)
        return Limit(bytes=max(0, least), events=self.events)

    def share(self, parts: int) -> Limit:
        """An even share, but large enough to be worth the work."""
        return Limit(
            bytes=None if self.bytes is None else min(self.bytes, max(_SHARE_BYTES_MIN, self.bytes // parts)),
            events=None if self.events is None else min(self.events, max(_SHARE_EVENTS_MIN, self.events // parts)),
        )


class Boundaries:
    """Event boundaries of segments, found in the chunks' block lists, by asking the store, or by reading headers."""

    def __init__(self, segments: SegmentService) -> None:
        self._segments = segments

    async def advance(
        self, start: Places, ends: Mapping[Place, int], limit: Limit, *, turn: int, passes_one: bool = True
    ) -> tuple[Places, Limit]:
        """The end of a batch from ``start``: at event boundaries, at most at ``ends``, within ``limit``.

        Segments, of all streams, share the limit evenly; what some do not need goes to the others. ``turn`` says which is
        served first, so that a small limit starves none. With ``passes_one``, at least one event goes through, however
        large. Returns the offsets, and what is left of the limit.
        """
        if limit.is_none:
            return {**start, **ends}, limit
        result = dict(start)
        moved = True
        while moved and not limit.is_used:
            open_ones = self._open(result, ends, turn)
            share = limit.share(max(1, len(open_ones)))
            moved = False
            for segment in open_ones:
                room = Limit(bytes=_least(share.bytes, limit.bytes), events=_least(share.events, limit.events))
                reached, events = await self.reach(segment, result[segment], ends[segment], room)
                moved = moved or reached > result[segment]
                limit = limit.less(reached - result[segment], events)
                result[segment] = reached
                if limit.is_used:
                    break
        if result == start and passes_one:
            for segment in self._open(result, ends, turn)[:1]:
                result[segment], _ = await self._read_on(segment, start[segment], ends[segment], Limit(events=1))
                limit = Limit(bytes=0, events=0)
        return result, limit

    def _open(self, at: Places, ends: Mapping[Place, int], turn: int) -> Sequence[Place]:
        found = [segment for segment in sorted(ends) if at[segment] < ends[segment]]
        first = turn % len(found) if found else 0
        return [*found[first:], *found[:first]]

    async def reach(self, segment: Place, start: int, end: int, limit: Limit) -> tuple[int, int]:
        """The last event boundary from ``start`` to ``end`` that is known to lie within ``limit``, and the events up to it
        (counted only if events are limited)."""
        at, events = start, 0
        if limit.events is None and limit.takes(end - start, 0):
            return end, 0
        # Where many bytes may be taken, the store is asked for a boundary instead of all blocks.
        if limit.events is not None or (limit.bytes or 0) < _LIST_BYTES:
            at, events = await self._tiered(segment, start, end, limit)
        left = limit.less(at - start, events)
        if left.events is None and left.bytes is not None:
            at = await self._asked(segment, at, end, left.bytes)
            left = limit.less(at - start, events)
        if at < end and not left.is_used and (left.events is not None or at == start):
            at, more = await self._read_on(segment, at, end, left)
            events += more
        return at, events

    async def _tiered(self, segment: Place, start: int, end: int, limit: Limit) -> tuple[int, int]:
        """The end of the last block from ``start`` on within ``limit`` behind which an event begins, and the events up to
        there."""
        name = segment_name(*segment)
        at, events = start, 0
        upto, count = start, 0  # of all blocks that fit: the last ones may hold a part of a large event
        high = end if limit.bytes is None else min(end, start + limit.bytes)
        async for chunks in chunk_pages(self._segments, name, start, high):
            for block in (block for chunk in chunks for block in chunk.blocks if block.end_offset > start):
                # A gap between blocks is not tiered: its events are not counted, so nothing after it may be skipped.
                if block.start_offset > upto:
                    return await self._whole(name, (at, events), (upto, count), end)
                if block.event_count:
                    at, events = upto, count
                # If the batch began inside a block, the count of the block is too high; so it stops early, not late.
                if block.end_offset > end or not limit.takes(block.end_offset - start, count + block.event_count):
                    return at, events
                upto, count = block.end_offset, count + block.event_count
        return await self._whole(name, (at, events), (upto, count), end)

    async def _whole(self, name: str, known: tuple[int, int], found: tuple[int, int], end: int) -> tuple[int, int]:
        """``found`` if an event begins there, or would begin there; else ``known``. Both: an offset, and events."""
        if found[0] in (known[0], end) or await self._segments.next_event_boundary(name, found[0]) == found[0]:
            return found
        return known

    async def _asked(self, segment: Place, at: int, end: int, room_bytes: int) -> int:
        """A boundary that the store knows in the last part of the remaining room, or ``at``."""
        if end - at <= room_bytes:
            return end
        wanted = max(at + 1, at + room_bytes - room_bytes // 8)
        found = await self._segments.next_event_boundary(segment_name(*segment), wanted)
        return found if wanted <= found <= min(end, at + room_bytes) else at

    async def _read_on(self, segment: Place, start: int, end: int, limit: Limit) -> tuple[int, int]:
        """The last event boundary from ``start`` on within ``limit``, by reading the headers of events."""
        name = segment_name(*segment)
        at, events = start, 0
        carry = b""
        while at < end:
            room = end - at if limit.bytes is None else min(end - at, limit.bytes - (at - start))
            if room < HEADER_BYTES or (limit.events is not None and events >= limit.events):
                break
            wanted = max(missing_bytes(carry, 0), min(READ_MAX_BYTES, room - len(carry)))
            if len(carry) >= HEADER_BYTES and missing_bytes(carry, 0) + len(carry) > room:
                break
            read = await self._segments.read(name, at + len(carry), min(wanted, READ_MAX_BYTES), wait=False)
            data = b"".join([carry, *read.parts])
            if len(data) == len(carry):
                raise UnavailableError("store returned no bytes where some must exist", segment=name, offset=at)
            bounds = event_bounds(data, segment=name, offset=at)
            fitting = [place for place in bounds if place <= room]
            if limit.events is not None:
                fitting = fitting[: limit.events - events + 1]
            events += len(fitting) - 1
            carry, at = data[fitting[-1] :], at + fitting[-1]
            if len(fitting) < len(bounds):
                break
        return at, events


def _least(first: int | None, second: int | None) -> int | None:
    return second if first is None else first if second is None else min(first, second)
