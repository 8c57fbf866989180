"""One writer's way into one segment: blocks in order, several in flight, each exactly once."""

from __future__ import annotations

import enum
from asyncio import AbstractEventLoop
from collections import deque
from typing import Any, Protocol
from uuid import UUID

from penstock.client.retry import RETRYABLE, Backoff, retrying
from penstock.client.writing.layout import Layout
from penstock.client.writing.write_blocks import Receipt, TrackedEvent, WriteBlock, trace
from penstock.codec.events import EVENT_MAX_BYTES, HEADER_BYTES, frame_events
from penstock.core.segments.writer_memory import RENEW_AFTER_S
from penstock.model.errors import (
    InternalError,
    PenstockError,
    QuotaExceededError,
    SegmentNotFoundError,
    SegmentSealedError,
    WriterFencedError,
    WriterForgottenError,
)
from penstock.model.segments import SegmentRange
from penstock.model.traces.spans import SpanContext, active
from penstock.ports.data.direct_appends import DirectLine
from penstock.ports.data.segments import NO_EVENT, Append, AppendDone, Appended
from penstock.ports.data.service import SegmentService
from penstock.ports.rng import Rng

_REFUSALS = (WriterFencedError, WriterForgottenError, SegmentSealedError)
"""Errors after which the append is certainly not stored. A line that could not be set up raises the second one for all
appends that wait for it."""


class SenderHost(Protocol):
    """What a sender needs of its writer."""

    segments: SegmentService
    rng: Rng
    max_in_flight: int
    layout: Layout
    around: SpanContext | None  # the span in which the program wrote last

    @property
    def loop(self) -> AbstractEventLoop: ...

    def new_writer(self, *, least_ms: int = 0) -> UUID:
        """An id for a sender. If it holds its birth, the birth is ``least_ms`` (since the Unix epoch) or later."""
        ...

    def submit(self, request: Append, done: AppendDone) -> None:
        """Append; ``done`` is called once, from the event loop, never from within this call's error path."""
        ...

    def start(self, sender: SegmentSender, *, recover: bool) -> None:
        """Run ``sender.recover()`` or ``sender.send_large()`` as a task of the writer."""
        ...

    def settled(self, block: WriteBlock) -> None:
        """The block is durable."""
        ...

    def ready(self, sender: SegmentSender) -> None:
        """The sender has room for another block."""
        ...

    async def replace(self, sender: SegmentSender, cause: PenstockError) -> None:
        """The segment is sealed: send the remaining and all later events to its successors."""
        ...

    def fail(self, error: BaseException) -> None:
        """The writer cannot go on."""
        ...

    def reject(self, error: QuotaExceededError) -> None:
        """The store refuses the events: drop them in all senders, and continue with events written after the report."""
        ...

    def dropped(self, block: WriteBlock) -> None:
        """The block will not be sent."""
        ...

    def note(self, error: BaseException) -> None:
        """Record the reason why the writer makes no progress."""
        ...


class SenderState(enum.Enum):
    NEW = "new"
    CONNECTING = "connecting"
    OPEN = "open"
    BROKEN = "broken"
    """An append failed; the answers of the others in flight are awaited before anything is sent again."""
    LARGE = "large"
    LENT = "lent"
    """The writing thread appends over its own line; meanwhile this sender has no blocks."""
    RETIRED = "retired"


class Lane:
    """Events for one segment that are not in a block yet. ``written`` holds key, event, key, event.

    ``limit`` is the size at which the writer calls for the event loop. 0: the loop is not looking at this lane, the next
    event must wake it. ``tracked``: some event had a receipt, now or earlier.
    """

    __slots__ = ("limit", "sender", "size", "tracked", "written")

    def __init__(self, sender: SegmentSender) -> None:
        self.written: list[Any] = []
        self.size = 0
        self.limit = 0
        self.tracked = False
        self.sender = sender

    def add_tracked(self, key: str | None, event: bytes, receipt: Receipt) -> bool:
        """Add an event with a receipt. Returns whether the event loop must look at the lane now."""
        self.tracked = True  # before the event is there: the loop may take it at once
        self.written.extend((key, TrackedEvent.of(event, receipt)))
        self.size += len(event) + HEADER_BYTES
        return self.size >= self.limit

    def take(self) -> list[Any]:
        """Remove and return all events with their keys: key, event, key, event. Only the event loop calls it. Returns nothing
        while events before them are being sent directly."""
        count = len(self.written)
        taken = self.written[:count]
        if count and isinstance(taken[0], DirectBlock):
            return []
        del self.written[:count]
        # The writing thread may add to a stale size; the next block is then closed early, which is harmless.
        self.size = 0
        return taken


