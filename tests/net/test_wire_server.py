"""What the wire server promises to any client, spoken to in raw frames."""

from __future__ import annotations

import asyncio
import logging
import random
import struct
from uuid import UUID

import pytest
from wire_memory_store import MemorySegments
from wire_peers import LOOPS, run, stage, until

from penstock.codec.wire import commands as c
from penstock.codec.wire import frames as wire
from penstock.codec.wire import table_commands as t
from penstock.codec.wire.layout import AttributeUpdate, WireChunk, WireEntry, WireKey
from penstock.model.errors import ContainerOfflineError, CorruptDataError, InternalError
from penstock.net.wire.wire_errors import DAMAGED, error_of
from penstock.ports.data.segments import NO_EVENT

SEGMENT = "s/t/0.#epoch.0"
both_loops = pytest.mark.parametrize("loop", sorted(LOOPS))


def end(writer, data, number, rid=1, count=1):
    return c.AppendBlockEnd(writer, len(data), data, count, number, rid)


def event(data):
    return struct.pack(">ii", 0, len(data)) + data


@both_loops
def test_hello_is_answered_and_a_stranger_is_closed_after_it(loop):
    async def main():
        async with stage() as scene:
            peer = await scene.peer(hello=False)
            assert await peer.ask(c.Hello(15, 5)) == c.Hello(17, 5)
            assert await peer.ask(c.KeepAlive()) == c.KeepAlive()
            stranger = await scene.peer(hello=False)
            assert await stranger.ask(c.Hello(4, 1)) == c.Hello(17, 5)
            assert await stranger.closed_by_server()
            assert await peer.ask(c.KeepAlive()) == c.KeepAlive()

    run(main(), loop)


@both_loops
def test_appends_are_acknowledged_in_order_with_their_own_lengths(loop):
    async def main():
        async with stage() as scene:
            await scene.store.create_segment(SEGMENT)
            peer, writer = await scene.writer(SEGMENT, 7)
            await peer.send(*(end(writer, event(b"%03d" % i), i, rid=100) for i in range(50)))
            last = NO_EVENT
            for i in range(50):
                assert await peer.receive() == c.DataAppended(writer, i, last, 100, 11 * (i + 1))
                last = i
            assert scene.store.segments[SEGMENT].data == b"".join(event(b"%03d" % i) for i in range(50))

    run(main(), loop)


@both_loops
def test_frames_may_arrive_byte_by_byte(loop):
    async def main():
        async with stage() as scene:
            await scene.store.create_segment(SEGMENT)
            peer, writer = await scene.writer(SEGMENT, 7)
            frames = wire.encode(end(writer, event(b"abc"), 0)) + wire.encode(c.GetStreamSegmentInfo(9, SEGMENT, ""))
            for byte in frames:
                await peer.send(bytes([byte]))
                await asyncio.sleep(0)
            replies = {type(await peer.receive()) for _ in range(2)}
            assert replies == {c.DataAppended, c.StreamSegmentInfo}

    run(main(), loop)


@both_loops
def test_frames_of_every_size_survive_the_turns_between_arenas(loop):
    async def main():
        rng = random.Random(5)
        sizes = [rng.choice((1, 100, 5_000, 70_000, 262_130, 300_000, 700_000, 2_500_000)) for _ in range(40)]
        async with stage() as scene:
            await scene.store.create_segment(SEGMENT)
            peer, writer = await scene.writer(SEGMENT, 7)
            blocks = [rng.randbytes(size) for size in (*sizes, 9 << 20, 17)]

            async def send():
                for i, block in enumerate(blocks):
                    await peer.send(end(writer, block, i))

            sending = asyncio.ensure_future(send())
            for i in range(len(blocks)):
                reply = await peer.receive()
                assert (type(reply), reply.event_number) == (c.DataAppended, i)
            await sending
            assert scene.store.segments[SEGMENT].data == b"".join(blocks)

    run(main(), loop)


@pytest.mark.parametrize("loop", sorted(LOOPS))
@pytest.mark.parametrize("trailer", ["none", "partial", "padding"])
def test_blocks_are_put_together(trailer, loop):
    async def main():
        first, second = event(b"first"), event(b"second, longer")
        async with stage() as scene:
            await scene.store.create_segment(SEGMENT)
            peer, writer = await scene.writer(SEGMENT, 7)
            if trailer == "none":
                block, rest, expected = first + second, b"", first + second
                whole = len(block)
            elif trailer == "padding":
                block, rest, expected = first + struct.pack(">ii", -1, 20) + bytes(20), b"", first
                whole = len(first)
            else:
                block, rest, expected = first + struct.pack(">ii", -2, 9) + second[:9], second[9:], first + second
                whole = len(first)
            for number, split in enumerate((False, True)):
                frames = wire.encode(c.AppendBlock(writer, block))
                tail = wire.encode(c.AppendBlockEnd(writer, whole, rest, 2, number, 5))
                if split:
                    await peer.send(frames[:30])
                    await scene.settle()
                    await peer.send(frames[30:])
                    await scene.settle()
                    reply = await peer.ask(tail)
                else:
                    reply = await peer.ask(frames, tail)
                assert reply.segment_length == (number + 1) * len(expected)
            # Where the end of the block no longer fits into the arena of the block.
            filler = bytes(250_000)
            await peer.send(end(writer, filler, 5))
            await peer.receive()
            big = event(bytes(range(256)) * 40)
            whole = len(big)
            cut = big + struct.pack(">ii", -2, 9) + second[:9]
            reply = await peer.ask(
                wire.encode(c.AppendBlock(writer, cut)), c.AppendBlockEnd(writer, whole, second[9:], 2, 6, 5)
            )
            data = scene.store.segments[SEGMENT].data
            assert data == expected * 2 + filler + big + second
            assert reply.segment_length == len(data)

    run(main(), loop)


