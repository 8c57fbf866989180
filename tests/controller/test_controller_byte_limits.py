"""Limits of bytes on streams that have few records or none: exact to the event, and never below the minimum.

Over the real segment store, but for what is counted or wide.
"""

from __future__ import annotations

import asyncio
import random
import re

import pytest
from byte_limits import HEADER, keeping, left, over_a_store
from controller_world import STREAM, join, name_of, publish, scale_to, seg, with_stream
from disks import write_events
from memory_segments import MemorySegments
from msgspec.structs import asdict

from penstock.controller.controller import Controller
from penstock.model.answers.plan import RetentionRun
from penstock.model.names import segment_name
from penstock.model.retention import Backlog, Combine, Measure, PolicyDocument, Retain, Unsubscribed
from penstock.ports.data.service import SegmentService
from penstock.testing.fakes import FakeClock

ONE = seg(0, 0)


async def planned_and_run(controller: Controller) -> RetentionRun:
    """One cycle, which does exactly what the plan and the explanation before it said."""
    plan = await controller.retention.plan(STREAM)
    explained = await controller.retention.explain(STREAM)
    assert explained.frees_bytes == sum(item.bytes for item in explained.ranges if item.kind == "due")
    before = await left(controller)
    decision = await controller.retention.run(STREAM)
    assert asdict(plan).items() >= asdict(decision).items()
    # The explanation says who keeps the rest, too.
    assert explained.why.startswith(decision.why)
    assert not (explained.frees_bytes and re.search(r"All [^.]+ are kept", explained.why)), explained.why
    assert asdict(explained).items() >= (asdict(decision) | {"why": explained.why}).items()
    assert before - await left(controller) == decision.frees_bytes
    return decision


def ends_of(sizes: list[int]) -> list[int]:
    ends, at = [0], 0
    for size in sizes:
        at += size + HEADER
        ends.append(at)
    return ends


def test_the_first_cycle_takes_unread_data_down_to_the_maximum_and_no_further() -> None:
    async def work(store: SegmentService, controller: Controller, clock: FakeClock) -> None:
        sizes = [30 + number % 50 for number in range(360)]
        await join(controller, "g", {ONE: 0})
        for first in range(0, 360, 40):
            await write_events(store, name_of(ONE), sizes[first : first + 40])
        written = ends_of(sizes)[-1]
        assert await left(controller) == written == 22_300
        await controller.policies.set(STREAM, keeping(max_bytes=10_000))
        decision = await planned_and_run(controller)
        wanted = min(end for end in ends_of(sizes) if written - end <= 10_000)
        assert decision.truncate == {"0#0": wanted}
        assert decision.rule == "subscribers-maximum"
        (lost,) = await controller.retention.list_evictions(STREAM)
        assert (lost.bytes, lost.events) == (wanted, ends_of(sizes).index(wanted))
        clock.ms += 60_000
        assert (await planned_and_run(controller)).frees_bytes == 0

    asyncio.run(over_a_store(work))


def test_a_minimum_near_the_tail_does_not_keep_a_maximum_from_freeing_what_came_at_once() -> None:
    async def work(store: SegmentService, controller: Controller, clock: FakeClock) -> None:
        sizes = [92] * 560
        await join(controller, "g", {ONE: 0})
        await controller.policies.set(STREAM, keeping(min_bytes=1_000, max_bytes=20_000))
        await write_events(store, name_of(ONE), sizes)
        assert (await planned_and_run(controller)).truncate == {"0#0": 36_000}
        # All is read: down to the minimum, and no byte below.
        await publish(controller, "g", {ONE: 56_000})
        clock.ms += 1000
        decision = await planned_and_run(controller)
        assert (decision.truncate, decision.rule) == ({"0#0": 55_000}, "subscribers-minimum")
        assert await left(controller) == 1_000

    asyncio.run(over_a_store(work))


def test_nobody_subscribes_and_a_policy_comes_late_the_maximum_goes_first_then_the_minimum() -> None:
    async def work(store: SegmentService, controller: Controller, clock: FakeClock) -> None:
        await write_events(store, name_of(ONE), [92] * 500)
        await controller.policies.set(STREAM, keeping(min_bytes=3_050, max_bytes=20_000))
        decision = await planned_and_run(controller)
        assert [(step.rule, step.truncate) for step in decision.steps] == [
            ("maximum", {"0#0": 30_000}),
            ("minimum", {"0#0": 46_900}),
        ]
        assert (decision.truncate, decision.frees_bytes) == ({"0#0": 46_900}, 46_900)
        await write_events(store, name_of(ONE), [92] * 5)
        clock.ms += 1000
        assert (await planned_and_run(controller)).truncate == {"0#0": 47_400}

    asyncio.run(over_a_store(work))


