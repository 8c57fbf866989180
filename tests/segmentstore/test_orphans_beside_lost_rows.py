"""A chunk is no orphan where a row of chunks is missing: it may be the one that the row named."""

from __future__ import annotations

import asyncio

import pytest
from store_world import World, append, run

from penstock.codec.store import rows as records

SEGMENT, OTHER = "scope/stream/0.#epoch.0", "scope/stream/1.#epoch.0"


async def _orphans_known(world: World) -> None:
    async with asyncio.timeout(10):
        while not all(container.reclaimer.orphans_known for container in world.store.containers):
            await asyncio.sleep(0)
    for _ in range(2):
        await world.store.flush()


@pytest.mark.parametrize("lost", [0, 1, 2], ids=["first", "middle", "last"])
@pytest.mark.parametrize("merged", [False, True], ids=["own", "merged"])
def test_a_chunk_whose_row_is_lost_keeps_its_bytes(lost: int, merged: bool) -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        for number in range(3):
            name = f"{SEGMENT}#transaction.{number:032x}" if merged else SEGMENT
            if merged:
                await store.create_segment(name)
            await append(store, name, b"%d" % number * 8, number)
            await store.flush()
            if merged:
                await store.merge(SEGMENT, name)
            await store.flush()
        container = store._container(SEGMENT)
        prefix = records.range_of(records.prefix(records.TAG_CHUNK, container.index))
        rows = await container.rows.scan_all(prefix)
        assert len(rows) == 3
        chunk = records.decode_chunk(rows[lost][1]).name
        await store.close()
        await world.keyvalue.commit([], [rows[lost][0]])
        await world.open()
        await _orphans_known(world)
        assert await world.chunks.read(chunk, 0, 8) == b"%d" % lost * 8
        assert world.telemetry.counts.get("orphan_chunks", 0) == 0

    run(body, chunk_bytes=8, containers=1)
