"""Turns accepted connections into encrypted ones. A server sees a connection when its handshake has ended.

The number of handshakes and their time are limited: an unfinished one costs the server memory and has proved nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable

from penstock.model.errors import InvalidArgumentError
from penstock.model.values.dataclass import dataclass
from penstock.net.peer_warnings import PeerWarnings
from penstock.net.tls.certificates import Alpn
from penstock.net.tls.server_tls import ServerTls
from penstock.ports.telemetry import Telemetry

log = logging.getLogger(__name__)

_SHUTDOWN_S = 2.0
_READ_BUFFER_BYTES = 64 << 10
"""Received and not decrypted while a server does not read. At least two of TLS's records, which have 16 KiB."""
_EXPIRING_FREE = 64
"""Closed connections that may wait for the next look: each keeps about 72 KB of its TLS."""
_NO_TLS = ("HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL")
"""OpenSSL's reasons for first bytes that are not TLS."""
_NAMES = {"URI": "URI", "DNS": "DNS", "email": "email"}

Factory = Callable[[], asyncio.BaseProtocol]


@dataclass(frozen=True, slots=True, kw_only=True)
class HandshakeLimits:
    """Limits for connections that have not finished their handshake."""

    handshake_s: float = 5.0
    handshakes: int = 256
    """At the limit, a new connection replaces the oldest one."""
    expiry_s: float = 60.0
    """Between two looks at the client certificates of open connections: one ends that long after its certificate."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise InvalidArgumentError("limit is not positive", limit=name, value=getattr(self, name))


class TlsDoor:
    """The TLS of one listening port. ``tls`` is borrowed. Close it before the servers that use it."""

    def __init__(
        self, tls: ServerTls, alpn: Alpn, *, telemetry: Telemetry, limits: HandshakeLimits | None = None
    ) -> None:
        self._tls = tls
        self._alpn = alpn
        self._telemetry = telemetry
        self.limits = limits or HandshakeLimits()
        self._arriving: dict[_Arriving, None] = {}
        self._expiring: dict[asyncio.BaseTransport, int] = {}
        """Open connections with a client certificate, and when it expires, in ms. Closed ones leave at the next look, and
        earlier if there may be more of them than of open ones."""
        self._expiring_max = _EXPIRING_FREE
        self._next_look: asyncio.TimerHandle | None = None
        self._warnings = PeerWarnings(log, lambda: asyncio.get_running_loop().time())

    def behind(self, factory: Factory) -> Factory:
        """The factory to listen with. ``factory`` makes the server's protocol, which gets the encrypted transport."""
        return lambda: _Arriving(self, factory)

    @property
    def arriving(self) -> int:
        """Handshakes in progress."""
        return len(self._arriving)

    def context(self) -> ssl.SSLContext:
        return self._tls.context(self._alpn)

    def entered(self, connection: _Arriving) -> None:
        self._arriving[connection] = None
        if len(self._arriving) > self.limits.handshakes:
            oldest = next(iter(self._arriving))
            # It no longer counts, although its task ends only in the next pass of the loop.
            del self._arriving[oldest]
            oldest.abort()

    def left(self, connection: _Arriving, failure: BaseException | None) -> None:
        self._arriving.pop(connection, None)
        if failure is None:
            self._telemetry.add("tls_handshakes", 1, ("ok",))
        else:
            self.refuse(connection.peer, failure)

    def secured(self, transport: asyncio.BaseTransport) -> None:
        """End the connection once its client's certificate has expired: TLS itself checks it in the handshake only."""
        ends_ms = _certificate_end_ms(transport)
        if ends_ms is not None:
            if len(self._expiring) >= self._expiring_max:
                self._forget_closed()
            self._expiring[transport] = ends_ms
            if self._next_look is None:
                self._next_look = asyncio.get_running_loop().call_later(self.limits.expiry_s, self._end_expired)

    def _forget_closed(self) -> None:
        self._expiring = {item: ends_ms for item, ends_ms in self._expiring.items() if not item.is_closing()}
        self._expiring_max = max(_EXPIRING_FREE, 2 * len(self._expiring))

    def _end_expired(self) -> None:
        self._next_look = None
        now_ms = self._tls.now_ms()
        for transport, ends_ms in list(self._expiring.items()):
            if ends_ms <= now_ms and not transport.is_closing():
                address = transport.get_extra_info("peername")
                self._telemetry.add("tls_expired_connections")
                self._warnings.warn(
                    "the client's certificate has expired: its connection was closed",
                    {"peer": str(address[0]) if address else ""},
                )
                transport.abort()  # type: ignore[attr-defined]
        self._forget_closed()
        if self._expiring:
            self._next_look = asyncio.get_running_loop().call_later(self.limits.expiry_s, self._end_expired)

    def refuse(self, peer: str, failure: BaseException) -> None:
        """Count a failed handshake, and log one a second."""
        self._telemetry.add("tls_handshakes", 1, ("failed",))
        reason = _words(failure)
        self._warnings.warn("TLS handshake failed", {"peer": peer, "reason": reason})

    def close(self) -> None:
        """End all handshakes. Open connections belong to the servers."""
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None
        self._expiring.clear()
        for connection in list(self._arriving):
            connection.abort()


