"""Links over TCP: only an end that knows the secret gets past the handshake, and nobody can block the door for long."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.errors import (
    ContainerOfflineError,
    FencedError,
    InvalidArgumentError,
    NotConnectedError,
    PenstockError,
    ProtocolError,
    UnauthenticatedError,
    WrongClusterError,
)
from penstock.net.workers import handshake, tcp_link
from penstock.net.workers.handshake import LENGTH, Greeting, decode_hello, decode_verdict, encode_hello, encode_verdict
from penstock.net.workers.tcp_link import Accepted, LinkListener, dial_container
from penstock.testing.fakes import SeededRng

SECRET = b"s" * 32
OTHER_SECRET = b"o" * 32
GREETING = Greeting("c1", 3, 7, "controller-1")
PATIENCE_S = 10.0


async def echo(*arguments):
    return list(arguments)


class Door:
    """A listener, and what happened behind it."""

    def __init__(self, *, refuse: PenstockError | None = None, **options) -> None:
        self.greetings: list[Greeting] = []
        self.links: list = []
        self.opened = asyncio.Event()
        self._refuse = refuse
        options = {"cluster": "c1", "secret": SECRET, "rng": SeededRng(1), **options}
        self.listener = LinkListener("127.0.0.1", 0, accept=self._accept, **options)

    def _accept(self, greeting: Greeting) -> Accepted:
        self.greetings.append(greeting)
        if self._refuse is not None:
            raise self._refuse
        return Accepted({"echo": echo}, {"take": lambda answer, item: answer(item)}, self._opened)

    def _opened(self, link) -> None:
        self.links.append(link)
        self.opened.set()

    async def dial(self, **options):
        options = {"secret": SECRET, "rng": SeededRng(2), "handlers": {"echo": echo}, **options}
        greeting = options.pop("greeting", GREETING)
        return await dial_container(f"127.0.0.1:{self.listener.port}", greeting, **options)


@contextlib.asynccontextmanager
async def door(**options):
    made = Door(**options)
    async with made.listener:
        yield made


class Raw:
    """One connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, frame: bytes) -> None:
        self.writer.write(LENGTH.pack(len(frame)) + frame)

    async def frame(self) -> bytes:
        (size,) = LENGTH.unpack(await self.reader.readexactly(2))
        return await self.reader.readexactly(size)

    async def rest(self) -> bytes:
        """Everything until the other end hangs up."""
        got = b""
        with contextlib.suppress(ConnectionError):
            while more := await self.reader.read(1 << 16):
                got += more
        return got


