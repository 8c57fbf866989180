"""The retention clock under jumps of the wall clock, within a life and between lives: data never ages faster than time."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_segments import MemorySegments

from penstock.app.telemetry import Counters
from penstock.controller.metadata import Metadata
from penstock.controller.retention.clock import RetentionClock
from penstock.controller.set_aside import SetAside
from penstock.testing.fakes import FakeClock

HOUR_MS = 3_600_000
SLACK_MS = HOUR_MS


class Machine:
    """Real time, and a wall clock that may be wrong about it."""

    def __init__(self):
        self.real_ms = 0
        self.wall = FakeClock()
        self.metadata = Metadata(MemorySegments())

    def pass_ms(self, real_ms):
        self.real_ms += real_ms
        self.wall.ms += real_ms

    async def boot(self):
        await self.metadata.bootstrap()
        clock = RetentionClock(
            self.metadata, self.wall, lambda: self.real_ms / 1000, SetAside(Counters()), slack_ms=SLACK_MS
        )
        await clock.start()
        return clock


@pytest.mark.parametrize("jump_ms", [-HOUR_MS, HOUR_MS, 100 * HOUR_MS])
def test_a_jump_within_a_life_ages_nothing(jump_ms):
    async def run():
        machine = Machine()
        clock = await machine.boot()
        began = clock.now_ms()
        machine.pass_ms(1000)
        machine.wall.ms += jump_ms
        machine.pass_ms(1000)
        assert clock.now_ms() - began == 2000

    asyncio.run(run())


@pytest.mark.parametrize("jump_ms", [-HOUR_MS, 0, HOUR_MS])
@pytest.mark.parametrize("away_ms", [10, HOUR_MS // 2, 50 * HOUR_MS])
def test_a_jump_between_lives_ages_nothing_early(jump_ms, away_ms):
    async def run():
        machine = Machine()
        clock = await machine.boot()
        machine.pass_ms(5000)
        await clock.record()
        before = clock.now_ms()
        machine.wall.ms += jump_ms
        machine.pass_ms(away_ms)
        after = (await machine.boot()).now_ms()
        assert before <= after <= before + away_ms
        # What is not believed is an hour at most, and the jump.
        assert after >= before + away_ms - SLACK_MS - max(0, -jump_ms)

    asyncio.run(run())


def test_a_first_start_begins_with_the_wall_clock():
    async def run():
        machine = Machine()
        assert (await machine.boot()).now_ms() == machine.wall.ms

    asyncio.run(run())


@given(st.integers(0, 1 << 32))
def test_an_age_by_this_clock_is_never_more_than_real(seed):
    """Lives of any length, with wall clocks that jump by up to an hour in all between two records."""

    async def run():
        rng, machine = random.Random(seed), Machine()
        clock = await machine.boot()
        await clock.record()
        marks = [(machine.real_ms, clock.now_ms())]
        for _ in range(rng.randrange(1, 30)):
            what = rng.randrange(4)
            if what == 0:
                machine.pass_ms(rng.choice((0, 1, 1000, 40 * HOUR_MS)))
            elif what == 1:
                await clock.record()
            elif what == 2:
                machine.wall.ms += rng.choice((-HOUR_MS, HOUR_MS // 2, -5000))
                await clock.record()
            else:
                # A crash: the clock was recorded with the last thing that it was used for.
                await clock.record()
                machine.wall.ms += rng.randrange(-HOUR_MS, HOUR_MS + 1)
                machine.pass_ms(rng.choice((0, 500, 2 * HOUR_MS, 100 * HOUR_MS)))
                clock = await machine.boot()
            marks.append((machine.real_ms, clock.now_ms()))
        for (real, shown), (later_real, later_shown) in zip(marks, marks[1:], strict=False):
            assert 0 <= later_shown - shown <= later_real - real + 1  # of a fraction of a millisecond

    asyncio.run(run())


def test_a_users_time_has_come_by_both_clocks():
    async def run():
        machine = Machine()
        clock = await machine.boot()
        until = machine.wall.ms + 10_000
        machine.wall.ms += HOUR_MS
        assert clock.now_ms() < clock.until_ms(until)  # the wall clock alone says that it is over
        machine.wall.ms -= 2 * HOUR_MS
        machine.pass_ms(20_000)
        assert clock.now_ms() < clock.until_ms(until)  # the retention clock alone does
        machine.wall.ms += HOUR_MS
        assert clock.now_ms() >= clock.until_ms(until)

    asyncio.run(run())


def test_an_idle_clock_writes_nothing():
    async def run():
        machine = Machine()
        clock = await machine.boot()
        machine.pass_ms(10)
        await clock.record()
        written = machine.metadata._segments.mutations
        await clock.record()
        assert machine.metadata._segments.mutations == written

    asyncio.run(run())


def test_what_was_stamped_while_the_wall_clock_lagged_is_not_older_for_it():
    async def run():
        machine = Machine()
        clock = await machine.boot()
        machine.wall.ms -= HOUR_MS
        real = clock.now_ms()
        stamp = machine.wall.ms
        machine.wall.ms += HOUR_MS
        machine.pass_ms(1000)
        assert clock.now_ms() - clock.stamped_ms(stamp) <= clock.now_ms() - real
        await clock.record()
        again = await machine.boot()
        assert again.now_ms() - again.stamped_ms(stamp) <= 1000

    asyncio.run(run())


@pytest.mark.parametrize("back_ms", [3 * HOUR_MS, HOUR_MS - 100_000])
def test_a_clock_that_was_wrong_and_is_set_right_while_nothing_is_recorded_ages_nothing_at_the_next_start(back_ms):
    async def run():
        machine = Machine()
        clock = await machine.boot()
        machine.wall.ms -= back_ms
        machine.pass_ms(1000)
        await clock.record()
        machine.wall.ms += back_ms
        machine.pass_ms(1000)
        # A cycle in which no stream has grown.
        await clock.record_moves()
        before = clock.now_ms()
        machine.pass_ms(70_000)
        assert (await machine.boot()).now_ms() <= before + 70_000

    asyncio.run(run())


def test_a_wall_clock_that_only_drifts_is_not_recorded_for_it():
    async def run():
        machine = Machine()
        clock = await machine.boot()
        await clock.record()
        written = machine.metadata._segments.mutations
        for _ in range(10):
            machine.wall.ms += 1000
            machine.pass_ms(60_000)
            await clock.record_moves()
        assert machine.metadata._segments.mutations == written

    asyncio.run(run())


def test_a_life_that_never_began_leaves_what_was_recorded_alone():
    async def run():
        machine = Machine()
        clock = await machine.boot()
        await clock.record()
        before = clock.now_ms()
        machine.wall.ms += 100 * HOUR_MS
        failed = RetentionClock(machine.metadata, machine.wall, lambda: 0.0, SetAside(Counters()), slack_ms=SLACK_MS)
        await failed.record()
        machine.wall.ms -= 100 * HOUR_MS
        assert (await machine.boot()).now_ms() == before

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(60))
def test_what_began_in_any_life_lasts_through_those_that_follow(seed):
    """Lives end at any moment, with no record since long ago, and the wall clock errs by half an hour either way."""
    rng = random.Random(seed)

    async def run():
        machine = Machine()
        began: list[tuple[int, int]] = []
        for _ in range(8):
            machine.wall.ms = 1_700_000_000_000 + machine.real_ms + rng.choice((-1, 0, 1)) * HOUR_MS // 2
            clock = await machine.boot()
            for _ in range(rng.randrange(3)):
                machine.pass_ms(rng.randrange(HOUR_MS))
                if rng.random() < 0.5:
                    began.append((await clock.lasting_ms(), machine.real_ms))
                if rng.random() < 0.2:
                    await clock.record()
            for begun_ms, begun_real_ms in began:
                assert clock.now_ms() - begun_ms <= machine.real_ms - begun_real_ms
            machine.pass_ms(rng.randrange(HOUR_MS // 4))

    asyncio.run(run())
