"""PDP-47, Consumption Based Retention, from the fallback policy on: each rule by its place in the proposal."""

from __future__ import annotations

import asyncio

import pytest
from documents_world import DAY_S, FIRST, HOUR_S, STREAM, World, by_size, by_time, group, play, take

from penstock.codec.control.policy_document import decode_document
from penstock.core.policies.levels import effective_of, pravega_view
from penstock.core.retention.planner import RetentionFacts, StreamCutRecord, decide
from penstock.core.streams.history import EpochRecord, StreamHistory
from penstock.model.cuts import StreamCut
from penstock.model.errors import (
    InvalidArgumentError,
    RetentionHoldError,
)
from penstock.model.names import StreamName
from penstock.model.policies import LONG_MAX, ReaderGroupRetention, RetentionPolicy, RetentionType
from penstock.model.retention import PolicyDocument, Retain
from penstock.model.segments import KeyRange, SegmentRange

OTHER = StreamName("s", "u")
NONE, MANUAL = ReaderGroupRetention.NONE, ReaderGroupRetention.MANUAL
GB = 10**9

NONE, MANUAL = ReaderGroupRetention.NONE, ReaderGroupRetention.MANUAL
GB = 10**9


# --- fallback -----------------------------------------------------------------------------------------------------


def test_the_example_of_50_gb() -> None:
    """CBR Fallback Policy, subscriber failures: with a limit of 50 G, a stream that is larger after truncation by consumption
    is truncated to no more than 50 G."""
    history = StreamHistory(
        epochs=(EpochRecord(epoch=0, segments=(SegmentRange(segment=FIRST, keys=KeyRange(low=0.0, high=1.0)),)),)
    )
    records = [StreamCutRecord(time_ms=n, size_bytes=n * 4 * GB, positions={FIRST: n * 4 * GB}) for n in range(1, 31)]
    facts = RetentionFacts(
        history=history,
        policy=effective_of(by_size(0, 50 * GB)),
        retention_set=records,
        subscribers={"s/stuck": {FIRST: 3 * GB}, "s/fast": {FIRST: 119 * GB}},
    )
    decision = decide(facts, now_ms=100)
    assert decision.truncate == {FIRST: 72 * GB}  # 48 are left, the closest below 50.
    (lost,) = decision.evictions
    assert (lost.subscriber, lost.bytes) == ("s/stuck", 69 * GB)


def test_without_a_maximum_a_stuck_subscriber_holds_for_ever() -> None:
    """CBR Fallback Policy, subscriber failures: if nobody publishes for long, the stream grows; setting a maximum is optional.
    Differs: subscriber that stopped publishing"""

    async def story(w: World) -> None:
        await w.stream(by_size(0))
        await w.subscribe("stuck", {FIRST: 0})
        await w.grow(10, 10, 10, after_s=DAY_S)
        assert await w.size() == 30
        document = decode_document({"retain": {"min_bytes": 0}, "idle": {"subscriber_s": 2 * DAY_S}})
        await w.controller.policies.set(STREAM, document)
        await w.cycle()
        assert await w.size() == 0

    play(story, days=5)


def test_the_example_of_30_minutes() -> None:
    """CBR Fallback Policy, late subscribers: with a minimum of 30 minutes, no truncation by consumption while the head is
    younger than that; a late subscriber still finds it."""

    async def story(w: World) -> None:
        stream = await w.stream(by_time(30 * 60))
        await w.subscribe("early", {FIRST: 0})
        await w.append(10)
        await w.publish({FIRST: 10}, "early")
        await w.cycle(after_s=0)
        assert (await w.cycle(after_s=30 * 60 - 1)).truncate is None
        reading = await w.store.reader_group("late", ["s/t"], retention="manual")
        assert (await reading.positions())[STREAM] == StreamCut(STREAM, {FIRST: 0})
        await w.cycle()
        assert await w.head() == {FIRST: 0}  # Old enough now, but the late one holds it.
        await reading.publish(await stream.tail())
        await w.cycle()
        assert await w.head() == {FIRST: 10}

    play(story)


# --- the policy ---------------------------------------------------------------------------------------------------


def test_limits_left_out() -> None:
    """Consumption Based Retention Policy: a minimum that is not given is 0, a maximum that is not given is the largest long.
    Differs: absent maximum"""
    policy = RetentionPolicy(type=RetentionType.SIZE)
    assert (policy.minimum, policy.maximum) == (0, None)
    applied = effective_of(policy)
    assert (applied.min_bytes, applied.max_bytes) == (0, None)
    assert effective_of(by_size(0, LONG_MAX)).max_bytes is None


