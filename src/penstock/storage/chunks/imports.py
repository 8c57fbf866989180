"""Writing chunks directly into a store's tier 2, at a place that the store has granted. Independent of the store.

Source: docs/design/0016-sink.md.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qsl

from penstock.codec.store.chunk_builder import BuiltChunk
from penstock.codec.store.chunk_index import index_name
from penstock.model.errors import InvalidArgumentError, StorageFullError, UnavailableError
from penstock.ports.data.imports import ImportedChunk, ImportGrant
from penstock.ports.objects import Objects
from penstock.storage.machine.calls import sync_directory, write_all
from penstock.storage.machine.direct import DirectWriter

_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))


class ImportPlace(Protocol):
    """A granted place. The caller numbers chunks from 0 and writes each once."""

    async def write(self, number: int, built: BuiltChunk) -> ImportedChunk:
        """Write a chunk and its sidecar. Durable once ``settle`` has returned. Several writes may run concurrently.

        Raises StorageFullError, UnavailableError. Cancelled: files may be left, and may still grow for a moment.
        """
        ...

    async def settle(self) -> None:
        """Make everything written durable. Raises as ``write``."""
        ...

    async def remove(self, numbers: Sequence[int]) -> None:
        """Delete chunks again, best effort: what remains is garbage that the store will find."""
        ...


async def open_place(grant: ImportGrant) -> ImportPlace | None:
    """The place of a grant, or None if this process cannot see the store's tier 2 or may not write there."""
    if grant.location is None:
        return None
    if "://" in grant.location:
        return await _open_bucket(grant, grant.location)
    found = FilePlace(grant)
    return found if await asyncio.get_running_loop().run_in_executor(None, found.is_there) else None


class FilePlace:
    """Implements ``ImportPlace`` in a directory. Files are written by threads, large ones past the page cache."""

    def __init__(self, grant: ImportGrant) -> None:
        self._grant = grant
        self._marker = grant.location or ""

    def is_there(self) -> bool:
        """Whether the marker is visible. Then this is the same directory, and the store can read files written beside
        it."""
        try:
            owner = os.stat(self._marker).st_uid
        except OSError:
            return False
        return owner == os.geteuid() and os.access(os.path.dirname(self._marker), os.W_OK | os.X_OK)

    async def write(self, number: int, built: BuiltChunk) -> ImportedChunk:
        name = f"{self._grant.prefix}{number:x}"
        await asyncio.get_running_loop().run_in_executor(None, self._write, name, built)
        return ImportedChunk.of(name, built)

    async def settle(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._sync_names)

    async def remove(self, numbers: Sequence[int]) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._remove, tuple(numbers))

    def _path(self, name: str) -> str:
        return self._marker.removesuffix(self._grant.marker) + name

    def _write(self, name: str, built: BuiltChunk) -> None:
        path = self._path(name)
        try:
            _write_file(path, built.parts)
            _write_file(index_name(path), [built.index])
        except OSError as error:
            raise _translated(error, path) from error

    def _sync_names(self) -> None:
        directory = os.path.dirname(self._marker)
        try:
            sync_directory(Path(directory))
        except OSError as error:
            raise _translated(error, directory) from error

    def _remove(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            path = self._path(f"{self._grant.prefix}{number:x}")
            for each in (index_name(path), path):
                with suppress(OSError):
                    os.unlink(each)


def _write_file(path: str, parts: Sequence[bytes | bytearray | memoryview]) -> None:
    """Write a new file. Its content is durable, its name is not yet."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        direct = DirectWriter(descriptor, partial(write_all, descriptor, path))
        try:
            direct.write(0, [memoryview(part).cast("B") for part in parts])
        finally:
            direct.close()
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def _translated(error: OSError, path: str) -> StorageFullError | UnavailableError:
    if error.errno in _FULL:
        return StorageFullError("tier 2 is full", path=path)
    return UnavailableError("tier 2 cannot be written", path=path, reason=os.strerror(error.errno or 0))


async def _open_bucket(grant: ImportGrant, location: str) -> ImportPlace | None:
    try:
        objects = await _objects_of(grant, location)
        await objects.size(grant.marker)
    except (ImportError, FileNotFoundError, InvalidArgumentError, UnavailableError):
        # No library, credentials or rights here, no route, or another bucket: send the bytes through the store instead.
        return None
    return _BucketPlace(grant, objects)


async def _objects_of(grant: ImportGrant, location: str) -> Objects:
    base, _, query = location.partition("?")
    url = base.removesuffix(f"/{grant.marker}")
    if url.startswith("hdfs://"):
        from penstock.storage.objects.hdfs_objects import HdfsObjects

        hdfs = HdfsObjects(url)
        # Files of the store can be read by its group, which may not write.
        await hdfs.check_write()
        return hdfs
    from penstock.storage.objects.cloud_objects import BucketObjects

    return BucketObjects(url, endpoint=dict(parse_qsl(query)).get("endpoint"))


class _BucketPlace:
    """Implements ``ImportPlace`` with objects, each put whole and checked before it counts."""

    def __init__(self, grant: ImportGrant, objects: Objects) -> None:
        self._grant = grant
        self._objects = objects

    async def write(self, number: int, built: BuiltChunk) -> ImportedChunk:
        name = f"{self._grant.prefix}{number:x}"
        await self._objects.put(name, b"".join(built.parts))
        await self._objects.put(index_name(name), built.index)
        return ImportedChunk.of(name, built)

    async def settle(self) -> None:
        """Does nothing: an object is durable as soon as it exists."""

    async def remove(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            name = f"{self._grant.prefix}{number:x}"
            with suppress(StorageFullError, UnavailableError):
                await self._objects.delete(index_name(name))
                await self._objects.delete(name)
