"""Four eyes for erasures, cases of erasure, and key-value tables."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from approval_world import DAY_MS, Call, at_once, by, requested
from blanking import Blanking
from controller_world import STREAM, audit_entries, config, name_of, opened, seg, with_stream
from hypothesis import given
from hypothesis import strategies as st
from memory_segments import MemorySegments

from penstock.codec.events import frame_events
from penstock.controller import keys
from penstock.controller.controller import Controller
from penstock.core.cases.case import EVERYTHING, concerns, level_of, overlaps
from penstock.model.errors import (
    ApprovalRequiredError,
    ConflictError,
    CorruptDataError,
    NotFoundError,
    PenstockError,
    TableNotFoundError,
)
from penstock.model.names import StreamName, table_segment_name
from penstock.ports.control.tables import TableConfig
from penstock.ports.data.tables import TABLE_BATCH_MAX
from penstock.testing.fakes import FakeClock

SEGMENT = seg(0, 0)
ASKED = {"erasure": "e", "who": "ann", "why": "request 17", "looked_for": {"by": "positions"}}
CASE: dict[str, Any] = {
    "targets": ["s"], "subject": {"by": "payload contains", "values": ["ann@x"]}, "who": "ann", "why": "request 17",
}  # fmt: skip
TABLE = TableConfig(partitions=1, primary_key_bytes=4, secondary_key_bytes=0, rollover_bytes=0)

ERASE: Call = lambda c: c.erasures.erase(STREAM, ASKED, {SEGMENT: [0]})  # noqa: E731
OPEN: Call = lambda c: c.cases.open("c", **CASE)  # noqa: E731
DELETE_TABLE: Call = lambda c: c.tables.delete("s", "t")  # noqa: E731


async def prepared(controller: Controller, segments: MemorySegments, level: Any = "s") -> None:
    segments.write(name_of(SEGMENT), frame_events([b"of ann@x"]))
    await controller.tables.create("s", "t", TABLE)
    with by("al"):
        await controller.approvals.require(level, ["erase", "delete"])


async def state_of(controller: Controller, action: str) -> str:
    """How far the erasure, the case or the deletion is."""
    try:
        if action == "erase":
            return (await controller.erasures.get("e")).state
        if action == "open":
            return (await controller.cases.get("c")).state
        await controller.tables.get("s", "t")
    except NotFoundError:
        return "none"
    return "there"


CALLS = {"erase": ERASE, "open": OPEN, "table": DELETE_TABLE}
BEFORE = {"erase": "requested", "open": "requested", "table": "there"}
AFTER = {"erase": {"asked", "done"}, "open": {"open", "performed", "verified"}, "table": {"none"}}


@pytest.mark.parametrize("level", [None, "s", STREAM])
@pytest.mark.parametrize("action", CALLS)
@at_once
async def test_an_erasure_is_performed_once_another_identity_has_approved_it(action: str, level: Any) -> None:
    if action == "table" and level == STREAM:
        return  # A table belongs to no stream.
    segments = Blanking()
    async with with_stream(segments, 1) as controller:
        await prepared(controller, segments, level)
        request = await requested(controller, CALLS[action])
        assert await requested(controller, CALLS[action]) == request
        await controller.cases.run_once()
        assert await state_of(controller, action) == BEFORE[action]
        with by("bea"):
            assert (await controller.approvals.approve(request)).state == "executed"
        assert await state_of(controller, action) in AFTER[action]
        entries = await audit_entries(controller, segments, "approval")
        mine = [entry for entry in entries if entry.get("request") == request]
        assert [entry["state"] for entry in mine] == ["requested", "approved", "executed"]
        assert "ann@x" not in str(entries)
        with by("al"), suppress(TableNotFoundError):
            await CALLS[action](controller)  # a repeat of what is done needs no other approval


@pytest.mark.parametrize("action", CALLS)
@at_once
async def test_an_approved_erasure_is_performed_exactly_once_despite_a_crash_at_every_call(action: str) -> None:
    at = 1
    while True:
        segments = Blanking()
        async with with_stream(segments, 1) as controller:
            await prepared(controller, segments)
            request = await requested(controller, CALLS[action])
            segments.mutations, segments.fail_at = 0, at
            with by("bea"), suppress(PenstockError):
                await controller.approvals.approve(request)
            reached = segments.mutations
        segments.fail_at, segments.offline = None, False
        async with opened(segments) as controller:
            await controller.sweep()
            found = await controller.approvals.get(request)
            if found.state == "requested":
                with by("bea"):
                    found = await controller.approvals.approve(request)
            assert found.state == "executed", at
            assert await state_of(controller, action) in AFTER[action]
        if reached < at:
            return
        at += 1


@at_once
async def test_an_erasure_that_has_changed_since_its_request_is_not_approved() -> None:
    segments = Blanking()
    async with with_stream(segments, 1) as controller:
        await prepared(controller, segments)
        segments.write(name_of(SEGMENT), frame_events([b"another"]))
        first = await requested(controller, ERASE)
        other: Call = lambda c: c.erasures.erase(STREAM, ASKED, {SEGMENT: [0, 16]})  # noqa: E731
        second = await requested(controller, other)
        with by("bea"), pytest.raises(ConflictError, match="has changed"):
            await controller.approvals.approve(first)
        assert (await controller.approvals.get(second)).arguments["events"] == 2
        await controller.erasures.withdraw("e", who="ann", why="wrong person")
        with by("bea"), pytest.raises(ConflictError, match="has changed"):
            await controller.approvals.approve(second)
        assert await state_of(controller, "erase") == "withdrawn"


@at_once
async def test_no_client_deletes_a_segment_of_a_table_that_needs_approval() -> None:
    segments = Blanking()
    async with with_stream(segments, 1) as controller:
        name = table_segment_name(StreamName("s", "t"), 0)
        async with controller.client_removal(name, None):
            pass
        await prepared(controller, segments)
        with pytest.raises(ApprovalRequiredError):
            async with controller.client_removal(name, None):
                raise AssertionError


@at_once
async def test_a_table_made_again_needs_another_approval() -> None:
    segments = Blanking()
    async with with_stream(segments, 1) as controller:
        await prepared(controller, segments)
        request = await requested(controller, DELETE_TABLE)
        again = await requested(controller, DELETE_TABLE)
        with by("bea"):
            await controller.approvals.approve(again)
        await controller.tables.create("s", "t", TABLE)
        assert await requested(controller, DELETE_TABLE) != request


@pytest.mark.parametrize("end", ["refuse", "withdraw", "expire"])
@at_once
async def test_a_case_whose_request_ends_without_approval_leaves_nothing(end: str) -> None:
    segments, clock = Blanking(), FakeClock()
    async with with_stream(segments, 1, clock) as controller:
        await prepared(controller, segments)
        request = await requested(controller, OPEN)
        if end == "expire":
            clock.ms += 8 * DAY_MS
        else:
            with by("bea" if end == "refuse" else "al"):
                await getattr(controller.approvals, end)(request, why="no")
        await controller.cases.run_once()
        assert await state_of(controller, "open") == "none"
        assert await requested(controller, OPEN) != request


@at_once
async def test_a_case_withdrawn_before_its_approval_is_not_opened() -> None:
    segments = Blanking()
    async with with_stream(segments, 1) as controller:
        await prepared(controller, segments)
        request = await requested(controller, OPEN)
        await controller.cases.withdraw("c", who="ann", why="wrong person")
        with by("bea"), pytest.raises(ConflictError, match="has changed"):
            await controller.approvals.approve(request)


@at_once
async def test_without_an_identity_no_case_waits() -> None:
    segments = Blanking()
    async with with_stream(segments, 1) as controller:
        await prepared(controller, segments)
        with pytest.raises(ApprovalRequiredError):
            await OPEN(controller)
        assert await state_of(controller, "open") == "none"


@at_once
async def test_a_refused_call_of_another_caller_leaves_the_case_that_waits() -> None:
    segments = Blanking()
    async with with_stream(segments, 1) as controller:
        await prepared(controller, segments)
        request = await requested(controller, OPEN)
        with pytest.raises(ApprovalRequiredError):
            await OPEN(controller)
        other = await requested(controller, OPEN, who="cleo")
        with by("cleo"):
            await controller.approvals.withdraw(other)
        await controller.cases.run_once()
        with by("bea"):
            assert (await controller.approvals.approve(request)).state == "executed"


def spoil(segments: MemorySegments, key: bytes) -> None:
    entries = segments.tables[keys.TABLE].entries
    entries[key] = (b"\x00", entries[key][1])


@at_once
async def test_a_damaged_request_for_approval_stops_no_other_case() -> None:
    segments = Blanking()
    async with with_stream(segments, 1) as controller:
        await prepared(controller, segments)
        spoil(segments, keys.approval(await requested(controller, OPEN)))
        other = await requested(controller, lambda c: c.cases.open("d", **CASE))
        with by("al"):
            await controller.approvals.withdraw(other)
        await controller.cases.run_once()
        assert await state_of(controller, "open") == "requested"
        with pytest.raises(NotFoundError):
            await controller.cases.get("d")


@pytest.mark.parametrize("level", ["s", STREAM])
@at_once
async def test_a_rule_that_cannot_be_read_lets_no_case_pass(level: Any) -> None:
    segments = Blanking()
    async with with_stream(segments, 1) as controller:
        await prepared(controller, segments, level)
        spoil(segments, keys.approval_rule(str(level)))
        with by("al"), pytest.raises(CorruptDataError):
            await OPEN(controller)
        assert await state_of(controller, "open") == "none"


@pytest.mark.parametrize("level", [None, "s", STREAM])
@at_once
async def test_a_rule_set_while_a_case_is_opened_applies_to_it(level: Any) -> None:
    segments = Blanking()
    async with with_stream(segments, 1) as controller:
        segments.write(name_of(SEGMENT), frame_events([b"of ann@x"]))
        gate, puts = controller.approvals, controller.approvals.puts

        async def late(*given: Any, **named: Any) -> Any:
            found = await puts(*given, **named)
            gate.puts = puts
            with by("dan"):
                await gate.require(level, ["erase"])
            return found

        gate.puts = late
        await requested(controller, OPEN)
        assert await state_of(controller, "open") == "requested"


@at_once
async def test_a_case_is_opened_however_many_rules_cover_it() -> None:
    segments = Blanking()
    async with with_stream(segments, 1) as controller:
        await prepared(controller, segments, STREAM)
        for number in range(TABLE_BATCH_MAX):
            name = StreamName("s", f"n{number}")
            await controller.streams.create(name, config())
            with by("al"):
                await controller.approvals.require(name, ["erase"])
        request = await requested(controller, OPEN)
        with by("bea"):
            assert (await controller.approvals.approve(request)).state == "executed"


@at_once
async def test_an_erasure_that_waits_for_approval_outlives_a_day_and_not_its_request() -> None:
    segments, clock = Blanking(), FakeClock()
    async with with_stream(segments, 1, clock) as controller:
        await prepared(controller, segments)
        request = await requested(controller, ERASE)
        clock.ms += 6 * DAY_MS
        await controller.sweep()
        with by("bea"):
            assert (await controller.approvals.approve(request)).state == "executed"
        other: Call = lambda c: c.erasures.erase(STREAM, {**ASKED, "erasure": "f"}, {SEGMENT: [0]})  # noqa: E731
        await requested(controller, other)
        clock.ms += 9 * DAY_MS
        await controller.sweep()
        with pytest.raises(NotFoundError):
            await controller.erasures.get("f")


TARGETS = st.lists(st.sampled_from([EVERYTHING, "s", "r", "s/a", "s/b", "r/a"]), min_size=1, max_size=3, unique=True)
STREAMS = [StreamName("s", "a"), StreamName("s", "b"), StreamName("r", "a")]


@given(targets=TARGETS)
def test_a_rule_applies_to_a_case_exactly_if_it_applies_to_one_of_its_streams(targets: list[str]) -> None:
    covered = [name for name in STREAMS if concerns(targets, name)]
    for level in ("", "s", "r", *map(str, STREAMS)):
        meets = any(level in ("", name.scope, str(name)) for name in covered)
        assert overlaps(targets, level) == meets, level
    decides = level_of(targets)
    assert all(decides in (None, name.scope, name) for name in covered)
