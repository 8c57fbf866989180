"""Laws of the reader of several streams: order per key of each stream, turns, positions to resume from, patterns."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from datetime import UTC, datetime
from functools import partial

import pytest
from client_world import EVENTS, open_services, simulate, time_of, write_steps

import penstock
from penstock.model.errors import InvalidArgumentError, InvalidCutError, StreamNotFoundError, TruncatedError
from penstock.model.names import StreamName
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng

A, B = StreamName("s", "a"), StreamName("s", "b")


async def fill(stream, count, *, first=0):
    async with stream.writer(block_bytes=1024) as writer:
        for number in range(first, first + count):
            await writer.write(f"{number}", f"k{number % 5}")


async def two_streams(world, *, segments=2):
    for name in (A, B):
        await fill(await world.safe.create_stream(name, segments=segments, create_scope=True), 200)


async def rest(reader):
    found = defaultdict(list)
    async for event in reader:
        found[event.stream].append(int(event.data))
    return found


@pytest.mark.parametrize("seed", range(4))
def test_each_stream_keeps_its_order_per_key_while_it_scales(seed):
    async def test(world):
        for name in (A, B):
            await world.safe.create_stream(name, create_scope=True)

        async def live(name):
            stream = world.safe.stream(name)
            for part, count in enumerate((3, 1, 4, 2)):
                await fill(stream, 100, first=100 * part)
                await stream.scale(count)
            await stream.seal()

        found = defaultdict(list)
        async with asyncio.TaskGroup() as group:
            for name in (A, B):
                group.create_task(live(name))
            async with world.store.reader([A, "s/b", A]) as reader:
                assert list(reader.streams) == [A, B]
                async for event in reader:
                    found[event.stream, int(event.data) % 5].append(int(event.data))
        for name in (A, B):
            for key in range(5):
                assert found[name, key] == list(range(key, 400, 5))

    simulate(test, seed=seed, loss=0.1)


@pytest.mark.parametrize("stop_after", [0, 1, 173, 400])
def test_positions_continue_without_gap_or_repeat(stop_after):
    async def test(world):
        await two_streams(world)
        found = defaultdict(list)
        async with world.store.reader([A, B], until_tail=True) as reader:
            for _ in range(stop_after):
                event = await reader.read()
                found[event.stream].append(int(event.data))
            if stop_after:
                await reader.read(0)  # the event before counts once the next one is asked for
                read_ahead = reader.positions()
            positions = reader.positions()
        if 0 < stop_after < 400:
            assert read_ahead == positions
        texts = {str(stream): cut.to_text() for stream, cut in positions.items()}
        async with world.store.reader([A, B], start=texts, until_tail=True) as reader:
            for stream, numbers in (await rest(reader)).items():
                found[stream] += numbers
        assert {stream: sorted(numbers) for stream, numbers in found.items()} == {A: [*range(200)], B: [*range(200)]}

    simulate(test)


def test_a_full_stream_does_not_starve_a_quiet_one():
    async def test(world):
        full = await world.store.create_stream(A, segments=1, create_scope=True)
        quiet = await world.store.create_stream(B)
        async with full.writer() as writer:
            for _ in range(40):
                await writer.write(bytes([7]) * (1 << 19))
        await fill(quiet, 3)
        async with world.store.reader([A, B], until_tail=True) as reader:
            await asyncio.sleep(1)
            blocks = [(await reader.next_block()).stream for _ in range(3)]
        assert B in blocks

    simulate(test)


def test_each_stream_has_its_own_start_and_end():
    async def test(world):
        await two_streams(world)
        middle = await world.store.stream(A).tail()
        for name in (A, B):
            await fill(world.store.stream(name), 50, first=200)
        store = world.store
        async with store.reader([A, B], start={A: middle, "s/b": "latest"}, until_tail=True) as reader:
            assert {name: sorted(found) for name, found in (await rest(reader)).items()} == {A: [*range(200, 250)]}
        async with store.reader([A, B], start=middle, end={B: "latest", A: middle}) as reader:
            assert {name: sorted(found) for name, found in (await rest(reader)).items()} == {B: [*range(250)]}
        since = time_of(world)
        await write_steps(world, store.stream(A), 1000, 1002)
        async with store.reader([A, B], start=since, until_tail=True) as reader:
            found = await rest(reader)
        assert found[A].count(1000) == found[A].count(1001) == EVENTS

    simulate(test)


def test_a_pattern_reads_the_streams_that_match_when_it_is_opened():
    async def test(world):
        store = world.store
        for name in ("shop/orders", "shop/offers", "shop/bills", "depot/orders"):
            await fill(await store.create_stream(name, create_scope=True), 2)
        reader = store.reader(re.compile("shop/o.*"), until_tail=True)
        assert list(reader.streams) == []
        assert reader.positions() == {}
        async with reader:
            await store.create_stream("shop/other")
            assert list(map(str, reader.streams)) == ["shop/offers", "shop/orders"]
            assert set(map(str, await rest(reader))) == {"shop/offers", "shop/orders"}
        with pytest.raises(StreamNotFoundError, match="no stream matches"):
            await store.reader(re.compile("shop/")).open()
        with pytest.raises(InvalidArgumentError, match="not read"):
            await store.reader(re.compile("shop/.*"), start={"depot/orders": "latest"}).open()

    simulate(test)


def test_what_cannot_be_read_is_refused_before_anything_is_read():
    async def test(world):
        await two_streams(world)
        store = world.store
        of_another = await store.stream(A).tail()
        for streams, options in (
            ("s/a", {}),
            ([], {}),
            (7, {}),
            (re.compile(b"s/.*"), {}),
            ([A], {"start": of_another, "end": {B: "latest"}}),
            ([B], {"start": of_another}),
            ([A], {"start": "nowhere"}),
            ([A], {"end": "earliest"}),
            ([A], {"on_truncated": "ignore"}),
            ([A], {"start": time_of(world).replace(year=3000)}),
        ):
            with pytest.raises(InvalidArgumentError):
                store.reader(streams, **options)
        with pytest.raises(InvalidCutError):
            await store.reader([A, B], start={B: of_another}).open()
        reader = store.reader([A, "s/none", B])
        with pytest.raises(StreamNotFoundError):
            await reader.open()
        assert list(reader.streams) == []
        await store.create_stream("s/none")
        async with reader:  # the same reader opens, once the stream exists
            assert len(reader.streams) == 3

    simulate(test)


def test_a_time_is_an_end_exact_to_one_block():
    async def test(world):
        stream = await world.store.create_stream(A, segments=2, create_scope=True)
        times = await write_steps(world, stream, 0, 6)
        before = datetime(2000, 1, 1, tzinfo=UTC)
        for start, end, expected in (
            (None, times[3], {0, 1, 2}),
            (times[1], times[3], {1, 2}),
            (times[2], times[2], set()),
            (None, before, set()),
        ):
            for reader in (stream.reader(start=start, end=end), world.store.reader([A], start=start, end=end)):
                async with reader:
                    found = [int(event.data) async for event in reader]
                assert expected <= set(found), (start, end)
                assert set(found) - expected <= {min(expected, default=1) - 1, max(expected, default=1) + 1}
                assert all(found.count(step) == EVENTS for step in expected)
        for read in (stream.reader, partial(world.store.reader, [A])):
            for start, end in (
                (times[3], times[1]),
                (None, datetime(3000, 1, 1, tzinfo=UTC)),
                (None, datetime(2020, 1, 1)),
            ):
                with pytest.raises(InvalidArgumentError):
                    read(start=start, end=end)

    simulate(test)


@pytest.mark.parametrize("on_truncated", ["raise", "skip"])
def test_truncated_data_of_one_stream(on_truncated):
    async def test(world):
        await two_streams(world)
        stream = world.store.stream(A)
        await stream.truncate(await stream.tail())
        start = {A: penstock.StreamCut(A, {0: 0, 1: 0})}
        async with world.store.reader([A, B], start=start, until_tail=True, on_truncated=on_truncated) as reader:
            if on_truncated == "raise":
                with pytest.raises(TruncatedError):
                    await rest(reader)
            else:
                assert {name: len(found) for name, found in (await rest(reader)).items()} == {B: 200}

    simulate(test)


def test_events_have_their_append_time_where_it_is_asked_for():
    async def test(world):
        stream = await world.store.create_stream(A, segments=2, create_scope=True)
        times = await write_steps(world, stream, 0, 3)
        times += await write_steps(world, stream, 3, 4, tiered=False)
        group = await world.store.reader_group("g", [A])
        for reader in (
            world.store.reader([A], until_tail=True, append_times=True),
            stream.reader(until_tail=True, append_times=True),
            group.reader("one", append_times=True),
        ):
            async with reader:
                for _ in range(4 * EVENTS):
                    event = await reader.read(5)
                    late_s = (event.appended_at - times[int(event.data)]).total_seconds()
                    # Not before it came; a block later at most, and what is in no block has the time of the last append.
                    assert 0 <= late_s < 60, (event, late_s)
                    assert event.appended_at.timestamp() == event.appended_ms / 1000
        async with stream.reader(until_tail=True) as reader:
            assert {event.appended_at async for event in reader} == {None}

    simulate(test)


def test_the_blocking_reader_has_the_same_calls():
    with penstock.Store(lambda: open_services(RealClock(), RealRng())) as store:
        for name in ("s/a", "s/b"):
            with store.create_stream(name, create_scope=True, if_absent=True).writer() as writer:
                writer.write_many([b"1", b"2"])
        with store.reader(["s/a", "s/b"], until_tail=True, append_times=True) as reader:
            assert list(reader.streams) == [A, B]
            first = reader.read()
            assert first.appended_at is not None
            assert len(list(reader)) == 3
            positions = reader.positions()
            assert set(reader.time_windows()) == {A, B}
        with store.reader(["s/a", "s/b"], start=positions) as reader:
            assert reader.read(timeout_s=0.05) is None


@pytest.mark.parametrize("kind", ["one", "several", "group"])
def test_an_error_is_raised_again_when_nothing_else_is_left_to_read(kind):
    async def test(world):
        store = world.store
        lost = await store.create_stream("a/lost", create_scope=True)
        kept = await store.create_stream("a/kept")
        for stream in (lost, kept):
            async with stream.writer() as writer:
                await writer.write(b"event", "key")
        start, group = await lost.head(), await store.reader_group("a/g", ["a/lost"])
        await lost.truncate(await lost.tail())
        if kind == "one":
            reader = lost.reader(start=start)
        elif kind == "several":
            reader = store.reader(["a/lost", "a/kept"], start={"a/lost": start}, until_tail=True)
        else:
            reader = group.reader("r")
        found = []
        async with reader:
            for _ in range(4):
                try:
                    found.append(await reader.read(60))
                except TruncatedError:
                    found.append("lost")
        assert found.count("lost") == (3 if kind == "several" else 4)
        assert [event.data for event in found if event != "lost"] == ([b"event"] if kind == "several" else [])

    simulate(test)