def test_both_limits_are_of_one_kind() -> None:
    """Consumption Based Retention Policy: both limits are of size or both of time; a mixture is not supported.
    Differs: both bytes and age"""
    assert {item.value for item in RetentionType} == {"size", "time"}
    mixed = PolicyDocument(retain=Retain(min_age_s=60, max_bytes=100))
    assert pravega_view(mixed) is None

    async def story(w: World) -> None:
        await w.stream()
        await w.controller.policies.set(STREAM, mixed)
        await w.append(60, 60)
        await w.cycle(after_s=0)
        await w.append(60)
        await w.cycle(after_s=30)
        assert await w.size() == 180  # The maximum of size is passed, but the minimum of age stands.
        await w.cycle(after_s=30)
        assert await w.size() == 60

    play(story)


def test_contradicting_limits_are_refused() -> None:
    """Consumption Based Retention Policy: minimum and maximum together."""
    for wrong in ((5, 4), (-1, 4)):
        with pytest.raises(InvalidArgumentError):
            by_size(*wrong)


# --- changing it --------------------------------------------------------------------------------------------------


def test_moving_to_consumption_takes_a_policy_and_a_subscriber() -> None:
    """Changing the Retention policy, to CBR: the stream needs a policy and a group that is a subscriber; with both, in this
    order, consumption decides.
    Differs: no subscribers at all"""

    async def story(w: World) -> None:
        stream = await w.stream()
        await w.append(10, 10, 10)
        await w.subscribe("g", kind=NONE)
        # First the policy. The proposal has nothing truncated until there is a subscriber; here the limits apply till then.
        await stream.update(retention=by_size(15))
        await w.cycle()
        await w.append(14)
        assert (await w.cycle()).rule == "below-minimum"
        await w.append(10)
        await w.cycle()
        assert await w.head() == {FIRST: 30}
        # Then the group, from which the subscriber's cuts come.
        await w.controller.groups.update(group("g", kind=MANUAL))
        await stream.update(retention=by_size(0))
        await w.publish({FIRST: 44}, generation=1)
        await w.cycle()
        assert await w.head() == {FIRST: 44}

    play(story)


def test_moving_away_from_consumption_has_records_to_truncate_at() -> None:
    """Changing the Retention policy, from CBR: the subscriber is switched off, and truncation by size goes on at once, since
    cuts were recorded all the time."""

    async def story(w: World) -> None:
        stream = await w.stream(by_size(0))
        await w.subscribe("g", {FIRST: 0})
        await w.grow(10, 10, 10, 10)
        await stream.update(retention=by_size(20))
        await w.controller.groups.update(group("g", kind=NONE))
        decision = await w.controller.retention.run(STREAM)
        assert (decision.rule, await w.head()) == ("minimum", {FIRST: 20})

    play(story)


def test_a_subscriber_that_is_left_switched_on_goes_on_to_count() -> None:
    """Changing the Retention policy, from CBR: leaving the subscriber on does not harm truncation by size or time.
    Differs: type "consumption\""""

    async def story(w: World) -> None:
        stream = await w.stream(by_size(0))
        await w.subscribe("g", {FIRST: 0})
        await w.grow(10, 10, 10, 10)
        await stream.update(retention=by_size(20))
        assert (await w.cycle()).rule == "subscribers"
        assert await w.size() == 40
        await stream.update(retention=by_size(20, 30))
        assert (await w.cycle()).rule == "subscribers-maximum"
        assert await w.size() == 30

    play(story)


# --- by hand ------------------------------------------------------------------------------------------------------


def test_truncation_by_hand_works_and_keeps_no_promise_of_the_policy() -> None:
    """Manual Stream Truncation: a user can truncate such a stream by hand; what the policy promises does not hold then."""

    async def story(w: World) -> None:
        stream = await w.stream(by_size(1000))
        await w.subscribe("g", {FIRST: 0})
        await w.append(10, 10)
        await stream.truncate(await stream.tail())
        assert await w.size() == 0

    play(story)


def test_truncation_by_hand_can_be_forbidden() -> None:
    """Manual Stream Truncation: that nobody does it by mistake could be enforced, by rights for some users only.
    Differs: manual truncation"""

    async def story(w: World) -> None:
        stream = await w.stream(by_size(1000))
        await w.append(10, 10)
        hold = await w.controller.holds.add(STREAM, owner="ops", reason="being consumed")
        with pytest.raises(RetentionHoldError) as caught:
            await stream.truncate(await stream.tail())
        assert caught.value.fields["owner"] == "ops"
        await w.controller.holds.release(hold.id, owner="ops")
        await stream.truncate(await stream.tail())
        assert await w.size() == 0

    play(story)


