"""A hold that is durable before a removal is decided forbids it, wherever the hold is and whatever removes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from blanking import ONE, Blanking, ask_for_erasure
from controller_world import STREAM, audit_entries, cut_at, name_of, with_stream
from raced_segments import RacedSegments

from penstock.codec.control.erasures import ErasureRecord, ErasureState
from penstock.controller import keys
from penstock.controller.controller import Controller
from penstock.model.errors import RetentionHoldError
from penstock.model.names import StreamName
from penstock.model.retention import PolicyDocument
from penstock.testing.fakes import FakeClock

REMOVALS = {"truncate", "delete", "release", "erase_continued"}


async def _grace(controller: Controller, clock: FakeClock) -> None:
    await controller.policies.set(STREAM, PolicyDocument(grace_s=60))
    await controller.streams.truncate(STREAM, cut_at({ONE: 60}))
    clock.ms += 61_000


async def _seal(controller: Controller, clock: FakeClock) -> None:
    await controller.streams.seal(STREAM)


async def _nothing(controller: Controller, clock: FakeClock) -> None:
    return None


async def _defer(controller: Controller, clock: FakeClock) -> None:
    await controller.holds.add(STREAM, owner="o", reason="r", hold_id="h0")
    await ask_for_erasure(controller)


async def _truncate(controller: Controller) -> None:
    await controller.streams.truncate(STREAM, cut_at({ONE: 60}))


async def _delete(controller: Controller) -> None:
    await controller.streams.delete(STREAM)


async def _release(controller: Controller) -> None:
    await controller.retention.run(STREAM)


async def _continue(controller: Controller) -> None:
    await controller.holds.release("h0", owner="o")
    await ask_for_erasure(controller)


Prepare = Callable[[Controller, FakeClock], Awaitable[None]]
Remove = Callable[[Controller], Awaitable[None]]
CASES: dict[str, tuple[Prepare, Remove]] = {
    "truncate": (_nothing, _truncate),
    "delete": (_seal, _delete),
    "release": (_grace, _release),
    "erase": (_nothing, ask_for_erasure),
    "continue an erasure": (_defer, _continue),
}


def _is_held(segments: RacedSegments) -> bool:
    return keys.hold("s", "h") in segments.tables[keys.TABLE].entries


def _is_erasure_decided(segments: RacedSegments) -> bool:
    found = segments.tables[keys.TABLE].entries.get(keys.erasure("e1"))
    return found is not None and ErasureRecord.decode(found[0]).state in (ErasureState.ASKED, ErasureState.DONE)


async def _raced(case: str, target: StreamName | str, at: int) -> list[str] | None:
    """Place a hold in call ``at`` of a removal: the kinds of the audit entries in order; None if there is no such call."""
    prepare, remove = CASES[case]
    segments, clock = Blanking(), FakeClock()
    async with with_stream(segments, 1, clock) as controller:
        segments.write(name_of(ONE), b"x" * 100)
        await prepare(controller, clock)
        earlier = len(await audit_entries(controller, segments))
        placing: list[asyncio.Task[Any]] = []

        async def place() -> None:
            placing.append(asyncio.ensure_future(controller.holds.add(target, owner="o", reason="r", hold_id="h")))
            # A hold on the stream waits for the removal, which holds the stream's lock; one on the scope does not wait.
            for _ in range(200):
                await asyncio.sleep(0)
            before.append(_is_held(segments) and not _is_erasure_decided(segments))

        before: list[bool] = []
        segments.arm_hook(at, place)
        try:
            await remove(controller)
        except RetentionHoldError:
            assert placing
        segments.hook = None
        await asyncio.gather(*placing, return_exceptions=True)
        if not placing:
            return None
        # The audit entry of an erasure is written when it ends, so the record tells whether it was decided after the hold.
        assert not (any(before) and _is_erasure_decided(segments)), f"the hold was placed in call {at}"
        entries = await audit_entries(controller, segments)
        return [entry["kind"] for entry in entries[earlier:]]


def _late(kinds: list[str]) -> Iterator[str]:
    held = kinds.index("hold") if "hold" in kinds else len(kinds)
    return (kind for kind in kinds[held:] if kind in REMOVALS)


@pytest.mark.parametrize("target", ["s", STREAM], ids=["scope", "stream"])
@pytest.mark.parametrize("case", CASES)
def test_no_removal_is_decided_after_a_hold(case: str, target: StreamName | str) -> None:
    async def work() -> int:
        at = 1
        while (kinds := await _raced(case, target, at)) is not None:
            assert list(_late(kinds)) == [], f"the hold was placed in call {at}: {kinds}"
            at += 1
        return at

    assert asyncio.run(work()) > 5
