"""Everything that takes part in a streaming copy is killed; every event comes once. Long form: ``kill_matrix.py``."""

from __future__ import annotations

from pathlib import Path

import kill_owners
import pytest
import route_kills
from kill_matrix import VICTIMS, event, is_sound, run

pytestmark = [pytest.mark.spark, pytest.mark.server]


@pytest.mark.slow
def test_a_store_and_a_driver_killed_at_their_commits_lose_and_repeat_nothing(tmp_path: Path) -> None:
    summary = run(
        tmp_path, times=2, seed=1, master="local[2]", victims=("store before a commit", "driver after a commit")
    )
    assert is_sound(summary), summary
    assert summary["driver_starts"] >= 2
    assert summary["adopted_chunks"] > 0


def test_a_kill_between_the_commits_of_two_streams_loses_and_repeats_nothing(tmp_path: Path) -> None:
    summary = route_kills.run(tmp_path, [("after 0", "driver")])
    assert route_kills.is_sound(summary), summary
    assert summary["events"] == 2 * 240


@pytest.mark.slow
def test_kills_before_and_after_the_commit_of_each_stream_lose_and_repeat_nothing(tmp_path: Path) -> None:
    kills = [(place, victim) for place in route_kills.PLACES for victim in route_kills.VICTIMS]
    summary = route_kills.run(tmp_path, kills)
    assert route_kills.is_sound(summary), summary
    assert summary["killed"] == {f"{victim} {place}": 1 for place, victim in kills}


@pytest.mark.slow
def test_fifty_kills_of_everything_lose_and_repeat_nothing(tmp_path: Path) -> None:
    summary = run(tmp_path, times=50, seed=1, master="local-cluster[2,1,1024]")
    assert is_sound(summary), summary
    assert set(summary["killed"]) == set(VICTIMS)


@pytest.mark.slow
def test_kills_under_old_and_new_checkpoints_lose_and_repeat_nothing(tmp_path: Path) -> None:
    summary = kill_owners.run(tmp_path, times=3, seed=3, engine="small")
    assert is_sound(summary), summary
    assert summary["admitted"] == []
    assert summary["refusals"]["WriterInUseError"] >= 2


@pytest.mark.slow
def test_fifty_kills_under_old_and_new_checkpoints_lose_and_repeat_nothing(tmp_path: Path) -> None:
    summary = kill_owners.run(tmp_path, times=50, seed=1, engine="small")
    assert is_sound(summary), summary
    assert summary["admitted"] == []
    assert set(summary["sequels"]) == set(kill_owners.SEQUELS)


def test_a_summary_with_anything_wrong_is_not_sound() -> None:
    good = {"missing": 0, "surplus": 0, "out_of_order": 0, "left_files": 0}
    assert is_sound(good)
    assert not any(is_sound(good | {name: 1}) for name in good)
    assert event(12).startswith(b"k5:12:")
    assert len({len(event(number)) for number in (0, 99, 100_000)}) == 1
