"""Which bytes of a stream a case has still to search, and the ids of its erasures there."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TypeAlias

from penstock.codec.control.cases import CaseStreamRecord, LeftTablesRecord, Searched
from penstock.core.segments.erasure import Range
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId

Bounds: TypeAlias = Mapping[SegmentId, Range]
"""By segment, the bytes that can be read now: ``start <= offset < end``."""


def unsearched(searched: Searched, bounds: Bounds) -> dict[SegmentId, list[Range]]:
    """The readable bytes that were not searched, in order. Bytes before the searched ones become readable when a
    truncation is undone."""
    found: dict[SegmentId, list[Range]] = {}
    for segment, (start, end) in sorted(bounds.items()):
        first, last = searched.get(segment, (start, start))
        gaps = [(start, min(first, end)), (max(last, start), end)]
        rest = [gap for gap in gaps if gap[0] < gap[1]]
        if rest:
            found[segment] = rest
    return found


def is_searched(record: CaseStreamRecord | None, incarnation: int, left: LeftTablesRecord) -> bool:
    """Whether a case has searched all bytes that a deleted stream had at its end: then it knows all events that tables
    may have rows of."""
    if record is None:
        return False
    if record.incarnation != incarnation:
        return incarnation in record.ended
    return not unsearched(record.searched, left.bounds)


def extended(searched: Searched, segment: SegmentId, gap: Range) -> dict[SegmentId, Range]:
    """The searched bytes after a search of ``gap``. Only one range of a segment is remembered: an adjacent one grows,
    another one is replaced, so that its bytes are searched again."""
    start, end = gap
    first, last = searched.get(segment, gap)
    is_adjacent = start <= last and first <= end
    return {**searched, segment: (min(start, first), max(end, last)) if is_adjacent else gap}


def erasure_id(case: str, stream: StreamName, number: int) -> str:
    """The id of an erasure of a case: the same after a crash."""
    return f"{case}.{hashlib.sha256(str(stream).encode()).hexdigest()[:8]}.{number}"
