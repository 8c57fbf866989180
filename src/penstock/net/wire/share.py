"""What the connections of one wire server share: the store, the bounds, and work that outlives a connection."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.core.segments.receive_turns import FREE_BYTES, ReceiveTurns, Step
from penstock.net.peer_warnings import PeerWarnings
from penstock.net.security import OPEN, Security
from penstock.net.wire.arena import ArenaPool
from penstock.net.wire.replies import LargeReplies
from penstock.net.wire.requests import ControllerCall, PassOn, RemovalGuard
from penstock.net.wire.wire_limits import WireLimits
from penstock.ports.data.service import ServedStore
from penstock.ports.telemetry import Telemetry

log = logging.getLogger(__name__)

_REPLY_BYTES_MIN = 64 << 10
_WAKES = 64
"""Waiting reads answered in one pass of the event loop: about a millisecond of work."""
_GRACE_TURNS = 4  # turns before a connection's memory may be taken for others


@dataclass(frozen=True, slots=True, kw_only=True)
class InCluster:
    """What the server of a store needs that has only some of the segments, for a time.

    ``answer_check`` is called for each connection that is accepted. What it returns is asked before answers are written:
    False closes the connection without them. ``pass_on``: None: requests about segments of other stores are refused.
    """

    answer_check: Callable[[], Callable[[], bool]]
    pass_on: PassOn | None = None


class SharedConnection(Protocol):
    """The part of a connection that the server uses."""

    @property
    def closed(self) -> asyncio.Future[None]:
        """Done once the connection is closed."""
        ...

    def wake(self) -> None:
        """Continue after waiting for room."""
        ...

    def look(self, now: float) -> None:
        """Close the connection if it is late; release its receive memory if it is quiet."""
        ...

    def late(self, reason: str) -> None:
        """Close at once and log why, unless it is the server that does not read."""
        ...

    def cut(self, reason: str) -> None:
        """Close at once and log why."""
        ...

    def drain(self) -> None:
        """Stop reading, and close once everything is answered."""
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
        store: ServedStore,
        limits: WireLimits,
        pool: ArenaPool,
        telemetry: Telemetry,
        loop: asyncio.AbstractEventLoop,
        guard: RemovalGuard | None = None,
        calls: Mapping[str, ControllerCall] | None = None,
        security: Security = OPEN,
        in_cluster: InCluster | None = None,
    ) -> None:
        self.store = store
        self.answer_check = None if in_cluster is None else in_cluster.answer_check
        self.pass_on = None if in_cluster is None else in_cluster.pass_on
        self.tokens, self.refused = security.verifier, security.refused
        self.guard = guard
        self.calls = calls
        self.limits = limits
        self.pool = pool
        self.telemetry = telemetry
        self.received_bytes = telemetry.tally("wire_received_bytes")
        self.loop = loop
        # Dicts, for their order: every run of a simulation visits them in the same order.
        self.connections: dict[SharedConnection, None] = {}
        self.cleanups: dict[asyncio.Task[None], None] = {}
        self.sending: dict[object, None] = {}
        """The read sides that gather data, or whose peers are slow to collect it."""
        self._reply_bytes_alone = max(_REPLY_BYTES_MIN, min(limits.write_buffer_bytes, limits.replies_bytes))
        self._woken: deque[WaitingRead] = deque()
        self._waking = False
        self.silent: dict[SharedConnection, float] = {}
        """Connections that have sent no frame yet, and since when; oldest first."""
        self._starved: dict[SharedConnection, None] = {}
        self._held_bytes = 0
        self.turns: ReceiveTurns[SharedConnection] = ReceiveTurns(
            budget_bytes=limits.receiving_bytes, turn_s=limits.turn_s, grace_s=_GRACE_TURNS * limits.turn_s
        )
        self._sweep: asyncio.TimerHandle | None = None
        self._turn: asyncio.TimerHandle | None = None
        self._errors = 0
        self._errors_since = float("-inf")
        self._kept: dict[SharedConnection, None] = {}
        self.warn = PeerWarnings(log, loop.time).warn
        """Logs problems that peers cause."""
        self.writers = 0
        """Writers set up on all connections."""
        self.short = False
        """Whether the process uses more memory than it should: then no view of a receive buffer is kept, because it
        keeps the whole buffer."""
        self.large = LargeReplies(loop, limit_bytes=limits.replies_bytes, patience_s=limits.frame_crowded_s)

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

    # --- frames that have not arrived whole, and peers that are late ---

    def receiving(self, connection: SharedConnection, size_bytes: int, missing_bytes: int) -> None:
        """Record how many bytes of an incomplete frame a connection holds, and how many it still needs. Small counts
        are ignored."""
        if size_bytes <= FREE_BYTES and not self.turns.connections:
            return
        self._act(self.turns.note(connection, size_bytes, missing_bytes, self.loop.time()))

    def _act(self, step: Step[SharedConnection]) -> None:
        for connection in step.wake:
            connection.wake()
        if self._turn is None and self.turns.contested:
            self._turn = self.loop.call_later(self.limits.turn_s, self._turn_over)

    @property
    def frame_s(self) -> float:
        """How long a frame may currently take to arrive, in seconds."""
        return self.limits.frame_crowded_s if self.turns.contested else self.limits.frame_s

    def must_pause(self, connection: SharedConnection) -> bool:
        """Whether the rest of its frame has to wait."""
        return not self.turns.may_receive(connection)

    def _turn_over(self) -> None:
        self._turn = None
        step = self.turns.tick(self.loop.time())
        self._act(step)
        for connection in step.silent:
            connection.late("others wait, and it sends nothing")
        # A full server does not read, so a small number of bytes does not mean that the peer is slow.
        for connection in () if self.full else step.weak:
            connection.cut("others wait, and it sends very little")

    def watch(self) -> None:
        """Check all connections at intervals, until ``unwatch``."""
        self._sweep = self.loop.call_later(self.limits.sweep_s, self._look)

    def unwatch(self) -> None:
        for timer in (self._sweep, self._turn):
            if timer is not None:
                timer.cancel()
        self.large.close()

    def _look(self) -> None:
        self.watch()
        now = self.loop.time()
        late = [one for one, since in self.silent.items() if now - since >= self.limits.hello_s]
        for connection in late:
            connection.late("no request arrived in time")
        for connection in list(self.connections):
            connection.look(now)

    def penalty_s(self, connection: SharedConnection) -> float:
        """How long to keep a connection that broke the protocol before it is closed."""
        self.telemetry.add("wire_protocol_errors")
        now = self.loop.time()
        if now - self._errors_since >= 1:
            self._errors, self._errors_since = 0, now
        self._errors += 1
        if self._errors <= self.limits.errors_per_s:
            return 0.0
        self._kept[connection] = None
        return self.limits.penalty_s

    def drop_one(self) -> bool:
        """Close a connection kept for a penalty, or else the one that has been silent for longest, if any."""
        for connections in (self._kept, self.silent):
            oldest = next(iter(connections), None)
            if oldest is not None:
                oldest.abort()
                return True
        return False

    def hold(self, size_bytes: int) -> None:
        self._held_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        self._held_bytes -= size_bytes
        if self._starved and not self.full:
            self._wake_starved()

    def _wake_starved(self) -> None:
        starved, self._starved = self._starved, {}
        for connection in starved:
            connection.wake()

    def starve(self, connection: SharedConnection) -> None:
        """Wake the connection once there is room again."""
        self._starved[connection] = None

    def wake_read(self, read: WaitingRead) -> None:
        """Let the read check again, after those woken before it. Each pass of the loop resumes only some of them: an
        append that wakes thousands must not delay the appends after it."""
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
        self.silent.pop(connection, None)
        self._kept.pop(connection, None)
        self._act(self.turns.forget(connection, self.loop.time()))
        self.large.collected(connection)
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
