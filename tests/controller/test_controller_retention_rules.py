"""Rules beyond truncation as the controller performs them: who is moved, dropped or deleted, and what is written of it."""

from __future__ import annotations

import asyncio

import pytest
from controller_world import (
    GROUP_ID,
    STREAM,
    audit_entries,
    check_invariants,
    config,
    cuts,
    join,
    name_of,
    opened,
    publish,
    quota,
    scale_to,
    seg,
    table_keys,
    with_stream,
    write_transaction,
)
from memory_segments import MemorySegments

from penstock.controller.settings import ControllerSettings
from penstock.model.names import StreamName
from penstock.model.policies import RetentionPolicy, RetentionType
from penstock.model.retention import Backlog, Idle, IdleWhen, OnExceed, PolicyDocument, Retain
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.ports.data.limits import LimitAction
from penstock.testing.fakes import FakeClock

SEGMENT = seg(0, 0)
NAME = name_of(SEGMENT)


def run(work) -> None:
    asyncio.run(work())


def test_what_is_older_than_its_time_to_live_counts_as_read_and_never_early() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            await controller.policies.set(STREAM, PolicyDocument(retain=Retain(min_bytes=0), backlog=Backlog(ttl_s=10)))
            await join(controller, "g", {SEGMENT: 0})
            segments.write(NAME, b"x" * 40, event_bytes=10)
            await controller.retention.run(STREAM)
            clock.ms += 5000
            segments.write(NAME, b"x" * 20, event_bytes=10)
            await controller.retention.run(STREAM)
            clock.ms += 4999
            await controller.retention.run(STREAM)
            assert await cuts(controller) == {"s/g": {SEGMENT: 0}}
            clock.ms += 1
            await controller.retention.run(STREAM)
            assert await cuts(controller) == {"s/g": {SEGMENT: 40}}
            assert (await controller.cuts.head(STREAM)).positions == {SEGMENT: 40}
            (lost,) = await controller.retention.list_evictions(STREAM)
            assert (lost.rule, lost.bytes, lost.events) == ("ttl", 40, 4)
            assert (lost.start, lost.end, lost.at_ms) == ({"0#0": 0}, {"0#0": 40}, clock.ms)
            expired, gone = await audit_entries(controller, segments, "expire", "truncate")
            assert (expired["kind"], expired["events"], expired["target"]) == ("expire", 4, "s/t")
            assert expired["policy"] == {"backlog.ttl_s": {"value": 10, "from": "stream"}}
            assert gone["subscribers"] == expired["subscribers"]
            assert (gone["before"], gone["after"], gone["events"]) == ({"0": 0}, {"0": 40}, 4)
            assert gone["policy"]["retain.min_bytes"] == {"value": 0, "from": "stream"}

    run(work)


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000])
def test_a_wall_clock_set_by_an_hour_deletes_nothing_early(jump_ms: int) -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        document = PolicyDocument(
            retain=Retain(min_age_s=600), backlog=Backlog(ttl_s=600), idle=Idle(subscriber_s=600, stream_s=600)
        )
        async with with_stream(segments, 1, clock) as controller:
            await controller.policies.set(STREAM, document)
            await join(controller, "g", {SEGMENT: 0})
            segments.write(NAME, b"x" * 40)
            await controller.retention.run(STREAM)
            clock.jump(jump_ms)
            for _ in range(3):
                await controller.retention.run(STREAM)
                clock.ms += 199_000
            assert await cuts(controller) == {"s/g": {SEGMENT: 0}}
            assert (await controller.streams.describe(STREAM)).size_bytes == 40

    run(work)


