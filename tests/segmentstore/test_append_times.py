"""Blocks tell when the segment got them, through crashes and merges; leases tell whose they are."""

from __future__ import annotations

import pytest
from store_world import World, Writer, append, run, writer

from penstock.model.errors import InvalidArgumentError
from penstock.ports.data.chunks import HOLDER_MAX_BYTES, Lease

SEGMENT = "s/t/0.#epoch.0"


async def times(world: World, name: str = SEGMENT) -> list[tuple[int, int | None, int | None]]:
    """Of each block: where it ends, and the times of its first and last append, since the clock began."""
    end = (await world.store.info(name)).length
    found = []
    for chunk in await world.store.chunk_ranges(name, 0, end):
        for block in chunk.blocks:
            assert block.first_ms is not None
            assert block.last_ms is not None
            found.append((block.end_offset, block.first_ms - BEGAN, block.last_ms - BEGAN))
    return found


BEGAN = 1_700_000_000_000


def test_a_block_spans_the_times_of_its_appends() -> None:
    async def body(world: World) -> None:
        await world.store.create_segment(SEGMENT)
        one = await Writer(world.store, SEGMENT).setup()
        for _ in range(4):
            world.clock.ms += 10
            await one.append(bytes(60))
        await world.store.flush()
        world.clock.ms += 1000
        await one.append(bytes(60))
        await world.store.flush()
        expected = [(240, 10, 40), (300, 1040, 1040)]
        assert await times(world) == expected
        await world.restart()
        assert await times(world) == expected

    run(body, flush_bytes=1000)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_times_of_what_was_not_tiered_survive_a_crash(checkpoint: bool) -> None:
    async def body(world: World) -> None:
        await world.store.create_segment(SEGMENT)
        one = await Writer(world.store, SEGMENT).setup()
        world.clock.ms += 10
        await one.append(bytes(60))
        if checkpoint:
            for container in world.store.containers:
                await container.checkpointer.checkpoint()
        world.clock.ms += 10
        await one.append(bytes(60))
        world.clock.ms += 50_000
        await world.crash()
        await world.store.flush()
        assert await times(world) == [(120, 10, 20)]

    run(body, flush_bytes=1000)


@pytest.mark.parametrize("tiered", [False, True])
def test_merged_bytes_came_when_they_were_merged(tiered: bool) -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        await append(store, SEGMENT, bytes(50))
        part = await store.create_transient(SEGMENT, writer(5))
        world.clock.ms += 10
        await append(store, part, bytes(70), 6)
        if tiered:
            await store.flush()
        world.clock.ms += 500
        await store.merge(SEGMENT, part)
        await store.flush()
        expected = [(50, 0, 0), (120, 510, 510)] if tiered else [(120, 0, 510)]
        assert await times(world) == expected
        await world.restart()
        assert await times(world) == expected

    run(body, flush_bytes=1000)


def test_a_lease_tells_whose_it_is_and_until_when() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        await append(store, SEGMENT, bytes(4000))
        await store.flush()
        until = world.clock.ms + 5_000
        await store.lease_chunks([SEGMENT], writer(1), until_ms=until, holder="report of May")
        await store.lease_chunks([SEGMENT], writer(2), until_ms=until + 1)
        await store.lease_chunks([SEGMENT], writer(1), until_ms=until + 2)
        await append(store, SEGMENT, bytes(10))
        await store.truncate(SEGMENT, 4000)
        await store.flush()
        expected = (
            Lease(id=writer(1), until_ms=until + 2, holder="report of May"),
            Lease(id=writer(2), until_ms=until + 1),
        )
        assert (await store.spaces([SEGMENT]))[SEGMENT].leases == expected
        store = await world.crash()
        space = (await store.spaces([SEGMENT]))[SEGMENT]
        assert (space.leases, space.leased_until_ms, space.leased_bytes) == (expected, until + 2, 4000)
        await store.release_lease(writer(1))
        assert (await store.spaces([SEGMENT]))[SEGMENT].leases == expected[1:]
        await store.release_lease(writer(2))
        await world.settle()
        space = (await store.spaces([SEGMENT]))[SEGMENT]
        assert (space.leases, space.pending_free_bytes) == ((), 0)
        with pytest.raises(InvalidArgumentError, match="too many bytes"):
            await store.lease_chunks([SEGMENT], writer(3), until_ms=until, holder="x" * (HOLDER_MAX_BYTES + 1))

    run(body, flush_bytes=1000, chunk_bytes=1000)
