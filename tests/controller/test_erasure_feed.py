"""The erasure feed has one event for each receipt, whatever crashes, damage or other controllers interrupt."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from blanking import ONE, Blanking
from controller_world import QUIET, STREAM, name_of, opened, with_stream

from penstock.codec.control.erasures import ErasureRecord
from penstock.codec.control.streams import CounterRecord, StreamRecord, StreamState
from penstock.codec.erasure_feed import decode_feed_event
from penstock.codec.events import split_events
from penstock.controller import keys
from penstock.controller.controller import Controller
from penstock.controller.erasure.feed import WRITER
from penstock.controller.streams.restored import begin_restored
from penstock.core.segments.erasure_receipt import values_digest
from penstock.model.errors import ContainerOfflineError, InvalidArgumentError, UnavailableError
from penstock.model.names import ERASURE_FEED
from penstock.model.retention import PolicyDocument, Retain
from penstock.testing.fakes import FakeClock

STEPS_MAX = 60


def play(scene: Callable[[Controller, Blanking, FakeClock], Awaitable[None]]) -> None:
    async def work() -> None:
        segments, clock = Blanking(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            segments.write(name_of(ONE), b"x" * 100)
            await scene(controller, segments, clock)

    asyncio.run(work())


async def erase(controller: Controller, erasure: str, offsets: list[int], **looked_for: Any) -> None:
    asked = {"erasure": erasure, "who": "ann", "why": "request 17", "looked_for": looked_for}
    await controller.erasures.erase(STREAM, asked, {ONE: offsets})
    await done(controller, erasure)


async def done(controller: Controller, erasure: str) -> None:
    while (await controller.erasures.get(erasure)).state != "done":
        await asyncio.sleep(0)


def feed_bytes(segments: Blanking) -> bytes:
    names = sorted(name for name in segments.segments if name.startswith(f"{ERASURE_FEED}/"))
    return b"".join(bytes(segments.segments[name].data) for name in names)


def events(segments: Blanking) -> list[dict[str, Any]]:
    return [decode_feed_event(bytes(item)) for item in split_events(feed_bytes(segments))]


def numbers(segments: Blanking) -> list[int]:
    return [item["n"] for item in events(segments)]


def feed_segments(segments: Blanking) -> list[str]:
    return sorted(name for name in segments.segments if name.startswith(f"{ERASURE_FEED}/"))


def test_an_erasure_gives_one_event_with_its_positions() -> None:
    async def scene(controller: Controller, segments: Blanking, clock: FakeClock) -> None:
        await erase(controller, "e1", [0, 10, 40])
        await controller.erasures.feed.run()
        (event,) = events(segments)
        receipt = (await controller.erasures.get("e1")).receipt
        assert receipt is not None
        assert event == {
            "v": 1,
            "n": 1,
            "erasure": "e1",
            "stream": str(STREAM),
            "case": None,
            "subject": None,
            "identity": None,
            "who": "ann",
            "why": "request 17",
            "asked_ms": receipt["asked_ms"],
            "finished_ms": receipt["finished_ms"],
            "events": 3,
            "bytes": 6,
            "segments": [{"segment": ONE, "events": [[0, 20], [40, 50]], "gone": False}],
            "tables": [],
        }

    play(scene)


def test_events_are_in_the_order_of_the_receipts_also_when_the_feed_begins_late() -> None:
    async def scene(controller: Controller, segments: Blanking, clock: FakeClock) -> None:
        feed = controller.erasures.feed
        feed.soon = lambda: None  # type: ignore[method-assign]
        for number in range(25):
            await erase(controller, f"e{25 - number}", [number])
        assert feed_segments(segments) == []
        assert await feed.run() == 25
        assert [(item["n"], item["erasure"]) for item in events(segments)] == [
            (number + 1, f"e{25 - number}") for number in range(25)
        ]
        assert await feed.run() == 0

    play(scene)


@pytest.mark.parametrize("effect_first", [False, True])
def test_a_crash_at_every_step_leaves_exactly_one_event_for_each_receipt(effect_first: bool) -> None:
    async def crash(segments: Blanking, clock: FakeClock, step: int) -> bool:
        segments.arm(step, effect_first=effect_first)
        try:
            async with opened(segments, clock) as controller:
                await erase(controller, "e2", [10])
                await controller.erasures.feed.run()
        except (ContainerOfflineError, UnavailableError):
            pass
        met = segments.offline
        segments.heal()
        return met

    async def until_met(segments: Blanking, clock: FakeClock, step: int) -> bool:
        # An erasure retries a failing store forever, as it should: a crash ends the process.
        running = asyncio.ensure_future(crash(segments, clock, step))
        while not running.done() and not segments.offline:
            await asyncio.sleep(0)
        if not running.done():
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            segments.heal()
            return True
        return running.result()

    async def run() -> None:
        prepared, clock = Blanking(), FakeClock()
        async with with_stream(prepared, 1, clock) as controller:
            prepared.write(name_of(ONE), b"x" * 100)
            await erase(controller, "e1", [0])
            await controller.erasures.feed.run()
        for step in range(1, STEPS_MAX):
            world = Blanking()
            world.segments, world.tables = copy.deepcopy(prepared.segments), copy.deepcopy(prepared.tables)
            met = await until_met(world, clock, step)
            async with opened(world, clock) as later:
                await erase(later, "e2", [10])
                await erase(later, "e3", [20])
                await later.erasures.feed.run()
                assert [item["erasure"] for item in events(world)] == ["e1", "e2", "e3"]
                assert numbers(world) == [1, 2, 3]
            if not met:
                assert step > 5
                return
        raise AssertionError("the erasure never got through without a fault")

    asyncio.run(run())


def test_two_controllers_write_each_receipt_once() -> None:
    async def scene(controller: Controller, segments: Blanking, clock: FakeClock) -> None:
        async with opened(segments, clock) as other:
            await erase(controller, "e1", [0])
            await erase(other, "e2", [10])
            await erase(controller, "e3", [20])
            await asyncio.gather(*(item.erasures.feed.run() for item in (controller, other) * 3))
            assert numbers(segments) == [1, 2, 3]

    play(scene)


def test_a_sealed_segment_of_the_feed_is_continued_in_a_new_one() -> None:
    async def scene(controller: Controller, segments: Blanking, clock: FakeClock) -> None:
        await erase(controller, "e1", [0])
        await controller.erasures.feed.run()
        (old,) = feed_segments(segments)
        await segments.seal(old)
        await erase(controller, "e2", [10])
        await controller.erasures.feed.run()
        assert numbers(segments) == [1, 2]
        assert len(feed_segments(segments)) == 2
        # The first segment is truncated away, before anything else is in the second one.
        (young,) = set(feed_segments(segments)) - {old}
        segments.segments[young].writers.clear()
        del segments.segments[old]
        async with opened(segments, clock) as later:
            await erase(later, "e3", [20])
            await later.erasures.feed.run()
        assert numbers(segments) == [2, 3]

    play(scene)


def test_a_restored_copy_continues_in_new_segments_with_the_next_receipt() -> None:
    async def scene(controller: Controller, segments: Blanking, clock: FakeClock) -> None:
        await erase(controller, "e1", [0])
        await controller.erasures.feed.run()
        await begin_restored(controller._ctx, 1 << 10)
        await erase(controller, "e2", [10])
        await controller.erasures.feed.run()
        assert numbers(segments) == [1, 2]
        assert len(feed_segments(segments)) == 2

    play(scene)


def test_a_crash_before_the_number_is_noted_does_not_repeat_an_event_in_a_new_segment() -> None:
    async def scene(controller: Controller, segments: Blanking, clock: FakeClock) -> None:
        await erase(controller, "e1", [0])
        await controller.erasures.feed.run()
        del segments.tables[keys.TABLE].entries[keys.ERASURE_FEED]
        await begin_restored(controller._ctx, 1 << 10)
        async with opened(segments, clock) as later:
            await erase(later, "e2", [10])
            await later.erasures.feed.run()
        assert numbers(segments) == [1, 2]

    play(scene)


def lose_segment(segments: Blanking) -> None:
    (name,) = feed_segments(segments)
    del segments.segments[name]


def seal_stream(segments: Blanking) -> None:
    table = segments.tables[keys.TABLE].entries
    value, version = table[keys.stream(ERASURE_FEED)]
    record = StreamRecord.decode(value)
    object.__setattr__(record, "state", StreamState.SEALED)
    table[keys.stream(ERASURE_FEED)] = record.encode(), version
    (name,) = feed_segments(segments)
    segments.segments[name].sealed = True


def break_record(segments: Blanking) -> None:
    table = segments.tables[keys.TABLE].entries
    table[keys.stream(ERASURE_FEED)] = b"rotten", table[keys.stream(ERASURE_FEED)][1]


@pytest.mark.parametrize("harm", [lose_segment, seal_stream, break_record])
def test_no_damage_of_the_feed_stops_an_erasure(harm: Callable[[Blanking], None]) -> None:
    async def scene(controller: Controller, segments: Blanking, clock: FakeClock) -> None:
        await erase(controller, "e1", [0])
        await controller.erasures.feed.run()
        before = copy.deepcopy((segments.segments, segments.tables[keys.TABLE].entries[keys.stream(ERASURE_FEED)]))
        harm(segments)
        async with opened(segments, clock) as later:
            for number in (2, 3):
                await erase(later, f"e{number}", [10 * number])
                assert (await later.erasures.get(f"e{number}")).receipt is not None
            await later.sweep()
            # Repaired: the feed has what it lacked.
            name = f"{ERASURE_FEED}/"
            segments.segments.update({key: item for key, item in before[0].items() if key.startswith(name)})
            segments.tables[keys.TABLE].entries[keys.stream(ERASURE_FEED)] = before[1]
        async with opened(segments, clock) as repaired:
            await repaired.erasures.feed.run()
        assert numbers(segments) == [1, 2, 3]

    play(scene)


def test_a_receipt_whose_records_cannot_be_read_has_an_event_with_what_is_known() -> None:
    async def scene(controller: Controller, segments: Blanking, clock: FakeClock) -> None:
        feed = controller.erasures.feed
        feed.soon = lambda: None  # type: ignore[method-assign]
        for number in (1, 2, 3):
            await erase(controller, f"e{number}", [10 * number])
        table = segments.tables[keys.TABLE].entries
        table[keys.erasure("e1")] = b"rotten", table[keys.erasure("e1")][1]
        for key in [key for key in table if key.startswith(keys.erasure_parts("e2"))]:
            table[key] = b"rotten", table[key][1]
        assert await feed.run() == 3
        first, second, third = events(segments)
        assert (first["n"], first["erasure"], first["stream"]) == (1, None, None)
        assert (second["erasure"], second["events"], second["segments"]) == ("e2", 1, None)
        assert third["segments"] == [{"segment": ONE, "events": [[30, 40]], "gone": False}]

    play(scene)


def test_an_erasure_of_very_many_events_has_a_pointer_in_place_of_positions() -> None:
    async def scene(controller: Controller, segments: Blanking, clock: FakeClock) -> None:
        await erase(controller, "near", list(range(0, 90_000, 10)))  # 9,000 adjacent events are one range
        await erase(controller, "far", list(range(0, 90_000, 20)))
        await controller.erasures.feed.run()
        near, far = events(segments)
        assert near["segments"] == [{"segment": ONE, "events": [[0, 90_000]], "gone": False}]
        assert (far["segments"], far["events"]) == (None, 4500)

    play(scene)


def test_nobody_can_guess_a_value_from_an_event() -> None:
    value = "ann@example.com"
    digest = values_digest([value.encode()])

    async def scene(controller: Controller, segments: Blanking, clock: FakeClock) -> None:
        await erase(controller, "e1", [0], by="json field", field="user", values_sha256=digest, case="c1")
        await controller.erasures.feed.run()
        record = ErasureRecord.decode(segments.tables[keys.TABLE].entries[keys.erasure("e1")][0])
        assert record.receipt is not None
        assert record.request is not None
        assert record.receipt["looked_for"]["values_sha256"] == digest
        data = feed_bytes(segments)
        secrets = (value, digest, hashlib.sha256(value.encode()).hexdigest())
        for text in (*secrets, record.receipt["sha256"], record.request["sha256"]):
            assert text.encode() not in data
        # Any caller can name a case; only the case's own record shows that it has asked.
        assert events(segments)[0]["case"] is None

    play(scene)


def test_clients_can_neither_seal_nor_delete_the_feed() -> None:
    async def scene(controller: Controller, segments: Blanking, clock: FakeClock) -> None:
        await erase(controller, "e1", [0])
        await controller.erasures.feed.run()
        for call in (controller.streams.seal, controller.streams.delete):
            with pytest.raises(InvalidArgumentError, match="it can only be read"):
                await call(ERASURE_FEED)

    play(scene)


def test_events_are_kept_as_long_as_audit_entries_unless_the_operator_sets_another_age() -> None:
    async def maximum_ms(controller: Controller) -> int:
        return (await controller._ctx.streams.get(ERASURE_FEED)).record.config.retention.maximum

    async def scene(controller: Controller, segments: Blanking, clock: FakeClock) -> None:
        await erase(controller, "e1", [0])
        await controller.erasures.feed.run()
        assert await maximum_ms(controller) == QUIET.audit_max_age_ms
        with pytest.raises(InvalidArgumentError):
            await controller.policies.set(ERASURE_FEED, PolicyDocument(retain=Retain(max_bytes=1)))
        ages = Retain(min_age_s=2 * 86_400, max_age_s=2 * 86_400)
        await controller.policies.set(ERASURE_FEED, PolicyDocument(retain=ages))
        async with opened(segments, clock) as later:
            await erase(later, "e2", [10])
            await later.erasures.feed.run()
            effective = await later.policies.effective(ERASURE_FEED)
            assert effective.max_age_ms == 2 * 86_400_000
            await later.policies.set(ERASURE_FEED, PolicyDocument())
            assert await maximum_ms(later) == QUIET.audit_max_age_ms

    play(scene)


def test_the_number_of_the_last_event_is_noted() -> None:
    async def scene(controller: Controller, segments: Blanking, clock: FakeClock) -> None:
        await erase(controller, "e1", [0])
        await controller.erasures.feed.run()
        noted = CounterRecord.decode(segments.tables[keys.TABLE].entries[keys.ERASURE_FEED][0])
        (name,) = feed_segments(segments)
        assert noted.value == segments.segments[name].writers[WRITER] == 1
        assert json.loads(next(iter(split_events(feed_bytes(segments)))))["n"] == 1

    play(scene)
