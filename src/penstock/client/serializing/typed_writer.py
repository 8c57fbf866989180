"""The asynchronous writer of values."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Generic, TypeVar

from penstock.client.serializing.events import TypedForm
from penstock.client.writing.writer import AsyncWriter
from penstock.model.errors import InvalidArgumentError
from penstock.model.records import Given, Record

T = TypeVar("T")


class AsyncTypedWriter(Generic[T]):
    """Writes values of one type to a stream: ``stream.writer(serializer=...)``.

    A value is encoded before anything of it is written: a value that does not fit, a schema that the registry refuses,
    or a registry without an answer raises an error, and nothing is written. With ``records=True`` each value becomes the
    value of a record. Everything else is as for ``AsyncWriter``.
    """

    def __init__(self, writer: AsyncWriter, form: TypedForm[T]) -> None:
        self.writer = writer
        self._form = form

    async def open(self) -> None:
        """As ``AsyncWriter.open``."""
        await self.writer.open()

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
        SchemaRegistryRefusedError (nothing is written), and what ``AsyncWriter.write`` raises.
        """
        data = await self._encode([value])
        await self._put([self._form.event_of(data[0], key, headers, timestamp_ms)], [key])

    async def write_many(self, values: Sequence[T], keys: Sequence[Given] | None = None) -> None:
        """Encode a list of values, and buffer their events in order: all of them, or none if one does not fit. ``keys``, if
        any, has one for each value. Raises as ``write``."""
        if keys is not None and len(keys) != len(values):
            raise InvalidArgumentError("give a key for every value, or for none", values=len(values), keys=len(keys))
        given: Sequence[Given] = [None] * len(values) if keys is None else keys
        data = await self._encode(values)
        events = [self._form.event_of(one, key, (), None) for one, key in zip(data, given, strict=True)]
        await self._put(events, given)

    async def write_tombstone(self, key: Given) -> None:
        """Write a record without a value, which stands for the deletion of its key. Needs ``records=True``."""
        await self.writer.write(tombstone(self._form, key))

    async def _encode(self, values: Sequence[T]) -> list[bytes]:
        serializer = self._form.serializer
        if values and serializer.needs_lookup(None):
            await asyncio.get_running_loop().run_in_executor(None, serializer.encode, values[0])
        return [serializer.encode(value) for value in values]

    async def _put(self, events: Sequence[bytes | Record], keys: Sequence[Given]) -> None:
        routing = routing_keys(self._form, keys)
        if len(events) == 1:
            await self.writer.write(events[0], None if routing is None else routing[0])
        else:
            await self.writer.write_many(events, routing)

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


def tombstone(form: TypedForm[T], key: Given) -> Record:
    """The record that deletes a key. Raises InvalidArgumentError: plain events, or no key."""
    if not form.records or key is None:
        raise InvalidArgumentError("a tombstone is a record with a key; make the writer with records=True", key=key)
    return Record(None, key=key)


def routing_keys(form: TypedForm[T], keys: Sequence[Given]) -> list[str | None] | None:
    """The routing keys of plain events; None if there are none, or if records have their own."""
    if form.records:
        return None
    found = [key if isinstance(key, str) else None for key in keys]
    return found if any(key is not None for key in found) else None
