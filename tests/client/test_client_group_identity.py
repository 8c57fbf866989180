"""Laws of identity in reader groups: of a group, of its readers, and of what a reader holds, whatever is lost."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace
from uuid import UUID

import pytest
from client_world import simulate

from penstock.client.moments import BothServices
from penstock.client.reading.group_state import GroupState, initial_state
from penstock.client.reading.group_table import GroupTable, owner_key
from penstock.client.reading.liveness import SilenceTracker
from penstock.model.errors import (
    GenerationMismatchError,
    NotConnectedError,
    PenstockError,
    ReaderFencedError,
    ReaderGroupNotFoundError,
    SegmentNotFoundError,
    SubscriberNotFoundError,
)
from penstock.model.names import StreamName
from penstock.model.segments import SegmentRange, even_ranges, make_segment_id
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.ports.data.tables import TableRemoval
from tests.flat_control import FlatControl

TABLE = "a/_GROUPg/0.#epoch.0"


async def fill(stream, count, start=0, keys=5):
    async with stream.writer() as writer:
        for number in range(start, start + count):
            await writer.write(f"{number}", f"k{number % keys}")


async def state_of(world):
    (entry,) = await world.real_segments.table_get(TABLE, [b"state"])
    return GroupState.decode(entry.value)


class Faulty:
    """Segments whose calls on the group's table fail while ``down``, or whose next answer is lost."""

    def __init__(self, inner):
        self._inner = inner
        self.down = False
        self.lose_next = False
        self.after = None

    submit_append = withdraw_appends = open_direct = None

    def __getattr__(self, name):
        return getattr(self._inner, name)

    async def table_get(self, name, keys):
        if self.down:
            raise NotConnectedError("the store is out of reach")
        return await self._inner.table_get(name, keys)

    async def table_update(self, name, puts):
        if self.down:
            raise NotConnectedError("the store is out of reach")
        found = await self._inner.table_update(name, puts)
        if self.lose_next:
            self.lose_next = False
            if self.after is not None:
                await self.after()
            raise NotConnectedError("answer lost")
        return found


# --- the reader ------------------------------------------------------------------------------------------------------


def test_the_newer_of_two_readers_of_one_name_fences_the_older():
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        await stream.scale(2)
        group = await world.store.reader_group("g", ["a/s"], lease_s=3, refresh_s=0.3)
        again = await world.store.open_reader_group("a/g", lease_s=3, refresh_s=0.3)
        seen: dict[str, list[bytes]] = {"older": [], "newer": []}
        errors: dict[str, BaseException] = {}

        async def read(who, of):
            try:
                async with of.reader("pod") as reader:
                    async for event in reader:
                        seen[who].append(event.data)
            except PenstockError as error:
                errors[who] = error

        older = asyncio.create_task(read("older", group))
        await fill(stream, 50)
        await asyncio.sleep(2)
        newer = asyncio.create_task(read("newer", again))
        await asyncio.sleep(2)
        assert older.done()
        assert isinstance(errors["older"], ReaderFencedError)
        assert (errors["older"].fields["group"], errors["older"].fields["reader"]) == ("a/g", "pod")
        await fill(stream, 50, start=50)
        await stream.seal()
        await newer
        assert not errors.keys() - {"older"}
        numbers = [int(item) for item in seen["newer"]]
        assert set(numbers) >= set(range(50, 100)), "leaving, the older one took nothing from the newer"
        assert sorted(Counter(map(int, seen["older"])).values(), reverse=True)[0] == 1
        assert {int(item) for item in seen["older"]} | set(numbers) == set(range(100))

    simulate(test)


def test_a_fenced_reader_returns_no_more_events_of_its_current_block():
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        await fill(stream, 10)
        group = await world.store.reader_group("g", ["a/s"])
        older = group.reader("pod")
        await older.open()
        events = older.__aiter__()
        assert (await anext(events)).data == b"0"
        async with group.reader("pod") as newer:
            with pytest.raises(ReaderFencedError):
                await older.sync()
            assert older.assigned() == []
            with pytest.raises(ReaderFencedError):
                await anext(events)
            with pytest.raises(ReaderFencedError):
                await older.next_block()
            await older.close()
            assert (await state_of(world)).members.keys() == {"pod"}
            assert newer.assigned()
            assert (await newer.next_block()).offset == 0

    simulate(test)


