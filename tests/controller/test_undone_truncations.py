"""A truncation that was undone took nothing, and ``explain`` does not name it."""

from __future__ import annotations

import asyncio

from controller_world import STREAM, cut_at, name_of, seg, with_stream
from memory_segments import MemorySegments

from penstock.model.retention import PolicyDocument, Retain
from penstock.testing.fakes import FakeClock

ONE = seg(0, 0)


def test_explain_names_the_truncation_that_took_the_data_and_not_an_undone_one() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            await controller.policies.set(STREAM, PolicyDocument(grace_s=60))
            segments.write(name_of(ONE), b"x" * 100)
            await controller.retention.run(STREAM)
            undone_ms = clock.ms
            await controller.streams.truncate(STREAM, cut_at({ONE: 60}))
            clock.ms += 10_000
            await controller.retention.undo_last(STREAM)
            clock.ms += 3_600_000
            await controller.retention.run(STREAM)
            await controller.policies.set(STREAM, PolicyDocument(retain=Retain(min_bytes=0, max_bytes=10)))
            await controller.retention.run(STREAM)
            gone = (await controller.retention.explain(STREAM, position=cut_at({ONE: 10}))).gone
            assert gone.rule != "manual"
            assert gone.at_ms > undone_ms

    asyncio.run(work())
