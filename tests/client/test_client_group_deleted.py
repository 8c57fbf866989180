"""A reader group over several streams goes on when one of them is deleted, and logs what it had not read of it."""

from __future__ import annotations

import asyncio
import logging

import pytest
from client_world import simulate

from penstock.client.reading.group_state import GroupState, initial_state
from penstock.controller import keys
from penstock.model.cuts import StreamCut
from penstock.model.errors import (
    CorruptDataError,
    GenerationMismatchError,
    SegmentNotFoundError,
    StreamNotFoundError,
)
from penstock.model.names import StreamName
from penstock.model.segments import even_ranges, make_segment_id
from penstock.ports.data.tables import KEY_ABSENT, TablePut, TableRemoval
from tests.flat_control import FlatControl

LOGGER = "penstock.client.reading.group_streams"


async def fill(stream, count, start=0):
    async with stream.writer() as writer:
        for number in range(start, start + count):
            await writer.write(f"{stream.name.stream}{number}", f"k{number % 5}")


async def two_streams(world, **options):
    """Streams ``a/x`` and ``a/y`` with five events each, and a group of both."""
    streams = []
    for name in ("a/x", "a/y"):
        streams.append(await world.store.create_stream(name, create_scope=not streams, segments=2))
        await fill(streams[-1], 5)
    group = await world.store.reader_group("g", ["a/x", "a/y"], **{"refresh_s": 500, "lease_s": 1000} | options)
    return *streams, group


async def take(reader, count):
    found = []
    async for event in reader:
        found.append(event.data)
        if len(found) == count:
            return found
    raise AssertionError(found)


async def delete(stream):
    await stream.seal()
    await stream.delete()


def events(name, *numbers):
    return sorted(b"%s%d" % (name, number) for number in numbers)


def lost(caplog):
    return [record for record in caplog.records if record.name == LOGGER and record.levelno >= logging.WARNING]


def test_a_group_opens_and_goes_on_after_a_stream_that_it_has_read_was_deleted(caplog):
    async def test(world):
        x, y, group = await two_streams(world)
        await x.seal()
        async with group.reader("one") as reader:
            await take(reader, 10)
            await reader.sync()
            ends = asyncio.create_task(reader.next_block())
            await asyncio.sleep(1)
            await x.delete()
            await fill(y, 1, start=5)
            assert [event.data for event in await ends] == [b"y5"]
        again = await world.store.open_reader_group("a/g")
        same = await world.store.reader_group("g", ["a/x", "a/y"])
        assert again.config == same.config == group.config
        assert list(await again.positions()) == [StreamName("a", "y")]
        await fill(y, 1, start=6)
        await y.seal()
        async with again.reader("two") as reader:
            assert [event.data async for event in reader] == [b"y6"]

    simulate(test)
    assert not lost(caplog)


def test_a_deletion_before_the_end_of_a_segment_is_reported_loses_nothing(caplog):
    """The reader has returned the last event, and asks for what follows only after the deletion."""

    async def test(world):
        x, y, group = await two_streams(world)
        await x.seal()
        async with group.reader("one") as reader:
            found = await take(reader, 10)
            await x.delete()
            await fill(y, 3, start=5)
            await y.seal()
            found += [event.data async for event in reader]
        assert sorted(found) == events(b"x", *range(5)) + events(b"y", *range(8))

    simulate(test)
    assert not lost(caplog)


@pytest.mark.parametrize("on_truncated", ["raise", "skip"])
def test_unread_data_of_a_deleted_stream_is_named_and_the_others_go_on(caplog, on_truncated):
    async def test(world):
        x, y, group = await two_streams(world)
        await delete(x)
        async with (
            group.reader("one", on_truncated=on_truncated) as one,
            group.reader("two", on_truncated=on_truncated) as two,
        ):
            await one.sync()
            await y.seal()
            found = [event.data async for event in one]
            await two.sync()
            found += [event.data async for event in two]
            assert sorted(found) == events(b"y", *range(5))
        assert list(await group.positions()) == [StreamName("a", "y")]

    simulate(test)
    (record,) = lost(caplog)
    assert (record.group, record.stream) == ("a/g", "a/x")
    assert record.positions == {0: 0, 1: 0}


def test_a_stream_that_was_deleted_and_made_anew_is_not_the_groups(caplog):
    async def test(world):
        x, y, group = await two_streams(world)
        async with group.reader("one") as reader:
            await take(reader, 10)
            await delete(x)
            await fill(await world.store.create_stream("a/x"), 1, start=99)
            await fill(y, 1, start=5)
            assert await take(reader, 1) == [b"y5"]
        with pytest.raises(GenerationMismatchError, match="make it again"):
            await world.store.open_reader_group("a/g")

    simulate(test)


def test_checkpoints_of_a_group_that_publishes_go_on(caplog):
    async def test(world):
        x, y, group = await two_streams(world, retention="automatic", refresh_s=0.3, lease_s=3)
        await x.seal()
        reader = group.reader("one")
        await reader.open()
        await take(reader, 10)
        at = await group.checkpoint()
        assert set(at) == {x.name, y.name}
        ends = asyncio.create_task(reader.next_block())
        await asyncio.sleep(1)
        await x.delete()
        await group.checkpoint()
        await asyncio.sleep(1)
        await fill(y, 5, start=5)
        assert len(await ends) > 0
        await asyncio.sleep(1)
        cuts = await group.checkpoint()
        assert y.name in cuts
        (subscriber,) = await y.subscribers()
        assert subscriber.cut == cuts[y.name]
        await reader.close()

    simulate(test)
    assert not lost(caplog)