def test_what_may_not_follow_closes_the_connection():
    async def main():
        async with stage() as scene:
            await scene.store.create_segment(SEGMENT)
            writer = UUID(int=1).bytes
            wrong = [
                [end(writer, b"x", 0)],
                ["setup", end(writer, b"x", 5), end(writer, b"x", 4)],
                ["setup", end(writer, b"x", 5), end(writer, b"x", 5)],
                ["setup", end(writer, b"x", 0, count=0)],
                ["setup", end(writer, b"x", 0, count=-1)],
                ["setup", c.AppendBlock(writer, b"x"), c.KeepAlive()],
                ["setup", c.AppendBlock(writer, b"x"), end(UUID(int=2).bytes, b"", 1)],
                ["setup", c.AppendBlock(writer, b"x"), c.AppendBlock(writer, b"x")],
                ["setup", c.AppendBlock(writer, b"xyz"), c.AppendBlockEnd(writer, 4, b"", 1, 1, 1)],
                [c.AppendBlock(writer, b"x")],
                [c.SetupAppend(1, writer, SEGMENT, ""), end(writer, b"x", 0)],
                [wire.encode(c.SegmentCreated(1, "reply"))],
                [b"GET / HTTP/1.1\r\nHost: penstock\r\n\r\n"],
                [struct.pack(">ii", 9, -1)],
                [struct.pack(">ii", 9, 1 << 24)],
                [struct.pack(">ii", 74, 20) + struct.pack(">qHHi", 1, 0, 0, 1 << 30) + bytes(4)],
            ]
            quiet, _ = await scene.writer(SEGMENT, 99)
            for number, frames in enumerate(wrong):
                peer = await scene.peer()
                for frame in frames:
                    if frame == "setup":
                        scene.store.segments[SEGMENT].writers.pop(UUID(bytes=writer), None)
                        await scene.writer(SEGMENT, 1, peer=peer)
                    else:
                        await peer.send(frame)
                answers = await peer.reader.read()
                assert len(answers) <= 100
                assert scene.telemetry.counts["wire_protocol_errors"] == number + 1
            assert await quiet.ask(c.KeepAlive()) == c.KeepAlive()

    run(main())


def test_the_reason_of_a_close_is_logged(caplog):
    async def main():
        async with stage() as scene:
            peer = await scene.peer()
            await peer.send(struct.pack(">ii", 12345, 4))
            assert await peer.closed_by_server()

    with caplog.at_level(logging.WARNING):
        run(main())
    (record,) = [one for one in caplog.records if one.message == "wire connection closed"]
    assert "12345" in record.reason


def test_acknowledgements_come_before_the_error_and_nothing_after_it():
    async def main():
        async with stage() as scene:
            await scene.store.create_segment(SEGMENT)
            peer, writer = await scene.writer(SEGMENT, 1)
            scene.store.shut_gate()
            await peer.send(end(writer, b"a", 0, rid=10), end(writer, b"b", 1, rid=11))
            await until(lambda: scene.store.pending == 2)
            scene.store.open_gate()
            await scene.store.seal(SEGMENT)
            await peer.send(end(writer, b"c", 2, rid=12), end(writer, b"d", 3, rid=13))
            assert await peer.receive() == c.DataAppended(writer, 0, NO_EVENT, 10, 1)
            assert await peer.receive() == c.DataAppended(writer, 1, 0, 11, 2)
            assert await peer.receive() == c.SegmentIsSealed(12, SEGMENT, "", 2)
            # Ignored until the writer is set up again, which a sealed segment allows.
            await peer.send(end(writer, b"e", 4, rid=14))
            assert await peer.ask(c.SetupAppend(2, writer, SEGMENT, "")) == c.AppendSetup(2, SEGMENT, writer, 1)
            assert await peer.ask(end(writer, b"f", 9, rid=15)) == c.SegmentIsSealed(15, SEGMENT, "", 9)

    run(main())


def test_a_missing_segment_is_said_without_a_place():
    async def main():
        async with stage() as scene:
            await scene.store.create_segment(SEGMENT)
            peer, writer = await scene.writer(SEGMENT, 1)
            await scene.store.delete(SEGMENT)
            assert await peer.ask(end(writer, b"a", 0, rid=3)) == c.NoSuchSegment(3, SEGMENT, "", -1)
            missing = await peer.ask(c.SetupAppend(4, writer, "no/such/0", ""))
            assert missing == c.NoSuchSegment(4, "no/such/0", "", -1)

    run(main())


