"""Arenas are recycled exactly when the last view of them has died."""

import gc
import mmap

from penstock.app.telemetry import Counters
from penstock.net.wire.arena import LARGE_BYTES, MEDIUM_BYTES, SMALL_BYTES, TINY_BYTES, Arena, ArenaPool


def test_an_arena_is_idle_only_without_views():
    arena = Arena(SMALL_BYTES, pooled=True, touched=True)
    assert arena.idle
    root = arena.open()
    part = root[10:20]
    again = memoryview(part)[2:4]
    del root
    assert not arena.idle
    del part
    assert not arena.idle
    del again
    assert arena.idle


def test_a_consumer_of_a_view_keeps_its_arena():
    arena = Arena(SMALL_BYTES, pooled=True)
    view = arena.open()[5:9].cast("I")
    held = {"somewhere": [view]}
    del view
    assert not arena.idle
    held.clear()
    gc.collect()
    assert arena.idle


def test_arenas_are_page_aligned_and_zeroed():
    arena = Arena(SMALL_BYTES, pooled=True)
    view = arena.open()
    assert len(view) % mmap.PAGESIZE == 0
    assert bytes(view[:64]) == bytes(64)


def test_the_pool_reuses_an_arena_after_its_last_view_and_not_before():
    pool = ArenaPool(telemetry=Counters(), limit_bytes=1 << 30)
    first = pool.acquire(100)
    kept = first.open()[:100]
    kept[:5] = b"hello"
    pool.retire(first)
    second = pool.acquire(100)
    assert second is not first
    assert bytes(kept[:5]) == b"hello"
    del kept
    assert pool.acquire(100) is first


def test_size_classes_fit_and_odd_sizes_are_not_kept():
    telemetry = Counters()
    pool = ArenaPool(telemetry=telemetry, limit_bytes=1 << 30, warm={SMALL_BYTES: 1})
    assert pool.acquire(1).size == TINY_BYTES
    assert pool.acquire(1, SMALL_BYTES).size == SMALL_BYTES
    assert pool.acquire(TINY_BYTES + 1).size == SMALL_BYTES
    assert pool.acquire(SMALL_BYTES + 1).size == MEDIUM_BYTES
    assert pool.acquire((1 << 24) + 7).size == LARGE_BYTES
    odd = pool.acquire(LARGE_BYTES + 1)
    assert odd.size == LARGE_BYTES + 1
    assert not odd.pooled
    assert telemetry.counts["arena_overflows"] == 1


def test_a_pool_without_room_gives_no_more_than_is_needed():
    pool = ArenaPool(telemetry=Counters(), limit_bytes=2 * SMALL_BYTES)
    sizes = [pool.acquire(2048, SMALL_BYTES).size for _ in range(4)]
    assert sizes == [SMALL_BYTES, SMALL_BYTES, TINY_BYTES, TINY_BYTES]


def test_what_nobody_looks_at_is_given_back():
    pool = ArenaPool(telemetry=Counters(), limit_bytes=1 << 30)
    arenas = [pool.acquire(SMALL_BYTES) for _ in range(2)]
    view = arenas[0].open()
    for arena in arenas:
        pool.retire(arena)
    del arena
    assert pool.give_back() == SMALL_BYTES
    assert pool.pooled_bytes == SMALL_BYTES
    view.release()
    assert pool.give_back() == SMALL_BYTES
    assert pool.pooled_bytes == 0


def test_no_more_arenas_wait_for_use_than_the_bound():
    telemetry = Counters()
    pool = ArenaPool(telemetry=telemetry, limit_bytes=2 * SMALL_BYTES)
    held = [pool.acquire(SMALL_BYTES) for _ in range(3)]
    assert pool.lent_bytes == pool.pooled_bytes == 3 * SMALL_BYTES
    assert telemetry.counts["arena_overflows"] == 1
    while held:
        pool.retire(held.pop())
    assert pool.lent_bytes == 0
    assert pool.pooled_bytes == 2 * SMALL_BYTES


def test_an_arena_that_a_cache_looked_at_is_used_again_however_much_the_caches_hold():
    pool = ArenaPool(telemetry=Counters(), limit_bytes=2 * SMALL_BYTES)
    cached = []
    for _ in range(10):
        arena = pool.acquire(SMALL_BYTES)
        cached.append((arena, arena.open()))
        pool.retire(arena)
    assert pool.pooled_bytes == 10 * SMALL_BYTES
    oldest = cached.pop(0)[0]
    assert pool.acquire(SMALL_BYTES) is oldest
    # Dropped at once, all but two are gone once a connection gives one back.
    del arena
    cached.clear()
    pool.retire(oldest)
    assert pool.pooled_bytes == 2 * SMALL_BYTES


def test_idleness_is_reported_correctly_however_often_it_is_asked():
    # Python replaces instructions by quicker ones as they are repeated, and those may count references in another way.
    arena = Arena(SMALL_BYTES, pooled=True)
    for _ in range(3000):
        assert arena.idle
        view = arena.open()
        assert not arena.idle
        part = view[5:9]
        del view
        assert not arena.idle
        del part
