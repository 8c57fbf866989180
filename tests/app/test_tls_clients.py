"""Clients of a server with TLS: what they verify, what they say when that fails, and that they never fall back to plain."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

import penstock
from penstock.model.credentials import Credentials
from penstock.model.errors import (
    InvalidArgumentError,
    NotConnectedError,
    TlsError,
    UnauthenticatedError,
    UnsupportedError,
)
from penstock.net.dial.presenting import Presenting, expiry_ms
from penstock.net.presented import credentials_of
from penstock.testing.fakes import FakeClock
from penstock.testing.server import ServerProcess
from tests.certificates import Authority

ROOT, STRANGER = Authority(), Authority("stranger")
AT_ONCE_S = 10.0
"""Far below the 30 s for which a server that restarts is waited for."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = tmp_path_factory.mktemp("tls")
    files = ROOT.issue(path, hosts=("localhost", "127.0.0.1"))
    with ServerProcess(path / "data", *files.options()) as running:
        yield running


@pytest.fixture(scope="module")
def ca(tmp_path_factory) -> Path:
    return ROOT.write(tmp_path_factory.mktemp("ca") / "ca.pem")


@pytest.mark.server
def test_events_are_written_and_read_over_tls(server, ca):
    for address in (f"tls://{server.address}", f"pravegas://localhost:{server.controller_port}", server.address):
        with penstock.connect(address, tls_ca=ca) as store:
            stream = store.create_stream("s/t", if_absent=True, create_scope=True)
            with stream.writer() as writer:
                for number in range(20):
                    writer.write(f"{number}".encode(), key="k")
                    writer.flush()
                assert writer._core.direct.active, "single events go over a line of their own, with TLS too"
                writer.write(bytes(100_000), key="k")
            with stream.reader() as reader:
                assert reader.read(timeout_s=10) is not None


@pytest.mark.server
def test_events_are_written_over_tls_in_a_loop(server, ca):
    async def main():
        async with penstock.connect_async(f"tls://{server.address}", tls_ca=ca) as store:
            stream = await store.create_stream("s/async", if_absent=True, create_scope=True)
            async with stream.writer() as writer:
                await writer.write(b"x" * 300_000)

    asyncio.run(main())


@pytest.mark.server
def test_the_environment_names_the_authority_for_tls_addresses_only(server, ca, monkeypatch):
    monkeypatch.setenv("PENSTOCK_TLS_CA", str(ca))
    with penstock.connect(f"tls://{server.address}") as store:
        assert "s" in [*store.scopes(), "s"]
    monkeypatch.delenv("PENSTOCK_TLS_CA")
    monkeypatch.setenv("pravega_client_tls_cert_path", str(ca.parent))
    with penstock.connect(f"tls://{server.address}") as store:
        assert "s" in [*store.scopes(), "s"]
    began = time.monotonic()
    with pytest.raises(TlsError, match="closes plain connections"):
        penstock.connect(f"tcp://{server.address}")
    assert time.monotonic() - began < AT_ONCE_S


def refused(address: str, **options: object) -> str:
    began = time.monotonic()
    with pytest.raises(TlsError) as caught:
        penstock.connect(address, **options)
    assert time.monotonic() - began < AT_ONCE_S
    return str(caught.value)


@pytest.mark.server
def test_a_server_that_cannot_be_verified_is_refused_at_once_with_advice(server, ca, tmp_path):
    assert "not trusted here" in refused(f"tls://{server.address}")
    assert "not trusted here" in refused(f"tls://{server.address}", tls_ca=STRANGER.write(tmp_path / "other.pem"))
    assert "try tls://" in refused(f"tcp://{server.address}")


@pytest.mark.server
def test_the_command_line_takes_the_authority(server, ca, capsys, monkeypatch):
    from penstock.__main__ import main

    for name in ("PENSTOCK_TLS_CA",):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(
        "sys.argv",
        ["penstock", "scope", "list", "--json", "--controller", f"tls://{server.address}", "--tls-ca", str(ca)],
    )
    with pytest.raises(SystemExit) as left:
        main()
    monkeypatch.delenv("PENSTOCK_TLS_CA", raising=False)
    assert left.value.code in (0, None), capsys.readouterr().err


