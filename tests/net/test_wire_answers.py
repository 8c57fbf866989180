"""Every request of the protocol, and all that it is answered with: the table in docs/formats/wire.md, row by row."""

from __future__ import annotations

import json
import re
from pathlib import Path
from uuid import UUID

import pytest
from wire_notes import EVENT, HASH, SORTED, S, T, W, notes, with_segments
from wire_peers import run

from penstock.codec.wire import commands as c
from penstock.codec.wire import frames as wire
from penstock.codec.wire import table_commands as t
from penstock.codec.wire.layout import AttributeUpdate, WireEntry, WireHead, WireKey
from penstock.model.errors import PermissionDeniedError, WriterForgottenError
from penstock.model.names import StreamName
from penstock.model.policies import StreamConfig
from penstock.net.native.calls import control_calls
from penstock.net.wire.requests import SCALE_POLICY_RATE, SCALE_POLICY_TYPE
from penstock.net.wire.wire_errors import OWN_TOKEN, error_of, reply_of
from penstock.ports.data.segments import NO_EVENT
from penstock.ports.data.tables import ANY_VERSION, KEY_ABSENT

PAGE = Path(__file__).parents[2] / "docs" / "formats" / "wire.md"
GONE = "s/t/9.#epoch.0"
NOT_SENT = {"AuthTokenCheckFailed"}
UNANSWERED = {"AppendBlock"}


async def with_tables(n):
    await with_segments(n)
    await n.quietly(t.CreateTableSegment(n.next(), HASH, "", False, 0, 0))
    await n.quietly(t.CreateTableSegment(n.next(), SORTED, "", True, 4, 0))


# --- one scene for each request ---


async def call_controller(n):
    stream, calls = StreamName("s", "t"), control_calls()["transactions"]
    ping = calls["ping"].encode_request((stream, UUID(int=1)), {"lease_ms": 1000})
    await n.ask(c.CallController(1, "transactions.ping", b"\xff\xff"), c.ControllerRefused)
    refused = await n.ask(c.CallController(2, "transactions.ping", ping), c.ControllerRefused)
    assert json.loads(bytes(refused.error))["class"] == "ScopeNotFoundError"
    await n.controller.scopes.create("s")
    await n.controller.streams.create(stream, StreamConfig())
    begin = calls["create"].encode_request((stream,), {"lease_ms": 20_000})
    reply = await n.ask(c.CallController(3, "transactions.create", begin), c.ControllerAnswered, note=b"")
    txn = calls["create"].decode_reply(bytes(reply.message)).id
    commit = calls["commit"].encode_request((stream, txn), {})
    for rid in (4, 5):
        await n.ask(c.CallController(rid, "transactions.commit", commit), c.ControllerAnswered, note=b"")
    await n.ask(c.CallController(6, "streams.delete", ping), c.OperationUnsupported)


async def hello(n):
    await n.ask(c.Hello(15, 5), c.Hello, high=17, low=5)
    await n.anew()
    await n.ask(c.Hello(30, 20), c.Hello, high=17, low=5)
    assert await n.peer.closed_by_server()


async def keep_alive(n):
    await n.ask(c.KeepAlive(), c.KeepAlive)


async def setup_append(n):
    await with_tables(n)
    await n.ask(c.SetupAppend(1, W, S, ""), c.AppendSetup, segment=S, writer=W, last_number=NO_EVENT)
    await n.append(4, EVENT * 2, count=2)
    await n.ask(c.SetupAppend(2, W, S, ""), c.AppendSetup, last_number=4)
    await n.quietly(c.SealSegment(3, S, ""))
    await n.ask(c.SetupAppend(4, W, S, ""), c.AppendSetup, last_number=4)
    await n.ask(c.SetupAppend(5, W, GONE, ""), c.NoSuchSegment, segment=GONE, offset=-1)
    await n.ask(c.SetupAppend(6, W, "_system/audit/0.#epoch.0", ""), c.NoSuchSegment)
    await n.ask(c.SetupAppend(7, W, HASH, ""), c.ErrorMessage, code=0)


