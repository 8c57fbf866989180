"""``kill -9`` and SIGSTOP of real servers under everything that clients do; the history is checked."""

import asyncio
import tempfile
from pathlib import Path

import pytest

from penstock.testing.crash import kills
from penstock.testing.crash.states import scratch

pytestmark = pytest.mark.server
PLANTED = str(Path(__file__).parents[1] / "simulation")


@pytest.fixture
def memory():
    """A directory in memory, where there is one: a start writes files full of zeros."""
    with tempfile.TemporaryDirectory(dir=scratch(), prefix="penstock-kills-") as name:
        yield Path(name)


def test_no_promise_is_broken_over_60_kills(memory):
    result = asyncio.run(kills.run(memory / "data", cycles=60, seed=7))
    assert not result.anomalies, "\n".join([*result.anomalies[:10], *result.last[-40:]])
    assert result.cycles == 60
    assert result.pauses > 5
    assert result.acked > 500
    assert result.reads > result.acked


@pytest.mark.slow
@pytest.mark.parametrize("bug", ["planted:leases_are_ignored", "planted_more:answers_come_from_memory"])
def test_bugs_planted_in_the_server_are_found(bug, memory, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{PLANTED}:{Path(kills.__file__).parents[3]}")
    for seed in range(5):
        result = asyncio.run(kills.run(memory / str(seed) / "data", cycles=25, seed=seed, planted=bug))
        if result.anomalies:
            return
    pytest.fail(f"{bug} was not found")
