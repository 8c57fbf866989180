"""Finds cuts between events near a size in bytes: from records, from the store's bounds, and from event headers.

Source: docs/design/0036-retention-in-the-controller.md.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace

from penstock.codec.events import event_bounds, event_size
from penstock.controller.context import Context
from penstock.controller.tasks import collect
from penstock.core.cuts.between import cut_between
from penstock.core.cuts.order import Positions, at_or_after, check_cut, head_of, size_till, upper_bound
from penstock.core.retention.facts import StreamCutRecord
from penstock.core.streams.history import StreamHistory
from penstock.model.errors import CorruptDataError
from penstock.model.names import StreamName, segment_name
from penstock.model.segments import SegmentId

_HALVINGS = 40  # halvings of a range of bytes; 2^40 bytes take no more
_STEP_BACK = 4 << 10  # bytes; the first step backwards in search of a boundary, doubled each time
_STEPS_FACTOR = 16
"""First distance for the backward search for a known bound, and its growth factor: a block has any size."""

_NEAR = 64 << 10
"""Bytes between a known bound and the offset that are read rather than searched for a nearer one."""

_WINDOW = 256 << 10
"""Bytes read at once while following event headers. The body of a longer event is skipped."""


class BoundaryFinder:
    """Looks between the head and the tail of one stream. ``head``: None for the beginning of history."""

    def __init__(
        self,
        ctx: Context,
        name: StreamName,
        history: StreamHistory,
        records: Sequence[StreamCutRecord],
        head: Positions | None,
        tail: StreamCutRecord,
    ) -> None:
        self.history = history
        self.head = head or head_of(history)
        self.tail = tail
        self._ctx = ctx
        self._name = name
        self._records = records
        self._from_beginning = head is None
        self._bounds: dict[tuple[str, int, int], Sequence[int]] = {}

    # --- cuts ----------------------------------------------------------------------------------------------------

    def around(self, size: int) -> tuple[Positions, StreamCutRecord]:
        """The last record, or the head, with fewer bytes before it, and the first one, or the tail, with no fewer. If a
        record is before the head at some key, the head is used there."""
        records = self._records
        place = bisect_left(records, size, key=lambda record: self._within(record).size_bytes)
        high = self._within(records[place]) if place < len(records) else self.tail
        return (self._within(records[place - 1]).positions if place else self.head), high

    def _within(self, record: StreamCutRecord) -> StreamCutRecord:
        if self._from_beginning or at_or_after(self.history, record.positions, self.head):
            return record
        joined = upper_bound(self.history, [record.positions, self.head])
        return replace(record, positions=joined, size_bytes=size_till(self.history, joined), event_count=None)

    async def at_size(self, size: int, *, down: bool = False) -> StreamCutRecord | None:
        """The event boundary at or after byte ``size`` of the history, or (``down``) at or before it; found in each
        segment separately. None if the path there is unknown. Raises as the store: SegmentNotFoundError,
        UnavailableError and others."""
        low, high = self.around(size)
        wanted = cut_between(self.history, low, high.positions, size)
        if wanted is None:
            return None
        positions = await self.aligned(wanted, low, high.positions, down=down)
        # All data before the cut existed when the next record was made.
        return self.record(positions, high.time_ms)

    def record(self, positions: Positions, time_ms: int) -> StreamCutRecord:
        """The cut as a boundary. Raises InvalidCutError."""
        check_cut(self.history, positions)
        return StreamCutRecord(time_ms=time_ms, size_bytes=size_till(self.history, positions), positions=positions)

    async def leaving_bytes(self, left: int) -> StreamCutRecord | None:
        """The cut that leaves as much as possible, but no more than ``left`` bytes; the next record or the tail if the
        path there is unknown. Raises as ``at_size``: a missing answer must not cost a subscriber all data before the
        next record."""
        size = self.tail.size_bytes - left
        return await self.at_size(size) or self.around(size)[1]

    async def leaving_events(self, left: int) -> StreamCutRecord | None:
        """The same for events. Events differ in size, so the position is found by bisection."""
        tail, total = self.tail, self.tail.event_count
        if total is None:
            return None
        low, high = size_till(self.history, self.head), tail.size_bytes
        best: StreamCutRecord | None = None
        for _ in range(_HALVINGS):
            if low >= high:
                break
            middle = (low + high) // 2
            found = await self.leaving_bytes(tail.size_bytes - middle)
            count = None if found is None else await self._events_till(found)
            if found is None or count is None:
                return best
            found = replace(found, event_count=count)
            if total - count <= left:
                best, high = found, middle
            else:
                low = max(middle + 1, found.size_bytes)
        return best

    async def _events_till(self, record: StreamCutRecord) -> int | None:
        behind = await self._ctx.events.between(self._name, self.history, record.positions, self.tail.positions)
        total = self.tail.event_count
        return None if behind is None or total is None else total - behind

    # --- single segments -------------------------------------------------------------------------------------------

    async def aligned(self, wanted: Positions, low: Positions, high: Positions, *, down: bool) -> dict[SegmentId, int]:
        """The positions moved to the event boundaries at or after them, or (``down``) at or before, within low and
        high."""
        moved = {segment: offset for segment, offset in wanted.items() if offset > max(low.get(segment, 0), 0)}
        if down:
            found = await collect(moved, lambda segment: self._before(segment, moved[segment], low.get(segment, 0)))
        else:
            found = await collect(moved, lambda segment: self._behind(segment, moved[segment]))
            found = {segment: min(offset, high.get(segment, offset)) for segment, offset in found.items()}
        return {segment: found.get(segment, offset) for segment, offset in wanted.items()}

    async def _behind(self, segment: SegmentId, offset: int) -> int:
        """The first event boundary at or after the offset. The store knows the bounds of appends and blocks. Between
        them, boundaries are found by event headers, if the data has the event format of streams."""
        if self._ends_at(segment, offset):
            return offset
        name = segment_name(self._name, segment)
        high = await self._ctx.segments.next_event_boundary(name, offset)
        if high <= offset:
            return high
        low = await self._known_before(name, offset)
        bounds = () if low is None else await self._between(name, low, high)
        place = 0 if low is None else bisect_left(bounds, offset - low)
        return high if low is None or place == len(bounds) else low + bounds[place]

    async def _before(self, segment: SegmentId, offset: int, least: int) -> int:
        """The last event boundary at or before the offset; ``least``, itself a boundary, if no later one is found."""
        if self._ends_at(segment, offset):
            return offset
        name = segment_name(self._name, segment)
        high = await self._ctx.segments.next_event_boundary(name, offset)
        if high <= offset:
            return high
        low = await self._known_before(name, offset)
        if low is None:
            return max(least, 0)
        bounds = await self._between(name, low, high)
        place = bisect_right(bounds, offset - low) - 1
        return max(low + bounds[place] if place >= 0 else low, least, 0)

    def _ends_at(self, segment: SegmentId, offset: int) -> bool:
        return offset in (self.history.sealed_lengths.get(segment), self.tail.positions.get(segment))

    async def _known_before(self, name: str, offset: int) -> int | None:
        """A bound that the store knows at or before the offset; at most ``_NEAR`` bytes before the last such bound.
        None: there is none."""
        known = self._ctx.segments.next_event_boundary
        step, beyond = _STEP_BACK, offset
        while (low := await known(name, max(0, offset - step))) > offset:
            if step >= offset:
                return None
            step, beyond = step * _STEPS_FACTOR, max(0, offset - step)
        # There is no bound between ``beyond`` and the offset.
        while beyond - low > _NEAR:
            middle = (low + beyond) // 2
            found = await known(name, middle)
            low, beyond = (found, beyond) if found <= offset else (low, middle)
        return low

    async def _between(self, name: str, low: int, high: int) -> Sequence[int]:
        bounds = self._bounds.get((name, low, high))
        if bounds is None:
            bounds = self._bounds[name, low, high] = await self._parsed(name, low, high)
        return bounds

    async def _parsed(self, name: str, low: int, high: int) -> Sequence[int]:
        """Where events begin between two boundaries, and the end, relative to ``low``; empty if the bytes are no
        events."""
        bounds, size = [0], high - low
        try:
            while (at := bounds[-1]) < size:
                data = await self._read(name, low + at, min(size - at, _WINDOW))
                found = event_bounds(data)
                if len(found) > 1:
                    bounds += [at + bound for bound in found[1:]]
                else:
                    bounds.append(at + event_size(data))
        except CorruptDataError:
            # Damaged, or no events: use the bounds that the store knows.
            return ()
        return bounds if bounds[-1] == size else ()

    async def _read(self, name: str, offset: int, size: int) -> bytes:
        """Read exactly this many bytes. Raises CorruptDataError if the store has fewer."""
        data = bytearray()
        while len(data) < size:
            read = await self._ctx.segments.read(name, offset + len(data), size - len(data), wait=False)
            before = len(data)
            for part in read.parts:
                data += part
            if len(data) == before:
                raise CorruptDataError("segment ends inside an event", segment=name, offset=offset)
        return bytes(data[:size])
