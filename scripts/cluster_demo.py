"""The demo on a cluster: one ZooKeeper, three bookies, three stores and two controllers, all of them real, on this machine.

    python scripts/cluster_demo.py --hdfs               with a real HDFS as tier 2
    python scripts/cluster_demo.py                      with a directory as tier 2
    python scripts/cluster_demo.py --tier2 s3://...     or any other tier 2 of `penstock cluster init`

A store, a bookie and the active controller are killed (kill -9) while a writer and a Spark query go on. The store and the
bookie stay away. ``make cluster-demo`` sets up what it needs first.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import cluster_engines
import hdfs_engine

from penstock.app.demo.packages import require_packages
from penstock.app.demo.processes import Child
from penstock.app.demo.run import run_demo
from penstock.app.demo.sites import START_S, Kill, Start, free_ports, until_serving
from penstock.model.errors import PenstockError, UnavailableError

STORES, CONTROLLERS, CONTAINERS = 3, 2, 6
STORE_AT, BOOKIE_AT, CONTROLLER_AT = 0.3, 0.5, 0.7
"""Shares of the events after which they are killed."""


class Cluster:
    """Implements ``penstock.app.demo.sites.Site``. The engines run from entry to exit of ``engines``."""

    def __init__(self, data: Path, tier2: str | None, engines: ExitStack, *, hdfs: bool) -> None:
        self.writes_s = 120.0
        self._data = data
        self._tier2 = tier2
        self._hdfs = hdfs
        self._engines = engines
        self._ports = free_ports(CONTROLLERS)
        self._stores: list[Child] = []
        self._controllers: list[Child] = []
        self._gone: list[Child] = []
        self._bookies: cluster_engines.Bookies | None = None
        self._url = ""
        self.kills = (
            Kill(share=STORE_AT, what="store", run=self._kill_store),
            Kill(share=BOOKIE_AT, what="bookie", run=self._kill_bookie),
            Kill(share=CONTROLLER_AT, what="active controller", run=self._kill_controller),
        )

    @property
    def story(self) -> str:
        """As the protocol says."""
        tier2 = "HDFS with two datanodes" if self._hdfs else "tier 2"
        return (
            f"The store is a cluster: one ZooKeeper, three bookies, {STORES} stores, {CONTROLLERS} controllers, and {tier2}."
            " A store, a bookie and the active controller are killed (kill -9)."
        )

    @property
    def address(self) -> str:
        """As the protocol says."""
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    @property
    def official_address(self) -> str:
        """As the protocol says."""
        return str(self._active().last["controller"])

    @property
    def state(self) -> str:
        """As the protocol says."""
        running = [f"{child.name} {'runs' if child not in self._gone else 'is killed'}" for child in self._all()]
        return ", ".join(running)

    def start(self, start: Start) -> None:
        """As the protocol says."""
        place = self._data / "engines"
        place.mkdir()
        zookeeper = self._engines.enter_context(cluster_engines.ZooKeeper(place))
        self._bookies = self._engines.enter_context(cluster_engines.Bookies(place, zookeeper.address))
        self._url = f"zk://{zookeeper.address}/penstock/demo"
        tier2 = self._place_of_chunks(place)
        secret = ("--secret-file", str(self._data / "cluster.secret"))
        containers = ("--containers", str(CONTAINERS))
        made = _penstock("cluster", "init", "--cluster", self._url, "--tier2", tier2, *containers, *secret)
        if made.returncode:
            raise UnavailableError("the cluster cannot be created", reason=made.stderr.strip())
        shared = ("--json", "--cluster", self._url, *secret)
        for number in range(1, STORES + 1):
            name, (port, links) = f"store-{number}", free_ports(2)
            options = ("--port", str(port), "--links-port", str(links), "--data", str(self._data / name))
            self._stores.append(start(name, "-m", "penstock", "store", "--name", name, *shared, *options))
        for number, port in enumerate(self._ports, 1):
            name = f"controller-{number}"
            options = ("--controller-port", str(port), "--http-port", "0", "--retention-cycle", "1s")
            words = ("controller", "--name", name, *shared, *options, "--data", str(self._data / name))
            self._controllers.append(start(name, "-m", "penstock", *words))
        for child in self._stores:
            until_serving(child)
        self._until_active()
        # One container is in one store at first, and the others follow one after another. Do not wait for the pauses.
        for number in range(CONTAINERS):
            moved = _penstock("cluster", "move", str(number), f"store-{number % STORES + 1}", "--cluster", self._url)
            if moved.returncode:
                raise UnavailableError("a container cannot be moved", reason=moved.stderr.strip())

    def _place_of_chunks(self, place: Path) -> str:
        if self._tier2 is not None:
            return self._tier2
        if self._hdfs:
            return f"{self._engines.enter_context(hdfs_engine.Hdfs(place / 'hdfs')).url}/penstock-demo"
        directory = self._data / "tier2"
        directory.mkdir()
        return str(directory)

    def look(self) -> None:
        """As the protocol says."""
        for child in self._all():
            if child not in self._gone:
                child.check()

    def _all(self) -> Sequence[Child]:
        return [*self._stores, *self._controllers]

    def _active(self) -> Child:
        """The controller that said last that it is active. Raises UnavailableError: none does now."""
        for child in self._controllers:
            if child not in self._gone and child.last.get("role") == "active":
                return child
        raise UnavailableError("no controller is active")

    def _until_active(self) -> None:
        deadline = time.monotonic() + START_S
        while True:
            self.look()
            try:
                self._active()
                return
            except UnavailableError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.05)

    def _kill(self, child: Child) -> None:
        self._gone.append(child)
        child.kill()

    def _kill_store(self) -> None:
        self._kill(self._stores[0])

    def _kill_bookie(self) -> None:
        if self._bookies is not None:
            self._bookies.servers[0].kill()

    def _kill_controller(self) -> None:
        self._kill(self._active())


def _penstock(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "penstock", *words], capture_output=True, text=True, check=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="the demo empties it (default: ./data)")
    parser.add_argument("--tier2", metavar="URL", help="a directory or bucket that is new (default: DATA/tier2)")
    parser.add_argument("--hdfs", action="store_true", help="start an HDFS for it")
    parser.add_argument("--limit", type=int, help="only so many flights")
    parser.add_argument("--plain", action="store_true", help="lines instead of the live view")
    given = parser.parse_args()
    if given.hdfs and given.tier2 is not None:
        parser.error("give either --hdfs or --tier2")
    reason = cluster_engines.missing() or (hdfs_engine.missing() if given.hdfs else None)
    if reason is not None:
        print(f"cluster demo: {reason}", file=sys.stderr)
        return 1
    require_packages()
    data = given.data.absolute()
    try:
        with ExitStack() as engines:
            site = Cluster(data, given.tier2, engines, hdfs=given.hdfs)
            return run_demo(data, limit=given.limit, plain=given.plain, site=site)
    except (PenstockError, cluster_engines.EngineError) as error:
        print(f"cluster demo: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
