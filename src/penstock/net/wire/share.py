"""What the connections of one wire server share: the store, the bounds, and work that outlives a connection."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from itertools import repeat
from typing import Any, Protocol

from penstock.codec.wire.commands import ReadSegment
from penstock.codec.wire.frames import RID, segment_read_parts
from penstock.core.segments.receive_turns import FREE_BYTES, ReceiveTurns, Step
from penstock.model.values.dataclass import dataclass
from penstock.net.peer_warnings import PeerWarnings
from penstock.net.security import OPEN, Security
from penstock.net.wire.arena import ArenaPool
from penstock.net.wire.frames import Sending
from penstock.net.wire.replies import LargeReplies
from penstock.net.wire.requests import ControllerCall, PassOn, RemovalGuard
from penstock.net.wire.wire_limits import WireLimits
from penstock.ports.data.segments import SegmentRead
from penstock.ports.data.service import ServedStore, Watch
from penstock.ports.files import Buffer
from penstock.ports.telemetry import Telemetry

log = logging.getLogger(__name__)

_REPLY_BYTES_MIN = 64 << 10
_WAKES = 128
"""Waiting reads answered in one pass of the event loop: about a millisecond of work."""
_SMALL_BYTES = 64 << 10
_pack_rid = RID.pack
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


class WaitingSide(Protocol):
    """The reads of one connection, some of which wait at a tail."""

    def resume(self, number: int, tail: Tail) -> None:
        """Check the waiting read with this number again."""
        ...


class Answer:
    """The frame of a SegmentRead for all readers of the same bytes, without its last field, the number of the request."""

    __slots__ = ("_parts", "_small", "data_bytes", "size_bytes")

    def __init__(self, segment: str, found: SegmentRead, *, copied: bool = False) -> None:
        """``copied``: do not hold the memory that the data is a view of."""
        parts = segment_read_parts(segment, found.offset, found.at_tail, found.end_of_segment, found.parts)
        size_bytes = sum(map(len, parts))
        self.data_bytes = size_bytes - len(parts[0])
        self.size_bytes = size_bytes + RID.size
        self._parts: Sequence[Buffer] = parts
        self._small = b""
        if size_bytes < _SMALL_BYTES:
            self._parts, self._small = (), b"".join(parts)
        elif copied:
            self._parts = (b"".join(parts),)

    def to(self, rid: int) -> Sequence[Buffer]:
        """The parts of the frame that answers the request with this number."""
        end = _pack_rid(rid)
        return (self._small + end,) if self._small else (*self._parts, end)


class Tail:
    """The reads that wait at one place of a segment, in order of arrival. They share one watch of the store."""

    __slots__ = ("_tails", "answers", "gone", "place", "sides", "watch")

    watch: Watch

    def __init__(self, tails: Tails, place: tuple[str, int]) -> None:
        self._tails = tails
        self.place = place
        self.sides: dict[int, WaitingSide] = {}
        """The connection of each waiting read, by the read's number."""
        self.answers: dict[int, Answer] = {}
        """The answers of the current pass of the event loop, by their size limit in bytes."""
        self.gone = False
        """Whether the segment was deleted. Another one may have its name by now."""

    def refresh(self) -> None:
        """Drop the answers of the last pass: the segment may have changed since then."""
        self.answers = {}
        self.gone = self.watch.gone

    def changed(self) -> None:
        self._tails.wake(self)


class Tails:
    """All reads of a server that wait at tails, by segment and offset."""

    def __init__(self, store: ServedStore, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        self._places: dict[tuple[str, int], Tail] = {}
        self._last_number = 0
        self._woken: deque[tuple[int, WaitingSide, Tail]] = deque()
        self._waking = False

    def park(self, side: WaitingSide, command: ReadSegment) -> int:
        """Let the read wait. Returns its number among the waiting reads; 0: it need not or may not wait, see
        ``ServedReads.watch``."""
        place = command[:2]
        tail = self._places.get(place)
        if tail is None:
            tail = Tail(self, place)
            watch = self._store.watch(*place, tail.changed)
            if watch is None:
                return 0
            tail.watch = watch
            self._places[place] = tail
        elif not tail.watch.join():
            return 0
        self._last_number = number = self._last_number + 1
        tail.sides[number] = side
        return number

    def leave(self, number: int, command: ReadSegment) -> None:
        """Stop the wait of this read. Does nothing after the segment has changed."""
        tail = self._places.get(command[:2])
        if tail is not None and tail.sides.pop(number, None) is not None:
            tail.watch.cancel()
            if not tail.sides:
                del self._places[tail.place]

    def wake(self, tail: Tail) -> None:
        """Let the reads check again, after those woken before them and after acknowledgements. Each pass of the loop
        resumes only some of them: an append that wakes thousands must not delay the appends after it."""
        del self._places[tail.place]
        self._woken += zip(tail.sides, tail.sides.values(), repeat(tail))
        tail.sides = {}
        if not self._waking:
            self._waking = True
            self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        woken, before = self._woken, None
        try:
            for _ in range(min(len(woken), _WAKES)):
                number, side, tail = woken.popleft()
                if tail is not before:
                    tail.refresh()
                    before = tail
                side.resume(number, tail)
        finally:
            self._waking = bool(self._woken)
            if self._waking:
                self._loop.call_soon(self._resume)


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
        self.reply_bytes = 0
        """Bytes of read data that one connection may now hold unsent."""
        self._divide_replies()
        self.tails = Tails(store, loop)
        self.outboxes = Sending(loop)
        self.reads, self.read_bytes = telemetry.tally("wire_reads"), telemetry.tally("wire_read_bytes")
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

    def sends(self, side: object, *, now: bool) -> None:
        """Set whether a connection gathers data, or its peer is slow to collect it."""
        if now:
            self.sending[side] = None
        else:
            self.sending.pop(side, None)
        self._divide_replies()

    def _divide_replies(self) -> None:
        fair = self.limits.replies_bytes // max(1, len(self.sending))
        self.reply_bytes = max(_REPLY_BYTES_MIN, min(self.limits.write_buffer_bytes, fair))

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
        return connection in self.turns.waiting

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
