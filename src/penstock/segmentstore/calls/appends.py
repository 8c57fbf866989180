"""Appends of one container: decided against pending state, or parked until their segment is in memory."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from penstock.core.segments.append_rules import append_refusal
from penstock.core.segments.throttle import append_throttled
from penstock.model.errors import (
    InvalidArgumentError,
    PenstockError,
    SegmentNotFoundError,
    StorageFullError,
    ThrottledError,
    UnavailableError,
)
from penstock.ports.data.segments import Append, AppendDone, Appended, AppendedPart
from penstock.segmentstore.mutations import AppendMutation, Done, Mutation, flat, refusal, waking
from penstock.segmentstore.parts import StoreParts
from penstock.segmentstore.segment import AttributeState, Segment
from penstock.segmentstore.state import ContainerState
from penstock.segmentstore.writer_memory import WriterMemory

_log = logging.getLogger(__name__)

_SAY_THROTTLED_S = 10.0


class _SplitRun:
    """Answers a run whose appends are decided one by one: with each that is stored, then with the first error."""

    __slots__ = ("_done", "_ended", "_last")

    def __init__(self, request: Append, done: AppendDone) -> None:
        self._last = request.event_number
        self._done = done
        self._ended = False

    def of(self, number: int) -> AppendDone:
        """Takes the outcome of the append with this number."""
        return partial(self._answered, number)

    def _answered(self, number: int, outcome: Appended | PenstockError) -> None:
        if self._ended:
            return
        if number != self._last and isinstance(outcome, Appended):
            outcome = AppendedPart(end_offset=outcome.end_offset, event_number=number)
        else:
            self._ended = True
        self._done(outcome)


class Appends:
    """Decides appends in order of submission, and queues each as an operation or as a refusal."""

    def __init__(
        self,
        state: ContainerState,
        parts: StoreParts,
        *,
        writers: WriterMemory,
        submit: Callable[[Mutation], None],
        offline: Callable[[], PenstockError | None],
        spawn: Callable[[Coroutine[Any, Any, None], str], None],
    ) -> None:
        """``submit`` queues a mutation of the container, ``spawn`` starts a task of it. ``offline``: why the container has
        stopped."""
        self._index = state.index
        self._segments = state.segments
        self._log = state.log
        self._memory = state.memory
        self._telemetry = parts.telemetry
        self._max_parked = parts.settings.max_parked_appends
        self._writers = writers
        self._submit = submit
        self._offline = offline
        self._spawn = spawn
        self._parked: dict[str, deque[tuple[Append | None, Done]]] = {}
        self._parked_count = 0
        self._say_throttled_at = float("-inf")

    def submit(self, request: Append, done: AppendDone) -> None:
        """See ``LocalSegmentService.submit_append``."""
        segment = self._segments.pending(request.segment)
        if segment is not None and not (self._parked and request.segment in self._parked):
            state = segment.attributes.get(request.writer.int)
            if state is not None:
                self._decide(segment, state, request, done)
                return
        self._park(request, done)

    def _decide(self, segment: Segment, state: AttributeState, request: Append, done: AppendDone) -> None:
        data = flat(request.data)
        error = self._refusal(segment, state, request, len(data))
        if error is not None:
            if request.pieces is None:
                self._submit(refusal(segment, error, done))
            else:
                self._decide_each(segment, state, request, done)
            return
        segment.touched = True
        self._memory.queued_bytes += len(data)
        self._submit(AppendMutation(segment, state, request, data, done))

    def _decide_each(self, segment: Segment, state: AttributeState, request: Append, done: AppendDone) -> None:
        """Some appends of the run are refused: store those before. None behind the first refusal continues the writer's
        number, so none can be stored."""
        answers = _SplitRun(request, done)
        for single in request.singles():
            self._decide(segment, state, single, answers.of(single.event_number))
            if state.pending != single.event_number:
                return

    def _refusal(self, segment: Segment, state: AttributeState, request: Append, size: int) -> PenstockError | None:
        """Why the append is refused; None: it has been counted. A run that is not refused as a whole would not be if its
        appends came one by one."""
        if segment.table is not None:
            return InvalidArgumentError("segment is a table", segment=segment.name)
        error = append_refusal(
            segment.name,
            data_bytes=size,
            limit_bytes=self._log.append_max_bytes,
            event_number=request.event_number,
            event_count=request.event_count,
            previous=request.previous,
            expected_offset=request.expected_offset,
            sealed=segment.next_sealed,
            length=segment.next_length,
            stored=state.pending,
            forgotten=self._writers.is_refused(state, request.writer.int),
        ) or self._no_room(size)
        gate = segment.gate
        if error is None and gate is not None:
            events = request.event_count if size else 0
            error = gate.take(segment, size, events, single=request.pieces is None)
            if error is not None and request.pieces is None:
                self._telemetry.add("quota_refusals")
        return error

    def _no_room(self, size: int) -> StorageFullError | ThrottledError | None:
        memory = self._memory
        held_bytes = memory.unflushed_bytes + memory.queued_bytes
        limit_bytes = memory.unflushed_limit_bytes
        if held_bytes + size <= limit_bytes and not self._log.shortage.is_known:
            return None  # The usual case: evaluating each rule costs as much as an append.
        full = self._log.shortage.refusal()
        throttled = None if full else append_throttled(held_bytes, limit_bytes=limit_bytes, adding_bytes=size)
        if throttled is not None and asyncio.get_running_loop().time() >= self._say_throttled_at:
            # The peer only sees a delay: log the reason here.
            self._say_throttled_at = asyncio.get_running_loop().time() + _SAY_THROTTLED_S
            _log.warning("appends wait: tier 2 does not keep up", extra={"container": self._index, **throttled.fields})
        return full or throttled

    def _park(self, request: Append, done: AppendDone) -> None:
        """The segment or writer is not in memory: load it, then decide, in order of submission."""
        error: PenstockError | None = self._offline()
        if error is None and self._parked_count >= self._max_parked:
            error = ThrottledError(
                "too many appends wait for their segment", resource="parked_appends", limit=self._parked_count
            )
        if error is not None:
            self._submit(refusal(None, error, done))
            return
        parked = self._parked.get(request.segment)
        if parked is None:
            parked = self._parked[request.segment] = deque()
            self._spawn(self._unpark(request.segment, parked), f"container-{self._index}-load")
        parked.append((request, done))
        self._parked_count += 1

    async def parked_decided(self, name: str) -> None:
        """Return once the appends that wait for the segment to load have been queued."""
        parked = self._parked.get(name)
        if parked is not None:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            parked.append((None, waking(waiter)))
            self._parked_count += 1
            await waiter

    def withdraw_parked(self) -> list[Done]:
        """Forget the appends that wait for their segment. The container is offline and refuses them."""
        withdrawn = [done for parked in self._parked.values() for _, done in parked]
        self._parked.clear()
        return withdrawn

    async def _unpark(self, name: str, parked: deque[tuple[Append | None, Done]]) -> None:
        while parked:
            request, done = parked[0]
            if request is None:
                parked.popleft()
                self._parked_count -= 1
                done(None)
                continue
            segment: Segment | None = None
            state: AttributeState | None = None
            error: PenstockError = SegmentNotFoundError("no such segment", segment=name)
            try:
                if (segment := await self._segments.find(name)) is not None:
                    with segment.pinned():
                        state = await self._segments.attribute(segment, request.writer.int)
            except PenstockError as failure:
                error = failure
            except OSError as failure:
                error = UnavailableError("metadata cannot be read", cause=repr(failure))
            if state is not None and segment is not None and not self._segments.is_current(segment):
                continue
            parked.popleft()
            self._parked_count -= 1
            if segment is None or state is None:
                self._submit(refusal(None, error, done))
            else:
                self._decide(segment, state, request, done)
        self._parked.pop(name, None)
