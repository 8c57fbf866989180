"""The cut a given number of bytes past another one, between recorded cuts.

Source: docs/design/0033-limits-of-bytes.md, "Boundaries".
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from penstock.core.cuts.order import Positions, bytes_before, segments_to_delete, size_till, successors
from penstock.core.streams.history import StreamHistory
from penstock.model.cuts import NOT_STARTED
from penstock.model.errors import InvalidCutError
from penstock.model.segments import SegmentId


def cut_between(
    history: StreamHistory,
    low: Positions,
    high: Positions,
    size: int,
    counted: Collection[SegmentId] | None = None,
) -> dict[SegmentId, int] | None:
    """The cut with ``size`` bytes of history before it, between ``low`` and ``high``, a later cut of started segments.
    All readable segments advance together, each in proportion to its share; successors begin once they are reached.

    ``counted``: ``size`` counts only bytes of these segments, and only they move if the cut lies between two epochs.
    None if the cut cannot be determined.
    """
    if NOT_STARTED in high.values():
        return None
    at = dict(low)
    passed = set(segments_to_delete(history, None, low))
    while True:
        ends = {
            segment: high[segment] if segment in high else history.sealed_lengths.get(segment, offset)
            for segment, offset in at.items()
            if offset >= 0
        }
        moving = [segment for segment in ends if counted is None or segment in counted]
        room = sum(ends[segment] - at[segment] for segment in moving)
        try:
            need = size - (size_till(history, at) if counted is None else bytes_before(history, at, counted))
        except InvalidCutError:
            return None
        if need <= room:
            return _moved(at, ends, moving, need, room) if room > 0 and need > 0 else at
        done = [segment for segment in ends if segment not in high]
        if not done:
            return None
        passed.update(done)
        at = _following(history, at, ends, done, passed)


def _moved(at: Positions, ends: Positions, moving: Sequence[SegmentId], need: int, room: int) -> dict[SegmentId, int]:
    """Shares are cut from the running sum, so that they add up to exactly what is needed."""
    place = dict(at)
    gone = 0
    for segment in moving:
        before = need * gone // room
        gone += ends[segment] - at[segment]
        place[segment] = at[segment] + need * gone // room - before
    return place


def _following(
    history: StreamHistory, at: Positions, ends: Positions, done: Sequence[SegmentId], passed: Collection[SegmentId]
) -> dict[SegmentId, int]:
    """The cut behind the finished segments: a successor starts once everything before it is passed."""
    following = {segment: end for segment, end in ends.items() if segment not in passed}
    waiting = {segment: _predecessors(history, segment) for segment, offset in at.items() if offset < 0}
    for segment in done:
        waiting.update((item.segment, before) for item, before in successors(history, segment))
    for segment, before in waiting.items():
        following[segment] = 0 if all(item in passed for item in before) else NOT_STARTED
    return following


def _predecessors(history: StreamHistory, segment: SegmentId) -> list[SegmentId]:
    keys = history.index.ranges[segment]
    before: list[SegmentId] = []
    for epoch in history.epochs:
        if any(item.segment == segment for item in epoch.segments):
            break
        before = [item.segment for item in epoch.segments if item.keys.overlaps(keys)]
    return before
