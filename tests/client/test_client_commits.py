"""Laws of commits: what is committed is never returned again, and what is not is never skipped, whichever process crashes and when."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from client_world import open_services, simulate
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.blocking.stores import Store
from penstock.client.reading.blocks import Block, Event
from penstock.client.reading.commits import Commits
from penstock.codec.events import event_bounds, frame_events
from penstock.model.errors import InvalidArgumentError, NotCommittedError
from penstock.model.names import StreamName
from penstock.model.segments import KeyRange, SegmentId, SegmentRange
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng

STREAM = StreamName("a", "s")


async def fill(stream, count, start=0, keys=7):
    async with stream.writer(block_bytes=1024) as writer:
        for number in range(start, start + count):
            await writer.write(f"{number}", f"k{number % keys}")


async def take(reader, count):
    return [await reader.read() for _ in range(count)]


def numbers(events):
    return [int(event.data) for event in events]


async def rest(group, name="heir"):
    """What a reader that joins now gets, until nothing comes."""
    found = []
    async with group.reader(name) as reader:
        while (event := await reader.read(timeout_s=5)) is not None:
            found.append(event)
    return found


@pytest.mark.parametrize("auto", [True, False])
def test_after_a_crash_reading_begins_behind_the_last_commit(auto):
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        await fill(stream, 20)
        group = await world.store.reader_group("g", ["a/s"], lease_s=2, refresh_s=0.5)
        reader = group.reader("dead", auto_commit=auto)
        await reader.open()
        first = await take(reader, 5)
        await reader.commit()
        assert await group.positions() == {STREAM: await cut_behind(stream, first[-1])}
        # Crashed after these were processed, before they were committed, and before a report of the reader.
        await take(reader, 3)
        await reader.abandon()
        began = world.loop.time()
        assert numbers(await rest(group)) == list(range(5, 20))
        assert world.loop.time() - began < 2 + 2 * 0.5 + 5 + 0.1  # the lease and two refreshes; then 5 s of silence

    simulate(test)


async def cut_behind(stream, event):
    tail = await stream.tail()
    return type(tail)(stream.name, {**tail.positions, event.segment: event.next_offset})


def test_only_commits_count_where_they_are_not_automatic():
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        await fill(stream, 20)
        group = await world.store.reader_group("g", ["a/s"])
        async with group.reader("r", auto_commit=False) as reader:
            await take(reader, 7)
            await asyncio.sleep(5)  # reports in the background
        async with group.reader("r", auto_commit=False) as reader:
            assert numbers(await take(reader, 4)) == [0, 1, 2, 3]
            await reader.commit()
            await take(reader, 2)
        async with group.reader("r", auto_commit=False) as reader:
            block = await reader.next_block()
            assert int(block.events()[0]) == 4
            await reader.commit()
        assert numbers(await rest(group)) == list(range(4 + len(block), 20))

    simulate(test)


def test_repeated_commits_and_a_clean_end_skip_nothing():
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        await fill(stream, 10)
        group = await world.store.reader_group("g", ["a/s"])
        async with group.reader("r") as reader:
            await take(reader, 3)
            await reader.commit()
            await reader.commit()
            await reader.sync()
        assert numbers(await rest(group)) == list(range(3, 10))

    simulate(test)


def test_an_event_is_committed_with_those_before_it_in_its_segment():
    async def test(world):
        stream = await world.store.create_stream("a/s", segments=2, create_scope=True)
        await fill(stream, 60)
        group = await world.store.reader_group("g", ["a/s"], lease_s=2, refresh_s=0.5)
        reader = group.reader("r", auto_commit=False)
        await reader.open()
        events = await take(reader, 60)
        chosen = events[40]
        await reader.commit(chosen)
        await reader.commit(next(item for item in events if item.segment == chosen.segment))  # moves nothing back
        await reader.abandon()
        left = {event.data for event in await rest(group)}
        assert left == {item.data for item in events if item.segment != chosen.segment or item.offset > chosen.offset}

    simulate(test)


@pytest.mark.parametrize("seed", range(4))
def test_reading_goes_on_across_scaling_before_a_commit(seed):
    """The group learns of the end of a segment only with the commit, so a takeover before it begins in that segment."""

    async def test(world):
        stream = await world.safe.create_stream("a/s", create_scope=True)
        for step, count in enumerate((3, 1, 2)):
            await fill(stream, 30, start=30 * step)
            await stream.scale(count)
        await fill(stream, 30, start=90)
        await stream.seal()
        group = await world.store.reader_group("g", ["a/s"], lease_s=2, refresh_s=0.5)
        dead = group.reader("dead", auto_commit=False)
        await dead.open()
        found = [int(event.data) async for event in dead]  # ends, though nothing is committed
        assert sorted(found) == list(range(120))
        await dead.abandon()
        async with group.reader("heir", auto_commit=False) as heir:
            again = [int(event.data) async for event in heir]
            assert sorted(again) == list(range(120))
            await heir.commit()
        async with group.reader("last") as last:
            assert [event async for event in last] == []

    simulate(test, seed=seed, loss=0.1 if seed else 0.0)


def test_a_segment_with_uncommitted_events_stays_until_the_commit():
    async def test(world):
        stream = await world.store.create_stream("a/s", segments=2, create_scope=True)
        await fill(stream, 30)
        group = await world.store.reader_group("g", ["a/s"], refresh_s=0.5)
        async with group.reader("one", auto_commit=False) as one:
            await take(one, 30)
            async with group.reader("two", auto_commit=False) as two:
                await asyncio.sleep(5)
                assert (len(one.assigned()), len(two.assigned())) == (2, 0)
                await one.commit()
                await asyncio.sleep(2)
                assert (len(one.assigned()), len(two.assigned())) == (1, 1)
                assert await two.read(timeout_s=1) is None

    simulate(test)


@pytest.mark.parametrize("later", [False, True])
def test_a_commit_after_the_segments_were_lost_is_refused(later):
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        await fill(stream, 20)
        group = await world.store.reader_group("g", ["a/s"])
        async with group.reader("slow", auto_commit=False) as slow:
            first = await take(slow, 5)
            await group.remove_reader("slow")
            if later:
                await asyncio.sleep(3)  # it has joined again by itself
                with pytest.raises(NotCommittedError):
                    await slow.commit(first[-1])
                assert numbers(await take(slow, 2)) == [0, 1]
            with pytest.raises(NotCommittedError):
                await slow.commit()
            assert numbers(await take(slow, 6)) == list(range(6))
            await slow.commit()
        assert numbers(await rest(group)) == list(range(6, 20))

    simulate(test)


def test_what_is_no_event_of_the_reader_is_refused_and_changes_nothing():
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        await fill(stream, 20)
        group = await world.store.reader_group("g", ["a/s"])
        with pytest.raises(InvalidArgumentError):
            group.reader("r", auto_commit="no")
        reader = group.reader("r", auto_commit=False)
        await reader.commit()  # nothing was returned yet
        async with reader:
            event, following = await take(reader, 2)
            with pytest.raises(InvalidArgumentError):
                await reader.commit("0")
            with pytest.raises(InvalidArgumentError):
                await reader.commit(event._replace(offset=1))
            with pytest.raises(NotCommittedError):
                await reader.commit(following._replace(offset=following.next_offset))
            with pytest.raises(NotCommittedError):
                await reader.commit(event._replace(segment=SegmentId(77)))
        with pytest.raises(InvalidArgumentError, match="closed"):
            await reader.commit()
        with pytest.raises(InvalidArgumentError, match="closed"):
            await reader.sync()
        assert await group.readers() == []
        assert numbers(await rest(group)) == list(range(20))

    simulate(test)


@pytest.mark.parametrize("seed", range(12))
def test_what_is_committed_never_returns_and_the_rest_is_never_skipped(seed):
    """Readers that crash, are taken for dead and commit at random, while the stream scales and calls get lost."""

    async def test(world):
        stream = await world.safe.create_stream("a/s", create_scope=True)
        group = await world.store.reader_group("g", ["a/s"], lease_s=2, refresh_s=0.3)
        chance = random.Random(seed)
        committed, problems, crashes = set(), [], [3]

        async def live(name):
            """One life of a reader; False if it crashed. Nobody waits for events without a commit before."""
            reader, pending = group.reader(name, auto_commit=False), []
            await reader.open()
            events = aiter(reader)

            async def commit():
                try:
                    await reader.commit()
                    committed.update(item.data for item in pending)
                except NotCommittedError:
                    pass  # its work since the last commit is undone, and its events come again
                pending.clear()

            while True:
                try:
                    async with asyncio.timeout(1):
                        event = await anext(events)
                except TimeoutError:
                    await commit()
                    continue
                except StopAsyncIteration:
                    await commit()
                    await reader.close()
                    return True
                if event.data in committed:
                    problems.append(event)
                pending.append(event)
                await asyncio.sleep(chance.random() / 50)
                fate = chance.random()
                if fate < 0.02 and crashes[0]:
                    crashes[0] -= 1
                    await reader.abandon()
                    return False
                if fate < 0.03:
                    await group.remove_reader(name)
                if fate < 0.15:
                    await commit()

        async def run(name):
            life = 0
            while not await live(f"{name}{life}"):
                life += 1

        async def write():
            for step, count in enumerate((3, 1, 4, 2)):
                await fill(stream, 60, start=60 * step)
                await stream.scale(count)
                await asyncio.sleep(0.5)
            await stream.seal()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write())
            for name in ("one", "two"):
                tasks.create_task(run(name))
        assert committed == {b"%d" % number for number in range(240)}
        assert problems == []

    simulate(test, seed=seed, loss=0.05 if seed % 2 else 0.0)


def test_blocking_readers_commit_alike():
    with Store(lambda: open_services(RealClock(), RealRng())) as store:
        stream = store.create_stream("a/s", create_scope=True)
        with stream.writer() as writer:
            writer.write_many([b"%d" % number for number in range(10)])
        group = store.reader_group("a/g", ["a/s"])
        with group.reader("r", auto_commit=False) as reader:
            for event in reader:
                if event.data == b"4":
                    reader.commit()
                elif event.data == b"6":
                    break
            assert sum(group.positions()[STREAM].positions.values()) == 5 * 9
            reader.commit(event)
            assert reader.read().data == b"7"
        with group.reader("r") as reader:
            assert reader.read().data == b"7"
        with pytest.raises(InvalidArgumentError):
            reader.commit(event)


# --- arithmetic ------------------------------------------------------------------------------------------------------


def block_of(sizes):
    raw = frame_events([b"x" * size for size in sizes])
    return Block(STREAM, SegmentId(0), 100, raw, event_bounds(raw))


@given(
    sizes=st.lists(st.integers(0, 20), min_size=1, max_size=8),
    steps=st.lists(st.sampled_from(["next", "commit", "commit earlier"]), max_size=24),
)
def test_positions_of_a_block_are_event_ends_and_never_move_back(sizes, steps):
    block = block_of(sizes)
    ends = [100 + bound for bound in block.bounds]
    events, got, committed = iter(block), 0, 0
    for step in steps:
        if step == "next":
            got += next(events, None) is not None
            # The end was asked for: everything is done with.
            committed = max(committed, got - 1)
        elif step == "commit":
            block.finish_returned()
            committed = max(committed, got)
        elif got:
            block.finish(ends[1])
            committed = max(committed, 1)
        assert block.returned == ends[got]
        assert block.position >= ends[committed]
        assert block.position in ends[: got + 1]


def successor(number):
    return SegmentRange(segment=SegmentId(number), keys=KeyRange(low=0.0, high=1.0))


@given(
    links=st.lists(st.lists(st.integers(1, 5), max_size=3), min_size=1, max_size=8),
    commits=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 12)), max_size=20),
)
def test_a_segment_is_finished_only_when_it_and_all_that_it_follows_are_committed(links, commits):
    """``links``: by how much the numbers of the successors of each segment are higher than its own."""
    length = 10
    ended = {
        (STREAM, SegmentId(number)): [successor(number + step) for step in steps] for number, steps in enumerate(links)
    }
    positions = Commits(auto=False)
    for key in ended:
        positions.begin(key, 0)
    at = Counter(dict.fromkeys(ended, 0))
    for number, offset in commits:
        key = (STREAM, SegmentId(number))
        positions.commit({key: min(offset, length)})
        if key in at:
            at[key] = max(at[key], min(offset, length))
    lengths = dict.fromkeys(ended, length)
    found = positions.finishable(ended, lengths)
    assert positions.recordable(lengths) == dict(at)
    before = {
        item: [key for key, successors in ended.items() if item[1] in {one.segment for one in successors}]
        for item in ended
    }
    for key in ended:
        assert (key in found) == (at[key] == length and all(item in found for item in before[key]))
    assert list(Commits(auto=True).finishable(ended, lengths)) == list(ended)


def test_an_event_names_its_end():
    assert Event(b"abc", STREAM, SegmentId(0), 5).next_offset == 16
