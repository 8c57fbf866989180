from __future__ import annotations

import asyncio

import pytest
from store_world import World, Writer, append, content, run

from penstock.model.errors import (
    ContainerOfflineError,
    CorruptDataError,
    InvalidArgumentError,
    SegmentNotFoundError,
    ThrottledError,
    TruncatedError,
)

SEGMENT = "scope/stream/0.#epoch.0"


async def parked(world: World, offset: int = 0) -> asyncio.Future:
    reading = asyncio.ensure_future(world.store.read(SEGMENT, offset, 100))
    container = world.store._container(SEGMENT)
    before = container.reads.parked
    while container.reads.parked == before:
        await asyncio.sleep(0)
    return reading


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ("append", b"x"),
        ("seal", b""),
        ("merge", b"child"),
        ("delete", SegmentNotFoundError),
        ("close", ContainerOfflineError),
    ],
)
def test_a_parked_read_is_woken(change: str, outcome) -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        reading = await parked(world)
        if change == "append":
            await append(store, SEGMENT, b"x")
        elif change == "merge":
            child = await store.create_transient(SEGMENT, Writer(store, SEGMENT).id)
            await append(store, child, b"child")
            assert not reading.done()
            await store.merge(SEGMENT, child)
        elif change == "close":
            await store.close()
        else:
            await getattr(store, change)(SEGMENT)
        if isinstance(outcome, bytes):
            part = await reading
            assert b"".join(part.parts) == outcome
            assert part.end_of_segment == (change == "seal")
        else:
            with pytest.raises(outcome):
                await reading
        assert store._container(SEGMENT).reads.parked == 0

    run(body)


def test_a_read_parked_behind_the_tail_waits_until_the_segment_grows_past_it() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        reading = await parked(world, offset=5)
        one = await Writer(store, SEGMENT).setup()
        await one.append(b"12345")
        await one.append(b"6789")
        assert b"".join((await reading).parts) == b"6789"
        early = await store.read(SEGMENT, 9, 10, wait=False)
        assert (list(early.parts), early.at_tail, early.end_of_segment) == ([], True, False)

    run(body)


def test_a_parked_read_does_not_go_on_with_another_segment_of_the_name() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        reading = await parked(world)
        deleting = asyncio.ensure_future(store.delete(SEGMENT))
        creating = asyncio.ensure_future(store.create_segment(SEGMENT))
        await asyncio.gather(deleting, creating)
        with pytest.raises(SegmentNotFoundError):
            await reading

    run(body)


def test_parked_reads_are_bounded_and_cancelled_cleanly() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        readings = [await parked(world) for _ in range(3)]
        with pytest.raises(ThrottledError):
            await store.read(SEGMENT, 0, 1)
        readings[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await readings[0]
        another = await parked(world)
        segment = await store._container(SEGMENT).segments.find_visible(SEGMENT)
        assert len(segment.waiters) == 3
        await append(store, SEGMENT, b"x")
        for reading in (*readings[1:], another):
            assert b"".join((await reading).parts) == b"x"
        assert not segment.waiters

    run(body, max_parked_reads=3)


def test_nothing_is_read_before_it_is_durable() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        one = await Writer(store, SEGMENT).setup()
        results: list = []
        one.submit(b"not yet", results)
        part = await store.read(SEGMENT, 0, 100, wait=False)
        assert list(part.parts) == []
        assert (await store.info(SEGMENT)).length == 0
        assert not results

    run(body)


def test_reads_from_chunks_are_verified() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        one = await Writer(store, SEGMENT).setup()
        for index in range(4):
            await one.append(bytes([index]) * 20_000)
            await store.flush()
        store = await world.restart()
        assert len(await content(store, SEGMENT)) == 80_000
        (name,) = [name for name in await world.chunks.list() if not name.endswith(".idx")]
        ranges = await store.chunk_ranges(SEGMENT, 0, 80_000)
        assert [(item.name, item.start_offset, item.end_offset, len(item.blocks)) for item in ranges] == [
            (name, 0, 80_000, 4)
        ]
        world.chunks._chunks[name].data[45_000] ^= 1
        store = await world.crash()
        before = dict(world.chunks._chunks)
        assert b"".join((await store.read(SEGMENT, 0, 40_000)).parts) == bytes(20_000) + b"\1" * 20_000
        with pytest.raises(CorruptDataError):
            await store.read(SEGMENT, 59_999, 1)
        assert b"".join((await store.read(SEGMENT, 60_000, 10)).parts) == b"\3" * 10
        assert world.chunks._chunks == before, "nothing was deleted"
        assert world.telemetry.counts["corrupt_blocks"] == 1

    run(body)


def test_a_lost_chunk_is_damage_not_an_empty_read() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        await append(store, SEGMENT, b"data")
        await store.flush()
        store = await world.restart()
        world.chunks._chunks.clear()
        with pytest.raises(CorruptDataError):
            await store.read(SEGMENT, 0, 1)

    run(body)


def test_truncation_during_a_read_is_told() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        await append(store, SEGMENT, b"x" * 100)
        await store.flush()
        store = await world.restart()
        await store.info(SEGMENT)
        real_read = world.chunks.read

        async def slow_read(name: str, offset: int, length: int) -> bytes:
            data = await real_read(name, offset, length)
            await store.truncate(SEGMENT, 50)
            return data

        world.chunks.read = slow_read
        with pytest.raises(TruncatedError) as truncated:
            await store.read(SEGMENT, 10, 10)
        assert truncated.value.start_offset == 50

    run(body)


def test_read_arguments_are_checked() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        for offset, size in ((-1, 1), (0, 0)):
            with pytest.raises(InvalidArgumentError):
                await store.read(SEGMENT, offset, size)

    run(body)


def test_next_event_boundary() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        one = await Writer(store, SEGMENT).setup()
        ends = [0] + [await one.append(bytes(20_000)) for _ in range(3)]
        for tiered in (False, True):
            if tiered:
                await store.flush()
                store = await world.restart()
            assert await store.next_event_boundary(SEGMENT, 0) == 0
            assert await store.next_event_boundary(SEGMENT, 60_000) == 60_000
            assert await store.next_event_boundary(SEGMENT, 99_999) == 60_000
            for offset in (1, 19_999, 20_000, 20_001, 59_999):
                boundary = await store.next_event_boundary(SEGMENT, offset)
                assert boundary in ends
                assert boundary >= offset
            await store.truncate(SEGMENT, 20_000) if tiered else None
        assert await store.next_event_boundary(SEGMENT, 5) == 20_000

    run(body, flush_bytes=20_000)