async def append_block(n):
    """Several writers on several segments of one connection; blocks whole, cut, and padded."""
    await with_segments(n)
    writers = {UUID(int=number).bytes: (S, T)[number % 2] for number in range(1, 7)}
    for writer, segment in writers.items():
        await n.setup(segment, writer)
    expected = {S: b"", T: b""}
    for number in range(3):
        for index, (writer, segment) in enumerate(writers.items()):
            data = bytes([number, index]) * 50
            event = wire.HEADER.pack(0, len(data)) + data
            kind = (number + index) % 3
            if kind == 0:  # whole
                await n.peer.send(c.AppendBlock(writer, event))
                end = c.AppendBlockEnd(writer, len(event), b"", 1, number, n.next())
            elif kind == 1:  # its one event is cut
                await n.peer.send(c.AppendBlock(writer, wire.HEADER.pack(-2, 40) + event[:40]))
                end = c.AppendBlockEnd(writer, 0, event[40:], 1, number, n.next())
            else:  # closed early
                await n.peer.send(c.AppendBlock(writer, event + wire.HEADER.pack(-1, 30) + bytes(30)))
                end = c.AppendBlockEnd(writer, len(event), b"", 1, number, n.next())
            expected[segment] += event
            reply = await n.peer.ask(end)
            assert (reply.event_number, reply.segment_length) == (number, len(expected[segment]))
    for segment, data in expected.items():
        assert bytes((await n.peer.ask(c.ReadSegment(segment, 0, 1 << 20, "", 1))).data) == data
    # Nothing but its end may follow a block.
    await n.peer.send(c.AppendBlock(next(iter(writers)), b""), c.KeepAlive())
    assert await n.peer.closed_by_server()


async def _appends(n, build):
    """What an append of any kind is answered; ``build(number, offset)`` makes one with the event, for offset ``offset``."""
    await with_segments(n)
    await n.setup()
    first = await n.ask(build(0, 0), c.DataAppended, event_number=0, segment_length=len(EVENT))
    assert first.previous_number == NO_EVENT
    await n.ask(build(5, len(EVENT)), c.DataAppended, previous_number=0, segment_length=2 * len(EVENT))
    # Another connection takes the writer over.
    other = await n.scene.peer()
    assert (await other.ask(c.SetupAppend(1, W, S, ""))).last_number == 5
    await other.ask(c.AppendBlockEnd(W, len(EVENT), EVENT, 1, 6, 2))
    await n.ask(build(7, 3 * len(EVENT)), c.InvalidEventNumber, writer=W)
    assert await n.peer.closed_by_server()
    await n.anew()
    await n.setup(T)
    await n.quietly(c.SealSegment(n.next(), T, ""))
    await n.ask(build(1, 0), c.SegmentIsSealed, segment=T, offset=1)
    await n.setup()
    await n.quietly(c.DeleteSegment(n.next(), S, ""))
    await n.ask(build(8, 3 * len(EVENT)), c.NoSuchSegment, segment=S)


async def append_block_end(n):
    await _appends(n, lambda number, _: c.AppendBlockEnd(W, len(EVENT), EVENT, 1, number, n.next()))
    # Without a setup, without events, backwards: no answer.
    await n.quietly(c.CreateSegment(n.next(), S, 0, 0, "", 0))
    for number, count, writer in ((1, 1, UUID(int=99).bytes), (1, 0, W), (0, 1, W)):
        await n.anew()
        await n.setup()
        await n.append(n.next())
        await n.peer.send(c.AppendBlockEnd(writer, 0, b"", count, number, 1))
        assert await n.peer.closed_by_server()


async def append_many(n):
    await with_segments(n)
    handles = []
    for segment, writer in ((S, W), (T, UUID(int=8).bytes)):
        reply = await n.quietly(c.SetupAppend(n.next(), writer, segment, OWN_TOKEN))
        handles.append(reply.handle)

    def both(number, rid):
        return c.AppendMany(rid, [WireHead(handle, 1, number, len(EVENT)) for handle in handles], EVENT * 2)

    size = len(EVENT)
    await n.ask(both(0, 1), c.ManyAppended, lengths=(size, size), failures=())
    await n.quietly(c.SealSegment(n.next(), T, ""))
    sealed = wire.encode(c.SegmentIsSealed(2, T, "", 1))
    await n.ask(both(1, 2), c.ManyAppended, lengths=(2 * size, -1), failures=((1, sealed),))
    await n.ask(both(2, 3), c.ManyAppended, lengths=(3 * size, -1), failures=())
    other = await n.scene.peer()
    await other.ask(c.SetupAppend(1, W, S, ""))
    await other.ask(c.AppendBlockEnd(W, size, EVENT, 1, 3, 2))
    await n.ask(both(4, 4), c.InvalidEventNumber, writer=W)
    assert await n.peer.closed_by_server()
    await n.anew()
    await n.peer.send(both(5, 5))
    assert await n.peer.closed_by_server(), "handles are of one connection"


