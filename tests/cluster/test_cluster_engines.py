"""The real engines that other tests stand on: they serve, they can be killed, and they come back with their data."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.cluster


def test_bookies_serve_and_a_killed_one_returns_under_its_id(bookies):
    first = bookies.servers[0]
    assert all(bookies.registered(port) for port in bookies.ports)
    ledger = bookies.shell("simpletest", "-ensemble", "3", "-writeQuorum", "3", "-ackQuorum", "2", "-numEntries", "10")
    assert "10 entries written to ledger" in ledger
    first.kill()
    assert not first.running
    first.start()
    assert bookies.registered(first.port)


def test_an_ensemble_elects_another_leader_after_a_kill(engines, tmp_path):
    import cluster_engines

    with cluster_engines.ZooKeeper(tmp_path, members=3) as ensemble:
        before = ensemble.leader()
        before.kill()
        after = ensemble.leader()
        assert after is not before
        before.start()
        assert ensemble.leader() is after
