"""Calls that change plain segments: gather facts, decide against pending state, queue, await."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from types import MappingProxyType
from typing import Any, NoReturn, Protocol
from uuid import UUID

from penstock.codec.store import operations as codec
from penstock.codec.store import rows as records
from penstock.model.errors import (
    AlreadyExistsError,
    ConditionFailedError,
    DamagedRowError,
    InternalError,
    InvalidArgumentError,
    PenstockError,
    SegmentNotFoundError,
    SegmentSealedError,
)
from penstock.ports.data.attributes import AttributeChange
from penstock.ports.data.direct_appends import AppendsDone, FrameAppend, SubmitAppend
from penstock.ports.data.segments import Append, Appended
from penstock.segmentstore.calls.appends import Appends
from penstock.segmentstore.mutations import Mutation, OperationMutation, refusal
from penstock.segmentstore.segment import KIND_PLAIN, AttributeState, Segment
from penstock.segmentstore.state import ContainerState
from penstock.segmentstore.transitions import Transitions
from penstock.segmentstore.writer_memory import WriterMemory

NAME_MAX_BYTES = 4096


class Operations(Protocol):
    """A container, as calls see it: its state, and the queue of operations that change it."""

    @property
    def state(self) -> ContainerState: ...

    @property
    def steps(self) -> Transitions: ...

    @property
    def writers(self) -> WriterMemory: ...

    def submit(self, mutation: Mutation) -> None:
        """Queue an operation. It is answered exactly once, after all operations queued before it."""
        ...

    async def parked_decided(self, name: str) -> None:
        """Return once the appends that wait for the segment to load have been queued."""
        ...


class Answer:
    """A future that serves as the ``done`` of a mutation."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def __call__(self, result: object) -> None:
        if self.future.done():
            return  # The caller was cancelled.
        if isinstance(result, PenstockError):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)


def submit_to_each(containers: Sequence[Appends], appends: Sequence[FrameAppend], done: AppendsDone) -> None:
    """Pass the appends to their containers. ``containers`` has one for each append."""
    places: dict[Appends, list[int]] = {one: [] for one in dict.fromkeys(containers)}
    for place, one in enumerate(containers):
        places[one].append(place)
    for one, some in places.items():
        one.submit_many(appends, some, done)


async def append(submit: SubmitAppend, request: Append) -> Appended:
    """See ``Segments.append``."""
    answer = Answer()
    submit(request, answer)
    appended: Appended = await answer.future
    return appended


async def refuse(operations: Operations, segment: Segment | None, error: PenstockError) -> NoReturn:
    """Raise the error once everything it may depend on is durable."""
    answer = Answer()
    operations.submit(refusal(segment, error, answer))
    await answer.future
    raise InternalError("refusal was answered without an error", error=repr(error))


async def agree(operations: Operations, segment: Segment | None, result: object) -> Any:
    """Return the result once everything it may depend on is durable."""
    answer = Answer()
    operations.submit(Mutation(segment, answer, result))
    return await answer.future


async def create(
    operations: Operations, name: str, *, kind: int = KIND_PLAIN, key_bytes: int = 0, rollover_bytes: int = 0
) -> None:
    """See ``SegmentService.create_segment`` and ``create_table``."""
    if not 0 < len(name.encode()) <= NAME_MAX_BYTES:
        raise InvalidArgumentError("segment name is empty or too long", limit_bytes=NAME_MAX_BYTES)
    if rollover_bytes < 0:
        raise InvalidArgumentError("rollover size is negative", rollover_bytes=rollover_bytes)
    existing = await operations.state.segments.find(name)
    if existing is not None:
        await refuse(operations, existing, AlreadyExistsError("segment exists", segment=name))
    await submit_creation(operations, name, kind=kind, key_bytes=key_bytes, rollover_bytes=rollover_bytes).future


