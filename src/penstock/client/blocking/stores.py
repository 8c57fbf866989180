"""The blocking client: the same names, no ``await``. Works in scripts, threads, notebooks and running loops.

A ``Store`` runs one event loop in one background thread. Single events never cross between threads: writers hand over
closed blocks, readers take whole blocks. Interrupting a wait (Ctrl-C) leaves every object usable.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar, Unpack, overload
from uuid import UUID

from penstock.client.blocking.approvals import Approvals
from penstock.client.blocking.audit import AuditLog
from penstock.client.blocking.byte_streams import ByteStream
from penstock.client.blocking.derived import Blocking, blocking, blocking_as, counterpart_of, described_by
from penstock.client.blocking.erasures import Cases, Erasures
from penstock.client.blocking.groups import ReaderGroup
from penstock.client.blocking.levels import Holds, LevelPolicy, Retention
from penstock.client.blocking.loop_thread import LoopThread, Opener
from penstock.client.blocking.readers import GroupReader, Reader, StreamsReader
from penstock.client.blocking.tables import Table
from penstock.client.blocking.typed import TypedReader, TypedTransaction, TypedWriter
from penstock.client.blocking.writers import Transaction, Writer
from penstock.client.frames import ArrowTable, RowWriter
from penstock.client.options import settings_of
from penstock.client.reading.reader import ReaderOptions
from penstock.client.serializing.events import form_of
from penstock.client.serializing.serializer import Serializer
from penstock.client.store import AsyncStore
from penstock.client.stream import AsyncStream
from penstock.client.writing.settings import TransactionOptions, WriterOptions, WriterSettings
from penstock.model.names import StreamName
from penstock.ports.clock import Clock
from penstock.ports.rng import Rng

__all__ = [
    "ByteStream",
    "GroupReader",
    "Holds",
    "LevelPolicy",
    "Reader",
    "ReaderGroup",
    "Retention",
    "Store",
    "Stream",
    "StreamsReader",
    "Table",
    "Transaction",
    "Writer",
]

T = TypeVar("T")


class _SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class _SystemRng:
    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def random(self) -> float:
        return self._random.random()

    def randrange(self, stop: int) -> int:
        return self._random.randrange(stop)

    def uuid(self) -> UUID:
        return uuid.uuid4()


class Stream(Blocking[AsyncStream]):
    """One stream by name. Creating one does no I/O; calls raise StreamNotFoundError where there is no such stream, and
    UnavailableError where the store cannot be reached."""

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def name(self) -> StreamName:
        """Scope and name; its text is ``scope/stream``."""
        return self._inner.name

    describe = blocking(AsyncStream.describe)
    exists = blocking(AsyncStream.exists)
    config = blocking(AsyncStream.config)
    head = blocking(AsyncStream.head)
    tail = blocking(AsyncStream.tail)
    truncate = blocking(AsyncStream.truncate)
    seal = blocking(AsyncStream.seal)
    delete = blocking(AsyncStream.delete)
    update = blocking(AsyncStream.update)
    scale = blocking(AsyncStream.scale)
    explain_scaling = blocking(AsyncStream.explain_scaling)

    @property
    def retention(self) -> Retention:
        """The stream's retention: its policy, ``plan``, ``explain``, ``reclaim``, ``forecast``, ``holds``."""
        return Retention(self._thread, self._inner.retention)

    subscribers = blocking(AsyncStream.subscribers)
    set_acknowledged = blocking(AsyncStream.set_acknowledged)
    remove_subscriber = blocking(AsyncStream.remove_subscriber)
    erase = blocking(AsyncStream.erase)

    def write_table(self, table: ArrowTable, *, key: str | None = None, event: str | None = None) -> int:
        """Write each row of a table as an event, in order per key. Returns the number of rows, once all are durable.

        Args:
            table: A table, record batch or RecordBatchReader of pyarrow; a DataFrame of Polars or pandas; a relation of
                DuckDB; or any object with ``__arrow_c_stream__``. A reader is read batch by batch, in bounded memory.
            key: The column with the routing keys, of any type that can be text. A null is no key.
            event: The column with the events, binary or text. None: the column ``event`` if there is one, else each row
                becomes a JSON object of all its columns.
        Raises:
            InvalidArgumentError: Not a table, or no such column: nothing is written. A null event, or a value without a form
                in JSON: ``written_before`` counts the rows that are written.
            MissingExtraError: No pyarrow or numpy. Otherwise as ``write`` of a writer.
        """
        # In this thread: the table may be a reader of this store, which must not be pulled in the event loop.
        rows = RowWriter(table, key=key, event=event)
        with self.writer() as writer:
            for events, keys in rows.pieces():
                (writer.write_arrow if rows.is_arrow else writer.write_many)(events, keys)
        return rows.done

    open_transactions = blocking(AsyncStream.open_transactions)
    describe_transaction = blocking(AsyncStream.describe_transaction)
    abort_transaction = blocking(AsyncStream.abort_transaction)

    @property
    def erasures(self) -> Erasures:
        """What was erased of the stream, with receipts."""
        return Erasures(self._thread, self._inner.erasures)

    @overload
    def writer(
        self, settings: WriterSettings | None = None, *, serializer: None = None, **options: Unpack[WriterOptions]
    ) -> Writer: ...

    @overload
    def writer(
        self,
        settings: WriterSettings | None = None,
        *,
        serializer: Serializer[T],
        records: bool = False,
        **options: Unpack[WriterOptions],
    ) -> TypedWriter[T]: ...

    @described_by(AsyncStream.writer, returns="Writer | TypedWriter[Any]")
    def writer(
        self,
        settings: WriterSettings | None = None,
        *,
        serializer: Serializer[Any] | None = None,
        records: bool = False,
        **options: Unpack[WriterOptions],
    ) -> Writer | TypedWriter[Any]:
        chosen = settings or settings_of(WriterSettings, "a writer", options)
        form = form_of(serializer, records=records)
        writer = Writer(self._thread, self._inner.layout(), self._inner.rng, chosen)
        return writer if form is None else TypedWriter(writer, form)

    @overload
    def reader(self, *, serializer: None = None, **options: Unpack[ReaderOptions]) -> Reader: ...

    @overload
    def reader(
        self, *, serializer: Serializer[T], records: bool = False, **options: Unpack[ReaderOptions]
    ) -> TypedReader[T]: ...

    @described_by(AsyncStream.reader, returns="Reader | TypedReader[Any]")
    def reader(
        self, *, serializer: Serializer[Any] | None = None, records: bool = False, **options: Any
    ) -> Reader | TypedReader[Any]:
        form = form_of(serializer, records=records)
        reader = Reader(self._thread, self._inner.reader(**options))
        return reader if form is None else TypedReader(reader, form)

    @overload
    def transaction(self, *, serializer: None = None, **options: Unpack[TransactionOptions]) -> Transaction: ...

    @overload
    def transaction(
        self, *, serializer: Serializer[T], records: bool = False, **options: Unpack[TransactionOptions]
    ) -> TypedTransaction[T]: ...

    @described_by(AsyncStream.transaction, returns="Transaction | TypedTransaction[Any]")
    def transaction(
        self, *, serializer: Serializer[Any] | None = None, records: bool = False, **options: Any
    ) -> Transaction | TypedTransaction[Any]:
        form = form_of(serializer, records=records)
        transaction = Transaction(self._thread, self._inner.transaction(**options))
        return transaction if form is None else TypedTransaction(transaction, form)


