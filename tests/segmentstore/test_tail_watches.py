"""Readers that wait at a tail without a task: notified once of every change, and of nothing once they have left."""

from __future__ import annotations

import asyncio

import pytest
from store_world import append, run

from penstock.segmentstore.calls.reads import READ_MAX_BYTES


class Recorder:
    def __init__(self):
        self.times = 0

    def __call__(self):
        self.times += 1


def test_what_is_in_memory_is_read_at_once_and_is_what_read_gives():
    async def scenario(world):
        store = world.store
        assert store.read_now("s", 0, 10) is None, "no such segment: read tells"
        await store.create_segment("s")
        empty = store.read_now("s", 0, 10)
        assert (list(empty.parts), empty.at_tail, empty.end_of_segment) == ([], True, False)
        await append(store, "s", b"hello world")
        for offset, size in ((0, 5), (6, 100), (11, 5), (0, READ_MAX_BYTES * 2)):
            now, slow = store.read_now("s", offset, size), await store.read("s", offset, size, wait=False)
            assert b"".join(now.parts) == b"".join(slow.parts)
            assert (now.offset, now.at_tail, now.end_of_segment) == (slow.offset, slow.at_tail, slow.end_of_segment)
        assert store.read_now("s", 12, 10) is None, "beyond the end: read waits, or tells"
        await store.truncate("s", 5)
        assert store.read_now("s", 4, 10) is None, "before the head: read tells"
        await store.seal("s")
        assert store.read_now("s", 11, 10).end_of_segment
        await store.create_table("t")
        assert store.read_now("t", 0, 10) is None
        await store.close()
        assert store.read_now("s", 6, 10) is None, "a store that has stopped says nothing"

    run(scenario)


def test_bytes_that_lie_in_chunks_alone_are_not_read_at_once():
    async def scenario(world):
        await world.store.create_segment("s")
        await append(world.store, "s", b"x" * 100_000)
        await world.settle()
        assert world.store.read_now("s", 0, 10) is None
        assert b"".join((await world.store.read("s", 0, 10)).parts) == b"x" * 10

    run(scenario, cache_bytes=1)


@pytest.mark.parametrize("change", ["append", "seal", "truncate", "delete", "close"])
def test_a_watcher_is_told_once_of_a_change(change):
    async def scenario(world):
        store = world.store
        await store.create_segment("s")
        await append(store, "s", b"12345", number=2)
        reported = Recorder()
        watch = store.watch("s", 5, reported)
        if change == "append":
            await append(store, "s", b"6")
            await append(store, "s", b"7", number=3)
        elif change == "truncate":
            await store.truncate("s", 5)
        elif change == "close":
            await store.close(checkpoint=False)
        else:
            await getattr(store, change)("s")
        assert reported.times == 1
        assert watch.gone == (change == "delete")
        watch.cancel()
        assert sum(container.reads.parked for container in store.containers) == 0

    run(scenario)


def test_a_watcher_of_a_segment_that_was_merged_away_is_told_that_it_is_gone():
    async def scenario(world):
        part = "s/t/0.#epoch.0#transaction." + "1" * 32
        for name in ("s/t/0.#epoch.0", part):
            await world.store.create_segment(name)
        reported = Recorder()
        watch = world.store.watch(part, 0, reported)
        await append(world.store, part, b"event")
        assert reported.times == 1
        watch = world.store.watch(part, 5, reported)
        await world.store.merge("s/t/0.#epoch.0", part)
        assert (reported.times, watch.gone) == (2, True)

    run(scenario)


def test_a_watcher_that_left_is_told_nothing():
    async def scenario(world):
        await world.store.create_segment("s")
        stays, leaves = Recorder(), Recorder()
        watches = [world.store.watch("s", 0, reported) for reported in (stays, leaves)]
        watches[1].cancel()
        watches[1].cancel()
        await append(world.store, "s", b"x")
        assert (stays.times, leaves.times) == (1, 0)

    run(scenario)


def test_there_is_nothing_to_watch_but_the_tail_of_an_open_segment():
    async def scenario(world):
        store = world.store
        for name in ("s", "sealed", "other"):
            await store.create_segment(name)
        await append(store, "s", b"12345")
        await store.seal("sealed")
        await store.create_table("t")
        reported = Recorder()
        for name, offset in (("s", 4), ("sealed", 0), ("t", 0), ("none", 0)):
            assert store.watch(name, offset, reported) is None
        beyond = store.watch("s", 99, reported)
        await append(store, "s", b"6", number=2)
        assert reported.times == 1, "beyond the tail every change is reported"
        beyond.cancel()
        # Two in all: where it is full, read says so.
        kept = [store.watch("other", 0, reported) for _ in range(3)]
        assert [watch is None for watch in kept] == [False, False, True]

    run(scenario, max_parked_reads=2, containers=1)


def test_a_watcher_with_a_bug_stops_no_one():
    async def scenario(world):
        heard = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context["exception"]))

        def broken():
            raise ValueError("bug of a caller")

        await world.store.create_segment("s")
        reported = Recorder()
        world.store.watch("s", 0, broken)
        world.store.watch("s", 0, reported)
        await append(world.store, "s", b"x")
        assert reported.times == 1
        assert [type(error) for error in heard] == [ValueError]
        await append(world.store, "s", b"y", number=2)

    run(scenario)


def test_each_read_that_shares_a_watch_counts_as_one_that_waits():
    async def scenario(world):
        await world.store.create_segment("s")
        reported = Recorder()
        watch = world.store.watch("s", 0, reported)
        parked = next(container.reads for container in world.store.containers if container.reads.parked)
        assert [watch.join() for _ in range(3)] == [True, True, False]
        assert parked.parked == 3
        watch.cancel()
        assert parked.parked == 2
        await append(world.store, "s", b"x")
        assert (reported.times, parked.parked) == (1, 0)
        alone = world.store.watch("s", 1, reported)
        assert alone.join()
        alone.cancel()
        alone.cancel()
        alone.cancel()
        await append(world.store, "s", b"y", number=2)
        assert (reported.times, parked.parked) == (1, 0)

    run(scenario, max_parked_reads=3)