async def conditional_append(n):
    await _appends(n, lambda number, at: c.ConditionalAppend(W, number, at, EVENT, n.next()))
    await n.quietly(c.CreateSegment(n.next(), S, 0, 0, "", 0))
    await n.setup()
    await n.ask(c.ConditionalAppend(W, 0, 3, EVENT, 9), c.ConditionalCheckFailed, writer=W, event_number=0)
    await n.ask(c.ConditionalAppend(W, 0, 0, EVENT, 10), c.DataAppended, event_number=0)


async def conditional_block_end(n):
    await _appends(n, lambda number, at: c.ConditionalBlockEnd(W, number, at, EVENT, n.next()))
    await n.quietly(c.CreateSegment(n.next(), S, 0, 0, "", 0))
    await n.setup()
    await n.ask(c.ConditionalBlockEnd(W, 0, 3, b"raw", 9), c.ConditionalCheckFailed, event_number=0)
    # Stored as it is, and the writer goes on.
    await n.ask(c.ConditionalBlockEnd(W, 0, 0, b"raw", 10), c.DataAppended, segment_length=3)
    await n.ask(c.ConditionalBlockEnd(W, 1, 3, b"raw", 11), c.DataAppended, segment_length=6)


async def read_segment(n):
    await with_tables(n)
    await n.fill(events=4)
    size = len(EVENT)
    reply = await n.ask(c.ReadSegment(S, 3, 1 << 20, "", 1), c.SegmentRead, segment=S, offset=3, at_tail=True)
    assert bytes(reply.data) == (EVENT * 4)[3:]
    assert len((await n.peer.ask(c.ReadSegment(S, 0, 1, "", 2))).data) == 8, "never less than a header"
    # It waits for data, and another request is served meanwhile.
    await n.peer.send(c.ReadSegment(S, 4 * size, 100, "", 3))
    await n.ask(c.KeepAlive(), c.KeepAlive)
    n.seen.discard("KeepAlive")
    await n.peer.send(c.AppendBlockEnd(W, size, EVENT, 1, 4, 4))
    found = {type(one): one for one in (await n.peer.receive(), await n.peer.receive())}
    assert bytes(found[c.SegmentRead].data) == EVENT
    assert found[c.SegmentRead].rid == 3
    await n.quietly(c.TruncateSegment(n.next(), S, size, ""))
    await n.ask(c.ReadSegment(S, 0, 100, "", 5), c.SegmentIsTruncated, start_offset=size, offset=0)
    # A seal ends waiting; so it does at the end of a sealed segment.
    await n.peer.send(c.ReadSegment(S, 5 * size, 100, "", 6))
    await n.peer.send(c.SealSegment(7, S, ""))
    found = {type(one): one for one in (await n.peer.receive(), await n.peer.receive())}
    assert found[c.SegmentRead].end_of_segment
    assert not found[c.SegmentRead].data
    await n.ask(c.ReadSegment(S, 5 * size, 100, "", 8), c.SegmentRead, end_of_segment=True, at_tail=True)
    await n.ask(c.ReadSegment(S, 5 * size + 1, 100, "", 9), c.ErrorMessage, segment=S, code=0)
    await n.ask(c.ReadSegment(GONE, 77, 100, "", 10), c.NoSuchSegment, segment=GONE, offset=77)
    await n.ask(c.ReadSegment(HASH, 0, 100, "", 11), c.ErrorMessage, segment=HASH, code=0)
    # Deleted while it waits, and created again before it is notified: it does not go on with the new one.
    await n.peer.send(c.ReadSegment(T, 0, 100, "", 12), c.DeleteSegment(13, T, ""), c.CreateSegment(14, T, 0, 0, "", 0))
    found = {type(one): one for one in [await n.peer.receive() for _ in range(3)]}
    assert found[c.NoSuchSegment].rid == 12


async def segment_info(n):
    await with_tables(n)
    await n.fill(events=2)
    await n.quietly(c.TruncateSegment(n.next(), S, len(EVENT), ""))
    await n.quietly(c.SealSegment(n.next(), S, ""))
    fields = {"exists": True, "sealed": True, "deleted": False, "length": 2 * len(EVENT), "start_offset": len(EVENT)}
    await n.ask(c.GetStreamSegmentInfo(1, S, ""), c.StreamSegmentInfo, segment=S, **fields)
    await n.ask(c.GetStreamSegmentInfo(2, GONE, ""), c.NoSuchSegment, offset=-1)
    await n.ask(c.GetStreamSegmentInfo(3, HASH, ""), c.ErrorMessage, code=0)


