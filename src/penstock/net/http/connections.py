"""HTTP connections that end in time, even with a slow peer."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from http import HTTPStatus
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from penstock.model.errors import InvalidArgumentError
from penstock.net.grpc.grpc_errors import encode_error
from penstock.net.http.http_limits import RestLimits
from penstock.net.peer_warnings import PeerWarnings
from penstock.net.tls.door import TlsDoor, peer_certificate
from penstock.ports.telemetry import NoTelemetry, Telemetry

log = logging.getLogger(__name__)

PEER_CERTIFICATE = "peer_certificate"
"""The key, in the state of a request, of the names in the client's certificate; see ``peer_certificate``."""
_STEP_BYTES = 4 << 10
_FRAMING_FREE_BYTES = 8 << 10
_QUOTE = re.compile(r":? *(?:b['\"]|bytearray\().*", re.DOTALL)
"""Where the parser's words quote the peer. The quoted line may be an ``Authorization`` header."""
_CONTENT_PER_FRAMING = 8
"""Beyond a free allowance, each byte of chunk framing needs this much content, so chunks need at least 40 bytes."""


class RestConnection(H11Protocol):
    """uvicorn's connection with added deadlines.

    uvicorn limits only the pause between two requests. Without these timers, a peer that sends its headers very slowly,
    or never reads its reply, would stay connected forever.
    """

    limits = RestLimits()
    telemetry: Telemetry = NoTelemetry()
    warnings: PeerWarnings
    unfinished: dict[RestConnection, None]
    """Connections of this server without a complete request since they connected or got their last answer, oldest
    first."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._head_timer: asyncio.TimerHandle | None = None
        self._reply_timer: asyncio.TimerHandle | None = None
        self._refused = False
        """The answer to a malformed request was sent; what still arrives is discarded."""
        self._discarded_bytes = 0
        self._content_bytes = 0
        """Body bytes of the latest request; ``_framing_bytes`` counts the framing of its chunks."""
        self._framing_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        # uvicorn copies it into the ``state`` of each request.
        self.app_state = {**self.app_state, PEER_CERTIFICATE: peer_certificate(transport)}
        if len(self.connections) > self.limits.connections:
            # A client that connects and sends nothing, or an endless body, must not block others.
            oldest = next(iter(self.unfinished), None)
            if oldest is not None:
                del self.unfinished[oldest]
                # It no longer counts, although it is closed only in the next pass of the loop.
                self.connections.discard(oldest)
                oldest.transport.abort()
        if len(self.connections) > 2 * self.limits.connections:
            transport.abort()
            return
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            # The parser accepts no input after its error, and uvicorn would answer a second time.
            self._discarded_bytes += len(data)
            if self._discarded_bytes > self.limits.drained_bytes:
                self.transport.abort()
            return
        # uvicorn also counts requests that are ending. With 0 it answers 503.
        self.limit_concurrency = 0 if len(self.connections) > self.limits.connections else None
        view = memoryview(data)
        for start in range(0, len(data), _STEP_BYTES):
            if not self._take(bytes(view[start : start + _STEP_BYTES])):
                self.transport.abort()
            if self.transport.is_closing() or self._refused:
                return
        self._watch_head()

    def _take(self, data: bytes) -> bool:
        """Parse this data. False: the body is nearly all chunk framing, and each chunk costs the parser 4 us."""
        cycle = self.cycle
        awaits_body = cycle is not None and cycle.more_body
        before_bytes = len(cycle.body) if awaits_body else 0
        super().data_received(data)
        if self.cycle is not cycle:
            self._content_bytes = self._framing_bytes = 0
        elif awaits_body:
            grown_bytes = len(cycle.body) - before_bytes
            self._content_bytes += grown_bytes
            self._framing_bytes += len(data) - grown_bytes
        return self._framing_bytes <= _FRAMING_FREE_BYTES + self._content_bytes // _CONTENT_PER_FRAMING

    def send_400_response(self, msg: str) -> None:
        """Answer what is not valid HTTP, and close. uvicorn calls this while it handles the error of its parser."""
        error = sys.exception()
        status = HTTPStatus(getattr(error, "error_status_hint", HTTPStatus.BAD_REQUEST))
        reason = _QUOTE.sub("", str(error))
        self.telemetry.add("http_requests", 1, ("other", f"{status // 100}xx"))
        peer = str(self.client[0]) if self.client else ""
        self.warnings.warn(
            "HTTP request is malformed", {"peer": peer, "status": int(status), "reason": reason}, kind=str(int(status))
        )
        self._refused = True
        cycle, is_answered = self.cycle, False
        if cycle is not None and cycle.more_body:
            # The body of this request. Its application must not answer on this connection any more.
            is_answered, cycle.disconnected = cycle.response_started, True
            cycle.message_event.set()
        if is_answered:
            self.transport.close()
        else:
            self._end_with(_answer(status, reason))

    def _end_with(self, answer: bytes) -> None:
        """Send the answer, and close when the peer has read it, or at the deadline of a head.

        If a connection is closed while its peer still sends, the peer's system discards the answer.
        """
        self.transport.write(answer)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._stop_head_timer()
        self.unfinished[self] = None
        self._head_timer = self.loop.call_later(self.limits.head_s, self.transport.abort)

    def _watch_head(self) -> None:
        """Run the timer only while a request's head is awaited. Further bytes do not restart it."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_head_timer()
            if not self.cycle.more_body:
                self.unfinished.pop(self, None)
        elif self._head_timer is None:
            self.unfinished[self] = None
            self._head_timer = self.loop.call_later(self.limits.head_s, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()

    def on_response_complete(self) -> None:
        # From now on, uvicorn's own timer waits for the next request.
        self._stop_head_timer()
        self.unfinished.pop(self, None)
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._reply_timer is None:
            self._reply_timer = self.loop.call_later(self.limits.reply_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_reply_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self.unfinished.pop(self, None)
        self._stop_reply_timer()
        super().connection_lost(exc)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_reply_timer(self) -> None:
        if self._reply_timer is not None:
            self._reply_timer.cancel()
            self._reply_timer = None


def _answer(status: HTTPStatus, reason: str) -> bytes:
    """A whole answer as bytes: the parser, which has failed, does not send any more."""
    body = encode_error(InvalidArgumentError("not a valid HTTP request", reason=reason))
    head = (
        f"HTTP/1.1 {int(status)} {status.phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode("ascii") + body


def connection_class(limits: RestLimits, telemetry: Telemetry, door: TlsDoor | None = None) -> type[RestConnection]:
    """What uvicorn calls to make a connection: a class of connections under these limits, behind the ``door``'s TLS."""
    warnings = PeerWarnings(log, lambda: asyncio.get_running_loop().time())
    shared = {"limits": limits, "telemetry": telemetry, "warnings": warnings, "unfinished": {}}
    bounded = type("BoundedRestConnection", (RestConnection,), shared)
    if door is None:
        return bounded

    def behind_the_door(**arguments: Any) -> asyncio.BaseProtocol:
        return door.behind(lambda: bounded(**arguments))()

    # uvicorn only calls it.
    return cast("type[RestConnection]", behind_the_door)
