"""Kept bytes: through a crash at any moment, in accounts that add up, counted and limited exactly."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_world import World, Writer, append, content, run, world, writer

from penstock.codec.events import frame_events
from penstock.codec.store import rows as records
from penstock.model.errors import CorruptDataError, TruncatedError, UnsupportedError
from penstock.ports.data.limits import AppendLimit
from penstock.segmentstore.tiering.event_counts import events_before
from penstock.storage.chunks.file_chunks import FileChunks
from penstock.storage.machine.disk import FileDisk
from penstock.storage.machine.files import RealFiles
from penstock.storage.memory.memory_chunks import MemoryChunks
from penstock.storage.memory.memory_keyvalue import MemoryKeyValue
from penstock.storage.memory.memory_log import MemoryLog
from penstock.testing.fakes import FakeClock, InlineOffload
from penstock.testing.simulation.machine.files import SimDisk, SimFiles

SEGMENT = "s/t/0.#epoch.0"
TXN = SEGMENT + "#transaction." + "a" * 32


# --- crashes ----------------------------------------------------------------------------------------------


class Stop:
    """Stops the task that does a chosen step on a disk, for good. Steps are counted from when ``left`` is set."""

    def __init__(self) -> None:
        self.left = 1 << 30
        self.reached = asyncio.Event()
        self.over = asyncio.Event()

    async def __call__(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.reached.set()
        if self.left <= 0:
            await self.over.wait()  # The task that waited for it has ended by then.


class StoppingWorld(World):
    def __init__(self, **settings) -> None:
        super().__init__(**settings)
        self.stop = Stop()
        self.keyvalue = MemoryKeyValue(pause=self.pause)
        self.chunks = MemoryChunks(pause=self.pause)

    async def pause(self) -> None:
        await self.stop()

    def make_log(self) -> MemoryLog:
        return MemoryLog(self.log_state, pause=self.pause)


TEXT = b"".join(frame_events([b"%04d" % number]) for number in range(20))
STEPS = [
    ("truncate", 60),
    ("flush",),
    ("release", 24),
    ("restore", 36),
    ("flush",),
    ("truncate", 120),
    ("release", 120),
    ("truncate", 180),
    ("restore", 144),
    ("flush",),
    ("release", 140),
    ("seal",),
    ("truncate", 240),
    ("flush",),
    ("restore", 0),
    ("flush",),
]


def places_after(count: int) -> tuple[int, int]:
    """Where kept and readable bytes begin after so many steps, by a slow rule."""
    kept = start = 0
    for what, *offset in STEPS[:count]:
        if what == "truncate":
            start = max(start, offset[0])
        elif what == "release":
            kept = max(kept, offset[0])
        elif what == "restore":
            start = min(start, max(kept, offset[0]))
    return kept, start


@pytest.mark.parametrize("loses_unsynced", [False, True])
def test_a_crash_at_any_step_leaves_a_call_done_or_not_done(loses_unsynced: bool) -> None:
    async def crash_at(at: int) -> bool:
        world = StoppingWorld(containers=1, flush_bytes=30, chunk_bytes=60, free_head_bytes=1)
        store = await world.open()
        done = 0

        async def play() -> None:
            nonlocal done
            await store.create_segment(SEGMENT)
            one = await Writer(store, SEGMENT).setup()
            for start in range(0, len(TEXT), 12):
                await one.append(TEXT[start : start + 12])
            world.stop.left = at
            for what, *offset in STEPS:
                if what == "flush":
                    await store.flush()
                elif what == "seal":
                    await store.seal(SEGMENT)
                else:
                    await getattr(store, what)(SEGMENT, *offset, **({"keep": True} if what == "truncate" else {}))
                done += 1

        playing = asyncio.ensure_future(play())
        stopped = asyncio.ensure_future(world.stop.reached.wait())
        await asyncio.wait({playing, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finished = playing.done()
        playing.cancel()
        stopped.cancel()
        await asyncio.wait({playing})
        world.stop.left = 1 << 30
        await store.close(checkpoint=False)
        world.stop.over.set()
        await store._log.close()
        if loses_unsynced:
            world.chunks.lose_unsynced()
        for _ in range(2):
            store = await world.open()
            try:
                await check(store, done)
            finally:
                await store.close(checkpoint=False)
        store = await world.open()
        await world.settle()
        await check(store, done)
        space = (await store.spaces([SEGMENT]))[SEGMENT]
        assert space.pending_free_bytes == space.kept_bytes + space.partial_bytes
        await store.close(checkpoint=False)
        return finished

    async def check(store, done: int) -> None:
        info = await store.info(SEGMENT)
        kept = info.start_offset if info.kept_offset is None else info.kept_offset
        allowed = {places_after(done), places_after(min(len(STEPS), done + 1))}
        assert (kept, info.start_offset) in allowed
        assert await content(store, SEGMENT) == TEXT[info.start_offset :]
        first = -(-kept // 12) * 12
        assert await store.count_events(SEGMENT, first, len(TEXT)) == (len(TEXT) - first) // 12
        if kept:
            with pytest.raises(TruncatedError):
                await store.count_events(SEGMENT, kept - 1, len(TEXT))

    async def main() -> None:
        async with asyncio.timeout(60):
            at = 1
            while not await crash_at(at):
                at += 1
            assert at > len(STEPS), "there were steps to crash at"

    asyncio.run(main())


def test_kept_bytes_that_are_not_tiered_are_tiered_and_come_back() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        one = await Writer(store, SEGMENT).setup()
        for number in range(4):
            await one.append(b"%d" % number * 1000)
        await store.truncate(SEGMENT, 3500, keep=True)
        assert store._memory.unflushed_bytes == 4000, "they may be restored, so they must reach the disk"
        store = await world.crash()
        assert store._memory.unflushed_bytes == 4000
        await store.flush()
        assert not world.log_state.frames
        space = (await store.spaces([SEGMENT]))[SEGMENT]
        assert (space.live_bytes, space.tiered_bytes, space.kept_bytes) == (500, 500, 3500)
        assert (space.pending_free_bytes, space.partial_bytes, space.leased_bytes) == (3500, 0, 0)
        store = await world.blackout()
        assert await store.restore(SEGMENT, 1500) == 1500
        assert await content(store, SEGMENT) == b"1" * 500 + b"2" * 1000 + b"3" * 1000

    run(body)


def test_kept_bytes_that_live_in_the_log_alone_are_found_again_or_missed() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        one = await Writer(store, SEGMENT).setup()
        for number in range(4):
            await one.append(b"%d" % number * 1000)
        await store.truncate(SEGMENT, 3500, keep=True)
        for container in store.containers:
            await container.checkpointer.checkpoint()
        store = await world.crash()
        assert await store.restore(SEGMENT, 0) == 0
        assert await content(store, SEGMENT) == b"".join(b"%d" % number * 1000 for number in range(4))
        await store.truncate(SEGMENT, 3500, keep=True)
        for container in store.containers:
            await container.checkpointer.checkpoint()
        await store.close(checkpoint=False)
        frames = list(world.log_state.frames)
        world.log_state.frames.clear()
        world.log_state.frames.extend(item for item in frames if b"1111" not in item[1])
        # Bytes behind the gap are there, so the store starts; it refuses the gap and nothing else.
        store = await world.open()
        assert await store.restore(SEGMENT, 0) == 0
        with pytest.raises(CorruptDataError):
            await content(store, SEGMENT)
        assert bytes((await store.read(SEGMENT, 3500, 100, wait=False)).parts[0])[:10] == b"3" * 10

    run(body, containers=1)


def test_blocks_tell_where_events_begin_behind_a_large_one() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        await append(store, SEGMENT, frame_events([b"a"]))
        large = frame_events([bytes(400)])
        part = await store.create_transient(SEGMENT, writer(5))
        one = await Writer(store, part, 6).setup()
        for start in range(0, len(large), 150):
            await one.append(large[start : start + 150])
        end = await store.merge(SEGMENT, part)
        for number in range(7, 12):
            await append(store, SEGMENT, frame_events([b"b"]), number)
        for _ in range(2):
            assert await store.next_event_boundary(SEGMENT, 10) == end
            assert await store.count_events(SEGMENT, 9, end) == 1
            assert await store.count_events(SEGMENT, end, end + 27) == 3
            await store.flush()
        (ranges,) = [await store.chunk_ranges(SEGMENT, 0, end + 45)]
        blocks = [block for item in ranges for block in item.blocks]
        assert end in [block.start_offset for block in blocks]
        for block in blocks:
            begins = block.start_offset in (0, 9, *range(end, end + 45, 9))
            assert begins == (block.event_count > 0), "what goes on with an event has none of its own"

    run(body, flush_bytes=200)


def test_kept_bytes_are_given_back_without_another_write_even_after_a_restart() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        one = await Writer(store, SEGMENT).setup()
        for number in range(4):
            await one.append(b"%d" % number * 1000)
            await store.flush()
        await store.truncate(SEGMENT, 2000, keep=True)
        await store.release(SEGMENT, 2000)
        for container in store.containers:
            await container.checkpointer.checkpoint()  # And the crash comes before anything is freed.
        store = await world.crash()
        await store.info(SEGMENT)
        await store.flush()
        (name,) = [name for name in await world.chunks.list() if not name.endswith(".idx")]
        assert world.chunks._chunks[name].freed == 2000
        assert (await store.spaces([SEGMENT]))[SEGMENT].freed_bytes == 2000

    run(body, free_head_bytes=1000)


# --- accounts ---------------------------------------------------------------------------------------------

PAGE = 16_384
"""Whole pages, and large enough that each append is a block of its own."""


class Disk:
    """A store on real files, and what ``du`` says of its chunks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = RealFiles(path, InlineOffload())
        self.clock = FakeClock()
        self.keyvalue = MemoryKeyValue()

    @asynccontextmanager
    async def open(self, **settings):
        world = World(clock=self.clock, **settings)
        world.keyvalue, world.chunks = self.keyvalue, FileChunks(self.files)
        world.options["disk"] = FileDisk(self.files)
        async with world.opened() as store:
            yield store
        await world.chunks.close()

    def used(self) -> tuple[int, int]:
        """What ``du`` counts of the data, and of the sidecars.

        Without the page that ext4 takes for the map of a file in more than four pieces, as it does on a disk that is full of holes.
        """
        sizes = [0, 0]
        for folder, _, names in os.walk(self.path / "chunks"):
            for name in names:
                path = Path(folder) / name
                sizes[name.endswith(".idx")] += min(os.stat(path).st_blocks * 512, _data_bytes(path))
        return sizes[0], sizes[1]


