"""Appends of many writers in one frame: what the server answers them, and how a client comes to send them."""

from __future__ import annotations

import asyncio
import struct
import sys
from uuid import UUID

import pytest
from wire_peers import LOOPS, remote, run, stage, until

from penstock.codec.wire import commands as c
from penstock.codec.wire import frames as wire
from penstock.codec.wire.layout import WireFailure, WireHead
from penstock.model.errors import (
    InternalError,
    NotConnectedError,
    SegmentNotFoundError,
    SegmentSealedError,
    WriterFencedError,
)
from penstock.net.wire.appends import AppendSide
from penstock.net.wire.wire_errors import OWN_TOKEN
from penstock.ports.data.segments import NO_EVENT, Append, Appended

NAMES = [f"s/t/{number}.#epoch.0" for number in range(6)]
both_loops = pytest.mark.parametrize("loop", sorted(LOOPS))


def writer_of(name: str) -> UUID:
    return UUID(int=100 + NAMES.index(name))


async def bound(scene, peer=None):
    """A peer of our own with a writer on each segment; the handle of each."""
    peer = peer or await scene.peer()
    handles = {}
    for name in NAMES:
        reply = await peer.ask(c.SetupAppend(1, writer_of(name).bytes, name, OWN_TOKEN))
        assert isinstance(reply, c.AppendSetup)
        handles[name] = reply.handle
    assert len(set(handles.values())) == len(NAMES)
    return peer, handles


async def created(scene):
    for name in NAMES:
        await scene.store.create_segment(name)


def many(rid, *appends):
    """``appends``: handle, number, data."""
    heads = tuple(WireHead(handle, 1, number, len(data)) for handle, number, data in appends)
    return c.AppendMany(rid, heads, b"".join(data for _, _, data in appends))


def texts(scene):
    return {name: bytes(scene.store.segments[name].data) for name in NAMES}


# --- the server ---------------------------------------------------------------------------------------------


@both_loops
def test_appends_of_one_frame_are_stored_in_its_order_and_answered_together(loop):
    async def main():
        async with stage() as scene:
            await created(scene)
            peer, handles = await bound(scene)
            frame = many(
                9,
                *(
                    (handles[name], number, b"%d%d " % (index, number))
                    for number in range(3)
                    for index, name in enumerate(NAMES)
                ),
            )
            assert await peer.ask(frame) == c.ManyAppended(9, (3,) * 6 + (6,) * 6 + (9,) * 6, ())
            assert texts(scene) == {name: b"%d0 %d1 %d2 " % (i, i, i) for i, name in enumerate(NAMES)}
            # The same writers go on alone, and together again.
            writer = writer_of(NAMES[0]).bytes
            alone = await peer.ask(c.AppendBlockEnd(writer, 1, b"x", 1, 3, 5))
            assert alone == c.DataAppended(writer, 3, 2, 5, 10)
            again = many(10, (handles[NAMES[0]], 4, b"y"), (handles[NAMES[1]], 3, b""))
            assert await peer.ask(again) == c.ManyAppended(10, (11, 9), ())
            assert scene.server._share.room == scene.server._share.limits.held_bytes_total

    run(main(), loop)


def test_strangers_are_told_no_handle_byte_for_byte_as_ever():
    async def main():
        async with stage() as scene:
            await created(scene)
            peer = await scene.peer()
            writer = UUID(int=1).bytes
            await peer.send(c.SetupAppend(3, writer, NAMES[0], ""))
            code, length = wire.HEADER.unpack(await peer.reader.readexactly(8))
            name = NAMES[0].encode()
            assert (code, length) == (2, 8 + 2 + len(name) + 16 + 8)
            # Nor do they get by with a guess.
            await peer.reader.readexactly(length)
            await peer.send(many(1, (1, 0, b"x")))
            assert await peer.closed_by_server()

    run(main())


