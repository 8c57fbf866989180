"""PDP-47, Consumption Based Retention: each rule by its place in the proposal."""

from __future__ import annotations

import asyncio

import pytest
from documents_world import FIRST, GROUP_ID, STREAM, World, by_size, by_time, group, play, take

from penstock.model.cuts import StreamCut
from penstock.model.errors import (
    GenerationMismatchError,
    InvalidCutError,
    SubscriberNotFoundError,
)
from penstock.model.names import StreamName
from penstock.model.policies import ReaderGroupRetention, RetentionPolicy
from penstock.ports.control.groups import ReaderGroupConfig

OTHER = StreamName("s", "u")
NONE, MANUAL = ReaderGroupRetention.NONE, ReaderGroupRetention.MANUAL


async def two_streams(w: World) -> None:
    await w.stream(by_size(0))
    await w.stream(by_size(0), name=OTHER)


async def subscribers(w: World) -> tuple[list[str], list[str]]:
    """Of both streams."""
    return list(await w.controller.subscribers.list(STREAM)), list(await w.controller.subscribers.list(OTHER))


# --- motivation, terminology --------------------------------------------------------------------------------------


def test_no_single_event_is_deleted() -> None:
    """Motivation: there is no deletion of single events; a stream is truncated from its head, at cuts."""

    async def story(w: World) -> None:
        stream = await w.stream(by_size(0))
        await w.subscribe("g", {FIRST: 0})
        await w.append(10, 12, 14)
        await w.publish({FIRST: 22})
        await w.cycle()
        assert [len(event) for event in await w.read()] == [6]
        with pytest.raises(InvalidCutError):
            await stream.truncate(StreamCut(STREAM, {FIRST: 10}))

    play(story)


def test_the_stream_holds_what_is_not_consumed_and_nothing_else() -> None:
    """Motivation, 1 and 2: a stream carries unconsumed data only, and no message goes before all subscribers consumed it."""

    async def story(w: World) -> None:
        await w.stream(by_size(0))
        for name in ("a", "b"):
            await w.subscribe(name, {FIRST: 0})
        done = {"a": 0, "b": 0}
        for number in range(12):
            await w.append(10)
            name = "ab"[number % 3 == 0]
            done[name] += 10
            await w.publish({FIRST: done[name]}, name)
            await w.cycle()
            assert await w.head() == {FIRST: min(done.values())}

    play(story)


def test_a_group_reads_several_streams_and_a_reader_several_segments() -> None:
    """Terminology: a reader group reads one or more streams, a reader one or more of their segments."""

    async def story(w: World) -> None:
        await w.stream(segments=2)
        await w.stream(name=OTHER, segments=2)
        reading = await w.store.reader_group("g", ["s/t", "s/u"])
        await w.append(10)
        await w.append(12, stream=OTHER)
        async with reading.reader("one") as one:
            assert len(one.assigned()) == 4
            assert sorted(len(data) for data in await take(one, 2)) == [2, 4]

    play(story)


def test_a_cut_is_made_of_the_positions_of_all_readers() -> None:
    """Terminology, position: from what all readers of a group are at, a cut of each stream can be made."""

    async def story(w: World) -> None:
        stream = await w.stream(segments=2)
        reading = await w.store.reader_group("g", ["s/t"])
        await w.append(10, segment=FIRST)
        await w.append(20, segment=FIRST + 1)
        async with reading.reader("one") as one, reading.reader("two") as two:
            await asyncio.sleep(5)
            await take(one, 1)
            await take(two, 1)
        assert (await reading.positions())[STREAM] == await stream.tail()

    play(story)


def test_automatic_and_manual_checkpoints() -> None:
    """Terminology, checkpoints: automatic ones come at intervals and are not returned; a manual one is returned to the user."""

    async def story(w: World) -> None:
        stream = await w.stream()
        reading = await w.store.reader_group("g", ["s/t"], retention="automatic", checkpoint_interval_s=5)
        await w.append(10, 10)
        async with reading.reader("one") as reader:
            await take(reader, 2)
            assert (await reading.checkpoint())[STREAM] == StreamCut(STREAM, {FIRST: 10})
            more = asyncio.ensure_future(take(reader, 1))
            await asyncio.sleep(10)
            assert (await w.acknowledged())["s/g"] == (await stream.tail()).positions
            more.cancel()

    play(story)


# --- how it works -------------------------------------------------------------------------------------------------


def test_groups_start_and_stop_at_any_time() -> None:
    """New Concepts: reader groups start and stop reading at any time in the life of a stream."""

    async def story(w: World) -> None:
        await w.stream(by_size(0))
        await w.append(10, 10)
        await w.subscribe("early", {FIRST: 0})
        await w.publish({FIRST: 20}, "early")
        await w.subscribe("late", {FIRST: 10})
        await w.cycle()
        assert await w.head() == {FIRST: 10}
        await w.controller.groups.delete("s", "late")
        await w.cycle()
        assert await w.head() == {FIRST: 20}

    play(story)