async def locate_offset(n):
    await with_tables(n)
    await n.fill(events=2)
    for target, offset in ((0, 0), (1, 2 * len(EVENT)), (10**6, 2 * len(EVENT))):
        reply = await n.ask(c.LocateOffset(n.next(), S, target, ""), c.OffsetLocated, segment=S)
        assert reply.offset % len(EVENT) == 0, "an event begins there"
        assert target <= reply.offset <= offset or target > offset
    await n.ask(c.LocateOffset(1, GONE, 0, ""), c.NoSuchSegment)
    await n.ask(c.LocateOffset(2, HASH, 0, ""), c.ErrorMessage, code=0)


async def create_segment(n):
    await n.ask(c.CreateSegment(1, S, 0, 0, "", 1 << 20), c.SegmentCreated, segment=S)
    await n.ask(c.CreateSegment(2, S, 0, 0, "", 0), c.SegmentAlreadyExists, segment=S)
    for rate, kind in ((0, 1), (-1, 2), (5, 3)):
        await n.ask(c.CreateSegment(3, GONE, rate, kind, "", 0), c.ErrorMessage, code=0)
    await n.quietly(c.CreateSegment(4, GONE, 0, 0, "", 0))


async def seal_segment(n):
    await with_tables(n)
    for _ in range(2):
        await n.ask(c.SealSegment(n.next(), S, ""), c.SegmentSealed, segment=S)
    await n.ask(c.SealSegment(1, GONE, ""), c.NoSuchSegment)
    await n.ask(c.SealSegment(2, HASH, ""), c.ErrorMessage, code=0)


async def delete_segment(n):
    await with_tables(n)
    await n.ask(c.DeleteSegment(1, S, ""), c.SegmentDeleted, segment=S)
    await n.ask(c.DeleteSegment(2, S, ""), c.NoSuchSegment, segment=S)
    await n.ask(c.DeleteSegment(3, HASH, ""), c.ErrorMessage, code=0)


async def update_policy(n):
    await with_segments(n)
    await n.ask(c.UpdateSegmentPolicy(1, S, 10, 2, ""), c.SegmentPolicyUpdated, segment=S)
    await n.ask(c.UpdateSegmentPolicy(2, GONE, 10, 2, ""), c.NoSuchSegment)
    for rate, kind in ((0, 1), (-1, 2), (5, 3)):
        await n.ask(c.UpdateSegmentPolicy(3, S, rate, kind, ""), c.ErrorMessage, code=0)
    assert await policy_of(n, S) == (2, 10)
    await n.quietly(c.CreateSegment(6, GONE, 70, 1, "", 0))
    assert await policy_of(n, GONE) == (1, 70)


async def policy_of(n, segment):
    asked = [c.GetSegmentAttribute(9, segment, key, "") for key in (SCALE_POLICY_TYPE, SCALE_POLICY_RATE)]
    return tuple([(await n.quietly(item)).value for item in asked])


async def get_attribute(n):
    await with_segments(n)
    key = UUID(int=5)
    await n.ask(c.GetSegmentAttribute(1, S, key, ""), c.SegmentAttribute, value=NO_EVENT)
    await n.quietly(c.UpdateSegmentAttribute(2, S, key, 9, NO_EVENT, ""))
    await n.ask(c.GetSegmentAttribute(3, S, key, ""), c.SegmentAttribute, value=9)
    await n.ask(c.GetSegmentAttribute(4, GONE, key, ""), c.NoSuchSegment)


async def update_attribute(n):
    await with_segments(n)
    key = UUID(int=5)
    for value, expected, done in ((1, NO_EVENT, True), (2, NO_EVENT, False), (3, 1, True), (4, 1, False)):
        request = c.UpdateSegmentAttribute(n.next(), S, key, value, expected, "")
        await n.ask(request, c.SegmentAttributeUpdated, success=done)
    await n.ask(c.UpdateSegmentAttribute(1, GONE, key, 1, NO_EVENT, ""), c.NoSuchSegment)


async def truncate_segment(n):
    await with_segments(n)
    await n.fill(events=3)
    size = len(EVENT)
    for offset in (size, size):
        await n.ask(c.TruncateSegment(n.next(), S, offset, ""), c.SegmentTruncated, segment=S)
    for outside in (0, size - 1, 99 * size):
        await n.ask(
            c.TruncateSegment(n.next(), S, outside, ""), c.SegmentIsTruncated, start_offset=size, offset=outside
        )
    await n.ask(c.TruncateSegment(2, GONE, 0, ""), c.NoSuchSegment)


