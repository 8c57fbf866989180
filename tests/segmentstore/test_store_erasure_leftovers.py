"""What was erased is also where nothing names it: behind the end of a chunk, in orphans, in what was never adopted."""

from __future__ import annotations

import asyncio

import pytest
from crc32c import crc32c
from erasure_store import NAME, SECRET, blanked, erase, holds, whole, write
from importer import PARENT, TXN, write_chunks
from store_world import append, run

from penstock.codec.events import frame_events
from penstock.codec.store import rows as records
from penstock.codec.store.chunk_index import decode_records, index_name
from penstock.core.segments.garbage import is_marker
from penstock.model.errors import SegmentNotFoundError, UnavailableError

PLAIN = [b"ordinary %d" % number for number in range(30)]
SMALL = {"containers": 1, "flush_bytes": 2000, "chunk_bytes": 60_000}


async def tier(world):
    """Tiered, and no row says so yet."""
    for container in world.store.containers:
        await container.tiering.tier_all()


async def known(world):
    while not all(container.reclaimer.orphans_known for container in world.store.containers):
        await asyncio.sleep(0)


async def erased(world, name, offset):
    """Erase the one event at the offset; nothing else changes, nothing of it is left anywhere."""
    before = await whole(world.store, name)
    ranges, done = await erase(world.store, name, [offset])
    assert await whole(world.store, name) == blanked(before, ranges)
    assert holds(world, SECRET) == []
    return done


def test_what_a_crash_left_behind_the_end_of_a_chunk_is_overwritten():
    async def scenario(world):
        await world.store.create_segment(NAME)
        await write(world.store, NAME, PLAIN)
        await world.store.flush()
        (offset,) = await write(world.store, NAME, [SECRET])
        await tier(world)
        await world.crash()
        await world.store.flush()
        names = {item.name for item in await world.store.chunk_ranges(NAME, 0, 1 << 20)}
        assert len(names) == 2
        assert len([found for found in holds(world, SECRET) if found.startswith("chunk ")]) == 2
        (done,) = await erased(world, NAME, offset)
        assert done.blanked_bytes == len(SECRET)
        await world.blackout()
        assert holds(world, SECRET) == []

    run(scenario, **SMALL)


def test_what_a_failed_write_left_behind_the_end_of_a_chunk_is_overwritten():
    async def scenario(world):
        await world.store.create_segment(NAME)
        await write(world.store, NAME, PLAIN)
        await world.store.flush()
        (offset,) = await write(world.store, NAME, [SECRET])
        sync = world.chunks.sync

        async def fails(name):
            await sync(name)
            raise OSError("the disk is away")

        world.chunks.sync = fails
        with pytest.raises(OSError, match="away"):
            await tier(world)
        world.chunks.sync = sync
        await erased(world, NAME, offset)

    run(scenario, **SMALL)


def test_a_lease_on_the_segment_keeps_no_orphan_that_may_hold_what_was_erased():
    async def scenario(world):
        await world.store.create_segment(NAME)
        (offset,) = await write(world.store, NAME, [SECRET])
        await tier(world)
        (orphan,) = await world.store.chunk_ranges(NAME, 0, 1 << 20)
        await world.store.lease_chunks([NAME], world.rng.uuid(), until_ms=world.clock.now_ms() + 60_000)
        await world.crash()
        await erased(world, NAME, offset)
        assert orphan.name not in await world.chunks.list()

    run(scenario, **SMALL)


def test_an_erasure_takes_no_leased_orphan_of_another_segment():
    async def scenario(world):
        for name in (NAME, "other"):
            await world.store.create_segment(name)
        (offset,) = await write(world.store, NAME, [SECRET])
        await append(world.store, "other", b"data")
        await tier(world)
        (orphan,) = await world.store.chunk_ranges("other", 0, 4)
        await world.store.lease_chunks(["other"], world.rng.uuid(), until_ms=world.clock.now_ms() + 60_000)
        await world.crash()
        await erased(world, NAME, offset)
        assert await world.chunks.read(orphan.name, 0, 4) == b"data"
        await world.store.delete("other")
        await world.store.flush()
        offset = (await write(world.store, NAME, [SECRET]))[0]
        await erased(world, NAME, offset)
        assert await world.chunks.read(orphan.name, 0, 4) == b"data"

    run(scenario, **SMALL)


async def leased_orphan(world, name):
    """A segment with four bytes, leased; a chunk that held them, whose row a crash has taken."""
    await world.store.create_segment(name)
    await append(world.store, name, b"data")
    await tier(world)
    (orphan,) = await world.store.chunk_ranges(name, 0, 4)
    await world.store.lease_chunks([name], world.rng.uuid(), until_ms=world.clock.now_ms() + 60_000)
    await world.crash()
    return orphan.name


async def erase_deleted(world, name):
    with pytest.raises(SegmentNotFoundError):
        await world.store.erase(name, [(0, 4)], erasure="e1")


@pytest.mark.parametrize("reopened", [False, True])
def test_an_erasure_of_a_deleted_segment_takes_leased_orphans_of_this_segment_only(reopened):
    async def scenario(world):
        orphans = [await leased_orphan(world, name) for name in (NAME, "other")]
        for name in (NAME, "other"):
            await world.store.delete(name)
        if reopened:
            await world.store.flush()
            await world.crash()
        await erase_deleted(world, NAME)
        left = await world.chunks.list()
        assert [name in left for name in orphans] == [False, True]
        assert await world.chunks.read(orphans[1], 0, 4) == b"data"

    run(scenario, **SMALL)


