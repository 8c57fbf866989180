"""The sidecar of a chunk: one fixed record per block, so that a chunk can be checked without the metadata.

Source: docs/formats/chunk-index.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from crc32c import crc32c

from penstock.model.errors import CorruptDataError, VersionTooNewError
from penstock.model.values.dataclass import dataclass

VERSION = 1
SUFFIX = ".idx"
RECORD = struct.Struct(">HHIqqqqII")
RECORD_BYTES = RECORD.size
_CHECKED_BYTES = RECORD_BYTES - 4


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRecord:
    """Block number ``index`` of a chunk: ``start <= position < end`` in the chunk's file.

    ``segment_start`` is the offset of its first byte in the segment that wrote it. ``crc32c`` covers the block's bytes.
    """

    index: int
    start: int
    end: int
    segment_start: int
    event_count: int
    crc32c: int


def index_name(chunk: str) -> str:
    """Name of the sidecar of a chunk."""
    return chunk + SUFFIX


def encode_record(record: IndexRecord) -> bytes:
    body = RECORD.pack(
        VERSION,
        0,
        record.index,
        record.start,
        record.end,
        record.segment_start,
        record.event_count,
        record.crc32c,
        0,
    )[:_CHECKED_BYTES]
    return body + int(crc32c(body)).to_bytes(4, "big")


def decode_records(data: bytes) -> Iterator[IndexRecord]:
    """The records of a sidecar up to its end, or to the first that does not continue the one before.

    A record left by an abandoned attempt does not continue its predecessor, and ends the index. A torn record at the
    very end is left out. Raises CorruptDataError (checksum), VersionTooNewError.
    """
    expected = 0
    for position in range(0, len(data) - RECORD_BYTES + 1, RECORD_BYTES):
        version, _, index, start, end, segment_start, events, checksum, own = RECORD.unpack_from(data, position)
        if crc32c(data[position : position + _CHECKED_BYTES]) != own:
            raise CorruptDataError("chunk index record fails its checksum", position=position)
        if version > VERSION:
            raise VersionTooNewError("chunk index was written by a newer version", version=version, known=VERSION)
        if start != expected or index != position // RECORD_BYTES:
            return
        expected = end
        yield IndexRecord(
            index=index, start=start, end=end, segment_start=segment_start, event_count=events, crc32c=checksum
        )