def submit_creation(
    operations: Operations, name: str, *, kind: int = KIND_PLAIN, key_bytes: int = 0, rollover_bytes: int = 0
) -> Answer:
    """Create a segment that is known not to exist."""
    record = records.SegmentRecord(
        name=name,
        kind=kind,
        key_bytes=key_bytes,
        rollover_bytes=rollover_bytes,
        start_offset=0,
        length=0,
        sealed=False,
        modified_ms=0,
        event_count=0,
        freed_bytes=0,
        entry_count=0,
        kept_offset=0,
    )
    segment = Segment(operations.state.new_uid(), record, operations.state.memory)
    operation = codec.CreateOperation(
        uid=segment.uid, kind=kind, key_bytes=key_bytes, rollover_bytes=rollover_bytes, name=name
    )
    prepared = Prepared(operations, segment, operation, lambda now_ms: operations.steps.create(segment, now_ms))
    operations.state.segments.announce(segment)
    prepared.submit()
    return prepared.answer


class Prepared:
    """An encoded operation on a segment that is not queued yet. Raises InvalidArgumentError if it cannot be encoded or
    does not fit into a log frame. So no caller's argument can stop the container.

    It is created before pending state changes. Otherwise an operation that cannot be written could change pending state, and
    later decisions would depend on state that the log never holds. No await is allowed between the change and ``submit``.
    """

    __slots__ = ("_mutation", "_operations", "answer")

    def __init__(
        self,
        operations: Operations,
        segment: Segment,
        operation: codec.Operation,
        act: Callable[[int], object],
        *,
        other: Segment | None = None,
        before: Sequence[codec.Operation] = (),
    ) -> None:
        self.answer = Answer()
        self._operations = operations
        try:
            self._mutation = OperationMutation(segment, operation, act, self.answer, other=other, before=before)
        except (struct.error, OverflowError, UnicodeEncodeError) as error:
            raise InvalidArgumentError(
                "operation has a value that cannot be stored", segment=segment.name, reason=str(error)
            ) from error
        limit_bytes = operations.state.log.operation_max_bytes
        if self._mutation.size_bytes > limit_bytes:
            raise InvalidArgumentError(
                "operation is larger than one log frame; split it",
                segment=segment.name,
                size_bytes=self._mutation.size_bytes,
                limit_bytes=limit_bytes,
            )

    def submit(self) -> asyncio.Future[Any]:
        """Queue the operation. The future resolves to its answer."""
        self._operations.submit(self._mutation)
        return self.answer.future


async def find(operations: Operations, name: str) -> Segment:
    """The segment as queued operations leave it. Raises SegmentNotFoundError, once that is durable."""
    segment = await operations.state.segments.find(name)
    if segment is None:
        await refuse(operations, None, SegmentNotFoundError("no such segment", segment=name))
    return segment


async def setup_append(operations: Operations, name: str, writer: UUID) -> int:
    # First decide what the writer sent before, perhaps on a lost connection: an append must not be applied after we
    # reported that it is missing.
    await operations.parked_decided(name)
    while True:
        segment = (await find(operations, name)).require_plain()
        with segment.pinned():
            state = await operations.state.segments.attribute(segment, writer.int)
        if operations.state.segments.is_current(segment):
            await agree(operations, segment, None)
            operations.writers.check(name, state, writer.int)
            return state.durable


async def seal(operations: Operations, name: str) -> int:
    segment = (await find(operations, name)).require_plain()
    if segment.next_sealed:
        return int(await agree(operations, segment, segment.next_length))
    operation = codec.SealOperation(uid=segment.uid)
    prepared = Prepared(operations, segment, operation, lambda now_ms: operations.steps.seal(segment, now_ms))
    segment.next_sealed = True
    return int(await prepared.submit())


async def truncate(operations: Operations, name: str, offset: int, *, keep: bool = False) -> None:
    """See ``SegmentService.truncate``."""
    segment = (await find(operations, name)).require_plain()
    if offset > segment.next_length or offset < 0:
        error = InvalidArgumentError(
            "truncation lies outside the segment", segment=name, offset=offset, length=segment.next_length
        )
        await refuse(operations, segment, error)
    if offset <= segment.next_start:
        await agree(operations, segment, None)
        return
    operation: codec.Operation
    if keep:
        operation = codec.KeepOperation(uid=segment.uid, offset=offset)
        prepared = Prepared(operations, segment, operation, lambda _: operations.steps.keep(segment, offset))
    else:
        operation = codec.TruncateOperation(uid=segment.uid, offset=offset)
        prepared = Prepared(operations, segment, operation, lambda _: operations.steps.truncate(segment, offset))
        segment.next_kept = offset
    segment.next_start = offset
    await prepared.submit()


