"""The rates of one segment over the last 2, 5, 10 and 20 minutes.

Source: docs/design/0039-scaling-by-rate.md, "Rates".
"""

from __future__ import annotations

from array import array

from penstock.model.errors import InvalidArgumentError
from penstock.model.scaling import SegmentRates

MINUTE_MS = 60_000
WINDOWS = (2, 5, 10, 20)
"""Lengths of the windows in minutes."""

_SAMPLES = 2  # kept in each minute
_KEPT = WINDOWS[-1] * _SAMPLES + 2


class RateMeter:
    """Samples of a counter that only grows. Takes 700 bytes, whatever is counted. Times are those of a steady clock.

    Not one addition per append: the counter is the length or the number of events that a segment has anyway.
    """

    __slots__ = ("_began_ms", "_counts", "_minute_ms", "_times_ms")

    def __init__(self, count: int, *, now_ms: float, minute_ms: int = MINUTE_MS) -> None:
        """Begin at ``count``. Raises InvalidArgumentError for a minute under 1 ms."""
        if minute_ms < 1:
            raise InvalidArgumentError("the minute of a rate must last at least 1 ms", minute_ms=minute_ms)
        self._minute_ms = minute_ms
        self._began_ms = now_ms
        self._times_ms = array("d", [now_ms])
        self._counts = array("q", [count])

    def sample(self, count: int, *, now_ms: float) -> None:
        """Note the counter. A sample within half a minute of the last kept one is not kept; the rates need no more."""
        if now_ms - self._times_ms[-1] < self._minute_ms / _SAMPLES:
            return
        self._times_ms.append(now_ms)
        self._counts.append(count)
        if len(self._times_ms) > _KEPT:
            del self._times_ms[0], self._counts[0]

    def rates(self, count: int, *, now_ms: float, unit: int = 1) -> SegmentRates:
        """The rates at this moment, ``unit`` counts as one. ``count`` is the counter now."""
        two, five, ten, twenty = (self._rate(window, count, now_ms) / unit for window in WINDOWS)
        measured = max(0.0, now_ms - self._began_ms) / self._minute_ms
        return SegmentRates(two=two, five=five, ten=ten, twenty=twenty, measured_minutes=measured)

    def _rate(self, window: int, count: int, now_ms: float) -> float:
        """Counts per second since the newest sample that is as old as the window, or the oldest there is."""
        bound_ms = now_ms - window * self._minute_ms
        place = len(self._times_ms) - 1
        while place > 0 and self._times_ms[place] > bound_ms:
            place -= 1
        passed_ms = now_ms - self._times_ms[place]
        if passed_ms <= 0:
            return 0.0
        return max(0, count - self._counts[place]) * 1000 / passed_ms