def test_an_age_takes_nothing_of_an_old_stream_before_a_record_has_it() -> None:
    async def work(store: SegmentService, controller: Controller, clock: FakeClock) -> None:
        await write_events(store, name_of(ONE), [92] * 500)
        clock.ms += 40 * 86_400_000
        await join(controller, "g", {ONE: 0})
        document = PolicyDocument(
            retain=Retain(min_age_s=60, max_age_s=3600, min_bytes=1_000, combine=Combine.ALL),
            backlog=Backlog(ttl_s=1800),
        )
        await controller.policies.set(STREAM, document)
        first = await planned_and_run(controller)
        assert (first.frees_bytes, first.expire) == (0, [])
        clock.ms += 1_799_999
        before = await planned_and_run(controller)
        assert (before.frees_bytes, before.expire) == (0, [])
        clock.ms += 1
        # Now the first record has the age, and with it all that it found, down to the minimum of bytes.
        decision = await planned_and_run(controller)
        assert decision.expire != []
        assert await left(controller) == 1_000

    asyncio.run(over_a_store(work))


def test_each_segment_is_met_by_itself_where_limits_are_measured_so() -> None:
    async def work(store: SegmentService, controller: Controller, clock: FakeClock) -> None:
        await join(controller, "g", {seg(0, 0): 0, seg(0, 1): 0, seg(0, 2): 0})
        for number, count in enumerate((300, 70, 5)):
            await write_events(store, name_of(seg(0, number)), [92] * count)
        await controller.policies.set(STREAM, keeping(measure=Measure.SEGMENT, min_bytes=1_050, max_bytes=5_020))
        assert (await planned_and_run(controller)).truncate == {"0#0": 25_000, "1#0": 2_000, "2#0": 0}
        await publish(controller, "g", {seg(0, 0): 30_000, seg(0, 1): 7_000, seg(0, 2): 500})
        clock.ms += 1000
        assert (await planned_and_run(controller)).truncate == {"0#0": 28_900, "1#0": 5_900, "2#0": 0}

    asyncio.run(over_a_store(work, 3))


def test_limits_of_segments_reach_into_earlier_epochs_of_the_same_keys() -> None:
    async def work(store: SegmentService, controller: Controller, clock: FakeClock) -> None:
        await join(controller, "g", {seg(0, 0): 0, seg(0, 1): 0})
        for number in (0, 1):
            await write_events(store, name_of(seg(0, number)), [92] * 100)
        active = await controller.layout.current(STREAM)
        await controller.layout.scale(STREAM, sealed=[seg(0, 0)], new_ranges=[active[0].keys])
        await write_events(store, name_of(seg(1, 2)), [92] * 10)
        await controller.policies.set(STREAM, keeping(measure=Measure.SEGMENT, max_bytes=3_000))
        # 30 events of each are left: 20 of them in the sealed one.
        assert (await planned_and_run(controller)).truncate == {"0#0": 8_000, "1#0": 7_000}

    asyncio.run(over_a_store(work, 2))


def test_a_head_in_the_middle_of_a_scale_does_not_keep_a_boundary_from_being_found() -> None:
    async def work(store: SegmentService, controller: Controller, clock: FakeClock) -> None:
        await join(controller, "g", {ONE: 0})
        await scale_to(controller, 2)
        for number in (1, 2):
            await write_events(store, name_of(seg(1, number)), [92] * 100)
        await scale_to(controller, 1)
        await write_events(store, name_of(seg(2, 3)), [92] * 100)
        # One of the two is read, and what follows both is not begun.
        await publish(controller, "g", {seg(1, 1): 4_000, seg(2, 3): -1})
        await controller.policies.set(STREAM, keeping(min_bytes=0))
        assert (await planned_and_run(controller)).truncate == {"1#1": 4_000, "3#2": -1}
        await controller.policies.set(STREAM, keeping(max_bytes=13_000))
        clock.ms += 1000
        assert (await planned_and_run(controller)).truncate == {"1#1": 7_000, "3#2": -1}
        await controller.policies.set(STREAM, keeping(max_bytes=4_050))
        clock.ms += 1000
        assert (await planned_and_run(controller)).truncate == {"3#2": 6_000}

    asyncio.run(over_a_store(work))


