"""The daily checkpoint and the key of the audit log, when a store restarts often, clocks jump, and calls overlap."""

import asyncio

from audit_world import decide
from evidence_keys import key_files, signing
from memory_segments import MemorySegments

from penstock.controller.settings import DAY_MS
from penstock.testing.fakes import FakeClock


def test_a_store_that_restarts_twice_a_day_signs_checkpoints(tmp_path):
    async def run():
        segments, clock, found = MemorySegments(), FakeClock(), []
        for life in range(8):
            async with signing(segments, tmp_path, clock) as controller:
                await decide(controller, life)
                await controller.drain_audit()
                await controller.evidence.sweep()
                clock.ms += DAY_MS // 2
                await controller.evidence.sweep()
                found = await controller.evidence.checkpoints() if key_files(tmp_path) else []
        assert 3 <= len(found) <= 5

    asyncio.run(run())


def test_a_clock_that_is_set_back_stops_no_checkpoint(tmp_path):
    async def run():
        segments, clock = MemorySegments(), FakeClock()
        clock.ms += 400 * DAY_MS
        async with signing(segments, tmp_path, clock) as controller:
            await decide(controller, 0)
            await controller.evidence.sweep()
            clock.ms -= 399 * DAY_MS
            for number in range(3):
                await decide(controller, number)
                clock.ms += DAY_MS + 1
                await controller.evidence.sweep()
            assert len(await controller.evidence.checkpoints()) >= 2

    asyncio.run(run())


class SlowSegments(MemorySegments):
    """The first read after ``slow`` was set takes longer than others."""

    slow = False

    async def table_get(self, *args):
        found = await super().table_get(*args)
        for _ in range(50 if self.slow else 0):
            self.slow = False
            await asyncio.sleep(0)
        return found


def test_rotations_at_the_same_time_leave_the_key_that_signs(tmp_path):
    async def run():
        for delay in range(60):
            segments = SlowSegments()
            async with signing(segments, tmp_path / str(delay)) as controller:
                await controller.evidence.log()
                first = asyncio.ensure_future(controller.evidence.rotate_key())
                for _ in range(delay):
                    await asyncio.sleep(0)
                segments.slow = True
                await asyncio.gather(first, controller.evidence.rotate_key())
                await controller.evidence.checkpoint()
                assert len(key_files(tmp_path / str(delay))) == 1

    asyncio.run(run())
