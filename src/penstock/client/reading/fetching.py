"""Reads several segments at once, ahead of the consumer of the blocks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field
from typing import TypeAlias, TypeVar

from penstock.client.moments import append_times
from penstock.client.reading.blanks import blank_events, without_erased
from penstock.client.reading.blocks import Block, BlockMemory
from penstock.client.retry import DEADLINE_S, RETRYABLE, Backoff, retrying
from penstock.client.tasks import TaskOwner
from penstock.codec.events import HEADER_BYTES, event_bounds, missing_bytes
from penstock.core.segments.erasure import covers
from penstock.model.errors import (
    CorruptDataError,
    InvalidArgumentError,
    PenstockError,
    SegmentNotFoundError,
    TruncatedError,
    UnsupportedError,
)
from penstock.model.names import StreamName, segment_name
from penstock.model.policies import LONG_MAX
from penstock.model.segments import SegmentId
from penstock.model.traces.spans import Kind, active, segment_attributes, spanning
from penstock.model.values.dataclass import dataclass
from penstock.ports import forks
from penstock.ports.data.segments import READ_MAX_BYTES, SegmentRead
from penstock.ports.data.service import SegmentService
from penstock.ports.rng import Rng

READ_BYTES = 1 << 20
READ_BYTES_MIN = 64 << 10
AHEAD_READS = 4
"""Further reads in flight per segment, beyond the one that is waited for, while its reader is behind the tail."""
MEMORY_BYTES = 64 << 20
"""Read-ahead limit of all segments of a reader together; with many segments, each reads less at a time, and less far
ahead."""
_RECYCLED_BLOCKS = 16
"""What a reader keeps for its next blocks, 18 MiB. Of more segments, the blocks that wait take fresh memory."""

T = TypeVar("T")
SegmentKey: TypeAlias = tuple[StreamName, SegmentId]


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """The segment has no more to read: it is sealed and read to its end, its limit is reached, or it was deleted with
    unread data (``truncated``)."""

    stream: StreamName
    segment: SegmentId
    offset: int
    at_limit: bool = False
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class SegmentFailure:
    """Reading the segment failed for good."""

    stream: StreamName
    segment: SegmentId
    error: Exception


Fetched: TypeAlias = Block | SegmentEnd | SegmentFailure


@dataclass(frozen=True, slots=True, eq=False)
class _Ahead:
    """A read in flight of ``offset <= byte < end``. A failure is stored as its result, because the read may never be
    used."""

    offset: int
    end: int
    answer: asyncio.Task[SegmentRead | Exception]


@dataclass(slots=True, eq=False)
class _Segment:
    """``offset``: the end of the last block. ``carry``: the beginning of an incomplete event at that offset. ``known``:
    the bytes before this offset can be read. ``ahead``: reads without gap or overlap, all before ``known``. ``runs``:
    blocks that were read but not returned yet; erased events lie between them."""

    key: SegmentKey
    offset: int
    limit: int | None
    room: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    carry: bytes = b""
    known: int = 0
    ahead: deque[_Ahead] = field(default_factory=deque)
    runs: deque[Block] = field(default_factory=deque)

    def forget_ahead(self) -> None:
        self.known = 0
        while self.ahead:
            self.ahead.pop().answer.cancel()


class SegmentFetcher:
    """Some reads per segment in flight and one block per segment waiting; blocks come in the order in which they arrived.

    At the tail of a segment one read waits for data. Behind the tail, reads are sent before their data is needed.

    Blocks of one segment come in order; there is no order between segments. Owns its tasks.
    """

    def __init__(
        self,
        segments: SegmentService,
        rng: Rng,
        *,
        skip_truncated: bool,
        append_times: bool = False,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._service = segments
        self._rng = rng
        self._skip = skip_truncated
        self._times = append_times
        self._deadline_s = deadline_s
        self._active: dict[SegmentKey, _Segment] = {}
        self._ready: deque[tuple[_Segment, Fetched]] = deque()
        self._arrived = asyncio.Event()
        self._crash: BaseException | None = None
        self._memory = BlockMemory(READ_BYTES, _RECYCLED_BLOCKS)
        self._tasks = TaskOwner(self._crashed)
        self._owner = forks.current()

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked child, and the reader belongs to its parent."""
        return self._owner is not forks.current()

    def add(self, stream: StreamName, segment: SegmentId, offset: int, limit: int | None = None) -> None:
        """Begin to read at ``offset``, up to ``limit``. Raises InvalidArgumentError for a segment that is being read."""
        key = (stream, segment)
        if key in self._active:
            raise InvalidArgumentError("segment is already being read", segment=segment_name(stream, segment))
        state = _Segment(key, offset, limit)
        state.room.set()
        self._active[key] = state
        state.task = self._tasks.start(self._fetch(state))

    def remove(self, stream: StreamName, segment: SegmentId) -> None:
        """Stop reading; blocks that wait are dropped. No error if it is not being read."""
        state = self._active.pop((stream, segment), None)
        if state is None:
            return
        if state.task is not None:
            state.task.cancel()
        state.forget_ahead()
        self._ready = deque(item for item in self._ready if item[0] is not state)

    def __contains__(self, key: SegmentKey) -> bool:
        return key in self._active

    @property
    def idle(self) -> bool:
        """Nothing is being read and nothing waits."""
        return not self._active and not self._ready

    def take(self) -> Fetched | None:
        """Return what arrived first, or None. Taking a block lets its segment read on; an end or failure removes it. Raises
        ForkedError in a forked child."""
        forks.check(self._owner)
        if self._crash is not None:
            raise self._crash
        if not self._ready:
            return None
        state, item = self._ready.popleft()
        if isinstance(item, Block):
            state.room.set()
        else:
            self._active.pop(state.key, None)
        return item

    def is_read(self, stream: StreamName, segment: SegmentId) -> bool:
        """Whether all blocks of the segment were taken, and only its end is left to take."""
        return any(
            state.key == (stream, segment) and isinstance(item, SegmentEnd) and not item.truncated
            for state, item in self._ready
        )

    async def arrived(self) -> None:
        """Return once ``take`` has something, or after ``wake``. Cancelling it is harmless."""
        if not self._ready and self._crash is None:
            self._arrived.clear()
            await self._arrived.wait()

    def wake(self) -> None:
        """Let ``arrived`` return."""
        self._arrived.set()

    async def close(self) -> None:
        if self.is_inherited:
            return
        await self._tasks.close()
        self._active.clear()
        self._ready.clear()
        self._memory.clear()

    def _crashed(self, error: BaseException) -> None:
        self._crash = error
        self._arrived.set()

    def _put(self, state: _Segment, item: Fetched) -> None:
        self._ready.append((state, item))
        self._arrived.set()

    async def _fetch(self, state: _Segment) -> None:
        try:
            while True:
                await state.room.wait()
                item = await self._next(state)
                state.room.clear()
                self._put(state, item)
                if not isinstance(item, Block):
                    return
        except Exception as error:  # noqa: BLE001 - every error is passed to the reader
            self._put(state, SegmentFailure(*state.key, error))
        finally:
            state.forget_ahead()

    async def _next(self, state: _Segment) -> Fetched:
        """The next block of whole events, or the end."""
        if state.runs:
            return state.runs.popleft()
        stream, segment = state.key
        name = segment_name(stream, segment)
        want = 0
        skipped = False
        while True:
            at = state.offset + len(state.carry)
            room = LONG_MAX if state.limit is None else state.limit - at
            if room <= 0 and not state.carry:
                return SegmentEnd(stream, segment, state.offset, at_limit=True)
            if room <= 0:
                raise CorruptDataError(
                    "the start or the end of the read lies inside an event", segment=name, offset=state.limit
                )
            size = min(max(self._unit_bytes, want), READ_MAX_BYTES, room)
            try:
                raw, ended = await self._read(state, name, at, size)
                bounds = event_bounds(raw, segment=name, offset=state.offset)
                block = Block(stream, segment, state.offset, raw, bounds)
                blank = blank_events(raw, bounds, torn=bool(state.carry))
                runs = [block] if not blank else without_erased(block, blank, await self._erased(name, block, blank))
            except TruncatedError as error:
                if not self._skip:
                    raise
                state.forget_ahead()
                state.offset, state.carry = error.start_offset, b""
                skipped = True
                continue
            except SegmentNotFoundError as error:
                if self._skip:
                    return SegmentEnd(stream, segment, state.offset, truncated=True)
                raise TruncatedError(
                    "the segment no longer exists: it was truncated or deleted",
                    segment=name,
                    start_offset=LONG_MAX,
                    offset=at,
                ) from error
            if ended and len(raw) == len(state.carry):
                if state.carry:
                    raise CorruptDataError("segment ends inside an event", segment=name, offset=state.offset)
                # A deleted stream that can be restored has empty segments: all that was unread is skipped.
                return SegmentEnd(stream, segment, state.offset, truncated=skipped)
            end = bounds[-1]
            if end == 0:
                state.carry = bytes(raw)
                want = missing_bytes(raw, 0)
                continue
            state.carry = bytes(raw[end:])
            state.offset += end
            if runs:
                if self._times:
                    await self._note_times(name, runs)
                state.runs.extend(runs[1:])
                return runs[0]

    async def _note_times(self, name: str, runs: Sequence[Block]) -> None:
        """Note on the blocks, which lie in this order, when their events were appended: one or two more requests."""
        start, end = runs[0].offset, runs[-1].end_offset
        try:
            chunks = await self._asked(lambda: self._service.chunk_ranges(name, start, end))
            # After the read, so the last append is not before that of an event that was read.
            info = await self._asked(lambda: self._service.info(name))
        except (SegmentNotFoundError, TruncatedError):
            return  # It was truncated since it was read: its times are no longer known.
        times = append_times(start, end, chunks, info.last_modified_ms)
        for run in runs:
            run.times = times

    async def _erased(self, name: str, block: Block, blank: Sequence[int]) -> Sequence[tuple[int, int]]:
        """The erased ranges of the block. The request is sent after the read, so it covers every event that was read as
        blank.

        Raises TruncatedError or SegmentNotFoundError if the data is gone since: treat it as gone before the read.
        """
        try:
            erased = await self._asked(lambda: self._service.erased_ranges(name, block.offset, block.end_offset))
        except UnsupportedError:
            return ()  # A store that cannot erase: the zeros are a writer's.
        starts = (block.offset + block.bounds[index] + HEADER_BYTES for index in blank)
        if not all(covers(erased, start, start + 1) for start in starts):
            info = await self._asked(lambda: self._service.info(name))
            if info.start_offset > block.offset:
                raise TruncatedError(
                    "events were truncated while they were read",
                    segment=name,
                    start_offset=info.start_offset,
                    offset=block.offset,
                )
        return erased

    async def _asked(self, call: Callable[[], Awaitable[T]]) -> T:
        return await retrying(call, self._rng, deadline_s=self._deadline_s)

    @property
    def _unit_bytes(self) -> int:
        return min(READ_BYTES, max(READ_BYTES_MIN, MEMORY_BYTES // (2 * max(1, len(self._active)))))

    async def _read(self, state: _Segment, name: str, offset: int, size: int) -> tuple[bytes | bytearray, bool]:
        """The available bytes from ``offset`` on, after the carried ones; and whether the segment ends with them."""
        backoff = Backoff(self._rng)
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._deadline_s
        before = state.carry
        while True:
            try:
                found = await self._answer(state, name, offset, size)
                count = sum(map(len, found.parts))
                if count:
                    await self._look_ahead(state, name, offset + count, at_tail=found.at_tail or found.end_of_segment)
            except RETRYABLE:
                if loop.time() > give_up_at:
                    raise
                await backoff.sleep()
                continue
            if count or found.end_of_segment:
                # The only copy: it joins the pieces of a split event, and releases the receive buffer.
                return self._memory.joined((before, *found.parts)), found.end_of_segment

    async def _answer(self, state: _Segment, name: str, offset: int, size: int) -> SegmentRead:
        """The read that was sent ahead, if there is one; else a new read up to the start of those sent ahead."""
        if state.ahead:
            gap = state.ahead[0].offset - offset
            if gap <= 0:
                answer = await state.ahead.popleft().answer
                if not isinstance(answer, SegmentRead):
                    raise answer
                return answer
            size = min(size, gap)
        return await self._received(name, offset, size)

    async def _received(self, name: str, offset: int, size: int) -> SegmentRead:
        """Read, inside a span if tracing is on."""
        attributes = {} if active() is None else segment_attributes(name, "read", "receive")
        with spanning(f"read {name.rpartition('/')[0]}", Kind.CLIENT, attributes) as span:
            found = await self._service.read(name, offset, size)
            span.set("penstock.offset", offset)
            span.set("penstock.read.bytes", sum(map(len, found.parts)))
            return found

    async def _look_ahead(self, state: _Segment, name: str, end: int, *, at_tail: bool) -> None:
        """Send reads for the bytes after ``end`` that exist: a read beyond the tail would wait, or fail."""
        if at_tail and not state.ahead:
            state.known = end
            return
        if end >= state.known:
            try:
                length = (await self._service.info(name)).length
            except PenstockError:
                length = end  # the bytes that were read count; the next read reports the error
            state.known = length if state.limit is None else min(length, state.limit)
        unit = self._unit_bytes
        depth = min(AHEAD_READS, MEMORY_BYTES // (unit * max(1, len(self._active))) - 1)
        start = max(end, state.ahead[-1].end) if state.ahead else end
        while len(state.ahead) < depth and start < state.known:
            upto = min(start + unit, state.known)
            state.ahead.append(_Ahead(start, upto, self._tasks.start(self._ask(name, start, upto - start))))
            start = upto

    async def _ask(self, name: str, offset: int, size: int) -> SegmentRead | Exception:
        try:
            return await self._received(name, offset, size)
        except Exception as error:  # noqa: BLE001 - raised to the caller that takes the answer
            return error
