"""The retention set: small, read once, and correct although others change it."""

from __future__ import annotations

import asyncio

import pytest
from controller_world import STREAM, join, name_of, opened, scale_to, seg, table_keys, with_stream
from memory_segments import MemorySegments

from penstock.codec.control.readers import TailRecord
from penstock.controller import keys
from penstock.controller.controller import Controller
from penstock.controller.retention import sets as retention_sets
from penstock.model.policies import RetentionPolicy, RetentionType
from penstock.testing.fakes import FakeClock

SEGMENT = seg(0, 0)
NAME = name_of(SEGMENT)


def run(work) -> None:
    asyncio.run(work())


def test_a_cycle_reads_no_record_of_the_retention_set_that_it_has_read_before() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        policy = RetentionPolicy(type=RetentionType.SIZE, minimum=1 << 40)

        async def cycle(controller: Controller) -> int:
            segments.write(NAME, b"x" * 10)
            clock.ms += 60_000
            segments.reads = 0
            await controller.retention.run(STREAM)
            return segments.reads

        async with with_stream(segments, 1, clock, retention=policy) as controller:
            few = await cycle(controller)
            for _ in range(250):
                await cycle(controller)
            assert await cycle(controller) <= few
        async with opened(segments, clock) as controller:
            await cycle(controller)
            assert await cycle(controller) <= few

    run(work)


def test_a_copy_in_memory_that_another_controller_has_made_stale_is_read_again() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        policy = RetentionPolicy(type=RetentionType.SIZE, minimum=25)
        async with with_stream(segments, 1, clock, retention=policy) as first, opened(segments, clock) as second:
            for controller in (first, second, first, second, first):
                segments.write(NAME, b"x" * 10)
                clock.ms += 1000
                await controller.retention.run(STREAM)
            assert (await first.cuts.head(STREAM)).positions == {SEGMENT: 20}
            assert (await second.cuts.head(STREAM)).positions == {SEGMENT: 20}

    run(work)


def test_a_set_stays_small_however_long_nothing_may_go(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 60
    monkeypatch.setattr(retention_sets, "RECORDS_MAX", limit)

    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        policy = RetentionPolicy(type=RetentionType.SIZE, minimum=1 << 40)
        async with with_stream(segments, 1, clock, retention=policy) as controller:
            for _ in range(limit * 3):
                segments.write(NAME, b"x")
                clock.ms += 60_000
                await controller.retention.run(STREAM)
            members = [key for key in table_keys(segments) if key.startswith("tail/")]
            assert limit / 2 < len(members) <= limit
            # The oldest and the newest are still there.
            assert int(members[0].rsplit("/", 1)[1], 16) <= clock.ms - 60_000 * (limit * 3 - 1)
            assert int(members[-1].rsplit("/", 1)[1], 16) == clock.ms

    run(work)


def test_a_policy_by_age_records_no_more_often_than_its_age_asks_for() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        policy = RetentionPolicy(type=RetentionType.TIME, minimum=1_000_000_000)
        async with with_stream(segments, 1, clock, retention=policy) as controller:
            for _ in range(100):
                segments.write(NAME, b"x")
                clock.ms += 60_000
                await controller.run_retention_cycles()
            members = [key for key in table_keys(segments) if key.startswith("tail/")]
            assert 5 <= len(members) <= 7

    run(work)


def test_events_of_the_whole_history_are_known_however_much_of_it_has_gone() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()

        def last_record() -> TailRecord:
            members = [key for key in sorted(segments.tables[keys.TABLE].entries) if key.startswith(b"tail/")]
            return TailRecord.decode(segments.tables[keys.TABLE].entries[members[-1]][0])

        policy = RetentionPolicy(type=RetentionType.SIZE, minimum=5)
        async with with_stream(segments, 1, clock, retention=policy) as controller:
            written = 0
            for count in (2, 3, 1, 2):
                for item in await controller.layout.current(STREAM):
                    segments.write(name_of(item.segment), b"x" * 12, event_bytes=4)
                    written += 3
                clock.ms += 1000
                await controller.retention.run(STREAM)
                assert last_record().events == written
                await scale_to(controller, count)
        async with opened(segments, clock) as controller:
            for item in await controller.layout.current(STREAM):
                segments.write(name_of(item.segment), b"x" * 12, event_bytes=4)
                written += 3
            clock.ms += 1000
            await controller.retention.run(STREAM)
            assert last_record().events == written
            assert len([name for name in segments.segments if name.startswith("s/t/")]) < 9

    run(work)


def test_evictions_of_the_widest_stream_still_fit_into_what_remembers_them() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        policy = RetentionPolicy(type=RetentionType.SIZE, minimum=0, maximum=0)
        async with with_stream(segments, 4000, clock, retention=policy) as controller:
            for group in ("a", "b", "c"):
                await join(controller, group, {seg(0, number): 0 for number in range(4000)})
            for _ in range(3):
                segments.write(NAME, b"x" * 10)
                clock.ms += 1000
                await controller.retention.run(STREAM)
            lost = await controller.retention.list_evictions(STREAM)
            assert (lost[-1].subscriber, lost[-1].bytes, lost[-1].end["0#0"]) == ("s/c", 10, 30)
            assert len(lost) == 1

    run(work)