def test_what_fails_fails_alone_and_what_follows_it_is_not_stored():
    async def main():
        async with stage() as scene:
            await created(scene)
            peer, handles = await bound(scene)
            sealed, gone, fine = NAMES[:3]
            await scene.store.seal(sealed)
            await scene.store.delete(gone)
            scene.store.shut_gate()
            await peer.send(
                many(7, *((handles[name], number, b"a") for number in range(2) for name in (sealed, fine, gone))),
                many(8, (handles[fine], 2, b"b"), (handles[sealed], 2, b"b")),
            )
            await until(lambda: scene.store.pending == 8)
            scene.store.open_gate()
            reply = await peer.receive()
            assert (reply.rid, reply.lengths) == (7, (-1, 1, -1, -1, 2, -1))
            assert reply.failures == (
                WireFailure(0, wire.encode(c.SegmentIsSealed(7, sealed, "", 0))),
                WireFailure(2, wire.encode(c.NoSuchSegment(7, gone, "", -1))),
            ), "what followed says nothing of its own"
            assert await peer.receive() == c.ManyAppended(8, (3, -1), ())
            # Until it is set up again.
            assert await peer.ask(many(9, (handles[sealed], 3, b"c"))) == c.ManyAppended(9, (-1,), ())
            setup = await peer.ask(c.SetupAppend(1, writer_of(sealed).bytes, sealed, OWN_TOKEN))
            assert setup.last_number == NO_EVENT
            reply = await peer.ask(many(10, (setup.handle, 1, b"d"), (handles[fine], 3, b"d")))
            assert [failure.place for failure in reply.failures] == [0]
            assert reply.lengths == (-1, 4)
            assert bytes(scene.store.segments[sealed].data) == b""
            await peer.send(many(11, (handles[sealed], 4, b"e")))
            assert await peer.closed_by_server(), "a handle ends with the setup after it"

    run(main())


@pytest.mark.parametrize("refused", [1, 4, 9, 30])
def test_what_the_store_throttles_is_offered_again_in_its_order(refused):
    async def main():
        async with stage(throttle_pause_s=0.001) as scene:
            await created(scene)
            peer, handles = await bound(scene)
            scene.store.shut_gate()
            for number in range(5):
                await peer.send(many(number, *((handles[name], number, b"%d" % number) for name in NAMES)))
            await until(lambda: scene.store.pending == 30)
            scene.store.refuse_next = refused
            scene.store.open_gate()
            replies = [await peer.receive() for _ in range(5)]
            assert sorted(reply.rid for reply in replies) == [0, 1, 2, 3, 4]
            assert all(reply.lengths == (reply.rid + 1,) * 6 and not reply.failures for reply in replies)
            assert texts(scene) == dict.fromkeys(NAMES, b"01234")
            assert scene.server._share.room == scene.server._share.limits.held_bytes_total

    run(main())


def test_a_setup_drops_what_waits_and_the_others_of_the_frame_are_answered():
    async def main():
        async with stage(throttle_pause_s=30) as scene:
            await created(scene)
            peer, handles = await bound(scene)
            scene.store.refuse_next = 1
            await peer.send(many(1, *((handles[name], 0, b"x") for name in NAMES[:3])))
            await until(lambda: scene.store.refused == 1)
            await peer.send(c.SetupAppend(5, writer_of(NAMES[0]).bytes, NAMES[0], OWN_TOKEN))
            replies = {type(reply): reply for reply in (await peer.receive(), await peer.receive())}
            assert replies[c.ManyAppended] == c.ManyAppended(1, (-1, 1, 1), ())
            assert replies[c.AppendSetup].last_number == NO_EVENT
            again = many(2, (replies[c.AppendSetup].handle, 0, b"y"))
            assert await peer.ask(again) == c.ManyAppended(2, (1,), ())

    run(main())


