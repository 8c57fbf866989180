"""Memory that blocks of chunks are read into is used again only when nobody looks at it."""

from __future__ import annotations

import random

from penstock.segmentstore.tiering.block_memory import BlockMemory


def test_memory_of_blocks_in_use_is_never_reused():
    memory = BlockMemory(4 << 20)
    rng = random.Random(1)
    held: list[tuple[int, memoryview]] = []
    for number in range(3000):
        room = memory.room(rng.randrange(1, 1 << 20))
        room[0] = room[-1] = number % 251
        held.append((number % 251, room))
        del room
        while len(held) > 3:
            mark, view = held.pop(rng.randrange(len(held)))
            assert view[0] == mark
            assert view[-1] == mark
            del view


def test_what_was_used_last_is_used_again_first_and_all_of_it_is_found():
    memory = BlockMemory(4 << 20)
    views = [memory.room(100 << 10) for _ in range(12)]
    known = [memory._mappings[index] for index in range(12)]
    bytes_before = memory._bytes
    # The processor may still cache the seventh; the first is the only other one that nobody looks at.
    views[0] = views[6] = memoryview(b"")
    views.append(memory.room(100 << 10))
    assert memory._mappings[-1] is known[6]
    views.append(memory.room(100 << 10))
    assert memory._mappings[-1] is known[0]
    assert memory._bytes == bytes_before
