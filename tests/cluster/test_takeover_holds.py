"""After a takeover, no chunk is freed for a day of serving, whatever the wall clock shows."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as some

from penstock.app.replicated.log_place import LogMark, read_mark, write_mark
from penstock.app.replicated.takeover import held_after_takeover
from penstock.model.errors import StorageFullError
from penstock.ports.holds import NoHolds, SpaceHolds
from penstock.testing import FakeClock, InlineOffload
from tests.cluster import virtual_time
from tests.cluster.virtual_time import run_virtually

DAY_S = 86_400
NOTED_S = 600
"""A restart repeats at most as much of the day."""
MARK = LogMark(uid="log", url="bookkeeper://zk:1/s", home="here", hold_s=DAY_S)
Open = Callable[[Path, FakeClock], AbstractAsyncContextManager[SpaceHolds]]


def as_store(data: Path, clock: FakeClock) -> AbstractAsyncContextManager[SpaceHolds]:
    return held_after_takeover(data, NoHolds(), offload=InlineOffload())


@asynccontextmanager
async def by_the_wall_clock(data: Path, clock: FakeClock) -> AsyncIterator[SpaceHolds]:
    """Planted: how the day was measured before."""
    until_ms = FakeClock().ms + DAY_S * 1000

    class Holds(NoHolds):
        @contextmanager
        def chunks(self) -> Iterator[bool]:
            yield clock.now_ms() >= until_ms

    yield Holds()


def may_free(holds: SpaceHolds) -> bool:
    with holds.chunks() as free, holds.log() as log_too:
        assert log_too, "the log may be truncated"
        return free


def serve(lives: list[list[tuple[int, int]]], *, opening: Open = as_store) -> None:
    """Each life is steps: how many seconds it serves, and how far the wall clock jumps then, in seconds."""

    async def scenario(data: Path) -> None:
        clock = FakeClock()
        write_mark(data, MARK)
        served_s = 0
        for life in lives:
            async with opening(data, clock) as holds:
                for seconds, jump_s in life:
                    await asyncio.sleep(seconds)
                    served_s += seconds
                    clock.ms += seconds * 1000
                    clock.jump(jump_s * 1000)
                    if served_s < DAY_S:
                        assert not may_free(holds), f"after {served_s} s"
                    elif served_s >= DAY_S + (NOTED_S + 1) * len(lives):
                        assert may_free(holds), f"after {served_s} s"

    with tempfile.TemporaryDirectory() as name:
        run_virtually(scenario(Path(name)))


@pytest.fixture(autouse=True)
def days(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_time, "VIRTUAL_MAX_S", 30 * DAY_S)


STEPS = some.tuples(some.integers(0, DAY_S // 3), some.integers(-2 * DAY_S, 2 * DAY_S))


@settings(max_examples=10)
@given(lives=some.lists(some.lists(STEPS, max_size=5), max_size=5))
@example(lives=[[(1, 2 * DAY_S)], [(1, 0), (DAY_S, 0), (NOTED_S * 3, 0)]])
def test_no_chunk_is_freed_for_a_day_of_serving_however_the_wall_clock_jumps(
    lives: list[list[tuple[int, int]]],
) -> None:
    serve(lives)


def test_planted_a_day_by_the_wall_clock_is_found() -> None:
    with pytest.raises(AssertionError, match="after 1 s"):
        serve([[(1, 2 * DAY_S)]], opening=by_the_wall_clock)


def test_the_hold_leaves_the_mark_when_it_ends_and_a_full_disk_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mark(tmp_path, MARK)

    def full(*_: object) -> None:
        raise StorageFullError("disk is full")

    async def scenario() -> None:
        async with as_store(tmp_path, FakeClock()) as holds:
            with monkeypatch.context() as once:
                once.setattr("penstock.app.replicated.takeover.write_mark", full)
                await asyncio.sleep(DAY_S / 2)
            assert read_mark(tmp_path) == MARK
            await asyncio.sleep(DAY_S / 2 + NOTED_S)
            assert may_free(holds)
        mark = read_mark(tmp_path)
        assert mark is not None
        assert mark.hold_s is None
        async with as_store(tmp_path, FakeClock()) as holds:
            assert may_free(holds)

    run_virtually(scenario())
