"""Tier 2 in memory: for simulation, tests, and stores that may be lost with their process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field

from penstock.model.errors import CorruptDataError, SegmentNotFoundError, StorageFullError
from penstock.model.values.dataclass import dataclass
from penstock.ports.chunks import ChunkWrite
from penstock.ports.files import Buffer
from penstock.storage.chunks.names import check_chunk_name
from penstock.storage.chunks.one_by_one import append_one_by_one


@dataclass(slots=True)
class _Chunk:
    data: bytearray = field(default_factory=bytearray)
    durable: bytes | None = None
    """What a power loss leaves. None: not even the name."""
    freed: int = 0


class MemoryChunks:
    """Implements ``ports.chunks.ChunkStorage``.

    The object is its own disk: ``close`` keeps everything, ``lose_unsynced`` simulates a power loss.

    Args:
        budget_bytes: Space of all objects; an append beyond it raises ``StorageFullError``. None: no limit.
        pause: Awaited before each change takes effect, so that a simulation can crash its caller there.
        brings_back: ``lose_unsynced`` restores what was deleted since ``sync_deletes``, as a disk may.
    """

    mutable = True

    def __init__(
        self,
        *,
        budget_bytes: int | None = None,
        pause: Callable[[], Awaitable[None]] | None = None,
        brings_back: bool = False,
    ) -> None:
        self._chunks: dict[str, _Chunk] = {}
        self._deleted: dict[str, _Chunk] | None = {} if brings_back else None
        self._budget_bytes = budget_bytes
        self._pause = pause

    async def append(self, name: str, offset: int, parts: Sequence[Buffer]) -> None:
        check_chunk_name(name)
        data = b"".join(parts)
        if self._pause is not None:
            await self._pause()
        chunk = self._chunks.get(name)
        if chunk is None:
            if offset > 0:
                raise SegmentNotFoundError("no such chunk", chunk=name)
            chunk = _Chunk()
        if offset > len(chunk.data):
            raise CorruptDataError(
                "chunk is shorter than its recorded length", chunk=name, length=len(chunk.data), offset=offset
            )
        grown = offset + len(data) - len(chunk.data)
        if self._budget_bytes is not None and self._allocated() + grown > self._budget_bytes:
            raise StorageFullError("chunk storage is full", chunk=name, limit_bytes=self._budget_bytes)
        chunk.data[offset:] = data
        chunk.freed = min(chunk.freed, offset)
        self._chunks[name] = chunk

    async def sync(self, name: str) -> None:
        if self._pause is not None:
            await self._pause()
        chunk = self._find(name)
        chunk.durable = bytes(chunk.data)

    async def append_together(self, writes: Sequence[ChunkWrite]) -> Sequence[Exception | None]:
        return await append_one_by_one(self, writes)

    async def read(self, name: str, offset: int, length: int) -> bytes:
        return bytes(self._find(name).data[offset : offset + length])

    async def read_into(self, name: str, offset: int, room: memoryview, *, ahead: int = 0) -> int:
        data = await self.read(name, offset, len(room))
        room[: len(data)] = data
        return len(data)

    async def free_head(self, name: str, upto: int) -> None:
        chunk = self._chunks.get(check_chunk_name(name))
        if chunk is not None and chunk.freed < upto:
            upto = min(upto, len(chunk.data))
            chunk.data[chunk.freed : upto] = bytes(upto - chunk.freed)
            chunk.freed = upto

    async def wipe(self, name: str) -> None:
        if self._pause is not None:
            await self._pause()
        chunk = self._chunks.get(check_chunk_name(name))
        if chunk is not None:
            chunk.data[:] = bytes(len(chunk.data))
            chunk.durable = bytes(chunk.data)

    async def trim(self, name: str, length: int) -> None:
        if self._pause is not None:
            await self._pause()
        chunk = self._chunks.get(check_chunk_name(name))
        if chunk is not None and len(chunk.data) > length:
            del chunk.data[length:]
            chunk.durable = bytes(chunk.data)

    async def delete(self, name: str) -> None:
        if self._pause is not None:
            await self._pause()
        chunk = self._chunks.pop(check_chunk_name(name), None)
        if self._deleted is not None and chunk is not None and chunk.durable is not None:
            self._deleted[name] = chunk

    async def sync_deletes(self, directory: str) -> None:
        if self._pause is not None:
            await self._pause()
        if self._deleted is not None:
            self._deleted = {n: chunk for n, chunk in self._deleted.items() if not n.startswith(f"{directory}/")}

    async def list(self) -> Sequence[str]:
        return sorted(self._chunks)

    async def allocated_bytes(self) -> int:
        return self._allocated()

    def location(self, name: str) -> str | None:
        return None

    async def close(self) -> None:
        """Nothing to release."""

    def lose_unsynced(self) -> None:
        """Revert to what was synced, as a power loss would."""
        if self._deleted:
            self._chunks = self._deleted | self._chunks
            self._deleted = {}
        for name, chunk in list(self._chunks.items()):
            if chunk.durable is None:
                del self._chunks[name]
            else:
                chunk.data[:] = chunk.durable

    def _allocated(self) -> int:
        return sum(len(chunk.data) - chunk.freed for chunk in self._chunks.values())

    def _find(self, name: str) -> _Chunk:
        chunk = self._chunks.get(check_chunk_name(name))
        if chunk is None:
            raise SegmentNotFoundError("no such chunk", chunk=name)
        return chunk
