"""Laws of a reset: readers and what is acknowledged end at one place, and nothing that is still to be read is ever released."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from datetime import UTC, datetime
from uuid import UUID, uuid5

import pytest
from client_world import simulate

from penstock.client.reading.group_table import GroupTable
from penstock.client.store import AsyncStore
from penstock.model.callers import Caller, calling
from penstock.model.cuts import StreamCut
from penstock.model.errors import ConflictError, InvalidArgumentError, InvalidCutError, PenstockError, TruncatedError
from penstock.model.policies import ReaderGroupRetention
from penstock.model.queries import QuerySource
from penstock.ports.control.groups import ReaderGroupConfig
from tests.flat_control import SUBJECTS, Around, FlatControl

MUTATING = ("subscribers.move", "table_update")


async def fill(stream, count, start=0):
    async with stream.writer(block_bytes=1024) as writer:
        for number in range(start, start + count):
            await writer.write(f"{number:04}", f"k{number % 7}")


async def rest(group, name="reader"):
    """What a reader that joins now gets, until nothing comes."""
    got = []
    async with group.reader(name) as reader:
        while True:
            try:
                async with asyncio.timeout(5):
                    block = await reader.next_block()
            except TimeoutError:
                return sorted(got)
            if block is None:
                return sorted(got)
            got += [int(event.data) for event in block]


async def acknowledged(stream):
    (info,) = await stream.subscribers()
    return info.cut


async def positions(store, name):
    return (await (await store.open_reader_group(name)).positions()).values()


@pytest.mark.parametrize("retention", ["manual", "automatic"])
def test_a_reset_moves_the_readers_and_what_is_acknowledged(retention):
    async def test(world):
        store = world.store
        stream = await store.create_stream("a/s", create_scope=True)
        await fill(stream, 20)
        group = await store.reader_group("a/g", ["a/s"], retention=retention, checkpoint_interval_s=1)
        (tried,) = await store.reset_reader_group("a/g", "tail", dry_run=True)
        assert (tried["events"], tried["acknowledged_events"]) == (20, 20)
        assert await acknowledged(stream) == await stream.head()
        (done,) = await store.reset_reader_group("a/g", "latest")
        assert done == tried
        assert await acknowledged(stream) == await stream.tail()
        assert await rest(group) == []
        await fill(stream, 5, start=20)
        assert await rest(group) == [20, 21, 22, 23, 24]
        (back,) = await store.reset_reader_group("a/g", "earliest")
        assert back["events"] == -25
        assert await acknowledged(stream) == await stream.head()
        await stream.retention.set({"retain": {"min_bytes": 0}})
        await stream.retention.run()
        assert await rest(group) == list(range(25))

    simulate(test)


def test_a_checkpoint_from_before_a_reset_is_not_published_after_it():
    async def test(world):
        store = world.store
        stream = await store.create_stream("a/s", create_scope=True)
        await fill(stream, 20)
        group = await store.reader_group("a/g", ["a/s"], retention="automatic", checkpoint_interval_s=1e6)
        await store.reset_reader_group("a/g", "tail")
        table = GroupTable(world, world.rng, group.config)
        await table.update(lambda state: state.start_checkpoint(world.clock.now_ms()))
        await store.reset_reader_group("a/g", "head")
        async with group.reader("one") as reader:
            await reader.sync()
            assert await acknowledged(stream) == await stream.head()

    simulate(test)


def test_the_audit_stream_names_who_reset_a_group_and_why():
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        await fill(stream, 3)
        await world.store.reader_group("a/g", ["a/s"], retention="manual")
        with calling(Caller(who="anna", why="skip the outage")):
            await world.store.reset_reader_group("a/g", "tail")
        await asyncio.sleep(60)
        async with world.store.stream("_system/audit").reader(until_tail=True) as reader:
            entries = b" ".join([event.data async for event in reader]).decode()
        assert '"who":"anna"' in entries.replace(": ", ":")
        assert "skip the outage" in entries

    simulate(test)


def test_readers_that_are_online_are_named_and_nothing_changes():
    async def test(world):
        store = world.store
        stream = await store.create_stream("a/s", create_scope=True)
        await stream.scale(2)
        await fill(stream, 20)
        group = await store.reader_group("a/g", ["a/s"], retention="manual")
        before = await acknowledged(stream), list(await positions(store, "a/g"))
        async with group.reader("one"), group.reader("two"):
            for dry_run in (True, False):
                with pytest.raises(ConflictError, match="online") as caught:
                    await store.reset_reader_group("a/g", "tail", dry_run=dry_run)
                assert "one" in caught.value.fields["readers"] or "two" in caught.value.fields["readers"]
                assert (await acknowledged(stream), list(await positions(store, "a/g"))) == before
        await store.reset_reader_group("a/g", "tail")
        assert await rest(group) == []

    simulate(test)


def test_a_dead_reader_does_not_prevent_a_reset_and_follows_it_if_it_comes_back():
    async def test(world):
        store = world.store
        stream = await store.create_stream("a/s", create_scope=True)
        await fill(stream, 20)
        group = await store.reader_group("a/g", ["a/s"], retention="manual")
        reader = group.reader("stuck")
        await reader.open()
        await reader._tasks.close()  # It no longer reports, as a program that was stopped.
        began = asyncio.get_running_loop().time()
        await store.reset_reader_group("a/g", "tail", lease_s=10)
        assert asyncio.get_running_loop().time() - began >= 10
        await reader.sync()
        assert list(await positions(store, "a/g")) == [await stream.tail()]
        await reader.close()
        assert await rest(group) == []

    simulate(test)


def test_a_reader_that_joins_in_the_middle_is_named_and_what_was_held_is_given_back():
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        await fill(stream, 20)
        group = await world.store.reader_group("a/g", ["a/s"], retention="manual")
        await world.store.reset_reader_group("a/g", "tail")
        late = group.reader("late")

        class Joins(FlatControl):
            _inner = world.controller

            async def subscribers_move(self, *arguments, dry_run=False, **named):
                if not dry_run and not late.assigned():
                    await late.open()
                return await world.controller.subscribers.move(*arguments, dry_run=dry_run, **named)

        raced = AsyncStore(world.segments, Joins(), world.clock, world.rng)
        with pytest.raises(ConflictError, match="late"):
            await raced.reset_reader_group("a/g", "head")
        assert await acknowledged(stream) == await stream.tail()
        await late.close()

    simulate(test)


class Crash(PenstockError):
    """The program ends here."""


class Dying:
    """Ends the program at its n-th change, before it or after it; and looks at the promise after each call."""

    def __init__(self, world, stream, at, *, after):
        self.world, self.stream, self.left, self.after = world, stream, at, after
        self.changes = 0

    def of(self, inner):
        return _Face(self, inner)

    async def call(self, name, made, arguments, named):
        changes = name in MUTATING and not named.get("dry_run", False)
        self.changes += changes
        self.left -= changes
        if changes and self.left == 0 and not self.after:
            raise Crash("crash")
        answer = await made(*arguments, **named)
        if changes:
            await self.check()
            if self.left == 0:
                raise Crash("crash")
        return answer

    async def check(self):
        """All that the readers have before them is held: what is acknowledged is not beyond them at any key."""
        config = await self.world.controller.groups.get("a", "g")
        state = await GroupTable(self.world, self.world.rng, config).load()
        cut = await acknowledged(self.stream)
        await self.world.controller.cuts.measure(self.stream.name, cut, state.cuts()[self.stream.name])


class _Face:
    def __init__(self, dying, inner):
        self._dying, self._inner = dying, inner

    def __getattr__(self, name):
        if name in SUBJECTS:
            return getattr(Around(self._inner, self._around), name)
        found = getattr(self._inner, name)
        return self._around(name, found) if callable(found) else found

    def _around(self, name, call):
        return lambda *arguments, **named: self._dying.call(name, call, arguments, named)


def test_readers_of_an_automatic_group_acknowledge_what_an_interrupted_reset_skipped():
    async def test(world):
        stream = await world.safe.create_stream("a/s", create_scope=True)
        await fill(stream, 20)
        group = await world.safe.reader_group("a/g", ["a/s"], retention="automatic", checkpoint_interval_s=1e6)
        dying = Dying(world, stream, 1, after=True)
        with pytest.raises(Crash):
            await AsyncStore(
                dying.of(world.segments), dying.of(world.controller), world.clock, world.rng
            ).reset_reader_group("a/g", "tail")
        assert await acknowledged(stream) == await stream.head()
        async with group.reader("one") as reader:
            await reader.sync()
        assert await acknowledged(stream) == await stream.tail()

    simulate(test)


async def cuts_of(stream, scales):
    """Cuts of all kinds, in no order: behind each of some events, with segments passed unevenly, across epochs."""
    found = [await stream.head()]
    for number in range(scales + 1):
        await fill(stream, 20, start=20 * number)
        async with stream.reader(until_tail=True) as reader:
            found += [reader.position() async for _ in reader]
        if number < scales:
            await stream.scale(2 + number % 2)
    return [cut for index, cut in enumerate(found) if cut not in found[:index]]


@pytest.mark.parametrize("seed", range(12))
def test_a_crash_at_any_step_releases_nothing_and_a_repeated_reset_finishes(seed):
    async def test(world):
        rng = random.Random(seed)
        stream = await world.safe.create_stream("a/s", segments=2, create_scope=True)
        cuts = await cuts_of(stream, scales=2)
        await world.safe.reader_group("a/g", ["a/s"], retention="manual")
        ends = 0
        for _ in range(12):
            to, at, after = rng.choice(cuts), rng.randrange(1, 5), rng.random() < 0.5
            dying = Dying(world, stream, at, after=after)
            store = AsyncStore(dying.of(world.segments), dying.of(world.controller), world.clock, world.rng)
            try:
                await store.reset_reader_group("a/g", to)
            except Crash:
                ends += 1
                if rng.random() < 0.3:
                    continue  # The next reset is another one.
                await world.safe.reset_reader_group("a/g", to)
            (here,) = await positions(world.safe, "a/g")
            for one, other in ((to, here), (to, await acknowledged(stream))):
                assert await world.controller.cuts.measure(stream.name, one, other) == ()
                assert await world.controller.cuts.measure(stream.name, other, one) == ()
        assert ends > 2

    simulate(test, seed=seed)


class Interrupted:
    """Runs another program before the n-th change that is made through it."""

    def __init__(self, at, other):
        self.left, self.other = at, other

    def of(self, inner):
        return _Face(self, inner)

    async def call(self, name, made, arguments, named):
        self.left -= name in MUTATING and not named.get("dry_run", False)
        if self.left == 0:
            self.left = -1
            await self.other()
        return await made(*arguments, **named)


@pytest.mark.parametrize("first", ["head", "middle", "tail"])
@pytest.mark.parametrize("second", ["head", "middle", "tail"])
def test_of_two_resets_at_once_none_acknowledges_what_the_readers_have_before_them(first, second):
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        await fill(stream, 10)
        places = {"head": "head", "tail": "tail", "middle": await stream.tail()}
        await fill(stream, 10, start=10)
        await world.store.reader_group("a/g", ["a/s"], retention="manual")
        for before in ("head", "middle", "tail"):
            for at in range(1, 6):
                await world.store.reset_reader_group("a/g", places[before])
                other = Interrupted(at, lambda: world.store.reset_reader_group("a/g", places[second]))
                raced = AsyncStore(other.of(world.segments), other.of(world.controller), world.clock, world.rng)
                with suppress(ConflictError):
                    await raced.reset_reader_group("a/g", places[first])
                (here,) = await positions(world.store, "a/g")
                # Raises if it is beyond the readers.
                await world.controller.cuts.measure(stream.name, await acknowledged(stream), here)

    simulate(test)


def test_a_reset_to_a_time_reads_what_was_appended_since():
    async def test(world):
        store = world.store
        stream = await store.create_stream("a/s", create_scope=True)
        await fill(stream, 10)
        await world.real_segments.flush()
        await asyncio.sleep(100)
        at = datetime.fromtimestamp(world.clock.now_ms() / 1000, UTC)
        await asyncio.sleep(100)
        await fill(stream, 10, start=10)
        group = await store.reader_group("a/g", ["a/s"], start="tail")
        await store.reset_reader_group("a/g", at)
        assert set(range(10, 20)) <= set(await rest(group))
        later = datetime.fromtimestamp(world.clock.now_ms() / 1000 + 60, UTC)
        with pytest.raises(InvalidArgumentError, match="future"):
            await store.reset_reader_group("a/g", later)
        with pytest.raises(InvalidArgumentError, match="zone"):
            await store.reset_reader_group("a/g", at.replace(tzinfo=None))

    simulate(test)


@pytest.mark.parametrize("retention", ["none", "manual"])
def test_a_place_without_data_is_refused_for_every_kind_of_group(retention):
    async def test(world):
        store = world.store
        stream = await store.create_stream("a/s", create_scope=True)
        await fill(stream, 10)
        cuts = await cuts_of(stream, scales=0)
        other = await store.create_stream("a/other")
        await store.reader_group("a/g", ["a/s"], retention=retention)
        await stream.truncate(cuts[5])
        before = list(await positions(store, "a/g"))
        refused = (InvalidCutError, TruncatedError)
        for wrong in (
            cuts[2],
            StreamCut(stream.name, {77: 0}),
            StreamCut(stream.name, {next(iter(cuts[0].positions)): 1 << 40}),
        ):
            with pytest.raises(refused):
                await store.reset_reader_group("a/g", wrong)
        for unknown in ("here", "", 7, None):
            with pytest.raises(InvalidArgumentError, match=r"to (is|must be)"):
                await store.reset_reader_group("a/g", unknown)
        with pytest.raises(InvalidArgumentError, match="does not read"):
            await store.reset_reader_group("a/g", await other.head())
        assert list(await positions(store, "a/g")) == before

    simulate(test)


def test_positions_that_another_program_keeps_are_not_reset():
    async def test(world):
        store = world.store
        stream = await store.create_stream("a/s", create_scope=True)
        await fill(stream, 10)
        await store.reader_group("a/query", ["a/s"], retention="manual")
        await world.controller.subscribers.publish(
            "a/query", group_id=None, generation=None, cut=await stream.head(), source=QuerySource(query="q-7", run="1")
        )
        made = ReaderGroupConfig(
            scope="a", name="new", id=uuid5(UUID(int=7), "x"), retention=ReaderGroupRetention.MANUAL,
            start_cuts={stream.name: await stream.head()},
        )  # fmt: skip
        await world.controller.groups.create(made)
        await store.reader_group("a/own", ["a/s"], retention="manual")
        java = await store.reader_group("a/java", ["a/s"], retention="manual")
        async with store.stream("a/_RGjava").writer() as writer:
            await writer.write("state")
        assert {item.name: item.owner for item in await stream.subscribers()} == {
            "a/query": "Spark query q-7",
            "a/new": "Spark query (no batch yet)",
            "a/java": "reader group (Java)",
            "a/own": "reader group",
        }
        before = {item.name: item.cut for item in await stream.subscribers()}
        for name, said in (("query", "q-7"), ("new", "unknown"), ("java", "Java")):
            with pytest.raises(ConflictError, match=said):
                await store.reset_reader_group(f"a/{name}", "tail")
        assert {item.name: item.cut for item in await stream.subscribers()} == before
        assert await rest(java) == list(range(10))
        moved = await stream.set_acknowledged("a/query", "tail")
        assert moved.events == 10

    simulate(test)


@pytest.mark.parametrize("seed", range(4))
def test_a_group_goes_back_by_a_number_of_events(seed):
    async def test(world):
        store, chance = world.store, random.Random(seed)
        stream = await store.create_stream("a/s", create_scope=True)
        for step, count in enumerate((2, 1, 3)):
            await fill(stream, 20, start=20 * step)
            await stream.scale(count)
        await fill(stream, 20, start=60)
        if seed % 2:
            await world.real_segments.flush()
        group = await store.reader_group("a/g", ["a/s"], retention="manual")
        await store.reset_reader_group("a/g", "latest")
        for count in (1, 7, chance.randrange(1, 80), 10_000):
            before = await positions(store, "a/g")
            (tried,) = await store.reset_reader_group("a/g", -count, dry_run=True)
            assert list(await positions(store, "a/g")) == list(before)
            (done,) = await store.reset_reader_group("a/g", -count)
            assert tried == done
            # Where segments end, no cut may have exactly this number of events behind it.
            assert min(count, 80) - 5 <= -done["events"] <= count
            assert -done["events"] == len(await rest(group))
        for wrong in (5, 0, True, -(1 << 70), 1.5):
            with pytest.raises(InvalidArgumentError):
                await store.reset_reader_group("a/g", wrong)

    simulate(test, seed=seed)


def test_one_segment_goes_back_by_exactly_that_many_events():
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        await fill(stream, 50)
        await world.store.reader_group("a/g", ["a/s"])
        await world.store.reset_reader_group("a/g", "latest")
        for count, left in ((3, 47), (10, 37), (37, 0), (1, 0)):
            (done,) = await world.store.reset_reader_group("a/g", -count)
            assert done["events"] == -min(count, 50) if left else True
            (at,) = [sum(cut.positions.values()) for cut in await positions(world.store, "a/g")]
            assert at == left * 12

    simulate(test)
