"""The whole store under faults while its stream scales by rate and its writers note times; bugs planted there are found."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest
from planted_rates import PLANTED

from penstock.testing.simulation.config import draw_config
from penstock.testing.simulation.driver import RunResult, run_seed
from penstock.testing.simulation.rate_actors import with_rates

PLANTED_SEEDS_MAX = 30
CPU_S_MAX = 120


def run_rates(seed: int, *, seconds: float = 60.0) -> RunResult:
    return run_seed(seed, seconds=seconds, config=with_rates(draw_config(seed)))


def run_all(seeds: Iterable[int], *, seconds: float) -> dict[str, int]:
    done: dict[str, int] = {}
    for seed in seeds:
        result = run_rates(seed, seconds=seconds)
        lines = [f"seed {seed}: {len(result.anomalies)} anomalies", *map(str, result.anomalies[:10])]
        assert not result.anomalies, "\n".join([*lines, "last events:", *result.last[-40:]])
        for what in ("rate_scales split", "rate_scales merge", "watermarks"):
            done[what] = done.get(what, 0) + result.counts.get(what, 0)
        done["bounded"] = done.get("bounded", 0) + result.bounded
        done["crashes"] = done.get("crashes", 0) + result.crashes
    return done


def test_a_stream_that_scales_by_rate_keeps_every_promise_under_faults() -> None:
    done = run_all(range(100, 103), seconds=15)
    print(done)
    # What is not exercised is not shown.
    assert all(count > 0 for count in done.values()), done


@pytest.mark.slow
def test_a_stream_that_scales_by_rate_keeps_every_promise_on_more_seeds() -> None:
    seeds = range(101, 141)
    done = run_all(seeds, seconds=60)
    print(done)
    assert all(count > 5 * len(seeds) for count in done.values()), done


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_the_simulation_finds(name: str) -> None:
    began = time.process_time()
    for seed in range(PLANTED_SEEDS_MAX):
        with PLANTED[name]():
            result = run_rates(seed)
        if result.anomalies:
            print(seed, result.anomalies[0])
            assert time.process_time() - began < CPU_S_MAX
            return
    pytest.fail(f"{name} was not found within {PLANTED_SEEDS_MAX} seeds")
