"""Paper streams in a real store: chunk files without data, and sidecars that describe their blocks.

The chunks arrive as those of the Spark sink do, so the store, its rows and its answers are real. A tebibyte takes no more
disk than its sidecars.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from crc32c import crc32c

from penstock.codec.events import HEADER_BYTES
from penstock.codec.store.chunk_index import IndexRecord, encode_record, index_name
from penstock.model.names import StreamName, segment_name, transaction_segment_name
from penstock.model.policies import ScalingPolicy, StreamConfig
from penstock.ports.control.transactions import TransactionStatus
from penstock.ports.data.imports import ImportedChunk, ImportGrant
from penstock.spark.connect import Services

MIB = 1 << 20
CHUNK_BLOCKS = 16
_CALL_CHUNKS = 500
_TRIES = 6000  # five minutes


async def make_stream(services: Services, stream: StreamName, segments: int) -> None:
    if not await services.controller.scopes.exists(stream.scope):
        await services.controller.scopes.create(stream.scope)
    await services.controller.streams.create(stream, StreamConfig(scaling=ScalingPolicy(min_segments=segments)))


async def add_chunks(
    services: Services, stream: StreamName, chunks: int, *, blocks: int = CHUNK_BLOCKS, block_bytes: int = MIB
) -> None:
    """Add so many chunks of so many blocks to each open segment of the stream, in one transaction."""
    transaction = await services.controller.transactions.create(stream, lease_ms=600_000)
    limit = asyncio.Semaphore(16)

    async def fill(name: str) -> None:
        async with limit:
            grant = await services.segments.grant_import(name)
            offset = 0
            for first in range(0, chunks, _CALL_CHUNKS):
                numbers = range(first, min(chunks, first + _CALL_CHUNKS))
                made = await asyncio.to_thread(_write, grant, numbers, blocks, block_bytes)
                offset = await services.segments.adopt_chunks(name, offset, made)

    names = [
        transaction_segment_name(segment_name(stream, item.segment), transaction.id) for item in transaction.segments
    ]
    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(fill(name))
    await services.controller.transactions.commit(stream, transaction.id)
    for _ in range(_TRIES):
        if await services.controller.transactions.status(stream, transaction.id) is TransactionStatus.COMMITTED:
            return
        await asyncio.sleep(0.05)
    raise RuntimeError(f"the transaction was not merged. stream={stream}")


def _write(grant: ImportGrant, numbers: Sequence[int], blocks: int, block_bytes: int) -> list[ImportedChunk]:
    # A hole in a file holds empty events.
    found, checksum, events = [], crc32c(bytes(block_bytes)), block_bytes // HEADER_BYTES
    index = b"".join(
        encode_record(
            IndexRecord(
                index=number,
                start=number * block_bytes,
                end=(number + 1) * block_bytes,
                segment_start=number * block_bytes,
                event_count=events,
                crc32c=checksum,
            )
        )
        for number in range(blocks)
    )
    base = (grant.location or "").removesuffix(grant.marker)
    for number in numbers:
        name = f"{grant.prefix}{number:x}"
        Path(base + index_name(name)).write_bytes(index)
        with open(base + name, "wb") as file:
            file.truncate(blocks * block_bytes)
        found.append(
            ImportedChunk(
                name=name, size_bytes=blocks * block_bytes, event_count=blocks * events, index_crc32c=crc32c(index)
            )
        )
    return found


async def scale(services: Services, stream: StreamName, times: int) -> None:
    """Replace all segments so many times, with a chunk of one block in each before."""
    controller = services.controller
    for _ in range(times):
        await add_chunks(services, stream, 1, blocks=1)
        current = await controller.layout.current(stream)
        await controller.layout.scale(
            stream, sealed=[item.segment for item in current], new_ranges=[item.keys for item in current]
        )