@contextlib.asynccontextmanager
async def raw(port: int):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Raw(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def impostor(serve):
    """A server that is none of ours; its port."""

    serving: set[asyncio.Task] = set()

    async def one(reader, writer):
        serving.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await serve(Raw(reader, writer))
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        if serving:
            await asyncio.wait(serving)


def run(body) -> None:
    async def limited() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await body()

    asyncio.run(limited())


async def dialled(port: int, **options):
    options = {"secret": SECRET, "rng": SeededRng(2), "handlers": {}, **options}
    return await dial_container(f"127.0.0.1:{port}", GREETING, **options)


def test_both_ends_call_each_other_and_the_container_sees_who_dialled() -> None:
    async def body() -> None:
        async with door() as there:
            link = await there.dial()
            assert await link.call("echo", b"x" * 100_000, 1) == [b"x" * 100_000, 1]
            assert await link.call("take", "now") == "now"
            await there.opened.wait()
            assert await there.links[0].call("echo", "back") == ["back"]
            assert there.greetings == [GREETING]
        await link.closed  # Leaving the listener's block ended it.
        assert not link.is_open

    run(body)


def test_links_end_soon_after_the_other_machine_and_send_without_delay() -> None:
    async def body() -> None:
        async with door() as there:
            link = await there.dial()
            await there.opened.wait()
            for end in (link, there.links[0]):
                sock = end._transport.get_extra_info("socket")
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                if hasattr(socket, "TCP_USER_TIMEOUT"):
                    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000
            link.close()
            await there.links[0].closed

    run(body)


@pytest.mark.parametrize("mine", [OTHER_SECRET, SECRET[:-1], SECRET + b"\0" * 33])
def test_a_dialer_without_the_secret_is_denied_and_reaches_nothing(mine: bytes) -> None:
    async def body() -> None:
        async with door() as there:
            with pytest.raises(UnauthenticatedError, match="another secret"):
                await there.dial(secret=mine)
            assert not there.greetings
            (await there.dial()).close()  # The door still works.

    run(body)


def test_a_short_secret_is_refused_at_both_ends() -> None:
    async def body() -> None:
        with pytest.raises(InvalidArgumentError, match="too short"):
            Door(secret=b"short")
        with pytest.raises(InvalidArgumentError, match="too short"):
            await dialled(1, secret=b"short")

    run(body)


def test_another_cluster_with_the_same_secret_is_refused_by_name() -> None:
    async def body() -> None:
        async with door() as there:
            with pytest.raises(WrongClusterError) as found:
                await there.dial(greeting=Greeting("c2", 3, 7, "controller-1"))
            assert found.value.fields == {"expected": "c2", "found": "c1"}
            assert not there.greetings

    run(body)


@pytest.mark.parametrize(
    "error",
    [
        ContainerOfflineError("container is not served here", container=3, store="store-2"),
        FencedError("a newer controller is elected", term=9),
    ],
)
def test_what_the_container_raises_arrives_as_it_was(error: PenstockError) -> None:
    async def body() -> None:
        async with door(refuse=error) as there:
            with pytest.raises(type(error)) as found:
                await there.dial()
            assert (type(found.value), str(found.value)) == (type(error), str(error))

    run(body)


@pytest.mark.parametrize("char", ["x", "\N{SNOWMAN}", "\U0001f680"])
def test_an_error_of_any_length_fits_the_verdict(char: str) -> None:
    error = ContainerOfflineError("offline " + char * 5000, reason=char * 5000)
    hello = encode_hello(GREETING, b"n" * 32)
    verdict = encode_verdict(error, SECRET, hello, b"c" * 32)
    assert len(verdict) <= handshake.FRAME_MAX_BYTES
    decoded = decode_verdict(verdict, SECRET, hello, b"c" * 32)
    assert decoded is not None
    assert isinstance(decoded.refusal, ContainerOfflineError)
    assert decoded.refusal.message.startswith("offline ")


def test_a_listener_without_the_secret_is_found_out() -> None:
    async def serve(peer: Raw) -> None:
        hello = await peer.frame()
        peer.send(b"c" * 32)
        await peer.frame()
        peer.send(encode_verdict(None, OTHER_SECRET, hello, b"c" * 32))
        await peer.rest()

    async def body() -> None:
        async with impostor(serve) as port:
            with pytest.raises(UnauthenticatedError, match="does not know the secret"):
                await dialled(port)

    run(body)


def test_a_reflected_proof_convinces_neither_end() -> None:
    """An impostor that sends the dialer's own bytes back, with and without the tag of an accepting verdict."""

    for tag in (b"", b"A"):

        async def serve(peer: Raw, tag: bytes = tag) -> None:
            hello = await peer.frame()
            peer.send(hello[15:47])  # the dialer's nonce as the challenge
            peer.send(tag + await peer.frame())
            await peer.rest()

        async def body(serve=serve) -> None:
            async with impostor(serve) as port:
                with pytest.raises(UnauthenticatedError, match="does not know the secret"):
                    await dialled(port)

        run(body)

    async def other_direction() -> None:
        async with door() as there, raw(there.listener.port) as peer:
            peer.send(encode_hello(GREETING, b"n" * 32))
            peer.send(await peer.frame())  # the challenge as its own answer
            assert (await peer.rest()) == LENGTH.pack(1) + handshake.DENIAL
            assert not there.greetings

    run(other_direction)


def test_a_recorded_handshake_cannot_be_replayed_to_either_end() -> None:
    sent: list[bytes] = []
    received: list[bytes] = []

    async def body() -> None:
        async with door() as there:

            async def relay(peer: Raw) -> None:
                """A path that is listened to: it changes nothing, so it does no harm."""
                async with raw(there.listener.port) as inner:
                    for _ in range(2):
                        sent.append(await peer.frame())
                        inner.send(sent[-1])
                        received.append(await inner.frame())
                        peer.send(received[-1])
                    await peer.rest()

            async with impostor(relay) as port:
                (await dialled(port)).close()
            assert there.greetings == [GREETING]
            async with raw(there.listener.port) as peer:
                peer.send(sent[0])
                assert await peer.frame() != received[0]
                peer.send(sent[1])
                assert await peer.rest() == LENGTH.pack(1) + handshake.DENIAL
            assert there.greetings == [GREETING]

        async def replay(peer: Raw) -> None:
            for frame in received:
                await peer.frame()
                peer.send(frame)
            await peer.rest()

        async with impostor(replay) as port:
            with pytest.raises(UnauthenticatedError, match="does not know the secret"):
                await dialled(port, rng=SeededRng(3))

    run(body)


@pytest.mark.parametrize("first", [b"\xff" * 4000, b"GET / HTTP/1.1\r\n\r\n", LENGTH.pack(1025), LENGTH.pack(0)])
def test_garbage_and_oversize_frames_are_hung_up_on_without_an_answer(first: bytes) -> None:
    async def body() -> None:
        async with door() as there, raw(there.listener.port) as peer:
            peer.writer.write(first)
            peer.writer.write_eof()
            assert await peer.rest() == b""
            assert not there.greetings

    run(body)


@settings(max_examples=60, deadline=None)
@given(chunks=st.lists(st.binary(max_size=300), max_size=6), hello=st.booleans())
def test_random_bytes_never_get_beyond_the_handshake(chunks: list[bytes], hello: bool) -> None:
    async def body() -> None:
        async with door() as there, raw(there.listener.port) as peer:
            if hello:
                peer.send(encode_hello(GREETING, b"n" * 32))
            for chunk in chunks:
                peer.send(chunk)
            peer.writer.write_eof()
            answer = await peer.rest()
            assert not there.greetings
            assert len(answer) in (0, 34, 34 + 3)  # nothing, a challenge, or a challenge and a denial

    run(body)


@given(frame=st.binary(max_size=200))
def test_random_frames_are_no_hello_and_no_verdict(frame: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_hello(frame)
    verdict = decode_verdict(frame, SECRET, encode_hello(GREETING, b"n" * 32), b"c" * 32)
    assert verdict is None or verdict.denied


@given(
    cluster=st.text(max_size=20),
    container=st.integers(0, 2**63 - 1),
    term=st.integers(0, 2**63 - 1),
    controller=st.text(max_size=20),
    at=st.integers(0, 10_000),
    bit=st.integers(0, 7),
)
def test_a_hello_comes_out_as_it_went_in_and_each_of_its_bits_is_proven(
    cluster: str, container: int, term: int, controller: str, at: int, bit: int
) -> None:
    greeting = Greeting(cluster, container, term, controller)
    hello = encode_hello(greeting, b"n" * 32)
    assert decode_hello(hello) == greeting
    proof = handshake.dialer_proof(SECRET, hello, b"c" * 32)
    assert handshake.proves(proof, SECRET, hello, b"c" * 32)
    changed = bytearray(hello)
    changed[at % len(hello)] ^= 1 << bit
    assert not handshake.proves(proof, SECRET, bytes(changed), b"c" * 32)
    assert not handshake.proves(proof, SECRET, hello, b"d" * 32)


def test_a_silent_or_slow_peer_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_link, "HANDSHAKE_S", 0.3)

    async def body() -> None:
        async with door() as there, raw(there.listener.port) as silent, raw(there.listener.port) as slow:

            async def drip() -> None:
                with contextlib.suppress(ConnectionError):
                    for byte in LENGTH.pack(1000) + b"x" * 1000:
                        slow.writer.write(bytes([byte]))
                        await slow.writer.drain()
                        await asyncio.sleep(0.02)

            dripping = asyncio.create_task(drip())
            assert await silent.rest() == await slow.rest() == b""
            dripping.cancel()
            (await there.dial()).close()

    run(body)


def test_silent_peers_do_not_keep_a_dialer_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_link, "HANDSHAKES_MAX", 4)

    async def body() -> None:
        async with door() as there, contextlib.AsyncExitStack() as stack:
            peers = [await stack.enter_async_context(raw(there.listener.port)) for _ in range(12)]
            (await there.dial()).close()
            assert await peers[0].rest() == b""  # long before its time was over
            assert len(there.listener._greeting) <= 4

    run(body)