def test_a_full_backlog_takes_from_the_slowest_as_many_bytes_as_were_asked_for() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            await controller.policies.set(STREAM, quota(OnExceed.EVICT, max_bytes=1000, evict_to=0.8))
            await join(controller, "slow", {SEGMENT: 0})
            await join(controller, "fast", {SEGMENT: 0})
            segments.write(NAME, b"x" * 999, event_bytes=9)
            await publish(controller, "fast", {SEGMENT: 900})
            clock.ms += 1000
            await controller.retention.run(STREAM)
            assert (await cuts(controller))["s/slow"] == {SEGMENT: 0}
            segments.write(NAME, b"x" * 9, event_bytes=9)
            clock.ms += 1000
            await controller.retention.run(STREAM)
            # 800 of 1008 may stay unread: from the event on that begins at 216, nothing between two events.
            assert await cuts(controller) == {"s/slow": {SEGMENT: 216 - 216 % 9}, "s/fast": {SEGMENT: 900}}
            (lost,) = await controller.retention.list_evictions(STREAM)
            assert (lost.subscriber, lost.rule, lost.events) == ("s/slow", "backlog-bytes", 24)
            (reported,) = await audit_entries(controller, segments, "evict")
            assert reported["subscribers"][0]["name"] == "s/slow"
            assert set(reported["policy"]) == {"backlog.max_bytes", "backlog.on_exceed_bytes", "backlog.evict_to"}
            await check_invariants(controller, segments)

    run(work)


def test_a_backlog_of_events_is_counted_exactly_whatever_their_sizes() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            await controller.policies.set(STREAM, quota(OnExceed.EVICT, max_events=100, evict_to=0.5))
            await join(controller, "g", {SEGMENT: 0})
            for number in range(99):
                segments.write(NAME, b"x" * (1 + number % 7), event_bytes=8)
            clock.ms += 1000
            await controller.retention.run(STREAM)
            assert await cuts(controller) == {"s/g": {SEGMENT: 0}}
            segments.write(NAME, b"x" * 500, event_bytes=500)
            clock.ms += 1000
            await controller.retention.run(STREAM)
            (found,) = await controller.subscribers.describe(STREAM)
            assert found.lag_events == 50
            assert (await controller.retention.list_evictions(STREAM))[-1].events == 50

    run(work)


def test_eviction_finds_its_place_across_a_scale() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 2, clock) as controller:
            await controller.policies.set(STREAM, quota(OnExceed.EVICT, max_bytes=300, evict_to=0.5))
            await join(controller, "g", {seg(0, 0): 0, seg(0, 1): 0})
            for number in range(2):
                segments.write(name_of(seg(0, number)), b"x" * 100, event_bytes=5)
            await scale_to(controller, 3)
            for number in range(2, 5):
                segments.write(name_of(seg(1, number)), b"x" * 50, event_bytes=5)
            clock.ms += 1000
            await controller.retention.run(STREAM)
            (found,) = await controller.subscribers.describe(STREAM)
            assert 130 <= found.lag_bytes <= 150
            assert found.lag_events == found.lag_bytes // 5
            await check_invariants(controller, segments)

    run(work)


def test_a_maximum_moves_the_subscriber_in_the_step_that_truncates() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        policy = RetentionPolicy(type=RetentionType.SIZE, minimum=0, maximum=20)
        async with with_stream(segments, 1, clock, retention=policy) as controller:
            await join(controller, "g", {SEGMENT: 0})
            for _ in range(3):
                segments.write(NAME, b"x" * 10)
                clock.ms += 1000
                await controller.retention.run(STREAM)
            assert await cuts(controller) == {"s/g": {SEGMENT: 10}}
            assert [item.rule for item in await controller.retention.list_evictions(STREAM)] == ["subscribers-maximum"]
            (reported,) = await audit_entries(controller, segments, "truncate")
            assert [item["name"] for item in reported["subscribers"]] == ["s/g"]
            assert reported["policy"]["retain.max_bytes"] == {"value": 20, "from": "stream"}

    run(work)


def test_many_subscribers_are_moved_in_several_steps_each_with_its_record() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            await controller.policies.set(STREAM, quota(OnExceed.EVICT, max_bytes=10, evict_to=1.0))
            for number in range(95):
                await join(controller, f"g{number:02}", {SEGMENT: 0})
            segments.write(NAME, b"x" * 30)
            clock.ms += 1000
            await controller.retention.run(STREAM)
            assert set(map(str, (await cuts(controller)).values())) == {str({SEGMENT: 20})}
            assert len(await controller.retention.list_evictions(STREAM)) == 95
            assert len(await audit_entries(controller, segments, "evict")) == 95
            assert (await controller.cuts.head(STREAM)).positions == {SEGMENT: 20}

    run(work)