def test_data_that_is_stored_is_not_held_while_another_append_of_its_frame_waits():
    async def main():
        async with stage(throttle_pause_s=30) as scene:
            await created(scene)
            peer, handles = await bound(scene)
            share, store = scene.server._share, scene.store
            share.short = True  # so that data is copied, and a view does not keep its receive buffer
            given, submit = [], store.submit_append

            def submitting(request, done):
                given.append(request.data)
                submit(request, done)

            store.submit_append = submitting
            store.refuse_next = 1
            big = bytes(1 << 20)
            await peer.send(many(1, (handles[NAMES[0]], 0, b"x"), *((handles[name], 0, big) for name in NAMES[1:])))
            await until(lambda: store.refused == 1 and all(texts(scene)[name] for name in NAMES[1:]))
            await until(lambda: share.limits.held_bytes_total - share.room < 1000)
            assert [len(one) for one in given] == [1] + [len(big)] * 5
            stored, mine = given[1:], [bytes(len(NAMES)) for _ in NAMES[1:]]
            given.clear()
            assert [sys.getrefcount(one) for one in stored] == [sys.getrefcount(one) for one in mine]

    run(main())


def test_a_fenced_writer_ends_its_connection():
    async def main():
        async with stage() as scene:
            await created(scene)
            old, handles = await bound(scene)
            new, others = await bound(scene)
            await new.ask(many(1, (others[NAMES[2]], 5, b"new")))
            reply = await old.ask(many(8, *((handles[name], 0, b"old") for name in NAMES)))
            assert reply == c.InvalidEventNumber(writer_of(NAMES[2]).bytes, 8, "", 0)
            assert await old.closed_by_server()
            assert bytes(scene.store.segments[NAMES[2]].data) == b"new"

    run(main())


def test_errors_without_words_close_the_connection():
    async def main():
        async with stage() as scene:
            await created(scene)
            peer, handles = await bound(scene)
            scene.store.fail_with = InternalError("odd")
            await peer.send(many(1, (handles[NAMES[0]], 0, b"a"), (handles[NAMES[1]], 0, b"a")))
            assert await peer.closed_by_server()

    run(main())


def lies(handle):
    ok = wire.many_head(handle, 1, 0, 1)
    head = wire.HEADER.pack

    def frame(payload):
        return head(wire.APPEND_MANY, len(payload)) + payload

    def of(count, heads, data):
        return frame(struct.pack(">qi", 1, count) + heads + data)

    return {
        "no appends": of(0, b"", b""),
        "fewer than said": of(2, ok, b"x"),
        "negative count": of(-1, ok, b"x"),
        "count without end": of((1 << 31) - 1, ok, b"x"),
        "too many": of(wire.HEADS_MAX + 1, ok * (wire.HEADS_MAX + 1), b"x" * (wire.HEADS_MAX + 1)),
        "less data than said": of(1, wire.many_head(handle, 1, 0, 2), b"x"),
        "more data than said": of(1, ok, b"xy"),
        "negative size": of(2, wire.many_head(handle, 1, 0, -1) + wire.many_head(handle, 1, 1, 2), b"x"),
        "incomplete": frame(b"short"),
        "unknown handle": of(1, wire.many_head(handle + 99, 1, 0, 1), b"x"),
        "negative handle": of(1, wire.many_head(-1, 1, 0, 1), b"x"),
        "without events": of(1, wire.many_head(handle, 0, 0, 1), b"x"),
        "negative events": of(1, wire.many_head(handle, -1, 0, 1), b"x"),
        "backwards": of(2, wire.many_head(handle, 1, 5, 1) + wire.many_head(handle, 1, 5, 1), b"xy"),
        "within a block": wire.encode(c.AppendBlock(writer_of(NAMES[0]).bytes, b"x")) + of(1, ok, b"x"),
    }


@pytest.mark.parametrize("lie", lies(1))
def test_frames_that_lie_close_their_connection_and_no_other(lie):
    async def main():
        async with stage() as scene:
            await created(scene)
            honest, _ = await bound(scene)
            liar, handles = await bound(scene)
            await liar.send(lies(handles[NAMES[0]])[lie])
            assert await liar.closed_by_server()
            assert await honest.ask(c.KeepAlive()) == c.KeepAlive()
            await until(lambda: scene.server._share.room == scene.server._share.limits.held_bytes_total)

    run(main())


