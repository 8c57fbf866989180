"""Grace: what was truncated is kept for a while, can be had back, is held by holds, and goes when due; and a crash anywhere."""

import asyncio
from contextlib import suppress

import pytest
from controller_crash_world import Workflow, World, crash_once, reopen_with_crash
from controller_world import (
    STREAM,
    audit_entries,
    config,
    cut_at,
    name_of,
    opened,
    scale_to,
    seg,
    stream_bytes,
    table_keys,
    with_stream,
)
from memory_segments import MemorySegments

from penstock.model.cuts import NOT_STARTED
from penstock.model.errors import ConflictError, ContainerOfflineError, StreamNotFoundError, UnavailableError
from penstock.model.retention import PolicyDocument, Retain
from penstock.testing.fakes import FakeClock

HOUR_MS = 3_600_000
ONE, LEFT = seg(0, 0), seg(1, 1)
GRACE = PolicyDocument(grace_s=3600)


def graces(segments):
    return [key for key in table_keys(segments) if key.startswith("grace/")]


def kept_bytes(segments):
    return sum(item.start - item.kept for item in segments.segments.values() if item.kept is not None)


def scenario(work, count=1):
    async def run():
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, count, clock) as controller:
            segments.write(name_of(ONE), b"x" * 100)
            await controller.policies.set(STREAM, GRACE)
            await work(controller, segments, clock)

    asyncio.run(run())


def test_readers_start_at_the_cut_at_once_and_the_bytes_go_when_due():
    async def work(controller, segments, clock):
        await controller.streams.truncate(STREAM, cut_at({ONE: 60}))
        segment = segments.segments[name_of(ONE)]
        assert (segment.start, segment.oldest) == (60, 0)
        assert (await controller.streams.describe(STREAM)).size_bytes == 40
        clock.ms += HOUR_MS - 1
        await controller.retention.run(STREAM)
        assert segment.oldest == 0
        clock.ms += 1
        await controller.retention.run(STREAM)
        assert (segment.start, segment.oldest) == (60, 60)
        assert graces(segments) == []
        reported = await audit_entries(controller, segments, "release")
        assert [entry["bytes"] for entry in reported] == [60]

    scenario(work)


def test_the_cycle_over_all_streams_releases_what_is_due():
    async def work(controller, segments, clock):
        await controller.streams.truncate(STREAM, cut_at({ONE: 60}))
        clock.ms += HOUR_MS
        await controller.run_retention_cycles()
        assert graces(segments) == []

    scenario(work)


def test_undo_gives_back_all_of_it_and_rules_leave_it_alone_for_the_rest_of_the_grace():
    async def work(controller, segments, clock):
        await controller.policies.set(STREAM, PolicyDocument(grace_s=3600, retain=Retain(min_bytes=10)))
        segments.write(name_of(ONE), b"y" * 50)
        clock.ms += 1000
        decision = await controller.retention.run(STREAM)
        assert decision.truncate == {"0#0": 140}
        assert (await controller.retention.undo_last(STREAM)).positions == {ONE: 0}
        assert segments.segments[name_of(ONE)].start == 0
        description = await controller.streams.describe(STREAM)
        assert (description.size_bytes, dict(description.head.positions)) == (150, {ONE: 0})
        clock.ms += HOUR_MS - 1
        decision = await controller.retention.run(STREAM)
        assert decision.truncate is None
        assert decision.next_due_ms is not None
        explained = await controller.retention.explain(STREAM)
        assert explained.ranges[0].kind == "hold"
        clock.ms += 1
        segments.write(name_of(ONE), b"z" * 20)
        decision = await controller.retention.run(STREAM)
        # A record is near enough to where the minimum begins.
        assert decision.truncate == {"0#0": 150}

    scenario(work)


def test_only_the_last_truncation_is_taken_back_then_the_one_before():
    async def work(controller, segments, clock):
        await controller.streams.truncate(STREAM, cut_at({ONE: 20}))
        await controller.streams.truncate(STREAM, cut_at({ONE: 50}))
        assert len(graces(segments)) == 2
        assert (await controller.retention.undo_last(STREAM)).positions == {ONE: 20}
        assert (await controller.retention.undo_last(STREAM)).positions == {ONE: 0}
        with pytest.raises(ConflictError):
            await controller.retention.undo_last(STREAM)
        assert await stream_bytes(controller, segments) == {ONE: b"x" * 100}
        reported = await audit_entries(controller, segments, "truncate", "undo")
        assert [entry["kind"] for entry in reported] == ["truncate", "truncate", "undo", "undo"]

    scenario(work)


def test_after_its_time_nothing_can_be_taken_back():
    async def work(controller, segments, clock):
        await controller.streams.truncate(STREAM, cut_at({ONE: 20}))
        clock.ms += HOUR_MS
        await controller.retention.run(STREAM)
        with pytest.raises(ConflictError):
            await controller.retention.undo_last(STREAM)

    scenario(work)


