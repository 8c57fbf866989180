"""Replacements for the ports of a machine: a clock that tests set, seeded randomness, and work without threads."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TypeVar
from uuid import UUID

T = TypeVar("T")
START_MS = 1_700_000_000_000
"""Start time of a ``FakeClock``, milliseconds since the Unix epoch."""


class FakeClock:
    """Implements ``ports.clock.Clock``. ``ms`` is the wall time; it moves only when a test sets it."""

    def __init__(self) -> None:
        self.ms = START_MS
        self._jumped_ms = 0

    def now_ms(self) -> int:
        return self.ms

    def passed_s(self) -> float:
        """Seconds that have passed since the start. Jumps of the wall clock do not count."""
        return (self.ms - self._jumped_ms - START_MS) / 1000

    def jump(self, by_ms: int) -> None:
        """Set the wall clock forward or back. No time passes."""
        self.ms += by_ms
        self._jumped_ms += by_ms


class SeededRng:
    """Implements ``ports.rng.Rng`` from one generator, or from a seed: equal seeds give equal values and ids."""

    def __init__(self, seed: int | random.Random = 0) -> None:
        self._random = seed if isinstance(seed, random.Random) else random.Random(seed)

    def random(self) -> float:
        return self._random.random()

    def randrange(self, stop: int) -> int:
        return self._random.randrange(stop)

    def uuid(self) -> UUID:
        return UUID(int=self._random.getrandbits(128), version=4)


class InlineOffload:
    """Implements ``ports.offload.Offload`` without threads. Other tasks run once, then the work runs in the event
    loop."""

    async def run(self, work: Callable[[], T]) -> T:
        await asyncio.sleep(0)
        return work()
