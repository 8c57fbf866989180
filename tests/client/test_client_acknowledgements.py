"""An acknowledged event is durable and lies where its acknowledgement says; writers that do not ask pay nothing."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from client_world import open_services, simulate

import penstock
from penstock.client.writing.write_blocks import TrackedEvent, WriteBlock
from penstock.model.errors import DeadlineExceededError, InvalidArgumentError, NotConnectedError, StreamNotFoundError
from penstock.model.names import StreamName
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng

STREAM = StreamName("a", "s")


async def places_of(stream):
    async with stream.reader(until_tail=True) as reader:
        return {event.data: penstock.Place(event.stream, event.segment, event.offset) async for event in reader}


@pytest.mark.parametrize("seed", range(8))
def test_every_acknowledgement_has_the_place_where_the_event_is_read_while_the_stream_scales(seed):
    async def test(world):
        stream = await world.safe.create_stream(STREAM, segments=2, create_scope=True)
        acknowledgements = {}

        async def scale():
            for count in (3, 2, 5):
                await asyncio.sleep(0.2)
                await stream.scale(count)

        async with asyncio.TaskGroup() as group, world.store.stream(STREAM).writer(block_bytes=1024) as writer:
            group.create_task(scale())
            for number in range(400):
                key = f"k{number % 20}" if number % 3 else None
                event = b"%d" % number
                if number % 2:
                    acknowledgements[event] = await writer.write_acknowledged(event, key)
                else:
                    await writer.write(event, key)
                if number % 20 == 0:
                    await asyncio.sleep(0.05)
        found = await places_of(stream)
        assert len(found) == 400
        known = 0
        for event, acknowledgement in acknowledgements.items():
            assert acknowledgement.done
            place = await acknowledgement
            assert place[:2] == found[event][:2]
            if place.offset is not None:  # else the answer was lost
                assert place == found[event]
                known += 1
        assert known > 100

    simulate(test, seed=seed, loss=0.1 if seed % 2 else 0.0)


def test_without_losses_every_place_is_known_and_comes_without_a_flush():
    async def test(world):
        stream = await world.safe.create_stream(STREAM, create_scope=True)
        async with stream.writer() as writer:
            waits = [await writer.write_acknowledged(f"{number}") for number in range(50)]
            assert not waits[-1].done
            places = await asyncio.gather(*waits, waits[7])
            assert [place.offset for place in places[:3]] == [0, 9, 18]
            assert places[7] == places[-1]
            assert await waits[7] == places[7]

    simulate(test)


def test_a_large_event_is_acknowledged():
    async def test(world):
        stream = await world.safe.create_stream(STREAM, create_scope=True)
        async with stream.writer() as writer:
            await writer.write("small")
            large = await writer.write_acknowledged(bytes(9 << 20))
            after = await writer.write_acknowledged("after")
            assert (await large).offset == 13
            assert (await after).offset == 13 + 8 + (9 << 20)

    simulate(test)


def test_a_cancelled_wait_and_a_cancelled_write_leave_the_event_written():
    async def test(world):
        stream = await world.safe.create_stream(STREAM, create_scope=True)
        async with stream.writer() as writer:
            acknowledgement = await writer.write_acknowledged("one")
            with suppress(TimeoutError):
                await asyncio.wait_for(acknowledgement, 0)
            assert (await acknowledgement).offset == 0
        async with stream.writer(max_pending_bytes=1, block_bytes=1024) as writer:
            await writer.write(bytes(2000))
            waits = asyncio.create_task(writer.write_acknowledged(b"x" * 2000))
            for _ in range(20):  # it waits for room now
                await asyncio.sleep(0)
            waits.cancel()
            await asyncio.gather(waits, return_exceptions=True)
        assert b"x" * 2000 in await places_of(stream)

    simulate(test)


class Away:
    """A store whose appends do not arrive."""

    submit_append = withdraw_appends = open_direct = None

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)

    async def append(self, request):
        await asyncio.sleep(0.1)
        raise NotConnectedError("away")


@pytest.mark.parametrize("end", ["deadline", "close", "abort"])
def test_when_the_writer_ends_the_acknowledgements_fail_with_its_error(end):
    async def test(world):
        await world.safe.create_stream(STREAM, create_scope=True)
        store = type(world.store)(Away(world.real_segments), world.controller, world.clock, world.rng)
        writer = store.stream(STREAM).writer(deadline_s=5)
        waits = [await writer.write_acknowledged(f"{number}") for number in range(3)]
        await asyncio.sleep(1)
        waits.append(await writer.write_acknowledged("in the lane"))
        if end == "abort":
            await writer.abort()
        else:
            with pytest.raises(DeadlineExceededError):
                await (writer.close() if end == "close" else waits[0])
        for wait in waits:
            with pytest.raises(InvalidArgumentError if end == "abort" else DeadlineExceededError):
                await wait
        with pytest.raises((InvalidArgumentError, DeadlineExceededError)):
            await writer.write_acknowledged("late")
        await writer.abort()

    simulate(test)


def test_what_cannot_be_written_is_refused_and_nothing_is_buffered():
    async def test(world):
        stream = await world.safe.create_stream(STREAM, create_scope=True)
        with pytest.raises(StreamNotFoundError):
            await world.store.stream("a/none").writer().write_acknowledged("x")
        async with stream.writer() as writer:
            for event, key in ((7, None), ("x", 7), (b"x", ["k"])):
                with pytest.raises(InvalidArgumentError):
                    await writer.write_acknowledged(event, key)
        assert await places_of(stream) == {}

    simulate(test)


def test_blocking_acknowledgements_among_single_events_that_are_sent_directly():
    with penstock.Store(lambda: open_services(RealClock(), RealRng()), local=True) as store:
        stream = store.create_stream(STREAM, segments=2, create_scope=True)
        with stream.writer() as writer:
            for number in range(20):  # enough for the direct path
                writer.write(f"single {number}", "k")
                writer.flush()
            assert writer._core.direct.active
            acknowledgements = [writer.write_acknowledged(f"{number}", f"k{number}") for number in range(50)]
            places = [acknowledgement.result(timeout_s=10) for acknowledgement in acknowledgements]
            writer.write("last", "k")
            writer.flush()
            assert not writer._core.direct.active
            assert all(acknowledgement.done for acknowledgement in acknowledgements)
        with stream.reader(until_tail=True) as reader:
            found = {event.data: penstock.Place(event.stream, event.segment, event.offset) for event in reader}
        assert len(found) == 71
        assert places == [found[b"%d" % number] for number in range(50)]
        with pytest.raises(InvalidArgumentError, match="closed"):
            writer.write_acknowledged("late")


def test_an_event_without_a_receipt_is_what_the_program_gave():
    async def test(world):
        stream = await world.safe.create_stream(STREAM, create_scope=True)
        async with stream.writer() as writer:
            event = b"plain"
            await writer.write(event)
            (lane,) = writer._core.lane_list()
            assert lane.written[1] is event
            assert not lane.tracked
            await writer.write_acknowledged(b"asked")
            assert [type(given) for given in lane.written[1::2]] == [bytes, TrackedEvent]
        assert WriteBlock(b"", 0, None, 0).receipts == ()

    simulate(test)
