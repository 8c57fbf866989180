"""Pravega Stream Retention, "Consumption Based Retention", from enabling it on: each rule by its place in the document."""

from __future__ import annotations

import asyncio

import pytest
from documents_world import FIRST, STREAM, World, by_size, group, play, take

from penstock.model.cuts import StreamCut
from penstock.model.errors import DeadlineExceededError, UnsupportedError
from penstock.model.policies import ReaderGroupRetention
from penstock.model.segments import make_segment_id

SECOND = make_segment_id(0, 1)


# --- enabling, subscribers ----------------------------------------------------------------------------------------


def test_three_things_are_needed() -> None:
    """Enabling: a policy, a subscriber, and cuts that it publishes from time to time.
    Differs: a stream without a policy"""

    async def story(w: World) -> None:
        stream = await w.stream()
        await w.append(10, 10, 10)
        await w.subscribe("g", {})
        await w.publish({FIRST: 20})
        assert (await w.cycle()).rule == "no-policy"
        await stream.update(retention=by_size(0))
        await w.cycle()
        assert await w.head() == {FIRST: 20}
        await w.cycle(after_s=86_400)
        assert await w.head() == {FIRST: 20}
        await w.publish({FIRST: 30})
        await w.cycle()
        assert await w.head() == {FIRST: 30}

    play(story, days=2)


def test_the_three_kinds_of_reader_groups() -> None:
    """Creating a Subscriber Reader Group: automatic at the last checkpoint, manual by a call, or none, which publishes
    nothing."""

    async def story(w: World) -> None:
        stream = await w.stream(by_size(0))
        groups = {
            kind: await w.store.reader_group(kind, ["s/t"], retention=kind) for kind in ("automatic", "manual", "none")
        }
        assert [item.name for item in await stream.subscribers()] == ["s/automatic", "s/manual"]
        await w.append(10, 10)
        tail = await stream.tail()
        for kind in groups:
            async with groups[kind].reader("one") as reader:
                await take(reader, 2)
            await groups[kind].checkpoint()
        published = {item.name: item.cut for item in await stream.subscribers()}
        assert published["s/automatic"] == tail
        assert published["s/manual"] == StreamCut(STREAM, {FIRST: 0})
        await groups["manual"].publish(tail)
        for kind in ("automatic", "none"):
            with pytest.raises(UnsupportedError):
                await groups[kind].publish(tail)
        await w.cycle()
        assert await stream.head() == tail

    play(story)


@pytest.mark.parametrize("kind", [ReaderGroupRetention.MANUAL, ReaderGroupRetention.AUTOMATIC_AT_LAST_CHECKPOINT])
def test_a_group_is_converted_by_its_configuration(kind: ReaderGroupRetention) -> None:
    """Creating a Subscriber Reader Group: changing the retention type makes a subscriber of a group, and none of it again."""

    async def story(w: World) -> None:
        await w.stream(by_size(0))
        await w.append(10, 10)
        await w.subscribe("g", kind=ReaderGroupRetention.NONE)
        assert not await w.controller.subscribers.list(STREAM)
        await w.controller.groups.update(group("g", kind=kind))
        assert list(await w.controller.subscribers.list(STREAM)) == ["s/g"]
        await w.publish({FIRST: 10}, generation=1)
        await w.cycle()
        assert await w.head() == {FIRST: 10}
        await w.controller.groups.update(group("g", kind=ReaderGroupRetention.NONE, generation=1))
        assert not await w.controller.subscribers.list(STREAM)
        await w.cycle()
        assert await w.size() == 0

    play(story)


# --- acknowledging ------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_published_once_all_readers_are_past_it() -> None:
    """Acknowledging Consumed Positions: automatically, once every reader is past its part of the checkpoint; what a reader was
    handed and is not done with does not count.
    Differs: checkpoint of a group"""

    async def story(w: World) -> None:
        stream = await w.stream(by_size(0), segments=2)
        reading = await w.store.reader_group("g", ["s/t"], retention="automatic")
        await w.append(10, 10, segment=FIRST)
        await w.append(10, 10, segment=SECOND)
        async with reading.reader("one") as one:
            two = reading.reader("two")
            await two.open()
            await asyncio.sleep(5)
            await take(one, 2)
            later = asyncio.ensure_future(take(one, 1))  # Asking for more says that what came before is done with.
            await take(two, 2)
            (position,) = (await reading.checkpoint()).values()
            assert sorted(position.positions.values()) == [10, 20]
            await w.cycle()
            assert await stream.head() == position
            await two.abandon()  # Nobody knows how far it is.
            with pytest.raises(DeadlineExceededError):
                await reading.checkpoint(deadline_s=3)
            await w.cycle()
            assert await stream.head() == position
            later.cancel()

    play(story)


def test_an_application_publishes_its_own_checkpoint() -> None:
    """Acknowledging Consumed Positions: explicitly, by a checkpoint that the application makes and publishes when it likes."""

    async def story(w: World) -> None:
        stream = await w.stream(by_size(0))
        reading = await w.store.reader_group("g", ["s/t"], retention="manual")
        await w.append(10, 10)
        async with reading.reader("one") as reader:
            await take(reader, 2)
        cuts = await reading.checkpoint()
        await w.cycle()
        assert await w.head() == {FIRST: 0}
        await reading.publish(cuts)
        await w.cycle()
        assert await stream.head() == cuts[STREAM] == StreamCut(STREAM, {FIRST: 20})

    play(story)


def test_the_sequence_of_two_reader_groups() -> None:
    """Sequence Diagram: RG1 and RG2 read S1, publish SC1 and SC2, and the controller truncates by both."""

    async def story(w: World) -> None:
        stream = await w.stream(by_size(0))
        groups = [await w.store.reader_group(name, ["s/t"], retention="manual") for name in ("RG1", "RG2")]
        await w.append(10, 10, 10, 10)
        for item, offset in zip(groups, (30, 20), strict=True):
            await item.publish(StreamCut(STREAM, {FIRST: offset}))
        await w.cycle()
        assert await stream.head() == StreamCut(STREAM, {FIRST: 20})
        assert await w.acknowledged() == {"s/RG1": {FIRST: 30}, "s/RG2": {FIRST: 20}}

    play(story)
