"""Calls that change plain segments: facts gathered, decided against pending state, queued, awaited."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn
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
from penstock.ports.segment_service import AttributeChange
from penstock.segmentstore import transitions
from penstock.segmentstore.mutations import Mutation, OperationMutation, refusal
from penstock.segmentstore.segment import KIND_PLAIN, AttributeState, Segment

if TYPE_CHECKING:
    from penstock.segmentstore.container import Container

NAME_MAX_BYTES = 4096


class Answer:
    """A future as the ``done`` of a mutation."""

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


async def refuse(container: Container, segment: Segment | None, error: PenstockError) -> NoReturn:
    """Raise the error once everything it may rest on is durable."""
    answer = Answer()
    container.submit(refusal(segment, error, answer))
    await answer.future
    raise InternalError("refusal was answered without an error", error=repr(error))


async def agree(container: Container, segment: Segment | None, result: object) -> Any:
    """Return the result once everything it may rest on is durable."""
    answer = Answer()
    container.submit(Mutation(segment, answer, result))
    return await answer.future


async def create(
    container: Container, name: str, *, kind: int = KIND_PLAIN, key_bytes: int = 0, rollover_bytes: int = 0
) -> None:
    """See ``SegmentService.create_segment`` and ``create_table``."""
    if not 0 < len(name.encode()) <= NAME_MAX_BYTES:
        raise InvalidArgumentError("segment name has no legal length", limit_bytes=NAME_MAX_BYTES)
    if rollover_bytes < 0:
        raise InvalidArgumentError("rollover size is negative", rollover_bytes=rollover_bytes)
    existing = await container.segments.find(name)
    if existing is not None:
        await refuse(container, existing, AlreadyExistsError("segment exists", segment=name))
    await submit_creation(container, name, kind=kind, key_bytes=key_bytes, rollover_bytes=rollover_bytes).future


def submit_creation(
    container: Container, name: str, *, kind: int = KIND_PLAIN, key_bytes: int = 0, rollover_bytes: int = 0
) -> Answer:
    """Create a segment of which it is known that there is none."""
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
    segment = Segment(container.new_uid(), record, container.memory)
    operation = codec.CreateOperation(
        uid=segment.uid, kind=kind, key_bytes=key_bytes, rollover_bytes=rollover_bytes, name=name
    )
    prepared = Prepared(container, segment, operation, lambda now_ms: transitions.create(container, segment, now_ms))
    container.segments.announce(segment)
    prepared.submit()
    return prepared.answer


class Prepared:
    """An operation on a segment that could be encoded, and is not queued yet. Raises InvalidArgumentError if it cannot be
    encoded, or if no frame of the log can hold it. So no argument of a caller can end the container.

    It is created before pending state changes. Otherwise an operation that cannot be written could change pending state, and
    later decisions would depend on state that the log never holds. No await is allowed between the change and ``submit``.
    """

    __slots__ = ("_container", "_mutation", "answer")

    def __init__(
        self,
        container: Container,
        segment: Segment,
        operation: codec.Operation,
        act: Callable[[int], object],
        *,
        other: Segment | None = None,
        before: Sequence[codec.Operation] = (),
    ) -> None:
        self.answer = Answer()
        self._container = container
        try:
            self._mutation = OperationMutation(segment, operation, act, self.answer, other=other, before=before)
        except (struct.error, OverflowError, UnicodeEncodeError) as error:
            raise InvalidArgumentError(
                "operation has a value that cannot be stored", segment=segment.name, reason=str(error)
            ) from error
        limit_bytes = container.log.operation_max_bytes
        if self._mutation.size_bytes > limit_bytes:
            raise InvalidArgumentError(
                "operation is larger than one log frame; split it",
                segment=segment.name,
                size_bytes=self._mutation.size_bytes,
                limit_bytes=limit_bytes,
            )

    def submit(self) -> asyncio.Future[Any]:
        """Queue the operation. The future resolves to its answer."""
        self._container.submit(self._mutation)
        return self.answer.future


async def find(container: Container, name: str) -> Segment:
    """The segment as queued operations leave it. Raises SegmentNotFoundError, once that is durable."""
    segment = await container.segments.find(name)
    if segment is None:
        await refuse(container, None, SegmentNotFoundError("no such segment", segment=name))
    return segment


async def setup_append(container: Container, name: str, writer: UUID) -> int:
    # What the writer sent before, perhaps on a connection that is lost, is decided first: told that an append is not
    # there, it must not be applied afterwards.
    await container.parked_decided(name)
    while True:
        segment = (await find(container, name)).require_plain()
        with segment.pinned():
            state = await container.segments.attribute(segment, writer.int)
        if container.segments.is_current(segment):
            await agree(container, segment, None)
            container.writers.check(name, state, writer.int)
            return state.durable


async def seal(container: Container, name: str) -> int:
    segment = (await find(container, name)).require_plain()
    if segment.next_sealed:
        return int(await agree(container, segment, segment.next_length))
    operation = codec.SealOperation(uid=segment.uid)
    prepared = Prepared(container, segment, operation, lambda now_ms: transitions.seal(container, segment, now_ms))
    segment.next_sealed = True
    return int(await prepared.submit())


async def truncate(container: Container, name: str, offset: int, *, keep: bool = False) -> None:
    """See ``SegmentService.truncate``."""
    segment = (await find(container, name)).require_plain()
    if offset > segment.next_length or offset < 0:
        error = InvalidArgumentError(
            "truncation lies outside the segment", segment=name, offset=offset, length=segment.next_length
        )
        await refuse(container, segment, error)
    if offset <= segment.next_start:
        await agree(container, segment, None)
        return
    operation: codec.Operation
    if keep:
        operation = codec.KeepOperation(uid=segment.uid, offset=offset)
        prepared = Prepared(container, segment, operation, lambda _: transitions.keep(container, segment, offset))
    else:
        operation = codec.TruncateOperation(uid=segment.uid, offset=offset)
        prepared = Prepared(container, segment, operation, lambda _: transitions.truncate(container, segment, offset))
        segment.next_kept = offset
    segment.next_start = offset
    await prepared.submit()


async def release(container: Container, name: str, offset: int) -> None:
    """See ``SegmentService.release``."""
    segment = (await find(container, name)).require_plain()
    if offset > segment.next_start:
        error = InvalidArgumentError(
            "only what was truncated is released", segment=name, offset=offset, start_offset=segment.next_start
        )
        await refuse(container, segment, error)
    if offset <= segment.next_kept:
        await agree(container, segment, None)
        return
    operation = codec.ReleaseOperation(uid=segment.uid, offset=offset)
    prepared = Prepared(container, segment, operation, lambda _: transitions.release(container, segment, offset))
    segment.next_kept = offset
    await prepared.submit()


async def restore(container: Container, name: str, offset: int) -> int:
    """See ``SegmentService.restore``."""
    segment = (await find(container, name)).require_plain()
    if offset < 0:
        raise InvalidArgumentError("offset is negative", segment=name, offset=offset)
    start = max(offset, segment.next_kept)
    if start >= segment.next_start:
        return int(await agree(container, segment, segment.next_start))
    operation = codec.RestoreOperation(uid=segment.uid, offset=start)
    prepared = Prepared(container, segment, operation, lambda _: transitions.restore(container, segment, start))
    segment.next_start = start
    return int(await prepared.submit())


async def delete(container: Container, name: str) -> None:
    segment = (await find(container, name)).require_plain()
    await remove(container, segment)


async def remove(container: Container, segment: Segment) -> None:
    """Delete a segment or a table."""
    operation = codec.DeleteOperation(uid=segment.uid)
    prepared = Prepared(container, segment, operation, lambda _: transitions.delete(container, segment))
    container.segments.doom(segment)
    await prepared.submit()


async def merge(
    container: Container, target_name: str, source_name: str, updates: Sequence[AttributeChange] = ()
) -> int:
    """See ``LocalSegmentService.merge``."""
    while True:
        source = await container.segments.find(source_name)
        # Pinned, so that looking for one of them does not make the other leave memory.
        with source.pinned() if source is not None else nullcontext():
            target = (await find(container, target_name)).require_plain()
            merged = False
            with target.pinned():
                if source is None:
                    merged = await _was_merged(container, target, source_name)
                states = {
                    item.attribute: await container.segments.attribute(target, item.attribute.int) for item in updates
                }
        # After the awaits either segment may be deleted, and an attribute may have left memory.
        known = all(target.attributes.get(key.int) is state for key, state in states.items())
        if (
            known
            and container.segments.is_current(target)
            and (source is None or container.segments.is_current(source))
        ):
            break
    if source is None:
        return await _merge_again(container, target, source_name, known=merged)
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
        await refuse(container, target, error)
    return int(await _submit_merge(container, target, source, states, updates).future)


def _unmet(states: Mapping[UUID, AttributeState], updates: Sequence[AttributeChange]) -> PenstockError | None:
    """The error of the first change that is not allowed, each applied after the ones before it."""
    values = {attribute: state.pending for attribute, state in states.items()}
    for item in updates:
        if item.expected is not None and values[item.attribute] != item.expected:
            return ConditionFailedError("attribute", expected=item.expected, actual=values[item.attribute])
        values[item.attribute] = item.value
    return None


async def merge_run(container: Container, target_name: str, source_names: Sequence[str]) -> int:
    """See ``SegmentStore.merge_run``."""
    while True:
        found: list[Segment | None] = []
        with ExitStack() as stack:
            for name in source_names:
                source = await container.segments.find(name)
                found.append(source)
                if source is None:
                    break
                # Otherwise the lookups of the others could evict it.
                stack.enter_context(source.pinned())
            target = (await find(container, target_name)).require_plain()
        if container.segments.is_current(target) and all(
            source is None or container.segments.is_current(source) for source in found
        ):
            break
    # From here on nothing is awaited until all have taken their places.
    answers: list[Answer] = []
    for source in found:
        if source is None or source is target or source.table is not None or source.next_start or target.next_sealed:
            break
        if source.next_gone:
            break  # The source is named twice, and is already merged.
        answers.append(_submit_merge(container, target, source))
    for answer in answers:
        await answer.future
    return len(answers)


def _submit_merge(
    container: Container,
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
            transitions.attribute(container, target, states[item.attribute], item.attribute.int, item.value)
        return transitions.merge(container, target, source, offset, now_ms)

    prepared = Prepared(container, target, operation, act, other=source, before=changes)
    for item in updates:
        states[item.attribute].pending = item.value
        target.attribute_queued(item.attribute.int)
    target.next_length += source.next_length
    target.next_events += source.next_events
    if target.gate is not None:
        target.gate.count(target, source.next_length, source.next_events)
    container.segments.doom(source)
    prepared.submit()
    return prepared.answer


async def _merge_again(container: Container, target: Segment, source: str, *, known: bool) -> int:
    """The source is gone: merged already, by a call whose answer was lost or is still on its way; or never there."""
    with target.pinned():
        await agree(container, target, None)
        if known or await _was_merged(container, target, source):
            return target.length
    raise SegmentNotFoundError("no such segment", segment=source)


async def _was_merged(container: Container, target: Segment, source: str) -> bool:
    key = records.uid_key(records.TAG_MERGED, container.index, target.uid, source.encode())
    try:
        return await container.rows.get(key) is not None
    except DamagedRowError:
        return True  # The row's presence is the answer; its value is a time.


async def get_attribute(container: Container, name: str, attribute: UUID) -> int:
    while True:
        segment = (await container.segments.find_visible(name)).require_plain()
        with segment.pinned():
            state = await container.segments.attribute(segment, attribute.int)
            if not segment.gone:
                return state.durable


async def update_attribute(
    container: Container, name: str, attribute: UUID, value: int, *, expected: int | None
) -> bool:
    key = attribute.int
    while True:
        segment = (await find(container, name)).require_plain()
        with segment.pinned():
            state = await container.segments.attribute(segment, key)
        if container.segments.is_current(segment):
            break
    if expected is not None and state.pending != expected:
        return bool(await agree(container, segment, False))
    operation = codec.AttributeOperation(uid=segment.uid, attribute=key, value=value)

    def act(_now_ms: int) -> object:
        segment.attribute_set(key)
        return transitions.attribute(container, segment, state, key, value)

    prepared = Prepared(container, segment, operation, act)
    state.pending = value
    segment.attribute_queued(key)
    return bool(await prepared.submit())
