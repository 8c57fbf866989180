"""A proxy in front of gRPC's own port. It limits the connections and the memory of arriving requests.

gRPC allocates memory for each byte of a request as it arrives, on as many streams as it allows. Python has no setting that
limits the sum. The gate forwards bytes unchanged, parses the frame headers, counts the requests of calls in flight, and
stops reading from a connection that must wait (``core.segments.call_memory``).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import shutil
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.codec.wire import http2_frames as h2
from penstock.core.segments.call_memory import CallMemory
from penstock.model.errors import InternalError, InvalidArgumentError, ProtocolError
from penstock.model.values.dataclass import dataclass
from penstock.net.listening import listen_on
from penstock.net.tls.door import TlsDoor, peer_certificate

log = logging.getLogger(__name__)

_BACKLOG = 512  # connections that wait for accept; a burst of clients that start at once
_RECEIVE_BYTES = 32 << 10
"""The kernel's receive buffer of each connection. One pass of the loop takes at most this much from a peer."""
_ANSWER_FRAME_BYTES = (1 << 24) - 1
"""The frame limit from server to client: clients may allow frames of any size."""
_SWEEP_S = 1.0
_TURN_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class GateLimits:
    """Limits for the clients of the gRPC port, in bytes and seconds."""

    requests_bytes: int = 16 << 20
    """Requests of calls in flight, beyond the first 64 KiB of each connection. At the limit, connections that send more
    wait."""
    connections: int = 256
    """At the limit, a new connection replaces the one that began its last call longest ago and waits for no answer. If
    there is none, the new one is closed. Clients connect again by themselves at their next call."""
    hello_s: float = 4.0
    """From the connection to HTTP/2's preface."""
    request_s: float = 120.0
    """From the first byte of a request to its last, and for a client to receive more of an answer."""
    crowded_s: float = 2.0
    """The same while others wait, for a request that takes part of the shared memory."""
    waiting_s: float = 10.0
    """How long a connection may wait before it is closed."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise InvalidArgumentError("limit is not positive", limit=name, value=getattr(self, name))


class GrpcGate:
    """Listens from ``__aenter__`` to ``__aexit__``, and connects each client to the server at ``inner``.

    The server listens on ``inner``, a socket in a directory of this user only, before the first client connects. For
    the server, the peer name of each client ends in the client's address.
    """

    def __init__(self, *, host: str, port: int, limits: GateLimits, door: TlsDoor | None = None) -> None:
        """``door``: the TLS of the port, which is borrowed; None for plain connections."""
        self._host = host
        self._wanted_port = port
        self.limits = limits
        self.memory: CallMemory[_Outer] = CallMemory(
            budget_bytes=limits.requests_bytes,
            crowded_s=limits.crowded_s,
            waiting_s=limits.waiting_s,
            request_s=limits.request_s,
        )
        self.silent: dict[_Outer, float] = {}
        """Connections that have not sent HTTP/2's preface yet, and those that the server has closed but whose clients
        have not received everything; oldest first, and since when."""
        self.connections: dict[_Outer, None] = {}
        self._door = door
        self._certificates: dict[int, tuple[str, ...]] = {}
        self._servers: list[asyncio.Server] = []
        self._directory: Path | None = None
        self._numbers = itertools.count()
        self._sweep: asyncio.TimerHandle | None = None
        self._turn: asyncio.TimerHandle | None = None
        self._refused = 0

    @property
    def inner(self) -> Path:
        """Raises InternalError before the gate was entered."""
        if self._directory is None:
            raise InternalError("the gate is not open")
        return self._directory / "grpc"

    @property
    def port(self) -> int:
        """The port bound. Raises InternalError before the gate was entered."""
        if not self._servers:
            raise InternalError("the gate is not open")
        return int(self._servers[0].sockets[0].getsockname()[1])

    async def __aenter__(self) -> Self:
        """Bind, without taking connections. Raises AddressInUseError."""
        loop = asyncio.get_running_loop()
        sockets = await listen_on(
            self._host, self._wanted_port, what="controller's", backlog=_BACKLOG, receive_bytes=_RECEIVE_BYTES
        )
        # The path of a socket has at most 107 bytes, so it must not lie below a long TMPDIR.
        self._directory = Path(tempfile.mkdtemp(prefix="penstock-", dir="/tmp"))

        def outer() -> asyncio.BaseProtocol:
            return _Outer(self)

        factory = outer if self._door is None else self._door.behind(outer)
        for one in sockets:
            self._servers.append(await loop.create_server(factory, sock=one, backlog=_BACKLOG, start_serving=False))
        return self

    async def serve(self) -> None:
        """Accept connections from now on."""
        for server in self._servers:
            await server.start_serving()
        self._watch()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections. The server must end the calls in flight first."""
        for timer in (self._sweep, self._turn):
            if timer is not None:
                timer.cancel()
        for server in self._servers:
            server.close()
        if self._door is not None:
            self._door.close()
        for connection in list(self.connections):
            connection.abort()
        for server in self._servers:
            await server.wait_closed()
        self._servers = []
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def certificate_of(self, peer: str) -> tuple[str, ...]:
        """The names in the client's certificate, by the peer name that the server sees; see ``peer_certificate``."""
        number = peer.rpartition("/")[2].partition("-")[0]
        return self._certificates.get(int(number), ()) if number.isdecimal() else ()

    def connect(self, number: int, peer: str) -> socket.socket:
        """A socket to the server, whose peer name has this number and address. Raises OSError."""
        inner = socket.socket(socket.AF_UNIX)
        try:
            inner.setblocking(False)
            name = self.inner.with_name(f"{number}-{peer}"[:60])
            inner.bind(str(name))
            try:
                inner.connect(str(self.inner))
            finally:
                name.unlink()
        except BaseException:
            inner.close()
            raise
        return inner

    def entered(self, connection: _Outer) -> None:
        """Note a new connection; close one if there are too many."""
        connection.number = next(self._numbers)
        self.connections[connection] = None
        self.silent[connection] = connection.loop.time()
        if connection.certificate:
            self._certificates[connection.number] = connection.certificate
        if len(self.connections) > self.limits.connections:
            now = connection.loop.time()
            used = [(at, one) for one in self.connections if (at := self.memory.used_at(one, now)) is not None]
            self._refused += 1
            # The newest is last: it is closed only if all others have calls in progress.
            min(used, key=lambda pair: pair[0])[1].abort()

    def closing(self, connection: _Outer) -> None:
        """The server has closed. The connection counts until all that the server wrote is sent."""
        if connection in self.connections:
            self.silent.setdefault(connection, connection.loop.time())
            self._wake(self.memory.forget(connection, connection.loop.time()))

    def left(self, connection: _Outer) -> None:
        self.silent.pop(connection, None)
        self.connections.pop(connection, None)
        self._certificates.pop(connection.number, None)
        self._wake(self.memory.forget(connection, connection.loop.time()))

    def answered(self, connection: _Outer, stream: int) -> None:
        self._wake(self.memory.answered(connection, stream, connection.loop.time()))

    def starved(self, loop: asyncio.AbstractEventLoop) -> None:
        """A connection waits: check soon whether one must be closed."""
        if self._turn is None:
            self._turn = loop.call_later(_TURN_S, self._turn_over)

    def _wake(self, connections: Sequence[_Outer]) -> None:
        for connection in connections:
            connection.flow()

    def _turn_over(self) -> None:
        self._turn = None
        self._close_late()
        if self.memory.contested:
            self.starved(asyncio.get_running_loop())

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweep = loop.call_later(_SWEEP_S, self._watch)
        now = loop.time()
        for connection in [one for one, since in self.silent.items() if now - since >= self.limits.hello_s]:
            connection.abort()
        self._close_late()
        if self._refused:
            log.warning("too many connections: some were closed", extra={"closed": self._refused})
            self._refused = 0

    def _close_late(self) -> None:
        late = self.memory.late(asyncio.get_running_loop().time())
        for connection in late:
            connection.abort()
        if late:
            log.warning("connections were closed: requests did not arrive in time", extra={"closed": len(late)})