@pytest.mark.parametrize("behaviour", ["closes", "speaks HTTP", "is a plain server"])
def test_tls_against_something_else_is_refused_and_nothing_is_sent_in_the_clear(behaviour, tmp_path):
    received = bytearray()

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                received.extend(connection.recv(4096))
                if behaviour == "speaks HTTP":
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        address = f"tls://127.0.0.1:{listener.getsockname()[1]}"
        text = refused(
            address,
            tls_ca=ROOT.write(tmp_path / "ca.pem"),
            credentials=Credentials.basic("ann", "open sesame"),
        )
        listener.shutdown(socket.SHUT_RDWR)
    assert "tcp://" in text
    assert received[:1] == b"\x16"
    assert b"PRI *" not in received
    assert b"Basic" not in received


def test_a_certificate_of_another_host_is_refused(tmp_path):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    files = ROOT.issue(tmp_path, hosts=("store.example",))
    context.load_cert_chain(files.certificate, files.key)

    def serve(listener: socket.socket) -> None:
        with suppress(OSError), listener.accept()[0] as connection:
            context.wrap_socket(connection, server_side=True)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        address = f"tls://127.0.0.1:{listener.getsockname()[1]}"
        assert "of another host" in refused(address, tls_ca=ROOT.write(tmp_path / "ca.pem"))


def test_contradictions_are_refused_before_anything_is_sent(tmp_path):
    ca = ROOT.write(tmp_path / "ca.pem")
    with pytest.raises(InvalidArgumentError, match="plain address"):
        penstock.connect("tcp://localhost:1", tls_ca=ca)
    with pytest.raises(InvalidArgumentError, match="in the clear"):
        penstock.connect("store.example:1", credentials=Credentials.basic("a", "b"))
    with pytest.raises(InvalidArgumentError, match="certificates of authorities"):
        penstock.connect("tls://localhost:1", tls_ca=__file__)
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        penstock.connect("tls://localhost:1", tls_ca=tmp_path / "missing")
    with pytest.raises(InvalidArgumentError, match="key needs its certificate"):
        penstock.connect("tls://localhost:1", tls_ca=ca, tls_key=ca)
    with pytest.raises(InvalidArgumentError, match="client's certificate or key"):
        penstock.connect("tls://localhost:1", tls_ca=ca, tls_cert=ca, tls_key=ca)
    with pytest.raises(InvalidArgumentError, match="no such option"):
        penstock.connect("tls://localhost:1", ca=ca)
    # Credentials stay on this machine, so they may be plain; nothing listens there.
    with pytest.raises(NotConnectedError):
        penstock.connect("localhost:1", credentials=Credentials.basic("a", "b"))


@pytest.mark.server
@pytest.mark.parametrize("mode", ["required", "optional"])
def test_clients_show_a_certificate_where_the_server_asks(tmp_path, mode):
    files = ROOT.issue(tmp_path)
    ca = ROOT.write(tmp_path / "ca.pem")
    own = ROOT.issue(tmp_path, "client", client=True)
    other = STRANGER.issue(tmp_path, "other", client=True)
    options = ("--tls-client-ca", str(ca), "--tls-client-auth", mode)
    with ServerProcess(tmp_path / "data", *files.options(), *options) as server:
        address = f"tls://{server.address}"
        with penstock.connect(address, tls_ca=ca, tls_cert=own.certificate, tls_key=own.key) as store:
            stream = store.create_stream("s/t", create_scope=True)
            with stream.writer() as writer:
                writer.write(b"x")
        refused(address, tls_ca=ca, tls_cert=other.certificate, tls_key=other.key)
        if mode == "required":
            assert "asks for a client's certificate" in refused(address, tls_ca=ca)
        else:
            with penstock.connect(address, tls_ca=ca) as store:
                assert store.scopes() is not None


# --- credentials -----------------------------------------------------------------------------------------


def token(expires_s: float) -> str:
    import base64
    import json

    body = base64.urlsafe_b64encode(json.dumps({"exp": expires_s}).encode()).decode().rstrip("=")
    return f"e30.{body}.c2ln"


