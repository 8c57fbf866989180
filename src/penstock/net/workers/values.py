"""Values of the ports as bytes, and back: the messages between a server and its workers.

JSON, followed by byte strings, which are neither escaped nor scanned. Both ends run the same version, so there is no
compatibility to keep. Unknown values are refused all the same.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any
from uuid import UUID

from penstock.model import errors
from penstock.model.errors import InternalError, PenstockError, ProtocolError
from penstock.model.ledgers import LogWipe
from penstock.model.policies import ScaleType
from penstock.model.scaling import SegmentRates
from penstock.ports.data.attributes import AttributeChange
from penstock.ports.data.chunks import ChunkBlock, ChunkRange, Lease, Leased
from penstock.ports.data.erasing import ErasedChunk
from penstock.ports.data.imports import ImportedChunk, ImportGrant
from penstock.ports.data.limits import AppendLimit, LimitAction, SegmentChanges
from penstock.ports.data.rates import RateWatch
from penstock.ports.data.segments import Append, Appended, SegmentInfo, SegmentRead
from penstock.ports.data.space import DiskSpace, SegmentSpace
from penstock.ports.data.tables import (
    DamagedEntry,
    TableCheck,
    TableDelta,
    TableEntry,
    TableKind,
    TableLength,
    TablePut,
    TableRemoval,
)
from penstock.ports.files import Buffer

_RECORDS = {
    kind.__name__: kind
    for kind in (
        Append,
        Appended,
        AppendLimit,
        AttributeChange,
        ChunkBlock,
        ChunkRange,
        DamagedEntry,
        DiskSpace,
        ErasedChunk,
        Lease,
        Leased,
        LogWipe,
        RateWatch,
        SegmentChanges,
        SegmentInfo,
        SegmentRates,
        SegmentRead,
        SegmentSpace,
        TableCheck,
        TableLength,
        TableDelta,
        TableEntry,
        TablePut,
        TableRemoval,
        ImportedChunk,
        ImportGrant,
    )
}
_FIELDS = {name: tuple(field.name for field in fields(kind)) for name, kind in _RECORDS.items()}
_FIELDS["DamagedEntry"] = ("key",)
_FIELDS["LogWipe"] = ("keys", "at_ms")  # a log in tier 2 serves one process
_ENUMS: Mapping[str, type[enum.Enum]] = {kind.__name__: kind for kind in (LimitAction, ScaleType, TableKind)}
_ERRORS = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, PenstockError)
}
_JUST_PLAIN = frozenset((str, int, float, bool, type(None)))
"""Exact types only: an enum may be a subclass."""
_MALFORMED = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, OverflowError)
_TEXT_OF = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def encode_value(value: object) -> tuple[bytes, Sequence[Buffer]]:
    """The value as a text, and its byte strings, which are borrowed. Raises InternalError for a type that no port
    uses."""
    beside: list[Buffer] = []
    packed = _pack(value, beside)
    return _TEXT_OF([packed, [_size(item) for item in beside]]).encode(), beside


def decode_value(text: Buffer, rest: Buffer) -> Any:
    """Inverse of ``encode_value``; sequences become lists. ``rest`` holds the byte strings, one after the other; they
    are copied out of it. Raises ProtocolError."""
    try:
        packed, sizes = json.loads(str(text, "utf-8"))
        view, end, beside = memoryview(rest), 0, []
        for size in sizes:
            if size < 0:
                raise ProtocolError("byte string after a value has an invalid size", size_bytes=size)
            beside.append(bytes(view[end : end + size]))
            end += size
        if end != len(view):
            raise ProtocolError("byte strings after a value do not match it", expected=end, actual=len(view))
        return _unpack(packed, beside)
    except ProtocolError:
        raise
    except (*_MALFORMED, PenstockError) as error:  # Records check themselves, and raise our errors.
        raise ProtocolError("not a value of a worker's port", reason=repr(error)[:200]) from error


def encode_error(error: PenstockError) -> tuple[bytes, Sequence[Buffer]]:
    """An error by its class, message and fields. Fields of a type that no port uses become texts."""
    reported = {name: _encodable(value) for name, value in error.fields.items()}
    # A class of another module arrives as the nearest one that all processes know.
    known = next(kind.__name__ for kind in type(error).__mro__ if _ERRORS.get(kind.__name__) is kind)
    return encode_value([known, error.message, reported])


def decode_error(text: Buffer, rest: Buffer) -> PenstockError:
    """Inverse of ``encode_error``. Raises ProtocolError."""
    try:
        name, message, reported = decode_value(text, rest)
        return _ERRORS[name](message, **reported)
    except _MALFORMED as error:
        raise ProtocolError("not an error of ours", reason=repr(error)[:200]) from error


def _size(item: Buffer) -> int:
    return item.nbytes if isinstance(item, memoryview) else len(item)


def _encodable(value: object) -> object:
    try:
        encode_value(value)
    except InternalError:
        return str(value)
    return value


def _record_of(kind: type) -> str | None:
    """The record that a value of this type is sent as. A writer's block in flight is an ``Append`` with more fields."""
    for base in kind.__mro__:
        if _RECORDS.get(base.__name__) is base:
            return base.__name__
    return None


def _pack(value: object, beside: list[Buffer]) -> object:
    kind = type(value)
    if kind in _JUST_PLAIN:
        return value
    record = _record_of(kind)
    if record is not None:
        return [record, [_pack(getattr(value, field), beside) for field in _FIELDS[record]]]
    if isinstance(value, bytes | bytearray | memoryview):
        beside.append(value)
        return ["b", len(beside) - 1]
    if isinstance(value, list | tuple):
        return ["l", [_pack(item, beside) for item in value]]
    if isinstance(value, UUID):
        return ["u", value.hex]
    if isinstance(value, Mapping):
        return ["d", [[_pack(key, beside), _pack(item, beside)] for key, item in value.items()]]
    if isinstance(value, enum.Enum) and _ENUMS.get(kind.__name__) is kind:
        return ["e", kind.__name__, value.value]
    raise InternalError("value cannot be sent between processes", kind=kind.__name__)


def _unpack(packed: Any, beside: Sequence[bytes]) -> Any:
    if type(packed) is not list:
        return packed
    tag = packed[0]
    if tag == "b":
        return beside[packed[1]]
    if tag == "l":
        return [_unpack(item, beside) for item in packed[1]]
    kind = _RECORDS.get(tag)
    if kind is None:
        return _UNPACK[tag](packed[1:], beside)
    values = [_unpack(item, beside) for item in packed[1]]
    return kind(**dict(zip(_FIELDS[tag], values, strict=True)))


_UNPACK: Mapping[str, Callable[[Any, Sequence[bytes]], Any]] = {
    "d": lambda rest, beside: {_unpack(key, beside): _unpack(item, beside) for key, item in rest[0]},
    "e": lambda rest, beside: _ENUMS[rest[0]](rest[1]),
    "u": lambda rest, beside: UUID(rest[0]),
}