async def create_transient(n):
    await with_segments(n)
    reply = await n.ask(c.CreateTransientSegment(1, UUID(bytes=W), S, ""), c.SegmentCreated)
    assert re.fullmatch(re.escape(S) + r"#transient\.[0-9a-f]{32}\.[0-9a-f]{32}", reply.segment)
    assert (await n.quietly(c.SetupAppend(2, W, reply.segment, ""))).last_number == NO_EVENT
    await n.ask(c.CreateTransientSegment(3, UUID(bytes=W), GONE, ""), c.NoSuchSegment)


async def _part(n, number, *, events=1):
    name = f"{S}#transaction.{number:032x}"
    await n.quietly(c.CreateSegment(n.next(), name, 0, 0, "", 0))
    await n.fill(name, events, UUID(int=1000 + number).bytes)
    return name


async def merge_segments(n):
    await with_segments(n)
    part = await _part(n, 1)
    for _ in range(2):  # the second time it has been done
        await n.ask(c.MergeSegments(n.next(), S, part, "", []), c.SegmentsMerged, source=part, target_length=len(EVENT))
    part, key = await _part(n, 2), UUID(int=3)
    unmet = AttributeUpdate(key, 4, 2, 1)
    await n.ask(c.MergeSegments(1, S, part, "", [unmet]), c.SegmentAttributeUpdated, success=False)
    met = AttributeUpdate(key, 4, 7, NO_EVENT)
    await n.ask(c.MergeSegments(2, S, part, "", [met]), c.SegmentsMerged, target_length=2 * len(EVENT))
    assert (await n.quietly(c.GetSegmentAttribute(3, S, key, ""))).value == 7
    for kind in (0, 2, 3, 5):  # of Pravega's own server: to replace instead would be a lie
        await n.ask(c.MergeSegments(9, S, part, "", [AttributeUpdate(key, kind, 1, 1)]), c.ErrorMessage, code=0)
    assert (await n.quietly(c.GetSegmentAttribute(10, S, key, ""))).value == 7
    part = await _part(n, 3, events=2)
    await n.quietly(c.TruncateSegment(4, part, len(EVENT), ""))
    await n.ask(c.MergeSegments(5, S, part, "", []), c.ErrorMessage, code=0)
    await n.ask(c.MergeSegments(6, S, f"{S}#transaction.{99:032x}", "", []), c.NoSuchSegment)
    part = await _part(n, 4)
    await n.quietly(c.SealSegment(7, S, ""))
    await n.ask(c.MergeSegments(8, S, part, "", []), c.SegmentIsSealed, segment=S)


async def merge_batch(n):
    await with_segments(n)
    parts = [await _part(n, number) for number in (1, 2, 3)]
    reply = await n.ask(c.MergeSegmentsBatch(1, S, parts, ""), c.SegmentsBatchMerged, target=S, sources=tuple(parts))
    assert list(reply.target_lengths) == [len(EVENT), 2 * len(EVENT), 3 * len(EVENT)]
    await n.ask(c.MergeSegmentsBatch(2, S, [f"{S}#transaction.{99:032x}"], ""), c.NoSuchSegment)
    part = await _part(n, 4)
    await n.quietly(c.SealSegment(3, S, ""))
    await n.ask(c.MergeSegmentsBatch(4, S, [part], ""), c.SegmentIsSealed)


async def flush_to_storage(n):
    await with_segments(n)
    await n.fill()
    await n.ask(c.FlushToStorage(0, "", 1), c.StorageFlushed)
    assert [found.end_offset for found in await n.store.chunk_ranges(S, 0, len(EVENT))] == [len(EVENT)]


async def list_chunks(n):
    await with_segments(n)
    await n.ask(c.ListStorageChunks(S, "", 1), c.StorageChunksListed, chunks=())
    await n.fill(events=2)
    await n.quietly(c.FlushToStorage(0, "", 2))
    (chunk,) = (await n.ask(c.ListStorageChunks(S, "", 3), c.StorageChunksListed)).chunks
    size = 2 * len(EVENT)
    assert (chunk.length, chunk.length_in_storage, chunk.start_offset, chunk.exists) == (size, size, 0, True)
    await n.ask(c.ListStorageChunks(GONE, "", 4), c.NoSuchSegment)


def entry(key, value=b"v", version=ANY_VERSION):
    return WireEntry(key, version, value)


