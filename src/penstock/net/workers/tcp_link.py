"""Links over TCP between the controller of a cluster and its containers: a handshake, then the frames of ``link``.

Both ends prove that they know the secret of the cluster (``handshake``). With TLS, the proof is made inside it, so
nobody on the path can take the link over. Without TLS, the link is neither encrypted nor authenticated after the proof:
an attacker on the path can read and change its frames. Before it has proven that it knows the
secret, a peer receives a random number or a denial, and can neither keep a connection for long nor use much memory.
Source: docs/design/0065-cluster.md, "Links".

The kernel ends a link about ten seconds after the other machine has died. A process that hangs keeps its links: callers
set their own deadlines.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import field
from typing import Any, Final, NoReturn

from penstock.model.errors import (
    NotConnectedError,
    PenstockError,
    ProtocolError,
    UnauthenticatedError,
    WrongClusterError,
)
from penstock.model.values.dataclass import dataclass
from penstock.net.dial.addresses import connected_socket, host_of, parse_address
from penstock.net.listening import listen_on
from penstock.net.peer_warnings import PeerWarnings
from penstock.net.workers.frame_exchange import FrameExchange
from penstock.net.workers.handshake import (
    DENIAL,
    Greeting,
    check_challenge,
    check_secret,
    decode_hello,
    decode_verdict,
    dialer_proof,
    draw_nonce,
    encode_hello,
    encode_verdict,
    proves,
)
from penstock.net.workers.link import Handler, Taker, WorkerLink
from penstock.ports.rng import Rng

__all__ = ["Accepted", "Greeting", "LinkListener", "dial_container"]

log = logging.getLogger(__name__)

HANDSHAKE_S: Final = 5.0
"""Seconds that a peer has for all its frames together: a round trip takes milliseconds."""
HANDSHAKES_MAX: Final = 64
"""Connections that have not finished their handshake. One more closes the oldest of them."""
_KEEP_IDLE_S, _KEEP_EVERY_S, _KEEP_COUNT = 4, 2, 3  # 4 + 3 * 2 = 10 seconds until a silent machine counts as dead
_UNACKNOWLEDGED_MS: Final = 10_000  # the same for bytes that the other machine does not acknowledge
_PAUSE_S: Final = 0.1  # after a failed accept, as when descriptors run out
_CLOSE_S: Final = 1.0  # for the bytes of links that are closed; then they are dropped


@dataclass(frozen=True, slots=True)
class Accepted:
    """How a link is served. ``opened`` receives the link once it is open, which is some turns of the loop after ``accept``
    has returned: it checks again what may have changed, and may close the link. It is not called if the dialer has left.
    """

    handlers: Mapping[str, Handler]
    takers: Mapping[str, Taker] = field(default_factory=dict)
    opened: Callable[[WorkerLink], None] = lambda link: None


async def dial_container(
    address: str,
    greeting: Greeting,
    *,
    secret: bytes,
    rng: Rng,
    handlers: Mapping[str, Handler],
    takers: Mapping[str, Taker] | None = None,
    patience_s: float = HANDSHAKE_S,
    tls: ssl.SSLContext | None = None,
) -> WorkerLink:
    """An open link to the container at ``HOST:PORT``. The caller closes it. ``tls``: None for a plain link; otherwise the
    other end's certificate must name the host.

    Raises NotConnectedError (nobody listens, the other end hung up, its certificate is not trusted, or ``patience_s``
    seconds are over), UnauthenticatedError (one end does not know the other's secret, or only one has TLS),
    WrongClusterError, what the other end's ``accept`` raised, and InvalidArgumentError for an address that is none.
    Cancelled: the connection is closed; the other end may see a link that opens and ends.
    """
    check_secret(secret)
    host, port = host_of(address), int(parse_address(address).rpartition(":")[2])
    try:
        async with asyncio.timeout(patience_s):
            sock = await connected_socket(host, port)
            exchange = FrameExchange()
            try:
                _tune(sock)
                await asyncio.get_running_loop().create_connection(
                    lambda: exchange,
                    sock=sock,
                    ssl=tls,
                    server_hostname=None if tls is None else host,
                    ssl_shutdown_timeout=None if tls is None else _CLOSE_S,
                )
                await _dial(exchange, address, greeting, secret, rng)
                link = WorkerLink(asyncio.get_running_loop(), f"container {greeting.container}", handlers, takers or {})
                exchange.hand_over(link)
            except BaseException:
                exchange.abort()
                sock.close()
                raise
    except OSError as error:  # TimeoutError too
        raise NotConnectedError("cannot connect to the container", address=address, reason=_reason(error)) from error
    return link


async def _dial(exchange: FrameExchange, address: str, greeting: Greeting, secret: bytes, rng: Rng) -> None:
    hello = encode_hello(greeting, draw_nonce(rng))
    try:
        exchange.send(hello)
        challenge = check_challenge(await exchange.receive())
        exchange.send(dialer_proof(secret, hello, challenge))
        verdict = decode_verdict(await exchange.receive(), secret, hello, challenge)
    except ProtocolError as error:
        raise UnauthenticatedError(
            "the other end of the link is no container of this version, or only one end uses TLS",
            address=address,
            reason=error.message,
        ) from error
    if verdict is None:
        raise UnauthenticatedError("the other end does not know the secret of the cluster", address=address)
    if verdict.denied:
        raise UnauthenticatedError("the other end has another secret of the cluster", address=address)
    if verdict.refusal is not None:
        raise verdict.refusal


class LinkListener:
    """Accepts links at an address: an async context manager. Leaving it closes all links.

    ``accept`` decides about a dialer that knows the secret, without waiting: it returns ``Accepted``, or raises a
    PenstockError, which the dialer raises. ``answer_check`` is called for each connection that is accepted. What it
    returns is asked before each answer to a call: False closes the link instead. ``port`` 0 picks a free one. ``tls`` returns
    the context for a connection that is accepted now; None: links are plain.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        cluster: str,
        secret: bytes,
        rng: Rng,
        accept: Callable[[Greeting], Accepted],
        answer_check: Callable[[], Callable[[], bool]] | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        earlier_secret: Callable[[], bytes | None] = lambda: None,
    ) -> None:
        """``earlier_secret``: another secret that is valid now; None: there is none."""
        self._earlier_secret = earlier_secret
        self.port = port
        self._host = host
        self._cluster = cluster
        self._secret = check_secret(secret)
        self._rng = rng
        self._accept = accept
        self._answer_check = answer_check
        self._tls = tls
        self._listening: list[socket.socket] = []
        self._accepting: list[asyncio.Task[NoReturn]] = []
        self._greeting: dict[asyncio.Task[None], None] = {}  # oldest first
        self._links: dict[WorkerLink, None] = {}
        self._warnings: PeerWarnings | None = None

    async def __aenter__(self) -> LinkListener:
        """Raises AddressInUseError."""
        loop = asyncio.get_running_loop()
        self._warnings = PeerWarnings(log, loop.time)
        self._listening = await listen_on(self._host, self.port, what="link", backlog=HANDSHAKES_MAX)
        self.port = int(self._listening[0].getsockname()[1])
        self._accepting = [loop.create_task(self._take(item)) for item in self._listening]
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [*self._accepting, *self._greeting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for item in self._listening:
            item.close()
        links = list(self._links)
        for link in links:
            link.close()
        if links:
            late = (await asyncio.wait([link.closed for link in links], timeout=_CLOSE_S))[1]
            for link in links if late else ():
                link.abort()

    async def _take(self, listening: socket.socket) -> NoReturn:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listening)
            except OSError as error:
                log.error("cannot accept links", extra={"port": self.port, "reason": str(error)})
                await asyncio.sleep(_PAUSE_S)
                continue
            if len(self._greeting) >= HANDSHAKES_MAX:
                # Closing the oldest lets a real dialer in: it needs one round trip, until as many newer ones arrive.
                oldest = next((task for task in self._greeting if not task.cancelling()), None)
                if oldest is not None:  # else the time of all of them ended in this turn of the loop
                    oldest.cancel()
            self._spawn(self._greet(sock))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._greeting[task] = None
        task.add_done_callback(lambda done: self._greeting.pop(done, None))

    async def _greet(self, sock: socket.socket) -> None:
        exchange = FrameExchange()

        def give_up() -> None:
            exchange.abort()
            sock.close()

        try:
            async with asyncio.timeout(HANDSHAKE_S):
                sock.setblocking(False)
                _tune(sock)
                may_answer = None if self._answer_check is None else self._answer_check()
                tls = None if self._tls is None else self._tls()
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: exchange, sock, ssl=tls, ssl_shutdown_timeout=None if tls is None else _CLOSE_S
                )
                greeting, accepted = await self._judge(exchange)
                self._open(exchange, greeting, accepted, may_answer)
        except PenstockError as error:
            # A refusal may still have to be sent.
            exchange.close()
            self._warn("link refused", type(error).__name__, reason=_reason(error))
        except OSError as error:
            give_up()
            self._warn("link refused", type(error).__name__, reason=_reason(error))
        except asyncio.CancelledError:
            give_up()
            raise
        except Exception as error:
            give_up()
            log.error("link failed", extra={"port": self.port}, exc_info=error)

    async def _judge(self, exchange: FrameExchange) -> tuple[Greeting, Accepted]:
        """What the dialer wants, once it has proven that it knows the secret. Raises what ``accept`` raises."""
        hello = await exchange.receive()
        greeting = decode_hello(hello)
        challenge = draw_nonce(self._rng)
        exchange.send(challenge)
        proof = await exchange.receive()
        valid = (self._secret, self._earlier_secret())
        secret = next((one for one in valid if one is not None and proves(proof, one, hello, challenge)), None)
        if secret is None:
            exchange.send(DENIAL)
            raise UnauthenticatedError("dialer does not know the secret of the cluster")
        try:
            if greeting.cluster != self._cluster:
                raise WrongClusterError(
                    "this store belongs to another cluster", expected=greeting.cluster, found=self._cluster
                )
            accepted = self._accept(greeting)
        except PenstockError as error:
            exchange.send(encode_verdict(error, secret, hello, challenge))
            raise
        exchange.send(encode_verdict(None, secret, hello, challenge))
        return greeting, accepted

    def _open(
        self, exchange: FrameExchange, greeting: Greeting, accepted: Accepted, may_answer: Callable[[], bool] | None
    ) -> None:
        loop = asyncio.get_running_loop()
        name = f"container {greeting.container} to {greeting.controller}"
        link = WorkerLink(loop, name, accepted.handlers, accepted.takers, may_answer)
        self._links[link] = None
        link.closed.add_done_callback(lambda _: self._links.pop(link, None))
        exchange.hand_over(link)
        try:
            accepted.opened(link)
        except Exception as error:
            log.error("link cannot be used", extra={"line": name}, exc_info=error)
            link.close()

    def _warn(self, message: str, kind: str, **fields: object) -> None:
        if self._warnings is not None:
            self._warnings.warn(message, {"port": self.port, **fields}, kind=kind)


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Not every system has all of these.
    for name, value in (
        ("TCP_KEEPIDLE", _KEEP_IDLE_S),
        ("TCP_KEEPINTVL", _KEEP_EVERY_S),
        ("TCP_KEEPCNT", _KEEP_COUNT),
        ("TCP_USER_TIMEOUT", _UNACKNOWLEDGED_MS),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _reason(error: Exception) -> str:
    return str(error) or "time is over"
