"""Headers that name the schema of an event: Confluent's and those of Pravega's schema registry. Both are big-endian.

Confluent: the byte 0, then the number of the schema (u32). For protobuf, the place of the message in its file follows:
the count of its indexes and the indexes, as zigzag varints; the place 0 alone is the one byte 0. Pravega: the byte 1,
then the id of an encoding (i32), which stands for a schema and a codec.
Sources: docs.confluent.io "Formats, Serializers, and Deserializers", section wire format; Pravega's schema-registry 0.6,
``AbstractSerializer`` and ``AbstractDeserializer``.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from struct import Struct

from penstock.model.errors import DecodeError, InvalidArgumentError

HEADER = Struct(">BI")  # magic, id
_INDEXES_MAX = 64  # levels of messages within messages
_VARINT_BYTES_MAX = 5
_ID_LIMIT = {"confluent": 1 << 32, "pravega": 1 << 31}


class IdStyle(Enum):
    """Which header carries the number of a schema."""

    CONFLUENT = "confluent"
    PRAVEGA = "pravega"


_MAGIC = {IdStyle.CONFLUENT: 0, IdStyle.PRAVEGA: 1}


def encode_header(style: IdStyle, schema_id: int, indexes: Sequence[int] | None = None) -> bytes:
    """The header of an event. ``indexes``: the place of a protobuf message; only Confluent's header has it.

    Raises InvalidArgumentError for a number that does not fit.
    """
    if not 0 <= schema_id < _ID_LIMIT[style.value]:
        raise InvalidArgumentError("number of a schema does not fit its header", id=schema_id, style=style.value)
    header = HEADER.pack(_MAGIC[style], schema_id)
    if indexes is None or style is IdStyle.PRAVEGA:
        return header
    if list(indexes) == [0]:
        return header + b"\0"
    return header + _zigzag(len(indexes)) + b"".join(map(_zigzag, indexes))


def decode_header(style: IdStyle, event: bytes) -> tuple[int, int]:
    """The number of the schema, and where the header ends. Raises DecodeError: another header, or none."""
    if len(event) < HEADER.size or event[0] != _MAGIC[style]:
        raise DecodeError(
            "event has no header with the number of a schema",
            style=style.value,
            size_bytes=len(event),
            begins=bytes(event[:8]).hex(),
        )
    schema_id: int = HEADER.unpack_from(event)[1]
    if schema_id >= _ID_LIMIT[style.value]:
        raise DecodeError("event names a schema below 0", style=style.value, id=schema_id - (1 << 32))
    return schema_id, HEADER.size


def decode_indexes(event: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """The place of a protobuf message that begins at ``at``, and where it ends. Raises DecodeError."""
    count, at = _unzigzag(event, at)
    if count == 0:
        return (0,), at
    if not 0 < count <= _INDEXES_MAX:
        raise DecodeError("event has an impossible place of its protobuf message", levels=count)
    found = []
    for _ in range(count):
        index, at = _unzigzag(event, at)
        if index < 0:
            raise DecodeError("event has an impossible place of its protobuf message", index=index)
        found.append(index)
    return tuple(found), at


def _zigzag(number: int) -> bytes:
    left, out = number << 1, bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def _unzigzag(event: bytes, at: int) -> tuple[int, int]:
    found = 0
    for place in range(_VARINT_BYTES_MAX):
        if at >= len(event):
            break
        byte = event[at]
        at += 1
        found |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), at
    raise DecodeError("event ends inside the place of its protobuf message", size_bytes=len(event))
