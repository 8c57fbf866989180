"""Chunks that clients write into tier 2 for the store to adopt.

Source: docs/design/0016-sink.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from penstock.codec.store.chunk_builder import BuiltChunk
from penstock.model.values.dataclass import dataclass

ADOPT_MAX_CHUNKS = 1000
"""Chunks of one call: their sidecars are read before it answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportGrant:
    """Permission for the caller to write chunks for one segment. No two grants name the same chunk.

    Chunk ``n`` is called ``f"{prefix}{n:x}"``; its sidecar (docs/formats/chunk-index.md) has the same name plus
    ``.idx``. ``marker`` is a name that already exists, at ``location`` (None: only the store itself can access its tier
    2). Replace the marker's name in ``location`` to get the location of a chunk. A caller that does not see the marker
    must not write.

    ``appends``: whether tier 2 is a directory of files; otherwise each chunk and each sidecar is put whole, once.
    ``chunk_bytes`` and ``block_bytes`` are the sizes that the store uses for its own chunks.
    """

    segment: str
    prefix: str
    location: str | None
    marker: str
    appends: bool
    chunk_bytes: int
    block_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedChunk:
    """A chunk as its writer left it: durable, complete, and never changed again. ``index_crc32c`` covers all of its
    sidecar."""

    name: str
    size_bytes: int
    event_count: int
    index_crc32c: int

    @classmethod
    def of(cls, name: str, built: BuiltChunk) -> ImportedChunk:
        """The description of a chunk that was written under this name."""
        return cls(
            name=name,
            size_bytes=built.size_bytes,
            event_count=built.event_count,
            index_crc32c=built.index_crc32c,
        )


@runtime_checkable
class ChunkImports(Protocol):
    """The interface of a ``SegmentService`` that lets clients write its tier 2."""

    async def grant_import(self, name: str) -> ImportGrant:
        """Grant a place for chunks of a transaction's segment. Chunks that are not adopted when the segment is merged
        or deleted become garbage. Each call grants a new place.

        Raises: SegmentNotFoundError; InvalidArgumentError (not a transaction's segment); StorageFullError;
        QuotaHeldError and QuotaExceededError, as an append.
        """
        ...

    async def adopt_chunks(self, name: str, offset: int, chunks: Sequence[ImportedChunk]) -> int:
        """Append the chunks, in order, to a transaction's segment at ``offset``, which is its length; returns the new
        length. Nothing is copied. If the same chunks are already there, nothing happens.

        Sidecars are read and compared, lengths are checked; events are verified by their blocks' checksums when they
        are read, as usual. Raises, with nothing changed: SegmentNotFoundError; SegmentSealedError; ConditionFailedError
        (the segment has another length); InvalidArgumentError (not granted for this segment, or named twice);
        CorruptDataError (missing, or not as described); StorageFullError; QuotaHeldError and QuotaExceededError, as an
        append.
        """
        ...
