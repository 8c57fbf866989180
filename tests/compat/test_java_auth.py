"""The official Java client at a server with TLS and users, whose tokens expire while it writes and reads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from java_client import JavaClient

from penstock.core.access.resources import parse_grant
from penstock.storage.access.passwords import hash_password
from penstock.storage.access.users_file import User, change_users, users_path
from penstock.testing.server import ServerProcess
from tests.certificates import Authority

pytestmark = [pytest.mark.server, pytest.mark.java]
PASSWORD = "correct horse"
RIGHTS = {"ann": "/=read,write,admin", "rob": "/scope:java-secured-refused=read"}


@pytest.fixture(scope="module")
def secured(classpath: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    path = tmp_path_factory.mktemp("java-auth")
    digest = hash_password(PASSWORD)

    def add(users: dict[str, User]) -> None:
        for name, right in RIGHTS.items():
            users[name] = User(name=name, password=digest, grants=(parse_grant(right),))

    change_users(users_path(path / "data"), add)
    # The shortest life of a token. The client asks for another one 5 seconds before the end.
    (path / "auth.toml").write_text("token_seconds = 10\n")
    root = Authority()
    options = (*root.issue(path, hosts=("localhost",)).options(), "--auth", "--auth-config", str(path / "auth.toml"))
    with ServerProcess(path / "data", "--advertise", "localhost", *options) as server:
        trust = root.write(path / "ca.pem")
        running = JavaClient(classpath, server, path / "client.log", trust, credentials=("ann", PASSWORD))
        yield running
        running.close()


def test_the_java_client_does_the_same_with_credentials_as_without_users(secured: JavaClient) -> None:
    assert secured.run("scopes")["made"] is True
    events = secured.run("events")
    assert events["ordered"] is True
    transactions = secured.run("transactions")
    assert transactions["committed"] is True
    assert transactions["count"] == transactions["unique"] == 70


def test_wrong_credentials_and_missing_rights_reach_the_java_client_as_errors(secured: JavaClient) -> None:
    seen = secured.run("secured-refused")
    assert seen["nobody"] == seen["unknown"] == seen["wrong"] != "none"
    assert seen["reader_creates"] != "none"
    assert seen["reader_writes"] != "none"
    assert seen["count"] == seen["unique"] == 20


def test_writers_readers_and_transactions_outlive_their_tokens(secured: JavaClient) -> None:
    seen = secured.run("secured-renewed")
    assert seen["missing"] == 0
    assert seen["count"] == seen["unique"] > 100
    assert seen["committed"] is True
    assert seen["ordered"] is True


def test_a_resting_writer_and_a_waiting_reader_outlive_their_tokens(secured: JavaClient) -> None:
    assert secured.run("secured-rested") == {"count": 6, "unique": 6, "ordered": True}
