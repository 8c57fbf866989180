"""A remote store keeps the promises of ``SegmentService``, over real sockets."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from uuid import UUID

import pytest
from wire_memory_store import MemorySegments, OneEndpoint
from wire_peers import LOOPS, remote, run, stage, until

from penstock.app.telemetry import Counters
from penstock.model.errors import (
    AlreadyExistsError,
    BadKeyVersionError,
    ConditionFailedError,
    ContainerOfflineError,
    EventTooLargeError,
    InternalError,
    InvalidArgumentError,
    KeyNotFoundError,
    NotConnectedError,
    NotEmptyError,
    SegmentNotFoundError,
    SegmentSealedError,
    StorageFullError,
    TruncatedError,
    UnsupportedError,
    WriterFencedError,
)
from penstock.net.dial.segments import DialLimits, RemoteSegments
from penstock.net.wire.wire_server import WireServer
from penstock.ports.data.segments import NO_EVENT, Append
from penstock.ports.data.tables import ANY_VERSION, KEY_ABSENT, TableKind, TablePut, TableRemoval
from penstock.storage.machine.rng import RealRng

SEGMENT = "s/t/0.#epoch.0"
WRITER = UUID(int=7)
both_loops = pytest.mark.parametrize("loop", sorted(LOOPS))


@asynccontextmanager
async def pair(**limits):
    async with stage() as scene, remote(scene.server, scene.store, **limits) as segments:
        await scene.store.create_segment(SEGMENT)
        yield scene, segments


def append(number, data, *, previous=None, expected=None, segment=SEGMENT, writer=WRITER):
    previous = (number - 1 if number else NO_EVENT) if previous is None else previous
    return Append(
        segment=segment,
        writer=writer,
        data=data,
        event_number=number,
        previous=previous,
        expected_offset=expected,
    )


async def stored(segments, name):
    read = await segments.read(name, 0, 1 << 20, wait=False)
    return b"".join(bytes(part) for part in read.parts)


@both_loops
def test_segments(loop):
    async def main():
        async with pair() as (_scene, segments):
            await segments.create_segment("a/b/1")
            with pytest.raises(AlreadyExistsError):
                await segments.create_segment("a/b/1")
            assert await segments.setup_append(SEGMENT, WRITER) == NO_EVENT
            ends = [(await segments.append(append(number, b"0123456789"))).end_offset for number in range(3)]
            assert ends == [10, 20, 30]
            assert await segments.setup_append(SEGMENT, WRITER) == 2
            info = await segments.info(SEGMENT)
            assert (info.start_offset, info.length, info.sealed, info.last_modified_ms) == (0, 30, False, 1234)
            assert await segments.next_event_boundary(SEGMENT, 11) == 20
            await segments.truncate(SEGMENT, 10)
            await segments.truncate(SEGMENT, 5)
            with pytest.raises(InvalidArgumentError):
                await segments.truncate(SEGMENT, 31)
            with pytest.raises(TruncatedError) as caught:
                await segments.read(SEGMENT, 9, 10)
            assert caught.value.start_offset == 10
            assert await segments.seal(SEGMENT) == 30
            with pytest.raises(SegmentSealedError):
                await segments.append(append(3, b"x"))
            with pytest.raises(SegmentSealedError):
                await segments.append(append(3, b"x"))
            assert await segments.setup_append(SEGMENT, WRITER) == 2
            await segments.delete(SEGMENT)
            for call in (
                segments.info(SEGMENT),
                segments.delete(SEGMENT),
                segments.read(SEGMENT, 0, 10),
                segments.append(append(3, b"x")),
                segments.setup_append(SEGMENT, UUID(int=99)),
            ):
                with pytest.raises(SegmentNotFoundError):
                    await call

    run(main(), loop)


@both_loops
def test_many_appends_of_many_writers_are_in_flight_together(loop):
    async def main():
        async with pair() as (scene, segments):
            names = [SEGMENT, "s/t/1", "s/t/2"]
            for name in names[1:]:
                await segments.create_segment(name)
            for name in names:
                for number in (1, 2):
                    await segments.setup_append(name, UUID(int=number))
            scene.store.shut_gate()

            async def write(name, writer):
                waits = [
                    asyncio.ensure_future(
                        segments.append(append(number, b"%03d." % number, segment=name, writer=writer))
                    )
                    for number in range(100)
                ]
                return [(await wait).end_offset for wait in waits]

            async with asyncio.TaskGroup() as group:
                # One writer id on several segments at once, and several writers on one segment.
                tasks = [group.create_task(write(name, UUID(int=i))) for i in (1, 2) for name in names]
                await until(lambda: scene.store.pending == 600)
                scene.store.open_gate()
            assert all(task.result() == sorted(set(task.result())) for task in tasks)
            for name in names:
                assert len(scene.store.segments[name].data) == 800
                assert scene.store.segments[name].writers == {UUID(int=1): 99, UUID(int=2): 99}

    run(main(), loop)


@both_loops
def test_large_appends_and_reads(loop):
    async def main():
        async with pair() as (scene, segments):
            sizes = [9 << 20, (1 << 24) - 1, 1, (1 << 24) - 60, 3 << 20]
            blocks = [bytes([number]) * size for number, size in enumerate(sizes)]
            await asyncio.gather(*(segments.append(append(number, block)) for number, block in enumerate(blocks)))
            assert scene.store.segments[SEGMENT].data == b"".join(blocks)
            with pytest.raises(InvalidArgumentError):
                await segments.append(append(9, bytes(1 << 24), previous=4))
            offset, seen = 0, bytearray()
            while offset < sum(sizes):
                read = await segments.read(SEGMENT, offset, 8 << 20)
                assert read.offset == offset
                for part in read.parts:
                    seen += part
                    offset += len(part)
            assert seen == scene.store.segments[SEGMENT].data

    run(main(), loop)


def test_an_append_that_does_not_continue_is_fenced_and_those_before_are_not():
    async def main():
        async with pair() as (scene, segments):
            await segments.append(append(0, b"a"))
            outcomes = await asyncio.gather(
                segments.append(append(1, b"b")),
                segments.append(append(5, b"x", previous=3)),
                segments.append(append(2, b"c")),
                return_exceptions=True,
            )
            assert [type(one).__name__ for one in outcomes] == ["Appended", "WriterFencedError", "Appended"]
            assert await stored(segments, SEGMENT) == b"abc"
            # Another client takes the writer over: this one hears of it.
            async with remote(scene.server, scene.store) as other:
                assert await other.setup_append(SEGMENT, WRITER) == 2
                await other.append(append(3, b"d"))
            with pytest.raises(WriterFencedError):
                await segments.append(append(3, b"no"))
            await until(lambda: len(scene.server._share.connections) <= 2)
            assert await segments.setup_append(SEGMENT, WRITER) == 3
            assert (await segments.append(append(4, b"e"))).end_offset == 5

    run(main())


def test_conditional_appends():
    async def main():
        async with pair() as (_scene, segments):
            outcomes = await asyncio.gather(
                segments.append(append(0, b"aa", expected=0)),
                segments.append(append(1, b"bb", expected=2)),
                segments.append(append(2, b"cc", expected=99)),
                segments.append(append(3, b"dd", previous=2)),
                segments.append(append(3, b"ee", previous=1)),
                return_exceptions=True,
            )
            kinds = [type(one).__name__ for one in outcomes]
            assert kinds == ["Appended", "Appended", "ConditionFailedError", "WriterFencedError", "Appended"]
            assert await stored(segments, SEGMENT) == b"aabbee"
            with pytest.raises(ConditionFailedError):
                await segments.append(append(4, b"", expected=99))
            assert (await segments.append(append(4, b"ff", expected=6))).end_offset == 8

    run(main())


@pytest.mark.parametrize(
    "bad", [{"event_count": 0}, {"event_number": NO_EVENT}, {"event_number": 3, "previous": 3}, {"previous": 9}]
)
def test_appends_that_no_store_takes_are_refused_here(bad):
    async def main():
        async with pair() as (_, segments):
            request = append(0, b"x")
            for name, value in bad.items():
                setattr(request, name, value)
            with pytest.raises(InvalidArgumentError):
                await segments.append(request)

    run(main())


@both_loops
def test_reads_wait_and_do_not_wait(loop):
    async def main():
        async with pair() as (scene, segments):
            empty = await segments.read(SEGMENT, 0, 10, wait=False)
            assert (empty.parts, empty.at_tail, empty.end_of_segment) == ((), True, False)
            waiting = asyncio.ensure_future(segments.read(SEGMENT, 0, 3))
            await until(lambda: scene.store.waiting_reads == 1)
            await segments.append(append(0, b"0123456789"))
            read = await waiting
            # The wire's smallest read is eight bytes; the caller gets what it asked for.
            assert (b"".join(read.parts), read.at_tail) == (b"012", False)
            waiting = asyncio.ensure_future(segments.read(SEGMENT, 10, 100))
            await until(lambda: scene.store.waiting_reads == 1)
            await segments.seal(SEGMENT)
            assert (await waiting).end_of_segment
            end = await segments.read(SEGMENT, 10, 100, wait=False)
            assert (end.parts, end.at_tail, end.end_of_segment) == ((), False, True)
            for wait in (True, False):
                with pytest.raises(InvalidArgumentError):
                    await segments.read(SEGMENT, 11, 100, wait=wait)

    run(main(), loop)


def test_a_cancelled_read_is_taken_over_by_the_next_of_its_place():
    async def main():
        async with pair() as (scene, segments):
            for _ in range(5):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.02):
                        await segments.read(SEGMENT, 0, 100)
            assert scene.store.waiting_reads == 1
            waiting = asyncio.ensure_future(segments.read(SEGMENT, 0, 100))
            await scene.settle()
            assert scene.store.waiting_reads == 1
            await segments.append(append(0, b"data"))
            assert b"".join((await waiting).parts) == b"data"

    run(main())


def test_a_read_returns_nothing_that_was_gone_when_it_began():
    async def main():
        async with pair() as (scene, segments):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await segments.read(SEGMENT, 0, 100)
            await scene.store.append(append(0, b"data"))
            await scene.store.truncate(SEGMENT, 4)
            # The answer to the cancelled read is on its way, with bytes that nobody may be given any more.
            with pytest.raises(TruncatedError):
                await segments.read(SEGMENT, 0, 100)

    run(main())


def test_too_many_cancelled_reads_replace_their_connection_and_live_ones_go_on():
    async def main():
        async with pair(abandoned_reads=3, read_connections=1) as (scene, segments):
            names = [f"s/many/{number}" for number in range(6)]
            for name in names:
                await segments.create_segment(name)
            live = asyncio.ensure_future(segments.read(SEGMENT, 0, 100))
            await until(lambda: scene.store.waiting_reads == 1)
            for name in names:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.03):
                        await segments.read(name, 0, 100)
            await until(lambda: scene.store.waiting_reads <= 4)
            await segments.append(append(0, b"data"))
            assert b"".join((await live).parts) == b"data"

    run(main())


def test_transients_merges_and_attributes():
    async def main():
        async with pair() as (_scene, segments):
            name = await segments.create_transient(SEGMENT, WRITER)
            assert await segments.setup_append(name, WRITER) == NO_EVENT
            await segments.append(append(0, b"large", expected=0, segment=name))
            assert await segments.merge(SEGMENT, name) == 5
            assert await segments.merge(SEGMENT, name) == 5
            with pytest.raises(SegmentNotFoundError):
                await segments.merge(SEGMENT, "none")
            attribute = UUID(int=3)
            assert await segments.get_attribute(SEGMENT, attribute) == NO_EVENT
            assert await segments.update_attribute(SEGMENT, attribute, 5, expected=NO_EVENT)
            assert not await segments.update_attribute(SEGMENT, attribute, 6, expected=4)
            assert await segments.update_attribute(SEGMENT, attribute, 7, expected=None)
            assert await segments.get_attribute(SEGMENT, attribute) == 7
            await segments.seal(SEGMENT)
            other = await segments.create_transient(SEGMENT, WRITER)
            with pytest.raises(SegmentSealedError):
                await segments.merge(SEGMENT, other)

    run(main())


def test_tables():
    async def main():
        async with pair() as (_, segments):
            await segments.create_table("t")
            with pytest.raises(AlreadyExistsError):
                await segments.create_table("t")
            puts = [TablePut(key=b"k%03d" % n, value=b"v", version=KEY_ABSENT) for n in range(200)]
            versions = await segments.table_update("t", puts)
            assert list(versions) == sorted(set(versions))
            with pytest.raises(BadKeyVersionError):
                await segments.table_update("t", puts[:1])
            with pytest.raises(KeyNotFoundError):
                await segments.table_update("t", [TablePut(key=b"none", value=b"", version=5)])
            found = await segments.table_get("t", [b"none", b"k007"])
            assert [(item.version, item.value) for item in found] == [(KEY_ABSENT, b""), (versions[7], b"v")]
            keys, after = [], None
            while page := await segments.table_scan("t", after=after, limit=70):
                keys += [item.key for item in page]
                after = keys[-1]
            assert keys == [put.key for put in puts]
            page = await segments.table_scan("t", after=None, limit=9, first=b"k010", last=b"k012")
            assert [item.key for item in page] == [b"k010", b"k011", b"k012"]
            delta = await segments.table_delta("t", 0, 10)
            assert (len(delta.entries), delta.reached_end, delta.should_clear) == (10, False, False)
            rest = await segments.table_delta("t", delta.position, 1000)
            assert (len(rest.entries), rest.reached_end) == (190, True)
            with pytest.raises(InvalidArgumentError):
                await segments.table_delta("t", rest.position + 1, 10)
            info, count, key_bytes = await segments.table_info("t")
            assert (info.length, count, key_bytes) == (rest.position, 200, 0)
            with pytest.raises(NotEmptyError):
                await segments.delete_table("t", must_be_empty=True)
            await segments.table_remove(
                "t", [TableRemoval(key=b"k000"), TableRemoval(key=b"gone", version=ANY_VERSION)]
            )
            with pytest.raises(KeyNotFoundError):
                await segments.table_remove("t", [TableRemoval(key=b"k000", version=0)])
            for put, error in (
                (TablePut(key=bytes(9000), value=b""), EventTooLargeError),
                (TablePut(key=b"k", value=bytes(1 << 20)), EventTooLargeError),
            ):
                with pytest.raises(error):
                    await segments.table_update("t", [put])
            with pytest.raises(InvalidArgumentError):
                await segments.table_update("t", [TablePut(key=b"k", value=b"")] * 257)
            await segments.delete_table("t")
            with pytest.raises(SegmentNotFoundError):
                await segments.table_get("t", [b"k"])
            await segments.create_table("sorted", kind=TableKind.SORTED, key_bytes=2)
            with pytest.raises(InvalidArgumentError):
                await segments.table_update("sorted", [TablePut(key=b"k", value=b"")])
            with pytest.raises(UnsupportedError):
                await segments.table_delta("sorted", 0, 10)
            with pytest.raises(InvalidArgumentError):
                await segments.create_table("odd", kind=TableKind.SORTED)

    run(main())


def test_large_values_are_fetched_in_as_many_replies_as_they_need():
    async def main():
        async with pair() as (_, segments):
            await segments.create_table("t")
            keys = [b"%02d" % number for number in range(40)]
            for key in keys:
                await segments.table_update("t", [TablePut(key=key, value=key * 500_000)])
            found = await segments.table_get("t", [*keys, b"none"])
            assert [item.key for item in found] == [*keys, b"none"]
            assert all(item.value == item.key * 500_000 for item in found[:-1])

    run(main())


def test_what_the_wire_lacks_is_asked_natively():
    async def main():
        async with pair() as (scene, segments):
            (chunk,) = await segments.chunk_ranges(SEGMENT, 3, 9)
            assert (chunk.start_offset, chunk.end_offset) == (3, 9)
            lease = UUID(int=4)
            await segments.lease_chunks([SEGMENT], lease, until_ms=5)
            assert scene.store.leases == {lease: [SEGMENT]}
            await segments.release_lease(lease)
            assert not scene.store.leases
            await segments.lease_chunks([SEGMENT], lease, until_ms=5)
            await segments.finish_lease_part(lease, 0, 1)
            assert not scene.store.leases
            assert list(await segments.spaces([SEGMENT, "none"])) == [SEGMENT]
            together = await segments.infos([SEGMENT, "none"])
            assert list(together) == [SEGMENT]

    run(main())


@both_loops
def test_a_lost_connection_fails_what_is_in_flight_and_setup_tells_what_is_stored(loop):
    async def main():
        async with pair() as (scene, segments):
            await segments.append(append(0, b"a"))
            scene.store.shut_gate()
            waits = [asyncio.ensure_future(segments.append(append(number, b"b"))) for number in (1, 2, 3)]
            await until(lambda: scene.store.pending == 3)
            for connection in list(scene.server._share.connections):
                connection.abort()
            for wait in waits:
                with pytest.raises(NotConnectedError):
                    await wait
            setup = asyncio.ensure_future(segments.setup_append(SEGMENT, WRITER))
            await until(lambda: len(scene.server._share.connections) >= 1)
            scene.store.open_gate()
            assert await setup == 3
            await segments.append(append(4, b"c"))
            assert await stored(segments, SEGMENT) == b"abbbc"

    run(main(), loop)


def test_an_append_after_a_lost_connection_sets_its_writer_up_and_compares():
    async def main():
        async with pair() as (scene, segments):
            await segments.append(append(0, b"a"))
            for connection in list(scene.server._share.connections):
                connection.abort()
            await until(lambda: not scene.server._share.connections)
            outcomes = await asyncio.gather(
                *(segments.append(append(number, b"b")) for number in (1, 2)), return_exceptions=True
            )
            if any(isinstance(one, NotConnectedError) for one in outcomes):
                outcomes = await asyncio.gather(*(segments.append(append(number, b"b")) for number in (1, 2)))
            assert [one.end_offset for one in outcomes] == [2, 3]
            assert await stored(segments, SEGMENT) == b"abb"

    run(main())


@both_loops
def test_reads_outlive_a_restart_and_creations_are_tried_until_they_leave(loop):
    async def main():
        store = MemorySegments()
        await store.create_segment(SEGMENT)
        telemetry = Counters()

        def server(port):
            return WireServer(store, port=port, rng=RealRng(), telemetry=telemetry)

        async with server(0) as first:
            port = first.port
            controller = OneEndpoint("127.0.0.1", port)
            segments = RemoteSegments(
                controller,
                native=store,
                rng=RealRng(),
                telemetry=telemetry,
                limits=DialLimits(backoff_s=0.005, backoff_max_s=0.02),
            )
            waiting = asyncio.ensure_future(segments.read(SEGMENT, 0, 100))
            await until(lambda: store.waiting_reads == 1)
        async with segments:
            created = asyncio.ensure_future(segments.create_segment("s/new/0"))
            # Refused often enough to know that it goes on trying.
            await until(lambda: controller.asked >= 6)
            assert not created.done()
            assert not waiting.done()
            async with server(port):
                await created
                await segments.append(append(0, b"after"))
                assert b"".join((await waiting).parts) == b"after"
                await segments.close()

    run(main(), loop)


def test_patience_ends_and_a_deadline_ends_it_sooner():
    async def main():
        store = MemorySegments()
        controller = OneEndpoint("127.0.0.1", 1)
        async with RemoteSegments(
            controller,
            native=store,
            rng=RealRng(),
            telemetry=Counters(),
            limits=DialLimits(retry_for_s=0.05, backoff_s=0.005),
        ) as segments:
            for call in (
                segments.info(SEGMENT),
                segments.create_segment(SEGMENT),
                segments.read(SEGMENT, 0, 1),
                segments.setup_append(SEGMENT, WRITER),
                segments.append(append(0, b"x")),
            ):
                with pytest.raises(NotConnectedError):
                    await call
        patient = RemoteSegments(controller, native=store, rng=RealRng(), telemetry=Counters())
        async with patient:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await patient.info(SEGMENT)

    run(main())


def test_errors_of_the_store_keep_their_class():
    async def main():
        async with pair(retry_for_s=0.05) as (scene, segments):
            await segments.setup_append(SEGMENT, WRITER)
            scene.store.fail_with = ContainerOfflineError("offline")
            with pytest.raises(ContainerOfflineError):
                await segments.append(append(0, b"x"))
            scene.store.fail_with = StorageFullError("full")
            with pytest.raises(StorageFullError):
                await segments.append(append(0, b"x"))
            scene.store.fail_with = InternalError("odd")
            # No words for it on the wire: the connection closes.
            with pytest.raises(NotConnectedError):
                await segments.append(append(0, b"x"))
            scene.store.fail_with = None
            assert (await segments.append(append(0, b"x"))).end_offset == 1

    run(main())


def test_the_window_bounds_what_is_sent_and_keeps_the_order():
    async def main():
        async with pair(window_bytes=1 << 20) as (scene, segments):
            await segments.setup_append(SEGMENT, WRITER)
            scene.store.shut_gate()
            block = bytes(100_000)
            waits = [asyncio.ensure_future(segments.append(append(number, block))) for number in range(60)]
            await until(lambda: scene.store.pending >= 11)
            await scene.settle()
            assert scene.store.pending == 11
            scene.store.open_gate()
            ends = [(await wait).end_offset for wait in waits]
            assert ends == [100_000 * (number + 1) for number in range(60)]

    run(main())


def test_append_connections_are_replaced_before_the_store_remembers_too_many_writers():
    async def main():
        async with pair(setups=5, line_idle_s=1e-9) as (scene, segments):
            for number in range(1, 31):
                writer = UUID(int=number)
                assert await segments.setup_append(SEGMENT, writer) == NO_EVENT
                await segments.append(append(0, b"x", writer=writer))
            assert len(scene.store.segments[SEGMENT].data) == 30
            await until(lambda: len(scene.server._share.connections) <= 3)

    run(main())


def test_a_writer_that_goes_on_keeps_its_line_when_its_connection_takes_no_more():
    async def main():
        async with pair(setups=5) as (scene, segments):
            writers = [UUID(int=number) for number in range(1, 31)]
            for turn in range(3):
                for writer in writers:
                    await segments.append(
                        Append(
                            segment=SEGMENT, writer=writer, data=b"x", event_number=turn + 1, previous=turn or NO_EVENT
                        )
                    )
            assert len(scene.store.segments[SEGMENT].data) == 90
            assert scene.store.setups == 30
            assert len(scene.server._share.connections) == 6

    run(main())


def test_closing_fails_what_waits():
    async def main():
        async with pair() as (scene, segments):
            scene.store.shut_gate()
            waits = [
                asyncio.ensure_future(segments.append(append(0, b"x"))),
                asyncio.ensure_future(segments.read(SEGMENT, 0, 10)),
            ]
            await until(lambda: scene.store.pending == 1 and scene.store.waiting_reads == 1)
            await segments.close()
            for wait in waits:
                with pytest.raises(NotConnectedError):
                    await wait
            with pytest.raises(NotConnectedError):
                await segments.info(SEGMENT)
            with pytest.raises(NotConnectedError):
                await segments.append(append(0, b"x"))
            scene.store.open_gate()

    run(main())


def test_a_cancelled_append_leaves_the_line_usable():
    async def main():
        async with pair() as (scene, segments):
            await segments.setup_append(SEGMENT, WRITER)
            scene.store.shut_gate()
            waits = [asyncio.ensure_future(segments.append(append(number, b"x"))) for number in range(3)]
            await until(lambda: scene.store.pending == 3)
            waits[1].cancel()
            scene.store.open_gate()
            assert (await waits[2]).end_offset == 3
            assert (await segments.append(append(3, b"y"))).end_offset == 4

    run(main())
