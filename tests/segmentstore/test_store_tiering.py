"""Tiering, checkpoints, and what is given back: in which order, and what a failure in between leaves."""

from __future__ import annotations

import asyncio
import logging

import pytest
from store_world import World, Writer, append, content, run, writer

from penstock.codec.store.chunk_index import decode_records
from penstock.model.errors import (
    ContainerOfflineError,
    CorruptDataError,
    InvalidArgumentError,
    SegmentNotFoundError,
    StorageFullError,
    ThrottledError,
)
from penstock.ports.data.chunks import Leased
from penstock.ports.data.segments import NO_EVENT, Appended
from penstock.storage.memory.memory_log import MemoryLog

SEGMENT = "scope/stream/0.#epoch.0"
TXN = SEGMENT + "#transaction." + "0" * 32


def chunk_names(world: World) -> list[str]:
    return [name for name in world.chunks._chunks if not name.endswith(".idx")]


class Gate:
    """Holds the next append to a chunk until it is opened."""

    def __init__(self, world: World) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()
        self.real = world.chunks.append
        world.chunks.append = self.append

    async def append(self, name, offset, parts) -> None:
        self.reached.set()
        await self.opened.wait()
        await self.real(name, offset, parts)


def test_blocks_are_cut_at_appends_and_chunks_are_rolled() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        await store.create_segment("a/rolled/0", rollover_bytes=40_000)
        for name in (SEGMENT, "a/rolled/0"):
            one = await Writer(store, name).setup()
            for _ in range(10):
                await one.append(b"x" * 20_000, count=3)
        await store.flush()
        ranges = await store.chunk_ranges(SEGMENT, 0, 200_000)
        assert [(item.start_offset, item.end_offset) for item in ranges] == [
            (0, 80_000),
            (80_000, 160_000),
            (160_000, 200_000),
        ]
        assert {block.end_offset - block.start_offset for item in ranges for block in item.blocks} == {40_000}
        assert sum(block.event_count for item in ranges for block in item.blocks) == 30
        rolled = await store.chunk_ranges("a/rolled/0", 50_000, 90_000)
        assert [(item.start_offset, item.end_offset) for item in rolled] == [(40_000, 80_000), (80_000, 120_000)]
        for item in ranges:
            index = list(decode_records(await world.chunks.read(item.name + ".idx", 0, 10_000)))
            assert [
                (record.start + item.start_offset, record.end + item.start_offset, record.crc32c, record.event_count)
                for record in index
            ] == [(block.start_offset, block.end_offset, block.crc32c, block.event_count) for block in item.blocks]
            assert [record.segment_start for record in index] == [block.start_offset for block in item.blocks]

    run(body, flush_bytes=50_000, chunk_bytes=100_000)


class Watched:
    """Notes what is done to chunks: the first bytes' place and the size of each write, and each sync."""

    def __init__(self, world: World) -> None:
        self.steps: list[tuple[str, str, int, int]] = []
        self.append_of, self.sync_of = world.chunks.append, world.chunks.sync
        world.chunks.append, world.chunks.sync = self.append, self.sync

    async def append(self, name, offset, parts) -> None:
        self.steps.append(("write", name.rpartition(".")[2][-3:], offset, sum(map(len, parts))))
        await self.append_of(name, offset, parts)

    async def sync(self, name) -> None:
        self.steps.append(("sync", name.rpartition(".")[2][-3:], 0, 0))
        await self.sync_of(name)


