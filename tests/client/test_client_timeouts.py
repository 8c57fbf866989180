"""An asynchronous reader whose calls time out: the next call goes on, and every event comes once, in order."""

from __future__ import annotations

import asyncio
import random

import pytest
from client_world import simulate

READERS = ("plain", "group")


async def open_reader(world, stream, kind):
    if kind == "plain":
        return stream.reader()
    group = await world.store.reader_group("g", ["a/s"])
    return group.reader("one")


@pytest.mark.parametrize("kind", READERS)
def test_an_iterator_that_timed_out_goes_on(kind):
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        async with stream.writer() as writer, await open_reader(world, stream, kind) as reader:
            events = aiter(reader)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(events), 1)
            await writer.write(b"late", "k")
            await writer.flush()
            assert (await asyncio.wait_for(anext(events), 60)).data == b"late"
            blocks = reader.read_blocks()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(blocks), 1)
            await writer.write(b"later", "k")
            await writer.flush()
            assert (await anext(blocks)).events() == [b"later"]
            await stream.seal()
            with pytest.raises(StopAsyncIteration):
                await anext(events)

    simulate(test)


@pytest.mark.parametrize("kind", READERS)
def test_read_returns_none_after_its_timeout_and_at_the_end(kind):
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        async with stream.writer() as writer, await open_reader(world, stream, kind) as reader:
            assert await reader.read(timeout_s=0) is None
            began_s = world.loop.time()
            assert await reader.read(timeout_s=2.5) is None
            assert world.loop.time() - began_s == pytest.approx(2.5)
            with pytest.raises(TimeoutError):
                await reader.next_block(timeout_s=0.5)
            await writer.write(b"one", "k")
            await writer.write(b"two", "k")
            await writer.flush()
            assert (await reader.read()).data == b"one"
            assert (await reader.read(timeout_s=0)).data == b"two"
            await stream.seal()
            assert await reader.read() is None

    simulate(test)


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("seed", range(10))
def test_timeouts_at_any_moment_lose_and_repeat_nothing(kind, seed):
    async def test(world):
        stream = await world.safe.create_stream("a/s", create_scope=True)
        rng = random.Random(seed)

        async def write():
            async with stream.writer(block_bytes=1024) as writer:
                for number in range(120):
                    await writer.write(b"%d" % number, "k")
                    await asyncio.sleep(rng.random() * 0.2)
                    if number in (40, 80):
                        await stream.scale(number // 20)
            await stream.seal()

        async def ask(reader, events):
            timeout_s = rng.choice((0, 0.001, 0.01, 0.1, 1))
            if rng.random() < 0.5:
                return await reader.read(timeout_s)
            try:
                return await asyncio.wait_for(anext(events), timeout_s)
            except (TimeoutError, StopAsyncIteration):
                return None

        found: list[bytes] = []
        task = asyncio.ensure_future(write())
        async with await open_reader(world, world.store.stream("a/s"), kind) as reader:
            events = aiter(reader)
            while len(found) < 120 and not (task.done() and task.exception()):
                event = await ask(reader, events)
                if event is not None:
                    found.append(event.data)
        await task
        assert found == [b"%d" % number for number in range(120)]

    simulate(test, seed=seed, loss=0.05)
