"""The other ports of a simulated node: clock, randomness, offloading, and an ordered store that survives power loss."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar
from uuid import UUID

from penstock.testing.simulation.files import SimDisk, SimFiles

T = TypeVar("T")
EPOCH_MS = 1_700_000_000_000


class SimClock:
    """Wall time that follows the loop's, plus a jump that a test may set."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.jump_ms = 0

    def now_ms(self) -> int:
        return EPOCH_MS + int(self._loop.time() * 1000) + self.jump_ms


class SimRng:
    """Randomness and ids from one seeded generator."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def random(self) -> float:
        return self._rng.random()

    def randrange(self, stop: int) -> int:
        return self._rng.randrange(stop)

    def uuid(self) -> UUID:
        return UUID(int=self._rng.getrandbits(128), version=4)


class SimOffload:
    """Work runs inline, at a random later instant; a dead node's work never runs."""

    def __init__(self, files: SimFiles) -> None:
        self._files = files

    async def run(self, work: Callable[[], T]) -> T:
        await self._files.step()
        return work()


class SimKeyValueState:
    """What survives: the committed entries."""

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}


class SimKeyValue:
    """``ports.keyvalue.KeyValueStore`` with seeded latency: a commit happens at one instant, or never if the node dies
    before it. Stands for SQLite, whose commits are atomic and durable."""

    def __init__(self, state: SimKeyValueState, disk: SimDisk) -> None:
        self._state = state
        self._files = SimFiles(disk)

    async def get_many(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        await self._files.step()
        return [self._state.entries.get(key) for key in keys]

    async def scan(
        self, start: bytes, end: bytes, *, limit: int, reverse: bool = False
    ) -> Sequence[tuple[bytes, bytes]]:
        await self._files.step()
        keys = sorted((key for key in self._state.entries if start <= key < end), reverse=reverse)[:limit]
        return [(key, self._state.entries[key]) for key in keys]

    async def commit(
        self,
        puts: Iterable[tuple[bytes, bytes]],
        deletes: Iterable[bytes] = (),
        *,
        delete_ranges: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        changes = (list(puts), list(deletes), list(delete_ranges))
        await self._files.step()
        entries = self._state.entries
        for start, end in changes[2]:
            for key in [key for key in entries if start <= key < end]:
                del entries[key]
        for key in changes[1]:
            entries.pop(key, None)
        entries.update(changes[0])
        # The answer may be lost although the commit happened.
        await self._files.step()

    async def close(self) -> None:
        self._files.check_alive()