def test_blocks_that_wait_share_the_syncs_of_one_run() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        one = await Writer(store, SEGMENT).setup()
        (container,) = store.containers
        async with container.tiering._lock:
            for _ in range(9):
                await one.append(bytes(20_000))
        watched = Watched(world)
        await store.flush()
        assert [step[:1] + step[2:] for step in watched.steps] == [
            ("write", 0, 80_000),
            ("sync", 0, 0),
            ("write", 0, 4 * 48),
            ("sync", 0, 0),
            ("write", 80_000, 40_000),
            ("sync", 0, 0),
            ("write", 4 * 48, 2 * 48),
            ("sync", 0, 0),
            ("write", 0, 60_000),
            ("sync", 0, 0),
            ("write", 0, 3 * 48),
            ("sync", 0, 0),
        ], "as many blocks as a run holds, no more than the chunk takes; bytes, then what vouches for them"
        for _ in range(2):
            ranges = await store.chunk_ranges(SEGMENT, 0, 180_000)
            assert [(item.start_offset, item.end_offset) for item in ranges] == [(0, 120_000), (120_000, 180_000)]
            assert [block.start_offset for item in ranges for block in item.blocks] == list(range(0, 180_000, 20_000))
            assert await content(store, SEGMENT) == bytes(180_000)
            store = await world.crash()

    run(body, containers=1, flush_bytes=20_000, tier_run_bytes=80_000, chunk_bytes=120_000)


@pytest.mark.parametrize("upto", [20_000, 50_000, 60_000])
def test_a_run_that_truncation_outruns_in_part_is_named_and_its_dead_head_given_back(upto: int) -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        one = await Writer(store, SEGMENT).setup()
        (container,) = store.containers
        async with container.tiering._lock:
            for number in range(4):
                await one.append(bytes([number]) * 20_000)
        gate = Gate(world)
        tiering = asyncio.ensure_future(container.tiering.tier(await container.segments.find_visible(SEGMENT)))
        await gate.reached.wait()
        await store.truncate(SEGMENT, upto)
        gate.opened.set()
        await tiering
        await world.settle()
        dead = upto // 20_000 * 20_000
        for _ in range(2):
            assert (await store.spaces([SEGMENT]))[SEGMENT].freed_bytes == dead
            rest = b"".join(bytes([number]) * 20_000 for number in range(4))[upto:]
            assert await content(store, SEGMENT) == rest
            store = await world.crash()

    run(body, containers=1, flush_bytes=20_000, free_head_bytes=20_000)


def test_full_blocks_are_tiered_at_once_and_the_rest_after_the_interval() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        one = await Writer(store, SEGMENT).setup()
        await one.append(bytes(20_000))
        memory = store._memory
        while memory.unflushed_bytes:
            await asyncio.sleep(0)
        started = asyncio.get_running_loop().time()
        await one.append(b"rest")
        assert memory.unflushed_bytes == 4
        while memory.unflushed_bytes:
            await asyncio.sleep(0)
        assert asyncio.get_running_loop().time() - started > 0.04

    run(body, flush_bytes=20_000, flush_interval_s=0.05)


def test_the_log_is_truncated_only_behind_what_is_tiered_and_checkpointed() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        await append(store, SEGMENT, b"kept")
        (container,) = store.containers
        await container.checkpointer.checkpoint()
        frames = len(world.log_state.frames)
        assert frames == 1, "the creation is in the rows, the append's bytes are in the log alone"
        await container.tiering.tier_all()
        assert len(world.log_state.frames) == frames, "tiered, but no row says so"
        store = await world.crash()
        assert await content(store, SEGMENT) == b"kept"
        assert store._memory.unflushed_bytes == 4
        await store.flush()
        assert not world.log_state.frames

    run(body, containers=1)


def test_recovery_takes_from_the_log_only_what_is_not_tiered() -> None:
    async def body(world: World) -> None:
        store = world.store
        other = "scope/other/0"
        await store.create_segment(SEGMENT)
        await store.create_segment(other)
        await append(store, other, b"untiered")
        await append(store, SEGMENT, b"tiered!")
        (container,) = store.containers
        await container.tiering.tier(await container.segments.find_visible(SEGMENT))
        await container.checkpointer.checkpoint()
        for _ in range(2):
            store = await world.crash()
            assert store._memory.unflushed_bytes == len(b"untiered")
            assert await content(store, SEGMENT) == b"tiered!"
            assert await content(store, other) == b"untiered"

    run(body, containers=1)


