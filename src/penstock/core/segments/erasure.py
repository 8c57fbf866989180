"""Rules of erasure: which bytes are blanked, and digests of the bytes before and after it."""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from penstock.codec.events import HEADER_BYTES, event_bounds
from penstock.model.errors import CorruptDataError, InvalidArgumentError

Range: TypeAlias = tuple[int, int]
"""Half-open, never empty: ``start <= offset < end``."""


def checked_ranges(ranges: Iterable[Range]) -> list[Range]:
    """Ranges in order, none of which is empty or overlaps another. Raises InvalidArgumentError."""
    found = sorted((int(start), int(end)) for start, end in ranges)
    last = 0
    for start, end in found:
        if start < last or end <= start:
            raise InvalidArgumentError("ranges to erase are empty or overlap", start=start, end=end, behind=last)
        last = end
    return found


def clipped(ranges: Sequence[Range], start: int, end: int) -> list[Range]:
    """The parts of ordered ranges within ``start <= offset < end``."""
    low = bisect_right(ranges, start, key=lambda item: item[1])
    high = bisect_left(ranges, end, key=lambda item: item[0])
    return [(max(first, start), min(last, end)) for first, last in ranges[low:high]]


def shifted(ranges: Iterable[Range], by: int) -> list[Range]:
    return [(start + by, end + by) for start, end in ranges]


def joined(*lists: Iterable[Range]) -> list[Range]:
    """The union as ordered ranges. Adjacent ranges are joined."""
    found: list[Range] = []
    for start, end in sorted(item for items in lists for item in items):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def without(ranges: Sequence[Range], taken: Sequence[Range]) -> list[Range]:
    """The parts of ``ranges`` that no range of ``taken`` covers. Both are in order."""
    left: list[Range] = []
    for start, end in ranges:
        at = start
        for first, last in clipped(taken, start, end):
            if first > at:
                left.append((at, first))
            at = last
        if at < end:
            left.append((at, end))
    return left


def covers(ranges: Sequence[Range], start: int, end: int) -> bool:
    """Whether one of the ordered, joined ranges contains all of ``start <= offset < end``."""
    index = bisect_right(ranges, start, key=lambda item: item[0]) - 1
    return index >= 0 and end <= ranges[index][1]


def size_of(ranges: Iterable[Range]) -> int:
    return sum(end - start for start, end in ranges)


def blank(data: bytearray, at: int, ranges: Sequence[Range]) -> None:
    """Overwrite with zeros the parts of ordered ranges that lie in ``data``, which begins at offset ``at``."""
    for start, end in clipped(ranges, at, at + len(data)):
        data[start - at : end - at] = bytes(end - start)


def dead_payloads(data: bytes | bytearray, events: int, end: int) -> list[Range]:
    """Choose what to blank of the dead bytes at the head of a block, ``data[:end]``: the payloads of its events.

    Headers stay, so that event counts do not change. ``events``: the number that the writers counted in the block. If
    the block holds another number, its bytes are not events, and all of it is blanked. The last event may be
    incomplete.
    """
    if not end:
        return []
    try:
        bounds = event_bounds(bytes(data))
    except CorruptDataError:
        return [(0, end)]
    if len(bounds) - 1 + (bounds[-1] < len(data)) != events:
        return [(0, end)]
    starts = (start + HEADER_BYTES for start in bounds)
    ends = [*bounds[1:], len(data)]
    found = [(start, min(stop, end)) for start, stop in zip(starts, ends, strict=True)]
    return [(start, stop) for start, stop in found if start < stop]


class Digests:
    """SHA-256 of all bytes passed to ``show``, and of those outside the ranges, which erasure does not change."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        """``ranges`` are in order."""
        self._ranges = ranges
        self._all = hashlib.sha256()
        self._kept = hashlib.sha256()
        self.is_blank = True
        """Whether all bytes of the ranges passed to ``show`` are zeros."""

    def show(self, data: memoryview, at: int) -> None:
        """Add bytes that begin at offset ``at``, after those added before."""
        self._all.update(data)
        position, end = at, at + len(data)
        for start, stop in clipped(self._ranges, at, end):
            self._kept.update(data[position - at : start - at])
            if self.is_blank:
                # Count the zeros in one call: a loop over the bytes would cost more than the digests.
                self.is_blank = data[start - at : stop - at].tobytes().count(0) == stop - start
            position = stop
        self._kept.update(data[position - at :])

    @property
    def all(self) -> bytes:
        return self._all.digest()

    @property
    def kept(self) -> bytes:
        return self._kept.digest()
