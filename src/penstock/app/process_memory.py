"""What this process holds of the machine's memory, and how it gives back what it does not need."""

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
    """Resident bytes of the process now; None where the system does not tell (anything but Linux)."""
    try:
        text = _STATM.read_text()
    except OSError:
        return None
    return int(text.split()[1]) * mmap.PAGESIZE


def tune_allocator() -> None:
    """Let the allocator keep little: to be called before threads start. Does nothing where it is not glibc's.

    By default each thread has a heap of its own, of which none gives to another, and a heap's top is kept however large.
    """
    libc = _libc()
    if libc is not None:
        libc.mallopt(_M_ARENA_MAX, _ARENAS)
        libc.mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)


def tune_collector() -> None:
    """Let Python's collector look less often, and never at what was imported by now: for a process that is a server's alone.

    What is in flight is ten thousands of objects at a time, next to none of them in a cycle. Looked for cycles after every
    700, as by default, most of it is looked at while it is still alive, then kept for later looks at all that a store holds.
    """
    gc.freeze()
    gc.set_threshold(*_COLLECT_AT)


def give_back() -> None:
    """Return to the system what the allocator holds and nobody uses. Takes milliseconds for each 100 MiB."""
    libc = _libc()
    if libc is not None:
        libc.malloc_trim(0)


def _libc() -> Any:
    try:
        libc = ctypes.CDLL(None)
    except OSError:
        return None
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None
