"""Pravega Stream Retention, "Consumption Based Retention": each rule by its place in the document."""

from __future__ import annotations

import asyncio

import pytest
from documents_world import FIRST, STREAM, World, by_size, by_time, group, play, take

from penstock.codec.control.readers import SubscriberRecord
from penstock.controller import keys
from penstock.controller.metadata import Metadata
from penstock.core.policies.levels import effective_of
from penstock.core.retention.planner import RetentionFacts, StreamCutRecord, decide
from penstock.core.streams.history import EpochRecord, StreamHistory
from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidCutError, TruncatedError
from penstock.model.policies import ReaderGroupRetention, RetentionPolicy
from penstock.model.segments import SegmentRange, even_ranges, make_segment_id

SECOND = make_segment_id(0, 1)


# --- what it is for -----------------------------------------------------------------------------------------------


def test_a_message_queue_deletes_what_all_subscribers_have_consumed() -> None:
    """Consumption Based Retention, use cases: events of a queue can be deleted once all subscribers have consumed them."""

    async def story(w: World) -> None:
        await w.stream(by_size(0))
        await w.subscribe("billing", {FIRST: 0})
        await w.subscribe("shipping", {FIRST: 0})
        await w.append(10, 10, 10)
        await w.publish({FIRST: 30}, "billing")
        await w.cycle()
        assert await w.head() == {FIRST: 0}
        await w.publish({FIRST: 20}, "shipping")
        await w.cycle()
        assert await w.head() == {FIRST: 20}
        await w.publish({FIRST: 30}, "shipping")
        await w.cycle()
        assert await w.size() == 0

    play(story)


def test_on_small_machines_consumed_data_makes_room() -> None:
    """Consumption Based Retention, use cases: where storage is limited, data that is no longer needed makes room for more."""

    async def story(w: World) -> None:
        await w.stream(by_size(0))
        await w.subscribe("g", {FIRST: 0})
        most = 0
        for number in range(1, 21):
            await w.append(*[100] * 50)
            await w.publish({FIRST: number * 5000})
            await w.cycle()
            await w.segments.flush()
            report = await w.controller.retention.reclaim(STREAM)
            most = max(most, report.disk_bytes)
        # A hundred thousand bytes went through, and never more than two rounds of them were on the disk.
        assert (await w.controller.streams.describe(STREAM)).written_bytes == 100_000
        assert most <= 10_000

    play(story, chunk_bytes=5000, flush_bytes=5000, free_head_bytes=1000)


# --- words --------------------------------------------------------------------------------------------------------


def test_while_a_subscriber_is_down_its_last_position_counts() -> None:
    """Terminology, subscriber reader group: while it is down, its last published position counts, and nothing that it has not
    read is truncated."""

    async def story(w: World) -> None:
        await w.stream(by_size(0))
        await w.subscribe("down", {FIRST: 0})
        await w.append(10, 10)
        await w.publish({FIRST: 10}, "down")
        for _ in range(5):
            await w.append(10)
            await w.cycle(after_s=86_400)
        assert await w.head() == {FIRST: 10}
        assert (await w.controller.streams.describe(STREAM)).held_by == "subscriber s/down"

    play(story, days=6)


def test_a_group_that_is_no_subscriber_may_miss_data() -> None:
    """Terminology, non-subscriber reader group: the default; reading does not hold data, and what goes while it is away is
    lost to it.
    Differs: read past truncated data"""

    async def story(w: World) -> None:
        stream = await w.stream(by_size(0))
        reading = await w.store.reader_group("g", ["s/t"])
        assert reading.retention is ReaderGroupRetention.NONE
        await w.append(10, 10)
        async with reading.reader("one") as reader:
            assert len(await take(reader, 2)) == 2
        await w.append(10, 10)
        await w.cycle()
        assert not await stream.subscribers()
        assert await w.size() == 0
        await w.append(24)
        with pytest.raises(TruncatedError) as caught:
            async with reading.reader("one") as reader:
                await reader.next_block()
        assert caught.value.fields["start_offset"] == 40
        async with reading.reader("one", on_truncated="skip") as reader:
            assert [len(event.data) for event in await reader.next_block()] == [16]

    play(story)


def test_a_cut_covers_all_keys_and_lies_between_events() -> None:
    """Terminology, stream cut: a set of segments and offsets of one stream, covering all keys, each offset between two events."""

    async def story(w: World) -> None:
        stream = await w.stream(segments=2)
        await w.append(10, 20, segment=FIRST)
        await w.append(30, segment=SECOND)
        reading = await w.store.reader_group("g", ["s/t"])
        boundaries = {FIRST: {0, 10, 30}, SECOND: {0, 30}}
        async with reading.reader("one") as reader:
            for _ in range(3):
                await take(reader, 1)
                await reader.sync()
                found = (await reading.positions())[STREAM]
                assert set(found.positions) == {FIRST, SECOND}
                assert all(found.positions[item] in boundaries[item] for item in boundaries)
        assert (await reading.positions())[STREAM] == await stream.tail()
        for wrong in ({FIRST: 10}, {FIRST: 10, SECOND: 0, make_segment_id(3, 9): 0}):
            with pytest.raises(InvalidCutError):
                await stream.truncate(StreamCut(STREAM, wrong))
        with pytest.raises(InvalidCutError):
            await stream.truncate(StreamCut(type(STREAM)("s", "other"), {FIRST: 0, SECOND: 0}))

    play(story)


