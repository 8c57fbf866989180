"""The whole store under faults: every promise kept on every seed, and the same run for the same seed."""

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.testing.simulation.driver import run_seed

SEEDS = 24
FIRST = 1000
REGRESSIONS = Path(__file__).with_name("regressions.txt")


def failing_text(result):
    lines = [f"seed {result.seed}: {len(result.anomalies)} anomalies", *map(str, result.anomalies[:10])]
    return "\n".join([*lines, "last events:", *result.last[-40:]])


def regressions():
    for line in REGRESSIONS.read_text().splitlines():
        if line and not line.startswith("#"):
            yield int(line.split()[0])


@pytest.mark.parametrize("seed", sorted(set(regressions())))
def test_seeds_that_once_failed_pass(seed):
    result = run_seed(seed)
    assert not result.anomalies, failing_text(result)


def test_every_promise_is_kept_on_every_seed():
    crashes = acked = reads = 0
    for seed in range(FIRST, FIRST + SEEDS):
        result = run_seed(seed)
        assert not result.anomalies, failing_text(result)
        crashes, acked, reads = crashes + result.crashes, acked + result.acked, reads + result.reads
    # What is not exercised is not shown.
    assert crashes > 5 * SEEDS
    assert acked > 500 * SEEDS
    assert reads > acked


SCRIPT = """
import sys
from penstock.testing.simulation.driver import run_seed
for seed in map(int, sys.argv[1:]):
    result = run_seed(seed, seconds=20)
    print(result.seed, result.trace, result.steps, result.acked, sorted(result.counts.items()))
"""


def test_one_seed_is_one_run_in_every_process():
    seeds = ["2", "3", "5", "9"]
    traces = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT, *seeds],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": hash_seed},
        ).stdout
        for hash_seed in ("0", "1", "77")
    }
    assert len(traces) == 1
    assert len(next(iter(traces)).splitlines()) == len(seeds)
