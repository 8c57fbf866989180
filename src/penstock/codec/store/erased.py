"""What was erased in a chunk: the blanked ranges, and the effect of each erasure.

Source: docs/formats/metadata.md, ERASED.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from penstock.codec.store import layouts
from penstock.model.errors import CorruptDataError, VersionTooNewError
from penstock.model.values.dataclass import dataclass

VERSION = 1
HEAD = layouts.ERASED.struct()
CHANGE = layouts.ERASED_CHANGE.struct()


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedChange:
    """What one erasure did to a chunk. Bounds are positions in the chunk.

    ``before`` and ``after`` are the SHA-256 of its bytes from ``start`` to ``end``; ``kept`` is that of the same bytes
    without those in blanked ranges, which is the same before and after. ``chunk`` is the name of the chunk that it
    replaced.
    """

    erasure: str
    start: int
    end: int
    blanked_bytes: int
    before: bytes
    after: bytes
    kept: bytes
    chunk: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedRecord:
    """``ranges``: the payloads of events, half-open, in order, in positions of the chunk; an event that continues in
    the next chunk has a part in each. ``changes``: oldest first."""

    ranges: Sequence[tuple[int, int]]
    changes: Sequence[ErasedChange]


def encode_erased(record: ErasedRecord) -> bytes:
    parts = [HEAD.pack(VERSION, len(record.ranges), len(record.changes))]
    for change in record.changes:
        erasure, chunk = change.erasure.encode(), change.chunk.encode()
        head = CHANGE.pack(
            change.start,
            change.end,
            change.blanked_bytes,
            change.before,
            change.after,
            change.kept,
            len(erasure),
            len(chunk),
        )
        parts += (head, erasure, chunk)
    parts.append(encode_ranges(record.ranges))
    return b"".join(parts)


def decode_erased(data: bytes) -> ErasedRecord:
    """Raises CorruptDataError, VersionTooNewError."""
    if len(data) < HEAD.size:
        raise CorruptDataError("metadata row is malformed", row="erased", size_bytes=len(data))
    version, count, changed = HEAD.unpack_from(data)
    if version > VERSION:
        raise VersionTooNewError("metadata row was written by a newer version", version=version, known=VERSION)
    changes: list[ErasedChange] = []
    at = HEAD.size
    try:
        for _ in range(changed):
            start, end, blanked, before, after, kept, erasure, chunk = CHANGE.unpack_from(data, at)
            at += CHANGE.size
            names = data[at : at + erasure + chunk]
            at += erasure + chunk
            changes.append(
                ErasedChange(
                    erasure=names[:erasure].decode(),
                    start=start,
                    end=end,
                    blanked_bytes=blanked,
                    before=before,
                    after=after,
                    kept=kept,
                    chunk=names[erasure:].decode(),
                )
            )
        ranges = decode_ranges(data[at:], count)
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptDataError("metadata row is malformed", row="erased", size_bytes=len(data)) from error
    return ErasedRecord(ranges=ranges, changes=changes)


def encode_ranges(ranges: Iterable[tuple[int, int]]) -> bytes:
    """Ordered ranges as unsigned LEB128 numbers: the gap after the end of the previous range, then the length."""
    out = bytearray()
    last = 0
    for start, end in ranges:
        for value in (start - last, end - start):
            left = value
            while left > 0x7F:
                out.append(left & 0x7F | 0x80)
                left >>= 7
            out.append(left)
        last = end
    return bytes(out)


def decode_ranges(data: bytes, count: int) -> list[tuple[int, int]]:
    """Inverse of ``encode_ranges``. Raises CorruptDataError unless ``data`` holds exactly ``count`` ranges."""
    numbers: list[int] = []
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        if byte & 0x80:
            shift += 7
            continue
        numbers.append(value)
        value = shift = 0
    if shift or len(numbers) != 2 * count:
        raise CorruptDataError("list of ranges is malformed", expected=count, numbers=len(numbers))
    ranges: list[tuple[int, int]] = []
    at = 0
    for gap, length in zip(numbers[::2], numbers[1::2], strict=True):
        ranges.append((at + gap, at + gap + length))
        at += gap + length
    return ranges
