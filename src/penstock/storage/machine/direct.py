"""Large writes past the page cache. Source: docs/design/0025-writing-chunks.md."""

from __future__ import annotations

import errno
import mmap
import os
from collections import deque
from collections.abc import Callable, Sequence

PAGE_BYTES = 4096
"""What position, length and memory are aligned to. A disk with larger blocks refuses, and is written the usual way."""

DIRECT_MIN_BYTES = 128 << 10
"""Below this size a write through the page cache costs less."""

BOUNCE_BYTES = 1 << 20
_BOUNCES_KEPT = 4  # buffers for reads that are not aligned
_REFUSALS = frozenset((errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP))
_O_DIRECT: int = getattr(os, "O_DIRECT", 0)

Write = Callable[[int, Sequence[memoryview]], None]

# Aligned memory for one write each. Appending and popping are atomic; threads that find none make their own.
_bounces: deque[mmap.mmap] = deque(maxlen=_BOUNCES_KEPT)


class DirectWriter:
    """Writes whole pages of large writes past the page cache, and the unaligned head and tail through it.

    Each new page of the cache costs CPU for a growing file (3 ms per MiB instead of 0.1). The cache stays coherent: the
    kernel drops the pages that a direct write replaces. If the file system refuses, everything goes through the cache.
    """

    def __init__(self, descriptor: int, write: Write) -> None:
        """``write(offset, views)`` writes through the cache to the same file as ``descriptor``, which is borrowed."""
        self._buffered = descriptor
        self._write = write
        self._direct = -1
        self._refused = not _O_DIRECT

    def write(self, offset: int, views: Sequence[memoryview]) -> None:
        """All views back to back at ``offset``. Raises what ``write`` raises, and OSError."""
        size = sum(map(len, views))
        first = -(-offset // PAGE_BYTES) * PAGE_BYTES
        last = (offset + size) // PAGE_BYTES * PAGE_BYTES
        if last - first < DIRECT_MIN_BYTES or not self._open():
            self._write(offset, views)
            return
        before, rest = _split(views, first - offset)
        pages, behind = _split(rest, last - first)
        if before:
            self._write(offset, before)
        self._write_pages(first, pages, last - first)
        if behind:
            self._write(last, behind)

    def _open(self) -> bool:
        if self._direct < 0 and not self._refused:
            try:
                # By descriptor, not by path: the name may refer to another file by now.
                self._direct = os.open(f"/proc/self/fd/{self._buffered}", os.O_WRONLY | os.O_CLOEXEC | _O_DIRECT)
            except OSError:
                self._refused = True
        return not self._refused

    def _write_pages(self, offset: int, views: Sequence[memoryview], size: int) -> None:
        try:
            bounce = _bounces.pop()
        except IndexError:
            bounce = mmap.mmap(-1, BOUNCE_BYTES)
        try:
            with memoryview(bounce) as memory:
                while size:
                    step = min(size, BOUNCE_BYTES)
                    now, views = _split(views, step)
                    at = 0
                    for view in now:
                        memory[at : at + len(view)] = view
                        at += len(view)
                    with memory[:step] as piece:
                        self._write_piece(offset, piece)
                    offset += step
                    size -= step
        finally:
            _bounces.append(bounce)

    def _write_piece(self, offset: int, piece: memoryview) -> None:
        written = 0
        if not self._refused:
            try:
                written = os.pwrite(self._direct, piece, offset)
            except OSError as error:
                if error.errno not in _REFUSALS:
                    raise
                self._refused = True
        if written < len(piece):
            # Refused, or cut short: write the rest the usual way, which reports the reason if there is one.
            with piece[written:] as rest:
                self._write(offset + written, [rest])

    def close(self) -> None:
        if self._direct >= 0:
            descriptor, self._direct = self._direct, -1
            os.close(descriptor)


def _split(views: Sequence[memoryview], size: int) -> tuple[list[memoryview], list[memoryview]]:
    """The views, split after ``size`` bytes."""
    if not size:
        return [], list(views)
    for index, view in enumerate(views):
        if size < len(view):
            return [*views[:index], view[:size]], [view[size:], *views[index + 1 :]]
        size -= len(view)
        if not size:
            return list(views[: index + 1]), list(views[index + 1 :])
    return list(views), []
