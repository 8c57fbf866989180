"""Files that fail on request: wrap any ``ports.files.Files`` to test how its users handle errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.ports.files import Buffer, File, Files

CHANGES = frozenset(("create", "write", "sync", "resize", "punch", "rename", "unlink", "make_dir", "sync_dir"))
"""The operations that change something; ``open`` and ``read`` are the others."""


class FaultyFiles:
    """Implements ``ports.files.Files`` over ``inner``; ``before(operation, path)`` is called first, and may raise."""

    def __init__(self, inner: Files, before: Callable[[str, str], None]) -> None:
        self._inner = inner
        self.before = before

    async def open(self, path: str, *, create: bool = False, direct: bool = False) -> File:
        self.before("create" if create else "open", path)
        return _FaultyFile(await self._inner.open(path, create=create, direct=direct), path, self)

    async def exists(self, path: str) -> bool:
        return await self._inner.exists(path)

    async def list(self, directory: str) -> Sequence[str]:
        return await self._inner.list(directory)

    async def make_dir(self, directory: str) -> None:
        self.before("make_dir", directory)
        await self._inner.make_dir(directory)

    async def rename(self, source: str, target: str) -> None:
        self.before("rename", source)
        await self._inner.rename(source, target)

    async def unlink(self, path: str) -> None:
        self.before("unlink", path)
        await self._inner.unlink(path)

    async def sync_dir(self, directory: str) -> None:
        self.before("sync_dir", directory)
        await self._inner.sync_dir(directory)

    async def allocated_bytes(self, directory: str) -> int:
        return await self._inner.allocated_bytes(directory)

    async def free_bytes(self) -> int:
        return await self._inner.free_bytes()

    async def total_bytes(self) -> int:
        return await self._inner.total_bytes()

    def location(self, path: str) -> str | None:
        return self._inner.location(path)


class _FaultyFile:
    def __init__(self, inner: File, path: str, files: FaultyFiles) -> None:
        self._inner = inner
        self._path = path
        self._files = files

    async def write_at(self, offset: int, parts: Sequence[Buffer]) -> None:
        self._files.before("write", self._path)
        await self._inner.write_at(offset, parts)

    async def sync(self) -> None:
        self._files.before("sync", self._path)
        await self._inner.sync()

    async def read_at(self, offset: int, length: int) -> bytes:
        self._files.before("read", self._path)
        return await self._inner.read_at(offset, length)

    async def read_into(self, offset: int, room: memoryview, *, ahead: int = 0) -> int:
        self._files.before("read", self._path)
        return await self._inner.read_into(offset, room, ahead=ahead)

    async def size(self) -> int:
        return await self._inner.size()

    async def resize(self, length: int) -> None:
        self._files.before("resize", self._path)
        await self._inner.resize(length)

    async def punch(self, start: int, end: int) -> None:
        self._files.before("punch", self._path)
        await self._inner.punch(start, end)

    async def close(self) -> None:
        await self._inner.close()
