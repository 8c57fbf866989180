"""The verified identity of an erasure is stored with its decision, and no other caller replaces it."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

from approval_world import at_once, by, requested
from blanking import Blanking, ask_for_erasure
from controller_world import audit_entries, name_of, opened, seg, with_stream

from penstock.codec.control.cases import CaseRecord
from penstock.codec.control.erasures import ErasureRecord, ErasureState
from penstock.codec.events import frame_events
from penstock.controller.controller import Controller
from penstock.model.errors import NotFoundError, PenstockError

CASE: dict[str, Any] = {
    "targets": ["s"], "subject": {"by": "payload contains", "values": ["ann@x"]}, "who": "ann", "why": "request 17",
}  # fmt: skip
OLD = (
    b'{"v":1,"stream":"s/t","incarnation":1,"state":"asked","asked":{"who":"a"},"asked_ms":1,"receipt":null,'
    b'"run":"r","request":null}'
)


async def done(controller: Controller) -> None:
    """Wait for the receipt."""
    while (await controller.erasures.get("e1")).receipt is None:
        await asyncio.sleep(0)


@at_once
async def test_a_crash_at_any_call_after_the_request_keeps_the_identity_of_the_requester() -> None:
    at, crashed = 1, 0
    while True:
        segments = Blanking()
        async with with_stream(segments, 1) as controller:
            segments.write(name_of(seg(0, 0)), frame_events([b"of ann@x"]))
            segments.mutations, segments.fail_at = 0, at
            with by("ann"), suppress(PenstockError):
                await ask_for_erasure(controller)
            reached = segments.mutations
        segments.fail_at, segments.offline = None, False
        async with opened(segments) as controller:
            with by("bea"):
                # A repeat by another identity joins what is decided, and is its own request before that.
                try:
                    state = (await controller.erasures.get("e1")).state
                except NotFoundError:
                    state = "none"
                await ask_for_erasure(controller)
            wanted = "bea" if state in ("none", "gathering") else "ann"
            crashed += state == "asked"
            await done(controller)
            found = await controller.erasures.get("e1")
            assert found.receipt is not None
            assert (found.identity, found.receipt["identity"]) == (wanted, wanted), at
            (entry,) = await audit_entries(controller, segments, "erase")
            assert entry["identity"] == wanted
        if reached < at:
            break
        at += 1
    assert crashed, "no crash came between the decision and the receipt"


@at_once
async def test_a_case_has_the_identity_whose_request_was_approved() -> None:
    segments = Blanking()
    async with with_stream(segments, 1) as controller:
        with by("al"):
            await controller.approvals.require("s", ["erase"])
        first = await requested(controller, lambda c: c.cases.open("c", **CASE), "al")
        second = await requested(controller, lambda c: c.cases.open("c", **CASE), "cy")
        assert first != second
        with by("bea"):
            assert (await controller.approvals.approve(second)).state == "executed"
        assert (await controller.cases.get("c")).identity == "cy"


@at_once
async def test_a_caller_without_a_verified_identity_leaves_none() -> None:
    segments = Blanking()
    async with with_stream(segments, 1) as controller:
        segments.write(name_of(seg(0, 0)), frame_events([b"of ann@x"]))
        await ask_for_erasure(controller)
        await done(controller)
        found = (await controller.erasures.get("e1")).receipt
        assert found is not None
        assert "identity" not in found
        case = await controller.cases.open("c", **CASE)
        assert "identity" not in json.loads(
            CaseRecord(targets=["s"], subject={}, who="", why="", opened_ms=1, due_ms=1).encode()
        )
        assert not case.identity


def test_a_record_of_an_earlier_version_keeps_its_bytes() -> None:
    record = ErasureRecord.decode(OLD)
    assert (record.identity, record.state, record.encode()) == (None, ErasureState.ASKED, OLD)
    assert ErasureRecord.decode(OLD[:-1] + b',"identity":"ann"}').identity == "ann"