@pytest.mark.parametrize("seed", range(12))
def test_whatever_was_written_the_minimum_stays_and_the_maximum_is_met_to_the_event(seed: int) -> None:
    async def work(store: SegmentService, controller: Controller, clock: FakeClock) -> None:
        chance, count = random.Random(seed), 1 + seed % 3
        written: dict[int, list[int]] = {}
        subscribed = chance.random() < 0.6
        if subscribed:
            await join(controller, "g", {item.segment: 0 for item in await controller.layout.current(STREAM)})
        for _ in range(chance.randint(1, 3)):
            for item in await controller.layout.current(STREAM):
                sizes = [chance.choice([0, 5, 40, 300]) for _ in range(chance.randint(0, 60))]
                written.setdefault(item.segment, []).extend(sizes)
                if sizes:
                    await write_events(store, name_of(item.segment), sizes)
            if chance.random() < 0.4:
                await scale_to(controller, chance.randint(count, 3))
        total = sum(size + HEADER for sizes in written.values() for size in sizes)
        minimum = chance.randint(0, max(total, 1))
        maximum = minimum + chance.choice([0, 100, total // 3])
        more = chance.choice([{}, {"min_age_s": 0, "combine": Combine.ALL}])
        await controller.policies.set(
            STREAM,
            PolicyDocument(
                retain=Retain(min_bytes=minimum, max_bytes=maximum, **more),
                unsubscribed=chance.choice(list(Unsubscribed)),
            ),
        )
        for _ in range(3):
            before = await left(controller)
            decision = await planned_and_run(controller)
            assert await left(controller) >= min(before, minimum)
            if before > maximum and maximum - minimum >= 3 * (300 + HEADER):
                # Each segment is cut at the next event: together they miss it by less than one event each.
                assert await left(controller) <= maximum
            if subscribed and before > maximum:
                assert await left(controller) > min(before, maximum) - 3 * (300 + HEADER)
            for text, offset in (decision.truncate or {}).items():
                number, epoch = text.split("#")
                assert offset <= 0 or offset in ends_of(written[seg(int(epoch), int(number))])
            await write_events(store, await _first(controller), [chance.choice([0, 40])] * 3)
            written.setdefault(await _first_id(controller), []).extend(await _last_sizes(store, controller))
            clock.ms += 1000

    async def _first_id(controller: Controller) -> int:
        return (await controller.layout.current(STREAM))[0].segment

    async def _first(controller: Controller) -> str:
        return segment_name(STREAM, await _first_id(controller))

    async def _last_sizes(store: SegmentService, controller: Controller) -> list[int]:
        name = await _first(controller)
        info = await store.info(name)
        for size in (0, 40):
            at = info.length - 3 * (size + HEADER)
            read = await store.read(name, max(at, info.start_offset), HEADER, wait=False)
            if int.from_bytes(b"".join(bytes(part) for part in read.parts)[:HEADER], "big") == size:
                return [size] * 3
        raise AssertionError("neither size is there")

    asyncio.run(over_a_store(work, 1 + seed % 3))


class AskedSegments(MemorySegments):
    """Counts how often somebody looks for a boundary."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def next_event_boundary(self, name: str, offset: int) -> int:
        self.asked += 1
        return await super().next_event_boundary(name, offset)


@pytest.mark.parametrize("measure", list(Measure))
def test_a_stream_with_records_near_the_limit_is_not_searched(measure: Measure) -> None:
    async def run() -> None:
        segments, clock = AskedSegments(), FakeClock()
        async with with_stream(segments, 2, clock) as controller:
            await join(controller, "g", {seg(0, 0): 0, seg(0, 1): 0})
            await controller.policies.set(STREAM, keeping(measure=measure, min_bytes=5_000, max_bytes=10_000))
            for _ in range(250):
                for number in (0, 1):
                    segments.write(name_of(seg(0, number)), b"x" * 50, event_bytes=10)
                clock.ms += 1000
                await controller.retention.run(STREAM)
            description = await controller.streams.describe(STREAM)
            whole = 10_000 if measure is Measure.STREAM else 20_000
            assert whole - 100 <= description.size_bytes <= whole
            assert segments.asked == 0

    asyncio.run(run())


def test_no_data_goes_while_the_store_cannot_tell_boundaries() -> None:
    class Broken(AskedSegments):
        broken = False

        async def next_event_boundary(self, name: str, offset: int) -> int:
            if self.broken:
                raise OSError("the disk is away")
            return await super().next_event_boundary(name, offset)

    async def run() -> None:
        segments, clock = Broken(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            await join(controller, "g", {ONE: 0})
            segments.write(name_of(ONE), b"x" * 5_000, event_bytes=10)
            await controller.policies.set(STREAM, keeping(max_bytes=1_005))
            segments.broken = True
            with pytest.raises(OSError, match="the disk is away"):
                await controller.retention.run(STREAM)
            segments.broken = False
            assert await left(controller) == 5_000
            await controller.retention.run(STREAM)
            assert await left(controller) == 1_000

    asyncio.run(run())
