"""Objects as files of a directory tree: small ones, such as the marks of a shared directory."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from penstock.model.errors import AlreadyExistsError, StorageFullError
from penstock.ports.files import Files


class FileObjects:
    """Implements ``ports.objects.Objects`` on ``ports.files.Files``."""

    def __init__(self, files: Files) -> None:
        self._files = files

    async def put(self, name: str, data: bytes) -> None:
        directory = name.rpartition("/")[0] or "."
        if directory != ".":
            await self._files.make_dir(directory)
        file = await self._files.open(f"{name}.tmp", create=True)
        try:
            await file.resize(0)
            await file.write_at(0, [data])
            await file.sync()
        except StorageFullError:
            await self._files.unlink(f"{name}.tmp")
            raise
        finally:
            await file.close()
        await self._files.rename(f"{name}.tmp", name)
        await self._sync_names(name)

    async def create(self, name: str, data: bytes) -> None:
        """As the port says. Under its own name at once: a second copy would have to be destroyed with it."""
        directory = name.rpartition("/")[0] or "."
        if directory != ".":
            await self._files.make_dir(directory)
        if await self._files.exists(name):
            raise AlreadyExistsError("object exists", object=name)
        await self._write(name, data, create=True)
        await self._sync_names(name)

    async def overwrite(self, name: str, data: bytes) -> None:
        await self._write(name, data, create=False)

    async def keeps_versions(self, name: str) -> bool:
        """As the port says. Nobody knows what snapshots a file system keeps."""
        if not await self._files.exists(name):
            raise FileNotFoundError(f"no such object: {name}")
        return False

    async def _write(self, name: str, data: bytes, *, create: bool) -> None:
        file = await self._files.open(name, create=create)
        try:
            await file.write_at(0, [data])
            await file.resize(len(data))
            await file.sync()
        finally:
            await file.close()

    async def _sync_names(self, name: str) -> None:
        directory = name.rpartition("/")[0] or "."
        while directory != ".":
            await self._files.sync_dir(directory)
            directory = directory.rpartition("/")[0] or "."
        await self._files.sync_dir(".")

    async def read(self, name: str, start: int, length: int) -> bytes:
        file = await self._files.open(name)
        try:
            return await file.read_at(start, length)
        finally:
            await file.close()

    async def size(self, name: str) -> int:
        file = await self._files.open(name)
        try:
            return await file.size()
        finally:
            await file.close()

    async def delete(self, name: str) -> None:
        if await self._files.exists(name):
            await self._files.unlink(name)
            await self._files.sync_dir(name.rpartition("/")[0] or ".")

    async def list(self, directory: str) -> Mapping[str, int]:
        found: dict[str, int] = {}
        for name in await self._files.list(directory):
            path = f"{directory}/{name}"
            below = await self.list(path)
            if below:
                found |= below
            elif not name.endswith(".tmp"):
                # An empty directory, or an object that was deleted since its name was read.
                with suppress(IsADirectoryError, FileNotFoundError):
                    found[path] = await self.size(path)
        return dict(sorted(found.items()))

    def location(self, name: str) -> str | None:
        return self._files.location(name)
