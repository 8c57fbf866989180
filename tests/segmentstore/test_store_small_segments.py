"""How much a segment gathers before it is tiered, and how very many small ones share the disk with appends."""

from __future__ import annotations

import asyncio
import gc
import warnings

from store_world import World, Writer, content, run, world

from penstock.testing.simulation.machine.loop import SimLoop

WRITE_S = 0.01


def name_of(number: int) -> str:
    return f"scope/s{number}/0.#epoch.0"


async def filled(store, count: int, data: bytes) -> list[Writer]:
    writers = []
    for number in range(count):
        await store.create_segment(name_of(number))
        writers.append(await Writer(store, name_of(number)).setup())
        await writers[-1].append(data)
    return writers


class SlowChunks:
    """Each write of a chunk takes ``WRITE_S``; notes when writes begin and end, and how many are under way."""

    def __init__(self, made: World) -> None:
        self.spans: list[tuple[float, float]] = []
        self.now = self.most = 0
        self.sizes: list[int] = []
        self.failing: set[int] = set()
        self._append = made.chunks.append
        made.chunks.append = self.append

    async def append(self, name, offset, parts) -> None:
        if name.endswith(".idx"):
            await self._append(name, offset, parts)
            return
        loop = asyncio.get_running_loop()
        begun = loop.time()
        number = len(self.sizes)
        self.sizes.append(sum(map(len, parts)))
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(WRITE_S)
        finally:
            self.now -= 1
        if number in self.failing:
            raise OSError("disk error")
        await self._append(name, offset, parts)
        self.spans.append((begun, loop.time()))


def in_virtual_time(test, **settings) -> None:
    async def main() -> None:
        async with world(**settings) as made:
            await test(made)

    SimLoop(1).run(main())


def test_few_segments_gather_a_run_and_share_its_syncs() -> None:
    async def body(made: World) -> None:
        chunks = SlowChunks(made)
        store = made.store
        (one,) = await filled(store, 1, bytes(20_000))
        for _ in range(3):
            assert chunks.sizes == []
            await one.append(bytes(20_000))
        await asyncio.sleep(1)
        assert chunks.sizes == [80_000]

    in_virtual_time(body, containers=1, flush_bytes=20_000, tier_gather_bytes=80_000, max_unflushed_bytes=4_000_000)


def test_what_many_segments_gather_together_is_bounded() -> None:
    async def body(made: World) -> None:
        (container,) = made.store.containers
        assert container.tiering.unit_bytes == 80_000
        await filled(made.store, 10, b"x")
        assert container.tiering.unit_bytes == 40_000, "a quarter of the memory, in ten parts"
        await filled_more(made.store)
        assert container.tiering.unit_bytes == 20_000, "never less than a block"

    async def filled_more(store) -> None:
        for number in range(100, 200):
            await store.create_segment(name_of(number))
            await (await Writer(store, name_of(number)).setup()).append(b"x")

    run(body, containers=1, flush_bytes=20_000, tier_gather_bytes=80_000, max_unflushed_bytes=1_600_000)


def test_small_segments_are_written_together_and_a_failure_is_of_its_own() -> None:
    async def body(made: World) -> None:
        chunks = SlowChunks(made)
        await filled(made.store, 40, b"0123456789")
        chunks.failing = {3, 17}
        (container,) = made.store.containers
        container.tiering.force()
        await asyncio.sleep(10)
        assert 8 <= chunks.most <= 16
        assert not any(True for segment in container.segments.loaded() if segment.cache.untiered)
        store = await made.crash()
        for number in range(40):
            assert await content(store, name_of(number)) == b"0123456789"

    in_virtual_time(body, containers=1, retry_min_s=0.01, retry_max_s=0.1)


def test_small_segments_that_only_waited_leave_most_of_the_time_to_others() -> None:
    async def body(made: World) -> None:
        chunks = SlowChunks(made)
        (container,) = made.store.containers
        await filled(made.store, 320, b"0123456789")
        await asyncio.sleep(2.0)
        writing = len({round(begun, 4) for begun, _ in chunks.spans}) * WRITE_S
        took = max(end for _, end in chunks.spans) - min(begun for begun, _ in chunks.spans)
        assert len(chunks.spans) == 320
        assert 3 * writing < took < 6 * writing, (writing, took)
        assert not container.tiering.lowest_address()

    in_virtual_time(body, containers=1, flush_interval_s=0.5)


def test_a_full_unit_does_not_wait_behind_small_segments() -> None:
    async def body(made: World) -> None:
        chunks = SlowChunks(made)
        writers = await filled(made.store, 320, b"0123456789")
        await asyncio.sleep(0.6)
        begun = asyncio.get_running_loop().time()
        await writers[-1].append(bytes(20_000))
        while 20_010 not in chunks.sizes and 20_000 not in chunks.sizes:
            await asyncio.sleep(0.001)
        assert asyncio.get_running_loop().time() - begun < 5 * WRITE_S
        assert len(chunks.sizes) < 320

    in_virtual_time(body, containers=1, flush_interval_s=0.5, flush_bytes=20_000)


