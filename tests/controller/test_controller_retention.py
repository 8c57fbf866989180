"""Retention as the controller performs it: what the planner says is done, recorded and explained."""

from __future__ import annotations

import asyncio
from uuid import UUID

from controller_world import (
    STREAM,
    check_invariants,
    config,
    cut_at,
    name_of,
    opened,
    scale_to,
    seg,
    table_keys,
    with_stream,
)
from memory_segments import MemorySegments
from msgspec.structs import asdict

from penstock.controller.settings import ControllerSettings
from penstock.model.cuts import StreamCut
from penstock.model.names import StreamName
from penstock.model.policies import ReaderGroupRetention, RetentionPolicy, RetentionType
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.testing.fakes import FakeClock

ID = UUID(int=3)


def by_size(minimum: int, maximum: int | None = None) -> RetentionPolicy:
    return RetentionPolicy(type=RetentionType.SIZE, minimum=minimum, maximum=maximum)


def by_time(minimum: int, maximum: int | None = None) -> RetentionPolicy:
    return RetentionPolicy(type=RetentionType.TIME, minimum=minimum, maximum=maximum)


def subscriber(positions: dict[int, int]) -> ReaderGroupConfig:
    return ReaderGroupConfig(
        scope="s",
        name="g",
        id=ID,
        retention=ReaderGroupRetention.MANUAL,
        start_cuts={STREAM: StreamCut(STREAM, positions)},
    )


def records(segments: MemorySegments) -> list[str]:
    return [key for key in table_keys(segments) if key.startswith("tail/")]


def test_size_retention_goes_back_to_the_newest_record_that_leaves_the_minimum() -> None:
    async def run() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock, retention=by_size(15)) as controller:
            for _ in range(3):
                segments.write(name_of(seg(0, 0)), b"x" * 10)
                clock.ms += 1000
                decision = await controller.retention.run(STREAM)
            assert decision.truncate == {"0#0": 10}
            assert (await controller.cuts.head(STREAM)).positions == {seg(0, 0): 10}
            # The record that was used, and all before it, are forgotten.
            assert len(records(segments)) == 2
            description = await controller.streams.describe(STREAM)
            # Five bytes could go, but no record lies between.
            assert (description.size_bytes, description.held_by) == (20, "unrecorded")
            await check_invariants(controller, segments)

    asyncio.run(run())


def test_without_a_policy_nothing_ever_goes() -> None:
    async def run() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            segments.write(name_of(seg(0, 0)), b"x" * 10)
            decision = await controller.retention.run(STREAM)
            assert (decision.rule, decision.truncate, decision.record) == ("no-policy", None, None)
            assert (await controller.streams.describe(STREAM)).held_by == "no-policy"
            assert records(segments) == []

    asyncio.run(run())


def test_explaining_changes_nothing_and_running_does_what_was_explained() -> None:
    async def run() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock, retention=by_time(1000)) as controller:
            segments.write(name_of(seg(0, 0)), b"x" * 10)
            await controller.retention.run(STREAM)
            clock.ms += 1001
            before = segments.mutations
            explained = await controller.retention.explain(STREAM)
            assert segments.mutations == before
            assert sum(item.bytes for item in explained.ranges) == 10
            assert explained.truncate == {"0#0": 10}
            decision = await controller.retention.run(STREAM)
            assert asdict(explained).items() >= asdict(decision).items()
            assert (await controller.cuts.head(STREAM)).positions == {seg(0, 0): 10}

    asyncio.run(run())


def test_a_subscriber_holds_what_it_has_not_acknowledged_and_is_named() -> None:
    async def run() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock, retention=by_size(0)) as controller:
            await controller.groups.create(subscriber({seg(0, 0): 0}))
            segments.write(name_of(seg(0, 0)), b"x" * 30)
            clock.ms += 1000
            await controller.retention.run(STREAM)
            description = await controller.streams.describe(STREAM)
            assert (description.size_bytes, description.held_by) == (30, "subscriber s/g")
            assert description.subscribers[0].lag_bytes == 30
            await controller.subscribers.publish("s/g", group_id=ID, generation=0, cut=cut_at({seg(0, 0): 20}))
            clock.ms += 1000
            await controller.retention.run(STREAM)
            assert (await controller.cuts.head(STREAM)).positions == {seg(0, 0): 20}
            assert await controller.retention.list_evictions(STREAM) == []
            # Gone, it holds nothing: the plain policy applies from the next cycle on.
            await controller.groups.delete("s", "g")
            clock.ms += 1000
            await controller.retention.run(STREAM)
            assert (await controller.streams.describe(STREAM)).size_bytes == 0

    asyncio.run(run())