@pytest.mark.parametrize("into", [NAME, "third"])
def test_an_erasure_of_a_deleted_segment_takes_leased_orphans_of_what_was_merged_into_it(into):
    async def scenario(world):
        for name in (NAME, "third"):
            await world.store.create_segment(name)
        orphan = await leased_orphan(world, "other")
        await world.store.seal("other")
        await world.store.merge(into, "other")
        for name in (NAME, "third"):
            await world.store.delete(name)
        await erase_deleted(world, NAME)
        assert (orphan in await world.chunks.list()) == (into != NAME)

    run(scenario, **SMALL)


def test_the_name_of_a_deleted_segment_goes_with_the_last_lease_on_it():
    async def scenario(world):
        (container,) = world.store.containers
        names = records.prefix(records.TAG_LEASED_NAME, container.index)
        await world.store.create_segment(NAME)
        leases = [world.rng.uuid() for _ in range(2)]
        for lease in leases:
            await world.store.lease_chunks([NAME], lease, until_ms=world.clock.now_ms() + 60_000)
        await world.store.delete(NAME)
        for lease, count in zip(leases, (1, 0), strict=True):
            await world.store.release_lease(lease)
            await world.store.flush()
            (container,) = world.store.containers
            assert len(await container.state.rows.scan_all(records.range_of(names), damaged=[])) == count

    run(scenario, **SMALL)


def test_an_erasure_looks_for_orphans_that_the_start_could_not_look_for():
    async def scenario(world):
        await world.store.create_segment(NAME)
        (offset,) = await write(world.store, NAME, [SECRET])
        await tier(world)
        listed = world.chunks.list

        async def away():
            raise OSError("tier 2 is away")

        world.chunks.list = away
        await world.crash()
        await known(world)
        ranges = await world.store.event_ranges(NAME, [offset])
        with pytest.raises(UnavailableError, match="listed"):
            await world.store.erase(NAME, ranges, erasure="e1")
        world.chunks.list = listed
        await world.store.erase(NAME, ranges, erasure="e1")
        await world.store.wipe_log()
        assert holds(world, SECRET) == []

    run(scenario, **SMALL)


@pytest.mark.parametrize("reopened", [False, True])
def test_what_was_written_to_be_imported_and_not_adopted_goes_with_the_erasure(reopened):
    async def scenario(world):
        for name in (PARENT, TXN):
            await world.store.create_segment(name)
        loser, winner = [await world.store.grant_import(TXN) for _ in range(2)]
        await write_chunks(world.chunks, loser, [[SECRET]])
        chunks = await write_chunks(world.chunks, winner, [[b"first"], [SECRET]])
        await world.store.adopt_chunks(TXN, 0, chunks)
        await world.store.merge(PARENT, TXN)
        # Somebody has looked just now, so that nobody looks again by itself.
        for container in world.store.containers:
            container.import_garbage._looked_at = asyncio.get_running_loop().time()
        if reopened:
            await world.crash()
        (done,) = await erased(world, PARENT, len(frame_events([b"first"])))
        assert done.name_before == chunks[1].name
        left = [name for name in await world.chunks.list() if not is_marker(name) and not name.endswith(".idx")]
        assert sorted(item.name for item in await world.store.chunk_ranges(PARENT, 0, 1 << 20)) == left

    run(scenario, **SMALL)


def test_a_copy_that_went_before_the_erasure_is_not_brought_back_by_a_power_loss():
    async def scenario(world):
        for name in (PARENT, TXN):
            await world.store.create_segment(name)
        loser, winner = [await world.store.grant_import(TXN) for _ in range(2)]
        (lost,) = await write_chunks(world.chunks, loser, [[SECRET]])
        await world.store.adopt_chunks(TXN, 0, await write_chunks(world.chunks, winner, [[b"first"], [SECRET]]))
        await world.store.merge(PARENT, TXN)
        await world.store.flush()
        assert lost.name not in await world.chunks.list()
        await erased(world, PARENT, len(frame_events([b"first"])))
        await world.blackout()
        assert lost.name not in await world.chunks.list()
        assert holds(world, SECRET) == []

    run(scenario, **SMALL)


def test_the_copy_of_a_chunk_whose_head_was_given_back_is_vouched_for_whole():
    async def scenario(world):
        await world.store.create_segment(NAME)
        offsets = await write(world.store, NAME, PLAIN * 20, per_append=5)
        await world.store.flush()
        await world.store.truncate(NAME, offsets[300])
        for _ in range(3):
            await world.store.flush()
        await erase(world.store, NAME, [offsets[400]])
        info = await world.store.info(NAME)
        (chunk,) = await world.store.chunk_ranges(NAME, info.start_offset, info.length)
        assert world.chunks._chunks[chunk.name].freed > 0
        data = await world.chunks.read(chunk.name, 0, 1 << 20)
        index = await world.chunks.read(index_name(chunk.name), 0, 1 << 20)
        found = list(decode_records(index))
        assert found[-1].end == len(data)
        assert all(crc32c(data[item.start : item.end]) == item.crc32c for item in found)

    run(scenario, **SMALL, free_head_bytes=512)


def test_events_behind_a_head_that_was_blanked_in_the_middle_of_a_block_can_be_erased():
    async def scenario(world):
        await world.store.create_segment(NAME)
        offsets = await write(world.store, NAME, [*PLAIN, SECRET])
        await world.store.flush()
        await world.store.truncate(NAME, offsets[7])
        # What is dead of the chunk is blanked with it, headers included.
        await erase(world.store, NAME, [offsets[20]])
        await erase(world.store, NAME, [offsets[-1]], "e2")
        assert holds(world, SECRET) == []
        assert len(await world.store.erased_ranges(NAME, offsets[7], offsets[-1] + 8 + len(SECRET))) == 2

    run(scenario, **SMALL)
