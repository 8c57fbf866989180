"""Everything that takes part in a streaming copy is killed; every event comes once. At length: ``kill_matrix.py``."""

from __future__ import annotations

from pathlib import Path

import kill_owners
import pytest
from kill_matrix import VICTIMS, event, is_sound, run

pytestmark = [pytest.mark.spark, pytest.mark.server]


def test_a_store_and_a_driver_killed_at_their_commits_lose_and_repeat_nothing(tmp_path: Path) -> None:
    summary = run(
        tmp_path, times=2, seed=1, master="local[2]", victims=("store before a commit", "driver after a commit")
    )
    assert is_sound(summary), summary
    assert summary["driver_starts"] >= 2
    assert summary["adopted_chunks"] > 0


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
