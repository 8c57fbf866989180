"""Laws of reader groups: nothing is missed, work is shared, the dead are replaced, progress releases data."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict

import pytest
from client_world import simulate

from penstock.client.reading.group_state import GroupState, initial_state
from penstock.model.cuts import StreamCut
from penstock.model.errors import (
    AlreadyExistsError,
    CorruptDataError,
    DeadlineExceededError,
    InvalidCutError,
    ReaderGroupNotFoundError,
    SubscriberNotFoundError,
    UnsupportedError,
)
from penstock.model.names import StreamName
from penstock.model.policies import RetentionPolicy, RetentionType
from penstock.model.segments import KeyRange, make_segment_id


async def fill(stream, count, keys=10, start=0):
    async with stream.writer(block_bytes=1024) as writer:
        for number in range(start, start + count):
            await writer.write(f"k{number % keys}:{number}", f"k{number % keys}")


def check_order(events):
    """Events "key:number" of one reader: numbers of a key rise."""
    last = defaultdict(lambda: -1)
    for event in events:
        key, _, number = event.decode().partition(":")
        assert int(number) > last[key], (key, number)
        last[key] = int(number)


@pytest.mark.parametrize("seed", range(6))
def test_readers_share_segments_and_together_read_everything_across_scaling(seed):
    async def test(world):
        stream = await world.safe.create_stream("a/s", create_scope=True)
        await stream.scale(4)
        group = await world.store.reader_group("g", ["a/s"])
        got = {"one": [], "two": []}

        async def read(name):
            async with group.reader(name) as reader:
                async for event in reader:
                    got[name].append(event.data)

        async def write():
            await asyncio.sleep(5)
            await fill(stream, 500)
            await stream.scale(3)
            await fill(stream, 500, start=500)
            await asyncio.sleep(3)
            await stream.scale(5)
            await fill(stream, 500, start=1000)
            await stream.seal()

        async with asyncio.TaskGroup() as tasks:
            for name in got:
                tasks.create_task(read(name))
            tasks.create_task(write())
        counted = Counter(got["one"] + got["two"])
        assert set(counted) == {b"k%d:%d" % (number % 10, number) for number in range(1500)}
        assert min(len(events) for events in got.values()) > 100
        assert sum(counted.values()) < 1600  # repeated only where a segment changed hands
        for events in got.values():
            check_order(dict.fromkeys(events))
        assert await group.readers() == []

    simulate(test, seed=seed, loss=0.1)


def test_segments_are_shared_evenly_as_readers_come_and_go():
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        await stream.scale(8)
        group = await world.store.reader_group("g", ["a/s"], start="tail")
        async with group.reader("one") as one:
            assert len(one.assigned()) == 8
            async with group.reader("two") as two, group.reader("three") as three:
                await asyncio.sleep(10)
                assert sorted(len(reader.assigned()) for reader in (one, two, three)) == [2, 3, 3]
                held = [key for reader in (one, two, three) for key in reader.assigned()]
                assert len(set(held)) == 8
            await asyncio.sleep(3)
            assert len(one.assigned()) == 8

    simulate(test)


@pytest.mark.parametrize("seed", range(4))
def test_what_a_dead_reader_was_not_done_with_is_read_by_another(seed):
    async def test(world):
        stream = await world.safe.create_stream("a/s", create_scope=True)
        await stream.scale(4)
        await fill(stream, 400)
        group = await world.store.reader_group("g", ["a/s"], lease_s=5)
        seen = []
        dead = group.reader("dead")
        await dead.open()
        async for event in dead:
            seen.append(event.data)
            if len(seen) == 150:
                break
        await dead.sync()
        async with group.reader("heir") as heir:
            assert heir.assigned() == []
            await dead.abandon()
            await stream.seal()
            began = world.loop.time()
            rest = [event.data async for event in heir]
            assert 4 < world.loop.time() - began < 15
        assert set(seen + rest) == {b"k%d:%d" % (number % 10, number) for number in range(400)}
        assert seen[149] in rest  # it was handed out, but not done with
        assert not set(seen[:149]) & set(rest)
        check_order(rest)

    simulate(test, seed=seed, loss=0.05 if seed else 0.0)


def test_a_clean_exit_counts_the_last_event_and_an_exception_does_not():
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        await fill(stream, 10)
        group = await world.store.reader_group("g", ["a/s"])

        async def take(count, fail=False):
            taken = []
            async with group.reader("r") as reader:
                async for event in reader:
                    taken.append(event.data)
                    if len(taken) == count:
                        if fail:
                            raise RuntimeError("while processing")
                        break
            return taken

        assert await take(3) == [b"k0:0", b"k1:1", b"k2:2"]
        with pytest.raises(RuntimeError):
            await take(2, fail=True)
        assert (await take(2)) == [b"k4:4", b"k5:5"]

    simulate(test)


def in_whole(block):
    return block.events()


def half(block):
    found = []
    for event in block:
        found.append(event.data)
        if len(found) == 5:
            return found
    raise AssertionError("the block is too small")


def every_event(block):
    return [event.data for event in block]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("how", ["next_block", "read_blocks", "read_arrow"])
@pytest.mark.parametrize("use", [in_whole, every_event, half])
def test_a_clean_exit_counts_only_returned_events(how, use, fails):
    if how == "read_arrow" and use is not in_whole:
        pytest.skip("a batch is handed out as a whole")

    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        await fill(stream, 10, keys=1)
        group = await world.store.reader_group("g", ["a/s"])
        seen = []
        try:
            async with group.reader("r") as reader:
                if how == "next_block":
                    seen = use(await reader.next_block())
                elif how == "read_blocks":
                    async for block in reader.read_blocks():
                        seen = use(block)
                        break
                else:
                    async for batch in reader.read_arrow():
                        seen = batch["event"].to_pylist()
                        break
                if fails:
                    raise RuntimeError("while processing")
        except RuntimeError:
            assert fails
        assert len(seen) == (5 if use is half else 10)
        tail = await stream.tail()
        # Iterated to its end, the block is done with whatever follows.
        share = {in_whole: 0 if fails else 10, every_event: 10, half: 4 if fails else 5}[use]
        (done,) = (await group.positions())[stream.name].positions.values()
        assert done == sum(tail.positions.values()) * share // 10

    simulate(test)


def test_a_block_that_was_only_fetched_does_not_count():
    """A request that was abandoned before its block was returned."""

    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        await fill(stream, 10, keys=1)
        group = await world.store.reader_group("g", ["a/s"])
        async with group.reader("r") as reader:
            assert await reader.take_block() is not None
        async with group.reader("r") as reader:
            assert (await reader.next_block()).offset == 0

    simulate(test)


def test_a_reader_that_was_taken_for_dead_joins_again():
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        await fill(stream, 5)
        group = await world.store.reader_group("g", ["a/s"])
        async with group.reader("slow") as slow:
            block = await slow.next_block()
            events = iter(block)
            next(events)
            await group.remove_reader("slow")
            await slow.sync()
            assert not slow.holds(block)
            again = await slow.next_block()
            assert again.offset == 0
            assert len(again) == 5

    simulate(test)


@pytest.mark.parametrize("seed", range(4))
def test_automatic_checkpoints_release_what_all_readers_are_done_with(seed):
    async def test(world):
        policy = RetentionPolicy(type=RetentionType.SIZE, minimum=0, maximum=None)
        stream = await world.safe.create_stream("a/s", create_scope=True, retention=policy)
        await stream.scale(2)
        group = await world.store.reader_group("g", ["a/s"], retention="automatic", checkpoint_interval_s=5)
        assert [item.name for item in await stream.subscribers()] == ["a/g"]
        begin = await stream.head()
        await fill(stream, 300)
        await stream.retention.run()
        assert await stream.head() == begin  # registered, so it holds the head although it read nothing
        async with group.reader("one") as one, group.reader("two") as two:

            async def read(reader):
                async for _ in reader:
                    pass

            async with asyncio.TaskGroup() as tasks:
                readers = [tasks.create_task(read(reader)) for reader in (one, two)]
                await asyncio.sleep(7)
                await stream.scale(3)
                await fill(stream, 300, start=300)
                await asyncio.sleep(30)
                tail = await stream.tail()
                positions = await group.checkpoint()
                assert positions == {stream.name: tail}
                await stream.retention.run()
                assert await stream.head() == tail
                await stream.seal()
                await asyncio.wait(readers)

    simulate(test, seed=seed, loss=0.05)


def test_manual_publication_holds_and_releases():
    async def test(world):
        policy = RetentionPolicy(type=RetentionType.SIZE, minimum=0, maximum=None)
        stream = await world.store.create_stream("a/s", create_scope=True, retention=policy)
        group = await world.store.reader_group("g", ["a/s"], retention="manual")
        await fill(stream, 20)
        middle = await stream.tail()
        await fill(stream, 20)
        await group.publish(middle)
        await stream.retention.run()
        assert await stream.head() == middle
        with pytest.raises(InvalidCutError):
            await group.publish((await group.positions())[stream.name])  # it has read nothing: that is behind
        other = await world.store.reader_group("none", ["a/s"])
        with pytest.raises(UnsupportedError):
            await other.publish(middle)

    simulate(test)


@pytest.mark.parametrize("seed", range(8))
def test_checkpoints_are_valid_cuts_that_lose_nothing(seed):
    async def test(world):
        stream = await world.safe.create_stream("a/s", create_scope=True)
        await stream.scale(3)
        group = await world.store.reader_group("g", ["a/s"], refresh_s=0.3)
        done = []
        cuts = []

        async def read(name):
            async with group.reader(name) as reader:
                async for event in reader:
                    await asyncio.sleep(0.002)
                    done.append(event.data)

        async def write():
            for step, count in enumerate((2, 5, 1, 4)):
                await fill(stream, 200, start=200 * step)
                await stream.scale(count)
                await asyncio.sleep(0.3)
            await stream.seal()

        async def checkpoints():
            for _ in range(8):
                await asyncio.sleep(0.2)
                cut = (await group.checkpoint())[stream.name]
                cuts.append((cut, list(done)))

        async with asyncio.TaskGroup() as tasks:
            for name in ("one", "two", "three"):
                tasks.create_task(read(name))
            tasks.create_task(write())
            tasks.create_task(checkpoints())
        everything = {b"k%d:%d" % (number % 10, number) for number in range(800)}
        assert set(done) == everything
        for cut, before in cuts:
            assert await world.controller.cuts.is_valid(stream.name, cut)
            async with stream.reader(start=cut, until_tail=True) as reader:
                rest = {event.data async for event in reader}
            # What is not behind the cut was done with when the checkpoint was complete (or was being recorded then).
            assert everything - rest <= set(before)

    simulate(test, seed=seed)


def test_a_checkpoint_names_the_readers_that_hold_it_up():
    async def test(world):
        await world.store.create_stream("a/s", create_scope=True)
        group = await world.store.reader_group("g", ["a/s"])
        gone = group.reader("gone")
        await gone.open()
        await gone.abandon()
        with pytest.raises(DeadlineExceededError) as caught:
            await group.checkpoint(deadline_s=5)
        assert caught.value.fields["readers"] == ["gone"]
        await group.remove_reader("gone")
        assert set(await group.checkpoint()) == {group.streams[0]}

    simulate(test)


def test_groups_are_opened_again_and_deleted():
    async def test(world):
        store = world.store
        stream = await store.create_stream("a/s", create_scope=True)
        await fill(stream, 10)
        first = await store.reader_group("g", ["a/s"], retention="manual")
        again = await store.reader_group("a/g", ["a/s"], retention="manual", start="tail")
        assert again.config == first.config
        with pytest.raises(AlreadyExistsError):
            await store.reader_group("g", ["a/s"])
        opened = await store.open_reader_group("a/g")
        async with opened.reader("r") as reader:
            assert len(await reader.next_block()) > 0
            await first.delete()
            with pytest.raises(ReaderGroupNotFoundError):
                await reader.sync()
        assert not await stream.subscribers()
        with pytest.raises(ReaderGroupNotFoundError):
            await store.open_reader_group("a/g")
        fresh = await store.reader_group("g", ["a/s"], start="tail")
        assert (await fresh.positions())[stream.name] == await stream.tail()

    simulate(test)


def test_state_survives_its_bytes_and_refuses_others():
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        await stream.scale(3)
        group = await world.store.reader_group("g", ["a/s"], start="tail")
        async with group.reader("r") as reader:
            await reader.sync()
            entry = (await world.segments.table_get("a/_GROUPg/0.#epoch.0", [b"state"]))[0]
            state = GroupState.decode(entry.value)
            assert state.encode() == entry.value
            assert len(state.members["r"].held) == 3
            state.start_checkpoint(5)
            assert GroupState.decode(state.encode()) == state

    simulate(test)
    with pytest.raises(CorruptDataError):
        GroupState.decode(b"{}")


def test_a_segment_that_changes_hands_during_a_checkpoint_counts_where_it_was_first():
    stream = StreamName("a", "s")
    key = (stream, make_segment_id(0, 0))
    whole = KeyRange(low=0.0, high=1.0)
    state = initial_state("id", {stream: StreamCut(stream, {key[1]: 5})}, {key: whole})
    state.join("one")
    state.join("two")
    number = state.start_checkpoint(0)
    assert state.acquire("one") == [key]
    state.members["one"].held[key] = 9  # further by the time it contributes
    state.report("one", {key: 9})
    assert state.last_number < number
    state.report("two", {})
    assert state.last_number == number
    assert state.last_cuts() == {stream: StreamCut(stream, {key[1]: 5})}
    assert state.cuts() == {stream: StreamCut(stream, {key[1]: 9})}
    # Nor does a late report of an earlier position move anything back.
    state.report("one", {key: 7})
    assert state.cuts() == {stream: StreamCut(stream, {key[1]: 9})}


async def subscribed(stream):
    return {item.name: item.cut for item in await stream.subscribers()}


@pytest.mark.parametrize("retention", ["manual", "automatic"])
def test_a_subscription_that_was_ended_is_refused_until_the_group_is_created_again(retention):
    async def test(world):
        store = world.store
        stream = await store.create_stream("a/s", create_scope=True)
        await fill(stream, 20)
        group = await store.reader_group("g", ["a/s"], retention=retention)
        await stream.remove_subscriber("a/g")
        for handle in (group, await store.open_reader_group("a/g")):
            with pytest.raises(SubscriberNotFoundError, match="create the group again"):
                async with handle.reader("r"):
                    pass
        assert await group.readers() == []
        again = await store.reader_group("g", ["a/s"], retention=retention)
        assert await subscribed(stream) == {"a/g": await stream.head()}
        async with again.reader("r") as reader:
            assert len(await reader.next_block()) > 0

    simulate(test)


def test_only_a_live_subscriber_with_nothing_to_read_is_kept_from_being_idle():
    async def test(world):
        store, streams = world.store, {}
        for name in ("waits", "unread", "unpublished", "gone"):
            stream = streams[name] = await store.create_stream(f"a/{name}", create_scope=name == "waits")
            await stream.retention.set({"idle": {"subscriber_s": 60}})
            await fill(stream, 10, keys=1)
        groups = {
            name: await store.reader_group(f"g-{name}", [f"a/{name}"], retention="manual", refresh_s=1)
            for name in streams
        }
        readers = {name: groups[name].reader("r") for name in streams}
        waiting = []
        for name, reader in readers.items():
            await reader.open()
            block = await reader.next_block()
            assert len(block) == 10
            if name != "unread":
                waiting.append(asyncio.create_task(reader.next_block()))
        await asyncio.sleep(5)
        for name in ("waits", "unread", "gone"):
            await groups[name].publish(await streams[name].tail())
        await fill(streams["unread"], 10, start=10, keys=1)
        await readers["gone"].close()
        await asyncio.sleep(600)
        for stream in streams.values():
            await stream.retention.run()
        assert {name: len(await stream.subscribers()) for name, stream in streams.items()} == {
            "waits": 1,
            "unread": 0,
            "unpublished": 0,
            "gone": 0,
        }
        assert await subscribed(streams["waits"]) == {"a/g-waits": await streams["waits"].tail()}
        for task in waiting:
            task.cancel()
        for name in ("waits", "unread", "unpublished"):
            await readers[name].close()

    simulate(test)
