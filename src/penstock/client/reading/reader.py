"""Reads streams without a group: every event once, in order per routing key, across scaling."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, TypeAlias, TypedDict

from penstock.client.frames import Frame, library, to_polars
from penstock.client.options import Finish, Start, end_of, one_of, start_of
from penstock.client.reading.async_reading import AsyncBlockReader
from penstock.client.reading.blocks import Block, Event
from penstock.client.reading.cursor import Bounds, StreamCursor
from penstock.client.reading.fetching import SegmentEnd, SegmentFailure, SegmentFetcher
from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidArgumentError, leaves
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId
from penstock.ports import forks
from penstock.ports.control.plane import ControlPlane
from penstock.ports.control.watermarks import TimeWindow
from penstock.ports.data.service import SegmentService
from penstock.ports.rng import Rng

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

OnTruncated: TypeAlias = Literal["raise", "skip"]


class ReaderOptions(TypedDict, total=False):
    """The keyword arguments of a stream's ``reader``, but for its serializer."""

    start: Start
    end: Finish
    until_tail: bool
    on_truncated: OnTruncated
    append_times: bool


_RESOLVED_AT_ONCE = 16  # streams whose start is looked for at the same time


class CursorReader(AsyncBlockReader):
    """What the readers of one stream and of several share: cursors that take turns at one fetcher."""

    def __init__(
        self,
        segments: SegmentService,
        controller: ControlPlane,
        rng: Rng,
        *,
        on_truncated: OnTruncated,
        append_times: bool,
    ) -> None:
        self._segments = segments
        self._controller = controller
        self._rng = rng
        one_of(on_truncated, "on_truncated", ("raise", "skip"))
        self._fetcher = SegmentFetcher(
            segments, rng, skip_truncated=on_truncated == "skip", append_times=bool(append_times)
        )
        self.append_times = bool(append_times)
        self._cursors: dict[StreamName, StreamCursor] = {}
        self._current: Block | None = None
        self._events: Iterator[Event] = iter(())
        self._ending: SegmentEnd | None = None
        self._failed: dict[tuple[StreamName, SegmentId], Exception] = {}

    def _cursor(self, stream: StreamName, bounds: Bounds) -> StreamCursor:
        return StreamCursor(stream, self._segments, self._controller, self._rng, bounds, self._add)

    def _add(self, stream: StreamName, segment: SegmentId, offset: int, limit: int | None) -> None:
        self._fetcher.add(stream, segment, offset, limit)

    @abstractmethod
    async def _choose(self) -> Sequence[StreamCursor]:
        """The cursors of the streams to read."""

    async def open(self) -> None:
        """Find start and end; the first read does it too. Raises StreamNotFoundError, InvalidCutError."""
        if self._cursors:
            return
        chosen = await self._choose()
        # Nothing is read before all starts are known: a stream that does not exist leaves nothing half done.
        for first in range(0, len(chosen), _RESOLVED_AT_ONCE):
            await _resolve(chosen[first : first + _RESOLVED_AT_ONCE])
        if not self._cursors:  # else another call has opened it meanwhile
            self._cursors = {cursor.stream: cursor for cursor in chosen}
            for cursor in chosen:
                cursor.begin()

    async def take_block(self) -> Block | None:
        """See ``AsyncBlockReader``.

        Raises: TruncatedError, StreamNotFoundError, CorruptDataError, UnavailableError. Later calls return what other
        segments have, and raise it again when nothing else is left. Cancelled: nothing is lost.
        """
        await self.open()
        if self._current is not None:
            self._cursors[self._current.stream].settle(self._current)
            self._current = None
        self._events = iter(())
        while not all(cursor.is_over for cursor in self._cursors.values()):
            if self._ending is not None:  # also one whose handling was cancelled
                await self._cursors[self._ending.stream].finish(self._ending)
                self._ending = None
                continue
            item = self._fetcher.take()
            if item is None:
                self._check_failed()
                await self._fetcher.arrived()
            elif isinstance(item, Block):
                self._current = item
                return item
            elif isinstance(item, SegmentFailure):
                self._failed[item.stream, item.segment] = item.error
                raise item.error
            else:
                self._ending = item
        return None

    def _check_failed(self) -> None:
        """Raise an error again if all segments that are not read to their end have failed: nothing else will arrive."""
        left = [(stream, segment) for stream, cursor in self._cursors.items() for segment in cursor.unfinished]
        if self._failed and all(key in self._failed for key in left):
            raise self._failed[left[0]]

    def usable(self, block: Block) -> Iterator[Event]:
        """The events of the block. Raises ForkedError in a forked child."""
        for event in block:
            if self._fetcher.is_inherited:
                raise forks.refusal()
            yield event

    async def open_bounded(self) -> None:
        """As ``open``. Raises InvalidArgumentError for a stream without an end, at whose tail a reader would wait forever."""
        await self.open()
        if endless := [str(stream) for stream, cursor in self._cursors.items() if cursor.is_endless]:
            raise InvalidArgumentError(
                "the reader has no end: make it with until_tail=True, or with an end", streams=endless[:10]
            )

    async def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """All events that are left, up to the reader's end, as one table in memory.

        ``columns``: of ``event``, ``scope``, ``stream``, ``segment_id``, ``offset`` and, with ``append_times``,
        ``append_time``; None: all of them. ``read_arrow`` gives them batch by batch, in bounded memory. Raises
        InvalidArgumentError (a reader without an end, an unknown column), MissingExtraError (no pyarrow or numpy), and what
        reading raises. Cancelled: the events that were read are lost to this reader.
        """
        frame = Frame(columns, append_times=self.append_times)
        await self.open_bounded()
        batches: list[pa.RecordBatch] = []
        while (block := await self.take_block()) is not None:
            batches.append(frame.batch(block))
            block.hand_out()
        return frame.table(batches)

    async def to_polars(self, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """As ``to_arrow``, as a DataFrame of Polars. Raises as it, and MissingExtraError (no polars)."""
        library("polars", "polars")
        frame: pl.DataFrame = to_polars(await self.to_arrow(columns))
        return frame

    async def close(self) -> None:
        """Stop reading and drop what was fetched ahead. Idempotent."""
        await self._fetcher.close()

    async def abandon(self) -> None:
        """As ``close``: a single reader has no group to leave."""
        await self._fetcher.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def _resolve(cursors: Sequence[StreamCursor]) -> None:
    if len(cursors) == 1:
        await cursors[0].resolve()
        return
    try:
        async with asyncio.TaskGroup() as group:
            for cursor in cursors:
                group.create_task(cursor.resolve())
    except ExceptionGroup as errors:
        raise next(leaves(errors)) from None


class AsyncReader(CursorReader):
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
        end: Finish = None,
        until_tail: bool = False,
        on_truncated: OnTruncated = "raise",
        append_times: bool = False,
    ) -> None:
        self.stream = stream
        bounds = bounds_of(start, end, until_tail=until_tail)
        super().__init__(segments, controller, rng, on_truncated=on_truncated, append_times=append_times)
        self._only = self._cursor(stream, bounds)

    async def _choose(self) -> Sequence[StreamCursor]:
        return [self._only]

    def position(self) -> StreamCut:
        """The cut after the events that were read: another reader can continue there without a gap."""
        return self._only.position(self._current)

    async def time_window(self) -> TimeWindow:
        """What is known of the times of the events up to ``position``, as their writers noted them.

        ``lower_ms``: every event that an active writer wrote before it noted this time has been read. ``upper_ms``: no
        event read so far is later. None: nothing is known yet. Neither goes back. Raises StreamNotFoundError,
        UnavailableError.
        """
        await self.open()
        return await self._only.time_window(self.position())


