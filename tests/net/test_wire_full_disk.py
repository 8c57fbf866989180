"""A full disk over the wire: our client gets an error at once, others see a slow store; both go on when there is space."""

from __future__ import annotations

import asyncio
import logging
from uuid import UUID

import pytest
from wire_peers import remote, run, stage

from penstock.codec.wire import commands as c
from penstock.model.errors import PenstockError, StorageFullError
from penstock.net.peer_warnings import PeerWarnings
from penstock.net.wire.wire_errors import OWN_TOKEN, STORAGE_FULL
from penstock.ports.data.segments import NO_EVENT, Append
from penstock.ports.data.tables import TableKind, TablePut

SEGMENT = "s/t/0.#epoch.0"
TABLE = "s/t/table"
WRITER = UUID(int=7)
FULL = StorageFullError("disk is full", path="chunks/1")


def append(number: int, data: bytes, previous: int = NO_EVENT, expected: int | None = None) -> Append:
    return Append(
        segment=SEGMENT, writer=WRITER, data=data, event_number=number, previous=previous, expected_offset=expected
    )


def end(writer: bytes, data: bytes, number: int, rid: int = 5) -> c.AppendBlockEnd:
    return c.AppendBlockEnd(writer, len(data), data, 1, number, rid)


async def outcome(future: asyncio.Future) -> object:
    try:
        return await future
    except PenstockError as error:
        return type(error)


@pytest.mark.parametrize("expected", [None, 0])
def test_our_client_is_told_and_goes_on_where_the_store_stands(expected: int | None) -> None:
    async def main() -> None:
        async with stage() as scene, remote(scene.server, scene.store) as segments:
            await scene.store.create_segment(SEGMENT)
            assert await segments.setup_append(SEGMENT, WRITER) == NO_EVENT
            scene.store.fail_with = FULL
            # All that is in flight, and what is sent before the refusal is known.
            waits = [
                asyncio.ensure_future(segments.append(append(0, b"a", expected=expected))),
                asyncio.ensure_future(segments.append(append(1, b"b", previous=0))),
            ]
            assert [await outcome(wait) for wait in waits] == [StorageFullError] * 2
            assert await segments.setup_append(SEGMENT, WRITER) == NO_EVENT
            with pytest.raises(StorageFullError) as caught:
                await segments.append(append(0, b"a"))
            assert "chunks/1" in str(caught.value)
            scene.store.fail_with = None
            await segments.append(append(0, b"a"))
            await segments.append(append(1, b"b", previous=0))
            assert scene.store.segments[SEGMENT].data == b"ab"
            assert len(scene.server._share.connections) == 1, "it keeps its connection"
            assert scene.server._share.room == scene.server._share.limits.held_bytes_total

    run(main())


def test_every_request_of_our_client_is_told() -> None:
    async def main() -> None:
        async with stage() as scene, remote(scene.server, scene.store) as segments:
            await scene.store.create_segment(SEGMENT)
            await scene.store.create_table(TABLE)
            source = await segments.create_transient(SEGMENT, WRITER)

            async def refuse(*_: object, **__: object) -> None:
                raise StorageFullError("disk is full")

            for name in (
                *("create_segment", "create_table", "create_transient", "seal", "truncate", "delete", "merge"),
                *("table_update", "table_remove", "update_attribute", "setup_append"),
            ):
                setattr(scene.store, name, refuse)
            for call in (
                segments.create_segment("s/new/0"),
                segments.create_table("s/new/table", kind=TableKind.HASH),
                segments.create_transient(SEGMENT, WRITER),
                segments.seal(SEGMENT),
                segments.truncate(SEGMENT, 0),
                segments.delete(SEGMENT),
                segments.merge(SEGMENT, source),
                segments.table_update(TABLE, [TablePut(key=b"k", value=b"v", version=-1)]),
                segments.update_attribute(SEGMENT, WRITER, 1, expected=None),
                segments.setup_append(SEGMENT, WRITER),
            ):
                with pytest.raises(StorageFullError):
                    await call
            assert (await segments.info(SEGMENT)).length == 0, "reads and questions go on"

    run(main())


def test_a_client_that_cannot_know_our_code_waits_and_loses_nothing() -> None:
    async def main() -> None:
        async with stage(throttle_pause_s=0.001) as scene:
            await scene.store.create_segment(SEGMENT)
            peer, writer = await scene.writer(SEGMENT, 1)
            scene.store.fail_with = FULL
            for number in range(10):
                await peer.send(end(writer, b"%d" % number, number))
            await peer.send(c.ConditionalBlockEnd(writer, 10, 10, b"+", 5), end(writer, b"-", 11))
            waiting = asyncio.ensure_future(peer.receive())
            await scene.settle()
            assert not waiting.done()
            scene.store.fail_with = None
            replies = [await waiting] + [await peer.receive() for _ in range(11)]
            assert [(type(reply), reply.event_number) for reply in replies] == [
                (c.DataAppended, number) for number in range(12)
            ]
            assert scene.store.segments[SEGMENT].data == b"0123456789+-"
            assert scene.server._share.room == scene.server._share.limits.held_bytes_total

    run(main())


def test_requests_of_such_a_client_wait_too_and_then_lose_the_connection() -> None:
    async def main() -> None:
        async with stage(throttle_pause_s=0.001, throttle_s=0.2) as scene:
            peer = await scene.peer()
            real, refused = scene.store.create_segment, 0

            async def refuse(name: str, *, rollover_bytes: int = 0) -> None:
                nonlocal refused
                refused += 1
                if refused < 4 or name != SEGMENT:
                    raise StorageFullError("disk is full")
                await real(name, rollover_bytes=rollover_bytes)

            scene.store.create_segment = refuse
            assert await peer.ask(c.CreateSegment(1, SEGMENT, 0, 0, "", 0)) == c.SegmentCreated(1, SEGMENT)
            assert refused == 4
            own = await peer.ask(c.CreateSegment(2, "s/own/0", 0, 0, OWN_TOKEN, 0))
            assert (type(own), own.code) == (c.ErrorMessage, STORAGE_FULL)
            await peer.send(c.CreateSegment(3, "s/never/0", 0, 0, "", 0))
            assert await peer.closed_by_server()

    run(main())


def test_peers_cannot_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with stage() as scene:
            share, now = scene.server._share, 100.0
            share.warn = PeerWarnings(logging.getLogger("penstock.net.wire.share"), lambda: now).warn
            for _ in range(50):
                share.warn("wire connection closed", {"peer": 1}, kind="ProtocolError")
            share.warn("wire connection closed", {"peer": 2}, kind="CorruptDataError")
            now = 101.0
            share.warn("wire connection closed", {"peer": 3}, kind="ProtocolError")

    caplog.set_level(logging.WARNING)
    run(main())
    said = [(item.peer, item.unsaid) for item in caplog.records if item.message == "wire connection closed"]
    assert said == [(1, 0), (2, 0), (3, 49)]


def test_the_warning_of_a_bad_peer_is_counted_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with stage() as scene:
            for _ in range(20):
                peer = await scene.peer()
                await peer.send(end(bytes(16), b"x", 0))
                assert await peer.closed_by_server()

    caplog.set_level(logging.WARNING)
    run(main())
    said = [item for item in caplog.records if item.message == "wire connection closed"]
    assert 1 <= len(said) <= 5
