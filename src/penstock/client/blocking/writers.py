"""Blocking writers: single events stay in the caller's thread; blocks of events cross to the loop's thread."""

from __future__ import annotations

import threading  # noqa: TID251 - a writer's thread waits for room that the loop's thread makes
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from penstock.client.blocking.derived import Blocking, blocking
from penstock.client.blocking.loop_thread import POLL_S, LoopThread
from penstock.client.options import timeout
from penstock.client.retry import DEADLINE_S
from penstock.client.writing.lanes import ForkedLanes, WriterNotOpenError, check_key
from penstock.client.writing.layout import Layout
from penstock.client.writing.local_line import direct_lines
from penstock.client.writing.prepare import Prepared, count_unsent, event_of, prepare_events, prepare_large
from penstock.client.writing.segment_sender import Lane
from penstock.client.writing.settings import WriterSettings
from penstock.client.writing.times import NotedTimes
from penstock.client.writing.transaction import AsyncTransaction
from penstock.client.writing.write_blocks import Place, Receipt
from penstock.client.writing.writer_core import WriterCore
from penstock.codec.events import EVENT_MAX_BYTES, HEADER_BYTES
from penstock.model.errors import InvalidArgumentError, NotConnectedError, PenstockError, QuotaExceededError
from penstock.model.records import Record
from penstock.model.traces.spans import active, current
from penstock.ports import forks
from penstock.ports.files import Buffer
from penstock.ports.rng import Rng

if TYPE_CHECKING:
    from penstock.client.writing.arrow import ArrowEvents, ArrowKeys, PieceMemory


