"""Every planted bug is found. One that is not tells what the simulation is blind to."""

import pytest
from planted import PLANTED

from penstock.testing.simulation.driver import run_seed

SEEDS_MAX = 20


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_the_simulation_finds(name):
    for seed in range(SEEDS_MAX):
        with PLANTED[name]():
            result = run_seed(seed)
        if result.anomalies:
            return
    pytest.fail(f"{name} was not found within {SEEDS_MAX} seeds")
