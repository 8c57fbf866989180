"""The whole store under faults: every promise kept on every seed, and the same run for the same seed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.testing.simulation.config import at_pace, draw_config
from penstock.testing.simulation.driver import run_seed

SEEDS = range(1000, 1024)
SHORT = 1
REGRESSIONS = Path(__file__).with_name("regressions.txt")


def failing_text(result):
    lines = [f"seed {result.seed}: {len(result.anomalies)} anomalies", *map(str, result.anomalies[:10])]
    return "\n".join([*lines, "last events:", *result.last[-40:]])


def regressions():
    for line in REGRESSIONS.read_text().splitlines():
        if line and not line.startswith("#"):
            yield int(line.split()[0])


@pytest.mark.slow
@pytest.mark.parametrize("seed", sorted(set(regressions())))
def test_seeds_that_once_failed_pass(seed):
    result = run_seed(seed)
    assert not result.anomalies, failing_text(result)


def run_all(seeds):
    crashes = acked = reads = 0
    for seed in seeds:
        result = run_seed(seed)
        assert not result.anomalies, failing_text(result)
        crashes, acked, reads = crashes + result.crashes, acked + result.acked, reads + result.reads
    # What is not exercised is not shown.
    assert crashes > 5 * len(seeds)
    assert acked > 500 * len(seeds)
    assert reads > acked


def test_every_promise_is_kept_on_every_seed():
    run_all(SEEDS[:SHORT])


@pytest.mark.slow
def test_every_promise_is_kept_on_more_seeds():
    run_all(SEEDS[SHORT:])


SCRIPT = """
import sys
from penstock.testing.simulation.driver import run_seed
for seed in map(int, sys.argv[2:]):
    result = run_seed(seed, seconds=float(sys.argv[1]))
    print(result.seed, result.trace, result.steps, result.acked, sorted(result.counts.items()))
"""


def traces_of(seeds, seconds, hash_seeds):
    """What processes with different hashes print of the same seeds; they run side by side."""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(seconds), *map(str, seeds)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
        )
        for hash_seed in hash_seeds
    ]
    printed = [child.communicate()[0] for child in children]
    assert [child.returncode for child in children] == [0] * len(children)
    return printed


def test_one_seed_is_one_run_in_every_process():
    seeds = range(2)
    first, second = traces_of(seeds, 3, ("0", "77"))
    assert first == second
    assert len(first.splitlines()) == len(seeds)


@pytest.mark.slow
def test_one_whole_seed_is_one_run_in_every_process():
    seeds = range(40, 64)
    first, second = traces_of(seeds, 60, ("1", "4711"))
    assert first == second
    assert len(first.splitlines()) == len(seeds)


@pytest.mark.slow
def test_at_a_slower_pace_too_every_promise_is_kept():
    result = run_seed(30_000, seconds=600, config=at_pace(draw_config(30_000), 10))
    assert not result.anomalies, failing_text(result)
    assert result.virtual_s > 600
