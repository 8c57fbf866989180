"""The event loop's half of a writer: senders per segment, flushes, bounded memory, replacement of sealed segments."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from uuid import UUID

from penstock.client.retry import retrying
from penstock.client.tasks import TaskOwner
from penstock.client.writing.deadline import Deadline
from penstock.client.writing.direct import DirectPath
from penstock.client.writing.lanes import ForkedLanes, LaneMap, NoLanes, Piece, replace_pieces
from penstock.client.writing.layout import Layout
from penstock.client.writing.prepare import Prepared, split_block
from penstock.client.writing.rejection import Rejections
from penstock.client.writing.rounds import SLICE_LANES, LaneRounds
from penstock.client.writing.segment_sender import Lane, SegmentSender, SenderState
from penstock.client.writing.settings import WriterSettings
from penstock.client.writing.write_blocks import WriteBlock, attach, close_blocks, receipts_of
from penstock.core.streams.routing import hash_key
from penstock.model.errors import (
    InternalError,
    InvalidArgumentError,
    NotConnectedError,
    PenstockError,
    QuotaExceededError,
)
from penstock.model.segments import SegmentId, SegmentRange
from penstock.model.traces.spans import current
from penstock.ports import forks
from penstock.ports.data.direct_appends import OpenDirect, SubmitAppend
from penstock.ports.data.segments import Append, AppendDone, Appended
from penstock.ports.data.service import SegmentService
from penstock.ports.rng import Rng

RETIRED_KEPT = 1024  # sealed segments whose senders are remembered for late acknowledgements
LANE_BYTES_MIN = 4 << 10


class WriterCore:
    """Takes events from lanes and prepared blocks, and makes them durable. Lives in one event loop.

    Owns its senders' tasks. After a failure every call raises that error; ``unacknowledged`` describes the events that
    are left. A refusal by a quota is not a failure: events written before it is reported are dropped, then the writer
    continues.
    """

    def __init__(
        self,
        layout: Layout,
        segments: SegmentService,
        rng: Rng,
        settings: WriterSettings,
        on_change: Callable[[], None],
        open_direct: OpenDirect | None = None,
    ) -> None:
        self.loop: asyncio.AbstractEventLoop
        self.layout = layout
        self.segments = segments
        self.rng = rng
        self.settings = settings
        self.max_in_flight = settings.max_in_flight
        self.error: BaseException | None = None
        self.around = current()
        self.rejections = Rejections(str(layout.stream))
        self.pending_bytes = 0
        self.lanes: LaneMap = NoLanes()
        self._on_change = on_change  # called after pending_bytes, lanes or error changed
        self.submit: SubmitAppend = segments.submit_append or self._submit_task
        self._withdraw = segments.withdraw_appends
        self._tasks = TaskOwner(self.fail)
        self._senders: dict[SegmentId, SegmentSender] = {}
        self._retired: deque[SegmentSender] = deque(maxlen=RETIRED_KEPT)
        self._group = 0
        self._open_blocks = 0
        self._group_events: dict[int, int] = {}
        self._flushes: list[tuple[int, Callable[[], None]]] = []
        self._room: deque[asyncio.Future[None]] = deque()
        self._turns: dict[str, asyncio.Future[None]] = {}
        self._deadline = Deadline(settings.deadline_s, self._is_waiting, self.fail)
        self._rounds: LaneRounds | None = None
        self._unflushed_events = 0
        self._last_lane: Lane | None = None
        self.direct = DirectPath(self, open_direct)
        self.is_inherited = False
        forks.register(self)

    def abandon_in_child(self) -> None:
        """See ``ports.forks.Handle``. The parent sends what is here."""
        self.is_inherited = True
        self.error = forks.refusal()
        self.lanes = ForkedLanes()

    async def open(self) -> None:
        """Find the segments. Raises StreamNotFoundError, StreamSealedError, UnavailableError."""
        self.loop = asyncio.get_running_loop()
        rounds = LaneRounds(
            self.loop,
            self.settings.linger_s,
            self._drain_some,
            lambda: self.lane_bytes,
            lambda: self.direct.active,
            lambda: self._open_blocks,
        )
        ranges = await self._patiently(self.layout.segments)
        if self._rounds is not None:
            return  # Another thread was first.
        self._rounds = rounds
        ordered = sorted(ranges, key=lambda item: item.keys.low)
        self.lanes = LaneMap([Piece(item.keys.low, item.keys.high, self._sender(item).lane) for item in ordered])

    @property
    def lane_bytes(self) -> int:
        """The size at which a lane is drained: a block, or less if very many lanes share the memory of the writer."""
        share = self.settings.max_pending_bytes // (2 * max(1, len(self._senders)))
        return min(self.settings.block_bytes, max(LANE_BYTES_MIN, share))

    # --- filling -------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise the error that ended the writer, or, once, a refusal. Call it only in the event loop."""
        if self.error is not None:
            raise self.error
        if self.rejections.is_known:
            # The events in the lanes were written before the refusal was reported.
            self.drain_all()
            raise self.rejections.take()

    async def checked(self) -> None:
        """The same, for a caller in another thread."""
        self.check()

    def wake(self, lane: Lane) -> None:
        """The lane got its first event since it became idle."""
        if self.error is None and self._rounds is not None:
            self._rounds.wake(lane)

    def _drain_some(self, lanes: Sequence[Lane]) -> None:
        replaced = [old.lane for old in self._retired]
        self._drain([*replaced, *(lane for lane in lanes if lane.sender.state is not SenderState.RETIRED)])

    def drain(self, lane: Lane) -> None:
        """Send the events of the lane, after the late events of replaced segments."""
        self._drain_some([lane])

    def drain_all(self) -> None:
        self._drain_some(self._full_lanes())

    def _full_lanes(self) -> list[Lane]:
        """Lanes that hold events, except those of replaced segments."""
        return [sender.lane for sender in self._senders.values() if sender.lane.written]

    def lane_list(self) -> list[Lane]:
        """Those of replaced segments first."""
        return [old.lane for old in self._retired] + [sender.lane for sender in self._senders.values()]

    def _drain(self, lanes: Sequence[Lane]) -> None:
        # Drain the newest lane first: a thread that wrote to a newer lane had finished with the older one, so the older
        # lane then holds all earlier events. Then send the oldest first.
        taken = [lane.take() for lane in reversed(lanes)]
        limit, block_bytes = self.lane_bytes, self.settings.block_bytes
        for lane in lanes:
            written = taken.pop()
            if written:
                events, keys = written[1::2], written[::2]
                self.lanes.rotate(lane)
                if lane.limit:
                    lane.limit = limit
                blocks = close_blocks(events, keys, self._group, block_bytes)
                if lane.tracked:
                    attach(blocks, receipts_of(events))
                for block in blocks:
                    self._enqueue(lane.sender, block)
        self._on_change()

    def enqueue(self, prepared: Prepared, *, goes_on: bool = False) -> None:
        """Take blocks that were framed elsewhere, each behind what its lane holds. ``goes_on``: others of the same call were
        taken before; where those are refused, these are as well, and count."""
        if goes_on and self.error is None and self.rejections.is_known:
            for _, block in prepared:
                self.rejections.add(block)
        self.check()
        # Each lane once: a thread may add events meanwhile, and what is taken last is sent first.
        self._drain_some(list(dict.fromkeys(lane for lane, _ in prepared if lane.written)))
        for lane, block in prepared:
            block.group = self._group
            self._enqueue(lane.sender, block)

    def _enqueue(self, sender: SegmentSender, block: WriteBlock) -> None:
        if self.error is not None:
            block.fail(self.error)
            return
        if self.rejections.is_on:
            self.rejections.add(block)
            return
        self._unflushed_events += block.event_count
        self._last_lane = sender.lane
        self._count(block)
        if sender.state is SenderState.RETIRED:
            self._route(sender, [block])
        else:
            sender.enqueue(block)

    def _count(self, block: WriteBlock) -> None:
        if not self.pending_bytes:
            self._deadline.begin(self.loop)
        self.pending_bytes += len(block.data)
        self._open_blocks += 1
        group, events = block.group, self._group_events
        events[group] = events.get(group, 0) + block.event_count

    def _is_waiting(self) -> bool:
        return self.pending_bytes > 0 and self.error is None

    def adopt(self, sender: SegmentSender, block: WriteBlock) -> None:
        """Take over a block that the writing thread has sent, and that may or may not be stored."""
        if self.error is None:
            block.group = self._group
            self._count(block)
            sender.adopt(block)

    # --- waiting -------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Return once everything written so far is durable. Raises the error that ended the writer."""
        if not self.is_inherited:
            await self.direct.give_back()
        self.check()
        reported = self.rejections.reported
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def durable() -> None:
            if not waiter.done():
                waiter.set_result(None)

        self.flush_then(durable)
        await waiter
        self.check()
        self.rejections.check_since(reported)

    def flush_then(self, done: Callable[[], None]) -> None:
        """Call ``done`` once everything written so far is durable, or the writer has failed; perhaps at once.

        For a caller in another thread: a task and a future would cost more than the work itself.
        """
        full = self._full_lanes() if self.error is None else []
        if len(full) > SLICE_LANES:
            self._flush_slices(deque(full), done)
            return
        if self.error is None:
            self._drain_some(full)
        self._flushed(done)

    def _flush_slices(self, lanes: deque[Lane], done: Callable[[], None]) -> None:
        """Drain some lanes in each pass of the loop: these are on their way, and stored, while the next ones are drained."""
        if self.error is None and lanes:
            self._drain_some([lanes.popleft() for _ in range(min(len(lanes), SLICE_LANES))])
            self.loop.call_soon(self._flush_slices, lanes, done)
        else:
            self._flushed(done)

    def _flushed(self, done: Callable[[], None]) -> None:
        """All events to flush have been sent."""
        self.direct.flushed(self._unflushed_events, self._last_lane)
        self._unflushed_events = 0
        upto = self._group
        self._group += 1
        if self.error is not None or min(self._group_events, default=self._group) > upto:
            done()
        else:
            self._flushes.append((upto, done))

    async def room(self) -> None:
        """Return once ``pending_bytes`` is below its bound. Raises the error that ended the writer."""
        while self.pending_bytes > self.settings.max_pending_bytes and self.error is None:
            waiter = self.loop.create_future()
            self._room.append(waiter)
            await waiter
        self.check()

    def _wake_waiters(self) -> None:
        oldest = min(self._group_events, default=self._group)
        failed = self.error is not None
        if self._flushes and (failed or self._flushes[0][0] < oldest):
            over = [done for upto, done in self._flushes if failed or upto < oldest]
            # In order of their groups: those that are over are the first ones.
            del self._flushes[: len(over)]
            for done in over:
                done()
        if failed or self.pending_bytes <= self.settings.max_pending_bytes:
            while self._room:
                waiter = self._room.popleft()
                if not waiter.done():
                    waiter.set_result(None)
        elif not self.rejections.is_on:
            return  # A thread that waits for room would wake for nothing, at each of thousands of acknowledgements.
        self._on_change()

    def unacknowledged(self) -> Mapping[str, object]:
        """The events that are not durable: stream, events, bytes, segments, and the last failure."""
        busy = [sender for sender in self._senders.values() if sender.blocks]
        return {
            "stream": str(self.layout.stream),
            "unacked_events": sum(self._group_events.values()),
            "unacked_bytes": sum(block.size for sender in busy for block in sender.blocks),
            "segments": [sender.name for sender in busy],
            "last_error": None if self._deadline.trouble is None else str(self._deadline.trouble),
        }

    # --- calls from senders ------------------------------------------------------------------------------

    def _submit_task(self, request: Append, done: AppendDone) -> None:
        before = self._turns.get(request.segment)
        mine = self._turns[request.segment] = self.loop.create_future()
        self._tasks.start(self._append(request, done, before, mine))

    async def _append(
        self, request: Append, done: AppendDone, before: asyncio.Future[None] | None, mine: asyncio.Future[None]
    ) -> None:
        result: Appended | PenstockError
        try:
            if before is not None and not before.done():
                await before
            # The next one wakes only after this step, in which the append takes its place before it first waits.
            mine.set_result(None)
            result = await self.segments.append(request)
        except PenstockError as error:
            result = error
        except OSError as error:
            result = NotConnectedError("connection failed", reason=str(error))
        finally:
            if not mine.done():
                mine.set_result(None)
        try:
            done(result)
        finally:
            del result  # The error's traceback holds this frame, which would keep the block alive.

    def new_writer(self, *, least_ms: int = 0) -> UUID:
        return self.layout.writer_id(self.rng.uuid(), least_ms=least_ms)

    def start(self, sender: SegmentSender, *, recover: bool) -> None:
        self._tasks.start(sender.recover() if recover else sender.send_large())

    def settled(self, block: WriteBlock) -> None:
        self._deadline.progress_at = self.loop.time()
        self._deadline.trouble = None
        if block.rejected:
            self.rejections.open_blocks -= 1
        was_full = self.pending_bytes > self.settings.max_pending_bytes
        # Few of thousands of acknowledgements end a group or make room: only those wake callers.
        if self._forget(block) or was_full or self.rejections.is_on:
            self._wake_waiters()

    def _forget(self, block: WriteBlock) -> bool:
        """Stop counting a settled block. Returns whether it was the last one of its group."""
        self.pending_bytes -= len(block.data)
        self._open_blocks -= 1
        group, events = block.group, self._group_events
        left = events[group] - block.event_count
        if left:
            events[group] = left
            return False
        del events[group]
        return True

    def ready(self, sender: SegmentSender) -> None:
        sender.due = False
        self.drain(sender.lane)

    def note(self, error: BaseException) -> None:
        self._deadline.trouble = error

    def reject(self, error: QuotaExceededError) -> None:
        if self.error is not None:
            return
        self.rejections.begin(error)
        self.rejections.open_blocks += 1  # held until all senders have answered
        for sender in list(self._senders.values()):
            self.rejections.open_blocks += sender.reject()
        self.drain_all()
        self.rejections.open_blocks -= 1
        for sender in self._senders.values():
            sender.lane.limit = 0  # the next event looks at once

    def dropped(self, block: WriteBlock) -> None:
        self.rejections.add(block)
        if block.rejected:
            self.rejections.open_blocks -= 1
        self._deadline.progress_at = self.loop.time()
        self._forget(block)
        self._wake_waiters()

    def fail(self, error: BaseException) -> None:
        """Stop: wake all waiting callers, and raise ``error`` from now on. The first error counts."""
        if self.error is not None:
            return
        if isinstance(error, PenstockError):
            for name, value in self.unacknowledged().items():
                error.fields.setdefault(name, value)
        self.error = error
        if self._rounds is not None:
            self._rounds.close()
        for sender in self._senders.values():
            for block in sender.retire():
                block.fail(error)
            if self._withdraw is not None:
                # Otherwise these would be appended when the store is back, after events that the caller has written
                # again.
                self._withdraw(sender.name, sender.writer)
        self._drain([lane for lane in self.lane_list() if lane.tracked])  # which fails the receipts of their events
        self._wake_waiters()

    async def _patiently(self, call: Callable[[], Awaitable[Sequence[SegmentRange]]]) -> Sequence[SegmentRange]:
        """The result of ``call``. A writer waits for space on a full disk as long as for any other failure."""
        deadline_s = self.settings.deadline_s
        return await retrying(call, self.rng, deadline_s=deadline_s, full_s=deadline_s)

    async def replace(self, sender: SegmentSender, cause: PenstockError) -> None:
        """Hand a sealed or deleted segment's keys, un-acknowledged events and lane to its successors."""
        segment = sender.segment
        try:
            found = await self._patiently(partial(self.layout.successors, segment, cause))
        except PenstockError as error:
            self.fail(error)
            return
        if self.error is not None:
            return
        # No await from here on, so no event can get between those of the old and the new segment.
        pieces = replace_pieces(self.lanes.pieces, sender.lane, found, lambda item: self._sender(item).lane)
        left = sender.retire()
        self._senders.pop(segment, None)
        self._turns.pop(sender.name, None)
        self._retired.append(sender)
        self.lanes = LaneMap(pieces)
        self._on_change()
        self._route(sender, left)
        self.drain_all()
        sender.lane.limit = 0  # a late event of another thread that lands here wakes us

    def _route(self, old: SegmentSender, blocks: Sequence[WriteBlock]) -> None:
        targets = [piece.lane for piece in self.lanes.pieces if piece.low < old.high and old.low < piece.high]
        single = len({id(lane) for lane in targets}) == 1
        for block in blocks:
            if block.rejected:
                self.dropped(block)
                continue
            keys = block.keys_in(old.lane)
            if single or keys is None:
                again = block.again()
                again.keys = None if keys is None else tuple(keys)
                moved = [(targets[0], again)]
            else:
                moved = split_block(block, keys, self._lane_of, self.settings.block_bytes)
            for lane, part in moved:
                if lane.sender is old:
                    raise InternalError("segment follows itself", segment=old.name)
                self._enqueue(lane.sender, part)
            self._forget(block)

    def _lane_of(self, key: str | None) -> Lane:
        lanes = self.lanes
        return lanes[None] if key is None else lanes.lane_at(hash_key(key))

    def _sender(self, item: SegmentRange) -> SegmentSender:
        sender = self._senders.get(item.segment)
        if sender is None:
            sender = SegmentSender(self, item, self.layout.name_of(item.segment), self.new_writer())
            self._senders[item.segment] = sender
        return sender

    async def close(self) -> None:
        """Drop everything that is not sent and end all tasks. ``flush`` first to keep it. Does nothing in a forked child."""
        if self.is_inherited:
            return
        await self.direct.give_back()
        self._deadline.cancel()
        if self.error is None:
            self.fail(InvalidArgumentError("writer is closed", stream=str(self.layout.stream)))
        self.lanes = NoLanes()  # a late event finds no lane to be lost in
        self._on_change()
        await self._tasks.close()
