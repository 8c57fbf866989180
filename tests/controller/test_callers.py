"""Every deed that takes data or a promise away leaves an audit entry, with who asked for it and why."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, nullcontext, suppress
from dataclasses import replace
from uuid import UUID

import pytest
from controller_world import QUIET, STREAM, audit_entries, cut_at, join, name_of, seg, with_stream
from memory_segments import MemorySegments

from penstock.controller.controller import Controller
from penstock.model.callers import Caller, calling
from penstock.model.errors import InvalidArgumentError, PenstockError
from penstock.model.policies import RetentionPolicy, RetentionType
from penstock.model.retention import Idle, PolicyDocument, Retain
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.testing.fakes import FakeClock

ANN = Caller(who="ann", why="ticket 7", via="cli")
DAY_MS = 86_400_000
HOUR_MS = 3_600_000
GRACE = replace(QUIET, deletion_grace_ms=HOUR_MS)
POLICY = RetentionPolicy(type=RetentionType.TIME, minimum=DAY_MS)
LIMITS = PolicyDocument(retain=Retain(max_age_s=86_400))

Deed = Callable[[Controller], Awaitable[object]]


async def truncate(controller: Controller) -> None:
    await controller.streams.truncate(STREAM, cut_at({seg(0, 0): 50}))


async def delete_stream(controller: Controller) -> None:
    await controller.streams.delete(STREAM, seal=True)


async def delete_scope(controller: Controller) -> None:
    await controller.scopes.delete("empty")


async def delete_group(controller: Controller) -> None:
    await controller.groups.delete("s", "plain")


async def delete_subscribing_group(controller: Controller) -> None:
    await controller.groups.delete("s", "g")


async def remove_subscriber(controller: Controller) -> None:
    await controller.subscribers.remove(STREAM, "s/g")


async def move_subscriber(controller: Controller) -> None:
    await controller.subscribers.move(STREAM, "s/g", await controller.cuts.tail(STREAM))


async def set_policy(controller: Controller) -> None:
    await controller.policies.set(STREAM, LIMITS)


async def set_scope_policy(controller: Controller) -> None:
    await controller.policies.set("s", LIMITS)


async def update(controller: Controller) -> None:
    """As Pravega's clients and the REST interface change a policy: with the whole configuration."""
    await controller.streams.update(STREAM, replace(await controller.streams.config(STREAM), retention=POLICY))


async def release_hold(controller: Controller) -> None:
    await controller.holds.release("case-7", owner="legal")


async def abort_transaction(controller: Controller) -> None:
    (found,) = await controller.transactions.list_open(STREAM)
    await controller.transactions.abort(STREAM, found.id)
    await controller.transactions.abort(STREAM, found.id)  # a repeat changes nothing


DEEDS: Mapping[str, tuple[Deed, str, str]] = {
    "truncate": (truncate, "truncate", "s/t"),
    "delete a stream": (delete_stream, "delete", "s/t"),
    "delete a scope": (delete_scope, "delete", "empty"),
    "delete a group": (delete_group, "delete", "s"),
    "delete a group that subscribes": (delete_subscribing_group, "drop", "s/t"),
    "remove a subscriber": (remove_subscriber, "drop", "s/t"),
    "move a subscriber": (move_subscriber, "move", "s/t"),
    "set the policy of a stream": (set_policy, "policy", "s/t"),
    "set the policy of a scope": (set_scope_policy, "policy", "s"),
    "update the configuration": (update, "policy", "s/t"),
    "abort a transaction": (abort_transaction, "abort", "s/t"),
    "release a hold": (release_hold, "unhold", "s/held"),
}


@pytest.mark.parametrize("name", DEEDS)
def test_every_deed_leaves_one_entry_with_who_and_why(name: str) -> None:
    deed, kind, target = DEEDS[name]

    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments) as controller:
            segments.write(name_of(seg(0, 0)), b"x" * 100)
            await controller.scopes.create("empty")
            await controller.policies.set("empty", LIMITS)
            await join(controller, "g")
            await controller.groups.create(ReaderGroupConfig(scope="s", name="plain", id=UUID(int=5)))
            held = replace(STREAM, stream="held")
            await controller.streams.create(held, await controller.streams.config(STREAM))
            await controller.holds.add(held, owner="legal", reason="case 7", hold_id="case-7")
            await controller.transactions.create(STREAM, lease_ms=30_000)
            before = len(await audit_entries(controller, segments))
            with calling(ANN):
                await deed(controller)
            entries = (await audit_entries(controller, segments))[before:]
            found = [item for item in entries if (item["kind"], item["target"]) == (kind, target)]
            assert len(found) == 1, entries
            assert [item["caller"] for item in entries] == [{"who": "ann", "why": "ticket 7", "via": "cli"}] * len(
                entries
            )

    asyncio.run(run())


def test_writers_that_abort_their_own_transactions_fill_no_audit() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments) as controller:
            for caller in (None, Caller(via="grpc", peer="10.0.0.1")):
                txn = (await controller.transactions.create(STREAM, lease_ms=30_000)).id
                with nullcontext() if caller is None else calling(caller):
                    await controller.transactions.abort(STREAM, txn)
            assert await audit_entries(controller, segments, "abort") == []

    asyncio.run(run())


