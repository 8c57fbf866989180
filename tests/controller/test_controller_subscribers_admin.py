"""Subscribers as people see and handle them: exact lags, moves in both directions, removal, and words older than a rule's."""

from __future__ import annotations

import asyncio

import pytest
from controller_world import (
    STREAM,
    audit_entries,
    cut_at,
    join,
    name_of,
    opened,
    publish,
    scale_to,
    seg,
    table_keys,
    with_stream,
)
from memory_segments import MemorySegments

from penstock.controller.controller import Controller
from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidCutError, StreamNotFoundError, SubscriberNotFoundError, TruncatedError
from penstock.model.names import StreamName
from penstock.model.policies import RetentionPolicy, RetentionType
from penstock.model.retention import Backlog, OnExceed, PolicyDocument, Retain
from penstock.net.removal_plan import plan_removal
from penstock.ports.control.subscribers import SubscriberInfo
from penstock.testing.fakes import FakeClock

SEGMENT = seg(0, 0)
KEEPS = RetentionPolicy(type=RetentionType.SIZE, minimum=10**9)


def run(work) -> None:
    asyncio.run(work())


async def one(controller: Controller, group: str = "s/g") -> SubscriberInfo:
    return next(item for item in await controller.subscribers.describe(STREAM) if item.name == group)


def test_lags_are_exact_in_bytes_and_events_also_across_a_scale() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock, retention=KEEPS) as controller:
            segments.write(name_of(SEGMENT), b"x" * 100, event_bytes=10)
            await join(controller, "g", {SEGMENT: 30})
            await join(controller, "new")
            found = await one(controller)
            assert (found.lag_bytes, found.lag_events, found.holes) == (70, 7, 0)
            await scale_to(controller, 2)
            segments.write(name_of(seg(1, 1)), b"y" * 12, event_bytes=4)
            segments.write(name_of(seg(1, 2)), b"z" * 5, event_bytes=5)
            found = await one(controller)
            assert (found.lag_bytes, found.lag_events) == (87, 11)
            new = await one(controller, "s/new")
            assert (new.cut, new.lag_bytes, new.lag_events) == (None, 117, 14)
            await publish(controller, "g", {seg(1, 1): 4, seg(1, 2): 5})
            found = await one(controller)
            assert (found.lag_bytes, found.lag_events) == (8, 2)
            await publish(controller, "g", {seg(1, 1): 12, seg(1, 2): 5})
            found = await one(controller)
            assert (found.lag_bytes, found.lag_events, found.lag_ms) == (0, 0, None)

    run(work)


def test_counting_goes_on_from_what_was_counted_before() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            segments.write(name_of(SEGMENT), b"x" * 10_000, event_bytes=10)
            await join(controller, "g", {SEGMENT: 5000})
            assert (await one(controller)).lag_events == 500
            segments.counted = 0
            for step in range(1, 11):
                segments.write(name_of(SEGMENT), b"x" * 10, event_bytes=10)
                await publish(controller, "g", {SEGMENT: 5000 + 10 * step})
                assert (await one(controller)).lag_events == 500
            assert segments.counted <= 200

    run(work)


def test_a_cut_between_no_two_events_is_described_without_a_count() -> None:
    async def work() -> None:
        segments = MemorySegments()
        async with with_stream(segments) as controller:
            segments.write(name_of(SEGMENT), b"x" * 20, event_bytes=10)
            await join(controller, "g", {SEGMENT: 13})
            found = await one(controller)
            assert (found.lag_bytes, found.lag_events) == (7, -1)

    run(work)


def test_ages_are_those_of_records_and_never_too_old() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock, retention=KEEPS) as controller:
            await join(controller, "g", {SEGMENT: 0})
            assert (await one(controller)).lag_ms is None
            segments.write(name_of(SEGMENT), b"x" * 10)
            clock.ms += 400
            await controller.retention.run(STREAM)
            clock.ms += 600
            # Written 1000 ms ago; nothing was written since, so that it is known to the millisecond.
            assert (await one(controller)).lag_ms == 1000
            segments.write(name_of(SEGMENT), b"x" * 10)
            assert (await one(controller)).lag_ms == 600
            await publish(controller, "g", {SEGMENT: 10})
            assert (await one(controller)).lag_ms == 0
            clock.ms += 50
            assert (await one(controller)).lag_ms == 50

    run(work)


def test_nothing_is_unread_between_two_epochs() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock, retention=KEEPS) as controller:
            segments.write(name_of(SEGMENT), b"x" * 10)
            await join(controller, "g", {SEGMENT: 10})
            await scale_to(controller, 2)
            clock.ms += 1000
            await controller.retention.run(STREAM)
            assert (await one(controller)).lag_ms is None
            clock.ms += 1000
            segments.write(name_of(seg(1, 1)), b"x")
            clock.ms += 1
            assert (await one(controller)).lag_ms == 1

    run(work)


