"""Cycles of a stream that is appended to all the time: each rule acts once in a cycle, and the next cycle continues."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest
from byte_limits import keeping
from controller_world import QUIET, STREAM, audit_entries, join, name_of, quota, seg, with_stream
from memory_segments import MemorySegments

from penstock.controller.controller import Controller
from penstock.model.retention import OnExceed
from penstock.testing.fakes import FakeClock

ONE = seg(0, 0)
SERVING = replace(QUIET, retention_cycle_ms=3_600_000, retention_pause_ms=0)
"""The next cycle is an hour away: turns are made by hand."""

POLICIES = {
    "maximum": keeping(max_bytes=1_000),
    "minimum and maximum": keeping(min_bytes=500, max_bytes=1_000),
    "eviction": quota(OnExceed.EVICT, max_bytes=1_000, evict_to=1.0),
}


class Growing(MemorySegments):
    """Each change of records appends data, so each step of a cycle finds the stream grown."""

    grows = False

    async def table_change(self, name, changes):
        found = await super().table_change(name, changes)
        if self.grows:
            self.write(name_of(ONE), b"x" * 40, event_bytes=4)
        return found


async def entries(controller: Controller, segments: MemorySegments) -> list[tuple[str, str]]:
    kinds = ("truncate", "evict")
    return [(kind, entry["rule"]) for kind in kinds for entry in await audit_entries(controller, segments, kind)]


@pytest.mark.parametrize("kind", POLICIES)
def test_each_rule_acts_once_in_a_cycle_and_the_next_cycle_continues(kind: str) -> None:
    async def run() -> None:
        segments, clock = Growing(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            await controller.policies.set(STREAM, POLICIES[kind])
            await join(controller, "g", {ONE: 0})
            for _ in range(3):
                clock.ms += 1_000
                segments.write(name_of(ONE), b"x" * 4_000, event_bytes=4)
                before = Counter(await entries(controller, segments))
                segments.grows = True
                done = await controller.retention.run(STREAM)
                segments.grows = False
                acted = Counter(await entries(controller, segments)) - before
                assert acted
                assert set(acted.values()) == {1}
                assert done.frees_bytes >= 3_000
                assert done.frees_bytes == sum(step.frees_bytes for step in done.steps)
            await controller.retention.run(STREAM)
            # Once writes end, the limit is met as if nobody had written during a cycle.
            assert (await controller.streams.describe(STREAM)).size_bytes == 1_000
            assert (await controller.retention.plan(STREAM)).frees_bytes == 0

    asyncio.run(run())


def test_what_is_left_to_the_next_cycle_is_performed_there() -> None:
    async def run() -> None:
        segments, clock = Growing(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            await controller.policies.set(STREAM, keeping(max_bytes=1_000))
            segments.write(name_of(ONE), b"x" * 4_000, event_bytes=4)
            segments.grows = True
            await controller._loop.turn()
            segments.grows = False
            assert (await controller.streams.describe(STREAM)).size_bytes > 1_000
            clock.ms += 1_000
            await controller._loop.turn()
            assert (await controller.streams.describe(STREAM)).size_bytes == 1_000

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["maximum", "minimum and maximum"])  # a quota is looked at whenever writers meet it
def test_a_truncation_that_can_be_undone_does_not_cause_the_next_one(kind: str) -> None:
    async def run() -> None:
        segments, clock = Growing(), FakeClock()
        async with with_stream(segments, 1, clock, settings=SERVING) as controller:
            await controller.policies.set(STREAM, replace(POLICIES[kind], grace_s=10))
            await join(controller, "g", {ONE: 0})
            await settled()
            segments.write(name_of(ONE), b"x" * 4_000, event_bytes=4)
            segments.grows = True
            await controller._loop.turn()
            acted = await entries(controller, segments)
            await settled()
            assert acted
            assert await entries(controller, segments) == acted
            segments.grows = False
            # The next cycles free what was truncated, when its grace ends.
            for _ in range(2):
                clock.ms += 10_000
                await controller._loop.turn()
            assert await audit_entries(controller, segments, "release")

    asyncio.run(run())


async def settled() -> None:
    """Looks that do not wait for the next cycle are over."""
    for _ in range(500):
        await asyncio.sleep(0)