def _data_bytes(path: Path) -> int:
    """The bytes of a file, in whole pages, that lie in no hole."""
    total, end = 0, path.stat().st_size
    with path.open("rb") as file:
        at = 0
        while at < end:
            try:
                start = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                break
            at = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            total += -(-at // PAGE) * PAGE - start // PAGE * PAGE
    return total


def test_freed_and_pending_add_up_to_what_du_loses(tmp_path: Path) -> None:
    """Of data that fill whole pages, exactly; sidecars, a page for each chunk, go with them."""

    async def main() -> None:
        disk = Disk(tmp_path)
        async with disk.open(flush_bytes=PAGE, chunk_bytes=8 * PAGE, free_head_bytes=2 * PAGE) as store:
            names = [SEGMENT, "s/t/1.#epoch.0"]
            for name in names:
                await store.create_segment(name)
                one = await Writer(store, name).setup()
                for _ in range(40):
                    await one.append(os.urandom(PAGE))
            await store.flush()
            before, _ = disk.used()
            if before > 80 * PAGE:
                pytest.skip("the file system takes more than is written")
            assert before == 80 * PAGE
            freed_before = 0

            async def account(**expected: int) -> None:
                nonlocal freed_before
                spaces = await store.spaces(names)
                freed = sum(space.freed_bytes for space in spaces.values()) + freed_of_deleted
                pending = sum(space.pending_free_bytes for space in spaces.values())
                live = sum(space.tiered_bytes for space in spaces.values())
                used = disk.used()[0]
                assert before - used == freed, "freed is what du has lost"
                assert live + pending == used, "pending is what it will lose"
                reported = {name: sum(getattr(space, name) for space in spaces.values()) for name in expected}
                assert reported == expected
                freed_before = freed

            freed_of_deleted = 0
            await account(pending_free_bytes=0)
            await store.truncate(SEGMENT, 21 * PAGE + 5, keep=True)
            await account(kept_bytes=21 * PAGE + 5, leased_bytes=0, partial_bytes=0)
            await store.flush()
            await account(kept_bytes=21 * PAGE + 5, freed_bytes=0)
            until = disk.clock.ms + 60_000
            await store.lease_chunks([SEGMENT], writer(1), until_ms=until)
            await store.release(SEGMENT, 21 * PAGE + 5)
            await store.flush()
            await account(kept_bytes=0, leased_bytes=21 * PAGE, partial_bytes=5, freed_bytes=0)
            assert (await store.spaces(names))[SEGMENT].leased_until_ms == until
            await store.release_lease(writer(1))
            await account(leased_bytes=0, partial_bytes=5, pending_free_bytes=21 * PAGE + 5)
            await store.flush()
            await account(partial_bytes=5, pending_free_bytes=5, freed_bytes=21 * PAGE)
            await store.truncate(SEGMENT, 22 * PAGE)
            await store.flush()
            await account(partial_bytes=PAGE, pending_free_bytes=PAGE, freed_bytes=21 * PAGE)
            await store.lease_chunks([names[1]], writer(2), until_ms=until)
            await store.delete(names[1])
            await store.flush()
            await account(leased_bytes=40 * PAGE, pending_free_bytes=41 * PAGE)
            space = (await store.spaces(names))[names[1]]
            assert (space.live_bytes, space.pending_free_bytes, space.leased_until_ms) == (0, 40 * PAGE, until)
            await store.release_lease(writer(2))
            await store.flush()
            freed_of_deleted = 40 * PAGE
            await account(pending_free_bytes=PAGE, freed_bytes=21 * PAGE)
            assert list(await store.spaces(names)) == [SEGMENT]
            ranges = await store.chunk_ranges(SEGMENT, 22 * PAGE, 40 * PAGE)
            assert len(list((tmp_path / "chunks").rglob("*.idx"))) == len(ranges)

    asyncio.run(main())


def test_the_disk_is_measured(tmp_path: Path) -> None:
    async def main() -> None:
        disk = Disk(tmp_path)
        async with disk.open() as store:
            before = await store.disk()
            await store.create_segment(SEGMENT)
            await append(store, SEGMENT, os.urandom(10 * PAGE))
            await store.flush()
            after = await store.disk()
        assert after.used_bytes - before.used_bytes > 10 * PAGE
        assert 0 < after.free_bytes <= after.total_bytes
        status = os.statvfs(tmp_path)
        assert after.total_bytes == status.f_blocks * status.f_frsize
        assert after.budget_bytes is None
        limited = await FileDisk(disk.files, budget_bytes=after.used_bytes + 5).space()
        assert (limited.free_bytes, limited.budget_bytes) == (5, after.used_bytes + 5)
        assert (await FileDisk(disk.files, budget_bytes=1).space()).free_bytes == 0

    asyncio.run(main())


def test_a_simulated_disk_is_measured_too() -> None:
    async def main() -> None:
        disk = SimDisk(random.Random(0), capacity_bytes=10_000)
        files = SimFiles(disk)
        file = await files.open("a", create=True)
        await file.write_at(0, [bytes(1000)])
        space = await FileDisk(files).space()
        assert (space.total_bytes, space.used_bytes, space.free_bytes) == (10_000, 1000, 9000)

    asyncio.run(main())


def test_a_store_without_a_disk_says_so() -> None:
    async def body(world: World) -> None:
        with pytest.raises(UnsupportedError):
            await world.store.disk()

    run(body)


def test_rows_of_an_earlier_version_find_their_segment() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        await append(store, SEGMENT, bytes(5000))
        await append(store, SEGMENT, bytes(5000))
        await store.flush()
        await store.lease_chunks([SEGMENT], writer(1), until_ms=world.clock.ms + 1000)
        await store.truncate(SEGMENT, 5000)
        await store.flush()
        rows = await world.keyvalue.scan(b"p", b"q", limit=10)
        assert [records.decode_free(value).segment for _, value in rows] == [SEGMENT]
        await store.close()
        await world.keyvalue.commit([(key, value[:16]) for key, value in rows])
        store = await world.open()
        assert (await store.spaces([SEGMENT]))[SEGMENT].leased_bytes == 5000

    run(body, flush_bytes=5000, chunk_bytes=5000)


# --- counts -----------------------------------------------------------------------------------------------

EVENTS = st.lists(st.binary(max_size=30), min_size=1, max_size=20)


@given(events=EVENTS, data=st.data())
def test_events_before_a_place_are_those_that_begin_there(events, data) -> None:
    block = frame_events(events)
    places = data.draw(st.lists(st.integers(0, len(block)), max_size=4))
    begins = [sum(len(event) + 8 for event in events[:index]) for index in range(len(events))]
    expected = [sum(begin < place for begin in begins) for place in places]
    assert events_before(block, len(events), places) == expected


@given(data=st.binary(min_size=1, max_size=100), events=st.integers(0, 5), first=st.integers(0, 100))
def test_bytes_without_headers_count_in_proportion(data: bytes, events: int, first: int) -> None:
    first = min(first, len(data))
    raw = b"\xff" + data
    low, high = events_before(raw, events, [first, len(raw)])
    assert 0 <= low <= high == events
    assert low == events * first // len(raw)


def test_counts_do_not_read_what_they_know() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        one = await Writer(store, SEGMENT).setup()
        block = frame_events([b"x" * 92] * 10)
        for _ in range(30):
            await one.append(block, count=10)
        await store.flush()
        store = await world.restart()
        reads = []
        real = world.chunks.read

        async def read(name, offset, length):
            reads.append((name, length))
            return await real(name, offset, length)

        world.chunks.read = read
        assert await store.count_events(SEGMENT, 0, 30_000) == 300
        assert await store.count_events(SEGMENT, 5_000, 25_000) == 200
        assert not reads, "whole blocks are known by their rows, whole chunks by theirs"
        for _ in range(3):
            assert await store.count_events(SEGMENT, 1_500, 28_700) == 272
        assert len(reads) == 2, "each block that is cut is read once"
        segment = await store._container(SEGMENT).segments.find_visible(SEGMENT)
        loaded = [chunk for chunk in segment.chunks.items if chunk.blocks is not None]
        assert len(loaded) <= 4, "blocks of the chunks between are not kept in memory"

    run(body, flush_bytes=1000, chunk_bytes=5000, containers=1)


def test_chunks_of_an_earlier_version_are_counted_by_their_blocks() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        one = await Writer(store, SEGMENT).setup()
        for _ in range(6):
            await one.append(bytes(1000), count=3)
        await store.close()
        rows = await world.keyvalue.scan(b"k", b"l", limit=100)
        old = [(key, b"\1" + value[1:21] + value[29:]) for key, value in rows]
        assert [records.decode_chunk(value).event_count for _, value in old] == [None] * len(old)
        await world.keyvalue.commit(old)
        store = await world.open()
        for _ in range(2):
            assert await store.count_events(SEGMENT, 0, 6000) == 18

    run(body, flush_bytes=1000, chunk_bytes=2000, containers=1)


def test_counting_goes_on_while_chunks_go() -> None:
    """Whatever is truncated, merged or deleted meanwhile: a right count, or a typed error."""

    async def main() -> None:
        async with world(containers=1, flush_bytes=100, chunk_bytes=300, free_head_bytes=1) as made:
            store = made.store
            await store.create_segment(SEGMENT)
            one = await Writer(store, SEGMENT).setup()
            for _ in range(60):
                await one.append(frame_events([b"x" * 12]))
            await store.flush()
            await made.evict()
            for start in range(0, 1000, 100):
                counting = asyncio.ensure_future(store.count_events(SEGMENT, start, 1200))
                for _ in range(start // 100 % 4):
                    await asyncio.sleep(0)
                await store.truncate(SEGMENT, start + 100)
                flushing = asyncio.ensure_future(store.flush())
                (count,) = await asyncio.gather(counting, return_exceptions=True)
                if isinstance(count, TruncatedError):
                    count = (1200 - count.start_offset + 100) // 20
                assert count == (1200 - start) // 20
                await flushing

    asyncio.run(main())


# --- changes and limits -----------------------------------------------------------------------------------


def test_changes_are_bounded_and_say_when_they_were_too_many() -> None:
    async def body(world: World) -> None:
        store = world.store
        names = [f"s/t/{number}.#epoch.0" for number in range(7)]
        for name in names:
            await store.create_segment(name)
        mark = (await store.changed_segments(0)).mark
        for name in names[:3]:
            await append(store, name, b"x")
        found = await store.changed_segments(mark)
        assert (found.complete, list(found.names)) == (True, names[:3])
        for name in names[:3]:
            await append(store, name, b"x", number=2)
        found = await store.changed_segments(found.mark)
        assert (found.complete, list(found.names)) == (True, names[:3])
        for name in names:
            await append(store, name, b"x", number=3)
        found = await store.changed_segments(found.mark)
        assert (found.complete, list(found.names)) == (False, [])
        await append(store, names[5], b"x", number=4)
        found = await store.changed_segments(found.mark)
        assert (found.complete, list(found.names)) == (True, [names[5]])
        mark = found.mark
        store = await world.restart()
        assert not (await store.changed_segments(mark)).complete, "a mark of before a restart is none of now"

    run(body, max_changed_segments=6)


def test_a_limit_counts_what_a_full_log_takes_back_as_never_queued() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        one = await Writer(store, SEGMENT).setup()
        await store.limit_appends([AppendLimit(stream="s/t", segments=[SEGMENT], total_bytes=10)])
        (gate,) = store._limits._by_stream.values()
        world.log_state.full = True
        results: list = []
        for _ in range(3):
            one.submit(b"abc", results)
        assert (gate.used_bytes, gate.used_events) == (9, 3)
        while len(results) < 3:
            await asyncio.sleep(0)
        assert (gate.used_bytes, gate.used_events) == (0, 0)

    run(body, containers=1)


def test_limits_follow_segments_out_of_memory_and_back() -> None:
    async def body(world: World) -> None:
        store = world.store
        names = [f"s/t/{number}.#epoch.0" for number in range(4)]
        for name in names:
            await store.create_segment(name)
            await append(store, name, bytes(10))
        await world.evict()
        await store.limit_appends([AppendLimit(stream="s/t", segments=names, total_bytes=50)])
        (gate,) = store._limits._by_stream.values()
        assert (gate.used_bytes, gate.used_events) == (40, 4)
        await world.evict()
        assert (gate.used_bytes, gate.used_events) == (40, 4)
        await append(store, names[2], bytes(5), number=2)
        assert (gate.used_bytes, gate.used_events) == (45, 5)
        await world.evict()
        await store.limit_appends([AppendLimit(stream="s/t", segments=names[1:], total_bytes=50)])
        assert (gate.used_bytes, gate.used_events) == (35, 4)
        await store.limit_appends([AppendLimit(stream="s/t", segments=[])])
        assert not store._limits._by_stream
        assert not store._limits._by_segment

    run(body)