def test_a_truncation_without_grace_waits_for_those_before_it():
    async def work(controller, segments, clock):
        await controller.streams.truncate(STREAM, cut_at({ONE: 20}))
        await controller.policies.set(STREAM, PolicyDocument())
        await controller.streams.truncate(STREAM, cut_at({ONE: 50}))
        await controller.retention.run(STREAM)
        assert kept_bytes(segments) == 50
        assert (await controller.retention.undo_last(STREAM)).positions == {ONE: 20}
        assert (await controller.retention.undo_last(STREAM)).positions == {ONE: 0}

    scenario(work)


def test_a_hold_stops_the_release_of_what_it_covers_and_all_behind():
    async def work(controller, segments, clock):
        await controller.streams.truncate(STREAM, cut_at({ONE: 20}))
        await controller.streams.truncate(STREAM, cut_at({ONE: 50}))
        await controller.holds.add(STREAM, owner="o", reason="r", hold_id="h")
        clock.ms += 2 * HOUR_MS
        await controller.retention.run(STREAM)
        assert kept_bytes(segments) == 50
        report = await controller.retention.reclaim(STREAM)
        assert {item.why.value for item in report.pending} <= {"hold"}
        await controller.holds.release("h", owner="o")
        await controller.retention.run(STREAM)
        assert kept_bytes(segments) == 0

    scenario(work)


def test_a_hold_from_the_new_head_on_does_not_keep_what_is_before_it():
    async def work(controller, segments, clock):
        await controller.streams.truncate(STREAM, cut_at({ONE: 20}))
        await controller.holds.add(STREAM, owner="o", reason="r", hold_id="h", cut=cut_at({ONE: 20}))
        clock.ms += HOUR_MS
        await controller.retention.run(STREAM)
        assert kept_bytes(segments) == 0

    scenario(work)


def test_segments_passed_whole_stay_and_come_back_across_a_scale():
    async def work(controller, segments, clock):
        await scale_to(controller, 2)
        left, right = [item.segment for item in await controller.layout.current(STREAM)]
        segments.write(name_of(left), b"l" * 30)
        await controller.streams.truncate(STREAM, cut_at({left: 10, right: 0}))
        assert segments.segments[name_of(ONE)].oldest == 0
        assert (await controller.retention.undo_last(STREAM)).positions == {ONE: 0}
        assert (await stream_bytes(controller, segments))[ONE] == b"x" * 100
        await controller.streams.truncate(STREAM, cut_at({left: 10, right: 0}))
        clock.ms += HOUR_MS
        await controller.retention.run(STREAM)
        assert name_of(ONE) not in segments.segments
        assert segments.segments[name_of(left)].oldest == 10

    scenario(work)


def test_a_segment_that_had_not_been_started_is_not_started_again_by_an_undo():
    async def work(controller, segments, clock):
        await scale_to(controller, 2)
        left, right = [item.segment for item in await controller.layout.current(STREAM)]
        for segment in (left, right):
            segments.write(name_of(segment), b"l" * 30)
        await scale_to(controller, 1)
        (merged,) = [item.segment for item in await controller.layout.current(STREAM)]
        segments.write(name_of(merged), b"m" * 50)
        between = {left: 10, merged: NOT_STARTED}
        await controller.streams.truncate(STREAM, cut_at(between))
        await controller.streams.truncate(STREAM, cut_at({merged: 20}))
        assert (await controller.retention.undo_last(STREAM)).positions == between
        assert (await controller.streams.describe(STREAM)).size_bytes == 70
        assert (await controller.retention.undo_last(STREAM)).positions == {ONE: 0}
        assert (await controller.streams.describe(STREAM)).size_bytes == 210

    scenario(work)


def test_deleting_the_stream_takes_its_grace_with_it():
    async def work(controller, segments, clock):
        await controller.streams.truncate(STREAM, cut_at({ONE: 20}))
        await controller.streams.seal(STREAM)
        await controller.streams.delete(STREAM)
        assert graces(segments) == []
        assert not [name for name in segments.segments if name.startswith("s/t/")]

    scenario(work)


@pytest.mark.parametrize("jump_ms", [-HOUR_MS, HOUR_MS])
def test_a_wall_clock_that_jumps_releases_nothing_early(jump_ms):
    async def work(controller, segments, clock):
        await controller.streams.truncate(STREAM, cut_at({ONE: 20}))
        clock.jump(jump_ms)
        clock.ms += HOUR_MS - 1
        await controller.retention.run(STREAM)
        assert kept_bytes(segments) == 20
        clock.ms += 1
        await controller.retention.run(STREAM)
        assert kept_bytes(segments) == 0

    scenario(work)


# --- a crash at every step -----------------------------------------------------------------------------------------