def test_a_group_resumes_from_its_checkpoint() -> None:
    """Terminology, checkpoint: readers persist their positions, so that a group goes on from there after it was down."""

    async def story(w: World) -> None:
        stream = await w.stream()
        reading = await w.store.reader_group("g", ["s/t"], lease_s=5)
        async with stream.writer() as writer:
            for number in range(20):
                await writer.write(f"{number:02}")
        down = reading.reader("one")
        await down.open()
        assert (await take(down, 8))[-1] == b"07"
        checkpoint = asyncio.ensure_future(reading.checkpoint())
        while not checkpoint.done():
            await asyncio.sleep(0.2)
            await down.sync()
        (position,) = (await checkpoint).values()
        await down.abandon()  # The process is gone.
        again = await w.store.open_reader_group("s/g", lease_s=5)
        assert (await again.positions())[STREAM] == position == StreamCut(STREAM, {FIRST: 7 * 10})
        async with again.reader("two") as reader:
            # It was handed out, and is not known to be done with.
            assert await take(reader, 1) == [b"07"]

    play(story)


def test_segments_without_a_reader_are_assigned() -> None:
    """Terminology, checkpoint: positions that readers report are what lets unassigned segments be given to readers."""

    async def story(w: World) -> None:
        await w.stream(segments=4)
        reading = await w.store.reader_group("g", ["s/t"])
        async with reading.reader("one") as one:
            assert len(one.assigned()) == 4
            async with reading.reader("two") as two:
                await asyncio.sleep(5)
                assert (len(one.assigned()), len(two.assigned())) == (2, 2)

    play(story)


def test_checkpoints_come_by_themselves_unless_told_otherwise() -> None:
    """Terminology, checkpoint: made automatically, which is the default, or on request; the group's state has the last one."""
    assert group("g").checkpoint_interval_ms == 30_000

    async def story(w: World) -> None:
        stream = await w.stream(by_size(0))
        reading = await w.store.reader_group("g", ["s/t"], retention="automatic")
        await w.append(10, 10)
        async with reading.reader("one") as reader:
            await take(reader, 2)
            waiting = asyncio.ensure_future(reader.next_block())
            await asyncio.sleep(45)
            (subscriber,) = await stream.subscribers()
            assert subscriber.cut == await stream.tail()
            assert await reading.checkpoint() == {STREAM: await stream.tail()}
            waiting.cancel()

    play(story)


# --- how it works -------------------------------------------------------------------------------------------------


def test_data_stays_as_long_as_one_application_has_not_consumed_it() -> None:
    """How it works: data stays as long as at least one consuming application has not consumed it."""

    async def story(w: World) -> None:
        await w.stream(by_size(0))
        for number in range(5):
            await w.subscribe(f"g{number}", {FIRST: 0})
        await w.append(*[10] * 5)
        for number in range(1, 5):
            await w.publish({FIRST: 50}, f"g{number}")
        await w.cycle()
        assert await w.size() == 50
        await w.publish({FIRST: 20}, "g0")
        await w.cycle()
        assert await w.size() == 30

    play(story)


def test_an_acknowledgement_is_kept_with_the_stream_the_latest_only() -> None:
    """How it works: published cuts are stored with the metadata of the stream, for each subscriber the latest alone."""

    async def story(w: World) -> None:
        await w.stream(by_size(0))
        await w.subscribe("g", {FIRST: 0})
        await w.append(10, 10, 10)
        for offset in (10, 20, 20):
            await w.publish({FIRST: offset})
        entries = [entry async for entry in Metadata(w.segments).scan_all(keys.subscribers(STREAM))]
        assert [SubscriberRecord.decode(entry.value).cut for entry in entries] == [{FIRST: 20}]
        with pytest.raises(InvalidCutError):
            await w.publish({FIRST: 10})

    play(story)


@pytest.mark.parametrize(("published", "head"), [(None, 30), (10, 10)])
def test_with_an_acknowledgement_by_consumption_without_by_the_policy(published: int | None, head: int) -> None:
    """How it works: with a cut of at least one application a stream is truncated by consumption, without any by its limits."""

    async def story(w: World) -> None:
        await w.stream(by_size(10))
        await w.subscribe("g", {} if published is None else {FIRST: 0})
        await w.grow(10, 10, 10)
        if published is not None:
            await w.publish({FIRST: published})
        decision = await w.grow(10)
        assert await w.head() == {FIRST: head}
        assert decision.rule == ("minimum" if published is None else "subscribers")

    play(story)