class _Arriving(asyncio.Protocol):
    """A connection during its handshake.

    A loop begins to read an accepted connection by itself, and ``start_tls`` would miss what it has read by then. So the
    first transport is given up unread, and a copy of its socket goes on.
    """

    def __init__(self, door: TlsDoor, factory: Factory) -> None:
        self._door = door
        self._factory = factory
        self.loop = asyncio.get_running_loop()
        self.peer = ""
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        address = transport.get_extra_info("peername")
        self.peer = str(address[0]) if address else ""
        try:
            accepted = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        except OSError as error:
            self._door.refuse(self.peer, error)
            return
        finally:
            transport.abort()  # type: ignore[attr-defined]
        accepted.setblocking(False)
        self._task = self.loop.create_task(self._handshake(accepted), name="TLS handshake")
        self._door.entered(self)

    async def _handshake(self, accepted: socket.socket) -> None:
        failure: BaseException | None = ConnectionAbortedError("the connection was closed")
        try:
            secured, _ = await self.loop.connect_accepted_socket(
                self._factory,
                accepted,
                ssl=self._door.context(),
                ssl_handshake_timeout=self._door.limits.handshake_s,
                ssl_shutdown_timeout=_SHUTDOWN_S,
            )
            secured.set_read_buffer_limits(_READ_BUFFER_BYTES)  # type: ignore[attr-defined]
            self._door.secured(secured)
            failure = None
        except OSError as error:
            failure = error
        finally:
            if failure is not None:
                accepted.close()
            self._door.left(self, failure)

    def abort(self) -> None:
        if self._task is not None:
            self._task.cancel()


def _words(failure: BaseException) -> str:
    """Why a handshake failed. OpenSSL's message for a client without TLS would not help, so it is replaced."""
    if isinstance(failure, ssl.SSLError) and failure.reason in _NO_TLS:
        return "the client does not use TLS; its address must begin with tls:// or https://"
    return str(failure)[:200] or type(failure).__name__


def _certificate_end_ms(transport: asyncio.BaseTransport) -> int | None:
    """When the client's certificate expires, in ms since the Unix epoch; None without mutual TLS."""
    ends = (transport.get_extra_info("peercert") or {}).get("notAfter")
    return None if ends is None else int(ssl.cert_time_to_seconds(ends)) * 1000


def peer_certificate(transport: asyncio.BaseTransport) -> tuple[str, ...]:
    """The names in the certificate that the client has proved to own: ``URI:...``, ``DNS:...`` and ``email:...``, in
    this order; empty without mutual TLS."""
    found = transport.get_extra_info("peercert") or {}
    names = [(kind, str(value)) for kind, value in found.get("subjectAltName", ()) if kind in _NAMES]
    # A name with an odd character could pass for another one where names are printed or compared.
    plain = [f"{kind}:{value}" for kind, value in names if value.isprintable() and value.isascii()]
    order = list(_NAMES)
    return tuple(sorted(plain, key=lambda name: order.index(name.partition(":")[0])))
