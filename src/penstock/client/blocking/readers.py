"""Blocking readers: whole blocks come from the loop's thread; the caller's thread makes events of them."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, Unpack, overload

from penstock.client.blocking.answer import Answer
from penstock.client.blocking.derived import Blocking, blocking, described_by
from penstock.client.blocking.group_transactions import GroupTransaction, TypedGroupTransaction
from penstock.client.blocking.loop_thread import LoopThread
from penstock.client.frames import Frame, library, to_duckdb, to_polars
from penstock.client.options import timeout
from penstock.client.reading.blocks import Block, Event
from penstock.client.reading.group_reader import AsyncGroupReader
from penstock.client.reading.group_state import SegmentKey
from penstock.client.reading.reader import AsyncReader, AsyncStreamsReader, CursorReader
from penstock.client.reading.rebalancing import Change
from penstock.client.serializing.events import form_of
from penstock.client.serializing.serializer import Serializer
from penstock.client.writing.settings import GroupTransactionOptions
from penstock.model.cuts import StreamCut
from penstock.model.errors import ForkedError, InvalidArgumentError
from penstock.model.names import StreamName
from penstock.ports import forks
from penstock.ports.control.watermarks import TimeWindow

if TYPE_CHECKING:
    import duckdb
    import polars as pl
    import pyarrow as pa

R = TypeVar("R", bound="_AnyReader")
T = TypeVar("T")
C = TypeVar("C", bound=CursorReader)


class _AnyReader(Protocol):
    async def open(self) -> None: ...
    async def abandon(self) -> None: ...
    async def take_block(self) -> Block | None: ...


class _BlockReader(Blocking[R]):
    """What both kinds of blocking readers share."""

    def __init__(self, thread: LoopThread, inner: R) -> None:
        super().__init__(thread, inner)
        self._asked: Answer[Block | Change | None] | None = None
        self._events: Iterator[Event] = iter(())
        self._opened = False
        forks.register(self)

    def abandon_in_child(self) -> None:
        """See ``ports.forks.Handle``. The events of the last block belong to the parent."""
        events, self._events = self._events, iter(())
        # Drain it: a loop that continues in the child gets no events. ValueError: a thread of the parent was inside it.
        with suppress(ForkedError, ValueError):
            deque(events, maxlen=0)

    def open(self) -> None:
        """Find the start position. Entering ``with`` and the first read do it too. Repeating does nothing."""
        self._thread.check_process()
        if not self._opened:
            self._thread.call(self._inner.open())
            self._thread.own(self, self._inner.abandon)
            self._opened = True

    def next_block(self, timeout_s: float | None = None) -> Block | None:
        """The next block of whole events, or None at the end. The previous block counts as read.

        Raises TimeoutError after ``timeout_s``; the next call continues to wait. Otherwise as the asynchronous reader.
        """
        block = self.wait_block(timeout_s)
        if block is not None:
            block.hand_out()
        return block

    def wait_block(self, timeout_s: float | None = None) -> Block | None:
        """As ``next_block``, but does not count the block as returned to the user. After a timeout the next call gets the
        block."""
        while isinstance(item := self._take(timeout_s), Change):
            self._see(item)
        return item

    def _ask(self) -> Coroutine[Any, Any, Block | Change | None]:
        return self._inner.take_block()

    def _see(self, change: Change) -> None:
        """Let the program see the change, in this thread."""

    def _take(self, timeout_s: float | None) -> Block | Change | None:
        timeout(timeout_s)
        self.open()
        if self._asked is None:
            self._asked = self._thread.submit(self._ask())
        # Interrupted or timed out, the request stays: what arrives meanwhile is for the next call.
        asked = self._asked
        try:
            item = self._thread.wait(asked, timeout_s)
        finally:
            if asked.done:
                self._asked = None
        self._events = iter(())
        return item

    def usable(self, block: Block) -> Iterator[Event]:
        """The events of the block, as long as it is this reader's."""
        return iter(block)

    def _rest_of(self, block: Block) -> Iterator[Event]:
        """The events of the block. A chain has no ``close``: a ``break`` does not end the block's generator, and the
        next loop continues with the next event."""
        return chain(self.usable(block))

    def __iter__(self) -> Iterator[Event]:
        """Events one by one. After a ``break``, the next loop or ``read`` continues with the next event."""
        yield from self._events
        while (block := self.wait_block()) is not None:
            self._events = self._rest_of(block)
            yield from self._events

    def read(self, timeout_s: float | None = None) -> Event | None:
        """The next event, or None at the end or after ``timeout_s``."""
        timeout(timeout_s)
        while True:
            for event in self._events:
                return event
            try:
                block = self.wait_block(timeout_s)
            except TimeoutError:
                return None
            if block is None:
                return None
            self._events = self._rest_of(block)

    def read_blocks(self) -> Iterator[Block]:
        """Blocks of whole framed events, as they arrive."""
        while (block := self.next_block()) is not None:
            yield block

    def read_arrow(self) -> Iterator[pa.RecordBatch]:
        """A record batch per block: ``event`` (binary), ``segment_id`` and ``offset`` (int64).

        The iterator raises MissingExtraError where pyarrow or numpy is not installed; no event is taken then.
        """
        from penstock.client.writing.arrow import block_to_batch

        while (block := self.wait_block()) is not None:
            batch = block_to_batch(block)
            block.hand_out()
            yield batch

    def _forget_request(self) -> bool:
        """Return False in a forked child, which has nothing of its own to end."""
        if self._thread.is_inherited:
            return False
        self._thread.disown(self)
        if self._asked is not None:
            self._asked.cancel()
            self._asked = None
        return True

    def __enter__(self) -> Self:
        self.open()
        return self


