"""Readers, writers, people and cycles at once: whatever takes its turn first, nothing goes unread without a record of it."""

from __future__ import annotations

import asyncio
import random

import pytest
from controller_world import (
    STREAM,
    audit_entries,
    check_invariants,
    cut_at,
    cuts,
    join,
    name_of,
    publish,
    seg,
    with_stream,
)
from memory_segments import MemorySegments

from penstock.controller.controller import Controller
from penstock.model.errors import InvalidCutError, RetentionHoldError
from penstock.model.retention import Backlog, OnExceed, PolicyDocument, Retain
from penstock.testing.fakes import FakeClock

SEGMENT = seg(0, 0)
NAME = name_of(SEGMENT)
POLICY = PolicyDocument(
    retain=Retain(min_bytes=0, max_bytes=90),
    backlog=Backlog(ttl_s=20, max_bytes=60, on_exceed=OnExceed.EVICT, evict_to=0.5),
)


class Run:
    """What was said and seen: the highest cut that each group has published, and where holds began."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.segments, self.clock = MemorySegments(), FakeClock()
        self.said = {"a": 0, "b": 0}
        self.held: int | None = None

    async def pause(self) -> None:
        for _ in range(self.rng.randrange(12)):
            await asyncio.sleep(0)

    async def write(self) -> None:
        for _ in range(30):
            self.segments.write(NAME, b"x" * self.rng.randrange(1, 15))
            self.clock.ms += self.rng.randrange(2000)
            await self.pause()

    async def read(self, controller: Controller, group: str, *, times: int, most: int) -> None:
        for _ in range(times):
            await self.pause()
            end = min(len(self.segments.segments[NAME].data), self.said[group] + most)
            place = self.rng.randrange(self.said[group], end + 1)
            await publish(controller, group, {SEGMENT: place})
            self.said[group] = place

    async def cycle(self, controller: Controller) -> None:
        for _ in range(15):
            await self.pause()
            await controller.retention.run(STREAM)

    async def hold(self, controller: Controller) -> None:
        for number in range(3):
            await self.pause()
            head = (await controller.cuts.head(STREAM)).positions[SEGMENT]
            try:
                await controller.holds.add(
                    STREAM, owner="o", reason="r", hold_id=f"h{number}", cut=cut_at({SEGMENT: head + 5})
                )
            except InvalidCutError:
                # The head, or the tail, was elsewhere by then.
                continue
            self.held = head + 5
            for _ in range(10):
                await self.pause()
                assert self.segments.segments[NAME].start <= self.held
                with pytest.raises((RetentionHoldError, InvalidCutError)):
                    await controller.streams.truncate(STREAM, cut_at({SEGMENT: self.held + 1}))
            await controller.holds.release(f"h{number}", owner="o")


@pytest.mark.parametrize("seed", range(25))
def test_nothing_goes_unread_without_a_record_whoever_is_faster(seed: int) -> None:
    async def work() -> None:
        run = Run(seed)
        async with with_stream(run.segments, 1, run.clock) as controller:
            await controller.policies.set(STREAM, POLICY)
            run.segments.write(NAME, b"x" * 10)
            for group in run.said:
                await join(controller, group, {SEGMENT: 0})
            async with asyncio.TaskGroup() as group_of_tasks:
                for task in (
                    run.write(),
                    run.read(controller, "a", times=30, most=100),
                    run.read(controller, "b", times=12, most=12),
                    run.cycle(controller),
                    run.cycle(controller),
                    run.hold(controller),
                ):
                    group_of_tasks.create_task(task)
            await controller.retention.run(STREAM)
            head = (await controller.cuts.head(STREAM)).positions[SEGMENT]
            lost = await controller.retention.list_evictions(STREAM)
            assert lost, "nobody was too slow: the run shows nothing"
            now_at = await cuts(controller)
            for group, said in run.said.items():
                ranges = [(item.start["0#0"], item.end["0#0"]) for item in lost if item.subscriber == f"s/{group}"]
                unread = [byte for byte in range(said, head) if not any(first <= byte < last for first, last in ranges)]
                assert unread == [], f"{group} lost bytes that nobody has recorded"
                assert all(first < last for first, last in ranges)
                place = now_at[f"s/{group}"]
                assert place is not None
                assert place[SEGMENT] == max(said, *(last for _, last in ranges), 0)
            reported = await audit_entries(controller, run.segments, "expire", "evict")
            assert len(reported) == len(lost)
            freed = await audit_entries(controller, run.segments, "truncate")
            assert sum(entry["bytes"] for entry in freed) == head
            assert [entry["before"]["0"] for entry in freed][1:] == [entry["after"]["0"] for entry in freed][:-1]
            await check_invariants(controller, run.segments)

    asyncio.run(work())