@pytest.mark.parametrize("change", ["merge", "delete", "truncate"])
@pytest.mark.parametrize("known", [False, True])
def test_a_change_outruns_a_write_in_flight(change: str, known: bool) -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        await store.create_segment(TXN)
        await append(store, SEGMENT, b"before ")
        one = await Writer(store, TXN).setup()
        if known:
            await one.append(b"first ")
            await store.flush()
        await one.append(b"second")
        length = (await store.info(TXN)).length
        gate = Gate(world)
        container = store._container(TXN)
        tiering = asyncio.ensure_future(container.tiering.tier(await container.segments.find_visible(TXN)))
        await gate.reached.wait()
        if change == "truncate":
            await store.truncate(TXN, length)
        elif change == "delete":
            await store.delete(TXN)
        else:
            await store.merge(SEGMENT, TXN)
        await container.checkpointer.checkpoint()
        await container.reclaimer.free()
        gate.opened.set()
        await asyncio.wait({tiering})
        await store.flush()
        text = b"before " + (b"first " if known else b"") + b"second" if change == "merge" else b"before "
        for _ in range(2):
            assert await content(store, SEGMENT) == text
            if change == "truncate":
                info = await store.info(TXN)
                assert (info.start_offset, info.length) == (length, length)
            else:
                with pytest.raises(SegmentNotFoundError):
                    await store.info(TXN)
            await store.flush()
            store = await world.crash()
        named = {item.name for item in await store.chunk_ranges(SEGMENT, 0, len(text))}
        assert set(chunk_names(world)) == named

    run(body, containers=1)


def test_a_deleted_segment_leaves_no_row_and_no_name() -> None:
    async def body(world: World) -> None:
        store = world.store
        before = list(world.keyvalue._values)
        await store.create_segment(SEGMENT)
        one = await Writer(store, SEGMENT).setup()
        await one.append(b"x" * 100)
        await store.update_attribute(SEGMENT, writer(9), 4, expected=NO_EVENT)
        await store.flush()
        await store.delete(SEGMENT)
        await world.settle()
        # The rows of the store, the container, the writers' floor with its copy, and the leases' mark are no segment's.
        rows = [
            key
            for key in world.keyvalue._values
            if key[:1] not in (b"S", b"c", b"o", b"L") and key[:1] + key[3:] != b"yo"
        ]
        assert (before, rows) == ([b"S", b"S+"], [])
        container = store._container(SEGMENT)
        assert not container.segments._names
        assert not container.segments.by_uid

    run(body)


def test_a_failing_tier_2_keeps_data_then_throttles_then_recovers(caplog) -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        one = await Writer(store, SEGMENT).setup()
        real = world.chunks.sync
        broken = True

        async def sync(name: str) -> None:
            if broken:
                raise OSError(5, "input/output error")
            await real(name)

        world.chunks.sync = sync
        for _ in range(5):
            await one.append(bytes(20_000))
        with pytest.raises(ThrottledError) as throttled:
            await one.append(b"x")
        assert throttled.value.fields["limit"] == 100_000
        while not world.telemetry.counts.get("tiering_failures"):
            await asyncio.sleep(0)
        assert len(await content(store, SEGMENT)) == 100_000
        assert await store.seal(SEGMENT) == 100_000, "what frees memory or ends a stream is not throttled"
        broken = False
        while store._memory.unflushed_bytes:
            await asyncio.sleep(0)
        assert len(await content(store, SEGMENT)) == 100_000
        await store.create_segment("another/one/0")
        await append(store, "another/one/0", b"goes on")
        store = await world.restart()
        assert len(await content(store, SEGMENT)) == 100_000
        await world.settle()
        named = {item.name for item in await store.chunk_ranges(SEGMENT, 0, 100_000)}
        named |= {item.name for item in await store.chunk_ranges("another/one/0", 0, 7)}
        assert set(chunk_names(world)) == named, "chunks that were given up are gone"

    with caplog.at_level(logging.WARNING):
        run(body, max_unflushed_bytes=100_000, flush_bytes=20_000, retry_min_s=0.001, retry_max_s=0.01)
    assert sum("tiering failed" in record.message for record in caplog.records) == 1


