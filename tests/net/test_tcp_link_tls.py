"""Links over TCP with TLS: both certificates and the secret count, and a link never falls back to plain."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.errors import InvalidArgumentError, NotConnectedError, UnauthenticatedError
from penstock.net.dial.security import DialSecurity
from penstock.net.tls.certificates import NO_ALPN, load_tls
from penstock.net.tls.client import RELOAD_S, ClientTls, FreshTls
from penstock.net.workers.frame_exchange import FrameExchange
from penstock.net.workers.handshake import FRAME_MAX_BYTES, LENGTH, Greeting
from penstock.net.workers.tcp_link import Accepted, LinkListener, dial_container
from penstock.storage.machine.clock import RealClock
from penstock.testing.fakes import SeededRng
from tests.certificates import Authority

SECRET = b"s" * 32
GREETING = Greeting("c1", 3, 7, "controller-1")
PATIENCE_S = 60.0
ROOT, STRANGER = Authority(), Authority("stranger")


async def echo(*arguments):
    return list(arguments)


def server_context(path: Path, *, hosts: tuple[str, ...] = ("127.0.0.1",), mutual: bool = False) -> ssl.SSLContext:
    more = {"client_ca": ROOT.write(path / "clients.pem")} if mutual else {}
    files = ROOT.issue(path, "store", hosts=hosts).settings(**more)
    return load_tls(files, now_ms=RealClock().now_ms()).contexts[NO_ALPN]


def client_context(path: Path, *, ca: Authority = ROOT, own: Authority | None = None) -> ssl.SSLContext:
    trusted = ca.write(path / "ca.pem")
    if own is None:
        return ClientTls(ca=trusted).context()
    files = own.issue(path, "controller", client=True)
    return ClientTls(ca=trusted, certificate=files.certificate, key=files.key).context()


@contextlib.asynccontextmanager
async def listening(tls: ssl.SSLContext | None, greetings: list[Greeting]):
    def accept(greeting: Greeting) -> Accepted:
        greetings.append(greeting)
        return Accepted({"echo": echo})

    async with LinkListener(
        *("127.0.0.1", 0),
        cluster="c1",
        secret=SECRET,
        rng=SeededRng(1),
        accept=accept,
        tls=None if tls is None else lambda: tls,
    ) as listener:
        yield listener.port


async def dial(port: int, tls: ssl.SSLContext | None, secret: bytes = SECRET):
    return await dial_container(
        f"127.0.0.1:{port}", GREETING, secret=secret, rng=SeededRng(2), handlers={"echo": echo}, tls=tls
    )


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[], Awaitable[None]]], None]:
    def runs(body: Callable[[], Awaitable[None]]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(asyncio.wait_for(body(), PATIENCE_S))

    return runs


@pytest.mark.parametrize("mutual", [False, True])
def test_a_link_over_tls_carries_calls(run, tmp_path: Path, mutual: bool) -> None:
    server = server_context(tmp_path, mutual=mutual)
    client = client_context(tmp_path, own=ROOT if mutual else None)

    async def body() -> None:
        greetings: list[Greeting] = []
        async with listening(server, greetings) as port:
            link = await dial(port, client)
            assert await link.call("echo", b"x" * 300_000, 1) == [b"x" * 300_000, 1]
            link.close()
            await link.closed
        assert greetings == [GREETING]

    run(body)


@pytest.mark.parametrize(
    "case",
    ["foreign authority", "other host", "no certificate", "foreign certificate", "plain dialer", "plain listener"],
)
def test_a_peer_without_the_right_tls_is_not_accepted(run, tmp_path: Path, case: str) -> None:
    hosts = ("elsewhere.test",) if case == "other host" else ("127.0.0.1",)
    server = server_context(tmp_path, hosts=hosts, mutual=case in ("no certificate", "foreign certificate"))
    client = client_context(
        tmp_path,
        ca=STRANGER if case == "foreign authority" else ROOT,
        own=STRANGER if case == "foreign certificate" else None,
    )

    async def body() -> None:
        greetings: list[Greeting] = []
        async with listening(None if case == "plain listener" else server, greetings) as port:
            with pytest.raises((NotConnectedError, UnauthenticatedError)):
                await dial(port, None if case == "plain dialer" else client)
        assert greetings == []

    run(body)


def test_files_of_a_dialer_are_read_again_in_time_and_not_for_each_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, reads = [100.0], []
    files = ClientTls(ca=ROOT.write(tmp_path / "ca.pem"))
    read = ClientTls.context
    monkeypatch.setattr(ClientTls, "context", lambda one: reads.append(now_s[0]) or read(one))
    fresh = FreshTls(files, lambda: now_s[0])
    for _ in range(64):
        first = fresh.context()
    assert reads == [100.0]
    for text in (b"broken", b""):
        (tmp_path / "ca.pem").write_bytes(text)
        now_s[0] += RELOAD_S
        assert [fresh.context() for _ in range(64)] == [first] * 64, "a file that is just replaced ends no links"
    STRANGER.write(tmp_path / "ca.pem")
    now_s[0] += RELOAD_S
    (found,) = fresh.context().get_ca_certs()
    assert ("commonName", "stranger") in found["subject"][0]
    assert len(reads) == 4


def test_files_that_could_never_be_used_are_refused_without_reading_them_for_each_link(tmp_path: Path) -> None:
    now_s = [0.0]
    fresh = FreshTls(ClientTls(ca=tmp_path / "ca.pem"), lambda: now_s[0])
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match="cannot be read"):
            fresh.context()
    ROOT.write(tmp_path / "ca.pem")
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        fresh.context()
    now_s[0] += RELOAD_S
    assert len(fresh.context().get_ca_certs()) == 1


def test_tls_does_not_replace_the_secret(run, tmp_path: Path) -> None:
    server, client = server_context(tmp_path, mutual=True), client_context(tmp_path, own=ROOT)

    async def body() -> None:
        greetings: list[Greeting] = []
        async with listening(server, greetings) as port:
            with pytest.raises(UnauthenticatedError, match="another secret"):
                await dial(port, client, b"o" * 32)
        assert greetings == []

    run(body)


class Kept(asyncio.Protocol):
    """What a link receives."""

    def __init__(self) -> None:
        self.data = b""

    def data_received(self, data: bytes) -> None:
        self.data += data


class Wire(asyncio.Transport):
    """A transport that notes whether it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        pass