async def table_info(n):
    await with_tables(n)
    await n.quietly(t.UpdateTableEntries(n.next(), HASH, "", [entry(b"a"), entry(b"b")], -1))
    await n.ask(t.GetTableSegmentInfo(1, HASH, ""), t.TableSegmentInfo, entry_count=2, length=38, key_bytes=0)
    await n.ask(t.GetTableSegmentInfo(2, SORTED, ""), t.TableSegmentInfo, entry_count=0, length=0, key_bytes=4)
    await n.ask(t.GetTableSegmentInfo(3, GONE, ""), c.NoSuchSegment)
    await n.ask(t.GetTableSegmentInfo(4, S, ""), c.ErrorMessage, code=0)


async def create_table(n):
    await n.ask(t.CreateTableSegment(1, HASH, "", False, 0, 0), c.SegmentCreated, segment=HASH)
    await n.ask(t.CreateTableSegment(2, HASH, "", False, 0, 0), c.SegmentAlreadyExists, segment=HASH)
    await n.ask(t.CreateTableSegment(3, SORTED, "", True, 4, 0), c.SegmentCreated, segment=SORTED)
    await n.ask(t.CreateTableSegment(4, "s/x_kvtable/0.#epoch.0", "", True, 9000, 0), c.ErrorMessage, code=0)


async def delete_table(n):
    await with_tables(n)
    await n.quietly(t.UpdateTableEntries(n.next(), HASH, "", [entry(b"a")], -1))
    await n.ask(t.DeleteTableSegment(1, HASH, True, ""), t.TableSegmentNotEmpty, segment=HASH)
    await n.ask(t.DeleteTableSegment(2, HASH, False, ""), c.SegmentDeleted, segment=HASH)
    await n.ask(t.DeleteTableSegment(3, HASH, False, ""), c.NoSuchSegment)
    # Its name is free at once.
    await n.quietly(t.CreateTableSegment(4, HASH, "", False, 0, 0))
    await n.ask(t.DeleteTableSegment(5, S, False, ""), c.ErrorMessage, code=0)


async def update_table(n):
    await with_tables(n)

    def put(*entries, table=HASH, at=-1):
        return t.UpdateTableEntries(n.next(), table, "", list(entries), at)

    reply = await n.ask(put(entry(b"a", version=KEY_ABSENT), entry(b"b")), t.TableEntriesUpdated)
    first, second = reply.versions
    assert 0 <= first < second
    # One key several times, all compared with what was there before the batch; the last one counts.
    again = [entry(b"a", value, first) for value in (b"1", b"2", b"3")]
    versions = (await n.ask(put(*again), t.TableEntriesUpdated)).versions
    assert list(versions) == sorted(set(versions))
    (found,) = (await n.quietly(t.ReadTable(n.next(), HASH, "", [WireKey(b"a", ANY_VERSION)]))).entries
    assert (bytes(found.value), found.version) == (b"3", versions[-1])
    await n.ask(put(entry(b"a", version=first)), t.TableKeyBadVersion, segment=HASH)
    await n.ask(put(entry(b"a", version=KEY_ABSENT)), t.TableKeyBadVersion)
    await n.ask(put(entry(b"new"), entry(b"c", version=3)), t.TableKeyDoesNotExist, segment=HASH)
    (found,) = (await n.quietly(t.ReadTable(n.next(), HASH, "", [WireKey(b"new", ANY_VERSION)]))).entries
    assert found.version == KEY_ABSENT, "all or nothing"
    length = (await n.quietly(t.GetTableSegmentInfo(n.next(), HASH, ""))).length
    await n.ask(put(entry(b"d"), at=length), t.TableEntriesUpdated)
    await n.ask(put(entry(b"d"), at=length), c.SegmentIsTruncated, offset=length)
    await n.ask(put(entry(b"four"), table=SORTED), t.TableEntriesUpdated)
    await n.ask(put(entry(b"five!"), table=SORTED), c.ErrorMessage, code=0)
    await n.ask(put(entry(b"k" * 8193)), c.ErrorMessage, code=0)
    await n.ask(put(entry(b"k", b"v" * (1 << 20))), c.ErrorMessage, code=0)
    await n.ask(put(*[entry(b"%d" % number) for number in range(257)]), c.ErrorMessage, code=0)
    await n.ask(put(entry(b"a"), table=GONE), c.NoSuchSegment, segment=GONE)
    await n.ask(put(entry(b"a"), table=S), c.ErrorMessage, code=0)


