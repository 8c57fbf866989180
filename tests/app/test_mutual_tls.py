"""Mutual TLS from end to end: who has which certificate gets in at every door, and is the user that lists its name."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import penstock
from penstock.codec.wire import commands as c
from penstock.codec.wire.frames import VERSION_HIGH, VERSION_LOW, encode
from penstock.codec.wire.http2_frames import PREFACE
from penstock.core.access.resources import parse_grant
from penstock.model.errors import PenstockError, PermissionDeniedError, TlsError, UnauthenticatedError
from penstock.storage.access.users_file import User, change_users, users_path
from penstock.testing.server import ServerProcess
from tests.certificates import DAY, Authority, Files

pytestmark = pytest.mark.server
HELLO = encode(c.Hello(VERSION_HIGH, VERSION_LOW))
ROOT, STRANGER = Authority(), Authority("stranger")
USERS = {
    "ingest": ("DNS:ingest.shop", "/scope:shop=*"),
    "looker": ("URI:spiffe://shop/looker", "/scope:shop=read"),
    "auditor": ("DNS:auditor.shop", "/=audit"),
}


class Served:
    """A server with two workers that requires certificates, and certificates of clients."""

    def __init__(self, server: ServerProcess, path: Path, ca: Path) -> None:
        self.server, self.path, self.ca = server, path, ca
        stores = [int(str(worker["store"]).rpartition(":")[2]) for worker in server.workers]
        self.ports = {"grpc": server.controller_port, "http": server.http_port}
        self.ports |= {f"worker {number}": port for number, port in enumerate(stores)}

    def files(self, user: str) -> Files:
        """A good certificate of the user."""
        kind, _, name = USERS[user][0].partition(":")
        assert kind in ("DNS", "URI")
        return ROOT.issue(self.path, user, hosts=(name,), client=True)

    def connect(self, shown: Files | None) -> penstock.Store:
        options = {} if shown is None else {"tls_cert": shown.certificate, "tls_key": shown.key}
        return penstock.connect(f"tls://localhost:{self.server.controller_port}", tls_ca=self.ca, **options)

    def context(self, shown: Files | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.ca))
        if shown is not None:
            context.load_cert_chain(shown.certificate, shown.key)
        return context

    def http(self, shown: Files | None, method: str, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPSConnection(
            "localhost", self.server.http_port, timeout=20, context=self.context(shown)
        )
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def gets_in(self, door: str, shown: Files | None) -> bool:
        """Whether the server answers to the greeting of the door's protocol."""
        greeting = {"grpc": PREFACE + b"\0\0\0\4\0\0\0\0\0", "http": b"GET /ping HTTP/1.0\r\n\r\n"}.get(door, HELLO)
        with socket.create_connection(("127.0.0.1", self.ports[door]), timeout=20) as plain:
            try:
                with self.context(shown).wrap_socket(plain, server_hostname="localhost") as secured:
                    secured.sendall(greeting)
                    return secured.recv(1) != b""
            except (ssl.SSLError, ConnectionError):
                return False


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("mutual")

    def add(users: dict[str, User]) -> None:
        for name, (certificate, right) in USERS.items():
            users[name] = User(name=name, certificates=(certificate,), grants=(parse_grant(right),))

    change_users(users_path(path / "data"), add)
    ca = ROOT.write(path / "ca.pem")
    options = (*ROOT.issue(path).options(), "--auth", "--tls-client-ca", str(ca), "--workers", "2")
    with ServerProcess(path / "data", "--advertise", "localhost", *options) as server:
        yield Served(server, path, ca)


