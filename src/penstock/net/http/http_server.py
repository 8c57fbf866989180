"""The HTTP port: Pravega's REST interface, Pulsar's admin interface, Penstock's own calls, and routes that the process
adds.

uvicorn and starlette do HTTP; ``rest_guard`` and ``rest_connection`` limit what a peer may use.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import field
from functools import cache
from importlib import resources
from types import TracebackType
from typing import Self

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router
from uvicorn import Config, Server

from penstock.model.errors import InternalError, InvalidArgumentError
from penstock.model.values.dataclass import dataclass
from penstock.net.http.connections import connection_class
from penstock.net.http.guard import LOOPBACK_NAMES, Guard
from penstock.net.http.health import Checks, Health
from penstock.net.http.http_errors import JSON
from penstock.net.http.http_limits import RestLimits
from penstock.net.http.own_calls import OWN_CALLS
from penstock.net.http.pravega_routes import PravegaRest, ReadersOf
from penstock.net.http.pulsar.api import pulsar_routes
from penstock.net.http.pulsar.context import MoveReaders
from penstock.net.http.reading_requests import no_such_path, path_route
from penstock.net.http.rest_calls import routes_of
from penstock.net.listening import listen_on
from penstock.net.security import OPEN, Security
from penstock.net.tls.certificates import HTTP_ALPN
from penstock.net.tls.door import TlsDoor
from penstock.ports.clock import Clock
from penstock.ports.control.plane import ControlPlane
from penstock.ports.data.service import SegmentService
from penstock.ports.telemetry import NoTelemetry, Telemetry

log = logging.getLogger(__name__)

DEFAULT_PORT = 9091
_BACKLOG = 512  # connections that wait for accept; a burst of clients that start at once
_RECEIVE_BYTES = 16 << 10
"""The kernel's receive buffer of each connection. It limits what one pass of the loop takes from a peer, which could
otherwise be 8 MiB."""
# The page's own script and style are inline; it loads only the API description.
_PAGE_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'"


async def _not_known(_scope: str, _group: str) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReaders:
    """What the process knows of the readers of groups.

    of: Returns the readers that are online in a group, for ``onlineReaderIds``.
    move: Moves readers for Pulsar's calls that move a subscription; None: these calls move only the acknowledged cut.
    """

    of: ReadersOf = _not_known
    move: MoveReaders | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReports:
    """What the process knows: parts that work or not, for ``/v1/health``, readers of groups, and metrics of the
    requests."""

    checks: Checks = field(default_factory=Checks)
    telemetry: Telemetry = field(default_factory=NoTelemetry)
    readers: GroupReaders = field(default_factory=GroupReaders)


class RestServer:
    """Serves from ``__aenter__`` to ``__aexit__``; the services are borrowed. Port 0 picks a free port; see ``port``.

    Args:
        hosts: Host names, besides those of loopback and ``host``, by which requests may address this server. None: any
        name, for a port that other machines may reach. reports: None: nothing is known.
        routes: Further routes of the process; they are tried before ours.
    """

    def __init__(
        self,
        controller: ControlPlane,
        segments: SegmentService,
        *,
        clock: Clock,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        hosts: Sequence[str] | None = (),
        reports: ProcessReports | None = None,
        routes: Sequence[BaseRoute] = (),
        limits: RestLimits | None = None,
        security: Security = OPEN,
    ) -> None:
        """Raises InvalidArgumentError (invalid port)."""
        if not 0 <= port < 1 << 16:
            raise InvalidArgumentError("a port must be 0 to 65535", port=port)
        reports = reports or ProcessReports()
        readers = reports.readers
        tls = security.tls
        self._door = None if tls is None else TlsDoor(tls, HTTP_ALPN, telemetry=reports.telemetry)
        self._telemetry = reports.telemetry
        self._host = host
        self._wanted_port = port
        self._limits = limits or RestLimits()
        self._routes = (
            *routes,
            *PravegaRest(controller, readers_of=readers.of).routes(),
            *routes_of(OWN_CALLS, controller),
            *pulsar_routes(
                controller,
                segments,
                clock,
                readers_of=None if readers.of is _not_known else readers.of,
                move_readers=readers.move,
            ),
            *Health(reports.checks).routes(),
            *_documentation(),
        )
        names = {name.strip("[]").lower() for name in (host, *(hosts or ()))}
        self._guard = Guard(
            Router(self._routes, redirect_slashes=False, default=no_such_path),
            limits=self._limits,
            hosts=None if hosts is None else LOOPBACK_NAMES | names,
            telemetry=reports.telemetry,
            authenticator=security.authenticator,
        )
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._port: int | None = None

    @property
    def port(self) -> int:
        """The port bound. Raises InternalError before the server was entered."""
        if self._port is None:
            raise InternalError("the HTTP server is not started")
        return self._port

    @property
    def connections(self) -> int:
        """How many connections there are now."""
        return 0 if self._server is None else len(self._server.server_state.connections)

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """All routes, in the order in which they are tried."""
        return self._routes

    async def __aenter__(self) -> Self:
        """Raises AddressInUseError."""
        sockets = await listen_on(
            self._host, self._wanted_port, what="HTTP", backlog=_BACKLOG, receive_bytes=_RECEIVE_BYTES
        )
        config = Config(
            self._guard,
            http=connection_class(self._limits, self._telemetry, self._door),
            ws="none",
            lifespan="off",
            interface="asgi3",
            loop="none",
            workers=1,  # otherwise an environment variable may set it
            log_config=None,
            # It logs clients' mistakes and each start; the guard writes our own log entries.
            log_level=logging.ERROR,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=self._limits.idle_s,
            timeout_graceful_shutdown=self._limits.drain_s,
            h11_max_incomplete_event_size=self._limits.head_bytes,
        )
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve(sockets), name="http server")
        started = asyncio.create_task(self._server.listening.wait())
        try:
            await asyncio.wait({self._task, started}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            started.cancel()
        if self._task.done():
            self._task.result()
            raise InternalError("the HTTP server ended at its start")
        self._task.add_done_callback(self._ended)
        self._port = int(sockets[0].getsockname()[1])
        log.info("HTTP server listens", extra={"host": self._host, "port": self._port})
        return self

    def _ended(self, task: asyncio.Task[None]) -> None:
        if self._server is not None and not task.cancelled():
            log.error("HTTP server ended by itself", exc_info=task.exception())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Accept no more requests, and end those in flight after at most two seconds."""
        server, task = self._server, self._task
        if server is None or task is None:
            return
        self._server = None
        server.should_exit = True
        if self._door is not None:
            self._door.close()
        try:
            await task
        finally:
            for connection in list(server.server_state.connections):
                if connection.transport is not None:
                    connection.transport.abort()
        log.info("HTTP server closed", extra={"host": self._host, "port": self._port})


class _Server(Server):
    """uvicorn's server for a process that handles its own signals. Reports when it listens."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()


def _documentation() -> Sequence[Route]:
    return [
        _static("/openapi.json", _description, JSON, {}),
        _static("/docs", _page, "text/html; charset=utf-8", {"content-security-policy": _PAGE_POLICY}),
    ]


@cache
def _description() -> bytes:
    """Made at the first request, because it takes 4 % of a start; then that request pauses the loop for 20 ms once."""
    from penstock.net.http.description import describe

    return json.dumps(describe()).encode()


@cache
def _page() -> bytes:
    return resources.files("penstock.net").joinpath("rest_docs.html").read_bytes()


def _static(path: str, content: Callable[[], bytes], media_type: str, headers: Mapping[str, str]) -> Route:
    async def handle(_request: Request) -> Response:
        return Response(content(), media_type=media_type, headers=headers)

    return path_route(path, {"GET": handle})


__all__ = ["DEFAULT_PORT", "GroupReaders", "ProcessReports", "RestLimits", "RestServer"]