def test_a_chunk_is_not_written_again_after_a_failed_sync() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        one = await Writer(store, SEGMENT).setup()
        await one.append(b"good")
        await store.flush()
        (first,) = chunk_names(world)
        real = world.chunks.sync
        failures = 1

        async def sync(name: str) -> None:
            nonlocal failures
            if failures:
                failures -= 1
                raise OSError(5, "input/output error")
            await real(name)

        world.chunks.sync = sync
        await one.append(b"more")
        container = store._container(SEGMENT)
        with pytest.raises(OSError, match="input/output"):
            await container.tiering.tier_all()
        await container.tiering.tier_all()
        ranges = await store.chunk_ranges(SEGMENT, 0, 8)
        assert [(item.start_offset, item.end_offset) for item in ranges] == [(0, 4), (4, 8)]
        assert ranges[0].name == first != ranges[1].name

    run(body)


def test_an_evicted_segment_goes_on_in_its_chunk_and_a_recovered_one_does_not() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        await append(store, SEGMENT, b"one")
        await world.evict()
        await append(store, SEGMENT, b"two")
        await store.flush()
        assert len(chunk_names(world)) == 1
        store = await world.restart()
        await append(store, SEGMENT, b"six")
        await store.flush()
        assert len(chunk_names(world)) == 2
        assert await content(store, SEGMENT) == b"onetwosix"

    run(body)


def test_idle_segments_leave_memory() -> None:
    async def body(world: World) -> None:
        store = world.store
        for index in range(200):
            await store.create_segment(f"many/idle/{index}")
            await append(store, f"many/idle/{index}", b"%03d" % index)
        await store.flush()
        for container in store.containers:
            for _ in range(2):
                container.segments.evict_idle(10)
            assert len(list(container.segments.loaded())) == 10
        for index in range(200):
            assert await append(store, f"many/idle/{index}", b"!") == 4
            assert await content(store, f"many/idle/{index}") == b"%03d!" % index

    run(body)


def test_orphans_are_collected_and_nothing_else() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        await append(store, SEGMENT, b"named")
        await store.flush()
        await append(store, SEGMENT, b"not named")
        for container in store.containers:
            await container.tiering.tier_all()
        strangers = ["ff/1-1-0", "0/not-ours", "0/1-ffff-0"]
        for name in strangers:
            await world.chunks.append(name, 0, [b"?"])
        store = await world.crash()
        await world.settle()
        assert await content(store, SEGMENT) == b"namednot named"
        named = {item.name for item in await store.chunk_ranges(SEGMENT, 0, 14)}
        assert set(chunk_names(world)) == named | set(strangers)

    run(body)


