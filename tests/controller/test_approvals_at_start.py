"""A store that starts performs nothing in the name of a requester before it knows the rights of that requester."""

from __future__ import annotations

from dataclasses import replace

import pytest
from approval_world import Call, at_once, by, requested
from controller_world import QUIET, STREAM, cut_at, name_of, opened, seg, with_stream
from memory_segments import MemorySegments

from penstock.controller.controller import Controller
from penstock.model.errors import UnavailableError
from penstock.model.identity import Grant

TRUNCATE: Call = lambda c: c.streams.truncate(STREAM, cut_at({seg(0, 0): 4}))  # noqa: E731
DELETE: Call = lambda c: c.streams.delete(STREAM, seal=True)  # noqa: E731


class NoRights:
    """All requesters have lost their rights."""

    def grants_of(self, name: str, proof: str) -> tuple[Grant, ...]:
        return ()


async def head_of(controller: Controller) -> object:
    return dict((await controller.cuts.head(STREAM)).positions)


async def approved_before_a_crash(segments: MemorySegments, patch: pytest.MonkeyPatch) -> tuple[str, str, object]:
    """A request that was approved and not performed, one that waits, and the head of the stream."""
    async with with_stream(segments, 1) as controller:
        segments.write(name_of(seg(0, 0)), b"12345678")
        with by("al"):
            await controller.approvals.require("s", ["truncate", "delete"])
        head = await head_of(controller)
        request, other = await requested(controller, TRUNCATE), await requested(controller, DELETE)

        async def later(*_: object) -> None:
            raise UnavailableError("the store has no time now")

        with patch.context() as busy, by("bea"):
            busy.setattr(controller.approvals, "_perform", later)
            assert (await controller.approvals.approve(request)).state == "approved"
    return request, other, head


@at_once
async def test_nothing_approved_is_performed_while_the_rights_are_not_known_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    segments = MemorySegments()
    request, other, head = await approved_before_a_crash(segments, monkeypatch)
    async with opened(segments, settings=replace(QUIET, waits_for_rights=True)) as controller:
        await controller.sweep()
        assert (await controller.approvals.get(request)).state == "approved"
        assert await head_of(controller) == head
        with by("bea"), pytest.raises(UnavailableError, match="still starting"):
            await controller.approvals.approve(other)
        controller.use_rights(NoRights())
        await controller.sweep()
        found = await controller.approvals.get(request)
        assert (found.state, "lost the right" in found.failure) == ("failed", True)
        assert await head_of(controller) == head


@at_once
async def test_a_store_without_identities_performs_it_at_its_next_start(monkeypatch: pytest.MonkeyPatch) -> None:
    segments = MemorySegments()
    request, _, head = await approved_before_a_crash(segments, monkeypatch)
    async with opened(segments) as controller:
        await controller.sweep()
        assert (await controller.approvals.get(request)).state == "executed"
        assert await head_of(controller) != head
