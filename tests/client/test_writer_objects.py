"""How many objects of a writer the garbage collector has to look at. Each full collection looks at all of them, and a writer
over ten thousand segments that keeps seventeen for each of them stops for a tenth of a second."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from uuid import UUID

import pytest

from penstock.client.writing.settings import WriterSettings
from penstock.client.writing.write_blocks import close_blocks
from penstock.client.writing.writer_core import WriterCore
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
