"""Remote appends: a line for each writer on a segment, many lines on one connection, many appends in flight on a line."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from uuid import UUID

from penstock.codec import wire_commands as c
from penstock.codec.wire import (
    BLOCK_END_DATA_AT,
    FRAME_MAX_BYTES,
    HEADER,
    Command,
    append_block_end_parts,
    conditional_block_end_parts,
)
from penstock.model.errors import (
    ConditionFailedError,
    InvalidArgumentError,
    NotConnectedError,
    PenstockError,
    WriterFencedError,
)
from penstock.net.dial.wire_dial import DialConnection
from penstock.net.wire_errors import error_of
from penstock.ports.files import Buffer
from penstock.ports.segment_service import APPEND_MAX_BYTES, Append, Appended

_FRAME_OVERHEAD = 64
_WRITER_BYTES = 16
_SPLIT_AT = 8 << 20
_BLOCK_END_TAIL = struct.Struct(">iqq")


class _Item:
    """One append and the future of its outcome."""

    __slots__ = ("outcome", "request")

    def __init__(self, request: Append, outcome: asyncio.Future[Appended]) -> None:
        self.request = request
        self.outcome = outcome

    def fail(self, error: PenstockError) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(error)


class AppendConnection:
    """A connection for appends: its lines by writer, and a window of unacknowledged bytes."""

    def __init__(self, dialled: DialConnection) -> None:
        self.dialled = dialled
        self.lines: dict[bytes, Line] = {}
        self.setups = 0
        self.retiring = False
        self._window_bytes = dialled.limits.window_bytes
        self._unacked_bytes = 0
        self._starved: dict[Line, None] = {}
        dialled.on_writable = self._feed

    @property
    def usable(self) -> bool:
        return self.dialled.is_open and not self.retiring

    @property
    def has_room(self) -> bool:
        return self.dialled.writable and self._unacked_bytes < self._window_bytes

    def starve(self, line: Line) -> None:
        """Let the line send once there is room, in the order of asking."""
        self._starved[line] = None

    def sent(self, size_bytes: int) -> None:
        self._unacked_bytes += size_bytes

    def answered(self, size_bytes: int) -> None:
        self._unacked_bytes -= size_bytes
        if self._starved and self.has_room:
            self._feed()

    def _feed(self) -> None:
        # Only as many as there is room for: asking thousands of lines at each acknowledgement costs more than sending.
        while self._starved and self.has_room:
            line = next(iter(self._starved))
            del self._starved[line]
            line.pump()

    def leave(self, line: Line) -> None:
        """Forget a line. A retiring connection closes with its last one."""
        self._starved.pop(line, None)
        if self.lines.get(line.writer_bytes) is line:
            del self.lines[line.writer_bytes]
        if self.retiring and not self.lines:
            self.dialled.close()

    def retire(self) -> None:
        """Take no new lines: idle ones end now, busy ones once they are idle."""
        self.retiring = True
        for line in list(self.lines.values()):
            line.end_if_idle()
        if not self.lines:
            self.dialled.close()


class Line:
    """A writer on a segment. Appends leave in call order; what the store refuses ends the line for all behind it.

    The protocol carries no ``previous``: the line compares it with what it sent last, and the store with what it holds.
    """

    def __init__(self, segment: str, writer: UUID, on_end: Callable[[Line], None]) -> None:
        self.segment = segment
        self.writer = writer
        self.writer_bytes = writer.bytes
        self.opening: asyncio.Task[int | PenstockError] | None = None
        self.connection: AppendConnection | None = None
        self.ended = False
        self._on_end = on_end
        self._rid = 0
        self._last_number = 0
        self._ready = False
        self._condition_open = False
        self._queue: deque[_Item] = deque()
        self._in_flight: deque[_Item] = deque()

    def append(self, request: Append) -> asyncio.Future[Appended]:
        """Take the append into the line. The future fails with what ``SegmentService.append`` raises."""
        outcome: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self._queue.append(_Item(request, outcome))
        self.pump()
        return outcome

    def hold(self) -> None:
        """Send nothing until ``opened``."""
        self._ready = False

    def opened(self, connection: AppendConnection, last_number: int) -> None:
        """Begin to send: the store holds ``last_number`` of this writer. Raises NotConnectedError."""
        if self.connection is not connection or not self._rid:
            self._rid = connection.dialled.attach(self._receive)
            self.connection = connection
        self._last_number = last_number
        self._drop_in_flight()
        self._ready = True
        self.pump()

    def _drop_in_flight(self) -> None:
        """Fail what was sent before the line was set up anew and is not answered yet.

        The store answers what it holds before it answers a setup, and drops what waits there for room.
        """
        items = list(self._in_flight)
        self._in_flight.clear()
        self._condition_open = False
        if items and self.connection is not None:
            self.connection.answered(sum(len(item.request.data) for item in items))
        for item in items:
            item.fail(NotConnectedError("append was overtaken by a setup of its writer", segment=self.segment))

    def pump(self) -> None:
        """Send what may be sent."""
        while self._queue and self._ready and not self._condition_open and self.connection is not None:
            if not self.connection.has_room:
                self.connection.starve(self)
                return
            item = self._queue.popleft()
            if item.outcome.done():
                continue
            if item.request.previous != self._last_number:
                item.fail(
                    WriterFencedError(
                        "last event number differs",
                        segment=self.segment,
                        expected=item.request.previous,
                        actual=self._last_number,
                    )
                )
                continue
            self._send(self.connection, item)

    def _send(self, connection: AppendConnection, item: _Item) -> None:
        request = item.request
        size = len(request.data)
        if request.expected_offset is not None:
            # What follows waits for its outcome: only then is it known which number comes before.
            self._condition_open = True
            parts = conditional_block_end_parts(
                self.writer_bytes, request.data, request.event_number, request.expected_offset, self._rid
            )
        elif size > FRAME_MAX_BYTES - _FRAME_OVERHEAD:
            parts = self._split(request)
        else:
            parts = append_block_end_parts(
                self.writer_bytes, request.data, request.event_count, request.event_number, self._rid
            )
        self._last_number = request.event_number
        self._in_flight.append(item)
        connection.sent(size)
        connection.dialled.send_parts(parts)

    def _split(self, request: Append) -> list[Buffer]:
        """An append that fills a frame by itself travels as a block and its end."""
        data = memoryview(request.data)
        rest = len(data) - _SPLIT_AT
        return [
            HEADER.pack(3, _WRITER_BYTES + _SPLIT_AT) + self.writer_bytes,
            data[:_SPLIT_AT],
            HEADER.pack(4, BLOCK_END_DATA_AT + rest + _BLOCK_END_TAIL.size)
            + self.writer_bytes
            + HEADER.pack(_SPLIT_AT, rest),
            data[_SPLIT_AT:],
            _BLOCK_END_TAIL.pack(request.event_count, request.event_number, self._rid),
        ]

    def _receive(self, reply: Command | PenstockError) -> None:
        if isinstance(reply, PenstockError):
            self.fail(lambda: NotConnectedError(reply.message, **reply.fields))
        elif isinstance(reply, c.DataAppended):
            self._acknowledged(reply)
        elif isinstance(reply, c.ConditionalCheckFailed):
            self._condition_failed()
        else:
            self.fail(lambda: error_of(reply, self.segment))

    def _acknowledged(self, reply: c.DataAppended) -> None:
        done = 0
        outcome = Appended(end_offset=reply.segment_length)
        while self._in_flight and self._in_flight[0].request.event_number <= reply.event_number:
            item = self._in_flight.popleft()
            done += len(item.request.data)
            if not item.outcome.done():
                item.outcome.set_result(outcome)
        if not self._in_flight:
            self._condition_open = False
        self._answered(done)

    def _condition_failed(self) -> None:
        # Nothing is sent behind a condition, so it is the newest in flight.
        if not self._in_flight:
            return
        item = self._in_flight.pop()
        self._condition_open = False
        self._last_number = item.request.previous
        item.fail(
            ConditionFailedError(
                "segment has another length", segment=self.segment, expected=item.request.expected_offset, actual=None
            )
        )
        self._answered(len(item.request.data))

    def _answered(self, size_bytes: int) -> None:
        connection = self.connection
        if connection is not None:
            connection.answered(size_bytes)
            self.pump()
            if connection.retiring:
                self.end_if_idle()

    def end_if_idle(self) -> None:
        """End without failing anyone, if no append is on its way. The next one opens a new line."""
        if self._ready and not self._queue and not self._in_flight:
            self._end()

    def fail(self, make_error: Callable[[], PenstockError]) -> None:
        """End; all appends that were not acknowledged fail, each with an error of its own."""
        items = [*self._in_flight, *self._queue]
        size = sum(len(item.request.data) for item in self._in_flight)
        self._in_flight.clear()
        self._queue.clear()
        connection = self.connection
        self._end()
        if connection is not None:
            connection.answered(size)
        for item in items:
            item.fail(make_error())

    def _end(self) -> None:
        if self.ended:
            return
        self.ended = True
        self._ready = False
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.dialled.detach(self._rid)
            connection.leave(self)
        self._on_end(self)


def check_append(request: Append) -> None:
    """Raise InvalidArgumentError for an append that no store would take."""
    size = len(request.data)
    limit = APPEND_MAX_BYTES if request.expected_offset is None else FRAME_MAX_BYTES - _FRAME_OVERHEAD
    if size > limit:
        raise InvalidArgumentError("append is too large", size_bytes=size, limit_bytes=limit)
    if request.event_count < 1:
        raise InvalidArgumentError("append holds no events", segment=request.segment)
    if request.event_number <= request.previous:
        raise InvalidArgumentError(
            "event number does not grow", event_number=request.event_number, previous=request.previous
        )
