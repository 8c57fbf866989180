"""The client's end of one connection to a segment store: many requests in flight, paired with replies by request id."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterable
from typing import cast

from penstock.codec.wire import commands as c
from penstock.codec.wire.frames import REPLY_CODES, VERSION_HIGH, VERSION_LOW, Command, decode, encode
from penstock.model.errors import InvalidArgumentError, NotConnectedError, PenstockError, ProtocolError
from penstock.model.traces.spans import SpanContext, current
from penstock.model.values.dataclass import dataclass
from penstock.net.dial.addresses import connected_socket, looks_up_in_threads
from penstock.net.dial.checking import tls_error
from penstock.net.dial.security import PLAIN, DialSecurity
from penstock.net.wire.arena import ArenaPool
from penstock.net.wire.frames import FrameReceiver, Outbox, Sending, tune
from penstock.net.wire.requests import subject_of
from penstock.net.wire.wire_errors import OWN_TOKEN
from penstock.ports import forks
from penstock.ports.control.layout import Endpoint
from penstock.ports.files import Buffer

TokenOf = Callable[[str], str]
"""What a command about the segment carries as its token."""


def unneeded(_segment: str) -> str:
    """Segments need no tokens: the mark of our own client is all."""
    return OWN_TOKEN


Sink = Callable[[Command | PenstockError], None]

_SILENT_TICKS = 3  # ticks without a byte, after which the connection counts as dead


@dataclass(frozen=True, slots=True, kw_only=True)
class DialLimits:
    """How a client of segment stores connects and retries."""

    connect_s: float = 10.0
    retry_for_s: float = 30.0
    """How long calls to an unreachable store are retried, unless the caller sets an earlier deadline."""
    backoff_s: float = 0.05
    backoff_max_s: float = 2.0
    keepalive_s: float = 3.0
    """A store that sends nothing for more than three such periods, not even echoes, is considered dead. In a cluster, another
    store has taken over by then. A machine that is lost or a process that hangs does not close its connections, and a
    writer must notice in a fraction of its deadline."""
    window_bytes: int = 32 << 20
    """Unacknowledged bytes of one append connection; further appends wait for their turn."""
    write_buffer_bytes: int = 4 << 20
    setups: int = 4000
    """Writers set up on one append connection before it is replaced: the store remembers each of them."""
    line_idle_s: float = 10.0
    """Writers on a replaced connection that sent nothing for this long count as finished; others continue to use it."""
    read_connections: int = 2
    abandoned_reads: int = 512
    """Replies to cancelled reads that may be outstanding on a connection before it is replaced."""
    arena_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise InvalidArgumentError("limit is not positive", limit=name, value=getattr(self, name))


class NeverSentError(NotConnectedError):
    """The connection was lost before the request was sent: the request did not happen."""


class DialConnection(asyncio.BufferedProtocol):
    """One connection. Every sink is called with its reply, or with NotConnectedError once the connection is lost."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pool: ArenaPool,
        limits: DialLimits,
        endpoint: Endpoint,
        token_of: TokenOf = unneeded,
    ) -> None:
        self.endpoint = endpoint
        self._token_of = token_of
        self.ready: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.writable = True
        self.on_writable: Callable[[], None] | None = None
        self._loop = loop
        self.limits = limits
        self._receiver = FrameReceiver(pool, REPLY_CODES)
        self._sinks: dict[int, Sink] = {}
        self._last_rid = 0
        self._reason = "connection was closed"
        self._silent_ticks = 0
        self.silent = False
        """Whether the connection ended because the store sent nothing."""
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._outbox: Outbox | None = None
        self._is_inherited = False
        forks.register(self)

    def abandon_in_child(self) -> None:
        """See ``ports.forks.Handle``. In the child the socket is disconnected, so the loop can do no harm with it."""
        self._is_inherited = True
        transport, self._transport, self._outbox = self._transport, None, None
        if transport is not None:
            forks.keep(transport)
            held = transport.get_extra_info("socket")
            if held is not None and held.fileno() >= 0:
                forks.disconnect(held.fileno())

    # --- the transport's calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        transport = cast("asyncio.Transport", transport)
        if self._is_inherited:
            forks.keep(transport)
            return
        self._transport = transport
        self._outbox = Outbox(Sending(self._loop), transport)
        tune(transport)
        transport.set_write_buffer_limits(high=self.limits.write_buffer_bytes)
        self.send(encode(c.Hello(VERSION_HIGH, VERSION_LOW)))
        self._timer = self._loop.call_later(self.limits.keepalive_s, self._tick)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._silent_ticks = 0
        receiver = self._receiver
        receiver.received(nbytes)
        try:
            while receiver.advance():
                self._on_reply(decode(receiver.code, receiver.payload))
        except ProtocolError as error:
            self._abort(str(error))

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        if self.on_writable is not None:
            self.on_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._receiver.close()
        sinks, self._sinks = self._sinks, {}
        if not self.closed.done():
            self.closed.set_result(None)
        if not self.ready.done():
            self.ready.set_exception(self._lost(exc))
            # The connecting task may have been cancelled; then nobody retrieves its error.
            self.ready.exception()
        for sink in sinks.values():
            sink(self._lost(exc))

    def _lost(self, cause: Exception | None = None) -> NotConnectedError:
        return NotConnectedError(
            "connection to a segment store is lost",
            host=self.endpoint.host,
            port=self.endpoint.port,
            reason=str(cause) if cause is not None else self._reason,
        )

    def _tick(self) -> None:
        self._silent_ticks += 1
        if self._silent_ticks > _SILENT_TICKS:
            self.silent = True
            self._abort("store is silent")
            return
        # The server echoes it, so that a dead peer differs from an idle one.
        self.send(encode(c.KeepAlive()))
        self._timer = self._loop.call_later(self.limits.keepalive_s, self._tick)

    def _abort(self, reason: str) -> None:
        self._reason = reason
        if self._transport is not None:
            self._transport.abort()

    # --- requests ---

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing() and not self.closed.done()

    @property
    def owed(self) -> int:
        """Number of outstanding replies."""
        return len(self._sinks)

    def attach(self, sink: Sink, rid: int | None = None) -> int:
        """A request id whose replies go to ``sink`` until it is detached: ``rid``, or a new one. Raises NeverSentError."""
        if not self.is_open:
            raise NeverSentError("connection is closed", host=self.endpoint.host, port=self.endpoint.port)
        if rid is None:
            rid = self._last_rid = self._last_rid + 1
        self._sinks[rid] = sink
        return rid

    def detach(self, rid: int) -> None:
        """Ignore later replies for ``rid``."""
        self._sinks.pop(rid, None)

    def begin(self, build: Callable[[int], Command]) -> tuple[int, asyncio.Future[Command]]:
        """Send a request. Returns its id and the future of its only reply. Raises NeverSentError,
        InvalidArgumentError."""
        reply: asyncio.Future[Command] = self._loop.create_future()
        rid = self.attach(_OnlyReply(self, reply))
        try:
            frame = encode(self._own(build(rid)))
            span = current()
            self.send(frame if span is None or not span.sampled else trace_frame(span) + frame)
        except PenstockError:
            self.detach(rid)
            raise
        return rid, reply

    def _own(self, command: Command) -> Command:
        """The request with its token, marked so that the server may answer with errors that Pravega's protocol lacks."""
        if getattr(command, "token", None) != "":
            return command
        return command._replace(token=self._token_of(subject_of(command)))  # type: ignore[attr-defined,no-any-return]

    async def request(self, build: Callable[[int], Command]) -> Command:
        """Send a request and return its reply, which may be an error. Cancelled: the reply is ignored when it
        arrives."""
        rid, reply = self.begin(build)
        try:
            return await reply
        finally:
            self.detach(rid)

    def send(self, frame: Buffer) -> None:
        if self._outbox is not None:
            self._outbox.put(frame)

    def send_parts(self, parts: Iterable[Buffer]) -> None:
        if self._outbox is not None:
            self._outbox.put_parts(parts, sum(map(len, parts)))

    def flush(self) -> None:
        """Pass queued frames to the transport now, not at the end of this pass of the loop."""
        if self._outbox is not None:
            self._outbox.flush()

    def close(self) -> None:
        """Send what is queued and close. Calls that wait for a reply get NotConnectedError."""
        if self._transport is not None and self._outbox is not None:
            self._outbox.flush()
            self._transport.close()

    def abort(self) -> None:
        self._abort("connection was closed")

    def _on_reply(self, reply: Command) -> None:
        if isinstance(reply, c.Hello):
            if reply.low > VERSION_HIGH or reply.high < VERSION_LOW:
                raise ProtocolError("versions do not overlap", high=reply.high, low=reply.low)
            if not self.ready.done():
                self.ready.set_result(None)
            return
        if isinstance(reply, c.KeepAlive):
            return
        sink = self._sinks.get(reply.rid)  # type: ignore[attr-defined]
        if sink is not None:
            sink(reply)