async def remove_keys(n):
    await with_tables(n)
    (version,) = (await n.quietly(t.UpdateTableEntries(n.next(), HASH, "", [entry(b"a")], -1))).versions

    def drop(key, version=ANY_VERSION, *, table=HASH, at=-1):
        return t.RemoveTableKeys(n.next(), table, "", [WireKey(key, version)], at)

    await n.ask(drop(b"absent"), t.TableKeysRemoved, segment=HASH)
    await n.ask(drop(b"absent", 5), t.TableKeyDoesNotExist)
    await n.ask(drop(b"a", version + 1), t.TableKeyBadVersion)
    await n.ask(drop(b"a", version, at=1), c.SegmentIsTruncated)
    await n.ask(drop(b"a", version), t.TableKeysRemoved)
    (found,) = (await n.quietly(t.ReadTable(n.next(), HASH, "", [WireKey(b"a", ANY_VERSION)]))).entries
    assert found.version == KEY_ABSENT
    await n.ask(drop(b"five!", table=SORTED), c.ErrorMessage, code=0)
    await n.ask(drop(b"a", table=GONE), c.NoSuchSegment)


async def read_table(n):
    await with_tables(n)
    await n.quietly(t.UpdateTableEntries(n.next(), HASH, "", [entry(b"a", b"1"), entry(b"c", b"3")], -1))
    keys = [WireKey(key, ANY_VERSION) for key in (b"c", b"b", b"a", b"c")]
    reply = await n.ask(t.ReadTable(1, HASH, "", keys), t.TableRead, segment=HASH)
    assert [(bytes(e.key), bytes(e.value)) for e in reply.entries] == [
        (b"c", b"3"),
        (b"b", b""),
        (b"a", b"1"),
        (b"c", b"3"),
    ]
    assert reply.entries[1].version == KEY_ABSENT
    await n.ask(t.ReadTable(2, GONE, "", keys), c.NoSuchSegment)
    await n.ask(t.ReadTable(3, HASH, "", keys * 65), c.ErrorMessage, code=0)


async def _listing(n, request, kind, names):
    """Iterators over both kinds of tables: by continuation to an empty list, and by bounds."""
    await with_tables(n)
    keys = [b"%04d" % number for number in range(25)]
    for table in (HASH, SORTED):
        await n.quietly(t.UpdateTableEntries(n.next(), table, "", [entry(key) for key in keys], -1))
        found, token = [], b""
        while True:
            reply = await n.ask(request(n.next(), table, "", 10, token, 0, b"", b""), kind, segment=table)
            if not names(reply):
                break
            found += names(reply)
            token = bytes(reply.continuation)
            if len(found) == 10:  # keys that neither come nor go are never missed
                await n.quietly(t.UpdateTableEntries(n.next(), table, "", [entry(b"0003"), entry(b"9999")], -1))
        assert [key for key in found if key != b"9999"] == keys
        if table == SORTED:
            assert found == sorted(found)
    reply = await n.ask(request(n.next(), SORTED, "", 100, b"", 0, b"0007", b"0011"), kind)
    assert names(reply) == keys[7:12], "both bounds belong to the range"
    await n.ask(request(1, HASH, "", 10, b"foreign", 0, b"", b""), c.ErrorMessage, code=0)
    await n.ask(request(2, GONE, "", 10, b"", 0, b"", b""), c.NoSuchSegment)


async def read_keys(n):
    await _listing(n, t.ReadTableKeys, t.TableKeysRead, lambda reply: [bytes(item.key) for item in reply.keys])


async def read_entries(n):
    await _listing(n, t.ReadTableEntries, t.TableEntriesRead, lambda reply: [bytes(item.key) for item in reply.entries])


async def read_delta(n):
    await with_tables(n)
    fields = {"entries": (), "should_clear": False, "reached_end": True, "last_position": 0}
    await n.ask(t.ReadTableEntriesDelta(1, HASH, "", 0, 10), t.TableEntriesDeltaRead, **fields)
    for key in (b"a", b"b", b"c", b"a"):
        await n.quietly(t.UpdateTableEntries(n.next(), HASH, "", [entry(key)], -1))
    await n.quietly(t.RemoveTableKeys(n.next(), HASH, "", [WireKey(b"c", ANY_VERSION)], -1))
    found, position, ended = [], 0, False
    while not ended:
        reply = await n.ask(t.ReadTableEntriesDelta(n.next(), HASH, "", position, 1), t.TableEntriesDeltaRead)
        found += [bytes(item.key) for item in reply.entries]
        position, ended = reply.last_position, reply.reached_end
    assert found == [b"b", b"a"], "each key once, the latest change; removed ones not at all"
    await n.ask(t.ReadTableEntriesDelta(2, HASH, "", 10**6, 10), c.ErrorMessage, code=0)
    await n.ask(t.ReadTableEntriesDelta(3, SORTED, "", 0, 10), c.OperationUnsupported)
    await n.ask(t.ReadTableEntriesDelta(4, GONE, "", 0, 10), c.NoSuchSegment)


