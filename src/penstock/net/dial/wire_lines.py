"""Remote appends: a line for each writer on a segment, many lines on one connection, many appends in flight on a line.

If the store supports it, everything that the lines of a connection send in one pass of the loop leaves as one frame.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Sequence
from itertools import compress, islice
from typing import Any
from uuid import UUID

from penstock.codec.wire import commands as c
from penstock.codec.wire.frames import (
    FRAME_MAX_BYTES,
    HEADER,
    HEADS_MAX,
    REPLY_CODES,
    Command,
    append_block_end_parts,
    append_many_parts,
    append_split_parts,
    check_header,
    conditional_block_end_parts,
    decode,
    many_head,
)
from penstock.model.errors import (
    ConditionFailedError,
    NotConnectedError,
    PenstockError,
    ProtocolError,
    WriterFencedError,
)
from penstock.net.dial.wire_dial import DialConnection, trace_frame
from penstock.net.wire.wire_errors import TOKEN_EXPIRED, error_of
from penstock.ports.data.segments import Append, AppendDone, Appended
from penstock.ports.files import Buffer

FRAME_OVERHEAD = 64  # bytes; more than the fields of any append command without its data
_GATHERED_APPEND_MAX = 64 << 10
"""A larger append is sent in a frame of its own: sharing one would gain nothing and delay the answers of the others."""
_GATHERED_BYTES = 512 << 10
_FIELDS = 3  # entries of a line's queue for each append


def _report(done: AppendDone, error: PenstockError) -> None:
    """Report the failure, but never inside the call that submitted the append: its caller may not be ready for the answer
    yet."""
    asyncio.get_running_loop().call_soon(done, error)


def _nobody(outcome: Appended | PenstockError) -> None:
    """The callback after the caller was cancelled or withdrew the append: if it was not sent yet, it never will be."""


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
        self._gathered: list[Append] = []
        self._gathered_lines: list[Line] = []
        """The line of each gathered append."""
        self._gathered_bytes = 0
        dialled.on_writable = self._feed

    @property
    def usable(self) -> bool:
        return self.dialled.is_open and not self.retiring

    @property
    def has_room(self) -> bool:
        return self.dialled.writable and self._unacked_bytes < self._window_bytes

    def starve(self, line: Line) -> None:
        """Let the line send once there is room. Lines are served in the order of these calls."""
        self._starved[line] = None

    def sent(self, size_bytes: int) -> None:
        self._unacked_bytes += size_bytes

    def gather(self, line: Line, request: Append, size_bytes: int) -> None:
        """Send the append at the end of this pass of the loop at the latest, in one frame with those of other lines."""
        if not self._gathered:
            asyncio.get_running_loop().call_soon(self.send_gathered)
        self._gathered.append(request)
        self._gathered_lines.append(line)
        self._unacked_bytes += size_bytes
        self._gathered_bytes += size_bytes
        if self._gathered_bytes >= _GATHERED_BYTES or len(self._gathered) >= HEADS_MAX:
            self.send_gathered()

    def send_gathered(self) -> None:
        """Send the gathered appends now."""
        lines, gathered = self._gathered_lines, self._gathered
        if not gathered:
            return
        self._gathered_lines, self._gathered, self._gathered_bytes = [], [], 0
        if not self.dialled.is_open:
            return  # The connection reports its loss to every line, which then fails its appends in flight.
        now = asyncio.get_running_loop().time()
        for line in lines:
            line.used_at = now
        if any(line.connection is not self for line in lines):  # some lines have ended, with all their appends
            held = [line.connection is self for line in lines]
            lines, gathered = list(compress(lines, held)), list(compress(gathered, held))
        if len(gathered) == 1:
            self.dialled.send_parts(lines[0].frame_alone(gathered[0]))
        elif gathered:
            self._send_many(lines, gathered)
        self.dialled.flush()

    def _send_many(self, lines: list[Line], gathered: list[Append]) -> None:
        def answered(reply: Command | PenstockError) -> None:
            if isinstance(reply, PenstockError):
                return  # As above.
            self.dialled.detach(rid)
            self._many_answered(lines, gathered, reply)

        rid = self.dialled.attach(answered)
        heads = [
            many_head(line.handle, request.event_count, request.event_number, len(request.data))
            for line, request in zip(lines, gathered, strict=True)
        ]
        self.dialled.send_parts(append_many_parts(rid, heads, [request.data for request in gathered]))

    def _many_answered(self, lines: list[Line], gathered: list[Append], reply: Command) -> None:
        if isinstance(reply, c.InvalidEventNumber):
            fenced = self.lines.get(reply.writer)
            if fenced is not None:
                segment = fenced.segment
                fenced.fail(lambda: error_of(reply, segment), first=reply.event_number)
            return
        if not isinstance(reply, c.ManyAppended) or len(reply.lengths) != len(gathered):
            # The outcome of these appends is unknown: their senders ask the store.
            self.dialled.abort()
            return
        failures = dict(reply.failures) if reply.failures else {}
        done_bytes = 0
        for line, request, length in zip(lines, gathered, reply.lengths, strict=True):
            if length >= 0:
                done_bytes += line.acknowledged(request, length)
        for place in [place for place, length in enumerate(reply.lengths) if length < 0]:
            lines[place].refused(gathered[place], failures.get(place))
        self.answered(done_bytes)
        for line in lines:
            if line.has_queued:
                line.pump()

    def answered(self, size_bytes: int) -> None:
        self._unacked_bytes -= size_bytes
        if self._starved and self.has_room:
            self._feed()

    def _feed(self) -> None:
        # Only as many lines as there is room for: trying thousands at each acknowledgement costs more than sending.
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

    def retire(self, unused_since: float) -> None:
        """Take no new lines. End lines that wait for nothing and have sent nothing since ``unused_since`` (the loop's
        time).

        Writers do not report that they have finished. A writer that is still active, such as one of ten thousand
        segments that are all written to, keeps its line: setting it up again would cost more than its appends.
        """
        self.retiring = True
        for line in list(self.lines.values()):
            if line.used_at <= unused_since:
                line.end_if_idle()
        if not self.lines:
            self.dialled.close()


class Line:
    """A writer on a segment. Appends are sent in call order. When the store refuses one, the line ends and all appends
    behind it fail.

    The protocol has no field for ``previous``: the line compares it with the last number it sent, the store with what
    it holds. The line itself is the sink of its replies: one object less for the garbage collector, of thousands.
    """

    def __init__(self, segment: str, writer: UUID, on_end: Callable[[Line], None]) -> None:
        self.segment = segment
        self.writer = writer
        self.writer_bytes = writer.bytes
        self.opening: asyncio.Task[int | PenstockError] | None = None
        self.renewal: asyncio.TimerHandle | None = None
        self.connection: AppendConnection | None = None
        self.ended = False
        self.used_at = asyncio.get_running_loop().time()
        self._on_end = on_end
        self.handle: int | None = None
        """The store's handle for the line in shared frames; None: the store does not support such frames."""
        self._rid = 0
        self._last_number = 0
        self._ready = False
        self._condition_open = False
        self._queue: deque[Any] = deque()
        """In call order, three entries for each append: the append, the callback for its outcome, and whether it was sent
        in a frame with others, so that the reply to that frame is its reply. One object for each of
        thousands of appends would cost the garbage collector more. The first ``_sent`` appends are in flight."""
        self._sent = 0

    def submit(self, request: Append, done: AppendDone) -> None:
        """Queue the append; ``done`` is called with its outcome, later, from the event loop."""
        self._queue += (request, done, False)
        self.pump()

    def withdraw(self) -> None:
        """Drop the appends that were not sent, without calling ``done``. Those that were sent may or may not be
        stored."""
        for at in range(_FIELDS * self._sent, len(self._queue), _FIELDS):
            self._queue[at + 1] = _nobody
        if self.connection is None:
            self.fail(lambda: NotConnectedError("appends were withdrawn", segment=self.segment))

    @property
    def has_queued(self) -> bool:
        """Whether appends wait to be sent."""
        return len(self._queue) > _FIELDS * self._sent

    def give_up(self, request: Append) -> None:
        """Drop the append's callback: its outcome is ignored. If it was not sent yet, it never will be."""
        at = self._place(request)
        if at is not None:
            self._queue[at + 1] = _nobody

    def _place(self, request: Append) -> int | None:
        """Index of this append's first entry in the queue. None: its outcome is already known."""
        return next((at for at in range(0, len(self._queue), _FIELDS) if self._queue[at] is request), None)

    def _remove(self, at: int) -> tuple[Append, AppendDone, bool]:
        """Remove the append whose first entry is at this index. Returns its entries."""
        queue = self._queue
        queue.rotate(-at)
        found = queue.popleft(), queue.popleft(), queue.popleft()
        queue.rotate(at)
        return found

    def setup(self, rid: int) -> Command:
        """The request that sets the line up."""
        return c.SetupAppend(rid, self.writer_bytes, self.segment, "")

    def opening_over(self, task: asyncio.Task[int | PenstockError]) -> None:
        """The callback of ``opening``: without an outcome, the line ends."""
        if self.opening is task:
            self.opening = None
        if task.cancelled() or task.exception() is not None:
            self.fail(lambda: NotConnectedError("line to a segment store was not opened", segment=self.segment))

    def hold(self) -> bool:
        """Send nothing until ``opened``. Returns whether no append waits for an answer."""
        self._ready = False
        return not self._sent

    def opened(
        self, connection: AppendConnection, last_number: int, handle: int | None = None, rid: int | None = None
    ) -> None:
        """Start sending: ``last_number`` is the last event number that the store has from this writer. ``rid``: the id of
        the setup, with which the store also reports that the writer's token has expired. Raises NotConnectedError."""
        self.handle = handle
        if self.connection is connection:
            connection.dialled.detach(self._rid)
        self._rid = connection.dialled.attach(self, rid)
        self.connection = connection
        self._last_number = last_number
        self._drop_in_flight()
        self._ready = True
        self.pump()

    def _drop_in_flight(self) -> None:
        """Fail appends that were sent before the line was set up again and are not answered yet.

        Before it answers a setup, the store answers the appends that it has, except those in a frame with others that
        are not decided yet. It drops appends that wait for room. The setup returns how much is stored.
        """
        dropped = [self._remove(0) for _ in range(self._sent)]
        self._sent = 0
        self._condition_open = False
        if dropped and self.connection is not None:
            self.connection.answered(sum(len(request.data) for request, _, _ in dropped))
        for _, done, _ in dropped:
            _report(done, NotConnectedError("append was overtaken by a setup of its writer", segment=self.segment))

    def pump(self) -> None:
        """Send the appends that may be sent now."""
        queue, connection = self._queue, self.connection
        if connection is None:
            return
        while self._ready and not self._condition_open and len(queue) > _FIELDS * self._sent:
            if not connection.has_room:
                connection.starve(self)
                return
            at = _FIELDS * self._sent
            request: Append = queue[at]
            if queue[at + 1] is _nobody:
                self._remove(at)
                continue
            if request.previous != self._last_number:
                self._fence(at)
                continue
            self._last_number = request.event_number
            self._sent += 1
            size = len(request.data)
            # An append with a condition or a span of its own does not share a frame.
            if (
                self.handle is not None
                and size <= _GATHERED_APPEND_MAX
                and request.expected_offset is None
                and request.trace is None
            ):
                queue[at + 2] = True
                connection.gather(self, request, size)
            else:
                self._send_alone(connection, request, size)

    def _fence(self, at: int) -> None:
        request, done, _ = self._remove(at)
        numbers = {"expected": request.previous, "actual": self._last_number}
        _report(done, WriterFencedError("last event number differs", segment=self.segment, **numbers))

    def _send_alone(self, connection: AppendConnection, request: Append, size: int) -> None:
        self.used_at = asyncio.get_running_loop().time()
        connection.sent(size)
        connection.send_gathered()
        if request.trace is not None and self.handle is not None:
            connection.dialled.send(trace_frame(request.trace))
        if request.expected_offset is not None:
            # Later appends wait for its outcome: only then is the number before theirs known.
            self._condition_open = True
            parts = conditional_block_end_parts(
                self.writer_bytes, request.data, request.event_number, request.expected_offset, self._rid
            )
        elif size > FRAME_MAX_BYTES - FRAME_OVERHEAD:
            parts = append_split_parts(
                self.writer_bytes, request.data, request.event_count, request.event_number, self._rid
            )
        else:
            parts = self._frame(request)
        connection.dialled.send_parts(parts)

    def frame_alone(self, request: Append) -> Sequence[Buffer]:
        """The frame of a gathered append that is sent by itself because no other was gathered."""
        at = self._place(request)
        if at is not None:
            self._queue[at + 2] = False
        return self._frame(request)

    def _frame(self, request: Append) -> Sequence[Buffer]:
        return append_block_end_parts(
            self.writer_bytes, request.data, request.event_count, request.event_number, self._rid
        )

    def _alone_in_flight(self) -> list[Append]:
        """The appends in flight that were sent by themselves."""
        found = list(islice(self._queue, _FIELDS * self._sent))
        return [
            request for request, with_others in zip(found[::_FIELDS], found[2::_FIELDS], strict=True) if not with_others
        ]

    def __call__(self, reply: Command | PenstockError) -> None:
        """Take a reply of the connection."""
        if isinstance(reply, PenstockError):
            self.fail(lambda: NotConnectedError(reply.message, **reply.fields))
        elif isinstance(reply, c.DataAppended):
            self._appended(reply)
        elif isinstance(reply, c.ConditionalCheckFailed):
            self._condition_failed()
        elif isinstance(reply, c.AuthTokenCheckFailed) and reply.code == TOKEN_EXPIRED:
            # The server takes no more of this writer before it is set up again, with a new token.
            self.fail(lambda: NotConnectedError("the token for the segment has expired", segment=self.segment))
        else:
            # It answers the first append that was sent by itself. Appends in shared frames may be stored.
            alone = self._alone_in_flight()
            self.fail(lambda: error_of(reply, self.segment), first=alone[0].event_number if alone else None)

    def _appended(self, reply: c.DataAppended) -> None:
        done = 0
        for request in self._alone_in_flight():
            if request.event_number > reply.event_number:
                break
            done += self.acknowledged(request, reply.segment_length)
        self._answered(done)

    def acknowledged(self, request: Append, length: int) -> int:
        """The append is durable; ``length`` is the segment's length after it. Returns how many bytes the append held:
        0 if its outcome was already known."""
        queue = self._queue
        if queue and queue[0] is request:
            queue.popleft()
            done = queue.popleft()
            queue.popleft()
        else:
            # Another frame with an earlier append of this line still waits for a slower segment.
            at = self._place(request)
            if at is None:
                return 0
            _, done, _ = self._remove(at)
        self._sent -= 1
        if not self._sent:
            self._condition_open = False
        done(Appended(end_offset=length))
        return len(request.data)

    def refused(self, request: Append, frame: bytes | None) -> None:
        """An append in a shared frame was not stored: end, as if ``frame`` had arrived. None: an append before it
        failed."""
        if self._place(request) is None:
            return  # Its outcome is already known.
        if frame is None:
            self.fail(lambda: NotConnectedError("append follows one that failed", segment=self.segment))
            return
        try:
            code, length = HEADER.unpack_from(frame)
            check_header(code, length, REPLY_CODES)
            reply = decode(code, memoryview(frame)[HEADER.size :])
        except (ProtocolError, struct.error) as error:
            reason = str(error)
            self.fail(lambda: NotConnectedError("reply cannot be decoded", segment=self.segment, reason=reason))
            return
        self.fail(lambda: error_of(reply, self.segment), first=request.event_number)

    def _condition_failed(self) -> None:
        # Nothing is sent after a conditional append, so it is the newest in flight.
        if not self._sent:
            return
        self._sent -= 1
        request, done, _ = self._remove(_FIELDS * self._sent)
        self._condition_open = False
        self._last_number = request.previous
        error = ConditionFailedError(
            "segment has another length", segment=self.segment, expected=request.expected_offset, actual=None
        )
        _report(done, error)
        self._answered(len(request.data))

    def _answered(self, size_bytes: int) -> None:
        connection = self.connection
        if connection is not None:
            connection.answered(size_bytes)
            self.pump()

    def end_if_idle(self) -> bool:
        """End, and return True, if there is no append that would fail. The next append opens a new line."""
        if self._ready and not self._queue:
            self._end()
        return self.ended

    def fail(self, make_error: Callable[[], PenstockError], *, first: int | None = None) -> None:
        """End; all appends that were not acknowledged fail, each with its own error.

        ``first``: event number of the append that the store refused. The outcome of those before it is unknown: they
        may be stored.
        """
        entries = list(self._queue)
        requests, dones = entries[::_FIELDS], entries[1::_FIELDS]
        size = sum(len(request.data) for request in requests[: self._sent])
        self._queue.clear()
        self._sent = 0
        connection = self.connection
        self._end()
        if connection is not None:
            connection.answered(size)
        for request, done in zip(requests, dones, strict=True):
            if first is not None and request.event_number < first:
                _report(done, NotConnectedError("append was overtaken by a refusal", segment=self.segment))
            else:
                _report(done, make_error())

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
