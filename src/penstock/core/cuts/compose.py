"""Compose one valid cut from different positions for different keys.

Source: docs/design/0033-limits-of-bytes.md, "Limits of each segment".
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from penstock.core.cuts.order import Positions, bytes_before, position_runs
from penstock.core.streams.history import REMEMBERED_MAX, StreamHistory
from penstock.model.cuts import NOT_STARTED
from penstock.model.segments import KeyRange, SegmentId


class Counted(NamedTuple):
    """A segment at the tail, and the bytes that count as its own: its bytes and those of earlier segments with no other
    keys. ``segments``: oldest first, itself last; ``earlier``: bytes of all but itself; ``end``: all its own bytes."""

    keys: KeyRange
    segments: Sequence[SegmentId]
    earlier: int
    end: int

    def before(self, history: StreamHistory, cut: Positions) -> int:
        """How many of its own bytes lie before the cut. Raises as ``compare``."""
        offset = cut.get(self.segments[-1], NOT_STARTED)
        # If the segment itself is started, all earlier segments of its keys are passed.
        return self.earlier + offset if offset >= 0 else bytes_before(history, cut, self.segments)


def counted_segments(history: StreamHistory, tail: Positions) -> list[Counted]:
    """``Counted`` for each segment of a tail, in key order. All of them are started."""
    return [
        Counted(keys, segments, earlier, earlier + tail[segments[-1]])
        for keys, segments, earlier in _own_segments(history, tuple(tail))
    ]


def _own_segments(
    history: StreamHistory, tail: tuple[SegmentId, ...]
) -> Sequence[tuple[KeyRange, Sequence[SegmentId], int]]:
    """For each segment at the tail its keys, the segments that count for it, and the bytes of all but itself. Cached
    with the history: only the offsets of a tail change from cycle to cycle."""
    index = history.index
    known = index.own.get(tail)
    if known is not None:
        return known
    ranges = index.ranges
    found = []
    for segment in sorted(tail, key=lambda item: ranges[item].low):
        keys = ranges[segment]
        ids = index.ids[: bisect_right(index.ids, segment)]
        own = [item for item in ids if keys.low <= ranges[item].low and ranges[item].high <= keys.high]
        found.append((keys, own, sum(history.sealed_lengths.get(item, 0) for item in own[:-1])))
    if len(index.own) >= REMEMBERED_MAX:
        index.own.clear()
    index.own[tail] = found
    return found


def compose(history: StreamHistory, pieces: Sequence[tuple[KeyRange, Positions]]) -> dict[SegmentId, int]:
    """The latest valid cut that is ahead of no piece: each piece is a valid cut, and counts for its own keys only.

    The ranges are in order and tile [0, 1). If a segment would be passed on only part of its keys, because one piece
    lies behind a scale and its neighbour before it, the keys ahead move back to that segment.
    """
    edges = {keys.low for keys, _ in pieces} | {1.0}
    runs = []
    for _, cut in pieces:
        run = position_runs(history, cut)
        runs.append(run)
        edges.update(low for low, _, _ in run)
    for keys in history.index.ranges.values():
        edges.add(keys.low)
    lows = sorted(edges)[:-1]
    at = [_position(pieces, runs, low) for low in lows]
    _settle(history, lows, at)
    result: dict[SegmentId, int] = {}
    for segment, offset in at:
        result[segment] = min(offset, result.get(segment, offset))
    return dict(sorted(result.items()))


def _position(
    pieces: Sequence[tuple[KeyRange, Positions]], runs: Sequence[Sequence[tuple[float, SegmentId, int]]], key: float
) -> tuple[SegmentId, int]:
    place = bisect_right(pieces, key, key=lambda piece: piece[0].low) - 1
    run = runs[place]
    _, segment, offset = run[bisect_right(run, key, key=lambda item: item[0]) - 1]
    return segment, offset


def _settle(history: StreamHistory, lows: Sequence[float], at: list[tuple[SegmentId, int]]) -> None:
    """Lower positions until each segment is passed on all of its keys or none, and started on all or none."""
    oldest, newest = min(at)[0], max(at)[0]
    ids = [segment for segment in history.index.ids if oldest <= segment <= newest]
    changed = True
    while changed:
        changed = False
        for segment in ids:
            keys = history.index.ranges[segment]
            own = range(bisect_left(lows, keys.low), bisect_left(lows, keys.high))
            least = min(at[place] for place in own)
            if least[0] > segment:
                continue
            # Some position is still before or inside the segment: it must not be passed at any key, or started while
            # unreachable.
            limit = least if least[0] == segment else (segment, NOT_STARTED)
            for place in own:
                if at[place] > limit:
                    at[place] = limit
                    changed = True