class DirectBlock:
    """Events that the writing thread has sent and that are not acknowledged yet. They keep their place in their lane."""

    __slots__ = ("block", "line", "sender")

    def __init__(self, sender: SegmentSender, block: WriteBlock, line: DirectLine) -> None:
        self.sender = sender
        self.block = block
        self.line = line


class SegmentSender:
    """Sends blocks to one segment in order of ``enqueue``.

    After a failure it waits for all answers, asks the segment for the last event number it holds of this writer, drops
    what it holds, and sends the rest again: each event is appended exactly once, whichever answers were lost.
    """

    __slots__ = (
        "_backoff",
        "_counter",
        "_failure",
        "_none_stored",
        "_outstanding",
        "_sent_number",
        "_used_at",
        "blocks",
        "due",
        "high",
        "host",
        "in_flight",
        "lane",
        "low",
        "name",
        "segment",
        "state",
        "writer",
    )

    def __init__(self, host: SenderHost, segment: SegmentRange, name: str, writer: UUID) -> None:
        self.host = host
        # No object more than needed: a writer has thousands of senders, which the garbage collector looks at in turn.
        self.segment = segment.segment
        self.low, self.high = segment.keys.low, segment.keys.high
        self.name = name
        self.lane = Lane(self)
        self.state = SenderState.NEW
        self.blocks: deque[WriteBlock] = deque()
        """All that are not durable, in order; the first ``in_flight`` of them are sent."""
        self.in_flight = 0
        self.due = False
        self.writer = writer
        self._counter = 0
        self._sent_number = NO_EVENT
        self._outstanding = 0
        self._none_stored = False
        """No block in flight is stored: the first of them was refused."""
        self._used_at = host.loop.time()
        self._failure: PenstockError | None = None
        self._backoff: Backoff | None = None
        """Of the failures since the last progress."""

    @property
    def has_room(self) -> bool:
        return self.state is SenderState.OPEN and len(self.blocks) == self.in_flight < self.host.max_in_flight

    def enqueue(self, block: WriteBlock) -> None:
        """Take the block's place in the segment's order, and send it as soon as it may go."""
        now = self.host.loop.time()
        if now - self._used_at >= RENEW_AFTER_S:
            self._renew_if_idle()
        self._used_at = now
        self._counter = block.event_number = self._counter + block.event_count
        self.blocks.append(block)
        if self.state is SenderState.OPEN:
            self.pump()
        elif self.state is SenderState.NEW:
            self._connect()

    def _renew_if_idle(self) -> None:
        """Continue under a new id before the store forgets the old one. With nothing on its way that is always safe."""
        if self.is_idle:
            self._renew()
            self.state = SenderState.NEW

    def _renew(self, *, least_ms: int = 0) -> None:
        self.writer = self.host.new_writer(least_ms=least_ms)
        self._sent_number = NO_EVENT

    def number(self, block: WriteBlock) -> None:
        """Give the block its place in the segment's order."""
        self._counter = block.event_number = self._counter + block.event_count

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way, or waits for it."""
        return self.state in (SenderState.NEW, SenderState.OPEN) and not self.blocks

    def lend(self, last_number: int) -> bool:
        """Let the writing thread continue after ``last_number``. False: another event was appended last."""
        if self.state is SenderState.OPEN and last_number != self._sent_number:
            return False
        self._sent_number = last_number
        self.state = SenderState.LENT
        return True

    def lent_block(self, events: list[bytes], keys: list[str | None]) -> WriteBlock:
        """The next block, numbered. For the writing thread, while the sender is lent."""
        keyed = keys.count(None) < len(keys)
        block = WriteBlock(frame_events(events), len(events), tuple(keys) if keyed else None, 0)
        self.number(block)
        return block

    def take_back(self) -> None:
        """Take over again: before the next block, the sender queries the segment for the last stored event."""
        if self.state is SenderState.LENT:
            self.state = SenderState.NEW

    def adopt(self, block: WriteBlock) -> None:
        """Find out whether the block is stored that was sent while the sender was lent; if not, send it again."""
        if self.state is SenderState.NEW:
            self.blocks.append(block)
            self.in_flight += 1
            self._connect()

    def retire(self) -> list[WriteBlock]:
        """Stop; return the blocks that are not durable, in order."""
        left = list(self.blocks)
        self.blocks.clear()
        self.in_flight = 0
        self.state = SenderState.RETIRED
        return left

    def reject(self) -> int:
        """Drop the blocks that are not in flight; returns the number of blocks in flight, which may or may not be
        stored."""
        # A large event is sent without counting as a block in flight, and alone.
        sent = 1 if self.state is SenderState.LARGE else self.in_flight
        waiting = [self.blocks.pop() for _ in range(len(self.blocks) - sent)]
        for block in reversed(waiting):
            self.host.dropped(block)
        fresh = [block for block in self.blocks if not block.done and not block.rejected]
        for block in fresh:
            block.rejected = True
        return len(fresh)

    def pump(self) -> None:
        blocks, host = self.blocks, self.host
        while self.state is SenderState.OPEN and self.in_flight < len(blocks) and self.in_flight < host.max_in_flight:
            block = blocks[self.in_flight]
            if block.large:
                if not self.in_flight:
                    self.state = SenderState.LARGE
                    host.start(self, recover=False)
                return
            self.in_flight += 1
            self._outstanding += 1
            block.sender = self
            block.segment = self.name
            block.writer = self.writer
            block.previous = self._sent_number
            self._sent_number = block.event_number
            if active() is not None:
                trace(block, host.layout.stream, host.around)
            host.submit(block, block)

    def answered(self, block: WriteBlock, result: Appended | PenstockError) -> None:
        self._outstanding -= 1
        if self.state is SenderState.RETIRED:
            return  # the writer failed or was closed while this was in flight
        if isinstance(result, Appended):
            block.done = True
            block.end_offset = result.end_offset
            self._backoff = None
            blocks = self.blocks
            while self.in_flight and blocks[0].done:
                self.in_flight -= 1
                self._settle(blocks.popleft())
        else:
            if self._failure is None:
                # Only the first failure has the cause; the later ones follow from it.
                self._failure = result
                first = self.in_flight > 0 and self.blocks[0] is block
                self._none_stored = first and isinstance(result, _REFUSALS)
            self.state = SenderState.BROKEN
        if self.state is SenderState.OPEN:
            if self.blocks:
                self.pump()
            if self.due and self.has_room:
                self.host.ready(self)
        elif self.state is SenderState.BROKEN and not self._outstanding:
            self._connect()

    def _settle(self, block: WriteBlock) -> None:
        if block.receipts:
            block.settle(self.host.layout.stream, self.segment)
        self.host.settled(block)

    def _connect(self) -> None:
        self.state = SenderState.CONNECTING
        self.host.start(self, recover=True)

    async def _pause(self) -> None:
        if self._backoff is None:
            self._backoff = Backoff(self.host.rng)
        await self._backoff.sleep()

    async def recover(self) -> None:
        """Query the last event of this writer in the segment, and continue after it. Retries until the writer's
        deadline."""
        failure, self._failure = self._failure, None
        while True:
            if failure is not None:
                self.host.note(failure)
                if isinstance(failure, (*RETRYABLE, WriterFencedError, WriterForgottenError)):
                    await self._pause()
                elif isinstance(failure, QuotaExceededError):
                    self.host.reject(failure)
                elif not isinstance(failure, SegmentSealedError | SegmentNotFoundError):
                    self.host.fail(failure)
                    return
            if self.state is SenderState.RETIRED:
                return
            try:
                last = await self.host.segments.setup_append(self.name, self.writer)
            except SegmentNotFoundError as error:
                # The segment was truncated away, with all events of this writer in it.
                await self.host.replace(self, error)
                return
            except WriterForgottenError as error:
                if self.in_flight and not self._none_stored:
                    self.host.fail(error)  # What was sent may or may not be stored.
                    return
                self._renew(least_ms=int(error.fields.get("floor_ms", 0)))
                if not isinstance(failure, SegmentSealedError):
                    failure = None
                await self._pause()
                continue
            except RETRYABLE as error:
                failure = error
                continue
            break
        self._none_stored = False
        if not self._resume_behind(last):
            return
        if isinstance(failure, SegmentSealedError | SegmentNotFoundError):
            await self.host.replace(self, failure)
            return
        self.state = SenderState.OPEN
        self.pump()
        if self.due and self.has_room:
            self.host.ready(self)

    def _resume_behind(self, last: int) -> bool:
        sent = [self.blocks.popleft() for _ in range(self.in_flight)]
        self.in_flight = 0
        settled = [block for block in sent if block.done or block.event_number <= last]
        left = [block for block in sent if not block.done and block.event_number > last]
        if any(block.event_number > last for block in settled):
            self.host.fail(InternalError("segment lost acknowledged events", segment=self.name, last=last))
            return False
        for block in settled:
            self._settle(block)
        for block in left:
            if block.rejected:
                self.host.dropped(block)
        self.blocks.extendleft(block.again() for block in reversed(left) if not block.rejected)
        self._sent_number = last
        return True

    async def send_large(self) -> None:
        """Append the large event at the head of the queue: a segment of its own, merged in one step."""
        block = self.blocks[0]
        source: str | None = None
        stored = repeated = False
        while True:
            try:
                if source is None:
                    source = await self._write_transient(block)
                length = await self.host.segments.merge(self.name, source)
                # A repeated merge may answer with what others have appended since.
                stored, block.end_offset = True, None if repeated else length
                break
            except RETRYABLE as error:
                repeated = True
                self.host.note(error)
                await self._pause()
                if self.state is SenderState.RETIRED:
                    return
            except SegmentSealedError as error:
                if source is not None:
                    await self._drop(source)
                await self.host.replace(self, error)
                return
            except SegmentNotFoundError as error:
                # A merge that happened answers with the length, so the event is not there yet, whichever is missing.
                source = None
                if not await self._exists():
                    await self.host.replace(self, error)
                    return
            except QuotaExceededError as error:
                self.host.reject(error)
                break
        if self.state is SenderState.RETIRED:
            return  # the writer failed or was closed meanwhile, and has taken the block back
        self.blocks.popleft()
        if stored:
            self._backoff = None
            self._settle(block)
        else:
            self.host.dropped(block)
        self.state = SenderState.OPEN
        self.pump()
        if self.due and self.has_room:
            self.host.ready(self)

    async def _exists(self) -> bool:
        try:
            await retrying(lambda: self.host.segments.info(self.name), self.host.rng)
        except SegmentNotFoundError:
            return False
        return True

    async def _write_transient(self, block: WriteBlock) -> str:
        segments = self.host.segments
        name = await segments.create_transient(self.name, self.writer)
        writer = self.host.rng.uuid()
        view = memoryview(block.data)
        try:
            last = await segments.setup_append(name, writer)
            for number, start in enumerate(range(0, len(view), EVENT_MAX_BYTES)):
                part = view[start : start + EVENT_MAX_BYTES]
                await segments.append(
                    Append(
                        segment=name,
                        writer=writer,
                        data=part,
                        event_number=number,
                        previous=last,
                        expected_offset=start,
                    )
                )
                last = number
        except (*RETRYABLE, QuotaExceededError):
            # Starting over is simpler than finding out how far this attempt came.
            await self._drop(name)
            raise
        return name

    async def _drop(self, source: str) -> None:
        try:
            await self.host.segments.delete(source)
        except (SegmentNotFoundError, *RETRYABLE) as error:
            # No one reads a transient segment; it is deleted with its parent.
            self.host.note(error)