def test_a_lease_holds_files_and_space_is_accounted_for() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        one = await Writer(store, SEGMENT).setup()
        for _ in range(4):
            await one.append(bytes(20_000))
        await store.flush()
        until = world.clock.ms + 50
        await store.lease_chunks([SEGMENT], writer(5), until_ms=until)
        await store.truncate(SEGMENT, 50_000)
        await store.flush()
        assert len(chunk_names(world)) == 4
        space = (await store.spaces([SEGMENT, "absent"]))[SEGMENT]
        assert (space.live_bytes, space.tiered_bytes) == (30_000, 30_000)
        assert (space.pending_free_bytes, space.freed_bytes) == (50_000, 0)
        store = await world.crash()
        await store.flush()
        assert len(chunk_names(world)) == 4, "a lease outlives a crash"
        assert (await store.spaces([SEGMENT]))[SEGMENT].pending_free_bytes == 50_000
        world.clock.ms += 1_000_000
        await store.flush()
        if len(chunk_names(world)) == 4:  # The wall clock jumped: the lease's real time has to pass as well.
            deadline = asyncio.get_running_loop().time() + 0.06
            while asyncio.get_running_loop().time() < deadline:
                await asyncio.sleep(0)
            await store.flush()
        assert len(chunk_names(world)) == 2
        space = (await store.spaces([SEGMENT]))[SEGMENT]
        assert (space.pending_free_bytes, space.freed_bytes) == (10_000, 40_000)
        await store.lease_chunks([SEGMENT], writer(6), until_ms=world.clock.ms + 1000)
        await store.delete(SEGMENT)
        await store.flush()
        assert len(chunk_names(world)) == 2
        await store.release_lease(writer(6))
        await store.flush()
        assert chunk_names(world) == []
        assert await store.lease_chunks([SEGMENT], writer(6), until_ms=world.clock.ms + 1000) == Leased()

    run(body, chunk_bytes=20_000, flush_bytes=20_000)


def test_a_lease_ends_only_when_both_clocks_say_so() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        await append(store, SEGMENT, b"held")
        await store.flush()
        await store.lease_chunks([SEGMENT], writer(5), until_ms=world.clock.ms + 3_600_000)
        await store.delete(SEGMENT)
        world.clock.ms += 7_200_000
        await store.flush()
        assert len(chunk_names(world)) == 1, "the wall clock jumped, an hour has not passed"
        store = await world.crash()
        await store.flush()
        assert chunk_names(world) == []

    run(body, max_lease_ms=3_600_000)


def test_a_lease_follows_a_merge() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        await store.create_segment(TXN)
        await append(store, TXN, b"leased")
        await store.flush()
        await store.lease_chunks([TXN], writer(5), until_ms=world.clock.ms + 1000)
        await store.merge(SEGMENT, TXN)
        await store.truncate(SEGMENT, 6)
        await store.flush()
        assert len(chunk_names(world)) == 1
        store = await world.crash()
        await store.flush()
        assert len(chunk_names(world)) == 1
        await store.release_lease(writer(5))
        store = await world.crash()
        await world.settle()
        assert chunk_names(world) == []

    run(body)


def test_a_merge_during_the_search_for_orphans_hides_nothing() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        await store.create_segment(TXN)
        await append(store, TXN, b"moves")
        await store.flush()
        await store.close()
        started, go_on = asyncio.Event(), asyncio.Event()
        real = world.keyvalue.scan

        async def scan(start, end, *, limit, reverse=False):
            found = await real(start, end, limit=limit, reverse=reverse)
            if start[:1] == b"k" and len(start) == 3:
                started.set()
                await go_on.wait()
                return []  # As if the row had been on a page read before, and moved to one read after.
            return found

        world.keyvalue.scan = scan
        store = await world.open()
        await started.wait()
        await store.merge(SEGMENT, TXN)
        await store.flush()
        go_on.set()
        world.keyvalue.scan = real
        await world.settle()
        store = await world.restart()
        assert await content(store, SEGMENT) == b"moves"

    run(body, containers=1)


def test_leases_are_bounded() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        with pytest.raises(InvalidArgumentError):
            await store.lease_chunks([SEGMENT], writer(1), until_ms=world.clock.ms + 1001)
        for number in (1, 2, 2, 1):
            assert (await store.lease_chunks([SEGMENT], writer(number), until_ms=world.clock.ms + 1000)).granted
        refused = await store.lease_chunks([SEGMENT], writer(3), until_ms=world.clock.ms + 1)
        assert refused == Leased(refused=(SEGMENT,))

    run(body, max_leases=2, max_lease_ms=1000)


