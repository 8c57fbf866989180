"""The JSON of the store's answers about retention, byte for byte: docs/formats/planner.md. One script of a stream's life."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from controller_world import STREAM, cut_at, join, name_of, scale_to, seg, with_stream
from memory_segments import MemorySegments

from penstock.model.retention import Backlog, Idle, OnExceed, PolicyDocument, Retain
from penstock.net.http.reading_requests import json_response
from penstock.testing.fakes import FakeClock

GOLDEN = Path(__file__).with_name("golden_answers.jsonl")
ONE, LEFT, RIGHT = seg(0, 0), seg(1, 1), seg(1, 2)
STRICT = PolicyDocument(
    retain=Retain(min_bytes=10, max_bytes=60),
    backlog=Backlog(ttl_s=40, max_bytes=50, on_exceed=OnExceed.HOLD),
    idle=Idle(subscriber_s=600),
    grace_s=3600,
)


async def answers() -> list[str]:
    """One line for each answer, in the order of the calls."""
    found: list[str] = []

    async def put(answer: Awaitable[Any]) -> None:
        text = bytes(json_response(await answer).body).decode()
        # How much the disk of memory holds depends on how well the stored records compress.
        text = re.sub(r'("what":"disk",[^}]*"used_bytes":)\d+', r"\g<1>0", text)
        if text.startswith('{"version":1,"id"'):
            # Sentences for people are not parsed by anybody.
            text = re.sub(r'("(?:why|sentence)":)"(?:[^"\\]|\\.)*"', r'\1""', text)
        found.append(text)

    segments, clock = MemorySegments(), FakeClock()
    async with with_stream(segments, 1, clock) as controller:

        async def ask() -> None:
            await put(controller.retention.plan(STREAM))
            await put(controller.retention.explain(STREAM))
            await put(controller.retention.facts(STREAM))
            await put(controller.retention.reclaim(STREAM))
            await put(controller.retention.forecast(STREAM))
            await put(controller.retention.list_evictions(STREAM))

        await ask()
        await controller.policies.set(STREAM, PolicyDocument(retain=Retain(min_age_s=3600)))
        await join(controller, "g", {ONE: 0})
        await join(controller, "h", {ONE: 0})
        for _ in range(4):
            segments.write(name_of(ONE), b"x" * 10, event_bytes=5)
            clock.ms += 1000
            await put(controller.retention.run(STREAM))
        await scale_to(controller, 2)
        segments.write(name_of(LEFT), b"y" * 30, event_bytes=10)
        clock.ms += 1000
        await ask()
        await put(controller.retention.plan(STREAM, change=STRICT, at_ms=clock.ms + 700_000))
        await put(controller.retention.facts(STREAM, change=STRICT))
        await put(controller.subscribers.move(STREAM, "s/h", cut_at({ONE: 25}), dry_run=True))
        await put(controller.subscribers.move(STREAM, "s/h", cut_at({ONE: 7})))
        await controller.holds.add(STREAM, owner="legal", reason="case 7", cut=cut_at({ONE: 20}), hold_id="seven")
        segments.write(name_of(RIGHT), b"z" * 40, event_bytes=10)
        await controller.policies.set(STREAM, STRICT)
        clock.ms += 30_000
        await ask()
        await put(controller.retention.run(STREAM))
        await controller.holds.release("seven", owner="legal")
        clock.ms += 30_000
        await ask()
        await put(controller.retention.run(STREAM))
        await ask()
        for offset in (1, 15, 35):
            await put(controller.retention.explain(STREAM, position=cut_at({ONE: offset})))
        await put(controller.retention.explain(STREAM, position=await controller.cuts.tail(STREAM)))
        clock.ms += 600_000
        await put(controller.retention.plan(STREAM))
        await put(controller.retention.run(STREAM))
        await put(controller.retention.undo(STREAM, since_ms=clock.ms - 1_000_000))
        await ask()
    return found


def test_the_json_of_each_answer_is_as_it_ever_was() -> None:
    lines = asyncio.run(answers())
    assert [json.loads(line) for line in lines] == [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    assert lines == GOLDEN.read_text().splitlines()
