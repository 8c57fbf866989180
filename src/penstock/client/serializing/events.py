"""Events of a typed stream: the value of each is decoded where it is used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

from penstock.client.reading.blocks import Event
from penstock.client.serializing.serializer import Serializer
from penstock.codec.records import begins_as_record, decode_record
from penstock.model.errors import DecodeError, InvalidArgumentError
from penstock.model.names import StreamName
from penstock.model.records import Given, Record
from penstock.model.segments import SegmentId

T = TypeVar("T")


class TypedForm(Generic[T]):
    """How values become events: by a serializer, and as the values of records or as plain events."""

    __slots__ = ("records", "serializer")

    def __init__(self, serializer: Serializer[T], *, records: bool) -> None:
        if not isinstance(serializer, Serializer):
            raise InvalidArgumentError("serializer is a penstock.Serializer", type=type(serializer).__name__)
        self.serializer = serializer
        self.records = records

    def event_of(
        self,
        data: bytes,
        key: Given,
        headers: Mapping[str, Given] | Iterable[tuple[str, Given]],
        timestamp_ms: int | None,
    ) -> bytes | Record:
        """What is written for an encoded value. Raises InvalidArgumentError: only records hold headers and times."""
        if self.records:
            return Record(data, key=key, headers=headers, timestamp_ms=timestamp_ms)
        if headers or timestamp_ms is not None or not (key is None or isinstance(key, str)):
            raise InvalidArgumentError(
                "plain events hold no headers, time or key of bytes; make the writer with records=True"
            )
        return data

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


class TypedEvent(Generic[T]):
    """One event of a typed reader, and where it lies."""

    __slots__ = ("_form", "event")

    def __init__(self, event: Event, form: TypedForm[T]) -> None:
        self.event = event
        self._form = form

    @property
    def value(self) -> T:
        """The decoded value; decoded at each call.

        Raises DecodeError and VersionTooNewError (the event is of another form; the reader goes on with the next one).
        """
        return self._form.value_of(self.event.data)

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