def test_what_a_subscriber_holds_is_what_the_planner_says_of_it() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        policy = RetentionPolicy(type=RetentionType.SIZE, minimum=0)
        async with with_stream(segments, 1, clock, retention=policy) as controller:
            segments.write(name_of(SEGMENT), b"x" * 100)
            await join(controller, "slow", {SEGMENT: 20})
            await join(controller, "fast", {SEGMENT: 90})
            held = {item.name: item.held_bytes for item in await controller.subscribers.describe(STREAM)}
            assert held == {"s/slow": 80, "s/fast": 0}

    run(work)


def test_a_move_goes_forwards_backwards_and_to_the_tail_and_says_what_it_passes() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            segments.write(name_of(SEGMENT), b"x" * 100, event_bytes=10)
            await join(controller, "g", {SEGMENT: 30})
            seen_ms = (await one(controller)).updated_ms
            clock.ms += 1000
            before = segments.mutations
            tried = await controller.subscribers.move(STREAM, "s/g", cut_at({SEGMENT: 80}), dry_run=True)
            assert segments.mutations == before
            done = await controller.subscribers.move(STREAM, "s/g", cut_at({SEGMENT: 80}))
            assert tried == done
            assert (done.start, done.end, done.bytes, done.events) == ({"0#0": 30}, {"0#0": 80}, 50, 5)
            back = await controller.subscribers.move(STREAM, "s/g", cut_at({SEGMENT: 10}))
            assert (back.bytes, back.events) == (-70, -7)
            # The group itself was not heard of, keeps its generation, and goes on from where it was put.
            found = await one(controller)
            assert (found.cut, found.generation, found.updated_ms) == (cut_at({SEGMENT: 10}), 0, seen_ms)
            await publish(controller, "g", {SEGMENT: 20})
            with pytest.raises(InvalidCutError):
                await publish(controller, "g", {SEGMENT: 10})
            end = await controller.subscribers.move(STREAM, "s/g", StreamCut(STREAM, {}))
            assert (end.end, end.events) == ({"0#0": 100}, 8)
            reported = await audit_entries(controller, segments, "move")
            assert [entry["events"] for entry in reported] == [5, -7, 8]
            assert reported[0]["subscribers"][0] == {
                "name": "s/g",
                "from": {"0": 30},
                "to": {"0": 80},
                "bytes": 50,
                "events": 5,
            }

    run(work)