class _Outer(asyncio.Protocol):
    """A client's connection. It stops reading while the server's side is full or the memory rule makes it wait."""

    def __init__(self, gate: GrpcGate) -> None:
        self._gate = gate
        self.loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self._inner = _Inner(self)
        self._scan = h2.FrameScan()
        self._greeting: bytes | None = b""
        self._first = b""
        """Bytes to send when the connection to the server is open."""
        self._kept = b""
        """Bytes received while it must wait, from the start of a frame."""
        self._connecting: asyncio.Task[None] | None = None
        self._peer = ""
        self.number = -1
        self.certificate: tuple[str, ...] = ()
        self._paused = False
        self._headers_of = 0
        self._in_headers = False
        self._ending: int | None = None
        """The stream whose last frame has begun to arrive."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        address = transport.get_extra_info("peername")
        self._peer = address[0] if address else ""
        self.certificate = peer_certificate(transport)
        self._gate.entered(self)

    def data_received(self, data: bytes) -> None:
        if self._greeting is not None:
            self._greeting += data
            if len(self._greeting) < len(h2.PREFACE) and h2.PREFACE.startswith(self._greeting):
                return
            if not self._greeting.startswith(h2.PREFACE):
                self.abort()
                return
            greeting, self._greeting = self._greeting, None
            self._gate.silent.pop(self, None)
            self._forward(h2.PREFACE)
            self._take(greeting[len(h2.PREFACE) :])
            self._connecting = self.loop.create_task(self._connect(), name="gRPC connection")
            self.flow()
        elif self._kept:
            self._kept += data
        else:
            self._take(data)

    def _forward(self, data: bytes) -> None:
        if self._inner.transport is None:
            self._first += data
        else:
            self._inner.transport.write(data)

    async def _connect(self) -> None:
        try:
            inner = self._gate.connect(self.number, self._peer)
            await self.loop.create_unix_connection(lambda: self._inner, sock=inner)
        except OSError as error:
            log.warning("connection could not be passed to the server", extra={"reason": str(error)})
            self.abort()
            return
        if self._inner.transport is not None:
            self._inner.transport.write(self._first)
            self._first = b""
        self.flow()

    def _take(self, data: bytes) -> None:
        """Count and forward. From the first frame that must wait, keep the bytes."""
        memory, now = self._gate.memory, self.loop.time()
        try:
            heads = self._scan.feed(data)
        except ProtocolError as error:
            log.warning("connection broke the protocol", extra={"peer": self._peer, "reason": str(error)})
            self.abort()
            return
        for head in heads:
            self._frame_arrived()
            if head.start >= 0 and not memory.may_send(self):
                self._scan.restart()
                self._forward(data[: head.start])
                self._kept = data[head.start :]
                break
            self._count(head, now)
        else:
            self._forward(data)
            if not self._scan.is_inside:
                self._frame_arrived()
        if not memory.may_send(self):
            self._gate.starved(self.loop)
            self.flow()

    def _count(self, head: h2.FrameHead, now: float) -> None:
        memory, stream = self._gate.memory, head.stream
        match head.kind:
            case h2.HEADERS:
                self._headers_of = stream
                self._in_headers = not head.flags & h2.END_HEADERS
                memory.begin(self, stream, head.payload_bytes, now)
            case h2.DATA:
                memory.hold(self, stream, head.payload_bytes, now)
            case h2.CONTINUATION:
                self._in_headers = not head.flags & h2.END_HEADERS
                memory.hold(self, self._headers_of, head.payload_bytes, now)
            case h2.RST_STREAM:
                self._gate.answered(self, stream)
        if head.kind in (h2.HEADERS, h2.DATA) and head.flags & h2.END_STREAM:
            self._ending = stream

    def _frame_arrived(self) -> None:
        """The last frame is complete. After the last frame of a request, more of its head may follow."""
        if self._ending is not None and not self._in_headers:
            self._gate.memory.complete(self, self._ending)
            self._ending = None

    def flow(self) -> None:
        """Resume or pause reading, depending on the current state."""
        if self.transport is None or self.transport.is_closing():
            return
        if self._kept and self._gate.memory.may_send(self):
            kept, self._kept = self._kept, b""
            self._take(kept)
        full = self._inner.full or (self._greeting is None and self._inner.transport is None)
        paused = full or not self._gate.memory.may_send(self)
        if paused != self._paused:
            self._paused = paused
            if paused:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    def answer(self, stream: int) -> None:
        self._gate.memory.answer(self, stream, self.loop.time())

    def answered(self, stream: int) -> None:
        self._gate.answered(self, stream)

    def pause_writing(self) -> None:
        self._gate.memory.full(self, self.loop.time())
        if self._inner.transport is not None:
            self._inner.transport.pause_reading()

    def resume_writing(self) -> None:
        self._gate.memory.full(self, None)
        if self._inner.transport is not None and not self._inner.transport.is_closing():
            self._inner.transport.resume_reading()

    def abort(self) -> None:
        """Close now, on both sides."""
        if self.transport is not None:
            self.transport.abort()
        self._end()

    def close(self) -> None:
        """The server closed: send what it wrote, and close."""
        if self.transport is not None:
            self.transport.close()
        self._gate.closing(self)
        self._end_inner()

    def _end(self) -> None:
        self._gate.left(self)
        self._end_inner()

    def _end_inner(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        if self._inner.transport is not None:
            self._inner.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()


class _Inner(asyncio.Protocol):
    """The server's side of a connection."""

    def __init__(self, outer: _Outer) -> None:
        self._outer = outer
        self._scan = h2.FrameScan(payload_max_bytes=_ANSWER_FRAME_BYTES)
        self.transport: asyncio.Transport | None = None
        self.full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        if self._outer.transport is None or self._outer.transport.is_closing():
            transport.abort()  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        if self._outer.transport is not None:
            self._outer.transport.write(data)
        for kind, flags, stream, *_ in self._scan.feed(data):
            if kind == h2.RST_STREAM or (flags & h2.END_STREAM and kind in (h2.DATA, h2.HEADERS)):
                self._outer.answered(stream)
            elif kind in (h2.DATA, h2.HEADERS):
                self._outer.answer(stream)

    def pause_writing(self) -> None:
        self.full = True
        self._outer.flow()

    def resume_writing(self) -> None:
        self.full = False
        self._outer.flow()

    def connection_lost(self, exc: Exception | None) -> None:
        self._outer.close()
