"""Checks that every HTTP request passes before a route sees it: origin, size and time.

Every web page that a browser on this machine shows can reach a loopback port. So a request must name this machine in
``Host`` (a page's own host name may resolve to it), must not come from a page of another origin, and its body must be
JSON, which HTML forms cannot send.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Set
from contextlib import AbstractContextManager, nullcontext
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.model.callers import Caller, calling
from penstock.model.errors import (
    CorruptDataError,
    DeadlineExceededError,
    InternalError,
    NotFoundError,
    UnavailableError,
)
from penstock.model.traces.spans import (
    NO_SPAN,
    PARENT_KEY,
    ROOT,
    STATE_KEY,
    Kind,
    Span,
    active,
    context_of_header,
    spanning,
)
from penstock.net.access.doors import AUTHORIZATION, identified, only
from penstock.net.access.refusals import Refusals
from penstock.net.http.connections import PEER_CERTIFICATE
from penstock.net.http.http_errors import Refusal, refusal_of, refusal_response, refused
from penstock.net.http.http_limits import RestLimits
from penstock.net.http.path_rights import PUBLIC_PATHS, check_path
from penstock.ports.access.authenticator import Authenticator
from penstock.ports.telemetry import Telemetry

log = logging.getLogger(__name__)

_SMALL_BYTES = 64 << 10
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})

WHO_HEADER = "penstock-who"
WHY_HEADER = "penstock-why"
"""Headers of a request, in UTF-8: who makes it and why. Both are optional."""

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


class Guard:
    """An ASGI application around another one. Only this class turns errors into answers.

    Args:
        hosts: Lower-case names, without ports, by which this server may be addressed; None: any.
        authenticator: Verifies who makes a request; None: callers need no identity.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        limits: RestLimits,
        hosts: Set[str] | None,
        telemetry: Telemetry,
        authenticator: Authenticator | None = None,
    ) -> None:
        self._app = app
        self._authenticator = authenticator
        self._telemetry = telemetry
        self._refusals = Refusals(telemetry, telemetry.steady_s)
        self._limits = limits
        self._bodies = _Bodies()
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise InternalError("not an HTTP request", type=scope["type"])
        headers = Headers(scope=scope)
        body = _Body(receive, headers, self._limits, self._bodies)
        reply = _Reply(send, body)
        if scope["path"].startswith("/v1/"):
            # Jersey accepts both spellings, and scripts rely on it.
            scope["path"] = scope["path"].rstrip("/")
        scope["app"] = self  # makes starlette's routes raise errors instead of answering in plain text
        began_s = self._telemetry.steady_s()
        limit = asyncio.timeout(self._limits.request_s)
        refused_with: Response | None = None
        try:
            try:
                self._check(headers, body)
                _check_path(scope)
                async with limit:
                    with _serving(scope, headers) as span:
                        caller = await self._identified(scope, headers)
                        with calling(caller, f"{scope['method']} {scope['path']}"):
                            await self._app(scope, body.receive, reply.send)
                        span.set("http.response.status_code", reply.status)
            except ClientDisconnect:
                return
            except Exception as error:
                if reply.started:
                    raise  # Part of the answer is sent already, so the connection is closed without another one.
                late = DeadlineExceededError("the request took too long", limit_s=self._limits.request_s)
                refused_with = refusal_response(self._refusal(late if limit.expired() else error, scope["path"]))
            if refused_with is not None:
                # Do not keep the error of the handler above in a variable: its frames hold the body, and a reference
                # cycle would keep it until the next garbage collection.
                body.let_go()
                await body.drain()
                await refused_with(scope, receive, reply.send)
        finally:
            body.let_go()
            # Any text is a legal method, and each label value is kept.
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._telemetry.add("http_requests", 1, (method, f"{reply.status // 100}xx" if reply.status else "none"))
            self._telemetry.observe("http_request_seconds", self._telemetry.steady_s() - began_s)

    def _refusal(self, error: Exception, path: str) -> Refusal:
        refusal = refusal_of(error)
        if refusal is not None:
            if isinstance(error, InternalError | CorruptDataError):
                log.error("request failed", extra={"path": path}, exc_info=error)
            return refusal
        log.error("request failed unexpectedly", extra={"path": path}, exc_info=error)
        return Refusal(500, InternalError("the server failed; its log says why"))

    async def _identified(self, scope: Scope, headers: Headers) -> Caller:
        """Who makes the request, with its verified identity. Raises UnauthenticatedError, PermissionDeniedError."""
        caller = _caller_of(scope, headers)
        if self._authenticator is None or scope["path"] in PUBLIC_PATHS:
            return caller
        certificate = scope.get("state", {}).get(PEER_CERTIFICATE, ())
        caller = await identified(
            caller, self._authenticator, only(headers.getlist(AUTHORIZATION)), certificate, self._refusals
        )
        check_path(scope["path"], caller)
        return caller

    def _check(self, headers: Headers, body: _Body) -> None:
        # The parser limits a head that arrives in pieces; one that came in a single piece is measured here.
        if sum(len(name) + len(value) for name, value in headers.raw) > self._limits.head_bytes:
            raise refused(431, "the headers are too large", limit_bytes=self._limits.head_bytes)
        if body.ambiguous:
            raise refused(400, "a request has Content-Length or Transfer-Encoding, not both")
        host = headers.get("host", "")
        if self._hosts is not None and _name_of(host) not in self._hosts:
            raise refused(403, "this server cannot be addressed by that name", host=host[:120])
        origin = headers.get("origin")
        if origin is not None and _place_of(origin) != host.lower():
            raise refused(403, "pages of another origin may not use this server", origin=origin[:120])
        if body.declared and headers.get("content-type") and not is_json(headers["content-type"]):
            raise refused(415, "the body of a request must be JSON", content_type=headers["content-type"][:120])


