"""What the loop looks at and when: what has changed or is due, never all for nothing."""

import asyncio
from dataclasses import replace

import pytest
from controller_world import QUIET, STREAM, config, cut_at, name_of, opened, seg
from hypothesis import given
from hypothesis import strategies as st
from memory_segments import MemorySegments

from penstock.controller import keys, retention_keys
from penstock.controller.retention.due_times import DueTimes
from penstock.controller.retention.points import load_points
from penstock.core.retention.forecast import POINTS_MAX
from penstock.model.errors import InvalidArgumentError
from penstock.model.names import StreamName
from penstock.model.policies import RetentionPolicy, RetentionType
from penstock.model.retention import Backlog, OnExceed, PolicyDocument, Retain
from penstock.testing.fakes import FakeClock

HOUR_MS = 3_600_000
SERVING = replace(QUIET, retention_cycle_ms=HOUR_MS, retention_pause_ms=0, history_ms=0)
ONE = seg(0, 0)


def stream(number):
    return StreamName("s", f"t{number}")


def by_time(minimum, maximum=None):
    return RetentionPolicy(type=RetentionType.TIME, minimum=minimum, maximum=maximum)


class Watched:
    """A controller whose looks are counted. Its timers are real and far away: turns are made by hand."""

    def __init__(self, controller, segments, clock):
        self.controller, self.segments, self.clock = controller, segments, clock
        self.loop = controller._loop
        self.looked = []
        run = self.loop._cycle.run

        async def counted(name, **options):
            self.looked.append(name)
            return await run(name, **options)

        self.loop._cycle.run = counted

    async def turn(self, pass_ms=0):
        self.clock.ms += pass_ms
        self.looked.clear()
        await self.loop.turn()
        return self.users()

    def users(self):
        """Streams of users that were looked at, each as often as it was."""
        return sorted(name for name in self.looked if not name.is_internal)


def scenario(work, *, streams=3, retention=by_time(10_000), settings=SERVING):
    async def run():
        segments, clock = MemorySegments(), FakeClock()
        async with opened(segments, clock, settings) as controller:
            await controller.scopes.create("s")
            for number in range(streams):
                await controller.streams.create(stream(number), config(1, retention))
            # Looks that the creation has asked for are over before anything is written, and earlier.
            await settled()
            clock.ms += 1
            await work(Watched(controller, segments, clock))

    asyncio.run(run())


async def settled():
    """Let what was called dirty be looked at."""
    for _ in range(200):
        await asyncio.sleep(0)


def test_the_first_turn_looks_at_all_and_the_next_ones_at_what_has_changed():
    async def work(watched):
        assert await watched.turn() == [stream(0), stream(1), stream(2)]
        assert await watched.turn(1) == []
        watched.segments.write(name_of(ONE, stream(1)), b"x")
        assert await watched.turn(1) == [stream(1)]
        assert await watched.turn(1) == []

    scenario(work)


def test_streams_without_any_rule_are_not_looked_at_however_much_is_written():
    async def work(watched):
        await watched.turn()
        watched.segments.write(name_of(ONE, stream(1)), b"x")
        assert await watched.turn(1) == []

    scenario(work, retention=None)


def test_a_sweep_leaves_most_of_the_time_to_others():
    """What has changed is looked at while a sweep rests, and the sweep sees every stream once."""

    async def work(watched):
        await watched.turn()
        asleep, rests = asyncio.sleep, []

        async def counted(delay, *args):
            rests.append(delay)
            await asleep(0 if delay < 60 else delay, *args)

        asyncio.sleep = counted
        try:
            watched.looked.clear()
            watched.loop.dirty_all(None)
            while len(watched.users()) < 130:
                await asleep(0)
            assert watched.users() == sorted(map(stream, range(130)))
            assert sum(0 < delay < 60 for delay in rests) == 2
        finally:
            asyncio.sleep = asleep

    scenario(work, streams=130)


def test_time_that_has_come_is_enough():
    async def work(watched):
        watched.segments.write(name_of(ONE, stream(1)), b"x" * 10)
        await watched.turn()
        assert await watched.turn(9_999) == []
        assert await watched.turn(1) == [stream(0), stream(1), stream(2)]
        assert (await watched.controller.cuts.head(stream(1))).positions == {ONE: 10}

    scenario(work)


def test_a_policy_of_the_scope_or_the_server_makes_all_below_be_looked_at():
    async def work(watched):
        await watched.turn()
        await watched.controller.policies.set("s", PolicyDocument(retain=Retain(min_bytes=0)))
        watched.looked.clear()
        await settled()
        assert watched.users() == [stream(0), stream(1), stream(2)]
        watched.looked.clear()
        await watched.controller.policies.set(None, PolicyDocument(retain=Retain(min_bytes=0)))
        await settled()
        assert watched.users() == [stream(0), stream(1), stream(2)]
        assert await watched.turn(1) == []

    scenario(work, retention=None)


