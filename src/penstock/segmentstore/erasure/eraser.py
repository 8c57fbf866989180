"""Erasure: rewrites chunks with blanked bytes, then overwrites and deletes the old chunks.

Chunk lists are not logged: tiering changes them in memory, and a checkpoint makes that durable. Erasure does the same,
in this order: tier the segment, sync the new chunk, commit the rows (new chunk, blocks, blanked ranges, mark to wipe
the old chunk) in one checkpoint, update the catalogue in tier 2, overwrite and delete the old chunk, wipe the log. A
crash before the checkpoint leaves the old chunk and an orphan without the erased bytes; a later crash leaves marks that
the next opening follows.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from operator import attrgetter

from penstock.codec.events import HEADER_BYTES, event_bounds
from penstock.codec.store import rows as records
from penstock.codec.store.chunk_index import index_name
from penstock.codec.store.erased import ErasedChange, ErasedRecord, decode_erased, encode_erased
from penstock.core.segments.erasure import (
    Digests,
    Range,
    blank,
    checked_ranges,
    clipped,
    dead_payloads,
    joined,
    shifted,
    size_of,
    without,
)
from penstock.model.errors import (
    CorruptDataError,
    InternalError,
    InvalidArgumentError,
    SegmentNotFoundError,
    TruncatedError,
    UnavailableError,
    UnsupportedError,
)
from penstock.model.values.dataclass import dataclass
from penstock.ports.data.chunks import ChunkBlock
from penstock.ports.data.erasing import ErasedChunk
from penstock.segmentstore.parts import StoreParts
from penstock.segmentstore.segment import Chunk, Segment, bytes_lost
from penstock.segmentstore.state import ContainerState
from penstock.segmentstore.tiering.blocks import BlockReader, checksum_of, index_records, named_blocks, put_blocks
from penstock.segmentstore.tiering.chunk_writes import ChunkWrites
from penstock.segmentstore.tiering.reclaimer import Reclaimer
from penstock.segmentstore.tiering.tier_writer import TierWriter

_START = attrgetter("start_offset")
_NOTHING = ErasedRecord(ranges=(), changes=())
_LENGTH_MAX = (1 << 31) - 1  # bytes; the header of an event has a signed 32-bit length


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copy:
    """A rewritten chunk: durable, but not named by any row yet."""

    chunk: Chunk
    blocks: Sequence[ChunkBlock]
    record: ErasedRecord


class Eraser:
    """Blanks bytes of one container's segments. One erasure runs at a time; tiering and freeing wait while a chunk is
    rewritten."""

    def __init__(
        self,
        state: ContainerState,
        parts: StoreParts,
        *,
        writes: ChunkWrites,
        blocks: BlockReader,
        tiering: TierWriter,
        reclaimer: Reclaimer,
        checkpoint: Callable[[], Awaitable[None]],
    ) -> None:
        """``checkpoint`` commits what has changed, here and in tier 2."""
        self._state = state
        self._parts = parts
        self._writes = writes
        self._blocks = blocks
        self._tiering = tiering
        self._reclaimer = reclaimer
        self._checkpoint = checkpoint
        self._lock = asyncio.Lock()

    # --- what there is ------------------------------------------------------------------------------------

    async def event_ranges(self, name: str, offsets: Sequence[int], from_ms: int) -> list[Range]:
        """See ``SegmentService.event_ranges``. ``from_ms``: see ``DurableLog.wipes_from_ms``."""
        state = self._state
        segment = (await state.segments.find_visible(name)).require_plain()
        found: list[Range] = []
        wanted = sorted(dict.fromkeys(offsets))
        at = 0
        with segment.pinned():
            try:
                await self._tiering.tier(segment)
            except OSError as error:
                raise UnavailableError("tier 2 cannot be written", segment=name, cause=repr(error)) from error
            while at < len(wanted):
                if segment.gone:
                    raise SegmentNotFoundError("no such segment", segment=name)
                offset = wanted[at]
                _check_offset(segment, offset)
                chunk = segment.chunks.find(offset)
                if chunk is None:
                    if segment.cache.entry_at(offset) is None:
                        raise bytes_lost(segment, offset)
                    # The segment got new bytes after it was tiered.
                    raise UnavailableError("segment changed during the search for events; try again", segment=name)
                blocks = await named_blocks(state, segment, chunk)
                if blocks is None:
                    continue  # The segment has changed: try again.
                start = chunk.start
                block = blocks[bisect_right(blocks, offset - start, key=_START) - 1]
                _check_age(segment, block, from_ms)
                count = bisect_left(wanted, start + block.end_offset, at) - at
                data = await self._block(segment, chunk, block)
                if data is not None:
                    found += _events(segment, data, start + block.start_offset, block, wanted[at : at + count])
                    at += count
        return found

    async def _block(self, segment: Segment, chunk: Chunk, block: ChunkBlock) -> bytes | None:
        """None: the segment has changed, try again."""
        with segment.pinned():
            try:
                return bytes(await self._blocks.whole(chunk.name, block))
            except (SegmentNotFoundError, CorruptDataError):
                if segment.chunks.holds(chunk) and chunk.start + block.end_offset > segment.kept_offset:
                    raise
                return None

    async def erased_ranges(self, name: str, start: int, end: int) -> list[Range]:
        """See ``SegmentService.erased_ranges``."""
        if not 0 <= start <= end:
            raise InvalidArgumentError("range is not ordered", start=start, end=end)
        state = self._state
        while True:
            segment = (await state.segments.find_visible(name)).require_plain()
            chunks = [(chunk, chunk.start) for chunk in segment.chunks.between(start, end)]
            keys = [records.erased_key(state.index, chunk.name) for chunk, _ in chunks]
            with segment.pinned():
                rows = await state.rows.get_many(keys)
                if segment.gone or not all(segment.chunks.holds(chunk) for chunk, _ in chunks):
                    continue
            found: list[Range] = []
            for (_, begin), row in zip(chunks, rows, strict=True):
                if row is not None:
                    found += clipped(shifted(decode_erased(row).ranges, begin), start, end)
            return joined(found)

    # --- erasing ------------------------------------------------------------------------------------------

    async def erase(self, name: str, ranges: Sequence[Range], erasure: str) -> list[ErasedChunk]:
        """See ``SegmentService.erase``."""
        wanted = checked_ranges(ranges)
        async with self._lock:
            try:
                return await self._erase(name, wanted, erasure)
            except SegmentNotFoundError as error:
                await self._wipe_if_deleted(name)
                # The segment exists, but one of its chunks does not: the segment must not count as deleted.
                raise CorruptDataError("a chunk of the segment is missing", segment=name, **error.fields) from error

    async def _wipe_if_deleted(self, name: str) -> None:
        """If the segment is deleted, wipe its files, then raise SegmentNotFoundError."""
        try:
            await self._state.segments.find_visible(name)
        except SegmentNotFoundError:
            await self._wipe_deleted(name)
            raise

    async def _wipe_deleted(self, name: str) -> None:
        """Overwrite and delete the files of a deleted segment, even if leased."""
        await self._settle(self._reclaimer.wipe_released(name))
        await self._reclaimer.sweep(name, None)

    async def _erase(self, name: str, wanted: Sequence[Range], erasure: str) -> list[ErasedChunk]:
        state = self._state
        segment = (await state.segments.find_visible(name)).require_plain()
        if wanted and wanted[-1][1] > segment.length:
            raise InvalidArgumentError(
                "range to erase ends behind the segment", segment=name, end=wanted[-1][1], length=segment.length
            )
        with segment.pinned():
            await self._tiering.tier(segment)
            position = 0
            while (found := await self._next(segment, wanted, position)) is not None:
                position = found.start + 1
                # No head may be freed now: a hole counts as damage until the chunk records it.
                async with self._tiering.quiet(), self._reclaimer.quiet():
                    await self._rewrite(segment, found, wanted, erasure)
            if wanted and wanted[0][0] < segment.kept_offset:
                # Truncated after the positions were taken: the bytes are in unreferenced chunks, which leases may keep.
                await self._settle(self._reclaimer.wipe_released(name))
            await self._trim(segment, wanted)
            erased = await self._erased_chunks(segment, wanted, erasure)
        if erased:
            await self._settle([item.name_before for item in erased])
        await self._reclaimer.sweep(name, segment.uid)
        return erased

    async def _trim(self, segment: Segment, wanted: Sequence[Range]) -> None:
        """Overwrite bytes behind the ends of chunks: a failed write, or one whose row a crash lost, may have left a
        copy of bytes that later chunks hold."""
        end = wanted[-1][0] if wanted else 0
        with segment.pinned():
            for chunk in list(segment.chunks.items):
                if chunk.end <= end and self._tiering.may_have_tail(chunk.name):
                    async with self._tiering.quiet():
                        if segment.chunks.holds(chunk):
                            await self._parts.chunks.trim(chunk.name, chunk.length)

    async def _next(self, segment: Segment, wanted: Sequence[Range], position: int) -> Chunk | None:
        """A chunk behind ``position`` to rewrite: it holds requested bytes that are not blank yet, or dead bytes."""
        _require_there(segment)
        with segment.pinned():
            for chunk in list(segment.chunks.items):
                own = _own(segment, chunk, wanted)
                if chunk.start < position or not own:
                    continue
                record = await self._record(chunk.name)
                # A released chunk was truncated, or another erasure rewrote it. The check at the end detects it.
                if segment.chunks.holds(chunk) and without(own, record.ranges):
                    return chunk
        return None

    async def _record(self, chunk: str) -> ErasedRecord:
        row = await self._state.rows.get(records.erased_key(self._state.index, chunk))
        return _NOTHING if row is None else decode_erased(row)

    async def _rewrite(self, segment: Segment, chunk: Chunk, wanted: Sequence[Range], erasure: str) -> None:
        """Replace a chunk by one without the bytes; do nothing if the segment released it. Tiering and freeing pause
        meanwhile."""
        state = self._state
        with segment.pinned():
            before = await self._record(chunk.name)
            blocks = await named_blocks(state, segment, chunk)
            if blocks is not None:
                await self._replace(segment, chunk, blocks, before, wanted, erasure)

    async def _replace(
        self,
        segment: Segment,
        chunk: Chunk,
        blocks: Sequence[ChunkBlock],
        before: ErasedRecord,
        wanted: Sequence[Range],
        erasure: str,
    ) -> None:
        writes = self._writes
        writes.next_attempt()
        name = writes.name(segment.uid, chunk.start)
        own, dead = _own(segment, chunk, wanted), _dead(segment, chunk)
        copy: _Copy | None = None
        writes.in_flight[name] = None
        with segment.pinned():
            try:
                copy = await self._copy(chunk, name, blocks, own, dead, before, erasure)
            except (SegmentNotFoundError, CorruptDataError):
                if segment.chunks.holds(chunk):
                    raise
            finally:
                del writes.in_flight[name]
                # No await from here on: the decision must still hold when it is applied.
                if copy is None or not segment.chunks.holds(chunk) or segment.gone:
                    writes.discarded[name] = None
                else:
                    self._swap(segment, chunk, copy)

    async def _copy(
        self,
        chunk: Chunk,
        name: str,
        blocks: Sequence[ChunkBlock],
        own: Sequence[Range],
        dead: int,
        before: ErasedRecord,
        erasure: str,
    ) -> _Copy:
        """Rewrite the chunk block by block, each verified; durable when it returns."""
        storage = self._parts.chunks
        live = clipped(own, dead, chunk.length)
        old, new = Digests(live), Digests(live)
        made: list[ChunkBlock] = []
        for block in blocks:
            data, checksum = await self._blanked(chunk, block, own, dead, (old, new))
            await storage.append(name, block.start_offset, [data])
            made.append(replace(block, crc32c=checksum))
        if old.kept != new.kept or not new.is_blank:
            raise InternalError("erasure would change other bytes", chunk=chunk.name)
        await storage.sync(name)
        await storage.append(index_name(name), 0, index_records(chunk.start, made))
        await storage.sync(index_name(name))
        if chunk.freed:
            await storage.free_head(name, chunk.freed)
        change = ErasedChange(
            erasure=erasure,
            start=dead,
            end=chunk.length,
            blanked_bytes=size_of(without(live, before.ranges)),
            before=old.all,
            after=new.all,
            kept=old.kept,
            chunk=chunk.name,
        )
        copy = Chunk(
            name,
            chunk.start,
            length=chunk.length,
            freed=chunk.freed,
            block_count=chunk.block_count,
            event_count=chunk.event_count,
            joined_ms=chunk.joined_ms,
        )
        copy.blocks = made
        record = ErasedRecord(ranges=joined(before.ranges, own), changes=(*before.changes, change))
        return _Copy(chunk=copy, blocks=made, record=record)

    async def _blanked(
        self, chunk: Chunk, block: ChunkBlock, own: Sequence[Range], dead: int, digests: tuple[Digests, Digests]
    ) -> tuple[bytearray, int]:
        """The block after erasure, and its checksum. The digests cover its live bytes, before and after."""
        size = block.end_offset - block.start_offset
        if block.end_offset <= dead:
            # Truncated as a whole, so no reader sees it. It may already be a hole whose row a crash lost. It becomes
            # zeros that have a checksum.
            data = bytearray(size)
            return data, await checksum_of(self._parts.offload, [data])
        data = bytearray(await self._blocks.whole(chunk.name, block))
        skip = min(size, max(0, dead - block.start_offset))
        before, after = digests
        before.show(memoryview(data)[skip:], block.start_offset + skip)
        blank(data, 0, dead_payloads(data, block.event_count, skip))
        blank(data, block.start_offset, clipped(own, dead, chunk.length))
        after.show(memoryview(data)[skip:], block.start_offset + skip)
        return data, await checksum_of(self._parts.offload, [data])

    def _swap(self, segment: Segment, chunk: Chunk, copy: _Copy) -> None:
        """The segment names the copy. The next checkpoint makes that durable, and then the old chunk is wiped."""
        state, index = self._state, self._state.index
        new = copy.chunk
        segment.chunks.replace(chunk, new)
        if segment.open_chunk is chunk:
            segment.open_chunk = None
        state.rows.delete_range(records.range_of(records.block_prefix(index, chunk.name)))
        put_blocks(state, new.name, copy.blocks)
        state.rows.put(records.chunk_key(index, segment.uid, new.start), records.encode_chunk(new.record()))
        state.rows.delete(records.erased_key(index, chunk.name))
        state.rows.put(records.erased_key(index, new.name), encode_erased(copy.record))
        self._reclaimer.release(segment, chunk.name, chunk.length - chunk.freed, wipe=True)
        segment.cache.drop_tiered(new.start, new.end)
        self._blocks.forget(chunk.name)
        state.mark_dirty(segment)
        self._parts.telemetry.add("erased_bytes", copy.record.changes[-1].blanked_bytes)

    async def _erased_chunks(self, segment: Segment, wanted: Sequence[Range], erasure: str) -> list[ErasedChunk]:
        """The segment's chunks that this erasure rewrote, now or in an earlier attempt. All requested ranges are blank."""
        _require_there(segment)
        found: list[ErasedChunk] = []
        with segment.pinned():
            for chunk in list(segment.chunks.items):
                own = _own(segment, chunk, wanted)
                if not own:
                    continue
                record = await self._record(chunk.name)
                if segment.gone or not segment.chunks.holds(chunk) or without(own, record.ranges):
                    raise UnavailableError("segment changed during the erasure; try again", segment=segment.name)
                found += [
                    ErasedChunk(
                        name_before=change.chunk,
                        start_offset=chunk.start + change.start,
                        end_offset=chunk.start + change.end,
                        blanked_bytes=change.blanked_bytes,
                        before=change.before,
                        after=change.after,
                        kept=change.kept,
                    )
                    for change in record.changes
                    if change.erasure == erasure
                ]
        return found

    async def _settle(self, replaced: Sequence[str]) -> None:
        """Return once the replaced chunks are durably unnamed, overwritten and deleted. Raises what storage raises, and
        UnavailableError if they still exist."""
        await self._checkpoint()
        await self._reclaimer.free()
        left = [name for name in replaced if self._reclaimer.is_pending(name)]
        if left:
            raise UnavailableError("replaced chunks are not deleted yet; try again", chunk=left[0], chunks=len(left))


