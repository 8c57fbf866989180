"""TLS in front of every port: who gets in, what a peer that does not finish costs, and reloads under load."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import grpc
import pytest
from wire_memory_store import MemorySegments
from wire_peers import run, until

from penstock.app.telemetry import Counters
from penstock.codec.wire import commands as c
from penstock.codec.wire import frames as wire
from penstock.net.grpc.grpc_server import GrpcServer
from penstock.net.http.http_server import RestServer
from penstock.net.native.calls import SERVICE, info_call
from penstock.net.security import Security
from penstock.net.tls.certificates import NO_ALPN
from penstock.net.tls.door import HandshakeLimits, TlsDoor, peer_certificate
from penstock.net.tls.server_tls import ServerTls
from penstock.net.wire.wire_server import WireServer
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng
from penstock.testing.fakes import FakeClock
from penstock.testing.world import World
from tests.certificates import DAY, Authority

ROOT = Authority()
STRANGER = Authority("stranger")


def trusting(tmp_path: Path, root: Authority = ROOT) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(root.write(tmp_path / f"{root.name}.pem")))


class Echo(asyncio.Protocol):
    """A server that answers with what it gets, and first with the names of its client."""

    made: list[Echo] = []

    def connection_made(self, transport):
        self.transport = transport
        Echo.made.append(self)
        transport.write(repr(peer_certificate(transport)).encode() + b"\n")

    def data_received(self, data):
        self.transport.write(data)


@asynccontextmanager
async def door(settings, limits=None, counters=None):
    loop = asyncio.get_running_loop()
    counters = counters or Counters()
    tls = ServerTls(settings, clock=RealClock(), telemetry=counters)
    made = TlsDoor(tls, NO_ALPN, telemetry=counters, limits=limits)
    server = await loop.create_server(made.behind(Echo), "127.0.0.1", 0)
    try:
        yield made, tls, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        made.close()
        await asyncio.sleep(0)


async def greeted(port, context, host="localhost"):
    """The first line of the server, over a new connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=host)
    try:
        return (await reader.readline()).decode().strip()
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_connection_is_encrypted_with_the_newest_protocol(tmp_path, loop):
    async def main():
        async with door(ROOT.issue(tmp_path).settings()) as (_, _, port):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=trusting(tmp_path), server_hostname="localhost"
            )
            assert writer.get_extra_info("ssl_object").version() == "TLSv1.3"
            assert await reader.readline() == b"()\n"
            data = bytes(range(256)) * 4096
            writer.write(data)
            assert await reader.readexactly(len(data)) == data
            writer.close()

    run(main(), loop)


def test_a_client_refuses_a_wrong_host_and_a_stranger_and_the_server_goes_on(tmp_path):
    async def main():
        async with door(ROOT.issue(tmp_path).settings()) as (made, _, port):
            for context, host in ((trusting(tmp_path), "elsewhere"), (trusting(tmp_path, STRANGER), "localhost")):
                with pytest.raises(ssl.SSLCertVerificationError):
                    await greeted(port, context, host)
            assert await greeted(port, trusting(tmp_path)) == "()"
            await until(lambda: made.arriving == 0)

    run(main())


