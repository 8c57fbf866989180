"""A node whose tables sometimes answer late, so that calls of the controller overlap in many orders."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from penstock.controller.settings import ControllerSettings
from penstock.ports.segment_service import TablePut
from penstock.segmentstore.store import SegmentStore
from penstock.testing.simulation.cluster import Cluster
from penstock.testing.simulation.config import SimConfig, draw_config
from penstock.testing.simulation.history import History
from penstock.testing.simulation.loop import SimLoop

SWEEP_MS = 1000
_TABLE_CALLS = ("table_get", "table_scan", "table_update", "table_remove", "table_change")
_LATE, _LATE_S = 0.04, 0.05
_VERY_LATE, _VERY_LATE_S = 0.004, 3.0
_PICKED_LATE, _PICKED_LATE_S = 0.2, 5.0


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

    def controller_settings(self) -> ControllerSettings:
        return ControllerSettings(
            sweep_ms=self.config.sweep_ms, retention_cycle_ms=self.config.retention_cycle_ms, retention_pause_ms=100
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
            answer = await call(*args, **kwargs)
            await self._dawdle()
            return answer

        return delayed

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
