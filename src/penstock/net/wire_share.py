"""What the connections of one wire server share: the store, the bounds, and the work that outlives a connection."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol

from penstock.net.arena import ArenaPool
from penstock.net.wire_limits import WireLimits
from penstock.net.wire_requests import RemovalGuard
from penstock.ports.segment_service import LocalSegmentService
from penstock.ports.telemetry import Telemetry

log = logging.getLogger(__name__)

_REPLY_BYTES_MIN = 64 << 10
_WARN_S = 1.0
_WAKES = 64
"""Waiting reads that are answered in one pass of the loop: about a millisecond of work."""


class SharedConnection(Protocol):
    """A connection, as the server sees it."""

    @property
    def closed(self) -> asyncio.Future[None]:
        """Done once the connection is gone."""
        ...

    def wake(self) -> None:
        """Go on after having been starved."""
        ...

    def drain(self) -> None:
        """Read nothing more, and close once all is answered."""
        ...

    def abort(self) -> None:
        """Close now."""
        ...


class WaitingRead(Protocol):
    """A read that waits at a tail."""

    def resume(self) -> None:
        """Look again."""
        ...


class ServerShare:
    """What the connections of one server share."""

    def __init__(
        self,
        *,
        store: LocalSegmentService,
        limits: WireLimits,
        pool: ArenaPool,
        telemetry: Telemetry,
        loop: asyncio.AbstractEventLoop,
        guard: RemovalGuard | None = None,
    ) -> None:
        self.store = store
        self.guard = guard
        self.limits = limits
        self.pool = pool
        self.telemetry = telemetry
        self.loop = loop
        # Dicts for their order: what is done to all of them is done in the same order in every run of a simulation.
        self.connections: dict[SharedConnection, None] = {}
        self.cleanups: dict[asyncio.Task[None], None] = {}
        self.sending: dict[object, None] = {}
        """The read sides that gather data, or whose peers are slow to collect it."""
        self._reply_bytes_alone = max(_REPLY_BYTES_MIN, min(limits.write_buffer_bytes, limits.replies_bytes))
        self._woken: deque[WaitingRead] = deque()
        self._waking = False
        self._starved: dict[SharedConnection, None] = {}
        self._held_bytes = 0
        self._warnings: dict[tuple[str, str], tuple[float, int]] = {}

    def warn(self, message: str, fields: Mapping[str, object], *, kind: str = "") -> None:
        """Log what a peer has brought about: once a second for each message and kind, lest a peer fills the disk with it.

        The next line says in ``unsaid`` how many were left out."""
        now = self.loop.time()
        said_at, unsaid = self._warnings.get((message, kind), (-_WARN_S, 0))
        if now - said_at < _WARN_S:
            self._warnings[message, kind] = (said_at, unsaid + 1)
            return
        self._warnings[message, kind] = (now, 0)
        log.warning(message, extra={**fields, "unsaid": unsaid})

    @property
    def room(self) -> int:
        """Bytes that all connections together may still take."""
        return self.limits.held_bytes_total - self._held_bytes

    @property
    def reply_bytes(self) -> int:
        """Read data that one connection may hold unsent now."""
        if not self.sending:
            return self._reply_bytes_alone
        fair = self.limits.replies_bytes // len(self.sending)
        return max(_REPLY_BYTES_MIN, min(self.limits.write_buffer_bytes, fair))

    @property
    def full(self) -> bool:
        return self.room <= 0

    def hold(self, size_bytes: int) -> None:
        self._held_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        self._held_bytes -= size_bytes
        if self._starved and not self.full:
            starved, self._starved = self._starved, {}
            for connection in starved:
                connection.wake()

    def starve(self, connection: SharedConnection) -> None:
        """Wake the connection once there is room again."""
        self._starved[connection] = None

    def wake_read(self, read: WaitingRead) -> None:
        """Let the read look again, after those that were woken before it, a slice of them in each pass of the loop:
        an append that wakes thousands must not hold up the appends that come after it."""
        self._woken.append(read)
        if not self._waking:
            self._waking = True
            self.loop.call_soon(self._resume_reads)

    def _resume_reads(self) -> None:
        try:
            for _ in range(min(len(self._woken), _WAKES)):
                self._woken.popleft().resume()
        finally:
            self._waking = bool(self._woken)
            if self._waking:
                self.loop.call_soon(self._resume_reads)

    def forget(self, connection: SharedConnection) -> None:
        self._starved.pop(connection, None)
        self.connections.pop(connection, None)
        self.telemetry.gauge("wire_connections", len(self.connections))

    def clean_up(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self.cleanups[task] = None
        task.add_done_callback(self._cleaned)

    def _cleaned(self, task: asyncio.Task[None]) -> None:
        self.cleanups.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("clean-up after a connection failed", exc_info=error)
