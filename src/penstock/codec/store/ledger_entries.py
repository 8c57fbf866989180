"""Bytes of a log on ledgers: the header of a ledger, and the parts of frames.

All integers are big-endian. Source: docs/formats/ledger-log.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from penstock.model.errors import CorruptDataError, VersionTooNewError

VERSION: Final = 1
MAGIC: Final = b"PsLH"
HEADER: Final = struct.Struct(">4sB3xQQ")
PART: Final = struct.Struct(">BxHHxxQ")
PARTS_MAX: Final = 0xFFFF  # parts of one frame: their count is an unsigned 16-bit number


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerHeader:
    """Entry 0 of a ledger: the epoch of its writer, and an address that its first frame has at least."""

    epoch: int
    first: int


def encode_header(header: LedgerHeader) -> bytes:
    return HEADER.pack(MAGIC, VERSION, header.epoch, header.first)


def decode_header(data: bytes, *, ledger: int) -> LedgerHeader:
    """Raises CorruptDataError, VersionTooNewError."""
    if len(data) != HEADER.size or data[:4] != MAGIC:
        raise CorruptDataError("ledger does not begin with a header of a log", ledger=ledger)
    _, version, epoch, first = HEADER.unpack(data)
    if version > VERSION:
        raise VersionTooNewError("ledger was written by a newer version", version=version, newest_known=VERSION)
    return LedgerHeader(epoch=epoch, first=first)


def parts_of(address: int, frame: bytes | memoryview, *, entry_max_bytes: int) -> Iterator[list[bytes | memoryview]]:
    """The entries of one frame, each as buffers."""
    room = entry_max_bytes - PART.size
    view = memoryview(frame)
    total = max(1, -(-len(view) // room))
    for index in range(total):
        yield [PART.pack(VERSION, index, total, address), view[index * room : (index + 1) * room]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FramePart:
    """One entry of a frame: its place among the entries of the frame, and the frame's address. ``data`` is a view."""

    index: int
    address: int
    data: memoryview


def decode_part(data: bytes | bytearray | memoryview, *, ledger: int) -> FramePart:
    """Raises CorruptDataError, VersionTooNewError."""
    if len(data) < PART.size:
        raise CorruptDataError("entry of a log is too short", ledger=ledger)
    version, index, _, address = PART.unpack_from(data)
    if version > VERSION:
        raise VersionTooNewError("entry was written by a newer version", version=version, newest_known=VERSION)
    return FramePart(index=index, address=address, data=memoryview(data)[PART.size :])


@dataclass(slots=True)
class FrameJoiner:
    """Joins the entries of one ledger to frames. A frame whose last parts are missing was not acknowledged, and is
    dropped: it follows again in the next ledger, or nowhere."""

    ledger: int
    next_address: int
    _parts: list[bytes] | None = None

    def add(self, data: bytes) -> tuple[int, bytes] | None:
        """Take the next entry; return address and frame once it is complete. Raises CorruptDataError: the entry does not
        continue what came before it; VersionTooNewError."""
        parts = self._parts if self._parts is not None else []
        if len(data) < PART.size:
            raise CorruptDataError("entry of a log is too short", ledger=self.ledger, address=self.next_address)
        version, index, total, address = PART.unpack_from(data)
        if version > VERSION:
            raise VersionTooNewError("entry was written by a newer version", version=version, newest_known=VERSION)
        if (index, address) != (len(parts), self.next_address) or index >= total:
            raise CorruptDataError(
                "entry of a log does not follow the one before", ledger=self.ledger, address=address, part=index
            )
        parts.append(data[PART.size :])
        if len(parts) < total:
            self._parts = parts
            return None
        self._parts = None
        self.next_address += 1
        return address, parts[0] if total == 1 else b"".join(parts)