def test_a_silent_subscriber_is_dropped_and_what_it_held_goes() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            await controller.policies.set(
                STREAM, PolicyDocument(retain=Retain(min_bytes=0), idle=Idle(subscriber_s=100))
            )
            await join(controller, "dead", {SEGMENT: 0})
            await join(controller, "unheard")
            await join(controller, "alive", {SEGMENT: 0})
            segments.write(NAME, b"x" * 10)
            clock.ms += 60_000
            await publish(controller, "alive", {SEGMENT: 10})
            clock.ms += 39_999
            await controller.retention.run(STREAM)
            assert len(await cuts(controller)) == 3
            clock.ms += 1
            await controller.retention.run(STREAM)
            assert list(await cuts(controller)) == ["s/alive"]
            assert (await controller.cuts.head(STREAM)).positions == {SEGMENT: 10}
            assert [key for key in table_keys(segments) if key.startswith("subscriber/")] == ["subscriber/s/t/s/alive"]
            reported = await audit_entries(controller, segments, "drop")
            assert [(entry["subscriber"], entry["rule"]) for entry in reported] == [
                ("s/dead", "idle-subscriber"),
                ("s/unheard", "idle-subscriber"),
            ]

    run(work)


def test_only_progress_or_everything_read_keeps_a_subscriber_from_being_idle() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            await controller.policies.set(
                STREAM, PolicyDocument(retain=Retain(min_bytes=0), idle=Idle(subscriber_s=100))
            )
            for group in ("stuck", "moves", "waits", "dead"):
                await join(controller, group, {SEGMENT: 0})
            segments.write(NAME, b"x" * 10)
            began_ms = clock.ms
            for step in range(1, 6):
                clock.ms += 30_000
                await publish(controller, "stuck", {SEGMENT: 4})  # A heartbeat, behind the tail.
                await publish(controller, "moves", {SEGMENT: step})
                await publish(controller, "waits", {SEGMENT: 10})  # A heartbeat, at the tail.
                if step == 1:
                    first_ms = clock.ms
            assert {item.name: item.updated_ms for item in await controller.subscribers.describe(STREAM)} == {
                "s/stuck": first_ms,
                "s/moves": clock.ms,
                "s/waits": clock.ms,
                "s/dead": began_ms,
            }
            await controller.retention.run(STREAM)
            assert sorted(await cuts(controller)) == ["s/moves", "s/waits"]

    run(work)


def test_an_eviction_does_not_make_a_dead_subscriber_look_alive() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            document = quota(OnExceed.EVICT, max_bytes=10)
            await controller.policies.set(
                STREAM, PolicyDocument(retain=document.retain, backlog=document.backlog, idle=Idle(subscriber_s=100))
            )
            await join(controller, "dead", {SEGMENT: 0})
            for _ in range(10):
                segments.write(NAME, b"x" * 10)
                clock.ms += 10_000
                await controller.retention.run(STREAM)
            assert await cuts(controller) == {}

    run(work)


def test_an_idle_stream_is_deleted_only_after_its_last_subscriber_has_been_gone_as_long() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            await controller.policies.set(STREAM, PolicyDocument(retain=Retain(min_bytes=0), idle=Idle(stream_s=100)))
            segments.write(NAME, b"x" * 10, event_bytes=5)
            await join(controller, "g", {SEGMENT: 0})
            clock.ms += 500_000
            await controller.retention.run(STREAM)
            assert await controller.streams.exists(STREAM)
            await controller.groups.delete("s", "g")
            clock.ms += 99_999
            await controller.retention.run(STREAM)
            assert await controller.streams.exists(STREAM)
            clock.ms += 1
            await controller.retention.run(STREAM)
            assert not await controller.streams.exists(STREAM)
            assert not [name for name in segments.segments if name.startswith("s/t/")]
            assert segments.limits == {}
            assert [key for key in table_keys(segments) if "s/t" in key.split("/", 1)[-1]] == ["number/s/t"]
            (reported,) = [
                item for item in await audit_entries(controller, segments, "delete") if item["target"] == str(STREAM)
            ]
            assert (reported["rule"], reported["policy"]["idle.stream_s"]["value"]) == ("idle-stream", 100)
            await controller.streams.create(STREAM, config())

    run(work)


