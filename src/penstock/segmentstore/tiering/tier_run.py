"""One run of blocks that is being written to a chunk."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.store.chunk_index import RECORD_BYTES, index_name
from penstock.ports.chunks import ChunkWrite
from penstock.ports.data.chunks import ChunkBlock
from penstock.segmentstore.segment import Chunk, Segment
from penstock.segmentstore.tiering.blocks import index_records


class TierRun:
    """``start <= offset < end`` of a segment, in blocks that are appended to ``chunk``: their ``bounds`` there, counts
    of events, times of first and last append, and bytes. All of it is taken from the cache at once, because a merge
    moves the entries."""

    __slots__ = ("_bounds", "_counts", "_times", "blocks", "chunk", "end", "parts", "segment", "start")

    def __init__(
        self,
        segment: Segment,
        chunk: Chunk,
        start: int,
        end: int,
        bounds: Sequence[tuple[int, int]],
        counts: Sequence[int],
        times: Sequence[tuple[int, int]],
        parts: Sequence[Sequence[memoryview]],
    ) -> None:
        self.segment = segment
        self.chunk = chunk
        self.start = start
        self.end = end
        self.parts = parts
        self._bounds = bounds
        self._counts = counts
        self._times = times
        self.blocks: Sequence[ChunkBlock] = ()

    def check(self, checksums: Sequence[int]) -> None:
        """Create the blocks, with the checksum of each."""
        self.blocks = [
            ChunkBlock(
                start_offset=first,
                end_offset=last,
                crc32c=checksum,
                event_count=count,
                first_ms=first_ms,
                last_ms=last_ms,
            )
            for (first, last), count, checksum, (first_ms, last_ms) in zip(
                self._bounds, self._counts, checksums, self._times, strict=True
            )
        ]

    def data(self) -> ChunkWrite:
        """The bytes."""
        parts = [part for block in self.parts for part in block]
        return ChunkWrite(name=self.chunk.name, offset=self._bounds[0][0], parts=parts)

    def index(self) -> ChunkWrite:
        """The index records of the bytes. Write them once the bytes are durable."""
        chunk = self.chunk
        found = index_records(self.start - self._bounds[0][0], self.blocks, chunk.block_count)
        return ChunkWrite(name=index_name(chunk.name), offset=chunk.block_count * RECORD_BYTES, parts=found)