@settings(deadline=None)
@given(
    frames=st.lists(st.binary(max_size=FRAME_MAX_BYTES), max_size=6),
    rest=st.binary(max_size=9000),
    sizes=st.lists(st.integers(1, 5000), min_size=1),
)
def test_frames_and_what_follows_arrive_whole_however_they_are_cut(frames, rest, sizes) -> None:
    async def body() -> None:
        exchange, wire, link = FrameExchange(), Wire(), Kept()
        exchange.connection_made(wire)
        left = b"".join(LENGTH.pack(len(frame)) + frame for frame in frames) + rest

        async def deliver() -> None:
            nonlocal left
            turn = 0
            while left:
                if wire.reading:
                    size = sizes[turn % len(sizes)]
                    exchange.data_received(left[:size])
                    left, turn = left[size:], turn + 1
                await asyncio.sleep(0)

        delivering = asyncio.ensure_future(deliver())
        assert [await exchange.receive() for _ in frames] == frames
        delivering.cancel()
        await asyncio.gather(delivering, return_exceptions=True)
        exchange.hand_over(link)
        assert wire.reading
        assert link.data + left == rest

    asyncio.run(body())


def test_a_peer_that_has_proved_nothing_is_read_up_to_a_limit(run) -> None:
    async def body() -> None:
        exchange, wire = FrameExchange(), Wire()
        exchange.connection_made(wire)
        exchange.data_received(LENGTH.pack(FRAME_MAX_BYTES) + bytes(8 * FRAME_MAX_BYTES))
        assert not wire.reading
        assert await exchange.receive() == bytes(FRAME_MAX_BYTES)
        assert not wire.reading, "more than the limit still waits"

    run(body)


def test_a_store_that_dials_others_takes_renewed_authorities_and_keeps_the_old_ones_if_they_are_broken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, now_s = ROOT.write(tmp_path / "ca.pem"), [0.0]
    dialling = DialSecurity(tls=ClientTls(ca=file), now=lambda: now_s[0])
    first = dialling.context()
    assert first is not None
    file.write_text("no certificate")
    now_s[0] += RELOAD_S
    assert dialling.context() is first
    assert "the old ones stay in use" in caplog.text
    STRANGER.write(file)
    now_s[0] += RELOAD_S
    second = dialling.context()
    assert second is not None
    assert second.get_ca_certs() != first.get_ca_certs()
    assert DialSecurity(now=lambda: 0.0).context() is None
