"""The memory of this process, and how to return unused memory to the system."""

from __future__ import annotations

import ctypes
import gc
import mmap
from pathlib import Path
from typing import Any

_STATM = Path("/proc/self/statm")
_M_ARENA_MAX = -8  # parameter number of mallopt, from malloc.h
_M_TRIM_THRESHOLD = -1  # parameter number of mallopt, from malloc.h
_ARENAS = 2  # heaps of the allocator; by default each thread has one of its own
_TRIM_BYTES = 8 << 20
_COLLECT_AT = (20_000, 20, 20)


def resident_bytes() -> int | None:
    """Resident bytes of the process now; None if the system does not report them (anything but Linux)."""
    try:
        text = _STATM.read_text()
    except OSError:
        return None
    return int(text.split()[1]) * mmap.PAGESIZE


def tune_allocator() -> None:
    """Make the allocator keep little memory. Call it before threads start. Does nothing without glibc.

    By default each thread has its own heap, heaps do not share memory, and the free top of a heap is kept however
    large.
    """
    libc = _libc()
    if libc is not None:
        libc.mallopt(_M_ARENA_MAX, _ARENAS)
        libc.mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)


def tune_collector() -> None:
    """Run Python's garbage collector less often, and never over imported modules. Only for a process that is just a
    server.

    A busy server has tens of thousands of live objects, and almost none of them are in cycles. By default the collector
    runs after every 700 new objects. It would scan most of them while they are alive, and move them to generations whose
    collection scans everything that the store holds.
    """
    gc.freeze()
    gc.set_threshold(*_COLLECT_AT)


def give_back() -> None:
    """Return the allocator's unused memory to the system. Takes milliseconds for each 100 MiB."""
    libc = _libc()
    if libc is not None:
        libc.malloc_trim(0)


def _libc() -> Any:
    try:
        libc = ctypes.CDLL(None)
    except OSError:
        return None
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None
