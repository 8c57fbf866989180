"""The blocking readers, writers and transactions of values. Values are encoded and decoded in the caller's thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Generic, Self, TypeVar
from uuid import UUID

from penstock.client.blocking.readers import Reader
from penstock.client.blocking.writers import Transaction, Writer
from penstock.client.reading.blocks import Event
from penstock.client.retry import DEADLINE_S
from penstock.client.serializing.events import TypedEvent, TypedForm
from penstock.model.cuts import StreamCut
from penstock.model.errors import DecodeError, VersionTooNewError
from penstock.model.records import Given
from penstock.ports.control.watermarks import TimeWindow

T = TypeVar("T")


class TypedReader(Generic[T]):
    """Reads a stream as values of one type: ``stream.reader(serializer=...)``. For one thread at a time.

    ``event.value`` decodes. An event of another form raises DecodeError there, and the reader goes on with the next. If
    a schema registry is needed and does not answer, the call for the event raises SchemaRegistryUnavailableError, and
    the next call returns the same event: none is skipped.
    """

    def __init__(self, reader: Reader, form: TypedForm[T]) -> None:
        self.reader = reader
        self._form = form
        self._pending: Event | None = None

    def open(self) -> None:
        """As ``Reader.open``."""
        self.reader.open()

    def read(self, timeout_s: float | None = None) -> TypedEvent[T] | None:
        """The next event, or None at the end or after ``timeout_s`` seconds, which do not limit a call to the registry.

        Raises SchemaRegistryUnavailableError, SchemaRegistryRefusedError (both: the event comes again), and what
        ``Reader.read`` raises.
        """
        if self._pending is None:
            self._pending = self.reader.read(timeout_s)
        event = self._pending
        if event is None:
            return None
        if self._form.needs_lookup(event.data):
            with suppress(DecodeError, VersionTooNewError):  # ``event.value`` raises it again
                self._form.value_of(event.data)
        self._pending = None
        return TypedEvent(event, self._form)

    def position(self) -> StreamCut:
        """As ``Reader.position``."""
        return self.reader.position()

    def time_window(self) -> TimeWindow:
        """As ``Reader.time_window``."""
        return self.reader.time_window()

    def close(self) -> None:
        """Stop reading and drop what was fetched ahead. Idempotent."""
        self.reader.close()

    def __iter__(self) -> Iterator[TypedEvent[T]]:
        """Events one by one. After a ``break`` or an error, the next loop or ``read`` continues."""
        while (event := self.read()) is not None:
            yield event

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ValueWriter(Generic[T]):
    """The common base of typed writers and transactions. ``out``: where the events of the values are written."""

    def __init__(self, out: Writer | Transaction, form: TypedForm[T]) -> None:
        self._out = out
        self._form = form

    def write(
        self,
        value: T,
        key: Given = None,
        *,
        headers: Mapping[str, Given] | Iterable[tuple[str, Given]] = (),
        timestamp_ms: int | None = None,
    ) -> None:
        """Encode one value and buffer its event. ``key``: the routing key, and the key of a record. ``headers`` and
        ``timestamp_ms`` need ``records=True``.

        Raises InvalidArgumentError (the value does not fit), IncompatibleSchemaError, SchemaRegistryUnavailableError,
        SchemaRegistryRefusedError (nothing is written), and what ``write`` of the writer or transaction raises.
        """
        self._out.write(*self._form.written(value, key, headers, timestamp_ms))

    def write_many(self, values: Sequence[T], keys: Sequence[Given] | None = None) -> None:
        """Encode a list of values, and buffer their events in order: all of them, or none if one does not fit. ``keys``, if
        any, has one for each value. Raises as ``write``."""
        self._out.write_many(*self._form.written_many(values, keys))

    def write_tombstone(self, key: Given) -> None:
        """Write a record without a value, which stands for the deletion of its key. Needs ``records=True``."""
        self._out.write(self._form.tombstone(key))


class TypedWriter(ValueWriter[T]):
    """Writes values of one type to a stream: ``stream.writer(serializer=...)``.

    A value is encoded in full before it is written. If it does not fit, or if the registry refuses its schema or does
    not answer, an error is raised and nothing is written. With ``records=True`` each value becomes the value of a
    record. Everything else is as for ``Writer``.
    """

    def __init__(self, writer: Writer, form: TypedForm[T]) -> None:
        super().__init__(writer, form)
        self.writer = writer

    def open(self) -> None:
        """As ``Writer.open``."""
        self.writer.open()

    def flush(self) -> None:
        """Return once every event written so far is durable. Raises the error that ended the writer."""
        self.writer.flush()

    def note_time(self, time_ms: int) -> None:
        """As ``Writer.note_time``."""
        self.writer.note_time(time_ms)

    def close(self) -> None:
        """Flush and close. The writer is closed even if this raises, as ``flush`` does."""
        self.writer.close()

    def abort(self) -> None:
        """Close without sending the buffered events."""
        self.writer.abort()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.__exit__(kind, error, trace)


class TypedTransaction(ValueWriter[T]):
    """Values of one type that become readable together, or not at all: ``stream.transaction(serializer=...)``.

    A value is encoded in full before it is written, so a refused value leaves the transaction unchanged. Everything
    else is as for ``Transaction``, which is ``transaction``.
    """

    def __init__(self, transaction: Transaction, form: TypedForm[T]) -> None:
        super().__init__(transaction, form)
        self.transaction = transaction

    @property
    def id(self) -> UUID:
        """The transaction's id. Raises InvalidArgumentError before it is open."""
        return self.transaction.id

    def open(self) -> None:
        """As ``Transaction.open``."""
        self.transaction.open()

    def flush(self) -> None:
        """As ``Transaction.flush``."""
        self.transaction.flush()

    def commit(self, *, wait: bool = True, deadline_s: float = DEADLINE_S, timestamp_ms: int | None = None) -> None:
        """As ``Transaction.commit``."""
        self.transaction.commit(wait=wait, deadline_s=deadline_s, timestamp_ms=timestamp_ms)

    def abort(self, *, wait: bool = True, deadline_s: float = DEADLINE_S) -> None:
        """As ``Transaction.abort``."""
        self.transaction.abort(wait=wait, deadline_s=deadline_s)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.transaction.__exit__(kind, error, trace)
