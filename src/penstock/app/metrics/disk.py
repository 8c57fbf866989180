"""The disk of a store, and when it is full."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from penstock.app.telemetry import Counters, Snapshot
from penstock.core.retention.forecast import RECENT_MS, Filling, Point, rates
from penstock.model.errors import UnsupportedError
from penstock.ports.clock import Clock
from penstock.ports.data.space import Space
from penstock.storage.machine.calls import allocated_below

_STEP_MS = 15_000
"""Between two remembered sizes: 240 in an hour."""


_REST = 200
"""A look at the disk visits every file: 0.3 s for a terabyte. The next look waits this many times as long, so that looks
take half a percent of a CPU at most."""


class DiskMetrics:
    """Looks at the disk at a scrape, unless the last look is too recent for what it cost. The forecast needs two looks.

    ``data``: the directory that is measured; None: ``space`` measures it. ``away``: why a part of the store does not
    answer now, or None.
    """

    def __init__(
        self,
        space: Space,
        clock: Clock,
        *,
        data: Path | None = None,
        away: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._space = space
        self._clock = clock
        self._data = data
        self._away = away
        self._points: list[Point] = []
        self._last: Snapshot | None = None
        self._again_at_s = 0.0

    async def snapshot(self) -> Snapshot:
        """The disk now, or at the last look; empty if it cannot be read. Raises PenstockError."""
        if self._away() is not None:
            # The question would wait for that part, for longer than Prometheus waits for all metrics.
            return self._last or Counters().snapshot()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        if self._last is None or began_s >= self._again_at_s:
            self._last = await self._look()
            self._again_at_s = loop.time() + _REST * (loop.time() - began_s)
        return self._last

    async def _look(self) -> Snapshot:
        found = Counters()
        try:
            space = await self._space.disk()
            if self._data is not None:
                space = replace(space, used_bytes=await asyncio.to_thread(allocated_below, self._data))
        except (UnsupportedError, OSError):
            return found.snapshot()
        found.gauge("disk_total_bytes", space.total_bytes)
        found.gauge("disk_free_bytes", space.free_bytes)
        found.gauge("disk_used_bytes", space.used_bytes)
        # Other programs fill the disk too, so the free space counts.
        now_ms, taken = self._clock.now_ms(), max(0, space.total_bytes - space.free_bytes)
        now = Point(time_ms=now_ms, size_bytes=taken, head_bytes=0)
        points = [point for point in self._points if now_ms - RECENT_MS <= point.time_ms < now_ms]
        self._points = points if points and now_ms - points[-1].time_ms < _STEP_MS else [*points, now]
        growth = rates([*points, now]).append_bytes_per_s
        filling = Filling(what="disk", limit=taken + space.free_bytes, used=taken, per_s=growth)
        reached_ms = filling.reached_ms(now_ms)
        if reached_ms is not None:
            found.gauge("disk_limit_seconds", (reached_ms - now_ms) / 1000)
        return found.snapshot()