def test_a_name_is_free_again_once_its_reader_has_left():
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        await fill(stream, 3)
        group = await world.store.reader_group("g", ["a/s"])
        for number in range(3):
            async with group.reader("pod") as reader:
                async for event in reader:
                    assert event.data == b"%d" % number
                    break

    simulate(test)


def test_a_state_without_incarnations_is_accepted():
    state = initial_state("g", {}, {})
    state.free[StreamName("a", "s"), make_segment_id(0, 0)] = 7
    state.ranges[StreamName("a", "s"), make_segment_id(0, 0)] = even_ranges(1)[0]
    state.join("r")
    state.acquire("r")
    assert b"incarnations" not in state.encode().replace(b'"incarnations":{},', b"")
    old = GroupState.decode(state.encode().replace(b'"incarnations":{},', b""))
    assert old == state
    assert old.report("r", {}, "one")
    assert old.members["r"].incarnation == "one"
    assert not old.report("r", {}, "two")
    assert old.fences("r", "two")
    assert not old.fences("r", "one")
    assert GroupState.decode(old.encode()) == old


# --- the group -------------------------------------------------------------------------------------------------------


def test_a_reader_of_a_deleted_group_takes_nothing_from_the_next_group_of_its_name():
    async def test(world):
        store = world.store
        first = await store.create_stream("a/one", create_scope=True)
        second = await store.create_stream("a/two")
        await fill(first, 3)
        await fill(second, 5)
        old = await store.reader_group("g", ["a/one"], refresh_s=0.3, lease_s=2)
        reader = old.reader("old")
        await reader.open()
        events = reader.__aiter__()
        assert [(await anext(events)).data for _ in range(3)] == [b"0", b"1", b"2"]
        await (await store.open_reader_group("a/g")).delete()
        new = await store.reader_group("g", ["a/two"], refresh_s=0.3, lease_s=2)
        with pytest.raises(ReaderGroupNotFoundError):
            await anext(events)
        with pytest.raises(ReaderGroupNotFoundError):
            await reader.sync()
        await reader.close()
        for call in (old.positions, old.readers, old.checkpoint, lambda: old.remove_reader("fresh")):
            with pytest.raises(ReaderGroupNotFoundError):
                await call()
        assert await new.readers() == []
        async with new.reader("fresh") as fresh:
            found = [event.data async for event in take(fresh, 5)]
        assert sorted(found) == [b"0", b"1", b"2", b"3", b"4"]

    simulate(test)


class Overtaken:
    """Segments of which the next change of a table comes after all that ``first`` does."""

    def __init__(self, inner, first):
        self._inner = inner
        self._first = first

    def __getattr__(self, name):
        return getattr(self._inner, name)

    async def table_update(self, name, puts):
        first, self._first = self._first, None
        if first is not None:
            await first()
        return await self._inner.table_update(name, puts)


def table_of(world, segments, number):
    services = BothServices(segments=segments, controller=world.controller)
    return GroupTable(services, world.store.rng, ReaderGroupConfig(scope="a", name="g", id=UUID(int=number)))


@pytest.mark.parametrize("of_an_older_program", [False, True])
def test_a_late_change_of_a_deleted_group_leaves_the_next_group_of_its_name_as_it_is(of_an_older_program):
    """The tables of both are alike: each version of the one is a version of the other."""

    async def test(world):
        segments = world.real_segments
        old, new = (table_of(world, segments, number) for number in (1, 2))

        async def is_current():
            return True

        async def make(table, number):
            await table.create(initial_state(str(UUID(int=number)), {}, {}), is_current)
            await table.update(lambda state: state.join("pod"))

        async def replace_group():
            await old.delete()
            await make(new, 2)
            if of_an_older_program:
                await new.update(lambda state: state.report("pod", {}))

        await make(old, 1)
        if of_an_older_program:
            await segments.table_remove(TABLE, [TableRemoval(key=owner_key(UUID(int=1)))])
            await old.update(lambda state: state.report("pod", {}))
        late = table_of(world, Overtaken(segments, replace_group), 1)
        with pytest.raises(ReaderGroupNotFoundError):
            await late.update(lambda state: state.report("pod", {}))
        assert (await new.load()).members["pod"].beat == of_an_older_program
        await new.delete()
        with pytest.raises(SegmentNotFoundError):
            await segments.table_info(TABLE)

    simulate(test)


