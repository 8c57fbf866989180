"""The official Pravega Python client, unchanged, against a server with TLS; and Spark's own connections."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.model.errors import TlsError
from penstock.spark.connect import Services, close_links, dial, link
from penstock.testing.server import ServerProcess
from tests.certificates import Authority

pytestmark = pytest.mark.server
PROGRAM = Path(__file__).with_name("official_over_tls.py")
ROOT, STRANGER = Authority(), Authority("stranger")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = tmp_path_factory.mktemp("official-tls")
    options = ROOT.issue(path, hosts=("localhost", "127.0.0.1")).options()
    with ServerProcess(path / "data", "--advertise", "localhost", *options) as running:
        yield running


def run(server: ServerProcess, authority: Authority, directory: Path) -> subprocess.CompletedProcess[str]:
    directory.mkdir()
    authority.write(directory / "ca.crt")
    return subprocess.run(
        [sys.executable, str(PROGRAM), f"localhost:{server.controller_port}"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=os.environ | {"pravega_client_tls_cert_path": str(directory)},
    )


def test_the_official_client_writes_reads_and_commits_over_tls(server, tmp_path):
    done = run(server, ROOT, tmp_path / "certs")
    assert done.returncode == 0, f"{done.stderr[-3000:]}\n--- server\n{server.tail()}"
    assert json.loads(done.stdout) == sorted([*(f"event {number}" for number in range(50)), "in a transaction"])


def test_processes_of_spark_connect_with_what_their_environment_names(server, tmp_path, monkeypatch):
    async def scopes(services: Services) -> bool:
        return await services.controller.scopes.exists("none")

    address = f"tls://{server.address}"
    for name in ("PENSTOCK_TLS_CA", "PENSTOCK_USER", "PENSTOCK_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    try:
        with pytest.raises(TlsError, match="not trusted here"):
            link(dial, address).served()
        monkeypatch.setenv("PENSTOCK_TLS_CA", str(ROOT.write(tmp_path / "ca.pem")))
        assert link(dial, address).served().run(scopes) is False
    finally:
        close_links()
