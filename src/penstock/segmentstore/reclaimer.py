"""Giving space back: chunks that nothing names, heads that were truncated, leases that hold both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import UUID

from penstock.codec import records
from penstock.codec.chunk_index import index_name
from penstock.core.garbage import orphan_candidates, orphans, parse_chunk_name, parse_import_name
from penstock.model.errors import InvalidArgumentError, ThrottledError, UnavailableError
from penstock.ports.segment_service import HOLDER_MAX_BYTES, Lease, SegmentSpace
from penstock.segmentstore.blocks import named_blocks

if TYPE_CHECKING:
    from penstock.segmentstore.container import Container
    from penstock.segmentstore.segment import Chunk, Segment

_PAGE = 1000
_MERGES_PER_PASS = 1000


@dataclass(slots=True, kw_only=True)
class _Lease:
    """Until when: by the wall clock, and by the event loop, so that a clock that jumps ahead frees nothing."""

    until_ms: int
    loop_until: float
    holder: str

    def encoded(self) -> bytes:
        return records.encode_lease(records.LeaseRecord(until_ms=self.until_ms, holder=self.holder))


class Reclaimer:
    """Follows each chunk from the moment no segment names it to the removal of its file."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self._released: dict[str, records.FreeRecord] = {}
        self._freeable: dict[str, records.FreeRecord] = {}
        self._pending_bytes: dict[str, dict[int, int]] = {}
        """Bytes of chunks that nothing names, by the name and uid of the segment that named them last."""
        self._to_wipe: dict[str, None] = {}
        self._discarded: dict[str, None] = {}
        self._orphans: dict[str, None] = {}
        self._old_leases: dict[tuple[int, int], None] = {}
        self._heads: dict[int, None] = {}
        self._committed_heads: dict[int, None] = {}
        self._leases: dict[tuple[int, int], _Lease] = {}
        self._moved: dict[str, None] | None = None
        self.orphans_known = False
        """Whether the search for orphans of earlier epochs has ended."""
        self._scanned = asyncio.Event()
        self._scan_failed = False
        self._lock = asyncio.Lock()

    async def recover(self) -> None:
        """Load what an earlier opening left to be freed, and the leases. Called before replay."""
        container = self._container
        index = container.index
        bounds = records.range_of(records.prefix(records.TAG_FREE, index))
        for key, value in await container.rows.scan_all(bounds):
            record = records.decode_free(value)
            if not record.segment:
                record = await self._with_name(record)
            self._freeable[key[3:].decode()] = record
            self._add_pending(record, record.size_bytes)
        bounds = records.range_of(records.prefix(records.TAG_WIPE, index))
        self._to_wipe = {key[3:].decode(): None for key, _ in await container.rows.scan_all(bounds)}
        now = asyncio.get_running_loop().time()
        now_ms = container.clock.now_ms()
        bounds = records.range_of(records.prefix(records.TAG_LEASE, index))
        for key, value in await container.rows.scan_all(bounds):
            row = records.decode_lease(value)
            loop_until = now + max(0, row.until_ms - now_ms) / 1000
            lease = _Lease(until_ms=row.until_ms, loop_until=loop_until, holder=row.holder)
            self._leases[records.parse_lease_key(key)] = lease
        self._old_leases = dict.fromkeys(self._leases)

    async def _with_name(self, record: records.FreeRecord) -> records.FreeRecord:
        """Rows of earlier versions do not tell the segment's name; if it is still there, its own row does."""
        key = records.uid_key(records.TAG_SEGMENT, self._container.index, record.uid)
        row = await self._container.rows.get(key)
        return record if row is None else replace(record, segment=records.decode_segment(row).name)

    # --- told by transitions ------------------------------------------------------------------------------

    def release(self, segment: Segment, chunk: str, size_bytes: int, *, wipe: bool = False) -> None:
        """A segment names the chunk no more. Its file goes after the next checkpoint, and after leases.

        ``wipe``: bytes in it were erased. It is overwritten before it goes, and no lease keeps it.
        """
        if wipe:
            self._to_wipe[chunk] = None
            self._container.rows.put(records.wipe_key(self._container.index, chunk), b"")
        record = records.FreeRecord(uid=segment.uid, size_bytes=size_bytes, segment=segment.name)
        self._released[chunk] = record
        self._add_pending(record, size_bytes)
        self._container.rows.put(records.free_key(self._container.index, chunk), records.encode_free(record))

    def is_pending(self, chunk: str) -> bool:
        """Whether a chunk that was to be wiped is still there."""
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

    def discard(self, chunk: str) -> None:
        """A chunk that was never named, left by a failed or outrun write."""
        self._discarded[chunk] = None

    def head_moved(self, segment: Segment) -> None:
        """The segment was truncated: part of its first chunk may be dead."""
        self._heads[segment.uid] = None

    def loaded(self, segment: Segment) -> None:
        """The segment was loaded as it was committed: a dead head may have been forgotten when it last left memory."""
        if segment.chunks.items and segment.kept_offset > segment.chunks.items[0].start:
            self._committed_heads[segment.uid] = None

    def chunk_moved(self, chunk: str) -> None:
        """A merge moves the chunk's row while orphans are looked for: it may be seen in neither place."""
        if self._moved is not None:
            self._moved[chunk] = None

    # --- told by the checkpointer -------------------------------------------------------------------------

    def released_by_now(self) -> tuple[dict[str, records.FreeRecord], dict[int, None]]:
        """What the checkpoint that begins now covers."""
        return dict(self._released), dict(self._heads)

    def committed(self, covered: tuple[dict[str, records.FreeRecord], dict[int, None]]) -> None:
        released, heads = covered
        for chunk in released:
            # A later checkpoint covers what an earlier one did, where both waited for the catalogue.
            record = self._released.pop(chunk, None)
            if record is not None:
                self._freeable[chunk] = record
        for uid in heads:
            self._heads.pop(uid, None)
            self._committed_heads[uid] = None

    # --- freeing ------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def quiet(self) -> AsyncIterator[None]:
        """No file goes and no head is given back meanwhile."""
        async with self._lock:
            yield

    async def free(self) -> None:
        """Delete the files that may go by now. Raises what the chunk storage raises; the rest is for the next time."""
        async with self._lock:
            await self._drop_expired()
            for chunk in [name for name in self._discarded if name not in self._container.tiering.writing]:
                await self._delete(chunk)
                self._discarded.pop(chunk, None)
            await self._container.imports.free()
            if not any(key in self._leases for key in self._old_leases):
                for chunk in list(self._orphans):
                    await self._delete(chunk)
                    self._orphans.pop(chunk, None)
            # A lease taken from here on is none on these: no segment names them any more.
            leased = self._leased()
            for chunk, record in list(self._freeable.items()):
                wipe = chunk in self._to_wipe
                if chunk in self._container.tiering.writing or (record.uid in leased and not wipe):
                    continue
                if wipe:
                    await self._container.chunks.wipe(chunk)
                await self._delete(chunk)
                self._freeable.pop(chunk, None)
                if wipe:
                    self._to_wipe.pop(chunk, None)
                    self._container.rows.delete(records.wipe_key(self._container.index, chunk))
                self._container.rows.delete(records.free_key(self._container.index, chunk))
                self._add_pending(record, -record.size_bytes)
                self._count_freed(record.uid, record.size_bytes)
            for uid in [uid for uid in self._committed_heads if uid not in self._leased()]:
                del self._committed_heads[uid]
                segment = self._container.segments.by_uid.get(uid)
                if segment is not None:
                    await self._free_head(segment)

    async def scanned(self) -> None:
        """Return once what this opening found that nothing names is known."""
        await self._scanned.wait()

    async def sweep(self, uid: int) -> None:
        """Overwrite and delete what nothing names and may hold bytes of this segment that were erased: what failed writes
        have left, what an earlier opening had written and a crash took the row of, what was written to be imported and was
        not adopted. No lease on the segment keeps them.

        Raises what the chunk storage raises, UnavailableError where it could not be listed.
        """
        await self.scanned()
        self._container.check_online()
        if self._scan_failed:
            await self.collect_orphans()
        if self._scan_failed:
            raise UnavailableError("tier 2 cannot be listed, so what nothing names in it is not known; try again")
        async with self._lock:
            await self._wipe_each(self._discarded, list(self._discarded))
            await self._wipe_each(
                self._orphans, [chunk for chunk in list(self._orphans) if await self._may_hold(chunk, uid)]
            )
            await self._container.imports.sweep()
            # Copies that went before, when nothing was to be erased yet, were not overwritten: a power loss must not bring
            # their names back.
            await self._container.chunks.sync_deletes(f"{self._container.index:x}")

    async def _wipe_each(self, names: dict[str, None], chosen: Sequence[str]) -> None:
        for chunk in chosen:
            if chunk not in self._container.tiering.writing:
                await self._container.chunks.wipe(chunk)
                await self._delete(chunk)
                names.pop(chunk, None)

    async def _may_hold(self, orphan: str, uid: int) -> bool:
        """Whether an orphan may hold bytes of the segment: it is its own, or of one that is gone, perhaps merged into it.
        What was leased of that one alone was not: a merge brings the leases along."""
        name = parse_chunk_name(orphan) or parse_import_name(orphan)
        if name is None or name.uid == uid:
            return True
        container = self._container
        if name.uid in container.segments.by_uid:
            return False
        if await container.rows.get(records.uid_key(records.TAG_SEGMENT, container.index, name.uid)) is not None:
            return False
        return all((lease, uid) in self._leases for lease, leased in self._leases if leased == name.uid)

    async def _delete(self, chunk: str) -> None:
        # The index first: an index without its chunk is found as an orphan, a chunk without index is not told apart.
        await self._container.chunks.delete(index_name(chunk))
        await self._container.chunks.delete(chunk)

    def _count_freed(self, uid: int, size_bytes: int) -> None:
        self._container.telemetry.add("freed_bytes", size_bytes)
        segment = self._container.segments.by_uid.get(uid)
        if segment is not None:
            segment.freed_bytes += size_bytes
            self._container.mark_dirty(segment)

    async def _free_head(self, segment: Segment) -> None:
        chunk = segment.chunks.items[0] if segment.chunks.items else None
        if chunk is None:
            return
        upto = await self._dead_bytes(segment, chunk)
        if upto == chunk.freed or not segment.chunks.holds(chunk):
            return
        if segment.uid in self._leased():
            self._committed_heads[segment.uid] = None
            return
        await self._container.chunks.free_head(chunk.name, upto)
        freed, chunk.freed = upto - chunk.freed, upto
        if segment.chunks.holds(chunk):
            index = self._container.index
            self._container.rows.put(
                records.chunk_key(index, segment.uid, chunk.start), records.encode_chunk(chunk.record())
            )
            self._count_freed(segment.uid, freed)

    async def _dead_bytes(self, segment: Segment, chunk: Chunk) -> int:
        """Up to where the chunk's head can be given back: the beginning of the block that holds the first kept byte, for
        whole blocks are verified, so whole blocks must stay; no further than it was, where that is too little."""
        least_bytes = self._container.settings.free_head_bytes
        if not self._container.chunks.mutable:
            return chunk.freed  # An object goes whole, or not at all.
        if segment.kept_offset - chunk.start - chunk.freed < least_bytes:
            return chunk.freed
        dead = chunk.freed
        for block in await named_blocks(self._container, segment, chunk) or ():
            if block.end_offset > segment.kept_offset - chunk.start:
                break
            dead = max(dead, block.end_offset)
        return dead if dead - chunk.freed >= least_bytes else chunk.freed

    # --- accounts -----------------------------------------------------------------------------------------

    async def space(self, segment: Segment) -> SegmentSpace:
        """See ``SegmentService.spaces``."""
        head_bytes = partial_bytes = 0
        first = segment.chunks.items[0] if segment.chunks.items else None
        if first is not None and first.start + first.freed < segment.kept_offset:
            dead = await self._dead_bytes(segment, first)
            # Nothing is awaited from here on. A chunk that is named no more is among those released.
            if segment.chunks.holds(first):
                head_bytes = min(segment.kept_offset, first.end) - first.start - first.freed
                partial_bytes = head_bytes - max(0, dead - first.freed)
        kept = tiered = 0
        for chunk in segment.chunks.items:
            tiered += chunk.end - min(chunk.end, max(chunk.start, segment.start_offset))
            kept += max(0, min(chunk.end, segment.start_offset) - max(chunk.start, segment.kept_offset))
        released, leased, leases = self._released_bytes(segment.name)
        if segment.uid in self._leased():
            leased += head_bytes - partial_bytes
            leases = self._leases_on({segment.uid: 0} | dict.fromkeys(self._pending_bytes.get(segment.name, ())))
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
        """What is still on disk of segments of that name that were deleted, or None where nothing is."""
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
        """Bytes of chunks that nothing names; how many of them leases hold, and which."""
        by_uid = self._pending_bytes.get(name, {})
        held = self._leased()
        leased = {uid: size for uid, size in by_uid.items() if uid in held}
        return sum(by_uid.values()), sum(leased.values()), self._leases_on(leased)

    def _leases_on(self, uids: Mapping[int, object]) -> Sequence[Lease]:
        """The leases on any of the segments, each once, the one that ends last first."""
        found: dict[int, _Lease] = {}
        for (lease, uid), held in self._leases.items():
            if uid in uids and (lease not in found or found[lease].until_ms < held.until_ms):
                found[lease] = held
        order = sorted(found, key=lambda lease: (-found[lease].until_ms, lease))
        return tuple(
            Lease(id=UUID(int=lease), until_ms=found[lease].until_ms, holder=found[lease].holder) for lease in order
        )

    # --- leases -------------------------------------------------------------------------------------------

    async def lease(self, segment: Segment, lease: int, until_ms: int, holder: str) -> None:
        """Hold the segment's chunks. In force at once, durable when this returns; repeating extends.

        Raises: InvalidArgumentError (longer than allowed, in time or words), ThrottledError (too many).
        """
        if len(holder.encode()) > HOLDER_MAX_BYTES:
            raise InvalidArgumentError("holder of a lease is told in too many words", limit_bytes=HOLDER_MAX_BYTES)
        container, settings = self._container, self._container.settings
        now_ms = container.clock.now_ms()
        if until_ms - now_ms > settings.max_lease_ms:
            raise InvalidArgumentError("lease is too long", until_ms=until_ms, limit_ms=settings.max_lease_ms)
        key = (lease, segment.uid)
        if key not in self._leases and len(self._leases) >= settings.max_leases:
            raise ThrottledError("too many leases", resource="leases", limit=settings.max_leases)
        held = self._leases.get(key)
        until_ms = max(until_ms, held.until_ms if held else 0)
        loop_until = asyncio.get_running_loop().time() + max(0, until_ms - now_ms) / 1000
        now_held = _Lease(
            until_ms=until_ms, loop_until=loop_until, holder=holder or (held.holder if held is not None else "")
        )
        self._leases[key] = now_held
        row = records.lease_key(container.index, lease, segment.uid)
        await container.keyvalue.commit([(row, now_held.encoded())])

    async def release_lease(self, lease: int) -> None:
        keys = [key for key in self._leases if key[0] == lease]
        if keys:
            index = self._container.index
            await self._container.keyvalue.commit([], [records.lease_key(index, *key) for key in keys])
            for key in keys:
                self._leases.pop(key, None)
                # A merge may have left the lease's row among the changes.
                self._container.rows.delete(records.lease_key(index, *key))
            self._container.checkpointer.ask()

    def lease_follows(self, source: Segment, target: Segment) -> None:
        """The source's chunks are the target's now: so are the leases on them."""
        for (lease, uid), held in list(self._leases.items()):
            if uid == source.uid:
                own = self._leases.get((lease, target.uid))
                if own is None or own.until_ms < held.until_ms:
                    self._leases[lease, target.uid] = held
                    row = records.lease_key(self._container.index, lease, target.uid)
                    self._container.rows.put(row, held.encoded())

    def _leased(self) -> Mapping[int, None]:
        """The segments that a lease holds."""
        return {uid: None for _, uid in self._leases}

    async def _drop_expired(self) -> None:
        now, now_ms = asyncio.get_running_loop().time(), self._container.clock.now_ms()
        expired = [key for key, lease in self._leases.items() if lease.until_ms <= now_ms and lease.loop_until <= now]
        if expired:
            for key in expired:
                del self._leases[key]
            await self._container.keyvalue.commit(
                [], [records.lease_key(self._container.index, *key) for key in expired]
            )

    # --- merges and orphans -------------------------------------------------------------------------------

    async def forget_merges(self) -> None:
        """Forget merges that nobody will repeat any more."""
        container = self._container
        start, _ = records.range_of(records.prefix(records.TAG_MERGED_TIME, container.index))
        before_ms = max(0, container.clock.now_ms() - container.settings.merge_memory_ms)
        end = records.merged_time_key(container.index, before_ms, 0, "")
        for key, _value in await container.rows.scan((start, end), limit=_MERGES_PER_PASS):
            uid, source = records.parse_merged_time_key(key)
            container.rows.delete(key)
            container.rows.delete(records.uid_key(records.TAG_MERGED, container.index, uid, source))

    async def collect_orphans(self) -> None:
        """Find the chunks of earlier epochs that nothing names: a crash came between their write and their row.

        They go with the next ``free``, but not before the leases that recovery found have ended: a chunk is handed out as
        soon as it is synced, so a holder may read one whose row the crash took.
        Raises what the chunk storage raises but for failures that pass: then they wait for the next start.
        """
        container = self._container
        # From here on moves are noted; what is in memory now is noted as well, for its rows may not be written yet.
        self._scan_failed = False
        self._moved = {chunk.name: None for segment in container.segments.loaded() for chunk in segment.chunks.items}
        try:
            listed = await container.chunks.list()
            candidates = [
                *orphan_candidates(listed, container=container.index, epoch=container.log.epoch),
                *await container.imports.orphan_candidates(listed),
            ]
            if candidates:
                named = await self._named_chunks()
                for chunk in orphans(candidates, named, self._moved, self._released, self._freeable):
                    self._orphans[chunk] = None
                    container.telemetry.add("orphan_chunks")
        except (OSError, UnavailableError):
            container.telemetry.add("orphan_scan_failures")
            self._scan_failed = True
        finally:
            self._moved = None
            self.orphans_known = True
            self._scanned.set()

    async def _named_chunks(self) -> set[str]:
        """Names in the chunk rows. Only looked up in, never walked."""
        container = self._container
        start, end = records.range_of(records.prefix(records.TAG_CHUNK, container.index))
        named: set[str] = set()
        while True:
            page: Sequence[tuple[bytes, bytes]] = await container.rows.scan((start, end), limit=_PAGE)
            named.update(records.decode_chunk(value).name for _, value in page)
            if len(page) < _PAGE:
                return named
            start = page[-1][0] + b"\0"