class _CursorReader(_BlockReader[C]):
    """What the readers of one stream and of several share."""

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """All events that are left, up to the reader's end, as one table in memory.

        ``columns``: of ``event``, ``scope``, ``stream``, ``segment_id``, ``offset`` and, with ``append_times``,
        ``append_time``; None: all of them. ``to_arrow_reader`` gives them batch by batch, in bounded memory. Raises
        InvalidArgumentError (a reader without an end, an unknown column), MissingExtraError (no pyarrow or numpy), and what
        reading raises.
        """
        frame = Frame(columns, append_times=self._inner.append_times)
        self._thread.call(self._inner.open_bounded())
        return frame.table(self._batches(frame))

    def to_polars(self, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """As ``to_arrow``, as a DataFrame of Polars. Raises as it, and MissingExtraError (no polars)."""
        library("polars", "polars")
        frame: pl.DataFrame = to_polars(self.to_arrow(columns))
        return frame

    def to_arrow_reader(self, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """The events as a reader of Arrow: a batch per block of about 1 MiB, read when it is asked for.

        Without an end it waits at the tail for more. Use it in the thread of this reader, and before this reader is closed.
        Raises as ``to_arrow``.
        """
        frame = Frame(columns, append_times=self._inner.append_times)
        self.open()
        return frame.reader(self._batches(frame))

    def to_duckdb(
        self, connection: duckdb.DuckDBPyConnection | None = None, columns: Sequence[str] | None = None
    ) -> duckdb.DuckDBPyRelation:
        """The events up to the reader's end as a relation of DuckDB, which can be read once, in bounded memory.

        ``connection``: None is DuckDB's default one. Raises as ``to_arrow``, and MissingExtraError (no duckdb).
        """
        library("duckdb", "duckdb")
        frame = Frame(columns, append_times=self._inner.append_times)
        self._thread.call(self._inner.open_bounded())
        relation: duckdb.DuckDBPyRelation = to_duckdb(frame.reader(self._batches(frame)), connection)
        return relation

    def _batches(self, frame: Frame) -> Iterator[pa.RecordBatch]:
        while (block := self.wait_block()) is not None:
            batch = frame.batch(block)
            block.hand_out()
            yield batch

    def close(self) -> None:
        """Stop reading and drop what was fetched ahead. Idempotent."""
        if self._forget_request():
            self._thread.call(self._inner.close())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Reader(_CursorReader[AsyncReader]):
    """Reads one stream from a start to an end, in order per routing key. For one thread at a time.

    Iterate it for events; ``read_blocks`` and ``read_arrow`` give many at once. Data that was truncated before it was read
    raises TruncatedError, unless the reader was made with ``on_truncated="skip"``.
    """

    @property
    def stream(self) -> StreamName:
        """The stream that is read."""
        return self._inner.stream

    def position(self) -> StreamCut:
        """The cut after the events that were read."""
        return self._inner.position()

    def time_window(self) -> TimeWindow:
        """What is known of the times of the events up to ``position``, as their writers noted them.

        ``lower_ms``: every event that an active writer wrote before it noted this time has been read. ``upper_ms``: no
        event read so far is later. None: nothing is known yet. Neither goes back.
        """
        self.open()
        return self._thread.call(self._inner.time_window())


class StreamsReader(_CursorReader[AsyncStreamsReader]):
    """Reads several streams without a group, in order per routing key of each stream. For one thread at a time.

    Iterate it for events, each of which names its ``stream``; ``read_blocks`` and ``read_arrow`` give many at once. Segments
    take turns, block by block: each one with data is served once before any is served twice. Without an end it waits at
    the tails, and ends when all streams are sealed and read.
    """

    @property
    def streams(self) -> Sequence[StreamName]:
        """The streams that are read, sorted; none before the reader is open."""
        return self._inner.streams

    def positions(self) -> Mapping[StreamName, StreamCut]:
        """The cut of each stream after the events that were read; none before the reader is open. It is a ``start`` for
        another reader of the streams, which continues there without a gap."""
        return self._inner.positions()

    def time_windows(self) -> Mapping[StreamName, TimeWindow]:
        """What is known of the times of the events that were read of each stream; see ``Reader.time_window``."""
        self.open()
        return self._thread.call(self._inner.time_windows())


class GroupReader(_BlockReader[AsyncGroupReader]):
    """One reader of a group: reads the segments that the group gives it. For one thread at a time.

    It reports to its group in the background. An event counts as processed when the next one is requested; a clean
    close and ``commit`` count the last one too. After an exception the next reader gets that event again. A block or
    batch counts as a whole, unless the program iterates the block: then its events count one by one. With
    ``auto_commit=False`` only ``commit`` counts.
    """

    @property
    def name(self) -> str:
        """The reader's name, unique in its group."""
        return self._inner.name

    def usable(self, block: Block) -> Iterator[Event]:
        """The events of the block, as long as it is this reader's."""
        return self._inner.usable(block)

    def holds(self, block: Block) -> bool:
        """Whether the block last handed out is still this reader's."""
        return self._inner.holds(block)

    def assigned(self) -> list[SegmentKey]:
        """The segments that this reader reads now."""
        return self._inner.assigned()

    commit = blocking(AsyncGroupReader.commit)

    @overload
    def transaction(
        self, *streams: str | StreamName, serializer: None = None, **options: Unpack[GroupTransactionOptions]
    ) -> GroupTransaction: ...

    @overload
    def transaction(
        self,
        *streams: str | StreamName,
        serializer: Serializer[T],
        records: bool = False,
        **options: Unpack[GroupTransactionOptions],
    ) -> TypedGroupTransaction[T]: ...

    @described_by(AsyncGroupReader.transaction, returns="GroupTransaction | TypedGroupTransaction[Any]")
    def transaction(
        self,
        *streams: str | StreamName,
        serializer: Serializer[Any] | None = None,
        records: bool = False,
        **options: Any,
    ) -> GroupTransaction | TypedGroupTransaction[Any]:
        form = form_of(serializer, records=records)
        transaction = GroupTransaction(self._thread, self._inner.transaction(*streams, **options))
        return transaction if form is None else TypedGroupTransaction(transaction, form)

    sync = blocking(AsyncGroupReader.sync)

    def _ask(self) -> Coroutine[Any, Any, Block | Change | None]:
        return self._inner.take()

    def _see(self, change: Change) -> None:
        self._call(change)
        self._thread.call(self._inner.seen(change))

    def _call(self, change: Change) -> None:
        result = self._inner.call(change)
        if result is not None:
            if inspect.iscoroutine(result):
                result.close()
            raise InvalidArgumentError("a callback of a blocking reader must return None", callback=f"on_{change.kind}")

    def close(self, *, clean: bool = True) -> None:
        """Leave the group. ``clean``: the program has processed everything that was returned to it.

        First ``on_revoked`` is called for all segments, or ``on_lost`` unless ``clean``. What it raises is raised after the
        reader has left. Raises UnavailableError if the departure could not be reported: the group removes the reader when
        its lease expires.
        """
        if not self._thread.is_inherited:
            self._leave(clean=clean, last=partial(self._inner.leave, clean=clean))

    def _leave(self, *, clean: bool, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            if (change := self._inner.leaving(clean=clean)) is not None:
                self._call(change)
        finally:
            if self._forget_request():
                self._thread.call(last())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._thread.is_inherited:
            self._leave(clean=kind is None, last=partial(self._inner.__aexit__, kind, error, trace))
