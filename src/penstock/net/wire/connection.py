"""One connection of a wire server: frames in, requests dispatched, replies out, all of it bounded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from penstock.codec.wire import commands as c
from penstock.codec.wire.frames import APPEND_MANY, REQUEST_CODES, VERSION_HIGH, VERSION_LOW, Command, decode, encode
from penstock.model.errors import (
    CorruptDataError,
    PenstockError,
    ProtocolError,
    SegmentNotFoundError,
    StorageFullError,
    ThrottledError,
)
from penstock.model.traces.spans import SpanContext
from penstock.net.tls.door import peer_certificate
from penstock.net.wire.append_meter import AppendMeter, serving
from penstock.net.wire.appends import AppendSide
from penstock.net.wire.frames import FrameReceiver, Outbox, tune
from penstock.net.wire.permits import admitted, permits_of
from penstock.net.wire.reading import ReadSide
from penstock.net.wire.requests import (
    LARGE,
    REPLY_BYTES,
    RequestHandlers,
    check_changeable,
    is_text,
    rid_of,
    subject_of,
    writer_id,
)
from penstock.net.wire.share import ServerShare
from penstock.net.wire.wire_errors import ILLEGAL_ARGUMENT, is_own, must_wait, reply_of

log = logging.getLogger(__name__)

_REPLY_LEAST_BYTES = 1 << 20
_BLOCK, _BLOCK_END = 3, 4  # types of Pravega's commands AppendBlock and AppendBlockEnd
_APPENDS = (_BLOCK_END, APPEND_MANY)


class ServerConnection(asyncio.BufferedProtocol):
    """The server's end of one connection."""

    def __init__(self, share: ServerShare, label: str) -> None:
        self._share = share
        self._limits = share.limits
        self._loop = share.loop
        self._label = label
        self._receiver = FrameReceiver(share.pool, REQUEST_CODES)
        self._appends = AppendSide(self, share.store, AppendMeter(share.telemetry))
        self._handlers = RequestHandlers(
            share.store,
            share.guard,
            share.calls,
            pass_on=share.pass_on,
            reply_bytes=max(_REPLY_LEAST_BYTES, min(REPLY_BYTES, share.limits.replies_bytes)),
        )
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._permits = permits_of(share, self._appends.expire, lambda: self._transport)
        self._reads = ReadSide(self, share, self._permits)
        self._held_bytes = 0
        self._requests = 0
        self._one_large = asyncio.Lock()
        self._writers = 0
        self.high_bytes = share.limits.write_buffer_bytes
        self._paused = False
        self._pump_due = False
        self._closing = False
        self.draining = False
        self._abort_timer: asyncio.TimerHandle | None = None
        self._place = (0, 0)
        self._place_since = share.loop.time()
        self._transport: asyncio.Transport | None = None
        self.peer_certificate: tuple[str, ...] = ()
        self.outbox: Outbox | None = None
        self.closed: asyncio.Future[None] = share.loop.create_future()

    # --- the transport's calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        transport = cast("asyncio.Transport", transport)
        self._transport = transport
        self.peer_certificate = peer_certificate(transport)
        check = self._share.answer_check
        self.outbox = Outbox(self._share.outboxes, transport, None if check is None else check())
        tune(transport)
        transport.set_write_buffer_limits(high=self.high_bytes)
        self._share.connections[self] = None
        self._share.telemetry.gauge("wire_connections", len(self._share.connections))
        if len(self._share.connections) > self._limits.connections and not self._share.drop_one():
            self._share.warn("wire connection refused: too many", self._fields())
            self._close()
            return
        self._share.silent[self] = self._loop.time()

    def get_buffer(self, sizehint: int) -> memoryview:
        turns = self._share.turns
        return self._receiver.buffer(turns.room(self) if turns.held_bytes else turns.budget_bytes)

    def buffer_updated(self, nbytes: int) -> None:
        self._share.received_bytes.value += nbytes
        self._receiver.received(nbytes)
        self._pump()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._reads.pause()

    def resume_writing(self) -> None:
        self._share.large.collected(self)
        self._reads.go_on()
        self.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        self._share.forget(self)
        self._receiver.close()
        self._appends.close()
        self._count_writers()
        self._reads.close()
        if self._permits is not None:
            self._permits.close()
        if self._tasks or self._handlers.created:
            self._share.clean_up(self._clean_up())
        if not self.closed.done():
            self.closed.set_result(None)

    async def _clean_up(self) -> None:
        """Let requests in progress finish, then delete the transient segments that were never merged."""
        try:
            if self._tasks:
                await asyncio.wait(list(self._tasks))
        except asyncio.CancelledError:
            for task in list(self._tasks):
                task.cancel()
            raise
        for name in list(self._handlers.created):
            try:
                await self._share.store.delete(name)
            except SegmentNotFoundError:
                # Merged or deleted by another connection.
                continue
            except PenstockError as error:
                log.warning("transient segment was not deleted", extra={**self._fields(), "reason": str(error)})

    # --- bounds ---

    def _is_blocked(self) -> bool:
        reads, held_bytes, waiting = self._reads, self._held_bytes, self._share.turns.waiting
        return (
            self._closing
            or self.draining
            or not reads.writable
            or len(reads.parked) + len(reads.tasks) >= reads.count_max
            or (held_bytes > 0 and (held_bytes >= self._limits.held_bytes or self._share.full))
            or (self._requests > 0 and self._requests >= self._limits.requests)
            or (bool(waiting) and self in waiting)
        )

    @property
    def _starved(self) -> bool:
        # A connection that holds nothing may always take one more frame: reads continue while appends fill the server.
        return self._held_bytes > 0 and self._share.full

    def release(self, size_bytes: int) -> None:
        self._held_bytes -= size_bytes
        self._share.release(size_bytes)
        self._appends.meter.sent()
        self.wake()

    def wake(self) -> None:
        """Resume parsing in the next pass, if something had to wait and may continue."""
        if self.draining:
            self._check_drained()
        elif not self._paused or self._pump_due:
            return
        elif self._starved or self._share.must_pause(self):
            self._share.starve(self)
        elif not self._is_blocked():
            self._pump_due = True
            self._loop.call_soon(self._pump_again)

    def _pump_again(self) -> None:
        self._pump_due = False
        self._pump()

    def _pump(self) -> None:
        """Take frames as long as there is room for the work they start, then stop reading the socket."""
        stopped = False
        receiver, appends = self._receiver, self._appends
        try:
            while receiver.start < receiver.end and not (stopped := self._is_blocked()) and receiver.advance():
                if receiver.code not in _APPENDS:
                    self._on_frame()
                elif not self._run_of_appends():
                    break
                if appends.taken_bytes:
                    self._count_taken()
        except ProtocolError as error:
            self.fail(error)
        if appends.taken_bytes:
            self._count_taken()
        transport = self._transport
        if self._closing or transport is None:
            return
        if receiver.start < receiver.end or appends.open is not None or self._share.turns.connections:
            self._share.receiving(self, receiver.partial_bytes + appends.open_bytes, receiver.missing_bytes)
        blocked = self._is_blocked()
        if not (stopped or blocked or self._paused):
            return
        if stopped and not blocked and not self._pump_due:
            # The call above let this connection continue, so complete frames may be waiting.
            self._pump_due = True
            self._loop.call_soon(self._pump_again)
        if blocked and (self._starved or self._share.must_pause(self)):
            self._share.starve(self)
        if blocked and not self._paused:
            self._paused = True
            transport.pause_reading()
        elif not blocked and self._paused:
            self._paused = False
            transport.resume_reading()

    def late(self, reason: str) -> None:
        if not self._paused:
            self.cut(reason)

    def cut(self, reason: str) -> None:
        self._share.warn("wire connection closed", {**self._fields(), "reason": reason}, kind=reason)
        self.abort()

    def look(self, now: float) -> None:
        receiver = self._receiver
        before, self._place = self._place, receiver.place
        awaits = receiver.partial_bytes > 0 or self._appends.open is not None
        if not awaits:
            receiver.rest(before)
        if not awaits or before != receiver.place or self._paused:
            self._place_since = now
            return
        if now - self._place_since >= self._share.frame_s:
            self.late("a frame did not arrive in time")

    def _run_of_appends(self) -> bool:
        """Take this append and those that directly follow it: between them only the byte bound can be reached. False:
        there are no more."""
        receiver, appends = self._receiver, self._appends
        room = min(self._limits.held_bytes - self._held_bytes, self._share.room)
        while True:
            if receiver.code == APPEND_MANY:
                appends.many(receiver.payload)
            else:
                appends.block_end(receiver, room)
            if appends.taken_bytes >= room or self._closing:
                return True
            if not receiver.advance():
                return False
            if receiver.code not in _APPENDS:
                self._on_frame()
                return True

    def _count_taken(self) -> None:
        size_bytes, self._appends.taken_bytes = self._appends.taken_bytes, 0
        self._hold(size_bytes)

    def _hold(self, size_bytes: int) -> None:
        self._held_bytes += size_bytes
        self._share.hold(size_bytes)

    @property
    def must_copy(self) -> bool:
        return self._share.short

    def soon(self, call: Callable[[], None]) -> None:
        self._loop.call_soon(call)

    def after_pause(self, call: Callable[[], None], times: int) -> None:
        self._loop.call_later(self._limits.throttle_pause_s * times, call)

    # --- frames ---

    def _on_frame(self) -> None:
        receiver = self._receiver
        code = receiver.code
        if self._share.silent:
            self._share.silent.pop(self, None)
        if self._appends.open is not None:
            raise ProtocolError("a block was not ended", code=code)
        if code == _BLOCK:
            self._appends.block(receiver)
            return
        asked = decode(code, receiver.payload)
        command = asked if self._permits is None else admitted(self._permits, asked, self._refuse_access)
        if command is None:
            return
        if isinstance(command, c.ReadSegment) and command.segment.isascii():
            meter = self._appends.meter
            self._reads.take(command, None if meter.around is None else meter.take_named())
            return
        match command:
            case c.ConditionalAppend() | c.ConditionalBlockEnd():
                self._appends.conditional(command)
            case c.KeepAlive(trace=trace) if trace is None or not self._appends.meter.named(bytes(trace[:32])):
                self.reply(c.KeepAlive())
            case c.KeepAlive():
                pass
            case c.Hello(high=high, low=low):
                self._hello(high, low)
            case _:
                self._request(command, len(receiver.payload))

    def _hello(self, high: int, low: int) -> None:
        self.reply(c.Hello(VERSION_HIGH, VERSION_LOW))
        if low > VERSION_HIGH or high < VERSION_LOW:
            raise ProtocolError("versions do not overlap", high=high, low=low)

    def _request(self, command: Command, size: int) -> None:
        if not is_text(command):
            self.reply(c.ErrorMessage(rid_of(command), subject_of(command), "name is not text", ILLEGAL_ARGUMENT))
            return
        if isinstance(command, c.ReadSegment):
            self._reads.take(command, self._appends.meter.take_named())
            return
        if isinstance(command, c.SetupAppend):
            if self._appends.writers >= self._limits.writers:
                raise ProtocolError("too many writers on one connection", limit=self._limits.writers)
            if self._share.writers >= self._limits.writers_total:
                raise ProtocolError("too many writers on all connections", limit=self._limits.writers_total)
            self._appends.begin_setup(command.writer)
            self._count_writers()
        self._requests += 1
        self._hold(size)
        task = self._loop.create_task(self._serve(command, size, self._appends.meter.take_named()))
        self._tasks[task] = None
        task.add_done_callback(self._task_done)

    def _count_writers(self) -> None:
        self._share.writers += self._appends.writers - self._writers
        self._writers = self._appends.writers

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        self.ended(task)

    def ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("wire request failed; its connection is closed", extra=self._fields(), exc_info=error)
            self._close()
        self.wake()

    async def _serve(self, command: Command, size: int, around: SpanContext | None) -> None:
        rid = rid_of(command)
        telemetry = self._share.telemetry
        began_s = telemetry.steady_s()
        try:
            with serving(type(command).__name__, subject_of(command), around):
                if isinstance(command, LARGE):
                    await self._serve_large(command)
                else:
                    passed = await self._handlers.passed(command)
                    self.send(encode(passed or await self._answer(command)))
        except PenstockError as error:
            self.refuse(error, command, rid, c.NO_OFFSET)
        finally:
            telemetry.observe("wire_request_seconds", telemetry.steady_s() - began_s)
            self._requests -= 1
            self.release(size)

    async def _serve_large(self, command: Command) -> None:
        """Answer a request whose reply may take as much memory as a frame, twice: whole and in parts. One at a time per
        connection, and only while the peer reads its replies."""
        async with self._one_large:
            await self._reads.collected()
            # Outside the room: if two stores that are full pass requests to each other, neither would ever answer.
            passed = await self._handlers.passed(command)
            async with self._share.large.room():
                if self._closing or self.outbox is None:
                    return
                frame = encode(passed or await self._answer(command))
                self.limit_writes(self._share.reply_bytes)
                self.outbox.put(frame)
                self.outbox.flush()
                if not self._reads.writable:
                    self._share.large.sent(self, len(frame))

    async def _answer(self, command: Command) -> Command:
        give_up = self._loop.time() + self._limits.throttle_s
        while True:
            try:
                if isinstance(command, c.SetupAppend):
                    return await self._setup(command)
                return await self._handlers.answer(command)
            except (StorageFullError, ThrottledError) as error:
                # The outcome is still open. The protocol cannot express that, and Pravega's clients do not know a full
                # disk.
                if not must_wait(error, command) or self._closing or self._loop.time() >= give_up:
                    raise
            await asyncio.sleep(self._limits.throttle_pause_s)

    async def _setup(self, command: c.SetupAppend) -> Command:
        try:
            check_changeable(command.segment)
            last = await self._share.store.setup_append(command.segment, writer_id(command.writer))
        except PenstockError as error:
            if not must_wait(error, command):
                self._appends.abandon_setup(command.writer)
                self._count_writers()
            raise
        handle = None
        if not self._closing:
            handle = self._appends.finish_setup(command.writer, command.segment, last, is_own=is_own(command))
        return c.AppendSetup(command.rid, command.segment, command.writer, last, handle)

    def _refuse_access(self, error: PenstockError, command: Command) -> None:
        self._share.warn("wire request refused", {**self._fields(), "reason": str(error)}, kind=type(command).__name__)
        self.refuse(error, command, rid_of(command), c.NO_OFFSET)

    def refuse(self, error: PenstockError, command: Command, rid: int, offset: int) -> None:
        subject, source = subject_of(command), getattr(command, "source", None)
        if source is not None and error.fields.get("segment") == source:
            subject = source
        reply = None if must_wait(error, command) else reply_of(error, rid, subject, offset=offset)
        if reply is None:
            self.fail(error)
            return
        if isinstance(error, CorruptDataError):
            log.error("stored data is damaged", extra={**self._fields(), "reason": str(error)})
        if isinstance(reply, c.OperationUnsupported):
            request = type(command).__name__
            self._share.warn("wire request is not offered", {**self._fields(), "request": request}, kind=request)
        self.reply(reply)

    # --- replies and the end ---

    def send(self, frame: bytes) -> None:
        if self.outbox is not None:
            self.outbox.put(frame)

    def reply(self, command: Command) -> None:
        self.send(encode(command))

    def fail(self, error: PenstockError) -> None:
        """Send what is queued, log the reason and close. Other connections are not affected."""
        if self._closing:
            return
        self._share.warn("wire connection closed", {**self._fields(), "reason": str(error)}, kind=type(error).__name__)
        self._close(after_s=self._share.penalty_s(self) if isinstance(error, ProtocolError) else 0.0)

    def drain(self) -> None:
        """Stop reading, answer waiting reads, and close once all requests in flight are answered."""
        if self._closing:
            return
        self.draining = True
        if self._transport is not None:
            self._transport.pause_reading()
        self._reads.drain()
        self._check_drained()

    def limit_writes(self, size_bytes: int) -> None:
        if self._transport is not None and size_bytes != self.high_bytes:
            self.high_bytes = size_bytes
            self._transport.set_write_buffer_limits(high=size_bytes)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _check_drained(self) -> None:
        if not self._closing and not self._held_bytes and not self._tasks and not self._reads.count:
            self._close()

    def _close(self, *, after_s: float = 0.0) -> None:
        transport = self._transport
        if self._closing or transport is None or self.outbox is None:
            return
        self._closing = True
        self.outbox.flush()
        if after_s:
            transport.pause_reading()
        else:
            transport.close()
        # A peer that does not read would keep the last replies, and so the connection, forever.
        self._abort_timer = self._loop.call_later(after_s or self._limits.drain_s, transport.abort)

    def _fields(self) -> dict[str, object]:
        transport = self._transport
        return {"connection": self._label, "peer": transport and transport.get_extra_info("peername")}
