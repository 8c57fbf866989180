"""Builds chunks and their sidecars from framed events outside the store.

The rules are the same as for the store's own chunks: a block is a run of whole events with a checksum, a chunk is
rolled at a size.
Source: docs/formats/chunk-index.md.
"""

from __future__ import annotations

from crc32c import crc32c

from penstock.codec.store.chunk_index import IndexRecord, encode_record
from penstock.model.values.dataclass import dataclass

Bytes = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltChunk:
    """A chunk to be written: its bytes in parts, borrowed, and its sidecar."""

    parts: tuple[Bytes, ...]
    size_bytes: int
    event_count: int
    index: bytes

    @property
    def index_crc32c(self) -> int:
        return int(crc32c(self.index))


class ChunkBuilder:
    """Collects runs of whole events into blocks, and blocks into chunks, in order of arrival.

    A run is never divided: a run larger than a block or chunk becomes its own. Added data is borrowed until its chunk
    is written.
    """

    def __init__(self, *, block_bytes: int, chunk_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._chunk_bytes = chunk_bytes
        self._parts: list[Bytes] = []
        self._index: list[bytes] = []
        self._size = 0
        self._events = 0
        self._block_start = 0
        self._block_events = 0
        self._block_crc32c = 0

    @property
    def size_bytes(self) -> int:
        """The size of the open chunk."""
        return self._size

    def add(self, data: Bytes, event_count: int) -> BuiltChunk | None:
        """Take a run of at least one event. Returns the previous chunk if the run did not fit into it."""
        size = len(data)
        full = None
        if self._size and self._size + size > self._chunk_bytes:
            full = self.finish()
        elif self._block_events and self._size - self._block_start + size > self._block_bytes:
            self._end_block()
        self._parts.append(data)
        self._size += size
        self._events += event_count
        self._block_events += event_count
        self._block_crc32c = int(crc32c(data, self._block_crc32c))
        return full

    def finish(self) -> BuiltChunk | None:
        """The open chunk; None if it is empty."""
        if not self._size:
            return None
        self._end_block()
        built = BuiltChunk(
            parts=tuple(self._parts), size_bytes=self._size, event_count=self._events, index=b"".join(self._index)
        )
        self._parts, self._index = [], []
        self._size = self._events = self._block_start = 0
        return built

    def _end_block(self) -> None:
        record = IndexRecord(
            index=len(self._index),
            start=self._block_start,
            end=self._size,
            segment_start=self._block_start,
            event_count=self._block_events,
            crc32c=self._block_crc32c,
        )
        self._index.append(encode_record(record))
        self._block_start = self._size
        self._block_events = self._block_crc32c = 0
