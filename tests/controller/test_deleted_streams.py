"""A deleted stream can be restored until its grace ends, with all that it had; its name is free meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from uuid import UUID

import pytest
from controller_crash_world import Workflow, World, base, crash_everywhere, fail_everywhere, group
from controller_world import (
    GROUP_ID,
    QUIET,
    STREAM,
    audit_entries,
    check_invariants,
    config,
    cut_at,
    cuts,
    join,
    name_of,
    opened,
    publish,
    scale_to,
    seg,
    stream_bytes,
    table_keys,
    with_stream,
    write_transaction,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_segments import MemorySegments

from penstock.controller import keys
from penstock.controller.controller import Controller
from penstock.model.cuts import StreamCut
from penstock.model.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    ScopeNotFoundError,
    StreamNotFoundError,
)
from penstock.model.names import StreamName
from penstock.model.policies import ReaderGroupRetention, RetentionPolicy, RetentionType
from penstock.model.retention import Idle, PolicyDocument, Retain
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.testing.fakes import FakeClock

HOUR_MS = 3_600_000
GRACE = replace(QUIET, deletion_grace_ms=HOUR_MS)
ONE = seg(0, 0)

Work = Callable[[Controller, MemorySegments, FakeClock], Awaitable[None]]


def scenario(work: Work, count: int = 1, **fields: object) -> None:
    async def run() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, count, clock, **{"settings": GRACE, **fields}) as controller:
            segments.write(name_of(ONE), b"x" * 100)
            await work(controller, segments, clock)
            await controller.sweep()
            await check_invariants(controller, segments)

    asyncio.run(run())


def rows(segments: MemorySegments) -> dict[str, bytes]:
    """All records of the stream that its name finds, but for its own and the mark of work."""
    found = {key.decode(): value for key, (value, _) in segments.tables[keys.TABLE].entries.items()}
    names = (f"/{STREAM}", "/s/_MARKt")
    mine = {key: value for key, value in found.items() if any(f"{name}/" in f"{key}/" for name in names)}
    left_out = (f"stream/{STREAM}", f"work/{STREAM}", f"left/{STREAM}", "number/", "deleted/")
    return {key: value for key, value in mine.items() if not key.startswith(left_out)}


async def fill(controller: Controller, segments: MemorySegments) -> None:
    """A stream that has some of everything."""
    await controller.policies.set(STREAM, PolicyDocument(retain=Retain(max_bytes=1000), grace_s=7200))
    await join(controller, "g", {ONE: 30})
    await publish(controller, "g", {ONE: 40})
    await controller.streams.truncate(STREAM, cut_at({ONE: 20}))
    txn = await write_transaction(controller, segments, b"t" * 7)
    await controller.batches.commit(STREAM, writer="w", batch=4, transactions=[txn])
    await controller.retention.run(STREAM)
    await scale_to(controller, 2)
    segments.write(name_of(seg(1, 1)), b"y" * 11)
    await controller.sweep()


@pytest.mark.parametrize("sealed", [False, True], ids=["in use", "sealed"])
def test_all_that_a_stream_had_comes_back(sealed: bool) -> None:
    async def work(controller: Controller, segments: MemorySegments, clock: FakeClock) -> None:
        await fill(controller, segments)
        if sealed:
            await controller.streams.seal(STREAM)
        before, data = await controller.streams.describe(STREAM), await stream_bytes(controller, segments)
        had, policy = rows(segments), await controller.policies.get(STREAM)
        starts = {name: item.start for name, item in segments.segments.items() if "/t/" in name}
        await controller.streams.delete(STREAM, seal=True)
        assert await controller.streams.list("s") == ["_RGg"]
        with pytest.raises(StreamNotFoundError):
            await controller.streams.describe(STREAM)
        (listed,) = await controller.streams.list_deleted("s")
        assert (listed.stream, listed.incarnation, listed.rule) == (STREAM, 0, "manual")
        assert (listed.deleted_ms, listed.restorable_until_ms) == (clock.ms, clock.ms + HOUR_MS)
        assert listed.size_bytes == before.size_bytes
        hidden = [item for name, item in segments.segments.items() if "/t/" in name]
        assert all(item.start == len(item.data) for item in hidden), "readers still find data"
        clock.ms += HOUR_MS - 1
        await controller.sweep()

        restored = await controller.streams.restore(STREAM)
        assert (restored.incarnation, restored.sealed, restored.dropped_subscribers) == (0, sealed, ())
        after = await controller.streams.describe(STREAM)
        assert (after.config, after.head, after.sealed) == (before.config, before.head, sealed)
        assert after.size_bytes == before.size_bytes
        assert await cuts(controller) == {"s/g": {ONE: 40}}
        assert await controller.policies.get(STREAM) == policy
        assert await controller.batches.last(STREAM, writer="w") == 4
        found = await stream_bytes(controller, segments)
        assert {item: found[item] for item in data} == data
        assert {name: segments.segments[name].start for name in starts} == starts
        now = rows(segments)
        assert {key: now.get(key) for key in had} == had
        assert sorted(set(now) - set(had)) == (
            [] if sealed else [f"epoch/{STREAM}/0000000002", f"length/{STREAM}/0000000002"]
        )
        assert await controller.streams.list_deleted() == []
        assert not [key for key in table_keys(segments) if key.startswith("deleted")]
        assert await controller.retention.undo_last(STREAM) == cut_at({ONE: 20})
        reported = await audit_entries(controller, segments, "delete", "restore", "release", target=str(STREAM))
        assert [entry["kind"] for entry in reported] == ["delete", "restore"]
        assert reported[0]["grace_ms"] == HOUR_MS

    scenario(work, tags=("a", "b"))


def test_a_restored_stream_takes_events_again_and_readers_pass_from_the_old_segments_to_the_new() -> None:
    async def work(controller: Controller, segments: MemorySegments, clock: FakeClock) -> None:
        await scale_to(controller, 2)
        await controller.streams.delete(STREAM, seal=True)
        await controller.streams.restore(STREAM)
        active = await controller.layout.current(STREAM)
        assert [item.segment for item in active] == [seg(2, 3), seg(2, 4)]
        assert [item.range.segment for item in await controller.layout.successors(STREAM, seg(1, 1))] == [seg(2, 3)]
        await write_transaction(controller, segments, b"later")
        await scale_to(controller, 1)
        assert [item.segment for item in await controller.layout.current(STREAM)] == [seg(3, 5)]
        await controller.streams.delete(STREAM, seal=True)
        clock.ms += HOUR_MS
        await controller.sweep()
        assert not [name for name in segments.segments if "/t/" in name]

    scenario(work)


def test_the_end_of_the_grace_frees_all_over_a_restart_by_time_that_passed() -> None:
    async def run() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock, settings=GRACE) as controller:
            segments.write(name_of(ONE), b"x" * 100)
            await fill(controller, segments)
            await controller.streams.delete(STREAM, seal=True)
            clock.jump(100 * HOUR_MS)
            await controller.sweep()
            assert len(await controller.streams.list_deleted()) == 1
            clock.ms += HOUR_MS // 2
            await controller.sweep()
        # The setting was changed: what was deleted before keeps its grace.
        async with opened(segments, clock, QUIET) as controller:
            await controller.sweep()
            assert len(await controller.streams.list_deleted()) == 1
            assert [name for name in segments.segments if "t/" in name]
            clock.ms += HOUR_MS // 2
            await controller.sweep()
            assert not [name for name in segments.segments if "/t/" in name or "_MARKt" in name]
            assert rows(segments) == {}
            assert not [key for key in table_keys(segments) if key.startswith("deleted")]
            with pytest.raises(StreamNotFoundError, match="grace"):
                await controller.streams.restore(STREAM)
            reported = await audit_entries(controller, segments, "release", "restore", target=str(STREAM))
            assert [entry["kind"] for entry in reported] == ["release"]
            await check_invariants(controller, segments)

    asyncio.run(run())


def test_without_a_grace_a_deletion_is_final_at_once() -> None:
    async def work(controller: Controller, segments: MemorySegments, clock: FakeClock) -> None:
        await controller.streams.delete(STREAM, seal=True)
        assert await controller.streams.list_deleted() == []
        assert not [name for name in segments.segments if "/t/" in name]
        with pytest.raises(StreamNotFoundError):
            await controller.streams.restore(STREAM)

    scenario(work, settings=QUIET)


def test_the_name_is_free_and_each_incarnation_keeps_its_own_data() -> None:
    async def work(controller: Controller, segments: MemorySegments, clock: FakeClock) -> None:
        await controller.streams.delete(STREAM, seal=True)
        await controller.streams.create(STREAM, config(1))
        (new,) = await controller.layout.current(STREAM)
        segments.write(name_of(new.segment), b"new")
        with pytest.raises(AlreadyExistsError):
            await controller.streams.restore(STREAM)
        assert await stream_bytes(controller, segments) == {new.segment: b"new"}
        clock.ms += 1
        await controller.streams.delete(STREAM, seal=True)
        assert [item.incarnation for item in await controller.streams.list_deleted("s")] == [0, 1]
        restored = await controller.streams.restore(STREAM, incarnation=0)
        assert restored.incarnation == 0
        (active,) = await controller.layout.current(STREAM)
        assert active.segment == seg(1, 2), "the number of the segment of the later stream is not used again"
        assert await stream_bytes(controller, segments) == {ONE: b"x" * 100, active.segment: b""}
        with pytest.raises(AlreadyExistsError):
            await controller.streams.restore(STREAM, incarnation=0)
        await controller.streams.delete(STREAM, seal=True)
        with pytest.raises(StreamNotFoundError, match="incarnation=2"):
            await controller.streams.restore(STREAM, incarnation=2)
        await controller.streams.restore(STREAM, incarnation=1)
        assert (await stream_bytes(controller, segments))[new.segment] == b"new"

    scenario(work)


def test_the_last_deleted_stream_of_a_name_is_the_one_that_is_restored() -> None:
    async def work(controller: Controller, segments: MemorySegments, clock: FakeClock) -> None:
        await controller.streams.delete(STREAM, seal=True)
        await controller.streams.create(STREAM, config(1))
        clock.jump(-HOUR_MS)
        await controller.streams.delete(STREAM, seal=True)
        assert (await controller.streams.restore(STREAM)).incarnation == 1
        await controller.streams.delete(STREAM, seal=True)
        await controller.streams.restore(STREAM, incarnation=0)
        await controller.streams.delete(STREAM, seal=True)
        assert (await controller.streams.restore(STREAM)).incarnation == 0

    scenario(work)


def test_a_hold_on_the_scope_keeps_a_deleted_stream_beyond_its_grace() -> None:
    async def work(controller: Controller, segments: MemorySegments, clock: FakeClock) -> None:
        await controller.streams.delete(STREAM, seal=True)
        await controller.holds.add("s", owner="o", reason="r", hold_id="h")
        clock.ms += 2 * HOUR_MS
        await controller.sweep()
        assert name_of(ONE) in segments.segments
        await controller.holds.release("h", owner="o")
        await controller.sweep()
        assert name_of(ONE) not in segments.segments
        assert await controller.streams.list_deleted() == []

    scenario(work)


def test_subscribers_whose_group_was_deleted_or_made_again_meanwhile_are_dropped_by_name() -> None:
    async def work(controller: Controller, segments: MemorySegments, clock: FakeClock) -> None:
        for name in ("stays", "deleted", "again", "left"):
            await join(controller, name, {ONE: 10})
        await controller.streams.delete(STREAM, seal=True)
        await controller.streams.create(StreamName("s", "u"), config(1))
        other = {StreamName("s", "u"): StreamCut(StreamName("s", "u"), {})}
        for name in ("deleted", "again"):
            await controller.groups.delete("s", name)
        await controller.groups.create(ReaderGroupConfig(scope="s", name="again", id=UUID(int=77), start_cuts=other))
        left = await controller.groups.get("s", "left")
        await controller.groups.update(replace(left, start_cuts=other))
        restored = await controller.streams.restore(STREAM)
        assert restored.dropped_subscribers == ("s/again", "s/deleted", "s/left")
        assert await cuts(controller) == {"s/stays": {ONE: 10}}
        reported = await audit_entries(controller, segments, "drop", target=str(STREAM))
        assert sorted(entry["subscriber"] for entry in reported) == ["s/again", "s/deleted", "s/left"]
        await publish(controller, "stays", {ONE: 20})

    scenario(work)


def test_a_subscription_that_comes_back_is_what_its_group_is_by_now() -> None:
    async def work(controller: Controller, segments: MemorySegments, clock: FakeClock) -> None:
        for name in ("changed", "none"):
            await join(controller, name)
        await controller.streams.delete(STREAM, seal=True)
        await controller.streams.create(STREAM, config(1))
        changed = await controller.groups.get("s", "changed")
        await controller.groups.update(replace(changed, refresh_ms=changed.refresh_ms + 1))
        none = await controller.groups.get("s", "none")
        await controller.groups.update(replace(none, retention=ReaderGroupRetention.NONE))
        await controller.streams.delete(STREAM, seal=True)
        restored = await controller.streams.restore(STREAM, incarnation=0)
        assert restored.dropped_subscribers == ("s/none",)
        await controller.subscribers.publish("s/changed", group_id=GROUP_ID, generation=1, cut=cut_at({ONE: 20}))
        assert await cuts(controller) == {"s/changed": {ONE: 20}}

    scenario(work)


def test_a_group_that_is_deleted_during_the_restoration_does_not_fail_it() -> None:
    async def work(controller: Controller, segments: MemorySegments, clock: FakeClock) -> None:
        for steps in range(40):
            await join(controller, "g", {ONE: 10})
            await controller.streams.delete(STREAM, seal=True)

            async def delete_later(steps: int = steps) -> None:
                for _ in range(steps):
                    await asyncio.sleep(0)
                await controller.groups.delete("s", "g")

            await asyncio.gather(controller.streams.restore(STREAM), delete_later())
            assert await cuts(controller) == {}

    scenario(work)


def test_a_stream_of_a_deleted_scope_is_restored_once_the_scope_is_made_again() -> None:
    async def work(controller: Controller, segments: MemorySegments, clock: FakeClock) -> None:
        await controller.streams.delete(STREAM, seal=True)
        await controller.scopes.delete("s")
        assert len(await controller.streams.list_deleted("s")) == 1
        with pytest.raises(ScopeNotFoundError, match="create it, then restore"):
            await controller.streams.restore(STREAM)
        await controller.scopes.create("s")
        await controller.streams.restore(STREAM)
        assert (await stream_bytes(controller, segments))[ONE] == b"x" * 100

    scenario(work)


def test_an_idle_stream_has_the_grace_too_and_its_idleness_begins_anew() -> None:
    async def work(controller: Controller, segments: MemorySegments, clock: FakeClock) -> None:
        await controller.policies.set(STREAM, PolicyDocument(retain=Retain(min_bytes=0), idle=Idle(stream_s=100)))
        clock.ms += 101_000
        assert (await controller.retention.run(STREAM)).delete_stream
        (listed,) = await controller.streams.list_deleted()
        assert listed.rule == "idle-stream"
        clock.ms += 1000
        await controller.streams.restore(STREAM)
        clock.ms += 99_000
        assert not (await controller.retention.run(STREAM)).delete_stream
        clock.ms += 2_000
        assert (await controller.retention.run(STREAM)).delete_stream

    scenario(work)


def test_a_client_that_deletes_by_segment_cannot_take_what_can_be_restored() -> None:
    async def work(controller: Controller, segments: MemorySegments, clock: FakeClock) -> None:
        await controller.streams.delete(STREAM, seal=True)
        with pytest.raises(InvalidArgumentError):
            await controller.check_client_removal(name_of(ONE), None)

    scenario(work)


# --- crashes -----------------------------------------------------------------------------------------------------


async def prepare(controller: Controller, world: World) -> None:
    await base(controller, world, retention=RetentionPolicy(type=RetentionType.TIME, minimum=1))
    await controller.groups.create(group())
    txn = await write_transaction(controller, world.segments, b"u")
    await controller.batches.commit(STREAM, writer="w", batch=1, transactions=[txn])
    world.facts["rows"] = rows(world.segments)


async def delete(controller: Controller, world: World) -> None:
    try:
        await controller.streams.delete(STREAM, seal=True)
    except StreamNotFoundError:
        assert not await controller.streams.exists(STREAM)


async def comes_back(controller: Controller, world: World) -> None:
    assert len(await controller.streams.list_deleted()) == 1
    await controller.streams.restore(STREAM)
    await restored(controller, world)


async def prepare_deleted(controller: Controller, world: World) -> None:
    await prepare(controller, world)
    await delete(controller, world)


async def restore(controller: Controller, world: World) -> None:
    try:
        await controller.streams.restore(STREAM)
    except AlreadyExistsError:
        assert await controller.streams.exists(STREAM)


async def restored(controller: Controller, world: World) -> None:
    await controller.sweep()
    data = await stream_bytes(controller, world.segments)
    assert (data[seg(0, 0)], data[seg(0, 1)]) == (b"a" * 10 + b"u", b"b" * 20 + b"u")
    assert await controller.subscribers.list(STREAM) == ("s/g",)
    assert await controller.batches.last(STREAM, writer="w") == 1
    assert [item.segment for item in await controller.layout.current(STREAM)] == [seg(1, 2), seg(1, 3)]
    had = {key: value for key, value in world.facts["rows"].items() if not key.startswith(("done", "queue", "txn"))}
    now = rows(world.segments)
    assert {key: now.get(key) for key in had} == had
    assert not [key for key in table_keys(world.segments) if key.startswith("deleted")]


async def end(controller: Controller, world: World) -> None:
    if not world.facts.get("ended"):
        world.facts["ended"] = True
        world.clock.ms += HOUR_MS
    await controller.sweep()


async def ended(controller: Controller, world: World) -> None:
    assert not [name for name in world.segments.segments if "/t/" in name or "_MARKt" in name]
    assert not [key for key in table_keys(world.segments) if key.startswith("deleted")]
    assert rows(world.segments) == {}


WORKFLOWS = {
    "delete": Workflow(prepare, delete, comes_back, settings=GRACE),
    "restore": Workflow(prepare_deleted, restore, restored, settings=GRACE),
    "end": Workflow(prepare_deleted, end, ended, settings=GRACE),
}


@pytest.mark.parametrize("effect_first", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_crash_at_any_step_is_finished_by_the_next_controller(name: str, effect_first: bool) -> None:
    crash_everywhere(WORKFLOWS[name], effect_first=effect_first)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_what_fails_for_a_while_is_finished_by_the_sweeper_without_reopening(name: str) -> None:
    fail_everywhere(WORKFLOWS[name])


# --- any order ---------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.sampled_from(["create", "write", "delete", "restore", "restore oldest", "pass", "scale"]), max_size=14
)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_streams_of_one_name_never_mix_whatever_is_deleted_and_restored(steps: list[str]) -> None:
    """A model of the data by incarnation: what is live, what can be restored and until when."""

    async def run() -> None:
        segments, clock = MemorySegments(), FakeClock()
        live: int | None = 0
        data: dict[int, bytes] = {0: b""}
        due: dict[int, int] = {}
        async with with_stream(segments, 1, clock, settings=GRACE) as controller:
            for number, step in enumerate(steps):
                clock.ms += 1
                await controller.sweep()
                due = {item: at_ms for item, at_ms in due.items() if at_ms > clock.ms}
                if step == "create" and live is None:
                    await controller.streams.create(STREAM, config(1))
                    live = (await controller.layout.current(STREAM))[0].segment & 0xFFFFFFFF
                    assert live not in data
                    data[live] = b""
                elif step == "write" and live is not None:
                    (active,) = await controller.layout.current(STREAM)
                    segments.write(name_of(active.segment), b"%d." % number)
                    data[live] += b"%d." % number
                elif step == "scale" and live is not None:
                    await scale_to(controller, 1)
                elif step == "delete" and live is not None:
                    await controller.streams.delete(STREAM, seal=True)
                    due[live] = clock.ms + HOUR_MS
                    live = None
                elif step.startswith("restore"):
                    wanted = min(due, default=None) if step == "restore oldest" else None
                    newest = max(due, key=lambda item: due[item], default=None)
                    expected = newest if wanted is None else wanted
                    try:
                        found = await controller.streams.restore(STREAM, incarnation=wanted)
                        assert live is None
                        assert found.incarnation == expected
                        live = found.incarnation
                        del due[live]
                    except AlreadyExistsError:
                        assert live is not None
                    except StreamNotFoundError:
                        assert expected is None
                elif step == "pass":
                    clock.ms += HOUR_MS // 3
            assert [item.incarnation for item in await controller.streams.list_deleted()] == sorted(due)
            if live is None:
                assert not await controller.streams.exists(STREAM)
            else:
                assert b"".join((await stream_bytes(controller, segments)).values()) == data[live]
            await check_invariants(controller, segments)

    asyncio.run(run())
