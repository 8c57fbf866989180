"""Retention locks in the controller: until its date, no call, crash or clock removes what a lock promises."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from blanking import Blanking
from controller_world import (
    QUIET,
    STREAM,
    audit_entries,
    config,
    cut_at,
    name_of,
    opened,
    seg,
    stream_bytes,
    with_stream,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.codec.control.policy_document import text_of_ms
from penstock.controller.controller import Controller
from penstock.model.errors import PenstockError, RetentionLockError, StreamNotFoundError
from penstock.model.names import StreamName
from penstock.model.policies import RetentionPolicy, RetentionType
from penstock.model.retention import Idle, PolicyDocument, PolicyTarget, Retain, Unsubscribed
from penstock.testing.fakes import START_MS, FakeClock

SEGMENT = seg(0, 0)
NAME = name_of(SEGMENT)
DAY_MS = 86_400_000
UNTIL_MS = START_MS + 10 * DAY_MS
UNTIL = text_of_ms(UNTIL_MS)
LOCKED = PolicyDocument(retain=Retain(min_age_s=5 * 86_400, lock_until=UNTIL))
SHORT = PolicyDocument(retain=Retain(min_age_s=1))
TARGETS: dict[str, PolicyTarget] = {"stream": STREAM, "scope": "s", "server": None}
OTHER = StreamName("s", "u")


class Erasing(Blanking):
    """Overwrites what is erased with zeros."""

    async def erase(self, name: str, ranges: Any, *, erasure: str) -> list[Any]:
        for start, end in ranges:
            self.segments[name].data[start:end] = bytes(end - start)
        return []


def at_once(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """The test without an event loop of its own."""

    @functools.wraps(test)
    def run(**given: Any) -> None:
        asyncio.run(test(**given))  # type: ignore[arg-type]

    return run


Call = Callable[[Controller], Awaitable[object]]

REFUSED: dict[str, Call] = {
    "truncate": lambda c: c.streams.truncate(STREAM, cut_at({SEGMENT: 10})),
    "delete": lambda c: c.streams.delete(STREAM, seal=True),
    "delete sealed": lambda c: _sealed_and_deleted(c),  # noqa: PLW0108 (defined below)
    "shorter stream policy": lambda c: c.policies.set(STREAM, SHORT),
    "pravega's shorter policy": lambda c: c.streams.update(
        STREAM, config(retention=RetentionPolicy(type=RetentionType.TIME, minimum=1000))
    ),
    "pravega's policy by size": lambda c: c.streams.update(
        STREAM, config(retention=RetentionPolicy(type=RetentionType.SIZE, minimum=1))
    ),
    "client truncates a segment": lambda c: _removed(c, 10),
    "client deletes a segment": lambda c: _removed(c, None),
}


async def _sealed_and_deleted(controller: Controller) -> None:
    await controller.streams.seal(STREAM)
    await controller.streams.delete(STREAM)


async def _removed(controller: Controller, offset: int | None) -> None:
    async with controller.client_removal(NAME, offset):
        raise AssertionError("the removal was allowed")


@pytest.mark.parametrize("level", TARGETS)
@pytest.mark.parametrize("case", REFUSED)
@at_once
async def test_every_removal_by_hand_is_refused_with_the_lock_and_its_date(level: str, case: str) -> None:
    segments, clock = Erasing(), FakeClock()
    async with with_stream(segments, 1, clock) as controller:
        segments.write(NAME, b"x" * 30)
        await controller.policies.set(TARGETS[level], LOCKED)
        with pytest.raises(RetentionLockError) as caught:
            await REFUSED[case](controller)
        assert caught.value.fields["lock_until"] == UNTIL
        assert caught.value.fields["level"] == level
        assert await stream_bytes(controller, segments) == {SEGMENT: b"x" * 30}
        assert (await controller.cuts.head(STREAM)).positions == {SEGMENT: 0}
        clock.ms = UNTIL_MS
        if not case.startswith("client"):
            if level == "scope" or level == "server":
                await controller.policies.set(TARGETS[level], PolicyDocument())
            await (controller.streams.delete(STREAM) if case == "delete sealed" else REFUSED[case](controller))


@pytest.mark.parametrize("level", TARGETS)
@at_once
async def test_a_lock_is_not_removed_nor_moved_forward_and_may_be_longer(level: str) -> None:
    segments, clock, target = Erasing(), FakeClock(), TARGETS[level]
    async with with_stream(segments, 1, clock) as controller:
        await controller.policies.set(target, LOCKED)
        for document in (
            PolicyDocument(),
            PolicyDocument(retain=Retain(min_age_s=5 * 86_400)),
            PolicyDocument(retain=Retain(min_age_s=5 * 86_400, lock_until=text_of_ms(UNTIL_MS - 1))),
            PolicyDocument(retain=Retain(min_age_s=4 * 86_400, lock_until=UNTIL)),
        ):
            with pytest.raises(RetentionLockError):
                await controller.policies.set(target, document)
            assert await controller.policies.get(target) == LOCKED
        longer = PolicyDocument(retain=Retain(min_age_s=6 * 86_400, lock_until=text_of_ms(UNTIL_MS + 1)))
        await controller.policies.set(target, longer)
        with pytest.raises(RetentionLockError):
            await controller.policies.set(target, LOCKED)
        entries = await audit_entries(controller, segments, "policy")
        assert [entry["after"]["retain"]["lock_until"] for entry in entries] == [UNTIL, text_of_ms(UNTIL_MS + 1)]
        plan = await controller.retention.plan(STREAM, change=SHORT)
        assert "a retention lock forbids this policy" in plan.locked
        assert (await controller.retention.plan(STREAM)).locked == ""


@at_once
async def test_a_scope_with_a_lock_is_not_deleted_even_empty() -> None:
    segments, clock = Erasing(), FakeClock()
    async with opened(segments, clock) as controller:
        await controller.scopes.create("s")
        await controller.policies.set("s", LOCKED)
        with pytest.raises(RetentionLockError, match="deletion of the scope"):
            await controller.scopes.delete("s")
        clock.ms = UNTIL_MS
        await controller.scopes.delete("s")


@at_once
async def test_a_stream_is_not_created_or_restored_with_less_than_a_lock_above_promises() -> None:
    segments, clock = Erasing(), FakeClock()
    async with with_stream(segments, 1, clock, settings=replace(QUIET, deletion_grace_ms=DAY_MS)) as controller:
        await controller.policies.set(STREAM, SHORT)
        segments.write(NAME, b"x" * 30)
        await controller.streams.delete(STREAM, seal=True)
        await controller.policies.set("s", LOCKED)
        less = RetentionPolicy(type=RetentionType.TIME, minimum=1000)
        with pytest.raises(RetentionLockError):
            await controller.streams.create(OTHER, config(retention=less))
        with pytest.raises(StreamNotFoundError):
            await controller.streams.describe(OTHER)
        await controller.streams.create(
            OTHER, config(retention=RetentionPolicy(type=RetentionType.TIME, minimum=6 * DAY_MS))
        )
        await controller.streams.restore(STREAM)
        assert (await controller.policies.get(STREAM)).retain == Retain()
        assert (await controller.policies.effective(STREAM)).min_age_ms == 5 * DAY_MS
        with pytest.raises(RetentionLockError):
            await controller.streams.delete(STREAM, seal=True)


@at_once
async def test_an_unused_stream_is_kept_by_its_lock() -> None:
    segments, clock = Erasing(), FakeClock()
    document = PolicyDocument(retain=Retain(lock_until=UNTIL), idle=Idle(stream_s=60))
    async with with_stream(segments, 1, clock) as controller:
        segments.write(NAME, b"x" * 30)
        await controller.policies.set(STREAM, document)
        clock.ms = UNTIL_MS - 1
        assert not (await controller.retention.run(STREAM)).delete_stream
        clock.ms = UNTIL_MS
        assert (await controller.retention.run(STREAM)).delete_stream


@at_once
async def test_explain_names_the_lock_as_the_reason() -> None:
    segments, clock = Erasing(), FakeClock()
    async with with_stream(segments, 1, clock) as controller:
        segments.write(NAME, b"x" * 30)
        await controller.retention.run(STREAM)
        await controller.policies.set("s", LOCKED)
        found = await controller.retention.explain(STREAM)
        assert [(item.kind, item.name) for item in found.ranges or ()] == [("lock", UNTIL)]
        assert f"locked until {UNTIL}" in found.sentence
        assert (await controller.policies.effective(STREAM)).lock_until_ms == UNTIL_MS


@at_once
async def test_an_erasure_under_a_lock_waits_until_its_date_and_says_so() -> None:
    segments, clock = Erasing(), FakeClock()
    async with with_stream(segments, 1, clock) as controller:
        segments.write(NAME, b"\0\0\0\0\0\0\0\x02hi")
        await controller.policies.set("s", LOCKED)
        preview = await controller.erasures.preview(STREAM, {SEGMENT: [0]})
        assert [(hold.hold, hold.until_ms) for hold in preview.holds] == [("lock:scope", UNTIL_MS)]
        asked = {"erasure": "e", "who": "a", "why": "b", "looked_for": {}}
        found = await controller.erasures.erase(STREAM, asked, {SEGMENT: [0]})
        assert found.state == "deferred"
        await controller.sweep()
        assert (await controller.erasures.get("e")).state == "deferred"
        clock.ms = UNTIL_MS
        await controller.sweep()
        async with asyncio.timeout(5):
            while (await controller.erasures.get("e")).state != "done":
                await asyncio.sleep(0.01)


@at_once
async def test_a_wall_clock_set_ahead_does_not_open_the_lock_nor_does_a_restart_after_it() -> None:
    segments, clock = Erasing(), FakeClock()
    async with with_stream(segments, 1, clock) as controller:
        segments.write(NAME, b"x" * 30)
        await controller.policies.set(STREAM, LOCKED)
        clock.jump(100 * DAY_MS)
        await controller.run_retention_cycles()
        for call in (REFUSED["truncate"], REFUSED["delete"], REFUSED["shorter stream policy"]):
            with pytest.raises(RetentionLockError):
                await call(controller)
    async with opened(segments, clock) as controller:
        with pytest.raises(RetentionLockError):
            await REFUSED["truncate"](controller)
        clock.jump(-200 * DAY_MS)
        with pytest.raises(RetentionLockError):
            await REFUSED["truncate"](controller)


# --- the law -----------------------------------------------------------------------------------------------------

DOCUMENTS = st.sampled_from(
    [
        PolicyDocument(),
        SHORT,
        LOCKED,
        PolicyDocument(retain=Retain(min_age_s=5 * 86_400, max_bytes=10, lock_until=UNTIL)),
        PolicyDocument(retain=Retain(max_bytes=0), unsubscribed=Unsubscribed.RELEASE, idle=Idle(stream_s=1)),
        PolicyDocument(retain=Retain(min_bytes=0)),
    ]
)
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.sampled_from(list(TARGETS)), DOCUMENTS),
        st.tuples(st.just("pravega"), st.sampled_from([None, (RetentionType.SIZE, 0, 1), (RetentionType.TIME, 0, 1)])),
        st.tuples(st.sampled_from(["truncate", "delete", "remove", "scope", "run", "restore", "erase", "write"])),
        st.tuples(st.just("jump"), st.sampled_from([DAY_MS, 50 * DAY_MS, -50 * DAY_MS])),
        st.tuples(st.just("pass"), st.sampled_from([1000, DAY_MS])),
        st.tuples(st.just("crash")),
    ),
    min_size=4,
    max_size=14,
)


class _Law:
    """Runs acts against a locked stream; ``written`` is what it holds since its lock."""

    def __init__(self) -> None:
        self.segments, self.clock = Erasing(), FakeClock()
        self.number = 0

    async def act(self, controller: Controller, act: tuple[Any, ...]) -> None:
        match act:
            case ("set", level, document):
                await controller.policies.set(TARGETS[level], document)
            case ("pravega", None):
                await controller.streams.update(STREAM, config())
            case ("pravega", (kind, low, high)):
                await controller.streams.update(
                    STREAM, config(retention=RetentionPolicy(type=kind, minimum=low, maximum=high))
                )
            case ("truncate",):
                await controller.streams.truncate(STREAM, await controller.cuts.tail(STREAM))
            case ("delete",):
                await controller.streams.delete(STREAM, seal=True)
            case ("remove",):
                await _removed(controller, 5)
            case ("scope",):
                await controller.scopes.delete("s")
            case ("run",):
                await controller.run_retention_cycles()
            case ("restore",):
                await controller.retention.undo_last(STREAM)
            case ("erase",):
                self.number += 1
                asked = {"erasure": f"e{self.number}", "who": "a", "why": "b", "looked_for": {}}
                await controller.erasures.erase(STREAM, asked, {SEGMENT: [0]})
            case ("write",):
                self.segments.write(NAME, b"\0\0\0\0\0\0\0\x02yo")
            case ("jump", by_ms):
                self.clock.jump(by_ms)
                await controller.run_retention_cycles()
            case ("pass", by_ms):
                self.clock.ms += by_ms


@given(ACTS, st.sampled_from(list(TARGETS)))
@settings(max_examples=60, deadline=None)
def test_nothing_removes_a_promised_byte_before_the_date(acts: list[tuple[Any, ...]], level: str) -> None:
    asyncio.run(_holds(acts, level))


async def _holds(acts: list[tuple[Any, ...]], level: str) -> None:
    law = _Law()
    async with with_stream(law.segments, 1, law.clock) as controller:
        law.segments.write(NAME, b"\0\0\0\0\0\0\0\x02hi")
        await controller.policies.set(TARGETS[level], LOCKED)
    at, passed_ms = 0, 0
    while at < len(acts):
        # Each turn of the loop is one life of the controller.
        async with opened(law.segments, law.clock) as controller:
            while at < len(acts):
                act, at = acts[at], at + 1
                if act[0] == "crash":
                    break
                if act[0] == "pass":
                    passed_ms += act[1]
                with suppress(PenstockError):
                    await law.act(controller, act)
                if passed_ms < 5 * DAY_MS:
                    # Younger than the minimum, by the time that has really passed.
                    data = bytes(law.segments.segments[NAME].data)
                    assert data.startswith(b"\0\0\0\0\0\0\0\x02hi"), act
                    assert law.segments.segments[NAME].start == 0, act
                    assert (await controller.cuts.head(STREAM)).positions == {SEGMENT: 0}, act
