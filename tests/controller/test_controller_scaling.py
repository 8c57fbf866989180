from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
from controller_world import STREAM, audit_entries, cut_at, name_of, opened, scale_to, with_stream
from memory_segments import MemorySegments

from penstock.controller.controller import Controller
from penstock.controller.scaling.loop import ScalingLoop
from penstock.controller.scaling.scaler import Scaler
from penstock.controller.settings import ControllerSettings
from penstock.model.errors import PenstockError, StreamNotFoundError, UnavailableError
from penstock.model.names import StreamName
from penstock.model.policies import ScaleType, ScalingPolicy, StreamConfig
from penstock.model.scaling import Heat, ScalingAction, SegmentRates
from penstock.testing.fakes import FakeClock

SERVING = ControllerSettings(sweep_ms=None, retention_cycle_ms=3_600_000, clock_slack_ms=0, deletion_grace_ms=0)
MINUTE_MS = 60_000


def by_events(*, target: int = 100, factor: int = 4, minimum: int = 1) -> StreamConfig:
    return StreamConfig(
        scaling=ScalingPolicy(type=ScaleType.EVENTS_PER_S, target_rate=target, factor=factor, min_segments=minimum)
    )


def steady(rate: float, minutes: float = 100) -> SegmentRates:
    return SegmentRates(two=rate, five=rate, ten=rate, twenty=rate, measured_minutes=minutes)


@asynccontextmanager
async def by_rate(segments: MemorySegments, clock: FakeClock, config: StreamConfig | None = None):
    """A stream whose cool-down has passed, a controller that does nothing by itself, and one who looks for it."""
    async with opened(segments, clock) as controller:
        await controller.scopes.create("s")
        await controller.streams.create(STREAM, config or by_events())
        clock.jump(11 * MINUTE_MS)
        scaler = Scaler(controller._ctx)
        await scaler.look(STREAM)
        yield controller, scaler


async def set_rates(controller: Controller, segments: MemorySegments, *rates: float) -> None:
    active = await controller.layout.current(STREAM)
    segments.rates |= {name_of(item.segment): steady(rate) for item, rate in zip(active, rates, strict=True)}


async def count(controller: Controller) -> int:
    active = await controller.layout.current(STREAM)
    assert (active[0].keys.low, active[-1].keys.high) == (0.0, 1.0)
    assert all(left.keys.high == right.keys.low for left, right in pairwise(active))
    return len(active)


def run(body) -> None:
    async def main() -> None:
        async with asyncio.timeout(20):
            await body()

    asyncio.run(main())


def test_a_hot_segment_is_split_and_the_audit_stream_has_the_reason() -> None:
    async def body() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with by_rate(segments, clock) as (controller, scaler):
            await set_rates(controller, segments, 250)
            assert await scaler.look(STREAM)
            assert await count(controller) == 3
            (entry,) = await audit_entries(controller, segments, "scale")
            assert entry["reason"] == "Split 0#0 at 250.0/s into 3: above the target of 100 events/s."
            assert (entry["action"], entry["epoch"], entry["target"]) == ("split", 1, "s/t")
            assert entry["sealed"] == ["0"]
            assert entry["rates"] == {"0": [250, 250, 250, 250]}
            found = await scaler.explain(STREAM)
            assert [change.reason for change in found.changes] == [entry["reason"]]
            # Those that are new are measured, the sealed one is not.
            assert list(segments.watches["s/t"].segments) == [
                name_of(item.segment) for item in await controller.layout.current(STREAM)
            ]

    run(body)


def test_the_same_rates_scale_once_and_then_wait_for_the_cooldown() -> None:
    async def body() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with by_rate(segments, clock) as (controller, scaler):
            await set_rates(controller, segments, 1000)
            await asyncio.gather(*(scaler.look(STREAM) for _ in range(5)))
            assert await count(controller) == 4
            await set_rates(controller, segments, 200, 200, 200, 200)
            clock.jump(9 * MINUTE_MS)
            await scaler.look(STREAM)
            assert await count(controller) == 4
            clock.jump(2 * MINUTE_MS)
            await scaler.look(STREAM)
            assert await count(controller) == 8

    run(body)


def test_cold_neighbours_merge_down_to_the_minimum() -> None:
    async def body() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with by_rate(segments, clock, by_events(minimum=2)) as (controller, scaler):
            await scale_to(controller, 8)
            for expected in (4, 2, 2):
                clock.jump(11 * MINUTE_MS)
                await scaler.look(STREAM)
                await set_rates(controller, segments, *[1.0] * await count(controller))
                await scaler.look(STREAM)
                assert await count(controller) == expected

    run(body)


