"""Random streams under random policies, brought to a rest: what was planned is what is gone then."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

from controller_world import STREAM, cut_at, join, name_of, publish, scale_to, with_stream
from memory_segments import MemorySegments

from penstock.codec.answers import as_json
from penstock.controller.controller import Controller
from penstock.core.planner_json.requests import plan_line, read_facts
from penstock.core.planner_json.stream import encode_cut
from penstock.core.retention.settlement import settle
from penstock.model.answers.plan import RetentionPlan, RetentionRun
from penstock.model.errors import (
    InvalidArgumentError,
    InvalidCutError,
    PenstockError,
    QuotaExceededError,
    QuotaHeldError,
)
from penstock.model.retention import (
    INHERIT,
    Backlog,
    Combine,
    Idle,
    Measure,
    OnExceed,
    PolicyDocument,
    Retain,
    Unsubscribed,
)
from penstock.model.segments import SegmentId
from penstock.testing.fakes import FakeClock

EVENT_BYTES = (1, 10, 90, 400)
TAKEN = ("frees_bytes", "truncate", "expire", "evict", "drop", "delete_stream", "steps", "subscribers", "events")


def some_document(chance: Random, total: int) -> PolicyDocument:
    """Limits of the order of what the stream has, and of the minutes that it lives."""

    def limit(most: int) -> Any:
        return chance.choice([INHERIT, 0, chance.randint(1, most), chance.randint(1, most), None])

    quiet = chance.random() < 0.5
    return PolicyDocument(
        retain=Retain(
            min_bytes=limit(max(total // 2, 1)),
            max_bytes=limit(max(total, 1)),
            min_age_s=chance.choice([INHERIT, INHERIT, limit(60)]),
            max_age_s=chance.choice([INHERIT, INHERIT, limit(60)]),
            combine=chance.choice([INHERIT, *Combine]),
            measure=chance.choice([INHERIT, *Measure]),
        ),
        unsubscribed=chance.choice([INHERIT, *Unsubscribed]),
        backlog=Backlog()
        if quiet
        else Backlog(
            ttl_s=chance.choice([INHERIT, chance.randint(1, 60)]),
            max_bytes=chance.choice([INHERIT, chance.randint(1, max(total, 1))]),
            max_events=chance.choice([INHERIT, chance.randint(1, 60)]),
            max_age_s=chance.choice([INHERIT, chance.randint(1, 60)]),
            on_exceed=OnExceed.EVICT,
            evict_to=chance.choice([INHERIT, 1.0, 0.5]),
            on_exceed_bytes=chance.choice([INHERIT, INHERIT, *OnExceed]),
            on_exceed_age=chance.choice([INHERIT, INHERIT, *OnExceed]),
            on_exceed_events=chance.choice([INHERIT, INHERIT, *OnExceed]),
        ),
        idle=Idle(subscriber_s=chance.choice([INHERIT, INHERIT, chance.randint(1, 60)])),
    )


@dataclass
class QuietWorld:
    """One stream, its controller and its chance."""

    chance: Random
    controller: Controller
    segments: MemorySegments
    clock: FakeClock
    total: int = 0

    async def live(self) -> None:
        """Write, scale, acknowledge, hold and run cycles, in any order."""
        chance, controller = self.chance, self.controller
        groups = [f"g{number}" for number in range(chance.randint(0, 2))]
        start = {item.segment: 0 for item in await controller.layout.current(STREAM)}
        for group in groups:
            await join(controller, group, start)
        for _ in range(chance.randint(2, 6)):
            for item in await controller.layout.current(STREAM):
                size = chance.choice([0, chance.randint(1, 4000)])
                event_bytes = chance.choice(EVENT_BYTES)
                with suppress(QuotaHeldError, QuotaExceededError):
                    self.segments.write(name_of(item.segment), b"x" * size, event_bytes=event_bytes)
                    self.total += size
            self.clock.ms += chance.randint(1, 15_000)
            if chance.random() < 0.3:
                await scale_to(controller, chance.randint(len(start), 3))
            for group in groups:
                if chance.random() < 0.4:
                    await self._acknowledge(group)
            if chance.random() < 0.5:
                await controller.retention.run(STREAM)
            if chance.random() < 0.2:
                await self.set_policy()
        if chance.random() < 0.3:
            tail = (await controller.cuts.tail(STREAM)).positions
            where = chance.choice([None, cut_at({item: self._boundary(item) for item in tail})])
            with suppress(InvalidCutError):  # It lies before the head.
                await controller.holds.add(STREAM, owner="legal", reason="case", cut=where)

    async def _acknowledge(self, group: str) -> None:
        tail = (await self.controller.cuts.tail(STREAM)).positions
        cut = {item: self._boundary(item) for item in tail}
        with suppress(PenstockError):  # It lies behind what was acknowledged before.
            await publish(self.controller, group, cut)

    def _boundary(self, segment: SegmentId) -> int:
        return self.chance.choice([0, *self.segments.segments[name_of(segment)].ends])

    async def set_policy(self) -> None:
        while True:
            try:
                return await self.controller.policies.set(STREAM, some_document(self.chance, self.total))
            except InvalidArgumentError:
                continue  # The minimum lies above the maximum.

    async def check(self) -> int:
        """Plan, bring to a rest, compare; returns the number of steps that were planned."""
        controller = self.controller
        before = await controller.streams.describe(STREAM)
        plan = await controller.retention.plan(STREAM)
        explained = await controller.retention.explain(STREAM)
        due = sum(item.bytes for item in explained.ranges if item.kind == "due")
        assert due == explained.frees_bytes == plan.frees_bytes == sum(s.frees_bytes for s in plan.steps)
        assert sum(item.bytes for item in explained.ranges) == before.size_bytes
        await self._check_line(plan)
        held = dict.fromkeys((item.name for item in await controller.subscribers.describe(STREAM)), 0)
        for item in explained.ranges:
            if item.kind == "subscriber":
                held[item.name] += item.bytes
        assert held == {item.name: item.held_bytes for item in await controller.subscribers.describe(STREAM)}
        done = await controller.retention.run(STREAM)
        assert [getattr(done, name) for name in TAKEN[:7]] == [getattr(plan, name) for name in TAKEN[:7]]
        await self._check_actions(done)
        for _ in range(2):
            after = await controller.streams.describe(STREAM)
            assert before.size_bytes - after.size_bytes == plan.frees_bytes
            if plan.steps and plan.frees_bytes:
                assert after.head == cut_at(_cut(plan.truncate))
            left = await controller.retention.plan(STREAM)
            assert (left.frees_bytes, left.steps, left.events) == (0, [], 0)
            ranges = (await controller.retention.explain(STREAM)).ranges
            assert all(item.kind != "due" for item in ranges)
            assert (await controller.retention.run(STREAM)).steps == []
        return len(plan.steps)

    async def _check_line(self, plan: RetentionPlan) -> None:
        """The facts on paper lead to where the plan does. With several segments a maximum that passes subscribers may take
        another of the cuts that are given all at once."""
        line = read_facts(json.dumps(as_json(await self.controller.retention.facts(STREAM))))
        found = settle(line.facts, now_ms=line.now_ms)
        rules = {step.rule for step in plan.steps}
        if rules & {"subscribers-maximum", "overlap-maximum"} and len(plan.truncate or ()) > 1:
            return
        assert (found.frees_bytes, encode_cut(found.truncate)) == (plan.frees_bytes, plan.truncate)
        assert (found.last.deletes_stream, list(found.hurt)) == (plan.delete_stream, plan.subscribers)
        text = plan_line(json.dumps(as_json(await self.controller.retention.facts(STREAM))))
        said = text.get("settled", text)
        assert (said["frees_bytes"], said["truncate"]) == (plan.frees_bytes, plan.truncate)

    async def _check_actions(self, done: RetentionRun) -> None:
        """Each quota does what is said of it, and nothing that is said of another."""
        policy = await self.controller.policies.effective(STREAM)
        own = {
            "backlog-bytes": policy.bytes_action,
            "backlog-events": policy.events_action,
            "backlog-age": policy.age_action,
        }
        for item in done.evict:
            assert own.get(item.rule, OnExceed.EVICT) is OnExceed.EVICT, item
        writers = done.writers
        if writers.exceeded:
            state = "notify" if own[writers.rule] is OnExceed.EVICT else own[writers.rule].value
            assert writers.state == state


def _cut(words: dict[str, int]) -> dict[int, int]:
    found = {}
    for word, offset in words.items():
        number, epoch = word.split("#")
        found[(int(epoch) << 32) + int(number)] = offset
    return found


async def run_world(seed: int) -> int:
    """One world; returns how many steps it took to its rest."""
    chance, segments, clock = Random(seed), MemorySegments(), FakeClock()
    async with with_stream(segments, chance.randint(1, 3), clock) as controller:
        world = QuietWorld(chance, controller, segments, clock)
        if chance.random() < 0.5:
            await world.set_policy()
        await world.live()
        await world.set_policy()
        return await world.check()
