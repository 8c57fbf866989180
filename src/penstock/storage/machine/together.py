"""Many small files written with one wait for the disk. Source: docs/design/0005, "Very many small segments"."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import threading
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from penstock.model.errors import CorruptDataError, PenstockError
from penstock.ports.files import FileWrite
from penstock.storage.machine.calls import may_be_synced_as_a_whole, sync_file_system, translated, write_all
from penstock.storage.machine.direct import DIRECT_MIN_BYTES, DirectWriter

SHARED_MIN_FILES = 32
"""From so many files on the file system is synced as a whole: each sync of a file flushes the cache of the disk."""

_OPEN_MAX = 1024  # files open at a time, however many the system allows
_OPEN_PART = 4  # part of the process's descriptors, 1/4
_SLOW_S = 1.0
_SLOW_FILE_S = 0.002
_AVOIDED_S = 60.0
_QUICK_FILE_S = 0.00015
_NEWEST_SHARE = 0.2  # weight of the newest duration in the moving average
_SLOW_FOR_S = 10.0
_SYNCFS_TELLS = (5, 8)
"""From this version of Linux on ``syncfs`` tells what could not be written."""


class Together:
    """Files of one call: written one after the other, synced at once, closed. Blocks; for one thread at a time."""

    def __init__(self, items: Sequence[tuple[Path, FileWrite]]) -> None:
        self._items = items
        self._sizes = [sum(map(len, write.parts)) for _, write in items]
        self.written = 0
        self._open: dict[int, int] = {}
        self._watch = -1
        self._busy = threading.Lock()
        self.failures: list[Exception | None] = [None] * len(items)

    @property
    def is_quick(self) -> bool:
        """Whether all of the files go through the page cache, so that writing them waits for no disk."""
        return max(self._sizes, default=0) < DIRECT_MIN_BYTES

    @property
    def all_written(self) -> bool:
        return self.written == len(self._items)

    def write_some(self, seconds: float) -> None:
        """Write files until all are written, or so much time has passed."""
        with self._busy:
            self._write_some(seconds)

    def _write_some(self, seconds: float) -> None:
        if self._watch < 0 and len(self._items) >= SHARED_MIN_FILES:
            # Opened before the first write: what fails from here on, a sync by this descriptor tells.
            self._watch = os.open(self._items[0][0].parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        until = time.perf_counter() + seconds
        while not self.all_written:
            index = self.written
            self.written += 1
            try:
                self._write(index, *self._items[index])
            except (OSError, PenstockError) as error:
                self.failures[index] = error
            if time.perf_counter() >= until:
                return

    def _write(self, index: int, target: Path, write: FileWrite) -> None:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (0 if write.offset else os.O_CREAT)
        try:
            descriptor = os.open(target, flags, 0o600)
        except OSError as error:
            raise translated(error, write.path) from error
        self._open[index] = descriptor
        size = os.fstat(descriptor).st_size
        if size < write.offset:
            raise CorruptDataError(
                "file is shorter than what is known to be in it", path=write.path, length=size, offset=write.offset
            )
        if size > write.offset:
            os.ftruncate(descriptor, write.offset)
        views = [memoryview(part).cast("B") for part in write.parts if len(part)]
        if self._sizes[index] < DIRECT_MIN_BYTES:
            write_all(descriptor, write.path, write.offset, views)
            return
        direct = DirectWriter(descriptor, partial(write_all, descriptor, write.path))
        try:
            direct.write(write.offset, views)
        except OSError as error:
            raise translated(error, write.path) from error
        finally:
            direct.close()

    def sync(self, habit: SyncHabit) -> None:
        """Make what was written durable."""
        with self._busy:
            self._sync(habit)

    def _sync(self, habit: SyncHabit) -> None:
        left = {index: descriptor for index, descriptor in self._open.items() if self.failures[index] is None}
        if self._watch >= 0 and habit.shares and self._is_one_known_file_system(left.values()):
            begun = time.monotonic()
            try:
                shared = sync_file_system(self._watch)
            except OSError as error:
                # Whose bytes were lost is not told, and the kernel forgets them: it may have been any of them.
                for index in left:
                    self.failures[index] = OSError(error.errno, error.strerror, self._items[index][1].path)
                return
            habit.took(time.monotonic() - begun, len(left))
            if shared:
                return
        for index, descriptor in left.items():
            try:
                os.fdatasync(descriptor)
            except OSError as error:
                self.failures[index] = translated(error, self._items[index][1].path)

    def _is_one_known_file_system(self, descriptors: Iterable[int]) -> bool:
        if not may_be_synced_as_a_whole(self._watch):
            return False
        device = os.fstat(self._watch).st_dev
        return all(os.fstat(descriptor).st_dev == device for descriptor in descriptors)

    def close(self) -> None:
        """Close all files, behind a thread that a cancelled caller has left with them."""
        with self._busy:
            for descriptor in self._open.values():
                os.close(descriptor)
            self._open.clear()
            if self._watch >= 0:
                os.close(self._watch)
                self._watch = -1


class OpenRoom:
    """How many files may be open at the same time for all that is written together: a part of what the process may open.

    Whoever finds no descriptor left fails, and a log that needs its next file then fails for good.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = most or _descriptors_allowed()
        self._left = self.most
        self._gate = asyncio.Lock()
        self._given_back = asyncio.Event()

    @asynccontextmanager
    async def taken(self, count: int) -> AsyncIterator[None]:
        """With room for ``count`` files, ``most`` at most; whoever came first gets it first."""
        async with self._gate:
            while self._left < count:
                self._given_back.clear()
                await self._given_back.wait()
            self._left -= count
        try:
            yield
        finally:
            self._left += count
            self._given_back.set()


@dataclass(slots=True)
class SyncHabit:
    """Whether syncing the whole file system pays: not where others leave it much to write, and not where it hides errors."""

    tells: bool = field(default_factory=lambda: _kernel() >= _SYNCFS_TELLS)
    avoided_until: float = 0.0

    @property
    def shares(self) -> bool:
        return self.tells and time.monotonic() >= self.avoided_until

    def took(self, seconds: float, files: int) -> None:
        """A sync of the whole for so many files took so long. Slower than theirs alone would be: try again later."""
        if seconds > _SLOW_S + _SLOW_FILE_S * files:
            self.avoided_until = time.monotonic() + _AVOIDED_S


@dataclass(slots=True)
class OpenHabit:
    """Whether files are opened and filled so quickly that the event loop may do it: ext4 takes half a millisecond for a new
    one for minutes after thousands were deleted, and then a thread is to spend it."""

    typical_s: float = 0.0
    slow_until: float = 0.0

    @property
    def quick(self) -> bool:
        return time.monotonic() >= self.slow_until

    def took(self, seconds: float, files: int) -> None:
        """So many files took the loop so long. Typically slow: let threads do it, and look again later."""
        self.typical_s += _NEWEST_SHARE * (seconds / files - self.typical_s)
        if self.typical_s > _QUICK_FILE_S:
            self.typical_s, self.slow_until = 0.0, time.monotonic() + _SLOW_FOR_S


def _descriptors_allowed() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _OPEN_MAX if soft == resource.RLIM_INFINITY else max(1, min(_OPEN_MAX, soft // _OPEN_PART))


def _kernel() -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return (int(found[1]), int(found[2])) if found and os.uname().sysname == "Linux" else (0, 0)
