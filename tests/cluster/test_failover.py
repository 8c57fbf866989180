"""Parts of a cluster of real processes fail under load, and clients lose nothing. The long form: tests.crash.failover."""

from __future__ import annotations

import pytest

from tests.cluster.failover_facts import ELECTED
from tests.cluster.failover_kit import Sizes
from tests.cluster.failover_nemesis import KINDS, run

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_each_kind_of_failure_keeps_everything_that_was_acknowledged(engines: None, tmp_path) -> None:
    summary = run(tmp_path / "cluster", len(KINDS), seed=1, sizes=Sizes(containers=4, stores=2))
    assert summary["load_status"] == 0
    assert not any(summary["anomalies"].values()), summary
    assert set(summary["failures"]) == {*KINDS, ELECTED}
    assert summary["takeovers"]["store killed"], "its containers were counted"
    assert summary["increments"] > 0
    assert summary["read"] >= summary["acked"] > 0