def test_a_lease_counts_once_whatever_it_holds() -> None:
    async def body(world: World) -> None:
        store, until_ms = world.store, world.clock.ms + 1000
        names = [f"s/many/{number}.#epoch.0" for number in range(5)]
        for name in names:
            await store.create_segment(name)
        leased = await store.lease_chunks(names[:3], writer(1), until_ms=until_ms)
        assert leased == Leased(granted=tuple(names[:3]))
        assert (await store.lease_chunks([names[3]], writer(2), until_ms=until_ms)).granted
        assert await store.lease_chunks([names[4]], writer(3), until_ms=until_ms) == Leased(refused=(names[4],))
        renewed = await store.lease_chunks([names[4], "s/none/0.#epoch.0", names[0]], writer(1), until_ms=until_ms)
        assert renewed == Leased(granted=(names[0],), refused=(names[4],), renewed=True), (
            "what is held is renewed beside a refusal"
        )
        store = await world.crash()
        await store.release_lease(writer(1))
        assert (await store.lease_chunks([names[4]], writer(3), until_ms=until_ms)).granted

    run(body, containers=1, max_leases=2, max_leased_segments=4)


def test_a_lease_ends_with_the_last_part_of_its_work() -> None:
    async def body(world: World) -> None:
        store, lease = world.store, writer(1)
        await store.create_segment(SEGMENT)
        await store.lease_chunks([SEGMENT], lease, until_ms=world.clock.ms + 1000)
        (leases,) = [container.leases for container in store.containers]
        for part in (2, 0, 0, 2):
            await store.finish_lease_part(lease, part, 3)
            assert list(leases)
        await store.finish_lease_part(lease, 1, 3)
        assert not list(leases)
        # Parts that come late, or twice, count for nothing; nor do those of the lease that was released.
        await store.finish_lease_part(lease, 1, 3)
        await store.lease_chunks([SEGMENT], lease, until_ms=world.clock.ms + 1000)
        await store.finish_lease_part(lease, 1, 2)
        assert list(leases)
        with pytest.raises(InvalidArgumentError):
            await store.finish_lease_part(lease, 3, 3)

    run(body, containers=1)


def test_dead_heads_are_given_back_by_whole_blocks() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        one = await Writer(store, SEGMENT).setup()
        for index in range(4):
            await one.append(bytes([65 + index]) * 20_000)
            await store.flush()
        await store.truncate(SEGMENT, 45_000)
        await store.flush()
        (name,) = chunk_names(world)
        assert world.chunks._chunks[name].freed == 40_000
        space = (await store.spaces([SEGMENT]))[SEGMENT]
        assert (space.live_bytes, space.pending_free_bytes, space.freed_bytes) == (35_000, 5_000, 40_000)
        store = await world.restart()
        assert await content(store, SEGMENT) == b"C" * 15_000 + b"D" * 20_000
        await store.truncate(SEGMENT, 80_000)
        await store.flush()
        assert chunk_names(world) == []
        assert (await store.spaces([SEGMENT]))[SEGMENT].freed_bytes == 80_000

    run(body, free_head_bytes=10_000)


def test_a_merge_is_remembered_for_a_while() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        child = await store.create_transient(SEGMENT, writer(3))
        assert child.startswith(SEGMENT + "#transient." + writer(3).hex)
        await append(store, child, b"child")
        both = await asyncio.gather(store.merge(SEGMENT, child), store.merge(SEGMENT, child))
        assert both == [5, 5]
        for _ in range(2):
            store = await world.crash()
            assert await store.merge(SEGMENT, child) == 5
            await store.flush()
        world.clock.ms += world.settings.merge_memory_ms + 1
        await store._container(SEGMENT).reclaimer.forget_merges()
        assert await store.merge(SEGMENT, child) == 5, "the wall clock jumped, a day has not passed"
        store = await world.crash()
        await store._container(SEGMENT).reclaimer.forget_merges()
        with pytest.raises(SegmentNotFoundError):
            await store.merge(SEGMENT, child)
        with pytest.raises(SegmentNotFoundError):
            await store.create_transient("no/such/parent", writer(3))
        with pytest.raises(InvalidArgumentError):
            await store.merge(SEGMENT, SEGMENT)

    run(body)


