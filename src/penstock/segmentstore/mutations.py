"""Queued operations: their effect on state, their encoding, and their answer once durable."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

from penstock.codec.store import operation_frames as frames
from penstock.codec.store import operations as codec
from penstock.model.errors import PenstockError
from penstock.ports.data.segments import AppendDone, Appended
from penstock.ports.files import Buffer
from penstock.segmentstore.segment import AppendRow, AttributeState, Segment
from penstock.segmentstore.settings import StoreSettings
from penstock.segmentstore.tiering.tail_cache import LARGE_BYTES, CacheMemory
from penstock.segmentstore.transitions import Transitions

# Operations of truncation, retention and deletion, including the controller's table records of them; and leases, since
# reading is how data is consumed and then deleted.
_VITAL = (
    codec.TruncateOperation,
    codec.KeepOperation,
    codec.ReleaseOperation,
    codec.SealOperation,
    codec.DeleteOperation,
    codec.TableOperation,
    codec.AttributeOperation,
    codec.LeaseOperation,
    codec.ReleaseLeaseOperation,
)

Done = Callable[[Any], None]
"""Called once, with the result or a PenstockError."""


class Mutation:
    """One queued operation on a segment, or a no-op: a no-op is answered in order, once everything before it is
    durable."""

    __slots__ = ("answer", "done", "other", "segment", "size_bytes")

    vital = True
    """Whether it may use the room that the log keeps for the way out of a full disk."""

    def __init__(
        self, segment: Segment | None, done: Done, answer: object = None, *, other: Segment | None = None
    ) -> None:
        self.segment = segment
        self.other = other
        self.done = done
        self.answer = answer
        self.size_bytes = 0

    @property
    def operations(self) -> int:
        """How many operations ``pieces`` holds. They become durable together."""
        return 1

    @property
    def segments(self) -> Sequence[Segment]:
        """The segments that it changes."""
        return [segment for segment in (self.segment, self.other) if segment is not None]

    @property
    def has_large(self) -> bool:
        """Whether a piece is so large that a frame takes it without a copy."""
        return False

    def queued(self) -> None:
        """Count it as pending in its segments, until ``apply``."""
        for segment in self.segments:
            segment.pending_operations += 1

    def pieces(self) -> Sequence[Buffer]:
        """Its encoded operations in a frame, ``size_bytes`` in total; empty if nothing is written."""
        return ()

    def apply(self, steps: Transitions, address: int, now_ms: int, wake: dict[Segment, None]) -> None:
        """Change durable state, and set the answer. Runs once the frame at ``address`` is durable. Adds the segments at which
        reads wait to ``wake``."""
        for segment in self.segments:
            segment.pending_operations -= 1
            if segment.waiters:
                wake[segment] = None

    def withdraw(self, memory: CacheMemory) -> None:
        """The operation will not happen: release what was reserved."""


class AppendsMutation(Mutation):
    """Appends that were decided against pending state: one, or those of a client's frame. Its answer is the length of the
    segment after each."""

    __slots__ = ("_largest", "rows")

    vital = False

    def __init__(self, done: Done) -> None:
        super().__init__(None, done)
        self.rows: list[AppendRow] = []
        self._largest = 0

    def add(
        self, segment: Segment, state: AttributeState, writer: int, number: int, count: int, data: Buffer, size: int
    ) -> None:
        """Change pending state by one more append, of ``size`` bytes."""
        if not size:
            count = 0
        elif segment.is_transient:
            # The segment holds one event, however many appends it takes.
            count = 0 if segment.next_events else 1
        offset = segment.next_length
        self.rows.append((segment, state, writer, number, count, offset, data, size))
        self.size_bytes += codec.APPEND.size + size
        if size > self._largest:
            self._largest = size
        segment.next_length = offset + size
        segment.next_events += count
        segment.touched = True
        segment.pending_operations += 1
        state.pending = number

    @property
    def operations(self) -> int:
        return len(self.rows)

    @property
    def segments(self) -> Sequence[Segment]:
        return [row[0] for row in self.rows]

    @property
    def has_large(self) -> bool:
        return self._largest >= LARGE_BYTES

    def queued(self) -> None:
        """``add`` has counted them."""

    def pieces(self) -> Sequence[Buffer]:
        found: list[Buffer] = []
        encode = codec.encode_append_head
        for segment, _, writer, number, count, offset, data, size in self.rows:
            found += (encode(segment.uid, offset, writer, number, count, size), data)
        return found

    def apply(self, steps: Transitions, address: int, now_ms: int, wake: dict[Segment, None]) -> None:
        steps.memory.queued_bytes -= self._data_bytes
        self.answer = steps.appends(self.rows, address, now_ms)
        for row in self.rows:
            segment = row[0]
            segment.pending_operations -= 1
            if segment.waiters:
                wake[segment] = None

    @property
    def _data_bytes(self) -> int:
        return self.size_bytes - codec.APPEND.size * len(self.rows)

    def withdraw(self, memory: CacheMemory) -> None:
        memory.queued_bytes -= self._data_bytes


class OperationMutation(Mutation):
    """Any other operation: it is encoded at once. ``act`` takes the wall time and changes durable state."""

    __slots__ = ("_act", "_encoded", "_operations", "vital")

    def __init__(
        self,
        segment: Segment | None,
        operation: codec.Operation,
        act: Callable[[int], object],
        done: Done,
        *,
        other: Segment | None = None,
        before: Sequence[codec.Operation] = (),
    ) -> None:
        """``before``: operations that precede this one in the same frame; ``act`` performs them too."""
        super().__init__(segment, done, other=other)
        self._encoded = b"".join(map(codec.encode, (*before, operation)))
        self._operations = 1 + len(before)
        self.size_bytes = len(self._encoded)
        self._act = act
        self.vital = isinstance(operation, _VITAL)

    @property
    def operations(self) -> int:
        return self._operations

    def pieces(self) -> Sequence[Buffer]:
        return (self._encoded,)

    def apply(self, steps: Transitions, address: int, now_ms: int, wake: dict[Segment, None]) -> None:
        self.answer = self._act(now_ms)
        super().apply(steps, address, now_ms, wake)


def alone(done: AppendDone) -> Done:
    """The callback of an ``AppendsMutation`` that has one append."""

    def answered(outcome: Sequence[int] | PenstockError) -> None:
        done(outcome if isinstance(outcome, PenstockError) else Appended(end_offset=outcome[0]))

    return answered


def refusal(segment: Segment | None, error: PenstockError, done: Done) -> Mutation:
    """Deliver an error in order: it may depend on operations that are not durable yet."""
    return Mutation(segment, done, error)


def waking(waiter: asyncio.Future[None]) -> Done:
    """Resolve the future once all that was queued before is answered, unless its caller was cancelled."""

    def answered(_: object) -> None:
        if not waiter.done():
            waiter.set_result(None)

    return answered


def flat(data: Buffer) -> Buffer:
    """The same bytes, such that ``len`` counts bytes."""
    if type(data) is memoryview and (data.itemsize != 1 or data.ndim != 1 or not data.c_contiguous):
        return data.cast("B") if data.c_contiguous else data.tobytes()
    return data


def take_batch(queue: deque[Mutation], settings: StoreSettings) -> Sequence[Mutation]:
    """Take the mutations of the next frame from the queue, in order: at least one, and no more than the settings allow."""
    batch: list[Mutation] = []
    room, operations = settings.frame_bytes, settings.frame_operations
    while queue:
        room -= queue[0].size_bytes
        operations -= queue[0].operations
        if batch and (room < 0 or operations < 0):
            break
        batch.append(queue.popleft())
    return batch


def frame_parts(batch: Sequence[Mutation], container: int, now_ms: int) -> tuple[list[Buffer], int]:
    """The frame of a batch, and its size: runs of small pieces are joined, large data stay where they are. Small bytes are
    copied once: the first use of fresh memory costs several times a copy."""
    runs: list[list[Buffer]] = [[b""]]  # the frame's header comes first
    large: list[Buffer] = []
    count = size_bytes = 0
    for mutation in batch:
        pieces = mutation.pieces()
        if not pieces:
            continue
        count += mutation.operations
        size_bytes += mutation.size_bytes
        if not mutation.has_large:
            runs[-1] += pieces
            continue
        for piece in pieces:
            if len(piece) >= LARGE_BYTES:
                large.append(piece)
                runs.append([])
            else:
                runs[-1].append(piece)
    if not count:
        return [], 0
    header = runs[0][0] = frames.frame_header(container, count, now_ms)
    parts: list[Buffer] = []
    for run, data_between in zip_longest(runs, large):
        if run:
            parts.append(b"".join(run))
        if data_between is not None:
            parts.append(data_between)
    return parts, size_bytes + len(header)
