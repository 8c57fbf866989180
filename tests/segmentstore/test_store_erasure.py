"""Erased bytes read as zeros of the same length, forever, wherever they were; nothing else changes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import random
from uuid import UUID

import pytest
from erasure_store import NAME, SECRET, blanked, erase, holds, whole, write
from held_calls import Held
from object_world import ObjectWorld
from store_world import world

from penstock.codec.store.operation_frames import decode_operations
from penstock.core.segments.erasure import clipped
from penstock.model.errors import InvalidArgumentError, TruncatedError, UnavailableError
from penstock.model.ledgers import LogWipe
from penstock.segmentstore.erasure.log_wipe import wipe_log


def in_loop(test):
    @functools.wraps(test)
    def run(*args, **named):
        asyncio.run(test(*args, **named))

    return run


EVENTS = [SECRET + bytes([65 + n % 26]) * (n % 40) if n % 5 == 2 else b"ordinary %d " % n * (n % 7) for n in range(400)]
MARKED = [n for n, event in enumerate(EVENTS) if event.startswith(SECRET)]


@contextlib.asynccontextmanager
async def filled(events=EVENTS, *, chunk_bytes=6000, catalogue=False):
    """A world, its store with the events in one segment, and where each of them begins."""
    async with world(flush_bytes=2000, chunk_bytes=chunk_bytes, catalogue=catalogue) as made:
        await made.store.create_segment(NAME)
        yield made, made.store, await write(made.store, NAME, events)


@pytest.mark.parametrize("tiered", [False, True, "half"])
@in_loop
async def test_erased_events_are_zeros_everywhere_and_other_bytes_stay(tiered):
    async with filled(EVENTS[:200], catalogue=True) as (made, store, offsets):
        if tiered == "half":
            await store.flush()
        offsets += await write(store, NAME, EVENTS[200:])
        if tiered is True:
            await store.flush()
        before = await whole(store, NAME)
        assert await store.count_events(NAME, 0, len(before)) == len(EVENTS)
        ranges, done = await erase(store, NAME, [offsets[n] for n in MARKED])
        after = await whole(store, NAME)
        assert after == blanked(before, ranges)
        assert len(ranges) == len(MARKED)
        assert holds(made, SECRET) == []
        assert await store.erased_ranges(NAME, 0, len(before)) == ranges
        assert await store.count_events(NAME, 0, len(before)) == len(EVENTS)
        assert sum(item.blanked_bytes for item in done) == sum(end - start for start, end in ranges)
        for reopened in (made.crash, made.restart, made.blackout):
            store = await reopened()
            assert await whole(store, NAME) == after
            assert await store.erased_ranges(NAME, 0, len(before)) == ranges
            assert holds(made, SECRET) == []


@in_loop
async def test_the_digests_of_a_chunk_are_those_of_its_bytes_before_and_after():
    async with filled() as (_, store, offsets):
        before = await whole(store, NAME)
        ranges, done = await erase(store, NAME, [offsets[n] for n in MARKED[10:30]])
        after = await whole(store, NAME)
        assert done
        for item in done:
            low, high = item.start_offset, item.end_offset
            assert item.before == hashlib.sha256(before[low:high]).digest()
            assert item.after == hashlib.sha256(after[low:high]).digest()
            kept, at = bytearray(), low
            for start, end in clipped(ranges, low, high):
                kept += after[at:start]
                at = end
            assert item.kept == hashlib.sha256(bytes(kept + after[at:high])).digest()


@in_loop
async def test_a_repeat_changes_nothing_and_answers_the_same():
    async with filled() as (made, store, offsets):
        ranges, done = await erase(store, NAME, [offsets[n] for n in MARKED])
        names = await made.chunks.list()
        assert await store.erase(NAME, ranges, erasure="e1") == done
        assert await made.chunks.list() == names
        store = await made.crash()
        assert await store.erase(NAME, ranges, erasure="e1") == done
        # Another erasure of the same bytes finds nothing to do.
        assert await store.erase(NAME, ranges, erasure="e2") == []


@in_loop
async def test_a_second_erasure_of_a_chunk_keeps_what_the_first_has_done():
    async with filled(chunk_bytes=60000) as (made, store, offsets):
        before = await whole(store, NAME)
        first, one = await erase(store, NAME, [offsets[n] for n in MARKED[:20]])
        second, two = await erase(store, NAME, [offsets[n] for n in MARKED[20:]], "e2")
        assert await whole(store, NAME) == blanked(before, [*first, *second])
        assert [item.before for item in two] == [item.after for item in one]
        assert await store.erase(NAME, first, erasure="e1") == one
        assert holds(made, SECRET) == []


@in_loop
async def test_appends_go_on_behind_an_erased_chunk():
    async with filled(EVENTS[:100], chunk_bytes=60000) as (made, store, offsets):
        await store.flush()
        ranges, _ = await erase(store, NAME, [offsets[n] for n in MARKED if n < 100])
        await write(store, NAME, EVENTS[100:])
        expected = await whole(store, NAME)
        await store.flush()
        assert await whole(store, NAME) == expected
        store = await made.blackout()
        assert await whole(store, NAME) == expected
        assert await store.erased_ranges(NAME, 0, len(expected)) == ranges


@in_loop
async def test_a_lease_does_not_keep_erased_bytes():
    async with filled() as (made, store, offsets):
        await store.flush()
        await store.lease_chunks([NAME], UUID(int=4), until_ms=made.clock.ms + 60_000)
        await erase(store, NAME, [offsets[n] for n in MARKED])
        assert holds(made, SECRET) == []


@in_loop
async def test_what_held_the_bytes_is_overwritten_and_then_deleted_before_the_erasure_returns():
    async with filled(catalogue=True) as (made, store, offsets):
        await store.flush()
        reported, wipe, delete = [], made.chunks.wipe, made.chunks.delete

        async def wiped(name):
            await wipe(name)
            data = await made.chunks.read(name, 0, 1 << 20)
            reported.append(("wiped", name, any(data)))

        async def deleted(name):
            reported.append(("deleted", name, False))
            await delete(name)

        made.chunks.wipe, made.chunks.delete = wiped, deleted
        ranges = await store.event_ranges(NAME, [offsets[n] for n in MARKED])
        done = await store.erase(NAME, ranges, erasure="e1")
        for item in done:
            name = item.name_before
            own = [what for what in reported if what[1] == name]
            assert own == [("wiped", name, False), ("deleted", name, False)]
        # Only the log is left, until it is wiped.
        assert {found.split()[0] for found in holds(made, SECRET)} <= {"frame"}


@in_loop
async def test_marks_on_chunks_are_followed_by_the_next_opening():
    async with filled() as (made, store, offsets):
        await store.flush()
        await store.lease_chunks([NAME], UUID(int=4), until_ms=made.clock.ms + 60_000)
        reported, wipe = [], made.chunks.wipe

        async def away(name):
            raise OSError("the disk is away")

        async def wiped(name):
            reported.append(name)
            await wipe(name)

        made.chunks.wipe = away
        ranges = await store.event_ranges(NAME, [offsets[n] for n in MARKED])
        with pytest.raises(OSError, match="away"):
            await store.erase(NAME, ranges, erasure="e1")
        made.chunks.wipe = wiped
        await made.crash()
        await made.store.flush()
        assert reported
        assert {found.split()[0] for found in holds(made, SECRET)} <= {"frame"}
        await made.store.flush()
        rows = [key for key, _ in await made.keyvalue.scan(b"w", b"x", limit=10)]
        assert rows == []


class BusyLog:
    """A log that a container holds on to a little longer."""

    def __init__(self, times):
        self.times = times
        self.flushes = 0

    async def begin_wipe(self, frame):
        assert list(decode_operations(b"".join(frame))) == []

    async def end_wipe(self):
        self.times -= 1
        return LogWipe() if self.times < 0 else None

    async def flush(self):
        self.flushes += 1


@in_loop
async def test_a_log_that_is_held_on_to_is_flushed_again_and_not_for_ever():
    busy = BusyLog(3)
    await wipe_log(busy, busy, 0, 5)
    assert busy.flushes == 4
    with pytest.raises(UnavailableError):
        await wipe_log(BusyLog(100), BusyLog(100), 0, 5)


@in_loop
async def test_truncated_bytes_in_the_head_of_a_chunk_are_blanked_with_it():
    async with filled(chunk_bytes=60000) as (made, store, offsets):
        await store.flush()
        await store.truncate(NAME, offsets[60])
        before = await whole(store, NAME)
        with pytest.raises(TruncatedError):
            await store.event_ranges(NAME, [offsets[2]])
        ranges, _ = await erase(store, NAME, [offsets[n] for n in MARKED if n >= 60])
        at = offsets[60]
        assert await whole(store, NAME) == blanked(before, [(a - at, b - at) for a, b in ranges])
        assert holds(made, SECRET) == []
        assert await store.erased_ranges(NAME, 0, at) == [(0, at)]


@in_loop
async def test_a_head_that_is_being_given_back_is_no_damage_to_an_erasure():
    async with world(flush_bytes=2000, chunk_bytes=60000, free_head_bytes=2000, cache_bytes=4000) as made:
        store = made.store
        await store.create_segment(NAME)
        offsets = await write(store, NAME, EVENTS)
        await store.flush()
        await store.truncate(NAME, offsets[200])
        before = await whole(store, NAME)
        held = Held(made.chunks, "free_head")
        freeing = asyncio.ensure_future(store.flush())
        await held.reached.wait()
        erasing = asyncio.ensure_future(erase(store, NAME, [offsets[n] for n in MARKED if n >= 200]))
        for _ in range(100):
            await asyncio.sleep(0)
        held.release.set()
        await freeing
        ranges, _ = await erasing
        at = offsets[200]
        assert await whole(store, NAME) == blanked(before, [(a - at, b - at) for a, b in ranges])
        assert holds(made, SECRET) == []


@in_loop
async def test_what_was_erased_moves_with_a_merge():
    async with world(flush_bytes=2000, chunk_bytes=6000) as made:
        store = made.store
        await store.create_segment(NAME)
        source = NAME + "#transaction.0123456789abcdef0123456789abcdef"
        await store.create_segment(source)
        await write(store, NAME, EVENTS[:50])
        offsets = await write(store, source, EVENTS[50:])
        ranges, _ = await erase(store, source, [offsets[n - 50] for n in MARKED if n >= 50])
        length = (await store.info(NAME)).length
        end = await store.merge(NAME, source)
        moved = [(a + length, b + length) for a, b in ranges]
        assert await store.erased_ranges(NAME, 0, end) == moved
        store = await made.crash()
        assert await store.erased_ranges(NAME, 0, end) == moved


@in_loop
async def test_offsets_at_which_no_event_begins_are_refused_and_nothing_is_erased():
    async with filled() as (_, store, offsets):
        before = await whole(store, NAME)
        for bad in (offsets[2] + 1, len(before), len(before) - 4, offsets[7] + 8):
            with pytest.raises(InvalidArgumentError):
                await store.event_ranges(NAME, [offsets[2], bad])
        for ranges in ([(8, 8)], [(10, 20), (15, 30)], [(0, len(before) + 1)]):
            with pytest.raises(InvalidArgumentError):
                await store.erase(NAME, ranges, erasure="e1")
        assert await whole(store, NAME) == before


@in_loop
async def test_an_erasure_cut_short_anywhere_is_finished_by_a_repeat():
    finished = 0
    for cut in range(0, 60, 3):
        async with filled(catalogue=True) as (made, store, offsets):
            before = await whole(store, NAME)
            ranges = await store.event_ranges(NAME, [offsets[n] for n in MARKED])
            left = cut

            async def pause():
                nonlocal left
                left -= 1
                if left < 0:
                    raise OSError("power is lost")

            made.chunks._pause = pause
            with contextlib.suppress(OSError):
                await store.erase(NAME, ranges, erasure="e1")
                finished += 1
            made.chunks._pause = None
            store = await (made.blackout() if random.Random(cut).random() < 0.5 else made.crash())
            assert blanked(await whole(store, NAME), ranges) == blanked(before, ranges)
            done = await store.erase(NAME, ranges, erasure="e1")
            await store.wipe_log()
            assert await whole(store, NAME) == blanked(before, ranges)
            assert sum(item.blanked_bytes for item in done) == sum(b - a for a, b in ranges)
            await made.settle()
            assert holds(made, SECRET) == []
    assert 5 <= finished <= 15, "some are cut short at every step, some not at all"


def test_objects_that_held_erased_bytes_are_deleted_whatever_fails_in_between():
    for seed in range(12):
        asyncio.run(_erase_objects(seed))


async def _erase_objects(seed):
    made = ObjectWorld(containers=1, flush_bytes=2000, chunk_bytes=6000, tier_run_bytes=6000)
    rng = random.Random(seed)
    await made.open()
    await made.store.create_segment(NAME)
    offsets = await write(made.store, NAME, EVENTS)
    await made.store.flush()
    before = await whole(made.store, NAME)
    ranges = await made.store.event_ranges(NAME, [offsets[n] for n in MARKED])
    made.fail = lambda verb, name, applied: rng.random() < 0.1
    while True:
        try:
            done = await made.store.erase(NAME, ranges, erasure="e1")
            await made.store.wipe_log()
            break
        except (UnavailableError, OSError):
            if rng.random() < 0.3:
                made.fail, fail = lambda verb, name, applied: False, made.fail
                await made.crash()
                made.fail = fail
    made.fail = lambda verb, name, applied: False
    assert await whole(made.store, NAME) == blanked(before, ranges)
    assert sum(item.blanked_bytes for item in done) == sum(end - start for start, end in ranges)
    for name, size in (await made.objects.list("chunks")).items():
        named = name.removeprefix("chunks/") in {
            chunk.name
            for container in made.store.containers
            for segment in container.segments.loaded()
            for chunk in segment.chunks.items
        }
        held = SECRET in await made.objects.read(name, 0, size)
        assert not held, (name, named)
    assert all(count == 1 for name, count in made.puts.items() if name.startswith("chunks/"))
    await made.store.close()


@in_loop
async def test_a_block_that_is_being_read_does_not_bring_erased_bytes_back():
    async with world(flush_bytes=2000, chunk_bytes=6000, cache_bytes=4000) as made:
        store = made.store
        await store.create_segment(NAME)
        offsets = await write(store, NAME, EVENTS)
        await store.flush()
        before = await whole(store, NAME)
        ranges = [(offsets[n] + 8, offsets[n] + 8 + len(EVENTS[n])) for n in MARKED]
        # An erasure waits for a read of the same block, so the read begins once the erasure has read it.
        copied = Held(made.chunks, "sync")
        erasing = asyncio.ensure_future(store.erase(NAME, ranges, erasure="e1"))
        await copied.reached.wait()
        for container in store.containers:
            container.blocks._kept.clear()
        read = Held(made.chunks, "read_into")
        reading = asyncio.ensure_future(store.read(NAME, 0, 1 << 20))
        await read.reached.wait()
        copied.release.set()
        await erasing
        await store.wipe_log()
        read.release.set()
        await asyncio.wait([reading])
        assert holds(made, SECRET) == []
        assert await whole(store, NAME) == blanked(before, ranges)
