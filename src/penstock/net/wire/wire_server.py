"""The segment store's port: Pravega's wire protocol over TCP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from penstock.model.errors import AddressInUseError, InternalError
from penstock.net.security import OPEN, Security
from penstock.net.tls.certificates import NO_ALPN
from penstock.net.tls.door import TlsDoor
from penstock.net.wire.arena import MEDIUM_BYTES, SMALL_BYTES, ArenaPool
from penstock.net.wire.connection import ServerConnection
from penstock.net.wire.requests import ControllerCall, RemovalGuard
from penstock.net.wire.share import InCluster, ServerShare, SharedConnection
from penstock.net.wire.wire_limits import WireLimits
from penstock.ports.data.service import ServedStore
from penstock.ports.rng import Rng
from penstock.ports.telemetry import Telemetry

__all__ = ["InCluster", "WireLimits", "WireServer"]

log = logging.getLogger(__name__)

_WARM = {SMALL_BYTES: 8, MEDIUM_BYTES: 4}
_WARM_SHARE = 8
"""The most receive memory that is touched at start: a small store stays small."""
_BACKLOG = 512  # connections that wait for accept; covers a burst of clients that start at once


class WireServer:
    """Serves ``store`` on ``host:port`` from entry to exit; port 0 picks a free port; see ``port``.

    Exit stops accepting, answers waiting reads with an empty reply, waits for requests in flight for at most
    ``limits.drain_s``, and closes all connections. The store is borrowed, and must be open for that long. Runs on any
    loop that offers ``create_server`` for buffered protocols.
    """

    def __init__(
        self,
        store: ServedStore,
        *,
        host: str = "127.0.0.1",
        port: int = 12345,
        rng: Rng,
        telemetry: Telemetry,
        limits: WireLimits | None = None,
        guard: RemovalGuard | None = None,
        calls: Mapping[str, ControllerCall] | None = None,
        security: Security = OPEN,
        in_cluster: InCluster | None = None,
    ) -> None:
        """``guard`` is entered before a client's request removes bytes of a segment. ``calls`` of the controller, by
        name, are answered here too (``net.wire.calls``). ``in_cluster``: None: this store has all segments, for
        ever. All arguments are borrowed."""
        self._store = store
        self._guard = guard
        self._calls = calls
        self._host = host
        self._port = port
        self._rng = rng
        self._telemetry = telemetry
        self._limits = limits or WireLimits()
        tls = security.tls
        self._security = security
        self._in_cluster = in_cluster
        self._door = None if tls is None else TlsDoor(tls, NO_ALPN, telemetry=telemetry)
        self._server: asyncio.AbstractServer | None = None
        self._share: ServerShare | None = None

    @property
    def host(self) -> str:
        return self._host

    @property
    def port(self) -> int:
        """The port that is served; known once the server is entered."""
        return self._port

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        limit_bytes = self._limits.arena_bytes
        warm = {size: min(count, limit_bytes // _WARM_SHARE // size) for size, count in _WARM.items()}
        pool = ArenaPool(telemetry=self._telemetry, limit_bytes=limit_bytes, warm=warm)
        self._share = ServerShare(
            store=self._store,
            limits=self._limits,
            pool=pool,
            telemetry=self._telemetry,
            loop=loop,
            guard=self._guard,
            calls=self._calls,
            security=self._security,
            in_cluster=self._in_cluster,
        )
        try:
            factory = self._connection if self._door is None else self._door.behind(self._connection)
            self._server = await loop.create_server(factory, self._host, self._port, backlog=_BACKLOG)
        except OSError as error:
            raise AddressInUseError(
                "the segment store's address is taken by another process, or is not one of this host; choose another",
                host=self._host,
                port=self._port,
            ) from error
        self._share.watch()
        if self._port == 0:
            self._port = _port_of(self._server)
        log.info("wire server listens", extra={"host": self._host, "port": self._port})
        return self

    def give_back_memory(self) -> int:
        """Drop receive memory that nobody uses now. Returns how many bytes."""
        return 0 if self._share is None else self._share.pool.give_back()

    def memory_is_short(self, is_short: bool) -> None:
        """Set whether the process uses more memory than it should. While it does, appends are copied out of receive
        buffers: even 16 KiB that the store keeps would keep a whole buffer of 16 MiB."""
        if self._share is not None:
            self._share.short = is_short

    def _connection(self) -> ServerConnection:
        if self._share is None:
            raise InternalError("wire server is not open")
        return ServerConnection(self._share, self._rng.uuid().hex[:8])

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        server, share = self._server, self._share
        if server is None or share is None:
            return
        self._server = None
        server.close()
        if self._door is not None:
            self._door.close()
        share.unwatch()
        connections = list(share.connections)
        for connection in connections:
            connection.drain()
        await self._closed(connections)
        await server.wait_closed()
        if share.cleanups:
            _, late = await asyncio.wait(list(share.cleanups), timeout=self._limits.drain_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
                log.warning("clean-up after connections ended early", extra={"tasks": len(late)})
        log.info("wire server closed", extra={"host": self._host, "port": self._port})

    async def _closed(self, connections: list[SharedConnection]) -> None:
        if not connections:
            return
        waits = [connection.closed for connection in connections]
        _, late = await asyncio.wait(waits, timeout=self._limits.drain_s)
        if late:
            log.warning("wire connections were aborted", extra={"connections": len(late)})
            for connection in connections:
                if not connection.closed.done():
                    connection.abort()
            await asyncio.wait(late)


def _port_of(server: Any) -> int:
    return int(server.sockets[0].getsockname()[1])