def test_a_group_that_takes_over_a_state_leaves_nothing_of_the_earlier_one():
    async def test(world):
        segments = world.real_segments

        async def is_current():
            return True

        for number in (1, 2):
            table = table_of(world, segments, number)
            await table.create(initial_state(str(UUID(int=number)), {}, {}), is_current)
        await table.delete()
        with pytest.raises(SegmentNotFoundError):
            await segments.table_info(TABLE)

    simulate(test)


async def take(reader, count):
    async for event in reader:
        yield event
        count -= 1
        if count == 0:
            return


def test_a_late_deletion_leaves_the_state_of_the_next_group_of_the_name():
    async def test(world):
        store = world.store
        stream = await store.create_stream("a/s", create_scope=True)
        await fill(stream, 3)
        old = await store.reader_group("g", ["a/s"])
        await world.controller.groups.delete("a", "g", group_id=old.config.id)
        new = await store.reader_group("g", ["a/s"])
        with pytest.raises(ReaderGroupNotFoundError):
            await old.delete()
        # A deletion that was interrupted between its two steps now continues.
        await old._table.delete()
        async with new.reader("r") as reader:
            assert len(await reader.next_block()) == 3
        await new.delete()
        assert TABLE not in await tables(world)

    simulate(test)


async def tables(world):
    try:
        await world.real_segments.table_get(TABLE, [b"state"])
    except PenstockError:
        return []
    return [TABLE]


def test_a_client_of_an_earlier_group_does_not_replace_the_state_of_the_next():
    async def test(world):
        store = world.store
        stream = await store.create_stream("a/s", create_scope=True)
        await fill(stream, 3)
        old = await store.reader_group("g", ["a/s"])
        await world.controller.groups.delete("a", "g", group_id=old.config.id)
        new = await store.reader_group("g", ["a/s"])
        before = (await state_of(world)).encode()
        with pytest.raises(ReaderGroupNotFoundError):
            await old.initialise()
        assert (await state_of(world)).encode() == before
        await new.delete()
        with pytest.raises(ReaderGroupNotFoundError):
            await old.initialise()

    simulate(test)


# --- what is lost on the way -----------------------------------------------------------------------------------------


def test_an_outage_longer_than_the_lease_evicts_no_reader():
    async def test(world):
        await world.store.create_stream("a/s", create_scope=True, segments=3)
        faulty = world.store.segments = Faulty(world.real_segments)
        group = await world.store.reader_group("g", ["a/s"], lease_s=10, refresh_s=1)
        readers = [group.reader(name) for name in "abc"]
        for reader in readers:
            await reader.open()
        await asyncio.sleep(5)
        before = await state_of(world)
        for outage_s in (9.5, 30, 50):
            faulty.down = True
            await asyncio.sleep(outage_s)
            faulty.down = False
            await asyncio.sleep(5)
            after = await state_of(world)
            assert {name: (item.incarnation, item.held) for name, item in after.members.items()} == {
                name: (item.incarnation, item.held) for name, item in before.members.items()
            }
        await readers[0].abandon()
        await asyncio.sleep(15)
        assert (await state_of(world)).members.keys() == {"b", "c"}, "the dead are found nevertheless"
        for reader in readers[1:]:
            await reader.close()

    simulate(test)


def test_a_reader_that_joins_again_with_a_lost_answer_continues_at_the_groups_position():
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        await fill(stream, 10, keys=1)
        await fill(stream, 10, start=10, keys=1)
        group = await world.store.reader_group("g", ["a/s"], lease_s=1000, refresh_s=500)
        faulty = world.store.segments = Faulty(world.real_segments)
        lossy = await world.store.open_reader_group("a/g", lease_s=1000, refresh_s=500)
        slow = lossy.reader("slow")
        await slow.open()
        events = slow.__aiter__()
        assert (await anext(events)).data == b"0"
        await group.remove_reader("slow")
        async with group.reader("other") as other:
            seen = [event.data async for event in take(other, 15)]
        assert seen == [b"%d" % number for number in range(15)]
        faulty.lose_next = True
        await slow.sync()
        assert slow.assigned()
        rest = [event.data async for event in take(slow, 5)]
        assert rest == [b"%d" % number for number in range(15, 20)]
        await slow.close()

    simulate(test)