def test_a_fenced_writer_is_told_and_its_connection_closes():
    async def main():
        async with stage() as scene:
            await scene.store.create_segment(SEGMENT)
            old, writer = await scene.writer(SEGMENT, 1)
            new, _ = await scene.writer(SEGMENT, 1)
            await new.ask(end(writer, b"new", 5))
            assert await old.ask(end(writer, b"old", 0, rid=8)) == c.InvalidEventNumber(writer, 8, "", 0)
            assert await old.closed_by_server()
            assert scene.store.segments[SEGMENT].data == b"new"

    run(main())


def test_errors_without_words_close_the_connection():
    async def main():
        async with stage() as scene:
            await scene.store.create_segment(SEGMENT)
            peer, writer = await scene.writer(SEGMENT, 1)
            scene.store.fail_with = InternalError("odd")
            await peer.send(end(writer, b"a", 0))
            assert await peer.closed_by_server()

    run(main())


@pytest.mark.parametrize("refused", [1, 3, 7, 25])
def test_appends_that_the_store_throttles_wait_and_keep_their_order(refused):
    async def main():
        async with stage(throttle_pause_s=0.001) as scene:
            await scene.store.create_segment(SEGMENT)
            peer, writer = await scene.writer(SEGMENT, 1)
            other, second = await scene.writer(SEGMENT, 2, peer=peer)
            scene.store.shut_gate()
            for number in range(10):
                await peer.send(end(writer, b"a%d" % number, number), end(second, b"b%d" % number, number))
            await peer.send(c.ConditionalBlockEnd(second, 10, 40, b"b+", 5), end(second, b"b.", 11))
            await until(lambda: scene.store.pending == 21)
            scene.store.refuse_next = refused
            scene.store.open_gate()
            acked = {writer: [], second: []}
            for _ in range(22):
                reply = await other.receive()
                assert type(reply) is c.DataAppended or (type(reply) is c.ConditionalCheckFailed and refused)
                if type(reply) is c.DataAppended:
                    acked[reply.writer].append(reply.event_number)
            assert acked[writer] == list(range(10))
            assert [number for number in acked[second] if number != 10] == [*range(10), 11]
            data = bytes(scene.store.segments[SEGMENT].data).decode()
            assert [data[at + 1] for at in range(0, len(data), 2) if data[at] == "a"] == list("0123456789")
            assert [data[at + 1] for at in range(0, len(data), 2) if data[at] == "b" and data[at + 1] != "+"] == [
                *"0123456789."
            ]
            assert scene.store.refused == refused
            assert scene.server._share.room == scene.server._share.limits.held_bytes_total

    run(main())


def test_a_connection_may_end_while_its_appends_are_throttled():
    async def main():
        async with stage(throttle_pause_s=0.001) as scene:
            await scene.store.create_segment(SEGMENT)
            peer, writer = await scene.writer(SEGMENT, 1)
            scene.store.refuse_next = 1 << 30
            await peer.send(*(end(writer, b"x", number) for number in range(5)))
            await until(lambda: scene.store.refused > 5)
            peer.writer.transport.abort()
            await until(lambda: not scene.server._share.connections)
            share = scene.server._share
            await until(lambda: share.room == share.limits.held_bytes_total)
            assert not scene.store.segments[SEGMENT].data

    run(main())


def test_requests_that_the_store_throttles_wait():
    async def main():
        async with stage(throttle_pause_s=0.001, throttle_s=0.05) as scene:
            peer = await scene.peer()
            await peer.ask(t.CreateTableSegment(1, "t"))
            scene.store.refuse_next = 3
            entry = WireEntry(b"k", -1, b"v")
            assert await peer.ask(t.UpdateTableEntries(2, "t", "", (entry,), -1)) == t.TableEntriesUpdated(2, (0,))
            scene.store.refuse_next = 1 << 30
            await peer.send(t.UpdateTableEntries(3, "t", "", (entry,), -1))
            assert await peer.closed_by_server()

    run(main())


def test_a_lost_container_is_another_host():
    async def main():
        async with stage() as scene:
            await scene.store.create_segment(SEGMENT)
            peer, writer = await scene.writer(SEGMENT, 1)
            scene.store.fail_with = ContainerOfflineError("offline")
            assert await peer.ask(end(writer, b"a", 0, rid=3)) == c.WrongHost(3, SEGMENT, "")

    run(main())


