"""The blocking group reader of values, which are decoded in the caller's thread."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, overload

from penstock.client.blocking.group_transactions import GroupTransaction, TypedGroupTransaction
from penstock.client.blocking.readers import GroupReader
from penstock.client.options import timeout
from penstock.client.reading.group_state import SegmentKey
from penstock.client.serializing.events import BlockValues, TypedEvent, TypedForm
from penstock.client.serializing.serializer import Serializer
from penstock.client.writing.settings import GroupTransactionOptions
from penstock.model.names import StreamName

T = TypeVar("T")
U = TypeVar("U")


class TypedGroupReader(Generic[T]):
    """Reads a group's share of its streams as values of one type: ``group.reader(name, serializer=...)``. For one
    thread at a time.

    ``event.value`` decodes. An event of another form raises DecodeError there, and the reader goes on with the next. If
    a schema registry is needed and does not answer, the call raises SchemaRegistryUnavailableError, and the next call
    returns the same event. No event is skipped, and no commit covers an event that was not returned. Everything else is
    as for ``GroupReader``.
    """

    def __init__(self, reader: GroupReader, form: TypedForm[T]) -> None:
        self.reader = reader
        self._values = BlockValues(form, reader.usable, reader.holds)

    def open(self) -> None:
        """As ``GroupReader.open``."""
        self.reader.open()

    def read(self, timeout_s: float | None = None) -> TypedEvent[T] | None:
        """The next event, or None at the end or after ``timeout_s`` seconds, which do not limit a call to the registry.

        Raises SchemaRegistryUnavailableError, SchemaRegistryRefusedError (both: the event comes again), and what
        ``GroupReader.read`` raises.
        """
        timeout(timeout_s)
        while True:
            if (data := self._values.to_look_up()) is not None:
                self._values.look_up(data)
            if (event := self._values.next()) is not None:
                return event
            try:
                block = self.reader.wait_block(timeout_s)
            except TimeoutError:
                return None
            if block is None:
                return None
            self._values.begin(block)

    def commit(self, event: TypedEvent[T] | None = None) -> None:
        """As ``GroupReader.commit``."""
        self.reader.commit(None if event is None else event.event)

    @overload
    def transaction(
        self, *streams: str | StreamName, serializer: None = None, **options: Unpack[GroupTransactionOptions]
    ) -> GroupTransaction: ...

    @overload
    def transaction(
        self,
        *streams: str | StreamName,
        serializer: Serializer[U],
        records: bool = False,
        **options: Unpack[GroupTransactionOptions],
    ) -> TypedGroupTransaction[U]: ...

    def transaction(self, *streams: str | StreamName, **options: Any) -> GroupTransaction | TypedGroupTransaction[Any]:
        """As ``GroupReader.transaction``; its ``serializer`` is that of what is written."""
        made: GroupTransaction | TypedGroupTransaction[Any] = self.reader.transaction(*streams, **options)
        return made

    def assigned(self) -> list[SegmentKey]:
        """The segments that this reader reads now."""
        return self.reader.assigned()

    def sync(self) -> None:
        """As ``GroupReader.sync``."""
        self.reader.sync()

    def close(self, *, clean: bool = True) -> None:
        """As ``GroupReader.close``."""
        self.reader.close(clean=clean)

    def __iter__(self) -> Iterator[TypedEvent[T]]:
        """Events one by one. After a ``break`` or an error, the next loop or ``read`` continues."""
        while (event := self.read()) is not None:
            yield event

    def __enter__(self) -> Self:
        self.reader.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.reader.__exit__(kind, error, trace)
