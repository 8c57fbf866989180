"""Writers' numbers leave after a long silence, and nothing is ever stored twice because of it. Time is virtual."""

from __future__ import annotations

import asyncio
import functools
import operator
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from uuid import UUID

import pytest
from store_world import World, Writer, content

from penstock.codec.store import rows as records
from penstock.controller.retention.audit import WRITER as AUDIT_WRITER
from penstock.core.segments.writer_memory import (
    BORN_KEPT_MS,
    RANDOM_KEPT_MS,
    born_ms,
    born_writer,
    is_refused,
    may_forget,
)
from penstock.model.errors import CorruptDataError, PenstockError, WriterFencedError, WriterForgottenError
from penstock.ports.data.segments import NO_EVENT, Append
from penstock.segmentstore import writer_memory
from penstock.storage.memory.memory_keyvalue import MemoryKeyValue
from penstock.testing.simulation.machine.loop import make_loop
from penstock.testing.simulation.machine.world import SimClock
from tests.rotten_keyvalue import RottenKeyValue

SEGMENT = "scope/stream/0.#epoch.0"
DAY_S = 86_400
BORN_DAYS, RANDOM_DAYS = BORN_KEPT_MS // 86_400_000, RANDOM_KEPT_MS // 86_400_000
FEW_CHECKPOINTS = {"containers": 1, "checkpoint_interval_s": 21_600.0, "flush_interval_s": 21_600.0}
FIXED = AUDIT_WRITER


class TimedWorld(World):
    """Its wall clock follows the virtual time of the loop, plus jumps."""

    clock: SimClock

    def __init__(self, **settings) -> None:
        super().__init__(**settings)
        self.clock = SimClock(asyncio.get_running_loop())
        self.chance = random.Random(7)

    def born(self) -> UUID:
        return born_writer(UUID(int=self.chance.getrandbits(128)), self.clock.now_ms())

    def random(self) -> UUID:
        return UUID(int=self.chance.getrandbits(128), version=4)

    async def session(self, writer: UUID, data: bytes = b"x") -> Writer:
        """A session that appends once, and never says that it has ended."""
        session = Writer(self.store, SEGMENT)
        session.id = writer
        await session.setup()
        await session.append(data)
        return session

    async def rows(self) -> list[bytes]:
        """Ids that the segment remembers, once all changes are in the rows."""
        await self.store.flush()
        container = self.store._container(SEGMENT)
        bounds = records.range_of(records.prefix(records.TAG_ATTRIBUTE, container.index))
        return [key[11:] for key, _ in await container.rows.scan_all(bounds)]

    async def knows(self, writer: UUID) -> bool:
        return writer.bytes in await self.rows()


def run(
    body: Callable[[TimedWorld], Awaitable[None]],
    seed: int = 0,
    *,
    rows: type[MemoryKeyValue] = MemoryKeyValue,
    **settings,
) -> None:
    async def main() -> None:
        world = TimedWorld(**(FEW_CHECKPOINTS | settings))
        world.keyvalue = rows()
        await world.open()
        await world.store.create_segment(SEGMENT)
        try:
            await body(world)
        finally:
            await world.store.close(checkpoint=False)

    loop = make_loop(seed)
    try:
        loop.run(main())
    finally:
        loop.close()


def test_ids_hold_their_birth_and_stay_apart() -> None:
    ids = {born_writer(UUID(int=number << 40), 1_700_000_000_000) for number in range(100)}
    assert len(ids) == 100
    assert {born_ms(item.int) for item in ids} == {1_700_000_000_000}
    assert {item.version for item in ids} == {7}
    assert {born_ms(item.int) for item in (UUID(int=5, version=4), FIXED)} == {None}


