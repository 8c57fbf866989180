"""Thousands of reads that wait at one tail: no task for any of them, one pass for all, and appends go first."""

from __future__ import annotations

import asyncio

import pytest
from wire_notes import EVENT, S, W, notes, with_segments
from wire_peers import LOOPS, run, until

from penstock.codec.wire import commands as c

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
            woken = []
            peers = await parked(n, 4, 500)
            original = n.store.read_now

            def counting(*arguments):
                woken.append(arguments)
                return original(*arguments)

            n.store.read_now = counting
            await n.append(0)
            first = len(woken)
            await n.append(1)
            assert first < 2000, "the acknowledgement does not wait for two thousand readers"
            for peer in peers:
                assert [(await peer.receive()).rid for _ in range(500)] == list(range(500))

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
