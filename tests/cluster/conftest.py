"""Real engines for the tests of clusters: one ZooKeeper and three bookies for the whole run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import cluster_engines


@pytest.fixture(scope="session")
def engines() -> None:
    """Skips where the engines are not set up."""
    reason = cluster_engines.missing()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def zookeeper(engines: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[cluster_engines.ZooKeeper]:
    """One server. Each test takes a root of its own, and leaves the server running."""
    with cluster_engines.ZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="session")
def bookies(
    zookeeper: cluster_engines.ZooKeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[cluster_engines.Bookies]:
    """Three bookies. A test that kills one starts it again."""
    with cluster_engines.Bookies(tmp_path_factory.mktemp("bookies"), zookeeper.address) as started:
        yield started


@pytest.fixture
def empty_bookies(zookeeper: cluster_engines.ZooKeeper, bookies: cluster_engines.Bookies) -> cluster_engines.Bookies:
    """The same bookies without the ledgers of earlier tests: a rebuild is refused where a ledger shows no owner."""
    client = KazooClient(zookeeper.address)
    client.start()
    try:
        for below in client.get_children(bookies.root):
            if below.isdigit():
                client.delete(f"{bookies.root}/{below}", recursive=True)
    finally:
        client.stop()
        client.close()
    return bookies
