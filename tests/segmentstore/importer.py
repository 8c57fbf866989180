"""Somebody who writes chunks into the tier 2 of a store under test, as an executor of Spark does."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.events import frame_events
from penstock.codec.store.chunk_builder import ChunkBuilder
from penstock.codec.store.chunk_index import index_name
from penstock.ports.chunks import ChunkStorage
from penstock.ports.data.imports import ImportedChunk, ImportGrant

TXN = "s/a/0.#epoch.0#transaction." + "1" * 32
OTHER = "s/a/0.#epoch.0#transaction." + "2" * 32
PARENT = "s/a/0.#epoch.0"


async def write_chunks(
    chunks: ChunkStorage, grant: ImportGrant, runs: Sequence[Sequence[bytes]], *, first: int = 0, sync: bool = True
) -> list[ImportedChunk]:
    """A chunk for each run of events, with a block for each event."""
    made: list[ImportedChunk] = []
    for number, events in enumerate(runs, first):
        builder = ChunkBuilder(block_bytes=1, chunk_bytes=1 << 30)
        for event in events:
            assert builder.add(frame_events([event]), 1) is None
        built = builder.finish()
        assert built is not None
        name = f"{grant.prefix}{number:x}"
        await chunks.append(name, 0, built.parts)
        await chunks.append(index_name(name), 0, [built.index])
        if sync:
            await chunks.sync(name)
            await chunks.sync(index_name(name))
        made.append(ImportedChunk.of(name, built))
    return made
