"""``kill -9`` and SIGSTOP of real servers under everything that clients do; the history is checked."""

import asyncio

import pytest

from penstock.testing.crash import kills
from penstock.testing.crash.states import scratch

pytestmark = pytest.mark.server


def test_no_promise_is_broken_over_60_kills(tmp_path_factory):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory(dir=scratch(), prefix="penstock-kills-") as name:
        result = asyncio.run(kills.run(Path(name) / "data", cycles=60, seed=7))
    assert not result.anomalies, "\n".join([*result.anomalies[:10], *result.last[-40:]])
    assert result.cycles == 60
    assert result.pauses > 5
    assert result.acked > 500
    assert result.reads > result.acked
