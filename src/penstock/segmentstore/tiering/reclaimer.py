"""Frees space: chunks that nothing names, and truncated heads, unless leases hold them."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar

from penstock.codec.store import rows as records
from penstock.codec.store.chunk_index import index_name
from penstock.core.segments.garbage import orphan_candidates, orphans
from penstock.model.errors import (
    CorruptDataError,
    DamagedRowError,
    KeptBySnapshotError,
    UnavailableError,
)
from penstock.ports.data.chunks import Lease
from penstock.ports.data.space import SegmentSpace
from penstock.segmentstore.parts import StoreParts
from penstock.segmentstore.segment import Chunk, Segment
from penstock.segmentstore.state import ContainerState
from penstock.segmentstore.tiering.blocks import named_blocks
from penstock.segmentstore.tiering.chunk_writes import ChunkWrites
from penstock.segmentstore.tiering.import_garbage import ImportGarbage
from penstock.segmentstore.tiering.leases import Leases
from penstock.segmentstore.tiering.orphans import lost_rows, may_hold, named_chunks

T = TypeVar("T")
_log = logging.getLogger(__name__)

_PAGE = 1000  # rows of one scan, which bounds the memory of a page
_MERGES_PER_PASS = 1000  # finished merges forgotten in one pass


class Reclaimer:
    """Follows each chunk from the moment no segment names it to the removal of its file."""

    def __init__(
        self,
        state: ContainerState,
        parts: StoreParts,
        *,
        writes: ChunkWrites,
        leases: Leases,
        garbage: ImportGarbage,
        check_online: Callable[[], None],
        forget_blocks: Callable[[str], None],
    ) -> None:
        """``check_online`` raises once the container is offline. ``forget_blocks`` drops what is cached of a chunk."""
        self._state = state
        self._parts = parts
        self._writes = writes
        self._leases = leases
        self._garbage = garbage
        self._check_online = check_online
        self._forget_blocks = forget_blocks
        self._released: dict[str, records.FreeRecord] = {}
        self._freeable: dict[str, records.FreeRecord] = {}
        self._pending_bytes: dict[str, dict[int, int]] = {}
        """Bytes of chunks that nothing names, by the name and uid of the segment that named them last."""
        self._to_wipe: dict[str, None] = {}
        self._orphans: dict[str, None] = {}
        self._heads: dict[int, None] = {}
        self._committed_heads: dict[int, None] = {}
        self._moved: dict[str, None] | None = None
        self.orphans_known = False
        """Whether the search for orphans of earlier epochs has ended."""
        self._scanned = asyncio.Event()
        self._scan_failed = False
        self._unscanned: CorruptDataError | None = None
        self._doubtful: list[str] | None = None
        """Chunks that no undamaged row names, where metadata is damaged. None: they are not known."""
        self._reported: dict[str, None] = {}
        self._lock = asyncio.Lock()
        self._free_until, self._has_more = math.inf, False
        self._born: tuple[int, float] | None = None
        """The wall clock and the loop's clock when this opening began."""

    async def recover(self) -> None:
        """Load what an earlier opening left to free, and the leases. Called before replay."""
        state = self._state
        index = state.index
        bounds = records.range_of(records.prefix(records.TAG_FREE, index))
        damaged: list[bytes] = []
        for key, value in await state.rows.scan_all(bounds, damaged=damaged):
            record = records.decode_free(value)
            if not record.segment:
                record = await self._with_name(record)
            self._freeable[key[3:].decode()] = record
            self._add_pending(record, record.size_bytes)
        bounds = records.range_of(records.prefix(records.TAG_WIPE, index))
        marks: list[bytes] = []
        marks += [key for key, _ in await state.rows.scan_all(bounds, damaged=marks)]
        self._to_wipe = {key[3:].decode(): None for key in marks}  # Such a row has no value.
        self._born = self._parts.clock.now_ms(), asyncio.get_running_loop().time()
        leases = await self._leases.recover()
        for key in (*damaged, *leases):
            self._report(key.hex(), "row of the metadata is damaged")

    async def _with_name(self, record: records.FreeRecord) -> records.FreeRecord:
        """Rows of earlier versions lack the segment's name; if the segment still exists, its own row has it."""
        key = records.uid_key(records.TAG_SEGMENT, self._state.index, record.uid)
        try:
            row = await self._state.rows.get(key)
        except DamagedRowError:
            row = None
        return record if row is None else replace(record, segment=records.decode_segment(row).name)

    def _report(self, place: str, why: str) -> None:
        """Log damage once for each place."""
        if place not in self._reported:
            self._reported[place] = None
            self._parts.telemetry.add("damage_met")
            _log.error(
                "damaged metadata prevents freeing of space; penstock scrub names the row",
                extra={"container": self._state.index, "place": place, "why": why},
            )

    # --- called by transitions ------------------------------------------------------------------------------

    def release(self, segment: Segment, chunk: str, size_bytes: int, *, wipe: bool = False) -> None:
        """A segment no longer names the chunk. Its file is deleted after the next checkpoint, and after leases.

        ``wipe``: bytes in it were erased. It is overwritten before it is deleted, and no lease keeps it.
        """
        if wipe:
            self._to_wipe[chunk] = None
            self._state.rows.put(records.wipe_key(self._state.index, chunk), b"")
        record = records.FreeRecord(uid=segment.uid, size_bytes=size_bytes, segment=segment.name)
        self._released[chunk] = record
        self._add_pending(record, size_bytes)
        self._state.rows.put(records.free_key(self._state.index, chunk), records.encode_free(record))

    def wipe_released(self, segment: str) -> list[str]:
        """Mark for wiping all existing chunks that a segment of this name has released, leased or not. Returns their
        names. The next checkpoint and ``free`` delete them."""
        released = {**self._released, **self._freeable}
        # Rows of earlier versions do not hold the segment's name.
        found = [chunk for chunk, record in released.items() if record.segment in (segment, "")]
        for chunk in found:
            self._to_wipe[chunk] = None
            self._state.rows.put(records.wipe_key(self._state.index, chunk), b"")
            self._forget_blocks(chunk)
        return found

    def is_pending(self, chunk: str) -> bool:
        """Whether a chunk to be wiped still exists."""
        return chunk in self._to_wipe

    def _add_pending(self, record: records.FreeRecord, size_bytes: int) -> None:
        by_uid = self._pending_bytes.setdefault(record.segment, {})
        left = by_uid.get(record.uid, 0) + size_bytes
        if left:
            by_uid[record.uid] = left
            return
        by_uid.pop(record.uid, None)
        if not by_uid:
            del self._pending_bytes[record.segment]

    def head_moved(self, segment: Segment) -> None:
        """The segment was truncated: part of its first chunk may be dead."""
        self._heads[segment.uid] = None

    def loaded(self, segment: Segment) -> None:
        """The segment was loaded. A dead head may have been forgotten when it was evicted."""
        if segment.chunks.items and segment.kept_offset > segment.chunks.items[0].start:
            self._committed_heads[segment.uid] = None

    def chunk_moved(self, chunk: str) -> None:
        """A merge moves the chunk's row during the search for orphans, which may see it in neither place."""
        if self._moved is not None:
            self._moved[chunk] = None

    # --- called by the checkpointer -------------------------------------------------------------------------

    def released_by_now(self) -> tuple[dict[str, records.FreeRecord], dict[int, None]]:
        """The released chunks that the checkpoint beginning now covers."""
        return dict(self._released), dict(self._heads)

    def committed(self, covered: tuple[dict[str, records.FreeRecord], dict[int, None]]) -> None:
        released, heads = covered
        for chunk in released:
            # If both waited for the catalogue, the later checkpoint covers what the earlier one did.
            record = self._released.pop(chunk, None)
            if record is not None:
                self._freeable[chunk] = record
        for uid in heads:
            self._heads.pop(uid, None)
            self._committed_heads[uid] = None

    # --- freeing ------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def quiet(self) -> AsyncIterator[None]:
        """Inside the block, no file is deleted and no head is freed."""
        async with self._lock:
            yield

    async def free(self, *, within_s: float = math.inf) -> bool:
        """Delete the files that are due, for about ``within_s`` seconds. Returns whether the time was over: more may be due.
        Raises what the chunk storage raises; the next call deletes the others.

        Nothing is deleted while a backup holds the chunks.
        """
        async with self._lock:
            self._free_until, self._has_more = asyncio.get_running_loop().time() + within_s, False
            with self._parts.holds.chunks() as may_free:
                if may_free:
                    await self._free()
            return self._has_more

    def _in_time(self, items: Iterable[T]) -> Iterator[T]:
        """The items until the time of this call of ``free`` is over, but at least one."""
        for item in items:
            yield item
            if asyncio.get_running_loop().time() >= self._free_until:
                self._has_more = True
                return

    async def _free(self) -> None:
        self._leases.drop_expired()
        for chunk in self._in_time([name for name in self._writes.discarded if name not in self._writes.in_flight]):
            await self._delete(chunk)
            self._writes.discarded.pop(chunk, None)
        await self._garbage.free()
        if not self._leases.has_recovered:
            for chunk in self._in_time(list(self._orphans)):
                if chunk in self._to_wipe:  # The row that names its segment is damaged.
                    await self._parts.chunks.wipe(chunk)
                await self._delete(chunk)
                self._orphans.pop(chunk, None)
        kept: KeptBySnapshotError | None = None  # It must not keep other chunks from being deleted.
        # Later leases cannot cover these chunks, because no segment names them any more.
        leased = self._leases.segments()
        for chunk, record in self._in_time(list(self._freeable.items())):
            wipe = chunk in self._to_wipe
            if chunk in self._writes.in_flight or (record.uid in leased and not wipe):
                continue
            if wipe:
                try:
                    await self._parts.chunks.wipe(chunk)
                except KeptBySnapshotError as error:
                    kept = error
                    continue
            await self._delete(chunk)
            self._freeable.pop(chunk, None)
            if wipe:
                self._to_wipe.pop(chunk, None)
                self._state.rows.delete(records.wipe_key(self._state.index, chunk))
            self._state.rows.delete(records.free_key(self._state.index, chunk))
            self._add_pending(record, -record.size_bytes)
            self._count_freed(record.uid, record.size_bytes)
        for uid in self._in_time([uid for uid in self._committed_heads if uid not in self._leases.segments()]):
            del self._committed_heads[uid]
            segment = self._state.segments.by_uid.get(uid)
            if segment is not None:
                try:
                    await self._free_head(segment)
                except BaseException:
                    self._committed_heads[uid] = None
                    raise
        if kept is not None:
            raise kept

    async def scanned(self) -> None:
        """Return once this opening has found all chunks that nothing names."""
        await self._scanned.wait()

    async def sweep(self, name: str, uid: int | None) -> None:
        """Overwrite and delete orphans that may hold erased bytes of this segment (``uid`` None: it was deleted). These are
        remains of failed writes, chunks of earlier openings whose row a crash lost, and chunks written for an import that
        was never adopted. No lease on the segment keeps them.

        Raises what the chunk storage raises, UnavailableError if it could not be listed, CorruptDataError if metadata
        is damaged and a chunk may hold bytes of the segment: a damaged row may name it for another one.
        """
        await self.scanned()
        self._check_online()
        if self._scan_failed:
            await self.collect_orphans()
        if self._unscanned is not None:
            await self._check_doubtful(self._unscanned, name, uid)
        if self._scan_failed:
            raise UnavailableError("tier 2 cannot be listed, so its unused chunks are unknown; try again")
        async with self._lock:
            await self._wipe_each(self._writes.discarded, list(self._writes.discarded))
            await self._wipe_each(
                self._orphans,
                [one for one in list(self._orphans) if await may_hold(self._state, self._leases, one, name, uid)],
            )
            await self._garbage.sweep()
            # Copies deleted before the erasure were not overwritten: a power loss must not restore their names.
            await self._parts.chunks.sync_deletes(f"{self._state.index:x}")

    async def _check_doubtful(self, why: CorruptDataError, name: str, uid: int | None) -> None:
        if self._doubtful is None:
            raise CorruptDataError(why.message, **why.fields)
        for chunk in self._doubtful:
            if await may_hold(self._state, self._leases, chunk, name, uid):
                raise CorruptDataError(why.message, **why.fields, chunk=chunk)

    async def _wipe_each(self, names: dict[str, None], chosen: Sequence[str]) -> None:
        for chunk in chosen:
            if chunk not in self._writes.in_flight:
                await self._parts.chunks.wipe(chunk)
                await self._delete(chunk)
                names.pop(chunk, None)

    async def _delete(self, chunk: str) -> None:
        # The index first: an index without its chunk is found as an orphan, but a chunk without index is not
        # recognized.
        await self._parts.chunks.delete(index_name(chunk))
        await self._parts.chunks.delete(chunk)

    def _count_freed(self, uid: int, size_bytes: int) -> None:
        self._parts.telemetry.add("freed_bytes", size_bytes)
        segment = self._state.segments.by_uid.get(uid)
        if segment is not None:
            segment.freed_bytes += size_bytes
            self._state.mark_dirty(segment)

    async def _free_head(self, segment: Segment) -> None:
        chunk = segment.chunks.items[0] if segment.chunks.items else None
        if chunk is None:
            return
        # If the segment left memory and was loaded again, it may have released the chunk: its row would name a deleted file.
        with segment.pinned():
            upto = await self._dead_bytes(segment, chunk)
            if upto == chunk.freed or not segment.chunks.holds(chunk):
                return
            if segment.uid in self._leases.segments():
                self._committed_heads[segment.uid] = None
                return
            await self._parts.chunks.free_head(chunk.name, upto)
            freed, chunk.freed = upto - chunk.freed, upto
            if segment.chunks.holds(chunk):
                row = records.chunk_key(self._state.index, segment.uid, chunk.start)
                self._state.rows.put(row, records.encode_chunk(chunk.record()))
                self._count_freed(segment.uid, freed)

    async def _dead_bytes(self, segment: Segment, chunk: Chunk) -> int:
        """The position up to which the chunk's head can be freed: the start of the block with the first kept byte,
        because verification needs whole blocks. Unchanged if that would free too little."""
        least_bytes = self._parts.settings.free_head_bytes
        if not self._parts.chunks.mutable:
            return chunk.freed  # An object can only be deleted whole.
        if segment.kept_offset - chunk.start - chunk.freed < least_bytes:
            return chunk.freed
        dead, head = chunk.freed, segment.kept_offset - chunk.start
        try:
            blocks = await named_blocks(self._state, segment, chunk)
        except CorruptDataError as error:
            self._report(chunk.name, str(error))
            return chunk.freed  # Block bounds are unknown, so nothing more is freed until the whole chunk is deleted.
        for block in blocks or ():
            if block.end_offset > head:
                break
            dead = max(dead, block.end_offset)
        return dead if dead - chunk.freed >= least_bytes else chunk.freed

    # --- accounts -----------------------------------------------------------------------------------------

    async def space(self, segment: Segment) -> SegmentSpace:
        """See ``SegmentService.spaces``."""
        first = segment.chunks.items[0] if segment.chunks.items else None
        dead: int | None = None
        with segment.pinned():
            if first is not None and first.start + first.freed < segment.kept_offset:
                dead = await self._dead_bytes(segment, first)
            return self._space(segment, first, dead)

    def _space(self, segment: Segment, first: Chunk | None, dead: int | None) -> SegmentSpace:
        """The accounts at one instant. ``dead``: the offset up to which the first chunk's head can be freed; None: no
        head."""
        head_bytes = partial_bytes = 0
        # If the segment no longer names the chunk, the chunk counts among those released.
        if first is not None and dead is not None and segment.chunks.holds(first):
            head_bytes = min(segment.kept_offset, first.end) - first.start - first.freed
            partial_bytes = head_bytes - max(0, dead - first.freed)
        kept = tiered = 0
        for chunk in segment.chunks.items:
            tiered += chunk.end - min(chunk.end, max(chunk.start, segment.start_offset))
            kept += max(0, min(chunk.end, segment.start_offset) - max(chunk.start, segment.kept_offset))
        released, leased, leases = self._released_bytes(segment.name)
        if segment.uid in self._leases.segments():
            leased += head_bytes - partial_bytes
            leases = self._leases.on({segment.uid: 0} | dict.fromkeys(self._pending_bytes.get(segment.name, ())))
        if not leased:
            leases = ()
        return SegmentSpace(
            name=segment.name,
            live_bytes=segment.length - segment.start_offset,
            tiered_bytes=tiered,
            pending_free_bytes=released + head_bytes + kept,
            freed_bytes=segment.freed_bytes,
            kept_bytes=kept,
            leased_bytes=leased,
            leased_until_ms=leases[0].until_ms if leases else None,
            partial_bytes=partial_bytes,
            leases=leases,
        )

    def space_of_deleted(self, name: str) -> SegmentSpace | None:
        """What deleted segments of that name still take on disk, or None if nothing."""
        released, leased, leases = self._released_bytes(name)
        if not released:
            return None
        return SegmentSpace(
            name=name,
            live_bytes=0,
            tiered_bytes=0,
            pending_free_bytes=released,
            freed_bytes=0,
            leased_bytes=leased,
            leased_until_ms=leases[0].until_ms if leases else None,
            leases=leases,
        )

    def _released_bytes(self, name: str) -> tuple[int, int, Sequence[Lease]]:
        """Bytes of unnamed chunks; how many of them leases hold, and which leases."""
        by_uid = self._pending_bytes.get(name, {})
        held = self._leases.segments()
        leased = {uid: size for uid, size in by_uid.items() if uid in held}
        return sum(by_uid.values()), sum(leased.values()), self._leases.on(leased)

    # --- merges and orphans -------------------------------------------------------------------------------

    async def forget_merges(self) -> None:
        """Forget merges that nobody will repeat any more."""
        state = self._state
        start, _ = records.range_of(records.prefix(records.TAG_MERGED_TIME, state.index))
        now_ms = self._parts.clock.now_ms()
        if self._born is not None:
            # If the clock was set ahead, a merge must not look older than it is.
            now_ms = min(now_ms, self._born[0] + int((asyncio.get_running_loop().time() - self._born[1]) * 1000))
        before_ms = max(0, now_ms - self._parts.settings.merge_memory_ms)
        end = records.merged_time_key(state.index, before_ms, 0, "")
        damaged: list[bytes] = []
        for key, _value in await state.rows.scan((start, end), limit=_MERGES_PER_PASS, damaged=damaged):
            uid, source = records.parse_merged_time_key(key)
            state.rows.delete(key)
            state.rows.delete(records.uid_key(records.TAG_MERGED, state.index, uid, source))

    async def collect_orphans(self) -> None:
        """Find unnamed chunks of earlier epochs: a crash came between their write and their row.

        The next ``free`` deletes them, but not before the leases that recovery found have ended: readers get a chunk as
        soon as it is synced, so a lease holder may read one whose row the crash lost.
        Raises what the chunk storage raises, except transient failures: then they wait for the next start.
        """
        state = self._state
        # From here on moves are recorded. Record chunks in memory too, because their rows may not be written yet.
        self._scan_failed = False
        self._moved = {chunk.name: None for segment in state.segments.loaded() for chunk in segment.chunks.items}
        try:
            listed = await self._parts.chunks.list()
            candidates = [
                *orphan_candidates(listed, container=state.index, epoch=state.log.epoch),
                *await self._garbage.orphan_candidates(listed),
            ]
            if candidates:
                named, doubt = await named_chunks(state)
                found = list(orphans(candidates, named, self._moved, self._released, self._freeable))
                if found and doubt is None:
                    doubt = await lost_rows(state)
                if doubt is not None:
                    self._unscanned, self._doubtful = doubt, found
                    self._report("chunks", str(doubt))
                    return
                for chunk in found:
                    self._orphans[chunk] = None
                    self._parts.telemetry.add("orphan_chunks")
        except CorruptDataError as error:
            self._unscanned = error
            self._report("chunks", str(error))
        except (OSError, UnavailableError):
            self._parts.telemetry.add("orphan_scan_failures")
            self._scan_failed = True
        finally:
            self._moved = None
            self.orphans_known = True
            self._scanned.set()
