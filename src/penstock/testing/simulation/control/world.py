"""A node whose tables sometimes answer late, so that calls of the controller overlap in many orders."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from penstock.controller.retention_keys import GAPS, OUTBOX
from penstock.controller.settings import ControllerSettings
from penstock.model.errors import StorageFullError
from penstock.ports.data.tables import TablePut, TableRemoval
from penstock.segmentstore.store import SegmentStore
from penstock.testing.simulation.config import SimConfig, draw_config
from penstock.testing.simulation.history import History
from penstock.testing.simulation.machine.cluster import Cluster
from penstock.testing.simulation.machine.loop import SimLoop

SWEEP_MS = 1000
DELETION_GRACE_S = 8.0
_TABLE_CALLS = ("table_get", "table_scan", "table_update", "table_remove", "table_change")
_LATE, _LATE_S = 0.04, 0.05  # share of answers
_VERY_LATE, _VERY_LATE_S = 0.004, 3.0  # share of answers
_PICKED_LATE, _PICKED_LATE_S = 0.2, 5.0  # share of answers of the picked kind of call
_SCANS_LATE_S = 2.0
"""Seconds after a full disk during which a scan from that time may still run."""
_OUTBOX_MAX = 32  # audit entries; few, so that runs meet the limit
_ROOM_S = 15.0
"""Seconds after entries have left the outbox during which the controller may not know it."""


def control_config(seed: int) -> SimConfig:
    """Sizes from the seed, as in other runs; clients call the store and the controller in their process."""
    return replace(draw_config(seed), wire=False, sweep_ms=SWEEP_MS, retention_cycle_ms=700)


class ControlCluster(Cluster):
    """A cluster whose controller waits for its table now and then: for some milliseconds, or for some seconds.

    A delay before a call changes what the call finds. A delay after it changes what its caller still believes.
    """

    def __init__(self, loop: SimLoop, config: SimConfig, history: History) -> None:
        super().__init__(loop, config, history)
        self._delays = loop.fork("delays")
        self.late = True
        self.picked = b"none"
        """Changes of keys with this prefix wait for seconds, far more often than others do."""
        self.full_until_s = 0.0
        """Until this time every change of a table is refused, and scans do not return."""
        self.counted = 0
        """How often audit entries were counted instead of written though there was room for them."""
        self._outbox: dict[bytes, None] = {}
        self._outbox_sizes: deque[tuple[float, int]] = deque()

    def controller_settings(self) -> ControllerSettings:
        return ControllerSettings(
            watermark_ms=None,
            sweep_ms=self.config.sweep_ms,
            retention_cycle_ms=self.config.retention_cycle_ms,
            retention_pause_ms=100,
            scaling_minute_ms=None,
            audit_outbox_max=_OUTBOX_MAX,
            deletion_grace_ms=int(DELETION_GRACE_S * 1000),
        )

    def prepare_store(self, store: SegmentStore) -> None:
        for name in _TABLE_CALLS:
            setattr(store, name, self._delayed(getattr(store, name)))

    def _delayed(self, call: Any) -> Callable[..., Awaitable[Any]]:
        async def delayed(*args: Any, **kwargs: Any) -> Any:
            await self._dawdle()
            if (
                self.late
                and call.__name__ == "table_update"
                and any(item.key.startswith(self.picked) for item in args[1] if isinstance(item, TablePut))
            ):
                await self._wait_for_picked()
            await self._refuse_if_full(call.__name__)
            answer = await call(*args, **kwargs)
            self._follow_outbox(args)
            await self._dawdle()
            return answer

        return delayed

    async def _refuse_if_full(self, call: str) -> None:
        left_s = self.full_until_s - self.loop.time()
        if left_s > 0 and call == "table_scan":
            await asyncio.sleep(left_s + _SCANS_LATE_S)
        elif left_s > 0 and call in ("table_update", "table_change"):
            raise StorageFullError("no space left on the device")

    def _follow_outbox(self, args: Sequence[Any]) -> None:
        """Compare the last change of a table with the room that the outbox had."""
        now, sizes = self.loop.time(), self._outbox_sizes
        for item in args[1] if len(args) > 1 else ():
            if isinstance(item, TablePut) and item.key.startswith(OUTBOX):
                self._outbox[item.key] = None
            elif isinstance(item, TableRemoval):
                self._outbox.pop(item.key, None)
            elif isinstance(item, TablePut) and item.key.startswith(GAPS):
                # A few entries are not seen here: those whose answer a crash has lost.
                self.counted += max((size for _, size in sizes), default=0) < _OUTBOX_MAX * 3 // 4
        sizes.append((now, len(self._outbox)))
        while sizes[0][0] < now - _ROOM_S:
            sizes.popleft()

    async def _wait_for_picked(self) -> None:
        if self._delays.random() < _PICKED_LATE:
            await asyncio.sleep(self._delays.expovariate(1 / _PICKED_LATE_S))

    async def _dawdle(self) -> None:
        if not self.late:
            return
        chance = self._delays.random()
        if chance < _VERY_LATE:
            await asyncio.sleep(self._delays.expovariate(1 / _VERY_LATE_S))
        elif chance < _LATE:
            await asyncio.sleep(self._delays.expovariate(1 / _LATE_S))
