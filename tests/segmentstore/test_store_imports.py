"""Chunks that others wrote: adopted whole, in order, once, across crashes; what is not adopted goes, nothing else does."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from importer import OTHER, PARENT, TXN, write_chunks
from store_world import append, content, run, world

from penstock.codec.events import frame_events
from penstock.codec.store.chunk_builder import ChunkBuilder
from penstock.codec.store.chunk_index import decode_records, index_name
from penstock.core.segments.garbage import ImportName, chunk_epoch, is_marker, parse_chunk_name, parse_import_name
from penstock.model.errors import (
    ConditionFailedError,
    CorruptDataError,
    InvalidArgumentError,
    QuotaHeldError,
    SegmentNotFoundError,
    SegmentSealedError,
)
from penstock.ports.data.imports import ChunkImports
from penstock.ports.data.limits import AppendLimit


async def begun(store, *names):
    for name in (PARENT, TXN, *names):
        await store.create_segment(name)


async def settled(world):
    """After this, no garbage of an ended transaction is left."""
    for container in world.store.containers:
        container.import_garbage._looked_at = float("-inf")
    await world.settle()


async def left(world):
    return [name for name in await world.chunks.list() if not is_marker(name)]


def test_a_store_lets_others_write_its_tier_2():
    async def scenario(world):
        assert isinstance(world.store, ChunkImports)

    run(scenario)


@pytest.mark.parametrize("after", ["adopt", "merge", "both"])
@pytest.mark.parametrize("how", ["crash", "blackout", "restart", "evict", "settle"])
def test_adopted_chunks_are_the_segment_whatever_happens_to_the_store(after, how):
    async def scenario(world):
        await begun(world.store)
        # Not tiered: the adopted chunks take their place behind it.
        await append(world.store, PARENT, frame_events([b"before"]))
        grant = await world.store.grant_import(TXN)
        chunks = await write_chunks(world.chunks, grant, [[b"one", b"two"], [b"three"]])
        end = await world.store.adopt_chunks(TXN, 0, chunks)
        assert end == len(frame_events([b"one", b"two", b"three"]))
        if after in ("adopt", "both"):
            await getattr(world, how)()
        assert await content(world.store, TXN) == frame_events([b"one", b"two", b"three"])
        assert (await world.store.info(TXN)).event_count == 3
        await world.store.merge(PARENT, TXN)
        if after in ("merge", "both"):
            await getattr(world, how)()
        await append(world.store, PARENT, frame_events([b"after"]), 2)
        await settled(world)
        events = [b"before", b"one", b"two", b"three", b"after"]
        assert await content(world.store, PARENT) == frame_events(events)
        assert (await world.store.info(PARENT)).event_count == 5
        ranges = await world.store.chunk_ranges(PARENT, 0, len(frame_events(events)))
        assert {item.name for item in chunks} <= {item.name for item in ranges}, "moved, not copied"
        blocks = [block for item in ranges for block in item.blocks]
        assert await world.store.count_events(PARENT, 0, blocks[2].start_offset) == 2
        await world.store.delete(PARENT)
        await settled(world)
        assert await left(world) == []

    run(scenario, containers=1)


def test_chunks_are_adopted_once_however_often_it_is_asked_for():
    async def scenario(world):
        await begun(world.store)
        grant = await world.store.grant_import(TXN)
        first, second = await write_chunks(world.chunks, grant, [[b"one"], [b"two"]])
        ends = await asyncio.gather(*(world.store.adopt_chunks(TXN, 0, [first]) for _ in range(3)))
        assert len(set(ends)) == 1
        given_up = asyncio.ensure_future(world.store.adopt_chunks(TXN, ends[0], [second]))
        for _ in range(8):
            await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.wait([given_up])
        assert await world.store.adopt_chunks(TXN, ends[0], [second]) == ends[0] + second.size_bytes
        await world.crash()
        assert await world.store.adopt_chunks(TXN, ends[0], [second]) == ends[0] + second.size_bytes
        assert await content(world.store, TXN) == frame_events([b"one", b"two"])
        for offset in (0, ends[0], ends[0] + second.size_bytes):
            with pytest.raises((ConditionFailedError, InvalidArgumentError)):
                await world.store.adopt_chunks(TXN, offset, [first])
        await world.store.merge(PARENT, TXN)
        with pytest.raises(SegmentNotFoundError):
            await world.store.adopt_chunks(TXN, 0, [first])

    run(scenario)


def test_a_chunk_that_is_not_as_it_is_said_to_be_changes_nothing():
    async def scenario(world):
        await begun(world.store, OTHER)
        grant = await world.store.grant_import(TXN)
        (chunk,) = await write_chunks(world.chunks, grant, [[b"one", b"two"]])
        size = chunk.size_bytes
        wrong = [
            (CorruptDataError, replace(chunk, name=f"{grant.prefix}7")),
            (CorruptDataError, replace(chunk, size_bytes=size - 1)),
            (CorruptDataError, replace(chunk, size_bytes=size + 1)),
            (CorruptDataError, replace(chunk, event_count=3)),
            (CorruptDataError, replace(chunk, index_crc32c=1)),
            (InvalidArgumentError, replace(chunk, name="0/1-2-3")),
            (InvalidArgumentError, replace(chunk, size_bytes=0)),
        ]
        for kind, item in wrong:
            with pytest.raises(kind):
                await world.store.adopt_chunks(TXN, 0, [item])
        for name in (OTHER, PARENT):
            with pytest.raises(InvalidArgumentError):
                await world.store.adopt_chunks(name, 0, [chunk])
        for chunks in ([], [chunk, chunk]):
            with pytest.raises(InvalidArgumentError):
                await world.store.adopt_chunks(TXN, 0, chunks)
        with pytest.raises(ConditionFailedError):
            await world.store.adopt_chunks(TXN, 1, [chunk])
        with pytest.raises(InvalidArgumentError):
            await world.store.grant_import(PARENT)
        with pytest.raises(SegmentNotFoundError):
            await world.store.grant_import(TXN.replace("1", "3"))
        assert (await world.store.info(TXN)).length == 0
        assert await world.store.adopt_chunks(TXN, 0, [chunk]) == size
        await world.store.seal(TXN)
        for call in (
            world.store.grant_import(TXN),
            world.store.adopt_chunks(TXN, size, [replace(chunk, name="0/i1-1-1-1")]),
        ):
            with pytest.raises(SegmentSealedError):
                await call

    run(scenario)


def test_a_flipped_bit_of_an_adopted_chunk_is_met_when_it_is_read():
    async def scenario(world):
        await begun(world.store)
        grant = await world.store.grant_import(TXN)
        (chunk,) = await write_chunks(world.chunks, grant, [[b"one"]])
        await world.chunks.append(chunk.name, chunk.size_bytes - 1, [b"E"])
        await world.store.adopt_chunks(TXN, 0, [chunk])
        with pytest.raises(CorruptDataError):
            await content(world.store, TXN)

    run(scenario)


def test_appends_and_adoptions_share_a_segment():
    async def scenario(world):
        await begun(world.store)
        grant = await world.store.grant_import(TXN)
        one, two = await write_chunks(world.chunks, grant, [[b"one"], [b"two"]])
        at = await append(world.store, TXN, frame_events([b"a"]))
        at = await world.store.adopt_chunks(TXN, at, [one])
        at = await append(world.store, TXN, frame_events([b"b"]), 2)
        at = await world.store.adopt_chunks(TXN, at, [two])
        await world.crash()
        await world.store.flush()
        assert await content(world.store, TXN) == frame_events([b"a", b"one", b"b", b"two"])
        await world.blackout()
        assert await content(world.store, TXN) == frame_events([b"a", b"one", b"b", b"two"])

    run(scenario)


def test_what_was_not_adopted_goes_with_the_transaction_and_not_before():
    async def scenario(world):
        await begun(world.store)
        winner, loser = [await world.store.grant_import(TXN) for _ in range(2)]
        assert winner.prefix != loser.prefix
        won = await write_chunks(world.chunks, winner, [[b"won"]])
        lost = await write_chunks(world.chunks, loser, [[b"lost"], [b"too"]])
        await settled(world)
        assert len(await left(world)) == 6
        await world.store.adopt_chunks(TXN, 0, won)
        await world.store.merge(PARENT, TXN)
        await settled(world)
        assert await left(world) == sorted([won[0].name, index_name(won[0].name)])
        # One more, by a task that did not notice in time: the next opening finds it.
        await write_chunks(world.chunks, loser, [[b"late"]], first=len(lost))
        await world.crash()
        await settled(world)
        assert await left(world) == sorted([won[0].name, index_name(won[0].name)])
        assert await content(world.store, PARENT) == frame_events([b"won"])

    run(scenario)


@pytest.mark.parametrize("how", ["crash", "blackout", "restart"])
def test_what_is_being_written_survives_the_store_and_an_earlier_openings_garbage_goes(how):
    async def scenario(world):
        await begun(world.store, OTHER)
        grant, other = await world.store.grant_import(TXN), await world.store.grant_import(OTHER)
        (first,) = await write_chunks(world.chunks, grant, [[b"one"]])
        await write_chunks(world.chunks, other, [[b"never"]])
        await getattr(world, how)()
        # A writer need not know that the store was away.
        (second,) = await write_chunks(world.chunks, grant, [[b"two"]], first=1)
        await settled(world)
        assert len(await left(world)) == 6
        await world.store.adopt_chunks(TXN, 0, [first, second])
        await world.store.delete(OTHER)
        await world.store.merge(PARENT, TXN)
        await settled(world)
        named = [first.name, second.name]
        assert await left(world) == sorted([*named, *map(index_name, named)])
        assert await content(world.store, PARENT) == frame_events([b"one", b"two"])
        await getattr(world, how)()
        await settled(world)
        assert len(await left(world)) == 4
        markers = [name for name in await world.chunks.list() if is_marker(name)]
        assert markers == [], "of earlier openings"

    run(scenario)


def test_an_aborted_transaction_takes_its_chunks_along():
    async def scenario(world):
        await begun(world.store)
        grant = await world.store.grant_import(TXN)
        chunks = await write_chunks(world.chunks, grant, [[b"one"], [b"two"]])
        await world.store.adopt_chunks(TXN, 0, chunks[:1])
        await world.store.delete(TXN)
        await settled(world)
        assert await left(world) == []

    run(scenario)


def test_a_quota_refuses_places_and_adoptions():
    async def scenario(world):
        await begun(world.store)
        grant = await world.store.grant_import(TXN)
        chunks = await write_chunks(world.chunks, grant, [[b"one"]])
        await world.store.limit_appends([AppendLimit(stream="s/a", segments=[PARENT], total_bytes=0, quota_bytes=5)])
        with pytest.raises(QuotaHeldError):
            await world.store.grant_import(TXN)
        with pytest.raises(QuotaHeldError):
            await world.store.adopt_chunks(TXN, 0, chunks)
        await world.store.limit_appends([AppendLimit(stream="s/a", segments=[PARENT])])
        assert await world.store.adopt_chunks(TXN, 0, chunks) == chunks[0].size_bytes

    run(scenario)


U64 = st.integers(0, (1 << 64) - 1)


@given(container=st.integers(0, 0xFFFF), uid=U64, epoch=U64, grant=U64, number=st.integers(0, 1 << 31))
def test_names_of_imported_chunks_are_no_names_of_the_stores_own(container, uid, epoch, grant, number):
    name = ImportName(container=container, uid=uid, epoch=epoch, grant=grant, number=number)
    assert parse_import_name(str(name)) == name
    assert parse_chunk_name(str(name)) is None
    assert chunk_epoch(str(name)) == epoch
    assert str(name).startswith(name.prefix)


@pytest.mark.parametrize(
    "text", ["0/i1-2-3", "0/i1-2-3-4-5", "0/i01-2-3-4", "0/iX-2-3-4", "0/1-2-3-4", "i1-2-3-4", "0/i1-2-3--4"]
)
def test_other_names_are_none(text):
    assert parse_import_name(text) is None


RUNS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 3)), min_size=1, max_size=20)


@settings(max_examples=60)
@given(runs=RUNS, block=st.integers(1, 50), chunk=st.integers(1, 120))
def test_a_built_chunk_holds_the_runs_in_order_in_blocks_and_chunks_of_a_size(runs, block, chunk):
    builder = ChunkBuilder(block_bytes=block, chunk_bytes=chunk)
    data = [bytes([number]) * size for number, (size, _) in enumerate(runs)]
    built = [builder.add(run, events) for run, (_, events) in zip(data, runs, strict=True)]
    made = [item for item in [*built, builder.finish()] if item is not None]
    assert builder.finish() is None
    assert b"".join(part for item in made for part in item.parts) == b"".join(data)
    assert sum(item.event_count for item in made) == sum(events for _, events in runs)
    for item in made:
        assert item.size_bytes <= chunk or len(item.parts) == 1
        records = list(decode_records(item.index))
        assert [records[0].start, records[-1].end] == [0, item.size_bytes]
        assert sum(record.event_count for record in records) == item.event_count
        whole = b"".join(item.parts)
        for record in records:
            assert record.end - record.start <= block or whole[record.start : record.end] in data


def test_adoptions_leave_a_store_that_reads_right_whenever_it_stops():
    """The store stops at every one of its steps, with and without losing what was not synced."""

    async def scenario(steps, how):
        async with world(containers=1, flush_bytes=64) as made:
            await begun(made.store)
            task = asyncio.ensure_future(work(made))
            for _ in range(steps):
                await asyncio.sleep(0)
                if task.done():
                    break
            done = task.done()
            task.cancel()
            await asyncio.wait([task])
            await getattr(made, how)()
            try:
                await made.store.info(TXN)
            except SegmentNotFoundError:
                pass  # merged
            else:
                found = await content(made.store, TXN)
                assert found in (b"", frame_events([b"one"]), frame_events([b"one", b"two"]))
                await made.store.delete(TXN)
            found = await content(made.store, PARENT)
            assert found in (b"", frame_events([b"zero"]), frame_events([b"zero", b"one", b"two"]))
            await settled(made)
            assert await content(made.store, PARENT) == found
            names = {item.name for item in await made.store.chunk_ranges(PARENT, 0, len(found))}
            assert {name.removesuffix(".idx") for name in await left(made)} == names
            return done

    async def work(made):
        await append(made.store, PARENT, frame_events([b"zero"]))
        grant = await made.store.grant_import(TXN)
        one, two = await write_chunks(made.chunks, grant, [[b"one"], [b"two"]])
        at = await made.store.adopt_chunks(TXN, 0, [one])
        await made.store.adopt_chunks(TXN, at, [two])
        await made.store.merge(PARENT, TXN)
        await made.store.flush()

    for how in ("crash", "blackout"):
        steps = 0
        while not asyncio.run(scenario(steps, how)):
            steps += 1
        assert steps > 20