def test_a_maximum_overrules_a_subscriber_and_leaves_a_record_of_it() -> None:
    async def run() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock, retention=by_size(0, 20)) as controller:
            await controller.groups.create(subscriber({seg(0, 0): 0}))
            for _ in range(4):
                segments.write(name_of(seg(0, 0)), b"x" * 10)
                clock.ms += 1000
                await controller.retention.run(STREAM)
            assert (await controller.cuts.head(STREAM)).positions == {seg(0, 0): 20}
            evictions = await controller.retention.list_evictions(STREAM)
            assert [(item.subscriber, item.bytes) for item in evictions] == [("s/g", 10), ("s/g", 10)]
            assert evictions[-1].at_ms == clock.ms
        async with opened(segments, clock) as controller:
            assert await controller.retention.list_evictions(STREAM) == evictions

    asyncio.run(run())


def test_sizes_run_on_across_scales_and_deleted_segments() -> None:
    async def run() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock, retention=by_size(10)) as controller:
            written = 0
            for count in (2, 1, 3):
                for item in await controller.layout.current(STREAM):
                    segments.write(name_of(item.segment), b"x" * 8)
                    written += 8
                clock.ms += 1000
                await controller.retention.run(STREAM)
                await scale_to(controller, count)
                clock.ms += 1000
                await controller.retention.run(STREAM)
            description = await controller.streams.describe(STREAM)
            assert description.written_bytes == written
            assert description.size_bytes >= 10
            assert description.size_bytes + description.freed_bytes == written
            await check_invariants(controller, segments)

    asyncio.run(run())


def test_an_idle_stream_does_not_grow_its_retention_set() -> None:
    async def run() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock, retention=by_size(100)) as controller:
            segments.write(name_of(seg(0, 0)), b"x" * 10)
            for _ in range(5):
                clock.ms += 1000
                await controller.retention.run(STREAM)
            assert len(records(segments)) == 1
            before = segments.mutations
            clock.ms += 1000
            await controller.retention.run(STREAM)
            assert segments.mutations == before

    asyncio.run(run())


def test_retention_works_on_a_sealed_stream() -> None:
    async def run() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 2, clock, retention=by_time(1000)) as controller:
            segments.write(name_of(seg(0, 1)), b"x" * 10)
            await controller.streams.seal(STREAM)
            await controller.retention.run(STREAM)
            clock.ms += 1001
            await controller.retention.run(STREAM)
            assert (await controller.cuts.head(STREAM)).positions == {seg(0, 0): 0, seg(0, 1): 10}
            assert segments.segments[name_of(seg(0, 1))].start == 10
            await check_invariants(controller, segments)

    asyncio.run(run())


def test_one_failing_stream_stops_no_other() -> None:
    async def run() -> None:
        segments, clock = MemorySegments(), FakeClock()
        other = StreamName("s", "a")
        async with with_stream(segments, 1, clock, retention=by_size(0)) as controller:
            await controller.streams.create(other, config(retention=by_size(0)))
            segments.write(name_of(seg(0, 0)), b"x" * 10)
            del segments.segments[name_of(seg(0, 0), other)]
            assert await controller.run_retention_cycles() == 2
            assert (await controller.cuts.head(STREAM)).positions == {seg(0, 0): 10}

    asyncio.run(run())


def test_a_publication_brings_the_cycle_forward() -> None:
    async def run() -> None:
        segments, clock = MemorySegments(), FakeClock()
        settings = ControllerSettings(sweep_ms=None, retention_cycle_ms=3_600_000, retention_pause_ms=1)
        async with with_stream(segments, 1, clock, settings=settings, retention=by_size(0)) as controller:
            await controller.groups.create(subscriber({seg(0, 0): 0}))
            segments.write(name_of(seg(0, 0)), b"x" * 30)
            clock.ms += 1000
            await controller.retention.run(STREAM)
            await controller.subscribers.publish("s/g", group_id=ID, generation=0, cut=cut_at({seg(0, 0): 20}))
            async with asyncio.timeout(10):
                while (await controller.cuts.head(STREAM)).positions != {seg(0, 0): 20}:
                    await asyncio.sleep(0)

    asyncio.run(run())
