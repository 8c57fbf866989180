"""Laws of the reader: order per key across scaling, positions to resume from, ends, truncated data."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest
from client_world import read_all, simulate
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.cuts.read_order import normalised, startable
from penstock.model.cuts import NOT_STARTED, StreamCut
from penstock.model.errors import InvalidCutError, SegmentNotFoundError, TruncatedError
from penstock.model.segments import KeyRange

LEFT, RIGHT, WHOLE = KeyRange(low=0.0, high=0.5), KeyRange(low=0.5, high=1.0), KeyRange(low=0.0, high=1.0)


@pytest.mark.parametrize("seed", range(6))
def test_a_tail_reader_sees_every_key_in_order_while_the_stream_scales(seed):
    async def test(world):
        stream = await world.safe.create_stream("a/s", create_scope=True)
        lossy = world.store.stream("a/s")

        async def write():
            async with stream.writer(block_bytes=1024) as writer:
                for number in range(150):
                    for key in "abcdefgh":
                        await writer.write(f"{key}:{number}", key)
                    await asyncio.sleep(0.01)
                await writer.flush()
            await stream.seal()

        async def scale():
            for count in (3, 2, 5, 1):
                await asyncio.sleep(0.25)
                await stream.scale(count)

        found = defaultdict(list)
        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            group.create_task(scale())
            async with lossy.reader() as reader:
                async for event in reader:
                    key, _, number = event.data.decode().partition(":")
                    found[key].append(int(number))
        assert found == {key: list(range(150)) for key in "abcdefgh"}

    simulate(test, seed=seed, loss=0.1)


@pytest.mark.parametrize("stop_after", [0, 1, 57, 399])
def test_a_reader_resumes_from_a_position_without_gap_or_repeat(stop_after):
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        async with stream.writer(block_bytes=1024) as writer:
            for number in range(400):
                await writer.write(b"%d" % number, f"k{number % 10}")
                if number in (100, 200, 300):
                    await stream.scale(number // 100 + 1)
        first = []
        async with stream.reader(until_tail=True) as reader:
            if stop_after:
                async for event in reader:
                    first.append(event.data)
                    if len(first) == stop_after + 1:
                        break  # this one is not done with: it comes again
            position = reader.position()
        assert await world.controller.cuts.is_valid(stream.name, position)
        async with stream.reader(start=position, until_tail=True) as reader:
            rest = [event.data async for event in reader]
        assert sorted(first[:stop_after] + rest, key=int) == [b"%d" % number for number in range(400)]

    simulate(test, seed=stop_after)


@pytest.mark.parametrize("kind", ["alone", "in a group"])
def test_a_loop_that_is_left_is_gone_on_with_and_loses_nothing(kind):
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        async with stream.writer(block_bytes=1024) as writer:
            for number in range(500):
                await writer.write(b"%d" % number)
        await stream.seal()
        group = await world.store.reader_group("g", ["a/s"])
        seen = []
        async with stream.reader() if kind == "alone" else group.reader("one") as reader:
            for count in (1, 2, 3, 100, 1, 500):
                async for event in reader:
                    seen.append(int(event.data))
                    count -= 1
                    if not count:
                        break
        assert seen == list(range(500))

    simulate(test)


def test_a_block_that_is_asked_for_ends_the_one_that_a_loop_was_in():
    async def test(world):
        stream = await world.store.create_stream("a/s", segments=3, create_scope=True)
        async with stream.writer() as writer:
            for number in range(300):
                await writer.write(b"%d" % number, f"k{number}")
        seen = []
        async with stream.reader(until_tail=True) as reader:
            async for event in reader:
                seen.append(event.segment)
                break
            seen.append((await reader.next_block()).segment)
            async for event in reader:
                seen.append(event.segment)
                break
        assert sorted(seen) == [0, 1, 2]

    simulate(test)


@pytest.mark.parametrize("merged_at", [NOT_STARTED, 0])
@pytest.mark.parametrize("unread", [0, 1])
def test_a_merged_segment_waits_for_the_older_one_of_a_start_and_is_read_once(unread, merged_at):
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        await stream.scale(2)
        halves = [item.segment for item in await world.controller.layout.current(stream.name)]
        keys = [f"k{number}" for number in range(20)]
        async with stream.writer(block_bytes=1024) as writer:
            for number in range(40):
                await writer.write_many([f"{key}:{number}".encode() for key in keys], keys)
                if number == 19:
                    await writer.flush()
                    await stream.scale(1)
        await stream.seal()
        (merged,) = {item.range.segment for item in await world.controller.layout.successors(stream.name, halves[0])}
        # One half is read to its end, the other one is not begun.
        start = StreamCut(stream.name, {halves[unread]: 0, merged: merged_at})
        found = defaultdict(list)
        order = []
        async with stream.reader(start=start) as reader:
            assert await world.controller.cuts.is_valid(stream.name, reader.position())
            async for event in reader:
                key, _, number = event.data.decode().partition(":")
                found[key].append(int(number))
                if event.segment not in order:
                    order.append(event.segment)
        assert order == [halves[unread], merged]
        assert set(found) == set(keys)
        assert {tuple(numbers) for numbers in found.values()} == {tuple(range(40)), tuple(range(20, 40))}

    simulate(test, seed=unread)


def test_a_bounded_read_ends_at_its_cut_across_epochs():
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        async with stream.writer() as writer:
            await writer.write_many([b"1", b"2"], ["a", "b"])
            await writer.flush()
            begin = await stream.tail()
            await stream.scale(2)
            await writer.write_many([b"3", b"4"], ["a", "b"])
            await writer.flush()
            end = await stream.tail()
            await stream.scale(1)
            await writer.write(b"5", "a")
            await writer.flush()
            async with stream.reader(start=begin, end=end) as reader:
                assert sorted([event.data async for event in reader]) == [b"3", b"4"]
                assert await reader.next_block() is None
                assert reader.position() == end
            async with stream.reader(start="tail", until_tail=True) as reader:
                assert await reader.next_block() is None
            async with stream.reader(end=begin) as reader:
                assert [event.data async for event in reader] == [b"1", b"2"]
            other = await world.store.create_stream("a/other")
            with pytest.raises(InvalidCutError):
                async with other.reader(start=begin):
                    pass

    simulate(test)


def test_truncated_data_raises_or_is_skipped():
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        async with stream.writer() as writer:
            head = await stream.head()
            await writer.write_many([b"gone"])
            await writer.flush()
            middle = await stream.tail()
            await writer.write_many([b"kept"])
            await writer.flush()
            await stream.truncate(middle)
            async with stream.reader(start=head) as reader:
                with pytest.raises(TruncatedError) as caught:
                    await reader.next_block()
                assert caught.value.start_offset == 12
            async with stream.reader(start=head, on_truncated="skip", end="tail") as reader:
                assert [event.data async for event in reader] == [b"kept"]
            # The whole segment goes.
            await stream.scale(2)
            await writer.write(b"new", "k")
            await writer.flush()
            await stream.truncate(await stream.tail())
            await writer.write(b"newer", "k")
            await writer.flush()
            with pytest.raises(SegmentNotFoundError):
                await world.segments.info("a/s/0.#epoch.0")
            async with stream.reader(start=middle) as reader:
                with pytest.raises(TruncatedError):
                    await reader.next_block()
            async with stream.reader(start=middle, on_truncated="skip") as reader:
                block = await reader.next_block()
                assert block.events() == [b"newer"]
        assert await read_all(stream) == [b"newer"]

    simulate(test)


def test_blocks_know_where_their_events_lie():
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        async with stream.writer() as writer:
            await writer.write_many([b"a", b"bb", b"ccc"])
        async with stream.reader(until_tail=True) as reader:
            block = await reader.next_block()
            assert (block.offset, block.end_offset, len(block)) == (0, 30, 3)
            assert bytes(block.framed[:9]) == bytes(7) + b"\x01a"
            events = []
            for event in block:
                assert block.position == event.offset
                events.append(event)
            assert block.position == 30
            assert [(event.data, event.offset, event.next_offset) for event in events] == [
                (b"a", 0, 9),
                (b"bb", 9, 19),
                (b"ccc", 19, 30),
            ]
            assert {event.stream for event in events} == {stream.name}

    simulate(test)


def test_a_segment_waits_for_undiscovered_predecessors():
    # 1 is unfinished; 0 ended, followed by 7, which also follows 6, which follows 1 and is not known yet.
    ranges = {0: LEFT, 1: RIGHT, 7: WHOLE}
    assert startable([7], [1], ranges) == []
    assert startable([6, 7], [], {**ranges, 6: RIGHT}) == [6]
    assert startable([7], [], ranges) == [7]


@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(1, 8)), max_size=12),
    st.lists(st.integers(-1, 9), min_size=12, max_size=12),
)
def test_normalised_cuts_have_one_started_segment_per_key(spans, offsets):
    ranges = {number: KeyRange(low=low / 8, high=high / 8) for number, (low, high) in enumerate(spans) if low < high}
    positions = {number: offsets[number] for number in ranges}
    result = normalised(positions, ranges)
    for point in range(8):
        at = [number for number in ranges if ranges[number].low <= point / 8 < ranges[number].high]
        kept = [number for number in at if number in result]
        assert bool(at) == bool(kept)
        if at:
            assert min(at) in kept or result[kept[0]] == NOT_STARTED or min(kept) < min(at)
            assert all(result[number] == NOT_STARTED for number in kept[1:])