class LatchedReceipt(Receipt):
    """A receipt that threads can wait for."""

    __slots__ = ("_latch",)

    def __init__(self) -> None:
        self._latch = threading.Lock()
        self._latch.acquire()
        super().__init__(self._latch.release)

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is settled. Returns ``done``."""
        if not self.done and self._latch.acquire(timeout=max(0.0, timeout_s)):
            self._latch.release()  # for other threads that wait
        return self.done


class Acknowledgement:
    """The acknowledgement of one event. ``result`` waits until the event is durable, and returns its place.

    It may be asked several times and by several threads. A wait that ends early cancels nothing: the event is written.
    """

    __slots__ = ("_receipt", "_thread")

    def __init__(self, thread: LoopThread, receipt: LatchedReceipt) -> None:
        self._thread = thread
        self._receipt = receipt

    @property
    def done(self) -> bool:
        """Whether ``result`` returns or raises at once."""
        return self._receipt.done

    def result(self, timeout_s: float | None = None) -> Place:
        """The place of the event, once it is durable.

        Raises what kept the event from being stored: QuotaExceededError, or the error that ended the writer. After such an
        end, an event whose answer is missing may be stored all the same. Raises TimeoutError after ``timeout_s``; it may be
        called again.
        """
        timeout(timeout_s)
        left_s = float("inf") if timeout_s is None else timeout_s
        while not self._receipt.wait(min(left_s, POLL_S)):
            self._thread.check()
            left_s -= POLL_S
            if left_s <= 0:
                raise TimeoutError
        return self._receipt.outcome()


class Writer:
    """Writes to one stream, each event exactly once. For one thread at a time. With several threads no event is lost or
    doubled, but their order is not defined, and a flush covers only the events of its own thread.

    Use it in a ``with`` block, which flushes at its end. Without one, the first write opens it, and ``close`` must be called;
    events that are still buffered when the store is closed, or the process ends, are flushed for up to 10 seconds. A
    write adds to a list, without a lock or a thread switch.

    If a backlog quota refuses an append, the next call and every waiting flush raise QuotaExceededError, once. All
    events that were not acknowledged by then are dropped, so that no later event overtakes them when they are written
    again. The error's fields ``unacked_events`` and ``unacked_bytes`` count them. The writer stays usable.
    """

    def __init__(self, thread: LoopThread, layout: Layout, rng: Rng, settings: WriterSettings) -> None:
        self._thread = thread
        self._settings = settings
        self._changed = threading.Event()
        segments = thread.services[0]
        # With tracing, the loop sends everything: only its appends carry spans.
        dial = None if active() is not None else direct_lines(thread.loop, segments, local=thread.is_local)
        self._core = WriterCore(layout, segments, rng, settings, on_change=self._on_change, open_direct=dial)
        self._lanes = self._core.lanes
        self._times = NotedTimes(layout, rng)
        self._closed = False
        self._opened = False
        self._memory: PieceMemory | None = None
        forks.register(self)

    def abandon_in_child(self) -> None:
        """See ``ports.forks.Handle``. The parent writes what is buffered."""
        self._lanes = ForkedLanes()

    def open(self) -> None:
        """Find the stream's segments. Entering ``with`` and the first write do it too. Repeating does nothing.

        Raises StreamNotFoundError, StreamSealedError, UnavailableError, InvalidArgumentError (closed).
        """
        if self._closed:
            raise InvalidArgumentError("writer is closed", stream=str(self._core.layout.stream))
        if not self._opened:
            self._thread.call(self._core.open())
            self._thread.own(self, self._core.close, self._flush_left)
            self._lanes = self._core.lanes
            self._opened = True

    async def _flush_left(self) -> None:
        if self._core.error is None:
            await self._core.flush()

    def _open_lane(self, key: str | None) -> Lane:
        check_key(key)
        self.open()
        return self._lanes[key]

    def _on_change(self) -> None:
        self._lanes = self._core.lanes
        # A waiting thread clears the mark and then checks again, so it sees every change made before that.
        if not self._changed.is_set():
            self._changed.set()

    def write(self, event: Buffer | str | Record, key: str | None = None) -> None:
        """Buffer one event: bytes, text (sent as UTF-8) or a ``Record``. Events of one ``key`` keep their order. The key of a
        record is the default of ``key``.

        Waits only while more than ``max_pending_bytes`` are unacknowledged. Raises EventTooLargeError (over 64 MiB),
        InvalidArgumentError (an event or key of another type; a closed writer), QuotaExceededError (see the class), and
        the error that ended the writer: StreamSealedError, StreamNotFoundError, DeadlineExceededError, StorageFullError
        (full until the deadline).
        """
        if type(event) is not bytes:
            event, key = event_of(event, key)
        length = len(event)
        if length > EVENT_MAX_BYTES:
            self.open()
            self._send(prepare_large(self._lanes, event, key))
            return
        try:
            lane = self._lanes[key]
        except (WriterNotOpenError, TypeError):  # TypeError: a key that cannot be looked up, which is then refused
            lane = self._open_lane(key)
        lane.written.extend((key, event))
        lane.size = size = lane.size + length + HEADER_BYTES
        if size >= lane.limit:
            self._full(lane)

    def write_acknowledged(self, event: Buffer | str | Record, key: str | None = None) -> Acknowledgement:
        """As ``write``, and return the acknowledgement of this event: its ``result`` is the segment and offset.

        It is sent and stored together with the events around it, without a flush. Ask for the results after several writes:
        waiting for each before the next write costs a sync of the disk per event. Only these events cost more than with
        ``write``. Raises as ``write``.
        """
        if type(event) is not bytes:
            event, key = event_of(event, key)
        self.open()
        self._core.direct.stop(self._thread)
        self._check()
        receipt = LatchedReceipt()
        if len(event) > EVENT_MAX_BYTES:
            self._send(prepare_large(self._lanes, event, key, receipt))
        else:
            check_key(key)
            lane = self._lanes[key]
            if lane.add_tracked(key, event, receipt):
                self._full(lane)
            if self._core.error is not None:
                receipt.fail(self._core.error)  # The loop may have failed the lane before the event was in it.
        return Acknowledgement(self._thread, receipt)

    def _full(self, lane: Lane) -> None:
        core, block_bytes = self._core, self._core.lane_bytes
        self._check()
        if lane.limit <= 0:
            if core.direct.active and core.direct.send(self._thread, lane):
                return
            lane.limit = block_bytes
            try:
                self._thread.post(core.wake, lane)
            except BaseException:
                lane.limit = 0  # interrupted: the next event wakes the loop
                raise
            if lane.size < block_bytes:
                return
        if core.direct.active:
            core.direct.leave(self._thread)
        # If the loop is slow to take this block, the next call comes one block later.
        lane.limit = lane.size + block_bytes
        self._lanes.rotate(lane)
        self._thread.post(core.drain, lane)
        while core.error is None and (
            core.pending_bytes > self._settings.max_pending_bytes or lane.limit > 4 * block_bytes
        ):
            self._changed.clear()
            if core.pending_bytes > self._settings.max_pending_bytes or lane.limit > 4 * block_bytes:
                self._changed.wait(POLL_S)
                self._thread.check()
        self._check()

    def _check(self) -> None:
        self._core.around = current()
        if self._core.error is not None:
            raise self._core.error
        if self._core.rejections.is_known:
            self._thread.call(self._core.checked())

    def write_many(self, events: Sequence[Buffer | str | Record], keys: Sequence[str | None] | None = None) -> None:
        """Buffer a list of events at less cost than one by one, in order; ``keys``, if any, has one for each event.
        Raises as ``write``."""
        self.open()
        self._send(prepare_events(self._lanes, events, keys, self._settings.block_bytes))

    def write_arrow(self, array: ArrowEvents, keys: ArrowKeys | None = None) -> None:
        """Buffer Arrow events of binary or text, framed without touching single events: an array, or a record batch or table
        with the column ``event`` and, unless ``keys`` are given, perhaps ``routing_key``. The columns ``segment_id`` and
        ``offset`` of ``read_arrow`` are not written. Null keys: no key.

        Raises as ``write``, InvalidArgumentError (another type, other columns, or nulls among the events),
        MissingExtraError (no pyarrow or numpy)."""
        from penstock.client.writing.arrow import PIECE_BYTES_MAX, ArrowBatch, PieceMemory

        self.open()
        if self._memory is None:
            self._memory = PieceMemory(self._settings.max_pending_bytes + PIECE_BYTES_MAX)
        batch = ArrowBatch(array, keys, self._settings.block_bytes, self._memory)
        begun = False
        try:
            for prepared in batch.pieces(lambda: self._lanes):
                self._send(prepared, goes_on=begun)
                begun = True
        except QuotaExceededError as error:
            if begun:
                count_unsent(error, *batch.left)
            raise

    def _send(self, prepared: Prepared, *, goes_on: bool = False) -> None:
        self._core.around = current()
        self._core.direct.leave(self._thread)
        self._thread.call(self._enqueue(prepared, goes_on=goes_on))

    async def _enqueue(self, prepared: Prepared, *, goes_on: bool) -> None:
        self._core.enqueue(prepared, goes_on=goes_on)
        await self._core.room()

    def flush(self) -> None:
        """Return once every event written so far is durable. Raises the error that ended the writer."""
        self._flush(ends=False)

    def _flush(self, *, ends: bool) -> None:
        self._check()
        direct = self._core.direct
        if direct.active:
            self._thread.check_caller()
            if direct.flush(self._thread):
                return
        reported = self._core.rejections.reported
        self._thread.call_back(self._core.flush_then)
        self._check()
        self._core.rejections.check_since(reported)
        if direct.wanted is not None and not ends:
            lane, direct.wanted = direct.wanted, None
            with suppress(NotConnectedError, InvalidArgumentError):  # closed meanwhile: the next call says so
                self._thread.call(direct.open(lane))

    def close(self) -> None:
        """Flush and close. The writer is closed even if this raises, as ``flush`` does. If interrupted, it stays open
        and can be closed again."""
        if self._closed or self._thread.is_inherited:
            return
        try:
            self._flush(ends=True)
        except PenstockError:
            self._end()
            raise
        self._end()

    def note_time(self, time_ms: int) -> None:
        """Flush, then state that all events written so far have times up to ``time_ms``: milliseconds since the Unix
        epoch, or whatever the readers of the stream expect.

        Once all writers that note times have noted one, readers that have read this far get it as the lower bound of
        their ``time_window``. Raises TimeGoesBackError, InvalidArgumentError, and what ``flush`` raises.
        """
        self.open()
        self.flush()
        self._thread.call(self._times.note(time_ms))

    def _end(self, *, leaves: bool = True) -> None:
        self._closed = True
        self._thread.call(self._core.close())
        if leaves:
            self._thread.call(self._times.leave())
        # This comes last, so that the store still closes the writer if this call is interrupted.
        self._thread.disown(self)

    def abort(self) -> None:
        """Close without sending the buffered events."""
        if not self._closed and not self._thread.is_inherited:
            self._end(leaves=False)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, Exception):
            self.close()
        else:
            self.abort()


class Transaction(Blocking[AsyncTransaction]):
    """Events that become readable together, or not at all. For one thread at a time.

    ``with`` commits on success and aborts on an exception. While it is open its lease is renewed in the background.
    """

    def __init__(self, thread: LoopThread, inner: AsyncTransaction) -> None:
        super().__init__(thread, inner)
        self._block_bytes = inner.settings.block_bytes
        self._written: list[Any] = []
        """A list of key, event, key, event. One step adds both."""
        self._size = 0

    @property
    def id(self) -> UUID:
        """The transaction's id. Raises InvalidArgumentError before it is open."""
        return self._inner.id

    def open(self) -> None:
        """Begin; entering ``with`` does it. Does nothing if the transaction is open.

        Raises StreamNotFoundError, StreamSealedError, UnavailableError, TransactionStateError (committed or aborted: a
        decided transaction is not begun again).
        """
        self._thread.call(self._inner.open())
        self._thread.own(self, self._inner.abandon)

    def write(self, event: Buffer | str | Record, key: str | None = None) -> None:
        """Buffer one event: bytes, text or a ``Record``; every ``block_bytes`` the events are handed over.

        Raises InvalidArgumentError (not open; an event or key of another type), TransactionStateError (committed or
        aborted), TransactionNotFoundError (its lease ran out), EventTooLargeError.
        """
        self._inner.check()
        data, key = event_of(event, key)
        check_key(key)
        self._written.extend((key, data))
        self._size += len(data) + HEADER_BYTES
        if self._size >= self._block_bytes:
            self._hand_over()

    def _hand_over(self) -> None:
        if self._written:
            self._thread.call(self._write_taken())

    async def _write_taken(self) -> None:
        # Removed from the list here: if interrupted before this, the caller still has the events.
        if self._written:
            await self._inner.write_many(*self._taken())

    def _taken(self) -> tuple[list[bytes], list[str | None] | None]:
        count = len(self._written)
        taken = self._written[:count]
        del self._written[:count]
        self._size = 0
        events, keys = taken[1::2], taken[::2]
        return events, keys if any(key is not None for key in keys) else None

    def write_many(self, events: Sequence[Buffer | str | Record], keys: Sequence[str | None] | None = None) -> None:
        """Buffer a list of events, in order; ``keys``, if any, has one for each event. Raises as ``write``."""
        self._inner.check()
        self._hand_over()
        self._thread.call(self._inner.write_many(events, keys))

    def write_arrow(self, array: ArrowEvents, keys: ArrowKeys | None = None) -> None:
        """Buffer Arrow events, as ``Writer.write_arrow`` takes them. Raises as it."""
        self._inner.check()
        self._hand_over()
        self._thread.call(self._inner.write_arrow(array, keys))

    def flush(self) -> None:
        """Return once every event written so far is durable, though not readable. Raises as ``write``."""
        self._inner.check()
        self._hand_over()
        self._thread.call(self._inner.flush())

    ping = blocking(AsyncTransaction.ping)
    status = blocking(AsyncTransaction.status)

    def commit(self, *, wait: bool = True, deadline_s: float = DEADLINE_S, timestamp_ms: int | None = None) -> None:
        """Make all events readable at once. ``wait``: return when they are; else when it is decided.

        ``timestamp_ms``: the events of this transaction and of earlier ones have times up to this one, as
        ``Writer.note_time``. The store notes it for the ``writer`` of the transaction once the events are readable. If the
        writer has noted a later time, the events are committed and this time is not noted.

        Raises TransactionStateError (decided before), TransactionNotFoundError (its lease ran out), DeadlineExceededError
        (after ``deadline_s``: decided, readable later), InvalidArgumentError (not open; a timestamp without a ``writer``),
        UnavailableError, StorageFullError. After the last two it may be called again until the lease ends.
        """
        self._thread.call(self._commit(wait=wait, deadline_s=deadline_s, timestamp_ms=timestamp_ms))
        self._thread.disown(self)

    async def _commit(self, *, wait: bool, deadline_s: float, timestamp_ms: int | None) -> None:
        await self._write_taken()
        await self._inner.commit(wait=wait, deadline_s=deadline_s, timestamp_ms=timestamp_ms)

    def abort(self, *, wait: bool = True, deadline_s: float = DEADLINE_S) -> None:
        """Drop all events. ``wait``: return when the status is ABORTED; else when it is decided.

        Raises TransactionStateError (committed), InvalidArgumentError (not open), DeadlineExceededError (after
        ``deadline_s``: decided, the removal continues).
        """
        self._thread.call(self._abort(wait=wait, deadline_s=deadline_s))
        self._thread.disown(self)

    async def _abort(self, *, wait: bool, deadline_s: float) -> None:
        self._taken()
        await self._inner.abort(wait=wait, deadline_s=deadline_s)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and self._thread.is_inherited:
            return  # The parent commits or aborts it.
        self._thread.disown(self)
        if kind is not None and self._thread.closed:
            return  # the caller's exception is more useful than the report that nothing can be aborted any more
        if kind is None:
            self._thread.call(self._leave())
        else:
            self._thread.call(self._inner.__aexit__(kind, error, trace))

    async def _leave(self) -> None:
        try:
            await self._write_taken()
        except PenstockError as failure:
            await self._inner.__aexit__(type(failure), failure, failure.__traceback__)
            raise
        await self._inner.__aexit__(None, None, None)