class Held:
    """Segments whose next change of the group's table takes effect, but whose answer waits until the caller is cancelled."""

    def __init__(self, inner):
        self._inner = inner
        self.hold_next = False
        self.held = asyncio.Event()

    submit_append = withdraw_appends = open_direct = None

    def __getattr__(self, name):
        return getattr(self._inner, name)

    async def table_update(self, name, puts):
        found = await self._inner.table_update(name, puts)
        if self.hold_next:
            self.hold_next = False
            self.held.set()
            await asyncio.Event().wait()
        return found


async def _cancelled_while_joining_again(world):
    """A group, a reader that it removed, and whose second joining took effect although the call was cancelled."""
    stream = await world.store.create_stream("a/s", create_scope=True)
    await fill(stream, 10, keys=1)
    held = world.store.segments = Held(world.real_segments)
    group = await world.store.reader_group("g", ["a/s"], lease_s=1000, refresh_s=500)
    reader = group.reader("pod")
    await reader.open()
    await group.remove_reader("pod")
    held.hold_next = True
    sync = asyncio.create_task(reader.sync())
    await held.held.wait()
    sync.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sync
    assert (await state_of(world)).members.keys() == {"pod"}
    return group, reader


def test_a_reader_that_is_cancelled_while_it_joins_again_does_not_fence_itself():
    async def test(world):
        _, reader = await _cancelled_while_joining_again(world)
        await reader.sync()
        found = [event.data async for event in take(reader, 10)]
        assert found == [b"%d" % number for number in range(10)]
        await reader.close()
        assert not (await state_of(world)).members

    simulate(test)


def test_a_reader_that_is_cancelled_while_it_joins_again_still_leaves_when_it_closes():
    async def test(world):
        group, reader = await _cancelled_while_joining_again(world)
        await reader.close()
        assert not (await state_of(world)).members, "its segments are free at once, not when its lease ends"
        async with group.reader("other") as other:
            assert len(await other.next_block()) == 10, "what it held from before was not reported"

    simulate(test)


def test_a_reader_that_is_cancelled_while_it_joins_again_is_fenced_by_a_newer_one_of_its_name():
    async def test(world):
        group, reader = await _cancelled_while_joining_again(world)
        async with group.reader("pod"):
            with pytest.raises(ReaderFencedError):
                await reader.sync()
            await reader.close()
            assert (await state_of(world)).members.keys() == {"pod"}

    simulate(test)


class MadeAgain(FlatControl):
    """A controller that deletes and creates the group anew just before it first answers what the group is."""

    def __init__(self, inner, make_again):
        self._inner = inner
        self._make_again = make_again

    async def groups_get(self, scope, name):
        make_again, self._make_again = self._make_again, None
        if make_again is not None:
            await make_again()
        return await self._inner.groups.get(scope, name)


def test_a_handle_of_an_earlier_group_never_becomes_one_of_the_next():
    async def test(world):
        store = world.store
        stream = await store.create_stream("a/s", create_scope=True)
        await fill(stream, 3)
        tail = await stream.tail()

        async def make_again():
            await world.controller.groups.delete("a", "g", group_id=old.config.id)
            await world.safe.reader_group("g", ["a/s"], retention="manual")

        old = await store.reader_group("g", ["a/s"], retention="manual")
        await world.controller.groups.update(replace(old.config, refresh_ms=2000))
        old._controller = MadeAgain(world.controller, make_again)
        with pytest.raises(GenerationMismatchError):
            await old.publish(tail)
        with pytest.raises(SubscriberNotFoundError):
            await old.publish(tail)
        (subscriber,) = await stream.subscribers()
        assert subscriber.lag_bytes == 27, "nothing was published for the group of today"
        with pytest.raises(ReaderGroupNotFoundError):
            await old.delete()
        assert await store.reader_groups("a") == ["a/g"]

    simulate(test)