@pytest.mark.parametrize("here", [(0, 100), (100, 0), (30, 60), (50, 50), (100, 100)])
@pytest.mark.parametrize("there", [(10, 50), (50, 10), (30, 30), (100, 100)])
def test_what_is_passed_unread_at_one_key_counts_whatever_is_given_back_at_another(
    here: tuple[int, int], there: tuple[int, int]
) -> None:
    async def work() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 2) as controller:
            first, second = seg(0, 0), seg(0, 1)
            for segment in (first, second):
                segments.write(name_of(segment), b"x" * 100, event_bytes=10)
            await join(controller, "g", {first: here[0], second: here[1]})
            cut = cut_at({first: there[0], second: there[1]})
            lost = sum(max(0, end - start) for start, end in zip(here, there, strict=True))
            moved = await controller.subscribers.move(STREAM, "s/g", cut, dry_run=True)
            assert (moved.passed_bytes, moved.passed_events) == (lost, lost // 10)
            assert moved.bytes == sum(there) - sum(here)
            planned = (await plan_removal(controller, STREAM, cut))["subscribers"]
            expected = {"subscriber": "s/g", "bytes": lost, "events": lost // 10}
            assert planned == ([expected] if lost else [])

    run(work)


def test_one_that_has_published_nothing_is_moved_from_the_head() -> None:
    async def work() -> None:
        segments = MemorySegments()
        async with with_stream(segments) as controller:
            segments.write(name_of(SEGMENT), b"x" * 10)
            await controller.streams.truncate(STREAM, cut_at({SEGMENT: 4}))
            await join(controller, "g")
            moved = await controller.subscribers.move(STREAM, "s/g", cut_at({SEGMENT: 6}))
            assert (moved.start, moved.bytes, moved.events) == ({"0#0": 4}, 2, 2)

    run(work)


def test_moves_to_where_there_is_no_data_are_refused() -> None:
    async def work() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 2) as controller:
            for number in range(2):
                segments.write(name_of(seg(0, number)), b"x" * 10)
            await controller.streams.truncate(STREAM, cut_at({seg(0, 0): 5, seg(0, 1): 0}))
            await join(controller, "g", {seg(0, 0): 5, seg(0, 1): 5})
            with pytest.raises(TruncatedError) as caught:
                await controller.subscribers.move(STREAM, "s/g", cut_at({seg(0, 0): 4, seg(0, 1): 10}))
            assert caught.value.fields["segment"] == name_of(seg(0, 0))
            assert caught.value.start_offset == 5
            for positions in ({seg(0, 0): 11, seg(0, 1): 0}, {seg(0, 0): 7}):
                with pytest.raises(InvalidCutError):
                    await controller.subscribers.move(STREAM, "s/g", cut_at(positions))
            with pytest.raises(InvalidCutError):
                await controller.subscribers.move(STREAM, "s/g", cut_at({seg(0, 0): 7}, StreamName("s", "other")))
            with pytest.raises(SubscriberNotFoundError):
                await controller.subscribers.move(STREAM, "s/no", StreamCut(STREAM, {}))
            with pytest.raises(StreamNotFoundError):
                await controller.subscribers.move(StreamName("s", "no"), "s/g", StreamCut(STREAM, {}))

    run(work)


def test_a_removed_subscriber_holds_nothing_and_may_subscribe_again() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        policy = RetentionPolicy(type=RetentionType.SIZE, minimum=0)
        async with with_stream(segments, 1, clock, retention=policy) as controller:
            segments.write(name_of(SEGMENT), b"x" * 10)
            await join(controller, "g", {SEGMENT: 2})
            await controller.subscribers.remove(STREAM, "s/g")
            assert await controller.subscribers.list(STREAM) == ()
            assert not [key for key in table_keys(segments) if key.startswith("subscriber/")]
            with pytest.raises(SubscriberNotFoundError):
                await controller.subscribers.remove(STREAM, "s/g")
            with pytest.raises(SubscriberNotFoundError):
                await publish(controller, "g", {SEGMENT: 5})
            (reported,) = await audit_entries(controller, segments, "drop")
            assert (reported["rule"], reported["subscriber"], reported["cut"]) == ("manual", "s/g", {"0": 2})
            clock.ms += 1000
            assert (await controller.retention.run(STREAM)).truncate == {"0#0": 10}
            group = await controller.groups.get("s", "g")
            await controller.groups.update(group)
            assert await controller.subscribers.list(STREAM) == ("s/g",)

    run(work)


def test_a_deleted_group_leaves_an_entry_of_what_it_held() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            segments.write(name_of(SEGMENT), b"x" * 10)
            await join(controller, "g", {SEGMENT: 2})
            group = await controller.groups.get("s", "g")
            await controller.groups.delete("s", "g", group_id=group.id)
            (reported,) = await audit_entries(controller, segments, "drop")
            assert (reported["rule"], reported["subscriber"], reported["cut"]) == ("left", "s/g", {"0": 2})
            assert not [key for key in table_keys(segments) if key.startswith("subscriber/")]

    run(work)


def test_a_word_older_than_the_rule_that_moved_the_subscriber_is_no_error() -> None:
    """A group that reads on while a rule takes data from it publishes what it has read: behind its cut, not behind its word."""

    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            document = PolicyDocument(
                retain=Retain(min_bytes=0), backlog=Backlog(max_bytes=50, on_exceed=OnExceed.EVICT, evict_to=0.5)
            )
            await controller.policies.set(STREAM, document)
            await join(controller, "g", {SEGMENT: 0})
            segments.write(name_of(SEGMENT), b"x" * 60, event_bytes=5)
            clock.ms += 1000
            await controller.retention.run(STREAM)
            assert (await one(controller)).cut == cut_at({SEGMENT: 35})
            await publish(controller, "g", {SEGMENT: 20})
            assert (await one(controller)).cut == cut_at({SEGMENT: 35})
            with pytest.raises(InvalidCutError):
                await publish(controller, "g", {SEGMENT: 15})
            await publish(controller, "g", {SEGMENT: 40})
            assert (await one(controller)).cut == cut_at({SEGMENT: 40})
            with pytest.raises(InvalidCutError):
                await publish(controller, "g", {SEGMENT: 35})
        async with opened(segments, clock) as controller:
            assert (await one(controller)).cut == cut_at({SEGMENT: 40})

    run(work)


def test_a_cycle_that_has_looked_removes_nothing_that_a_move_or_a_newcomer_claims_meanwhile() -> None:
    """The cycle is stopped between its look and its removal, at every await in turn."""

    async def work(pauses: int, *, newcomer: bool) -> None:
        segments = MemorySegments()
        async with with_stream(segments, retention=RetentionPolicy(type=RetentionType.SIZE)) as controller:
            segments.write(name_of(seg(0, 0)), b"x" * 10)
            await join(controller, "g")
            await publish(controller, "g", {seg(0, 0): 10})
            cycle = asyncio.ensure_future(controller.retention.run(STREAM))
            for _ in range(pauses):
                await asyncio.sleep(0)
            claimed = True
            try:
                if newcomer:
                    await join(controller, "h", {seg(0, 0): 0})
                else:
                    await controller.subscribers.move(STREAM, "s/g", cut_at({seg(0, 0): 0}))
            except (TruncatedError, InvalidCutError):
                claimed = False
            await cycle
            head = (await controller.cuts.head(STREAM)).positions[seg(0, 0)]
            for subscriber in await controller.subscribers.describe(STREAM):
                assert subscriber.cut is not None
                assert subscriber.cut.positions[seg(0, 0)] >= head, (pauses, subscriber)
            if not newcomer and claimed:
                assert head == 0

    for pauses in range(40):
        for newcomer in (False, True):
            asyncio.run(work(pauses, newcomer=newcomer))