def test_a_temporary_reader_between_two_cuts_holds_nothing() -> None:
    """Stream Subscription: a temporary reader between two cuts is no subscriber, and has no influence on truncation."""

    async def story(w: World) -> None:
        stream = await w.stream(by_size(0))
        await w.append(10, 12, 14)
        start, end = StreamCut(STREAM, {FIRST: 10}), StreamCut(STREAM, {FIRST: 22})
        assert [len(event) for event in await w.read(start=start, end=end)] == [4]
        await w.store.reader_group("batch", ["s/t"], start=start)
        await w.cycle()
        assert (await stream.describe()).size_bytes == 0

    play(story)


def test_what_lies_before_the_last_checkpoint_counts_as_processed() -> None:
    """Acknowledgement: everything up to the last checkpoint counts as processed once all readers have read past it."""

    async def story(w: World) -> None:
        stream = await w.stream(by_size(0))
        reading = await w.store.reader_group("g", ["s/t"], retention="automatic")
        await w.append(10, 10, 10)
        async with reading.reader("one") as reader:
            await take(reader, 2)
            await reading.checkpoint()
            await w.cycle()
            assert await w.head() == {FIRST: 10}  # The second event was handed out and is not known to be done with.
            await take(reader, 1)
            await reading.checkpoint()
            await w.cycle()
            assert await w.head() == {FIRST: 20}
        assert (await stream.describe()).size_bytes == 10

    play(story)


@pytest.mark.parametrize("policy", [by_size(10, 30), by_time(0.5, 100)])
def test_the_policy_is_one_of_size_or_time_with_limits(policy: RetentionPolicy) -> None:
    """How CBR would work: the policy is one of size or time with minimum and maximum; it is by consumption once a subscriber
    has published, and by the limits while none has.
    Differs: type "consumption\""""

    async def story(w: World) -> None:
        await w.stream(policy)
        assert (await w.grow(10, 10, 10)).rule in ("minimum", "maximum")
        await w.subscribe("g", {})
        assert (await w.cycle()).rule in ("minimum", "maximum", "below-minimum")
        await w.append(10)
        await w.publish(await w.head())
        await w.cycle()
        assert (await w.cycle()).rule.startswith("subscribers")

    play(story)


def test_one_cut_for_each_subscriber_and_a_common_one() -> None:
    """How CBR would work: one cut for each subscriber is kept; the truncation cycle makes a common one of all, and publishing
    alone truncates nothing."""

    async def story(w: World) -> None:
        await w.stream(by_size(0))
        await w.append(10, 10, 10)
        for name, offset in (("a", 30), ("b", 10), ("c", 20)):
            await w.subscribe(name, {FIRST: 0})
            await w.publish({FIRST: offset}, name)
        assert await w.head() == {FIRST: 0}
        assert await w.acknowledged() == {"s/a": {FIRST: 30}, "s/b": {FIRST: 10}, "s/c": {FIRST: 20}}
        await w.cycle()
        assert await w.head() == {FIRST: 10}

    play(story)


# --- client changes -----------------------------------------------------------------------------------------------


def test_a_subscriber_is_added_to_each_of_its_streams_and_removed_with_the_group() -> None:
    """Subscriber Reader Groups, isSubscriber: off by default; switched on it makes the group a subscriber of each of its
    streams, until the flag is taken off or the group deleted."""

    async def story(w: World) -> None:
        await two_streams(w)
        assert ReaderGroupConfig(scope="s", name="g", id=GROUP_ID).retention is NONE
        await w.subscribe("g", kind=NONE, streams=(STREAM, OTHER))
        assert await subscribers(w) == ([], [])
        await w.controller.groups.update(group("g", kind=MANUAL, streams=(STREAM, OTHER)))
        assert await subscribers(w) == (["s/g"], ["s/g"])
        await w.controller.groups.update(group("g", kind=NONE, streams=(STREAM, OTHER), generation=1))
        assert await subscribers(w) == ([], [])
        await w.controller.groups.update(group("g", kind=MANUAL, streams=(STREAM, OTHER), generation=2))
        await w.controller.groups.delete("s", "g")
        assert await subscribers(w) == ([], [])

    play(story)


def test_a_subscription_is_for_all_streams_of_the_group() -> None:
    """Subscriber Reader Groups, note: a subscriber is one of every stream of its configuration, whatever their policies."""

    async def story(w: World) -> None:
        await w.stream(by_size(0))
        await w.stream(None, name=OTHER)
        await w.subscribe("g", streams=(STREAM, OTHER))
        assert await subscribers(w) == (["s/g"], ["s/g"])

    play(story)


