"""Layouts of wire commands: one letter for each field, compiled into readers and writers.

======  =======================================================================================
letter  field (all numbers big-endian, two's complement)
======  =======================================================================================
q i b   int64, int32, int8
?       bool in one byte
U       UUID, 16 bytes
W       writer id: the same 16 bytes, kept as ``bytes`` (cheap to hash on the append path)
u       string: unsigned 16-bit length in bytes, then UTF-8
B       buffer: int32 length, then bytes; read as a view
R       rest of the frame; read as a view
V       event record: int32 0, int32 length, bytes; read as a view of the whole record
K E     list of table keys, list of table entries
A       list of attribute updates
S Q     list of strings, list of int64
H F     list of heads of appends, list of failed appends
C       list of chunk descriptions
|       the fields after it may be missing at the end of a frame
======  =======================================================================================

Lengths and counts are compared with the available bytes, and counts also with a limit, before any allocation.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from penstock.model.errors import InvalidArgumentError, ProtocolError

Reader: TypeAlias = Callable[[memoryview, int], tuple[Any, int]]
Writer: TypeAlias = Callable[[bytearray, Any], None]

NO_VERSION = -(1 << 63)
LIST_MAX = 1 << 14
"""Items in the list of a request. A frame has room for millions; reading those would take seconds and a gigabyte."""
REPLY_LIST_MAX = 1 << 20  # items of a list in a reply; bounds what a peer can make a client allocate
_STRING_MAX = 0xFFFF  # bytes; Java's modified UTF-8 has a 16-bit length
_EVENT_RECORD = 0  # type number of an event in a block of Pravega's protocol
_FIXED = {"q": "q", "i": "i", "b": "b", "?": "?", "W": "16s"}
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_TWO_INT32 = struct.Struct(">ii")
_LENGTH = struct.Struct(">H")
_ATTRIBUTE = struct.Struct(">16sbqq")
_CHUNK = struct.Struct(">qqq")
_HEAD = struct.Struct(">iiqi")


class WireKey(NamedTuple):
    """A table key and the version it must have, or has. An empty key is sent without its version."""

    key: bytes
    version: int


class WireEntry(NamedTuple):
    """A table entry in its wire form."""

    key: bytes
    version: int
    value: bytes


class AttributeUpdate(NamedTuple):
    """A change of one attribute. ``kind`` 1: replace; 4: replace if it equals ``old``."""

    attribute: UUID
    kind: int
    new: int
    old: int


class WireChunk(NamedTuple):
    """A tier-2 object of a segment, as listed to an administrator."""

    length: int
    length_in_storage: int
    start_offset: int
    name: str
    exists: bool


class WireHead(NamedTuple):
    """One of many appends in a frame: its writer, its last event number, and its share of the data after the heads."""

    handle: int
    event_count: int
    event_number: int
    size_bytes: int


class WireFailure(NamedTuple):
    """The index of the failed append, from 0, and the reply frame that it would have received on its own."""

    place: int
    reply: bytes


def _span(view: memoryview, at: int, size: int) -> int:
    """The end of ``size`` bytes at ``at``. Raises ProtocolError if they are not all there."""
    end = at + size
    if size < 0 or end > len(view):
        raise ProtocolError("length of a field lies outside its frame", length=size, available=len(view) - at)
    return end


def _count(view: memoryview, at: int, smallest: int, most: int) -> tuple[int, int]:
    (count,) = _INT32.unpack_from(view, at)
    at += 4
    if count > most:
        raise ProtocolError("list has too many items", count=count, limit=most)
    if count < 0 or count * smallest > len(view) - at:
        raise ProtocolError("count of a list lies outside its frame", count=count, available=len(view) - at)
    return count, at


def _read_string(view: memoryview, at: int) -> tuple[str, int]:
    (size,) = _LENGTH.unpack_from(view, at)
    end = _span(view, at + 2, size)
    # Java's modified UTF-8 is not always UTF-8; with escapes, any name can be echoed byte for byte.
    return str(view[at + 2 : end], "utf-8", "surrogateescape"), end


def _write_string(out: bytearray, value: str) -> None:
    data = value.encode("utf-8", "surrogateescape")
    if len(data) > _STRING_MAX:
        raise InvalidArgumentError(
            "string is too long for the wire protocol", size_bytes=len(data), limit_bytes=_STRING_MAX
        )
    out += _LENGTH.pack(len(data))
    out += data


def _read_uuid(view: memoryview, at: int) -> tuple[UUID, int]:
    end = _span(view, at, 16)
    return UUID(bytes=bytes(view[at:end])), end


def _write_uuid(out: bytearray, value: UUID) -> None:
    out += value.bytes


def _read_buffer(view: memoryview, at: int) -> tuple[memoryview, int]:
    (size,) = _INT32.unpack_from(view, at)
    end = _span(view, at + 4, size)
    return view[at + 4 : end], end


def _write_buffer(out: bytearray, value: bytes) -> None:
    out += _INT32.pack(len(value))
    out += value


def _read_rest(view: memoryview, at: int) -> tuple[memoryview, int]:
    return view[at:], len(view)


def _write_rest(out: bytearray, value: bytes) -> None:
    out += value


def _read_event(view: memoryview, at: int) -> tuple[memoryview, int]:
    kind, size = _TWO_INT32.unpack_from(view, at)
    if kind != _EVENT_RECORD:
        raise ProtocolError("expected an event", kind=kind)
    end = _span(view, at + 8, size)
    return view[at:end], end


def _write_event(out: bytearray, value: bytes) -> None:
    view, end = _read_event(memoryview(value), 0)
    if end != len(view):
        raise InvalidArgumentError("not exactly one event record", size_bytes=len(value))
    out += value


def _read_key(view: memoryview, at: int) -> tuple[WireKey, int]:
    total, size = _TWO_INT32.unpack_from(view, at)
    at += 8
    if size == 0 and total == 4:
        return WireKey(b"", NO_VERSION), at
    end = _span(view, at, size)
    if total != size + 12:
        raise ProtocolError("table key does not match its length", total=total, length=size)
    (version,) = _INT64.unpack_from(view, end)
    return WireKey(bytes(view[at:end]), version), end + 8


def _write_key(out: bytearray, value: WireKey) -> None:
    size = len(value.key)
    if not size:
        out += _TWO_INT32.pack(4, 0)
        return
    out += _TWO_INT32.pack(size + 12, size)
    out += value.key
    out += _INT64.pack(value.version)


def _read_entry(view: memoryview, at: int) -> tuple[WireEntry, int]:
    key, at = _read_key(view, at)
    total, size = _TWO_INT32.unpack_from(view, at)
    end = _span(view, at + 8, size)
    if total != size + 4:
        raise ProtocolError("table value does not match its length", total=total, length=size)
    return WireEntry(key.key, key.version, bytes(view[at + 8 : end])), end


def _write_entry(out: bytearray, value: WireEntry) -> None:
    _write_key(out, WireKey(value.key, value.version))
    out += _TWO_INT32.pack(len(value.value) + 4, len(value.value))
    out += value.value


def _read_attribute(view: memoryview, at: int) -> tuple[AttributeUpdate, int]:
    attribute, kind, new, old = _ATTRIBUTE.unpack_from(view, at)
    return AttributeUpdate(UUID(bytes=attribute), kind, new, old), at + _ATTRIBUTE.size


def _write_attribute(out: bytearray, value: AttributeUpdate) -> None:
    out += _ATTRIBUTE.pack(value.attribute.bytes, value.kind, value.new, value.old)


def _read_int64(view: memoryview, at: int) -> tuple[int, int]:
    return _INT64.unpack_from(view, at)[0], at + 8


def _write_int64(out: bytearray, value: int) -> None:
    out += _INT64.pack(value)


def _read_chunk(view: memoryview, at: int) -> tuple[WireChunk, int]:
    length, in_storage, start = _CHUNK.unpack_from(view, at)
    name, at = _read_string(view, at + _CHUNK.size)
    end = _span(view, at, 1)
    return WireChunk(length, in_storage, start, name, view[at] != 0), end


def _write_chunk(out: bytearray, value: WireChunk) -> None:
    out += _CHUNK.pack(value.length, value.length_in_storage, value.start_offset)
    _write_string(out, value.name)
    out.append(value.exists)


def _read_head(view: memoryview, at: int) -> tuple[WireHead, int]:
    return WireHead(*_HEAD.unpack_from(view, at)), at + _HEAD.size


def _write_head(out: bytearray, value: WireHead) -> None:
    out += _HEAD.pack(*value)


def _read_failure(view: memoryview, at: int) -> tuple[WireFailure, int]:
    index, size = _TWO_INT32.unpack_from(view, at)
    end = _span(view, at + 8, size)
    return WireFailure(index, bytes(view[at + 8 : end])), end


def _write_failure(out: bytearray, value: WireFailure) -> None:
    out += _TWO_INT32.pack(value.place, len(value.reply))
    out += value.reply


def _list_of(read: Reader, write: Writer, smallest: int, most: int = LIST_MAX) -> tuple[Reader, Writer]:
    def read_list(view: memoryview, at: int) -> tuple[tuple[Any, ...], int]:
        count, at = _count(view, at, smallest, most)
        items = []
        for _ in range(count):
            item, at = read(view, at)
            items.append(item)
        return tuple(items), at

    def write_list(out: bytearray, values: Sequence[Any]) -> None:
        out += _INT32.pack(len(values))
        for value in values:
            write(out, value)

    return read_list, write_list


_FIELDS: dict[str, tuple[Reader, Writer]] = {
    "U": (_read_uuid, _write_uuid),
    "u": (_read_string, _write_string),
    "B": (_read_buffer, _write_buffer),
    "R": (_read_rest, _write_rest),
    "V": (_read_event, _write_event),
    "K": _list_of(_read_key, _write_key, 8),
    "E": _list_of(_read_entry, _write_entry, 16),
    "A": _list_of(_read_attribute, _write_attribute, _ATTRIBUTE.size),
    "S": _list_of(_read_string, _write_string, 2),
    "Q": _list_of(_read_int64, _write_int64, 8, REPLY_LIST_MAX),
    "C": _list_of(_read_chunk, _write_chunk, _CHUNK.size + 3, REPLY_LIST_MAX),
    "H": _list_of(_read_head, _write_head, _HEAD.size),
    "F": _list_of(_read_failure, _write_failure, _TWO_INT32.size, REPLY_LIST_MAX),
}


class _Step(NamedTuple):
    """One field, or a run of fields of fixed size that one ``Struct`` handles."""

    width: int
    fixed: struct.Struct | None
    read: Reader
    write: Writer


def _fixed_step(letters: str) -> _Step:
    form = struct.Struct(">" + "".join(_FIXED[letter] for letter in letters))

    def read(view: memoryview, at: int) -> tuple[tuple[Any, ...], int]:
        return form.unpack_from(view, at), at + form.size

    def write(out: bytearray, values: Sequence[Any]) -> None:
        out += form.pack(*values)

    return _Step(len(letters), form, read, write)


def _compile(letters: str, *, join: bool) -> list[_Step]:
    steps: list[_Step] = []
    run = ""
    for letter in letters:
        if letter in _FIXED and (join or not run):
            run += letter
            if join:
                continue
        if run:
            steps.append(_fixed_step(run))
            run = ""
        if letter not in _FIXED:
            steps.append(_Step(1, None, *_FIELDS[letter]))
    if run:
        steps.append(_fixed_step(run))
    return steps


class Layout:
    """Reads and writes the fields of one kind of command, in order."""

    def __init__(self, text: str) -> None:
        required, _, optional = text.partition("|")
        self.text = text
        self._required = _compile(required, join=True)
        self._optional = _compile(optional, join=False)

    def read(self, view: memoryview) -> list[Any]:
        """The values; optional ones that are missing are left out, surplus bytes are ignored.

        Raises ProtocolError or ``struct.error`` if the frame is shorter than its fields.
        """
        values: list[Any] = []
        at = 0
        for step in self._required:
            at = self._take(step, view, at, values)
        for step in self._optional:
            if at >= len(view):
                break
            at = self._take(step, view, at, values)
        return values

    @staticmethod
    def _take(step: _Step, view: memoryview, at: int, values: list[Any]) -> int:
        value, at = step.read(view, at)
        if step.fixed is None:
            values.append(value)
        else:
            values.extend(value)
        return at

    def write(self, out: bytearray, values: Sequence[Any]) -> None:
        """Append all fields, optional ones up to the first that is None. Raises InvalidArgumentError or ``struct.error``."""
        at = 0
        for step in self._required:
            step.write(out, values[at] if step.fixed is None else values[at : at + step.width])
            at += step.width
        for step in self._optional:
            if values[at] is None:
                return
            step.write(out, values[at] if step.fixed is None else values[at : at + 1])
            at += 1
