"""Transactions of a group's reader, of the blocking client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from penstock.client.blocking.derived import Blocking
from penstock.client.blocking.loop_thread import LoopThread
from penstock.client.processing.group_transaction import AsyncGroupTransaction
from penstock.client.retry import DEADLINE_S
from penstock.client.serializing.events import TypedForm
from penstock.client.writing.lanes import check_key
from penstock.client.writing.prepare import event_of
from penstock.codec.events import HEADER_BYTES
from penstock.model.names import StreamName
from penstock.model.records import Given, Record
from penstock.ports.files import Buffer

if TYPE_CHECKING:
    from penstock.client.writing.arrow import ArrowEvents, ArrowKeys

T = TypeVar("T")


class _Written:
    """Events for one stream that were not handed over yet."""

    __slots__ = ("events", "keys", "size")

    def __init__(self) -> None:
        self.events: list[bytes] = []
        self.keys: list[str | None] = []
        self.size = 0


class GroupTransaction(Blocking[AsyncGroupTransaction]):
    """Positions of a reader and events for one or more streams, which are committed together or not at all.

    ``with`` commits on success. On an exception it aborts, and the reader returns the events since its last commit again.
    A commit covers all events that the reader has returned, the last one included, and also those that it returned
    before the transaction was opened. A stream to which nothing is written gets no transaction.

    If the process dies, the positions and the events are committed together, or another reader begins at the last commit
    and the events are dropped. A reader whose segments were given to another one cannot commit. For one thread at a time.
    """

    def __init__(self, thread: LoopThread, inner: AsyncGroupTransaction) -> None:
        super().__init__(thread, inner)
        self._block_bytes = inner.block_bytes
        self._written: dict[StreamName, _Written] = {}
        self._failure: BaseException | None = None

    @property
    def streams(self) -> Sequence[StreamName]:
        """The streams that it may write to, in the order in which they were given."""
        return self._inner.streams

    def open(self) -> None:
        """Begin. Entering ``with`` does it. Raises InvalidArgumentError (the reader is not open, or it has an open
        transaction), TransactionStateError (this one has ended)."""
        self._thread.call(self._inner.open())

    def write(
        self, event: Buffer | str | Record, key: str | None = None, *, to: str | StreamName | None = None
    ) -> None:
        """Buffer one event, with its routing ``key``; every ``block_bytes`` the events are handed over. ``to``: its stream,
        if there are several.

        Raises InvalidArgumentError, TransactionStateError, TransactionNotFoundError, StreamNotFoundError,
        StreamSealedError, EventTooLargeError.
        """
        name = self._inner.check(to)
        data, key = event_of(event, key)
        check_key(key)
        written = self._written.setdefault(name, _Written())
        written.events.append(data)
        written.keys.append(key)
        written.size += len(data) + HEADER_BYTES
        if written.size >= self._block_bytes:
            self._thread.call(self._hand_over())

    async def _hand_over(self) -> None:
        # Removed from the buffer here: if interrupted before this, the caller still has the events.
        if self._failure is not None:
            raise self._failure  # Some events may not be sent: a commit would record their positions without them.
        while self._written:
            name, written = self._written.popitem()
            keys = written.keys if any(key is not None for key in written.keys) else None
            try:
                await self._inner.write_many(written.events, keys, to=name)
            except BaseException as error:
                self._failure = error
                raise

    def write_many(
        self,
        events: Sequence[Buffer | str | Record],
        keys: Sequence[str | None] | None = None,
        *,
        to: str | StreamName | None = None,
    ) -> None:
        """Buffer a list of events, in order; ``keys``, if any, has one for each event. Raises as ``write``."""
        self._thread.call(self._write_many(events, keys, to))

    async def _write_many(
        self, events: Sequence[Buffer | str | Record], keys: Sequence[str | None] | None, to: str | StreamName | None
    ) -> None:
        await self._hand_over()
        await self._inner.write_many(events, keys, to=to)

    def write_arrow(
        self, array: ArrowEvents, keys: ArrowKeys | None = None, *, to: str | StreamName | None = None
    ) -> None:
        """Buffer Arrow events, as ``Writer.write_arrow`` takes them. Raises as it, and as ``write``."""
        self._thread.call(self._write_arrow(array, keys, to))

    async def _write_arrow(self, array: ArrowEvents, keys: ArrowKeys | None, to: str | StreamName | None) -> None:
        await self._hand_over()
        await self._inner.write_arrow(array, keys, to=to)

    def flush(self) -> None:
        """Return once every event written so far is durable, though not readable. Raises as ``write``."""
        self._thread.call(self._flush())

    async def _flush(self) -> None:
        await self._hand_over()
        await self._inner.flush()

    def commit(self, *, wait: bool = True, deadline_s: float = DEADLINE_S) -> None:
        """Commit the positions and the events, in one step. ``wait``: return when the events are readable; else when it is
        decided.

        Raises:
            NotCommittedError: Nothing is committed: another reader has taken over, the lease ran out, or a stream was
                deleted. The events since the last commit are returned again, by this reader or another.
            ReaderFencedError, ReaderGroupNotFoundError: As of the reader; nothing is committed.
            DeadlineExceededError: After ``deadline_s``: committed, and readable later.
            UnavailableError, StorageFullError: Perhaps committed. Call it again, or ``abort``, which reports it. If it
                raises the same again, the events could not be sent: abort.
            TransactionStateError: It has ended.
        """
        self._thread.call(self._commit(wait=wait, deadline_s=deadline_s))

    async def _commit(self, *, wait: bool, deadline_s: float) -> None:
        await self._hand_over()
        await self._inner.commit(wait=wait, deadline_s=deadline_s)

    def abort(self) -> None:
        """Drop the events. The reader returns the events since its last commit again.

        Raises TransactionStateError (it is committed), TransactionNotFoundError (it has ended long ago): the reader continues
        after what was committed. InvalidArgumentError (not open). A stream that was deleted is no error.
        """
        self._written.clear()
        self._thread.call(self._inner.abort())

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and (self._thread.is_inherited or self._thread.closed):
            return  # The parent commits or aborts it; or there is nothing left to abort with.
        self._thread.call(self._leave(kind, error, trace))

    async def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            try:
                await self._hand_over()
            except BaseException as failure:
                await self._inner.__aexit__(type(failure), failure, failure.__traceback__)
                raise
        await self._inner.__aexit__(kind, error, trace)


class TypedGroupTransaction(Generic[T]):
    """Positions of a group's reader, and values of one type that are committed together with them:
    ``reader.transaction(..., serializer=...)``.

    A value is encoded in full before it is written, so a refused value leaves the transaction unchanged. Everything
    else is as for ``GroupTransaction``, which is ``transaction``.
    """

    def __init__(self, transaction: GroupTransaction, form: TypedForm[T]) -> None:
        self.transaction = transaction
        self._form = form

    @property
    def streams(self) -> Sequence[StreamName]:
        """The streams that it may write to, in the order in which they were given."""
        return self.transaction.streams

    def open(self) -> None:
        """As ``GroupTransaction.open``."""
        self.transaction.open()

    def write(
        self,
        value: T,
        key: Given = None,
        *,
        headers: Mapping[str, Given] | Iterable[tuple[str, Given]] = (),
        timestamp_ms: int | None = None,
        to: str | StreamName | None = None,
    ) -> None:
        """Encode one value and write its event, as ``TypedWriter.write``. ``to``: its stream, if there are several.
        Raises as it, and as ``GroupTransaction.write``."""
        self.transaction.write(*self._form.written(value, key, headers, timestamp_ms), to=to)

    def write_many(
        self, values: Sequence[T], keys: Sequence[Given] | None = None, *, to: str | StreamName | None = None
    ) -> None:
        """Encode a list of values, and write their events in order: all of them, or none if one does not fit. ``keys``, if
        any, has one for each value. Raises as ``write``."""
        self.transaction.write_many(*self._form.written_many(values, keys), to=to)

    def write_tombstone(self, key: Given, *, to: str | StreamName | None = None) -> None:
        """Write a record without a value, which stands for the deletion of its key. Needs ``records=True``.
        ``to``: its stream, if there are several."""
        self.transaction.write(self._form.tombstone(key), to=to)

    def flush(self) -> None:
        """As ``GroupTransaction.flush``."""
        self.transaction.flush()

    def commit(self, *, wait: bool = True, deadline_s: float = DEADLINE_S) -> None:
        """As ``GroupTransaction.commit``."""
        self.transaction.commit(wait=wait, deadline_s=deadline_s)

    def abort(self) -> None:
        """As ``GroupTransaction.abort``."""
        self.transaction.abort()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.transaction.__exit__(kind, error, trace)