SCENES = {
    c.Hello: hello,
    c.KeepAlive: keep_alive,
    c.SetupAppend: setup_append,
    c.AppendBlock: append_block,
    c.AppendBlockEnd: append_block_end,
    c.AppendMany: append_many,
    c.ConditionalAppend: conditional_append,
    c.ConditionalBlockEnd: conditional_block_end,
    c.ReadSegment: read_segment,
    c.GetStreamSegmentInfo: segment_info,
    c.LocateOffset: locate_offset,
    c.CreateSegment: create_segment,
    c.SealSegment: seal_segment,
    c.DeleteSegment: delete_segment,
    c.UpdateSegmentPolicy: update_policy,
    c.GetSegmentAttribute: get_attribute,
    c.UpdateSegmentAttribute: update_attribute,
    c.TruncateSegment: truncate_segment,
    c.CreateTransientSegment: create_transient,
    c.MergeSegments: merge_segments,
    c.MergeSegmentsBatch: merge_batch,
    c.FlushToStorage: flush_to_storage,
    c.ListStorageChunks: list_chunks,
    t.GetTableSegmentInfo: table_info,
    t.CreateTableSegment: create_table,
    t.DeleteTableSegment: delete_table,
    t.UpdateTableEntries: update_table,
    t.RemoveTableKeys: remove_keys,
    t.ReadTable: read_table,
    t.ReadTableKeys: read_keys,
    t.ReadTableEntries: read_entries,
    t.ReadTableEntriesDelta: read_delta,
    c.CallController: call_controller,
}


def promised():
    """Of each request, the kinds of replies that the page names."""
    section = PAGE.read_text().partition("## What is answered")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE)
    return {name: set(re.findall(r"`([A-Z]\w+)`", answers)) for name, answers in rows}


@pytest.mark.parametrize("kind", SCENES, ids=lambda kind: kind.__name__)
def test_a_request_is_answered_as_the_page_says_and_in_no_other_way(kind):
    async def main():
        async with notes() as n:
            await SCENES[kind](n)
            return n.seen

    assert run(main()) == promised()[kind.__name__]


def test_the_page_names_every_request_and_every_reply():
    requests = {spec.kind.__name__ for spec in wire.SPECS if spec.is_request}
    replies = {spec.kind.__name__ for spec in wire.SPECS if not spec.is_request}
    assert set(promised()) == requests == {kind.__name__ for kind in SCENES}
    everywhere = {"WrongHost"}  # of any request: see test_a_lost_container_is_another_host
    assert set().union(*promised().values()) - {"Hello", "KeepAlive"} == replies - NOT_SENT - everywhere


def test_any_request_finds_another_host_once_its_container_has_stopped():
    async def main():
        async with notes() as n:
            await with_tables(n)
            for container in n.store.containers:
                container.go_offline("stopped by the test", None)
            for request in (
                c.SetupAppend(1, W, S, ""),
                c.ReadSegment(S, 0, 10, "", 2),
                c.GetStreamSegmentInfo(3, S, ""),
                c.SealSegment(4, S, ""),
                c.TruncateSegment(5, S, 0, ""),
                t.UpdateTableEntries(6, HASH, "", [entry(b"a")], -1),
                t.ReadTable(7, HASH, "", [WireKey(b"a", ANY_VERSION)]),
                c.CreateSegment(8, GONE, 0, 0, "", 0),
            ):
                await n.ask(request, c.WrongHost)

    run(main())


def test_a_forgotten_writer_is_told_so_with_the_floor():
    refused = WriterForgottenError("writer was forgotten", segment="s/t/0.#epoch.0", writer="ab", floor_ms=17)
    reply = reply_of(refused, 3, "s/t/0.#epoch.0")
    assert isinstance(reply, c.ErrorMessage)
    error = error_of(reply, "s/t/0.#epoch.0")
    assert type(error) is WriterForgottenError
    assert error.fields == {"segment": "s/t/0.#epoch.0", "writer": "ab", "floor_ms": 17}


def test_a_refused_token_reports_which_right_is_missing():
    error = error_of(c.AuthTokenCheckFailed(3, "", 0), "s/t/0.#epoch.0")
    assert type(error) is PermissionDeniedError
    assert "reading needs the action read" in str(error)
    assert "writing needs write" in str(error)
