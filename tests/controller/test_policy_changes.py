"""A change of a scope's or the server's policy is a barrier: what is decided by the document before it is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from controller_world import STREAM, audit_entries, cut_at, join, name_of, publish, seg, with_stream
from memory_segments import MemorySegments
from raced_segments import RacedSegments

from penstock.codec.control.readers import SubscriberRecord
from penstock.codec.control.streams import HeadRecord, StreamRecord, StreamState
from penstock.controller import keys
from penstock.controller.controller import Controller
from penstock.model.names import AUDIT_STREAM, segment_name
from penstock.model.retention import Backlog, Idle, OnExceed, PolicyDocument, Retain
from penstock.testing.fakes import FakeClock

SEGMENT = seg(0, 0)
NAME = name_of(SEGMENT)
RECORDS = PolicyDocument(backlog=Backlog(ttl_s=1 << 30))
KEEPS = PolicyDocument(retain=Retain(min_bytes=1 << 40))


def fate(segments: MemorySegments) -> dict[str, Any]:
    """The decisions of the rules about the stream, as recorded in the table, without internal writes."""
    entries = segments.tables[keys.TABLE].entries
    stream = entries.get(keys.stream(STREAM))
    record = None if stream is None else StreamRecord.decode(stream[0])
    head = entries.get(keys.head(STREAM))
    prefix = keys.subscribers(STREAM)
    subscribers = {key: SubscriberRecord.decode(value) for key, (value, _) in entries.items() if key.startswith(prefix)}
    return {
        "ending": record is None or record.state in (StreamState.SEALING, StreamState.DELETING),
        "head": {} if head is None else HeadRecord.decode(head[0]).visible,
        "subscribers": {key: item.cut for key, item in subscribers.items() if not item.dropped},
    }


CASES = {
    "truncates": PolicyDocument(retain=Retain(min_bytes=0, max_bytes=10)),
    "truncates with grace": PolicyDocument(retain=Retain(min_bytes=0, max_bytes=10), grace_s=60),
    "expires": PolicyDocument(retain=Retain(min_bytes=0), backlog=Backlog(ttl_s=20)),
    "evicts": PolicyDocument(
        retain=Retain(min_bytes=0), backlog=Backlog(max_bytes=20, on_exceed=OnExceed.EVICT, evict_to=0.5)
    ),
    "drops a subscriber": PolicyDocument(idle=Idle(subscriber_s=60)),
    "deletes the stream": PolicyDocument(idle=Idle(stream_s=60)),
}


async def _world(controller: Controller, segments: MemorySegments, clock: FakeClock, case: str) -> None:
    for _ in range(5):
        segments.write(NAME, b"x" * 10)
        clock.ms += 10_000
        await controller.retention.run(STREAM)
    if case != "deletes the stream":
        await join(controller, "a", {SEGMENT: 0})
        await publish(controller, "a", {SEGMENT: 30 if case.startswith("truncates") else 0})
    clock.ms += 100_000


async def _raced(case: str, target: str | None, at: int) -> tuple[bool, dict[str, Any]]:
    """Run one cycle with a policy change in its call ``at``. Returns whether it got that far, and its audit entries."""
    segments, clock = RacedSegments(), FakeClock()
    async with with_stream(segments, 1, clock) as controller:
        await controller.policies.set(target, RECORDS)
        await _world(controller, segments, clock, case)
        await controller.policies.set(target, CASES[case])
        seen: list[dict[str, Any]] = []

        async def change() -> None:
            await controller.policies.set(target, KEEPS)
            seen.append(fate(segments))

        segments.arm_hook(at, change)
        await controller.retention.run(STREAM)
        segments.hook = None
        if not seen:
            return False, fate(segments)
        after = fate(segments)
        assert after["head"] == seen[0]["head"] or after["ending"]
        assert after["ending"] == seen[0]["ending"]
        assert after["subscribers"] == seen[0]["subscribers"] or after["ending"]
        reported = await audit_entries(controller, segments)
        last = max(place for place, entry in enumerate(reported) if entry["kind"] == "policy")
        late = [
            entry for entry in reported[last:] if entry["kind"] in ("truncate", "expire", "evict", "drop", "delete")
        ]
        assert late == [], "the audit stream tells of a removal behind the policy that forbids it"
        return True, after


@pytest.mark.parametrize("target", ["s", pytest.param(None, marks=pytest.mark.slow)], ids=["scope", "server"])
@pytest.mark.parametrize("case", CASES)
def test_nothing_is_removed_by_a_policy_that_was_replaced_at_any_step_of_a_cycle(case: str, target: str | None) -> None:
    async def work() -> int:
        at = 1
        while (await _raced(case, target, at))[0]:
            at += 1
        return at

    assert asyncio.run(work()) > 10


@pytest.mark.parametrize("case", CASES)
def test_each_rule_removes_something_if_the_policy_does_not_change(case: str) -> None:
    raced, after = asyncio.run(_raced(case, "s", 1_000_000))
    assert not raced
    untouched = {"ending": False, "head": {}, "subscribers": {b"subscriber/s/t/s/a": {SEGMENT: 0}}}
    assert {**untouched, **after} != untouched


def test_a_grace_that_is_set_during_a_truncation_keeps_the_bytes() -> None:
    """The policy in force when a truncation by hand is decided also decides whether the bytes can be restored."""

    async def raced(at: int) -> bool:
        segments, clock = RacedSegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            segments.write(NAME, b"x" * 10)
            begun: list[bool] = []

            async def change() -> None:
                await controller.policies.set("s", PolicyDocument(grace_s=60))
                begun.append(fate(segments)["head"] != {})

            segments.arm_hook(at, change)
            await controller.streams.truncate(STREAM, cut_at({SEGMENT: 5}))
            segments.hook = None
            kept = any(key.startswith(b"grace/") for key in segments.tables[keys.TABLE].entries)
            assert not begun or kept or begun[0]
            return bool(begun)

    async def work() -> int:
        at = 1
        while await raced(at):
            at += 1
        return at

    assert asyncio.run(work()) > 5


@pytest.mark.parametrize("case", ["truncates", "truncates with grace", "deletes the stream"])
def test_nothing_is_removed_once_a_hold_on_the_scope_is_durable_at_any_step_of_a_cycle(case: str) -> None:
    async def raced(at: int) -> bool:
        segments, clock = RacedSegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            await controller.policies.set("s", RECORDS)
            await _world(controller, segments, clock, case)
            await controller.policies.set("s", CASES[case])
            seen: list[dict[str, Any]] = []
            placing: list[asyncio.Task[Any]] = []

            async def place() -> None:
                placing.append(asyncio.ensure_future(controller.holds.add("s", owner="o", reason="r", hold_id="h")))
                # The call returns after the cycle; the hold is in force once its record exists.
                while keys.hold("s", "h") not in segments.tables[keys.TABLE].entries:
                    await asyncio.sleep(0)
                seen.append(fate(segments))

            segments.arm_hook(at, place)
            await controller.retention.run(STREAM)
            segments.hook = None
            await asyncio.gather(*placing)
            if seen:
                after = fate(segments)
                assert (after["ending"], after["head"]) == (seen[0]["ending"], seen[0]["head"]) or seen[0]["ending"]
            return bool(seen)

    async def work() -> int:
        at = 1
        while await raced(at):
            at += 1
        return at

    assert asyncio.run(work()) > 10


def _held_entries(segments: MemorySegments) -> int:
    """How many entries are decided, appended to the audit stream or not. One that is being moved counts twice."""
    appended = segments.segments.get(segment_name(AUDIT_STREAM, SEGMENT))
    waiting = [value for key, (value, _) in segments.tables[keys.TABLE].entries.items() if key.startswith(b"audit/")]
    return (b"" if appended is None else bytes(appended.data)).count(b'"held"') + b"".join(waiting).count(b"held")


HELD_CASES = {
    "a new policy": lambda controller, target: controller.policies.set(target, KEEPS),
    "a lifted hold": lambda controller, _: controller.holds.release("h", owner="o"),
}


@pytest.mark.parametrize("target", ["s", pytest.param(None, marks=pytest.mark.slow)], ids=["scope", "server"])
@pytest.mark.parametrize("case", HELD_CASES)
@pytest.mark.parametrize("kind", ["truncates", "deletes the stream"])
def test_no_held_entry_names_a_policy_or_a_hold_that_is_over(kind: str, case: str, target: str | None) -> None:
    async def raced(at: int) -> bool:
        segments, clock = RacedSegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            await controller.policies.set(target, RECORDS)
            await _world(controller, segments, clock, kind)
            await controller.holds.add(STREAM, owner="o", reason="r", hold_id="h")
            await controller.policies.set(target, CASES[kind])
            seen: list[int] = []

            async def change() -> None:
                await HELD_CASES[case](controller, target)
                seen.append(_held_entries(segments))

            segments.arm_hook(at, change)
            await controller.retention.run(STREAM)
            segments.hook = None
            reported = len(await audit_entries(controller, segments, "held"))
            if not seen:
                assert reported == 1
                return False
            assert reported <= seen[0]
            return True

    async def work() -> int:
        at = 1
        while await raced(at):
            at += 1
        return at

    assert asyncio.run(work()) > 10