def test_a_sealed_a_fixed_and_a_deleted_stream_are_left_alone_and_no_longer_measured() -> None:
    async def body() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with by_rate(segments, clock) as (controller, scaler):
            await set_rates(controller, segments, 1000)
            assert "s/t" in segments.watches
            await controller.streams.update(STREAM, StreamConfig())
            assert not await scaler.look(STREAM)
            assert segments.watches == {}
            assert (await scaler.explain(STREAM)).reason == "The number of segments is fixed."
            await controller.streams.update(STREAM, by_events())
            await scaler.look(STREAM)
            await controller.streams.seal(STREAM)
            assert not await scaler.look(STREAM)
            assert (await scaler.explain(STREAM)).reason == "The stream is sealed."
            await controller.streams.delete(STREAM)
            with pytest.raises(StreamNotFoundError):
                await scaler.look(STREAM)

    run(body)


def test_a_store_that_has_forgotten_what_it_measures_is_asked_again() -> None:
    async def body() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with by_rate(segments, clock) as (controller, scaler):
            await set_rates(controller, segments, 1)
            await scaler.look(STREAM)
            segments.watches.clear()
            await scaler.look(STREAM)
            assert list(segments.watches) == ["s/t"]

    run(body)


def test_explain_shows_rates_and_what_they_ask_for_and_changes_nothing() -> None:
    async def body() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with by_rate(segments, clock, by_events(minimum=2)) as (controller, _):
            await set_rates(controller, segments, 1000, 1)
            before = segments.mutations
            found = await controller.layout.scaling(STREAM)
            assert segments.mutations == before
            assert found.action is ScalingAction.SPLIT
            assert [item.heat for item in found.segments] == [Heat.HOT, Heat.COLD]
            assert found.segments[0].rates == steady(1000)
            assert found.changes == ()

    run(body)


@pytest.mark.parametrize("effect_first", [False, True])
def test_a_crash_at_any_step_of_a_split_leaves_it_decided_once_or_not_at_all(effect_first: bool) -> None:
    async def crash_after(steps: int) -> bool:
        """Whether the look has met the crash."""
        segments, clock = MemorySegments(), FakeClock()
        crashed = False
        async with by_rate(segments, clock) as (controller, scaler):
            await set_rates(controller, segments, 1000)
            segments.arm(steps, effect_first=effect_first)
            try:
                await scaler.look(STREAM)
            except PenstockError:
                crashed = True
            segments.heal()
        async with opened(segments, clock) as controller:
            await controller.sweep()
            entries = await audit_entries(controller, segments, "scale")
            assert await count(controller) == (4 if entries else 1)
            assert len(entries) <= 1
            # What was not decided is decided again from the rates, and what was is not repeated.
            scaler = Scaler(controller._ctx)
            await scaler.look(STREAM)
            await scaler.look(STREAM)
            assert await count(controller) == 4
            assert len(await audit_entries(controller, segments, "scale")) == 1
        return crashed

    async def body() -> None:
        steps = 1
        while await crash_after(steps):
            steps += 1
        assert steps > 4, "there were steps to crash at"

    run(body)


async def until(condition) -> None:
    while not await condition():
        await asyncio.sleep(0)


def test_a_report_of_the_store_scales_at_once_and_a_change_of_policy_begins_the_measuring() -> None:
    async def body() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock, settings=SERVING) as controller:
            assert segments.watches == {}
            await controller.streams.update(STREAM, by_events())

            async def measured() -> bool:
                return "s/t" in segments.watches

            async def split() -> bool:
                return await count(controller) == 4

            await until(measured)
            await set_rates(controller, segments, 1000)
            clock.jump(11 * MINUTE_MS)
            segments.reports.put_nowait("s/t")
            await until(split)

    run(body)


def test_a_controller_that_starts_finds_the_streams_that_scale_by_rate() -> None:
    async def body() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with opened(segments, clock) as controller:
            await controller.scopes.create("s")
            await controller.streams.create(STREAM, by_events())
        assert segments.watches == {}
        async with opened(segments, clock, SERVING):

            async def measured() -> bool:
                return "s/t" in segments.watches

            await until(measured)

    run(body)


