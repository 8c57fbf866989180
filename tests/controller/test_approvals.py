"""Four eyes in the controller: requested by one, approved by another, performed once."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from approval_world import DAY_MS, Call, at_once, by, requested
from controller_world import STREAM, audit_entries, config, cut_at, name_of, opened, seg, with_stream
from memory_segments import MemorySegments

from penstock.controller.controller import Controller
from penstock.model.errors import (
    ApprovalRequiredError,
    ConflictError,
    InvalidArgumentError,
    NotFoundError,
    PenstockError,
    PermissionDeniedError,
    RetentionHoldError,
    StreamNotFoundError,
    UnavailableError,
)
from penstock.model.identity import Action, Grant
from penstock.model.policies import RetentionPolicy, RetentionType
from penstock.model.retention import PolicyDocument, Retain
from penstock.net.native.calls import control_calls
from penstock.testing.fakes import FakeClock

SEGMENT = seg(0, 0)
NAME = name_of(SEGMENT)
ALL = ("delete", "erase", "release", "shorten", "truncate")
KEEPS = PolicyDocument(retain=Retain(min_age_s=1000))
SHORT = PolicyDocument(retain=Retain(min_age_s=1))


async def prepared(controller: Controller, segments: MemorySegments, level: Any = "s") -> None:
    segments.write(NAME, b"x" * 30)
    await controller.policies.set(STREAM, KEEPS)
    await controller.holds.add("s", owner="legal", reason="case", hold_id="h", cut=None)
    await controller.holds.release("h", owner="legal")
    with by("al"):
        await controller.approvals.require(level, ALL)


TRUNCATE: Call = lambda c: c.streams.truncate(STREAM, cut_at({SEGMENT: 10}))  # noqa: E731
DELETE: Call = lambda c: c.streams.delete(STREAM, seal=True)  # noqa: E731
CASES: dict[str, Call] = {
    "truncate": TRUNCATE,
    "delete": DELETE,
    "shorter policy": lambda c: c.policies.set(STREAM, SHORT),
    "shorter policy of pravega": lambda c: c.streams.update(
        STREAM, config(retention=RetentionPolicy(type=RetentionType.TIME, minimum=1000))
    ),
    "less that needs approval": lambda c: c.approvals.require("s", ["delete"]),
    "shorter policy of the scope": lambda c: c.policies.set("s", PolicyDocument(retain=Retain(max_bytes=5))),
}


async def state(controller: Controller) -> tuple[object, ...]:
    """What the cases change."""
    try:
        head: object = dict((await controller.cuts.head(STREAM)).positions)
        own: object = await controller.policies.get(STREAM)
    except StreamNotFoundError:
        head = own = None
    return head, own, await controller.policies.get("s"), await controller.approvals.required("s")


@pytest.mark.parametrize("case", CASES)
@at_once
async def test_an_action_is_performed_once_another_identity_approves_it(case: str) -> None:
    segments, clock = MemorySegments(), FakeClock()
    async with with_stream(segments, 1, clock) as controller:
        await prepared(controller, segments)
        before = await state(controller)
        request = await requested(controller, CASES[case])
        assert await requested(controller, CASES[case]) == request  # the same request again is one request
        assert await state(controller) == before
        with by("al"), pytest.raises(PermissionDeniedError):
            await controller.approvals.approve(request)
        with by("bea", *(set(Action) - {Action.APPROVE})), pytest.raises(PermissionDeniedError):
            await controller.approvals.approve(request)
        with pytest.raises(InvalidArgumentError, match="verified identity"):
            await controller.approvals.approve(request)
        assert await state(controller) == before
        with by("bea"):
            found = await controller.approvals.approve(request, why="checked")
        assert (found.state, found.requested_by, found.decided_by, found.why) == ("executed", "al", "bea", "a reason")
        after = await state(controller)
        assert after != before
        with by("bea"):
            assert (await controller.approvals.approve(request)).state == "executed"
        with by("cleo"), pytest.raises(ConflictError):
            await controller.approvals.approve(request)
        assert await state(controller) == after
        entries = await audit_entries(controller, segments, "approval")
        mine = [entry for entry in entries if entry.get("request") == request]
        assert [entry["state"] for entry in mine] == ["requested", "approved", "executed"]
        assert (mine[-1]["requested_by"], mine[-1]["decided_by"]) == ("al", "bea")


@at_once
async def test_a_hold_is_released_only_with_approval_and_a_new_one_needs_another() -> None:
    segments = MemorySegments()
    async with with_stream(segments, 1) as controller:
        await prepared(controller, segments, None)
        await controller.holds.add(STREAM, owner="legal", reason="case", hold_id="h")
        release: Call = lambda c: c.holds.release("h", owner="legal")  # noqa: E731
        request = await requested(controller, release)
        await controller.holds.extend("h", owner="legal", until_ms=None)
        with by("bea"):
            assert (await controller.approvals.approve(request)).state == "executed"
        assert await controller.holds.list() == ()
        await controller.holds.add(STREAM, owner="legal", reason="another case", hold_id="h")
        assert await requested(controller, release) != request


@at_once
async def test_nothing_is_approved_once_what_it_depends_on_has_changed() -> None:
    segments = MemorySegments()
    async with with_stream(segments, 1) as controller:
        await prepared(controller, segments)
        request = await requested(controller, TRUNCATE)
        longer = PolicyDocument(retain=Retain(min_age_s=2000))
        await controller.policies.set(STREAM, longer)
        with by("bea"), pytest.raises(ConflictError, match="has changed"):
            await controller.approvals.approve(request)
        assert (await controller.cuts.head(STREAM)).positions == {SEGMENT: 0}
        again = await requested(controller, TRUNCATE)
        assert again != request
        with by("bea"):
            assert (await controller.approvals.approve(again)).state == "executed"


@at_once
async def test_an_approval_of_a_stream_is_none_of_another_stream_of_its_name() -> None:
    segments = MemorySegments()
    async with with_stream(segments, 1) as controller:
        await prepared(controller, segments)
        request, delete = await requested(controller, TRUNCATE), await requested(controller, DELETE)
        with by("bea"):
            assert (await controller.approvals.approve(delete)).state == "executed"
        await controller.streams.create(STREAM, config(1))
        with by("bea"), pytest.raises(ConflictError):
            await controller.approvals.approve(request)


@at_once
async def test_a_hold_placed_before_the_execution_wins_and_the_request_has_failed() -> None:
    segments = MemorySegments()
    async with with_stream(segments, 1) as controller:
        await prepared(controller, segments)
        request = await requested(controller, DELETE)
        await controller.holds.add(STREAM, owner="legal", reason="case")
        with by("bea"):
            found = await controller.approvals.approve(request)
        assert found.state == "failed"
        assert "a hold forbids the deletion" in found.failure
        await controller.sweep()
        with by("al"), pytest.raises(RetentionHoldError):
            await DELETE(controller)


@at_once
async def test_a_request_is_refused_withdrawn_or_expires() -> None:
    segments, clock = MemorySegments(), FakeClock()
    async with with_stream(segments, 1, clock) as controller:
        await prepared(controller, segments)
        first = await requested(controller, TRUNCATE)
        with by("al"), pytest.raises(PermissionDeniedError):
            await controller.approvals.refuse(first, why="no")
        with by("bea"):
            assert (await controller.approvals.refuse(first, why="no")).state == "refused"
        second = await requested(controller, TRUNCATE)
        with by("bea"), pytest.raises(PermissionDeniedError):
            await controller.approvals.withdraw(second)
        with by("al"):
            assert (await controller.approvals.withdraw(second)).state == "withdrawn"
        third = await requested(controller, TRUNCATE)
        clock.ms += 7 * DAY_MS
        for request in (first, second, third):
            with by("bea"), pytest.raises(ConflictError, match="has ended"):
                await controller.approvals.approve(request)
        await controller.sweep()
        assert sorted(item.state for item in await controller.approvals.list()) == ["expired", "refused", "withdrawn"]
        states = [entry["state"] for entry in await audit_entries(controller, segments, "approval")]
        assert states[-1] == "expired"
        clock.ms += 31 * DAY_MS
        await controller.sweep()
        assert await controller.approvals.list() == []
        with pytest.raises(NotFoundError):
            await controller.approvals.get(first)


@at_once
async def test_without_an_identity_nothing_is_requested_and_nothing_can_need_approval() -> None:
    segments = MemorySegments()
    async with with_stream(segments, 1) as controller:
        with pytest.raises(InvalidArgumentError, match="verified identities"):
            await controller.approvals.require("s", ALL)
        await prepared(controller, segments)
        with pytest.raises(ApprovalRequiredError) as caught:
            await TRUNCATE(controller)
        assert "request" not in caught.value.fields
        with pytest.raises(ApprovalRequiredError):
            async with controller.client_removal(NAME, 10):
                raise AssertionError
        assert await controller.approvals.list() == []
        await controller.policies.set(STREAM, PolicyDocument(retain=Retain(min_age_s=2000)))  # longer needs none


class Rights:
    """The rights that identities have now."""

    def __init__(self) -> None:
        self.now: dict[str, tuple[Grant, ...] | None] = {}

    def grants_of(self, name: str, proof: str) -> tuple[Grant, ...] | None:
        assert proof == "password"
        return self.now.get(name, (Grant("/", frozenset(Action)),))


@pytest.mark.parametrize("case", CASES)
@at_once
async def test_nothing_is_performed_for_a_requester_that_has_lost_the_right(case: str) -> None:
    segments, rights = MemorySegments(), Rights()
    async with with_stream(segments, 1) as controller:
        await prepared(controller, segments)
        controller.use_rights(rights)
        before = await state(controller)
        request = await requested(controller, CASES[case])
        rights.now["al"] = (Grant("/", frozenset({Action.READ, Action.AUDIT, Action.APPROVE})),)
        with by("bea"), pytest.raises(ConflictError, match="lost the right"):
            await controller.approvals.approve(request)
        rights.now["al"] = ()  # removed
        with by("bea"), pytest.raises(ConflictError, match="lost the right"):
            await controller.approvals.approve(request)
        assert await state(controller) == before
        rights.now["al"] = None  # not listed: the identity of a provider
        with by("bea"):
            assert (await controller.approvals.approve(request)).state == "executed"


@at_once
async def test_a_right_that_is_lost_before_a_repeated_execution_ends_the_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    segments, rights = MemorySegments(), Rights()
    async with with_stream(segments, 1) as controller:
        await prepared(controller, segments)
        controller.use_rights(rights)
        before = await state(controller)
        request = await requested(controller, TRUNCATE)

        async def later(*_: object) -> None:
            raise UnavailableError("the store has no time now")

        with monkeypatch.context() as busy:
            busy.setattr(controller.approvals, "_perform", later)
            with by("bea"):
                assert (await controller.approvals.approve(request)).state == "approved"
        rights.now["al"] = ()
        await controller.sweep()
        found = await controller.approvals.get(request)
        assert found.state == "failed"
        assert "lost the right" in found.failure
        assert await state(controller) == before


@at_once
async def test_one_requester_with_too_many_requests_keeps_no_other_from_requesting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.core.policies.approvals.PENDING_HERE", 3)
    segments = MemorySegments()
    async with with_stream(segments, 1) as controller:
        await prepared(controller, segments)

        def cut(at: int) -> Call:
            return lambda c: c.streams.truncate(STREAM, cut_at({SEGMENT: at}))

        for at in range(1, 4):
            await requested(controller, cut(at))
        with by("al"), pytest.raises(ApprovalRequiredError, match="too many requests") as caught:
            await cut(4)(controller)
        assert caught.value.fields["limit"] == 3
        assert await requested(controller, cut(4), who="cleo")
        with by("al"):
            await controller.approvals.withdraw((await controller.approvals.list())[0].id)
        assert await requested(controller, cut(4))


@at_once
async def test_withdrawn_requests_have_a_bound_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.controller.protection.approvals.WITHDRAWN_OF_ONE", 3)
    segments, clock = MemorySegments(), FakeClock()
    async with with_stream(segments, 1, clock) as controller:
        await prepared(controller, segments)
        for _ in range(3):
            request = await requested(controller, TRUNCATE)
            with by("al"):
                await controller.approvals.withdraw(request)
        with by("al"), pytest.raises(ApprovalRequiredError, match="withdrawn within a day"):
            await TRUNCATE(controller)
        assert await requested(controller, TRUNCATE, who="cleo")
        clock.ms += DAY_MS
        assert await requested(controller, TRUNCATE)


@at_once
async def test_an_approved_action_that_waits_meets_no_other_stream_once_its_rule_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    segments = MemorySegments()
    async with with_stream(segments, 1) as controller:
        await prepared(controller, segments)
        request = await requested(controller, DELETE)

        async def down(*_given: object) -> None:
            raise UnavailableError("the store is busy")

        with monkeypatch.context() as patch, by("bea"):
            patch.setattr(controller.approvals, "_perform", down)
            assert (await controller.approvals.approve(request)).state == "approved"
        less = await requested(controller, lambda c: c.approvals.require("s", []))
        with by("bea"):
            assert (await controller.approvals.approve(less)).state == "executed"
        with by("al"):
            await DELETE(controller)
            await controller.streams.create(STREAM, config())
        await controller.sweep()
        assert (await controller.approvals.get(request)).state == "failed"
        assert await controller.streams.exists(STREAM)


@pytest.mark.parametrize("error", [RuntimeError("a bug"), None])
@at_once
async def test_a_request_that_fails_stops_no_later_one(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments, clock = MemorySegments(), FakeClock()
    async with with_stream(segments, 1, clock) as controller:
        await prepared(controller, segments)
        first = await requested(controller, TRUNCATE)
        clock.ms += 1
        second = await requested(controller, DELETE)

        async def fail(*_given: object) -> None:
            raise error or UnavailableError("the store is busy")

        with monkeypatch.context() as patch, by("bea"), suppress(RuntimeError):
            patch.setattr(controller.approvals, "_perform", fail)
            await controller.approvals.approve(first)
        clock.ms += 8 * DAY_MS
        with monkeypatch.context() as patch, suppress(PenstockError):
            patch.setattr(controller.approvals, "_perform", fail)
            if error is None:
                patch.setattr(controller.approvals, "_execute", fail)
            await controller.sweep()
        assert (await controller.approvals.get(first)).state == "approved"
        entries = await audit_entries(controller, segments, "approval")
        assert [item["state"] for item in entries if item.get("request") == second] == ["requested", "expired"]


@at_once
async def test_of_many_who_decide_at_once_one_decides_and_it_is_performed_once() -> None:
    segments = MemorySegments()
    async with with_stream(segments, 1) as controller:
        await prepared(controller, segments)
        request = await requested(controller, TRUNCATE)

        async def decide(who: str, withdraws: bool) -> str:
            with by(who), suppress(ConflictError):
                if withdraws:
                    return (await controller.approvals.withdraw(request)).state
                return (await controller.approvals.approve(request)).state
            return "late"

        answers = await asyncio.gather(decide("bea", False), decide("cleo", False), decide("al", True))
        assert sorted(answers).count("late") == 2
        entries = await audit_entries(controller, segments, "approval", "truncate")
        assert sum(entry["kind"] == "truncate" for entry in entries) == ("executed" in answers)


@pytest.mark.parametrize("effect_first", [False, True])
@at_once
async def test_an_approved_action_survives_a_crash_at_every_call_and_is_never_performed_twice(
    effect_first: bool,
) -> None:
    at = 1
    while True:
        segments = MemorySegments()
        async with with_stream(segments, 1) as controller:
            await prepared(controller, segments)
            request = await requested(controller, TRUNCATE)
            segments.mutations, segments.fail_at, segments.effect_first = 0, at, effect_first
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
            assert (await controller.cuts.head(STREAM)).positions == {SEGMENT: 10}
            entries = await audit_entries(controller, segments, "truncate")
            assert len(entries) == 1, at
        if reached < at:
            return
        at += 1


REMOVING = {
    "streams.delete": "delete",
    "streams.truncate": "truncate",
    "streams.update": "shorten",
    "policies.set": "shorten",
    "holds.release": "release",
    "scopes.delete": "delete",
    "approvals.require": "require",
    "erasures.erase": "erase",
    "cases.open": "erase",
    "tables.delete": "delete",
}
"""Calls that pass the gate, with the action that may need approval."""

OTHERS = {
    "groups.delete": "removes no events; retention then follows the policy",
    "groups.update": "removes no events",
    "subscribers.publish": "states what was read; the policy decides what is deleted",
    "subscribers.move": "moves a position; the policy decides what is deleted",
    "subscribers.remove": "removes no events; the policy decides what is deleted",
    "retention.run": "performs the policy",
    "transactions.abort": "its events were never readable",
}
"""Calls that remove something, or let it be removed, and need no approval, with the reason."""

HARMLESS = {
    "approvals": {"approve", "get", "list", "refuse", "required", "withdraw"},
    "batches": {"commit", "last"},
    "cases": {"close", "confirm_table", "get", "key", "list", "look", "subject", "withdraw"},
    "cuts": {
        "before", "head", "is_valid", "measure", "note_time", "remove_writer", "segments_between", "tail", "time_window",
    },
    "erasures": {"confirm_table", "get", "list", "note_table", "part", "preview", "withdraw"},
    "evidence": {
        "checkpoint", "checkpoints", "consistency", "disposal", "erasure", "export", "hold", "ledger", "log", "rotate_key",
    },
    "groups": {"create", "get", "list"},
    "holds": {"add", "extend", "list"},
    "layout": {
        "current", "endpoint", "epochs", "is_active", "of_epoch", "ranges", "scale", "scale_status", "scaling",
        "successors",
    },
    "policies": {"effective", "get"},
    "retention": {"explain", "facts", "forecast", "list_evictions", "plan", "reclaim", "undo", "undo_last"},
    "scopes": {"create", "describe", "exists", "list"},
    "streams": {"config", "create", "describe", "exists", "list", "list_deleted", "restore", "seal"},
    "subscribers": {"describe", "list"},
    "tables": {"create", "get", "list"},
    "transactions": {
        "commit", "commit_with_positions", "create", "join", "list_completed", "list_open", "ping", "release_positions",
        "settle_positions", "status",
    },
}  # fmt: skip


def test_every_call_of_the_control_plane_has_a_decision() -> None:
    """A new call fails here until it is decided whether it removes anything that may need approval."""
    calls = {f"{subject}.{name}" for subject, found in control_calls().items() for name in found}
    decided = (
        REMOVING.keys() | OTHERS.keys() | {f"{subject}.{name}" for subject, found in HARMLESS.items() for name in found}
    )
    assert calls == decided