def test_merges_wait_for_neither_tiering_nor_each_other() -> None:
    async def body(world: World) -> None:
        """A target with bytes not tiered, a source partly tiered, appends before and after, all at once."""
        store = world.store
        await store.create_segment(SEGMENT)
        await store.create_segment(TXN)
        one = await Writer(store, TXN).setup()
        await one.append(b"(tiered)")
        await store.flush()
        await one.append(b"(untiered)")
        parent = await Writer(store, SEGMENT).setup()
        results: list = []
        parent.submit(b"before", results)
        merging = asyncio.ensure_future(store.merge(SEGMENT, TXN))
        await asyncio.sleep(0)
        parent.submit(b"after", results)
        assert await merging == 24
        while len(results) < 2:
            await asyncio.sleep(0)
        assert results == [Appended(end_offset=6), Appended(end_offset=29)]
        text = b"before(tiered)(untiered)after"
        assert await content(store, SEGMENT) == text
        assert not await store.chunk_ranges(SEGMENT, 0, 29), "a gap ends the tiered part"
        (container,) = store.containers
        await container.checkpointer.checkpoint()
        store = await world.crash()
        assert await content(store, SEGMENT) == text
        await store.flush()
        assert sum(item.end_offset - item.start_offset for item in await store.chunk_ranges(SEGMENT, 0, 29)) == 29
        store = await world.restart()
        assert await content(store, SEGMENT) == text

    run(body, containers=1)


def test_a_full_log_refuses_everything_queued_and_then_goes_on() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        one = await Writer(store, SEGMENT).setup()
        await one.append(b"kept")
        world.log_state.full = True
        results: list = []
        before = one.last
        for _ in range(3):
            one.submit(b"lost", results)
        creating = asyncio.ensure_future(store.create_segment("not/made/0"))
        deleting = asyncio.ensure_future(store.delete(SEGMENT))
        await asyncio.wait({creating, deleting})
        assert [type(result) for result in results] == [StorageFullError] * 3
        assert isinstance(creating.exception(), StorageFullError)
        assert isinstance(deleting.exception(), StorageFullError)
        assert await content(store, SEGMENT) == b"kept"
        world.log_state.full = False
        one.last = before
        while True:
            try:
                assert await one.append(b"!") == 5
                break
            except StorageFullError:
                await asyncio.sleep(0.001)  # The log is asked again after a pause.
        await store.create_segment("not/made/0")
        assert store._memory.queued_bytes == 0
        store = await world.crash()
        assert await content(store, SEGMENT) == b"kept!"

    run(body, containers=1, retry_min_s=0.001)


def test_a_failed_log_takes_the_container_offline_for_good() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        one = await Writer(store, SEGMENT).setup()
        world.log_state.fail_with = OSError(5, "input/output error")
        results: list = []
        one.submit(b"a", results)
        one.submit(b"b", results)
        while len(results) < 2:
            await asyncio.sleep(0)
        one.submit(b"c", results)
        assert len(results) == 2, "an answer never comes from within the call"
        await asyncio.sleep(0)
        assert [type(result) for result in results] == [ContainerOfflineError] * 3
        for call in (
            store.info(SEGMENT),
            store.read(SEGMENT, 0, 1),
            store.seal(SEGMENT),
            store.create_segment("x/y/0"),
        ):
            with pytest.raises(ContainerOfflineError):
                await call
        store = await world.crash()
        assert await content(store, SEGMENT) == b""

    run(body, containers=1)


def test_a_fenced_store_acknowledges_nothing() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        one = await Writer(store, SEGMENT).setup()
        MemoryLog(world.log_state)
        with pytest.raises(ContainerOfflineError):
            await one.append(b"zombie")
        store = await world.crash()
        assert await content(store, SEGMENT) == b""

    run(body)


