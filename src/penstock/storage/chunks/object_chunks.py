"""Tier 2 in an object store: one object per chunk, written whole."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field

from penstock.model.errors import CorruptDataError, SegmentNotFoundError, UnsupportedError
from penstock.model.values.dataclass import dataclass
from penstock.ports.chunks import ChunkWrite
from penstock.ports.files import Buffer
from penstock.ports.objects import Objects
from penstock.storage.chunks.names import check_chunk_name, is_chunk_name
from penstock.storage.chunks.one_by_one import append_one_by_one

_DIRECTORY = "chunks"


@dataclass(slots=True)
class _Draft:
    """Appended bytes that are not an object yet. ``failed``: they were sent, and may or may not arrive."""

    data: bytes = b""
    failed: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class ObjectChunks:
    """Implements ``ports.chunks.ChunkStorage`` on ``ports.objects.Objects``, with objects that never change.

    Appended bytes stay in memory until ``sync`` writes them as one object. After that, the chunk accepts no more
    appends. The same holds after a failed sync: its bytes may still arrive, and must not mix with others under the same
    name. They are not kept in memory, because the writer still has them, and a tier 2 outage must not fill the memory.
    """

    mutable = False

    def __init__(self, objects: Objects, *, check_wipe: Callable[[str], Awaitable[None]] | None = None) -> None:
        """``check_wipe``: raises UnavailableError if the bytes of this object would survive its deletion."""
        self._objects = objects
        self._check_wipe = check_wipe
        self._drafts: dict[str, _Draft] = {}

    async def append(self, name: str, offset: int, parts: Sequence[Buffer]) -> None:
        object_name = _object_name(name)
        draft = self._drafts.get(name)
        if draft is None and offset > 0:
            await self._size(name, object_name)
            raise UnsupportedError("chunk is a finished object and takes no more appends", chunk=name, offset=offset)
        if draft is None:
            draft = self._drafts.setdefault(name, _Draft())
        async with draft.lock:
            if draft.failed:
                raise OSError(f"upload of the chunk failed, its name is not used again: {name}")
            if self._drafts.get(name) is not draft:
                raise UnsupportedError("chunk became an object or was deleted meanwhile", chunk=name, offset=offset)
            if offset > len(draft.data):
                raise CorruptDataError(
                    "chunk is shorter than its recorded length",
                    chunk=name,
                    length=len(draft.data),
                    offset=offset,
                )
            draft.data = b"".join((memoryview(draft.data)[:offset], *parts))

    async def sync(self, name: str) -> None:
        object_name = _object_name(name)
        draft = self._drafts.get(name)
        if draft is None:
            # An object is durable as soon as it exists.
            await self._size(name, object_name)
            return
        async with draft.lock:
            if draft.failed:
                raise OSError(f"upload of the chunk failed, its name is not used again: {name}")
            if self._drafts.get(name) is not draft:
                await self._size(name, object_name)
                return
            try:
                await self._objects.put(object_name, draft.data)
            except BaseException:
                draft.failed, draft.data = True, b""
                raise
            self._drafts.pop(name, None)  # the storage may have been closed meanwhile

    async def append_together(self, writes: Sequence[ChunkWrite]) -> Sequence[Exception | None]:
        return await append_one_by_one(self, writes)

    async def read(self, name: str, offset: int, length: int) -> bytes:
        object_name = _object_name(name)
        draft = self._drafts.get(name)
        if draft is not None and not draft.failed:
            return draft.data[offset : offset + length]
        try:
            return await self._objects.read(object_name, offset, length)
        except FileNotFoundError as error:
            raise SegmentNotFoundError("no such chunk", chunk=name) from error

    async def read_into(self, name: str, offset: int, room: memoryview, *, ahead: int = 0) -> int:
        data = await self.read(name, offset, len(room))
        room[: len(data)] = data
        return len(data)

    async def free_head(self, name: str, upto: int) -> None:
        """Does nothing: an object can only be deleted whole."""
        check_chunk_name(name)

    async def wipe(self, name: str) -> None:
        """Only checks, if it can, that a deletion removes the bytes: an object is deleted, not overwritten. The owner of a
        bucket must remove old versions that it keeps."""
        object_name = _object_name(name)
        if self._check_wipe is not None:
            await self._check_wipe(object_name)

    async def trim(self, name: str, length: int) -> None:
        """Does nothing: an object is written whole."""
        check_chunk_name(name)

    async def delete(self, name: str) -> None:
        object_name = _object_name(name)
        draft = self._drafts.get(name)
        if draft is None:
            await self._objects.delete(object_name)
            return
        async with draft.lock:
            # Keep the mark until the object store has answered: the failed upload may have created an object by now.
            await self._objects.delete(object_name)
            self._drafts.pop(name, None)

    async def sync_deletes(self, directory: str) -> None:
        """Does nothing: deletion of an object is durable at once."""

    async def list(self) -> Sequence[str]:
        found = [name.removeprefix(f"{_DIRECTORY}/") for name in await self._objects.list(_DIRECTORY)]
        drafts = [name for name, draft in self._drafts.items() if not draft.failed]
        # Skip names that are not ours: someone else put those objects there.
        return sorted({name: None for name in [*found, *drafts] if is_chunk_name(name)})

    async def allocated_bytes(self) -> int:
        stored = sum((await self._objects.list(_DIRECTORY)).values())
        return stored + sum(len(draft.data) for draft in self._drafts.values())

    def location(self, name: str) -> str | None:
        return self._objects.location(_object_name(name))

    async def close(self) -> None:
        """Drop unsynced bytes."""
        self._drafts.clear()

    async def _size(self, name: str, object_name: str) -> int:
        try:
            return await self._objects.size(object_name)
        except FileNotFoundError as error:
            raise SegmentNotFoundError("no such chunk", chunk=name) from error


def _object_name(name: str) -> str:
    return f"{_DIRECTORY}/{check_chunk_name(name)}"
