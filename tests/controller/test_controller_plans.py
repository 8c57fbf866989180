"""Plans and explanations: the planner that a cycle asks, asked by people."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from controller_world import QUIET, STREAM, cut_at, join, name_of, opened, seg, with_stream
from memory_segments import MemorySegments
from msgspec import UNSET
from msgspec.structs import asdict

from penstock.model.policies import RetentionPolicy, RetentionType
from penstock.model.retention import Level, PolicyDocument, Retain
from penstock.testing.fakes import FakeClock

SEGMENT = seg(0, 0)
NAME = name_of(SEGMENT)


def run(work) -> None:
    asyncio.run(work())


def test_a_plan_says_what_would_go_and_a_cycle_then_does_exactly_that() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            await controller.policies.set(STREAM, PolicyDocument(retain=Retain(min_age_s=3600)))
            await join(controller, "g", {SEGMENT: 0})
            began_ms = clock.ms
            for _ in range(4):
                segments.write(NAME, b"x" * 10, event_bytes=5)
                clock.ms += 1000
                await controller.retention.run(STREAM)
            await controller.drain_audit()
            before = segments.mutations
            change = PolicyDocument(retain=Retain(min_bytes=5, max_bytes=25))
            plan = await controller.retention.plan(STREAM, change=change)
            assert (plan.truncate, plan.frees_bytes, plan.events) == ({"0#0": 20}, 20, 4)
            assert plan.time_range_ms == [began_ms, began_ms + 2000]
            assert (plan.policy.max_bytes, plan.policy.origins["retain.max_bytes"]) == (25, Level.STREAM)
            assert plan.subscribers == ["s/g"]
            assert [(item.subscriber, item.bytes, item.events) for item in plan.evict] == [("s/g", 20, 4)]
            now = await controller.retention.plan(STREAM)
            assert (now.truncate, now.events, now.time_range_ms) == (None, 0, None)
            assert segments.mutations == before
            await controller.policies.set(STREAM, change)
            decision = await controller.retention.run(STREAM)
            done = asdict(decision) | {"next_due_ms": plan.next_due_ms}
            assert asdict(plan).items() >= done.items()
            (lost,) = await controller.retention.list_evictions(STREAM)
            assert (lost.bytes, lost.events) == (20, 4)

    run(work)


def test_a_plan_for_later_lets_time_pass_and_nothing_else() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        policy = RetentionPolicy(type=RetentionType.TIME, minimum=10_000)
        async with with_stream(segments, 1, clock, retention=policy) as controller:
            segments.write(NAME, b"x" * 10)
            await controller.retention.run(STREAM)
            due_ms = clock.ms + 10_000
            assert (await controller.retention.plan(STREAM, at_ms=due_ms - 1)).truncate is None
            assert (await controller.retention.plan(STREAM, at_ms=due_ms)).truncate == {"0#0": 10}
            clock.ms = due_ms
            assert (await controller.retention.run(STREAM)).truncate == {"0#0": 10}

    run(work)


def test_whose_a_hold_is_and_why_stands_with_what_it_holds() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock, retention=RetentionPolicy(type=RetentionType.SIZE, minimum=5)) as it:
            segments.write(NAME, b"x" * 40)
            await it.retention.run(STREAM)
            where = cut_at({SEGMENT: 10})
            await it.holds.add(STREAM, owner="legal", reason="case 7", cut=where, hold_id="case-7")
            for position in (None, where):
                found = (await it.retention.explain(STREAM, position=position)).ranges
                (held,) = [item for item in found if item.kind == "hold"]
                assert (held.name, held.owner, held.reason) == ("case-7", "legal", "case 7")
                assert all(item.owner is UNSET for item in found if item is not held)

    run(work)


def test_of_any_position_it_is_known_why_it_is_there_or_when_and_why_it_went() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        policy = RetentionPolicy(type=RetentionType.TIME, minimum=10_000)
        async with with_stream(segments, 1, clock, retention=policy) as controller:
            segments.write(NAME, b"x" * 40)
            await controller.streams.truncate(STREAM, cut_at({SEGMENT: 5}))
            by_hand_ms = clock.ms
            clock.ms += 1000
            await controller.streams.truncate(STREAM, cut_at({SEGMENT: 15}))
            recorded_ms = clock.ms
            await controller.retention.run(STREAM)
            clock.ms += 5000

            async def explain(offset: int):
                return await controller.retention.explain(STREAM, position=cut_at({SEGMENT: offset}))

            found = await explain(20)
            assert [(item.kind, item.start, item.bytes) for item in found.ranges] == [("minimum", {"0#0": 20}, 20)]
            assert found.earliest_release_ms == recorded_ms + 10_000
            assert found.gone is None
            gone = (await explain(4)).gone
            assert (gone.at_ms, gone.rule, gone.bytes, gone.certain) == (by_hand_ms, "manual", 5, True)
            gone = (await explain(5)).gone
            assert (gone.at_ms, gone.bytes, gone.head) == (recorded_ms, 10, {"0#0": 15})
            end = await explain(40)
            assert (end.ranges, end.earliest_release_ms, end.gone) == ([], None, None)
            clock.ms += 5000
            await controller.retention.run(STREAM)
            gone = (await explain(15)).gone
            assert (gone.at_ms, gone.rule, gone.bytes) == (clock.ms, "minimum", 25)

    run(work)


def test_what_went_before_all_that_is_remembered_is_not_blamed_on_what_is() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            segments.write(NAME, b"x" * 300)
            for offset in range(1, 150):
                clock.ms += 1
                await controller.streams.truncate(STREAM, cut_at({SEGMENT: offset}))
            gone = (await controller.retention.explain(STREAM, position=cut_at({SEGMENT: 3}))).gone
            assert (gone.head, gone.certain) == ({"0#0": 50}, False)
            gone = (await controller.retention.explain(STREAM, position=cut_at({SEGMENT: 100}))).gone
            assert (gone.head, gone.certain) == ({"0#0": 101}, True)

    run(work)


def test_a_plan_shows_a_range_of_times_forwards_though_the_retention_clock_is_behind() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        settings = replace(QUIET, clock_slack_ms=3_600_000)
        async with opened(segments, clock, settings):
            pass
        clock.ms += 1000  # the next start cannot know how long it was: its clock stays behind the wall clock
        async with with_stream(segments, 1, clock, settings=settings) as controller:
            for _ in range(2):
                segments.write(NAME, b"x" * 10)
                clock.ms += 100
                await controller.retention.run(STREAM)
            plan = await controller.retention.plan(STREAM, change=PolicyDocument(retain=Retain(max_bytes=10)))
            assert plan.frees_bytes == 20
            began_ms, ended_ms = plan.time_range_ms
            assert began_ms <= ended_ms

    run(work)
