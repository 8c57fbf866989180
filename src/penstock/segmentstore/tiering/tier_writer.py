"""Tiering: writes appended bytes to tier 2 as blocks of chunks."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from itertools import islice

from penstock.codec.store import rows as records
from penstock.core.segments.garbage import parse_chunk_name
from penstock.core.segments.rolling import continues_chunk
from penstock.core.segments.throttle import tiering_is_urgent
from penstock.model.errors import CorruptDataError, NotFoundError, UnavailableError
from penstock.model.traces.spans import Value, spanning
from penstock.segmentstore.parts import StoreParts
from penstock.segmentstore.segment import Chunk, Segment
from penstock.segmentstore.state import ContainerState
from penstock.segmentstore.tiering.blocks import checksum, checksums_of, put_blocks
from penstock.segmentstore.tiering.chunk_writes import ChunkWrites
from penstock.segmentstore.tiering.tail_cache import Entry
from penstock.segmentstore.tiering.tier_run import TierRun

_log = logging.getLogger(__name__)

_GATHERING_SHARE = 4
"""Of the memory for bytes not tiered, the part in which they wait for company: half of it is where tiering hurries."""

_TOGETHER = 16
"""Segments with less than a block that are written at the same time where only time asks for them."""

_TOGETHER_MAX = 256  # segments written with one wait for the disk
_TOGETHER_BYTES = 8 << 20
"""The most segments, and bytes, that are written at the same time where room is needed: the disk is waited for once."""

_REST = 3.0
"""How long small segments that have waited long enough rest for each second that they were written."""


class TierWriter:
    """Writes untiered bytes, one run of blocks at a time, oldest first within a segment.

    The blocks of a run are written and synced together, then their index records; only then does the segment name them.
    If the segment was truncated, merged or deleted meanwhile, it names nothing, and the written blocks are garbage.
    """

    def __init__(
        self,
        state: ContainerState,
        parts: StoreParts,
        writes: ChunkWrites,
        *,
        head_moved: Callable[[Segment], None],
        ask_checkpoint: Callable[[], None],
    ) -> None:
        """``head_moved``: called when part of a segment's first chunk may be dead. ``ask_checkpoint``: called when the
        log waits for one."""
        self._state = state
        self._parts = parts
        self._writes = writes
        self._head_moved = head_moved
        self._ask_checkpoint = ask_checkpoint
        self.block_bytes = parts.settings.flush_bytes
        self._segments: dict[Segment, None] = {}
        self._filled: dict[Segment, None] = {}
        self._wake = asyncio.Event()
        self._forced = False
        self._lock = asyncio.Lock()
        self._distrusted: dict[str, None] = {}
        self._rested_at = 0.0

    # --- which segments -----------------------------------------------------------------------------------

    def add(self, segment: Segment) -> None:
        """The segment is about to hold untiered bytes; they wait from now on."""
        segment.untiered_since = asyncio.get_running_loop().time()
        # Kept in order of waiting: the first has waited longest.
        self._segments.pop(segment, None)
        self._segments[segment] = None

    def remove(self, segment: Segment) -> None:
        self._segments.pop(segment, None)
        self._filled.pop(segment, None)

    def grown(self, segment: Segment) -> None:
        """The segment has more untiered bytes. A full unit (a block, or enough for an object) waits no longer."""
        waiting = segment.cache.untiered_bytes
        # A unit is at least a block.
        if waiting >= self.block_bytes and waiting >= self.unit_bytes:
            self._filled[segment] = None
            self._wake.set()

    def lowest_address(self) -> int | None:
        """The lowest log address that holds a byte not tiered."""
        return min((entry.address for segment in self._segments for entry in segment.cache.untiered), default=None)

    def wake_if_urgent(self) -> None:
        """Wake the writer if too many bytes are not tiered."""
        if self._segments and self._urgent():
            self._wake.set()

    def _urgent(self) -> bool:
        memory = self._state.memory
        return tiering_is_urgent(memory.unflushed_bytes, limit_bytes=memory.unflushed_limit_bytes)

    def force(self) -> None:
        """Tier everything soon, full blocks or not."""
        self._forced = True
        self._wake.set()

    @property
    def unit_bytes(self) -> int:
        """The size at which a segment is written to tier 2 without further waiting.

        A run while few segments gather: its syncs cost as much as writing megabytes, and the log's syncs wait behind
        them. With more segments each is written sooner, down to a block, because they share a part of the memory.
        """
        settings = self._parts.settings
        share = settings.max_unflushed_bytes // _GATHERING_SHARE // settings.containers // max(1, len(self._segments))
        return max(settings.unit_bytes, min(share, settings.tier_gather_bytes))

    def _due(self, *, everything: bool) -> Sequence[tuple[Segment, int]]:
        """Segments that have waited long enough, completely and some at a time; segments with a full unit, as long as
        they have one.

        Each comes with the number of bytes it must hold for another block to be written.
        """
        if everything:
            return [(segment, 1) for segment in self._segments]
        settings = self._parts.settings
        due = dict.fromkeys(self._filled, self.unit_bytes)
        now = asyncio.get_running_loop().time()
        waiting = iter(self._segments if now >= self._rested_at else ())
        for segment in islice(waiting, _TOGETHER):
            # Exactly the sum that ``_sleep`` waits for: with different rounding the two could disagree forever.
            if segment.untiered_since + settings.flush_interval_s > now:
                break
            due[segment] = 1
        return list(due.items())

    @asynccontextmanager
    async def quiet(self) -> AsyncIterator[None]:
        """Inside the block, no chunk is created, extended or named."""
        async with self._lock:
            yield

    # --- the loop -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        limits = self._state.memory.on_limit
        limits[self.wake_if_urgent] = None
        try:
            await self._run()
        finally:
            del limits[self.wake_if_urgent]

    async def _run(self) -> None:
        state, parts, settings = self._state, self._parts, self._parts.settings
        failures = 0
        while True:
            await self._sleep()
            forced, self._forced = self._forced, False
            self._wake.clear()
            failed = await self._tier_due(forced=forced)
            state.log.shortage.settle(self, failed)
            if failed is None:
                failures = 0
                if forced:
                    # Forced so that the log can shrink: it does once a checkpoint names what was tiered.
                    self._ask_checkpoint()
                continue
            failures += 1
            parts.telemetry.add("tiering_failures")
            if failures == 1:
                _log.warning("tiering failed, will be tried again", extra={"container": state.index}, exc_info=failed)
            longest = min(settings.retry_max_s, settings.retry_min_s * 2 ** min(failures, 16))
            await asyncio.sleep(longest * (0.5 + parts.rng.random() / 2))
            self._forced = self._forced or forced
            self._wake.set()

    async def _sleep(self) -> None:
        """Wait until there is a full block, or the oldest bytes have waited long enough."""
        interval_s = self._parts.settings.flush_interval_s
        now = asyncio.get_running_loop().time()
        oldest = next(iter(self._segments)).untiered_since if self._segments else now
        try:
            async with asyncio.timeout_at(max(oldest + interval_s, self._rested_at)):
                await self._wake.wait()
        except TimeoutError:
            pass  # The interval is over: segments that are due now are tiered.

    async def _tier_due(self, *, forced: bool) -> BaseException | None:
        """Tier what is due. Returns the first failure, after which the rest is left for the next attempt."""
        block_bytes = self._parts.settings.flush_bytes
        small: list[Segment] = []
        for segment, least_bytes in self._due(everything=forced):
            if segment.cache.untiered_bytes < block_bytes:
                small.append(segment)
                continue
            failed = await self._try(partial(self.tier, segment, least_bytes=least_bytes))
            if failed is not None:
                return failed
        loop = asyncio.get_running_loop()
        begun = loop.time()
        failed = await self._try_together(small)
        if small:
            # These are due only because of their age. Ten thousand segments with a few bytes each must not take the
            # disk and this thread from appends: they get a share of the time, and gather more meanwhile.
            self._rested_at = loop.time() + _REST * (loop.time() - begun)
        if failed is None and not forced and self._urgent():
            failed = await self._make_room()
        return failed

    async def _make_room(self) -> BaseException | None:
        """Tier the segments with the most untiered bytes, full blocks or not, until tiering is no longer urgent."""
        memory = self._state.memory
        largest = deque(sorted(self._segments, key=lambda segment: -segment.cache.untiered_bytes))
        while largest and self._urgent():
            too_many = memory.unflushed_bytes - memory.unflushed_limit_bytes // 2
            together: list[Segment] = []
            while largest and len(together) < _TOGETHER_MAX and (len(together) < _TOGETHER or too_many > 0):
                together.append(largest.popleft())
                too_many -= together[-1].cache.untiered_bytes
            failed = await self._try_together(together)
            if failed is not None:
                return failed
        return None

    async def _try_together(self, segments: Sequence[Segment]) -> BaseException | None:
        """Tier all of several segments, some at a time. Syncing a hundred bytes costs as much as syncing a block, and
        syncing many files together costs little more than one."""
        left = deque(segments)
        while left:
            together: list[Segment] = []
            size = 0
            while left and len(together) < _TOGETHER_MAX and size < _TOGETHER_BYTES:
                together.append(left.popleft())
                size += together[-1].cache.untiered_bytes
            if len(together) == 1:
                failed = await self._try(partial(self.tier, together[0]))
            else:
                failed = await self._try(partial(self._tier_together, together))
            if failed is not None:
                return failed
        return None

    async def _tier_together(self, segments: Sequence[Segment]) -> None:
        """Tier what each of several segments holds when its turn comes, with one sync for all their bytes and one for
        their records. A failure affects only its own segment, and is raised at the end."""
        with ExitStack() as stack:
            for segment in segments:
                stack.enter_context(segment.pinned())
            async with self._lock:
                failed = await self._tier_each(segments)
        if failed is not None:
            raise failed

    async def _tier_each(self, segments: Sequence[Segment]) -> BaseException | None:
        """Tier pinned segments. The caller holds the lock. Returns the first failure."""
        failed: BaseException | None = None
        goals = {segment: segment.length for segment in segments if segment.cache.untiered}
        runs = [self._begin_run(segment, goal, 1) for segment, goal in goals.items()]
        written = {"penstock.segments": len(runs), "penstock.bytes": sum(run.end - run.start for run in runs)}
        with spanning("write to tier 2", attributes=written):
            outcomes = await self._write_together(runs)
        for run, outcome in zip(runs, outcomes, strict=True):
            if outcome is None:
                self._record(run)
            else:
                failed = failed or outcome
        for segment, goal in goals.items():
            # A gap that a merge left, or a block boundary, has split the run.
            if failed is None and segment.cache.untiered and segment.cache.untiered[0].start < goal:
                await self._tier_upto(segment, goal, 1)
        return failed

    async def _try(self, work: Callable[[], Coroutine[None, None, None]]) -> BaseException | None:
        """Tier what a segment has now. Returns the failure if a retry may help.

        Takes a function instead of a coroutine: a task that is cancelled before its first step would never await it.
        """
        try:
            await work()
        except (OSError, UnavailableError, NotFoundError, CorruptDataError) as error:
            return error
        return None

    async def tier_all(self) -> None:
        """Tier everything that is durable now. Raises what the chunk storage raises."""
        for segment in list(self._segments):
            await self.tier(segment)

    async def tier(self, segment: Segment, *, least_bytes: int = 1) -> None:
        """Tier what the segment holds when this is called, run by run, while that is ``least_bytes`` or more."""
        with segment.pinned():
            async with self._lock:
                await self._tier(segment, least_bytes)

    async def _tier(self, segment: Segment, least_bytes: int) -> None:
        """As ``tier``, for a caller that holds the lock, for one segment or several: each segment is tiered by one call
        at a time."""
        await self._tier_upto(segment, segment.length, least_bytes)

    async def _tier_upto(self, segment: Segment, goal: int, least_bytes: int) -> None:
        cache = segment.cache
        with segment.pinned():
            while cache.untiered and cache.untiered_bytes >= least_bytes and cache.untiered[0].start < goal:
                await self._tier_run(segment, goal, least_bytes)

    # --- one run of blocks --------------------------------------------------------------------------------

    async def _tier_run(self, segment: Segment, goal: int, least_bytes: int) -> None:
        run = self._begin_run(segment, goal, least_bytes)
        written: dict[str, Value] = {
            "penstock.segment": segment.name,
            "penstock.start_offset": run.start,
            "penstock.end_offset": run.end,
        }
        with segment.pinned(), spanning("write to tier 2", attributes=written):
            try:
                run.check(await checksums_of(self._parts.offload, run.parts))
                await self._write(run)
            except BaseException:
                self._abandon(segment, run.chunk)
                raise
            finally:
                del self._writes.in_flight[run.chunk.name]
            self._record(run)

    def _begin_run(self, segment: Segment, goal: int, least_bytes: int) -> TierRun:
        chunk, run = self._next_run(segment, goal, least_bytes)
        start, end = run[0][0].start, run[-1][-1].end
        # Take everything needed from the entries now: a merge may move them while we wait.
        base = chunk.length - start
        bounds = [(base + block[0].start, base + block[-1].end) for block in run]
        counts = [sum(entry.events for entry in block) for block in run]
        times = [(min(entry.first_ms for entry in block), max(entry.last_ms for entry in block)) for block in run]
        parts = [[entry.view(entry.start, entry.end) for entry in block] for block in run]
        self._writes.in_flight[chunk.name] = None
        return TierRun(segment, chunk, start, end, bounds, counts, times, parts)

    def _next_run(self, segment: Segment, goal: int, least_bytes: int) -> tuple[Chunk, Sequence[Sequence[Entry]]]:
        """A chunk and its next blocks: one, and further full ones while the chunk has room.

        A sync costs as much as writing megabytes, so blocks that gathered during the previous run share one.
        """
        settings, cache = self._parts.settings, segment.cache
        found = cache.next_blocks(min(settings.flush_bytes, self._limit_of(segment)), settings.tier_run_bytes)
        left = cache.untiered_bytes
        # Once a run is worth a write, it takes every full block available.
        least_bytes = min(least_bytes, settings.flush_bytes)
        size = found[0][-1].end - found[0][0].start
        chunk = self._chunk_for(segment, found[0][0].start, size)
        length, count = chunk.length, chunk.block_count
        for index, block in enumerate(found):
            size = block[-1].end - block[0].start
            if index and (
                left < least_bytes
                or block[0].start >= goal
                or not continues_chunk(
                    chunk_bytes=length, block_count=count, block_bytes=size, limit_bytes=self._limit_of(segment)
                )
            ):
                return chunk, found[:index]
            left, length, count = left - size, length + size, count + 1
        return chunk, found

    async def _write(self, run: TierRun) -> None:
        """Write the bytes, then their index records; both are durable when it returns."""
        storage = self._parts.chunks
        for write in (run.data(), run.index()):
            await storage.append(write.name, write.offset, write.parts)
            await storage.sync(write.name)

    async def _write_together(self, runs: Sequence[TierRun]) -> Sequence[BaseException | None]:
        """As ``_write``, for many. Returns the failure of each, or None."""
        storage = self._parts.chunks
        failed: dict[TierRun, BaseException] = {}
        try:
            for run in runs:
                run.check([checksum(part) for part in run.parts])
            for part in (TierRun.data, TierRun.index):
                left = [run for run in runs if run not in failed]
                outcomes = await storage.append_together([part(run) for run in left])
                failed |= {run: error for run, error in zip(left, outcomes, strict=True) if error is not None}
        except BaseException as error:
            failed = dict.fromkeys(runs, error)
            raise
        finally:
            for run in runs:
                del self._writes.in_flight[run.chunk.name]
            for run in failed:
                self._abandon(run.segment, run.chunk)
        return [failed.get(run) for run in runs]

    def _record(self, run: TierRun) -> None:
        """The blocks are durable: the segment names them, unless it was truncated, merged or deleted meanwhile."""
        segment, chunk, blocks, start, end = run.segment, run.chunk, run.blocks, run.start, run.end
        state = self._state
        known = segment.chunks.holds(chunk)
        if segment.gone or (chunk.length and not known) or end <= segment.kept_offset:
            if not chunk.length:
                self._writes.discarded[chunk.name] = None
            else:
                # Other segments name the chunk, and do not know of the bytes behind its end.
                self._distrusted[chunk.name] = None
            return
        put_blocks(state, chunk.name, blocks)
        if chunk.blocks is not None:
            chunk.blocks += blocks
        chunk.length = blocks[-1].end_offset
        chunk.block_count += len(blocks)
        if chunk.event_count is not None:
            chunk.event_count += sum(block.event_count for block in blocks)
        if not known:
            segment.chunks.add(chunk)
        segment.open_chunk = chunk
        state.rows.put(records.chunk_key(state.index, segment.uid, chunk.start), records.encode_chunk(chunk.record()))
        if start < segment.kept_offset:
            # Truncated while it was written: its first blocks may be dead already.
            self._head_moved(segment)
        segment.cache.mark_tiered(end)
        state.mark_dirty(segment)
        if not segment.cache.untiered:
            self.remove(segment)
        else:
            self.add(segment)
            if segment.cache.untiered_bytes < self.unit_bytes:
                self._filled.pop(segment, None)
        self._parts.telemetry.add("tiered_bytes", end - start)

    def may_have_tail(self, chunk: str) -> bool:
        """Whether its file may be longer than its named bytes: a write to it failed, or it is from an earlier
        opening."""
        name = parse_chunk_name(chunk)
        return name is not None and (name.epoch != self._state.log.epoch or chunk in self._distrusted)

    def _limit_of(self, segment: Segment) -> int:
        return segment.rollover_bytes or self._parts.settings.chunk_bytes

    def _chunk_for(self, segment: Segment, start: int, size_bytes: int) -> Chunk:
        """The chunk that takes a block at ``start``: the open one, or one that begins there."""
        chunk = segment.open_chunk or self._reopened(segment)
        if (
            self._parts.chunks.mutable
            and chunk is not None
            and chunk.end == start
            and continues_chunk(
                chunk_bytes=chunk.length,
                block_count=chunk.block_count,
                block_bytes=size_bytes,
                limit_bytes=self._limit_of(segment),
            )
        ):
            return chunk
        return Chunk(self._writes.name(segment.uid, start), start)

    def _reopened(self, segment: Segment) -> Chunk | None:
        """The last chunk, if this segment created it in this epoch and no write to it failed."""
        chunk = segment.chunks.items[-1] if segment.chunks.items else None
        name = parse_chunk_name(chunk.name) if chunk is not None else None
        if chunk is None or name is None or chunk.name in self._distrusted:
            return None
        return chunk if (name.uid, name.epoch) == (segment.uid, self._state.log.epoch) else None

    def _abandon(self, segment: Segment, chunk: Chunk) -> None:
        """After a failed write or sync the chunk takes no more writes: the kernel may have dropped its pages."""
        self._writes.next_attempt()
        segment.open_chunk = None
        if chunk.length:
            self._distrusted[chunk.name] = None
        else:
            self._writes.discarded[chunk.name] = None
