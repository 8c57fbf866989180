"""Laws of readers that commit, alone or with transactions, whatever happens to their segments meanwhile.

Segments move while reports are under way, reports are late, lost or cancelled, leases end, and callbacks commit, wait or
fail. An event whose commit has returned is never returned again, none is skipped, and transactions write each one once.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import contextmanager, suppress
from unittest.mock import patch

import pytest
from client_world import LossyService, read_all, simulate
from flat_faces import Face

from penstock.client.reading.blocks import Event
from penstock.client.reading.commits import Commits
from penstock.client.reading.group_reader import AsyncGroupReader
from penstock.client.reading.group_state import GroupState
from penstock.client.store import AsyncStore
from penstock.model.errors import NotCommittedError, PenstockError, UnavailableError
from penstock.testing.fakes import SeededRng

EVENTS, SEEDS = 150, 3
OUT = "a/out"


class CallbackError(Exception):
    """A callback that fails now and then."""


def late(inner, chance):
    """The service with changes of tables that arrive late, or whose answers do."""

    def around(name, call):
        if name != "table_update":
            return call

        async def changed(*arguments, **named):
            if chance.random() < 0.15:
                await asyncio.sleep(chance.random())
            answer = await call(*arguments, **named)
            if chance.random() < 0.5:
                await asyncio.sleep(chance.random() * 2)
            return answer

        return changed

    return Face(inner, around)


class Crowd:
    """Readers of one group, and what they have found wrong."""

    def __init__(self, world, seed):
        self.world = world
        self.chance = random.Random(seed)
        self.committed: dict[bytes, Event] = {}
        """A commit of these has returned, alone or with a transaction."""
        self.perhaps: set[bytes] = set()
        """A commit of these has failed with an unknown outcome."""
        self.problems: list[str] = []
        self.ends = False

    def store_of(self, name):
        loop = self.world.loop
        lossy = LossyService(self.world.real_segments, loop.fork(name), 0.05)
        control = LossyService(self.world.controller, loop.fork(f"{name} control"), 0.05)
        return AsyncStore(late(lossy, loop.fork(f"{name} late")), control, self.world.clock, SeededRng(loop.fork(name)))

    async def check(self):
        """No reader that takes over begins before what is committed. A reader that has lost its segments may still return
        it: it learns of the loss with its next report."""
        state = await (await self.world.safe.open_reader_group("a/g"))._table.load()
        begun = {**state.free, **state.future}
        for member in state.members.values():
            if member.prepared is None:  # else its next change moves the positions
                begun.update(member.held)
        for event in self.committed.values():
            if begun.get((event.stream, event.segment), event.next_offset) < event.next_offset:
                self.problems.append(f"{event.data.decode()} was committed and will be returned again")

    async def live(self, name):
        """Readers of one name, one after another."""
        store = self.store_of(name)
        while not self.ends:
            group = await store.open_reader_group("a/g", lease_s=6, refresh_s=2)
            await _Life(self, group, name, writes=self.chance.random() < 0.5).run()


class _Life:
    """One reader. ``writes``: it commits with transactions."""

    def __init__(self, crowd, group, name, *, writes):
        self.crowd, self.chance, self.group, self.name, self.writes = crowd, crowd.chance, group, name, writes
        self.pending: list[Event] = []
        self.transaction = None
        listens = self.chance.random() < 0.6
        self.reader = group.reader(
            name,
            auto_commit=False,
            on_revoked=self._revoked if listens else None,
            on_lost=self._lost if listens else None,
        )

    async def run(self):
        try:
            await self.reader.open()
            while not self.crowd.ends and self.chance.random() > 0.05:
                await self._step()
            await self._commit()
            await self.reader.close(clean=self.chance.random() < 0.7)
        except (PenstockError, CallbackError):
            pass  # the program ends as in a crash
        finally:
            await self.reader.abandon()

    async def _step(self):
        fate = self.chance.random()
        if fate < 0.12:
            await self._commit()
        elif fate < 0.15:
            await self.group.remove_reader(self.name)
        elif fate < 0.3:
            # Nothing waits for a commit, so segments may go. The reader does not know, and continues.
            if fate < 0.25:
                await self._commit()
            with suppress(TimeoutError):
                async with asyncio.timeout(self.chance.random()):
                    await self.reader.sync()
            for _ in range(self.chance.randrange(5)):
                await self._read()
            if fate < 0.25:
                await self._commit()
        elif fate < 0.33:
            await asyncio.sleep(self.chance.random() * 2)
        else:
            await self._read()

    async def _read(self):
        if self.writes and self.transaction is None:
            self.transaction = self.reader.transaction(OUT)
            await self.transaction.open()
        with suppress(CallbackError):
            await asyncio.sleep(self.chance.random() / 10)
            event = await self.reader.read(self.chance.random())
            if event is None:
                return
            self.pending.append(event)
            if self.transaction is not None:
                await self.transaction.write(event.data)

    async def _commit(self):
        pending, self.pending = self.pending, []
        transaction, self.transaction = self.transaction, None
        try:
            await (self.reader if transaction is None else transaction).commit()
        except NotCommittedError:
            return  # the events come again
        except (UnavailableError, asyncio.CancelledError):
            self.crowd.perhaps.update(item.data for item in pending)
            raise
        self.crowd.committed.update((item.data, item) for item in pending)
        await self.crowd.check()

    async def _revoked(self, segments):
        fate = self.chance.random()
        if fate < 0.4:
            await self._commit()
        elif fate < 0.6:
            await asyncio.sleep(self.chance.random())
        elif fate < 0.7:
            raise CallbackError
        if not self.writes:
            # The program has agreed to give up what it does not commit here: a later commit may not cover it.
            self.crowd.perhaps.update(item.data for item in self.pending if (item.stream, item.segment) in segments)
            self.pending = [item for item in self.pending if (item.stream, item.segment) not in segments]

    async def _lost(self, segments):
        await asyncio.sleep(self.chance.random() / 10)


def run(seed):
    """Everything that is wrong with one run."""

    async def test(world):
        crowd = Crowd(world, seed)
        source = await world.safe.create_stream("a/in", segments=6, create_scope=True)
        out = await world.safe.create_stream(OUT)
        group = await world.safe.reader_group("a/g", ["a/in"], lease_s=6, refresh_s=2)

        async def change():
            for step in range(5):
                async with source.writer(block_bytes=1024) as writer:
                    for number in range(EVENTS // 5):
                        await writer.write(b"%d" % (step * EVENTS // 5 + number), f"k{number % 11}")
                await asyncio.sleep(crowd.chance.random() * 6)
                if step % 2:
                    await source.scale(crowd.chance.randrange(6, 9))
            # Until all is committed, or for long enough: then the last reader gets the rest.
            for _ in range(60):
                if len(crowd.committed.keys() | crowd.perhaps) >= EVENTS:
                    break
                await asyncio.sleep(1)
            crowd.ends = True

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(change())
            for name in ("one", "two", "three", "four"):
                tasks.create_task(crowd.live(name))
        async with group.reader("last", auto_commit=False) as last:
            while (event := await last.read(8)) is not None:
                if event.data in crowd.committed:
                    crowd.problems.append(f"{event.data.decode()} was committed and is returned at the end")
                crowd.perhaps.add(bytes(event.data))
        written = Counter(await read_all(out))
        crowd.problems += [f"{data.decode()} was written {count} times" for data, count in written.items() if count > 1]
        missing = {b"%d" % number for number in range(EVENTS)} - crowd.committed.keys() - crowd.perhaps - set(written)
        return crowd.problems + [f"{data.decode()} was skipped" for data in sorted(missing)]

    return simulate(test, seed=seed, max_seconds=20_000)


@pytest.mark.parametrize(
    "seed", [*range(SEEDS), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(SEEDS, 60))]
)
def test_what_is_committed_stays_so_whatever_happens_to_the_segments(seed):
    assert run(seed) == []


async def give_one_away(one, group, *, cancels):
    """Let a report of the reader give segments to another reader. Returns it, before the first one knows."""
    two = group.reader("two", auto_commit=False)
    await two.open()
    stored, answered = asyncio.Event(), asyncio.Event()
    update = one._table.update

    async def answer_late(change, **named):
        found = await update(change, **named)
        if not stored.is_set():
            stored.set()
            await answered.wait()
        return found

    one._table.update = answer_late
    report = asyncio.create_task(one.sync())
    await stored.wait()
    if cancels:
        report.cancel()
        await asyncio.wait({report})
    asyncio.get_running_loop().call_later(0.5, answered.set)
    return two


@pytest.mark.parametrize("cancels", [False, True], ids=["under way", "cancelled"])
@pytest.mark.parametrize("writes", [False, True], ids=["commit", "transaction"])
def test_a_commit_is_refused_after_a_report_that_the_reader_does_not_know_of(writes, cancels):
    async def test(world):
        source = await world.store.create_stream("a/in", segments=2, create_scope=True)
        await world.store.create_stream(OUT)
        async with source.writer() as writer:
            for number in range(40):
                await writer.write(b"%d" % number, f"k{number}")
        group = await world.store.reader_group("a/g", ["a/in"], lease_s=3, refresh_s=1)
        one = group.reader("one", auto_commit=False)
        await one.open()
        two = await give_one_away(one, group, cancels=cancels)
        transaction = one.transaction(OUT)
        if writes:
            await transaction.open()
        read = []
        while (event := await one.read(0.1)) is not None:
            read.append(event.data)
            if writes:
                await transaction.write(event.data)
        assert len(read) == 40
        with pytest.raises(NotCommittedError):
            await (transaction if writes else one).commit()
        again = []
        for reader in (two, one):
            while (event := await reader.read(2)) is not None:
                again.append(event.data)
            await reader.commit()
        assert sorted(again) == sorted(read)
        assert await read_all(world.store.stream(OUT)) == []
        await one.close()
        await two.close()

    simulate(test)


@contextmanager
def segments_with_uncommitted_events_are_given_up():
    with patch.object(Commits, "covers", lambda self, key, read: True):
        yield


@contextmanager
def commits_do_not_look_at_who_has_the_segments():
    """A commit succeeds although reports have given some of its segments up."""
    original = AsyncGroupReader._follow

    def follow(self, state, ended, *, lost):
        original(self, state, ended, lost=lost)
        self._has_lost = False

    with patch.object(AsyncGroupReader, "_follow", follow), patch.object(GroupState, "covers", lambda self, at: True):
        yield


@contextmanager
def lost_segments_are_forgotten():
    """A reader that has lost segments with events that wait for a commit does not refuse the commit."""
    with patch.object(AsyncGroupReader, "_is_recorded", lambda self, state, key: True):
        yield


PLANTED = (
    segments_with_uncommitted_events_are_given_up,
    commits_do_not_look_at_who_has_the_segments,
    lost_segments_are_forgotten,
)


@pytest.mark.slow
@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.__name__)
def test_the_laws_find(planted):
    with planted():
        assert any(run(seed) for seed in range(30))