def test_events_of_a_cut_stay_where_they_are_across_a_split_by_rate() -> None:
    async def body() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with by_rate(segments, clock) as (controller, scaler):
            (only,) = await controller.layout.current(STREAM)
            segments.write(name_of(only.segment), b"12345678abc")
            await set_rates(controller, segments, 1000)
            await scaler.look(STREAM)
            successors = await controller.layout.successors(STREAM, only.segment)
            assert [tuple(item.predecessors) for item in successors] == [(only.segment,)] * 4
            assert await controller.cuts.is_valid(STREAM, cut_at({only.segment: 11}))

    run(body)


class Troubled(MemorySegments):
    """``after_rates`` runs once after rates were read; ``fail_search``: the next listing of all streams fails.

    As the store does, it forgets the rates of a stream whose unit has changed.
    """

    after_rates = None
    fail_search = False

    async def measure_rates(self, watches):
        for watch in watches:
            known = self.watches.get(watch.stream)
            if known is not None and known.type is not watch.type:
                for name in watch.segments:
                    self.rates.pop(name, None)
        await super().measure_rates(watches)

    async def segment_rates(self, names):
        found = await super().segment_rates(names)
        if self.after_rates is not None:
            hook, self.after_rates = self.after_rates, None
            await hook()
        return found

    async def table_scan(self, name, *, after, limit, first=None, last=None):
        if self.fail_search and first is not None and first.startswith(b"stream/"):
            self.fail_search = False
            raise UnavailableError("down")
        return await super().table_scan(name, after=after, limit=limit, first=first, last=last)


def test_a_search_that_failed_is_repeated_with_the_next_look() -> None:
    async def body() -> None:
        segments, clock = Troubled(), FakeClock()
        async with opened(segments, clock) as controller:
            await controller.scopes.create("s")
            await controller.streams.create(STREAM, by_events())
        segments.fail_search = True
        async with opened(segments, clock, replace(SERVING, scaling_minute_ms=10)):
            while "s/t" not in segments.watches:
                await asyncio.sleep(0.01)
        assert not segments.fail_search

    run(body)


def test_rates_in_events_decide_nothing_about_a_target_in_kilobytes() -> None:
    async def body() -> None:
        segments, clock = Troubled(), FakeClock()
        async with by_rate(segments, clock) as (controller, scaler):
            await set_rates(controller, segments, 250)
            policy = ScalingPolicy(type=ScaleType.KILOBYTES_PER_S, target_rate=10, factor=4, min_segments=1)

            async def update() -> None:
                await controller.streams.update(STREAM, StreamConfig(scaling=policy))

            segments.after_rates = update
            await scaler.look(STREAM)
            assert await count(controller) == 1

    run(body)


def test_a_clock_that_was_a_day_ahead_keeps_no_stream_from_scaling_for_a_day() -> None:
    async def body() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with by_rate(segments, clock) as (controller, scaler):
            clock.jump(86_400_000)
            await set_rates(controller, segments, 1000)
            await scaler.look(STREAM)
            assert await count(controller) == 4
            clock.jump(-86_400_000)
            active = await controller.layout.current(STREAM)
            segments.rates |= {name_of(item.segment): steady(1000, minutes=9) for item in active}
            await scaler.look(STREAM)
            assert await count(controller) == 4, "the cool-down is not over"
            segments.rates |= {name_of(item.segment): steady(1000, minutes=11) for item in active}
            await scaler.look(STREAM)
            assert await count(controller) == 16

    run(body)


def test_a_slow_look_does_not_forget_a_stream_whose_policy_has_changed_meanwhile() -> None:
    """One look finds a fixed stream and takes long; meanwhile the stream is made to scale by rate."""

    async def body() -> None:
        slow, looks = asyncio.Event(), [0]

        async def look(name: StreamName) -> bool:
            looks[0] += 1
            if looks[0] == 1:
                await slow.wait()
                return False
            return True

        ctx: Any = SimpleNamespace(settings=SimpleNamespace(scaling_minute_ms=60_000))
        loop = ScalingLoop(
            ctx, cast(Any, SimpleNamespace(look=look)), cast(Any, SimpleNamespace(owns=lambda name: True))
        )
        first = asyncio.create_task(loop._look_at([STREAM]))
        await asyncio.sleep(0)
        await loop._look_at([STREAM])
        slow.set()
        await first
        names, loop._changed = loop._changed, {}
        await loop._look_at(names)
        assert list(loop._streams) == [STREAM]

    asyncio.run(body())
