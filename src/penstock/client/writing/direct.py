"""One event at a time: the writing thread sends each append itself, and reads its acknowledgement itself.

A switch to the loop's thread and back costs as much as the sync. So once a writer has flushed single events a few times in
a row, each of its segments gets a line of its own (``ports.data.direct_appends``), with the same writer id and the same
event numbers as the loop's. Anything but one small event after another goes back to the loop. The loop's sender then
gets the unacknowledged events and queries the segment for the last stored event, as after a lost connection. Source:
docs/design/0030-writing.md.
"""

from __future__ import annotations

import asyncio
import threading  # noqa: TID251 - the lock is between the writing thread and the loop's
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.client.writing.lanes import LaneMap
from penstock.client.writing.rejection import Rejections
from penstock.client.writing.segment_sender import DirectBlock, Lane, SegmentSender
from penstock.client.writing.write_blocks import WriteBlock
from penstock.model.errors import NotConnectedError, PenstockError
from penstock.ports.data.direct_appends import DirectLine, OpenDirect

if TYPE_CHECKING:
    from penstock.client.blocking.loop_thread import LoopThread

EVENT_MAX_BYTES = 32 << 10
"""More may not fit into a socket's buffer, and is worth a switch of threads."""

LINES_MAX = 8  # connections of one writer, each with a socket of its own
ANSWER_S = 0.25
"""How long the thread waits for an acknowledgement before the event loop takes over. The loop knows why it is missing."""

_DIAL_S = 1.0
_WATCH_S = 0.05
_IDLE_TICKS = 100  # ticks without an append, after which the thread gives its line back
_STREAK_MIN = 3  # single appends in a row before a connection is worth trying
_STREAK_MAX = 1024  # single appends in a row after attempts that did not pay
_WORTH_IT = 16  # appends over one connection that pay for opening it


