"""Segments in memory between whose calls a test lets something else happen."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from memory_segments import MemorySegments

Hook = Callable[[], Awaitable[None]]


class RacedSegments(MemorySegments):
    """Runs ``hook`` once, before or after the effect of the call with number ``at``; calls of the hook do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.hook: Hook | None = None
        self.at = 0
        self.calls = 0
        self._inside = False

    def arm_hook(self, at: int, hook: Hook) -> None:
        self.hook, self.at, self.calls = hook, at, 0

    async def _step(self) -> None:
        if self.hook is None or self._inside:
            return
        self.calls += 1
        if self.calls == self.at:
            self._inside = True
            try:
                await self.hook()
            finally:
                self._inside = False

    async def _mutate(self, effect: Any) -> Any:
        await self._step()
        result = await super()._mutate(effect)
        await self._step()
        return result

    async def table_get(self, name: str, keys: Any) -> Any:
        await self._step()
        result = await super().table_get(name, keys)
        await self._step()
        return result

    async def table_scan(self, name: str, **fields: Any) -> Any:
        await self._step()
        result = await super().table_scan(name, **fields)
        await self._step()
        return result