def test_old_protocols_and_weak_ciphers_are_refused(tmp_path):
    async def main():
        async with door(ROOT.issue(tmp_path).settings()) as (_, _, port):
            old = trusting(tmp_path)
            old.set_ciphers("ALL:@SECLEVEL=0")
            with pytest.warns(DeprecationWarning, match="TLSVersion"):
                old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
            weak = trusting(tmp_path)
            weak.maximum_version = ssl.TLSVersion.TLSv1_2
            weak.set_ciphers("AES128-SHA:AES256-SHA:ECDHE-ECDSA-AES128-SHA")
            for context in (old, weak):
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    await greeted(port, context)

    run(main())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_the_names_of_a_clients_certificate_reach_the_server(tmp_path, version):
    async def main():
        server = ROOT.issue(tmp_path).settings(client_ca=ROOT.write(tmp_path / "clients.pem"))
        client = ROOT.issue(tmp_path, "client", hosts=("worker.example", "spiffe://x/worker"), client=True)
        async with door(server) as (_, _, port):
            known = trusting(tmp_path)
            known.maximum_version = version
            known.load_cert_chain(client.certificate, client.key)
            assert await greeted(port, known) == repr(("URI:spiffe://x/worker", "DNS:worker.example"))
            Echo.made.clear()
            foreign = STRANGER.issue(tmp_path, "foreign", client=True)
            other = trusting(tmp_path)
            other.maximum_version = version
            other.load_cert_chain(foreign.certificate, foreign.key)
            for context in (trusting(tmp_path), other):
                with suppress(ssl.SSLError, ConnectionError):
                    assert await greeted(port, context) == ""
            assert not Echo.made

    run(main())


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_connection_ends_once_the_certificate_of_its_client_has_expired(tmp_path, loop, caplog):
    async def main():
        counters = Counters()
        server = ROOT.issue(tmp_path).settings(client_ca=ROOT.write(tmp_path / "c.pem"), client_auth="optional")
        client = ROOT.issue(tmp_path, "client", ends=DAY, client=True)
        async with door(server, HandshakeLimits(expiry_s=0.05), counters) as (_, tls, port):
            known = trusting(tmp_path)
            known.load_cert_chain(client.certificate, client.key)
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=known, server_hostname="localhost")
            other, kept = await asyncio.open_connection(
                "127.0.0.1", port, ssl=trusting(tmp_path), server_hostname="localhost"
            )
            await reader.readline(), await other.readline()
            await asyncio.sleep(0.2)  # some looks before the end
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
            tls._clock = FakeClock()
            tls._clock.ms = RealClock().now_ms() + 2 * 86_400_000
            async with asyncio.timeout(5):
                with suppress(ConnectionError):
                    assert await reader.read() == b""
            kept.write(b"y")
            assert await other.readexactly(1) == b"y"
            assert counters.counts["tls_expired_connections"] == 1
            writer.close(), kept.close()

    run(main(), loop)
    assert [item.peer for item in caplog.records if "certificate has expired" in item.message] == ["127.0.0.1"]


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_closed_connections_with_a_client_certificate_are_forgotten_early(tmp_path, loop, monkeypatch):
    monkeypatch.setattr("penstock.net.tls.door._EXPIRING_FREE", 4)

    async def main():
        server = ROOT.issue(tmp_path).settings(client_ca=ROOT.write(tmp_path / "c.pem"), client_auth="required")
        client = ROOT.issue(tmp_path, "client", client=True)
        async with door(server) as (made, _, port):
            known = trusting(tmp_path)
            known.load_cert_chain(client.certificate, client.key)
            for _ in range(20):
                await greeted(port, known)
                await until(Echo.made.pop().transport.is_closing)
                assert len(made._expiring) <= 8

    run(main(), loop)


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", bytes(40)])
def test_plain_text_on_a_port_with_tls_is_logged_in_one_sentence(tmp_path, caplog, sent):
    async def main():
        async with door(ROOT.issue(tmp_path).settings()) as (made, _, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            with suppress(ConnectionError):
                await reader.read()
            writer.close()
            await until(lambda: made.arriving == 0)

    run(main())
    (line,) = [item for item in caplog.records if item.message == "TLS handshake failed"]
    assert "does not use TLS" in line.reason
    assert "tls://" in line.reason


def test_where_client_certificates_are_optional_a_client_without_one_gets_in_and_one_with_a_foreign_one_does_not(
    tmp_path,
):
    async def main():
        settings = ROOT.issue(tmp_path).settings(client_ca=ROOT.write(tmp_path / "clients.pem"), client_auth="optional")
        async with door(settings) as (_, _, port):
            assert await greeted(port, trusting(tmp_path)) == "()"
            Echo.made.clear()
            foreign = STRANGER.issue(tmp_path, "foreign", client=True)
            other = trusting(tmp_path)
            other.load_cert_chain(foreign.certificate, foreign.key)
            with suppress(ssl.SSLError, ConnectionError):
                assert await greeted(port, other) == ""
            assert not Echo.made

    run(main())


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_handshake_that_does_not_end_is_ended(tmp_path, loop):
    """Slowloris: nothing, half a ClientHello, or anything else than TLS."""

    async def main():
        counters = Counters()
        limits = HandshakeLimits(handshake_s=0.3)
        async with door(ROOT.issue(tmp_path).settings(), limits, counters) as (made, _, port):
            Echo.made.clear()
            outgoing = ssl.MemoryBIO()
            hello = trusting(tmp_path).wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
            with suppress(ssl.SSLWantReadError):
                hello.do_handshake()
            sent = outgoing.read()
            for data in (
                b"",
                sent[:60],
                sent[:5],
                b"\x16\x03\x01\xff\xff" + bytes(100),
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            ):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(data)
                async with asyncio.timeout(3):
                    with suppress(ConnectionError):
                        await reader.read()
                writer.close()
            await until(lambda: made.arriving == 0)
            assert not Echo.made
            assert counters.snapshot().counts[-1][1:] == (("failed",), 5)

    run(main(), loop)


def test_more_handshakes_than_allowed_replace_the_oldest_and_others_still_get_in(tmp_path):
    async def main():
        limits = HandshakeLimits(handshakes=8, handshake_s=60)
        async with door(ROOT.issue(tmp_path).settings(), limits) as (made, _, port):
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(50)]
            await until(lambda: made.arriving == 8)
            assert await greeted(port, trusting(tmp_path)) == "()"
            assert made.arriving <= 8
            for _, writer in silent:
                writer.close()

    run(main(), "uvloop")


