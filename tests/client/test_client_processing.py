"""Read, process, write: positions and events are committed together, at whatever moment a process dies."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from types import SimpleNamespace

import pytest
from client_world import LossyService, read_all, simulate
from flat_faces import Face

from penstock.client.blocking.group_transactions import GroupTransaction
from penstock.client.processing.group_transaction import AsyncGroupTransaction
from penstock.client.reading.group_state import GroupState, Prepared, UndecidedError
from penstock.client.store import AsyncStore
from penstock.model.errors import (
    InvalidArgumentError,
    NotCommittedError,
    PenstockError,
    ReaderFencedError,
    TransactionStateError,
    UnavailableError,
    VersionTooNewError,
)
from penstock.model.names import StreamName
from penstock.model.segments import KeyRange, SegmentId, SegmentRange
from penstock.ports.control.transactions import StreamTransaction, TransactionStatus
from penstock.testing.fakes import SeededRng

OUT = ("a/out", "a/odd")


async def fill(stream, count, start=0, keys=5):
    async with stream.writer(block_bytes=1024) as writer:
        for number in range(start, start + count):
            await writer.write(f"k{number % keys}:{number}", f"k{number % keys}")


async def make_streams(store, *, segments=2):
    source = await store.create_stream("a/in", segments=segments, create_scope=True)
    for name in OUT:
        await store.create_stream(name, segments=2)
    return source


async def make_group(store):
    return await store.reader_group("a/g", ["a/in"], lease_s=2, refresh_s=0.5)


async def process(reader, *, at_most=1000, size=4, patience_s=6.0):
    """Copy up to ``at_most`` events in transactions of up to ``size``: odd numbers to one stream, even ones to the other."""
    done = 0
    while done < at_most:
        async with reader.transaction(*OUT) as transaction:
            for _ in range(size):
                event = await reader.read(patience_s)
                if event is None:
                    if not done or not transaction._begun:
                        return done
                    break
                done += 1
                text = event.data.decode()
                number = int(text.split(":")[1])
                await transaction.write(text, text.split(":")[0], to=OUT[number % 2])
    return done


async def written(store):
    """The numbers in both output streams, after checking that those of a key are in order."""
    found = []
    for name in OUT:
        texts = [data.decode() for data in await read_all(store.stream(name))]
        for key in {text.split(":")[0] for text in texts}:
            numbers = [int(text.split(":")[1]) for text in texts if text.startswith(f"{key}:")]
            assert numbers == sorted(numbers)
        found += [int(text.split(":")[1]) for text in texts]
    return found


def exactly(numbers, count):
    assert Counter(numbers) == Counter(range(count))


def test_positions_and_events_are_committed_together():
    async def test(world):
        store = world.store
        source = await make_streams(store)
        await fill(source, 20)
        group = await make_group(store)
        async with group.reader("r", auto_commit=False) as reader:
            assert await process(reader) == 20
            assert await group.positions() == {source.name: await source.tail()}
        exactly(await written(store), 20)
        async with group.reader("other", auto_commit=False) as reader:
            assert await process(reader) == 0

    simulate(test)


def test_what_fails_is_read_again_and_leaves_nothing():
    async def test(world):
        store = world.store
        source = await make_streams(store, segments=1)
        await fill(source, 6)
        group = await make_group(store)

        async def read(reader, count):
            return [(await reader.read(5)).data for _ in range(count)]

        async with group.reader("r", auto_commit=False) as reader:
            before = await read(reader, 1)

            async def fail():
                async with reader.transaction("a/out") as transaction:
                    await transaction.write(b"lost")
                    first.extend(await read(reader, 2))
                    raise ZeroDivisionError

            first = []
            with pytest.raises(ZeroDivisionError):
                await fail()
            # The event from before the transaction was not committed either.
            assert await read(reader, 3) == before + first
            transaction = reader.transaction("a/out")
            await transaction.open()
            with pytest.raises(InvalidArgumentError, match="open transaction"):
                await reader.commit()
            with pytest.raises(InvalidArgumentError, match="open transaction"):
                await reader.transaction("a/out").open()
            await transaction.write(b"lost too")
            await transaction.flush()
            await transaction.abort()
            for ended in (transaction.abort, transaction.commit, transaction.open):
                with pytest.raises(TransactionStateError):
                    await ended()
            async with reader.transaction("a/out") as transaction:
                # Nothing is written: it only commits.
                assert await read(reader, 3) == before + first
            async with reader.transaction("a/out") as transaction:
                for event in await read(reader, 3):
                    await transaction.write(event)
                await transaction.commit()
                with pytest.raises(TransactionStateError):
                    await transaction.write(b"late")
        assert await read_all(store.stream("a/out")) == [b"k3:3", b"k4:4", b"k0:5"]
        assert await group.positions() == {source.name: await source.tail()}

    simulate(test)


def test_wrong_use_is_refused_before_anything_is_done():
    async def test(world):
        store = world.store
        await make_streams(store)
        group = await make_group(store)
        with pytest.raises(InvalidArgumentError, match="auto_commit=False"):
            group.reader("r").transaction("a/out")
        reader = group.reader("r", auto_commit=False)
        for wrong in ((), ("a/out", "a/out")):
            with pytest.raises(InvalidArgumentError, match="each once"):
                reader.transaction(*wrong)
        with pytest.raises(InvalidArgumentError):
            reader.transaction("a/out", lease_s=1)
        with pytest.raises(InvalidArgumentError, match="not open"):
            await reader.transaction("a/out").open()
        with pytest.raises(InvalidArgumentError, match="255"):
            group.reader("x" * 256, auto_commit=False).transaction("a/out")
        async with reader:
            transaction = reader.transaction(*OUT)
            with pytest.raises(InvalidArgumentError, match="not open"):
                await transaction.write(b"x", to="a/out")
            async with transaction:
                for to in (None, "a/in", StreamName("a", "none")):
                    with pytest.raises(InvalidArgumentError, match="`to`"):
                        await transaction.write(b"x", to=to)

    simulate(test)


class Killed(BaseException):
    """The process is dead."""


STEPS = (
    "table_update",
    "append",
    "merge",
    "transactions.create",
    "transactions.commit_with_positions",
    "transactions.settle_positions",
    "transactions.release_positions",
    "transactions.abort",
)


class Mortal:
    """The services of a process that dies at its n-th change, before it or after it. A dead process calls nothing."""

    def __init__(self, at, *, after):
        self.left, self.after, self.dead = at, after, False

    def of(self, inner):
        return Face(inner, self._around)

    submit_append = None

    def _around(self, name, call):
        async def around(*arguments, **named):
            if self.dead:
                raise Killed
            self.left -= name in STEPS
            dies = name in STEPS and self.left == 0
            if dies and not self.after:
                self.dead = True
                raise Killed
            answer = await call(*arguments, **named)
            if dies or self.dead:
                self.dead = True
                raise Killed
            return answer

        return around


def store_of(world, around):
    return AsyncStore(
        around.of(world.real_segments), around.of(world.controller), world.clock, SeededRng(random.Random(7))
    )


async def die(world, mortal):
    """Run a process until it dies. Returns whether it lived on."""
    store = store_of(world, mortal)
    group = await store.open_reader_group("a/g", lease_s=2, refresh_s=0.5)
    reader = group.reader("first", auto_commit=False)
    try:
        await reader.open()
        await process(reader, at_most=8)
        await reader.close()
    except (Killed, PenstockError):
        assert mortal.dead
    await reader.abandon()
    return not mortal.dead


# A kill after a step is almost one before the next step.
@pytest.mark.parametrize(("after", "heir"), [(True, "first"), (False, "second")])
def test_a_kill_at_any_step_loses_nothing_and_doubles_nothing(after, heir):
    steps = 0
    while True:
        steps += 1

        async def test(world, at=steps):
            source = await make_streams(world.safe)
            await make_group(world.safe)
            await fill(source, 10)
            await source.scale(3)
            await fill(source, 10, 10)
            lived = await die(world, Mortal(at, after=after))
            group = await world.safe.open_reader_group("a/g", lease_s=2, refresh_s=0.5)
            async with group.reader(heir, auto_commit=False) as reader:
                await process(reader)
            exactly(await written(world.safe), 20)
            assert await group.positions() == {source.name: await source.tail()}
            # Nobody prepares anything any more, and no transaction is left.
            assert not (await group._table.load()).prepared()
            for name in OUT:
                held = await world.safe.stream(name).open_transactions()
                assert all(item.state is TransactionStatus.OPEN for item in held)
            return lived

        if simulate(test):
            break
    assert steps > 12


@pytest.mark.parametrize("seed", range(8))
def test_many_processors_with_lost_calls_kills_and_scales_write_each_event_once(seed):
    count = 60

    async def test(world):
        rng = world.loop.fork("test")
        source = await make_streams(world.safe)
        group = await make_group(world.safe)
        await fill(source, count // 2)

        async def live(name):
            """Start again after each death, as the same reader."""
            for _ in range(30):
                mortal = Mortal(rng.randrange(5, 40), after=rng.random() < 0.5)
                lossy = LossyService(world.real_segments, world.loop.fork(f"{name}"), 0.1)
                control = LossyService(world.controller, world.loop.fork(f"{name} control"), 0.1)
                store = AsyncStore(mortal.of(lossy), mortal.of(control), world.clock, SeededRng(world.loop.fork(name)))
                reader = None
                try:
                    group = await store.open_reader_group("a/g", lease_s=2, refresh_s=0.5)
                    reader = group.reader(name, auto_commit=False)
                    await reader.open()
                    await process(reader, size=rng.randrange(1, 8), patience_s=6)
                except (Killed, NotCommittedError, UnavailableError):
                    pass
                if reader is not None:
                    await reader.abandon()
                if len(await written(world.safe)) >= count:
                    return

        async def change():
            for segments in (3, 4, 2):
                await asyncio.sleep(rng.random() * 5)
                await source.scale(segments)
                await world.safe.stream("a/out").scale(segments)
            await fill(source, count - count // 2, count // 2)

        await asyncio.gather(live("one"), live("two"), live("three"), change())
        async with group.reader("last", auto_commit=False) as reader:
            await process(reader, patience_s=6)
        exactly(await written(world.safe), count)

    simulate(test, seed=seed, max_seconds=20_000)


class Paused:
    """Stops the process at the first call of the name, before it or after it, until it is released."""

    def __init__(self, name, *, after):
        self.name, self.after = name, after
        self.reached, self.released = asyncio.Event(), asyncio.Event()

    def of(self, inner):
        return Face(inner, self._around)

    def _around(self, name, call):
        async def around(*arguments, **named):
            stops = name == self.name and not self.reached.is_set()
            if stops and not self.after:
                self.reached.set()
                await self.released.wait()
            elif self.reached.is_set():
                await self.released.wait()
            answer = await call(*arguments, **named)
            if stops and self.after:
                self.reached.set()
                await self.released.wait()
            return answer

        return around


@pytest.mark.parametrize("heir", ["zombie", "heir"])
@pytest.mark.parametrize("decided", [False, True])
def test_a_reader_that_was_stopped_commits_only_what_was_decided_before_another_took_over(decided, heir):
    async def test(world):
        source = await make_streams(world.safe)
        await fill(source, 10)
        await make_group(world.safe)
        paused = Paused("transactions.commit_with_positions", after=decided)
        group = await store_of(world, paused).open_reader_group("a/g", lease_s=2, refresh_s=0.5)
        zombie = group.reader("zombie", auto_commit=False)
        await zombie.open()
        working = asyncio.ensure_future(process(zombie, at_most=4))
        await paused.reached.wait()
        mine = await world.safe.open_reader_group("a/g", lease_s=2, refresh_s=0.5)
        async with mine.reader(heir, auto_commit=False) as reader:
            assert await process(reader, patience_s=8) == (6 if decided else 10)
            paused.released.set()
            if decided:
                assert await working == 4
            else:
                with pytest.raises(NotCommittedError):
                    await working
            if heir == "zombie":
                with pytest.raises(ReaderFencedError):
                    await zombie.read(5)
            else:
                assert await process(zombie) == 0
        await zombie.abandon()
        exactly(await written(world.safe), 10)

    simulate(test)


def test_a_commit_whose_answer_is_lost_may_be_repeated_or_aborted():
    async def test(world):
        source = await make_streams(world.safe, segments=1)
        await fill(source, 8)
        await make_group(world.safe)

        class Away:
            lost = None

            def of(self, inner):
                return Face(inner, self._around)

            def _around(self, name, call):
                async def around(*arguments, **named):
                    if name == "transactions.commit_with_positions" and self.lost is not None:
                        if self.lost == "answer":
                            await call(*arguments, **named)
                        raise UnavailableError("away")
                    return await call(*arguments, **named)

                return around

        away = Away()
        group = await store_of(world, away).open_reader_group("a/g", lease_s=60, refresh_s=50)
        async with group.reader("r", auto_commit=False) as reader:

            async def ask(lost):
                away.lost = lost
                transaction = reader.transaction("a/out")
                await transaction.open()
                event = await reader.read(5)
                await transaction.write(event.data)
                with pytest.raises(UnavailableError):
                    await transaction.commit(deadline_s=1)
                with pytest.raises(TransactionStateError):
                    await transaction.write(b"late")
                away.lost = None
                return transaction

            for lost in ("request", "answer"):
                await (await ask(lost)).commit()
            await (await ask("request")).abort()
            with pytest.raises(TransactionStateError, match="decided otherwise"):
                await (await ask("answer")).abort()
            # A block that ends with an unknown outcome: the reader finds out, and goes on behind it.
            for lost in ("request", "answer"):
                away.lost = lost
                with pytest.raises(UnavailableError):
                    async with reader.transaction("a/out") as transaction:
                        await transaction.write((await reader.read(5)).data)
                away.lost = None
                await reader.sync()
            async with reader.transaction("a/out") as transaction:
                while (event := await reader.read(1)) is not None:
                    await transaction.write(event.data)
        texts = [data.decode() for data in await read_all(world.safe.stream("a/out"))]
        assert [int(text.split(":")[1]) for text in texts] == list(range(8))

    simulate(test)


def test_a_transaction_that_runs_out_of_time_commits_nothing():
    async def test(world):
        source = await make_streams(world.safe, segments=1)
        await fill(source, 4)
        group = await make_group(world.safe)
        async with group.reader("r", auto_commit=False) as reader:
            out = StreamName("a", "out")
            transaction = reader.transaction("a/out", lease_s=10)
            await transaction.open()
            await transaction.write((await reader.read(5)).data)
            (begun,) = await world.controller.transactions.list_open(out)
            await world.controller.transactions.abort(out, begun.id)
            with pytest.raises(NotCommittedError):
                await transaction.commit()
            async with reader.transaction("a/out") as transaction:
                await transaction.write((await reader.read(5)).data)
        assert await read_all(world.safe.stream("a/out")) == [b"k0:0"]

    simulate(test)


def test_a_group_that_is_deleted_meanwhile_commits_nothing():
    async def test(world):
        source = await make_streams(world.safe, segments=1)
        await fill(source, 4)
        group = await make_group(world.safe)
        paused = Paused("transactions.commit_with_positions", after=False)
        other = await store_of(world, paused).open_reader_group("a/g", lease_s=2, refresh_s=0.5)
        reader = other.reader("r", auto_commit=False)
        await reader.open()
        working = asyncio.ensure_future(process(reader, at_most=2))
        await paused.reached.wait()
        await group.delete()
        paused.released.set()
        with pytest.raises(PenstockError, match="reader group was deleted"):
            await working
        await reader.abandon()
        assert await written(world.safe) == []

    simulate(test)


def test_prepared_positions_hold_the_segments_until_they_are_settled():
    stream, key = StreamName("a", "in"), (StreamName("a", "in"), SegmentId(0))
    whole = KeyRange(low=0.0, high=1.0)
    after = SegmentRange(segment=SegmentId(1), keys=whole)
    prepared = Prepared(
        id=SeededRng(random.Random(1)).uuid(),
        transactions=[StreamTransaction(stream=StreamName("a", "out"), id=SeededRng(random.Random(2)).uuid())],
        positions={key: 9, (stream, SegmentId(1)): 3},
        ended={key: [after]},
    )
    for committed in (True, False):
        state = GroupState("g", free={key: 2}, ranges={key: whole})
        state.join("r", "one")
        state.acquire("r")
        plain = state.encode()
        state.prepare("r", prepared)
        state.prepare("r", prepared)
        assert GroupState.decode(state.encode()) == state
        for change, arguments in ((state.leave, ()), (state.join, ()), (state.report, ({}, "one"))):
            with pytest.raises(UndecidedError):
                change("r", *arguments)
        # What an older program reads it must understand.
        assert b'"format":1,' in plain
        assert b'"format":2,' in state.encode()
        with pytest.raises(VersionTooNewError):
            GroupState.decode(state.encode().replace(b'"format":2', b'"format":3'))
        state.settle({prepared.id: committed})
        state.leave("r")
        assert state.free == ({(stream, SegmentId(1)): 3} if committed else {key: 2})


def test_a_commit_is_refused_after_its_events_were_given_up_in_a_callback():
    async def test(world):
        source = await make_streams(world.store)
        await fill(source, 40, keys=20)
        group = await make_group(world.store)
        given_up = []
        async with group.reader("one", auto_commit=False, on_revoked=given_up.extend) as one:
            transaction = one.transaction(*OUT)
            await transaction.open()
            for _ in range(40):
                text = (await one.read(5)).data.decode()
                await transaction.write(text, text.split(":")[0], to=OUT[int(text.split(":")[1]) % 2])
            async with group.reader("two", auto_commit=False) as two:
                while not given_up:
                    await one.read(1)
                with pytest.raises(NotCommittedError):
                    await transaction.commit()
                await asyncio.gather(process(one), process(two))
        exactly(await written(world.store), 40)

    simulate(test)


def test_a_commit_is_refused_if_the_reader_loses_its_segments_while_the_commit_waits():
    async def test(world):
        source = await make_streams(world.store)
        await fill(source, 40, keys=20)
        group = await make_group(world.store)
        async with group.reader("one", auto_commit=False) as one:
            transaction = one.transaction(*OUT)
            await transaction.open()
            for _ in range(40):
                text = (await one.read(5)).data.decode()
                await transaction.write(text, text.split(":")[0], to=OUT[int(text.split(":")[1]) % 2])
            await transaction.flush()
            await one._table.update(lambda state: state.leave("one"))
            report = asyncio.create_task(one.sync())
            while not one._syncing.locked():
                await asyncio.sleep(0)
            with pytest.raises(NotCommittedError):
                await transaction.commit()
            await report
            assert await process(one) == 40
        exactly(await written(world.store), 40)

    simulate(test)


class _OwnThread:
    """Runs the calls of a blocking object where they are made."""

    is_inherited = closed = False

    def call(self, work):
        return asyncio.run(work)


class _Output:
    """A transaction of an output whose first request gets no answer."""

    def __init__(self):
        self.id, self.settings, self.fails, self.events = 1, SimpleNamespace(block_bytes=1 << 20), True, []

    async def open(self):
        if self.fails:
            self.fails = False
            raise UnavailableError("no answer")

    async def write_many(self, events, keys):
        self.events += events

    async def flush(self): ...


class _Positions:
    """A reader that only counts commits."""

    commits = 0

    def begin_transaction(self, transaction): ...

    def end_transaction(self): ...

    async def commit(self):
        self.commits += 1


def test_a_blocking_transaction_that_lost_events_to_an_error_commits_no_positions():
    name, output, reader = StreamName("a", "out"), _Output(), _Positions()
    transaction = GroupTransaction(_OwnThread(), AsyncGroupTransaction(reader, {name: output}, SeededRng(1)))
    transaction.open()
    transaction.write(b"x")
    for _ in range(2):
        with pytest.raises(UnavailableError):
            transaction.commit()
    assert (reader.commits, output.events) == (0, [])


@pytest.mark.parametrize("ends", ["commit", "abort"])
def test_a_transaction_on_a_deleted_stream_ends_and_leaves_its_reader_usable(ends):
    async def test(world):
        source = await make_streams(world.store, segments=1)
        await fill(source, 6)
        group = await make_group(world.store)
        async with group.reader("one", auto_commit=False) as reader:
            transaction = reader.transaction(*OUT)
            await transaction.open()
            first = [(await reader.read(5)).data for _ in range(3)]
            for name in OUT:
                await transaction.write(b"lost", to=name)
            await transaction.flush()
            await world.safe.stream(OUT[0]).delete(seal=True)
            if ends == "abort":
                await transaction.abort()
            else:
                with pytest.raises(NotCommittedError, match="deleted"):
                    await transaction.commit()
            assert [(await reader.read(5)).data for _ in range(3)] == first
            async with reader.transaction(OUT[1]) as again:
                await again.write(b"kept")
        assert await read_all(world.store.stream(OUT[1])) == [b"kept"]

    simulate(test)


def test_a_commit_is_reported_although_its_answer_was_lost_and_a_stream_is_deleted():
    async def test(world):
        source = await make_streams(world.store, segments=1)
        await fill(source, 6)
        group = await make_group(world.store)
        async with group.reader("one", auto_commit=False) as reader:
            transaction = reader.transaction(*OUT)
            await transaction.open()
            for _ in range(3):
                await reader.read(5)
            for name in OUT:
                await transaction.write(b"kept", to=name)
            decide, lost = reader._table.decide, []

            async def lose_the_answer(*arguments, **named):
                answer = await decide(*arguments, **named)
                if not lost:
                    lost.append(answer)
                    await world.safe.stream(OUT[0]).delete(seal=True)
                    raise UnavailableError("answer lost")
                return answer

            reader._table.decide = lose_the_answer
            with pytest.raises(UnavailableError):
                await transaction.commit()
            await transaction.commit()
            assert (await reader.read(5)).data == b"k3:3"
        assert await read_all(world.store.stream(OUT[1])) == [b"kept"]

    simulate(test)