def _require_there(segment: Segment) -> None:
    if segment.gone:
        raise SegmentNotFoundError("no such segment", segment=segment.name)


def _dead(segment: Segment, chunk: Chunk) -> int:
    """The offset in the chunk up to which nobody reads it: truncated and released."""
    return max(chunk.freed, min(chunk.length, segment.kept_offset - chunk.start))


def _own(segment: Segment, chunk: Chunk, wanted: Sequence[Range]) -> list[Range]:
    """The ranges of the chunk to blank, in chunk positions: the requested ones, and truncated bytes still on disk. The
    latter may hold data to erase that nobody can find any more."""
    dead = _dead(segment, chunk)
    live = clipped(shifted(clipped(wanted, chunk.start, chunk.end), -chunk.start), dead, chunk.length)
    return joined([(chunk.freed, dead)] if dead > chunk.freed else [], live)


def _check_age(segment: Segment, block: ChunkBlock, from_ms: int) -> None:
    """Raises UnsupportedError: the log may have had the block's events in a place that cannot be wiped."""
    if from_ms and (block.first_ms is None or block.first_ms < from_ms):
        raise UnsupportedError(
            "these events were appended before the log was encrypted, and bookies keep deleted bytes until they compact;"
            " retention deletes the events, and only the operator of the bookies knows when their bytes are gone",
            segment=segment.name,
            appended_ms=block.first_ms,
            encrypted_ms=from_ms,
        )


