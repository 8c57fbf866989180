"""Every planted bug is found. One that is not tells what the simulation is blind to."""

import time

import planted
import planted_core
import planted_erasure
import planted_heads
import planted_more
import planted_spark
import pytest

from penstock.testing.simulation.driver import run_seed

SEEDS_MAX = 30
CPU_S_MAX = 60
MODULES = (planted, planted_more, planted_core, planted_erasure, planted_heads, planted_spark)
ALL = [module.PLANTED for module in MODULES]
PLANTED = {name: bug for bugs in ALL for name, bug in bugs.items()}


def test_there_are_enough_of_them():
    assert len(PLANTED) == sum(map(len, ALL)) >= 44


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_the_simulation_finds(name):
    began = time.process_time()
    for seed in range(SEEDS_MAX):
        with PLANTED[name]():
            result = run_seed(seed)
        if result.anomalies:
            assert time.process_time() - began < CPU_S_MAX
            return
    pytest.fail(f"{name} was not found within {SEEDS_MAX} seeds")
