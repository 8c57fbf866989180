"""Writes events to a stream, in order per routing key, each exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from penstock.client.writing.lanes import WriterNotOpenError, check_key
from penstock.client.writing.layout import Layout
from penstock.client.writing.prepare import Prepared, count_unsent, event_of, prepare_events, prepare_large
from penstock.client.writing.segment_sender import Lane
from penstock.client.writing.settings import WriterSettings
from penstock.client.writing.times import NotedTimes
from penstock.client.writing.write_blocks import Place, Receipt
from penstock.client.writing.writer_core import WriterCore
from penstock.codec.events import EVENT_MAX_BYTES, HEADER_BYTES
from penstock.model.errors import InvalidArgumentError, QuotaExceededError
from penstock.model.records import Record
from penstock.model.traces.spans import current
from penstock.ports import forks
from penstock.ports.data.service import SegmentService
from penstock.ports.files import Buffer
from penstock.ports.rng import Rng

if TYPE_CHECKING:
    from penstock.client.writing.arrow import ArrowEvents, ArrowKeys, PieceMemory


class AsyncAcknowledgement:
    """The acknowledgement of one event: await it for the place of the event, once the event is durable.

    Awaiting raises what kept the event from being stored: QuotaExceededError, or the error that ended the writer. After such
    an end, an event whose answer is missing may be stored all the same. It may be awaited several times and by several
    tasks. A cancelled wait cancels nothing: the event is written.
    """

    __slots__ = ("_waiters", "receipt")

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []
        self.receipt = Receipt(self._wake)

    @property
    def done(self) -> bool:
        """Whether awaiting it returns or raises at once."""
        return self.receipt.done

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def __await__(self) -> Generator[Any, None, Place]:
        if not self.receipt.done:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            yield from waiter
        return self.receipt.outcome()


class AsyncWriter:
    """Writes to one stream. Open with ``async with``: leaving it flushes. Used without, the first write opens it, and
    ``close`` must be called.

    Events of one routing key are read in the order in which they were written, across scaling too. Events without a key
    are spread over the segments block by block; their order is kept within a segment only.

    A write returns when the event is buffered; ``flush`` returns when all earlier ones are durable. Whatever connection
    fails, each event is stored exactly once. Without any acknowledgement for ``deadline_s`` the writer fails with
    DeadlineExceededError, or with StorageFullError if it waits for a full disk; the fields count the unacknowledged
    events, and the writer cannot be used afterwards. Until then it continues by itself as soon as there is space again.
    If a backlog quota makes writers wait, the error is QuotaHeldError.

    If a backlog quota refuses an append, the next call and every waiting flush raise QuotaExceededError, once. All
    events that were not acknowledged by then are dropped, so that no later event overtakes them when they are written
    again. The error's fields ``unacked_events`` and ``unacked_bytes`` count them. The writer stays usable.
    """

    def __init__(self, layout: Layout, segments: SegmentService, rng: Rng, settings: WriterSettings) -> None:
        self.settings = settings
        self._closed = False
        self._opened = False
        self._opening = asyncio.Lock()
        self._memory: PieceMemory | None = None
        self._core = WriterCore(layout, segments, rng, settings, on_change=_nothing)
        self._times = NotedTimes(layout, rng)

    async def open(self) -> None:
        """Find the stream's segments; the first write does it too. Repeating does nothing.

        Raises StreamNotFoundError, StreamSealedError, UnavailableError, InvalidArgumentError (closed).
        """
        async with self._opening:
            if self._closed:
                raise InvalidArgumentError("writer is closed", stream=str(self._core.layout.stream))
            if self._core.is_inherited:
                raise forks.refusal()
            if not self._opened:
                self._loop = asyncio.get_running_loop()
                await self._core.open()
                self._opened = True

    async def _open_lane(self, key: str | None) -> Lane:
        check_key(key)
        await self.open()
        return self._core.lanes[key]

    async def write(self, event: Buffer | str | Record, key: str | None = None) -> None:
        """Buffer one event: bytes, text or a ``Record``, whose key is the default of ``key``.

        Waits only while more than ``max_pending_bytes`` are unacknowledged.

        Raises: EventTooLargeError (over 64 MiB), StreamSealedError, StreamNotFoundError, DeadlineExceededError,
        StorageFullError, QuotaHeldError, QuotaExceededError, InvalidArgumentError (an event or key of another type; a closed
        writer).
        Cancelled: the event is buffered, and will be written.
        """
        if type(event) is not bytes:
            event, key = event_of(event, key)
        core = self._core
        length = len(event)
        if length > EVENT_MAX_BYTES:
            await self.open()
            await self._send(prepare_large(core.lanes, event, key))
            return
        try:
            lane = core.lanes[key]
        except (WriterNotOpenError, TypeError):  # TypeError: a key that cannot be looked up, which is then refused
            lane = await self._open_lane(key)
        lane.written.extend((key, event))
        lane.size = size = lane.size + length + HEADER_BYTES
        if size >= lane.limit:
            await self._full(lane)

    async def write_acknowledged(self, event: Buffer | str | Record, key: str | None = None) -> AsyncAcknowledgement:
        """As ``write``, and return the acknowledgement of this event: await it for its segment and offset.

        It is sent and stored together with the events around it, without a flush. Wait for several at once, for example
        with ``asyncio.gather``: waiting for each before the next write costs a sync of the disk per event. Only these events
        cost more than with ``write``.

        Raises as ``write``. Cancelled: the event is buffered, and will be written; its acknowledgement is lost.
        """
        if type(event) is not bytes:
            event, key = event_of(event, key)
        await self.open()
        core = self._core
        core.check()
        acknowledgement = AsyncAcknowledgement()
        if len(event) > EVENT_MAX_BYTES:
            await self._send(prepare_large(core.lanes, event, key, acknowledgement.receipt))
            return acknowledgement
        check_key(key)
        lane = core.lanes[key]
        if lane.add_tracked(key, event, acknowledgement.receipt):
            await self._full(lane)
        return acknowledgement

    async def _full(self, lane: Lane) -> None:
        core = self._core
        core.around = current()
        core.check()
        if lane.limit <= 0:
            lane.limit = core.lane_bytes
            self._loop.call_soon(core.wake, lane)
            if lane.size < lane.limit:
                return
        core.drain(lane)
        if core.pending_bytes > self.settings.max_pending_bytes:
            await core.room()
        else:
            await asyncio.sleep(0)  # a loop of writes must let the acknowledgements in

    async def write_many(
        self, events: Sequence[Buffer | str | Record], keys: Sequence[str | None] | None = None
    ) -> None:
        """Buffer many events at less cost than one by one, in order. Raises as ``write``."""
        await self.open()
        await self._send(prepare_events(self._core.lanes, events, keys, self.settings.block_bytes))

    async def write_arrow(self, array: ArrowEvents, keys: ArrowKeys | None = None) -> None:
        """Buffer Arrow events of binary or text, framed without touching single events: an array, or a record batch or table
        with the column ``event`` and, unless ``keys`` are given, perhaps ``routing_key``. The columns ``segment_id`` and
        ``offset`` of ``read_arrow`` are not written. Null keys: no key.

        Raises as ``write``, InvalidArgumentError (another type, other columns, or nulls among the events),
        MissingExtraError (no pyarrow or numpy)."""
        from penstock.client.writing.arrow import PIECE_BYTES_MAX, ArrowBatch, PieceMemory

        await self.open()
        if self._memory is None:
            self._memory = PieceMemory(self.settings.max_pending_bytes + PIECE_BYTES_MAX)
        batch = ArrowBatch(array, keys, self.settings.block_bytes, self._memory)
        begun = False
        try:
            for prepared in batch.pieces(lambda: self._core.lanes):
                await self._send(prepared, goes_on=begun)
                begun = True
        except QuotaExceededError as error:
            if begun:
                count_unsent(error, *batch.left)
            raise

    def prepare(self, events: Sequence[bytes], keys: Sequence[str | None] | None) -> Prepared:
        """Frame events for their segments without taking them; the writer must be open. Raises as ``write_many``."""
        return prepare_events(self._core.lanes, events, keys, self.settings.block_bytes)

    def take(self, prepared: Prepared) -> None:
        """Take the result of ``prepare`` at once; the next write waits for room. Raises as ``write``."""
        self._core.enqueue(prepared)

    async def adopt(self, prepared: Prepared) -> None:
        """Take the result of ``prepare``. The first block of each segment may be stored already under its sender's id
        and number. Raises as ``write``."""
        for lane, block in prepared:
            lane.sender.number(block)
            self._core.adopt(lane.sender, block)
        await self._core.room()

    async def _send(self, prepared: Prepared, *, goes_on: bool = False) -> None:
        self._core.around = current()
        self._core.enqueue(prepared, goes_on=goes_on)
        await self._core.room()

    async def flush(self) -> None:
        """Return once every event written so far is durable. Raises the error that ended the writer."""
        self._core.around = current()
        await self._core.flush()

    async def note_time(self, time_ms: int) -> None:
        """Flush, then state that all events written so far have times up to ``time_ms``: milliseconds since the Unix
        epoch, or whatever the readers of the stream expect.

        Once all writers that note times have noted one, readers that have read this far get it as the lower bound of
        their ``time_window``. A writer that notes nothing for ``timestamp_aggregation_ms`` of the stream (0: a minute) no
        longer holds the others back, nor does one that is closed.

        Raises TimeGoesBackError, InvalidArgumentError (no whole number of 64 bits), and what ``flush`` raises.
        """
        await self.open()
        await self.flush()
        await self._times.note(time_ms)

    async def close(self) -> None:
        """Flush and close. The writer is closed even if this raises, as ``flush`` does."""
        if self._closed or self._core.is_inherited:
            return
        self._closed = True
        try:
            await self._core.flush()
        finally:
            await self._core.close()
            await self._times.leave()

    async def abort(self) -> None:
        """Close without sending the buffered events."""
        self._closed = True
        await self._core.close()

    async def __aenter__(self) -> AsyncWriter:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, Exception):
            await self.close()
        else:
            await self.abort()


def _nothing() -> None:
    """No other thread waits for an AsyncWriter."""
