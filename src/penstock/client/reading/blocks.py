"""What readers return: blocks of whole events, and the events in them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import NamedTuple

from penstock.codec.events import HEADER_BYTES, cut_events
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId


class Event(NamedTuple):
    """One event and where it lies. ``offset`` is where its header begins in the segment."""

    data: bytes
    stream: StreamName
    segment: SegmentId
    offset: int

    @property
    def next_offset(self) -> int:
        """Where the next event of the segment begins."""
        return self.offset + HEADER_BYTES + len(self.data)


# ``Event._make`` without its Python frame: half the cost of handing out an event.
_event_of: Callable[[Iterable[object]], Event] = partial(tuple.__new__, Event)


class Block:
    """Whole events of one segment, in order: ``offset <= event < end_offset``.

    ``position`` is where a reader continues after the events that were read. Iterating moves it past an event when the
    next event is requested. ``events()`` and ``framed`` leave it; ``finish()`` sets it to the end.
    """

    __slots__ = ("_handed_out", "_iterated", "_raw", "bounds", "offset", "position", "segment", "stream")

    def __init__(self, stream: StreamName, segment: SegmentId, offset: int, raw: bytes, bounds: Sequence[int]) -> None:
        self.stream = stream
        self.segment = segment
        self.offset = offset
        self.position = offset
        self.bounds = bounds
        self._raw = raw
        self._iterated = False
        self._handed_out = False

    @property
    def end_offset(self) -> int:
        """Where the next block of the segment begins."""
        return self.offset + self.bounds[-1]

    @property
    def framed(self) -> memoryview:
        """The events with their headers, as stored."""
        return memoryview(self._raw)[: self.bounds[-1]]

    def __len__(self) -> int:
        """How many events."""
        return len(self.bounds) - 1

    def events(self) -> list[bytes]:
        """The data of each event."""
        return cut_events(self._raw, self.bounds)

    def finish(self) -> None:
        """All events are done with."""
        self.position = self.end_offset

    def hand_out(self) -> None:
        """Record that the user got the block itself, or all of it in another form."""
        self._handed_out = True

    def finish_handed_out(self) -> None:
        """Mark as read what the user got, although the user has not asked for more.

        With iteration, this covers the last event that it returned and those before it. Without iteration, it covers the
        whole block if it was returned as a block. A block that was only fetched stays unread.
        """
        if self._iterated:
            if self.position < self.end_offset:
                self.position = self.offset + self.bounds[bisect_right(self.bounds, self.position - self.offset)]
        elif self._handed_out:
            self.finish()

    def __iter__(self) -> Iterator[Event]:
        self._iterated = True
        data = self.events()
        base = self.offset
        starts = self.bounds if base == 0 else [base + bound for bound in self.bounds]
        rows = zip(data, repeat(self.stream), repeat(self.segment), starts, strict=False)
        for event in map(_event_of, rows):
            self.position = event[3]
            yield event
        self.position = self.end_offset
