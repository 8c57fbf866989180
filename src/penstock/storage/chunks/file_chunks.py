"""Tier 2 as files: one file per chunk, in one sub-directory per container."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import field
from operator import attrgetter
from typing import cast

from penstock.codec.store.chunk_index import SUFFIX
from penstock.model.errors import CorruptDataError, InvalidArgumentError, SegmentNotFoundError
from penstock.model.values.dataclass import dataclass
from penstock.ports.chunks import ChunkWrite
from penstock.ports.files import BatchFiles, Buffer, File, Files, FileWrite
from penstock.storage.chunks.names import check_chunk_name
from penstock.storage.chunks.one_by_one import append_one_by_one

_WIPE_BYTES = 1 << 20
_ZEROS = bytes(_WIPE_BYTES)


@dataclass(slots=True)
class _Handle:
    """An open chunk. ``lock`` serializes calls on the file; ``users`` and ``dirty`` protect it from eviction."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    file: File | None = None
    users: int = 0
    dirty: bool = False


class FileChunks:
    """Implements ``ports.chunks.ChunkStorage`` on ``ports.files.Files``.

    At most ``handles`` chunks are open; the least recently used is closed first. A chunk that was written but not yet
    synced stays open, so that its own sync reports its write errors.

    After a failed sync the kernel may have dropped the pages, and a second sync would falsely succeed. So the chunk
    cannot be synced until it is written again from its durable length, which makes those pages dirty again.
    """

    mutable = True

    def __init__(self, files: Files, *, directory: str = "chunks", handles: int = 128) -> None:
        if handles < 1:
            raise InvalidArgumentError("chunk storage needs at least one handle", handles=handles)
        self._files = files
        self._directory = directory
        self._limit = handles
        self._handles: OrderedDict[str, _Handle] = OrderedDict()
        self._made_directories: set[str] = set()
        self._named_directories: set[str] = set()
        # Chunks whose names may not be durable, by directory, with a mark of the attempt that created them.
        self._unnamed: dict[str, dict[str, object]] = {}
        self._naming: dict[str, asyncio.Lock] = {}
        self._suspect: dict[str, int] = {}
        self._written_from: dict[str, int] = {}
        self._together = cast("BatchFiles", files) if hasattr(files, "write_together") else None

    async def append(self, name: str, offset: int, parts: Sequence[Buffer]) -> None:
        path = self._path(name)
        if offset == 0:
            await self._make_directory(path.rpartition("/")[0])
        async with self._opened(name, create=offset == 0) as (handle, file):
            if offset == 0:
                # Also if the file existed already: an earlier attempt may have died before its name was durable.
                self._unnamed.setdefault(path.rpartition("/")[0], {})[name] = object()
            if offset > self._suspect.get(name, offset):
                raise OSError(f"chunk failed to sync, and is not written again from there: {path}")
            size = await file.size()
            if size < offset:
                raise CorruptDataError(
                    "chunk is shorter than its recorded length", chunk=name, length=size, offset=offset
                )
            handle.dirty = True
            self._written_from[name] = min(offset, self._written_from.get(name, offset))
            if size > offset:
                await file.resize(offset)
            await file.write_at(offset, parts)
            self._suspect.pop(name, None)

    async def sync(self, name: str) -> None:
        path = self._path(name)
        async with self._opened(name) as (handle, file):
            if name in self._suspect:
                raise OSError(f"chunk failed to sync, and was not written again: {path}")
            try:
                await file.sync()
            except OSError:
                self._suspect[name] = self._written_from.get(name, 0)
                raise
            handle.dirty = False
            self._written_from.pop(name, None)
        await self._sync_name(name, path.rpartition("/")[0])

    async def append_together(self, writes: Sequence[ChunkWrite]) -> Sequence[Exception | None]:
        if self._together is None or len(writes) == 1:
            return await append_one_by_one(self, writes)
        # If cancelled, the files are still being written: they stay locked until that has ended.
        task = asyncio.create_task(self._append_together(self._together, writes))
        task.add_done_callback(_retrieve)
        return await asyncio.shield(task)

    async def _append_together(self, files: BatchFiles, writes: Sequence[ChunkWrite]) -> list[Exception | None]:
        locked: list[tuple[str, _Handle]] = []
        paths = {write.name: self._path(write.name) for write in writes}
        try:
            # Lock in sorted order: otherwise two calls could deadlock.
            for write in sorted(writes, key=attrgetter("name")):
                locked.append((write.name, await self._locked(write.name)))
                if write.offset == 0:
                    directory = paths[write.name].rpartition("/")[0]
                    await self._make_directory(directory)
                    self._unnamed.setdefault(directory, {})[write.name] = object()
            failures = await self._write_together(files, writes, paths)
        finally:
            for name, handle in locked:
                handle.lock.release()
                self._drop_user(name, handle)
        for index, write in enumerate(writes):
            if failures[index] is None:
                try:
                    await self._sync_name(write.name, paths[write.name].rpartition("/")[0])
                except OSError as error:
                    failures[index] = error
        return failures

    async def _locked(self, name: str) -> _Handle:
        """The chunk's handle, locked, with its file closed."""
        handle = self._handles.setdefault(name, _Handle())
        handle.users += 1
        try:
            await handle.lock.acquire()
        except BaseException:
            self._drop_user(name, handle)
            raise
        await self._close(handle)
        handle.dirty = False
        return handle

    async def _write_together(
        self, files: BatchFiles, writes: Sequence[ChunkWrite], paths: Mapping[str, str]
    ) -> list[Exception | None]:
        """Requires that the files are locked and closed. ``paths``: by name."""
        failures: list[Exception | None] = [
            OSError(f"chunk failed to sync, and is not written again from there: {write.name}")
            if write.offset > self._suspect.get(write.name, write.offset)
            else None
            for write in writes
        ]
        sound = [index for index, failure in enumerate(failures) if failure is None]
        chosen = [writes[index] for index in sound]
        outcomes = await files.write_together(
            [FileWrite(path=paths[write.name], offset=write.offset, parts=write.parts) for write in chosen]
        )
        for index, write, outcome in zip(sound, chosen, outcomes, strict=True):
            if isinstance(outcome, FileNotFoundError):
                failures[index] = SegmentNotFoundError("no such chunk", chunk=write.name)
                continue
            failures[index] = outcome
            if outcome is None:
                self._suspect.pop(write.name, None)
                self._written_from.pop(write.name, None)
            elif not isinstance(outcome, CorruptDataError):
                self._suspect[write.name] = min(write.offset, self._written_from.get(write.name, write.offset))
        return failures

    async def _make_directory(self, directory: str) -> None:
        # Directories are never removed.
        if directory not in self._made_directories:
            await self._files.make_dir(directory)
            self._made_directories.add(directory)

    async def _sync_name(self, name: str, directory: str) -> None:
        """Return once the chunk's name is durable. One sync of a directory covers all chunks created before it."""
        while name in (unnamed := self._unnamed.get(directory, {})):
            async with self._naming.setdefault(directory, asyncio.Lock()):
                if name not in unnamed:
                    return
                made = dict(unnamed)
                await self._files.sync_dir(directory)
                if directory not in self._named_directories:
                    # Their own names need this only once.
                    await self._files.sync_dir(self._directory)
                    await self._files.sync_dir(self._directory.rpartition("/")[0] or ".")
                    self._named_directories.add(directory)
                for other, attempt in made.items():
                    if unnamed.get(other) is attempt:
                        del unnamed[other]

    async def read(self, name: str, offset: int, length: int) -> bytes:
        async with self._opened(name) as (_, file):
            return await file.read_at(offset, length)

    async def read_into(self, name: str, offset: int, room: memoryview, *, ahead: int = 0) -> int:
        async with self._opened(name) as (_, file):
            return await file.read_into(offset, room, ahead=ahead)

    async def free_head(self, name: str, upto: int) -> None:
        try:
            async with self._opened(name) as (_, file):
                await file.punch(0, upto)
        except SegmentNotFoundError:
            return

    async def wipe(self, name: str) -> None:
        try:
            async with self._opened(name) as (_, file):
                await _overwrite(file, 0, await file.size())
        except SegmentNotFoundError:
            return

    async def trim(self, name: str, length: int) -> None:
        try:
            async with self._opened(name) as (handle, file):
                size = await file.size()
                if size <= length:
                    return
                await _overwrite(file, length, size)
                await file.resize(length)
                await file.sync()
                # Its owner knows that everything before ``length`` is durable.
                handle.dirty = False
                self._suspect.pop(name, None)
                self._written_from.pop(name, None)
        except SegmentNotFoundError:
            return

    async def delete(self, name: str) -> None:
        path = self._path(name)
        # Locked: a file that loses its space in steps must not be opened by a reader before its name is removed.
        handle = await self._locked(name)
        try:
            await self._files.unlink(path)
        finally:
            handle.lock.release()
            self._drop_user(name, handle)
        self._unnamed.get(path.rpartition("/")[0], {}).pop(name, None)
        self._suspect.pop(name, None)
        self._written_from.pop(name, None)

    async def sync_deletes(self, directory: str) -> None:
        try:
            await self._files.sync_dir(f"{self._directory}/{directory}")
        except FileNotFoundError:
            return  # Nothing was ever written there.

    async def list(self) -> Sequence[str]:
        names: list[str] = []
        for directory in await self._files.list(self._directory):
            names += [f"{directory}/{name}" for name in await self._files.list(f"{self._directory}/{directory}")]
        return sorted(names)

    async def allocated_bytes(self) -> int:
        return await self._files.allocated_bytes(self._directory)

    def location(self, name: str) -> str | None:
        return self._files.location(self._path(name))

    async def close(self) -> None:
        """Close all files. Unsynced bytes may be lost."""
        while self._handles:
            _, handle = self._handles.popitem()
            async with handle.lock:
                await self._close(handle)

    @asynccontextmanager
    async def _opened(self, name: str, *, create: bool = False) -> AsyncIterator[tuple[_Handle, File]]:
        """The chunk's file, for one user at a time. Raises SegmentNotFoundError."""
        path = self._path(name)
        handle = self._handles.setdefault(name, _Handle())
        self._handles.move_to_end(name)
        handle.users += 1
        try:
            async with handle.lock:
                if handle.file is None:
                    try:
                        # Only data files: a sidecar grows by records of a few bytes.
                        handle.file = await self._files.open(path, create=create, direct=not name.endswith(SUFFIX))
                    except FileNotFoundError as error:
                        raise SegmentNotFoundError("no such chunk", chunk=name) from error
                yield handle, handle.file
        finally:
            if self._drop_user(name, handle):
                # Deleted, or the storage was closed, while this user waited for the lock.
                await self._close(handle)
        await self._evict()

    def _drop_user(self, name: str, handle: _Handle) -> bool:
        """Remove one user. Returns whether the file has no users left."""
        handle.users -= 1
        listed = self._handles.get(name) is handle
        if handle.users == 0 and listed and handle.file is None:
            del self._handles[name]
        return handle.users == 0 and not listed

    async def _evict(self) -> None:
        if len(self._handles) <= self._limit:
            return
        for name, handle in list(self._handles.items()):
            if len(self._handles) <= self._limit:
                return
            if handle.users == 0 and not handle.dirty and self._handles.get(name) is handle:
                del self._handles[name]
                await self._close(handle)

    async def _close(self, handle: _Handle) -> None:
        if handle.file is not None:
            file, handle.file = handle.file, None
            await file.close()

    def _path(self, name: str) -> str:
        return f"{self._directory}/{check_chunk_name(name)}"


def _retrieve(task: asyncio.Task[list[Exception | None]]) -> None:
    if not task.cancelled():
        task.exception()


async def _overwrite(file: File, start: int, end: int) -> None:
    """Overwrite with zeros, durably."""
    for offset in range(start, end, _WIPE_BYTES):
        await file.write_at(offset, [memoryview(_ZEROS)[: min(_WIPE_BYTES, end - offset)]])
    await file.sync()