def test_a_segment_released_with_a_lost_answer_is_taken_again_at_the_groups_position():
    """The answer to a release is lost; another reader takes the segment, goes on, dies; the repeat takes it back."""

    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True, segments=2)
        await fill(stream, 40, keys=20)
        group = await world.store.reader_group("g", ["a/s"], lease_s=1000, refresh_s=500)
        faulty = world.store.segments = Faulty(world.real_segments)
        lossy = await world.store.open_reader_group("a/g", lease_s=1000, refresh_s=500)
        first = lossy.reader("first")
        await first.open()
        assert len(first.assigned()) == 2
        seen = Counter()

        async def other():
            second = group.reader("second")
            await second.open()
            block = await second.next_block()
            seen.update((block.segment, event.offset) for event in block)
            block.finish()
            await second.close()

        await group._table.update(lambda state: state.join("waiting", "w"))
        faulty.lose_next, faulty.after = True, lambda: _leave_then(group, other)
        await first.sync()
        assert len(first.assigned()) == 2
        await stream.seal()
        async for block in first.read_blocks():
            seen.update((block.segment, event.offset) for event in block)
        assert len(seen) == 40
        assert set(seen.values()) == {1}
        await first.close()

    simulate(test)


async def _leave_then(group, other):
    await group.remove_reader("waiting")
    await other()


def test_silence_counts_only_while_the_reader_could_observe():
    silences = SilenceTracker(lease_s=10, refresh_s=1)
    silences.observe({"a": ("x", 1)}, 0)
    assert not silences.is_dead("a", ("x", 1), 1000)
    silences.observe({"a": ("x", 1)}, 1000)
    for second in range(1001, 1009):
        assert not silences.is_dead("a", ("x", 1), second)
        silences.observe({"a": ("x", 1)}, second)
    assert not silences.is_dead("a", ("x", 2), 1020)
    assert not silences.is_dead("a", ("y", 1), 1020)
    assert not silences.is_dead("b", ("x", 1), 1020)
    assert silences.is_dead("a", ("x", 1), 1020)


@pytest.mark.parametrize("refresh_s", [0.1, 1.0, 3.0, 9.9])
def test_after_any_outage_dead_readers_are_removed_and_live_ones_stay(refresh_s):
    """Random outages of all readers at once: those that come back within a lease after it stay members."""
    lease_s = 10.0
    for seed in range(200):
        rng = random.Random(seed)
        silences, now, beat, reported = SilenceTracker(lease_s=lease_s, refresh_s=refresh_s), 0.0, 0, 0.0
        for _ in range(40):
            outage_s = rng.choice([0.0, 0.0, 0.0, lease_s / 2, lease_s * 0.99, lease_s * 5])
            now += outage_s + refresh_s
            if not outage_s and now - reported >= refresh_s:
                beat, reported = beat + 1, now  # It reports too, at its own time.
            assert not silences.is_dead("a", ("x", beat), now), (seed, outage_s)
            silences.observe({"a": ("x", beat)}, now)
            if outage_s:
                beat, reported = beat + 1, now
        looks = 0
        while not silences.is_dead("a", ("x", beat), now):
            silences.observe({"a": ("x", beat)}, now)
            now += refresh_s
            looks += 1
        assert looks * refresh_s <= max(lease_s + 2 * refresh_s, 5 * refresh_s)


# --- the state, against a model --------------------------------------------------------------------------------------


