"""The memory of blocks that were read is used again, but never while anyone can still see a byte of it."""

from __future__ import annotations

import asyncio
import random
import threading
from queue import Queue

import pytest
from client_world import SimLoop
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.reading.blocks import Block, BlockMemory
from penstock.client.reading.fetching import MEMORY_BYTES, READ_BYTES, SegmentEnd, SegmentFetcher
from penstock.codec.events import frame_events
from penstock.model.names import StreamName
from penstock.ports.data.segments import SegmentInfo, SegmentRead
from penstock.testing.fakes import SeededRng

STREAM = StreamName("a", "s")
UNIT = 64 << 10


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.lists(st.integers(0, UNIT), max_size=3), min_size=1, max_size=30),
    keep=st.integers(0, 5),
    count_max=st.integers(1, 6),
    seed=st.integers(0, 1000),
)
def test_joined_parts_are_what_a_join_gives_and_stay_so_while_they_are_held(sizes, keep, count_max, seed):
    rng = random.Random(seed)
    memory = BlockMemory(UNIT, count_max)
    held = []
    for each in sizes:
        parts = [rng.randbytes(size) for size in each]
        joined = memory.joined([memoryview(part) for part in parts])
        wanted = b"".join(parts)
        assert joined == wanted
        # The whole, or a view of a part of it, of which the memory does not know.
        begin = rng.randint(0, len(wanted))
        held.append(rng.choice(((joined, wanted), (memoryview(joined)[begin:], wanted[begin:]))))
        del joined
        while len(held) > keep:
            del held[rng.randrange(len(held))]
        assert all(view == kept for view, kept in held)
        assert len(memory._kept) <= count_max


def test_memory_that_nobody_sees_is_used_again_whatever_the_order():
    memory = BlockMemory(UNIT, 8)
    first, second = memory.joined([b"a" * UNIT]), memory.joined([b"b" * UNIT])
    places = {id(first), id(second)}
    del first
    # The events of a block are whole, so its size differs from read to read.
    third = memory.joined([b"c" * 100, b"d" * UNIT])
    assert id(third) in places
    view = memoryview(second)
    del second, third
    assert {id(memory.joined([b"e" * (UNIT - number)])) for number in range(5)} == places - {id(view.obj)}
    assert bytes(view) == b"b" * UNIT


def test_while_all_memory_is_in_use_blocks_get_their_own_and_clearing_leaves_them_alone():
    memory = BlockMemory(UNIT, 2)
    blocks = [memory.joined([bytes([number]) * UNIT]) for number in range(5)]
    assert [type(block) for block in blocks] == [bytearray, bytearray, bytes, bytes, bytes]
    kept = id(blocks[1])
    blocks[1] = b""
    again = memory.joined([b"x" * UNIT])
    assert id(again) == kept
    memory.clear()
    assert (again, blocks[0]) == (b"x" * UNIT, bytes(UNIT))
    assert id(memory.joined([b"y" * UNIT])) not in {kept, id(blocks[0])}


class History:
    """A segment that lies there, whose reads give views of one buffer in several parts."""

    def __init__(self, data):
        self.data = data

    async def read(self, name, offset, max_bytes, *, wait=True):
        await asyncio.sleep(0)
        middle, end = offset + max_bytes // 3, min(offset + max_bytes, len(self.data))
        parts = tuple(memoryview(self.data)[start:stop] for start, stop in ((offset, middle), (middle, end)))
        return SegmentRead(offset=offset, parts=parts, at_tail=end == len(self.data), end_of_segment=False)

    async def erased_ranges(self, name, start, end):
        return ()

    async def info(self, name):
        return SegmentInfo(name=name, start_offset=0, length=len(self.data), sealed=False, last_modified_ms=0)


def history(seed, *, equal):
    rng = random.Random(seed)
    size = 700
    events = [rng.randbytes(size if equal else rng.randrange(size)) for _ in range(20_000)]
    return frame_events(events)


async def blocks_of(data):
    fetcher = SegmentFetcher(History(data), SeededRng(1), skip_truncated=False)
    fetcher.add(STREAM, 0, 0, len(data))
    try:
        while True:
            item = fetcher.take()
            if item is None:
                await fetcher.arrived()
            elif isinstance(item, Block):
                yield item, len(fetcher._memory._kept)
            else:
                assert isinstance(item, SegmentEnd)
                return
    finally:
        await fetcher.close()
        assert not fetcher._memory._kept


@pytest.mark.parametrize("equal", [True, False])
def test_a_block_that_is_kept_keeps_its_bytes_while_the_reader_reads_on(equal):
    data = history(2, equal=equal)

    async def main():
        rng, held, most = random.Random(3), [], 0
        async for block, kept in blocks_of(data):
            start, end = block.offset, block.end_offset
            kinds = (block, block.framed, block.framed[100:200])
            kind = rng.randrange(3)
            held.append((kind, kinds[kind], start, end))
            most = max(most, kept)
            del block, kinds
            if len(held) > 4:
                del held[rng.randrange(len(held))]
            for kind, thing, start, end in held:
                found = thing.framed if kind == 0 else thing
                assert found.readonly
                assert found == (data[start + 100 : start + 200] if kind == 2 else data[start:end])
        # Those that are held, the one that waits, and the one that was taken.
        assert 0 < most <= 8

    SimLoop(4).run(main())


def test_all_blocks_of_a_stream_can_be_kept():
    data = history(5, equal=True)

    async def main():
        blocks = [block async for block, _ in blocks_of(data)]
        assert b"".join(block.framed for block in blocks) == data
        events = [event for block in blocks for event in block.events()]
        assert {type(event) for event in events} == {bytes}
        assert frame_events(events) == data
        assert type(blocks[0].data_at(3)) is bytes
        assert len(data) // READ_BYTES > 10

    SimLoop(6).run(main())
    assert MEMORY_BYTES // READ_BYTES > 10


def test_another_thread_may_drop_blocks_at_any_time():
    """The blocking readers: the loop's thread joins, the program's thread looks and drops."""
    memory = BlockMemory(UNIT, 4)
    passed: Queue[tuple[bytes | bytearray, int] | None] = Queue(3)
    wrong = []

    def look():
        held = []
        while (item := passed.get()) is not None:
            held.append(item)
            wrong.extend(mark for joined, mark in held if joined.count(mark) != UNIT)
            del item, held[:-2]

    thread = threading.Thread(target=look)
    thread.start()
    for number in range(600):
        passed.put((memory.joined([bytes([number % 251]) * UNIT]), number % 251))
    passed.put(None)
    thread.join()
    assert not wrong
