"""Bytes of a log on ledgers: the header of a ledger, and the parts of frames.

All integers are big-endian. Source: docs/formats/ledger-log.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from penstock.model.errors import CorruptDataError, InternalError, VersionTooNewError
from penstock.model.values.dataclass import dataclass

VERSION: Final = 1
SEALED_VERSION: Final = 2
"""Of ledgers whose parts are encrypted, and the newest that is known."""
MAGIC: Final = b"PsLH"
HEADER: Final = struct.Struct(">4sB3xQQ")
SEALED_HEADER: Final = struct.Struct(">4sB3xQQ16s16s")
PART: Final = struct.Struct(">BxHHxxQ")
SEALED_PART: Final = struct.Struct(">BxHHxxQQ")
"""The head of a part in a ledger of version 2. It is not encrypted, so that tools without keys see how far a log is."""
TAG_BYTES: Final = 16
PARTS_MAX: Final = 0xFFFF  # parts of one frame: their count is an unsigned 16-bit number


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerHeader:
    """Entry 0 of a ledger: the epoch of its writer, and an address that its first frame has at least. ``key``: the id of the
    secret that encrypts its parts; None: they are not encrypted."""

    epoch: int
    first: int
    key: bytes | None = None


def encode_header(header: LedgerHeader) -> bytes:
    return HEADER.pack(MAGIC, VERSION, header.epoch, header.first)


def sealed_header(header: LedgerHeader) -> bytes:
    """The header of an encrypted ledger, up to its tag."""
    if header.key is None:
        raise InternalError("header of an encrypted ledger names no key", epoch=header.epoch)
    packed = SEALED_HEADER.pack(MAGIC, SEALED_VERSION, header.epoch, header.first, header.key, b"")
    return packed[: SEALED_HEADER.size - TAG_BYTES]


def decode_header(data: bytes, *, ledger: int) -> LedgerHeader:
    """Does not check the tag of an encrypted ledger. Raises CorruptDataError, VersionTooNewError."""
    if len(data) < HEADER.size or data[:4] != MAGIC:
        raise CorruptDataError("ledger does not begin with a header of a log", ledger=ledger)
    version = data[4]
    if version > SEALED_VERSION:
        raise VersionTooNewError("ledger was written by a newer version", version=version, newest_known=SEALED_VERSION)
    layout = SEALED_HEADER if version == SEALED_VERSION else HEADER
    if len(data) != layout.size:
        raise CorruptDataError("header of a ledger has another length", ledger=ledger, size_bytes=len(data))
    _, _, epoch, first, *rest = layout.unpack(data)
    return LedgerHeader(epoch=epoch, first=first, key=rest[0] if rest else None)


def parts_of(address: int, frame: bytes | memoryview, *, entry_max_bytes: int) -> Iterator[list[bytes | memoryview]]:
    """The entries of one frame, each as buffers."""
    room = entry_max_bytes - PART.size
    view = memoryview(frame)
    total = max(1, -(-len(view) // room))
    for index in range(total):
        yield [PART.pack(VERSION, index, total, address), view[index * room : (index + 1) * room]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FramePart:
    """One entry of a frame: its place among the ``total`` entries of the frame, and the frame's address. ``data`` is a view.
    ``written_ms``: of an encrypted entry, when it was written, milliseconds since the Unix epoch; its ``data`` is ciphertext.
    """

    index: int
    total: int
    address: int
    data: memoryview
    written_ms: int | None = None


def decode_part(data: bytes | bytearray | memoryview, *, ledger: int) -> FramePart:
    """Decrypts nothing. Raises CorruptDataError, VersionTooNewError."""
    layout = SEALED_PART if data[:1] == bytes([SEALED_VERSION]) else PART
    if len(data) < layout.size:
        raise CorruptDataError("entry of a log is too short", ledger=ledger)
    version, index, total, address, *rest = layout.unpack_from(data)
    if version > SEALED_VERSION:
        raise VersionTooNewError("entry was written by a newer version", version=version, newest_known=SEALED_VERSION)
    return FramePart(
        index=index,
        total=total,
        address=address,
        data=memoryview(data)[layout.size :],
        written_ms=rest[0] if rest else None,
    )


@dataclass(slots=True)
class FrameJoiner:
    """Joins the entries of one ledger to frames. A frame whose last parts are missing was not acknowledged, and is
    dropped: it follows again in the next ledger, or nowhere."""

    ledger: int
    next_address: int
    _parts: list[bytes] | None = None

    def add(self, data: bytes, opened: bytes | None = None) -> tuple[int, bytes] | None:
        """Take the next entry; return address and frame once it is complete. ``opened``: the decrypted bytes of an entry of
        an encrypted ledger.

        Raises CorruptDataError: the entry does not continue what came before it, or has the other version;
        VersionTooNewError.
        """
        parts = self._parts if self._parts is not None else []
        part = decode_part(data, ledger=self.ledger)
        if (part.index, part.address) != (len(parts), self.next_address) or part.index >= part.total:
            raise CorruptDataError(
                "entry of a log does not follow the one before",
                ledger=self.ledger,
                address=part.address,
                part=part.index,
            )
        if (part.written_ms is None) != (opened is None):
            raise CorruptDataError("entry of a log has another version than its ledger", ledger=self.ledger)
        parts.append(bytes(part.data) if opened is None else opened)
        if len(parts) < part.total:
            self._parts = parts
            return None
        self._parts = None
        self.next_address += 1
        return part.address, parts[0] if part.total == 1 else b"".join(parts)
