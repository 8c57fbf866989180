"""The asynchronous group reader of values."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Generic, TypeVar, Unpack, overload

from penstock.client.options import timeout
from penstock.client.processing.group_transaction import AsyncGroupTransaction
from penstock.client.reading.group_reader import AsyncGroupReader
from penstock.client.reading.group_state import SegmentKey
from penstock.client.serializing.events import BlockValues, TypedEvent, TypedForm
from penstock.client.serializing.serializer import Serializer
from penstock.client.serializing.typed_transactions import AsyncTypedGroupTransaction
from penstock.client.writing.settings import GroupTransactionOptions
from penstock.model.names import StreamName

T = TypeVar("T")
U = TypeVar("U")


class AsyncTypedGroupReader(Generic[T]):
    """Reads a group's share of its streams as values of one type: ``group.reader(name, serializer=...)``. Not for several
    tasks at once.

    ``event.value`` decodes. An event of another form raises DecodeError there, and the reader goes on with the next. If
    a schema registry is needed and does not answer, the call raises SchemaRegistryUnavailableError, and the next call
    returns the same event. No event is skipped, and no commit covers an event that was not returned. Everything else is
    as for ``AsyncGroupReader``.
    """

    def __init__(self, reader: AsyncGroupReader, form: TypedForm[T]) -> None:
        self.reader = reader
        self._values = BlockValues(form, reader.usable, reader.holds)

    async def open(self) -> None:
        """As ``AsyncGroupReader.open``."""
        await self.reader.open()

    async def read(self, timeout_s: float | None = None) -> TypedEvent[T] | None:
        """The next event, or None at the end or after ``timeout_s`` seconds, which do not limit a call to the registry.

        Raises SchemaRegistryUnavailableError, SchemaRegistryRefusedError (both: the event comes again), and what
        ``AsyncGroupReader.read`` raises. Cancelled: nothing is lost.
        """
        timeout(timeout_s)
        while True:
            if (data := self._values.to_look_up()) is not None:
                await asyncio.get_running_loop().run_in_executor(None, self._values.look_up, data)
            if (event := self._values.next()) is not None:
                return event
            try:
                async with asyncio.timeout(timeout_s):
                    block = await self.reader.take_block()
            except TimeoutError:
                return None
            if block is None:
                return None
            self._values.begin(block)

    async def commit(self, event: TypedEvent[T] | None = None) -> None:
        """As ``AsyncGroupReader.commit``."""
        await self.reader.commit(None if event is None else event.event)

    @overload
    def transaction(
        self, *streams: str | StreamName, serializer: None = None, **options: Unpack[GroupTransactionOptions]
    ) -> AsyncGroupTransaction: ...

    @overload
    def transaction(
        self,
        *streams: str | StreamName,
        serializer: Serializer[U],
        records: bool = False,
        **options: Unpack[GroupTransactionOptions],
    ) -> AsyncTypedGroupTransaction[U]: ...

    def transaction(
        self, *streams: str | StreamName, **options: Any
    ) -> AsyncGroupTransaction | AsyncTypedGroupTransaction[Any]:
        """As ``AsyncGroupReader.transaction``; its ``serializer`` is that of what is written."""
        made: AsyncGroupTransaction | AsyncTypedGroupTransaction[Any] = self.reader.transaction(*streams, **options)
        return made

    def assigned(self) -> list[SegmentKey]:
        """The segments that this reader reads now."""
        return self.reader.assigned()

    async def sync(self) -> None:
        """As ``AsyncGroupReader.sync``."""
        await self.reader.sync()

    async def close(self, *, clean: bool = True) -> None:
        """As ``AsyncGroupReader.close``."""
        await self.reader.close(clean=clean)

    def __aiter__(self) -> AsyncIterator[TypedEvent[T]]:
        """Events one by one. After a ``break`` or an error, the next loop or ``read`` continues."""
        return self

    async def __anext__(self) -> TypedEvent[T]:
        event = await self.read()
        if event is None:
            raise StopAsyncIteration
        return event

    async def __aenter__(self) -> AsyncTypedGroupReader[T]:
        await self.reader.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.reader.__aexit__(kind, error, trace)
