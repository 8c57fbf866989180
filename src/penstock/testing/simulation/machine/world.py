"""The other ports of a simulated node: clock, randomness, offloading, and an ordered store that survives power loss."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from penstock.model.errors import DamagedRowError
from penstock.testing.simulation.machine.files import SimDisk, SimFiles

T = TypeVar("T")
EPOCH_MS = 1_700_000_000_000


class SimClock:
    """Wall time: the loop's time plus a jump that a test may set."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.jump_ms = 0

    def now_ms(self) -> int:
        return EPOCH_MS + int(self._loop.time() * 1000) + self.jump_ms


class SimOffload:
    """Work runs inline, at a random later time. The work of a dead node never runs."""

    def __init__(self, files: SimFiles) -> None:
        self._files = files

    async def run(self, work: Callable[[], T]) -> T:
        await self._files.step()
        return work()


class SimKeyValueState:
    """What survives: the committed entries."""

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}
        self.order: list[bytes] = []
        self.damaged: dict[bytes, None] = {}
        """Keys of entries whose value has a flipped bit, until they are written again."""

    def check(self, keys: Iterable[bytes]) -> None:
        """Raises DamagedRowError, which names the first of the keys whose value is damaged."""
        for key in keys if self.damaged else ():
            if key in self.damaged:
                raise DamagedRowError("value fails its checksum", key=key.hex())

    def scan(self, start: bytes, end: bytes) -> tuple[int, int]:
        low = bisect_left(self.order, start)
        return low, max(low, bisect_left(self.order, end))

    def apply(
        self,
        puts: Sequence[tuple[bytes, bytes]],
        deletes: Sequence[bytes],
        ranges: Sequence[tuple[bytes, bytes]],
    ) -> None:
        for start, end in ranges:
            low, high = self.scan(start, end)
            for key in self.order[low:high]:
                del self.entries[key]
                self.damaged.pop(key, None)
            del self.order[low:high]
        for key in deletes:
            self.damaged.pop(key, None)
            if self.entries.pop(key, None) is not None:
                del self.order[bisect_left(self.order, key)]
        for key, value in puts:
            self.damaged.pop(key, None)
            if key not in self.entries:
                insort(self.order, key)
            self.entries[key] = value


class SimKeyValue:
    """``ports.keyvalue.KeyValueStore`` with seeded latency: a commit happens at one instant, or never if the node dies
    before it. Stands for SQLite, whose commits are atomic and durable; it shares the disk's capacity."""

    def __init__(self, state: SimKeyValueState, disk: SimDisk) -> None:
        self._state = state
        self._disk = disk
        self._files = SimFiles(disk)

    def after_steps(self, call: Callable[[], None]) -> None:
        """Run ``call`` at the end of each step of files."""
        self._files.stepped = call

    async def get_many(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        await self._files.step()
        self._state.check(keys)
        return [self._state.entries.get(key) for key in keys]

    async def scan(
        self, start: bytes, end: bytes, *, limit: int, reverse: bool = False
    ) -> Sequence[tuple[bytes, bytes]]:
        await self._files.step()
        low, high = self._state.scan(start, end)
        if reverse:
            found = self._state.order[max(low, high - limit) : high][::-1]
        else:
            found = self._state.order[low : min(high, low + limit)]
        self._state.check(found)
        rows = [(key, self._state.entries[key]) for key in found]
        await self._files.delay()
        return rows

    async def commit(
        self,
        puts: Iterable[tuple[bytes, bytes]],
        deletes: Iterable[bytes] = (),
        *,
        delete_ranges: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        taken = [(bytes(key), bytes(value)) for key, value in puts]
        gone, ranges = list(deletes), list(delete_ranges)
        await self._files.step()
        self._disk.check_room(sum(len(key) + len(value) for key, value in taken))
        self._state.apply(taken, gone, ranges)
        # The answer may be lost although the commit happened.
        await self._files.step()

    async def close(self) -> None:
        self._files.check_alive()