def trace_frame(span: SpanContext) -> bytes:
    """The frame that names the span of the next request on its connection. Other servers see a KeepAlive, and ignore what
    is in it."""
    return encode(c.KeepAlive(span.to_bytes()))


class _OnlyReply:
    """Passes the only reply to a request to its future."""

    __slots__ = ("_connection", "_reply")

    def __init__(self, connection: DialConnection, reply: asyncio.Future[Command]) -> None:
        self._connection = connection
        self._reply = reply

    def __call__(self, outcome: Command | PenstockError) -> None:
        reply = self._reply
        if isinstance(outcome, PenstockError):
            if not reply.done():
                reply.set_exception(outcome)
            return
        self._connection.detach(outcome.rid)  # type: ignore[attr-defined]
        if not reply.done():
            reply.set_result(outcome)


async def _connect(
    loop: asyncio.AbstractEventLoop,
    connection: DialConnection,
    endpoint: Endpoint,
    context: ssl.SSLContext | None,
) -> None:
    """Raises OSError."""
    if not looks_up_in_threads(loop):
        await loop.create_connection(lambda: connection, endpoint.host, endpoint.port, ssl=context)
        return
    connected = await connected_socket(endpoint.host, endpoint.port)
    try:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # The loop sets this on its own connections.
        name = None if context is None else endpoint.host.strip("[]")
        await loop.create_connection(lambda: connection, sock=connected, ssl=context, server_hostname=name)
    except BaseException:
        connected.close()
        raise


async def dial(
    endpoint: Endpoint,
    *,
    pool: ArenaPool,
    limits: DialLimits,
    security: DialSecurity = PLAIN,
    token_of: TokenOf = unneeded,
) -> DialConnection:
    """An open connection that has exchanged greetings. Raises NeverSentError; TlsError if the store's certificate cannot be
    trusted. Cancelled: nothing stays open."""
    loop = asyncio.get_running_loop()
    connection = DialConnection(loop, pool, limits, endpoint, token_of)
    try:
        async with asyncio.timeout(limits.connect_s):
            await _connect(loop, connection, endpoint, security.context())
            await connection.ready
    except ssl.SSLCertVerificationError as error:
        connection.abort()
        raise tls_error(error, f"{endpoint.host}:{endpoint.port}") from error
    except (OSError, TimeoutError) as error:
        connection.abort()
        raise NeverSentError(
            "segment store cannot be reached", host=endpoint.host, port=endpoint.port, reason=str(error)
        ) from error
    except NotConnectedError as error:
        raise NeverSentError(error.message, **error.fields) from error
    except BaseException:
        connection.abort()
        raise
    return connection