class DirectPathHost(Protocol):
    """The part of a writer that runs in the event loop, limited to what its direct lines need."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def lanes(self) -> LaneMap: ...

    @property
    def error(self) -> BaseException | None:
        """What the writer failed with."""
        ...

    @property
    def pending_bytes(self) -> int:
        """Bytes that are not acknowledged."""
        ...

    @property
    def rejections(self) -> Rejections: ...

    def lane_list(self) -> Sequence[Lane]: ...

    def note(self, error: BaseException) -> None:
        """Keep the reason for the message of a deadline."""
        ...

    def adopt(self, sender: SegmentSender, block: WriteBlock) -> None:
        """Take a block that may be stored already."""
        ...


class DirectPath:
    """The direct lines of one writer: on for all of its segments, or off.

    ``lock`` guards what both threads touch. The writing thread holds it while it waits for an acknowledgement; the loop
    only ever tries to take it.
    """

    def __init__(self, core: DirectPathHost, dial: OpenDirect | None) -> None:
        self._core = core
        self._dial = dial
        self.lock = threading.Lock()
        self.active = False
        self.wanted: Lane | None = None
        """The lane to open, once what was just flushed is durable."""
        self._lines: dict[Lane, DirectLine] = {}
        self._lane: Lane | None = None
        """The lane from which the last events were sent."""
        self._streak = 0
        self._needed = _STREAK_MIN
        self._appends = 0
        self._seen: object = None
        self._idle_ticks = 0
        self._watcher: asyncio.TimerHandle | None = None

    @property
    def _sent(self) -> DirectBlock | None:
        """Events that are sent but not acknowledged. They keep their place at the head of their lane until then."""
        head = self._lane.written[:1] if self._lane is not None else ()
        return head[0] if head and isinstance(head[0], DirectBlock) else None

    # --- in the event loop -----------------------------------------------------------------------------------

    def flushed(self, events: int, lane: Lane | None) -> None:
        """The writer was flushed. The arguments count the events since the flush before, and name the lane of the last
        one."""
        self._streak = self._streak + 1 if events == 1 else 0
        self.wanted = lane if self._dial is not None and self._streak >= self._needed else None

    async def open(self, lane: Lane) -> bool:
        """Give the lane's segment to the calling thread, which waits for this. False: the loop keeps it."""
        if await self._open(lane):
            return True
        if not self.active:
            self._reckon()
        return False

    async def _open(self, lane: Lane) -> bool:
        core, sender, dial = self._core, lane.sender, self._dial
        if dial is None or len(self._lines) >= LINES_MAX or not self._quiet(sender):
            return False
        try:
            async with asyncio.timeout(_DIAL_S):
                line = await dial(sender.name, sender.writer)
        except (PenstockError, TimeoutError) as error:
            core.note(error)
            return False
        if not self._quiet(sender) or not sender.lend(line.last_number):
            line.close()
            return False
        self._lines[lane] = line
        # The next event of whatever lane must come here first: a flush of a direct writer looks at nothing else.
        for other in core.lane_list():
            other.limit = 0
        self.active = True
        if self._watcher is None:
            self._idle_ticks = 0
            self._watcher = core.loop.call_later(_WATCH_S, self._watch)
        return True

    def _quiet(self, sender: SegmentSender) -> bool:
        core = self._core
        if core.error is not None or core.rejections.is_on or core.pending_bytes or not sender.is_idle:
            return False
        return self.active or not any(lane.written for lane in core.lane_list())

    def resume(self) -> None:
        """Return everything to the loop. The writing thread posts this when it stops sending directly."""
        with self.lock:
            self._resume()

    def _resume(self) -> None:
        """The lock is held."""
        self.active = False
        lines, self._lines = self._lines, {}
        sent, lane_of_sent = self._sent, self._lane
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None
        if lines:
            self._reckon()
        for lane, line in lines.items():
            line.close()
            lane.sender.take_back()
        if sent is not None and lane_of_sent is not None:
            self._core.adopt(sent.sender, sent.block)
            del lane_of_sent.written[:1]

    def _reckon(self) -> None:
        """If the lines carried too few appends to pay for opening them, the next attempt needs a longer streak."""
        worth, self._appends, self._streak = self._appends >= _WORTH_IT, 0, 0
        self._needed = _STREAK_MIN if worth else min(_STREAK_MAX, 2 * self._needed)

    def _watch(self) -> None:
        """Take over the events that the thread has sent without checking: if they are not stored, nothing else resends
        them."""
        self._watcher = None
        if self.lock.acquire(blocking=False):
            try:
                overdue = self._sent is not None and self._sent is self._seen
                self._idle_ticks = self._idle_ticks + 1 if self._seen == self._appends else 0
                self._seen = self._sent if self._sent is not None else self._appends
                if overdue or self._idle_ticks >= _IDLE_TICKS:
                    self._resume()
            finally:
                self.lock.release()
        if self.active:
            self._watcher = self._core.loop.call_later(_WATCH_S, self._watch)

    async def give_back(self) -> None:
        """As ``resume``, while the writing thread may be inside: it leaves within ``ANSWER_S``."""
        while self.active:
            if self.lock.acquire(blocking=False):
                try:
                    self._resume()
                finally:
                    self.lock.release()
                return
            await asyncio.sleep(0.001)

    # --- in the writing thread --------------------------------------------------------------------------------

    def stop(self, thread: LoopThread) -> None:
        """Never send directly again: a writer whose events have receipts gets them from the loop."""
        self._dial = None
        self.leave(thread)

    def send(self, thread: LoopThread, lane: Lane) -> bool:
        """Send the events in the lane. False: the loop must send them and all later ones."""
        if not self.active:
            return False
        size = lane.size
        if lane not in self._lines and (self._sent is not None or not thread.call(self.open(lane))):
            self.leave(thread)
            return False
        with self.lock:
            line = self._lines.get(lane)
            settled = line is not None and size <= EVENT_MAX_BYTES and self._settled(0)
            if settled and line is not None and self._send(lane, line):
                return True
        self.leave(thread)
        return False

    def _send(self, lane: Lane, line: DirectLine) -> bool:
        """Send everything in the lane. The lock is held. False: the events may not have left; the loop finds out."""
        count = len(lane.written)
        if not count:
            return True  # Another thread has sent the event together with its own.
        taken = lane.written[:count]
        block = lane.sender.lent_block(taken[1::2], taken[::2])
        self._lane = lane
        # One step. If interrupted before it, the events belong to the lane. After it, they are sent, and the loop asks the
        # store whether they have arrived. Never both, and never neither.
        lane.written[:count] = (DirectBlock(lane.sender, block, line),)
        lane.size = 0
        self._core.lanes.rotate(lane)
        try:
            line.send(block.data, block.event_count, block.event_number)
        except NotConnectedError:
            return False
        return True

    def flush(self, thread: LoopThread) -> bool:
        """Return True once what was sent is durable. False: only the loop can tell."""
        if not self.active:
            return False
        with self.lock:
            if self.active and self._settled(ANSWER_S):
                return True
        self.leave(thread)
        return False

    def _settled(self, timeout_s: float) -> bool:
        """Whether all that was sent is durable."""
        lane, sent = self._lane, self._sent
        if sent is None or lane is None:
            return self.active
        try:
            if not sent.line.acknowledged(timeout_s):
                return False
        except NotConnectedError:
            return False
        del lane.written[:1]
        self._appends += 1
        return True

    def leave(self, thread: LoopThread) -> None:
        """Return unacknowledged events to the loop, ahead of anything posted later."""
        if self.active:
            thread.post(self.resume)
            self.active = False
