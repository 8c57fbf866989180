"""Blocks of chunks: read once for all who want them, verified where they lie, in memory that no reader sees change."""

from __future__ import annotations

import asyncio
import gc
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_world import Writer, run

from penstock.model.errors import CorruptDataError
from penstock.segmentstore.tiering.block_memory import BlockMemory
from penstock.storage.memory.memory_chunks import MemoryChunks

BLOCK = 64 << 10
SETTINGS = {"flush_bytes": BLOCK, "read_cache_bytes": 2 * BLOCK, "cache_bytes": 1, "chunk_bytes": 32 * BLOCK}


class Watched(MemoryChunks):
    """Notes what is read; waits at a gate; fails or is wrong at chosen places."""

    def __init__(self):
        super().__init__()
        self.reads = []
        self.ahead = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.fails = 0
        self.wrong = False

    async def read_into(self, name, offset, room, *, ahead=0):
        self.reads.append((name, offset))
        self.ahead.append(ahead)
        await self.gate.wait()
        if self.fails:
            self.fails -= 1
            raise OSError(5, "input/output error")
        count = await super().read_into(name, offset, room)
        if self.wrong:
            room[count // 2] ^= 1
        return count


async def filled(world, blocks):
    """A segment with its bytes in chunks alone, and the bytes."""
    await world.store.close()
    world.chunks = Watched()
    store = await world.open()
    await store.create_segment("s")
    writer = await Writer(store, "s").setup()
    rng = random.Random(1)
    data = b""
    for _ in range(blocks):
        data += rng.randbytes(BLOCK)
        await writer.append(data[-BLOCK:])
    await world.settle()
    world.chunks.reads.clear()
    return store, data


def test_readers_of_one_block_read_it_once():
    async def scenario(world):
        store, data = await filled(world, 4)
        world.chunks.gate.clear()
        reads = [asyncio.ensure_future(store.read("s", at, 100, wait=False)) for at in (0, 5, BLOCK - 100)]
        while not world.chunks.reads:
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(world.chunks.reads) == 1
        world.chunks.gate.set()
        for at, found in zip((0, 5, BLOCK - 100), await asyncio.gather(*reads), strict=True):
            assert b"".join(found.parts) == data[at : at + 100]
        assert len(world.chunks.reads) == 1

    run(scenario, **SETTINGS)


@pytest.mark.parametrize("ending", ["cancelled", "failed"])
def test_a_reader_that_fails_leaves_the_block_to_the_next(ending):
    async def scenario(world):
        store, data = await filled(world, 2)
        world.chunks.gate.clear()
        first = asyncio.ensure_future(store.read("s", 0, 100, wait=False))
        while not world.chunks.reads:
            await asyncio.sleep(0)
        second = asyncio.ensure_future(store.read("s", 0, 100, wait=False))
        await asyncio.sleep(0)
        if ending == "cancelled":
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
        else:
            world.chunks.fails = 1
        world.chunks.gate.set()
        assert b"".join((await second).parts) == data[:100]
        if ending == "failed":
            with pytest.raises(OSError, match="input/output"):
                await first

    run(scenario, **SETTINGS)


def test_a_wrong_byte_is_never_handed_out_nor_kept():
    async def scenario(world):
        store, data = await filled(world, 2)
        world.chunks.wrong = True
        for _ in range(2):
            with pytest.raises(CorruptDataError):
                await store.read("s", 0, 100, wait=False)
        world.chunks.wrong = False
        assert b"".join((await store.read("s", 0, 100, wait=False)).parts) == data[:100]

    run(scenario, **SETTINGS)


def test_what_a_reader_holds_does_not_change_under_it():
    async def scenario(world):
        store, data = await filled(world, 30)
        rng = random.Random(2)
        held = []
        for _ in range(400):
            at = rng.randrange(len(data))
            found = await store.read("s", at, rng.choice((10, BLOCK, 4 * BLOCK)), wait=False)
            held.append((at, found.parts))
            if len(held) > 20:
                held.pop(rng.randrange(len(held)))
            for start, parts in held:
                joined = b"".join(parts)
                assert joined == data[start : start + len(joined)]
            with pytest.raises(TypeError):
                found.parts[0][0] = 1

    run(scenario, **SETTINGS)


def test_a_scan_tells_the_disk_what_comes_next_and_a_small_read_does_not():
    async def scenario(world):
        store, data = await filled(world, 8)
        world.chunks.ahead.clear()
        await store.read("s", 0, 100, wait=False)
        assert world.chunks.ahead == [0]
        await store.read("s", BLOCK, 2 << 20, wait=False)
        # Never beyond what is known to be in the chunk.
        assert world.chunks.ahead[1:] == [len(data) - number * BLOCK for number in range(2, 9)]

    run(scenario, **SETTINGS)


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(1, 3 << 20), min_size=1, max_size=30), keep=st.integers(1, 5))
def test_memory_in_use_is_never_handed_out_again(sizes, keep):
    memory = BlockMemory(4 << 20)
    held = []
    for number, size in enumerate(sizes):
        room = memory.room(size)
        assert len(room) == size
        mark = bytes([number % 255 + 1]) * min(size, 16)
        room[: len(mark)] = mark
        # A slice that nobody else knows of keeps the whole alive, as one that a socket has not sent yet does.
        held.append((room[: len(mark)].toreadonly(), mark))
        del room
        held = held[-keep:]
        assert all(view == mark for view, mark in held)


def test_memory_that_nobody_uses_is_used_again():
    memory = BlockMemory(8 << 20)
    first = memory.room(1 << 20)
    first[:4] = b"mark"
    del first
    gc.collect()
    assert memory.room(1 << 20)[:4] == b"mark"
