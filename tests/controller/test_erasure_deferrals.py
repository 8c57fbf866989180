"""Marks of erasures: what a hold defers, what was given up, what a crash left, as time goes by."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from blanking import ONE, Blanking, ask_for_erasure
from controller_world import STREAM, audit_entries, name_of, opened, with_stream

from penstock.codec.control.erasures import Deferral, ErasureMarkRecord, ErasureRecord, ErasureState
from penstock.controller import keys
from penstock.controller.controller import Controller
from penstock.controller.metadata import overwrite
from penstock.model.callers import Caller, calling
from penstock.model.errors import CorruptDataError, NotFoundError
from penstock.testing.fakes import FakeClock

DAY_MS = 24 * 3600 * 1000


def play(scene: Callable[[Controller, Blanking, FakeClock], Awaitable[None]]) -> None:
    async def work() -> None:
        segments, clock = Blanking(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            segments.write(name_of(ONE), b"x" * 100)
            await scene(controller, segments, clock)

    asyncio.run(work())


async def state_of(controller: Controller) -> str:
    return str((await controller.erasures.get("e1")).state)


async def done(controller: Controller) -> None:
    while await state_of(controller) != "done":
        await asyncio.sleep(0)


async def page(controller: Controller) -> None:
    run = {"attempt": "a", "events": 1, "positions_sha256": "0" * 64}
    asked = {"erasure": "e1", "who": "a", "why": "b", "looked_for": {}, "run": run}
    await controller.erasures.erase(STREAM, asked, {ONE: [0]}, page=0, last=False)


def test_a_deferred_erasure_continues_when_its_hold_expires() -> None:
    async def scene(controller: Controller, segments: Blanking, clock: FakeClock) -> None:
        await controller.holds.add(STREAM, owner="o", reason="r", hold_id="h", until_ms=clock.ms + 5000)
        await ask_for_erasure(controller)
        clock.ms += 4000
        await controller.sweep()
        assert await state_of(controller) == "deferred"
        clock.ms += 2000
        await controller.sweep()
        await done(controller)
        kinds = [entry["kind"] for entry in await audit_entries(controller, segments)]
        assert kinds == ["hold", "erase_deferred", "unhold", "erase_continued", "erase"]

    play(scene)


def test_a_deferral_is_kept_however_long_the_hold_lasts() -> None:
    async def scene(controller: Controller, segments: Blanking, clock: FakeClock) -> None:
        await controller.holds.add(STREAM, owner="o", reason="r", hold_id="h")
        await ask_for_erasure(controller)
        since_ms = clock.ms
        clock.ms += 400 * DAY_MS
        await controller.sweep()
        async with opened(segments, clock) as later:
            assert (await later.erasures.get("e1")).deferred.since_ms == since_ms
            await later.holds.release("h", owner="o")
            await done(later)

    play(scene)


def test_pages_that_are_never_completed_are_forgotten_after_a_day_of_a_running_store() -> None:
    async def scene(controller: Controller, segments: Blanking, clock: FakeClock) -> None:
        await page(controller)
        clock.ms += DAY_MS - 1000
        await controller.sweep()
        assert await state_of(controller) == "gathering"
        clock.ms += 2000
        await controller.sweep()
        with pytest.raises(NotFoundError):
            await controller.erasures.get("e1")
        rows = segments.tables[keys.TABLE].entries
        assert [key for key in rows if key.startswith(b"erasure")] == []

    play(scene)


def test_a_receipt_is_kept_when_a_crash_left_the_mark_of_its_erasure() -> None:
    async def scene(controller: Controller, segments: Blanking, clock: FakeClock) -> None:
        await ask_for_erasure(controller)
        await done(controller)
        receipt = (await controller.erasures.get("e1")).receipt
        while keys.erasure_mark("e1") in segments.tables[keys.TABLE].entries:
            await asyncio.sleep(0)
        await controller._ctx.metadata.put(overwrite(keys.erasure_mark("e1"), ErasureMarkRecord()))
        clock.ms += 2 * DAY_MS
        await controller._ctx.retention_clock.record()
        async with opened(segments, clock) as later:
            assert (await later.erasures.get("e1")).receipt == receipt
            assert keys.erasure_mark("e1") not in segments.tables[keys.TABLE].entries

    play(scene)


def test_the_caller_that_ends_a_hold_is_not_named_as_the_one_that_erases() -> None:
    async def scene(controller: Controller, segments: Blanking, clock: FakeClock) -> None:
        await controller.holds.add(STREAM, owner="o", reason="r", hold_id="h")
        with calling(Caller(who="ann")):
            await ask_for_erasure(controller)
        with calling(Caller(who="bob")):
            await controller.holds.release("h", owner="o")
            await done(controller)
        callers = {
            entry["kind"]: entry.get("caller", {}).get("who") for entry in await audit_entries(controller, segments)
        }
        assert (callers["erase_deferred"], callers["unhold"]) == ("ann", "bob")
        assert (callers["erase_continued"], callers["erase"]) == (None, None)

    play(scene)


def test_a_repeated_request_is_not_named_for_the_end_of_the_hold_that_it_finds() -> None:
    async def scene(controller: Controller, segments: Blanking, clock: FakeClock) -> None:
        await controller.holds.add(STREAM, owner="o", reason="r", hold_id="h", until_ms=clock.ms + 5000)
        await ask_for_erasure(controller)
        clock.ms += 6000
        with calling(Caller(who="bob")):
            await ask_for_erasure(controller)
        await done(controller)
        (entry,) = await audit_entries(controller, segments, "erase_continued")
        assert "caller" not in entry

    play(scene)


HOLD = {"hold": "h", "owner": "o", "reason": "r", "until_ms": None}
DIGEST = {"events": 1, "positions_sha256": "0" * 64, "sha256": "1" * 64}
WITHDRAWAL = {"who": "a", "why": "b", "at_ms": 3}


def test_records_of_erasures_with_fields_that_are_not_known_are_listed() -> None:
    async def scene(controller: Controller, segments: Blanking, clock: FakeClock) -> None:
        later = {"later": 2**70}
        record = ErasureRecord(
            stream=str(STREAM),
            incarnation=0,
            state=ErasureState.WITHDRAWN,
            asked={},
            asked_ms=1,
            request=DIGEST | later,
            deferred=Deferral(holds=[HOLD | later], count=1, since_ms=2, ends={}),
            withdrawn=WITHDRAWAL | later,
        )
        assert ErasureRecord.decode(record.encode()) == record
        await controller._ctx.metadata.put(overwrite(keys.erasure("e2"), record))
        (found,) = await controller.erasures.list()
        assert msgspec.to_builtins(found.request) == DIGEST
        assert msgspec.to_builtins(found.deferred.holds) == [HOLD]
        assert msgspec.to_builtins(found.withdrawn) == WITHDRAWAL

    play(scene)


@pytest.mark.parametrize("field", ["request", "withdrawn", "holds"])
def test_a_record_of_an_erasure_that_lacks_a_field_is_damaged(field: str) -> None:
    record = ErasureRecord(
        stream=str(STREAM),
        incarnation=0,
        state=ErasureState.WITHDRAWN,
        asked={},
        asked_ms=1,
        request={"events": 1} if field == "request" else DIGEST,
        deferred=Deferral(holds=[{"hold": "h"} if field == "holds" else HOLD], count=1, since_ms=2, ends={}),
        withdrawn={"who": "a"} if field == "withdrawn" else WITHDRAWAL,
    )
    with pytest.raises(CorruptDataError):
        ErasureRecord.decode(record.encode())


def test_an_erasure_that_cannot_be_resumed_stops_no_other() -> None:
    async def scene(controller: Controller, segments: Blanking, clock: FakeClock) -> None:
        await controller.holds.add(STREAM, owner="o", reason="r", hold_id="h")
        await ask_for_erasure(controller)
        rows: Any = segments.tables[keys.TABLE].entries
        rows[keys.erasure_mark("a0")] = rows[keys.erasure_mark("e1")]
        value, version = rows[keys.erasure("e1")]
        rows[keys.erasure("a0")] = (value.replace(b'"s/t"', b'"s!t"'), version)
        controller.holds._ended = lambda: None  # type: ignore[method-assign]
        await controller.holds.release("h", owner="o")
        await controller.sweep()
        await done(controller)

    play(scene)