def test_a_certificate_is_an_identity_at_every_door(
    served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ingest, looker = served.files("ingest"), served.files("looker")
    with served.connect(ingest) as store:
        store.create_scope("shop")
        # Four segments: both workers have some.
        stream = store.create_stream("shop/orders", segments=4)
        with stream.writer() as writer:
            for number in range(40):
                writer.write(f"{number}".encode(), key=f"k{number}")
    with served.connect(looker) as store:
        with store.stream("shop/orders").reader() as reader:
            found = {bytes(event.data) for event in (reader.read(timeout_s=20) for _ in range(40)) if event}
        assert found == {f"{number}".encode() for number in range(40)}
        with pytest.raises(PermissionDeniedError):
            store.create_stream("shop/other")
        with pytest.raises(PermissionDeniedError):
            write(store.stream("shop/orders"))
    path = "/v1/scopes/shop/streams/orders"
    assert served.http(ingest, "GET", path)[0] == served.http(looker, "GET", path)[0] == 200
    assert served.http(looker, "DELETE", path)[0] == 403
    assert "orders" in command(served, ingest, monkeypatch, capsys, "stream", "list", "shop")


def write(stream: penstock.Stream) -> None:
    with stream.writer() as writer:
        writer.write(b"x", key="k")
        writer.flush()


def command(
    served: Served, shown: Files, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> str:
    """What the command line prints. Its options set variables of the environment."""
    from penstock.__main__ import main

    address = f"tls://localhost:{served.server.controller_port}"
    options = ("--tls-ca", str(served.ca), "--client-cert", str(shown.certificate), "--client-key", str(shown.key))
    with monkeypatch.context() as patch:
        for name in ("PENSTOCK_TLS_CA", "PENSTOCK_CLIENT_CERT", "PENSTOCK_CLIENT_KEY"):
            patch.setenv(name, "")
            patch.delenv(name)
        patch.setattr("sys.argv", ["penstock", *words, "--controller", address, *options])
        with pytest.raises(SystemExit) as left:
            main()
    printed = capsys.readouterr()
    assert left.value.code in (0, None), printed.err
    return printed.out


def test_the_audit_stream_names_the_user_of_the_certificate(served: Served) -> None:
    with served.connect(served.files("ingest")) as store:
        store.create_stream("shop/audited", create_scope=True).delete(seal=True)
    with (
        served.connect(served.files("auditor")) as store,
        store.stream("_system/audit").reader() as reader,
    ):
        while (event := reader.read(timeout_s=20)) is not None:
            entry = json.loads(event.data)
            if (entry["kind"], entry["target"]) == ("delete", "shop/audited"):
                break
    assert event is not None
    assert entry["caller"]["identity"] == "ingest"


BAD = {
    "none": lambda path: None,
    "of a stranger": lambda path: STRANGER.issue(path, "foreign", hosts=("ingest.shop",), client=True),
    "expired": lambda path: ROOT.issue(
        path, "expired", hosts=("ingest.shop",), client=True, begins=-2 * DAY, ends=-timedelta(minutes=1)
    ),
    "not valid yet": lambda path: ROOT.issue(
        path, "early", hosts=("ingest.shop",), client=True, begins=timedelta(hours=1), ends=DAY
    ),
    "of a server": lambda path: ROOT.issue(path, "of-a-server", hosts=("ingest.shop",)),
}


@pytest.mark.parametrize("kind", list(BAD))
def test_a_bad_certificate_is_refused_at_every_port(served: Served, kind: str) -> None:
    shown = BAD[kind](served.path)
    for door in served.ports:
        assert not served.gets_in(door, shown), door
    advice = "asks for a client's certificate" if shown is None else "refuses the client's certificate; it must be"
    with pytest.raises(TlsError, match=advice):
        served.connect(shown).close()
    good = served.files("ingest")
    assert all(served.gets_in(door, good) for door in served.ports)


def test_a_certificate_without_a_user_name_has_no_identity(served: Served) -> None:
    """A common name is no name, nor is a name of another kind, nor one that begins or ends like a user's."""
    names: tuple[tuple[str, ...], ...] = (
        (), ("nobody.shop",), ("spiffe://ingest.shop",), ("x.ingest.shop",), ("ingest.shop.evil",), ("*.shop",)
    )  # fmt: skip
    for number, hosts in enumerate(names):
        shown = ROOT.issue(served.path, f"nobody-{number}", hosts=hosts, client=True)
        assert served.http(shown, "GET", "/v1/scopes")[0] == 401, hosts
        assert served.http(shown, "GET", "/ping")[0] == 200
        if number < 2:
            with pytest.raises(UnauthenticatedError):
                served.connect(shown).close()


def test_wrong_credentials_are_not_replaced_by_a_right_certificate(served: Served) -> None:
    ingest = served.files("ingest")
    with pytest.raises(PenstockError) as caught:
        penstock.connect(
            f"tls://localhost:{served.server.controller_port}",
            tls_ca=served.ca,
            tls_cert=ingest.certificate,
            tls_key=ingest.key,
            credentials=penstock.Credentials.basic("ingest", "wrong"),
        ).close()
    assert isinstance(caught.value, UnauthenticatedError)