def test_what_a_rule_does_names_no_caller() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments) as controller:
            await controller.policies.set(STREAM, PolicyDocument(retain=Retain(max_bytes=0)))
            segments.write(name_of(seg(0, 0)), b"x" * 100)
            await controller.run_retention_cycles()
            (entry,) = await audit_entries(controller, segments, "truncate")
            assert "caller" not in entry

    asyncio.run(run())


async def restore(controller: Controller) -> None:
    await controller.streams.restore(STREAM)


async def undo(controller: Controller) -> None:
    await controller.retention.undo_last(STREAM)


async def begin_again(controller: Controller) -> None:
    await controller.scopes.create("empty")


async def tag(controller: Controller) -> None:
    await controller.streams.update(STREAM, replace(await controller.streams.config(STREAM), tags=("new",)))


async def seal(controller: Controller) -> None:
    await controller.streams.seal(STREAM)


async def make_group(controller: Controller) -> None:
    await join(controller, "g")


FINISHED_BY_OTHERS: Mapping[str, tuple[Deed, Deed]] = {
    "delete a scope": (delete_scope, begin_again),
    "delete a group that subscribes": (delete_subscribing_group, make_group),
    "restore a stream": (restore, seal),
    "undo a truncation": (undo, tag),
}


@pytest.mark.parametrize("name", FINISHED_BY_OTHERS)
def test_a_call_that_finishes_what_another_began_is_not_named_for_it(name: str) -> None:
    """After a failure at any step, the next call of anybody finishes the work, with the entries that are still missing."""
    deed, next_call = FINISHED_BY_OTHERS[name]

    async def one_failure(after: int) -> bool:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock, settings=GRACE) as controller:
            segments.write(name_of(seg(0, 0)), b"x" * 100, event_bytes=10)
            await prepare(controller, name, clock)
            before = len(await audit_entries(controller, segments))
            segments.arm(after, effect_first=True)
            with calling(ANN), suppress(PenstockError):
                await deed(controller)
            failed = segments.offline
            segments.heal()
            with calling(Caller(who="bob")), suppress(PenstockError):
                await next_call(controller)
            entries = (await audit_entries(controller, segments))[before:]
            assert [item for item in entries if item.get("caller", {}).get("who") == "bob"] == [], after
            return failed

    after = 1
    while asyncio.run(one_failure(after)):
        after += 1
    assert after > 3


async def prepare(controller: Controller, name: str, clock: FakeClock) -> None:
    """A scope, a group and a stream that the deed of that name finds."""
    await controller.scopes.create("empty")
    await join(controller, "g")
    if name.startswith("restore"):
        await controller.streams.delete(STREAM, seal=True)
        await controller.groups.delete("s", "g")
    if name.startswith("undo"):
        document = PolicyDocument(retain=Retain(min_bytes=0), idle=Idle(subscriber_s=60), grace_s=3600)
        await controller.policies.set(STREAM, document)
        for _ in range(3):
            clock.ms += 50_000
            await controller.retention.run(STREAM)
        assert (await controller.cuts.head(STREAM)).positions[seg(0, 0)] == 100


def test_whoever_opens_the_store_is_not_named_for_what_it_does_by_itself() -> None:
    async def run() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with AsyncExitStack() as stack:
            with calling(ANN):
                settings = replace(GRACE, sweep_ms=1)
                controller = await stack.enter_async_context(with_stream(segments, 1, clock, settings=settings))
            await controller.streams.delete(STREAM, seal=True)
            clock.ms += HOUR_MS
            async with asyncio.timeout(10):
                while await controller.streams.list_deleted():
                    await asyncio.sleep(0)
            (entry,) = await audit_entries(controller, segments, "release")
            assert "caller" not in entry

    asyncio.run(run())


def test_an_update_that_leaves_the_policy_alone_tells_nothing() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments, retention=POLICY) as controller:
            await controller.streams.update(STREAM, replace(await controller.streams.config(STREAM), tags=("new",)))
            assert await audit_entries(controller, segments, "policy") == []
            await controller.streams.update(STREAM, replace(await controller.streams.config(STREAM), retention=None))
            (entry,) = await audit_entries(controller, segments, "policy")
            assert entry["before"]["retain"]["min_age_s"] == 86_400
            assert "min_age_s" not in entry["after"].get("retain", {})

    asyncio.run(run())


def test_the_entry_of_a_scope_keeps_the_policy_that_went_with_it() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments) as controller:
            await controller.scopes.create("empty")
            await controller.policies.set("empty", LIMITS)
            await controller.scopes.delete("empty")
            (entry,) = await audit_entries(controller, segments, "delete")
            assert (entry["target"], entry["rule"]) == ("empty", "manual")
            assert entry["document"] == {"retain": {"max_age_s": 86_400}}

    asyncio.run(run())


@pytest.mark.parametrize("text", ["x" * 1_001, "two\nlines", "\0"])
def test_a_caller_is_named_in_one_short_line(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        Caller(who=text)
