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
from penstock.ports.data.segments import Append, AppendDone, Appended
from penstock.ports.files import Buffer
from penstock.segmentstore.segment import AttributeState, Segment
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

    operations = 1
    """How many operations ``encode`` returns. They become durable together."""
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

    def encode(self) -> bytes | None:
        """The bytes before ``data`` in the frame, or None if nothing is written."""
        return None

    @property
    def data(self) -> Buffer:
        """The bytes after ``encode`` in the frame."""
        return b""

    def apply(self, steps: Transitions, address: int, now_ms: int) -> None:
        """Change durable state, and set the answer. Runs once the frame at ``address`` is durable."""

    def withdraw(self, memory: CacheMemory) -> None:
        """The operation will not happen: release what was reserved."""


class AppendMutation(Mutation):
    """An append, decided against pending state. The slots are read by the committer once per append."""

    __slots__ = ("_data", "_size", "count", "number", "offset", "state", "writer")

    vital = False

    def __init__(
        self, segment: Segment, state: AttributeState, request: Append, data: Buffer, done: AppendDone
    ) -> None:
        self.segment: Segment = segment
        self.other = None
        self.done = done
        self.answer = None
        self.state = state
        self._data = data
        self._size = size = len(data)
        self.size_bytes = codec.APPEND.size + size
        self.writer = request.writer.int
        self.number = request.event_number
        count = request.event_count
        if not size:
            count = 0
        elif segment.is_transient:
            # The segment holds one event, however many appends it takes.
            count = 0 if segment.next_events else 1
        self.count = count
        self.offset = segment.next_length
        segment.next_length += size
        segment.next_events += count
        state.pending = request.event_number

    @property
    def data(self) -> Buffer:
        return self._data

    def encode(self) -> bytes:
        return codec.encode_append_head(self.segment.uid, self.offset, self.writer, self.number, self.count, self._size)

    def apply(self, steps: Transitions, address: int, now_ms: int) -> None:
        segment = self.segment
        steps.memory.queued_bytes -= self._size
        steps.append(segment, self.offset, self._data, self.count, address, now_ms)
        if self._size:
            segment.cache.wrote(self.writer, self.number, self.state.durable)
        self.state.durable = self.number
        segment.dirty_attributes[self.writer] = None
        self.answer = Appended(end_offset=segment.length)

    def withdraw(self, memory: CacheMemory) -> None:
        memory.queued_bytes -= self._size


class OperationMutation(Mutation):
    """Any other operation: it is encoded at once. ``act`` takes the wall time and changes durable state."""

    __slots__ = ("_act", "_encoded", "operations", "vital")

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
        self.operations = 1 + len(before)
        self.size_bytes = len(self._encoded)
        self._act = act
        self.vital = isinstance(operation, _VITAL)

    def encode(self) -> bytes:
        return self._encoded

    def apply(self, steps: Transitions, address: int, now_ms: int) -> None:
        self.answer = self._act(now_ms)


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
    room = settings.frame_bytes
    while queue and len(batch) < settings.frame_operations:
        room -= queue[0].size_bytes
        if room < 0 and batch:
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
        head = mutation.encode()
        if head is None:
            continue
        count += mutation.operations
        runs[-1].append(head)
        data = mutation.data
        size_bytes += len(head) + len(data)
        if len(data) >= LARGE_BYTES:
            large.append(data)
            runs.append([])
        elif data:
            runs[-1].append(data)
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
