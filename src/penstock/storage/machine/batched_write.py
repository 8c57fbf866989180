"""Many small files written with one wait for the disk. Source: docs/design/0025-writing-chunks.md."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import threading
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import field
from functools import partial

from penstock.model.errors import CorruptDataError, PenstockError
from penstock.model.values.dataclass import dataclass
from penstock.ports.files import FileWrite
from penstock.storage.machine.calls import (
    may_be_synced_as_a_whole,
    sync_file_system,
    translated,
    write_all,
    write_at_once,
)
from penstock.storage.machine.direct import DIRECT_MIN_BYTES, DirectWriter

SHARED_MIN_FILES = 32
"""From so many files on the file system is synced as a whole: each sync of a file flushes the cache of the disk."""

_OPEN_MAX = 1024  # files open at a time, however many the system allows
_OPEN_PART = 4  # share of the process's descriptors, 1/4
_SLOW_S = 1.0
_SLOW_FILE_S = 0.002
_AVOIDED_S = 60.0
_QUICK_FILE_S = 0.00015
_NEWEST_SHARE = 0.2  # weight of the newest duration in the moving average
_SLOW_FOR_S = 10.0
_SYNCFS_REPORTS_ERRORS = (5, 8)
"""From this version of Linux on ``syncfs`` reports lost writes."""


class BatchedWrite:
    """Files of one call: written one by one, synced together, closed. Blocks; for one thread at a time."""

    def __init__(self, items: Sequence[tuple[str, FileWrite]]) -> None:
        self._items = items
        self._sizes = [sum(map(len, write.parts)) for _, write in items]
        self.written = 0
        self._open: dict[int, int] = {}
        self._watch = -1
        self._busy = threading.Lock()
        self.failures: list[Exception | None] = [None] * len(items)

    @property
    def is_quick(self) -> bool:
        """Whether all files go through the page cache, so that writes do not wait for the disk."""
        return max(self._sizes, default=0) < DIRECT_MIN_BYTES

    @property
    def all_written(self) -> bool:
        return self.written == len(self._items)

    def write_some(self, seconds: float) -> None:
        """Write files until all are written or ``seconds`` have passed."""
        with self._busy:
            self._write_some(seconds)

    def _write_some(self, seconds: float) -> None:
        if self._watch < 0 and len(self._items) >= SHARED_MIN_FILES:
            # Opened before the first write: a sync by this descriptor reports every later write error.
            self._watch = os.open(os.path.dirname(self._items[0][0]), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
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

    def _write(self, index: int, target: str, write: FileWrite) -> None:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (0 if write.offset else os.O_CREAT)
        try:
            descriptor = os.open(target, flags, 0o600)
        except OSError as error:
            raise translated(error, write.path) from error
        self._open[index] = descriptor
        size = os.fstat(descriptor).st_size
        if size < write.offset:
            raise CorruptDataError(
                "file is shorter than its recorded length", path=write.path, length=size, offset=write.offset
            )
        if size > write.offset:
            os.ftruncate(descriptor, write.offset)
        if self._sizes[index] < DIRECT_MIN_BYTES:
            write_at_once(descriptor, write.path, write.offset, write.parts, self._sizes[index])
            return
        views = [memoryview(part).cast("B") for part in write.parts if len(part)]
        direct = DirectWriter(descriptor, partial(write_all, descriptor, write.path))
        try:
            direct.write(write.offset, views)
        except OSError as error:
            raise translated(error, write.path) from error
        finally:
            direct.close()

    def sync(self, policy: SyncPolicy) -> None:
        """Make what was written durable."""
        with self._busy:
            self._sync(policy)

    def _sync(self, policy: SyncPolicy) -> None:
        left = {index: descriptor for index, descriptor in self._open.items() if self.failures[index] is None}
        if self._watch >= 0 and policy.is_worthwhile and self._is_one_known_file_system(left.values()):
            begun = time.monotonic()
            try:
                shared = sync_file_system(self._watch)
            except OSError as error:
                # The kernel does not report which file lost bytes, and drops them: it may be any of these files.
                for index in left:
                    self.failures[index] = OSError(error.errno, error.strerror, self._items[index][1].path)
                return
            policy.record(time.monotonic() - begun, len(left))
            if shared:
                return
        begun = time.monotonic()
        for index, descriptor in left.items():
            try:
                os.fdatasync(descriptor)
            except OSError as error:
                self.failures[index] = translated(error, self._items[index][1].path)
        policy.record_single(time.monotonic() - begun, len(left))

    def _is_one_known_file_system(self, descriptors: Iterable[int]) -> bool:
        if not may_be_synced_as_a_whole(self._watch):
            return False
        device = os.fstat(self._watch).st_dev
        return all(os.fstat(descriptor).st_dev == device for descriptor in descriptors)

    def close(self) -> None:
        """Close all files, after a thread that a cancelled caller left running with them."""
        with self._busy:
            for descriptor in self._open.values():
                os.close(descriptor)
            self._open.clear()
            if self._watch >= 0:
                os.close(self._watch)
                self._watch = -1


class OpenFileLimit:
    """Limits the files that batched writes have open at a time, to a share of the process's descriptors. Without it
    they could use up the descriptors, and a log that cannot open its next file fails for good.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = most or _descriptors_allowed()
        self._free = self.most
        self._gate = asyncio.Lock()
        self._released = asyncio.Event()

    @asynccontextmanager
    async def taken(self, count: int) -> AsyncIterator[None]:
        """Hold room for ``count`` files, at most ``most``; callers get it in call order."""
        async with self._gate:
            while self._free < count:
                self._released.clear()
                await self._released.wait()
            self._free -= count
        try:
            yield
        finally:
            self._free += count
            self._released.set()