async def prepare(controller, world):
    await controller.scopes.create("s")
    await controller.streams.create(STREAM, config(1))
    world.segments.write(name_of(ONE), b"a" * 10)
    await scale_to(controller, 2)
    world.segments.write(name_of(LEFT), b"b" * 20)
    await controller.policies.set(STREAM, GRACE)
    await scale_to(controller, 1)
    (world.facts["new"],) = [item.segment for item in await controller.layout.current(STREAM)]
    world.segments.write(name_of(world.facts["new"]), b"c" * 30)
    await controller.drain_audit()


async def truncate(controller, world):
    await controller.streams.truncate(STREAM, cut_at({world.facts["new"]: 5}))
    await controller.drain_audit()


async def truncated(controller, world):
    assert (await controller.cuts.head(STREAM)).positions == {world.facts["new"]: 5}
    assert kept_bytes(world.segments) == 35
    assert len(await audit_entries(controller, world.segments, "truncate")) == 1
    assert (await controller.retention.undo_last(STREAM)).positions == {ONE: 0}


async def prepare_undo(controller, world):
    await prepare(controller, world)
    await truncate(controller, world)


async def undo(controller, world):
    await controller.retention.undo_last(STREAM)
    await controller.drain_audit()


async def undo_again(controller, world):
    try:
        await undo(controller, world)
    except ConflictError:
        return


async def undone(controller, world):
    assert (await controller.cuts.head(STREAM)).positions == {ONE: 0}
    assert sorted((await stream_bytes(controller, world.segments)).values()) == [b"", b"a" * 10, b"b" * 20, b"c" * 30]
    assert (await controller.streams.describe(STREAM)).size_bytes == 60
    assert len(await audit_entries(controller, world.segments, "undo")) == 1


async def prepare_release(controller, world):
    await prepare_undo(controller, world)
    world.clock.ms += HOUR_MS


async def release(controller, world):
    await controller.retention.run(STREAM)
    await controller.drain_audit()


async def released(controller, world):
    assert graces(world.segments) == []
    assert kept_bytes(world.segments) == 0
    assert name_of(ONE) not in world.segments.segments
    assert name_of(LEFT) not in world.segments.segments
    assert len(await audit_entries(controller, world.segments, "release")) == 1
    report = await controller.retention.reclaim(STREAM)
    assert (report.freed_bytes, report.pending_bytes) == (35, 0)


async def prepare_deletion(controller, world):
    await prepare_undo(controller, world)
    await controller.streams.seal(STREAM)


async def delete(controller, world):
    with suppress(StreamNotFoundError):
        await controller.streams.delete(STREAM)
    await controller.drain_audit()


async def deleted(controller, world):
    assert graces(world.segments) == []
    assert not [name for name in world.segments.segments if name.startswith("s/t/")]
    assert len(await audit_entries(controller, world.segments, "delete")) == 1


WORKFLOWS = {
    "truncate": Workflow(prepare, truncate, truncated),
    "undo": Workflow(prepare_undo, undo, undone, undo_again),
    "release": Workflow(prepare_release, release, released),
    "delete": Workflow(prepare_deletion, delete, deleted),
}


@pytest.mark.parametrize("effect_first", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_crash_at_any_step_is_finished_by_the_next_controller(name, effect_first):
    workflow = WORKFLOWS[name]

    async def run():
        prepared = World(MemorySegments(), FakeClock())
        async with opened(prepared.segments, prepared.clock) as controller:
            await workflow.prepare(controller, prepared)
            await controller.sweep()
        for step in range(1, 100):
            world = prepared.copied()
            if not await crash_once(workflow, world, step, effect_first):
                return step
            for second in (1, 2, 3, 5):
                await reopen_with_crash(world, second, effect_first)
            async with opened(world.segments, world.clock) as controller:
                await (workflow.again or workflow.act)(controller, world)
                await workflow.after(controller, world)
        raise AssertionError("the workflow never got through without a fault")

    assert asyncio.run(run()) > 2


@pytest.mark.parametrize("name", WORKFLOWS)
def test_what_fails_for_a_while_is_finished_without_reopening(name):
    workflow = WORKFLOWS[name]

    async def run():
        prepared = World(MemorySegments(), FakeClock())
        async with opened(prepared.segments, prepared.clock) as controller:
            await workflow.prepare(controller, prepared)
            await controller.sweep()
        for step in range(1, 100):
            world = prepared.copied()
            async with opened(world.segments, world.clock) as controller:
                world.segments.arm(step, effect_first=False)
                with suppress(ContainerOfflineError, UnavailableError):
                    await workflow.act(controller, world)
                met = world.segments.offline
                world.segments.heal()
                await controller.sweep()
                if met:
                    await (workflow.again or workflow.act)(controller, world)
                await workflow.after(controller, world)
            if not met:
                return
        raise AssertionError("the workflow never got through without a fault")

    asyncio.run(run())