def test_a_connection_may_end_while_its_frame_is_undecided():
    async def main():
        async with stage() as scene:
            await created(scene)
            peer, handles = await bound(scene)
            scene.store.shut_gate()
            await peer.send(many(1, *((handles[name], 0, b"x") for name in NAMES)))
            await until(lambda: scene.store.pending == 6)
            peer.writer.transport.abort()
            await until(lambda: not scene.server._share.connections)
            scene.store.open_gate()
            await until(lambda: scene.server._share.room == scene.server._share.limits.held_bytes_total)
            assert texts(scene) == dict.fromkeys(NAMES, b"x"), "what the store had it keeps"

    run(main())


# --- the client ---------------------------------------------------------------------------------------------


def request(name, number, data, *, expected=None):
    return Append(
        segment=name,
        writer=writer_of(name),
        data=data,
        event_number=number,
        previous=number - 1 if number else NO_EVENT,
        expected_offset=expected,
    )


class Frames:
    """Counts the frames of appends that a server takes, by kind."""

    def __init__(self, monkeypatch) -> None:
        self.many: list[int] = []
        self.alone = 0
        taken, ended = AppendSide.many, AppendSide.block_end

        def many(side, payload):
            self.many.append(len(wire.decode_many(payload)[1]))
            taken(side, payload)

        def alone(side, receiver, room_bytes):
            self.alone += 1
            ended(side, receiver, room_bytes)

        monkeypatch.setattr(AppendSide, "many", many)
        monkeypatch.setattr(AppendSide, "block_end", alone)


@both_loops
def test_what_is_appended_in_one_pass_of_the_loop_leaves_in_one_frame(loop, monkeypatch):
    async def main():
        frames = Frames(monkeypatch)
        async with stage() as scene, remote(scene.server, scene.store) as segments:
            await created(scene)
            for name in NAMES:
                assert await segments.setup_append(name, writer_of(name)) == NO_EVENT
            outcomes = {}
            for name in NAMES:
                for number in range(3):
                    segments.submit_append(
                        request(name, number, b"%d" % number),
                        lambda found, at=(name, number): outcomes.update({at: found}),
                    )
            assert not outcomes
            await until(lambda: len(outcomes) == 18)
            assert outcomes == {
                (name, number): Appended(end_offset=number + 1) for name in NAMES for number in range(3)
            }
            assert (frames.many, frames.alone) == ([18], 0)
            # One alone, a condition, and what is large travel as they always did, and in order.
            await segments.append(request(NAMES[0], 3, b"3"))
            assert frames.alone == 1
            found = await asyncio.gather(
                segments.append(request(NAMES[0], 4, b"4")),
                segments.append(request(NAMES[1], 3, b"3")),
                segments.append(request(NAMES[0], 5, b"5" * 100_000)),
                segments.append(request(NAMES[0], 6, b"6")),
                segments.append(request(NAMES[1], 4, b"4", expected=4)),
                segments.append(request(NAMES[1], 5, b"5")),
            )
            assert [one.end_offset for one in found] == [5, 4, 100_005, 100_006, 5, 6]
            assert texts(scene)[NAMES[0]] == b"01234" + b"5" * 100_000 + b"6"
            assert texts(scene)[NAMES[1]] == b"012345"

    run(main(), loop)


@both_loops
def test_an_append_that_fails_among_others_fails_alone(loop):
    async def main():
        async with stage() as scene, remote(scene.server, scene.store) as segments:
            await created(scene)
            for name in NAMES:
                await segments.setup_append(name, writer_of(name))
            await scene.store.seal(NAMES[1])
            await scene.store.delete(NAMES[4])
            found = await asyncio.gather(
                *(segments.append(request(name, number, b"x")) for number in range(2) for name in NAMES),
                return_exceptions=True,
            )
            kinds = [type(one) for one in found]
            expected = [Appended, SegmentSealedError, Appended, Appended, SegmentNotFoundError, Appended]
            assert kinds == expected * 2
            assert await segments.setup_append(NAMES[1], writer_of(NAMES[1])) == NO_EVENT
            with pytest.raises(SegmentSealedError):
                await segments.append(request(NAMES[1], 0, b"x"))
            assert [
                one.end_offset
                for one in await asyncio.gather(
                    *(segments.append(request(name, 2, b"y")) for name in (NAMES[0], NAMES[2]))
                )
            ] == [3, 3]

    run(main(), loop)