def _check_offset(segment: Segment, offset: int) -> None:
    if offset < segment.start_offset:
        raise TruncatedError(
            "data has been truncated", segment=segment.name, offset=offset, start_offset=segment.start_offset
        )
    if offset + HEADER_BYTES > segment.length:
        raise InvalidArgumentError(
            "no event begins behind the end of the segment",
            segment=segment.name,
            offset=offset,
            length=segment.length,
        )


def _events(segment: Segment, data: bytes, start: int, block: ChunkBlock, offsets: Sequence[int]) -> list[Range]:
    """The payloads of the events that begin at the offsets, all of which lie in the block that begins at ``start``."""
    # An event begins at the head, anywhere in the block; bytes before it may be blank, including headers.
    skip = min(len(data), max(0, segment.start_offset - start))
    data, start = data[skip:], start + skip
    try:
        bounds = event_bounds(data, segment=segment.name, offset=start) if block.event_count else ()
    except CorruptDataError as error:
        raise InvalidArgumentError("segment holds no events: it was written as bytes", **error.fields) from error
    known = {start + bound: index for index, bound in enumerate(bounds)}
    found: list[Range] = []
    for offset in offsets:
        position = offset - start
        if offset not in known or position + HEADER_BYTES > len(data):
            raise InvalidArgumentError(
                "no event begins at the offset; take offsets from a reader", segment=segment.name, offset=offset
            )
        length = int.from_bytes(data[position : position + HEADER_BYTES], "big")
        end = offset + HEADER_BYTES + length
        if length > _LENGTH_MAX or end > segment.length:
            raise InvalidArgumentError("no event begins at the offset", segment=segment.name, offset=offset, end=end)
        if length:
            found.append((offset + HEADER_BYTES, end))
    return found