def test_the_last_checkpoint_is_published_if_the_group_says_so() -> None:
    """Subscriber Reader Groups, autoTruncateAtLastCheckpoint: with it the last checkpoint is published, without it the user
    publishes."""

    async def story(w: World) -> None:
        stream = await w.stream(by_size(0))
        groups = [await w.store.reader_group(kind, ["s/t"], retention=kind) for kind in ("automatic", "manual")]
        await w.append(10, 10)
        for item in groups:
            async with item.reader("one") as reader:
                await take(reader, 2)
            await item.checkpoint()
        assert await w.acknowledged() == {"s/automatic": {FIRST: 20}, "s/manual": {FIRST: 0}}
        await groups[1].publish(await stream.tail())
        assert await w.acknowledged() == {"s/automatic": {FIRST: 20}, "s/manual": {FIRST: 20}}

    play(story)


def test_a_stream_that_leaves_or_joins_the_group_loses_or_gets_the_subscriber() -> None:
    """Updating Reader Group Configuration, 1: a stream taken out of the group loses the subscriber, a stream added gets it."""

    async def story(w: World) -> None:
        await two_streams(w)
        await w.subscribe("g", streams=(STREAM,))
        await w.controller.groups.update(group("g", streams=(STREAM, OTHER)))
        assert await subscribers(w) == (["s/g"], ["s/g"])
        await w.controller.groups.update(group("g", streams=(OTHER,), generation=1))
        assert await subscribers(w) == ([], ["s/g"])

    play(story)


@pytest.mark.parametrize(("before", "after"), [(MANUAL, NONE), (NONE, MANUAL)])
def test_a_group_that_changes_sides_does_so_for_all_streams(
    before: ReaderGroupRetention, after: ReaderGroupRetention
) -> None:
    """Updating Reader Group Configuration, 2 and 3: a group that becomes a subscriber, or none, does so for all streams."""

    async def story(w: World) -> None:
        await two_streams(w)
        await w.subscribe("g", kind=before, streams=(STREAM, OTHER))
        await w.controller.groups.update(group("g", kind=after, streams=(STREAM, OTHER)))
        expected = ["s/g"] if after is MANUAL else []
        assert await subscribers(w) == (expected, expected)

    play(story)


def test_a_deleted_group_is_no_subscriber_any_more() -> None:
    """Updating Reader Group Configuration, 4: deleting a subscriber removes it from the metadata of all its streams."""

    async def story(w: World) -> None:
        await two_streams(w)
        await w.subscribe("g", {FIRST: 0}, streams=(STREAM, OTHER))
        await w.append(10)
        await w.controller.groups.delete("s", "g")
        assert await subscribers(w) == ([], [])
        with pytest.raises(SubscriberNotFoundError):
            await w.publish({FIRST: 10})
        await w.cycle()
        assert await w.size() == 0

    play(story)


# --- controller changes -------------------------------------------------------------------------------------------


def test_calls_of_an_older_generation_change_nothing() -> None:
    """Add/Delete Subscriber API generations: a call with a generation that is not newer than the stored one changes nothing.
    Differs: generation on update"""

    async def story(w: World) -> None:
        await w.stream(by_size(0))
        await w.append(10, 10)
        await w.subscribe("g", {FIRST: 0})
        assert await w.controller.groups.update(group("g", kind=MANUAL)) == 1
        for stale in (0, 7):
            with pytest.raises(GenerationMismatchError):
                await w.controller.groups.update(group("g", kind=NONE, generation=stale))
        assert list(await w.controller.subscribers.list(STREAM)) == ["s/g"]
        with pytest.raises(GenerationMismatchError):
            await w.publish({FIRST: 10}, generation=0)
        await w.publish({FIRST: 10}, generation=1)
        assert await w.acknowledged() == {"s/g": {FIRST: 10}}

    play(story)


def test_updating_the_cut_of_a_subscriber() -> None:
    """New APIs, updateSubscriberStreamCut: sets the cut of a subscriber of a stream; there must be one of that name."""

    async def story(w: World) -> None:
        await two_streams(w)
        await w.append(10, 10)
        with pytest.raises(SubscriberNotFoundError):
            await w.publish({FIRST: 10}, "nobody")
        await w.subscribe("g", {FIRST: 0})
        await w.publish({FIRST: 10})
        await w.publish({FIRST: 10})
        with pytest.raises(InvalidCutError):
            await w.publish({FIRST: 0})
        cut = StreamCut(OTHER, {FIRST: 0})
        with pytest.raises(SubscriberNotFoundError):
            await w.controller.subscribers.publish("s/g", group_id=GROUP_ID, generation=0, cut=cut)
        assert await w.acknowledged() == {"s/g": {FIRST: 10}}

    play(story)


def test_the_retention_set_grows_under_consumption_too() -> None:
    """Consumption Based Retention, note: each cycle adds to the retention set here too, for the day when the policy changes."""

    async def story(w: World) -> None:
        await w.stream(by_size(0))
        await w.subscribe("g", {FIRST: 0})
        await w.grow(10, 10, 10)
        assert [item.positions[FIRST] for item in await w.records()] == [10, 20, 30]

    play(story)
