"""The official Pravega Python client, unchanged, against a server with TLS and ``--auth``; and Spark's own connections."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.core.access.resources import parse_grant
from penstock.model.errors import PermissionDeniedError, UnauthenticatedError
from penstock.spark.connect import Services, close_links, dial, link
from penstock.storage.access.passwords import hash_password
from penstock.storage.access.users_file import User, change_users, users_path
from penstock.testing.server import ServerProcess
from tests.certificates import Authority

pytestmark = pytest.mark.server
PROGRAM = Path(__file__).with_name("official_over_tls.py")
ROOT = Authority()
PASSWORD = "correct horse"
RIGHTS = {"ann": "/=read,write,admin", "rob": "/scope:other=read"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = tmp_path_factory.mktemp("official-auth")
    digest = hash_password(PASSWORD)

    def add(users: dict[str, User]) -> None:
        for name, right in RIGHTS.items():
            users[name] = User(name=name, password=digest, grants=(parse_grant(right),))

    change_users(users_path(path / "data"), add)
    options = ROOT.issue(path, hosts=("localhost", "127.0.0.1")).options()
    with ServerProcess(path / "data", "--advertise", "localhost", "--auth", *options) as running:
        yield running


def test_the_official_client_writes_reads_and_commits_with_credentials(server, tmp_path):
    ROOT.write(tmp_path / "ca.crt")
    shown = {"method": "Basic", "username": "ann", "password": PASSWORD}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), f"localhost:{server.controller_port}"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=os.environ
        | {"pravega_client_tls_cert_path": str(tmp_path)}
        | {f"pravega_client_auth_{name}": value for name, value in shown.items()},
    )
    assert done.returncode == 0, f"{done.stderr[-3000:]}\n--- server\n{server.tail()}"
    assert json.loads(done.stdout) == sorted([*(f"event {number}" for number in range(50)), "in a transaction"])


def test_processes_of_spark_read_and_write_with_what_their_environment_names(server, tmp_path, monkeypatch):
    async def written(services: Services) -> int:
        if not await services.controller.scopes.exists("spark"):
            await services.controller.scopes.create("spark")
        segment = "spark/s/0.#epoch.0"
        await services.segments.create_segment(segment)
        return (await services.segments.info(segment)).length

    address = f"tls://{server.address}"
    password = tmp_path / "password"
    password.write_text(PASSWORD)
    password.chmod(0o600)
    monkeypatch.setenv("PENSTOCK_TLS_CA", str(ROOT.write(tmp_path / "ca.pem")))
    monkeypatch.delenv("PENSTOCK_TOKEN_FILE", raising=False)
    monkeypatch.delenv("PENSTOCK_USER", raising=False)
    try:
        with pytest.raises(UnauthenticatedError):
            link(dial, address).served().run(written)
        monkeypatch.setenv("PENSTOCK_USER", "ann")
        monkeypatch.setenv("PENSTOCK_PASSWORD_FILE", str(password))
        assert link(dial, address).served().run(written) == 0
        close_links()
        monkeypatch.setenv("PENSTOCK_USER", "rob")
        with pytest.raises(PermissionDeniedError):
            link(dial, address).served().run(written)
    finally:
        close_links()
