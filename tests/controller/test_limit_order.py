"""An older decision about the limit of a stream's writers never replaces a newer one."""

from __future__ import annotations

import asyncio

from controller_world import STREAM, join, name_of, publish, quota, seg, with_stream
from memory_segments import MemorySegments

from penstock.controller.retention.facts import look
from penstock.core.retention.planner import decide
from penstock.model.retention import OnExceed
from penstock.testing.fakes import FakeClock

SEGMENT = seg(0, 0)
NAME = name_of(SEGMENT)


class SlowSegments(MemorySegments):
    """The next limit is only set after ``go``."""

    def __init__(self) -> None:
        super().__init__()
        self.is_slow = False
        self.started, self.go = asyncio.Event(), asyncio.Event()

    async def limit_appends(self, limits) -> None:
        if self.is_slow:
            self.is_slow = False
            self.started.set()
            await self.go.wait()
        await super().limit_appends(limits)


def limit(segments: MemorySegments) -> int | None:
    return segments.limits[str(STREAM)].total_bytes


def test_the_limit_that_a_subscriber_frees_is_not_replaced_by_that_of_a_cycle_that_began_earlier() -> None:
    async def main() -> None:
        segments = SlowSegments()
        async with with_stream(segments, 1, FakeClock()) as controller:
            await controller.policies.set(STREAM, quota(OnExceed.REJECT, max_bytes=100))
            await join(controller, "g", {SEGMENT: 0})
            segments.write(NAME, b"x" * 60, event_bytes=10)
            assert limit(segments) == 100
            segments.is_slow = True
            cycle = asyncio.ensure_future(controller.retention.run(STREAM))
            await segments.started.wait()
            await publish(controller, "g", {SEGMENT: 50})
            for _ in range(50):
                await asyncio.sleep(0)
            segments.go.set()
            await cycle
            for _ in range(50):
                await asyncio.sleep(0)
            assert limit(segments) == 150

    asyncio.run(main())


def test_a_decision_that_was_overtaken_before_it_was_sent_is_made_again() -> None:
    async def main() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 1, FakeClock()) as controller:
            await controller.policies.set(STREAM, quota(OnExceed.REJECT, max_bytes=100))
            await join(controller, "g", {SEGMENT: 0})
            segments.write(NAME, b"x" * 60, event_bytes=10)
            limits, ctx = controller._limits, controller._ctx
            stamp, found = limits.stamp(STREAM), await look(ctx, STREAM)
            verdict = decide(found.facts, now_ms=ctx.retention_clock.now_ms()).writers
            await limits.push(found, verdict, stamp=stamp)
            assert limit(segments) == 100
            stamp = limits.stamp(STREAM)
            await publish(controller, "g", {SEGMENT: 50})
            await limits.renew(STREAM)
            await limits.push(found, verdict, stamp=stamp)
            assert limit(segments) == 150

    asyncio.run(main())


def test_a_stream_that_is_being_deleted_for_idleness_stays_closed_until_the_next_cycle() -> None:
    async def main() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 1, FakeClock()) as controller:
            await controller.policies.set(STREAM, quota(OnExceed.REJECT, max_bytes=100))
            await join(controller, "g", {SEGMENT: 0})
            segments.write(NAME, b"x" * 60, event_bytes=10)
            limits = controller._limits
            await limits.hold(await look(controller._ctx, STREAM), "idle_stream")
            assert limit(segments) == 60
            await limits.renew(STREAM)
            assert limit(segments) == 60, "only the one who holds it knows whether it is deleted"
            await controller.retention.run(STREAM)
            assert limit(segments) == 100

    asyncio.run(main())