@pytest.mark.parametrize("silent", [3, 4, 5])
def test_a_listener_goes_on_if_all_handshakes_end_in_the_turn_in_which_a_peer_arrives(
    monkeypatch: pytest.MonkeyPatch, silent: int
) -> None:
    monkeypatch.setattr(tcp_link, "HANDSHAKES_MAX", 4)

    async def body() -> None:
        loop = asyncio.get_running_loop()
        async with door() as there, contextlib.AsyncExitStack() as stack:
            port = there.listener.port
            peers = [await stack.enter_async_context(raw(port)) for _ in range(silent)]
            while len(there.listener._greeting) < min(silent, 4):
                await asyncio.sleep(0)

            def arrive() -> None:
                late = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                assert late.fileno() >= 0
                # Timers run after what arrives in the same turn, as do those of ``HANDSHAKE_S``.
                loop.call_later(0, end_all)

            def end_all() -> None:
                for task in list(there.listener._greeting):
                    task.cancel()

            loop.call_soon(arrive)
            assert await peers[-1].rest() == b""
            (await there.dial(patience_s=2.0)).close()
            assert not any(task.done() for task in there.listener._accepting)

    run(body)


def test_a_listener_that_closes_in_the_middle_ends_handshakes_and_links() -> None:
    async def body() -> None:
        async with door() as there:
            link = await there.dial()
            async with raw(there.listener.port) as peer:
                peer.send(encode_hello(GREETING, b"n" * 32))
                await peer.frame()
                await there.listener.__aexit__(None, None, None)
                assert await peer.rest() == b""
            await link.closed
            with pytest.raises(NotConnectedError):
                await there.dial()

    run(body)


