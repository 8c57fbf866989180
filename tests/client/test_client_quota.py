"""A writer under a backlog quota: it waits and says why, or is refused and loses no order, and goes on after."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict

import pytest
from client_world import open_services, read_all, simulate

from penstock.client.blocking.stores import Store
from penstock.model.errors import DeadlineExceededError, QuotaExceededError, QuotaHeldError
from penstock.ports.data.limits import AppendLimit, LimitAction
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng

SEGMENTS = [f"a/s/{number}.#epoch.0" for number in range(3)]
REASON = {"rule": "Q1", "subscriber": "slow"}


async def limit(segments, total_bytes, action=LimitAction.HOLD, total_events=None):
    await segments.limit_appends(
        [
            AppendLimit(
                stream="a/s",
                segments=SEGMENTS,
                total_bytes=total_bytes,
                total_events=total_events,
                action=action,
                reason=REASON,
            )
        ]
    )


@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_a_held_writer_goes_on_by_itself_and_nothing_is_lost(loss):
    async def test(world):
        await world.safe.create_stream("a/s", create_scope=True)
        writer = world.store.stream("a/s").writer(block_bytes=1024)
        for number in range(300):
            await writer.write(b"%05d" % number, "k")
        await writer.flush()
        for step in range(1, 6):
            await limit(world.real_segments, 13 * 300 + 13 * 40 * step)
            before = world.loop.time()
            world.loop.call_later(
                10, lambda more=step + 1: asyncio.ensure_future(limit(world.real_segments, 13 * (300 + 40 * more)))
            )
            for number in range(40):
                await writer.write(b"%05d" % (300 + 40 * step - 40 + number), "k")
            await writer.write(b"-", "k")
            await writer.flush()
            assert world.loop.time() - before > 9, "the last one did not fit"
        await writer.close()
        events = [int(event) for event in await read_all(world.safe.stream("a/s")) if event != b"-"]
        assert events == list(range(500))

    # A dash of 9 bytes is more than what is left, and takes of the next step's room.
    simulate(test, loss=loss)


@pytest.mark.parametrize("loss", [0.0, 0.01])
def test_a_writer_held_beyond_its_deadline_says_by_what(loss):
    async def test(world):
        await world.safe.create_stream("a/s", create_scope=True)
        await limit(world.real_segments, 13)
        writer = world.store.stream("a/s").writer(deadline_s=20)
        await writer.write(b"12345", "k")
        await writer.flush()
        began = world.loop.time()
        await writer.write(b"6", "k")
        await writer.write(b"7", "k")
        with pytest.raises(QuotaHeldError) as caught:
            await writer.flush()
        assert 19.99 < world.loop.time() - began < 25
        fields = caught.value.fields
        assert (fields["subscriber"], fields["rule"], fields["stream"]) == ("slow", "Q1", "a/s")
        assert (fields["unacked_events"], fields["unacked_bytes"], fields["deadline_s"]) == (2, 18, 20)
        assert "quota" in str(caught.value)
        with pytest.raises(QuotaHeldError):
            await writer.close()

    simulate(test, loss=loss)


@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_a_refused_writer_is_told_at_once_and_can_be_used_on(loss):
    async def test(world):
        stream = await world.safe.create_stream("a/s", create_scope=True)
        await limit(world.real_segments, 26, LimitAction.REJECT)
        async with world.store.stream("a/s").writer() as writer:
            await writer.write(b"12345", "k")
            await writer.flush()
            began = world.loop.time()
            await writer.write_many([b"a" * 6, b"b" * 6], ["k", "k"])
            with pytest.raises(QuotaExceededError) as caught:
                await writer.flush()
            assert world.loop.time() - began < 10
            fields = caught.value.fields
            assert (fields["subscriber"], fields["unacked_events"], fields["unacked_bytes"]) == ("slow", 2, 28)
            await writer.flush()
            await writer.write(b"67890", "k")
            await writer.flush()
            await writer.write(b"!", "k")
            with pytest.raises(QuotaExceededError):
                await writer.flush()
            await limit(world.real_segments, None)
            await writer.write(b"?", "k")
        assert await read_all(stream) == [b"12345", b"67890", b"?"]

    simulate(test, loss=loss)


@pytest.mark.parametrize("seed", range(12))
def test_whoever_writes_again_what_was_refused_writes_each_event_once_in_order(seed):
    """Limits come and go, answers are lost, the stream has one segment: what was dropped are the last ones written."""

    async def test(world):
        rng = random.Random(seed)
        stream = await world.safe.create_stream("a/s", create_scope=True)
        writer = world.store.stream("a/s").writer(block_bytes=1024, max_in_flight=3)
        total, done, refused = 400, 0, 0
        at = 0

        async def change() -> None:
            while True:
                await asyncio.sleep(rng.random())
                length = (await world.real_segments.info(SEGMENTS[0])).length
                action = rng.choice([LimitAction.REJECT, LimitAction.REJECT, LimitAction.HOLD])
                await limit(world.real_segments, rng.choice([None, length, length + 500, length + 5000]), action)

        changing = asyncio.ensure_future(change())
        while done < total:
            try:
                while at < total:
                    await writer.write(b"%06d" % at + bytes(rng.choice((0, 10, 700))), "k")
                    at += 1
                    if rng.random() < 0.1:
                        await writer.flush()
                    elif rng.random() < 0.2:
                        await asyncio.sleep(rng.random() / 10)
                await writer.flush()
                done = at
            except QuotaExceededError as error:
                refused += 1
                # The event whose write raised was taken before.
                at += 1 if error.__traceback__.tb_next.tb_frame.f_code.co_name == "write" else 0
                at -= error.fields["unacked_events"]
        changing.cancel()
        await writer.close()
        found = [int(event[:6]) for event in await read_all(stream)]
        assert found == list(range(total))
        assert refused, "some were refused"

    simulate(test, seed=seed, loss=0.1 if seed % 2 else 0.0)


def test_a_refusal_of_one_segment_stops_all_until_the_user_knows():
    async def test(world):
        await world.safe.create_stream("a/s", segments=3, create_scope=True)
        writer = world.store.stream("a/s").writer()
        keys = [f"k{number}" for number in range(30)]
        await limit(world.real_segments, None, LimitAction.REJECT, total_events=40)
        stored = 0
        for _ in range(5):
            for key in keys:
                await writer.write(f"{key}:{stored}".encode(), key)
            try:
                await writer.flush()
            except QuotaExceededError as error:
                lost = error.fields["unacked_events"]
                assert 0 < lost <= 30
                stored += 30 - lost
            else:
                stored += 30
        assert 30 <= stored <= 40
        assert len(await read_all(world.safe.stream("a/s"))) == stored
        await limit(world.real_segments, None)
        await writer.write(b"k:fine", "k")
        await writer.close()
        assert len(await read_all(world.safe.stream("a/s"))) == stored + 1

    simulate(test)


def test_every_flush_that_waits_is_told():
    async def test(world):
        await world.safe.create_stream("a/s", create_scope=True)
        await limit(world.real_segments, 0, LimitAction.REJECT)
        writer = world.store.stream("a/s").writer()
        await writer.write(b"x", "k")
        outcomes = await asyncio.gather(*(writer.flush() for _ in range(3)), return_exceptions=True)
        assert [type(item) for item in outcomes] == [QuotaExceededError] * 3
        await writer.flush()
        await writer.close()

    simulate(test)


@pytest.mark.parametrize("action", [LimitAction.HOLD, LimitAction.REJECT])
def test_large_events_are_held_and_refused_as_others(action):
    async def test(world):
        stream = await world.safe.create_stream("a/s", create_scope=True)
        writer = world.store.stream("a/s").writer()
        await writer.write(b"first", "k")
        await writer.flush()
        await limit(world.real_segments, 13, action)
        big = bytes(9 << 20)
        world.loop.call_later(10, lambda: asyncio.ensure_future(limit(world.real_segments, None)))
        await writer.write(big, "k")
        await writer.write(b"last", "k")
        if action is LimitAction.HOLD:
            await writer.close()
            assert await read_all(stream) == [b"first", big, b"last"]
            return
        with pytest.raises(QuotaExceededError) as caught:
            await writer.flush()
        assert caught.value.fields["unacked_events"] == 2
        await asyncio.sleep(20)
        await writer.write(big, "k")
        await writer.close()
        assert await read_all(stream) == [b"first", big]
        assert (await world.real_segments.info(SEGMENTS[0])).event_count == 2

    simulate(test)


def test_a_transaction_is_refused_before_it_is_committed():
    async def test(world):
        stream = await world.safe.create_stream("a/s", create_scope=True)
        await limit(world.real_segments, 0, LimitAction.REJECT)
        with pytest.raises(QuotaExceededError):
            async with world.store.stream("a/s").transaction() as txn:
                await txn.write(b"x", "k")
        assert await read_all(stream) == []

    simulate(test)


def test_other_troubles_end_as_before():
    async def test(world):
        await world.safe.create_stream("a/s", create_scope=True)
        writer = world.store.stream("a/s").writer(deadline_s=5)
        await writer.open()
        world.segments.rate = 2.0
        await writer.write(b"x", "k")
        with pytest.raises(DeadlineExceededError):
            await writer.flush()

    simulate(test, loss=0.01)


def test_the_blocking_writer_is_told_once_and_goes_on():
    opened = {}

    def opener():
        services = open_services(RealClock(), RealRng())

        class Keeping:
            async def __aenter__(self):
                opened["segments"], controller = await services.__aenter__()
                return opened["segments"], controller

            async def __aexit__(self, *error):
                return await services.__aexit__(*error)

        return Keeping()

    with Store(opener) as store:
        stream = store.create_stream("a/s", segments=3, create_scope=True)

        def limited(*arguments):
            store.call(lambda _: limit(opened["segments"], *arguments))

        with stream.writer(block_bytes=1024, max_pending_bytes=65536) as writer:
            writer.write(b"first", "k")
            writer.flush()
            limited(13, LimitAction.REJECT)
            written = 0
            refused = None
            while refused is None:
                try:
                    written += 1
                    writer.write(b"%06d" % written, "k")
                except QuotaExceededError as error:
                    refused = error
            assert refused.fields["unacked_events"] == written, "all that were written, the last one too"
            writer.write(b"x", "k")
            with pytest.raises(QuotaExceededError) as caught:
                writer.flush()
            assert caught.value.fields["unacked_events"] == 1
            writer.flush()
            limited(None)
            for number in range(100):
                writer.write(f"{number % 7}:{number}".encode(), str(number % 7))
        found = defaultdict(list)
        with stream.reader(until_tail=True) as reader:
            for event in reader:
                key, _, number = event.data.decode().rpartition(":")
                found[key].append(number)
        assert found.pop("") == ["first"]
        assert found == {str(key): [str(number) for number in range(key, 100, 7)] for key in range(7)}
