"""Blocks of chunks: found, read, verified."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from operator import attrgetter

from crc32c import crc32c

from penstock.codec.store import rows as records
from penstock.codec.store.chunk_index import IndexRecord, encode_record
from penstock.model.errors import CorruptDataError
from penstock.ports.data.chunks import ChunkBlock
from penstock.ports.files import Buffer
from penstock.ports.offload import Offload
from penstock.segmentstore.parts import StoreParts
from penstock.segmentstore.segment import Chunk, Segment
from penstock.segmentstore.state import ContainerState
from penstock.segmentstore.tiering.block_memory import BlockMemory

_START = attrgetter("start_offset")


_OFFLOADED_BYTES = 4 << 20
"""From this size on a checksum takes long enough to be worth leaving the event loop."""

_SCAN_BYTES = 256 << 10
"""A read that asks for so much is one of a scan: clients that want one event ask for less."""

_AHEAD_BYTES = 8 << 20
"""Readahead behind a block that was not cached: half of a chunk, so that only two blocks of a chunk wait for the
disk."""

_FORGOTTEN_MAX = 10_000  # deleted chunks that are remembered, so that running reads do not cache their blocks


async def checksum_of(offload: Offload, parts: Sequence[Buffer]) -> int:
    """CRC32C of the parts back to back."""
    if sum(len(part) for part in parts) < _OFFLOADED_BYTES:
        return checksum(parts)
    return await offload.run(lambda: checksum(parts))


async def checksums_of(offload: Offload, blocks: Sequence[Sequence[Buffer]]) -> Sequence[int]:
    """CRC32C of each block, given as parts that lie back to back."""
    if sum(len(part) for block in blocks for part in block) < _OFFLOADED_BYTES:
        return [checksum(block) for block in blocks]
    return await offload.run(lambda: [checksum(block) for block in blocks])


def checksum(parts: Sequence[Buffer]) -> int:
    """CRC32C of the parts back to back, in the calling thread."""
    found = 0
    for part in parts:
        found = crc32c(part, found)
    return found


async def load_blocks(state: ContainerState, chunk: Chunk, *, keep: bool = True) -> Sequence[ChunkBlock]:
    """The chunk's blocks, in chunk positions. Raises CorruptDataError if rows contradict each other.

    ``keep``: they stay in memory with the segment, for the next read of it.
    """
    while chunk.blocks is None:
        count, length = chunk.block_count, chunk.length
        bounds = records.range_of(records.block_prefix(state.index, chunk.name))
        rows = await state.rows.scan(bounds, limit=count + 1)
        if chunk.block_count != count:
            continue  # A block was added during the read.
        blocks: list[ChunkBlock] = []
        position = 0
        for key, value in rows:
            record = records.decode_block(value)
            if records.parse_number(key[-8:]) != position:
                break
            blocks.append(
                ChunkBlock(
                    start_offset=position,
                    end_offset=record.end,
                    crc32c=record.crc32c,
                    event_count=record.event_count,
                    first_ms=record.first_ms,
                    last_ms=record.last_ms,
                )
            )
            position = record.end
        if len(blocks) != count or position != length:
            raise CorruptDataError(
                "blocks do not make up their chunk", chunk=chunk.name, blocks=len(blocks), expected=count, end=position
            )
        if not keep:
            return blocks
        chunk.blocks = blocks
    return chunk.blocks


async def named_blocks(
    state: ContainerState, segment: Segment, chunk: Chunk, *, keep: bool = True
) -> Sequence[ChunkBlock] | None:
    """As ``load_blocks``, for a chunk of the segment; None if the segment released it and its rows meanwhile."""
    with segment.pinned():
        try:
            blocks = await load_blocks(state, chunk, keep=keep)
        except CorruptDataError:
            if segment.chunks.holds(chunk):
                raise
            return None
        return blocks if segment.chunks.holds(chunk) else None


def put_blocks(state: ContainerState, chunk: str, blocks: Sequence[ChunkBlock]) -> None:
    """Put the rows of blocks of a chunk, for the next checkpoint."""
    for block in blocks:
        row = records.BlockRecord(
            end=block.end_offset,
            event_count=block.event_count,
            crc32c=block.crc32c,
            first_ms=block.first_ms,
            last_ms=block.last_ms,
        )
        key = records.block_key(state.index, chunk, block.start_offset)
        state.rows.put(key, records.encode_block(row))


def index_records(chunk_start: int, blocks: Sequence[ChunkBlock], first: int = 0) -> list[bytes]:
    """Sidecar records of blocks, numbered from ``first`` on; their chunk begins at ``chunk_start`` in its segment."""
    return [
        encode_record(
            IndexRecord(
                index=index,
                start=block.start_offset,
                end=block.end_offset,
                segment_start=chunk_start + block.start_offset,
                event_count=block.event_count,
                crc32c=block.crc32c,
            )
        )
        for index, block in enumerate(blocks, first)
    ]


async def sum_of_events(state: ContainerState, chunk: Chunk) -> int:
    """The number of events in all blocks, without keeping the blocks in memory. Raises CorruptDataError."""
    if chunk.blocks is not None:
        return sum(block.event_count for block in chunk.blocks)
    bounds = records.range_of(records.block_prefix(state.index, chunk.name))
    rows = await state.rows.scan(bounds, limit=chunk.block_count + 1)
    if len(rows) < chunk.block_count:
        raise CorruptDataError(
            "blocks do not make up their chunk", chunk=chunk.name, blocks=len(rows), expected=chunk.block_count
        )
    return sum(records.decode_block(value).event_count for _, value in rows)


class BlockReader:
    """Reads whole blocks, verifies them, and caches the latest, so that small reads do not re-read a block.

    At least one block is kept, whatever its size. Concurrent reads of one block share one read. A returned view shows
    the same memory that was verified; nothing writes there while a view is held.
    """

    def __init__(self, state: ContainerState, parts: StoreParts) -> None:
        self._state = state
        self._parts = parts
        self._limit_bytes = limit_bytes = parts.settings.read_cache_bytes
        self._memory = BlockMemory(2 * limit_bytes)
        self._kept: OrderedDict[tuple[str, int], memoryview] = OrderedDict()
        self._kept_bytes = 0
        self._forgotten: dict[str, None] = {}
        self._coming: dict[tuple[str, int], asyncio.Future[None]] = {}

    async def views(self, chunk: Chunk, position: int, max_bytes: int) -> list[memoryview]:
        """Views of verified bytes from ``position`` in the chunk on, at most ``max_bytes``, to the chunk's end.

        A large read counts as part of a sequential scan, and starts readahead.
        Raises: CorruptDataError, SegmentNotFoundError (the file is gone), OSError.
        """
        blocks = await load_blocks(self._state, chunk)
        index = bisect_right(blocks, position, key=_START) - 1
        found: list[memoryview] = []
        ahead = _AHEAD_BYTES if max_bytes >= _SCAN_BYTES else 0
        while max_bytes > 0 and 0 <= index < len(blocks):
            block = blocks[index]
            left = blocks[-1].end_offset - block.end_offset
            data = await self._read(chunk.name, block, min(ahead, left))
            begin = position - block.start_offset
            view = data[begin : begin + max_bytes]
            found.append(view)
            max_bytes -= len(view)
            position += len(view)
            index += 1
        return found

    async def whole(self, name: str, block: ChunkBlock) -> memoryview:
        """A view of the verified bytes of a block. Raises as ``views``."""
        return await self._read(name, block, 0)

    def forget(self, name: str) -> None:
        """Drop the blocks of a chunk that is no longer named, including blocks being read."""
        self._forgotten[name] = None
        if len(self._forgotten) > _FORGOTTEN_MAX:
            del self._forgotten[next(iter(self._forgotten))]
        for key in [key for key in self._kept if key[0] == name]:
            self._kept_bytes -= len(self._kept.pop(key))

    async def _read(self, name: str, block: ChunkBlock, ahead: int) -> memoryview:
        key = (name, block.start_offset)
        while True:
            data = self._kept.get(key)
            if data is not None:
                self._kept.move_to_end(key)
                return data
            coming = self._coming.get(key)
            if coming is None:
                break
            # Its reader may fail or be cancelled: then this one reads, and gets its own error.
            await asyncio.wait([coming])
        coming = self._coming[key] = asyncio.get_running_loop().create_future()
        try:
            data = await self._fetch(name, block, ahead)
            self._keep(key, data)
        finally:
            del self._coming[key]
            coming.set_result(None)
        return data

    async def _fetch(self, name: str, block: ChunkBlock, ahead: int) -> memoryview:
        room = self._memory.room(block.end_offset - block.start_offset)
        count = await self._parts.chunks.read_into(name, block.start_offset, room, ahead=ahead)
        data = room[:count].toreadonly()
        await self._verify(name, block, data)
        return data

    def _keep(self, key: tuple[str, int], data: memoryview) -> None:
        if key[0] in self._forgotten:
            return
        self._kept[key] = data
        self._kept_bytes += len(data)
        while self._kept_bytes > self._limit_bytes and len(self._kept) > 1:
            _, old = self._kept.popitem(last=False)
            self._kept_bytes -= len(old)

    async def _verify(self, name: str, block: ChunkBlock, data: memoryview) -> None:
        size = block.end_offset - block.start_offset
        if len(data) != size or await checksum_of(self._parts.offload, [data]) != block.crc32c:
            self._parts.telemetry.add("corrupt_blocks")
            raise CorruptDataError(
                "chunk block fails its checksum",
                chunk=name,
                start=block.start_offset,
                end=block.end_offset,
                read_bytes=len(data),
            )
