"""Appends of one container: decided against pending state, or parked until their segment is in memory."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
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
from penstock.ports.data.direct_appends import AppendsDone, FrameAppend
from penstock.ports.data.segments import NO_EVENT, Append, AppendDone, Appended, AppendedPart
from penstock.segmentstore.mutations import AppendsMutation, Done, Mutation, alone, flat, refusal, waking
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


def _answer_one(done: AppendsDone, place: int, outcome: Appended | PenstockError) -> None:
    """Answer one of several appends that was decided by itself."""
    done((place,), (outcome.end_offset,) if isinstance(outcome, Appended) else outcome)


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
        self._settings = parts.settings
        self._writers = writers
        self._submit = submit
        self._offline = offline
        self._spawn = spawn
        self._parked: dict[str, deque[tuple[Append | PenstockError | None, Done]]] = {}
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

    def submit_many(self, appends: Sequence[FrameAppend], places: Sequence[int], done: AppendsDone) -> None:
        """See ``ServedReads.submit_appends``; ``places``: of the appends that belong to this container."""
        memory, settings = self._memory, self._settings
        # If all fit together, none has to be checked alone.
        room_bytes = memory.unflushed_limit_bytes - memory.unflushed_bytes - memory.queued_bytes
        fit_together = (
            not self._log.shortage.is_known and sum([len(appends[place][2]) for place in places]) <= room_bytes
        )
        taken: list[int] = []
        mutation = AppendsMutation(partial(done, taken))
        for place in places:
            name, writer, data, number, count, previous = appends[place]
            key, size = writer.int, len(data)
            segment = self._segments.pending(name)
            state = None
            if segment is not None and not (self._parked and name in self._parked):
                state = segment.attributes.get(key)
            error: PenstockError | None = None
            if segment is not None and state is not None:
                error = self._refusal(segment, state, key, size, number, count, previous)
                if error is None and not fit_together:
                    error = self._no_room(size)
                if error is None and segment.gate is not None:
                    error = self._limited(segment, size, count)
            if taken and (
                error is not None
                or state is None
                or mutation.size_bytes + size > settings.frame_bytes
                or len(taken) >= settings.frame_operations
            ):
                # Answers come in order: first those of the appends before this one.
                self._submit(mutation)
                taken = []
                mutation = AppendsMutation(partial(done, taken))
            if segment is None or state is None:
                request = Append(
                    segment=name, writer=writer, data=data, event_number=number, event_count=count, previous=previous
                )
                self._park(request, partial(_answer_one, done, place))
                continue
            if error is not None:
                self._submit(refusal(segment, error, partial(done, (place,))))
                continue
            taken.append(place)
            memory.queued_bytes += size
            mutation.add(segment, state, key, number, count, data, size)
        if taken:
            self._submit(mutation)

    def _decide(self, segment: Segment, state: AttributeState, request: Append, done: AppendDone) -> None:
        data = flat(request.data)
        size, single = len(data), request.pieces is None
        number, count = request.event_number, request.event_count
        key = request.writer.int
        error = self._refusal(segment, state, key, size, number, count, request.previous, request.expected_offset)
        error = error or self._no_room(size)
        if error is None and segment.gate is not None:
            error = self._limited(segment, size, count, single=single)
        if error is None:
            self._memory.queued_bytes += size
            mutation = AppendsMutation(alone(done))
            mutation.add(segment, state, key, number, count, data, size)
            self._submit(mutation)
        elif single:
            self._submit(refusal(segment, error, done))
        else:
            self._decide_each(segment, state, request, done)

    def _decide_each(self, segment: Segment, state: AttributeState, request: Append, done: AppendDone) -> None:
        """Some appends of the run are refused: store those before. None behind the first refusal continues the writer's
        number, so none can be stored."""
        answers = _SplitRun(request, done)
        for single in request.singles():
            self._decide(segment, state, single, answers.of(single.event_number))
            if state.pending != single.event_number:
                return

    def _refusal(
        self,
        segment: Segment,
        state: AttributeState,
        writer: int,
        size: int,
        number: int,
        count: int,
        previous: int,
        expected: int | None = None,
    ) -> PenstockError | None:
        """Why the append does not fit the segment's pending state."""
        if segment.table is not None:
            return InvalidArgumentError("segment is a table", segment=segment.name)
        return append_refusal(
            segment.name,
            data_bytes=size,
            limit_bytes=self._log.append_max_bytes,
            event_number=number,
            event_count=count,
            previous=previous,
            expected_offset=expected,
            sealed=segment.next_sealed,
            length=segment.next_length,
            stored=state.pending,
            forgotten=state.pending == NO_EVENT and self._writers.is_refused(state, writer),
        )

    def _limited(self, segment: Segment, size: int, count: int, *, single: bool = True) -> PenstockError | None:
        """Why a limit refuses the append; None: it has been counted. If a run is not refused as a whole,
        none of its appends would be refused alone."""
        gate = segment.gate
        error = None if gate is None else gate.take(segment, size, count if size else 0, single=single)
        if error is not None and single:
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
        if error is None and self._parked_count >= self._settings.max_parked_appends:
            error = ThrottledError(
                "too many appends wait for their segment", resource="parked_appends", limit=self._parked_count
            )
        parked = self._parked.get(request.segment)
        if parked is None and error is not None:
            self._submit(refusal(None, error, done))
            return
        if parked is None:
            parked = self._parked[request.segment] = deque()
            self._spawn(self._unpark(request.segment, parked), f"container-{self._index}-load")
        # A refusal keeps its place, without the data: the writer's earlier appends must be answered before it.
        parked.append((error or request, done))
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

    async def _unpark(self, name: str, parked: deque[tuple[Append | PenstockError | None, Done]]) -> None:
        while parked:
            request, done = parked[0]
            if request is None or isinstance(request, PenstockError):
                parked.popleft()
                self._parked_count -= 1
                if request is None:
                    done(None)
                else:
                    self._submit(refusal(None, request, done))
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
