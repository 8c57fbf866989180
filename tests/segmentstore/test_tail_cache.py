"""Recovery puts whole runs into the tail cache, and they leave there what their appends leave one by one."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.store.operation_frames import RUN_BYTES, AppendRun, decode_runs, encode_frame
from penstock.codec.store.operations import AppendOperation
from penstock.segmentstore.tiering import tail_cache
from penstock.segmentstore.tiering.tail_cache import CacheMemory, TailCache

SIZES = st.sampled_from([1, 100, 511, 700, 5000, tail_cache.LARGE_BYTES - 1, tail_cache.LARGE_BYTES, 20_000])
APPENDS = st.lists(st.tuples(SIZES, st.integers(0, 3), st.integers(0, 2)), max_size=12)


def state_of(cache: TailCache, memory: CacheMemory, end: int):
    entries = list(cache.untiered)
    starts = {item.start: item.address for item in entries}
    numbers: dict[int, int] = {}
    for item in entries:
        numbers |= item.numbers or {}
    whole = b"".join(cache.views(0, end))
    events = sum(item.events for item in entries)
    return starts, (whole, events, numbers, cache.behind, cache.untiered_bytes, memory.unflushed_bytes)


@given(frames=st.lists(APPENDS, max_size=4))
def test_runs_are_kept_as_their_appends_are(frames) -> None:
    memories = [CacheMemory(1 << 30), CacheMemory(1 << 30)]
    single, gathered = (TailCache(memory) for memory in memories)
    offset, numbers, address_of = 0, {0: -1, 1: 5, 2: 70}, {}
    before = dict(numbers)
    for address, appends in enumerate(frames):
        operations = []
        for size, events, writer in appends:
            data = memoryview(bytes([address + 1]) * size)
            numbers[writer] += 1
            address_of[offset] = address
            operations.append(
                AppendOperation(
                    uid=1, offset=offset, writer=writer, event_number=numbers[writer], event_count=events, data=data
                )
            )
            single.append(offset, data, events, address, 10 * address)
            single.wrote(writer, numbers[writer], before[writer])
            offset += size
        for run in decode_runs(encode_frame(0, 0, operations)):
            assert isinstance(run, AppendRun)
            gathered.append(run.offset, run.data, run.event_count, address, 10 * address)
            for writer, number in run.last_numbers().items():
                gathered.wrote(writer, number, before[writer])
    starts, kept = state_of(gathered, memories[1], offset)
    assert kept == state_of(single, memories[0], offset)[1]
    assert starts.items() <= address_of.items(), "each entry begins with an append, and has the address of its frame"


def test_a_run_of_small_appends_is_copied_and_a_large_append_is_a_run() -> None:
    assert RUN_BYTES == tail_cache.LARGE_BYTES


def test_after_tiering_one_block_takes_as_much_as_was_tiered() -> None:
    cache = TailCache(CacheMemory(1 << 30))

    def fill(start: int) -> int:
        for offset in range(start, start + 6_000, 600):
            cache.append(offset, bytes(600), 1, 1, 1)
        return start + 6_000

    end = fill(0)
    assert len(cache.untiered) == 3, "blocks double"
    cache.next_blocks(1 << 20, 8 << 20)
    cache.mark_tiered(end)
    end = fill(end)
    assert [(entry.start, entry.end) for entry in cache.untiered] == [(6_000, 12_000)]
    cache.next_blocks(1 << 20, 8 << 20)
    cache.mark_tiered(end)
    cache.append(end, bytes(10), 1, 1, 1)
    cache.next_blocks(1 << 20, 8 << 20)
    cache.mark_tiered(end + 10)
    cache.append(end + 10, bytes(10), 1, 1, 1)
    assert cache.untiered[0].capacity == 512, "a quiet segment holds little again"


def test_blocks_with_room_for_what_may_come_keep_to_the_memory_of_the_caches() -> None:
    """Thousands of segments with one byte each, after a burst of 64 KiB each."""
    memory = CacheMemory(1 << 20)
    caches = [TailCache(memory) for _ in range(200)]
    for cache in caches:
        for offset in range(0, 64 << 10, 4 << 10):
            cache.append(offset, bytes(4 << 10), 1, 1, 1)
        cache.next_blocks(1 << 20, 8 << 20)
        cache.mark_tiered(64 << 10)
    assert memory.cached_bytes <= memory.limit_bytes
    for cache in caches:
        cache.append(64 << 10, b"x", 1, 1, 1)
    assert sum(cache.untiered[0].capacity > 512 for cache in caches) >= 15
    assert memory.cached_bytes <= memory.limit_bytes + (64 << 10) + 512 * len(caches)
