"""Chunks whose row a crash took: they are garbage, but not while somebody who holds a lease may read them."""

import asyncio

from store_world import append, run

from penstock.ports.data.service import SegmentService


async def crash(world):
    """Reopen without a checkpoint, and let the search for orphans come to its end."""
    store = await world.crash()
    async with asyncio.timeout(10):
        while not all(container.reclaimer.orphans_known for container in store.containers):
            await asyncio.sleep(0)
    return store


async def tier_without_checkpoint(world) -> str:
    """The name of a chunk that is written, synced and handed out, while no committed row names it."""
    store: SegmentService = world.store
    await store.create_segment("s")
    await append(store, "s", b"data")
    for container in world.store.containers:
        await container.tiering.tier_all()
    (chunk,) = await store.chunk_ranges("s", 0, 4)
    return chunk.name


def test_an_orphan_waits_for_the_leases_of_its_time():
    async def scenario(world):
        chunk = await tier_without_checkpoint(world)
        lease = world.rng.uuid()
        await world.store.lease_chunks(["s"], lease, until_ms=world.clock.now_ms() + 60_000)
        store = await crash(world)
        await store.flush()
        (again,) = await store.chunk_ranges("s", 0, 4)
        assert again.name != chunk, "the bytes were tiered anew: nothing names the old chunk"
        assert await world.chunks.read(chunk, 0, 4) == b"data"
        await store.release_lease(lease)
        await store.flush()
        assert chunk not in await world.chunks.list()

    run(scenario)


def test_an_orphan_goes_at_once_where_there_are_no_leases():
    async def scenario(world):
        chunk = await tier_without_checkpoint(world)
        store = await crash(world)
        await store.flush()
        assert chunk not in await world.chunks.list()

    run(scenario)
