"""The wire over a real segment store: both ends, the append path, recovery of writers, tables, backpressure."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from uuid import UUID

import pytest
from wire_peers import LOOPS, run
from wire_store_world import SEGMENT, WRITER, append, everything, whole_world, world

from penstock.codec.events import frame_events
from penstock.codec.wire import commands as c
from penstock.codec.wire import table_commands as t
from penstock.codec.wire.layout import WireEntry, WireKey
from penstock.model.errors import (
    ConditionFailedError,
    InvalidArgumentError,
    SegmentNotFoundError,
    SegmentSealedError,
    TruncatedError,
    WriterFencedError,
)
from penstock.ports.data.segments import NO_EVENT, Append
from penstock.ports.data.tables import ANY_VERSION, KEY_ABSENT, TableKind, TablePut, TableRemoval

both_loops = pytest.mark.parametrize("loop", sorted(LOOPS))


@both_loops
def test_conditional_appends_of_many_events_are_counted_as_such(loop):
    async def main():
        async with whole_world() as (store, segments, _):
            writer, length, number, last = UUID(int=9), 0, 0, NO_EVENT
            assert await segments.setup_append(SEGMENT, writer) == NO_EVENT
            for events in ([b"one"], [b"x" * 10] * 200, [b"", b"yes"]):
                data = frame_events(events)
                number += len(events)
                request = Append(
                    segment=SEGMENT,
                    writer=writer,
                    data=data,
                    event_number=number,
                    event_count=len(events),
                    previous=last,
                    expected_offset=length,
                )
                length, last = (await segments.append(request)).end_offset, number
            assert (await store.info(SEGMENT)).event_count == 203
            # A number that promises more events than there is room for is not believed.
            await segments.append(replace(request, event_number=1 << 40, previous=last, expected_offset=length))
            assert (await store.info(SEGMENT)).event_count == 203 + len(data) // 8

    run(main(), loop)


@both_loops
def test_appends_come_back_as_they_were_sent(loop):
    async def main():
        async with world() as (segments, _):
            blocks = [bytes([number % 251]) * (37 * number % 9000 + 1) for number in range(400)]
            blocks.append(bytes(range(256)) * 36_000)
            waits = [asyncio.ensure_future(segments.append(append(n, block))) for n, block in enumerate(blocks)]
            ends = [(await wait).end_offset for wait in waits]
            total, expected = 0, []
            for block in blocks:
                total += len(block)
                expected.append(total)
            assert ends == expected
            assert await everything(segments, SEGMENT, total) == b"".join(blocks)
            assert await segments.setup_append(SEGMENT, WRITER) == 400
            assert await segments.next_event_boundary(SEGMENT, 1) in ends

    run(main(), loop)


@both_loops
def test_segments_and_their_errors(loop):
    async def main():
        async with world() as (segments, _):
            await segments.append(append(0, b"0123456789"))
            with pytest.raises(ConditionFailedError):
                await segments.append(append(1, b"x", expected=3))
            await segments.append(append(1, b"abc", expected=10))
            waiting = asyncio.ensure_future(segments.read(SEGMENT, 13, 100))
            name = await segments.create_transient(SEGMENT, WRITER)
            await segments.append(append(0, b"merged", segment=name, expected=0))
            assert await segments.merge(SEGMENT, name) == 19
            assert await segments.merge(SEGMENT, name) == 19
            assert b"".join(bytes(part) for part in (await waiting).parts) == b"merged"
            await segments.truncate(SEGMENT, 10)
            with pytest.raises(TruncatedError):
                await segments.read(SEGMENT, 3, 10)
            with pytest.raises(InvalidArgumentError):
                await segments.truncate(SEGMENT, 100)
            with pytest.raises(WriterFencedError):
                await segments.append(append(9, b"x"))
            attribute = UUID(int=5)
            assert await segments.update_attribute(SEGMENT, attribute, 1, expected=NO_EVENT)
            assert await segments.get_attribute(SEGMENT, attribute) == 1
            waiting = asyncio.ensure_future(segments.read(SEGMENT, 19, 100))
            assert await segments.seal(SEGMENT) == 19
            assert (await waiting).end_of_segment
            assert await segments.setup_append(SEGMENT, WRITER) == 1
            with pytest.raises(SegmentSealedError):
                await segments.append(append(2, b"x"))
            info = await segments.info(SEGMENT)
            assert (info.start_offset, info.length, info.sealed) == (10, 19, True)
            await segments.delete(SEGMENT)
            with pytest.raises(SegmentNotFoundError):
                await segments.info(SEGMENT)

    run(main(), loop)


def test_tables():
    async def main():
        async with world() as (segments, _):
            await segments.create_table("t")
            keys = [b"%02d" % number for number in range(50)]
            await segments.table_update("t", [TablePut(key=key, value=key, version=KEY_ABSENT) for key in keys])
            found, after = [], None
            while page := await segments.table_scan("t", after=after, limit=7):
                found += [item.key for item in page]
                after = found[-1]
            assert found == keys
            delta = await segments.table_delta("t", 0, 100)
            assert (len(delta.entries), delta.reached_end) == (50, True)
            await segments.table_remove("t", [TableRemoval(key=b"07")])
            (entry,) = await segments.table_get("t", [b"07"])
            assert entry.version == KEY_ABSENT
            await segments.create_table("fixed", kind=TableKind.SORTED, key_bytes=2)
            await segments.table_update("fixed", [TablePut(key=b"ab", value=b"v")])
            assert (await segments.table_info("fixed"))[1:] == (1, 2)

    run(main())


@both_loops
def test_a_store_without_room_slows_its_writers_down_and_loses_nothing(loop):
    async def main():
        async with world(max_unflushed_bytes=1 << 20, flush_bytes=256 << 10, cache_bytes=1 << 20) as (
            segments,
            telemetry,
        ):
            block = bytes(range(256)) * 400
            waits = [asyncio.ensure_future(segments.append(append(number, block))) for number in range(80)]
            ends = [(await wait).end_offset for wait in waits]
            assert ends == [len(block) * (number + 1) for number in range(80)]
            assert telemetry.counts["wire_throttled_appends"] > 0
            assert telemetry.counts.get("wire_protocol_errors", 0) == 0
            assert await everything(segments, SEGMENT, ends[-1]) == block * 80

    run(main(), loop)


def test_only_the_first_of_several_table_changes_at_one_offset_succeeds():
    async def main():
        async with world() as (segments, _):
            await segments.create_table("t")
            await segments.table_update("t", [TablePut(key=b"removed", value=b"")])
            for turn in range(20):
                length = (await segments.table_info("t"))[0].length

                def update(rid, number, length=length):
                    entries = [WireEntry(b"k%d" % number, ANY_VERSION, b"v")]
                    return t.UpdateTableEntries(rid, "t", "", entries, length)

                def remove(rid, length=length):
                    return t.RemoveTableKeys(rid, "t", "", [WireKey(b"removed", ANY_VERSION)], length)

                builds = [partial(update, number=number) for number in range(4)]
                builds.insert(turn % 5, remove)
                answers = await asyncio.gather(*(segments._pool.call("t", build, repeat=False) for build in builds))
                made = [one for one in answers if isinstance(one, t.TableEntriesUpdated | t.TableKeysRemoved)]
                assert len(made) == 1
                assert sum(isinstance(one, c.SegmentIsTruncated) for one in answers) == 4
                await segments.table_update("t", [TablePut(key=b"removed", value=b"")])

    run(main())
