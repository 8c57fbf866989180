"""The order of stream cuts, and the data between two of them.

A cut says, for every key, how far the stream has been passed there: its *position at a key* is the oldest segment of the
cut that covers the key, with its offset. Positions at one key are ordered by segment, then by offset, "not started"
counting as 0; cuts are ordered key by key, hence only partially. A cut always equals itself.

Functions take plain positions and a history; the positions of one call must be valid cuts of that history
(``check_cut``), else the answer is arbitrary. Source: docs/design/0032-order-of-cuts.md.
"""

from __future__ import annotations

import enum
import heapq
import operator
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from penstock.core.streams.history import REMEMBERED_MAX, StreamHistory
from penstock.model.cuts import NOT_STARTED
from penstock.model.errors import InvalidCutError, SegmentNotFoundError
from penstock.model.segments import KeyRange, SegmentId, SegmentRange, positions_text, segment_text
from penstock.model.values.dataclass import dataclass

Positions = Mapping[SegmentId, int]

_END_OF_SEGMENT = sys.maxsize
_Choice = Callable[..., Any]


class CutOrder(enum.Enum):
    """The relation of one cut to another. ``OVERLAPS``: ahead at some keys, behind at others."""

    BEFORE = "before"
    EQUAL = "equal"
    AFTER = "after"
    OVERLAPS = "overlaps"


@dataclass(slots=True)
class _Profile:
    """A cut as a function of the key: piece ``i`` reaches from ``lows[i]`` to ``lows[i + 1]``, the last one to 1."""

    lows: list[float]
    segments: list[SegmentId]
    offsets: list[int]

    def segment_at(self, key: float) -> SegmentId:
        return self.segments[bisect_right(self.lows, key) - 1]


def compare(history: StreamHistory, a: Positions, b: Positions) -> CutOrder:
    """The relation of cut ``a`` to cut ``b``. Raises ``InvalidCutError`` if one names an unknown segment or leaves a
    hole."""
    if a.keys() == b.keys():
        less = greater = False
        for segment, offset in a.items():
            other = b[segment]
            if offset == other:
                continue
            if offset < 0 or other < 0:
                # Started in one, not started in the other: at other keys an older segment may be the position.
                break
            if offset < other:
                less = True
            else:
                greater = True
        else:
            return _order(less, greater)
    less = greater = False
    for _, here, there in _walk(_profile(history, a), _profile(history, b)):
        left = (here[0], max(here[1], 0))
        right = (there[0], max(there[1], 0))
        less = less or left < right
        greater = greater or left > right
        if less and greater:
            break
    return _order(less, greater)


def at_or_after(history: StreamHistory, a: Positions, b: Positions) -> bool:
    """Whether ``a`` is behind ``b`` at no key. Raises as ``compare``."""
    if a is b:
        return True
    if a.keys() == b.keys():
        for segment, offset in a.items():
            other = b[segment]
            if offset < other:
                if offset < 0:
                    break
                return False
            if other < 0 <= offset:
                break
        else:
            return True
    return compare(history, a, b) in (CutOrder.AFTER, CutOrder.EQUAL)


def check_cut(history: StreamHistory, positions: Positions) -> None:
    """Check that the positions describe one consistent position of the stream.

    The rule: every key has a position; a started segment is the position on its whole range; a segment passed on part
    of its range is passed on all of it. Offsets are not compared with lengths (``check_within``).
    Raises: InvalidCutError, whose message names the broken part of the rule.
    """
    if not positions:
        raise InvalidCutError("cut has no positions")
    for segment, offset in positions.items():
        if offset < NOT_STARTED:
            raise InvalidCutError("offset of a cut is negative", segment=segment_text(segment), offset=offset)
    profile = _profile(history, positions)
    ranges = history.index.ranges
    _check_started(ranges, positions, profile)
    ends = [*profile.lows[1:], 1.0]
    for segment in _ids_between(history, min(positions), max(positions)):
        keys = ranges[segment]
        first = bisect_right(profile.lows, keys.low) - 1
        passed = profile.segments[first] > segment
        while ends[first] < keys.high:
            first += 1
            if (profile.segments[first] > segment) is not passed:
                raise InvalidCutError("a segment is passed on part of its range only", segment=segment_text(segment))