def test_a_writer_that_was_taken_over_is_told_so_and_the_others_go_on_anew():
    async def main():
        async with stage() as scene, remote(scene.server, scene.store) as segments:
            await created(scene)
            for name in NAMES:
                await segments.setup_append(name, writer_of(name))
            async with remote(scene.server, scene.store) as other:
                await other.setup_append(NAMES[3], writer_of(NAMES[3]))
                await other.append(request(NAMES[3], 0, b"other"))
            found = await asyncio.gather(
                *(segments.append(request(name, 0, b"x")) for name in NAMES), return_exceptions=True
            )
            assert isinstance(found[3], WriterFencedError)
            assert all(isinstance(one, NotConnectedError) for one in found[:3] + found[4:])
            for name in NAMES:
                last = await segments.setup_append(name, writer_of(name))
                await segments.append(request(name, last + 1 if last >= 0 else 0, b"y"))
            assert texts(scene)[NAMES[3]] == b"othery"
            assert all(text in (b"xy", b"y") for name, text in texts(scene).items() if name != NAMES[3])

    run(main())


def test_a_lost_connection_fails_what_was_sent_together_and_nothing_is_stored_twice():
    async def main():
        async with stage() as scene, remote(scene.server, scene.store) as segments:
            await created(scene)
            for name in NAMES:
                await segments.setup_append(name, writer_of(name))
            scene.store.shut_gate()
            waits = [asyncio.ensure_future(segments.append(request(name, 0, b"x"))) for name in NAMES]
            await until(lambda: scene.store.pending == len(NAMES))
            for connection in list(scene.server._share.connections):
                connection.abort()
            found = await asyncio.gather(*waits, return_exceptions=True)
            assert all(isinstance(one, NotConnectedError) for one in found)
            scene.store.open_gate()
            for name in NAMES:
                assert await segments.setup_append(name, writer_of(name)) == 0
                await segments.append(request(name, 1, b"y"))
            assert texts(scene) == dict.fromkeys(NAMES, b"xy")

    run(main())


def test_a_caller_that_gives_up_leaves_its_place_to_the_next(monkeypatch):
    async def main():
        frames = Frames(monkeypatch)
        async with stage() as scene, remote(scene.server, scene.store) as segments:
            await created(scene)
            for name in NAMES:
                await segments.setup_append(name, writer_of(name))
            waits = [asyncio.ensure_future(segments.append(request(name, 0, b"x"))) for name in NAMES]
            await asyncio.sleep(0)
            waits[2].cancel()
            await asyncio.wait(waits)
            assert frames.many == [6]
            found = await asyncio.gather(*(segments.append(request(name, 1, b"y")) for name in NAMES))
            assert [one.end_offset for one in found] == [2] * 6

    run(main())


def test_a_store_that_knows_no_such_frames_is_sent_none(monkeypatch):
    async def main():
        frames = Frames(monkeypatch)
        finish = AppendSide.finish_setup

        def strange(side, writer, segment, last_number, *, is_own):
            finish(side, writer, segment, last_number, is_own=False)

        monkeypatch.setattr(AppendSide, "finish_setup", strange)
        async with stage() as scene, remote(scene.server, scene.store) as segments:
            await created(scene)
            for name in NAMES:
                await segments.setup_append(name, writer_of(name))
            await asyncio.gather(*(segments.append(request(name, 0, b"x")) for name in NAMES))
            assert (frames.many, frames.alone) == ([], 6)
            assert texts(scene) == dict.fromkeys(NAMES, b"x")

    run(main())