# --- questions ----------------------------------------------------------------------------------------------------


def test_frequent_checkpoints_do_not_truncate_more_often() -> None:
    """FAQ, aggressive checkpointing: it does not truncate faster, since only the cycle truncates; every 30 s by default, and
    configurable.
    Differs: acknowledgements between cycles"""
    assert group("g").checkpoint_interval_ms == 30_000

    async def story(w: World) -> None:
        await w.stream(by_size(0))
        await w.subscribe("g", {FIRST: 0})
        await asyncio.sleep(2)
        await w.append(*[10] * 50)
        heads = []
        for number in range(1, 51):
            await w.publish({FIRST: 10 * number})
            await asyncio.sleep(0.05)
            heads.append((await w.head())[FIRST])
        # Fifty publications, and a truncation each half second.
        assert len(set(heads)) <= 7
        await asyncio.sleep(1)
        assert await w.head() == {FIRST: 500}

    play(story, cycle_s=1800)


def test_checkpoints_are_no_more_frequent_than_reports_of_readers() -> None:
    """FAQ, aggressive checkpointing: the interval is configurable and could have a lower bound.
    Differs: checkpoint of a group"""

    async def story(w: World) -> None:
        await w.stream(by_size(0))
        reading = await w.store.reader_group(
            "g", ["s/t"], retention="automatic", checkpoint_interval_s=0.001, refresh_s=1
        )
        await w.append(*[10] * 100)
        seen = []
        async with reading.reader("one") as reader:
            for _ in range(100):
                await take(reader, 1)
                await asyncio.sleep(0.1)
                seen.append((await w.acknowledged())["s/g"])
        assert len({str(item) for item in seen}) <= 12

    play(story)


def test_acknowledgements_are_cumulative() -> None:
    """FAQ, per event: there are only cumulative acknowledgements.
    Differs: individual acknowledgements"""

    async def story(w: World) -> None:
        await w.stream(by_size(0))
        await w.subscribe("g", {FIRST: 0})
        await w.append(10, 10, 10)
        await w.publish({FIRST: 20})
        (subscriber,) = await w.controller.subscribers.describe(STREAM)
        assert (subscriber.holes, subscriber.lag_bytes, subscriber.lag_events) == (0, 10, 1)

    play(story)


@pytest.mark.parametrize(("start", "behind"), [("head", 20), ("tail", 0), (StreamCut(STREAM, {FIRST: 10}), 10)])
def test_a_new_subscriber_may_begin_anywhere(start: object, behind: int) -> None:
    """FAQ, new subscribers: one may read from any place in the stream, also what was published before it joined."""

    async def story(w: World) -> None:
        stream = await w.stream(by_size(0))
        await w.append(10, 10)
        await w.store.reader_group("new", ["s/t"], retention="manual", start=start)
        (subscriber,) = await stream.subscribers()
        assert subscriber.lag_bytes == behind
        await w.cycle()
        assert await w.size() == behind

    play(story)


@pytest.mark.parametrize(("maximum", "size"), [(None, 60), (30, 30)])
def test_a_slow_subscriber_slows_truncation_down(maximum: int | None, size: int) -> None:
    """FAQ, slow subscribers: one can slow truncation down; a maximum keeps the stream from growing without bound, and
    streams that must not lose messages leave it out."""

    async def story(w: World) -> None:
        await w.stream(by_size(0, maximum))
        await w.subscribe("slow", {FIRST: 0})
        await w.grow(10, 10, 10, 10, 10, 10)
        assert await w.size() == size
        assert bool(await w.controller.retention.list_evictions(STREAM)) is (maximum is not None)

    play(story)


def test_a_maximum_of_time_is_a_time_to_live() -> None:
    """FAQ, TTL: a maximum of time works as time to live of each message."""

    async def story(w: World) -> None:
        await w.stream(by_time(0, HOUR_S))
        await w.subscribe("slow", {FIRST: 0})
        await w.append(10)
        await w.cycle(after_s=0)
        await w.append(10)
        await w.cycle(after_s=HOUR_S / 2)
        await w.cycle(after_s=HOUR_S / 2 - 0.001)
        assert await w.head() == {FIRST: 0}
        await w.cycle(after_s=0.001)
        assert await w.head() == {FIRST: 10}
        await w.cycle(after_s=HOUR_S / 2)
        assert await w.head() == {FIRST: 20}

    play(story)
