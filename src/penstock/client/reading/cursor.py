"""Where a reader without a group is in one stream: what it reads, what waits for older segments, and what it has finished."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from functools import partial
from typing import TypeAlias

from penstock.client.moments import BothServices, cut_at
from penstock.client.options import Bound, Finish, Start
from penstock.client.reading.blocks import Block
from penstock.client.reading.fetching import SegmentEnd
from penstock.client.retry import retrying
from penstock.core.cuts.read_order import normalised, startable
from penstock.model.cuts import NOT_STARTED, StreamCut
from penstock.model.errors import InvalidArgumentError, InvalidCutError, SegmentNotFoundError
from penstock.model.names import StreamName
from penstock.model.segments import KeyRange, SegmentId, positions_text
from penstock.model.values.dataclass import dataclass
from penstock.ports.control.plane import ControlPlane
from penstock.ports.control.watermarks import TimeWindow
from penstock.ports.data.service import SegmentService
from penstock.ports.rng import Rng

Add: TypeAlias = Callable[[StreamName, SegmentId, int, int | None], None]
"""Begins to read a segment: stream, segment, offset, limit."""


async def resolve_cut(controller: ControlPlane, stream: StreamName, bound: Bound) -> StreamCut:
    """The cut for the head, the current tail, or a given cut. Raises InvalidCutError for a cut of another stream."""
    if isinstance(bound, StreamCut) and not bound.is_unbounded:
        if bound.stream != stream:
            raise InvalidCutError("cut belongs to another stream", stream=str(stream), cut_of=str(bound.stream))
        return bound
    return await (controller.cuts.tail(stream) if bound == "tail" else controller.cuts.head(stream))


async def resolve_start(
    segments: SegmentService, controller: ControlPlane, stream: StreamName, start: Start
) -> StreamCut:
    """As ``resolve_cut``, also for a time: the cut before all events that were appended from then on."""
    if isinstance(start, datetime):
        services = BothServices(segments=segments, controller=controller)
        return await cut_at(services, stream, round(start.timestamp() * 1000), end=False)
    return await resolve_cut(controller, stream, start)


async def resolve_end(segments: SegmentService, controller: ControlPlane, stream: StreamName, end: Finish) -> StreamCut:
    """As ``resolve_cut``, also for a time: the cut after all events that were appended before it."""
    if isinstance(end, datetime):
        services = BothServices(segments=segments, controller=controller)
        return await cut_at(services, stream, round(end.timestamp() * 1000), end=True)
    return await resolve_cut(controller, stream, end)


async def ranges_of(controller: ControlPlane, cut: StreamCut) -> Mapping[SegmentId, KeyRange]:
    """Key ranges of the segments of a cut. Raises InvalidCutError if the stream never had one of the segments."""
    try:
        return await controller.layout.ranges(cut.stream, list(cut.positions))
    except SegmentNotFoundError as error:
        raise InvalidCutError(
            "cut names a segment that the stream never had",
            stream=str(cut.stream),
            cut=positions_text(cut.positions),
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Where to read one stream from and to. Raises InvalidArgumentError for an end before the start."""

    start: Start = None
    end: Finish = None

    def __post_init__(self) -> None:
        if isinstance(self.start, datetime) and isinstance(self.end, datetime) and self.end < self.start:
            raise InvalidArgumentError(
                "the end is before the start", start=self.start.isoformat(), end=self.end.isoformat()
            )