def test_no_id_of_another_client_looks_like_ours() -> None:
    rng = random.Random(3)
    # Pravega's Rust client draws 128 bits, which are no UUID; others may draw UUIDs of version 7.
    foreign = [rng.getrandbits(128) for _ in range(20_000)]
    foreign += [id_ & ~(0xF << 76 | 3 << 62) | 7 << 76 | 2 << 62 for id_ in foreign]
    assert {UUID(int=id_).version for id_ in foreign[20_000:]} == {7}
    assert {born_ms(id_) for id_ in foreign} == {None}
    assert not any(is_refused(id_, 1 << 48) for id_ in foreign)
    assert all(may_forget(id_, silent_ms=RANDOM_KEPT_MS, now_ms=0) for id_ in foreign)
    ours = {born_writer(UUID(int=id_), 1).int for id_ in foreign}
    assert born_ms(functools.reduce(operator.and_, ours)) == born_ms(functools.reduce(operator.or_, ours)) == 1
    free_bits = (functools.reduce(operator.and_, ours) ^ functools.reduce(operator.or_, ours)).bit_count()
    assert free_bits == 128 - 48 - 34


def test_only_fixed_ids_are_never_forgotten() -> None:
    long_ms = 400 * RANDOM_KEPT_MS
    assert not may_forget(AUDIT_WRITER.int, silent_ms=long_ms, now_ms=long_ms)
    for writer in (UUID(int=5, version=4), UUID(int=5), UUID(int=1 << 127, version=1)):
        assert may_forget(writer.int, silent_ms=RANDOM_KEPT_MS, now_ms=0)
        assert not may_forget(writer.int, silent_ms=RANDOM_KEPT_MS - 1, now_ms=long_ms)
    ahead = born_writer(UUID(int=5), BORN_KEPT_MS + 1)
    assert not may_forget(ahead.int, silent_ms=long_ms, now_ms=2 * BORN_KEPT_MS)
    assert may_forget(ahead.int, silent_ms=BORN_KEPT_MS, now_ms=2 * BORN_KEPT_MS + 1)


def test_rows_of_ended_sessions_leave_after_their_silence_and_others_stay() -> None:
    async def body(world: TimedWorld) -> None:
        born, drawn = world.born(), world.random()
        for writer in (born, drawn, FIXED):
            await world.session(writer)
        await world.store.update_attribute(SEGMENT, attribute := world.random(), 5, expected=None)
        await world.store.flush()
        await asyncio.sleep((BORN_DAYS - 0.5) * DAY_S)
        assert await world.knows(born)
        await asyncio.sleep(DAY_S)
        assert not await world.knows(born)
        await asyncio.sleep((RANDOM_DAYS - BORN_DAYS - 1) * DAY_S)
        assert await world.knows(drawn)
        await asyncio.sleep(DAY_S)
        assert not await world.knows(drawn)
        await asyncio.sleep(100 * DAY_S)
        assert sorted(await world.rows()) == sorted([FIXED.bytes, attribute.bytes])
        assert await world.store.get_attribute(SEGMENT, attribute) == 5

    run(body)


@pytest.mark.parametrize("how", ["open", "evict", "restart", "crash"])
def test_a_writer_that_comes_back_too_late_is_refused(how: str) -> None:
    async def body(world: TimedWorld) -> None:
        late = await world.session(world.born())
        unused = Writer(world.store, SEGMENT)
        unused.id = world.born()
        await unused.setup()
        await asyncio.sleep((BORN_DAYS + 1) * DAY_S)
        assert not await world.knows(late.id)
        if how == "evict":
            await world.evict()
        elif how != "open":
            await (world.restart() if how == "restart" else world.crash())
        late.store = unused.store = world.store
        with pytest.raises(WriterFencedError):
            await late.append(b"again")
        with pytest.raises(WriterForgottenError) as refused:
            await late.setup()
        assert born_ms(late.id.int) < refused.value.fields["floor_ms"] <= world.clock.now_ms()
        # Nor one whose first append comes so late: an old connection may hold it, and a new one may have repeated it.
        with pytest.raises(WriterFencedError):
            await unused.append(b"late")
        await world.session(world.born(), b"y")
        assert await content(world.store, SEGMENT) == b"xy"

    run(body)


