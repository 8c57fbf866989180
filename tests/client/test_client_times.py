"""Reading from a time on: nothing that was appended since is missing, and at most one block per segment is older."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from client_world import EVENTS, STEP_S, simulate, time_of, write_steps

from penstock.client.store import AsyncStore
from penstock.model.errors import InvalidArgumentError, NotConnectedError


async def steps_from(stream, start):
    async with stream.reader(start=start, until_tail=True) as reader:
        return sorted([int(event.data) async for event in reader])


def test_a_reader_begins_at_the_block_of_a_time_across_scaling():
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        await stream.scale(2)
        times = await write_steps(world, stream, 0, 3)
        await stream.scale(3)
        times += await write_steps(world, stream, 3, 5)
        await stream.scale(1)
        times += await write_steps(world, stream, 5, 7)
        for first, at in enumerate(times):
            wanted = [step for step in range(first, 7) for _ in range(EVENTS)]
            assert await steps_from(stream, at) == wanted
            assert await steps_from(stream, at.astimezone()) == wanted
        await asyncio.sleep(STEP_S)
        before = times[0] - timedelta(days=1)
        assert len(await steps_from(stream, before)) == 7 * EVENTS
        assert await steps_from(stream, times[-1] + timedelta(seconds=1)) == []
        # What is not in a block yet has the time of the last append.
        times += await write_steps(world, stream, 7, 9, tiered=False)
        assert await steps_from(stream, times[-1]) == [7] * EVENTS + [8] * EVENTS

    simulate(test)


def test_a_group_begins_at_a_time():
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        times = await write_steps(world, stream, 0, 4)
        await stream.seal()
        group = await world.store.reader_group("g", ["a/s"], start=times[2])
        async with group.reader("r") as reader:
            assert [int(event.data) async for event in reader] == [2] * EVENTS + [3] * EVENTS

    simulate(test)


def test_times_that_name_no_place_are_refused_before_anything_is_done():
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        now = time_of(world)
        for wrong in (now.replace(tzinfo=None), now + timedelta(hours=1), now.date(), 5):
            with pytest.raises(InvalidArgumentError):
                stream.reader(start=wrong)
            with pytest.raises(InvalidArgumentError):
                await world.store.reader_group("g", ["a/s"], start={"a/s": wrong})
        assert list(await world.store.reader_groups("a")) == []

    simulate(test)


class _Flaky:
    """Loses the first request for the state of a segment."""

    def __init__(self, inner):
        self._inner = inner
        self.lost = False

    def __getattr__(self, name):
        return getattr(self._inner, name)

    async def info(self, name):
        if not self.lost:
            self.lost = True
            raise NotConnectedError("request lost", call="info")
        return await self._inner.info(name)


def test_a_lost_request_is_repeated():
    async def test(world):
        stream = await world.store.create_stream("a/s", segments=2, create_scope=True)
        (at,) = await write_steps(world, stream, 0, 1)
        flaky = _Flaky(world.segments)
        other = AsyncStore(flaky, world.controller, world.clock, world.rng)
        assert len(await steps_from(other.stream("a/s"), at)) == EVENTS
        assert flaky.lost

    simulate(test)
