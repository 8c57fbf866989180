"""Pravega's Java client, unchanged, goes on when stores and the active controller are killed. Scenarios: tests/compat/java."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster_processes import ClusterOfProcesses, ClusterProcess
from tests.compat.java_client import JavaClient, build

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

PATIENCE_S = 400.0


class Killed:
    """Stands for the server of a ``JavaClient``: a cluster of three stores and two controllers, of which each step kills one
    process: a store, the active controller, another store. What was killed before starts again first."""

    def __init__(self, cluster: ClusterOfProcesses) -> None:
        self._cluster = cluster
        self._stores = [cluster.store(f"s{number}") for number in range(3)]
        for number in range(2):
            cluster.controller(f"c{number}")
        cluster.active()
        for number in range(4):
            cluster.run("cluster", "move", str(number), f"s{number % 3}", "--cluster", cluster.url)
            cluster.run("cluster", "unpin", str(number), "--cluster", cluster.url)
        self._victims: list[Callable[[], ClusterProcess]] = [
            lambda: self._stores[0],
            cluster.active,
            lambda: self._stores[1],
        ]
        self._killed: ClusterProcess | None = None
        self.kills = 0

    @property
    def address(self) -> str:
        return self._cluster.controllers

    def tail(self) -> str:
        return "\n".join(one.tail() for one in self._cluster.processes)

    def step(self, _: Mapping[str, Any]) -> str:
        before = self._killed
        if before is not None:
            before.start()
            self._cluster.until(lambda: before.facts != {})
        self._killed = self._victims[self.kills % len(self._victims)]()
        self._killed.kill()
        self.kills += 1
        return "go on"


def seen_in(zookeeper: Any, bookies: Any, tmp_path: Path, scenario: str) -> tuple[Mapping[str, Any], int]:
    """What the scenario saw, and how many kills there were."""
    with ClusterOfProcesses(tmp_path, zookeeper.address, bookies.root) as cluster:
        killed = Killed(cluster)
        client = JavaClient(build(), killed, tmp_path / "client.log")
        try:
            seen = client.run(scenario, killed.step, patience_s=PATIENCE_S)
        finally:
            client.close()
    return seen, killed.kills


def test_a_writer_and_a_reader_go_on_through_three_kills(zookeeper, bookies, tmp_path):
    seen, kills = seen_in(zookeeper, bookies, tmp_path, "restart")
    assert kills == 3
    assert seen.pop("written") > 900
    assert seen == {
        "failures": "[]",
        "failed": 0,
        "all_acknowledged": True,
        "missing": 0,
        "twice": 0,
        "ordered": True,
        "alone_missing": 0,
        "alone_ordered": True,
    }


def test_a_transaction_a_group_a_table_and_a_mark_outlive_the_store_that_had_them(zookeeper, bookies, tmp_path):
    seen, kills = seen_in(zookeeper, bookies, tmp_path, "restart-state")
    assert kills == 1
    assert seen == {
        "open": "OPEN",
        "committed": True,
        "table": 7,
        "mark": True,
        "conditional": True,
        "online": ["r"],
        "count": 71,
        "unique": 71,
        "dry": True,
    }
