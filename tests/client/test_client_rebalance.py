"""Laws of the callbacks of a group's reader: when each is called, and what the program may still do then."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from contextlib import suppress

import pytest
from client_world import open_services, simulate
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.client.reading.rebalancing import Rebalancing
from penstock.model.errors import InvalidArgumentError, NotCommittedError, ReaderFencedError
from penstock.model.names import StreamName
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng

STREAM = StreamName("a", "s")


class Seen:
    """What a program has seen, in order."""

    def __init__(self):
        self.kinds = []
        self.held = set()

    def assigned(self, segments):
        assert not self.held & set(segments)
        self.kinds.append(("assigned", len(segments)))
        self.held |= set(segments)

    def revoked(self, segments):
        assert set(segments) <= self.held
        self.kinds.append(("revoked", len(segments)))
        self.held -= set(segments)

    def lost(self, segments):
        self.revoked(segments)
        self.kinds[-1] = ("lost", len(segments))

    def options(self, **more):
        return {"on_assigned": self.assigned, "on_revoked": self.revoked, "on_lost": self.lost} | more


async def rest_of(reader):
    return [event.data async for event in reader]


async def group_of_four(world):
    stream = await world.safe.create_stream(STREAM, segments=4, create_scope=True)
    async with stream.writer(block_bytes=1024) as writer:
        for number in range(200):
            await writer.write(f"{number}", f"k{number % 10}")
    return await world.store.reader_group("g", [STREAM])


@pytest.mark.parametrize("seed", range(4))
def test_a_commit_in_on_revoked_keeps_the_next_reader_from_repeating(seed):
    async def test(world):
        group = await group_of_four(world)
        first, second, events = Seen(), Seen(), Counter()

        async def commit(segments):
            holder = (await world.safe.describe_reader_group("a/g")).members
            assert {f"{segment}#0" for _, segment in segments} <= set(holder[0].segments["a/s"])
            first.revoked(segments)
            await one.commit()

        one = group.reader("one", auto_commit=False, **first.options(on_revoked=commit))
        async with one:
            for _ in range(20):
                events[(await one.read()).data] += 1
            assert first.kinds[0] == ("assigned", 4)
            async with group.reader("two", **second.options()) as two:
                while (event := await one.read(3)) is not None:
                    assert (event.stream, event.segment) in first.held
                    events[event.data] += 1
                    if first.kinds[-1] != ("assigned", 4):
                        break
                while (event := await two.read(5)) is not None:
                    assert (event.stream, event.segment) in second.held
                    events[event.data] += 1
                while (event := await one.read(5)) is not None:
                    events[event.data] += 1
                assert first.kinds[:2] == [("assigned", 4), ("revoked", 2)]
                assert len(second.held) == 2
                await one.commit()
        assert set(events.values()) == {1}
        assert len(events) == 200
        assert first.held == second.held == set()

    simulate(test, seed=seed, loss=0.05)


def test_a_reader_that_was_taken_for_dead_learns_what_it_has_lost():
    async def test(world):
        group = await group_of_four(world)
        seen = Seen()
        refused = []

        async def lost(segments):
            seen.lost(segments)
            with pytest.raises(NotCommittedError):
                await reader.commit()
            refused.append(len(segments))

        reader = group.reader("one", auto_commit=False, **seen.options(on_lost=lost))
        async with reader:
            await reader.read()
            await group.remove_reader("one")
            await asyncio.sleep(3)
            while await reader.read(3) is not None:
                pass
            assert seen.kinds[:3] == [("assigned", 4), ("lost", 4), ("assigned", 4)]
            assert refused == [4]

    simulate(test)


def test_a_reader_that_is_replaced_loses_all():
    async def test(world):
        group = await group_of_four(world)
        seen = Seen()
        reader = group.reader("one", **seen.options())
        async with reader:
            await reader.read()
            async with group.reader("one"):
                await asyncio.sleep(3)
                with pytest.raises(ReaderFencedError):
                    await rest_of(reader)
        assert seen.kinds == [("assigned", 4), ("lost", 4)]

    simulate(test)


def test_a_segment_that_was_read_to_its_end_is_not_reported_and_its_successors_are_assigned():
    async def test(world):
        group = await group_of_four(world)
        await world.safe.stream(STREAM).scale(5)
        await world.safe.stream(STREAM).seal()
        calls = []
        reader = group.reader(
            "one",
            on_assigned=lambda segments: calls.append(("assigned", len(segments))),
            on_revoked=lambda segments: calls.append(("revoked", len(segments))),
            on_lost=lambda segments: calls.append(("lost", len(segments))),
        )
        async with reader:
            assert len([event async for event in reader]) == 200
        assert {kind for kind, _ in calls} == {"assigned"}
        assert sum(count for _, count in calls) == 9

    simulate(test)


def test_an_error_in_on_revoked_is_raised_by_the_read_and_the_segments_stay():
    async def test(world):
        group = await group_of_four(world)
        tries = []

        def fails_twice(segments):
            tries.append(len(segments))
            if len(tries) < 3:
                raise LookupError("no database")

        async with group.reader("one", on_revoked=fails_twice) as one, group.reader("two") as two:
            await asyncio.sleep(5)
            for _ in range(2):
                with pytest.raises(LookupError):
                    await one.read(5)
                assert len(one.assigned()) == 4
                await asyncio.sleep(5)
                assert two.assigned() == []
            found = [await one.read(5)]
            await asyncio.sleep(5)
            assert len(one.assigned()) == len(two.assigned()) == 2
            while (event := await one.read(5) or await two.read(5)) is not None:
                found.append(event)
            assert len(found) == 200
        assert tries == [2, 2, 2, 2]  # the last one on closing

    simulate(test)


@pytest.mark.parametrize("kind", ["assigned", "lost"])
def test_an_error_in_another_callback_is_raised_once_and_reading_continues(kind):
    async def test(world):
        group = await group_of_four(world)

        def fails(segments):
            raise LookupError(kind)

        async with group.reader("one", **{f"on_{kind}": fails}) as reader:
            if kind == "lost":
                await reader.read()
                await group.remove_reader("one")
                await asyncio.sleep(3)
            found = 0
            failures = 0
            while True:
                try:
                    if await reader.read(5) is None:
                        break
                    found += 1
                except LookupError:
                    failures += 1
            assert failures == 1
            assert found >= 199

    simulate(test)


@pytest.mark.parametrize("clean", [True, False])
def test_a_close_revokes_everything_and_an_exception_loses_it(clean):
    async def test(world):
        group = await group_of_four(world)
        seen = Seen()
        with suppress(ZeroDivisionError):
            async with group.reader("one", **seen.options()) as reader:
                await reader.read()
                if not clean:
                    raise ZeroDivisionError
        assert seen.kinds == [("assigned", 4), ("revoked" if clean else "lost", 4)]

        def fails(segments):
            raise LookupError

        reader = group.reader("two", on_revoked=fails)
        await reader.open()
        await reader.read()
        with pytest.raises(LookupError):
            await reader.close()
        assert await group.readers() == []
        await reader.close()

    simulate(test)


def test_a_callback_cannot_read_and_callbacks_are_functions():
    async def test(world):
        group = await group_of_four(world)
        refused = []

        async def reads(segments):
            with pytest.raises(InvalidArgumentError, match="cannot read"):
                await reader.read(1)
            refused.append(segments)

        reader = group.reader("one", on_assigned=reads)
        async with reader:
            assert await reader.read() is not None
        assert len(refused) == 1
        with pytest.raises(InvalidArgumentError, match="on_lost must be a function"):
            group.reader("one", on_lost="me")

    simulate(test)


def test_callbacks_of_a_blocking_reader_run_in_its_thread_and_may_commit():
    with penstock.Store(lambda: open_services(RealClock(), RealRng())) as store:
        with store.create_stream("a/s", segments=4, create_scope=True).writer() as writer:
            writer.write_many([b"%d" % number for number in range(100)], [f"k{number}" for number in range(100)])
        group = store.reader_group("g", ["a/s"], lease_s=1, refresh_s=0.05)
        seen, threads = Seen(), set()

        def revoked(segments):
            threads.add(threading.get_ident())
            seen.revoked(segments)
            one.commit()

        with group.reader("one", auto_commit=False, **seen.options(on_revoked=revoked)) as one:
            assert one.read(timeout_s=5) is not None
            with group.reader("two") as two:
                while seen.kinds[-1] == ("assigned", 4):
                    one.read(timeout_s=0.05)
                while not two.assigned():
                    two.read(timeout_s=0.05)
                assert len(two.assigned()) == 2

        assert seen.kinds[:2] == [("assigned", 4), ("revoked", 2)]
        assert seen.held == set()
        assert threads == {threading.get_ident()}

        async def waits(segments): ...

        with (
            pytest.raises(InvalidArgumentError, match="must return None"),
            group.reader("three", on_assigned=waits) as three,
        ):
            three.read(timeout_s=5)


KEYS = [(STREAM, number) for number in range(4)]
SOME = st.sets(st.sampled_from(KEYS))


@given(
    steps=st.lists(st.tuples(SOME, SOME, st.booleans(), st.integers(0, 4), st.booleans()), max_size=12),
    clean=st.booleans(),
)
def test_a_program_sees_each_segment_come_before_it_goes(steps, clean):
    rebalancing = Rebalancing(listens=True)
    held, ended = set(), set()

    def see(change):
        nonlocal held
        assert change.segments
        if change.kind == "assigned":
            assert not held - ended & set(change.segments)
            held |= set(change.segments)
        else:
            assert set(change.segments) <= held
            held -= set(change.segments)

    for now, over, rejoined, surplus, agrees in steps:
        over = over - now
        rebalancing.follow(now, ended=over, rejoined=rejoined, surplus=surplus)
        while (change := rebalancing.next(sorted(now))) is not None and change.kind != "revoked":
            see(change)
        held -= over
        assert held == now
        if change is not None:
            assert len(change.segments) == min(surplus, len(now))
            if agrees:
                see(change)
                rebalancing.release(change.segments)
                assert rebalancing.next(sorted(now)) is None
                rebalancing._reported = rebalancing.releasing  # as ``share`` does
                rebalancing.follow(now - set(change.segments))
                assert rebalancing.next([]) is None
    last = rebalancing.leave(clean=clean)
    assert (last is None) == (not held)
    assert last is None or (last.kind, set(last.segments)) == ("revoked" if clean else "lost", held)
