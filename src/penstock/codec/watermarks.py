"""Watermarks as Pravega's clients read them from the stream ``_MARK...``: the data of one event each.

Every value is big-endian. The fields of a watermark follow a header: format 0, version 0 and the count of revisions
(1), a byte each, then the number 0 and the length of the revision. Each segment with its range has such a header too.
Source: Pravega's shared/protocol, ``Watermark``, ``SegmentWithRange``, ``VersionedSerializer``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct, error

from penstock.model.errors import CorruptDataError, InvalidArgumentError
from penstock.model.segments import KeyRange, SegmentId, SegmentRange
from penstock.model.values.dataclass import dataclass

_HEADER = Struct(">BBBBi")  # format, version, revisions, revision, length of its data
_BOUNDS = Struct(">qq")
_SEGMENT = Struct(">qdd")  # id, low, high
_OFFSET = Struct(">q")
_COUNT_MAX = 0x3FFF_FFFF  # the largest compact integer


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMark:
    """A watermark with the key ranges of the segments of its cut."""

    lower_ms: int
    upper_ms: int
    cut: Mapping[SegmentRange, int]

    @property
    def positions(self) -> dict[SegmentId, int]:
        return {item.segment: offset for item, offset in self.cut.items()}


def encode_mark(mark: StoredMark) -> bytes:
    """The event of a watermark; its segments in the order of their ids."""
    parts = [_BOUNDS.pack(mark.lower_ms, mark.upper_ms), _compact(len(mark.cut))]
    for item in sorted(mark.cut, key=lambda one: one.segment):
        segment = _SEGMENT.pack(item.segment, item.keys.low, item.keys.high)
        parts += [_HEADER.pack(0, 0, 1, 0, len(segment)), segment, _OFFSET.pack(mark.cut[item])]
    body = b"".join(parts)
    return _HEADER.pack(0, 0, 1, 0, len(body)) + body


def decode_mark(data: bytes) -> StoredMark:
    """Parse ``encode_mark``; bytes after known fields are ignored. Raises CorruptDataError."""
    try:
        _check_header(_HEADER.unpack_from(data), least=_BOUNDS.size)
        at = _HEADER.size
        lower, upper = _BOUNDS.unpack_from(data, at)
        count, at = _compact_at(data, at + _BOUNDS.size)
        cut: dict[SegmentRange, int] = {}
        for _ in range(count):
            header = _HEADER.unpack_from(data, at)
            _check_header(header, least=_SEGMENT.size)
            segment, low, high = _SEGMENT.unpack_from(data, at + _HEADER.size)
            at += _HEADER.size + header[4]
            (offset,) = _OFFSET.unpack_from(data, at)
            at += _OFFSET.size
            cut[SegmentRange(segment=SegmentId(segment), keys=KeyRange(low=low, high=high))] = offset
    except (error, IndexError, ValueError, InvalidArgumentError) as problem:
        raise CorruptDataError("event is not a watermark", data=data[:40].hex()) from problem
    return StoredMark(lower_ms=lower, upper_ms=upper, cut=cut)


def _check_header(header: Sequence[int], *, least: int) -> None:
    form, version, revisions, revision, length = header
    if (form, version, revision) != (0, 0, 0) or revisions < 1 or length < least:
        raise ValueError("unknown version of a watermark")


def _compact(count: int) -> bytes:
    """Pravega's compact integer: one byte up to 0x7f, two with the mark 0b10, four with 0b11."""
    if count <= 0x7F:
        return bytes([count])
    return (count | 0x8000).to_bytes(2, "big") if count <= 0x3FFF else (count | 0xC000_0000).to_bytes(4, "big")


def _compact_at(data: bytes, at: int) -> tuple[int, int]:
    first = data[at]
    size = 1 if first < 0x80 else 2 if first < 0xC0 else 4
    number = int.from_bytes(data[at : at + size], "big")
    return number & {1: 0x7F, 2: 0x3FFF, 4: _COUNT_MAX}[size], at + size
