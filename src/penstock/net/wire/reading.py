"""The read side of a connection. Reads of data in memory are answered at once; others wait for data or for their turn.

A read that waits at a tail is an entry in the segment's list of watchers: no task, no future, no timer.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from penstock.codec.wire import commands as c
from penstock.codec.wire.frames import Command
from penstock.model.errors import PenstockError, SegmentNotFoundError, ThrottledError, UnauthenticatedError
from penstock.model.traces.spans import Kind, Span, SpanContext, active, segment_attributes
from penstock.net.wire.frames import Outbox
from penstock.net.wire.permits import Permits
from penstock.net.wire.share import Answer, ServerShare, Tail
from penstock.ports.data.segments import READ_MAX_BYTES, SegmentRead

_READ_MIN_BYTES = 8
_SHORT = 64  # characters; a waiting read keeps no longer texts of its own


class ReadingConnection(Protocol):
    """What the read side needs from its connection."""

    @property
    def draining(self) -> bool: ...

    @property
    def outbox(self) -> Outbox | None: ...

    @property
    def high_bytes(self) -> int:
        """See ``limit_writes``."""
        ...

    def limit_writes(self, size_bytes: int) -> None:
        """Count the peer as slow once this many bytes are unsent."""
        ...

    def refuse(self, error: PenstockError, command: Command, rid: int, offset: int) -> None: ...

    def wake(self) -> None:
        """A read is answered."""
        ...

    def ended(self, task: asyncio.Task[None]) -> None:
        """A read is answered, or its task has failed."""
        ...


class ReadSide:
    """The reads of one connection."""

    def __init__(self, connection: ReadingConnection, share: ServerShare, permits: Permits | None = None) -> None:
        """``permits``: checks that the token of a read that has waited is still valid."""
        self._connection = connection
        self._permits = permits
        self._share = share
        self._store = share.store
        self._tails = share.tails
        self._parked_max = share.limits.parked_reads
        self.count_max = share.limits.parked_reads + share.limits.requests
        # Dicts, for their order: waiting reads are woken, and answered at the end, in order of arrival.
        self.tasks: dict[asyncio.Task[None], None] = {}
        self.parked: dict[int, c.ReadSegment] = {}
        self._reading = asyncio.Semaphore(share.limits.reading)
        self.writable = True
        """Whether the peer reads its replies."""
        self._collected = asyncio.Event()
        self._collected.set()
        self._waiting_tasks = 0
        self._spans: dict[int, Span] = {}
        self._gathering_bytes = 0
        self._gathered = asyncio.Event()

    @property
    def count(self) -> int:
        """Number of reads not yet answered."""
        return len(self.tasks) + len(self.parked)

    async def collected(self) -> None:
        """Return once the peer reads its replies, or has disconnected."""
        await self._collected.wait()

    def pause(self) -> None:
        """The peer is slow."""
        self.writable = False
        self._collected.clear()
        self._share.sends(self, now=True)

    def go_on(self) -> None:
        """The peer has read what it was sent."""
        self.writable = True
        self._collected.set()
        self._sent()

    def close(self) -> None:
        """Drop waiting reads. A peer that did not read its replies no longer takes room from others."""
        self.go_on()
        self._take_parked()
        for task in list(self.tasks):
            task.cancel()

    def drain(self) -> None:
        """Answer waiting reads with an empty reply."""
        for command in self._take_parked():
            self._send_nothing(command)
        for task in list(self.tasks):
            task.cancel()

    def _take_parked(self) -> Iterable[c.ReadSegment]:
        taken, self.parked = self.parked, {}
        for number, command in taken.items():
            self._tails.leave(number, command)
        return taken.values()

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
        if not self._park(command):
            self._answer(command, {})

    def _park(self, command: c.ReadSegment) -> bool:
        """Let the read wait. False: it need not wait, or too many do."""
        parked = self.parked
        if len(parked) + self._waiting_tasks >= self._parked_max or not (number := self._tails.park(self, command)):
            return False
        parked[number] = command
        return True

    def _answer(self, command: c.ReadSegment, known: dict[int, Answer]) -> None:
        """Answer the read. ``known``: answers so far to reads of the same place, by their size limit in bytes."""
        fair = self._share.reply_bytes
        if not self._may_send(fair):
            self._start(command)
            return
        if self._connection.high_bytes != fair:
            self._connection.limit_writes(fair)
        most_bytes = command.suggested_bytes
        if not _READ_MIN_BYTES <= most_bytes <= READ_MAX_BYTES or most_bytes > fair:
            most_bytes = min(_limit(command), fair)
        answer = known.get(most_bytes) or self._look_up(command, most_bytes, known)
        if answer is None:
            self._start(command)
        else:
            self._send(command, answer)

    def _look_up(self, command: c.ReadSegment, most_bytes: int, known: dict[int, Answer]) -> Answer | None:
        """The answer to a read of data in memory. None: the read must wait, or would fail."""
        found = self._store.read_now(command.segment, command.offset, most_bytes)
        if found is None or not (found.parts or found.end_of_segment):
            return None
        # Under memory pressure only the bytes sent may stay: a view keeps its whole block alive.
        answer = known[most_bytes] = Answer(command.segment, found, copied=most_bytes < _limit(command))
        return answer

    def resume(self, number: int, tail: Tail) -> None:
        command = self.parked.pop(number, None)
        if command is None:
            return  # closed or drained meanwhile
        if tail.gone:
            # The read must not continue with another segment of the same name.
            error = SegmentNotFoundError("no such segment", segment=command.segment)
            self._refuse(error, command)
        else:
            self._answer(command, tail.answers)
        self._connection.wake()

    # --- with one ---

    def _start(self, command: c.ReadSegment) -> None:
        task = self._share.loop.create_task(self._read(command))
        self.tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.pop(task, None)
        self._connection.ended(task)

    async def _read(self, command: c.ReadSegment) -> None:
        """Answer a read. At a tail it waits, if possible without a task; a close answers it with an empty reply."""
        limit = _limit(command)
        try:
            while True:
                async with self._reading:
                    found = await self._gather(command, limit)
                    full = len(self.parked) + self._waiting_tasks >= self._parked_max
                    if any(map(len, found.parts)) or found.end_of_segment or full:
                        self._send(command, Answer(command.segment, found))
                        return
                if self._park(command):
                    return
                self._waiting_tasks += 1
                try:
                    found = await self._store.read(command.segment, command.offset, limit)
                finally:
                    self._waiting_tasks -= 1
                if self._may_send(self._share.reply_bytes):
                    self._send(command, Answer(command.segment, found))
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
                await self._collected.wait()
            elif self._gathering_bytes and self._gathering_bytes + size_bytes > fair:
                self._gathered.clear()
                await self._gathered.wait()
            else:
                break
        self._gathering_bytes += size_bytes
        self._share.sends(self, now=True)
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
        return self.writable

    def _sent(self) -> None:
        if not self._gathering_bytes and self.writable:
            self._share.sends(self, now=False)

    def _refuse(self, error: PenstockError, command: c.ReadSegment) -> None:
        if self._spans and (span := self._spans.pop(command.rid, None)) is not None:
            span.end(error)
        self._connection.refuse(error, command, command.rid, command.offset)

    def _send_nothing(self, command: c.ReadSegment) -> None:
        nothing = SegmentRead(offset=command.offset, parts=(), at_tail=True, end_of_segment=False)
        self._send(command, Answer(command.segment, nothing))

    def _send(self, command: c.ReadSegment, answer: Answer) -> None:
        outbox = self._connection.outbox
        if self._permits is not None:
            try:
                self._permits.check_in_time(command)
            except UnauthenticatedError as error:
                self._refuse(error, command)
                return
        if outbox is not None:
            outbox.put_parts(answer.to(command.rid), answer.size_bytes)
            if self._spans and (span := self._spans.pop(command.rid, None)) is not None:
                span.set("penstock.read.bytes", answer.data_bytes)
                span.end()
            self._share.reads.value += 1
            self._share.read_bytes.value += answer.data_bytes


def _limit(command: c.ReadSegment) -> int:
    return min(READ_MAX_BYTES, max(_READ_MIN_BYTES, command.suggested_bytes))


def _copied(found: SegmentRead) -> SegmentRead:
    return replace(found, parts=(b"".join(found.parts),))
