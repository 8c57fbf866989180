"""A run of appends leaves in the tail cache what its appends leave one by one."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.store.operation_frames import AppendRun
from penstock.segmentstore.tiering import tail_cache
from penstock.segmentstore.tiering.tail_cache import CacheMemory, TailCache

SIZES = st.sampled_from([0, 1, 100, 511, 700, 5000, tail_cache.LARGE_BYTES - 1, tail_cache.LARGE_BYTES, 20_000])
APPENDS = st.lists(st.tuples(SIZES, st.integers(0, 3), st.integers(0, 2)), max_size=12)


def state_of(cache: TailCache, memory: CacheMemory):
    entries = [
        (
            item.start,
            item.end,
            bytes(item.view(item.start, item.end)),
            item.capacity,
            item.events,
            item.address,
            item.first_ms,
            item.last_ms,
            item.numbers,
        )
        for item in cache.untiered
    ]
    return entries, cache.behind, cache.untiered_bytes, memory.unflushed_bytes, memory.cached_bytes


@given(frames=st.lists(APPENDS, max_size=4))
def test_a_run_is_kept_as_its_appends_are(frames) -> None:
    memories = [CacheMemory(1 << 30), CacheMemory(1 << 30)]
    single, gathered = (TailCache(memory) for memory in memories)
    offset, numbers = 0, {0: -1, 1: 5, 2: 70}
    for address, appends in enumerate(frames):
        before, run = dict(numbers), AppendRun(uid=1, offset=offset, end=offset, event_count=0, items=[], last={})
        for size, events, writer in appends:
            data = memoryview(bytes([address + 1]) * size)
            if size:
                # Without bytes nobody asks the cache, and the number is the segment's alone.
                single.append(offset, data, events, address, 10 * address)
                single.wrote(writer, numbers[writer] + 1, before[writer])
            offset += size
            numbers[writer] += 1
            run.items.append((data, events, writer, numbers[writer]))
            run.end = offset
        gathered.append_run(run, address, before, 10 * address)
        assert state_of(gathered, memories[1]) == state_of(single, memories[0])
