"""What readers return: blocks of whole events, the events in them, and the memory that they lie in."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import repeat
from typing import Final, NamedTuple, TypeAlias

from penstock.codec.events import HEADER_BYTES, cut_events
from penstock.codec.records import decode_record
from penstock.model.names import StreamName
from penstock.model.records import Record
from penstock.model.segments import SegmentId
from penstock.ports.files import Buffer

Times: TypeAlias = Sequence[tuple[int, int | None]]
"""Parts of a segment in order: the offset where each ends, and when its events were appended; None: not known."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Event(NamedTuple):
    """One event and where it lies. ``offset`` is where its header begins in the segment.

    ``appended_ms``: when it was appended, in milliseconds since the Unix epoch by the store's clock. None unless the reader
    has ``append_times``; see ``appended_at``.
    """

    data: bytes
    stream: StreamName
    segment: SegmentId
    offset: int
    appended_ms: int | None = None

    @property
    def appended_at(self) -> datetime | None:
        """When the event was appended, in UTC, exact to one block: never before it came, and later by less than its block
        took to fill (1 MiB or 10 s).

        It is the time of the last append of the block; a new event is not in a block yet and has that of the segment's
        last append. None if the reader was made without ``append_times``, or if no time was kept.
        """
        return None if self.appended_ms is None else _EPOCH + timedelta(milliseconds=self.appended_ms)

    @property
    def next_offset(self) -> int:
        """Where the next event of the segment begins."""
        return self.offset + HEADER_BYTES + len(self.data)

    @property
    def record(self) -> Record:
        """The record that was written with ``writer.write(Record(...))``; decoded at each call.

        Raises NotARecordError (a plain event) and VersionTooNewError. The reader goes on with the next event.
        """
        return decode_record(self.data)


# ``Event._make`` without its Python frame: half the cost of handing out an event.
_event_of: Callable[[Iterable[object]], Event] = partial(tuple.__new__, Event)


class Block:
    """Whole events of one segment, in order: ``offset <= event < end_offset``.

    ``position`` is where a reader continues after the events that were read. Iterating moves it past an event when the
    next event is requested, and a commit moves it past the events that it records. ``events()`` and ``framed`` leave
    it; ``finish()`` sets it to the end.
    """

    times: Times
    """Until which offset of the segment events were appended at which time. Empty if the reader did not ask."""

    __slots__ = (
        "_finished",
        "_handed_out",
        "_iterated",
        "_iterated_to",
        "_raw",
        "bounds",
        "offset",
        "segment",
        "stream",
        "times",
    )

    def __init__(
        self, stream: StreamName, segment: SegmentId, offset: int, raw: bytes | bytearray, bounds: Sequence[int]
    ) -> None:
        self.stream = stream
        self.segment = segment
        self.offset = offset
        self._iterated_to = offset
        self._finished = offset
        self.bounds = bounds
        self._raw = raw
        self._iterated = False
        self._handed_out = False
        self.times = ()

    @property
    def end_offset(self) -> int:
        """Where the next block of the segment begins."""
        return self.offset + self.bounds[-1]

    @property
    def framed(self) -> memoryview:
        """The events with their headers, as stored."""
        return memoryview(self._raw)[: self.bounds[-1]].toreadonly()

    def __len__(self) -> int:
        """How many events."""
        return len(self.bounds) - 1

    def events(self) -> list[bytes]:
        """The data of each event."""
        return cut_events(self._raw, self.bounds)

    def data_at(self, place: int) -> bytes:
        """The data of one event, counted from 0. It does not count as read."""
        return bytes(self._raw[self.bounds[place] + HEADER_BYTES : self.bounds[place + 1]])

    @property
    def position(self) -> int:
        """Where a reader continues after the events that were read."""
        return max(self._iterated_to, self._finished)

    @property
    def returned(self) -> int:
        """The end of the last event that the user got. A block that was only fetched returned nothing."""
        if not self._iterated:
            return self.end_offset if self._handed_out else self.offset
        if self._iterated_to >= self.end_offset:
            return self.end_offset
        return self.offset + self.bounds[bisect_right(self.bounds, self._iterated_to - self.offset)]

    def finish(self, upto: int | None = None) -> None:
        """Mark the events before the offset ``upto`` as read; None: all events. It never moves ``position`` back."""
        self._finished = max(self._finished, self.end_offset if upto is None else upto)

    def hand_out(self) -> None:
        """Record that the user got the block itself, or all of it in another form."""
        self._handed_out = True

    def finish_returned(self) -> None:
        """Mark as read what the user got, although the user has not asked for more. Repeating it changes nothing.

        With iteration, this covers the last event that it returned and those before it. Without iteration, it covers the
        whole block if it was returned as a block. A block that was only fetched stays unread.
        """
        self.finish(self.returned)

    def begins(self, offset: int) -> bool:
        """Whether an event of the block begins at this offset of the segment."""
        place = bisect_right(self.bounds, offset - self.offset) - 1
        return 0 <= place < len(self) and self.bounds[place] == offset - self.offset

    def appended(self) -> Iterable[int | None]:
        """When each event was appended; see ``Event.appended_ms``. Without times it has no end."""
        if not self.times:
            return repeat(None)
        ends = [end for end, _ in self.times]
        times_ms = [*(at_ms for _, at_ms in self.times), None]
        return [times_ms[bisect_right(ends, self.offset + start)] for start in self.bounds[:-1]]

    def __iter__(self) -> Iterator[Event]:
        self._iterated = True
        data = self.events()
        base = self.offset
        starts = self.bounds if base == 0 else [base + bound for bound in self.bounds]
        rows = zip(data, repeat(self.stream), repeat(self.segment), starts, self.appended(), strict=False)
        for event in map(_event_of, rows):
            self._iterated_to = event[3]
            yield event
        self._iterated_to = self.end_offset


