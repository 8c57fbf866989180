"""A node for long runs: periodic work is rare, so that a month of virtual time takes a minute of real time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from penstock.client.retry import RETRYABLE
from penstock.controller.settings import ControllerSettings
from penstock.testing.simulation.config import SimConfig, draw_config
from penstock.testing.simulation.history import History
from penstock.testing.simulation.machine.cluster import Cluster
from penstock.testing.simulation.machine.loop import SimLoop

T = TypeVar("T")

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
CYCLE_S = HOUR_S / 2
_PAUSE_S = 0.5


def retention_config(seed: int) -> SimConfig:
    """Sizes from the seed as usual; intervals for months instead of minutes."""
    config = draw_config(seed)
    store = replace(config.store, flush_interval_s=HOUR_S / 2, checkpoint_interval_s=HOUR_S)
    return replace(
        config,
        wire=False,
        store=store,
        sweep_ms=int(6 * HOUR_S * 1000),
        retention_cycle_ms=int(CYCLE_S * 1000),
        latency_s=0.0002,
    )


class RetentionCluster(Cluster):
    """A cluster that waits for its node to die instead of polling it."""

    def __init__(self, loop: SimLoop, config: SimConfig, history: History) -> None:
        super().__init__(loop, config, history)
        self.settings = ControllerSettings(
            sweep_ms=config.sweep_ms,
            retention_cycle_ms=config.retention_cycle_ms,
            scaling_minute_ms=None,
            watermark_ms=None,
        )

    def controller_settings(self) -> ControllerSettings:
        return self.settings

    async def supervise(self) -> None:
        failures = 0
        while True:
            await self._wanted.wait()
            node = self.node
            if node is not None and node.process.alive:
                await asyncio.wait({node.main, node.died}, return_when=asyncio.FIRST_COMPLETED)
                if node.process.alive:
                    self.bury(node)
                continue
            await asyncio.sleep(0.3)
            failures = 0 if await self._start() else failures + 1
            if failures > 60 or self.refusals > 3:
                self.history.violation("cannot start", f"{failures} attempts failed")
                return

    async def insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """The answer of a call that is safe to repeat, however long the node is down."""
        while True:
            try:
                return await call()
            except RETRYABLE:
                await asyncio.sleep(_PAUSE_S)
