"""Files of this machine. Source of the placement rule: docs/design/0004-log.md, "Where a sync runs"."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

from penstock.model.errors import InternalError, InvalidArgumentError, StorageFullError
from penstock.ports import forks
from penstock.ports.files import Buffer, FileWrite
from penstock.ports.offload import Offload
from penstock.storage.machine.batched_write import BatchedWrite, OpenFileLimit, OpenPolicy, SyncPolicy
from penstock.storage.machine.calls import (
    allocated_below,
    make_directories,
    punch_hole,
    read_all,
    read_cached,
    read_cached_into,
    read_into,
    sync_directory,
    translated,
    write_all,
    write_at_once,
)
from penstock.storage.machine.direct import DirectWriter
from penstock.storage.machine.openings import STEP_BYTES, Opening, Removal
from penstock.storage.machine.serial import Serial

T = TypeVar("T")
Placement: TypeAlias = Literal["auto", "inline", "thread"]

INLINE_BYTES_MAX = 256 << 10
INLINE_READ_BYTES_MAX = 2 << 20
"""Copied from the page cache in place, as far as it is there: 45 us per MiB, where a thread costs two switches of 40."""
FAST_SYNC_S = 0.0005
_SYNCS_REMEMBERED = 15  # latest syncs that decide whether the disk is fast
_SYNCS_NEEDED = 3  # syncs before that is decided
_TINY_BYTES = 4096
_STEP_PAUSE_S = 0.001  # between two steps, so that syncs of other files need not wait
_SLICE_S = 0.002
_PATH = re.compile(r"[A-Za-z0-9._/-]*\Z")


class _SyncMeter:
    """Whether syncs of small batches below one directory are fast enough to wait for in the event loop.

    Two thread hops cost about 80 us; a loop that blocks for more than 0.5 ms delays everybody. The median is used,
    because one slow sync in a fast series (a journal commit) does not predict the next. A thread's measurement includes
    its wait for the interpreter, up to 5 ms under load: there the fastest quarter counts.

    Acknowledgements wait for this, so it does not sort: the median is fast if more than half of the syncs are.
    """

    def __init__(self) -> None:
        self._recent: deque[bool] = deque()
        self._quick = 0
        self.fast = False

    def record(self, seconds: float, *, in_place: bool) -> None:
        recent, quick = self._recent, seconds < FAST_SYNC_S
        recent.append(quick)
        self._quick += quick
        if len(recent) > _SYNCS_REMEMBERED:
            self._quick -= recent.popleft()
        count = len(recent)
        if count < _SYNCS_NEEDED:
            return
        if (self._quick > (count // 2 if in_place else count // 4)) is not self.fast:
            # From here on, syncs are measured the other way.
            self.fast = not self.fast
            self._quick = 0
            recent.clear()


class RealFile:
    """Implements ``ports.files.File`` on one descriptor. Made by ``RealFiles.open``."""

    def __init__(
        self,
        descriptor: int,
        path: str,
        *,
        serial: Serial,
        meter: _SyncMeter,
        placement: Placement,
        direct: bool = False,
    ) -> None:
        self._fd = descriptor
        self._path = path
        self._serial = serial
        self._meter = meter
        self._placement = placement
        self._unsynced_bytes = 0
        self._owner = forks.current()
        self._direct = DirectWriter(descriptor, partial(write_all, descriptor, path)) if direct else None

    async def write_at(self, offset: int, parts: Sequence[Buffer]) -> None:
        views = [memoryview(part).cast("B") for part in parts if len(part)]
        size = sum(map(len, views))
        self._unsynced_bytes += size

        def write() -> None:
            if self._direct is None:
                write_all(self._descriptor(), self._path, offset, views)
            else:
                self._write_direct(self._direct, offset, views)

        if self._in_place(size):
            write()
        else:
            await self._serial.run(write)

    def _write_direct(self, direct: DirectWriter, offset: int, views: Sequence[memoryview]) -> None:
        self._descriptor()
        try:
            direct.write(offset, views)
        except OSError as error:
            raise translated(error, self._path) from error

    async def sync(self) -> None:
        if self._in_place(self._unsynced_bytes):
            self._sync(in_place=True)
        else:
            await self._serial.run(partial(self._sync, in_place=False))

    def _sync(self, *, in_place: bool) -> None:
        small = self._unsynced_bytes <= INLINE_BYTES_MAX
        begun = time.perf_counter()
        os.fdatasync(self._descriptor())
        if small:
            self._meter.record(time.perf_counter() - begun, in_place=in_place)
        self._unsynced_bytes = 0

    def takes_in_place(self, size_bytes: int) -> bool:
        """As ``ports.files.InPlaceFile`` says."""
        return self._direct is None and self._in_place(self._unsynced_bytes + size_bytes)

    def commit_in_place(self, offset: int, parts: Sequence[Buffer]) -> bool:
        """As ``ports.files.InPlaceFile`` says: up to 256 KiB, while the disk syncs fast."""
        size = sum(map(len, parts))
        if not self.takes_in_place(size):
            return False
        self._unsynced_bytes += size
        write_at_once(self._descriptor(), self._path, offset, parts, size)
        self._sync(in_place=True)
        return True

    async def read_at(self, offset: int, length: int) -> bytes:
        cached = self.read_in_place(offset, length)
        if cached is not None:
            return cached
        if self._placement == "inline" and self._serial.idle:
            return read_all(self._descriptor(), offset, length)
        return await self._serial.run(lambda: read_all(self._descriptor(), offset, length))

    async def read_into(self, offset: int, room: memoryview, *, ahead: int = 0) -> int:
        done = 0
        if self._placement != "thread" and len(room) <= INLINE_READ_BYTES_MAX and self._serial.idle:
            done = read_cached_into(self._descriptor(), offset, room)
            if done == len(room):
                return done

        def read() -> int:
            descriptor = self._descriptor()
            count = read_into(descriptor, offset, room, done)
            if ahead > 0:
                # Starts the readahead and returns: the disk works while these bytes are sent.
                os.posix_fadvise(descriptor, offset + len(room), ahead, os.POSIX_FADV_WILLNEED)
            return count

        if self._placement == "inline" and self._serial.idle:
            return read()
        return await self._serial.run(read)

    def read_in_place(self, offset: int, length: int, *, wait: bool = False) -> bytes | None:
        """As ``ports.files.InPlaceFile`` says: without ``wait``, up to 256 KiB, from the page cache only."""
        if wait:
            return read_all(self._descriptor(), offset, length)
        if self._placement == "thread" or length > INLINE_BYTES_MAX or not self._serial.idle:
            return None
        cached = read_cached(self._descriptor(), offset, length)
        if cached is None and length <= _TINY_BYTES and self._in_place(length):
            # Reads on file systems that do not report what is cached (tmpfs) are no slower than syncs.
            return read_all(self._descriptor(), offset, length)
        return cached

    async def size(self) -> int:
        if self._serial.idle:
            return os.fstat(self._descriptor()).st_size
        return await self._serial.run(lambda: os.fstat(self._descriptor()).st_size)

    async def resize(self, length: int) -> None:
        def resize() -> None:
            try:
                os.ftruncate(self._descriptor(), length)
            except OSError as error:
                raise translated(error, self._path) from error

        self._unsynced_bytes += 1
        await self._serial.run(resize)

    async def punch(self, start: int, end: int) -> None:
        def punch() -> None:
            block = os.fstat(self._descriptor()).st_blksize
            first, last = -(-start // block) * block, end // block * block
            if first < last:
                punch_hole(self._descriptor(), self._path, first, last - first)

        await self._serial.run(punch)

    async def close(self) -> None:
        if self._serial.idle:
            self._close()
        else:
            await self._serial.run(self._close)

    def _close(self) -> None:
        if self._fd >= 0:
            descriptor, self._fd = self._fd, -1
            if self._direct is not None:
                self._direct.close()
            os.close(descriptor)

    def _descriptor(self) -> int:
        forks.check(self._owner)
        if self._fd < 0:
            raise InternalError("file is used after close", path=self._path)
        return self._fd

    def _in_place(self, size: int) -> bool:
        if self._placement == "thread" or not self._serial.idle:
            return False
        return self._placement == "inline" or (self._meter.fast and size <= INLINE_BYTES_MAX)


class RealFiles:
    """Implements ``ports.files.Files`` below ``root``. Directories are 0700, files 0600; symbolic links are refused.

    Args:
        root: The directory; the paths ``"."`` and ``""`` mean it. The first ``make_dir`` creates it if it is missing.
        offload: Where blocking calls run.
        placement: ``"auto"`` writes and syncs small batches in the event loop while the disk syncs fast, and
            everything else in a thread; ``"inline"`` and ``"thread"`` force one of the two.
        read_only: Nothing is opened for writing, so that not even a bug can change a directory under inspection.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        offload: Offload,
        *,
        placement: Placement = "auto",
        read_only: bool = False,
    ) -> None:
        if placement not in ("auto", "inline", "thread"):
            raise InvalidArgumentError("placement must be auto, inline or thread", placement=placement)
        self._root = Path(root)
        self._offload = offload
        self._placement: Placement = placement
        self._read_only = read_only
        self._meters: dict[str, _SyncMeter] = {}
        self._sync_policy = SyncPolicy()
        self._open_policy = OpenPolicy()
        self._room = OpenFileLimit()
        self._owner = forks.current()

    async def open(self, path: str, *, create: bool = False, direct: bool = False) -> RealFile:
        target = self._resolve(path)
        opening = Opening(target, path, create=create, read_only=self._read_only)
        try:
            await self._run(opening.run)
        except BaseException:
            opening.abandon()
            raise
        return RealFile(
            opening.taken(),
            path,
            serial=Serial(self._offload),
            meter=self._meter_of(path),
            placement=self._placement,
            direct=direct and not self._read_only,
        )

    def _meter_of(self, path: str) -> _SyncMeter:
        # Chunks are new files that grow, so their syncs cost a journal commit. That does not predict the speed of the
        # log, which overwrites existing blocks. So each directory directly below the root has its own meter.
        directory, _, below = path.partition("/")
        return self._meters.setdefault(directory if below else "", _SyncMeter())

    async def write_together(self, writes: Sequence[FileWrite]) -> Sequence[Exception | None]:
        """As ``ports.files.BatchFiles`` says.

        Small files are opened and filled in the loop, a slice in each pass, as long as that is fast: each call in a
        thread would wait for the interpreter again, up to 5 ms under load. Their sync is one call, always in a thread.
        """
        failures: list[Exception | None] = []
        for start in range(0, len(writes), self._room.most):
            part = writes[start : start + self._room.most]
            async with self._room.taken(len(part)):
                failures += await self._write_together(part)
        return failures

    async def _write_together(self, writes: Sequence[FileWrite]) -> Sequence[Exception | None]:
        together = BatchedWrite([(self._located(write.path), write) for write in writes])
        try:
            while not together.all_written:
                if self._placement == "auto" and self._open_policy.quick and together.is_quick:
                    self._write_slice(together)
                    await asyncio.sleep(0)
                else:
                    await self._run(partial(together.write_some, _SLICE_S))
            await self._run(partial(together.sync, self._sync_policy))
        finally:
            together.close()
        return together.failures

    def _write_slice(self, together: BatchedWrite) -> None:
        before = together.written
        begun = time.perf_counter()
        together.write_some(_SLICE_S)
        self._open_policy.record(time.perf_counter() - begun, together.written - before)

    async def exists(self, path: str) -> bool:
        target = self._resolve(path)
        return await self._run(target.exists)

    async def list(self, directory: str) -> Sequence[str]:
        target = self._resolve(directory)

        def names() -> Sequence[str]:
            try:
                return sorted(os.listdir(target))
            except (FileNotFoundError, NotADirectoryError):
                return []

        return await self._run(names)

    async def make_dir(self, directory: str) -> None:
        target = self._resolve(directory)

        def make() -> None:
            for step in (*reversed(target.parents), target):
                if step.is_relative_to(self._root) and not step.is_dir():
                    try:
                        if step == self._root:
                            # No other code syncs the directories above it.
                            make_directories(step)
                        else:
                            step.mkdir(mode=0o700, exist_ok=True)
                    except OSError as error:
                        raise translated(error, directory) from error

        await self._run(make)

    async def rename(self, source: str, target: str) -> None:
        old, new = self._resolve(source), self._resolve(target)

        def rename() -> None:
            try:
                os.replace(old, new)
            except OSError as error:
                raise translated(error, source) from error

        await self._run(rename)

    async def unlink(self, path: str) -> None:
        """As ``ports.files.Files`` says. The space of a large file is freed in steps behind its removed name: ext4 with
        ``discard`` takes 5 ms for 16 MiB, and a sync of another file at that moment waits as long. Cancelled: the rest
        is freed at once."""
        target = self._resolve(path)
        removal = Removal(target, path)
        try:
            size = await self._run(removal.run)
        except BaseException:
            removal.opening.abandon()
            raise
        if not size:
            return
        file = RealFile(
            removal.opening.taken(),
            path,
            serial=Serial(self._offload),
            meter=self._meter_of(path),
            placement=self._placement,
        )
        try:
            # A full file system that copies on write may refuse to shorten the file, which is removed already.
            with suppress(OSError, StorageFullError):
                for left in range((size - 1) // STEP_BYTES * STEP_BYTES, -1, -STEP_BYTES):
                    await file.resize(left)
                    await asyncio.sleep(_STEP_PAUSE_S)
        finally:
            await file.close()

    async def sync_dir(self, directory: str) -> None:
        target = self._resolve(directory)
        await self._run(lambda: sync_directory(target))

    async def allocated_bytes(self, directory: str) -> int:
        target = self._resolve(directory)
        return await self._run(lambda: allocated_below(target))

    async def free_bytes(self) -> int:
        def free() -> int:
            status = os.statvfs(self._root)
            return status.f_bavail * status.f_frsize

        return await self._run(free)

    async def total_bytes(self) -> int:
        def total() -> int:
            status = os.statvfs(self._root)
            return status.f_blocks * status.f_frsize

        return await self._run(total)

    def location(self, path: str) -> str | None:
        return str(self._resolve(path).absolute())

    async def _run(self, work: Callable[[], T]) -> T:
        if self._placement == "inline":
            return work()
        return await self._offload.run(work)

    def _resolve(self, path: str) -> Path:
        return Path(self._located(path))

    def _located(self, path: str) -> str:
        """The full path as a string. With ten thousand small files in a call, making a ``Path`` of each takes longer than the
        check."""
        forks.check(self._owner)
        if not _PATH.match(path) or path.startswith("/") or ".." in path.split("/"):
            raise InternalError("path was not made by this program", path=repr(path[:200]))
        return f"{self._root}/{path}"
