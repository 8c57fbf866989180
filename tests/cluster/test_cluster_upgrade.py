"""A rolling upgrade of real processes under load, and the way back before it is finished."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import cluster_engines
import pytest

import penstock as client
from penstock.app.cluster.address import parse_cluster_address
from penstock.codec.store.container_record import decode_record
from penstock.core.cluster.levels import SEALED_LEDGERS
from penstock.storage.cluster.nodes import open_nodes
from tests.cluster.store_process_kit import DEADLINE_S, ClusterProcess, penstock, program, until

pytestmark = pytest.mark.cluster

CONTAINERS = 4
OLDER, NEWER = SEALED_LEDGERS - 1, SEALED_LEDGERS
"""Two versions, of which the newer one begins encrypted ledgers once it may."""


class Place:
    """A cluster, of whose processes each can be started as either version."""

    def __init__(self, path: Path, url: str) -> None:
        self.path = path
        self.url = url
        self.common = ("--cluster", url, "--secret-file", str(path / "secret"))

    def store(self, name: str, level: int) -> ClusterProcess:
        ports = ("--port", "0", "--links-port", "0", "--data", str(self.path / name))
        return ClusterProcess("store", name, *self.common, *ports, log=self.path / f"{name}.log", level=level)

    def controller(self, level: int) -> ClusterProcess:
        ports = ("--controller-port", "0", "--http-port", "0", "--data", str(self.path / "c1"))
        return ClusterProcess("controller", "c1", *self.common, *ports, log=self.path / "c1.log", level=level)

    def until_served(self, *stores: str, each: int = 1) -> None:
        """Wait until each of the stores serves at least so many containers, and together they serve all."""

        def served() -> bool:
            state = json.loads(penstock("cluster", "status", "--cluster", self.url, "--json"))
            owners = [one["held"]["store"] for one in state["containers"] if one["held"] and one["held"]["serving"]]
            return (
                len(owners) == CONTAINERS == sum(map(owners.count, stores)) and min(map(owners.count, stores)) >= each
            )

        until(served)

    def sealed(self) -> list[bool]:
        """For each container, whether its newest ledger is encrypted."""

        async def read() -> list[bool]:
            address = parse_cluster_address(self.url)
            async with open_nodes(address.hosts) as nodes:
                paths = [f"{address.root}/containers/{number}" for number in range(CONTAINERS)]
                return [decode_record((await nodes.read(path))[0]).ledgers[-1].sealed for path in paths]

        return asyncio.run(read())

    def upgrade(self, *options: str, level: int) -> dict[str, object]:
        return json.loads(penstock("cluster", "upgrade", "--cluster", self.url, "--json", *options, level=level))


@pytest.fixture
def place(zookeeper: cluster_engines.ZooKeeper, bookies: cluster_engines.Bookies, tmp_path: Path) -> Place:
    (tmp_path / "tier2").mkdir()
    found = Place(tmp_path, f"zk://{zookeeper.address}/clusters/{tmp_path.name}")
    options = ("--tier2", str(tmp_path / "tier2"), "--secret-file", str(tmp_path / "secret"))
    engines = ("--containers", str(CONTAINERS), "--bookkeeper-root", bookies.root)
    penstock("cluster", "init", "--cluster", found.url, *options, *engines, level=OLDER)
    return found


@contextmanager
def writing(address: str) -> Iterator[list[int]]:
    """Events with ascending numbers, written until the end of the block: those that were acknowledged."""
    acknowledged: list[int] = []
    stop = threading.Event()

    def write() -> None:
        with client.connect(address) as store, store.stream("shop/clicks").writer(deadline_s=DEADLINE_S) as writer:
            while not stop.wait(0.01):
                number = len(acknowledged)
                writer.write(b"%d" % number, key=f"k{number % 8}")
                writer.flush()
                acknowledged.append(number)

    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(write)
        try:
            yield acknowledged
        finally:
            stop.set()
        writer.result()


def test_machines_are_replaced_one_by_one_under_load_and_may_go_back_before_the_last_step(place: Place) -> None:
    with ExitStack() as stack:
        first, second = (stack.enter_context(place.store(name, OLDER)) for name in ("s1", "s2"))
        controller = stack.enter_context(place.controller(OLDER))
        assert controller.read()["role"] == "active"
        address = controller.facts["controller"]
        place.until_served("s1", "s2")
        with client.connect(address) as store:
            store.create_stream("shop/clicks", segments=8, create_scope=True)
        with writing(address) as acknowledged:

            def goes_on() -> None:
                before = len(acknowledged)
                until(lambda: len(acknowledged) > before + 20)

            def replace(one: ClusterProcess, other: str, level: int) -> ClusterProcess:
                penstock("cluster", "drain", one.name, "--cluster", place.url)
                assert one.stop() == 0
                after = stack.enter_context(place.store(one.name, level))
                penstock("cluster", "undrain", one.name, "--cluster", place.url)
                place.until_served(one.name, other)
                goes_on()
                return after

            newer = replace(first, "s2", NEWER)
            plan = place.upgrade(level=NEWER)
            assert (plan["after"], plan["behind"]) == (OLDER, ["controller c1", "store s2"])
            older = replace(newer, "s2", OLDER)
            replace(older, "s2", NEWER)
            last = replace(second, "s1", NEWER)
        assert controller.stop() == 0
        successor = stack.enter_context(place.controller(NEWER))
        assert successor.read()["role"] == "active"
        assert place.sealed() == [False] * CONTAINERS, "what the earlier version cannot read is not written yet"
        assert place.upgrade("--dry-run", level=NEWER)["after"] == NEWER
        assert place.upgrade(level=NEWER)["after"] == NEWER
        place.until_served("s1", "s2", each=CONTAINERS // 2)
        assert last.stop() == 0
        assert_refused(place)
        place.until_served("s1")
        assert sum(place.sealed()) >= CONTAINERS // 2, "containers that have moved since are encrypted"
        with client.connect(successor.facts["controller"]) as store:
            found = [int(event.data) for event in store.stream("shop/clicks").reader(until_tail=True)]
    assert sorted(found) == acknowledged
    for key in range(8):
        of_key = [number for number in found if number % 8 == key]
        assert of_key == sorted(of_key)


def assert_refused(place: Place) -> None:
    """The earlier version does not start any more, and says why."""
    for role, name in (("store", "s2"), ("controller", "c2")):
        ports = ("--port", "0", "--links-port", "0") if role == "store" else ("--controller-port", "0")
        found = subprocess.run(
            [*program(OLDER), role, "--name", name, *place.common, *ports, "--data", str(place.path / name)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert found.returncode not in (0, 1), found.stderr
        assert "install the version that other machines run" in found.stderr
        assert "Traceback" not in found.stderr