def _check_started(ranges: Mapping[SegmentId, KeyRange], positions: Positions, profile: _Profile) -> None:
    for segment, offset in positions.items():
        if offset < 0:
            continue
        keys = ranges[segment]
        place = bisect_right(profile.lows, keys.low) - 1
        end = profile.lows[place + 1] if place + 1 < len(profile.lows) else 1.0
        if profile.segments[place] != segment or profile.lows[place] != keys.low or end != keys.high:
            raise InvalidCutError(
                "a segment is started although an older one of the cut is unfinished", segment=segment_text(segment)
            )


def check_within(history: StreamHistory, positions: Positions) -> None:
    """Check that no offset lies beyond the final length of its sealed segment.

    Raises: InvalidCutError.
    """
    for segment, offset in positions.items():
        length = history.sealed_lengths.get(segment)
        if length is not None and offset > length:
            raise InvalidCutError(
                "offset lies beyond the end of a sealed segment",
                segment=segment_text(segment),
                offset=offset,
                length=length,
            )


def within_ends(history: StreamHistory, positions: Positions) -> dict[SegmentId, int]:
    """The same position with no offset beyond the end of its sealed segment. After a rebuild, a cut that was recorded before
    can lie beyond what was recovered."""
    lengths = history.sealed_lengths
    return {segment: min(offset, lengths.get(segment, offset)) for segment, offset in positions.items()}


def lower_bound(history: StreamHistory, cuts: Iterable[Positions]) -> dict[SegmentId, int]:
    """The latest cut that is ahead of none of the given ones: at each key the least advanced position.

    Empty cuts are ignored; if all are empty, so is the result. A segment that the bound reaches stays ``NOT_STARTED``
    if one of the cuts has not started it. Valid if the cuts are.
    """
    return _bound(history, cuts, min, operator.lt)


def upper_bound(history: StreamHistory, cuts: Iterable[Positions]) -> dict[SegmentId, int]:
    """The earliest cut that is behind none of the given ones: at each key the most advanced position.

    Empty cuts are ignored; if all are empty, so is the result. Valid if the cuts are.
    """
    return _bound(history, cuts, max, operator.gt)


def segments_between(history: StreamHistory, start: Positions | None, end: Positions | None) -> list[SegmentId]:
    """All segments from ``start`` to ``end``, including those of both cuts, oldest first.

    ``None`` (or an empty cut) is the beginning of history, or the active epoch. A segment of a cut that lies wholly
    behind unfinished older ones is not reached by it. Raises: InvalidCutError, also where ``end`` is not at or after
    ``start``.
    """
    first = start or head_of(history)
    last = end or {item.segment: _END_OF_SEGMENT for item in history.active.segments}
    _check_order(history, first, last)
    begin, stop = _profile(history, first), _profile(history, last)
    ranges = history.index.ranges
    ends_in = set(stop.segments)
    # Valid cuts pass a segment at all its keys or none: checking one key is enough.
    return [
        segment
        for segment in _ids_between(history, min(first), max(last))
        if begin.segment_at(ranges[segment].low) <= segment
        and (segment in ends_in or stop.segment_at(ranges[segment].low) > segment)
    ]


def bytes_between(history: StreamHistory, start: Positions | None, end: Positions) -> int:
    """Bytes of all segments from ``start`` to ``end``; ``None`` is the beginning of history.

    Additive: from a to b plus from b to c is from a to c. The length of a segment passed but not known to be sealed
    counts 0 (``missing_lengths``). Raises: InvalidCutError, also where ``end`` is not at or after ``start``.
    """
    if not start:
        return size_till(history, end)
    _check_order(history, start, end)
    return size_till(history, end) - size_till(history, start)


def size_till(history: StreamHistory, positions: Positions) -> int:
    """Bytes of the whole history before the cut, truncated ones included. Raises as ``compare``."""
    offsets = positions.values()
    segments = tuple(positions)
    passed = history.index.passed.get(segments)
    if passed is None:
        passed = _remember_passed(history, segments, positions)
    size = passed + sum(offsets)
    return size + list(offsets).count(NOT_STARTED) if NOT_STARTED in offsets else size


def _remember_passed(history: StreamHistory, segments: tuple[SegmentId, ...], positions: Positions) -> int:
    """Final lengths of all segments before the cut. Which these are depends on the segments that it names alone."""
    if not segments:
        raise InvalidCutError("cut has no positions")
    index = history.index
    ids = index.ids
    low, high = bisect_left(ids, min(segments)), bisect_right(ids, max(segments))
    total = index.bytes_below[low]
    if high - low != len(segments):
        # Some segment is neither older than all segments of the cut nor one of them.
        profile = _profile(history, positions)
        for segment in ids[low:high]:
            if segment not in positions and profile.segment_at(index.ranges[segment].low) > segment:
                total += history.sealed_lengths.get(segment, 0)
    if len(index.passed) >= REMEMBERED_MAX:
        index.passed.clear()
    index.passed[segments] = total
    return total


