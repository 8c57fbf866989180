"""Limits of bytes are met to the event, however large the appends and their blocks are, or nothing is decided."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from byte_limits import HEADER, keeping, left, over_a_store
from controller_world import STREAM, join, name_of, seg, with_stream
from disks import write_events
from memory_segments import MemorySegments

from penstock.controller.controller import Controller
from penstock.model.errors import UnavailableError
from penstock.model.retention import Backlog, OnExceed, PolicyDocument
from penstock.ports.data.service import SegmentService
from penstock.testing.fakes import FakeClock

ONE = seg(0, 0)
MIB = 1 << 20


async def written(store: SegmentService, appends: list[int], chance: Random) -> list[int]:
    """Appends of so many bytes each; returns where events end."""
    ends, at = [0], 0
    for append_bytes in appends:
        sizes: list[int] = []
        most = min(chance.choice([2_000, 60_000, append_bytes]), append_bytes)
        while (room := append_bytes - sum(sizes) - HEADER * (len(sizes) + 1)) >= 0:
            sizes.append(min(room, chance.randint(most // 2, most)))
        await write_events(store, name_of(ONE), sizes)
        for size in sizes:
            at += size + HEADER
            ends.append(at)
    return ends


async def check(controller: Controller, ends: list[int], chance: Random) -> None:
    """A maximum overrules a subscriber, then a minimum keeps what nobody subscribes to, each to the event."""
    total = ends[-1]
    for share in (0.9, 0.55, 0.3):
        limit = int(total * share) + chance.randint(0, 5_000)
        await controller.policies.set(STREAM, keeping(max_bytes=limit))
        before = await left(controller)
        await controller.retention.run(STREAM)
        wanted = max(total - end for end in ends if total - end <= limit)
        assert await left(controller) == min(before, wanted)
    await controller.groups.delete("s", "g")
    for minimum in (int(total * 0.21), min(333_333, total)):
        await controller.policies.set(STREAM, keeping(min_bytes=minimum))
        before = await left(controller)
        await controller.retention.run(STREAM)
        wanted = min(total - end for end in ends if total - end >= minimum)
        assert await left(controller) == min(before, wanted)


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("append_mib", [1, 2, 3, 8])
def test_a_maximum_and_a_minimum_are_met_to_the_event(append_mib: int, flushed: bool) -> None:
    async def work(store: SegmentService, controller: Controller, clock: FakeClock) -> None:
        chance = Random(append_mib)
        await join(controller, "g", {ONE: 0})
        ends = await written(store, [append_mib * MIB] * max(3, 12 // append_mib), chance)
        if flushed:
            await store.flush()
        await check(controller, ends, chance)

    asyncio.run(over_a_store(work))


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 120))])
def test_limits_are_met_to_the_event_whatever_was_appended(seed: int) -> None:
    async def work(store: SegmentService, controller: Controller, clock: FakeClock) -> None:
        chance = Random(seed)
        await join(controller, "g", {ONE: 0})
        sizes = [chance.choice([100, 5_000, 300_000, MIB, 3 * MIB, 8 * MIB]) for _ in range(chance.randint(2, 6))]
        ends = await written(store, sizes, chance)
        if chance.random() < 0.5:
            await store.flush()
        await check(controller, ends, chance)

    asyncio.run(over_a_store(work))


def test_nobody_is_evicted_while_the_store_cannot_tell_boundaries() -> None:
    class Away(MemorySegments):
        away = False

        async def next_event_boundary(self, name: str, offset: int) -> int:
            if self.away:
                raise UnavailableError("the worker is down")
            return await super().next_event_boundary(name, offset)

    async def run() -> None:
        segments, clock = Away(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            await join(controller, "g", {ONE: 0})
            segments.write(name_of(ONE), b"x" * 5_000, event_bytes=10)
            await controller.retention.run(STREAM)
            await controller.policies.set(
                STREAM, PolicyDocument(backlog=Backlog(max_bytes=1_005, on_exceed=OnExceed.EVICT))
            )
            segments.away = True
            with pytest.raises(UnavailableError):
                await controller.retention.run(STREAM)
            assert await controller.retention.list_evictions(STREAM) == []
            segments.away = False
            await controller.retention.run(STREAM)
            (lost,) = await controller.retention.list_evictions(STREAM)
            assert lost.bytes == 4_100

    asyncio.run(run())
