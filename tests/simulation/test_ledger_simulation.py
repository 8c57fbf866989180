"""A log on simulated bookies and its owners under faults; and bugs planted in it are found."""

from __future__ import annotations

import pytest
from planted_ledgers import PLANTED
from planted_wipes import PLANTED_WIPES

from penstock.testing.simulation.ledgers.history import LogHistory
from penstock.testing.simulation.ledgers.run import LogRunResult, run_log_seed

SEEDS = range(12)
PLANTED_SEEDS_MAX = 20
WIPES_SEEDS_MAX = 30
"""Of wipes, some bugs show in one of ten seeds only."""
SECONDS = 20.0


def failing_text(result: LogRunResult) -> str:
    return "\n".join([f"seed {result.seed}:", *result.anomalies[:10], "last events:", *result.last])


def test_nothing_acknowledged_is_lost_doubled_or_reordered() -> None:
    results = [run_log_seed(seed, seconds=SECONDS) for seed in SEEDS]
    for result in results:
        assert not result.anomalies, failing_text(result)
    # What is not exercised is not shown.
    assert sum(result.acknowledged for result in results) > 60 * len(SEEDS)
    assert sum(result.replays for result in results) > 4 * len(SEEDS)
    assert sum(result.rivals for result in results) > 4 * len(SEEDS)
    assert sum(result.ledgers for result in results) > 10 * len(SEEDS)
    assert sum(result.fences for result in results) > 2 * len(SEEDS)


def check_wipes(seeds: range) -> None:
    results = [run_log_seed(seed, seconds=SECONDS, wipes=True) for seed in seeds]
    for result in results:
        assert not result.anomalies, failing_text(result)
    assert sum(result.wipes for result in results) > len(seeds)


def test_nobody_can_read_what_was_wiped() -> None:
    check_wipes(range(6))


@pytest.mark.slow
def test_nobody_can_read_what_was_wiped_in_many_runs() -> None:
    check_wipes(range(6, 206))


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED_WIPES)
def test_the_simulation_of_wipes_finds(name: str) -> None:
    for seed in range(WIPES_SEEDS_MAX):
        with PLANTED_WIPES[name]():
            result = run_log_seed(seed, seconds=SECONDS, wipes=True)
        if result.anomalies:
            return
    pytest.fail(f"{name} was not found within {WIPES_SEEDS_MAX} seeds")


def test_one_seed_is_one_run() -> None:
    first, second = (run_log_seed(7, seconds=5.0) for _ in range(2))
    assert (first.trace, first.acknowledged) == (second.trace, second.acknowledged)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_the_log_simulation_finds(name: str) -> None:
    for seed in range(PLANTED_SEEDS_MAX):
        with PLANTED[name]():
            result = run_log_seed(seed, seconds=SECONDS)
        if result.anomalies:
            return
    pytest.fail(f"{name} was not found within {PLANTED_SEEDS_MAX} seeds")


def history() -> LogHistory:
    found = LogHistory(lambda text: None)
    found.replayed(1, [])
    found.acked(1, 1, b"a")
    found.acked(1, 2, b"b")
    return found


@pytest.mark.parametrize(
    ("replay", "sign"),
    [
        ([(1, b"a")], "lacks 2, which epoch 1 acknowledged"),
        ([(1, b"b"), (2, b"a")], "lacks 1, which epoch 1 acknowledged"),
        ([(1, b"a"), (2, b"b"), (4, b"c")], "gaps"),
        ([(1, b"a"), (2, b"b"), (3, b"b")], "twice"),
    ],
)
def test_the_history_finds(replay: list[tuple[int, bytes]], sign: str) -> None:
    found = history()
    found.replayed(2, replay)
    assert any(sign in text for text in found.anomalies)


def test_the_history_finds_what_a_deposed_owner_acknowledges_and_what_comes_and_goes() -> None:
    found = history()
    found.replayed(2, [(1, b"a"), (2, b"b"), (3, b"unknown")])
    assert not found.anomalies
    found.replayed(3, [(1, b"a"), (2, b"b")])
    assert "which an earlier replay has shown" in found.anomalies[-1]
    found.acked(1, 4, b"zombie")
    assert "after epoch 2 had replayed" in found.anomalies[-2]
    found.acked(3, 4, b"other")
    assert "twice, with other bytes" in found.anomalies[-1]


def test_truncated_frames_may_be_missing() -> None:
    found = history()
    found.truncating(1)
    found.replayed(2, [(2, b"b")])
    assert not found.anomalies
