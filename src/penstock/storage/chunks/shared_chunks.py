"""Tier 2 as files in a directory that can become unavailable: a network file system, a second disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.model.errors import SegmentNotFoundError, UnavailableError
from penstock.ports.chunks import ChunkStorage, ChunkWrite
from penstock.ports.files import Buffer, Files
from penstock.ports.objects import Objects
from penstock.storage.chunks.claim import MARK


class SharedChunks:
    """Implements ``ports.chunks.ChunkStorage``: ``chunks``, as long as the mark of ``files`` is visible. An unmounted
    directory looks empty. Writing to it would fill the disk below, reading would report lost chunks, and deleting would
    forget files that still exist. So each call looks for the mark before it starts, or before it trusts a result.
    """

    def __init__(self, chunks: ChunkStorage, files: Files) -> None:
        self._chunks = chunks
        self._files = files

    @property
    def mutable(self) -> bool:
        return self._chunks.mutable

    async def append(self, name: str, offset: int, parts: Sequence[Buffer]) -> None:
        if offset == 0:
            await self._check()
        await self._chunks.append(name, offset, parts)

    async def sync(self, name: str) -> None:
        await self._chunks.sync(name)

    async def append_together(self, writes: Sequence[ChunkWrite]) -> Sequence[Exception | None]:
        if any(write.offset == 0 for write in writes):
            await self._check()
        return await self._chunks.append_together(writes)

    async def read(self, name: str, offset: int, length: int) -> bytes:
        try:
            return await self._chunks.read(name, offset, length)
        except SegmentNotFoundError:
            await self._check()
            raise

    async def read_into(self, name: str, offset: int, room: memoryview, *, ahead: int = 0) -> int:
        try:
            return await self._chunks.read_into(name, offset, room, ahead=ahead)
        except SegmentNotFoundError:
            await self._check()
            raise

    async def free_head(self, name: str, upto: int) -> None:
        await self._check()
        await self._chunks.free_head(name, upto)

    async def wipe(self, name: str) -> None:
        await self._check()
        await self._chunks.wipe(name)

    async def trim(self, name: str, length: int) -> None:
        await self._check()
        await self._chunks.trim(name, length)

    async def delete(self, name: str) -> None:
        await self._check()
        await self._chunks.delete(name)

    async def sync_deletes(self, directory: str) -> None:
        await self._check()
        await self._chunks.sync_deletes(directory)

    async def list(self) -> Sequence[str]:
        await self._check()
        return await self._chunks.list()

    async def allocated_bytes(self) -> int:
        await self._check()
        return await self._chunks.allocated_bytes()

    def location(self, name: str) -> str | None:
        return self._chunks.location(name)

    async def close(self) -> None:
        await self._chunks.close()

    async def _check(self) -> None:
        await check_mark(self._files)


class SharedObjects:
    """Implements ``ports.objects.Objects``: ``objects``, as long as the mark of ``files`` is visible."""

    def __init__(self, objects: Objects, files: Files) -> None:
        self._objects = objects
        self._files = files

    async def put(self, name: str, data: bytes) -> None:
        await check_mark(self._files)
        await self._objects.put(name, data)

    async def create(self, name: str, data: bytes) -> None:
        await check_mark(self._files)
        await self._objects.create(name, data)

    async def overwrite(self, name: str, data: bytes) -> None:
        await check_mark(self._files)
        await self._objects.overwrite(name, data)

    async def keeps_versions(self, name: str) -> bool:
        await check_mark(self._files)
        return await self._objects.keeps_versions(name)

    async def read(self, name: str, start: int, length: int) -> bytes:
        await check_mark(self._files)
        return await self._objects.read(name, start, length)

    async def size(self, name: str) -> int:
        await check_mark(self._files)
        return await self._objects.size(name)

    async def delete(self, name: str) -> None:
        await check_mark(self._files)
        await self._objects.delete(name)

    async def list(self, directory: str) -> Mapping[str, int]:
        await check_mark(self._files)
        return await self._objects.list(directory)

    def location(self, name: str) -> str | None:
        return self._objects.location(name)


async def check_mark(files: Files) -> None:
    """Raises UnavailableError if the mark is not visible."""
    if not await files.exists(MARK):
        raise UnavailableError("the directory of tier 2 is missing", mark=files.location(MARK))
