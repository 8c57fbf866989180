"""The cluster of the default run: real engines, three stores and two controllers, and one of each kind is killed."""

from __future__ import annotations

import pytest

from tests.cluster.failover_facts import ELECTED
from tests.cluster.failover_kit import Sizes
from tests.cluster.failover_nemesis import (
    KILL_BOOKIE,
    KILL_CONTROLLER,
    KILL_STORE,
    KILL_ZOOKEEPER,
    PAUSE_STORE,
    run,
)

pytestmark = pytest.mark.server

FAILURES = (KILL_STORE, KILL_CONTROLLER, KILL_BOOKIE, KILL_ZOOKEEPER, PAUSE_STORE)
"""A paused store continues after another one has its containers, and may acknowledge nothing any more."""


def test_a_small_cluster_keeps_what_it_acknowledged_when_one_of_each_kind_fails(engines: None, tmp_path) -> None:
    # No bound on times: the machine runs other tests. tests/cluster/test_failover.py and tests.crash.failover measure.
    summary = run(tmp_path / "cluster", len(FAILURES), seed=1, sizes=Sizes(containers=4), kinds=FAILURES)
    assert summary["load_status"] == 0
    assert not any(summary["anomalies"].values()), summary
    assert set(summary["failures"]) == {*FAILURES, ELECTED}
    assert summary["takeovers"][KILL_STORE], "its containers were counted"
    assert summary["increments"] > 0
    assert summary["visits"] > 0
    assert summary["read"] >= summary["acked"] > 0
