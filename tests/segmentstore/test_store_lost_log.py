"""A log and metadata that do not go together are damage: the store stays shut and deletes nothing."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from store_world import World

from penstock.model.errors import CorruptDataError
from penstock.ports.data.segments import Append
from penstock.storage.memory.memory_keyvalue import MemoryKeyValue


@pytest.mark.parametrize("left", [0, 1])
def test_a_log_that_ends_before_the_checkpoint_is_damage_and_no_chunk_goes(left: int) -> None:
    async def run() -> None:
        world = World(containers=1)
        store = await world.open()
        await store.create_segment("s/t/0")
        writer = UUID(int=1)
        previous = await store.setup_append("s/t/0", writer)
        await store.flush()
        await store.append(
            Append(segment="s/t/0", writer=writer, event_number=1, event_count=1, data=b"x" * 100, previous=previous)
        )
        # Tiered, but no checkpoint names the chunk: its only name is in the log that is lost below.
        await store.containers[0].tiering.tier_all()
        await store.close(checkpoint=False)
        kept = sorted(await world.chunks.list())
        assert kept
        for _ in range(len(world.log_state.frames) - left):
            world.log_state.frames.pop()
        world.log_state.last = 0
        with pytest.raises(CorruptDataError, match="the end of the log is missing"):
            await world.open()
        assert sorted(await world.chunks.list()) == kept

    asyncio.run(run())


def test_lost_metadata_is_damage_once_the_log_was_truncated_and_no_chunk_goes() -> None:
    async def run() -> None:
        world = World(containers=2)
        store = await world.open()
        writer = UUID(int=1)
        for number in range(4):
            await store.create_segment(f"s/t/{number}")
            previous = await store.setup_append(f"s/t/{number}", writer)
            await store.append(
                Append(segment=f"s/t/{number}", writer=writer, event_number=1, data=b"x" * 100, previous=previous)
            )
        await store.flush()
        await store.flush()
        # Frames of a container that says nothing of what the other one held.
        await store.create_segment("s/t/late")
        await store.close(checkpoint=False)
        kept = sorted(await world.chunks.list())
        assert kept
        assert world.log_state.frames[0][0] > 1
        world.keyvalue = MemoryKeyValue()
        with pytest.raises(CorruptDataError, match="metadata is gone"):
            await world.open()
        assert sorted(await world.chunks.list()) == kept

    asyncio.run(run())
