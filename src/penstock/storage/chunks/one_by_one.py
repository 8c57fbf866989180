"""Many chunks written one by one, for storage without a cheaper way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.model.errors import PenstockError
from penstock.ports.chunks import ChunkStorage, ChunkWrite

_AT_A_TIME = 16
"""Syncs of files that wait together are one journal commit, and requests to an object store overlap."""


async def append_one_by_one(chunks: ChunkStorage, writes: Sequence[ChunkWrite]) -> Sequence[Exception | None]:
    """See ``ChunkStorage.append_together``."""
    failures: list[Exception | None] = []
    for start in range(0, len(writes), _AT_A_TIME):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_append(chunks, write)) for write in writes[start : start + _AT_A_TIME]]
        failures += [task.result() for task in tasks]
    return failures


async def _append(chunks: ChunkStorage, write: ChunkWrite) -> Exception | None:
    try:
        await chunks.append(write.name, write.offset, write.parts)
        await chunks.sync(write.name)
    except (OSError, PenstockError) as error:
        return error
    return None