def test_in_a_hurry_the_largest_go_first_and_the_rest_stay() -> None:
    async def body(made: World) -> None:
        chunks = SlowChunks(made)
        writers = await filled(made.store, 40, b"0123456789")
        for one in writers[5:10]:
            await one.append(bytes(12_000))
        await asyncio.sleep(1)
        assert sorted(chunks.sizes) == [10] * 11 + [12_010] * 5, "one group is enough"
        assert made.store.containers[0].state.memory.unflushed_bytes < 50_000

    in_virtual_time(body, containers=1, max_unflushed_bytes=100_000, flush_bytes=50_000)


def test_where_room_is_needed_many_share_one_wait_and_records_follow_bytes() -> None:
    async def body(made: World) -> None:
        calls: list[tuple[int, bool]] = []
        together = made.chunks.append_together

        async def append_together(writes):
            calls.append((len(writes), writes[0].name.endswith(".idx")))
            return await together(writes)

        made.chunks.append_together = append_together
        await filled(made.store, 300, b"0123456789")
        (container,) = made.store.containers
        container.tiering.force()
        await asyncio.sleep(1)
        assert calls == [(256, False), (256, True), (44, False), (44, True)]
        assert not container.tiering.lowest_address()

    in_virtual_time(body, containers=1)


def test_segments_that_change_while_many_are_written_keep_what_is_theirs() -> None:
    async def body(made: World) -> None:
        store, chunks = made.store, made.chunks
        writers = await filled(store, 5, b"0123456789")
        transaction = name_of(4) + "#transaction." + "0" * 32
        await store.create_segment(transaction)
        await (await Writer(store, transaction).setup()).append(b"merged")
        (container,) = store.containers
        reached, opened = asyncio.Event(), asyncio.Event()
        together = chunks.append_together

        async def append_together(writes):
            reached.set()
            await opened.wait()
            return await together(writes)

        chunks.append_together = append_together
        segments = list(container.segments.loaded())
        assert len(segments) == 6
        tiering = asyncio.create_task(container.tiering._try_together(segments))
        await reached.wait()
        await store.truncate(name_of(0), 4)
        await store.delete(name_of(1))
        await writers[2].append(b"more")
        await store.merge(name_of(4), transaction)
        opened.set()
        assert await tiering is None
        chunks.append_together = together
        for _ in range(2):
            assert await content(store, name_of(0)) == b"456789"
            assert await content(store, name_of(2)) == b"0123456789more"
            assert await content(store, name_of(3)) == b"0123456789"
            assert await content(store, name_of(4)) == b"0123456789merged"
            store = await made.crash()
        await made.settle()
        named = {chunk.name for item in store.containers[0].segments.loaded() for chunk in item.chunks.items}
        assert {name for name in await made.chunks.list() if not name.endswith(".idx")} == named

    in_virtual_time(body, containers=1, flush_interval_s=3600.0)


def test_tiering_that_is_cancelled_before_it_began_leaves_no_coroutine_behind() -> None:
    async def body(made: World) -> None:
        SlowChunks(made)
        await filled(made.store, 3, b"0123456789")
        (container,) = made.store.containers
        before = asyncio.all_tasks()
        together = asyncio.create_task(container.tiering._try_together(list(container.segments.loaded())))
        await asyncio.sleep(0)
        # As when a loop ends: the tasks of the group are there, and have not taken their first step.
        begun = asyncio.all_tasks() - before
        assert len(begun) == 4
        with warnings.catch_warnings(record=True) as reported:
            warnings.simplefilter("always")
            for task in begun:
                task.cancel()
            await asyncio.wait(begun)
            gc.collect()
        assert together.cancelled()
        assert not reported, reported[0].message

    async def main() -> None:
        # Not in the simulation: its order of steps is drawn, here it must be the one of call_soon.
        async with world(containers=1, flush_interval_s=60.0) as made:
            await body(made)

    asyncio.run(main())


def test_a_lower_limit_of_untiered_bytes_makes_room_at_once() -> None:
    """Else appends would wait until what is held is due by its age."""

    async def body(made: World) -> None:
        store = await made.open()
        await filled(store, 3, b"x" * 1_000)
        store.allow_memory(cache_bytes=1 << 20, unflushed_bytes=2_000)
        async with asyncio.timeout(60):
            while store._memory.unflushed_bytes > 1_000:
                await asyncio.sleep(0.01)

    in_virtual_time(body, containers=1, flush_interval_s=3600.0)


def test_a_large_append_does_not_wait_for_the_last_held_byte() -> None:
    async def body(made: World) -> None:
        store = await made.open()
        writers = await filled(store, 2, b"x")
        await writers[0].append(b"y" * 5_000)

    in_virtual_time(body, containers=1, flush_interval_s=3600.0, max_unflushed_bytes=4_000)