async def release(operations: Operations, name: str, offset: int) -> None:
    """See ``SegmentService.release``."""
    segment = (await find(operations, name)).require_plain()
    if offset > segment.next_start:
        error = InvalidArgumentError(
            "only truncated bytes can be released", segment=name, offset=offset, start_offset=segment.next_start
        )
        await refuse(operations, segment, error)
    if offset <= segment.next_kept:
        await agree(operations, segment, None)
        return
    operation = codec.ReleaseOperation(uid=segment.uid, offset=offset)
    prepared = Prepared(operations, segment, operation, lambda _: operations.steps.release(segment, offset))
    segment.next_kept = offset
    await prepared.submit()


async def restore(operations: Operations, name: str, offset: int) -> int:
    """See ``SegmentService.restore``."""
    segment = (await find(operations, name)).require_plain()
    if offset < 0:
        raise InvalidArgumentError("offset is negative", segment=name, offset=offset)
    start = max(offset, segment.next_kept)
    if start >= segment.next_start:
        return int(await agree(operations, segment, segment.next_start))
    operation = codec.RestoreOperation(uid=segment.uid, offset=start)
    prepared = Prepared(operations, segment, operation, lambda _: operations.steps.restore(segment, start))
    segment.next_start = start
    return int(await prepared.submit())


async def delete(operations: Operations, name: str) -> None:
    segment = (await find(operations, name)).require_plain()
    await remove(operations, segment)


async def remove(operations: Operations, segment: Segment) -> None:
    """Delete a segment or a table."""
    operation = codec.DeleteOperation(uid=segment.uid)
    prepared = Prepared(operations, segment, operation, lambda _: operations.steps.delete(segment))
    operations.state.segments.announce_removal(segment)
    await prepared.submit()


async def merge(
    operations: Operations, target_name: str, source_name: str, updates: Sequence[AttributeChange] = ()
) -> int:
    """See ``LocalSegmentService.merge``."""
    while True:
        source = await operations.state.segments.find(source_name)
        # Pinned, so that loading one of them does not evict the other.
        with source.pinned() if source is not None else nullcontext():
            target = (await find(operations, target_name)).require_plain()
            merged = False
            with target.pinned():
                if source is None:
                    merged = await _was_merged(operations, target, source_name)
                states = {
                    item.attribute: await operations.state.segments.attribute(target, item.attribute.int)
                    for item in updates
                }
        # After the awaits either segment may be deleted, and an attribute may have left memory.
        known = all(target.attributes.get(key.int) is state for key, state in states.items())
        if (
            known
            and operations.state.segments.is_current(target)
            and (source is None or operations.state.segments.is_current(source))
        ):
            break
    if source is None:
        return await _merge_again(operations, target, source_name, known=merged)
    source.require_plain()
    error: PenstockError | None = None
    if target is source:
        error = InvalidArgumentError("segment cannot be merged into itself", segment=target_name)
    elif target.next_sealed:
        error = SegmentSealedError("segment is sealed", segment=target_name, length_bytes=target.next_length)
    elif source.next_start > 0:
        error = InvalidArgumentError("truncated segment cannot be merged", segment=source_name)
    else:
        error = _unmet(states, updates)
    if error is not None:
        await refuse(operations, target, error)
    return int(await _submit_merge(operations, target, source, states, updates).future)


def _unmet(states: Mapping[UUID, AttributeState], updates: Sequence[AttributeChange]) -> PenstockError | None:
    """The error of the first change that is not allowed, each applied after the ones before it."""
    values = {attribute: state.pending for attribute, state in states.items()}
    for item in updates:
        if item.expected is not None and values[item.attribute] != item.expected:
            return ConditionFailedError("attribute", expected=item.expected, actual=values[item.attribute])
        values[item.attribute] = item.value
    return None