class BlockMemory:
    """Keeps up to ``count_max`` bytearrays for blocks of about ``block_bytes``, and uses one again as soon as nothing
    refers to it. While all are in use, further blocks get memory of their own, which is freed with its last view.

    The allocator returns the memory of a block of 1 MiB to the system when the block is freed. So each block paid for
    the first touch of its memory: a tenth of the CPU of a reader that catches up. A bytearray and all views of it share
    its reference count, which shows when the last of them is freed. Nothing is released by hand.

    For one thread, but any thread may drop what was returned.
    """

    def __init__(self, block_bytes: int, count_max: int) -> None:
        self._room_bytes = block_bytes + block_bytes // 8
        self._count_max = count_max
        self._kept: list[bytearray] = []
        probe = [bytearray()]
        self._idle_references = sys.getrefcount(probe[0])

    def joined(self, parts: Sequence[Buffer]) -> bytes | bytearray:
        """The parts back to back, copied once. Nobody writes to the result until nothing refers to it or to a view of
        it."""
        size = sum(map(len, parts))
        # Python moves a bytearray that shrinks below half of its memory.
        if not self._room_bytes // 2 <= size <= self._room_bytes:
            return b"".join(parts)
        found = self._idle()
        if found is None:
            if len(self._kept) >= self._count_max:
                return b"".join(parts)
            found = bytearray(self._room_bytes)
        if size < len(found):
            del found[size:]
        else:
            found += bytes(size - len(found))
        self._kept.append(found)
        with memoryview(found) as room:
            at = 0
            for part in parts:
                room[at : at + len(part)] = part
                at += len(part)
        return found

    def clear(self) -> None:
        """Keep nothing. What is in use is freed with its last view."""
        self._kept.clear()

    def _idle(self) -> bytearray | None:
        """Remove and return a bytearray that nothing else refers to. The one used last is looked at first: the
        processor may still cache it."""
        kept = self._kept
        for index in reversed(range(len(kept))):
            if sys.getrefcount(kept[index]) == self._idle_references:
                found = kept[index]
                del kept[index]
                return found
        return None