def bounds_of(start: Start, end: Finish, *, until_tail: bool) -> Bounds:
    """Start and end as a user gives them. Raises InvalidArgumentError."""
    return Bounds(start=start_of(start), end="tail" if until_tail and end is None else end_of(end))


Choice: TypeAlias = Callable[[], Awaitable[Mapping[StreamName, Bounds]]]
"""Finds the streams to read, when the reader is opened, and where to begin and end in each."""


class AsyncStreamsReader(CursorReader):
    """Reads several streams, without a group. Open with ``async with``; iterate events, blocks or Arrow batches.

    Events of one routing key come in order within their stream; there is no order between streams. Segments take turns,
    block by block, in the order in which their blocks arrived: each segment with data is served once before any is
    served twice. So a full stream delays a quiet one by one block (up to 1 MiB) of each of its segments.

    Without an end it waits at the tails for more, and ends when all streams are sealed and read. The memory for blocks
    that were fetched ahead is that of a reader of one stream, 64 MiB for all of them. An error of one stream
    (TruncatedError, StreamNotFoundError) is raised; call ``positions`` to open a reader of the others. Not for several
    tasks at once.
    """

    def __init__(
        self,
        choice: Choice,
        segments: SegmentService,
        controller: ControlPlane,
        rng: Rng,
        *,
        on_truncated: OnTruncated,
        append_times: bool,
    ) -> None:
        super().__init__(segments, controller, rng, on_truncated=on_truncated, append_times=append_times)
        self._choice = choice
        self._chosen: Sequence[StreamCursor] | None = None

    async def _choose(self) -> Sequence[StreamCursor]:
        if self._chosen is None:
            found = await self._choice()
            self._chosen = [self._cursor(stream, found[stream]) for stream in sorted(found)]
        return self._chosen

    @property
    def streams(self) -> Sequence[StreamName]:
        """The streams that are read, sorted; none before the reader is open. Those of a pattern are the ones that existed
        when it was opened."""
        return list(self._cursors)

    def positions(self) -> Mapping[StreamName, StreamCut]:
        """The cut of each stream after the events that were read; none before the reader is open. It is a ``start`` for
        another reader of the streams, which continues there without a gap."""
        return {stream: cursor.position(self._current) for stream, cursor in self._cursors.items()}

    async def time_windows(self) -> Mapping[StreamName, TimeWindow]:
        """What is known of the times of the events that were read of each stream; see ``Reader.time_window``. Raises
        StreamNotFoundError, UnavailableError."""
        await self.open()
        return {
            stream: await cursor.time_window(cursor.position(self._current)) for stream, cursor in self._cursors.items()
        }
