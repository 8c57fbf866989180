"""Acknowledged means kept: through ``kill -9`` of the real server, seen by the official client."""

import pytest

from tests.crash import kill_cycles

pytestmark = pytest.mark.server


def test_the_checker_reports_each_anomaly():
    clean = kill_cycles.check(["a 0", "a 1"], ["a 0", "a 1", "a 2"])
    assert clean == {"lost": 0, "duplicated": 0, "out_of_order": 0}
    assert kill_cycles.check(["a 0", "a 1"], ["a 1"])["lost"] == 1
    assert kill_cycles.check(["a 0"], ["a 0", "a 0"]) == {"lost": 0, "duplicated": 1, "out_of_order": 1}
    assert kill_cycles.check([], ["a 1", "a 0"])["out_of_order"] == 1


def test_no_acknowledged_event_is_lost_doubled_or_reordered_over_kills(tmp_path):
    # The many kills are those of test_kills.py; these are seen by the official client.
    summary = kill_cycles.run(tmp_path, 2, seed=7)
    # A batch of 100 before each kill and after the last; the client takes ten seconds to get back to a new server.
    assert summary["acked"] >= 300, summary
    anomalies = [name for name in summary if name.endswith(("lost", "duplicated", "out_of_order"))]
    assert len(anomalies) == 6
    assert all(summary[name] == 0 for name in anomalies), summary
