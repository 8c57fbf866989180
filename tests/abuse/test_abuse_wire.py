"""Peers of the segment store's port that say nothing, say it slowly, lie, or send nonsense: what each costs the others."""

import asyncio
import contextlib
import sys
import time
from pathlib import Path
from uuid import UUID

import pytest

from penstock.codec.wire import commands as c
from penstock.codec.wire import frames as wire
from penstock.codec.wire import table_commands as t
from penstock.codec.wire.layout import WireKey
from penstock.ports.data.tables import ANY_VERSION, TABLE_BATCH_MAX, VALUE_MAX_BYTES, TablePut
from tests.abuse.peers import append, event

sys.path.insert(0, str(Path(__file__).parents[1] / "net"))
from wire_peers import run, stage, until

SEGMENT = "s/t/0.#epoch.0"


def pool_of(scene):
    return scene.server._share.pool


def test_who_connects_and_says_nothing_is_let_go():
    async def main():
        async with stage(hello_s=0.2, sweep_s=0.05) as scene:
            silent = await scene.peer(hello=False)
            greeted = await scene.peer()
            started = time.monotonic()
            assert await silent.closed_by_server()
            assert time.monotonic() - started < 5
            assert await greeted.ask(c.KeepAlive()) == c.KeepAlive()

    run(main())


def test_half_a_greeting_is_no_greeting():
    async def main():
        async with stage(hello_s=0.2, sweep_s=0.05) as scene:
            peer = await scene.peer(hello=False)
            await peer.send(wire.encode(c.Hello(17, 5))[:-1])
            assert await peer.closed_by_server()

    run(main())


def test_a_frame_that_does_not_arrive_in_time_ends_its_connection():
    async def main():
        async with stage(frame_s=0.2, sweep_s=0.05) as scene:
            peer = await scene.peer()
            await peer.send(wire.HEADER.pack(4, 1000) + bytes(100))
            assert await peer.closed_by_server()

    run(main())


def test_a_block_without_its_end_ends_its_connection():
    async def main():
        async with stage(frame_s=0.2, sweep_s=0.05) as scene:
            await scene.store.create_segment(SEGMENT)
            peer, writer = await scene.writer(SEGMENT, 1)
            await peer.send(c.AppendBlock(writer, bytes(100)))
            assert await peer.closed_by_server()

    run(main())


def test_a_trickle_that_finishes_its_frames_is_served():
    async def main():
        async with stage(frame_s=0.5, hello_s=0.3, sweep_s=0.02) as scene:
            peer = await scene.peer()
            frame = wire.encode(c.GetStreamSegmentInfo(1, "absent/t/0.#epoch.0"))
            for _ in range(3):
                for at in range(0, len(frame), 8):
                    await peer.send(frame[at : at + 8])
                    await asyncio.sleep(0.03)
                assert isinstance(await peer.receive(), c.NoSuchSegment)

    run(main())


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_parts_of_large_frames_take_no_more_than_their_share_and_the_first_one_gets_through(loop):
    async def main():
        size = 1 << 20
        async with stage(receiving_bytes=2 << 20, frame_crowded_s=30) as scene:
            await scene.store.create_segment(SEGMENT)
            peers = []
            frames = []
            for number in range(12):
                peer, writer = await scene.writer(SEGMENT, number + 1)
                peers.append(peer)
                frames.append(append(writer, event(bytes(size - 8)), 0))
            half = len(frames[0]) - 1000
            sends = [asyncio.ensure_future(peer.send(frame[:half])) for peer, frame in zip(peers, frames, strict=True)]
            await asyncio.wait(sends, timeout=0.5)
            share = scene.server._share
            await until(lambda: share.turns.crowded)
            # The frame that went beyond, and one small step of the socket for each connection.
            assert share.turns.held_bytes <= (2 << 20) + size + 12 * (64 << 10)
            ends = [
                asyncio.ensure_future(_finish(send, peer, frame[half:]))
                for send, peer, frame in zip(sends, peers, frames, strict=True)
            ]
            answers = await asyncio.gather(*ends)
            assert all(isinstance(answer, c.DataAppended) for answer in answers)
            assert not share.turns.held_bytes
            assert not share.turns.connections

    run(main(), loop)


async def _finish(send, peer, rest):
    await send
    return await peer.ask(rest)


def test_who_holds_up_others_with_a_frame_that_does_not_end_is_let_go():
    async def main():
        async with stage(receiving_bytes=1 << 20, frame_crowded_s=0.3, sweep_s=0.05) as scene:
            await scene.store.create_segment(SEGMENT)
            stuck = []
            for number in range(3):
                peer, writer = await scene.writer(SEGMENT, 100 + number)
                await peer.send(append(writer, event(bytes((1 << 20) - 8)), 0)[:-1000])
                stuck.append(peer)
            honest, writer = await scene.writer(SEGMENT, 1)
            answer = await honest.ask(append(writer, event(bytes((1 << 20) - 8)), 0))
            assert isinstance(answer, c.DataAppended)
            assert await stuck[0].closed_by_server()

    run(main())