async def merge_run(operations: Operations, target_name: str, source_names: Sequence[str]) -> int:
    """See ``SegmentStore.merge_run``."""
    while True:
        found: list[Segment | None] = []
        with ExitStack() as stack:
            for name in source_names:
                source = await operations.state.segments.find(name)
                found.append(source)
                if source is None:
                    break
                # Otherwise the lookups of the others could evict it.
                stack.enter_context(source.pinned())
            target = (await find(operations, target_name)).require_plain()
        if operations.state.segments.is_current(target) and all(
            source is None or operations.state.segments.is_current(source) for source in found
        ):
            break
    # From here on, no await until all are queued.
    answers: list[Answer] = []
    for source in found:
        if source is None or source is target or source.table is not None or source.next_start or target.next_sealed:
            break
        if source.next_gone:
            break  # The source is named twice, and is already merged.
        answers.append(_submit_merge(operations, target, source))
    for answer in answers:
        await answer.future
    return len(answers)


def _submit_merge(
    operations: Operations,
    target: Segment,
    source: Segment,
    states: Mapping[UUID, AttributeState] = MappingProxyType({}),
    updates: Sequence[AttributeChange] = (),
) -> Answer:
    offset = target.next_length
    operation = codec.MergeOperation(uid=target.uid, source=source.uid, offset=offset, length=source.next_length)
    changes = [
        codec.AttributeOperation(uid=target.uid, attribute=item.attribute.int, value=item.value) for item in updates
    ]

    def act(now_ms: int) -> object:
        for item in updates:
            target.attribute_set(item.attribute.int)
            operations.steps.attribute(target, states[item.attribute], item.attribute.int, item.value)
        return operations.steps.merge(target, source, offset, now_ms)

    prepared = Prepared(operations, target, operation, act, other=source, before=changes)
    for item in updates:
        states[item.attribute].pending = item.value
        target.attribute_queued(item.attribute.int)
    target.next_length += source.next_length
    target.next_events += source.next_events
    if target.gate is not None:
        target.gate.count(target, source.next_length, source.next_events)
    operations.state.segments.announce_removal(source)
    prepared.submit()
    return prepared.answer


async def _merge_again(operations: Operations, target: Segment, source: str, *, known: bool) -> int:
    """The source is missing: already merged, by a call whose answer was lost or is still in flight; or it never
    existed."""
    with target.pinned():
        await agree(operations, target, None)
        if known or await _was_merged(operations, target, source):
            return target.length
    raise SegmentNotFoundError("no such segment", segment=source)


async def _was_merged(operations: Operations, target: Segment, source: str) -> bool:
    key = records.uid_key(records.TAG_MERGED, operations.state.index, target.uid, source.encode())
    try:
        return await operations.state.rows.get(key) is not None
    except DamagedRowError:
        return True  # The row's presence is the answer; its value is a time.


async def get_attribute(operations: Operations, name: str, attribute: UUID) -> int:
    while True:
        segment = (await operations.state.segments.find_visible(name)).require_plain()
        with segment.pinned():
            state = await operations.state.segments.attribute(segment, attribute.int)
            if not segment.gone:
                return state.durable


async def update_attribute(
    operations: Operations, name: str, attribute: UUID, value: int, *, expected: int | None
) -> bool:
    key = attribute.int
    while True:
        segment = (await find(operations, name)).require_plain()
        with segment.pinned():
            state = await operations.state.segments.attribute(segment, key)
        if operations.state.segments.is_current(segment):
            break
    if expected is not None and state.pending != expected:
        return bool(await agree(operations, segment, False))
    operation = codec.AttributeOperation(uid=segment.uid, attribute=key, value=value)

    def act(_now_ms: int) -> object:
        segment.attribute_set(key)
        return operations.steps.attribute(segment, state, key, value)

    prepared = Prepared(operations, segment, operation, act)
    state.pending = value
    segment.attribute_queued(key)
    return bool(await prepared.submit())