class StreamCursor:
    """Begins each segment of one stream once all older segments that share keys with it are read to their end.

    ``resolve`` finds start and end, ``begin`` starts to read. Then the reader calls ``settle`` after each block of the
    stream, and ``finish`` at the end of each segment, until ``is_over``.
    """

    def __init__(
        self, stream: StreamName, segments: SegmentService, controller: ControlPlane, rng: Rng, bounds: Bounds, add: Add
    ) -> None:
        self.stream = stream
        self._segments = segments
        self._controller = controller
        self._rng = rng
        self._bounds = bounds
        self._add = add
        self._start: StreamCut | None = None
        self._ranges: dict[SegmentId, KeyRange] = {}
        self._unfinished: dict[SegmentId, int] = {}
        self._waiting: dict[SegmentId, None] = {}
        self._finished: dict[SegmentId, int] = {}
        self._limits: Mapping[SegmentId, int] = {}
        self._allowed: frozenset[SegmentId] | None = None
        self._place = 0

    async def resolve(self) -> None:
        """Find start and end. Repeating does nothing. Raises StreamNotFoundError, InvalidCutError."""
        if self._start is not None:
            return
        controller, stream, bounds = self._controller, self.stream, self._bounds
        given = await retrying(lambda: resolve_start(self._segments, controller, stream, bounds.start), self._rng)
        end = None
        if bounds.end is not None:
            end = await retrying(lambda: resolve_end(self._segments, controller, stream, bounds.end), self._rng)
        self._ranges.update(await retrying(lambda: ranges_of(controller, given), self._rng))
        # The cut may have 0 for a segment that waits for an older one. If it started at once, it would overtake the older
        # one. The end of the older one would then name it as new, and it would be read twice.
        start = StreamCut(stream, normalised(given.positions, self._ranges))
        if end is not None or isinstance(bounds.start, StreamCut):
            # Check both. A cut that no reader can have reached would skip unread events.
            between = await retrying(lambda: controller.cuts.segments_between(stream, start, end or start), self._rng)
        if end is not None:
            self._allowed = frozenset(between)
            self._limits = {segment: max(0, offset) for segment, offset in end.positions.items()}
        self._start = start

    def begin(self) -> None:
        """Start to read. Call it once, after ``resolve``."""
        for segment, offset in ({} if self._start is None else self._start.positions).items():
            if offset == NOT_STARTED:
                self._waiting[segment] = None
            else:
                self._begin(segment, offset)
        self._begin_readable()

    def _begin(self, segment: SegmentId, offset: int) -> None:
        if self._allowed is not None and segment not in self._allowed:
            self._finished[segment] = NOT_STARTED  # behind the end
            return
        self._unfinished[segment] = offset
        self._add(self.stream, segment, offset, self._limits.get(segment))

    def _begin_readable(self) -> None:
        for segment in startable(self._waiting, self._unfinished, self._ranges):
            del self._waiting[segment]
            self._begin(segment, 0)

    @property
    def is_endless(self) -> bool:
        """Whether it waits at the tail for more."""
        return self._bounds.end is None

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to read, up to the end."""
        return not self._unfinished

    @property
    def unfinished(self) -> Collection[SegmentId]:
        """Segments that are read now."""
        return self._unfinished.keys()

    def settle(self, block: Block) -> None:
        """All events of the block were read."""
        self._unfinished[block.segment] = block.end_offset

    async def finish(self, item: SegmentEnd) -> None:
        """The segment was read to its end: continue with its successors. Cancelled: it may be called again."""
        segment = item.segment
        if item.at_limit:
            self._finished[segment] = self._unfinished.pop(segment)
            return
        found = await retrying(partial(self._controller.layout.successors, self.stream, segment), self._rng)
        offset = self._unfinished.pop(segment)
        if not found:
            self._finished[segment] = offset
        for successor in found:
            following = successor.range.segment
            self._ranges[following] = successor.range.keys
            if following not in self._unfinished and following not in self._finished:
                self._waiting[following] = None
        self._begin_readable()

    def position(self, current: Block | None) -> StreamCut:
        """The cut after the events that were read; ``current``: the block that the program is reading."""
        positions = dict.fromkeys(self._waiting, NOT_STARTED)
        positions.update(self._finished)
        positions.update(self._unfinished)
        if current is not None and current.stream == self.stream:
            positions[current.segment] = current.position
        return StreamCut(self.stream, normalised(positions, self._ranges))

    async def time_window(self, position: StreamCut) -> TimeWindow:
        """What is known of the times of the events up to the position, which never goes back."""
        found = await retrying(lambda: self._controller.cuts.time_window(position, place=self._place), self._rng)
        self._place = found.place
        return found