def test_a_quota_that_no_level_names_any_more_lets_writers_go_on():
    async def work(watched):
        quota = PolicyDocument(backlog=Backlog(max_bytes=20, on_exceed=OnExceed.HOLD))
        await watched.controller.policies.set(None, quota)
        await watched.turn()
        assert [key for key in watched.segments.tables[keys.TABLE].entries if key.startswith(b"quota/")]
        await watched.controller.policies.set(None, PolicyDocument())
        await settled()
        assert not [key for key in watched.segments.tables[keys.TABLE].entries if key.startswith(b"quota/")]

    scenario(work, retention=None)


def test_a_burst_of_calls_is_one_look():
    async def work(watched):
        await watched.turn()
        watched.looked.clear()
        for _ in range(50):
            watched.loop.dirty(stream(2))
        await settled()
        assert watched.looked == [stream(2)]

    scenario(work)


def test_more_dirty_streams_than_are_remembered_means_all(monkeypatch):
    monkeypatch.setattr("penstock.controller.retention.loop.WAITING_MAX", 1)

    async def work(watched):
        await watched.turn()
        watched.loop.dirty(stream(0))
        watched.loop.dirty(stream(1))
        assert set(await watched.turn()) == {stream(0), stream(1), stream(2)}

    scenario(work)


def test_changes_that_cannot_be_told_any_more_mean_all():
    async def work(watched):
        await watched.turn()
        watched.loop._mark = -1
        assert await watched.turn() == [stream(0), stream(1), stream(2)]

    async def forgetful(watched):
        tell = watched.segments.changed_segments

        async def changed_segments(after):
            changes = await tell(max(after, 0))
            return replace(changes, complete=after >= 0, names=changes.names if after >= 0 else ())

        watched.segments.changed_segments = changed_segments
        await work(watched)

    scenario(forgetful)


def test_a_look_that_fails_is_made_again_and_stops_no_other():
    async def work(watched):
        await watched.turn()
        for number in range(3):
            watched.segments.write(name_of(ONE, stream(number)), b"x")
        broken = watched.segments.segments.pop(name_of(ONE, stream(1)))
        assert await watched.turn(1) == [stream(0), stream(1), stream(2)]
        watched.segments.segments[name_of(ONE, stream(1))] = broken
        assert await watched.turn(59_000) in ([], [stream(0), stream(2)])
        assert stream(1) in await watched.turn(2_000)

    scenario(work)


def test_a_met_limit_is_looked_at_at_once():
    async def work(watched):
        controller, segments = watched.controller, watched.segments
        await controller.policies.set(stream(0), PolicyDocument(backlog=Backlog(max_bytes=20, on_exceed=OnExceed.HOLD)))
        await settled()
        watched.looked.clear()
        segments._reached[str(stream(0))] = None
        segments._met.set()
        await settled()
        assert stream(0) in watched.looked

    scenario(work)


def test_graced_bytes_go_in_the_turn_after_their_time():
    async def work(watched):
        controller, segments = watched.controller, watched.segments
        segments.write(name_of(ONE, stream(0)), b"x" * 10)
        await controller.policies.set(stream(0), PolicyDocument(grace_s=60))
        await watched.turn()
        await controller.streams.truncate(stream(0), cut_at({ONE: 4}, stream(0)))
        await settled()
        segment = segments.segments[name_of(ONE, stream(0))]
        await watched.turn(59_999)
        assert segment.oldest == 0
        await watched.turn(1)
        assert segment.oldest == 4

    scenario(work, retention=None)


def test_grace_of_an_earlier_life_is_found():
    async def run():
        segments, clock = MemorySegments(), FakeClock()
        async with opened(segments, clock, SERVING) as controller:
            await controller.scopes.create("s")
            await controller.streams.create(STREAM, config(1))
            segments.write(name_of(ONE), b"x" * 10)
            await controller.policies.set(STREAM, PolicyDocument(grace_s=60))
            await controller.streams.truncate(STREAM, cut_at({ONE: 4}))
        async with opened(segments, clock, SERVING) as controller:
            clock.ms += 60_000
            await controller._loop.turn()
            await controller._loop.turn()
            assert segments.segments[name_of(ONE)].oldest == 4

    asyncio.run(run())


def test_a_turn_in_which_nothing_happened_writes_nothing():
    async def work(watched):
        await watched.turn()
        await watched.turn(1)
        await watched.controller.drain_audit()
        written = watched.segments.mutations
        await watched.turn(1)
        assert watched.segments.mutations == written

    scenario(work)