class Store(Blocking[AsyncStore]):
    """A store, opened on construction by entering ``opener()`` in a thread of its own, closed by ``close`` or ``with``.

    Raises what the opener raises. Safe to use from several threads; writers and readers belong to one at a time. A store
    that is still open when the process ends is closed then. ``place`` is where it is, for its ``repr``. ``local``: the opener
    returns a store in this process, which runs in the loop that this call starts.
    """

    def __init__(
        self,
        opener: Opener,
        *,
        clock: Clock | None = None,
        rng: Rng | None = None,
        place: str = "store",
        local: bool = False,
    ) -> None:
        self._place = place
        thread = LoopThread(opener, local=local)
        segments, controller = thread.services
        super().__init__(thread, AsyncStore(segments, controller, clock or _SystemClock(), rng or _SystemRng()))

    def __repr__(self) -> str:
        return f"<Store {self._place}, {'closed' if self._thread.closed else 'open'}>"

    def call(self, work: Callable[[AsyncStore], Coroutine[Any, Any, T]]) -> T:
        """Run the coroutine ``work(async_store)`` in the store's own loop, and return its answer or raise its error."""
        return self._thread.call(work(self._inner))

    create_scope = blocking(AsyncStore.create_scope)
    delete_scope = blocking(AsyncStore.delete_scope)
    describe_scope = blocking(AsyncStore.describe_scope)
    scopes = blocking(AsyncStore.scopes)
    streams = blocking(AsyncStore.streams)
    deleted_streams = blocking(AsyncStore.deleted_streams)
    restore_stream = blocking(AsyncStore.restore_stream)
    create_stream = blocking_as(AsyncStore.create_stream, Stream)
    stream = counterpart_of(AsyncStore.stream, Stream)
    byte_stream = counterpart_of(AsyncStore.byte_stream, ByteStream)
    reader = counterpart_of(AsyncStore.reader, StreamsReader)
    reader_group = blocking_as(AsyncStore.reader_group, ReaderGroup)
    open_reader_group = blocking_as(AsyncStore.open_reader_group, ReaderGroup)
    reset_reader_group = blocking(AsyncStore.reset_reader_group)
    create_table = blocking_as(AsyncStore.create_table, Table)
    table = counterpart_of(AsyncStore.table, Table)
    tables = blocking(AsyncStore.tables)
    policy = counterpart_of(AsyncStore.policy, LevelPolicy)
    holds = counterpart_of(AsyncStore.holds, Holds)
    audit = counterpart_of(AsyncStore.audit, AuditLog)
    approvals = counterpart_of(AsyncStore.approvals, Approvals)
    erasures = counterpart_of(AsyncStore.erasures, Erasures)
    cases = counterpart_of(AsyncStore.cases, Cases)
    reader_groups = blocking(AsyncStore.reader_groups)
    describe_reader_group = blocking(AsyncStore.describe_reader_group)

    def close(self) -> None:
        """End the background thread and close the store. Idempotent.

        Close writers first, to see their errors: the events of open writers are flushed for up to 10 seconds, then
        dropped. The store aborts open transactions when their leases expire.
        """
        self._thread.close()

    async def __aenter__(self) -> NoReturn:
        raise TypeError("this store is for `with`; for `async with` use penstock.open_async or penstock.connect_async")

    async def __aexit__(self, *error: object) -> None:
        """Never reached: a blocking store is not entered with ``async with``."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