def test_publishing_truncates_nothing_by_itself() -> None:
    """How it works, note: truncation comes asynchronously and eventually, by what subscribers published and the limits."""

    async def story(w: World) -> None:
        await w.stream(by_size(0))
        await w.subscribe("g", {FIRST: 0})
        await w.append(10, 10)
        await w.publish({FIRST: 20})
        assert await w.head() == {FIRST: 0}
        await asyncio.sleep(1)
        assert await w.head() == {FIRST: 20}

    play(story, cycle_s=1800)


# --- the lower bound ----------------------------------------------------------------------------------------------


def test_one_subscriber_is_its_own_lower_bound() -> None:
    """Stream Metadata, 1 and 2: with no cut of a subscriber the limits apply; a single one is the lower bound."""

    async def story(w: World) -> None:
        await w.stream(by_size(5, 1000))
        await w.subscribe("g", {})
        await w.grow(10, 10)
        assert await w.head() == {FIRST: 10}
        await w.append(30)
        await w.publish({FIRST: 20})
        assert (await w.cycle()).rule == "subscribers"
        assert await w.head() == {FIRST: 20}

    play(story)


def test_of_several_subscribers_none_loses_what_it_has_not_consumed() -> None:
    """Stream Metadata, 3: the lower bound of several is such that truncating there loses no unconsumed data of any."""

    async def story(w: World) -> None:
        await w.stream(by_size(0), segments=2)
        await w.append(10, 10, 10, segment=FIRST)
        await w.append(10, 10, 10, segment=SECOND)
        await w.subscribe("a", {FIRST: 30, SECOND: 10})
        await w.subscribe("b", {FIRST: 20, SECOND: 30})
        await w.cycle()
        assert await w.head() == {FIRST: 20, SECOND: 10}
        assert await w.controller.retention.list_evictions(STREAM) == []

    play(story)


def test_the_lower_bound_of_different_epochs() -> None:
    """Stream Metadata, 3: so it is where the subscribers' cuts are of different sets of segments."""

    async def story(w: World) -> None:
        stream = await w.stream(by_size(0))
        await w.append(10, 10)
        await stream.scale(2)
        left, right = (item.segment for item in await w.controller.layout.current(STREAM))
        await w.append(10, 10, segment=left)
        await w.subscribe("before", {FIRST: 10})
        await w.subscribe("after", {left: 20, right: 0})
        await w.cycle()
        assert await w.head() == {FIRST: 10}
        await w.publish({left: 10, right: 0}, "before")
        await w.cycle()
        assert await w.head() == {left: 10, right: 0}

    play(story)


# --- the bound and the limits -------------------------------------------------------------------------------------


async def _twenties(w: World, policy: RetentionPolicy, bound: int) -> dict:
    """Cuts recorded at 20, 40, 60, 80 and 100 bytes, a second apart; then the policy, and a cycle."""
    stream = await w.stream(by_size(1000))
    await w.grow(20, 20, 20, 20, 20)
    await w.subscribe("g", {FIRST: bound})
    await stream.update(retention=policy)
    return await w.controller.retention.run(STREAM)


@pytest.mark.parametrize(
    ("relation", "policy", "bound", "rule", "head"),
    [
        ("i", by_size(10, 70), 50, "subscribers", 50),
        ("i, exactly the minimum", by_size(50, 70), 50, "subscribers", 50),
        ("i, exactly the maximum", by_size(10, 50), 50, "subscribers", 50),
        ("ii", by_size(30, 70), 90, "subscribers-minimum", 60),
        ("iii", by_size(10, 70), 20, "subscribers-maximum", 40),
        ("i by time", by_time(1, 3.5), 50, "subscribers", 50),
        ("ii by time", by_time(2, 5), 90, "subscribers-minimum", 60),
        ("iii by time", by_time(1, 2), 20, "subscribers-maximum", 60),
    ],
)
def test_relations_of_bound_and_limits(
    relation: str, policy: RetentionPolicy, bound: int, rule: str, head: int
) -> None:
    """Stream Metadata, i to iii: within the limits the bound is the cut; beyond one of them the recorded cut closest to that
    limit.
    Differs: subscribers' bound leaves exactly the maximum"""

    async def story(w: World) -> None:
        decision = await _twenties(w, policy, bound)
        assert (decision.rule, await w.head()) == (rule, {FIRST: head}), relation

    play(story)


