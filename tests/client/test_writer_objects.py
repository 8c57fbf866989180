"""How many objects of a writer the garbage collector has to look at. Each full collection looks at all of them, and a writer
over ten thousand segments that keeps seventeen for each of them stops for a tenth of a second."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from uuid import UUID

import pytest

from penstock.client.writing.prepare import CallKeys, prepare_events
from penstock.client.writing.segment_sender import Lane, SenderState
from penstock.client.writing.settings import WriterSettings
from penstock.client.writing.write_blocks import close_blocks
from penstock.client.writing.writer_core import WriterCore
from penstock.codec.events import split_events
from penstock.model.errors import InvalidArgumentError, NotConnectedError
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId, SegmentRange, even_ranges
from penstock.net.dial.wire_append_pool import RemoteAppends
from penstock.ports.data.segments import NO_EVENT, Append
from penstock.testing.fakes import SeededRng

SEGMENTS = 500


class Layout:
    stream = StreamName("scope", "stream")

    async def segments(self):
        return [SegmentRange(segment=SegmentId(at), keys=keys) for at, keys in enumerate(even_ranges(SEGMENTS))]

    def name_of(self, segment):
        return f"scope/stream/{segment}"

    def writer_id(self, random, *, least_ms=0):
        return random


@pytest.fixture(autouse=True)
def none_of_earlier_tests():
    """Frozen objects are not counted, so it does not matter when those of earlier tests die."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def tracked():
    gc.collect()
    return len(gc.get_objects())


def test_a_writer_keeps_five_objects_for_each_segment():
    """The sender, its lane, their lists of blocks and events, and the writer's id."""

    async def scenario():
        service = SimpleNamespace(submit_append=None, withdraw_appends=None)
        before = tracked()
        core = WriterCore(Layout(), service, SeededRng(1), WriterSettings(), lambda: None)
        await core.open()
        kept = tracked() - before
        await core.close()
        return kept

    assert 5 * SEGMENTS <= asyncio.run(scenario()) < 5.5 * SEGMENTS


def test_a_block_in_flight_is_one_object():
    """The block is its own request and callback, and has no keys of its own."""

    async def scenario():
        sent = []
        service = SimpleNamespace(submit_append=lambda request, done: sent.append(request), withdraw_appends=None)
        core = WriterCore(Layout(), service, SeededRng(1), WriterSettings(), lambda: None)
        await core.open()
        for lane in core.lane_list():
            lane.sender.state = SenderState.OPEN
        keys = [f"key-{number}" for number in range(8 * SEGMENTS)]
        before = tracked()
        core.enqueue(prepare_events(core.lanes, [b"event"] * len(keys), keys, 1 << 20))
        kept = tracked() - before
        await core.close()
        return kept, len(sent)

    kept, blocks = asyncio.run(scenario())
    assert blocks > 0.9 * SEGMENTS
    assert blocks <= kept < 1.1 * blocks


def test_a_lane_is_emptied_into_one_list():
    lane = Lane(SimpleNamespace())
    lane.written.extend(("a", b"1", None, b"2"))
    before = tracked()
    taken = lane.take()
    assert taken == ["a", b"1", None, b"2"]
    assert lane.written == []
    assert tracked() - before <= 1


def test_a_line_with_an_append_is_three_objects():
    """The line, its list of appends, and the append. The collector does not look at the line's key."""

    class Pool:
        def start(self, opening):
            opening.close()
            return asyncio.get_running_loop().create_future()

    async def scenario():
        appends = RemoteAppends(Pool())
        writers = [UUID(int=number) for number in range(SEGMENTS)]
        append = {"data": b"x", "event_number": 1, "previous": NO_EVENT}
        before = tracked()
        for number, writer in enumerate(writers):
            appends.submit(Append(segment=f"s{number}", writer=writer, **append), print)
        for line in appends._lines.values():
            line.opening = None
        return tracked() - before

    assert 3 * SEGMENTS <= asyncio.run(scenario()) < 3.5 * SEGMENTS


def test_the_keys_of_a_block_are_no_object_for_the_collector():
    events, keys = [b"event"] * SEGMENTS, [f"key-{number}" for number in range(SEGMENTS)]
    (block,) = close_blocks(events, keys, 0, 1 << 20)
    gc.collect()
    assert not gc.is_tracked(block.keys)
    assert list(block.keys) == keys


def test_what_is_sent_again_is_another_request_with_the_same_number():
    """A late answer to the frame before must not be taken for that of the repetition."""

    async def scenario():
        sent = []

        async def setup_append(name, writer):
            return NO_EVENT

        service = SimpleNamespace(
            submit_append=lambda request, done: sent.append((request, done)),
            withdraw_appends=None,
            setup_append=setup_append,
        )
        core = WriterCore(Layout(), service, SeededRng(1), WriterSettings(), lambda: None)
        await core.open()
        core.enqueue(prepare_events(core.lanes, [b"event"] * 3, ["a", "a", "a"], 1 << 20))
        while not sent:
            await asyncio.sleep(0)
        request, done = sent[0]
        done(NotConnectedError("lost"))
        while len(sent) < 2:
            await asyncio.sleep(0.01)
        again = sent[1][0]
        await core.close()
        return request, again

    request, again = asyncio.run(scenario())
    assert again is not request
    assert (again.event_number, again.event_count, again.data) == (3, 3, request.data)


def test_keys_of_a_call_are_found_for_each_block():
    async def scenario():
        core = WriterCore(
            Layout(),
            SimpleNamespace(submit_append=None, withdraw_appends=None),
            SeededRng(1),
            WriterSettings(),
            lambda: None,
        )
        await core.open()
        return core.lanes

    lanes = asyncio.run(scenario())
    keys = [None if number % 7 == 0 else f"key-{number % 40}" for number in range(4000)]
    events = [str(key).encode() for key in keys]
    prepared = prepare_events(lanes, events, keys, 100)
    lanes.rotate(lanes[None])  # Events without a key go to another lane from now on, but not these.
    found = [(lane, split_events(bytes(block.data)), block.keys_in(lane)) for lane, block in prepared]
    assert len(found) > len({id(lane) for lane, _, _ in found}), "some lanes have several blocks"
    assert all(own == [str(key).encode() for key in its_keys] for _, own, its_keys in found)
    assert sum(len(own) for _, own, _ in found) == len(events)
    with pytest.raises(InvalidArgumentError):
        CallKeys(lanes, ["a", ["not text"]]).sort([1, 2])
