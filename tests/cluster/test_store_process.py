"""Processes of stores on real ZooKeeper and bookies: killed, stopped, paused, and started with wrong options."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import cluster_engines
import pytest

import penstock as client
from tests.cluster.store_process_kit import DEADLINE_S, ClusterProcess, penstock, until

pytestmark = pytest.mark.cluster

CONTAINERS = 4


@dataclass(frozen=True, slots=True)
class Place:
    """A cluster that was initialised."""

    path: Path
    url: str

    @property
    def common(self) -> tuple[str, ...]:
        return ("--cluster", self.url, "--secret-file", str(self.path / "secret"))

    def store(self, name: str) -> ClusterProcess:
        ports = ("--port", "0", "--links-port", "0", "--data", str(self.path / name))
        return ClusterProcess("store", name, *self.common, *ports, log=self.path / f"{name}.log")

    def controller(self) -> ClusterProcess:
        ports = ("--controller-port", "0", "--http-port", "0", "--data", str(self.path / "c1"))
        return ClusterProcess("controller", "c1", *self.common, *ports, log=self.path / "c1.log")

    def served(self) -> dict[int, str]:
        """Which store serves each container."""
        state = json.loads(penstock("cluster", "status", "--cluster", self.url, "--json"))
        return {
            one["container"]: one["held"]["store"]
            for one in state["containers"]
            if one["held"] and one["held"]["serving"]
        }


@pytest.fixture
def place(zookeeper: cluster_engines.ZooKeeper, bookies: cluster_engines.Bookies, tmp_path: Path) -> Place:
    (tmp_path / "tier2").mkdir()
    found = Place(tmp_path, f"zk://{zookeeper.address}/clusters/{tmp_path.name}")
    options = ("--tier2", str(tmp_path / "tier2"), "--secret-file", str(tmp_path / "secret"))
    penstock(
        "cluster",
        "init",
        "--cluster",
        found.url,
        *options,
        "--containers",
        str(CONTAINERS),
        "--bookkeeper-root",
        bookies.root,
    )
    return found


def write(address: str, numbers: range) -> None:
    with client.connect(address) as store, store.stream("shop/clicks").writer(deadline_s=DEADLINE_S) as writer:
        for number in numbers:
            writer.write(b"%d" % number, key=f"k{number % 8}")


def read(address: str) -> list[int]:
    with client.connect(address) as store:
        return [int(event.data) for event in store.stream("shop/clicks").reader(until_tail=True)]


def test_what_a_store_has_acknowledged_outlives_it(place: Place) -> None:
    with place.controller() as controller, place.store("s1") as first, place.store("s2") as second:
        assert controller.read()["role"] == "active"
        address = controller.facts["controller"]
        until(lambda: set(place.served().values()) == {"s1", "s2"} and len(place.served()) == CONTAINERS)
        with client.connect(address) as store:
            store.create_stream("shop/clicks", segments=8, create_scope=True)
        write(address, range(200))
        first.kill()
        write(address, range(200, 400))
        assert set(place.served().values()) == {"s2"}
        first.start()
        until(lambda: "s1" in place.served().values() and len(place.served()) == CONTAINERS)
        write(address, range(400, 500))
        assert second.stop() == 0, second.log.read_text()[-3000:]
        write(address, range(500, 600))
        found = read(address)
        assert sorted(found) == list(range(600))
        for key in range(8):
            of_key = [number for number in found if number % 8 == key]
            assert of_key == sorted(of_key)
        assert first.stop() == 0
        assert json.loads(penstock("cluster", "status", "--cluster", place.url, "--json"))["stores"] is not None
        assert place.served() == {}


def test_wrong_options_end_with_a_sentence(place: Place, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "secret").write_text("00" * 32 + "\n")
    (other / "secret").chmod(0o644)

    def refused(name: str, *options: str) -> str:
        found = subprocess.run(
            [sys.executable, "-m", "penstock", "store", "--name", name, "--port", "0", "--links-port", "0", *options],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert found.returncode not in (0, 1), found.stderr
        assert "Traceback" not in found.stderr
        return found.stderr

    data = ("--data", str(tmp_path / "s1"))
    nowhere = place.url.rpartition("/")[0] + "/nothing"
    assert "cluster" in refused("s1", "--cluster", nowhere, "--secret-file", str(tmp_path / "secret"), *data)
    assert "secret" in refused("s1", "--cluster", place.url, "--secret-file", str(tmp_path / "none"), *data)
    assert "secret" in refused("s1", "--cluster", place.url, "--secret-file", str(other / "secret"), *data)
    assert "--advertise" in refused("s1", *place.common, *data, "--host", "0.0.0.0", "--insecure")
    assert "--insecure" in refused("s1", *place.common, *data, "--host", "192.0.2.1")
    assert "memory" in refused("s1", *place.common, *data, "--memory", "96MiB")
    assert "belongs to another store" in refused("s2", *place.common, *data)
    with place.store("s1") as first:
        assert "another process" in refused("s1", *place.common, *data)
        assert "another process of the cluster has this name" in refused(
            "s1", *place.common, "--data", str(other / "d")
        )
        assert first.stop() == 0


def test_a_store_that_was_paused_comes_back(place: Place) -> None:
    with place.controller() as controller, place.store("s1") as first, place.store("s2"):
        assert controller.read()["role"] == "active"
        address = controller.facts["controller"]
        until(lambda: set(place.served().values()) == {"s1", "s2"} and len(place.served()) == CONTAINERS)
        with client.connect(address) as store:
            store.create_stream("shop/clicks", segments=8, create_scope=True)
        write(address, range(100))
        first.signal(signal.SIGSTOP)
        try:
            until(lambda: set(place.served().values()) == {"s2"} and len(place.served()) == CONTAINERS)
            write(address, range(100, 200))
        finally:
            first.signal(signal.SIGCONT)
        until(lambda: "s1" in place.served().values() and len(place.served()) == CONTAINERS)
        write(address, range(200, 300))
        assert sorted(read(address)) == list(range(300))
