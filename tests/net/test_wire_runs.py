"""Appends that arrive together are passed on as a run: nobody can see a difference to the same appends one by one."""

from __future__ import annotations

import asyncio
import struct
from itertools import chain
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.app.telemetry import Counters
from penstock.codec.wire import commands as c
from penstock.codec.wire import frames as wire
from penstock.model.errors import PenstockError, ProtocolError
from penstock.net.wire import appends as appends_module
from penstock.net.wire.append_meter import AppendMeter
from penstock.net.wire.appends import AppendSide
from penstock.net.wire.arena import ArenaPool
from penstock.net.wire.frames import FrameReceiver
from penstock.ports.data.limits import AppendLimit, LimitAction
from penstock.storage.memory.memory_log import MemoryLog
from penstock.testing.world import World

SEGMENTS = ("s/t/0.#epoch.0", "s/t/1.#epoch.0", "s/t/1.#epoch.0#transaction.00000000000000000000000000000001")
WRITERS = tuple(UUID(int=number).bytes for number in range(1, 6))
BOUND = {writer: SEGMENTS[number] for writer, number in zip(WRITERS, (0, 0, 1, 1, 2), strict=True)}
OWN = (WRITERS[1], WRITERS[3])
STREAM = "s/t"


class SmallLog(World):
    """A store whose log takes frames of at most so many bytes."""

    def __init__(self, log_bytes: int) -> None:
        super().__init__(containers=1, frame_bytes=log_bytes // 2)
        self.log_bytes = log_bytes

    def make_log(self) -> MemoryLog:
        return MemoryLog(self.log_state, max_frame_bytes=self.log_bytes)


class Connection:
    """The append path of one connection on a real store. Pauses end only when the test says so."""

    must_copy = False

    def __init__(self, world: World) -> None:
        self.world = world
        self.telemetry = Counters()
        self.pauses: list[Any] = []
        self.seen: dict[bytes, list[tuple[object, ...]]] = {writer: [] for writer in WRITERS}
        self.rids: dict[int, bytes] = {}
        self.taken_bytes = self.released_bytes = 0
        self.requests: list[int] = []
        self.closed = False
        self.receiver = FrameReceiver(ArenaPool(telemetry=self.telemetry), wire.REQUEST_CODES)
        self.side = AppendSide(self, self, AppendMeter(self.telemetry))

    # --- what the append path asks of its connection and store

    def release(self, size_bytes: int) -> None:
        self.released_bytes += size_bytes

    def soon(self, call) -> None:
        asyncio.get_running_loop().call_soon(call)

    def after_pause(self, call, times: int) -> None:
        self.pauses.append(call)

    def send(self, frame: bytes) -> None:
        code, size = wire.HEADER.unpack_from(frame)
        assert len(frame) == wire.HEADER.size + size
        reply = wire.decode(code, memoryview(frame)[wire.HEADER.size :])
        if not isinstance(reply, c.DataAppended):
            self.reply(reply)
            return
        seen = self.seen[reply.writer]
        before = next((one[1] for one in reversed(seen) if one[0] == "stored"), None)
        assert before is None or reply.previous_number == before
        assert reply.previous_number < reply.event_number
        if seen and seen[-1][0] == "stored":
            seen.pop()  # One reply for several appends must report what the last of theirs reported.
        seen.append(("stored", reply.event_number, reply.rid, reply.segment_length))

    def reply(self, command) -> None:
        writer = getattr(command, "writer", None) or self.rids[command.rid]
        self.seen[writer].append(tuple(command))

    def fail(self, error: PenstockError) -> None:
        self.closed = True
        self.side.close()

    def submit_append(self, request, done) -> None:
        self.requests.append(1 if request.pieces is None else len(request.pieces.sizes))
        self.world.store.submit_append(request, done)

    # --- what the test does

    async def set_up(self, writer: bytes) -> None:
        if self.closed:
            return
        self.side.begin_setup(writer)
        last = await self.world.store.setup_append(BOUND[writer], UUID(bytes=writer))
        self.seen[writer].append(("set up", last))
        self.side.finish_setup(writer, BOUND[writer], last, is_own=writer in OWN)

    def receive(self, data: bytes) -> None:
        """All that arrives in one call of the transport."""
        at = 0
        while at < len(data) and not self.closed:
            room = self.receiver.buffer()
            size = min(len(room), len(data) - at)
            room[:size] = data[at : at + size]
            self.receiver.received(size)
            at += size
            try:
                while not self.closed and self.receiver.advance():
                    self._frame()
            except ProtocolError as error:
                self.fail(error)
        self._count()

    def _frame(self) -> None:
        if self.receiver.code == 4:
            self.side.block_end(self.receiver, 1 << 20)
            return
        command = wire.decode(self.receiver.code, self.receiver.payload)
        if isinstance(command, c.KeepAlive):
            return
        assert isinstance(command, c.ConditionalBlockEnd)
        self.side.conditional(command)

    def _count(self) -> None:
        self.taken_bytes += self.side.taken_bytes
        self.side.taken_bytes = 0

    async def settle(self) -> None:
        """Nothing is left in the store, and each writer that waits has asked again."""
        for _ in range(3):
            pauses, self.pauses = self.pauses, []
            for call in pauses:
                call()
            await drained(self.world)


async def drained(world: World) -> None:
    for _ in range(4):
        for container in world.store.containers:
            await container.drain()
        await asyncio.sleep(0)


class Script:
    """Frames and other events, with the numbers that a client would give its appends."""

    def __init__(self) -> None:
        self.numbers = dict.fromkeys(WRITERS, -1)
        self.sent_bytes = dict.fromkeys(SEGMENTS, 0)
        self.writers: dict[int, bytes] = {}
        self.seals: list[asyncio.Future[int]] = []

    def frame(self, kind: str, which: int, size: int, count: int, step: int) -> bytes:
        rid = len(self.writers) + 1
        writer = WRITERS[which]
        self.writers[rid] = writer
        if kind == "keep alive":
            return wire.encode(c.KeepAlive())
        number = self.numbers[writer] = self.numbers[writer] + step
        data = (b"%d.%d|" % (which, number) * (size // 3 + 1))[:size]
        segment = BOUND[writer]
        if kind == "condition":
            offset = self.sent_bytes[segment] + (count == 3)
            self.sent_bytes[segment] += len(data)
            return wire.encode(c.ConditionalBlockEnd(writer, number, offset, data, rid))
        self.sent_bytes[segment] += len(data)
        if kind == "short":
            # Without an id of the request, as early versions of the protocol send it.
            self.writers[-1] = writer
            body = struct.pack(">16sii", writer, len(data), len(data)) + data + struct.pack(">iq", count, number)
            return wire.HEADER.pack(4, len(body)) + body
        return wire.encode(c.AppendBlockEnd(writer, len(data), data, count, number, rid))


async def play(steps: list[tuple[Any, ...]], *, log_bytes: int) -> tuple[object, ...]:
    """Everything that a client, an operator or a later start can see."""
    world = SmallLog(log_bytes)
    script, outcome = Script(), []
    async with world.opened() as store:
        for name in SEGMENTS:
            await store.create_segment(name)
        connection = Connection(world)
        connection.rids = script.writers
        for writer in WRITERS:
            await connection.set_up(writer)
        for step in steps:
            await take(step, connection, script)
        await store.limit_appends([AppendLimit(stream=STREAM, segments=())])
        await connection.settle()
        await connection.settle()
        await asyncio.gather(*script.seals)
        connection.side.close()
        await drained(world)
        outcome.append((connection.closed, connection.seen, connection.taken_bytes - connection.released_bytes))
        tallies = ("wire_appends", "wire_appended_bytes", "wire_appended_events")
        outcome.append([connection.telemetry.tally(name).value for name in tallies])
        outcome.append((world.telemetry.counts.get("quota_refusals"), list(store._limits._met)))
        outcome.append(await stored(world))
        await world.crash()
        outcome.append(await stored(world))
    return outcome, connection.requests


async def stored(world: World) -> list[object]:
    found: list[object] = []
    for name in SEGMENTS:
        info = await world.store.info(name)
        data = b"" if not info.length else await _read(world, name, info.length)
        numbers = [await world.store.setup_append(name, UUID(bytes=writer)) for writer in WRITERS]
        found.append((data, info.length, info.event_count, info.sealed, numbers))
    return found


async def _read(world: World, name: str, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        data += b"".join((await world.store.read(name, len(data), 1 << 20)).parts)
    return bytes(data)


async def take(step: tuple[Any, ...], connection: Connection, script: Script) -> None:
    store = connection.world.store
    kind, *arguments = step
    if kind == "receive":
        connection.receive(b"".join(script.frame(*frame) for frame in arguments[0]))
    elif kind == "seal":
        script.seals.append(asyncio.ensure_future(store.seal(SEGMENTS[arguments[0]])))
        await asyncio.sleep(0)  # it is queued, and not durable yet
    elif kind == "limit":
        total_bytes, total_events, action = arguments
        used_bytes, used_events = 0, 0
        for name in SEGMENTS[:2]:
            info = await store.info(name)
            used_bytes, used_events = used_bytes + info.length, used_events + info.event_count
        await store.limit_appends(
            [
                AppendLimit(
                    stream=STREAM,
                    segments=SEGMENTS[:2],
                    total_bytes=None if total_bytes is None else used_bytes + total_bytes,
                    total_events=None if total_events is None else used_events + total_events,
                    quota_bytes=total_bytes and total_bytes // 2,
                    action=action,
                )
            ]
        )
    elif kind == "rival":
        # Nothing may wait then: a connection that is lost while it retries stores more of a run than of single appends.
        await store.limit_appends([AppendLimit(stream=STREAM, segments=())])
        await connection.settle()
        await fence(connection.world, WRITERS[arguments[0]])
    elif kind == "set up":
        await connection.settle()
        await connection.set_up(WRITERS[arguments[0]])
    else:
        await connection.settle()


async def fence(world: World, writer: bytes) -> None:
    """Another connection of the writer appends."""
    other = Connection(world)
    other.rids = {1: writer}
    await other.set_up(writer)
    last = other.seen[writer][0][1]
    other.receive(wire.encode(c.AppendBlockEnd(writer, 3, b"ha!", 1, max(last, -1) + 1000, 1)))
    await other.settle()


WHICH = st.sampled_from([0, 0, 0, 0, 0, 1, 2, 3, 4])
KINDS = st.sampled_from(["append"] * 20 + ["condition", "short", "keep alive"])
SIZES = st.sampled_from([1, 7, 40, 100, 100, 100, 700, 0, 20_000, 70_000])
COUNTS = st.sampled_from([(1, 1)] * 6 + [(2, 2), (3, 3), (1, 5), (2, 1)])
FRAME = st.builds(lambda kind, which, size, counts: (kind, which, size, *counts), KINDS, WHICH, SIZES, COUNTS)
BAD_FRAME = st.tuples(st.just("append"), WHICH, SIZES, st.sampled_from([0, 1]), st.just(0))
SAME = st.builds(lambda frame, count: [frame] * count, FRAME, st.integers(3, 12))
MANY = st.lists(SAME | st.lists(FRAME, min_size=1, max_size=3), min_size=1, max_size=5).map(
    lambda parts: list(chain.from_iterable(parts))
)
LIMIT = st.tuples(
    st.just("limit"),
    st.sampled_from([None, 0, 50, 350, 350, 2_000]),
    st.sampled_from([None, None, None, 0, 2, 5, 9]),
    st.sampled_from([LimitAction.HOLD, LimitAction.REJECT, LimitAction.NOTIFY]),
)
EVENTS = {
    "limit": LIMIT,
    "seal": st.tuples(st.just("seal"), st.integers(0, 2)),
    "rival": st.tuples(st.just("rival"), st.integers(0, 4)),
    "set up": st.tuples(st.just("set up"), st.integers(0, 4)),
    "settle": st.tuples(st.just("settle")),
}
FAULTY = st.builds(lambda some, bad, more: [*some, bad, *more], MANY, BAD_FRAME, MANY)
# Equal branches of ``one_of`` count once: the weights are in what is drawn first.
EVENT = st.sampled_from(["limit"] * 7 + ["settle", "settle", "set up", "seal", "rival"]).flatmap(EVENTS.__getitem__)
ARRIVING = st.sampled_from([MANY] * 19 + [FAULTY]).flatmap(lambda frames: frames)
ROUND = st.tuples(EVENT, ARRIVING).map(lambda pair: [pair[0], ("receive", pair[1])])
STEPS = st.lists(ROUND, min_size=1, max_size=5).map(lambda rounds: list(chain.from_iterable(rounds)))


def together_and_alone(steps: list[tuple[Any, ...]], log_bytes: int = 1 << 24) -> list[Any]:
    """What is seen of both, which must be the same."""
    together, _ = asyncio.run(play(steps, log_bytes=log_bytes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(appends_module, "_RUN_BYTES", 0)
        alone, requests = asyncio.run(play(steps, log_bytes=log_bytes))
    assert max(requests, default=1) == 1
    assert together == alone
    return together


HELD_THEN_REFUSED = [
    ("limit", None, 0, LimitAction.HOLD),
    ("receive", [("append", 0, 100, 1, 1), ("append", 0, 20_000, 1, 1)]),
]


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, log_bytes=st.sampled_from([1 << 24, 1 << 24, 900]))
@example(steps=HELD_THEN_REFUSED, log_bytes=900)
def test_a_run_is_to_everyone_what_its_appends_are_one_by_one(steps, log_bytes) -> None:
    together_and_alone(steps, log_bytes)


@pytest.mark.parametrize(("rule", "bound", "stored"), [(1, 0, 0), (1, 350, 3), (1, 400, 4), (2, 0, 0), (2, 4, 4)])
@pytest.mark.parametrize("action", LimitAction)
def test_a_run_that_reaches_a_quota_ends_where_its_appends_would(action, rule, bound, stored) -> None:
    frames = [("append", 0, 100, 1, 1)] * 6
    limit = ("limit", bound if rule == 1 else None, bound if rule == 2 else None, action)
    (_, seen, unreleased), tallies, (refusals, reached), *_ = together_and_alone(
        [("receive", frames[:1]), ("settle",), limit, ("receive", frames)]
    )
    numbers = [one[1] for one in seen[WRITERS[0]] if one[0] == "stored"]
    assert numbers[-1] == (stored if action is LimitAction.REJECT else 6)
    assert tallies[0] == numbers[-1] + 1
    assert (bool(refusals), reached) == (action is not LimitAction.NOTIFY, [STREAM])
    assert unreleased == 0


def test_what_arrives_together_is_one_request_and_one_operation_of_the_log() -> None:
    frames = [("append", 0, 100, 2, 2)] * 50
    _, requests = asyncio.run(play([("receive", frames)], log_bytes=1 << 24))
    assert requests == [50]
    mixed = [*frames[:5], ("append", 1, 100, 1, 1), *frames[:5], ("keep alive", 0, 0, 0, 0), *frames[:3]]
    _, requests = asyncio.run(play([("receive", mixed), ("receive", frames[:2])], log_bytes=1 << 24))
    assert requests == [5, 1, 5, 3, 2], "a run ends at another writer, at other frames, and with what has arrived"
    _, requests = asyncio.run(play([("receive", [("append", 1, 100, 1, 1)] * 3)], log_bytes=1 << 24))
    assert requests == [1] * 3, "our own clients use the length after each append"
    large = [("append", 0, 40_000, 1, 1)] * 3
    _, requests = asyncio.run(play([("receive", [*large, *frames[:2]])], log_bytes=1 << 24))
    assert requests == [1, 1, 3], "a run is bounded in bytes"
    gaps = [("append", 0, 100, 1, step) for step in (1, 1, 2, 1)]
    _, requests = asyncio.run(play([("receive", gaps)], log_bytes=1 << 24))
    assert requests == [2, 2], "the number of a run and its events give the number before it"
