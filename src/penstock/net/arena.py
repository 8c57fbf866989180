"""Receive arenas: page-aligned memory that sockets read into, recycled once nobody looks at it any more.

All views of an arena share one managed buffer, which holds the single counted reference to the mapping. So CPython's own
reference count says when the last view has died: no view is ever counted by hand, and no one can forget to give one back.
"""

from __future__ import annotations

import mmap
import sys
from collections import deque
from collections.abc import Mapping

from penstock.ports.telemetry import Telemetry

TINY_BYTES = 32 << 10
"""For connections beyond those that the pool has room for."""
SMALL_BYTES = 256 << 10
MEDIUM_BYTES = 2 << 20
LARGE_BYTES = (16 << 20) + (64 << 10)
"""The largest frame with its header fits, and something behind it."""

CLASSES = (TINY_BYTES, SMALL_BYTES, MEDIUM_BYTES, LARGE_BYTES)
_SWEEP = 64


class Arena:
    """One mapping. ``open`` gives the view to receive into; once it and all cut from it are gone, ``idle`` is true."""

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
    """Arenas of four sizes. At most ``limit_bytes`` are kept; what is needed beyond is dropped after its use.

    Mappings beyond the warm ones take memory only as bytes arrive: a peer that announces much costs no more than it sends.
    """

    def __init__(
        self, *, telemetry: Telemetry, limit_bytes: int = 256 << 20, warm: Mapping[int, int] | None = None
    ) -> None:
        self._telemetry = telemetry
        self._limit_bytes = limit_bytes
        self._pooled_bytes = 0
        self._free: dict[int, list[Arena]] = {size: [] for size in CLASSES}
        self._retired: dict[int, deque[Arena]] = {size: deque() for size in CLASSES}
        for size, count in (warm or {}).items():
            for _ in range(count):
                self._free[size].append(self._new(size, touched=True))

    @property
    def pooled_bytes(self) -> int:
        """Memory of all arenas of the pool, in use or not."""
        return self._pooled_bytes

    def acquire(self, size_bytes: int, wanted_bytes: int = 0) -> Arena:
        """An arena of the smallest class that holds ``size_bytes``; of the class of ``wanted_bytes`` where the pool has room.

        Its contents are whatever was there before.
        """
        if wanted_bytes > size_bytes:
            arena = self._known(_class_of(wanted_bytes))
            if arena is not None:
                return arena
            if self._pooled_bytes + wanted_bytes <= self._limit_bytes:
                return self._new(_class_of(wanted_bytes))
        size = _class_of(size_bytes)
        if size > CLASSES[-1]:
            self._telemetry.add("arena_overflows")
            return Arena(size, pooled=False)
        return self._known(size) or self._new(size)

    def _known(self, size: int) -> Arena | None:
        """An arena of the class that nobody looks at."""
        free = self._free[size]
        return free.pop() if free else self._swept(size)

    def retire(self, arena: Arena) -> None:
        """Take an arena back whose owner has dropped its own view. Others may still hold theirs."""
        if arena.pooled:
            if arena.idle:
                self._free[arena.size].append(arena)
            else:
                self._retired[arena.size].append(arena)

    def give_back(self) -> int:
        """Drop every arena that nobody looks at. Returns their bytes."""
        dropped = 0
        for size in CLASSES:
            retired = self._retired[size]
            for _ in range(len(retired)):
                arena = retired.popleft()
                (self._free[size] if arena.idle else retired).append(arena)
            dropped += size * len(self._free[size])
            self._free[size].clear()
        self._pooled_bytes -= dropped
        self._telemetry.gauge("arena_pooled_bytes", self._pooled_bytes)
        return dropped

    def _swept(self, size: int) -> Arena | None:
        retired = self._retired[size]
        for _ in range(min(len(retired), _SWEEP)):
            arena = retired.popleft()
            if arena.idle:
                return arena
            retired.append(arena)
        return None

    def _new(self, size: int, *, touched: bool = False) -> Arena:
        pooled = self._pooled_bytes + size <= self._limit_bytes
        if pooled:
            self._pooled_bytes += size
            self._telemetry.gauge("arena_pooled_bytes", self._pooled_bytes)
        else:
            self._telemetry.add("arena_overflows")
        return Arena(size, pooled=pooled, touched=touched)


def _class_of(size_bytes: int) -> int:
    return next((one for one in CLASSES if one >= size_bytes), size_bytes)