def position_runs(history: StreamHistory, positions: Positions) -> list[tuple[float, SegmentId, int]]:
    """The cut as a function of the key: for each run of keys its lower bound and the position there, in key order."""
    profile = _profile(history, positions)
    return list(zip(profile.lows, profile.segments, profile.offsets, strict=True))


def bytes_before(history: StreamHistory, positions: Positions, segments: Iterable[SegmentId]) -> int:
    """How many bytes of these segments lie before the cut. Raises as ``compare``."""
    profile = _profile(history, positions)
    ranges, lengths = history.index.ranges, history.sealed_lengths
    total = 0
    for segment in segments:
        if segment in positions:
            total += max(positions[segment], 0)
        elif profile.segment_at(ranges[segment].low) > segment:
            total += lengths.get(segment, 0)
    return total


def passed_until(history: StreamHistory, positions: Positions, segment: SegmentId) -> int | None:
    """The offset up to which the segment lies before the cut: ``None`` if all of it does, 0 if nothing does.

    The number of a segment decides nothing: after one segment splits, older and newer segments may both lie before the cut.
    A segment that the stream never had lies after every cut. Raises as ``compare``.
    """
    if segment in positions:
        return max(positions[segment], 0)
    keys = history.index.ranges.get(segment)
    if keys is None:
        return 0
    return None if _profile(history, positions).segment_at(keys.low) > segment else 0


def missing_lengths(history: StreamHistory, positions: Positions) -> list[SegmentId]:
    """Segments before the cut whose final length is not known (yet), oldest first.

    While there are any, a measured size is too small, and a record with that size would stay wrong.
    """
    known = history.sealed_lengths
    return [segment for segment in _passed(history, positions) if segment not in known]


def successors(history: StreamHistory, segment: SegmentId) -> list[tuple[SegmentRange, list[SegmentId]]]:
    """The segments that follow, in key order, each with all of its predecessors.

    Empty if the segment is active, or the stream ends with it. Works for deleted segments too.
    Raises: SegmentNotFoundError.
    """
    place = history.index.last.get(segment)
    if place is None:
        raise SegmentNotFoundError("the stream never had this segment", segment=segment)
    if place + 1 == len(history.epochs):
        return []
    before, after = history.epochs[place].segments, history.epochs[place + 1].segments
    keys = history.index.ranges[segment]
    return [
        (item, [old.segment for old in before if old.keys.overlaps(item.keys)])
        for item in after
        if item.keys.overlaps(keys)
    ]


def segments_to_delete(history: StreamHistory, old_head: Positions | None, new_head: Positions) -> list[SegmentId]:
    """Segments that lie before ``new_head`` but not before ``old_head``, oldest first; ``None`` is the beginning.

    Segments of ``new_head`` itself stay. Segments that ``old_head`` only reached as not started, or that were hidden
    behind such, are included once ``new_head`` passes them.
    """
    gone = set(_passed(history, old_head)) if old_head else set()
    return [segment for segment in _passed(history, new_head) if segment not in gone]


def head_of(history: StreamHistory) -> dict[SegmentId, int]:
    """The beginning of history: the segments of the first epoch, each at 0."""
    return {item.segment: 0 for item in history.epochs[0].segments}


def storage_offsets(positions: Positions) -> dict[SegmentId, int]:
    """The offsets that can be sent to a store: those of started segments, oldest first."""
    return {segment: positions[segment] for segment in sorted(positions) if positions[segment] != NOT_STARTED}


def _order(less: bool, greater: bool) -> CutOrder:
    if less:
        return CutOrder.OVERLAPS if greater else CutOrder.BEFORE
    return CutOrder.AFTER if greater else CutOrder.EQUAL


def _check_order(history: StreamHistory, start: Positions, end: Positions) -> None:
    if not at_or_after(history, end, start):
        raise InvalidCutError(
            "end of a range lies before its start", start=positions_text(start), end=positions_text(end)
        )


def _ids_between(history: StreamHistory, oldest: SegmentId, newest: SegmentId) -> Iterable[SegmentId]:
    ids = history.index.ids
    return ids[bisect_left(ids, oldest) : bisect_right(ids, newest)]