def test_many_that_stall_hold_up_a_writer_for_moments_each():
    async def main():
        async with stage(receiving_bytes=1 << 20, turn_s=0.05) as scene:
            await scene.store.create_segment(SEGMENT)
            stuck = []
            for number in range(20):
                peer, writer = await scene.writer(SEGMENT, 100 + number)
                sending = asyncio.ensure_future(peer.send(append(writer, event(bytes((1 << 20) - 8)), 0)[:-1000]))
                stuck.append((peer, sending))
            await asyncio.wait([sending for _, sending in stuck], timeout=0.5)
            honest, writer = await scene.writer(SEGMENT, 1)
            started = time.monotonic()
            answer = await honest.ask(append(writer, event(bytes((1 << 20) - 8)), 0))
            assert isinstance(answer, c.DataAppended)
            assert time.monotonic() - started < 10
            assert not scene.server._share.turns.contested
            for _, sending in stuck:
                sending.cancel()
            await asyncio.wait([sending for _, sending in stuck])

    run(main())


def test_a_connection_that_is_quiet_holds_no_receive_memory():
    async def main():
        async with stage(sweep_s=0.02) as scene:
            peers = [await scene.peer() for _ in range(20)]
            pool = pool_of(scene)
            await until(lambda: all(one._receiver._arena is None for one in scene.server._share.connections))
            pool.give_back()
            assert pool.pooled_bytes == 0
            for peer in peers:
                assert await peer.ask(c.KeepAlive()) == c.KeepAlive()

    run(main())


def test_nonsense_is_slowed_down_once_there_is_much_of_it():
    async def main():
        async with stage(errors_per_s=3, penalty_s=0.4) as scene:
            took = []
            for _ in range(6):
                peer = await scene.peer()
                await peer.send(wire.HEADER.pack(12345, 8))
                started = time.monotonic()
                with contextlib.suppress(ConnectionError):  # cut, not closed
                    assert await peer.closed_by_server()
                took.append(time.monotonic() - started)
            assert max(took[:3]) < 0.4 <= min(took[3:5])

    run(main())


def test_a_full_server_lets_the_silent_go_for_those_who_speak():
    async def main():
        async with stage(connections=3) as scene:
            silent = [await scene.peer(hello=False) for _ in range(3)]
            await until(lambda: len(scene.server._share.connections) == 3)
            speaker = await scene.peer()
            assert await speaker.ask(c.KeepAlive()) == c.KeepAlive()
            with contextlib.suppress(ConnectionError):  # cut, not closed
                assert await silent[0].closed_by_server()

    run(main())


