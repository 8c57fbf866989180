"""Thousands of reads that wait at one tail: no task for any of them, one pass for all, and appends go first."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from wire_notes import EVENT, S, W, notes, with_segments
from wire_peers import LOOPS, run, until

from penstock.codec.wire import commands as c
from penstock.codec.wire.frames import encode
from penstock.net.wire.share import Answer
from penstock.ports.data.segments import SegmentRead

both_loops = pytest.mark.parametrize("loop", sorted(LOOPS))


async def parked(n, readers, each):
    """Peers with reads that wait at the tail of ``S``."""
    peers = [await n.scene.peer() for _ in range(readers)]
    tasks = len(asyncio.all_tasks())
    for peer in peers:
        await peer.send(*[c.ReadSegment(S, 0, 1 << 20, "", rid) for rid in range(each)])
    await until(lambda: waiting(n) == readers * each)
    assert len(asyncio.all_tasks()) == tasks, "waiting takes no task"
    return peers


def waiting(n):
    return sum(container.reads.parked for container in n.store.containers)


@both_loops
def test_one_append_answers_all_in_the_order_in_which_they_came(loop):
    async def main():
        async with notes() as n:
            await with_segments(n)
            await n.setup()
            peers = await parked(n, 10, 50)
            await n.append(0)
            for peer in peers:
                for rid in range(50):
                    reply = await peer.receive()
                    assert (reply.rid, bytes(reply.data), reply.at_tail) == (rid, EVENT, True)
            assert waiting(n) == 0

    run(main(), loop)


def test_appends_are_acknowledged_while_readers_are_still_being_woken():
    async def main():
        async with notes() as n:
            await with_segments(n)
            await n.setup()
            peers = await parked(n, 4, 500)
            passes = count_reads(n.store)
            await n.append(0)
            first = len(passes)
            for peer in peers:
                assert [(await peer.receive()).rid for _ in range(500)] == list(range(500))
            assert 0 < first < len(passes), "the acknowledgement does not wait for two thousand readers"
            assert len(passes) <= 20, "the store is asked once for all reads that are resumed together"

    run(main())


def count_reads(store):
    asked, read_now = [], store.read_now

    def counting(*arguments):
        asked.append(arguments)
        return read_now(*arguments)

    store.read_now = counting
    return asked


def test_readers_of_one_place_do_not_affect_each_other():
    async def main():
        async with notes() as n:
            await with_segments(n)
            await n.setup()
            big = b"\0\0\0\0\0\1\0\0" + bytes(1 << 16)
            all_of_it, little, leaves, twice = [await n.scene.peer() for _ in range(4)]
            await all_of_it.send(c.ReadSegment(S, 0, 1 << 20, "", 1 << 40))
            await little.send(c.ReadSegment(S, 0, 9, "", 2))
            await leaves.send(c.ReadSegment(S, 0, 1 << 20, "", 3))
            await twice.send(c.ReadSegment(S, 0, 1 << 20, "", 4), c.ReadSegment(S, 0, 20, "", 5))
            await until(lambda: waiting(n) == 5)
            await leaves.close()
            await until(lambda: waiting(n) == 4)
            await n.append(0, big)
            replies = [await all_of_it.receive(), await little.receive(), await twice.receive(), await twice.receive()]
            assert [(one.rid, len(one.data), one.at_tail) for one in replies] == [
                (1 << 40, len(big), True),
                (2, 9, False),
                (4, len(big), True),
                (5, 20, False),
            ]
            assert all(bytes(one.data) == big[: len(one.data)] for one in replies)

    run(main())


@both_loops
def test_a_reader_that_does_not_collect_its_replies_delays_no_other(loop):
    async def main():
        async with notes() as n:
            await with_segments(n)
            await n.setup()
            big = b"\0\0\0\0\0\x0f\0\0" + bytes(15 << 16)
            slow, quick = await n.scene.peer(), await n.scene.peer()
            for rid in range(64):
                slow.writer.write(encode(c.ReadSegment(S, 0, 1 << 20, "", rid)))
            await until(lambda: waiting(n) == 64)
            await quick.send(c.ReadSegment(S, 0, 1 << 20, "", 1))
            await until(lambda: waiting(n) == 65)
            await n.append(0, big)
            assert bytes((await quick.receive()).data) == big
            await quick.send(c.ReadSegment(S, len(big), 100, "", 2))
            await n.append(1)
            assert bytes((await quick.receive()).data) == EVENT
            assert sorted([(await slow.receive()).rid for _ in range(64)]) == list(range(64))

    run(main(), loop)


def test_an_answer_is_not_used_again_in_a_later_pass():
    """Then the segment may have been truncated, erased or deleted."""

    async def main():
        async with notes() as n:
            await with_segments(n)
            await n.setup()
            (peer,) = await parked(n, 1, 1000)
            asked, read_now = [], n.store.read_now

            def changing(*arguments):
                asked.append(arguments)
                found = read_now(*arguments)
                return found if len(asked) == 1 else replace(found, parts=(b"changed",))

            n.store.read_now = changing
            await n.append(0)
            found = [bytes((await peer.receive()).data) for _ in range(1000)]
            first = found.count(EVENT)
            assert 0 < first < 500
            assert found == [EVENT] * first + [b"changed"] * (1000 - first)

    run(main())


def test_a_connection_that_ends_leaves_no_watcher_behind():
    async def main():
        async with notes() as n:
            await with_segments(n)
            peers = await parked(n, 3, 20)
            await peers[1].close()
            await until(lambda: waiting(n) == 40)
            await n.setup()
            await n.append(0)
            for peer in (peers[0], peers[2]):
                assert bytes((await peer.receive()).data) == EVENT

    run(main())


def test_a_read_woken_by_another_change_goes_on_waiting():
    async def main():
        async with notes() as n:
            await with_segments(n)
            await n.setup()
            # Beyond the tail, as with the position of an older life of the segment.
            await n.peer.send(c.ReadSegment(S, len(EVENT) + 1, 100, "", 1))
            await until(lambda: waiting(n) == 1)
            other = await n.scene.peer()
            await other.ask(c.SetupAppend(1, W, S, ""))
            await other.ask(c.AppendBlockEnd(W, len(EVENT), EVENT, 1, 0, 2))
            await until(lambda: waiting(n) == 1)
            await other.ask(c.AppendBlockEnd(W, len(EVENT), EVENT, 1, 1, 3))
            reply = await n.peer.receive()
            assert (reply.offset, bytes(reply.data)) == (len(EVENT) + 1, EVENT[1:])

    run(main())


@pytest.mark.parametrize("size_bytes", [100, 100_000])
def test_a_copied_answer_holds_no_memory_of_the_cache(size_bytes):
    memory = bytearray(size_bytes)
    found = SegmentRead(offset=0, parts=(memoryview(memory),), at_tail=True, end_of_segment=False)
    answer = Answer(S, found, copied=True)
    del found
    memory.append(1)  # raises BufferError while a view is left
    sent = b"".join(answer.to(7))
    assert sent == encode(c.SegmentRead(S, 0, True, False, bytes(size_bytes), 7))
    assert answer.size_bytes == len(sent)
    assert answer.data_bytes == size_bytes


def test_a_connection_that_ends_while_its_read_is_woken_affects_no_other():
    async def main():
        async with notes() as n:
            await with_segments(n)
            await n.setup()
            first, second = await parked(n, 2, 2)
            tails = n.scene.server._share.tails
            woken = []
            resume = tails._resume

            def closing():
                if not woken:
                    woken.extend(side for _, side, _ in tails._woken)
                    woken[0].close()
                resume()

            tails._resume = closing
            await n.append(0)
            assert [bytes((await second.receive()).data) for _ in range(2)] == [EVENT] * 2
            assert len(woken) == 4
            assert waiting(n) == 0
            await first.send(c.ReadSegment(S, 0, 1 << 20, "", 9))
            assert (await first.receive()).rid == 9

    run(main())


@both_loops
def test_a_slow_peer_that_vanishes_takes_no_room_for_replies_from_others(loop):
    async def main():
        async with notes() as n:
            await with_segments(n)
            await n.setup()
            share = n.scene.server._share
            whole = share.reply_bytes
            big = b"\0\0\0\0\0\x0f\0\0" + bytes(15 << 16)
            peers = await parked(n, 6, 64)
            for peer in peers:
                peer.writer.transport.pause_reading()
            await n.append(0, big)
            await until(lambda: len(share.sending) == len(peers))
            assert share.reply_bytes < whole
            for peer in peers:
                peer.writer.transport.abort()
            await until(lambda: len(share.connections) == 1)
            assert (len(share.sending), share.reply_bytes) == (0, whole)

    run(main(), loop)
