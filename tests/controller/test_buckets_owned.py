"""Buckets among controllers that come, go, stall and lose their way: one owner at a time, and none without one for long."""

import asyncio
import random
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st
from memory_segments import MemorySegments

from penstock.app.telemetry import Counters
from penstock.controller import retention_keys
from penstock.controller.buckets import Buckets
from penstock.controller.metadata import Metadata
from penstock.controller.set_aside import SetAside
from penstock.core.streams.buckets import bucket_of
from penstock.model.errors import ContainerOfflineError, StorageFullError
from penstock.model.names import StreamName
from penstock.testing.fakes import SeededRng

LEASE_MS = 1000
COUNT = 16


class Time:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


def controller(metadata, time, seed, *, lease_ms=LEASE_MS, count=COUNT):
    return Buckets(metadata, SeededRng(seed), time, SetAside(Counters()), count=count, lease_ms=lease_ms)


async def turns(time, controllers, times=1, step_s=0.2):
    for _ in range(times):
        time.now_s += step_s
        for item in controllers:
            await item.turn()


def owned_twice(controllers):
    owned = [bucket for item in controllers for bucket in item.owned]
    return len(owned) != len(set(owned))


def run(work):
    async def main():
        metadata = Metadata(MemorySegments())
        await metadata.bootstrap()
        await work(metadata, Time())

    asyncio.run(main())


def test_one_alone_owns_all_at_once_and_writes_one_batch():
    async def work(metadata, time):
        first = controller(metadata, time, 1, lease_ms=None)
        await first.start()
        before = metadata._segments.mutations
        second = controller(metadata, time, 2, lease_ms=None)
        await second.start()
        assert metadata._segments.mutations == before + 1
        assert second.owned == list(range(COUNT))
        assert list(second.taken()) == list(range(COUNT))
        assert second.taken() == []
        assert second.owns(StreamName("s", "t"))

    run(work)


def test_one_alone_starts_on_a_store_that_takes_no_writes():
    async def work(metadata, time):
        async def refused(*puts):
            raise StorageFullError("disk is full")

        metadata.put = refused
        alone = controller(metadata, time, 1, lease_ms=None)
        await alone.start()
        assert alone.owned == list(range(COUNT))

    run(work)


def test_the_number_of_buckets_is_that_of_the_first_start():
    async def work(metadata, time):
        await controller(metadata, time, 1, lease_ms=None).start()
        other = controller(metadata, time, 2, lease_ms=None, count=7)
        await other.start()
        assert other.count == COUNT

    run(work)


def test_those_who_come_get_their_share_and_those_who_go_leave_theirs():
    async def work(metadata, time):
        first, second, third = (controller(metadata, time, seed) for seed in (1, 2, 3))
        await first.start()
        assert first.owned == list(range(COUNT))
        await second.start()
        await turns(time, [first, second], 3)
        assert sorted([*first.owned, *second.owned]) == list(range(COUNT))
        assert len(first.owned) == len(second.owned)
        await third.start()
        await turns(time, [first, second, third], 4)
        assert {len(item.owned) for item in (first, second, third)} == {5, 6}
        await second.close()
        await turns(time, [first, third], 3)
        assert sorted([*first.owned, *third.owned]) == list(range(COUNT))

    run(work)


def test_the_dead_are_followed_after_a_lease_and_not_before():
    async def work(metadata, time):
        first, second = (controller(metadata, time, seed) for seed in (1, 2))
        await first.start()
        await second.start()
        await turns(time, [first, second], 3)
        had = set(second.owned)
        died_s = time.now_s
        while set(first.owned) != set(range(COUNT)):
            await turns(time, [first])
            # The other one has stopped by itself well before.
            assert second.owned == [] or time.now_s - died_s < LEASE_MS / 2000 + 0.001
            assert not owned_twice([first, second])
            assert time.now_s < died_s + 2 * LEASE_MS / 1000
        assert time.now_s >= died_s + LEASE_MS / 1000
        epochs = [item.value.epoch for item in (await first._records()).values()]
        assert had
        assert all(epochs[bucket] > 1 for bucket in had)
        assert [entry async for entry in metadata.scan_all(retention_keys.HEARTBEATS)].__len__() == 1

    run(work)


def test_one_that_wakes_after_a_stall_owns_only_what_is_still_its_own():
    async def work(metadata, time):
        first, second = (controller(metadata, time, seed) for seed in (1, 2))
        await first.start()
        await second.start()
        await turns(time, [first, second], 3)
        await turns(time, [first], 12)
        assert second.owned == []
        await second.turn()
        assert not owned_twice([first, second])
        await turns(time, [first, second], 4)
        assert sorted([*first.owned, *second.owned]) == list(range(COUNT))

    run(work)


def test_streams_are_spread_by_their_name():
    async def work(metadata, time):
        first, second = (controller(metadata, time, seed) for seed in (1, 2))
        await first.start()
        await second.start()
        await turns(time, [first, second], 3)
        for number in range(50):
            name = StreamName("s", f"t{number}")
            assert first.owns(name) is (bucket_of(str(name), COUNT) in first.owned)
            assert first.owns(name) is not second.owns(name)

    run(work)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 32))
def test_no_bucket_ever_has_two_owners(seed):
    async def work(metadata, time):
        rng = random.Random(seed)
        alive: list[Buckets] = []
        stalled: list[Buckets] = []
        for step in range(60):
            what = rng.randrange(8)
            if what == 0 and len(alive) < 4:
                alive.append(controller(metadata, time, seed * 100 + step))
                await alive[-1].start()
            elif what == 1 and len(alive) > 1:
                stalled.append(alive.pop(rng.randrange(len(alive))))
            elif what == 2 and stalled:
                alive.append(stalled.pop())
            elif what == 3 and len(alive) > 1 and rng.random() < 0.3:
                await alive.pop().close()
            else:
                time.now_s += rng.random() * 0.3
                for item in rng.sample(alive, len(alive)):
                    if rng.random() < 0.2:
                        metadata._segments.arm(rng.randrange(1, 4), effect_first=rng.random() < 0.5)
                    with suppress(ContainerOfflineError):
                        await item.turn()
                    metadata._segments.heal()
                    assert not owned_twice([*alive, *stalled])
            assert not owned_twice([*alive, *stalled])
        if alive:
            await turns(time, alive, 20)
            assert sorted(bucket for item in alive for bucket in item.owned) == list(range(COUNT))

    run(work)