def test_conditional_appends_keep_the_writer_usable():
    async def main():
        async with stage() as scene:
            await scene.store.create_segment(SEGMENT)
            peer, writer = await scene.writer(SEGMENT, 1)

            def conditional(number, offset, data, rid):
                return c.ConditionalBlockEnd(writer, number, offset, data, rid)

            await peer.send(conditional(0, 0, b"aa", 1), conditional(1, 2, b"bb", 2), conditional(2, 99, b"cc", 3))
            assert await peer.receive() == c.DataAppended(writer, 0, NO_EVENT, 1, 2)
            assert await peer.receive() == c.DataAppended(writer, 1, 0, 2, 4)
            assert await peer.receive() == c.ConditionalCheckFailed(writer, 2, 3)
            assert await peer.ask(conditional(2, 4, b"dd", 4)) == c.DataAppended(writer, 2, 1, 4, 6)
            # What is sent behind a condition that fails still counts.
            await peer.send(conditional(3, 99, b"no", 5), end(writer, b"yes", 4, rid=6))
            assert await peer.receive() == c.ConditionalCheckFailed(writer, 3, 5)
            assert await peer.receive() == c.DataAppended(writer, 4, 2, 6, 9)
            record = event(b"z")
            reply = await peer.ask(c.ConditionalAppend(writer, 5, 9, record, 7))
            assert reply == c.DataAppended(writer, 5, 4, 7, 18)
            assert scene.store.segments[SEGMENT].data == b"aabbddyes" + record

    run(main())


@both_loops
def test_reads_echo_their_request_and_wait_at_the_tail(loop):
    async def main():
        async with stage() as scene:
            await scene.store.create_segment(SEGMENT)
            peer, writer = await scene.writer(SEGMENT, 1)
            await peer.ask(end(writer, b"0123456789", 0))
            assert await peer.ask(c.ReadSegment(SEGMENT, 2, 1, "", 40)) == c.SegmentRead(
                SEGMENT, 2, True, False, b"23456789", 40
            )
            await peer.send(c.ReadSegment(SEGMENT, 10, 100, "", 41), c.ReadSegment(SEGMENT, 10, 100, "", 42))
            await until(lambda: scene.store.waiting_reads == 2)
            # Parked reads hold nothing up.
            assert await peer.ask(c.KeepAlive()) == c.KeepAlive()
            await peer.send(end(writer, b"new", 1, rid=43))
            replies = {(reply := await peer.receive()).rid: reply for _ in range(3)}
            assert replies[41].data == replies[42].data == b"new"
            await peer.send(c.ReadSegment(SEGMENT, 13, 100, "", 44))
            await until(lambda: scene.store.waiting_reads == 1)
            await scene.store.seal(SEGMENT)
            assert await peer.receive() == c.SegmentRead(SEGMENT, 13, False, True, b"", 44)
            assert (await peer.ask(c.ReadSegment(SEGMENT, 0, 8 << 20, "", 45))).end_of_segment
            await scene.store.truncate(SEGMENT, 5)
            truncated = await peer.ask(c.ReadSegment(SEGMENT, 4, 100, "", 46))
            assert truncated == c.SegmentIsTruncated(46, SEGMENT, 5, "", 4)
            missing = await peer.ask(c.ReadSegment("no/such/0", 77, 100, "", 47))
            assert missing == c.NoSuchSegment(47, "no/such/0", "", 77)
            beyond = await peer.ask(c.ReadSegment(SEGMENT, 99, 100, "", 48))
            assert (type(beyond), beyond.rid, beyond.code) == (c.ErrorMessage, 48, 0)

    run(main(), loop)


def test_a_waiting_read_learns_of_deletion():
    async def main():
        async with stage() as scene:
            await scene.store.create_segment(SEGMENT)
            peer = await scene.peer()
            await peer.send(c.ReadSegment(SEGMENT, 0, 100, "", 44))
            await until(lambda: scene.store.waiting_reads == 1)
            await scene.store.delete(SEGMENT)
            assert await peer.receive() == c.NoSuchSegment(44, SEGMENT, "", 0)

    run(main())


def test_replies_are_cut_to_two_mebibytes():
    async def main():
        async with stage() as scene:
            await scene.store.create_segment(SEGMENT)
            scene.store.segments[SEGMENT].data += bytes(5 << 20)
            peer = await scene.peer()
            reply = await peer.ask(c.ReadSegment(SEGMENT, 0, 8 << 20, "", 1))
            assert len(reply.data) == 2 << 20

    run(main())


def test_reads_beyond_the_bound_are_answered_at_once():
    async def main():
        async with stage(parked_reads=3) as scene:
            await scene.store.create_segment(SEGMENT)
            peer = await scene.peer()
            await peer.send(*(c.ReadSegment(SEGMENT, 0, 100, "", rid) for rid in range(5)))
            extra = [await peer.receive() for _ in range(2)]
            assert [(reply.at_tail, len(reply.data)) for reply in extra] == [(True, 0)] * 2
            assert scene.store.waiting_reads == 3

    run(main())


@both_loops
def test_a_closing_server_answers_waiting_reads_and_finishes_appends(loop):
    async def main():
        store = MemorySegments()
        await store.create_segment(SEGMENT)
        async with stage(store) as scene:
            peer, writer = await scene.writer(SEGMENT, 1)
            await peer.send(c.ReadSegment(SEGMENT, 0, 100, "", 44))
            await until(lambda: store.waiting_reads == 1)
            store.shut_gate()
            await peer.send(end(writer, b"late", 0, rid=45))
            await until(lambda: store.pending == 1)
            closing = asyncio.ensure_future(scene.server.__aexit__(None, None, None))
            assert await peer.receive() == c.SegmentRead(SEGMENT, 0, True, False, b"", 44)
            store.open_gate()
            assert await peer.receive() == c.DataAppended(writer, 0, NO_EVENT, 45, 4)
            assert await peer.closed_by_server()
            await closing
            assert store.waiting_reads == 0

    run(main(), loop)


