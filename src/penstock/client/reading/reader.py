"""Reads a stream alone, without a group: every event once, in order per routing key, across scaling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Literal, TypeAlias

from penstock.client.moments import BothServices, cut_at
from penstock.client.options import Bound, Start, end_of, one_of, start_of
from penstock.client.reading.async_reading import AsyncBlockReader
from penstock.client.reading.blocks import Block, Event
from penstock.client.reading.fetching import SegmentEnd, SegmentFailure, SegmentFetcher
from penstock.client.retry import retrying
from penstock.core.cuts.read_order import normalised, startable
from penstock.model.cuts import NOT_STARTED, StreamCut
from penstock.model.errors import InvalidCutError, SegmentNotFoundError
from penstock.model.names import StreamName
from penstock.model.segments import KeyRange, SegmentId
from penstock.ports import forks
from penstock.ports.control.plane import ControlPlane
from penstock.ports.control.watermarks import TimeWindow
from penstock.ports.data.service import SegmentService
from penstock.ports.rng import Rng

OnTruncated: TypeAlias = Literal["raise", "skip"]


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


async def ranges_of(controller: ControlPlane, cut: StreamCut) -> Mapping[SegmentId, KeyRange]:
    """Key ranges of the segments of a cut. Raises InvalidCutError if the stream never had one of the segments."""
    try:
        return await controller.layout.ranges(cut.stream, list(cut.positions))
    except SegmentNotFoundError as error:
        raise InvalidCutError(
            "cut names a segment that the stream never had", stream=str(cut.stream), cut=repr(cut)
        ) from error


class AsyncReader(AsyncBlockReader):
    """Reads one stream from a start to an end. Open with ``async with``; iterate events, blocks or Arrow batches.

    Without an end it waits at the tail for more, and ends when the stream is sealed and read. A segment is started once
    all older segments that share keys with it are read to their end. Blocks are fetched ahead while earlier ones are
    used.

    Data truncated before it was read raises TruncatedError, or is passed over with ``on_truncated="skip"``.
    Not for several tasks at once.
    """

    def __init__(
        self,
        stream: StreamName,
        segments: SegmentService,
        controller: ControlPlane,
        rng: Rng,
        *,
        start: Start = None,
        end: Bound = None,
        until_tail: bool = False,
        on_truncated: OnTruncated = "raise",
    ) -> None:
        self.stream = stream
        self._segments = segments
        self._controller = controller
        self._rng = rng
        self._start = start_of(start)
        self._end = "tail" if until_tail and end is None else end_of(end)
        one_of(on_truncated, "on_truncated", ("raise", "skip"))
        self._fetcher = SegmentFetcher(segments, rng, skip_truncated=on_truncated == "skip")
        self._ranges: dict[SegmentId, KeyRange] = {}
        self._unfinished: dict[SegmentId, int] = {}
        self._waiting: dict[SegmentId, None] = {}
        self._finished: dict[SegmentId, int] = {}
        self._limits: Mapping[SegmentId, int] = {}
        self._allowed: frozenset[SegmentId] | None = None
        self._current: Block | None = None
        self._events: Iterator[Event] = iter(())
        self._ending: SegmentEnd | None = None
        self._opened = False
        self._place = 0

    async def open(self) -> None:
        """Find start and end; the first read does it too. Raises StreamNotFoundError, InvalidCutError."""
        if self._opened:
            return
        controller, stream = self._controller, self.stream
        given = await retrying(lambda: resolve_start(self._segments, controller, stream, self._start), self._rng)
        end = None
        if self._end is not None:
            end = await retrying(lambda: resolve_cut(controller, stream, self._end), self._rng)
        self._ranges.update(await retrying(lambda: ranges_of(controller, given), self._rng))
        # The cut may have 0 for a segment that waits for an older one. If it started at once, it would overtake the older
        # one. The end of the older one would then name it as new, and it would be read twice.
        start = StreamCut(stream, normalised(given.positions, self._ranges))
        if end is not None or isinstance(self._start, StreamCut):
            # Check both. A cut that no reader can have reached would skip unread events.
            between = await retrying(lambda: controller.cuts.segments_between(stream, start, end or start), self._rng)
        if end is not None:
            self._allowed = frozenset(between)
            self._limits = {segment: max(0, offset) for segment, offset in end.positions.items()}
        self._opened = True
        for segment, offset in start.positions.items():
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
        self._fetcher.add(self.stream, segment, offset, self._limits.get(segment))

    def _begin_readable(self) -> None:
        for segment in startable(self._waiting, self._unfinished, self._ranges):
            del self._waiting[segment]
            self._begin(segment, 0)

    async def take_block(self) -> Block | None:
        """See ``AsyncBlockReader``.

        Raises: TruncatedError, StreamNotFoundError, CorruptDataError, UnavailableError. Cancelled: nothing is lost.
        """
        await self.open()
        self._settle_current()
        self._events = iter(())
        while self._unfinished:
            if self._ending is not None:  # also one whose handling was cancelled
                await self._finish(self._ending)
                self._ending = None
                continue
            item = self._fetcher.take()
            if item is None:
                await self._fetcher.arrived()
            elif isinstance(item, Block):
                self._current = item
                return item
            elif isinstance(item, SegmentFailure):
                raise item.error
            else:
                self._ending = item
        return None

    def _settle_current(self) -> None:
        if self._current is not None:
            self._unfinished[self._current.segment] = self._current.end_offset
            self._current = None

    async def _finish(self, item: SegmentEnd) -> None:
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

    def position(self) -> StreamCut:
        """The cut after the events that were read: another reader can continue there without a gap."""
        positions = dict.fromkeys(self._waiting, NOT_STARTED)
        positions.update(self._finished)
        positions.update(self._unfinished)
        if self._current is not None:
            positions[self._current.segment] = self._current.position
        return StreamCut(self.stream, normalised(positions, self._ranges))

    async def time_window(self) -> TimeWindow:
        """What is known of the times of the events up to ``position``, as their writers noted them.

        ``lower_ms``: every event that an active writer wrote before it noted this time has been read. ``upper_ms``: no
        event read so far is later. None: nothing is known yet. Neither goes back. Raises StreamNotFoundError,
        UnavailableError.
        """
        await self.open()
        position = self.position()
        found = await retrying(lambda: self._controller.cuts.time_window(position, place=self._place), self._rng)
        self._place = found.place
        return found

    def usable(self, block: Block) -> Iterator[Event]:
        """The events of the block. Raises ForkedError in a forked child."""
        for event in block:
            if self._fetcher.is_inherited:
                raise forks.refusal()
            yield event

    async def close(self) -> None:
        """Stop reading and drop what was fetched ahead. Idempotent."""
        await self._fetcher.close()

    async def abandon(self) -> None:
        """As ``close``: a single reader has no group to leave."""
        await self._fetcher.close()

    async def __aenter__(self) -> AsyncReader:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