def _passed(history: StreamHistory, positions: Positions) -> list[SegmentId]:
    """Segments that lie wholly before the cut, oldest first."""
    ids, ranges = history.index.ids, history.index.ranges
    profile = _profile(history, positions)
    low, high = bisect_left(ids, min(positions)), bisect_right(ids, max(positions))
    inside = [segment for segment in ids[low:high] if profile.segment_at(ranges[segment].low) > segment]
    return [*ids[:low], *inside]


def _profile(history: StreamHistory, positions: Positions) -> _Profile:
    """Raises ``InvalidCutError`` if a segment is unknown or a key has no position."""
    ranges = history.index.ranges
    try:
        order = sorted(positions, key=lambda segment: ranges[segment].low)
    except KeyError as error:
        raise InvalidCutError(
            "cut names a segment that the stream never had", segment=segment_text(error.args[0])
        ) from None
    edge = 0.0
    for segment in order:
        keys = ranges[segment]
        if keys.low != edge:
            return _overlaid(ranges, positions, order)
        edge = keys.high
    if edge != 1.0:
        return _overlaid(ranges, positions, order)
    return _Profile([ranges[s].low for s in order], order, [positions[s] for s in order])


def _overlaid(ranges: Mapping[SegmentId, KeyRange], positions: Positions, order: list[SegmentId]) -> _Profile:
    """The profile of a cut whose segments overlap: one sweep over their bounds, the oldest open segment on top."""
    bounds = sorted({0.0, 1.0, *(ranges[s].low for s in order), *(ranges[s].high for s in order)})
    profile = _Profile([], [], [])
    open_: list[tuple[SegmentId, float]] = []
    following = 0
    for low, high in pairwise(bounds):
        while following < len(order) and ranges[order[following]].low == low:
            heapq.heappush(open_, (order[following], ranges[order[following]].high))
            following += 1
        while open_ and open_[0][1] <= low:
            heapq.heappop(open_)
        if not open_:
            raise InvalidCutError("a key has no position in the cut", low=low, high=high)
        top = open_[0][0]
        if not profile.segments or profile.segments[-1] != top:
            profile.lows.append(low)
            profile.segments.append(top)
            profile.offsets.append(positions[top])
    return profile


def _walk(a: _Profile, b: _Profile) -> Iterator[tuple[float, tuple[SegmentId, int], tuple[SegmentId, int]]]:
    """Both positions for each run of keys on which neither changes, with the run's lower bound."""
    i = j = 0
    low = 0.0
    while True:
        yield low, (a.segments[i], a.offsets[i]), (b.segments[j], b.offsets[j])
        next_a = a.lows[i + 1] if i + 1 < len(a.lows) else 1.0
        next_b = b.lows[j + 1] if j + 1 < len(b.lows) else 1.0
        low = min(next_a, next_b)
        if low == 1.0:
            return
        i += next_a == low
        j += next_b == low


def _bound(history: StreamHistory, cuts: Iterable[Positions], choose: _Choice, beyond: _Choice) -> dict[SegmentId, int]:
    """``choose``: of some positions, ``min`` or ``max``; ``beyond``: whether a position is the better one of two."""
    given = [cut for cut in cuts if cut]
    if not given:
        return {}
    first, rest = given[0], given[1:]
    result = dict(first)
    if not rest:
        return result
    segments = first.keys()
    for cut in given:
        if cut.keys() != segments or NOT_STARTED in cut.values():
            break
        for segment, offset in cut.items():
            if beyond(offset, result[segment]):
                result[segment] = offset
    else:
        return result
    bound = _profile(history, first)
    for cut in rest:
        bound = _chosen(bound, _profile(history, cut), choose)
    result = {}
    for segment, offset in zip(bound.segments, bound.offsets, strict=True):
        result[segment] = choose(offset, result.get(segment, offset))
    return dict(sorted(result.items()))


def _chosen(a: _Profile, b: _Profile, choose: _Choice) -> _Profile:
    result = _Profile([], [], [])
    for low, here, there in _walk(a, b):
        # Of equal positions, one as "not started" and one as 0, the bounds take the lower and the higher number.
        segment, offset = choose(here, there)
        if not result.segments or (segment, offset) != (result.segments[-1], result.offsets[-1]):
            result.lows.append(low)
            result.segments.append(segment)
            result.offsets.append(offset)
    return result