def test_a_writer_that_goes_on_is_never_forgotten_whatever_its_age() -> None:
    async def body(world: TimedWorld) -> None:
        session = await world.session(world.born())
        for _ in range(20):
            await asyncio.sleep((BORN_DAYS - 1) * DAY_S)
            await world.session(world.born())  # Raises the floor above the birth of the first.
            await session.append(b"x")
        await world.store.flush()
        floor_ms = world.store._container(SEGMENT).writers.floor_ms
        assert born_ms(session.id.int) < floor_ms
        again = await Writer(world.store, SEGMENT).setup()
        again.id = session.id
        assert (await again.setup()).last == session.last

    run(body)


def test_a_number_stays_while_bytes_of_the_writer_are_not_tiered() -> None:
    async def body(world: TimedWorld) -> None:
        session = await world.session(world.born())
        container = world.store._container(SEGMENT)
        segment = container.segments.visible(SEGMENT)
        assert segment is not None
        await container.checkpointer.checkpoint()
        assert segment.cache.untiered
        assert not segment.dirty_attributes
        assert not container.segments.forget_attribute(segment, session.id.int)
        await world.store.flush()
        assert container.segments.forget_attribute(segment, session.id.int)

    run(body)


@pytest.mark.parametrize("jump_ms", [-400 * RANDOM_KEPT_MS // 30, 400 * RANDOM_KEPT_MS // 30])
def test_a_wall_clock_that_jumps_forgets_no_writer_early(jump_ms: int) -> None:
    async def body(world: TimedWorld) -> None:
        sessions = [await world.session(world.born()), await world.session(world.random())]
        await world.store.flush()
        world.clock.jump_ms = jump_ms
        await asyncio.sleep((BORN_DAYS - 0.5) * DAY_S)
        for session in sessions:
            assert (await session.setup()).last == 0
        await asyncio.sleep(2 * RANDOM_DAYS * DAY_S)
        # A clock that was set back keeps those whose birth is not that long ago by it.
        assert len(await world.rows()) == (1 if jump_ms < 0 else 0)

    run(body)


def test_time_at_rest_does_not_count_and_time_before_a_restart_does() -> None:
    async def body(world: TimedWorld) -> None:
        await world.session(writer := world.random())
        for _ in range(RANDOM_DAYS - 1):
            await asyncio.sleep(DAY_S)
            await world.store.close()
            await asyncio.sleep(10 * DAY_S)
            await world.open()
        assert await world.knows(writer)
        await asyncio.sleep(2 * DAY_S)
        assert not await world.knows(writer)

    run(body)


def test_a_floor_whose_rows_are_damaged_refuses_all_who_may_be_below_it() -> None:
    async def body(world: TimedWorld) -> None:
        late = await world.session(world.born())
        await asyncio.sleep((BORN_DAYS + 1) * DAY_S)
        assert not await world.knows(late.id)
        fresh = world.born()
        await asyncio.sleep(1)
        await world.store.close()
        key = records.prefix(records.TAG_WRITERS, world.store._container(SEGMENT).index)
        await world.keyvalue.commit([(key, b"?")], [])
        await world.open()
        await Writer(world.store, SEGMENT).setup()
        session = await world.session(fresh)
        assert session.last == 0  # The copy of the row holds the floor.
        await world.store.close(checkpoint=False)
        await world.keyvalue.commit([(key, b"?"), (records.copy_key(key), b"?")], [])
        await world.open()
        for writer in (late.id, world.born()):
            await asyncio.sleep(1)
            refused = Writer(world.store, SEGMENT)
            refused.id = writer
            if writer == late.id:
                with pytest.raises(WriterForgottenError):
                    await refused.setup()
        assert (await world.session(fresh, b"y")).last == 1

    run(body)


@pytest.mark.parametrize("lost", [(0,), (1,), (0, 1)])
def test_a_floor_of_which_a_row_is_lost_refuses_all_who_may_be_below_it(lost: tuple[int, ...]) -> None:
    async def body(world: TimedWorld) -> None:
        late = await world.session(world.born())
        await asyncio.sleep((BORN_DAYS + 1) * DAY_S)
        assert not await world.knows(late.id)
        kept = await world.session(world.born(), b"y")
        before = world.store._container(SEGMENT).writers
        await world.store.close()
        age_s, floor_ms = before.age_s, before.floor_ms
        key = records.prefix(records.TAG_WRITERS, world.store._container(SEGMENT).index)
        places = (key, records.copy_key(key))
        await world.keyvalue.commit([], [places[place] for place in lost])
        await world.open()
        after = world.store._container(SEGMENT).writers
        assert after.floor_ms == (floor_ms if len(lost) == 1 else world.clock.now_ms())
        assert age_s - 60 <= after.age_s <= age_s
        late.store = kept.store = world.store
        with pytest.raises(WriterForgottenError):
            await late.setup()
        assert (await kept.setup()).last == 0
        await kept.append(b"z")
        await world.store.flush()
        assert None not in await world.keyvalue.get_many(places), "both copies are written again"
        assert await content(world.store, SEGMENT) == b"xyz"

    run(body)


def test_a_store_whose_rows_hold_no_age_begins_without_a_floor() -> None:
    async def body(world: TimedWorld) -> None:
        session = await world.session(world.random())
        await world.store.close()
        index = world.store._container(SEGMENT).index
        attributes = await world.keyvalue.scan(
            *records.range_of(records.prefix(records.TAG_ATTRIBUTE, index)), limit=10
        )
        key = records.prefix(records.TAG_WRITERS, index)
        # As an earlier version left them.
        await world.keyvalue.commit([(row, value[:8]) for row, value in attributes], [key, records.copy_key(key)])
        unused = world.born()
        await world.open()
        await asyncio.sleep(1)
        assert (await world.session(unused, b"y")).last == 0
        session.store = world.store
        assert (await session.setup()).last == 0

    run(body)


def test_the_first_commit_of_a_writer_holds_the_floor() -> None:
    async def body(world: TimedWorld) -> None:
        early = world.born()
        await world.session(world.born())
        await asyncio.sleep(1)
        await world.store._container(SEGMENT).checkpointer.checkpoint()
        await world.crash()
        assert world.store._container(SEGMENT).writers.floor_ms == 0
        assert (await world.session(early, b"y")).last == 0

    run(body)


class DamagedKeyValue(RottenKeyValue):
    """Each read of a page that holds one of these keys fails, as with a damaged page of a file."""

    def __init__(self) -> None:
        super().__init__()
        self.torn: list[bytes] = []

    async def scan(
        self, start: bytes, end: bytes, *, limit: int, reverse: bool = False
    ) -> Sequence[tuple[bytes, bytes]]:
        found = await super().scan(start, end, limit=limit, reverse=reverse)
        if any(key in self.torn for key, _ in found):
            raise CorruptDataError("metadata file is damaged", file="metadata.db")
        return found


@pytest.fixture
def damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_memory, "_PAGE", 4)


@pytest.mark.usefixtures("damaged")
@pytest.mark.parametrize("kind", ["checksum", "page", "form"])
def test_damaged_rows_of_writers_stay_and_those_around_them_are_forgotten(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(world: TimedWorld) -> None:
        other = "scope/stream/9.#epoch.0"
        await world.store.create_segment(other)
        for _ in range(12):
            await world.session(world.born())
        for _ in range(2):
            session = Writer(world.store, other)
            session.id = world.born()
            await (await session.setup()).append(b"x")
        rows = await world.rows()
        index = world.store._container(SEGMENT).index
        bounds = records.range_of(records.prefix(records.TAG_ATTRIBUTE, index))
        keys = [key for key, _ in await world.store._container(SEGMENT).rows.scan_all(bounds)]
        assert len(rows) == len(keys) == 14
        bad = keys[5:10]
        keyvalue = world.keyvalue
        assert isinstance(keyvalue, DamagedKeyValue)
        if kind == "checksum":
            keyvalue.rotten.update(dict.fromkeys(bad))
        elif kind == "page":
            keyvalue.torn += bad
        else:
            await keyvalue.commit([(key, b"???") for key in bad], [])
        await asyncio.sleep((BORN_DAYS + 1) * DAY_S)
        for _ in range(60):
            await world.store.flush()  # Each lets one page be looked at.
            await asyncio.sleep(DAY_S / 4)
        assert world.store.offline is None
        keyvalue.rotten.clear()
        keyvalue.torn.clear()
        left = [key for key, _ in await world.store._container(SEGMENT).rows.scan_all(bounds)]
        # Of a damaged page the rest of the segment is skipped, but never another segment.
        assert left == (keys[5:12] if kind == "page" else bad)
        assert sum("writers' numbers are damaged" in line.message for line in caplog.records) == 1

    run(body, rows=DamagedKeyValue)


class Client:
    """A client that appends one event after another, loses answers, repeats, pauses, and starts new sessions.

    All that it ever sent may arrive once more at any time, as from a connection that was lost.
    """

    def __init__(self, world: TimedWorld, rng: random.Random, name: int) -> None:
        self.world, self.rng, self.name = world, rng, name
        self.made = 0
        self.acknowledged: list[bytes] = []
        self.unknown: list[bytes] = []
        self.sent: list[Append] = []
        self._begin()

    def _begin(self) -> None:
        self.id = self.world.born()
        self.last: int | None = None
        self.pending: tuple[int, bytes] | None = None

    async def step(self) -> None:
        session = Writer(self.world.store, SEGMENT)
        session.id = self.id
        try:
            if self.last is None:
                found = (await session.setup()).last
                if self.pending is not None and found >= self.pending[0]:
                    self._settle(found)
                self.last = found
            session.last = self.last
            if self.pending is None:
                self.made += 1
                self.pending = max(self.last, -1) + 1, b"%d-%d;" % (self.name, self.made)
            self.sent.append(session.request(self.pending[1]))
            await session.append(self.pending[1])
            if self.rng.random() < 0.3:
                self.last = None  # The answer is lost.
                return
            self._settle(self.pending[0])
        except WriterForgottenError:
            if self.pending is not None:
                self.unknown.append(self.pending[1])
            self._begin()
        except PenstockError:
            self.last = None
        if self.rng.random() < 0.1 and self.pending is None:
            self._begin()

    async def arrive_late(self) -> None:
        if self.sent:
            with suppress(WriterFencedError):
                await self.world.store.append(self.rng.choice(self.sent))

    def _settle(self, number: int) -> None:
        assert self.pending is not None
        self.acknowledged.append(self.pending[1])
        self.pending, self.last = None, number


@pytest.mark.parametrize("seed", range(6))
def test_random_sessions_store_each_event_once_however_long_they_pause(seed: int) -> None:
    async def body(world: TimedWorld) -> None:
        rng = random.Random(seed)
        clients = [Client(world, rng, name) for name in range(4)]
        refused = 0
        for _ in range(250):
            client = rng.choice(clients)
            await client.step()
            await rng.choice(clients).arrive_late()
            chance = rng.random()
            if chance < 0.15:
                await asyncio.sleep(rng.expovariate(1 / (2 * DAY_S)))
            elif chance < 0.2:
                await world.crash()
            elif chance < 0.25:
                await world.restart()
            elif chance < 0.3:
                world.clock.jump_ms = rng.randrange(-3_600_000, 3_600_000)
            elif chance < 0.35:
                await world.evict()
        refused = sum(len(client.unknown) for client in clients)
        events = (await content(world.store, SEGMENT)).split(b";")[:-1]
        assert len(events) == len(set(events)), "an event is there twice"
        for client in clients:
            assert {item[:-1] for item in client.acknowledged} <= set(events)
        assert world.telemetry.counts.get("writers_forgotten", 0) > 0
        assert refused <= len(events)
        assert NO_EVENT not in [client.last for client in clients if client.pending is None and client.acknowledged]

    run(body, seed)


def test_hourly_sessions_leave_the_rows_of_a_week() -> None:
    async def body(world: TimedWorld) -> None:
        sizes = []
        for hour in range(24 * 60):
            session = Writer(world.store, SEGMENT)
            session.id = world.born()
            await session.setup()
            await session.append(b"x")
            await asyncio.sleep(3600)
            if hour % 240 == 239:
                sizes.append(len(await world.rows()))
        assert max(sizes) <= 24 * BORN_DAYS + 6 + 1, "a pass every six hours"
        assert min(sizes) >= 24 * BORN_DAYS

    run(body)
