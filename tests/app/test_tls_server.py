"""A server with TLS: what its start refuses, and a reload in all of its processes."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.app.access.settings import AccessSettings
from penstock.app.cli.main import app
from penstock.app.settings import EmbeddedSettings, StandaloneSettings
from penstock.model.errors import InvalidArgumentError
from penstock.testing.server import ServerProcess
from tests.certificates import DAY, Authority

ROOT = Authority()


def test_beyond_loopback_the_refusal_names_what_is_missing(tmp_path: Path) -> None:
    store = EmbeddedSettings(data=tmp_path)
    tls = ROOT.issue(tmp_path).settings()
    for host in ("0.0.0.0", "::", "192.0.2.1", "store.example"):
        with pytest.raises(
            InvalidArgumentError, match=r"TLS is missing \(--tls-cert and --tls-key\) and authentication"
        ):
            StandaloneSettings(store=store, host=host)
        with pytest.raises(InvalidArgumentError, match="and authentication is missing") as caught:
            StandaloneSettings(store=store, host=host, tls=tls)
        assert "TLS is missing" not in str(caught.value)
        with pytest.raises(InvalidArgumentError, match="TLS is missing") as caught:
            StandaloneSettings(store=store, host=host, access=AccessSettings())
        assert "authentication is missing" not in str(caught.value)
        assert not StandaloneSettings(store=store, host=host, tls=tls, access=AccessSettings()).unprotected
        assert StandaloneSettings(store=store, host=host, insecure=True).unprotected
    for host in ("127.0.0.1", "localhost", "::1", "127.9.9.9"):
        assert not StandaloneSettings(store=store, host=host).unprotected


def test_options_that_belong_together_are_required_together(tmp_path: Path) -> None:
    files = ROOT.issue(tmp_path)

    def refusal(*options: str) -> str:
        return str(CliRunner().invoke(app, ["standalone", "--data", str(tmp_path / "data"), *options]).exception)

    for options in (files.options()[:2], files.options()[2:], ("--tls-client-ca", str(files.certificate))):
        assert "TLS needs a certificate and its key" in refusal(*options)
    assert "required or optional" in refusal(*files.options(), "--tls-client-auth", "maybe")


def test_a_server_does_not_start_with_bad_files_and_creates_no_store_for_them(tmp_path: Path) -> None:
    data = tmp_path / "data"
    options = ("--controller-port", "0", "--store-port", "0", "--http-port", "0")
    outcome = subprocess.run(
        [
            *(sys.executable, "-m", "penstock", "standalone", "--data", str(data), *options),
            *ROOT.issue(tmp_path, ends=-DAY / 2).options(),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert outcome.returncode == 2
    assert "a certificate has expired; renew it" in outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert not data.exists()


@pytest.mark.server
def test_all_processes_of_a_server_take_new_files_and_report_broken_ones(tmp_path: Path) -> None:
    files = ROOT.issue(tmp_path)
    context = ssl.create_default_context(cafile=str(ROOT.write(tmp_path / "ca.pem")))
    with ServerProcess(tmp_path / "data", "--workers", "2", *files.options()) as server:
        assert server.process is not None
        stores = [int(str(worker["store"]).rpartition(":")[2]) for worker in server.workers]
        ports = (server.controller_port, server.http_port, *stores)
        first = {serial(port, context) for port in ports}
        assert len(first) == 1

        files = ROOT.issue(tmp_path, ends=70 * DAY)
        server.process.send_signal(signal.SIGHUP)
        eventually(
            lambda: len({serial(port, context) for port in ports}) == 1 and serial(ports[0], context) not in first
        )
        second = serial(ports[0], context)

        files.certificate.write_bytes(b"broken")
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: "certificate" in health(server.http_port, context)["details"])
        assert health(server.http_port, context)["readiness"] is True
        assert {serial(port, context) for port in ports} == {second}
        assert "the old certificate stays in use" in server.log.read_text()
        scraped = ask(server.http_port, context, "/metrics")
        assert 'penstock_certificate_refused{process="server"} 1.0' in scraped
        assert "penstock_insecure" in scraped


def serial(port: int, context: ssl.SSLContext) -> object:
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        found = secured.getpeercert()
        assert found is not None
        return found["serialNumber"]


def ask(port: int, context: ssl.SSLContext, path: str) -> str:
    connection = http.client.HTTPSConnection("localhost", port, timeout=20, context=context)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def health(port: int, context: ssl.SSLContext) -> dict[str, object]:
    found: dict[str, object] = json.loads(ask(port, context, "/v1/health"))
    return found


def eventually(condition, patience_s: float = 20) -> None:
    give_up = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.1)
