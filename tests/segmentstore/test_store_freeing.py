"""A large deletion gives its space back beside the container's other work."""

from __future__ import annotations

import asyncio

import pytest
from store_world import World, append, run

from penstock.segmentstore.durability import checkpointer


def test_checkpoints_go_on_while_many_files_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointer, "_FREE_S", 0.03)

    async def body(world: World) -> None:
        store = world.store
        await store.create_segment("s")
        await store.create_segment("other")
        for _ in range(20):
            await append(store, "s", bytes(200))
            await store.flush()
        container = store.containers[0]
        delete, deleted = world.chunks.delete, []

        async def slow_delete(name: str) -> None:
            await asyncio.sleep(0.02)
            await delete(name)
            deleted.append(name)

        chunks = len(await world.chunks.list())
        assert chunks >= 20
        world.chunks.delete = slow_delete
        await store.delete("s")
        while not deleted:
            await asyncio.sleep(0.001)
        # What waits for a checkpoint, such as the truncation of the log, does not wait for all deletions.
        await append(store, "other", b"data")
        await container.checkpointer.next_commit()
        assert len(deleted) < chunks // 2
        while await world.chunks.list():
            await asyncio.sleep(0.01)

    run(body, containers=1, chunk_bytes=200, checkpoint_interval_s=0.02)
