"""Small promises of retention that must be exact: times, sizes, sets, and reports."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID

import pytest
from controller_world import (
    QUIET,
    STREAM,
    audit_entries,
    config,
    cut_at,
    join,
    name_of,
    opened,
    scale_to,
    seg,
    table_keys,
    with_stream,
)
from disks import Disks, write_events
from memory_segments import MemorySegments

from penstock.model.errors import ContainerOfflineError
from penstock.model.names import StreamName
from penstock.model.retention import Backlog, PolicyDocument, Retain
from penstock.testing.fakes import FakeClock

SEGMENT = seg(0, 0)
NAME = name_of(SEGMENT)


def run(work) -> None:
    asyncio.run(work())


def test_a_position_inside_a_range_is_released_at_the_time_of_its_own_data() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            await controller.policies.set(STREAM, PolicyDocument(retain=Retain(min_age_s=100)))
            times = []
            for _ in range(4):
                segments.write(NAME, b"x" * 10)
                clock.ms += 10_000
                times.append(clock.ms)
                await controller.retention.run(STREAM)
            for offset, recorded_ms in ((0, times[0]), (9, times[0]), (10, times[1]), (25, times[2]), (39, times[3])):
                found = await controller.retention.explain(STREAM, position=cut_at({SEGMENT: offset}))
                assert found.earliest_release_ms == recorded_ms + 100_000, offset
                assert [item.bytes for item in found.ranges] == [40 - offset]
                # It is gone then, and not a millisecond before.
                for early_ms, gone in ((1, False), (0, True)):
                    plan = await controller.retention.plan(STREAM, at_ms=found.earliest_release_ms - early_ms)
                    assert ((plan.truncate or {"0#0": 0})["0#0"] > offset) is gone

    run(work)


def test_the_sentence_of_a_policy_speaks_of_the_cycle_that_this_server_has() -> None:
    async def sentence(cycle_ms: int | None) -> str:
        segments, settings = MemorySegments(), replace(QUIET, retention_cycle_ms=cycle_ms)
        async with with_stream(segments, 1, settings=settings) as controller:
            await controller.policies.set(STREAM, PolicyDocument(retain=Retain(min_age_s=86_400)))
            return str((await controller.retention.plan(STREAM)).sentence)

    async def work() -> None:
        reported = [await sentence(cycle_ms) for cycle_ms in (60_000, 600_000, None)]
        assert len(set(reported)) == 3
        assert all("10 min" not in item for item in (reported[0], reported[2]))

    run(work)


def test_a_stream_with_nothing_but_a_time_to_live_keeps_no_more_records_than_that_needs() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            await controller.policies.set(STREAM, PolicyDocument(backlog=Backlog(ttl_s=10)))
            await join(controller, "g", {SEGMENT: 0})
            sizes = []
            for _ in range(400):
                segments.write(NAME, b"x" * 10)
                clock.ms += 1000
                await controller.retention.run(
                    STREAM,
                )
                sizes.append(sum(key.startswith("tail/") for key in table_keys(segments)))
            # Those within the time, and a batch that is forgotten together.
            assert max(sizes) <= 10 + 2 * 64
            assert (await controller.streams.describe(STREAM)).size_bytes == 4000
        async with opened(segments, clock) as controller:
            (found,) = await controller.subscribers.describe(STREAM)
            assert found.cut is not None
            assert found.cut.positions == {SEGMENT: 3900}

    run(work)


def test_what_a_hold_keeps_is_told_the_next_time_where_it_could_not_be_written() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            segments.write(NAME, b"x" * 10)
            await controller.policies.set(STREAM, PolicyDocument(retain=Retain(min_bytes=0)))
            await controller.retention.run(STREAM)
            segments.write(NAME, b"x" * 10)
            clock.ms += 1000
            await controller.holds.add(STREAM, owner="o", reason="r", hold_id="h")
            segments.arm(1, effect_first=False)
            with pytest.raises(ContainerOfflineError):
                await controller.retention.run(STREAM)
            segments.heal()
            clock.ms += 1000
            await controller.retention.run(STREAM)
            await controller.retention.run(STREAM)
            assert [entry["bytes"] for entry in await audit_entries(controller, segments, "held")] == [10]

    run(work)


def test_what_deleted_segments_still_have_on_disk_is_pending_and_not_freed() -> None:
    async def work() -> None:
        disks = Disks()
        async with disks.serving() as (store, controller):
            await controller.scopes.create("s")
            await controller.streams.create(STREAM, config())
            await write_events(store, NAME, [92] * 500)
            await store.flush()
            await store.lease_chunks([NAME], UUID(int=5), until_ms=disks.clock.ms + 60_000)
            await scale_to(controller, 2)
            await controller.streams.truncate(STREAM, cut_at({seg(1, 1): 0, seg(1, 2): 0}))
            await store.flush()
            found = await controller.streams.describe(STREAM)
            assert (found.size_bytes, found.written_bytes) == (0, 50_000)
            assert (found.disk_bytes, found.pending_free_bytes, found.freed_bytes) == (50_000, 50_000, 0)
        disks.clock.ms += 60_001
        async with disks.serving() as (store, controller):
            await store.flush()
            found = await controller.streams.describe(STREAM)
            assert (found.disk_bytes, found.pending_free_bytes, found.freed_bytes) == (0, 0, 50_000)
            assert (await controller.retention.reclaim(STREAM)).freed_bytes == 50_000

    run(work)


def test_of_a_stream_that_was_never_truncated_all_is_live() -> None:
    async def work() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 2) as controller:
            segments.write(NAME, b"x" * 10)
            found = await controller.streams.describe(StreamName("s", "t"))
            assert (found.disk_bytes, found.freed_bytes) == (10, 0)

    run(work)