class GroupModel:
    """Readers of one group on a stream that scales: every key is read in order, nothing is skipped or held twice."""

    STREAM = StreamName("a", "b")
    KEYS = tuple((number + 0.5) / 12 for number in range(12))

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.number = self.epoch = 0
        self.state = initial_state("g", {}, {})
        self.ranges, self.events, self.sealed, self.after = {}, {}, set(), {}
        self.active = [self._new(keys) for keys in even_ranges(self.rng.randint(1, 4))]
        for segment in self.active:
            self.state.free[self.STREAM, segment] = 0
            self.state.ranges[self.STREAM, segment] = self.ranges[segment]
        self.written = dict.fromkeys(self.KEYS, 0)
        self.seen = dict.fromkeys(self.KEYS, 0)
        self.here: dict[str, dict] = {}
        self.incarnations: dict[str, str] = {}
        self.joined = 0

    def _new(self, keys):
        segment = make_segment_id(self.epoch, self.number)
        self.number += 1
        self.ranges[segment], self.events[segment] = keys, []
        return segment

    def write(self):
        key = self.rng.choice(self.KEYS)
        segment = next(item for item in self.active if self.ranges[item].low <= key < self.ranges[item].high)
        self.events[segment].append((key, self.written[key]))
        self.written[key] += 1

    def scale(self):
        wanted = even_ranges(self.rng.randint(1, 5))
        kept = [item for item in self.active if self.ranges[item] in wanted]
        gone = [item for item in self.active if item not in kept]
        if not gone or self.epoch >= 6:
            return
        self.epoch += 1
        have = [self.ranges[item] for item in kept]
        fresh = [self._new(keys) for keys in wanted if keys not in have]
        for item in gone:
            self.sealed.add(item)
            self.after[item] = [new for new in fresh if self.ranges[new].overlaps(self.ranges[item])]
        self.active = kept + fresh

    def successors(self, segment):
        return [SegmentRange(segment=item, keys=self.ranges[item]) for item in self.after[segment]]

    def read(self, reader, most):
        """Up to ``most`` events of each segment; None: all."""
        mine = self.here[reader]
        for key in list(mine):
            count = len(self.events[key[1]]) if most is None else self.rng.randint(0, most)
            for event_key, number in self.events[key[1]][mine[key] : mine[key] + count]:
                assert number <= self.seen[event_key], "an event was skipped"
                self.seen[event_key] = max(self.seen[event_key], number + 1)
                mine[key] += 1

    def join(self, reader):
        self.joined += 1
        self.incarnations[reader] = f"i{self.joined}"
        self.state.join(reader, self.incarnations[reader])
        self.here[reader] = {}

    def turn(self, reader, *, ends):
        """What a reader does at each report, with all of it applied twice now and then, as after a lost answer."""
        self.state = GroupState.decode(self.state.encode())
        if not self.state.has(reader, self.incarnations.get(reader, "none")):
            self.join(reader)
        stale = f"i{self.joined + 1}"
        assert not self.state.report(reader, dict.fromkeys(self.here[reader], 1 << 30), stale)
        for _ in range(self.rng.choice((1, 1, 2))):
            mine = self.here[reader]
            assert self.state.report(reader, mine, self.incarnations[reader])
            for key in list(mine):
                if key[1] in self.sealed and mine[key] == len(self.events[key[1]]) and self.rng.random() < ends:
                    self.state.finish(reader, key, self.successors(key[1]))
            surplus = self.state.surplus(reader)
            if surplus:
                held = sorted(self.state.members[reader].held, reverse=True)
                self.state.release(reader, held[:surplus])
            else:
                self.state.acquire(reader)
        held = self.state.members[reader].held
        self.here[reader] = {key: max(offset, mine.get(key, 0)) for key, offset in held.items()}
        everything = [key for member in self.state.members.values() for key in member.held]
        assert len(everything) == len(set(everything)), "a segment is held twice"
        assert not set(everything) & self.state.free.keys()


@pytest.mark.parametrize("block", range(8))
def test_random_groups_read_every_key_in_order_and_to_the_end(block):
    for seed in range(block * 25, block * 25 + 25):
        model = GroupModel(seed)
        rng, names = model.rng, ("r1", "r2", "r3")
        for _ in range(400):
            choice = rng.random()
            if choice < 0.35:
                model.write()
            elif choice < 0.40:
                model.scale()
            elif choice < 0.43:
                model.state.leave(rng.choice(names))
            elif choice < 0.45:
                model.join(rng.choice(names))  # a newer reader of the name
            else:
                reader = rng.choice(names)
                if reader in model.here and model.state.has(reader, model.incarnations[reader]):
                    model.read(reader, 4)
                if rng.random() < 0.1:
                    model.state.start_checkpoint(0)
                model.turn(reader, ends=0.7)
        for _ in range(500):
            for reader in names:
                if reader in model.here and model.state.has(reader, model.incarnations[reader]):
                    model.read(reader, None)
                model.turn(reader, ends=1.0)
            if model.seen == model.written:
                break
        assert model.seen == model.written, (seed, "the group is stuck")
        model.state.cuts()
        model.state.last_cuts()
