"""Assigns appends to lines, and lines to connections."""

from __future__ import annotations

import asyncio
from uuid import UUID

from penstock.codec.wire import commands as c
from penstock.codec.wire.frames import FRAME_MAX_BYTES
from penstock.core.segments.append_rules import fits_int64
from penstock.model.errors import InvalidArgumentError, NotConnectedError, PenstockError
from penstock.net.dial.wire_lines import FRAME_OVERHEAD, AppendConnection, Line
from penstock.net.dial.wire_pool import ConnectionPool
from penstock.net.wire.wire_errors import TOKEN_EXPIRED, error_of
from penstock.ports.control.layout import Endpoint
from penstock.ports.data.segments import APPEND_MAX_BYTES, NO_EVENT, Append, AppendDone, Appended

_Key = tuple[str, int]
"""A segment, and a writer as a number: UUIDs compute their hash in Python, and the garbage collector looks at them."""

_DRAIN_S = 0.01
"""How often a line that takes a new token checks whether its appends in flight are answered."""
_COUNT_MAX = (1 << 31) - 1
"""The most events in one append: the wire protocol has 32 bits for the count."""


class RemoteAppends:
    """All lines of a client. A line opens with its first append or setup, and again after it has ended."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._lines: dict[_Key, Line] = {}
        self._connections: dict[Endpoint, list[AppendConnection]] = {}
        self._locks: dict[Endpoint, asyncio.Lock] = {}
        self._closed = False
        self._on_end = self._ended  # one method for all lines

    def append(self, request: Append) -> asyncio.Future[Appended]:
        """Send an append, in call order; returns the future of its outcome. Raises InvalidArgumentError."""
        _check(request)
        return append_to(self._line(request.segment, request.writer), request)

    def submit(self, request: Append, done: AppendDone) -> None:
        """As ``append``; ``done`` is called with the outcome, later, from the event loop."""
        _check(request)
        line = self._lines.get((request.segment, request.writer.int))
        (line or self._line(request.segment, request.writer)).submit(request, done)

    def withdraw(self, name: str, writer: UUID) -> None:
        """Drop the appends that the writer submitted and that were not sent. See ``Line.withdraw``."""
        line = self._lines.get((name, writer.int))
        if line is not None:
            line.withdraw()

    async def setup(self, name: str, writer: UUID) -> int:
        """The last event number that the store has from the writer. When it returns, the outcome of earlier appends is
        decided."""
        line = self._line(name, writer)
        reused = line.connection is not None
        if reused and (line.opening is None or line.opening.done()):
            line.hold()
            self._open(line)
        opening = line.opening
        if opening is None:
            raise NotConnectedError("connection to a segment store is lost", segment=name)
        # Other users of the line share the setup: cancelling the caller ends its wait, not the setup.
        outcome = await asyncio.shield(opening)
        if isinstance(outcome, NotConnectedError) and reused:
            # The connection was lost unnoticed. A new line opens a new one, or reports why it cannot.
            return await self.setup(name, writer)
        if isinstance(outcome, PenstockError):
            raise outcome
        return outcome

    def close(self) -> None:
        """Fail all appends that are not acknowledged."""
        self._closed = True
        for line in list(self._lines.values()):
            line.fail(lambda: NotConnectedError("client is closed"))

    def _line(self, name: str, writer: UUID) -> Line:
        if self._closed:
            raise NotConnectedError("client is closed", segment=name)
        key = (name, writer.int)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = Line(name, writer, self._on_end)
            self._open(line)
        return line

    def _open(self, line: Line) -> None:
        line.opening = self._pool.start(self._opened(line))
        line.opening.add_done_callback(line.opening_over)

    def _ended(self, line: Line) -> None:
        if line.renewal is not None:
            line.renewal.cancel()
        key = (line.segment, line.writer.int)
        if self._lines.get(key) is line:
            del self._lines[key]

    async def _opened(self, line: Line) -> int | PenstockError:
        """Set the line up. Returns its last number, or the error with which all its appends have then failed."""
        backoff = self._pool.backoff()
        while True:
            backoff.begin()
            try:
                return await self._set_up(line)
            except NotConnectedError as error:
                self._pool.forget(line.segment)
                if line.ended or line.connection is not None:
                    failure: PenstockError = error
                    break
                try:
                    await backoff.pause(error)
                except NotConnectedError as patience_over:
                    failure = patience_over
                    break
            except PenstockError as error:
                failure = error
                break
        kind, message, fields = type(failure), failure.message, failure.fields
        line.fail(lambda: kind(message, **fields))
        return failure

    async def _set_up(self, line: Line) -> int:
        connection = line.connection
        if connection is None:
            connection = await self._connection(line)
        else:
            await self._pool.tokens.ensure(line.segment)
        try:
            # The store forgets the writer's handle at this request: frames that use the handle must be sent before.
            connection.send_gathered()
            rid, answer = connection.dialled.begin(line.setup)
            try:
                reply = await answer
            finally:
                connection.dialled.detach(rid)
            if isinstance(reply, c.WrongHost):
                raise NotConnectedError("segment is served elsewhere", segment=line.segment)
            if isinstance(reply, c.AuthTokenCheckFailed):
                self._pool.tokens.refused(line.segment)
                if reply.code == TOKEN_EXPIRED:
                    raise NotConnectedError("the token for the segment has expired", segment=line.segment)
            if not isinstance(reply, c.AppendSetup):
                raise error_of(reply, line.segment)
            if line.ended:
                raise NotConnectedError("connection to a segment store is lost", segment=line.segment)
            line.opened(connection, reply.last_number, reply.handle, rid)
        except BaseException:
            if line.connection is None:
                connection.leave(line)
            raise
        self._renew_in_time(line)
        return reply.last_number

    def _renew_in_time(self, line: Line) -> None:
        due_s = self._pool.tokens.renew_at(line.segment)
        if line.renewal is not None:
            line.renewal.cancel()
        if due_s is not None and not line.ended:
            line.renewal = asyncio.get_running_loop().call_at(due_s, self._renew, line)

    def _renew(self, line: Line) -> None:
        """Set the line up with a new token, as soon as nothing is in flight; appends wait until then."""
        if line.ended or line.opening is not None or line.end_if_idle():
            return  # An idle line opens again with its next append.
        if line.hold():
            self._open(line)
        else:
            line.renewal = asyncio.get_running_loop().call_later(_DRAIN_S, self._renew, line)

    async def _connection(self, line: Line) -> AppendConnection:
        """A connection on which the writer has no other line; this line is registered on it."""
        endpoint = await self._pool.endpoint(line.segment)
        async with self._locks.setdefault(endpoint, asyncio.Lock()):
            known = [one for one in self._connections.get(endpoint, ()) if one.dialled.is_open]
            self._connections[endpoint] = known
            connection = next((one for one in known if one.usable and line.writer_bytes not in one.lines), None)
            if connection is None:
                connection = AppendConnection(await self._pool.open(endpoint))
                known.append(connection)
            connection.lines[line.writer_bytes] = line
            connection.setups += 1
            if connection.setups >= self._pool.limits.setups:
                connection.retiring = True  # and so are older ones, whose writers may have finished since
                unused_since = asyncio.get_running_loop().time() - self._pool.limits.line_idle_s
                for one in known:
                    if one.retiring:
                        one.retire(unused_since)
            return connection


def append_to(line: Line, request: Append) -> asyncio.Future[Appended]:
    """Queue the append. The future fails with what ``SegmentService.append`` raises."""
    outcome: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()

    def done(result: Appended | PenstockError) -> None:
        if outcome.done():
            return
        if isinstance(result, PenstockError):
            outcome.set_exception(result)
        else:
            outcome.set_result(result)

    def ended(_: object) -> None:
        if outcome.cancelled():
            line.give_up(request)

    line.submit(request, done)
    outcome.add_done_callback(ended)
    return outcome


def _check(request: Append) -> None:
    """Raise InvalidArgumentError for an append that every store would refuse."""
    if (
        NO_EVENT <= request.previous < request.event_number < -NO_EVENT
        and 0 < request.event_count <= _COUNT_MAX
        and len(request.data) <= APPEND_MAX_BYTES
        and request.expected_offset is None
    ):
        return
    size = len(request.data)
    limit = APPEND_MAX_BYTES if request.expected_offset is None else FRAME_MAX_BYTES - FRAME_OVERHEAD
    if size > limit:
        raise InvalidArgumentError("append is too large", size_bytes=size, limit_bytes=limit)
    if request.event_count < 1:
        raise InvalidArgumentError("append holds no events", segment=request.segment)
    offset = request.expected_offset
    if request.event_count > _COUNT_MAX or not fits_int64(request.event_number) or not fits_int64(offset or 0):
        # If this were found only during sending, the line would wait for an answer that never comes.
        raise InvalidArgumentError(
            "a number of the append does not fit into the protocol's field",
            event_count=request.event_count,
            event_number=request.event_number,
            expected_offset=offset,
        )
    if request.event_number <= request.previous:
        raise InvalidArgumentError(
            "event number does not increase", event_number=request.event_number, previous=request.previous
        )
