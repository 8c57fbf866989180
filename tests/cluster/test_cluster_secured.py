"""A cluster of real processes with TLS, users and tokens: clients go on through failovers, strangers never get in."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from uuid import UUID

import cluster_engines
import pytest

import penstock as client
from penstock.codec.wire import commands, frames
from penstock.core.access.resources import parse_grant
from penstock.model.credentials import Credentials
from penstock.model.errors import PenstockError, UnauthenticatedError
from penstock.storage.access.passwords import hash_password
from penstock.storage.access.users_file import User, change_users, users_path
from penstock.testing.server import free_ports
from tests.certificates import Authority
from tests.cluster.store_process_kit import DEADLINE_S, ClusterProcess, penstock, program, until

pytestmark = pytest.mark.cluster

CONTAINERS = 4
PASSWORD = "correct horse"
WRITER = UUID(int=7).bytes


class Place:
    """A cluster, a certificate for all its processes, and a user on the first controller."""

    def __init__(self, path: Path, url: str) -> None:
        self.path = path
        self.url = url
        authority = Authority()
        self.ca = path / "ca.pem"
        authority.write(self.ca)
        files = authority.issue(path, hosts=("localhost", "127.0.0.1"))
        self.common = ("--cluster", url, "--secret-file", str(path / "secret"))
        self.secured = (*files.options(), "--auth")
        *self.ports, self.http, self.other_http = free_ports(4)  # a port of 0 could take one of the others

        def add(users: dict[str, User]) -> None:
            users["ann"] = User(name="ann", password=hash_password(PASSWORD), grants=(parse_grant("/=*"),))

        change_users(users_path(path / "c1"), add)

    @property
    def address(self) -> str:
        return ",".join(f"tls://127.0.0.1:{port}" for port in self.ports)

    def connect(self, credentials: Credentials | None) -> client.Store:
        return client.connect(self.address, tls_ca=self.ca, credentials=credentials)

    def ann(self) -> client.Store:
        return self.connect(Credentials.basic("ann", PASSWORD))

    def store(self, name: str) -> ClusterProcess:
        ports = ("--port", "0", "--links-port", "0", "--data", str(self.path / name))
        return ClusterProcess("store", name, *self.common, *ports, *self.secured, log=self.path / f"{name}.log")

    def controller(self, number: int) -> ClusterProcess:
        name = f"c{number}"
        http = self.http if number == 1 else self.other_http
        ports = ("--controller-port", str(self.ports[number - 1]), "--http-port", str(http))
        data = ("--data", str(self.path / name))
        return ClusterProcess(
            *("controller", name, *self.common, *ports, *data, *self.secured, "--store-ca", str(self.ca)),
            log=self.path / f"{name}.log",
        )

    def served(self) -> set[str]:
        """The stores that serve containers, once all are served."""
        state = json.loads(penstock("cluster", "status", "--cluster", self.url, "--json"))
        owners = [one["held"]["store"] for one in state["containers"] if one["held"] and one["held"]["serving"]]
        return set(owners) if len(owners) == CONTAINERS else set()


@pytest.fixture
def place(zookeeper: cluster_engines.ZooKeeper, bookies: cluster_engines.Bookies, tmp_path: Path) -> Place:
    (tmp_path / "tier2").mkdir()
    found = Place(tmp_path, f"zk://{zookeeper.address}/clusters/{tmp_path.name}")
    options = ("--tier2", str(tmp_path / "tier2"), "--secret-file", str(tmp_path / "secret"))
    engines = ("--containers", str(CONTAINERS), "--bookkeeper-root", bookies.root)
    penstock("cluster", "init", "--cluster", found.url, *options, *engines)
    return found


def answer_of_a_store(place: Place, port: int, token: str) -> object:
    """What a store answers to a writer with this token."""
    context = ssl.create_default_context(cafile=str(place.ca))
    with (
        socket.create_connection(("127.0.0.1", port), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        secured.sendall(frames.encode(commands.Hello(frames.VERSION_HIGH, frames.VERSION_LOW)))
        secured.sendall(frames.encode(commands.SetupAppend(1, WRITER, "shop/clicks/0.#epoch.0", token)))
        file = secured.makefile("rb")
        while True:
            code, size = frames.HEADER.unpack(file.read(frames.HEADER.size))
            found = frames.decode(code, memoryview(file.read(size)))
            if not isinstance(found, commands.Hello):
                return found


def certificate_of(address: str, ca: Path) -> object:
    """The certificate that a port shows. Raises OSError: it has no TLS, or not for this host."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=str(ca))
    with (
        socket.create_connection((host, int(port)), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname=host) as secured,
    ):
        return secured.getpeercert()


