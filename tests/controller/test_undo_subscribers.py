"""Undo gives back what a rule took from subscribers, or names what it cannot give back."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from controller_world import GROUP_ID, STREAM, config, cut_at, name_of, with_stream
from memory_segments import MemorySegments
from undo_subscribers import CORRECT, ONE, subscribed

from penstock.controller.controller import Controller
from penstock.model.cuts import StreamCut
from penstock.model.errors import ConflictError
from penstock.model.names import StreamName
from penstock.model.policies import ReaderGroupRetention
from penstock.model.retention import Backlog, Idle, OnExceed, PolicyDocument, Retain
from penstock.testing.fakes import FakeClock

HOUR_MS = 3_600_000
MISTAKES = {
    "maximum": PolicyDocument(retain=Retain(min_bytes=0, max_bytes=10), grace_s=3600),
    "quota": PolicyDocument(
        retain=Retain(min_bytes=0), backlog=Backlog(max_bytes=10, on_exceed=OnExceed.EVICT), grace_s=3600
    ),
    "ttl": PolicyDocument(retain=Retain(min_bytes=0), backlog=Backlog(ttl_s=1), grace_s=3600),
    "idle": PolicyDocument(retain=Retain(min_bytes=0), idle=Idle(subscriber_s=60), grace_s=3600),
}


async def cycles(controller: Controller, clock: FakeClock, ms: int, every_ms: int = 600_000) -> None:
    for _ in range(ms // every_ms):
        clock.ms += every_ms
        await controller.run_retention_cycles()
        await controller.retention.run(STREAM)


async def unread_from(controller: Controller, name: str) -> int:
    found = {item.name: item for item in await controller.subscribers.describe(STREAM)}
    assert name in found, sorted(found)
    cut = found[name].cut
    assert cut is not None
    return cut.positions[ONE]


async def undo_all(controller: Controller) -> None:
    while True:
        try:
            await controller.retention.undo_last(STREAM)
        except ConflictError:
            return


@pytest.mark.parametrize("first", ["correct", "undo"])
@pytest.mark.parametrize("mistake", sorted(MISTAKES))
def test_after_a_mistake_its_correction_and_an_undo_everything_unread_outlives_the_grace(
    mistake: str, first: str
) -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            segments.write(name_of(ONE), b"x" * 10, event_bytes=10)
            await controller.retention.run(STREAM)
            await subscribed(controller, "g", 0)
            await subscribed(controller, "ahead", 10)
            for _ in range(9):
                clock.ms += 1000
                segments.write(name_of(ONE), b"x" * 10, event_bytes=10)
                await controller.retention.run(STREAM)
            await controller.policies.set(STREAM, MISTAKES[mistake])
            await cycles(controller, clock, 240_000, 120_000)
            assert (await controller.cuts.head(STREAM)).positions[ONE] > 0
            if first == "correct":
                await controller.policies.set(STREAM, CORRECT)
                await undo_all(controller)
            else:
                await undo_all(controller)
                await cycles(controller, clock, 240_000, 120_000)
                await controller.policies.set(STREAM, CORRECT)
            assert (await controller.cuts.head(STREAM)).positions == {ONE: 0}
            await cycles(controller, clock, 3 * HOUR_MS)
            assert (await controller.cuts.head(STREAM)).positions == {ONE: 0}
            assert await unread_from(controller, "s/g") == 0

    asyncio.run(work())


@pytest.mark.parametrize("change", ["no retention", "another stream"])
def test_an_undo_does_not_subscribe_a_group_that_left_the_stream_after_a_rule_dropped_it(change: str) -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            other = StreamName("s", "other")
            await controller.streams.create(other, config(1))
            segments.write(name_of(ONE), b"x" * 100, event_bytes=10)
            await subscribed(controller, "g", 0)
            await subscribed(controller, "ahead", 100)
            await controller.policies.set(STREAM, MISTAKES["idle"])
            clock.ms += 100_000
            tail = await controller.cuts.tail(STREAM)
            await controller.subscribers.publish("s/ahead", group_id=GROUP_ID, generation=0, cut=tail)
            await cycles(controller, clock, 20_000, 10_000)
            assert [item.name for item in await controller.subscribers.describe(STREAM)] == ["s/ahead"]
            group = await controller.groups.get("s", "g")
            changes = {
                "no retention": replace(group, retention=ReaderGroupRetention.NONE),
                "another stream": replace(group, start_cuts={other: StreamCut(other, {})}),
            }
            await controller.groups.update(changes[change])
            found = await controller.retention.undo(STREAM, since_ms=0)
            (outcome,) = [item for item in found.subscribers if item.name == "s/g"]
            assert (outcome.restored, "any more" in outcome.reason) == (False, True)
            assert [item.name for item in await controller.subscribers.describe(STREAM)] == ["s/ahead"]

    asyncio.run(work())


def test_the_hold_of_an_undo_is_listed_until_it_ends_and_stops_nobody_who_deletes() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            await controller.policies.set(STREAM, CORRECT)
            segments.write(name_of(ONE), b"x" * 100, event_bytes=10)
            await controller.streams.truncate(STREAM, cut_at({ONE: 50}))
            assert await controller.holds.list(STREAM) == ()
            clock.ms += 1000
            await controller.retention.undo_last(STREAM)
            for target in (STREAM, "s", None):
                (hold,) = await controller.holds.list(target)
                assert (hold.stream, hold.is_undo) == (STREAM, True)
                assert hold.until_ms == clock.ms - 1000 + HOUR_MS
            await controller.streams.create(StreamName("s", "t2"), config(1))
            assert await controller.holds.list(StreamName("s", "t2")) == ()
            clock.ms += HOUR_MS
            assert await controller.holds.list(STREAM) == ()

    asyncio.run(work())


def test_one_call_takes_back_all_truncations_since_a_time_and_names_what_it_cannot_restore() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            segments.write(name_of(ONE), b"x" * 100, event_bytes=10)
            await controller.streams.truncate(STREAM, cut_at({ONE: 10}))
            await controller.policies.set(STREAM, CORRECT)
            clock.ms += 1000
            await controller.streams.truncate(STREAM, cut_at({ONE: 20}))
            clock.ms += 1000
            since_ms = clock.ms
            for end in (30, 40, 50):
                await controller.streams.truncate(STREAM, cut_at({ONE: end}))
                clock.ms += 60_000
            found = await controller.retention.undo(STREAM, since_ms=since_ms)
            assert (found.head, found.truncations, found.bytes) == ({"0#0": 20}, 3, 30)
            assert found.not_restored == []
            with pytest.raises(ConflictError):
                await controller.retention.undo(STREAM, since_ms=since_ms)
            found = await controller.retention.undo(STREAM, since_ms=0)
            assert (found.head, found.truncations) == ({"0#0": 10}, 1)
            assert [item.bytes for item in found.not_restored] == [10]

    asyncio.run(work())


def test_an_undo_names_the_subscriber_that_went_on_by_itself_and_restores_the_other() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            segments.write(name_of(ONE), b"x" * 100, event_bytes=10)
            await subscribed(controller, "g", 0)
            await subscribed(controller, "on", 0)
            await controller.policies.set(STREAM, MISTAKES["maximum"])
            await controller.retention.run(STREAM)
            await controller.subscribers.publish("s/on", group_id=None, generation=None, cut=cut_at({ONE: 100}))
            found = await controller.retention.undo(STREAM)
            by_name = {item.name: item for item in found.subscribers}
            assert {name: item.restored for name, item in by_name.items()} == {"s/g": True, "s/on": False}
            assert "acknowledged further" in by_name["s/on"].reason
            assert (await unread_from(controller, "s/g"), await unread_from(controller, "s/on")) == (0, 100)

    asyncio.run(work())
