"""Questions about a stream that is scaled meanwhile: a record that is read later has cuts in segments that the history,
read before, does not know."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from controller_world import STREAM, config, cut_at, join, name_of, opened, publish, scale_to, seg, with_stream
from memory_segments import MemorySegments

from penstock.controller.controller import Controller
from penstock.controller.histories import Histories
from penstock.controller.streams.cuts import asked_again
from penstock.model.errors import InvalidCutError, TruncatedError, UnavailableError
from penstock.model.retention import PolicyDocument
from penstock.testing.fakes import FakeClock

Then = Callable[[], Awaitable[object]]


def after_the_history(monkeypatch: pytest.MonkeyPatch, then: Then) -> None:
    """Do this once, right after the next history of the stream was read."""
    read, left = Histories.of, [then]

    async def of(histories, view):
        history = await read(histories, view)
        if view.name == STREAM and left:
            await left.pop()()
        return history

    monkeypatch.setattr(Histories, "of", of)


def test_a_watermark_of_later_segments_is_not_passed(monkeypatch) -> None:
    async def run() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with opened(segments, clock) as controller:
            await controller.scopes.create("s")
            await controller.streams.create(STREAM, replace(config(1), timestamp_aggregation_ms=5000))
            await controller.cuts.note_time(STREAM, "w", 10)
            assert await controller.advance_watermarks() == 1

            async def scaled() -> None:
                await scale_to(controller, 2)
                await controller.cuts.note_time(STREAM, "w", 20)
                assert await controller.advance_watermarks() == 1

            after_the_history(monkeypatch, scaled)
            window = await controller.cuts.time_window(cut_at({seg(0, 0): 0}))
            assert (window.lower_ms, window.upper_ms) == (10, 20)

    asyncio.run(run())


ASKED: dict[str, Callable[[Controller], Awaitable[object]]] = {
    "explain": lambda controller: controller.retention.explain(STREAM),
    "plan": lambda controller: controller.retention.plan(STREAM),
    "facts": lambda controller: controller.retention.facts(STREAM),
    "forecast": lambda controller: controller.retention.forecast(STREAM),
    "subscribers": lambda controller: controller.subscribers.describe(STREAM),
}


@pytest.mark.parametrize("question", ASKED)
def test_a_subscriber_that_publishes_in_later_segments_fails_no_question(question, monkeypatch) -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments) as controller:
            segments.write(name_of(seg(0, 0)), bytes(20))
            await controller.streams.truncate(STREAM, cut_at({seg(0, 0): 10}))
            await join(controller, "g")

            async def scaled() -> None:
                await scale_to(controller, 2)
                await publish(controller, "g", {seg(1, 1): 0, seg(1, 2): 0})

            after_the_history(monkeypatch, scaled)
            await ASKED[question](controller)
            assert (await controller.layout.current(STREAM))[0].segment == seg(1, 1)

    asyncio.run(run())


def test_a_position_that_the_stream_never_had_is_still_the_callers_error() -> None:
    async def run() -> None:
        async with with_stream(MemorySegments()) as controller:
            with pytest.raises(InvalidCutError, match="never had"):
                await controller.retention.explain(STREAM, position=cut_at({seg(7, 7): 0}))

    asyncio.run(run())


def test_bytes_that_grace_keeps_in_later_segments_are_reported(monkeypatch) -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments) as controller:
            await controller.policies.set(STREAM, PolicyDocument(grace_s=3600))
            segments.write(name_of(seg(0, 0)), bytes(20))

            async def scaled() -> None:
                await scale_to(controller, 2)
                segments.write(name_of(seg(1, 1)), bytes(20))
                await controller.streams.truncate(STREAM, cut_at({seg(1, 1): 15, seg(1, 2): 0}))

            after_the_history(monkeypatch, scaled)
            report = await controller.retention.reclaim(STREAM)
            assert report.live_bytes == 5

    asyncio.run(run())


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([InvalidCutError("never had")] * 8, InvalidCutError),
        ([InvalidCutError("never had"), *[TruncatedError("gone")] * 7], UnavailableError),
        ([TruncatedError("gone"), InvalidCutError("never had"), None], None),
    ],
)
def test_the_last_try_decides_what_a_question_raises(errors, expected) -> None:
    left = list(errors)

    @asked_again
    async def question(_owner: object, _stream: object) -> str:
        error = left.pop(0)
        if error is not None:
            raise error
        return "answer"

    if expected is None:
        assert asyncio.run(question(None, STREAM)) == "answer"
    else:
        with pytest.raises(expected):
            asyncio.run(question(None, STREAM))
    assert not left