def test_a_disconnect_drops_waiting_reads_and_half_a_frame():
    async def main():
        async with stage() as scene:
            await scene.store.create_segment(SEGMENT)
            peer = await scene.peer()
            await peer.send(c.ReadSegment(SEGMENT, 0, 100, "", 44), wire.encode(c.SealSegment(1, SEGMENT, ""))[:20])
            await until(lambda: scene.store.waiting_reads == 1)
            peer.writer.transport.abort()
            await until(lambda: scene.store.waiting_reads == 0)
            assert not scene.store.segments[SEGMENT].sealed
            assert scene.telemetry.gauges["wire_connections"] == 0

    run(main())


@both_loops
def test_a_peer_that_does_not_read_holds_little_and_no_one_else(loop):
    async def main():
        async with stage(write_buffer_bytes=1 << 20) as scene:
            await scene.store.create_segment(SEGMENT)
            scene.store.segments[SEGMENT].data += bytes(3 << 20)
            slow, quick = await scene.peer(), await scene.peer()
            for rid in range(60):
                slow.writer.write(wire.encode(c.ReadSegment(SEGMENT, 0, 2 << 20, "", rid)))
            await slow.writer.drain()
            for rid in range(20):
                assert (await quick.ask(c.GetStreamSegmentInfo(rid, SEGMENT, ""))).rid == rid

            def unsent():
                return max(one._transport.get_write_buffer_size() for one in scene.server._share.connections)

            await until(lambda: unsent() > 1 << 20)
            peak = 0
            for _ in range(200):
                await asyncio.sleep(0)
                peak = max(peak, unsent())
            # What may wait before the peer counts as slow, and the one reply on top that makes it so.
            assert peak <= (2 << 20) + 4096
            seen = sorted([(await slow.receive()).rid for _ in range(60)])
            assert seen == list(range(60))

    run(main(), loop)


