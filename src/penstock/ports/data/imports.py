"""Chunks that somebody else than the store writes into tier 2, for the store to adopt.

Source: docs/design/0016-sink.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from penstock.codec.store.chunk_builder import BuiltChunk

ADOPT_MAX_CHUNKS = 1000
"""Chunks of one call: their sidecars are read before it answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportGrant:
    """Where chunks for one segment may be written, by whoever asked. No two grants name the same chunk.

    Chunk ``n`` is called ``f"{prefix}{n:x}"``; its sidecar (docs/formats/chunk-index.md) bears the same name with ``.idx`` at
    the end. ``marker`` is a name that is there already, at ``location`` (None: only the store itself sees its tier 2); with
    another name in its stead that is the place of any other. Whoever does not see the marker must not write.

    ``appends``: whether tier 2 is files of a directory; else each chunk and each sidecar is put whole, once. ``chunk_bytes``
    and ``block_bytes`` are the sizes that the store gives its own.
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
    """A chunk as its writer left it: durable, whole, and never touched again. ``index_crc32c`` covers all of its sidecar."""

    name: str
    size_bytes: int
    event_count: int
    index_crc32c: int

    @classmethod
    def of(cls, name: str, built: BuiltChunk) -> ImportedChunk:
        """What is told of a chunk that was written under the name."""
        return cls(
            name=name,
            size_bytes=built.size_bytes,
            event_count=built.event_count,
            index_crc32c=built.index_crc32c,
        )


@runtime_checkable
class ChunkImports(Protocol):
    """What a ``SegmentService`` offers that lets others write its tier 2."""

    async def grant_import(self, name: str) -> ImportGrant:
        """A place for chunks of a transaction's segment. What is written there and not adopted by the time that the segment
        is merged or deleted, is garbage then. Repeating gives another place.

        Raises: SegmentNotFoundError; InvalidArgumentError (no transaction's); StorageFullError; QuotaHeldError and
        QuotaExceededError, as an append.
        """
        ...

    async def adopt_chunks(self, name: str, offset: int, chunks: Sequence[ImportedChunk]) -> int:
        """Make the chunks, in their order, the bytes of a transaction's segment from ``offset`` on, its length; returns the
        new length. Nothing is copied. Where these very chunks lie there already, nothing happens.

        Sidecars are read and compared, lengths are checked; events are verified by their blocks' checksums when they are
        read, as always. Raises, with nothing changed: SegmentNotFoundError; SegmentSealedError; ConditionFailedError (the
        segment has another length); InvalidArgumentError (not granted for this segment, or named twice); CorruptDataError
        (not there, or not as it is said to be); StorageFullError; QuotaHeldError and QuotaExceededError, as an append.
        """
        ...
