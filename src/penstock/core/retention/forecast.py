"""How fast a stream grows and frees data, and when a limit is reached at these rates. Pure.

Sizes are bytes since the beginning of history: ``size_bytes`` up to the tail, ``head_bytes`` up to the head.
Source: docs/design/0012-retention-clock.md, "Forecast".
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.model.values.dataclass import dataclass

POINTS_MAX = 500  # points; as many as a plot shows
RECENT_MS = 3_600_000
"""Rates are of the last hour: long enough to bridge bursts, short enough to tell of today."""

_NEVER_S = 1000 * 365 * 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A stream at a time."""

    time_ms: int
    size_bytes: int
    head_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Bytes per second appended and released over ``window_ms``; 0 over no time."""

    append_bytes_per_s: float
    release_bytes_per_s: float
    window_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """A limit, its current use, and how fast that grows. ``subscriber``: the owner of the backlog."""

    what: str
    limit: int
    used: int
    per_s: float
    subscriber: str = ""

    def reached_ms(self, now_ms: int) -> int | None:
        """When the limit is reached, or now if it already is; None if not within a thousand years."""
        if self.used >= self.limit:
            return now_ms
        left = self.limit - self.used
        if self.per_s <= 0 or self.per_s * _NEVER_S < left:
            return None
        return now_ms + int(left / self.per_s * 1000)


def rates(points: Sequence[Point], *, recent_ms: int = RECENT_MS) -> Rates:
    """Rates from the oldest point within ``recent_ms`` of the newest to the newest, or from the one before if it is alone.

    ``points``: oldest first. A head that moved back (an undo) releases nothing.
    """
    if len(points) < 2:
        return Rates(append_bytes_per_s=0.0, release_bytes_per_s=0.0, window_ms=0)
    last = points[-1]
    first = next(point for point in points if last.time_ms - point.time_ms <= recent_ms)
    if first is last:
        first = points[-2]
    span_ms = last.time_ms - first.time_ms
    if span_ms <= 0:
        return Rates(append_bytes_per_s=0.0, release_bytes_per_s=0.0, window_ms=0)
    return Rates(
        append_bytes_per_s=max(0, last.size_bytes - first.size_bytes) * 1000 / span_ms,
        release_bytes_per_s=max(0, last.head_bytes - first.head_bytes) * 1000 / span_ms,
        window_ms=span_ms,
    )


def thin(times: Sequence[int], *, limit: int = POINTS_MAX) -> list[int]:
    """Choose which times (ascending) to drop, so that at most ``limit`` remain. The first and last stay. Of the others,
    those closest to their neighbours relative to their age are dropped, so that old times become coarse first."""
    gone: list[int] = []
    left = list(times)
    while len(left) > max(limit, 2):
        # One pass drops every second time of the older half: cheap, and an old hour keeps fewer points than a recent
        # one.
        older = left[1 : len(left) // 2 + 1]
        dropped = older[::2][: len(left) - max(limit, 2)]
        gone += dropped
        drop = set(dropped)
        left = [time for time in left if time not in drop]
    return sorted(gone)
