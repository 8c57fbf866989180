"""Bytes of a log that is kept as objects: the entries of a ledger, and its end.

All integers are big-endian. Source: docs/formats/object-log.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from crc32c import crc32c

from penstock.model.errors import CorruptDataError, VersionTooNewError
from penstock.model.values.dataclass import dataclass

VERSION: Final = 1
MAGIC: Final = b"PsLO"
HEAD: Final = struct.Struct(">4sB?2xQQQII")
"""What an object begins with. The checksum of the whole object follows it."""
HEAD_BYTES: Final = HEAD.size + 4
DIRECTORY: Final = "log"
LEDGERS: Final = f"{DIRECTORY}/ledgers"
_LENGTH: Final = struct.Struct(">I")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogObject:
    """One object of a ledger. ``first``: the number of its first entry; ``count``: its entries. ``is_end``: the ledger ends
    before it, and the last entry is ``first`` - 1. ``settled``: when this one was begun, all objects before that number were
    acknowledged; 0: unknown."""

    ledger: int
    number: int
    first: int
    count: int = 0
    is_end: bool = False
    settled: int = 0

    @property
    def next_entry(self) -> int:
        return self.first + self.count


def object_name(ledger: int, number: int) -> str:
    return f"{LEDGERS}/{ledger:016x}/{number:08x}"


def parse_object_name(name: str) -> tuple[int, int] | None:
    """Ledger and number; None: the name is not that of an object of a ledger."""
    ledger, _, number = name.removeprefix(f"{LEDGERS}/").partition("/")
    try:
        found = int(ledger, 16), int(number, 16)
    except ValueError:
        return None
    return found if object_name(*found) == name else None


def encode_object(head: LogObject, entries: Sequence[bytes] = ()) -> bytes:
    packed = HEAD.pack(MAGIC, VERSION, head.is_end, head.ledger, head.number, head.first, len(entries), head.settled)
    parts = [part for entry in entries for part in (_LENGTH.pack(len(entry)), entry)]
    body = b"".join(parts)
    return b"".join((packed, _LENGTH.pack(crc32c(body, crc32c(packed))), body))


def decode_head(data: bytes, *, ledger: int, number: int) -> LogObject:
    """The head of the object with this name. Does not check its entries. Raises CorruptDataError, VersionTooNewError."""
    name = object_name(ledger, number)
    if len(data) < HEAD_BYTES or data[:4] != MAGIC:
        raise CorruptDataError("object is not one of a log", object=name)
    _, version, is_end, own_ledger, own_number, first, count, settled = HEAD.unpack_from(data)
    if version > VERSION:
        raise VersionTooNewError(
            "object of a log was written by a newer version", object=name, version=version, newest_known=VERSION
        )
    if (own_ledger, own_number) != (ledger, number):
        raise CorruptDataError("object of a log has another name than it was written with", object=name)
    return LogObject(ledger=ledger, number=number, first=first, count=count, is_end=is_end, settled=settled)


def decode_entries(data: bytes, *, ledger: int, number: int) -> Iterator[tuple[int, bytes]]:
    """The numbers and bytes of its entries. Raises CorruptDataError, VersionTooNewError: the object as a whole."""
    head, name = decode_head(data, ledger=ledger, number=number), object_name(ledger, number)
    view = memoryview(data)
    if _LENGTH.unpack_from(data, HEAD.size)[0] != crc32c(view[HEAD_BYTES:], crc32c(view[: HEAD.size])):
        raise CorruptDataError("object of a log is damaged", object=name)
    at, found = HEAD_BYTES, []
    for entry in range(head.first, head.next_entry):
        if at + _LENGTH.size > len(view):
            raise CorruptDataError("object of a log is too short", object=name)
        start = at + _LENGTH.size
        at = start + _LENGTH.unpack_from(view, at)[0]
        found.append((entry, bytes(view[start:at])))
    if at != len(view):
        raise CorruptDataError("object of a log has another length", object=name)
    return iter(found)
