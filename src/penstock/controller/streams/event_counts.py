"""Exact numbers of events before a position and between two. The cost grows with the data since the last query.

The number of events before an offset of a segment never changes. So every answer is a starting point for the next
count. Source: docs/design/0036-retention-in-the-controller.md, "Counting events".
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict

from penstock.core.cuts.order import Positions, segments_between
from penstock.core.streams.history import StreamHistory
from penstock.model.errors import InvalidArgumentError, InvalidCutError, SegmentNotFoundError, TruncatedError
from penstock.model.names import StreamName, segment_name
from penstock.model.segments import SegmentId
from penstock.ports.data.segments import SegmentInfo, Segments

POINTS_MAX = 64  # positions of one question to the store
SEGMENTS_MAX = 20_000

_GONE = (SegmentNotFoundError, TruncatedError, InvalidArgumentError)


class EventCounts:
    """Counts events through the store, and remembers the results. The store is borrowed."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._points: OrderedDict[str, list[tuple[int, int]]] = OrderedDict()

    def learn(self, info: SegmentInfo) -> None:
        """Remember the number of events before a segment's end, as the store has just reported it."""
        self._keep(info.name, info.length, info.event_count)

    def _keep(self, name: str, offset: int, count: int) -> None:
        points = self._points.setdefault(name, [])
        self._points.move_to_end(name)
        place = bisect_left(points, (offset, -1))
        if place < len(points) and points[place][0] == offset:
            return
        insort(points, (offset, count))
        if len(points) > POINTS_MAX:
            # Truncation and subscribers move forward: the oldest point is the least likely to be needed.
            del points[0]
        if len(self._points) > SEGMENTS_MAX:
            self._points.popitem(last=False)

    async def before(self, name: str, offset: int) -> int | None:
        """Events of the segment before an event boundary, truncated ones included; None if it is no longer known."""
        if offset <= 0:
            return 0
        try:
            return await self._before(name, offset)
        except _GONE:
            return None

    async def _before(self, name: str, offset: int) -> int:
        points = self._points.get(name)
        if not points:
            self.learn(await self._segments.info(name))
            points = self._points[name]
        place = bisect_left(points, (offset, -1))
        if place < len(points) and points[place][0] == offset:
            return points[place][1]
        behind = points[place] if place < len(points) else None
        ahead = points[place - 1] if place else None
        if behind is None and ahead is not None:
            found = ahead[1] + await self._segments.count_events(name, ahead[0], offset)
        elif behind is not None and (ahead is None or behind[0] - offset <= offset - ahead[0]):
            found = behind[1] - await self._segments.count_events(name, offset, behind[0])
        elif behind is not None and ahead is not None:
            try:
                found = ahead[1] + await self._segments.count_events(name, ahead[0], offset)
            except TruncatedError:
                found = behind[1] - await self._segments.count_events(name, offset, behind[0])
        else:
            raise SegmentNotFoundError("no such segment", segment=name)
        self._keep(name, offset, found)
        return found

    async def between(self, stream: StreamName, history: StreamHistory, start: Positions, end: Positions) -> int | None:
        """Events from ``start`` to ``end``, which is at or after it; None if part of them was deleted or never counted.

        None also if a cut is not an event boundary.
        """
        total = 0
        for segment, first, last in pieces(history, start, end):
            if first == last:
                continue
            name = segment_name(stream, segment)
            low, high = await self.before(name, first), await self.before(name, last)
            if low is None or high is None:
                return None
            total += high - low
        return total


def pieces(history: StreamHistory, start: Positions, end: Positions) -> list[tuple[SegmentId, int, int]]:
    """The byte ranges of segments from one cut to a later one, oldest segment first. Their sum is the difference of the
    sizes. Empty if ``end`` is not at or after ``start``."""
    found: list[tuple[SegmentId, int, int]] = []
    try:
        between = segments_between(history, start, end)
    except InvalidCutError:
        return found
    for segment in between:
        first = max(start.get(segment, 0), 0)
        last = max(end[segment], 0) if segment in end else history.sealed_lengths.get(segment, first)
        if last > first:
            found.append((segment, first, last))
    return found
