"""Keeps a server within its memory: caches shrink when the process holds more than it may."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from penstock.app import process_memory
from penstock.core.segments.throttle import cache_allowance
from penstock.ports.telemetry import Telemetry
from penstock.segmentstore.settings import StoreSettings

log = logging.getLogger(__name__)

_LOOK_S = 0.1
_GIVE_BACK_S = 1.0
_WARN_S = 60.0
_LEAST_SHARE = 16
"""The caches keep 1/16 of their share, however much the rest of the process uses."""


class CachingStore(Protocol):
    """One store, or all stores of the process that share the memory of events."""

    @property
    def settings(self) -> StoreSettings:
        """With the limits of that memory."""
        ...

    @property
    def cached_bytes(self) -> int:
        """Bytes that the tail caches hold now."""
        ...

    def allow_memory(self, *, cache_bytes: int, unflushed_bytes: int) -> None:
        """Change the limits, up to those of the settings."""
        ...


class MemoryWatch:
    """Checks the process's memory ten times a second (30 us each), and adjusts the bounds of the store's caches.

    Shares alone do not keep a budget: what the allocator cannot use, views that keep a whole receive buffer alive, and
    libraries belong to no share. Runs from entry to exit. Does nothing if the system does not report the memory.
    """

    def __init__(
        self,
        store: CachingStore,
        *,
        budget_bytes: int,
        drop: Callable[[], int],
        report: Callable[[bool], None] = lambda is_short: None,
        telemetry: Telemetry,
        resident_bytes: Callable[[], int | None] = process_memory.resident_bytes,
        give_back: Callable[[], None] = process_memory.give_back,
    ) -> None:
        """``drop`` frees unused buffers, and returns their bytes. Each check calls ``report`` with whether the process
        uses more than its budget."""
        self._store = store
        self._settings = store.settings
        self._budget_bytes = budget_bytes
        self._drop = drop
        self._report = report
        self._telemetry = telemetry
        self._resident_bytes = resident_bytes
        self._give_back = give_back
        self._allowed_bytes = store.settings.cache_bytes
        self._given_back_at = float("-inf")
        self._warned_at = float("-inf")
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="memory watch")
        self._task.add_done_callback(_ended)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self.look(loop.time()):  # noqa: ASYNC110 - no event reports the size of a process
            await asyncio.sleep(_LOOK_S)

    def look(self, now: float) -> bool:
        """Check once. False if the system does not report the process's memory."""
        resident = self._resident_bytes()
        if resident is None:
            return False
        most = self._settings.cache_bytes
        least = most // _LEAST_SHARE
        self._allowed_bytes = allowed = cache_allowance(
            resident,
            budget_bytes=self._budget_bytes,
            allowed_bytes=self._allowed_bytes,
            cached_bytes=self._store.cached_bytes,
            most_bytes=most,
            least_bytes=least,
        )
        unflushed = max(self._settings.max_unflushed_bytes // _LEAST_SHARE, allowed)
        self._store.allow_memory(cache_bytes=allowed, unflushed_bytes=unflushed)
        self._telemetry.gauge("resident_bytes", resident)
        self._telemetry.gauge("cache_allowed_bytes", allowed)
        self._report(resident > self._budget_bytes)
        if resident > self._budget_bytes:
            self._over(now, resident, allowed <= least)
        return True

    def _over(self, now: float, resident: int, is_least: bool) -> None:
        if now - self._given_back_at >= _GIVE_BACK_S:
            self._given_back_at = now
            self._drop()
            self._give_back()
        if is_least and now - self._warned_at >= _WARN_S:
            self._warned_at = now
            log.warning(
                "memory budget is used up by more than caches: fewer connections or a larger --memory would help",
                extra={"resident_bytes": resident, "budget_bytes": self._budget_bytes},
            )


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("memory watch failed; caches keep the bounds that they have", exc_info=error)