def tokens_of(place: Place, controller: str) -> str:
    return penstock("token", "list", "--data", str(place.path / controller), "--json")


def write(store: client.Store, numbers: range) -> None:
    with store.stream("shop/clicks").writer(deadline_s=DEADLINE_S) as writer:
        for number in numbers:
            writer.write(b"%d" % number, key=f"k{number % 8}")


def read(store: client.Store) -> Sequence[int]:
    return sorted(int(event.data) for event in store.stream("shop/clicks").reader(until_tail=True))


def test_identities_hold_through_failovers_of_stores_and_controllers(place: Place) -> None:
    with ExitStack() as stack:
        first, second = (stack.enter_context(place.store(name)) for name in ("s1", "s2"))
        one = stack.enter_context(place.controller(1))
        assert one.read()["role"] == "active"
        other = stack.enter_context(place.controller(2))
        until(lambda: place.served() == {"s1", "s2"})
        store = stack.enter_context(place.ann())
        store.create_stream("shop/clicks", segments=8, create_scope=True)
        write(store, range(100))
        for credentials in (None, Credentials.basic("ann", "wrong"), Credentials.bearer("a.b.c")):
            with pytest.raises(UnauthenticatedError), place.connect(credentials) as stranger:
                stranger.scopes()
        for process in (first, second):
            assert certificate_of(process.facts["links"], place.ca), "links have TLS"
            port = int(process.facts["store"].rpartition(":")[2])
            for token in ("", "a.b.c"):
                assert isinstance(answer_of_a_store(place, port, token), commands.AuthTokenCheckFailed)

        for process in (first, second, one, other):
            process.signal(signal.SIGHUP)
        assert read(store) == list(range(100))
        assert all(process.process.poll() is None for process in (first, second, one, other)), (
            "it only reads files again"
        )
        first.kill()
        write(store, range(100, 200))
        until(lambda: place.served() == {"s2"})
        issued = json.loads(
            penstock(*("token", "issue", "--name", "job", "--grant", "/=*", "--data", str(place.path / "c1"), "--json"))
        )
        token = Credentials.bearer(issued["token"])
        until(lambda: issued["id"] in tokens_of(place, "c2"))  # or the list is lost with the controller
        one.kill()
        assert other.read()["role"] == "active"
        write(store, range(200, 300))
        with place.connect(token) as job:
            assert read(job) == list(range(300)), "the other controller knows the user, and the key of tokens"

        one.start()
        assert one.facts["role"] == "standby"
        penstock("token", "revoke", issued["id"], "--data", str(place.path / "c2"))
        other.kill()  # at once: the cluster has the revocation
        assert one.read()["role"] == "active"
        with pytest.raises(UnauthenticatedError), place.connect(token) as job:
            job.scopes()
        assert read(store) == list(range(300))


def test_ports_beyond_loopback_need_tls_and_identities(place: Place) -> None:
    data = ("--data", str(place.path / "x"))
    for role, ports in (("store", ("--port", "0", "--links-port", "0")), ("controller", ("--controller-port", "0"))):
        found = subprocess.run(
            [*program(), role, "--name", "x", *place.common, *ports, *data, "--host", "192.0.2.1", "--advertise", "m1"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert found.returncode not in (0, 1), found.stderr
        assert "TLS is missing (--tls-cert and --tls-key) and authentication is missing (--auth)" in found.stderr


def test_a_controller_with_tokens_of_another_secret_does_not_start(place: Place) -> None:
    with place.store("s1"), place.controller(1) as one:
        assert one.read()["role"] == "active"
    (place.path / "secret").write_text("11" * 32 + "\n")
    with pytest.raises(PenstockError, match="not that of the cluster"):
        place.controller(1).start()