@dataclass(slots=True)
class SyncPolicy:
    """Whether to sync the whole file system: not if others leave it much to write, and not if the kernel hides
    errors."""

    reports_errors: bool = field(default_factory=lambda: _kernel() >= _SYNCFS_REPORTS_ERRORS)
    avoided_until: float = 0.0
    slowest_s: float = 0.0
    """Seconds for each file that the last slow sync of the whole file system took."""

    @property
    def is_worthwhile(self) -> bool:
        return self.reports_errors and time.monotonic() >= self.avoided_until

    def record(self, seconds: float, files: int) -> None:
        """Record the duration of one sync of the whole file system. If it was slow, avoid such syncs for a while."""
        if seconds > _SLOW_S + _SLOW_FILE_S * files:
            self.avoided_until, self.slowest_s = time.monotonic() + _AVOIDED_S, seconds / files

    def record_single(self, seconds: float, files: int) -> None:
        """Record the duration of syncs file by file. If they are slower than the whole file system was, the disk is busy:
        sync the whole again."""
        if files >= SHARED_MIN_FILES and seconds > self.slowest_s * files:
            self.avoided_until = 0.0


@dataclass(slots=True)
class OpenPolicy:
    """Whether the event loop can open and fill files itself. After thousands of deletions, ext4 takes half a
    millisecond per new file for minutes; then a thread should do it."""

    typical_s: float = 0.0
    slow_until: float = 0.0

    @property
    def quick(self) -> bool:
        return time.monotonic() >= self.slow_until

    def record(self, seconds: float, files: int) -> None:
        """Record how long the loop took for some files. If they are typically slow, use threads, and try again
        later."""
        self.typical_s += _NEWEST_SHARE * (seconds / files - self.typical_s)
        if self.typical_s > _QUICK_FILE_S:
            self.typical_s, self.slow_until = 0.0, time.monotonic() + _SLOW_FOR_S


def _descriptors_allowed() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _OPEN_MAX if soft == resource.RLIM_INFINITY else max(1, min(_OPEN_MAX, soft // _OPEN_PART))


def _kernel() -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return (int(found[1]), int(found[2])) if found and os.uname().sysname == "Linux" else (0, 0)
