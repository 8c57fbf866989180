"""Bytes of the write-ahead log: file marks, file headers, frames, the epoch file. Source: docs/formats/wal.md.

All integers are big-endian. Checksums are CRC32C. Every record starts at a multiple of ``BLOCK_BYTES``, which is what
a disk writes whole; no decision relies on that, because every record is checked.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

from penstock.model.errors import InternalError, VersionTooNewError
from penstock.model.values.dataclass import dataclass

BLOCK_BYTES: Final = 512
HEADER_AT: Final = BLOCK_BYTES
FRAMES_AT: Final = 2 * BLOCK_BYTES
FORMAT_VERSION: Final = 1
PAYLOAD_MAX: Final = (1 << 32) - 1  # bytes; the frame's header has an unsigned 32-bit length

MARK: Final = 0x01
"""Frame flag: holds no payload and takes no sequence number; only reports what is durable."""

FREE_MARK: Final = struct.Struct(">4sBB2xQI")
FILE_HEADER: Final = struct.Struct(">4sBB2xQQQQQI")
FRAME_HEADER: Final = struct.Struct(">4sBB2xIQQQQII")
EPOCH_RECORD: Final = struct.Struct(">4sBB2xQII")

FREE_MAGIC: Final = b"PsWX"
FILE_MAGIC: Final = b"PsWL"
FRAME_MAGIC: Final = b"PsWF"
EPOCH_MAGIC: Final = b"PsWE"

EPOCH_FILE_BYTES: Final = BLOCK_BYTES
FENCE_AT: Final = 64
"""Byte of the epoch file that a later opening sets to 1, so that the earlier one learns that it is fenced."""

SMALL_PART_BYTES: Final = 4096
"""Buffers up to this size cost more as an item of a vectored write than as a copy."""

_ZEROS: Final = bytes(BLOCK_BYTES)
_CRC: Final = struct.Struct(">I")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHeader:
    """The header of a log file, written when its use begins.

    ``incarnation`` is unique to this use and grows with time: ``epoch << 32 | count``. ``first_sequence`` belongs to
    the first frame. Everything up to ``durable_sequence`` was durable when the header was written.
    """

    epoch: int
    incarnation: int
    first_sequence: int
    durable_sequence: int
    file_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameHeader:
    """One frame. ``durable_sequence`` was durable when the frame was written. ``size_bytes`` counts header and padding."""

    flags: int
    payload_bytes: int
    epoch: int
    incarnation: int
    sequence: int
    durable_sequence: int
    payload_crc32c: int

    @property
    def size_bytes(self) -> int:
        return frame_bytes(self.payload_bytes)


def frame_bytes(payload_bytes: int) -> int:
    """Size of a frame with this payload, including header and padding."""
    return -(-(FRAME_HEADER.size + payload_bytes) // BLOCK_BYTES) * BLOCK_BYTES


def make_incarnation(epoch: int, count: int) -> int:
    """The ``count``-th use of a file under ``epoch``. Raises ``InternalError`` unless both fit into 32 bits."""
    if not (0 < epoch < 1 << 32 and 0 <= count < 1 << 32):
        raise InternalError("log incarnation is out of range", epoch=epoch, count=count)
    return epoch << 32 | count


def encode_frame(
    parts: Sequence[bytes | bytearray | memoryview],
    *,
    payload_bytes: int,
    incarnation: int,
    sequence: int,
    durable_sequence: int,
    seed: int,
    flags: int = 0,
) -> list[bytes | bytearray | memoryview]:
    """The frame as buffers to be written back to back: header, the parts themselves, zeros up to the next block."""
    checksum = 0
    for part in parts:
        checksum = crc32c(part, checksum)
    header = FRAME_HEADER.pack(
        FRAME_MAGIC,
        FORMAT_VERSION,
        flags,
        payload_bytes,
        incarnation >> 32,
        incarnation,
        sequence,
        durable_sequence,
        checksum,
        0,
    )[:-4]
    padding = -(FRAME_HEADER.size + payload_bytes) % BLOCK_BYTES
    return [header + _CRC.pack(crc32c(header, seed)), *parts, _ZEROS[:padding]]


def decode_frame_header(data: bytes | memoryview, *, seed: int) -> FrameHeader | None:
    """The header at the start of ``data``, or None if there is no valid one.

    Raises ``VersionTooNewError`` for a valid header of a later version.
    """
    if len(data) < FRAME_HEADER.size or data[:4] != FRAME_MAGIC:
        return None
    _, version, flags, size, epoch, incarnation, sequence, durable, payload, checksum = FRAME_HEADER.unpack_from(data)
    if not _is_valid(data, FRAME_HEADER, checksum, version, seed) or epoch != incarnation >> 32:
        return None
    return FrameHeader(
        flags=flags,
        payload_bytes=size,
        epoch=epoch,
        incarnation=incarnation,
        sequence=sequence,
        durable_sequence=durable,
        payload_crc32c=payload,
    )


def frame_payload(header: FrameHeader, data: bytes | memoryview) -> memoryview | None:
    """The payload, a view of the whole frame ``data``, or None if it or the padding after it is damaged or
    incomplete."""
    end = FRAME_HEADER.size + header.payload_bytes
    if len(data) != header.size_bytes or data[end:] != _ZEROS[: len(data) - end]:
        return None
    payload = memoryview(data)[FRAME_HEADER.size : end]
    return payload if crc32c(payload) == header.payload_crc32c else None


def encode_file_header(header: FileHeader) -> bytes:
    """One block."""
    return _sealed(
        FILE_HEADER,
        FILE_MAGIC,
        FORMAT_VERSION,
        0,
        header.epoch,
        header.incarnation,
        header.first_sequence,
        header.durable_sequence,
        header.file_bytes,
    )


def decode_file_header(block: bytes) -> FileHeader | None:
    """Inverse of ``encode_file_header``; None for anything else. Raises ``VersionTooNewError``."""
    if len(block) != BLOCK_BYTES or block[:4] != FILE_MAGIC or any(block[FILE_HEADER.size :]):
        return None
    _, version, _, epoch, incarnation, first, durable, size, checksum = FILE_HEADER.unpack_from(block)
    if not _is_valid(block, FILE_HEADER, checksum, version) or epoch != incarnation >> 32:
        return None
    return FileHeader(
        epoch=epoch, incarnation=incarnation, first_sequence=first, durable_sequence=durable, file_bytes=size
    )


def encode_free_mark(incarnation: int) -> bytes:
    """One block that marks the use ``incarnation`` of this file, and all before it, as ended."""
    return _sealed(FREE_MARK, FREE_MAGIC, FORMAT_VERSION, 0, incarnation)


def decode_free_mark(block: bytes) -> int:
    """The last incarnation that has ended; 0 if there is no valid mark. Raises ``VersionTooNewError``."""
    if len(block) != BLOCK_BYTES or block[:4] != FREE_MAGIC:
        return 0
    _, version, _, incarnation, checksum = FREE_MARK.unpack_from(block)
    return int(incarnation) if _is_valid(block, FREE_MARK, checksum, version) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRecord:
    """The newest opening of the log, and the log's ``seed``.

    The seed is drawn once and starts the checksum of every frame header, so that bytes stored by a user cannot look
    like a frame when recovery searches a torn tail.
    """

    epoch: int
    seed: int


def encode_epoch(record: EpochRecord) -> bytes:
    """The epoch file, its fence byte clear."""
    return _sealed(EPOCH_RECORD, EPOCH_MAGIC, FORMAT_VERSION, 0, record.epoch, record.seed)


def decode_epoch(data: bytes) -> EpochRecord | None:
    """The record, regardless of the fence byte; None if the file is damaged. Raises ``VersionTooNewError``."""
    if len(data) != EPOCH_FILE_BYTES or data[:4] != EPOCH_MAGIC:
        return None
    _, version, _, epoch, seed, checksum = EPOCH_RECORD.unpack_from(data)
    return EpochRecord(epoch=epoch, seed=seed) if _is_valid(data, EPOCH_RECORD, checksum, version) else None


def _sealed(layout: struct.Struct, *fields: bytes | int) -> bytes:
    body = layout.pack(*fields, 0)[:-4]
    return (body + _CRC.pack(crc32c(body))).ljust(BLOCK_BYTES, b"\0")


def _is_valid(data: bytes | memoryview, layout: struct.Struct, checksum: int, version: int, seed: int = 0) -> bool:
    if crc32c(data[: layout.size - 4], seed) != checksum:
        return False
    if version > FORMAT_VERSION:
        raise VersionTooNewError("log was written by a newer version", version=version, newest_known=FORMAT_VERSION)
    return version == FORMAT_VERSION


def join_small(
    buffers: Sequence[bytes | bytearray | memoryview],
) -> list[bytes | bytearray | memoryview]:
    """The same bytes in fewer buffers: runs of small ones become one."""
    joined: list[bytes | bytearray | memoryview] = []
    run: list[bytes | bytearray | memoryview] = []
    for buffer in buffers:
        if len(buffer) <= SMALL_PART_BYTES:
            run.append(buffer)
            continue
        if run:
            joined.append(b"".join(run))
            run = []
        joined.append(buffer)
    if run:
        joined.append(b"".join(run))
    return joined
