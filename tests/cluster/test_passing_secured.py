"""Stores that pass requests to each other with mutual TLS, as real processes, and certificates that are renewed meanwhile."""

from __future__ import annotations

import json
import signal
import socket
import ssl
from contextlib import ExitStack
from pathlib import Path

import cluster_engines
import pytest

from penstock.codec.wire import commands, frames
from penstock.codec.wire import table_commands as tables
from penstock.controller.keys import TABLE
from penstock.core.segments.placement import container_of
from tests.certificates import Authority
from tests.cluster.store_process_kit import ClusterProcess, penstock, until

pytestmark = pytest.mark.cluster

CONTAINERS = 2


class Place:
    """A cluster whose processes show a certificate, and ask for one."""

    def __init__(self, path: Path, url: str) -> None:
        self.path = path
        self.url = url
        self.renew()
        files = {"tls-cert": "server.pem", "tls-key": "server.key", "tls-client-ca": "ca.pem"}
        files |= {"store-ca": "ca.pem", "store-cert": "client.pem", "store-key": "client.key"}
        self.secured = [word for name, file in files.items() for word in (f"--{name}", str(path / file))]
        self.common = ("--cluster", url, "--secret-file", str(path / "secret"))

    def renew(self) -> None:
        """Certificates of a new authority, which alone is trusted from now on."""
        authority = Authority()
        authority.issue(self.path, "server")
        authority.issue(self.path, "client", client=True)
        authority.write(self.path / "ca.pem")

    def process(self, command: str, name: str) -> ClusterProcess:
        ports = ("--port", "--links-port") if command == "store" else ("--controller-port", "--http-port")
        options = [*self.common, *self.secured, "--data", str(self.path / name), ports[0], "0", ports[1], "0"]
        return ClusterProcess(command, name, *options, log=self.path / f"{name}.log")

    def owner(self) -> str | None:
        """The store that serves the table of the controllers, once all containers are served."""
        state = json.loads(penstock("cluster", "status", "--cluster", self.url, "--json"))
        held = {one["container"]: one["held"]["store"] for one in state["containers"] if one["held"]}
        return None if state["unserved"] else held.get(container_of(TABLE, CONTAINERS))

    def ask(self, store: ClusterProcess) -> object:
        """What a store answers to a client of Pravega that asks about the table."""
        context = ssl.create_default_context(cafile=str(self.path / "ca.pem"))
        context.load_cert_chain(self.path / "client.pem", self.path / "client.key")
        address = ("127.0.0.1", int(store.facts["store"].rpartition(":")[2]))
        with (
            socket.create_connection(address, timeout=30) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secured,
        ):
            secured.sendall(frames.encode(commands.Hello(frames.VERSION_HIGH, frames.VERSION_LOW)))
            secured.sendall(frames.encode(tables.GetTableSegmentInfo(7, TABLE)))
            file = secured.makefile("rb")
            while True:
                code, size = frames.HEADER.unpack(file.read(frames.HEADER.size))
                found = frames.decode(code, memoryview(file.read(size)))
                if not isinstance(found, commands.Hello):
                    return found


@pytest.fixture
def place(zookeeper: cluster_engines.ZooKeeper, bookies: cluster_engines.Bookies, tmp_path: Path) -> Place:
    (tmp_path / "tier2").mkdir()
    found = Place(tmp_path, f"zk://{zookeeper.address}/clusters/{tmp_path.name}")
    options = ("--tier2", str(tmp_path / "tier2"), "--containers", str(CONTAINERS))
    penstock("cluster", "init", *found.common, *options, "--bookkeeper-root", bookies.root)
    return found


def test_requests_are_passed_on_with_mutual_tls_before_and_after_a_renewal(place: Place) -> None:
    table = str(container_of(TABLE, CONTAINERS))
    with ExitStack() as stack:
        stores = {name: stack.enter_context(place.process("store", name)) for name in ("s1", "s2")}
        controller = stack.enter_context(place.process("controller", "c1"))
        assert controller.read()["role"] == "active"
        penstock("cluster", "move", table, "s1", "--cluster", place.url)
        until(lambda: place.owner() == "s1")
        for store in stores.values():
            found = place.ask(store)
            assert isinstance(found, tables.TableSegmentInfo), found
            assert found.rid == 7
        place.renew()
        for store in stores.values():
            store.signal(signal.SIGHUP)  # the ports for clients; connections between stores need no signal
        # From here on, the first store dials the other one, which it has never done, with the new files.
        penstock("cluster", "move", table, "s2", "--cluster", place.url)
        until(lambda: place.owner() == "s2")
        until(lambda: isinstance(place.ask(stores["s1"]), tables.TableSegmentInfo))
        assert isinstance(place.ask(stores["s2"]), tables.TableSegmentInfo)
        assert all(one.process.poll() is None for one in (*stores.values(), controller))
