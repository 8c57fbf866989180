"""Records as events: key, headers, time and value in one event. Source: docs/formats/record.md.

The first byte, 0xF7, begins no text in UTF-8, no JSON, no protobuf message and no schema header of Confluent or Pravega.
A checksum over all that surrounds the value decides the rest: an event that only begins alike is no record.
"""

from __future__ import annotations

from struct import Struct

from crc32c import crc32c

from penstock.model.errors import NotARecordError, VersionTooNewError
from penstock.model.records import (
    HEADER_VALUE_MAX_BYTES,
    HEADERS_MAX,
    KEY_MAX_BYTES,
    VALUE_MAX_BYTES,
    Headers,
    Record,
)

RECORD = Struct(">3sBIBqHII")  # magic, version, CRC32C, flags, time, count of headers, length of key, of value
HEADER = Struct(">Hi")  # length of the name; of the value, or -1
MAGIC = b"\xf7PR"
VERSION = 1
HAS_KEY, HAS_TIME, HAS_VALUE = 1, 2, 4  # bits of the flags
_FLAGS = HAS_KEY | HAS_TIME | HAS_VALUE
_CHECKED_FROM = 8
"""The checksum covers the bytes from here to the value."""
_TAIL = Struct(">BqHII")
_HEAD = Struct(">3sBI")


def encode_record(record: Record) -> bytes:
    """The event of a record."""
    key, value, time_ms = record.key, record.value, record.timestamp_ms
    flags = (HAS_KEY if key is not None else 0) | (HAS_TIME if time_ms is not None else 0)
    if value is not None:
        flags |= HAS_VALUE
    key, value = key or b"", value or b""
    envelope = _TAIL.pack(flags, time_ms or 0, len(record.headers), len(key), len(value)) + key
    if record.headers:
        envelope += b"".join(_header(name.encode(), item) for name, item in record.headers)
    return _HEAD.pack(MAGIC, VERSION, crc32c(envelope)) + envelope + value


def _header(name: bytes, value: bytes | None) -> bytes:
    if value is None:
        return HEADER.pack(len(name), -1) + name
    return HEADER.pack(len(name), len(value)) + name + value


def begins_as_record(event: bytes | memoryview) -> bool:
    """Whether the event begins as a record of any version does. ``decode_record`` decides."""
    return event[:3] == MAGIC


def decode_record(event: bytes) -> Record:
    """The record in an event.

    Raises NotARecordError, and VersionTooNewError for a record of a later version.
    """
    if event[:3] != MAGIC or len(event) < RECORD.size:
        raise not_a_record(event)
    _, version, checksum, flags, time_ms, headers, key_bytes, value_bytes = RECORD.unpack_from(event)
    if version > VERSION:
        raise VersionTooNewError(
            "record was written by a later version of Penstock", version=version, known=VERSION, size_bytes=len(event)
        )
    start = len(event) - value_bytes
    if (
        version != VERSION
        or flags & ~_FLAGS
        or headers > HEADERS_MAX
        or key_bytes > KEY_MAX_BYTES
        or value_bytes > VALUE_MAX_BYTES
        or start < RECORD.size + key_bytes
        or crc32c(event[_CHECKED_FROM:start]) != checksum
    ):
        raise not_a_record(event)
    at = RECORD.size + key_bytes
    found = () if not headers and at == start else _headers(event, at, start, headers)
    absent = (key_bytes and not flags & HAS_KEY) or (value_bytes and not flags & HAS_VALUE)
    if found is None or absent or (time_ms and not flags & HAS_TIME):
        raise not_a_record(event)
    return Record.decoded(
        event[start:] if flags & HAS_VALUE else None,
        event[RECORD.size : at] if flags & HAS_KEY else None,
        found,
        time_ms if flags & HAS_TIME else None,
    )


def _headers(event: bytes, at: int, end: int, count: int) -> Headers | None:
    """The headers between two places. None if they do not fill the space exactly."""
    found: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        if end - at < HEADER.size:
            return None
        name_bytes, value_bytes = HEADER.unpack_from(event, at)
        at += HEADER.size
        stop = at + name_bytes + max(0, value_bytes)
        if stop > end or not -1 <= value_bytes <= HEADER_VALUE_MAX_BYTES:
            return None
        try:
            name = event[at : at + name_bytes].decode()
        except UnicodeDecodeError:
            return None
        found.append((name, None if value_bytes < 0 else event[at + name_bytes : stop]))
        at = stop
    return tuple(found) if at == end else None


def not_a_record(event: bytes) -> NotARecordError:
    """The error for an event that is no record."""
    return NotARecordError(
        "event is not a record; its bytes are in event.data", size_bytes=len(event), begins=bytes(event[:16]).hex()
    )