def test_a_client_cannot_renegotiate(tmp_path):
    """A flood of renegotiations would cost the server a handshake each, on one connection."""

    async def main():
        async with door(ROOT.issue(tmp_path).settings()) as (_, _, port):
            process = await asyncio.create_subprocess_exec(
                *("openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-tls1_2"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            out, _ = await process.communicate(b"R\nR\nR\n")
            assert b"RENEGOTIATING" in out
            assert b"no renegotiation" in out
            assert await greeted(port, trusting(tmp_path)) == "()"

    run(main())


def test_certificates_are_replaced_in_the_middle_of_handshakes(tmp_path):
    """No handshake fails, whichever certificate it began with; later ones get the new one."""

    async def main():
        files = ROOT.issue(tmp_path)
        async with door(files.settings()) as (_, tls, port):
            context = trusting(tmp_path)
            stop = False

            async def come_and_go():
                count = 0
                while not stop:
                    assert await greeted(port, context) == "()"
                    count += 1
                return count

            visitors = [asyncio.create_task(come_and_go()) for _ in range(4)]
            for turn in range(10):
                ROOT.issue(tmp_path, ends=(30 + turn) * DAY)
                assert tls.reload()
                await asyncio.sleep(0.02)
            files.certificate.write_bytes(b"broken")
            assert not tls.reload()
            await asyncio.sleep(0.02)
            stop = True
            assert min([await one for one in visitors]) > 0

    run(main(), "uvloop")


@asynccontextmanager
async def servers(tmp_path, counters):
    async with AsyncExitStack() as stack:
        tls = await stack.enter_async_context(
            ServerTls(ROOT.issue(tmp_path).settings(), clock=RealClock(), telemetry=counters)
        )
        world = World(clock=RealClock(), rng=RealRng())
        store, controller = await stack.enter_async_context(world.serving())
        security = Security(tls=tls)
        grpc_server = await stack.enter_async_context(GrpcServer(controller, store, port=0, security=security))
        http = await stack.enter_async_context(
            RestServer(controller, store, clock=RealClock(), port=0, security=security)
        )
        wired = await stack.enter_async_context(
            WireServer(MemorySegments(), port=0, rng=RealRng(), telemetry=counters, security=security)
        )
        yield grpc_server.port, http.port, wired.port


def test_every_port_speaks_tls_and_closes_a_plain_connection(tmp_path):
    async def main():
        counters = Counters()
        async with servers(tmp_path, counters) as (grpc_port, http_port, wire_port):
            context = trusting(tmp_path)
            credentials = grpc.ssl_channel_credentials((tmp_path / f"{ROOT.name}.pem").read_bytes())
            async with grpc.aio.secure_channel(f"localhost:{grpc_port}", credentials) as channel:
                call = channel.unary_unary(f"/{SERVICE}/{info_call().name}")
                assert await call(info_call().encode_request((), {}), timeout=10)

            reader, writer = await asyncio.open_connection(
                "127.0.0.1", http_port, ssl=context, server_hostname="localhost"
            )
            writer.write(b"GET /ping HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
            writer.close()

            reader, writer = await asyncio.open_connection(
                "127.0.0.1", wire_port, ssl=context, server_hostname="localhost"
            )
            writer.write(wire.encode(c.Hello(wire.VERSION_HIGH, wire.VERSION_LOW)))
            code, length = wire.HEADER.unpack(await reader.readexactly(8))
            assert isinstance(wire.decode(code, memoryview(await reader.readexactly(length))), c.Hello)
            writer.close()

            hello = wire.encode(c.Hello(wire.VERSION_HIGH, wire.VERSION_LOW))
            for port, plain in (
                (grpc_port, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
                (http_port, b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n"),
                (wire_port, hello),
            ):
                with socket.create_connection(("127.0.0.1", port)) as peer:
                    peer.sendall(plain)
                    loop = asyncio.get_running_loop()
                    peer.setblocking(False)
                    with suppress(ConnectionError):
                        received = await loop.sock_recv(peer, 100)
                        assert not received or received[0] == 0x15, "a TLS alert at most"

    run(main(), "uvloop")