def test_a_bug_in_background_work_stops_the_container_loudly(caplog) -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        container = store._container(SEGMENT)

        async def broken(segment, *, least_bytes: int) -> None:
            raise ValueError("a bug")

        container.tiering.tier = broken
        await append(store, SEGMENT, bytes(20_000))
        while container._offline is None:
            await asyncio.sleep(0)
        with pytest.raises(ContainerOfflineError):
            await append(store, SEGMENT, b"x", 2)
        assert world.telemetry.counts["containers_offline"] == 1

    run(body, flush_bytes=20_000)
    assert any("container went offline" in record.message for record in caplog.records)


def test_a_failed_checkpoint_is_tried_again_and_loses_nothing() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        await append(store, SEGMENT, b"abc")
        real = world.keyvalue.commit
        failures = 2

        async def commit(puts, deletes=(), *, delete_ranges=()) -> None:
            nonlocal failures
            if failures:
                failures -= 1
                raise StorageFullError("disk is full")
            await real(puts, deletes, delete_ranges=delete_ranges)

        world.keyvalue.commit = commit
        container = store._container(SEGMENT)
        container.checkpointer.ask()
        while container.log_free_upto() == 0:
            if world.telemetry.counts.get("checkpoint_failures", 0) >= 2 and container.checkpointer._complete_upto:
                break
            await asyncio.sleep(0)
        assert world.telemetry.counts["checkpoint_failures"] == 2
        await store.delete(SEGMENT)
        await store.create_segment(SEGMENT)
        await append(store, SEGMENT, b"new")
        store = await world.restart()
        assert await content(store, SEGMENT) == b"new"

    run(body, retry_min_s=0.001, retry_max_s=0.01)


def test_what_a_container_at_rest_writes_next_does_not_keep_the_frames_of_others_before_it() -> None:
    """A log that waited for each container's next checkpoint, seconds away, stood still once others had filled it."""

    async def body(world: World) -> None:
        store = world.store
        names = [f"scope/stream/{number}.#epoch.0" for number in range(40)]
        resting = names[0]
        busy = next(name for name in names if store._container(name) is not store._container(resting))
        for name in (resting, busy):
            await store.create_segment(name)
        await append(store, resting, b"before")
        await store.flush()
        for number in range(20):
            await append(store, busy, b"%2d" % number)
        await append(store, resting, b"after")
        last = store._container(busy)
        await last.tiering.tier_all()
        await last.checkpointer.checkpoint()
        (left,) = world.log_state.frames
        assert b"after" in left[1]
        await world.crash()
        assert await content(world.store, resting) == b"beforeafter"
        assert len(await content(world.store, busy)) == 40

    for catalogue in (False, True):
        run(body, containers=4, catalogue=catalogue)


def test_a_store_is_not_opened_with_another_log_or_other_containers() -> None:
    async def body(world: World) -> None:
        await world.store.create_segment(SEGMENT)
        await world.store.close()
        world.log_state.epoch = 0
        with pytest.raises(CorruptDataError):
            await world.open()
        world.log_state.epoch = 50
        settings, world.settings = world.settings, type(world.settings)(containers=3)
        with pytest.raises(InvalidArgumentError):
            await world.open()
        world.settings = settings
        assert (await (await world.open()).info(SEGMENT)).length == 0

    run(body)


def test_log_bytes_make_everyone_tier_and_checkpoint() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment("quiet/one/0")
        await append(store, "quiet/one/0", b"old")
        await store.create_segment(SEGMENT)
        one = await Writer(store, SEGMENT).setup()
        for _ in range(20):
            await one.append(bytes(10_000))
        while sum(len(frame) for _, frame in world.log_state.frames) > 100_000:
            await asyncio.sleep(0)
        assert all(address > 3 for address, _ in world.log_state.frames), "the quiet segment holds the log no more"

    run(body, checkpoint_bytes=50_000)