def test_the_dialer_gives_up_on_a_listener_that_is_silent_hangs_up_or_speaks_otherwise() -> None:
    async def silent(peer: Raw) -> None:
        await peer.rest()

    async def hangs_up(peer: Raw) -> None:
        await peer.frame()

    async def otherwise(peer: Raw) -> None:
        peer.writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" + b"x" * 30_000)
        await peer.writer.drain()

    async def body() -> None:
        async with impostor(silent) as port:
            with pytest.raises(NotConnectedError, match="time is over"):
                await dialled(port, patience_s=0.1)
        async with impostor(hangs_up) as port:
            with pytest.raises(NotConnectedError, match="hung up"):
                await dialled(port)
        async with impostor(otherwise) as port:
            with pytest.raises(UnauthenticatedError, match="no container"):
                await dialled(port)
        with pytest.raises(NotConnectedError):
            await dialled(port)  # Nobody listens now.

    run(body)


@settings(deadline=None)
@given(
    host=st.one_of(
        st.text("ab.-_09", min_size=1, max_size=6), st.text("a", min_size=60, max_size=70), st.text(max_size=5)
    ),
    port=st.sampled_from(["", ":0", ":1", ":65536"]),
)
def test_any_address_of_a_store_raises_an_error_after_which_the_dial_is_repeated(host: str, port: str) -> None:
    look_up = socket.getaddrinfo

    def offline(name, service, *, flags=0, **options):
        return look_up(name, service, flags=flags | socket.AI_NUMERICHOST, **options)

    async def body() -> None:
        options = {"secret": SECRET, "rng": SeededRng(2), "handlers": {}, "patience_s": 0.02}
        with pytest.raises(PenstockError):
            await dial_container(host + port, GREETING, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", offline)
        run(body)


def test_a_dial_to_a_machine_that_does_not_answer_ends_in_time() -> None:
    async def body() -> None:
        with socket.socket() as full, contextlib.ExitStack() as stack:
            # A queue of connections that is full: the kernel drops further ones, as a machine that is away would.
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            for _ in range(2):
                filler = stack.enter_context(socket.socket())
                filler.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    filler.connect(full.getsockname())
            with pytest.raises(NotConnectedError, match="time is over"):
                await dialled(full.getsockname()[1], patience_s=0.2)

    run(body)


def test_a_store_whose_lease_has_passed_closes_the_link_instead_of_answering() -> None:
    async def body() -> None:
        owned = [True]
        async with door(answer_check=lambda: lambda: owned[0]) as there:
            link = await there.dial()
            assert await link.call("echo", 1) == [1]
            owned[0] = False
            with pytest.raises(NotConnectedError):
                await link.call("echo", 2)
            link = await there.dial()
            with pytest.raises(NotConnectedError):
                await link.call("take", 3)
            with pytest.raises(NotConnectedError):
                await (await there.dial()).call("no such call")

    run(body)


def test_a_link_is_not_answered_under_a_later_lease() -> None:
    async def body() -> None:
        lease = [1]

        def answer_check() -> Callable[[], bool]:
            accepted_under = lease[0]
            return lambda: lease[0] == accepted_under

        async with door(answer_check=answer_check) as there:
            link = await there.dial()
            assert await link.call("echo", 1) == [1]
            lease[0] = 2
            with pytest.raises(NotConnectedError):
                await link.call("echo", 2)
            assert await (await there.dial()).call("echo", 3) == [3]

    run(body)


def test_a_link_that_the_container_does_not_want_any_more_ends_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async def body(broken: bool) -> None:
        def opened(link) -> None:
            if broken:
                raise ValueError("a bug")
            link.close()

        listener = LinkListener(
            "127.0.0.1", 0, cluster="c1", secret=SECRET, rng=SeededRng(1), accept=lambda _: Accepted({}, {}, opened)
        )
        async with listener:
            link = await dialled(listener.port)
            await link.closed

    run(lambda: body(False))
    assert "link cannot be used" not in caplog.text
    run(lambda: body(True))
    assert "link cannot be used" in caplog.text
