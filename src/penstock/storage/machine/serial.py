"""Blocking calls on one resource, one at a time and in call order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from penstock.ports.offload import Offload

T = TypeVar("T")


class Serial:
    """Runs functions elsewhere, never two at once, in the order of the calls.

    A cancelled caller leaves its function running (``Offload`` cannot stop it). The next call waits for that end:
    otherwise an abandoned write could land after a newer one, or on a closed and reused descriptor.
    """

    def __init__(self, offload: Offload) -> None:
        self._offload = offload
        self._lock = asyncio.Lock()
        self._running: asyncio.Task[Any] | None = None

    @property
    def idle(self) -> bool:
        """Nothing runs or waits: the caller may use the resource in place, without an await."""
        return not self._lock.locked() and (self._running is None or self._running.done())

    async def run(self, work: Callable[[], T]) -> T:
        async with self._lock:
            if self._running is not None and not self._running.done():
                await asyncio.wait({self._running})
            task: asyncio.Task[T] = asyncio.create_task(self._start(work))
            # The outcome belongs to the caller; if it was cancelled, nobody waits for it.
            task.add_done_callback(_retrieve)
            self._running = task
            return await asyncio.shield(task)

    async def _start(self, work: Callable[[], T]) -> T:
        return await self._offload.run(work)


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
