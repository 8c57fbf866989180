"""The asynchronous reader of values."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from types import TracebackType
from typing import Generic, TypeVar

from penstock.client.reading.blocks import Event
from penstock.client.reading.reader import AsyncReader
from penstock.client.serializing.events import TypedEvent, TypedForm
from penstock.model.cuts import StreamCut
from penstock.model.errors import DecodeError, VersionTooNewError
from penstock.ports.control.watermarks import TimeWindow

T = TypeVar("T")


class AsyncTypedReader(Generic[T]):
    """Reads a stream as values of one type: ``stream.reader(serializer=...)``. Not for several tasks at once.

    ``event.value`` decodes. An event of another form raises DecodeError there, and the reader goes on with the next. If
    a schema registry is needed and does not answer, the call for the event raises SchemaRegistryUnavailableError, and
    the next call returns the same event: none is skipped.
    """

    def __init__(self, reader: AsyncReader, form: TypedForm[T]) -> None:
        self.reader = reader
        self._form = form
        self._pending: Event | None = None

    async def open(self) -> None:
        """As ``AsyncReader.open``."""
        await self.reader.open()

    async def read(self, timeout_s: float | None = None) -> TypedEvent[T] | None:
        """The next event, or None at the end or after ``timeout_s`` seconds, which do not limit a call to the registry.

        Raises SchemaRegistryUnavailableError, SchemaRegistryRefusedError (both: the event comes again), and what
        ``AsyncReader.read`` raises. Cancelled: nothing is lost.
        """
        if self._pending is None:
            self._pending = await self.reader.read(timeout_s)
        event = self._pending
        if event is None:
            return None
        if self._form.needs_lookup(event.data):
            with suppress(DecodeError, VersionTooNewError):  # ``event.value`` raises it again
                await asyncio.get_running_loop().run_in_executor(None, self._form.value_of, event.data)
        self._pending = None
        return TypedEvent(event, self._form)

    def position(self) -> StreamCut:
        """As ``AsyncReader.position``."""
        return self.reader.position()

    async def time_window(self) -> TimeWindow:
        """As ``AsyncReader.time_window``."""
        return await self.reader.time_window()

    async def close(self) -> None:
        """Stop reading and drop what was fetched ahead. Idempotent."""
        await self.reader.close()

    def __aiter__(self) -> AsyncIterator[TypedEvent[T]]:
        """Events one by one. After a ``break`` or an error, the next loop or ``read`` continues."""
        return self

    async def __anext__(self) -> TypedEvent[T]:
        event = await self.read()
        if event is None:
            raise StopAsyncIteration
        return event

    async def __aenter__(self) -> AsyncTypedReader[T]:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
