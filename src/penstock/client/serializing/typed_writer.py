"""The asynchronous writer of values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from penstock.client.serializing.events import TypedForm
from penstock.client.writing.writer import AsyncWriter
from penstock.model.records import Given, Record

T = TypeVar("T")


class Output(Protocol):
    """A writer or a transaction."""

    async def write(self, event: bytes | Record, key: str | None = None) -> None: ...
    async def write_many(self, events: Sequence[bytes | Record], keys: Sequence[str | None] | None = None) -> None: ...


class AsyncValueWriter(Generic[T]):
    """The common base of typed writers and transactions. ``out``: where the events of the values are written."""

    def __init__(self, out: Output, form: TypedForm[T]) -> None:
        self._out = out
        self._form = form

    async def write(
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
        await self._form.look_up([value])
        await self._out.write(*self._form.written(value, key, headers, timestamp_ms))

    async def write_many(self, values: Sequence[T], keys: Sequence[Given] | None = None) -> None:
        """Encode a list of values, and buffer their events in order: all of them, or none if one does not fit. ``keys``, if
        any, has one for each value. Raises as ``write``."""
        await self._form.look_up(values)
        await self._out.write_many(*self._form.written_many(values, keys))

    async def write_tombstone(self, key: Given) -> None:
        """Write a record without a value, which stands for the deletion of its key. Needs ``records=True``."""
        await self._out.write(self._form.tombstone(key))


class AsyncTypedWriter(AsyncValueWriter[T]):
    """Writes values of one type to a stream: ``stream.writer(serializer=...)``.

    A value is encoded in full before it is written. If it does not fit, or if the registry refuses its schema or does
    not answer, an error is raised and nothing is written. With ``records=True`` each value becomes the value of a
    record. Everything else is as for ``AsyncWriter``.
    """

    def __init__(self, writer: AsyncWriter, form: TypedForm[T]) -> None:
        super().__init__(writer, form)
        self.writer = writer

    async def open(self) -> None:
        """As ``AsyncWriter.open``."""
        await self.writer.open()

    async def flush(self) -> None:
        """Return once every event written so far is durable. Raises the error that ended the writer."""
        await self.writer.flush()

    async def note_time(self, time_ms: int) -> None:
        """As ``AsyncWriter.note_time``."""
        await self.writer.note_time(time_ms)

    async def close(self) -> None:
        """Flush and close. The writer is closed even if this raises, as ``flush`` does."""
        await self.writer.close()

    async def abort(self) -> None:
        """Close without sending the buffered events."""
        await self.writer.abort()

    async def __aenter__(self) -> AsyncTypedWriter[T]:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.writer.__aexit__(kind, error, trace)
