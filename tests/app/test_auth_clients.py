"""Our clients at a server with TLS and identities: what a right allows works, and the rest is refused."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

import penstock
from penstock.core.access.resources import parse_grant
from penstock.model.credentials import Credentials
from penstock.model.errors import PermissionDeniedError, UnauthenticatedError
from penstock.storage.access.bearer import StoreTokens
from penstock.storage.access.passwords import hash_password
from penstock.storage.access.store_key import load_key
from penstock.storage.access.users_file import User, change_users, users_path
from penstock.storage.machine.clock import RealClock
from penstock.testing.server import ServerProcess
from tests.certificates import Authority

pytestmark = pytest.mark.server
ROOT = Authority()
PASSWORD = "correct horse"
RIGHTS = {"ann": "/scope:shop=read,write,admin", "rob": "/scope:shop=read"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = tmp_path_factory.mktemp("auth")
    digest = hash_password(PASSWORD)

    def add(users: dict[str, User]) -> None:
        users["root"] = User(name="root", password=digest, grants=(parse_grant("/=*"),))
        for name, right in RIGHTS.items():
            users[name] = User(name=name, password=digest, grants=(parse_grant(right),))

    change_users(users_path(path / "data"), add)
    files = ROOT.issue(path, hosts=("localhost", "127.0.0.1"))
    with ServerProcess(path / "data", *files.options(), "--auth") as running:
        with connect(running, path, Credentials.basic("root", PASSWORD)) as store:
            store.create_scope("shop")
        yield running


def connect(server: ServerProcess, path: Path, credentials: Credentials | None) -> penstock.Store:
    return penstock.connect(
        f"tls://{server.address}",
        tls_ca=ROOT.write(path / "ca.pem"),
        **({"credentials": credentials} if credentials else {}),
    )


@pytest.mark.parametrize("kind", ["basic", "bearer"])
def test_a_client_with_credentials_does_what_its_rights_allow(server, tmp_path, kind):
    credentials = Credentials.basic("ann", PASSWORD)
    if kind == "bearer":
        tokens = StoreTokens(load_key(server.data), RealClock())
        grants = [parse_grant(RIGHTS["ann"])]
        credentials = Credentials.bearer(tokens.issue("job", grants, ttl_s=600, token_id=UUID(int=1)))
    with connect(server, tmp_path, credentials) as store:
        stream = store.create_stream(f"shop/{kind}")
        with stream.writer() as writer:
            for number in range(5):
                writer.write(f"{number}".encode(), key="k")
                writer.flush()
            assert writer._core.direct.active, "single events go over a line of their own, with a token"
            writer.write(bytes(200_000), key="k")
        with stream.transaction() as transaction:
            transaction.write(b"together", key="k")
        with stream.reader() as reader:
            found = [reader.read(timeout_s=10) for _ in range(7)]
        assert [bytes(event.data)[:8] for event in found if event][-1] == b"together"
        with store.reader_group(f"shop/group-{kind}", [f"shop/{kind}"]).reader("r") as reader:
            assert bytes(reader.read(timeout_s=10).data) == b"0"
            reader.commit()
        table = store.create_table(f"shop/{kind}-table", primary_key_bytes=4)
        table.insert("aaaa", b"value")
        assert table.get("aaaa").value == b"value"
        store.create_stream(f"shop/{kind}-bytes")
        file = store.byte_stream(f"shop/{kind}-bytes")
        file.write(b"bytes")
        file.flush()
        file.seek(0)
        assert file.read() == b"bytes"


def test_a_reader_reads_and_cannot_write(server, tmp_path):
    with (
        connect(server, tmp_path, Credentials.basic("ann", PASSWORD)) as store,
        store.create_stream("shop/read").writer() as writer,
    ):
        writer.write(b"x")
    with connect(server, tmp_path, Credentials.basic("rob", PASSWORD)) as store:
        stream = store.stream("shop/read")
        with stream.reader() as reader:
            assert bytes(reader.read(timeout_s=10).data) == b"x"
        with pytest.raises(PermissionDeniedError):
            write(stream)
        with pytest.raises(PermissionDeniedError), stream.transaction() as transaction:
            transaction.write(b"y")


def write(stream):
    with stream.writer() as writer:
        writer.write(b"y")
        writer.flush()


def test_without_credentials_or_with_wrong_ones_nothing_connects(server, tmp_path):
    for credentials in (None, Credentials.basic("ann", "wrong"), Credentials.bearer("a.b.c")):
        with pytest.raises(UnauthenticatedError):
            connect(server, tmp_path, credentials).close()
