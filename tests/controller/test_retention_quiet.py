"""A stream that nobody writes to reaches what its policy promises, without waiting for the next append."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from operator import attrgetter

import pytest
from controller_world import QUIET, STREAM, config, name_of, opened, seg
from memory_segments import MemorySegments
from quiet_world import run_world

from penstock.model.retention import PolicyDocument, Retain
from penstock.testing.fakes import FakeClock

ONE = seg(0, 0)
SERVING = replace(QUIET, retention_cycle_ms=3_600_000, retention_pause_ms=0, history_ms=0)
"""Turns are made by hand: the loop's own lie an hour away."""


def test_a_stream_over_its_maximum_comes_down_to_its_minimum_without_another_write() -> None:
    async def run() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with opened(segments, clock, SERVING) as controller:
            await controller.scopes.create("s")
            await controller.streams.create(STREAM, config())
            await controller.policies.set(STREAM, PolicyDocument(retain=Retain(min_bytes=5_000, max_bytes=35_000)))
            for _ in range(200):  # What the new policy asks for is over before anything is written.
                await asyncio.sleep(0)
            await controller._loop.turn()
            segments.write(name_of(ONE), b"x" * 95_000, event_bytes=100)
            for _ in range(5):
                await controller._loop.turn()
                clock.ms += 600_000
            assert (await controller.streams.describe(STREAM)).size_bytes == 5_000
            explained = await controller.retention.explain(STREAM)
            assert [item.kind for item in explained.ranges] == ["minimum"]
            assert (await controller.retention.plan(STREAM)).frees_bytes == 0

    asyncio.run(run())


def test_one_cycle_by_hand_goes_as_far_as_many() -> None:
    async def run() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with opened(segments, clock, QUIET) as controller:
            await controller.scopes.create("s")
            await controller.streams.create(STREAM, config())
            segments.write(name_of(ONE), b"x" * 95_000, event_bytes=100)
            await controller.policies.set(STREAM, PolicyDocument(retain=Retain(min_bytes=5_000, max_bytes=35_000)))
            done = await controller.retention.run(STREAM)
            assert (done.truncate, done.frees_bytes) == ({"0#0": 90_000}, 90_000)
            assert [(step.rule, step.frees_bytes) for step in done.steps] == [
                ("maximum", 60_000),
                ("minimum", 30_000),
            ]
            assert (await controller.retention.run(STREAM)).frees_bytes == 0

    asyncio.run(run())


@pytest.mark.parametrize("chunk", [*range(4), *(pytest.param(n, marks=pytest.mark.slow) for n in range(4, 100))])
def test_what_a_plan_says_is_what_is_gone_once_the_stream_is_quiet(chunk: int) -> None:
    for seed in range(chunk * 20, (chunk + 1) * 20):
        try:
            asyncio.run(run_world(seed))
        except Exception as error:
            error.add_note(f"seed={seed}")
            raise


class MovingHead(MemorySegments):
    """Before the next read, the stream is truncated at its tail."""

    controller = None

    async def read(self, name, offset, max_bytes, *, wait=True):
        if self.controller is not None:
            controller, self.controller = self.controller, None
            await controller.streams.truncate(STREAM, await controller.cuts.tail(STREAM))
        return await super().read(name, offset, max_bytes, wait=wait)


@pytest.mark.parametrize("question", ["streams.describe", "retention.plan", "retention.explain"])
def test_a_question_is_answered_although_the_head_moves_meanwhile(question) -> None:
    async def run() -> bool:
        segments, clock = MovingHead(), FakeClock()
        async with opened(segments, clock, QUIET) as controller:
            await controller.scopes.create("s")
            await controller.streams.create(STREAM, config())
            await controller.policies.set(STREAM, PolicyDocument(retain=Retain(min_bytes=5_030, max_bytes=35_050)))
            segments.write(name_of(ONE), b"x" * 95_000, event_bytes=100)
            segments.controller = controller
            assert await attrgetter(question)(controller)(STREAM) is not None
            return segments.controller is not None

    assert not asyncio.run(run()), "the head was not moved"
