"""Quotas over the wire: our client gets an error at once, others see a slow store; no events change their order."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from uuid import UUID

import pytest
from wire_memory_store import MemorySegments
from wire_peers import remote, run, stage
from wire_store_world import world

from penstock.codec.wire import commands as c
from penstock.model.errors import PenstockError, QuotaExceededError, QuotaHeldError, WriterFencedError
from penstock.net.wire.wire_errors import QUOTA_EXCEEDED, QUOTA_HELD, error_of, reply_of
from penstock.ports.data.limits import AppendLimit, LimitAction
from penstock.ports.data.segments import NO_EVENT, Append
from penstock.testing.conformance import laws, run_conformance
from penstock.testing.conformance.segments import SegmentLaws

SEGMENT = "s/t/0.#epoch.0"
WRITER = UUID(int=7)
REASON = {"rule": "Q1", "limit": 4, "used": 4, "subscriber": "a slow one = b", "stream": "s/t"}


def limit(total_bytes: int | None, action: LimitAction = LimitAction.HOLD) -> AppendLimit:
    return AppendLimit(stream="s/t", segments=(SEGMENT,), total_bytes=total_bytes, action=action, reason=REASON)


def append(number: int, data: bytes, previous: int = NO_EVENT) -> Append:
    return Append(segment=SEGMENT, writer=WRITER, data=data, event_number=number, previous=previous)


def end(writer: bytes, data: bytes, number: int, rid: int = 5) -> c.AppendBlockEnd:
    return c.AppendBlockEnd(writer, len(data), data, 1, number, rid)


async def outcome(future: asyncio.Future) -> object:
    try:
        return await future
    except PenstockError as error:
        return error


class MemoryLaws(SegmentLaws):
    def __init__(self) -> None:
        self.store = MemorySegments()

    @asynccontextmanager
    async def open(self):
        yield self.store


@pytest.mark.parametrize("law", laws(SegmentLaws))
def test_the_memory_store_keeps_the_laws_as_well(law: str) -> None:
    run_conformance(MemoryLaws, law=law)


@pytest.mark.parametrize("kind", [QuotaHeldError, QuotaExceededError])
def test_the_reasons_of_a_quota_travel(kind: type[PenstockError]) -> None:
    error = kind("backlog quota is reached", **REASON, segment=SEGMENT)
    reply = reply_of(error, 5, "as/spelled")
    assert (type(reply), reply.rid, reply.segment) == (c.ErrorMessage, 5, "as/spelled")
    assert reply.code == (QUOTA_HELD if kind is QuotaHeldError else QUOTA_EXCEEDED)
    assert reply.message.startswith("backlog quota is reached. ")
    back = error_of(reply, "as/spelled")
    assert (type(back), back.fields) == (kind, REASON | {"segment": "as/spelled"})
    for message in ("just text", "text\nno json", "text\n[1]"):
        back = error_of(c.ErrorMessage(5, "s", message, reply.code), "s")
        assert (type(back), back.fields) == (kind, {"reason": message.partition("\n")[0], "segment": "s"})
    long = kind("backlog quota is reached", reason="x" * 100_000)
    assert len(reply_of(long, 5, "s").message) <= 1000
    assert error_of(c.ErrorMessage(5, "s", 'text\n{"message": 1}', reply.code), "s").fields == {"segment": "s"}


@pytest.mark.parametrize("action", [LimitAction.HOLD, LimitAction.REJECT])
def test_our_client_is_told_why_and_goes_on_where_the_store_stands(action: LimitAction) -> None:
    kind = QuotaHeldError if action is LimitAction.HOLD else QuotaExceededError

    async def main() -> None:
        async with world() as (segments, telemetry):
            store = segments._native
            await store.limit_appends([limit(4, action)])
            assert await segments.setup_append(SEGMENT, WRITER) == NO_EVENT
            waits = [
                asyncio.ensure_future(segments.append(append(number, b"ab", number - 1 if number else NO_EVENT)))
                for number in range(4)
            ]
            found = [await outcome(wait) for wait in waits]
            assert [getattr(item, "end_offset", None) for item in found] == [2, 4, None, None]
            assert type(found[2]) is kind
            assert found[2].fields == REASON | {"segment": SEGMENT}
            assert await segments.setup_append(SEGMENT, WRITER) == 1
            await store.limit_appends([limit(None)])
            assert (await segments.append(append(2, b"cd", 1))).end_offset == 6
            assert telemetry.gauges["wire_connections"] <= 2, "it keeps its connection"

    asyncio.run(main())


def test_held_appends_of_other_clients_wait_in_order_within_a_bound() -> None:
    async def main() -> None:
        async with stage(throttle_pause_s=0.001, held_bytes=20_000) as scene:
            await scene.store.create_segment(SEGMENT)
            await scene.store.limit_appends([limit(10)])
            peer, writer = await scene.writer(SEGMENT, 1)
            other = await scene.peer()
            await peer.send(end(writer, b"0123456789", 0))
            assert type(await peer.receive()) is c.DataAppended
            sizes = [1000] * 100
            sending = asyncio.ensure_future(
                peer.send(*[end(writer, b"%03d|" % number * 250, number) for number in range(1, 101)])
            )
            waiting = asyncio.ensure_future(peer.receive())
            while scene.server._share.room > scene.server._share.limits.held_bytes_total - 20_000:
                await asyncio.sleep(0.001)
            for _ in range(20):
                await asyncio.sleep(0.001)
            held = scene.server._share.limits.held_bytes_total - scene.server._share.room
            assert held < 20_000 + 2 * (1000 + 128), "then its socket is not read"
            assert not waiting.done()
            await other.send(c.GetStreamSegmentInfo(9, SEGMENT, ""))
            assert (await other.receive()).length == 10, "other connections go on"
            await scene.store.limit_appends([limit(20_010)])
            replies = [await waiting] + [await peer.receive() for _ in range(19)]
            assert [reply.event_number for reply in replies] == list(range(1, 21))
            await scene.store.limit_appends([limit(None)])
            replies = [await peer.receive() for _ in range(80)]
            assert [reply.event_number for reply in replies] == list(range(21, 101))
            await sending
            expected = b"".join(b"%03d|" % number * 250 for number in range(1, 101))
            assert scene.store.segments[SEGMENT].data == b"0123456789" + expected
            assert len(expected) == sum(sizes)
            assert scene.server._share.room == scene.server._share.limits.held_bytes_total

    run(main())


def test_writers_that_are_held_for_long_ask_less_often() -> None:
    async def main() -> None:
        async with stage(throttle_pause_s=0.001) as scene:
            await scene.store.create_segment(SEGMENT)
            await scene.store.limit_appends([limit(0)])
            asked = 0
            real = scene.store.submit_append

            def submit(request, done) -> None:
                nonlocal asked
                asked += 1
                real(request, done)

            scene.store.submit_append = submit
            peer, writer = await scene.writer(SEGMENT, 1)
            started = asyncio.get_running_loop().time()
            await peer.send(end(writer, b"x", 0))
            while asyncio.get_running_loop().time() < started + 0.2:
                await asyncio.sleep(0.005)
            assert 4 < asked <= 5 + 200 / 16
            await scene.store.limit_appends([limit(None)])
            assert type(await peer.receive()) is c.DataAppended

    run(main())


def test_rejected_appends_of_other_clients_are_answered_and_nothing_later_gets_in() -> None:
    async def main() -> None:
        async with stage() as scene:
            await scene.store.create_segment(SEGMENT)
            await scene.store.limit_appends([limit(4, LimitAction.REJECT)])
            peer, writer = await scene.writer(SEGMENT, 1)
            await peer.send(
                *[end(writer, data, number, 10 + number) for number, data in enumerate((b"ab", b"cde", b"f"))]
            )
            first, second = await peer.receive(), await peer.receive()
            assert (type(first), first.event_number) == (c.DataAppended, 0)
            assert (type(second), second.rid, second.code) == (c.ErrorMessage, 11, QUOTA_EXCEEDED)
            assert "a slow one" in second.message
            setup = await peer.ask(c.SetupAppend(20, writer, SEGMENT, ""))
            assert setup.last_number == 0
            await peer.send(end(writer, b"cd", 1))
            assert (await peer.receive()).event_number == 1
            assert scene.store.segments[SEGMENT].data == b"abcd"

    run(main())


def test_what_our_client_has_in_flight_behind_a_held_append_is_not_stored() -> None:
    async def main() -> None:
        async with stage() as scene, remote(scene.server, scene.store) as segments:
            await scene.store.create_segment(SEGMENT)
            await scene.store.limit_appends([limit(0)])
            await segments.setup_append(SEGMENT, WRITER)
            held = asyncio.ensure_future(segments.append(append(0, b"a")))
            behind = asyncio.ensure_future(segments.append(append(1, b"b", 0)))
            assert type(await outcome(held)) is QuotaHeldError
            assert type(await outcome(behind)) in (QuotaHeldError, WriterFencedError)
            await scene.store.limit_appends([limit(None)])
            assert await segments.setup_append(SEGMENT, WRITER) == NO_EVENT
            assert scene.store.segments[SEGMENT].data == b""

    run(main())
