"""Streams that scale by rate under loads of many kinds: they follow the load, and take no change back without reason.

    pytest -m slow -s tests/core/test_scaling_loads.py

runs 100 days of each load and each spread of the keys, and prints what each did.
"""

from __future__ import annotations

import pytest
from scaling_loads import LOADS, SHARES, Days, run_days

CHANGES_MAX = 60
"""In a day. The most are those of a busy key or a steep spread of the keys: its range is halved until it is narrow."""

TURNS_MAX = {"diurnal": 2, "weekly": 2, "noisy": 4, "spiky": 13, "drifting": 4}
"""In a day, with evenly spread keys: once up and once down with the day, and with each of six bursts."""


def check(found: Days, load: str, share: str) -> None:
    assert found.most_in_a_day <= CHANGES_MAX
    if share == "even":
        assert found.turns_in_a_day <= TURNS_MAX[load]
    # A change is taken back where the load of these keys has changed by a factor of two, and after the cool-down.
    assert found.undone_times >= 2
    assert found.undone_minutes >= 10


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("load", LOADS)
def test_no_change_is_taken_back_under_a_load_within_a_factor_of_two(load: str, share: str) -> None:
    check(run_days(load, share, 0, 2), load, share)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("load", LOADS)
def test_a_hundred_days_of_any_load_never_flap(load: str, share: str, seed: int) -> None:
    days = 100
    found = run_days(load, share, seed, days)
    print(
        f"\n{load}, {share} keys, seed {seed}: {found.changes / days:.1f} changes a day, {found.most_in_a_day} at most, "
        f"{found.turns_in_a_day} turns at most, {found.most_segments} segments at most, "
        f"taken back after {found.undone_minutes:.0f} min at the earliest and a factor of {found.undone_times:.2f}"
    )
    check(found, load, share)
