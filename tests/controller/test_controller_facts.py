"""The facts that a controller tells are those that it decides on."""

from __future__ import annotations

import asyncio
import json

import pytest
from controller_world import STREAM, name_of, seg, with_stream
from memory_segments import MemorySegments

from penstock.codec.answers import as_json
from penstock.core.planner_json.requests import plan_line
from penstock.model.errors import InvalidArgumentError, StreamNotFoundError
from penstock.model.names import StreamName
from penstock.model.retention import PolicyDocument, Retain
from penstock.testing.fakes import FakeClock

NAME = name_of(seg(0, 0))
OWN = ("candidate", "truncate", "rule", "record", "frees_bytes", "held_by", "next_due_ms", "expire", "evict", "writers")


def test_who_decides_on_the_told_facts_decides_as_the_controller() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            await controller.policies.set(STREAM, PolicyDocument(retain=Retain(min_age_s=20)))
            for _ in range(5):
                segments.write(NAME, b"x" * 10)
                clock.ms += 10_000
                await controller.retention.run(STREAM)
            await controller.holds.add(STREAM, owner="legal", reason="case", hold_id="case")
            for change in (None, PolicyDocument(retain=Retain(min_age_s=5, max_age_s=50)), PolicyDocument()):
                line = await controller.retention.facts(STREAM, change=change)
                plan = await controller.retention.plan(STREAM, change=change)
                reported = plan_line(json.dumps(as_json(line)))
                assert {name: reported[name] for name in OWN} == {name: as_json(plan)[name] for name in OWN}
                assert (line.id, line.stream.scope) == (str(STREAM), STREAM.scope)
            assert line.hold[0].id == "case"

    asyncio.run(work())


def test_facts_are_told_of_what_is_there_with_a_change_that_can_be() -> None:
    async def work() -> None:
        async with with_stream(MemorySegments(), 1) as controller:
            with pytest.raises(StreamNotFoundError):
                await controller.retention.facts(StreamName("s", "absent"))
            with pytest.raises(InvalidArgumentError):
                await controller.retention.facts(STREAM, change=PolicyDocument(retain=Retain(min_bytes=2, max_bytes=1)))

    asyncio.run(work())
