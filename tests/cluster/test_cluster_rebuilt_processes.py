"""A cluster whose records are deleted from a real ZooKeeper: its processes end, and a rebuild brings everything back."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

import penstock
from penstock.codec.ledger_metadata import ledger_path
from penstock.codec.store.container_record import decode_record
from tests.cluster.cluster_processes import ClusterOfProcesses

pytestmark = pytest.mark.cluster

KEYS = [f"key-{number}" for number in range(8)]


@pytest.fixture
def client(zookeeper: Any) -> Iterator[KazooClient]:
    found = KazooClient(zookeeper.address)
    found.start()
    yield found
    found.stop()
    found.close()


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock", *words], capture_output=True, text=True, timeout=120, check=False
    )


def write(address: str, rounds: range) -> None:
    with penstock.connect(address) as store, store.stream("shop/clicks").writer(deadline_s=60.0) as writer:
        for number in rounds:
            for key in KEYS:
                writer.write(f"{key} {number}".encode(), key=key)
            writer.flush()


def read(address: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {key: [] for key in KEYS}
    with penstock.connect(address) as store:
        for event in store.stream("shop/clicks").reader(until_tail=True):
            key, number = event.data.decode().split()
            found[key].append(int(number))
    return found


def started(cluster: ClusterOfProcesses) -> str:
    """Start a store and a controller, again or for the first time; the address of the controller."""
    if cluster.processes:
        for one in cluster.processes:
            one.facts = {}
            one.start()
    else:
        cluster.store("s0")
        cluster.store("s1")
        cluster.controller("c0")
    cluster.active()
    cluster.until(lambda: not cluster.status()["unserved"])
    return cluster.controllers


def root_of(cluster: ClusterOfProcesses) -> str:
    return "/" + cluster.url.split("/", 3)[3]


def rebuilding(cluster: ClusterOfProcesses, ledgers: str, *options: str) -> subprocess.CompletedProcess[str]:
    place = ("--tier2", str(cluster.directory / "tier2"), "--bookkeeper-root", ledgers)
    return command("cluster", "doctor", "--cluster", cluster.url, "--rebuild", *place, "--reason", "test", *options)


def test_records_that_are_deleted_under_running_processes_are_rebuilt_without_a_loss(
    zookeeper: Any, bookies: Any, client: KazooClient, tmp_path: Path
) -> None:
    with ClusterOfProcesses(tmp_path, zookeeper.address, bookies.root) as cluster:
        address = started(cluster)
        cluster.run("stream", "create", "shop/clicks", "--segments", "4", "--controller", address)
        write(address, range(20))
        time.sleep(3)  # some of it gets to tier 2
        write(address, range(20, 40))
        refused = rebuilding(cluster, bookies.root, "--yes")
        assert "stop all stores and controllers" in refused.stderr

        client.delete(root_of(cluster), recursive=True)
        for one in cluster.processes:
            assert one.wait(60) != 0, "it must not go on without its records"
        found = command("cluster", "doctor", "--cluster", cluster.url, "--json")
        assert found.returncode == 7
        assert "--rebuild" in json.loads(found.stdout)["findings"][0]["action"]
        assert "--yes" in rebuilding(cluster, bookies.root).stderr
        # An operator who tries this first leaves a root with the id of a cluster that was never created.
        assert "tier 2 belongs to another cluster" in command(*cluster.init).stderr

        done = rebuilding(cluster, bookies.root, "--yes", "--json")
        assert done.returncode == 0, done.stderr
        assert {one["state"] for one in json.loads(done.stdout)["containers"]} <= {"complete", "new"}
        expected = {key: list(range(40)) for key in KEYS}
        assert read(started(cluster)) == expected
        write(address, range(40, 50))
        for one in cluster.processes:
            one.kill()
        assert read(started(cluster)) == {key: list(range(50)) for key in KEYS}


def test_a_cluster_without_ledgers_goes_on_with_what_tier_2_has(
    zookeeper: Any, empty_bookies: Any, client: KazooClient, tmp_path: Path
) -> None:
    with ClusterOfProcesses(tmp_path, zookeeper.address, empty_bookies.root) as cluster:
        address = started(cluster)
        cluster.run("stream", "create", "shop/clicks", "--segments", "4", "--controller", address)
        write(address, range(20))
        time.sleep(15)  # it gets to tier 2
        write(address, range(20, 40))
        for one in cluster.processes:
            one.kill()
        root = root_of(cluster)
        for number in client.get_children(f"{root}/containers"):
            for listed in decode_record(client.get(f"{root}/containers/{number}")[0]).ledgers:
                client.delete(f"{empty_bookies.root}/{ledger_path(listed.ledger)}")
        client.delete(root, recursive=True)

        refused = rebuilding(cluster, empty_bookies.root, "--yes")
        assert refused.returncode == 7, refused.stderr
        assert "--accept-loss" in refused.stdout
        assert "Its log is lost" in refused.stdout
        started_again = command("cluster", "status", "--cluster", cluster.url)
        assert "has no node at this root" in started_again.stderr, "nothing was changed"
        done = rebuilding(cluster, empty_bookies.root, "--yes", "--accept-loss")
        assert done.returncode == 0, done.stderr
        print(done.stdout)
        left = read(started(cluster))
        assert all(numbers == list(range(len(numbers))) for numbers in left.values())
        print({key: len(numbers) for key, numbers in left.items()})
        write(address, range(100, 110))
        expected = {key: [*numbers, *range(100, 110)] for key, numbers in left.items()}
        assert read(address) == expected
        assert not client.exists(f"{root}/restored")
        for one in cluster.processes:
            one.kill()
        assert read(started(cluster)) == expected


def test_a_store_that_was_paused_during_a_rebuild_ends_and_changes_nothing(
    zookeeper: Any, bookies: Any, client: KazooClient, tmp_path: Path
) -> None:
    with ClusterOfProcesses(tmp_path, zookeeper.address, bookies.root) as cluster:
        address = started(cluster)
        cluster.run("stream", "create", "shop/clicks", "--segments", "4", "--controller", address)
        write(address, range(20))
        paused, *others = cluster.processes
        paused.signal(signal.SIGSTOP)
        for one in others:
            one.kill()
        root = root_of(cluster)
        cluster.until(lambda: not client.get_children(f"{root}/stores"))
        client.delete(root, recursive=True)
        done = rebuilding(cluster, bookies.root, "--yes")
        assert done.returncode == 0, done.stderr
        cluster.processes.remove(paused)
        assert read(started(cluster)) == {key: list(range(20)) for key in KEYS}
        paused.signal(signal.SIGCONT)
        assert paused.wait(60) != 0
        assert "restart it" in paused.tail() or "was deleted" in paused.tail()
        write(address, range(20, 40))
        for one in cluster.processes:
            one.kill()
        assert read(started(cluster)) == {key: list(range(40)) for key in KEYS}
