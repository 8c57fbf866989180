"""Receive arenas: page-aligned memory that sockets read into, recycled once no view of it is left.

All views of an arena share one managed buffer, which holds the single counted reference to the mapping. So CPython's
own reference count shows when the last view is freed. No view is counted by hand, so none can be leaked by a forgotten
release.
"""

from __future__ import annotations

import mmap
import sys
from collections import deque
from collections.abc import Mapping

from penstock.ports.telemetry import Telemetry

TINY_BYTES = 32 << 10
"""For connections beyond the number that the pool has room for."""
SMALL_BYTES = 256 << 10
MEDIUM_BYTES = 2 << 20
LARGE_BYTES = (16 << 20) + (64 << 10)
"""Holds the largest frame with its header, and some bytes after it."""

CLASSES = (TINY_BYTES, SMALL_BYTES, MEDIUM_BYTES, LARGE_BYTES)
_SWEEP = 64  # buffers checked in one call, so that no call takes long


class Arena:
    """One mapping. ``open`` returns the view to receive into. Once it and all slices of it are freed, ``idle`` is
    true."""

    __slots__ = ("_base", "_memory", "pooled", "size")

    def __init__(self, size: int, *, pooled: bool, touched: bool = False) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        if touched:
            # First touches cost 0.3 ms per MiB: better at start than on the append path.
            flags |= getattr(mmap, "MAP_POPULATE", 0)
        self._memory = mmap.mmap(-1, size, flags=flags)
        self.size = size
        self.pooled = pooled
        self._base = 0
        self._base = self._references()

    def _references(self) -> int:
        return sys.getrefcount(self._memory)

    def open(self) -> memoryview:
        return memoryview(self._memory)

    @property
    def idle(self) -> bool:
        """Whether no view is left. Never true while one can still be read or written through."""
        return self._references() == self._base


class ArenaPool:
    """Arenas of four sizes. Free arenas are kept for reuse up to ``limit_bytes`` in total.

    Caches count the arenas that they hold views of. Once the last view is freed, the arena is used again, which saves
    touching new memory, or dropped if enough free ones wait. Mappings beyond the warm ones take memory only as bytes
    arrive: a peer that announces a large frame costs no more than it sends.
    """

    def __init__(
        self, *, telemetry: Telemetry, limit_bytes: int = 256 << 20, warm: Mapping[int, int] | None = None
    ) -> None:
        self._telemetry = telemetry
        self._limit_bytes = limit_bytes
        self._pooled_bytes = self._lent_bytes = self._free_bytes = 0
        self._free: dict[int, list[Arena]] = {size: [] for size in CLASSES}
        self._retired: dict[int, deque[Arena]] = {size: deque() for size in CLASSES}
        for size, count in (warm or {}).items():
            for _ in range(count):
                self._free[size].append(self._new(size, touched=True))
                self._free_bytes += size

    @property
    def pooled_bytes(self) -> int:
        """Memory of all arenas that may be used again, whether views of them are left or not."""
        return self._pooled_bytes

    @property
    def lent_bytes(self) -> int:
        """Memory of the arenas that connections receive into."""
        return self._lent_bytes

    def acquire(self, size_bytes: int, wanted_bytes: int = 0) -> Arena:
        """An arena of the smallest class that holds ``size_bytes``; of the class of ``wanted_bytes`` if the pool has
        room.

        Its previous contents are not cleared.
        """
        size = _class_of(size_bytes)
        if size > CLASSES[-1]:
            self._telemetry.add("arena_overflows")
            return Arena(size, pooled=False)
        if wanted_bytes > size_bytes:
            wanted = _class_of(wanted_bytes)
            arena = self._known(wanted)
            if arena is None and self._lent_bytes + wanted <= self._limit_bytes:
                arena = self._new(wanted)
        else:
            arena = None
        arena = arena or self._known(size) or self._new(size)
        self._lent_bytes += arena.size
        if self._lent_bytes > self._limit_bytes:
            self._telemetry.add("arena_overflows")
        return arena

    def _known(self, size: int) -> Arena | None:
        """An arena of the class with no views left."""
        free = self._free[size]
        if not free:
            self._sweep(size)
        if not free:
            return None
        self._free_bytes -= size
        return free.pop()

    def retire(self, arena: Arena) -> None:
        """Take an arena back whose owner has dropped its own view. Others may still hold theirs."""
        if not arena.pooled:
            return
        self._lent_bytes -= arena.size
        self._retired[arena.size].append(arena)
        for size in CLASSES:
            self._sweep(size)

    def give_back(self) -> int:
        """Drop every arena with no views left. Returns their size in bytes."""
        before = self._pooled_bytes
        for size in CLASSES:
            self._drop(size, len(self._free[size]))
            self._free[size].clear()
            retired = self._retired[size]
            self._retired[size] = deque(arena for arena in retired if not arena.idle)
            self._drop(size, len(retired) - len(self._retired[size]))
        self._free_bytes = 0
        return before - self._pooled_bytes

    def _sweep(self, size: int) -> None:
        """Check whether caches still hold views of some arenas, oldest first."""
        retired, free = self._retired[size], self._free[size]
        for _ in range(min(len(retired), _SWEEP)):
            arena = retired.popleft()
            if not arena.idle:
                retired.append(arena)
            elif self._free_bytes + size <= self._limit_bytes:
                free.append(arena)
                self._free_bytes += size
            else:
                self._drop(size, 1)

    def _drop(self, size: int, count: int) -> None:
        if count:
            self._pooled_bytes -= size * count
            self._telemetry.gauge("arena_pooled_bytes", self._pooled_bytes)

    def _new(self, size: int, *, touched: bool = False) -> Arena:
        self._pooled_bytes += size
        self._telemetry.gauge("arena_pooled_bytes", self._pooled_bytes)
        return Arena(size, pooled=True, touched=touched)


def _class_of(size_bytes: int) -> int:
    return next((one for one in CLASSES if one >= size_bytes), size_bytes)
