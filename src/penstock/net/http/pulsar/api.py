"""Pulsar's admin REST API, version 2, over a ``ControlPlane`` and a ``SegmentService``.

Paths, bodies, codes and reasons are those of Pulsar's broker, so that its own tools work: docs/reference/pulsar-admin.md.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from urllib.parse import parse_qsl, unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.model.callers import current_caller
from penstock.model.errors import (
    AccessError,
    AlreadyExistsError,
    ApprovalRequiredError,
    ConflictError,
    CorruptDataError,
    FencedError,
    InternalError,
    InvalidArgumentError,
    InvalidNameError,
    NotFoundError,
    PenstockError,
    RetentionHoldError,
    ScopeNotFoundError,
    StreamNotFoundError,
    SubscriberNotFoundError,
    UnauthenticatedError,
    UnavailableError,
)
from penstock.net.access.guarded import GuardedControl
from penstock.net.http.path_rights import check_needs, pulsar_needs
from penstock.net.http.pulsar.bodies import AdminError
from penstock.net.http.pulsar.context import Admin, Call, Handler, MoveReaders, ReadersOf, Reply, as_json
from penstock.net.http.pulsar.namespaces import Namespaces
from penstock.net.http.pulsar.policies import Policies
from penstock.net.http.pulsar.policy_calls import PolicyCalls
from penstock.net.http.pulsar.stats import Stats
from penstock.net.http.pulsar.subscriptions import Subscriptions
from penstock.net.http.pulsar.tenants import BINARY_PORT, Tenants
from penstock.net.http.pulsar.topics import Topics
from penstock.ports.clock import Clock
from penstock.ports.control.plane import ControlPlane
from penstock.ports.data.service import SegmentService

log = logging.getLogger(__name__)

BODY_MAX_BYTES = 1 << 20
_METHODS = ("GET", "PUT", "POST", "DELETE")
_PERSISTENT = "/admin/v2/persistent/"
_NON_PERSISTENT = "/admin/v2/non-persistent/"


def pulsar_routes(
    controller: ControlPlane,
    segments: SegmentService,
    clock: Clock,
    *,
    readers_of: ReadersOf | None = None,
    move_readers: MoveReaders | None = None,
    binary_port: int = BINARY_PORT,
) -> Sequence[BaseRoute]:
    """Routes below ``/admin/v2`` and ``/lookup/v2``. The services are borrowed.

    ``readers_of``: the readers now in a group, by scope and name; None: no reader is known to be connected.
    ``move_readers``: for calls that move a subscription; None: they move only the acknowledged cut, and readers stay.
    ``binary_port``: the port of Pulsar's binary protocol that lookups return, on the host that the client called.
    """
    facade = _Facade(Admin(controller, segments, clock, readers_of, move_readers), binary_port)

    async def answer(request: Request) -> Response:
        return await facade.answer(request)

    return [
        Route("/admin/v2/{rest:path}", answer, methods=list(_METHODS)),
        Route("/lookup/v2/{rest:path}", answer, methods=["GET"]),
    ]


class _Facade:
    """Finds the call for a path. Parts of a path are decoded one by one: a name may contain an encoded slash."""

    def __init__(self, admin: Admin, binary_port: int) -> None:
        self._admin = admin
        topics = Topics(admin)
        subscriptions = Subscriptions(admin, topics)
        policies = Policies(admin)
        parts = (
            Tenants(admin, binary_port),
            Namespaces(admin, policies, topics, subscriptions),
            topics,
            subscriptions,
            PolicyCalls(admin, policies),
            Stats(admin),
        )
        self._calls: dict[int, list[tuple[str, tuple[str, ...], Handler, bool]]] = {}
        for part in parts:
            for method, path, handler in part.routes():
                self._add(method, path, handler, non_persistent=False)
                if path.startswith(_PERSISTENT):
                    self._add(method, path.replace(_PERSISTENT, _NON_PERSISTENT, 1), handler, non_persistent=True)
        for known in self._calls.values():
            # Fixed words take precedence over names: "…/partitioned" is not a topic.
            known.sort(key=lambda item: [word.startswith("{") for word in item[1]])

    def _add(self, method: str, path: str, handler: Handler, *, non_persistent: bool) -> None:
        words = tuple(path.strip("/").split("/"))
        self._calls.setdefault(len(words), []).append((method, words, handler, non_persistent))

    async def answer(self, request: Request) -> Response:
        raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
        words = [unquote(word) for word in raw.split(b"?")[0].decode("latin-1").strip("/").split("/")]
        found = self._find(request.method, words)
        if found is None:
            return Response(status_code=404)
        handler, params, non_persistent = found
        if handler is None:
            return Response(status_code=405)
        if isinstance(self._admin.controller, GuardedControl):
            try:
                check_needs(current_caller(), pulsar_needs(request.method, params))
            except AccessError as error:
                return _response(_reply_of(error))
        body = await _body(request)
        if body is None:
            return _response(_refusal(413, "The request body is too large"))
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if body.strip() and media and media != "application/json" and not media.endswith("+json"):
            return Response(status_code=415)
        query = dict(parse_qsl(request.url.query, keep_blank_values=True))
        host = request.headers.get("host", "localhost")
        call = Call(params=params, query=query, body=body, host=host, non_persistent=non_persistent)
        return _response(await self._perform(handler, call))

    def _find(self, method: str, words: Sequence[str]) -> tuple[Handler | None, dict[str, str], bool] | None:
        """The handler and the names in the path; no handler if the path is known with other methods only."""
        other = False
        for verb, pattern, handler, non_persistent in self._calls.get(len(words), ()):
            params: dict[str, str] = {}
            for word, given in zip(pattern, words, strict=True):
                if word.startswith("{"):
                    params[word[1:-1]] = given
                elif word != given:
                    break
            else:
                if not all(params.values()):
                    continue
                if verb == method:
                    return handler, params, non_persistent
                other = True
        return (None, {}, False) if other else None

    async def _perform(self, handler: Handler, call: Call) -> Reply:
        try:
            await self._admin.start()
            return await handler(call)
        except PenstockError as error:
            return _reply_of(error)


async def _body(request: Request) -> bytes | None:
    """The body, or None if it is too large."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > BODY_MAX_BYTES:
            return None
    return bytes(body)


def _refusal(status: int, reason: str) -> Reply:
    return as_json({"reason": reason}, status)


_STATUS: Sequence[tuple[type[PenstockError], int]] = (
    (UnauthenticatedError, 401),
    (AccessError, 403),
    (RetentionHoldError, 412),
    (ApprovalRequiredError, 412),
    (InvalidNameError, 412),
    (InvalidArgumentError, 400),
    (NotFoundError, 404),
    (AlreadyExistsError, 409),
    (ConflictError, 409),
    (UnavailableError, 503),
    (FencedError, 503),
)


def _reply_of(error: PenstockError) -> Reply:
    if isinstance(error, AdminError):
        return _refusal(error.status, error.reason)
    if isinstance(error, StreamNotFoundError):
        return _refusal(404, f"Topic not found: {error}")
    if isinstance(error, ScopeNotFoundError):
        return _refusal(404, "Namespace does not exist")
    if isinstance(error, SubscriberNotFoundError):
        return _refusal(404, "Subscription not found")
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return _refusal(status, str(error))
    if isinstance(error, (CorruptDataError, InternalError)):
        log.error("a call of the Pulsar admin API failed", extra={"error": str(error)})
    return _refusal(500, str(error))


def _response(reply: Reply) -> Response:
    if reply.body is None:
        return Response(status_code=reply.status)
    return Response(reply.body, status_code=reply.status, media_type=reply.content_type)
