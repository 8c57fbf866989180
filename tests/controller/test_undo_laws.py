"""After any history of mistaken policies an undo gives each subscriber what it had not acknowledged, or names who misses what."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from controller_world import STREAM, cut_at, name_of, with_stream
from memory_segments import MemorySegments
from undo_subscribers import CORRECT, ONE, subscribed

from penstock.controller.controller import Controller
from penstock.model.errors import ConflictError, PenstockError
from penstock.model.retention import Backlog, Idle, OnExceed, PolicyDocument, Retain
from penstock.testing.fakes import FakeClock

GROUPS = ("s/g0", "s/g1", "s/g2")


def some_mistake(chance: Random, size: int) -> PolicyDocument:
    """A policy that takes data or subscriptions away, with a grace of an hour."""
    return PolicyDocument(
        retain=Retain(min_bytes=0, max_bytes=chance.choice([None, None, chance.randint(0, size)])),
        backlog=Backlog(
            ttl_s=chance.choice([None, chance.randint(1, 60)]),
            max_bytes=chance.choice([None, chance.randint(1, size)]),
            max_age_s=chance.choice([None, chance.randint(1, 60)]),
            on_exceed=OnExceed.EVICT,
        ),
        idle=Idle(subscriber_s=chance.choice([None, None, chance.randint(30, 90)])),
        grace_s=3600,
    )


class UndoWorld:
    """One stream of one segment. ``said``: what each subscriber has acknowledged itself; ``size``: bytes written."""

    def __init__(self, chance: Random, controller: Controller, segments: MemorySegments, clock: FakeClock) -> None:
        self.chance, self.controller, self.segments, self.clock = chance, controller, segments, clock
        self.said = dict.fromkeys(GROUPS, 0)
        self.size = 0

    async def live(self, steps: int) -> None:
        for _ in range(steps):
            self.clock.ms += self.chance.randint(1000, 30_000)
            match self.chance.choice(["write", "write", "acknowledge", "policy", "cycle", "cycle"]):
                case "write":
                    count = self.chance.randint(1, 6)
                    self.segments.write(name_of(ONE), b"x" * 10 * count, event_bytes=10)
                    self.size += 10 * count
                case "acknowledge":
                    await self.acknowledge(self.chance.choice(GROUPS))
                case "policy":
                    mistake = some_mistake(self.chance, max(self.size, 1))
                    await self.controller.policies.set(STREAM, self.chance.choice([mistake, mistake, CORRECT]))
                case "cycle":
                    await self.controller.retention.run(STREAM)

    async def acknowledge(self, group: str) -> None:
        offset = self.chance.randrange(self.said[group], self.size + 10, 10)
        with suppress(PenstockError):  # It was dropped, or reads behind the head.
            await self.controller.subscribers.publish(
                group, group_id=None, generation=None, cut=cut_at({ONE: min(offset, self.size)})
            )
            self.said[group] = min(offset, self.size)

    async def places(self) -> dict[str, int]:
        """From where on each subscriber reads; none that was dropped."""
        head = await self.head()
        found = {item.name: item.cut for item in await self.controller.subscribers.describe(STREAM)}
        return {name: max(head, 0 if cut is None else cut.positions[ONE]) for name, cut in found.items()}

    async def head(self) -> int:
        return (await self.controller.cuts.head(STREAM)).positions[ONE]

    async def undo(self, since_ms: int | None) -> dict[str, Any] | None:
        """What the answers say together of each subscriber, the last word last; None: there was nothing to undo."""
        reported: dict[str, Any] | None = None
        while True:
            try:
                found = await self.controller.retention.undo(STREAM, since_ms=since_ms)
            except ConflictError:
                return reported
            reported = {**(reported or {}), **{item.name: item for item in found.subscribers}}
            if since_ms is not None:
                assert found.not_restored == []
                return reported


async def run_world(seed: int) -> Counter[str]:
    chance, segments, clock = Random(seed), MemorySegments(), FakeClock()
    seen: Counter[str] = Counter()
    async with with_stream(segments, 1, clock) as controller:
        world = UndoWorld(chance, controller, segments, clock)
        for group in GROUPS:
            await subscribed(controller, group.partition("/")[2], 0)
        await controller.policies.set(STREAM, CORRECT)
        await world.live(chance.randint(3, 12))
        allowed, head, since_ms = dict.fromkeys(GROUPS, 0), 0, None
        if chance.random() < 0.5:
            # What was moved or dropped before that time stays so.
            clock.ms += 1
            since_ms, head, allowed = clock.ms, await world.head(), await world.places()
            await world.live(chance.randint(3, 12))
        moved = await world.places()
        for name in sorted(set(allowed) - set(moved)):
            if (
                chance.random() < 0.3
            ):  # A rule has dropped it, and its group is deleted: nobody is there to be restored.
                await controller.groups.delete(name.partition("/")[0], name.partition("/")[2])
        reported = await world.undo(since_ms)
        if reported is None:
            return seen
        seen["undone"] += 1
        assert await world.head() <= head
        places = await world.places()
        for name, least in allowed.items():
            if name not in places or places[name] > max(world.said[name], least):
                assert name in reported, (name, "is not named")
                assert not reported[name].restored, (name, reported[name])
                assert reported[name].reason
                seen["named"] += 1
            else:
                seen["restored"] += moved.get(name) != places[name]
    return seen


@pytest.mark.parametrize("chunk", [*range(2), *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 40))])
def test_an_undo_restores_each_subscriber_or_names_it(chunk: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(chunk * 60, (chunk + 1) * 60):
        try:
            seen += asyncio.run(run_world(seed))
        except Exception as error:
            error.add_note(f"seed={seed}")
            raise
    assert seen["undone"] > 10
    assert seen["restored"] > 10
    assert seen["named"] > 0
