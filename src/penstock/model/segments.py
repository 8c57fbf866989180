"""Segment ids and key ranges.

A segment id is ``epoch of creation << 32 | number``; comparing ids compares age. Key ranges are half-open parts of
[0, 1); neighbours share the very same double, and the last one ends at exactly 1.0.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NewType

from penstock.model.errors import InvalidArgumentError
from penstock.model.values.dataclass import dataclass

SegmentId = NewType("SegmentId", int)


def make_segment_id(epoch: int, number: int) -> SegmentId:
    """Compose an id. Raises ``InvalidArgumentError`` unless both fit into 31 bits."""
    if not (0 <= epoch < 1 << 31 and 0 <= number < 1 << 31):
        raise InvalidArgumentError("segment id is out of range", epoch=epoch, number=number)
    return SegmentId(epoch << 32 | number)


def epoch_of(segment: SegmentId) -> int:
    return segment >> 32


def segment_text(segment: SegmentId) -> str:
    """Number and epoch, ``1#0``, as commands print a segment."""
    return f"{number_of(segment)}#{epoch_of(segment)}"


def positions_text(positions: Mapping[SegmentId, int]) -> str:
    """Offsets as commands print and read them, ``0#0:13 1#0:5434``: number, epoch and offset of each segment."""
    return " ".join(f"{segment_text(item)}:{offset}" for item, offset in sorted(positions.items()))


def number_of(segment: SegmentId) -> int:
    return segment & 0xFFFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class KeyRange:
    """Half-open part of the key space: ``low <= hash(key) < high``, within [0, 1]."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.low < self.high <= 1.0:
            raise InvalidArgumentError("key range is empty or outside [0, 1]", low=self.low, high=self.high)

    def overlaps(self, other: KeyRange) -> bool:
        """Whether the two share a key. Touching is not overlapping."""
        return self.low < other.high and other.low < self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRange:
    """A segment and the keys that it takes."""

    segment: SegmentId
    keys: KeyRange


def even_ranges(count: int) -> Sequence[KeyRange]:
    """Split [0, 1) into ``count`` equal ranges, in order; neighbours share bounds bit for bit, the last ends at 1.0."""
    if count < 1:
        raise InvalidArgumentError("a stream must have at least one segment", count=count)
    bounds = [index / count for index in range(count)] + [1.0]
    return tuple(KeyRange(low=low, high=high) for low, high in itertools.pairwise(bounds))
