"""Cycles of a stream that is appended to all the time: each rule acts once in a cycle, and the next cycle continues."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from byte_limits import keeping
from controller_world import QUIET, STREAM, audit_entries, join, name_of, publish, quota, seg, with_stream
from memory_segments import MemorySegments

from penstock.controller.controller import Controller
from penstock.core.retention.facts import RetentionRule
from penstock.model.retention import Backlog, Idle, IdleWhen, OnExceed, PolicyDocument, Retain
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


def between_decisions(controller: Controller, monkeypatch: pytest.MonkeyPatch, work: Callable[[], Any]) -> None:
    """Do the work after the first decision of each cycle."""
    cycle = controller._loop._cycle
    step = cycle._step

    async def interrupted(name, frequency_ms, look):
        if len(look.decisions) == 1:
            await work()
        return await step(name, frequency_ms, look)

    monkeypatch.setattr(cycle, "_step", interrupted)


def test_a_decision_that_would_empty_the_stream_is_due_at_once_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:

            async def read_all() -> None:
                segments.write(name_of(ONE), b"x" * 40, event_bytes=4)
                await publish(controller, "g", {ONE: 4_040})

            await controller.policies.set(STREAM, keeping(min_bytes=0))
            segments.write(name_of(ONE), b"x" * 4_000, event_bytes=4)
            await join(controller, "g", {ONE: 2_000})
            between_decisions(controller, monkeypatch, read_all)
            await controller.retention.run(STREAM)
            assert (await controller.streams.describe(STREAM)).size_bytes == 2_040
            due_ms = controller._loop._due.first()
            assert due_ms is not None
            assert due_ms <= controller._ctx.retention_clock.now_ms()

    asyncio.run(run())


def test_a_stream_that_is_not_deleted_after_all_keeps_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    class LateWriter(MemorySegments):
        late = b"x" * 40

        async def limit_appends(self, limits) -> None:
            if self.late and any(limit.reason.get("rule") == RetentionRule.IDLE_STREAM.value for limit in limits):
                self.write(name_of(ONE), self.late, event_bytes=4)
                self.late = b""
            await super().limit_appends(limits)

    async def run() -> None:
        segments, clock = LateWriter(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:

            async def read_all() -> None:
                await publish(controller, "g", {ONE: 4_000})
                clock.ms += 200_000

            document = PolicyDocument(
                retain=Retain(min_bytes=0),
                backlog=Backlog(on_exceed=OnExceed.HOLD, max_bytes=5_000),
                idle=Idle(stream_s=100, stream_when=IdleWhen.CAUGHT_UP),
            )
            await controller.policies.set(STREAM, document)
            segments.write(name_of(ONE), b"x" * 4_000, event_bytes=4)
            await join(controller, "g", {ONE: 2_000})
            between_decisions(controller, monkeypatch, read_all)
            await controller.retention.run(STREAM)
            assert await controller.streams.exists(STREAM)
            assert segments.late == b""
            assert segments.limits[str(STREAM)].total_bytes == 9_000

    asyncio.run(run())
