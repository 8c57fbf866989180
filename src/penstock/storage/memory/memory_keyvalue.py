"""A key-value store in memory: for simulation, tests, and stores that may be lost with their process."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Sequence

_FEW = 16
"""Up to so many new keys are inserted one by one; more are merged by one sort, which is linear on sorted runs."""


class MemoryKeyValue:
    """Implements ``ports.keyvalue.KeyValueStore``.

    The object is its own disk: pass the same object to the next owner to "reopen" it; ``close`` keeps the entries.

    Args:
        pause: Awaited before and after each commit takes effect, so that a simulation can crash its caller on either
            side. None: commits do not yield to the event loop.
    """

    def __init__(self, *, pause: Callable[[], Awaitable[None]] | None = None) -> None:
        self._values: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []
        self._pause = pause

    async def get_many(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        return [self._values.get(key) for key in keys]

    async def scan(
        self, start: bytes, end: bytes, *, limit: int, reverse: bool = False
    ) -> Sequence[tuple[bytes, bytes]]:
        low = bisect_left(self._keys, start)
        high = max(low, bisect_left(self._keys, end))
        count = min(max(limit, 0), high - low)
        found = self._keys[high - count : high][::-1] if reverse else self._keys[low : low + count]
        return [(key, self._values[key]) for key in found]

    async def commit(
        self,
        puts: Iterable[tuple[bytes, bytes]],
        deletes: Iterable[bytes] = (),
        *,
        delete_ranges: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        # Copy first: a generator that raises midway must leave the map unchanged.
        entries = {bytes(key): bytes(value) for key, value in puts}
        gone = [bytes(key) for key in deletes]
        ranges = [(bytes(start), bytes(end)) for start, end in delete_ranges]
        if self._pause is not None:
            await self._pause()
        for start, end in ranges:
            self._delete_range(start, end)
        self._delete(gone)
        self._put(entries)
        if self._pause is not None:
            await self._pause()

    async def close(self) -> None:
        """Nothing to release."""

    def _delete_range(self, start: bytes, end: bytes) -> None:
        low = bisect_left(self._keys, start)
        high = bisect_left(self._keys, end)
        if low < high:
            for key in self._keys[low:high]:
                del self._values[key]
            del self._keys[low:high]

    def _delete(self, keys: Sequence[bytes]) -> None:
        present = [key for key in dict.fromkeys(keys) if self._values.pop(key, None) is not None]
        if len(present) > _FEW:
            self._keys = [key for key in self._keys if key in self._values]
            return
        for key in present:
            del self._keys[bisect_left(self._keys, key)]

    def _put(self, entries: dict[bytes, bytes]) -> None:
        new = [key for key in entries if key not in self._values]
        self._values.update(entries)
        if len(new) > _FEW:
            self._keys.extend(sorted(new))
            self._keys.sort()
            return
        for key in new:
            self._keys.insert(bisect_left(self._keys, key), key)