def test_an_idle_stream_is_deleted_when_all_have_caught_up_where_the_policy_says_so() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            document = PolicyDocument(
                retain=Retain(min_bytes=0), idle=Idle(stream_s=100, stream_when=IdleWhen.CAUGHT_UP)
            )
            await controller.policies.set(STREAM, document)
            segments.write(NAME, b"x" * 10)
            await join(controller, "g", {SEGMENT: 0})
            clock.ms += 200_000
            await controller.retention.run(STREAM)
            assert await controller.streams.exists(STREAM)
            await publish(controller, "g", {SEGMENT: 10})
            await controller.retention.run(STREAM)
            assert not await controller.streams.exists(STREAM)
            assert await controller.groups.list("s") == ["g"]

    run(work)


def test_an_append_in_the_moment_of_deletion_saves_the_stream() -> None:
    class LateWriter(MemorySegments):
        """An append takes its place right before the limit that the deletion begins with."""

        late = b""

        async def limit_appends(self, limits) -> None:
            if self.late and any(limit.action is LimitAction.HOLD and limit.segments for limit in limits):
                self.write(NAME, self.late)
                self.late = b""
            await super().limit_appends(limits)

    async def work() -> None:
        segments, clock = LateWriter(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            await controller.policies.set(STREAM, PolicyDocument(retain=Retain(min_bytes=0), idle=Idle(stream_s=100)))
            clock.ms += 200_000
            segments.late = b"late"
            await controller.retention.run(STREAM)
            assert await controller.streams.exists(STREAM)
            assert segments.limits == {}
            segments.write(NAME, b"and on")
            assert bytes(segments.segments[NAME].data) == b"lateand on"

    run(work)


def test_a_stream_with_an_open_transaction_is_in_use() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            await controller.policies.set(STREAM, PolicyDocument(retain=Retain(min_bytes=0), idle=Idle(stream_s=1)))
            clock.ms += 5000
            txn = await write_transaction(controller, segments, b"t")
            await controller.retention.run(STREAM)
            assert await controller.streams.exists(STREAM)
            await controller.transactions.abort(STREAM, txn)
            await controller.retention.run(STREAM)
            assert not await controller.streams.exists(STREAM)

    run(work)


def test_internal_streams_are_never_deleted_for_being_idle() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            await controller.policies.set(None, PolicyDocument(idle=Idle(stream_s=1)))
            await controller.groups.create(ReaderGroupConfig(scope="s", name="g", id=GROUP_ID))
            clock.ms += 10_000
            for name in ("_MARKt", "_RGg"):
                await controller.retention.run(StreamName("s", name))
                assert await controller.streams.exists(StreamName("s", name))
            await controller.retention.run(STREAM)
            assert not await controller.streams.exists(STREAM)

    run(work)


def test_a_sealed_stream_that_nobody_uses_is_deleted_too() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            await controller.policies.set(STREAM, PolicyDocument(retain=Retain(min_bytes=0), idle=Idle(stream_s=100)))
            segments.write(NAME, b"x" * 10)
            clock.ms += 50_000
            await controller.streams.seal(STREAM)
            clock.ms += 49_999
            await controller.retention.run(STREAM)
            assert await controller.streams.exists(STREAM)
            clock.ms += 1
            await controller.retention.run(STREAM)
            assert not await controller.streams.exists(STREAM)

    run(work)


def test_a_stream_that_nobody_ever_uses_is_found_idle_without_being_asked_for() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        settings = ControllerSettings(sweep_ms=None, retention_cycle_ms=5, retention_pause_ms=1, clock_slack_ms=0)
        async with opened(segments, clock, settings) as controller:
            await controller.scopes.create("s")
            await controller.policies.set("s", PolicyDocument(idle=Idle(stream_s=60)))
            await controller.streams.create(STREAM, config())
            async with asyncio.timeout(20):
                clock.ms += 59_000
                assert await controller.streams.exists(STREAM)
                clock.ms += 1000
                while await controller.streams.exists(STREAM):
                    await asyncio.sleep(0.001)

    run(work)