@both_loops
def test_many_peers_that_do_not_read_share_one_bound_and_all_are_answered(loop):
    async def main():
        async with stage(replies_bytes=1 << 20) as scene:
            await scene.store.create_segment(SEGMENT)
            scene.store.segments[SEGMENT].data += bytes(3 << 20)
            slow = [await scene.peer() for _ in range(20)]
            for peer in slow:
                for rid in range(30):
                    peer.writer.write(wire.encode(c.ReadSegment(SEGMENT, 0, 2 << 20, "", rid)))
                await peer.writer.drain()

            def unsent():
                return sum(one._transport.get_write_buffer_size() for one in scene.server._share.connections)

            peak = 0
            for _ in range(500):
                await asyncio.sleep(0)
                peak = max(peak, unsent())
            # Each takes its share as it was when it began, one sent and one on top: 1, 1/2, 1/3 ... MiB.
            shares = sum(max(64 << 10, (1 << 20) // place) for place in range(1, len(slow) + 1))
            assert 0 < peak <= 2 * shares + len(slow) * 4096
            for peer in slow:
                assert sorted([(await peer.receive()).rid for _ in range(30)]) == list(range(30))
            await until(lambda: not scene.server._share.sending)

    run(main(), loop)


@both_loops
def test_reads_that_come_back_from_storage_together_are_not_all_held_for_a_peer_that_does_not_read(loop):
    async def main():
        async with stage(replies_bytes=1 << 20, write_buffer_bytes=256 << 10) as scene:
            store = scene.store
            await store.create_segment(SEGMENT)
            store.segments[SEGMENT].data += bytes(3 << 20)
            read = store.read

            async def slow_read(*asked, **how):
                for _ in range(20):
                    await asyncio.sleep(0)
                return await read(*asked, **how)

            store.read, store.read_now = slow_read, lambda *_: None
            slow = [await scene.peer() for _ in range(16)]
            for peer in slow:
                for rid in range(30):
                    peer.writer.write(wire.encode(c.ReadSegment(SEGMENT, 0, 2 << 20, "", rid)))
                await peer.writer.drain()

            def unsent():
                return sum(one._transport.get_write_buffer_size() for one in scene.server._share.connections)

            peak = 0
            for _ in range(3000):
                await asyncio.sleep(0)
                peak = max(peak, unsent())
            shares = sum(min(256 << 10, (1 << 20) // place) for place in range(1, len(slow) + 1))
            assert 0 < peak <= 2 * shares + len(slow) * 4096
            for peer in slow:
                assert sorted([(await peer.receive()).rid for _ in range(30)]) == list(range(30))
            await until(lambda: not scene.server._share.sending)

    run(main(), loop)


@both_loops
def test_the_socket_is_not_read_beyond_what_may_be_held(loop):
    async def main():
        async with stage(held_bytes=1 << 20) as scene:
            await scene.store.create_segment(SEGMENT)
            peer, writer = await scene.writer(SEGMENT, 1)
            scene.store.shut_gate()
            block = bytes(100_000)

            async def send():
                for number in range(300):
                    await peer.send(end(writer, block, number))

            sending = asyncio.ensure_future(send())
            await until(lambda: scene.store.pending >= 10)
            await scene.settle()
            # One arena may have been filled before the bound was seen.
            assert scene.store.pending <= 11
            scene.store.open_gate()
            for number in range(300):
                assert (await peer.receive()).event_number == number
            await sending

    run(main(), loop)


def test_all_connections_share_one_bound_and_all_go_on():
    async def main():
        async with stage(held_bytes_total=1 << 20) as scene:
            await scene.store.create_segment(SEGMENT)
            writers = [await scene.writer(SEGMENT, number + 1) for number in range(4)]
            scene.store.shut_gate()
            block = bytes(100_000)

            async def work(peer, writer):
                for number in range(20):
                    await peer.send(end(writer, block, number))
                for number in range(20):
                    assert (await peer.receive()).event_number == number

            async with asyncio.TaskGroup() as group:
                for peer, writer in writers:
                    group.create_task(work(peer, writer))
                await until(lambda: scene.store.pending >= 10)
                await scene.settle()
                assert scene.store.pending <= 10 + len(writers)
                scene.store.open_gate()
            assert len(scene.store.segments[SEGMENT].data) == 80 * len(block)

    run(main())


def test_views_that_the_store_keeps_are_never_overwritten():
    async def main():
        store = MemorySegments()
        store.keep_views = True
        async with stage(store) as scene:
            await store.create_segment(SEGMENT)
            peer, writer = await scene.writer(SEGMENT, 1)
            blocks = [bytes([number]) * 50_000 for number in range(200)]

            async def send():
                for number, block in enumerate(blocks):
                    await peer.send(end(writer, block, number))

            sending = asyncio.ensure_future(send())
            for _ in blocks:
                await peer.receive()
            await sending
            assert [bytes(view) for view in store.views] == blocks

    run(main())


def test_requests_over_the_bound_wait_their_turn():
    async def main():
        async with stage(requests=2) as scene:
            await scene.store.create_segment(SEGMENT)
            peer = await scene.peer()
            await peer.send(*(c.GetStreamSegmentInfo(rid, SEGMENT, "") for rid in range(100)))
            assert sorted([(await peer.receive()).rid for _ in range(100)]) == list(range(100))

    run(main())


def test_segment_requests():
    async def main():
        async with stage() as scene:
            peer = await scene.peer()
            attribute = UUID(int=3)
            assert await peer.ask(c.CreateSegment(1, SEGMENT, 0, 0, "", 0)) == c.SegmentCreated(1, SEGMENT)
            assert await peer.ask(c.CreateSegment(2, SEGMENT, 0, 0, "", 0)) == c.SegmentAlreadyExists(2, SEGMENT, "")
            info = await peer.ask(c.GetStreamSegmentInfo(3, SEGMENT, ""))
            assert info == c.StreamSegmentInfo(3, SEGMENT, True, False, False, 1234, 0, 0)
            _, writer = await scene.writer(SEGMENT, 1, peer=peer)
            for number in range(3):
                await peer.ask(end(writer, b"0123456789", number))
            assert await peer.ask(c.LocateOffset(4, SEGMENT, 11, "")) == c.OffsetLocated(4, SEGMENT, 20)
            assert await peer.ask(c.TruncateSegment(5, SEGMENT, 10, "")) == c.SegmentTruncated(5, SEGMENT)
            beyond = await peer.ask(c.TruncateSegment(6, SEGMENT, 99, ""))
            assert beyond == c.SegmentIsTruncated(6, SEGMENT, 10, "", 99)
            assert await peer.ask(c.GetSegmentAttribute(7, SEGMENT, attribute, "")) == c.SegmentAttribute(7, NO_EVENT)
            update = c.UpdateSegmentAttribute(8, SEGMENT, attribute, 5, NO_EVENT, "")
            assert await peer.ask(update) == c.SegmentAttributeUpdated(8, True)
            assert await peer.ask(update) == c.SegmentAttributeUpdated(8, False)
            assert await peer.ask(c.UpdateSegmentPolicy(9, SEGMENT, 1, 1, "")) == c.SegmentPolicyUpdated(9, SEGMENT)
            chunk = WireChunk(length=20, length_in_storage=20, start_offset=10, name="c", exists=True)
            assert await peer.ask(c.ListStorageChunks(SEGMENT, "", 10)) == c.StorageChunksListed(10, (chunk,))
            assert await peer.ask(c.FlushToStorage(0, "", 11)) == c.StorageFlushed(11)
            assert await peer.ask(c.SealSegment(12, SEGMENT, "")) == c.SegmentSealed(12, SEGMENT)
            assert await peer.ask(c.DeleteSegment(13, SEGMENT, "")) == c.SegmentDeleted(13, SEGMENT)
            assert await peer.ask(c.DeleteSegment(14, SEGMENT, "")) == c.NoSuchSegment(14, SEGMENT, "", -1)
            odd = struct.pack(">qH", 15, 3) + b"\xed\xa0\xbd" + b"\0\0"
            reply = await peer.ask(struct.pack(">ii", 28, len(odd)) + odd)
            assert (type(reply), reply.rid, reply.code) == (c.ErrorMessage, 15, 0)
            # The same in a list of names; the connection lives on.
            name = SEGMENT.encode()
            odd = struct.pack(">qH", 16, len(name)) + name + struct.pack(">iH", 1, 3) + b"\xed\xa0\xbd" + b"\0\0"
            reply = await peer.ask(struct.pack(">ii", 90, len(odd)) + odd)
            assert (type(reply), reply.rid, reply.code) == (c.ErrorMessage, 16, 0)

    run(main())


def test_damaged_data_is_told_as_such_and_costs_no_connection():
    async def main():
        async with stage() as scene:
            peer = await scene.peer()

            async def damaged(*args, **kwargs):
                raise CorruptDataError("chunk fails its checksum", chunk="1/2-3")

            scene.store.read = damaged
            reply = await peer.ask(c.ReadSegment(SEGMENT, 0, 100, "", 5))
            assert (type(reply), reply.rid, reply.code) == (c.ErrorMessage, 5, DAMAGED)
            error = error_of(reply, SEGMENT)
            assert type(error) is CorruptDataError
            assert "1/2-3" in str(error)
            assert type(await peer.ask(c.KeepAlive())) is c.KeepAlive

    run(main())


def test_merges():
    async def main():
        async with stage() as scene:
            peer = await scene.peer()
            for name in ("target", "one", "two", "three"):
                await scene.store.create_segment(name)
                scene.store.segments[name].data += name.encode()
            assert await peer.ask(c.MergeSegments(1, "target", "one", "")) == c.SegmentsMerged(1, "target", "one", 9)
            assert await peer.ask(c.MergeSegments(2, "target", "one", "")) == c.SegmentsMerged(2, "target", "one", 9)
            batch = await peer.ask(c.MergeSegmentsBatch(3, "target", ("two", "three"), ""))
            assert batch == c.SegmentsBatchMerged(3, "target", ("two", "three"), (12, 17))
            missing = await peer.ask(c.MergeSegments(4, "target", "none", ""))
            assert missing == c.NoSuchSegment(4, "none", "", -1)
            await scene.store.create_segment("four")
            attribute = UUID(int=9)
            refused = AttributeUpdate(attribute, 4, 2, 1)
            assert await peer.ask(c.MergeSegments(5, "target", "four", "", (refused,))) == c.SegmentAttributeUpdated(
                5, False
            )
            done = await peer.ask(
                c.MergeSegments(6, "target", "four", "", (AttributeUpdate(attribute, 1, 1, 0), refused))
            )
            assert type(done) is c.SegmentsMerged
            assert await scene.store.get_attribute("target", attribute) == 2
            await scene.store.create_segment("five")
            await scene.store.seal("target")
            sealed = await peer.ask(c.MergeSegments(7, "target", "five", ""))
            assert sealed == c.SegmentIsSealed(7, "target", "", -1)

    run(main())


def test_transient_segments_live_as_long_as_their_connection():
    async def main():
        async with stage() as scene:
            await scene.store.create_segment(SEGMENT)
            peer = await scene.peer()
            merged = await peer.ask(c.CreateTransientSegment(1, UUID(int=5), SEGMENT, ""))
            left = await peer.ask(c.CreateTransientSegment(2, UUID(int=5), SEGMENT, ""))
            assert left.segment.startswith(f"{SEGMENT}#transient.{UUID(int=5).hex}.")
            await peer.ask(c.MergeSegments(3, SEGMENT, merged.segment, ""))
            await peer.close()
            await until(lambda: left.segment not in scene.store.segments)
            assert sorted(scene.store.segments) == [SEGMENT]

    run(main())


def test_table_requests():
    async def main():
        async with stage() as scene:
            peer = await scene.peer()
            assert await peer.ask(t.CreateTableSegment(1, "t")) == c.SegmentCreated(1, "t")
            assert await peer.ask(t.CreateTableSegment(2, "t")) == c.SegmentAlreadyExists(2, "t", "")
            repeated = tuple(WireEntry(b"k", -1, value) for value in (b"1", b"22", b"333"))
            updated = await peer.ask(t.UpdateTableEntries(3, "t", "", repeated, -1))
            assert updated == t.TableEntriesUpdated(3, (0, 19, 39))
            bad = await peer.ask(t.UpdateTableEntries(4, "t", "", (WireEntry(b"k", 19, b""),), -1))
            assert bad == t.TableKeyBadVersion(4, "t", "")
            absent = await peer.ask(t.UpdateTableEntries(5, "t", "", (WireEntry(b"none", 3, b""),), -1))
            assert absent == t.TableKeyDoesNotExist(5, "t", "")
            found = await peer.ask(t.ReadTable(6, "t", "", (WireKey(b"none", 0), WireKey(b"k", 0))))
            assert found == t.TableRead(6, "t", (WireEntry(b"none", -1, b""), WireEntry(b"k", 39, b"333")))
            offset = await peer.ask(t.UpdateTableEntries(7, "t", "", repeated, 5))
            assert offset == c.SegmentIsTruncated(7, "t", 0, "", 5)
            more = tuple(WireEntry(b"m%02d" % n, -1, b"v") for n in range(10))
            await peer.ask(t.UpdateTableEntries(8, "t", "", more, -1))
            keys, token = [], b""
            while True:
                page = await peer.ask(t.ReadTableKeys(9, "t", "", 4, token))
                if not page.keys:
                    break
                keys += [item.key for item in page.keys]
                token = bytes(page.continuation)
            assert keys == [b"k", *(entry.key for entry in more)]
            page = await peer.ask(t.ReadTableEntries(10, "t", "", 100, b"", 0, b"m02", b"m04"))
            assert [entry.key for entry in page.entries] == [b"m02", b"m03", b"m04"]
            foreign = await peer.ask(t.ReadTableEntries(11, "t", "", 100, b"foreign"))
            assert (type(foreign), foreign.code) == (c.ErrorMessage, 0)
            delta = await peer.ask(t.ReadTableEntriesDelta(12, "t", "", 0, 3))
            assert ([entry.key for entry in delta.entries], delta.reached_end) == ([b"k", b"m00", b"m01"], False)
            beyond = await peer.ask(t.ReadTableEntriesDelta(13, "t", "", 1 << 40, 3))
            assert (type(beyond), beyond.code) == (c.ErrorMessage, 0)
            info = await peer.ask(t.GetTableSegmentInfo(14, "t", ""))
            assert (info.entry_count, info.key_bytes) == (11, 0)
            assert await peer.ask(t.DeleteTableSegment(15, "t", True, "")) == t.TableSegmentNotEmpty(15, "t", "")
            gone = await peer.ask(t.RemoveTableKeys(16, "t", "", (WireKey(b"k", 39), WireKey(b"m00", -(1 << 63))), -1))
            assert gone == t.TableKeysRemoved(16, "t")
            assert await peer.ask(t.DeleteTableSegment(17, "t", False, "")) == c.SegmentDeleted(17, "t")
            assert await peer.ask(t.ReadTable(18, "t", "", ())) == c.NoSuchSegment(18, "t", "", -1)
            await peer.ask(t.CreateTableSegment(19, "fixed", "", False, 4, 0))
            wrong = await peer.ask(t.UpdateTableEntries(20, "fixed", "", (WireEntry(b"k", -1, b""),), -1))
            assert (type(wrong), wrong.code) == (c.ErrorMessage, 0)
            no_delta = await peer.ask(t.ReadTableEntriesDelta(21, "fixed", "", 0, 3))
            assert type(no_delta) is c.OperationUnsupported

    run(main())


def test_large_tables_are_listed_in_replies_that_fit():
    async def main():
        async with stage() as scene:
            peer = await scene.peer()
            await peer.ask(t.CreateTableSegment(1, "t"))
            for number in range(30):
                entry = WireEntry(b"%02d" % number, -1, bytes(1_000_000))
                await peer.ask(t.UpdateTableEntries(2, "t", "", (entry,), -1))
            keys, token = [], b""
            while True:
                page = await peer.ask(t.ReadTableEntries(3, "t", "", 1000, token))
                if not page.entries:
                    break
                keys += [entry.key for entry in page.entries]
                token = bytes(page.continuation)
            assert keys == [b"%02d" % number for number in range(30)]
            position, changed = 0, []
            while True:
                page = await peer.ask(t.ReadTableEntriesDelta(4, "t", "", position, 1000))
                changed += [entry.key for entry in page.entries]
                position = page.last_position
                if page.reached_end:
                    break
            assert changed == keys
            every = tuple(WireKey(key, -1) for key in keys)
            refused = await peer.ask(t.ReadTable(5, "t", "", every))
            assert (type(refused), refused.code) == (c.ErrorMessage, 0)

    run(main())


def test_random_garbage_closes_only_its_own_connection():
    async def main():
        rng = random.Random(77)
        async with stage() as scene:
            await scene.store.create_segment(SEGMENT)
            good, writer = await scene.writer(SEGMENT, 1)
            valid = [
                wire.encode(c.SetupAppend(1, bytes(16), SEGMENT, "")),
                wire.encode(t.ReadTable(1, "t", "", (WireKey(b"k", 1),))),
                wire.encode(end(bytes(16), b"data", 1)),
                wire.encode(c.ReadSegment(SEGMENT, 0, 10, "", 1)),
            ]
            for number in range(60):
                frame = bytearray(b"".join(rng.choices(valid, k=3)))
                for _ in range(rng.randint(1, 6)):
                    frame[rng.randrange(len(frame))] = rng.randrange(256)
                bad = await scene.peer(hello=False)
                await bad.send(bytes(frame))
                bad.writer.write_eof()
                await bad.reader.read()
                assert (await good.ask(end(writer, b"x", number))).event_number == number

    run(main())
