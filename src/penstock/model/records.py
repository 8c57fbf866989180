"""A record: the value of an event with a key, headers and a time, as producers of Kafka know it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from penstock.model.errors import EventTooLargeError, InvalidArgumentError
from penstock.model.values.dataclass import dataclass

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
"""Names and values in the order in which they were given. A name may occur several times."""

KEY_MAX_BYTES = 1 << 20
HEADERS_MAX = 1024  # headers of one record
HEADER_NAME_MAX_BYTES = (1 << 16) - 1
HEADER_VALUE_MAX_BYTES = 1 << 20
VALUE_MAX_BYTES = 64 << 20
"""Limits of a record. The limit of an event, 64 MiB, holds for the whole record."""

_put = object.__setattr__  # the record is frozen
_TIMES = range(-(1 << 63), 1 << 63)

Given: TypeAlias = bytes | bytearray | memoryview | str | None


@dataclass(frozen=True, slots=True, init=False)
class Record:
    """What ``writer.write`` stores as one event, and ``event.record`` returns.

    ``value`` None is a tombstone, as Kafka knows it. ``timestamp_ms``: milliseconds since the Unix epoch, or None.
    Official Pravega clients see the bytes of docs/formats/record.md.
    """

    value: bytes | None
    key: bytes | None
    headers: Headers
    timestamp_ms: int | None

    def __init__(
        self,
        value: Given,
        *,
        key: Given = None,
        headers: Mapping[str, Given] | Iterable[tuple[str, Given]] = (),
        timestamp_ms: int | None = None,
    ) -> None:
        """Text is stored as UTF-8. Raises InvalidArgumentError (another type, too many headers), EventTooLargeError."""
        _put(self, "value", _bytes_of(value, "value", VALUE_MAX_BYTES))
        _put(self, "key", _bytes_of(key, "key", KEY_MAX_BYTES))
        _put(self, "headers", _headers_of(headers) if headers else ())
        if timestamp_ms is not None and not (type(timestamp_ms) is int and timestamp_ms in _TIMES):
            raise InvalidArgumentError(
                "timestamp_ms must be a whole number of 64 bits, or None",
                timestamp_ms=repr(timestamp_ms)[:60],
                type=type(timestamp_ms).__name__,
            )
        _put(self, "timestamp_ms", timestamp_ms)

    @classmethod
    def decoded(cls, value: bytes | None, key: bytes | None, headers: Headers, timestamp_ms: int | None) -> Record:
        """A record of parts that the codec has checked already."""
        made = object.__new__(cls)
        _put(made, "value", value)
        _put(made, "key", key)
        _put(made, "headers", headers)
        _put(made, "timestamp_ms", timestamp_ms)
        return made

    @property
    def routing_key(self) -> str | None:
        """The routing key that a writer uses if none is given: the key as text. Bytes that are not UTF-8 count as
        Latin-1. Equal keys have equal routing keys, so their order is kept."""
        return routing_key_of(self.key)

    def header(self, name: str) -> bytes | None:
        """The value of the last header of this name. None if there is no such header, or if its value is null."""
        return next((value for found, value in reversed(self.headers) if found == name), None)


def routing_key_of(key: bytes | None) -> str | None:
    """See ``Record.routing_key``."""
    if key is None:
        return None
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key.decode("latin-1")


def _headers_of(given: Mapping[str, Given] | Iterable[tuple[str, Given]]) -> Headers:
    pairs = given.items() if isinstance(given, Mapping) else given
    try:
        listed = [(name, value) for name, value in pairs]
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            "headers must be a mapping, or pairs of a name and a value", headers=repr(given)[:60]
        ) from error
    if len(listed) > HEADERS_MAX:
        raise InvalidArgumentError("record has too many headers", headers=len(listed), limit=HEADERS_MAX)
    return tuple((_name_of(name), _bytes_of(value, "header", HEADER_VALUE_MAX_BYTES)) for name, value in listed)


def _name_of(name: object) -> str:
    if not isinstance(name, str):
        raise InvalidArgumentError("the name of a header must be text", name=repr(name)[:60], type=type(name).__name__)
    data = _bytes_of(name, "header name", HEADER_NAME_MAX_BYTES)
    return name if data is not None else ""


def _bytes_of(given: object, name: str, limit_bytes: int) -> bytes | None:
    if given is None or (type(given) is bytes and len(given) <= limit_bytes):
        return given
    if isinstance(given, str):
        try:
            data = given.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgumentError(
                f"{name} cannot be encoded in UTF-8: it contains half of a surrogate pair", value=ascii(given)[:60]
            ) from error
    elif isinstance(given, bytes | bytearray | memoryview):
        data = bytes(given)
    else:
        raise InvalidArgumentError(f"{name} of a record must be bytes, text or None", type=type(given).__name__)
    if len(data) > limit_bytes:
        raise EventTooLargeError(f"{name} of a record is too large", size_bytes=len(data), limit_bytes=limit_bytes)
    return data