def test_credentials_show_no_secret_and_are_not_pickled():
    import pickle

    for made in (Credentials.basic("ann", "hush"), Credentials.bearer("hush"), Credentials.bearer_from(lambda: "hush")):
        assert "hush" not in repr(made)
        assert "ann" not in repr(made)
        with pytest.raises(TypeError):
            pickle.dumps(made)
    for user in ("", "a:b"):
        with pytest.raises(InvalidArgumentError):
            Credentials.basic(user, "x")
    for bad in ("", "two words", "line\nend", "x" * 20_000):
        with pytest.raises(InvalidArgumentError) as caught:
            Credentials.bearer(bad)
        assert bad == "" or bad not in str(caught.value)


def test_a_token_is_asked_for_again_before_it_expires_and_after_a_refusal():
    clock, calls = FakeClock(), []

    async def supply() -> str:
        calls.append(clock.ms)
        return token(clock.ms / 1000 + 600)

    async def main():
        presenting = Presenting(Credentials.bearer_from(supply), clock)
        first = await presenting.header()
        assert first == await presenting.header()
        clock.ms += 530_000
        assert await presenting.header() == first
        clock.ms += 20_000
        second = await presenting.header()
        assert second != first
        assert not Presenting(Credentials.bearer("x"), clock).refused("Bearer x")
        assert presenting.refused(second)
        await asyncio.gather(*(presenting.header() for _ in range(10)))
        assert len(calls) == 3, "one call, however many wait for it"

    asyncio.run(main())


def test_a_token_file_is_read_again_and_a_failing_source_is_an_error_of_authentication(tmp_path):
    clock, path = FakeClock(), tmp_path / "token"

    def fails() -> str:
        raise OSError("secret detail")

    async def main():
        presenting = Presenting(Credentials.bearer_file(path), clock)
        with pytest.raises(UnauthenticatedError, match="cannot be read"):
            await presenting.header()
        path.write_text("one\n")
        assert await presenting.header() == "Bearer one"
        path.write_text("two")
        clock.ms += 61_000
        assert await presenting.header() == "Bearer two"
        path.write_bytes(b"\xff" * 20_000)
        clock.ms += 61_000
        with pytest.raises(UnauthenticatedError):
            await presenting.header()
        with pytest.raises(UnauthenticatedError) as caught:
            await Presenting(Credentials.bearer_from(fails), clock).header()
        assert "secret detail" not in str(caught.value)

    asyncio.run(main())


@pytest.mark.parametrize("text", ["", "a.b", "a.b.c", "a..c", "a.e30.c", "a.W10.c", "é.é.é"])
def test_a_token_that_says_nothing_of_its_expiry_has_none(text):
    assert expiry_ms(text) is None


def test_the_environment_names_credentials(tmp_path):
    assert credentials_of({}) is None
    (tmp_path / "password").write_text("open sesame\n")
    ours = credentials_of({"PENSTOCK_USER": "ann", "PENSTOCK_PASSWORD_FILE": str(tmp_path / "password")})
    theirs = credentials_of(
        {
            "pravega_client_auth_method": "Basic",
            "pravega_client_auth_username": "ann",
            "pravega_client_auth_password": "open sesame",
        }
    )
    assert ours is not None
    assert theirs is not None
    assert ours.header == theirs.header == Credentials.basic("ann", "open sesame").header
    both = credentials_of({"PENSTOCK_TOKEN_FILE": "/x", "PENSTOCK_USER": "ann"})
    assert both is not None
    assert both.file == Path("/x")
    with pytest.raises(InvalidArgumentError, match="needs the name of its user"):
        credentials_of({"PENSTOCK_PASSWORD_FILE": str(tmp_path / "password")})
    with pytest.raises(InvalidArgumentError, match="PENSTOCK_PASSWORD_FILE"):
        credentials_of({"PENSTOCK_USER": "ann"})
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        credentials_of({"PENSTOCK_USER": "ann", "PENSTOCK_PASSWORD_FILE": str(tmp_path / "missing")})
    with pytest.raises(UnsupportedError):
        credentials_of({"pravega_client_auth_method": "Bearer"})


def test_contexts_of_clients_verify_host_and_chain(tmp_path):
    from penstock.net.tls.client import ClientTls

    for tls in (ClientTls(), ClientTls(ca=ROOT.write(tmp_path / "ca.pem"))):
        context = tls.context()
        assert context.check_hostname
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
