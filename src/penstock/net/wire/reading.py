"""The read side of a connection. Reads of data in memory are answered at once; others wait for data or for their turn.

A read that waits at a tail is an entry in the segment's list of watchers: no task, no future, no timer.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from typing import Protocol

from penstock.codec.wire import commands as c
from penstock.codec.wire.frames import Command, segment_read_parts
from penstock.model.errors import PenstockError, SegmentNotFoundError, ThrottledError, UnauthenticatedError
from penstock.model.traces.spans import Kind, Span, SpanContext, active, segment_attributes
from penstock.net.wire.frames import Outbox
from penstock.net.wire.permits import Permits
from penstock.net.wire.share import ServerShare
from penstock.ports.data.segments import READ_MAX_BYTES, SegmentRead
from penstock.ports.data.service import Watch

_READ_MIN_BYTES = 8
_SHORT = 64  # characters; a waiting read keeps no longer texts of its own


class ReadingConnection(Protocol):
    """What the read side needs from its connection."""

    @property
    def draining(self) -> bool: ...

    @property
    def outbox(self) -> Outbox | None: ...

    def limit_writes(self, size_bytes: int) -> None:
        """Count the peer as slow once this many bytes are unsent."""
        ...

    def refuse(self, error: PenstockError, command: Command, rid: int, offset: int) -> None: ...

    def read_ended(self, task: asyncio.Task[None] | None) -> None:
        """A read is answered; its task, if it had one, may have failed."""
        ...


class _Parked:
    """A read that waits at a tail."""

    __slots__ = ("_side", "command", "watch")

    def __init__(self, side: ReadSide, command: c.ReadSegment) -> None:
        self._side = side
        self.command = command
        self.watch: Watch | None = None

    def changed(self) -> None:
        self._side.changed(self)

    def resume(self) -> None:
        self._side.resume(self)


class ReadSide:
    """The reads of one connection."""

    def __init__(self, connection: ReadingConnection, share: ServerShare, permits: Permits | None = None) -> None:
        """``permits``: checks that the token of a read that has waited is still valid."""
        self._connection = connection
        self._permits = permits
        self._share = share
        self._store = share.store
        self._limits = share.limits
        # Dicts, for their order: waiting reads are woken, and answered at the end, in order of arrival.
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._parked: dict[_Parked, None] = {}
        self._reading = asyncio.Semaphore(share.limits.reading)
        self._writable = asyncio.Event()
        self._writable.set()
        self._waiting_tasks = 0
        self._spans: dict[int, Span] = {}
        self._gathering_bytes = 0
        self._gathered = asyncio.Event()

    @property
    def count(self) -> int:
        """Number of reads not yet answered."""
        return len(self._tasks) + len(self._parked)

    @property
    def writable(self) -> bool:
        """Whether the peer reads its replies."""
        return self._writable.is_set()

    async def collected(self) -> None:
        """Return once the peer reads its replies, or has disconnected."""
        await self._writable.wait()

    def pause(self) -> None:
        """The peer is slow."""
        self._writable.clear()
        self._share.sending[self] = None

    def go_on(self) -> None:
        """The peer has read what it was sent."""
        self._writable.set()
        self._sent()

    def close(self) -> None:
        """Drop waiting reads."""
        self._writable.set()
        for parked in self._take_parked():
            if parked.watch is not None:
                parked.watch.cancel()
        for task in list(self._tasks):
            task.cancel()

    def drain(self) -> None:
        """Answer waiting reads with an empty reply."""
        for parked in self._take_parked():
            if parked.watch is not None:
                parked.watch.cancel()
            self._send_nothing(parked.command)
        for task in list(self._tasks):
            task.cancel()

    def _take_parked(self) -> dict[_Parked, None]:
        parked, self._parked = self._parked, {}
        return parked

    # --- without a task ---

    def take(self, command: c.ReadSegment, around: SpanContext | None = None) -> None:
        """Serve a read: let it wait at a tail, answer it now, or start a task for it if the answer takes time.

        ``around``: the span that the client names."""
        tracer = None if around is None else active()
        if tracer is not None:
            attributes = {**segment_attributes(command.segment, "read", "receive"), "penstock.offset": command.offset}
            name = f"read {attributes['messaging.destination.name']}"
            self._spans[command.rid] = tracer.start(name, Kind.SERVER, attributes, parent=around)
        if len(command.token) > _SHORT or len(command.segment) > _SHORT:
            # A read may wait for long, and thousands with 64 KiB each would fill the memory. A long token is not needed
            # any more (a short one may be the end of a verified one), and a long name is kept once.
            token = command.token if len(command.token) <= _SHORT else ""
            command = command._replace(token=token, segment=sys.intern(command.segment))
        if len(self._parked) + self._waiting_tasks >= self._limits.parked_reads or not self._park(command):
            self._answer(command)

    def _park(self, command: c.ReadSegment) -> bool:
        parked = _Parked(self, command)
        parked.watch = self._store.watch(command.segment, command.offset, parked.changed)
        if parked.watch is None:
            return False
        self._parked[parked] = None
        return True

    def _answer(self, command: c.ReadSegment) -> None:
        outbox = self._connection.outbox
        fair = self._share.reply_bytes
        if outbox is None or not self._may_send(fair):
            self._start(command)
            return
        limit = _limit(command)
        self._connection.limit_writes(fair)
        found = self._store.read_now(command.segment, command.offset, min(limit, fair))
        if found is None or not (found.parts or found.end_of_segment):
            self._start(command)
        else:
            # Under memory pressure only the bytes sent may stay: a view keeps its whole block alive.
            self._send(command, found if fair >= limit else _copied(found))

    def changed(self, parked: _Parked) -> None:
        """The segment of a waiting read has changed. The read is answered in its turn, after acknowledgements."""
        self._share.wake_read(parked)

    def resume(self, parked: _Parked) -> None:
        """Check again."""
        if parked not in self._parked:
            return  # closed or drained meanwhile
        del self._parked[parked]
        command = parked.command
        if parked.watch is not None and parked.watch.gone:
            # The read must not continue with another segment of the same name.
            error = SegmentNotFoundError("no such segment", segment=command.segment)
            self._refuse(error, command)
        else:
            self._answer(command)
        self._connection.read_ended(None)

    # --- with one ---

    def _start(self, command: c.ReadSegment) -> None:
        task = self._share.loop.create_task(self._read(command))
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        self._connection.read_ended(task)

    async def _read(self, command: c.ReadSegment) -> None:
        """Answer a read. At a tail it waits, if possible without a task; a close answers it with an empty reply."""
        limit = _limit(command)
        try:
            while True:
                async with self._reading:
                    found = await self._gather(command, limit)
                    full = len(self._parked) + self._waiting_tasks >= self._limits.parked_reads
                    if any(map(len, found.parts)) or found.end_of_segment or full:
                        self._send(command, found)
                        return
                if self._park(command):
                    return
                self._waiting_tasks += 1
                try:
                    found = await self._store.read(command.segment, command.offset, limit)
                finally:
                    self._waiting_tasks -= 1
                if self._may_send(self._share.reply_bytes):
                    self._send(command, found)
                    return
        except asyncio.CancelledError:
            if self._connection.draining:
                self._send_nothing(command)
            raise
        except ThrottledError:
            # No room for another waiting read: the client asks again.
            self._send_nothing(command)
        except PenstockError as error:
            self._refuse(error, command)

    async def _gather(self, command: c.ReadSegment, limit: int) -> SegmentRead:
        """The data that can be read now. Nothing is gathered for a peer that does not read its replies. No peer has
        more gathered at a time than it may hold unsent, because the data of several reads is queued before any of it is
        sent."""
        while True:
            fair = self._share.reply_bytes
            size_bytes = min(limit, fair)
            if not self._may_send(fair):
                await self._writable.wait()
            elif self._gathering_bytes and self._gathering_bytes + size_bytes > fair:
                self._gathered.clear()
                await self._gathered.wait()
            else:
                break
        self._gathering_bytes += size_bytes
        self._share.sending[self] = None
        try:
            self._connection.limit_writes(fair)
            found = await self._store.read(command.segment, command.offset, size_bytes, wait=False)
            # A view keeps its whole block alive: under memory pressure only the bytes sent may stay.
            return found if fair >= limit else _copied(found)
        finally:
            self._gathering_bytes -= size_bytes
            self._gathered.set()
            self._sent()

    # --- replies ---

    def _may_send(self, fair_bytes: int) -> bool:
        """Whether the peer reads its replies. Many reads may wake for the same large append before any of it is
        written."""
        outbox = self._connection.outbox
        if outbox is not None and outbox.data_bytes >= fair_bytes:
            outbox.flush()
        return self._writable.is_set()

    def _sent(self) -> None:
        if not self._gathering_bytes and self._writable.is_set():
            self._share.sending.pop(self, None)

    def _refuse(self, error: PenstockError, command: c.ReadSegment) -> None:
        if self._spans and (span := self._spans.pop(command.rid, None)) is not None:
            span.end(error)
        self._connection.refuse(error, command, command.rid, command.offset)

    def _send_nothing(self, command: c.ReadSegment) -> None:
        self._send(command, SegmentRead(offset=command.offset, parts=(), at_tail=True, end_of_segment=False))

    def _send(self, command: c.ReadSegment, found: SegmentRead) -> None:
        outbox = self._connection.outbox
        if self._permits is not None:
            try:
                self._permits.check_in_time(command)
            except UnauthenticatedError as error:
                self._refuse(error, command)
                return
        if outbox is not None:
            parts = segment_read_parts(
                command.segment, command.offset, found.at_tail, found.end_of_segment, found.parts, command.rid
            )
            outbox.put_parts(parts)
            if self._spans and (span := self._spans.pop(command.rid, None)) is not None:
                span.set("penstock.read.bytes", sum(map(len, found.parts)))
                span.end()
            self._share.telemetry.add("wire_reads")
            self._share.telemetry.add("wire_read_bytes", sum(map(len, found.parts)))


def _limit(command: c.ReadSegment) -> int:
    return min(READ_MAX_BYTES, max(_READ_MIN_BYTES, command.suggested_bytes))


def _copied(found: SegmentRead) -> SegmentRead:
    return replace(found, parts=(b"".join(found.parts),))