def _serving(scope: Scope, headers: Headers) -> AbstractContextManager[Span]:
    """The span of a request, inside the one that its headers name. Health checks and scrapes have none of their own."""
    parent = ROOT if active() is None else context_of_header(headers.get(PARENT_KEY, ""), headers.get(STATE_KEY, ""))
    if parent == ROOT and (active() is None or scope["path"] in (*PUBLIC_PATHS, "/metrics")):
        return nullcontext(NO_SPAN)
    method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
    attributes = {"http.request.method": method, "url.path": scope["path"], "url.scheme": scope.get("scheme", "http")}
    return spanning(method, Kind.SERVER, attributes, parent=parent)


def _caller_of(scope: Scope, headers: Headers) -> Caller:
    """Who makes the request, from its headers and its connection. Raises InvalidArgumentError."""
    who, why = (headers.get(name, "").encode("latin-1").decode("utf-8", "replace") for name in (WHO_HEADER, WHY_HEADER))
    client = scope.get("client")
    return Caller(who=who, why=why, via="http", peer=str(client[0]) if client else "")


def _check_path(scope: Scope) -> None:
    """Refuse an encoded slash within a name: the router sees the decoded path and would split the name there."""
    if scope["path"].startswith("/v1/"):
        # Only subscribers have names with a slash.
        names = scope.get("raw_path", b"").lower().partition(b"/subscribers/")[0]
        if b"%2f" in names:
            raise NotFoundError("no such path: a name cannot contain a slash", path=scope["path"][:200])


def is_json(content_type: str) -> bool:
    """Whether a Content-Type is JSON or a form of it."""
    media = content_type.partition(";")[0].strip().lower()
    return media == "application/json" or (media.startswith("application/") and media.endswith("+json"))


def _name_of(host: str) -> str:
    """The name in a ``Host`` header, without port and brackets."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _place_of(origin: str) -> str:
    """Name and port in an ``Origin`` header; empty if it is not a URL."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


class _Bodies:
    """The memory of all request bodies together."""

    def __init__(self) -> None:
        self.held_bytes = 0


class _Body:
    """A request's body, of bounded size and in bounded time."""

    def __init__(self, receive: Receive, headers: Headers, limits: RestLimits, bodies: _Bodies) -> None:
        self._receive = receive
        self._bodies = bodies
        self._held_bytes = 0
        self._limits = limits
        self._deadline = asyncio.get_running_loop().time() + limits.body_s
        length = headers.get("content-length", "")
        self._length = int(length) if length.isdecimal() else 0
        self._read = 0
        self.declared = self._length > 0 or "transfer-encoding" in headers
        self.complete = not self.declared
        # A proxy that goes by the other header sees the next request begin elsewhere (request smuggling).
        self.ambiguous = "content-length" in headers and "transfer-encoding" in headers

    async def receive(self) -> Message:
        if self.complete:
            return await self._receive()
        if self._length > self._limits.body_bytes:
            raise self._too_large()
        message = await self._next()
        if self._read > self._limits.body_bytes:
            raise self._too_large()
        self._hold(len(message.get("body", b"")))
        return message

    def _hold(self, size_bytes: int) -> None:
        self._held_bytes += size_bytes
        self._bodies.held_bytes += size_bytes
        # Small bodies are always accepted: hundreds of stalled uploads must not block small requests.
        if self._bodies.held_bytes > self._limits.bodies_bytes and self._held_bytes > _SMALL_BYTES:
            raise UnavailableError(
                "too many large bodies at the same time; try again", limit_bytes=self._limits.bodies_bytes
            )

    def let_go(self) -> None:
        """The request has ended: release its memory."""
        self._bodies.held_bytes -= self._held_bytes
        self._held_bytes = 0

    async def _next(self) -> Message:
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError as error:
            raise refused(408, "the body did not arrive in time", limit_s=self._limits.body_s) from error
        self._read += len(message.get("body", b""))
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self.complete = True
        return message

    def _too_large(self) -> Refusal:
        return refused(413, "the body is too large", limit_bytes=self._limits.body_bytes)

    async def drain(self) -> None:
        """Read and discard the rest, within limits. A peer that is still sending would not read the answer."""
        if self._length > self._limits.drained_bytes:
            return
        try:
            while not self.complete and self._read <= self._limits.drained_bytes:
                await self._next()
        except Refusal:
            return  # late: the connection is closed after the answer


class _Reply:
    """The answer as it is sent."""

    def __init__(self, send: Send, body: _Body) -> None:
        self._send = send
        self._body = body
        self.started = False
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers.setdefault("cache-control", "no-store")
            headers.setdefault("x-content-type-options", "nosniff")
            if not self._body.complete or self._body.ambiguous:
                # Otherwise the server would read for as long as the peer sends, or take a body for the next request.
                headers["connection"] = "close"
        await self._send(message)