def test_a_cut_of_a_deleted_stream_does_not_keep_the_others_from_being_published():
    async def test(world):
        x, y, group = await two_streams(world, retention="manual")
        cuts = {x.name: await x.tail(), y.name: await y.tail()}
        await delete(x)
        await group.publish(cuts)
        (subscriber,) = await y.subscribers()
        assert subscriber.lag_bytes == 0

    simulate(test)


def test_a_group_whose_streams_are_all_deleted_ends(caplog):
    async def test(world):
        x, y, group = await two_streams(world)
        async with group.reader("one") as reader:
            await take(reader, 10)
            for stream in (x, y):
                await delete(stream)
            assert [event.data async for event in reader] == []
        again = await world.store.open_reader_group("a/g")
        assert await again.positions() == {}

    simulate(test)
    assert not lost(caplog)


def test_a_stream_deleted_before_the_group_began_is_left_out():
    """The group's record is stored, but its client died before it stored the start positions."""

    async def test(world):
        x, _, group = await two_streams(world)
        await group._table.delete()
        await delete(x)
        opened = await world.store.open_reader_group("a/g")
        assert list(await opened.positions()) == [StreamName("a", "y")]
        await opened._table.delete()
        await delete(world.store.stream("a/y"))
        with pytest.raises(StreamNotFoundError):
            await world.store.open_reader_group("a/g")

    simulate(test)


class Slow(FlatControl):
    """A controller whose next answer about successors or ranges never comes."""

    def __init__(self, inner):
        self._inner = inner
        self.hold_next = False

    async def layout_ranges(self, *arguments):
        if self.hold_next:
            self.hold_next = False
            await asyncio.Event().wait()
        return await self._inner.layout.ranges(*arguments)


def test_a_read_that_is_cancelled_while_a_stream_leaves_is_continued_by_the_next(caplog):
    async def test(world):
        world.store.controller = slow = Slow(world.controller)
        x, y, group = await two_streams(world)
        await delete(x)
        async with group.reader("one") as reader:
            await y.seal()
            slow.hold_next = True
            found = []
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(5):
                    found += [event.data async for event in reader]
            found += [event.data async for event in reader]

    simulate(test)
    assert len(lost(caplog)) == 1


def test_a_stream_leaves_the_state_without_a_trace():
    streams = StreamName("a", "x"), StreamName("a", "y")
    segments = [make_segment_id(number, 0) for number in range(4)]
    starts = {stream: StreamCut(stream, dict.fromkeys(segments, 7)) for stream in streams}
    ranges = {
        (stream, segment): keys for stream in streams for segment, keys in zip(segments, even_ranges(4), strict=True)
    }
    state = initial_state("g", starts, ranges)
    for name in ("one", "two"):
        state.join(name)
        state.acquire(name)
    state.start_checkpoint(5)
    state.finish("one", (streams[0], segments[0]), ())
    state.report("one", {})
    assert state.remove_stream(streams[0]) == {(streams[0], segment): 7 for segment in segments[1:]}
    before = state.encode()
    assert b"a/x" not in before
    assert state.remove_stream(streams[0]) == {}
    assert state.encode() == before
    state.report("two", {(streams[0], segments[1]): 9})
    assert b"a/x" not in state.encode()
    assert state.last_number == 1
    assert set(state.last_cuts()) == {streams[1]}
    assert GroupState.decode(before).encode() == before


def test_a_living_stream_whose_metadata_is_damaged_stays_in_the_group(caplog):
    """One row is lost. The controller reports the damage; it does not deny segments that were active only then."""

    async def test(world):
        x, y, group = await two_streams(world)
        await x.scale(3)
        await fill(x, 5, start=5)
        await x.scale(2)
        await fill(x, 5, start=10)
        found = []

        async def read_all(reader):
            async for event in reader:
                found.append(event.data)

        async with group.reader("one") as reader:
            key, table = keys.epoch(x.name, 1), keys.TABLE
            (entry,) = await world.real_segments.table_get(table, [key])
            await world.real_segments.table_remove(table, [TableRemoval(key=key)])
            world.controller._ctx.histories.forget(x.name)
            with pytest.raises(CorruptDataError, match="epoch"):
                await read_all(reader)
            assert {stream for stream, _ in reader.assigned()} == {x.name, y.name}
            await world.real_segments.table_update(table, [TablePut(key=key, value=entry.value, version=KEY_ABSENT)])
            found += await take(reader, 20 - len(found))
        assert sorted(found) == sorted(events(b"x", *range(15)) + events(b"y", *range(5)))
        assert set(await group.positions()) == {x.name, y.name}

    simulate(test)
    assert not lost(caplog)


class Denying(FlatControl):
    """A controller that denies segments of a stream, although the stream lives."""

    def __init__(self, inner):
        self._inner = inner

    async def layout_successors(self, stream, segment):
        raise SegmentNotFoundError("the stream never had this segment", segment=segment)

    async def layout_ranges(self, stream, segments):
        raise SegmentNotFoundError("the stream never had this segment", segment=segments[0])


def test_a_stream_that_lives_stays_in_the_group_although_a_segment_is_denied(caplog):
    async def test(world):
        x, y, group = await two_streams(world)
        await x.scale(3)
        async with group.reader("one") as reader:
            world.store.controller = reader._controller = Denying(world.controller)
            with pytest.raises(SegmentNotFoundError):
                await take(reader, 11)
            reader._controller = world.controller
            await fill(x, 1, start=5)
            await take(reader, 1)
        assert set(await group.positions()) == {x.name, y.name}

    simulate(test)
    assert not lost(caplog)