def test_relation_iii_tells_what_was_lost() -> None:
    """Stream Metadata, iii: beyond the maximum data goes that the subscriber has not read.
    Differs: a maximum that passes unread data"""

    async def story(w: World) -> None:
        await _twenties(w, by_size(10, 70), 20)
        (lost,) = await w.controller.retention.list_evictions(STREAM)
        assert (lost.subscriber, lost.bytes, lost.rule) == ("s/g", 20, "subscribers-maximum")
        assert await w.acknowledged() == {"s/g": {FIRST: 40}}

    play(story)


async def _two_lanes(w: World, policy: RetentionPolicy, bound: tuple[int, int]) -> dict:
    """Two segments, cuts recorded at (10, 10), (20, 40), (50, 50), (80, 60) and (90, 90), a second apart."""
    stream = await w.stream(by_size(1000), segments=2)
    for left, right in ((10, 10), (10, 30), (30, 10), (30, 10), (10, 30)):
        await w.append(left, segment=FIRST)
        await w.append(right, segment=SECOND)
        await w.cycle()
    await w.subscribe("g", {FIRST: bound[0], SECOND: bound[1]})
    await stream.update(retention=policy)
    return await w.controller.retention.run(STREAM)


@pytest.mark.parametrize("policy", [by_size(75), by_time(2)])
def test_relation_iv_the_bound_overlaps_the_minimum(policy: RetentionPolicy) -> None:
    """Stream Metadata, iv: where the bound overlaps the minimum's cut, the first cut towards the head that does not overlap it;
    a little more than needed stays, and the minimum is kept."""

    async def story(w: World) -> None:
        # The minimum's cut is (50, 50), ahead of the bound on the left and behind it on the right.
        decision = await _two_lanes(w, policy, (45, 70))
        assert (decision.rule, await w.head()) == ("overlap-minimum", {FIRST: 20, SECOND: 40})
        assert await w.size() == 120 >= 75

    play(story)


@pytest.mark.parametrize("policy", [by_size(10, 85), by_time(0, 2)])
def test_relation_v_the_bound_overlaps_the_maximum(policy: RetentionPolicy) -> None:
    """Stream Metadata, v: where the bound overlaps the maximum's cut, the first cut towards the tail that does not overlap it.
    Differs: bound overlaps the maximum, by time"""

    async def story(w: World) -> None:
        # The maximum's cut is (50, 50). The first one that is nowhere behind the bound is (80, 60).
        decision = await _two_lanes(w, policy, (30, 60))
        assert (decision.rule, await w.head()) == ("overlap-maximum", {FIRST: 80, SECOND: 60})

    play(story)


def test_relation_v_keeps_the_minimum() -> None:
    """Stream Metadata, v: the minimum is a guarantee here too.
    Differs: the minimum against the maximum"""

    async def story(w: World) -> None:
        decision = await _two_lanes(w, by_size(70, 85), (30, 60))
        # (80, 60) would leave 40 only.
        first, then = decision.steps
        assert (first.rule, first.truncate) == ("subscribers-maximum", {"0#0": 50, "1#0": 50})
        # What is left keeps the maximum by now, so that the subscriber's own cut counts.
        assert (then.rule, await w.head()) == ("subscribers", {FIRST: 50, SECOND: 60})
        assert await w.size() >= 70

    play(story)


def test_relations_hold_for_any_sizes() -> None:
    """Stream Metadata, i to v: whatever the sizes, a truncation leaves the minimum, and takes unread data for the maximum
    alone."""
    ranges = [SegmentRange(segment=make_segment_id(0, n), keys=k) for n, k in enumerate(even_ranges(2))]
    history = StreamHistory(epochs=(EpochRecord(epoch=0, segments=tuple(ranges)),))
    places = [(5 * n, 7 * (n // 2 * 2)) for n in range(1, 9)]
    records = [
        StreamCutRecord(time_ms=1000 * n, size_bytes=a + b, positions={FIRST: a, SECOND: b})
        for n, (a, b) in enumerate(places, 1)
    ]
    total = sum(places[-1])
    seen = set()
    for minimum in range(0, total, 9):
        for maximum in [*range(minimum, total + 9, 9), None]:
            policy = effective_of(by_size(minimum, maximum))
            for a in range(0, 41, 4):
                for b in range(0, 57, 8):
                    facts = RetentionFacts(
                        history=history, policy=policy, retention_set=records, subscribers={"g": {FIRST: a, SECOND: b}}
                    )
                    decision = decide(facts, now_ms=9000)
                    seen.add(decision.rule.value)
                    if decision.truncate is None:
                        continue
                    at = decision.truncate
                    assert total - sum(at.values()) >= minimum
                    if at[FIRST] > a or at[SECOND] > b:
                        assert maximum is not None
                        assert total - a - b > maximum or decision.rule.value == "overlap-maximum"
    assert seen >= {"subscribers", "subscribers-minimum", "subscribers-maximum", "overlap-minimum", "overlap-maximum"}