ABSURD = {
    "a negative length": wire.HEADER.pack(1, -1),
    "a length beyond every frame": wire.HEADER.pack(4, wire.FRAME_MAX_BYTES + 1),
    "no such command": wire.HEADER.pack(12345, 0),
    "a reply as a request": wire.encode(c.SegmentSealed(1, SEGMENT)),
    "a body cut short": wire.HEADER.pack(1, 3) + b"abc",
    "a count without its items": wire.HEADER.pack(74, 23) + bytes(8) + b"\x00\x01s\x00\x00\x7f\xff\xff\xff" + bytes(6),
    "an append of nobody": append(UUID(int=9).bytes, b"data", 1),
    "another protocol": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.mark.parametrize("case", ABSURD)
def test_what_no_protocol_allows_ends_its_connection_and_no_other(case):
    async def main():
        async with stage() as scene:
            peer, other = await scene.peer(), await scene.peer()
            await peer.send(ABSURD[case])
            assert await peer.closed_by_server()
            assert await other.ask(c.KeepAlive()) == c.KeepAlive()
            assert scene.telemetry.counts["wire_protocol_errors"] == 1

    run(main())


def test_reads_that_wait_keep_neither_tokens_nor_a_name_each():
    async def main():
        async with stage() as scene:
            name = "s/" + "t" * 4000 + "/0.#epoch.0"
            await scene.store.create_segment(name)
            peer = await scene.peer()
            await peer.send(*[c.ReadSegment(name, 0, 1024, "x" * 60_000, rid) for rid in range(20)])
            await until(lambda: scene.store.waiting_reads == 20)
            (connection,) = scene.server._share.connections
            waiting = list(connection._reads.parked.values())
            assert [command.token for command in waiting] == [""] * 20
            assert len({id(command.segment) for command in waiting}) == 1

    run(main())


TABLE = "s/h_kvtable/0.#epoch.0"
LARGE_ENTRIES = 40


@contextlib.asynccontextmanager
async def large_table(**limits):
    """A server of a table whose entries do not fit into a frame together, and how many it was asked for at a time."""
    async with stage(**limits) as scene:
        await scene.store.create_table(TABLE)
        value = bytes(VALUE_MAX_BYTES)
        puts = [TablePut(key=b"%03d" % number, value=value) for number in range(LARGE_ENTRIES)]
        await scene.store.table_update(TABLE, puts)
        asked = []
        for method in ("table_get", "table_scan", "table_delta"):
            _count_answers(scene.store, method, asked)
        yield scene, asked


def _count_answers(store, method, asked):
    original = getattr(type(store), method)

    async def counting(*arguments, **named):
        found = await original(store, *arguments, **named)
        asked.append(len(getattr(found, "entries", found)))
        return found

    setattr(store, method, counting)


def large_requests():
    keys = tuple(WireKey(b"%03d" % (number % LARGE_ENTRIES), ANY_VERSION) for number in range(TABLE_BATCH_MAX))
    return {
        "get": t.ReadTable(1, TABLE, "", keys),
        "scan": t.ReadTableEntries(1, TABLE, "", 1000, b"", 0, b"", b""),
        "keys": t.ReadTableKeys(1, TABLE, "", 1000, b"", 0, b"", b""),
        "delta": t.ReadTableEntriesDelta(1, TABLE, "", 0, 1000),
    }


@pytest.mark.parametrize("case", large_requests())
def test_no_request_gathers_more_of_a_table_than_a_reply_holds(case):
    async def main():
        async with large_table() as (scene, asked):
            peer = await scene.peer()
            answer = await peer.ask(large_requests()[case])
            if case == "get":
                assert isinstance(answer, c.ErrorMessage)
            else:
                assert 0 < len(answer.keys if case == "keys" else answer.entries) < LARGE_ENTRIES
            assert max(asked) <= 4
            assert sum(asked) <= 24

    run(main())


def test_a_delta_of_large_entries_is_read_to_its_end_page_by_page():
    async def main():
        async with large_table() as (scene, _):
            peer = await scene.peer()
            position, keys = 0, []
            while True:
                answer = await peer.ask(t.ReadTableEntriesDelta(1, TABLE, "", position, 1000))
                keys += [bytes(item.key) for item in answer.entries]
                position = answer.last_position
                if answer.reached_end:
                    break
            assert keys == [b"%03d" % number for number in range(LARGE_ENTRIES)]

    run(main())


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_peers_that_do_not_collect_large_replies_hold_little_and_make_room_for_others(loop):
    async def main():
        limits = {"replies_bytes": 1 << 20, "write_buffer_bytes": 256 << 10, "frame_crowded_s": 0.3}
        async with large_table(**limits) as (scene, asked):
            stuck = [await scene.peer() for _ in range(3)]
            for peer in stuck:
                await peer.send(*[large_requests()["scan"] for _ in range(50)])
            large = scene.server._share.large
            await until(lambda: large.unsent_bytes >= 1 << 20)
            assert large.unsent_bytes <= 3 << 20
            # What the kernel takes aside: some megabytes for each, of the 150 that were asked for.
            assert sum(asked) <= 200
            honest = await scene.peer()
            answer = await honest.ask(large_requests()["scan"])
            assert answer.entries

    run(main(), loop)


def test_while_memory_is_short_what_is_kept_of_an_append_keeps_no_receive_buffer():
    async def main():
        async with stage() as scene:
            await scene.store.create_segment(SEGMENT)
            kept = []
            submit = scene.store.submit_append
            scene.store.submit_append = lambda request, done: (kept.append(request.data), submit(request, done))
            peer, writer = await scene.writer(SEGMENT, 1)
            for number, is_short in enumerate((False, True)):
                scene.server.memory_is_short(is_short)
                await peer.ask(append(writer, event(bytes(20_000)), number))
            assert [type(data) for data in kept] == [memoryview, bytes]

    run(main())


def test_writers_of_all_connections_are_bounded_and_make_room_when_they_go():
    async def main():
        async with stage(writers_total=3) as scene:
            await scene.store.create_segment(SEGMENT)
            first, _ = await scene.writer(SEGMENT, 1)
            await scene.writer(SEGMENT, 2, peer=first)
            # One that is not set up takes no place, and one that is set up again no second.
            assert isinstance(await first.ask(c.SetupAppend(1, UUID(int=9).bytes, "absent/t/0", "")), c.NoSuchSegment)
            await scene.writer(SEGMENT, 2, peer=first)
            second, _ = await scene.writer(SEGMENT, 3)
            await second.send(c.SetupAppend(1, UUID(int=4).bytes, SEGMENT, ""))
            assert await second.closed_by_server()
            await until(lambda: scene.server._share.writers == 2)
            await first.close()
            await until(lambda: scene.server._share.writers == 0)

    run(main())
