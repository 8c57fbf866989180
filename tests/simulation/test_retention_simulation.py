"""Some days of retention under faults: every law at every step; and bugs planted in the engine are found."""

import pytest
from planted_retention import PLANTED

from penstock.testing.simulation.retention.run import run_retention_seed

PLANTED_SEEDS_MAX = 10
PLANTED_DAYS = 5.0


def failing_text(result):
    lines = [f"seed {result.seed}: {len(result.anomalies)} anomalies", *map(str, result.anomalies[:10])]
    return "\n".join([*lines, "last events:", *result.last[-40:]])


@pytest.mark.parametrize(
    ("seeds", "days", "least"), [((1,), 1.0, 1), pytest.param((1, 2), 2.0, 3, marks=pytest.mark.slow)]
)
def test_every_law_holds_at_every_step(seeds, days, least):
    done = {}
    crashes = moves = 0
    for seed in seeds:
        result = run_retention_seed(seed, days=days)
        assert not result.anomalies, failing_text(result)
        crashes, moves = crashes + result.crashes, moves + result.moves
        for what, count in result.done.items():
            done[what] = done.get(what, 0) + count
    # What is not exercised is not shown.
    assert crashes > 3 * len(seeds)
    assert moves > 3 * len(seeds)
    assert done["appends"] > 100 * len(seeds)
    for what in ("policies", "holds", "scales", "publications", "plans", "audits", "reclaim reports", "streams read"):
        assert done.get(what, 0) >= least, (what, done)


def test_one_seed_is_one_run():
    first, second = (run_retention_seed(7, days=0.25) for _ in range(2))
    assert (first.trace, first.done) == (second.trace, second.done)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_the_month_finds(name):
    for seed in range(PLANTED_SEEDS_MAX):
        with PLANTED[name]():
            result = run_retention_seed(seed, days=PLANTED_DAYS)
        if result.anomalies:
            return
    pytest.fail(f"{name} was not found within {PLANTED_SEEDS_MAX} seeds")
