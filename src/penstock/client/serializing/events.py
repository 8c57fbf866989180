"""Events of a typed stream: the value of each is decoded where it is used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from penstock.client.reading.blocks import Block, Event
from penstock.client.serializing.serializer import Serializer
from penstock.codec.records import begins_as_record, decode_record
from penstock.model.errors import DecodeError, InvalidArgumentError, VersionTooNewError
from penstock.model.names import StreamName
from penstock.model.records import Given, Record
from penstock.model.segments import SegmentId

T = TypeVar("T")


class TypedForm(Generic[T]):
    """How values become events: by a serializer, and as the values of records or as plain events."""

    __slots__ = ("records", "serializer")

    def __init__(self, serializer: Serializer[T], *, records: bool) -> None:
        if not isinstance(serializer, Serializer):
            raise InvalidArgumentError("serializer must be a penstock.Serializer", type=type(serializer).__name__)
        self.serializer = serializer
        self.records = records

    async def look_up(self, values: Sequence[T]) -> None:
        """Ask the registry, in a thread, for what the encoding of the values needs. Raises as ``Serializer.encode``."""
        if values and self.serializer.needs_lookup(None):
            await asyncio.get_running_loop().run_in_executor(None, self.serializer.encode, values[0])

    def written(
        self,
        value: T,
        key: Given = None,
        headers: Mapping[str, Given] | Iterable[tuple[str, Given]] = (),
        timestamp_ms: int | None = None,
    ) -> tuple[bytes | Record, str | None]:
        """The event of a value, and its routing key. Raises as ``Serializer.encode``, and InvalidArgumentError: only records
        hold headers, times and keys of bytes."""
        data = self.serializer.encode(value)
        if self.records:
            return Record(data, key=key, headers=headers, timestamp_ms=timestamp_ms), None
        if headers or timestamp_ms is not None or not (key is None or isinstance(key, str)):
            raise InvalidArgumentError(
                "plain events hold no headers, time or key of bytes; make the writer with records=True"
            )
        return data, key

    def written_many(
        self, values: Sequence[T], keys: Sequence[Given] | None
    ) -> tuple[list[bytes | Record], list[str | None] | None]:
        """As ``written``, of a list; ``keys``, if any, has one for each value. Records have their own keys."""
        if keys is not None and len(keys) != len(values):
            raise InvalidArgumentError("give a key for every value, or for none", values=len(values), keys=len(keys))
        pairs = [self.written(*pair) for pair in zip(values, keys or [None] * len(values), strict=True)]
        routing = [key for _, key in pairs]
        return [event for event, _ in pairs], routing if any(key is not None for key in routing) else None

    def tombstone(self, key: Given) -> Record:
        """The record that deletes a key. Raises InvalidArgumentError: plain events, or no key."""
        if not self.records or key is None:
            raise InvalidArgumentError(
                "a tombstone must be a record with a key; make the writer with records=True", key=key
            )
        return Record(None, key=key)

    def needs_lookup(self, data: bytes) -> bool:
        """Whether the value of an event needs the registry now."""
        if not self.records:
            return self.serializer.needs_lookup(data)
        if not begins_as_record(data):
            return False
        try:
            value = decode_record(data).value
        except DecodeError:
            return False
        return value is not None and self.serializer.needs_lookup(value)

    def value_of(self, data: bytes) -> T:
        """The value of an event. Raises DecodeError."""
        if not self.records:
            return self.serializer.decode(data)
        value = decode_record(data).value
        if value is None:
            raise DecodeError("record is a tombstone and has no value; look at event.record.value first")
        return self.serializer.decode(value)


def form_of(serializer: Serializer[Any] | None, *, records: bool) -> TypedForm[Any] | None:
    """How a typed writer, reader or transaction treats values. Raises InvalidArgumentError: records without a serializer."""
    if serializer is not None:
        return TypedForm(serializer, records=records)
    if records:
        raise InvalidArgumentError(
            "records=True belongs to a serializer; plain writers take a Record, and event.record reads one"
        )
    return None


class TypedEvent(Generic[T]):
    """One event of a typed reader, and where it lies."""

    __slots__ = ("_form", "event")

    def __init__(self, event: Event, form: TypedForm[T]) -> None:
        self.event = event
        self._form = form

    @property
    def value(self) -> T:
        """The decoded value; decoded at each call.

        Raises DecodeError and VersionTooNewError (the event is of another form; the reader goes on with the next one). Both
        have the fields ``stream``, ``segment`` and ``offset``.
        """
        try:
            return self._form.value_of(self.event.data)
        except (DecodeError, VersionTooNewError) as error:
            place = {"stream": str(self.stream), "segment": self.segment, "offset": self.offset}
            raise type(error)(error.message, **(error.fields | place)) from error

    @property
    def record(self) -> Record:
        """The record of a reader with ``records=True``: key, headers, time. Raises as ``Event.record``."""
        return self.event.record

    @property
    def data(self) -> bytes:
        """The event as stored."""
        return self.event.data

    @property
    def stream(self) -> StreamName:
        """The stream that holds it."""
        return self.event.stream

    @property
    def segment(self) -> SegmentId:
        """The segment that holds it."""
        return self.event.segment

    @property
    def offset(self) -> int:
        """Where its header begins in the segment."""
        return self.event.offset

    def __repr__(self) -> str:
        return f"<TypedEvent {self.stream} segment={self.segment} offset={self.offset}>"


class BlockValues(Generic[T]):
    """The events of a group reader's blocks, one by one. ``to_look_up`` returns the one that needs the registry first.
    An event counts as returned to the program only when ``next`` returns it. So an event whose schema cannot be looked
    up is never committed.

    Args:
        usable: The events of a block, as long as it is this reader's.
        holds: Whether the block is still this reader's.
    """

    def __init__(
        self, form: TypedForm[T], usable: Callable[[Block], Iterator[Event]], holds: Callable[[Block], bool]
    ) -> None:
        self._form = form
        self._usable = usable
        self._holds = holds
        self._block: Block | None = None
        self._at = 0
        self._events: Iterator[Event] = iter(())

    def begin(self, block: Block) -> None:
        """Continue with the events of this block."""
        self._block, self._at, self._events = block, 0, self._usable(block)

    def to_look_up(self) -> bytes | None:
        """The next event, if its value needs the registry now."""
        block = self._block
        if block is None or self._at >= len(block) or not self._holds(block):
            return None
        data = block.data_at(self._at)
        return data if self._form.needs_lookup(data) else None

    def look_up(self, data: bytes) -> None:
        """Ask the registry. Raises SchemaRegistryUnavailableError, SchemaRegistryRefusedError: the event comes again."""
        with suppress(DecodeError, VersionTooNewError):  # ``event.value`` raises it again
            self._form.value_of(data)

    def next(self) -> TypedEvent[T] | None:
        """The next event; None: the block has no other, or another reader continues it."""
        for event in self._events:
            self._at += 1
            return TypedEvent(event, self._form)
        self._block = None
        return None