def test_the_clock_is_recorded_with_what_was_recorded_by_it():
    async def work(watched):
        watched.segments.write(name_of(ONE, stream(0)), b"x")
        await watched.turn(5)
        found = await watched.controller._ctx.metadata.entries([retention_keys.CLOCK])
        assert found[0].version > 0

    scenario(work)


def test_points_are_written_and_thinned_and_forecast_from(monkeypatch):
    monkeypatch.setattr("penstock.controller.retention.points.POINTS_MAX", 60)
    monkeypatch.setattr("penstock.controller.retention.points._THIN_EVERY", 8)

    async def work(watched):
        controller = watched.controller
        for _ in range(150):
            watched.segments.write(name_of(ONE, stream(0)), b"x" * 10)
            await watched.turn(SERVING.tail_record_ms + 1)
        points = await load_points(controller._ctx, stream(0))
        assert 40 < len(points) <= 60
        answer = await controller.retention.forecast(stream(0))
        assert len(answer.history) <= POINTS_MAX
        assert answer.history == sorted(answer.history)
        per_s = 10_000 / (SERVING.tail_record_ms + 1)
        assert abs(answer.append_bytes_per_s - per_s) < per_s / 100
        (limit,) = [item for item in answer.reaches if item.what == "retain.max_bytes"]
        left = (limit.limit_bytes - limit.used_bytes) / per_s * 1000
        assert abs(limit.at_ms - answer.at_ms - left) < left / 50

    keeps = RetentionPolicy(type=RetentionType.SIZE, minimum=0, maximum=1 << 20)
    document = PolicyDocument(retain=Retain(min_bytes=1 << 19, max_bytes=1 << 20))

    async def with_limit(watched):
        await watched.controller.policies.set(stream(0), document)
        await settled()
        await work(watched)

    scenario(with_limit, streams=1, retention=keeps)


# --- due times -----------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, 50)), max_size=80), st.integers(0, 50))
def test_each_stream_is_due_at_the_time_that_was_set_last(changes, now_ms):
    due, model = DueTimes(limit=10), {}
    for number, at_ms in changes:
        due.set(stream(number), at_ms)
        model.pop(number, None)
        if at_ms is not None:
            model[number] = at_ms
    wanted = sorted((at_ms, stream(number)) for number, at_ms in model.items() if at_ms <= now_ms)
    found = due.pop(now_ms)
    assert sorted(found) == sorted(name for _, name in wanted)
    assert [model[int(name.stream[1:])] for name in found] == [at_ms for at_ms, _ in wanted]
    assert due.pop(now_ms) == []
    assert len(due) == len(model) - len(found)


def test_memory_is_bounded_and_says_so():
    due = DueTimes(limit=100)
    for number in range(100):
        for at_ms in range(50):
            due.set(stream(number), at_ms)
    assert not due.overflowed
    assert len(due._heap) <= 2 * 100 + 65
    due.set(stream(100), 1)
    assert due.overflowed
    assert len(due) == 100
    due.clear()
    assert not due.overflowed


def test_a_policy_of_a_refused_name_does_not_stop_the_sweeps():
    async def work(watched):
        await watched.turn()
        watched.looked.clear()
        with pytest.raises(InvalidArgumentError):
            await watched.controller.policies.set("\ud800", PolicyDocument(retain=Retain(max_bytes=10)))
        await settled()
        await watched.controller.policies.set("s", PolicyDocument(retain=Retain(max_bytes=10)))
        await settled()
        assert watched.users() == [stream(0), stream(1), stream(2)]

    scenario(work)


def test_a_scope_whose_sweep_meets_a_defect_stops_neither_the_others_nor_later_sweeps():
    async def work(watched):
        await watched.turn()
        watched.looked.clear()
        pages = watched.loop._pages

        def broken(prefix, *, all_of):
            if all_of == "bad":
                raise ZeroDivisionError
            return pages(prefix, all_of=all_of)

        watched.loop._pages = broken
        for _ in range(2):
            watched.looked.clear()
            watched.loop.dirty_all("bad")
            watched.loop.dirty_all("s")
            await settled()
            assert watched.users() == [stream(0), stream(1), stream(2)]
        watched.loop._pages = pages

    scenario(work)


def test_a_stream_whose_look_meets_a_defect_stops_no_other():
    async def work(watched):
        await watched.turn()
        run = watched.loop._cycle.run

        async def broken(name, **options):
            if name == stream(1):
                raise ZeroDivisionError
            return await run(name, **options)

        watched.loop._cycle.run = broken
        for _ in range(2):
            watched.looked.clear()
            for number in range(3):
                watched.loop.dirty(stream(number))
            await settled()
            assert watched.users() == [stream(0), stream(2)]

    scenario(work)
