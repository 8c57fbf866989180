"""Chunks that others wrote into tier 2: where they may, how the store makes them its own, what of them is garbage.

A place is granted for one segment of a transaction, and bears that segment's uid. As long as the segment is there, nothing of
it is removed; adopted chunks are named by the segment, and go with it like any other; once it is merged or deleted, what was
not adopted is garbage, for its uid never comes back. So only references decide; a time says at most when to look.

Source: docs/design/0016-sink.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crc32c import crc32c

from penstock.codec.store import operations as codec
from penstock.codec.store import rows as records
from penstock.codec.store.chunk_index import RECORD_BYTES, IndexRecord, decode_records, index_name
from penstock.core.segments.garbage import ImportName, imports_listed, parse_import_name
from penstock.core.segments.placement import is_transaction_name
from penstock.core.segments.rolling import BLOCKS_MAX
from penstock.model.errors import (
    ConditionFailedError,
    CorruptDataError,
    InvalidArgumentError,
    PenstockError,
    SegmentNotFoundError,
    SegmentSealedError,
    UnavailableError,
    VersionTooNewError,
    leaves,
)
from penstock.ports.chunk_imports import ADOPT_MAX_CHUNKS, ImportedChunk, ImportGrant
from penstock.segmentstore import segment_calls
from penstock.segmentstore.segment import Chunk, Segment

if TYPE_CHECKING:
    from penstock.segmentstore.container import Container

_READS = 16
"""Sidecars that are read at the same time."""

_LOOK_AGAIN_S = 900.0
"""When to look a second time for what was written late: behind the longest lease of a transaction."""

_LOOK_PAUSE_S = 10.0
"""Between two looks: each lists the container's tier 2."""

NO_SEGMENT = 0
"""Uid of no segment, in the name of the marker."""


@dataclass(slots=True)
class _Ended:
    """A segment that is gone: which of the chunks written for it others name now, and when to look for the rest."""

    named: frozenset[str]
    look_at: float
    last: bool = False


class Imports:
    """Of one container. Its garbage goes when the reclaimer frees."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self._count = 0
        self._granted: dict[int, dict[tuple[int, int], None]] = {}
        self._ended: dict[int, _Ended] = {}
        self._looked_at = float("-inf")
        self._locks: dict[int, asyncio.Lock] = {}
        self._marker: str | None = None
        self._marking = asyncio.Lock()

    # --- a place to write ---------------------------------------------------------------------------------

    async def grant(self, name: str) -> ImportGrant:
        """See ``ChunkImports.grant_import``."""
        container, settings = self._container, self._container.settings
        marker = await self._marked()
        segment = (await segment_calls.find(container, name)).require_plain()
        error = _refusal(segment) or self._no_room(segment)
        if error is not None:
            await segment_calls.refuse(container, segment, error)
        self._count += 1
        place = ImportName(
            container=container.index, uid=segment.uid, epoch=container.log.epoch, grant=self._count, number=0
        )
        self._granted.setdefault(segment.uid, {})[place.epoch, place.grant] = None
        # A place for a segment that a crash takes back would be looked for by nobody.
        await segment_calls.agree(container, segment, None)
        return ImportGrant(
            segment=name,
            prefix=place.prefix,
            location=container.chunks.location(marker),
            marker=marker,
            appends=container.chunks.mutable,
            chunk_bytes=segment.rollover_bytes or settings.chunk_bytes,
            block_bytes=settings.flush_bytes,
        )

    async def _marked(self) -> str:
        """The name of the marker, which is there when this returns. One for each opening: an older one is garbage."""
        async with self._marking:
            if self._marker is None:
                nonce = self._container.rng.uuid().int
                name = ImportName(
                    container=self._container.index,
                    uid=NO_SEGMENT,
                    epoch=self._container.log.epoch,
                    grant=nonce,
                    number=0,
                )
                try:
                    await self._container.chunks.append(str(name), 0, [b"penstock\n"])
                    await self._container.chunks.sync(str(name))
                except OSError as error:
                    raise UnavailableError("tier 2 cannot be written", chunk=str(name), cause=repr(error)) from error
                self._marker = str(name)
            return self._marker

    def _no_room(self, segment: Segment) -> PenstockError | None:
        return self._container.log.shortage.refusal() or (segment.gate.take(segment, 0, 0) if segment.gate else None)

    # --- adoption -----------------------------------------------------------------------------------------

    async def adopt(self, name: str, offset: int, chunks: Sequence[ImportedChunk]) -> int:
        """See ``ChunkImports.adopt_chunks``."""
        container = self._container
        names = [_import_name(chunk) for chunk in chunks]
        _check_list(chunks, offset)
        segment = (await segment_calls.find(container, name)).require_plain()
        with segment.pinned():
            async with self._locks.setdefault(segment.uid, asyncio.Lock()):
                # First wait until it is known whether operations of earlier calls, even abandoned ones, have happened.
                await segment_calls.agree(container, segment, None)
                if offset < segment.next_length and _lies_there(segment, offset, chunks):
                    return segment.next_length
                error = _refusal(segment) or _misplaced(segment, names) or self._no_room(segment)
                if error is not None:
                    await segment_calls.refuse(container, segment, error)
                adopted = await self._verified(chunks)
                # Read over awaits: the transaction may have been decided.
                return await self._adopt(name, names, offset, chunks, adopted)

    async def _adopt(
        self,
        name: str,
        names: Sequence[ImportName],
        offset: int,
        chunks: Sequence[ImportedChunk],
        adopted: tuple[codec.AdoptedChunk, ...],
    ) -> int:
        """Decide and queue, without an await in between."""
        container = self._container
        segment = (await segment_calls.find(container, name)).require_plain()
        error = _refusal(segment) or _misplaced(segment, names)
        if error is None and segment.next_length != offset:
            error = ConditionFailedError(
                "segment has another length", segment=name, expected=offset, actual=segment.next_length
            )
        if error is not None:
            await segment_calls.refuse(container, segment, error)
        operation = codec.AdoptOperation(uid=segment.uid, offset=offset, chunks=adopted)
        prepared = segment_calls.Prepared(
            container, segment, operation, lambda now_ms: adopt(container, segment, operation, now_ms)
        )
        size_bytes, events = sum(item.size_bytes for item in chunks), sum(item.event_count for item in chunks)
        error = segment.gate.take(segment, size_bytes, events) if segment.gate is not None else None
        if error is not None:
            await segment_calls.refuse(container, segment, error)
        segment.next_length += size_bytes
        segment.next_events += events
        return int(await prepared.submit())

    async def _verified(self, chunks: Sequence[ImportedChunk]) -> tuple[codec.AdoptedChunk, ...]:
        """The chunks with the blocks that their sidecars tell. Raises CorruptDataError."""
        found: list[codec.AdoptedChunk] = []
        failure: PenstockError | None = None
        for start in range(0, len(chunks), _READS):
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(self._look(chunk)) for chunk in chunks[start : start + _READS]]
            except* PenstockError as failed:
                failure = next(leaves(failed))
            # Not from within: Python before 3.11.4 makes a group of what is raised there.
            if failure is not None:
                raise failure
            found += [task.result() for task in tasks]
        return tuple(found)

    async def _look(self, chunk: ImportedChunk) -> codec.AdoptedChunk:
        storage = self._container.chunks
        try:
            index = await storage.read(index_name(chunk.name), 0, BLOCKS_MAX * RECORD_BYTES + 1)
            # One byte where the chunk ends with it, more or less where it does not.
            last = await storage.read(chunk.name, chunk.size_bytes - 1, 2)
        except SegmentNotFoundError as error:
            raise CorruptDataError("imported chunk is not there", chunk=chunk.name) from error
        except OSError as error:
            raise UnavailableError("tier 2 cannot be read", chunk=chunk.name, cause=repr(error)) from error
        if crc32c(index) != chunk.index_crc32c or len(last) != 1:
            raise CorruptDataError("imported chunk is not as its writer left it", chunk=chunk.name)
        try:
            blocks = list(decode_records(index))
        except VersionTooNewError as error:
            raise CorruptDataError("sidecar of an imported chunk cannot be read", chunk=chunk.name) from error
        wrong = _wrong_blocks(blocks, index, chunk)
        if wrong is not None:
            raise CorruptDataError("sidecar does not make up its imported chunk", chunk=chunk.name, reason=wrong)
        return codec.AdoptedChunk(
            name=chunk.name,
            blocks=tuple(
                codec.AdoptedBlock(size_bytes=item.end - item.start, event_count=item.event_count, crc32c=item.crc32c)
                for item in blocks
            ),
        )

    # --- garbage ------------------------------------------------------------------------------------------

    def ended(self, segment: Segment, chunks: Iterable[Chunk], *, merged: bool) -> None:
        """The segment is merged or deleted; those were its chunks."""
        if not is_transaction_name(segment.name):
            return
        granted = self._granted.pop(segment.uid, None)
        self._locks.pop(segment.uid, None)
        # What an earlier opening granted is not known any more.
        earlier = segment.uid >> 32 < self._container.log.epoch
        if granted is None and not earlier:
            return
        names = [name for chunk in chunks if (name := parse_import_name(chunk.name)) is not None]
        adopted = {(name.epoch, name.grant) for name in names if name.uid == segment.uid}
        # A commit adopts all that an attempt wrote, or nothing; one that is given up may have come half way.
        if merged and not earlier and all(grant in adopted for grant in granted or ()):
            return
        now = asyncio.get_running_loop().time()
        self._ended[segment.uid] = _Ended(named=frozenset(str(name) for name in names), look_at=now)

    async def free(self) -> None:
        """Remove what was written for segments that are gone, and not adopted. Raises what the chunk storage raises."""
        now = asyncio.get_running_loop().time()
        due = {uid: item for uid, item in self._ended.items() if item.look_at <= now}
        if not due or now < self._looked_at + _LOOK_PAUSE_S:
            return
        self._looked_at = now
        listed = imports_listed(await self._container.chunks.list(), container=self._container.index)
        for uid, item in due.items():
            await self._remove(str(name) for name in listed.get(uid, ()) if str(name) not in item.named)
            if item.last:
                del self._ended[uid]
            else:
                item.look_at, item.last = now + _LOOK_AGAIN_S, True

    async def sweep(self) -> None:
        """As ``free``, but now, and overwriting: bytes were erased, and what was not adopted may be copies of them."""
        if not self._ended:
            return
        listed = imports_listed(await self._container.chunks.list(), container=self._container.index)
        for uid, item in list(self._ended.items()):
            await self._remove((str(name) for name in listed.get(uid, ()) if str(name) not in item.named), wipe=True)

    async def _remove(self, names: Iterable[str], *, wipe: bool = False) -> None:
        for name in names:
            if wipe:
                await self._container.chunks.wipe(name)
            await self._container.chunks.delete(index_name(name))
            await self._container.chunks.delete(name)
            self._container.telemetry.add("unadopted_chunks")

    async def orphan_candidates(self, listed: Sequence[str]) -> Sequence[str]:
        """Of the listed names, imported chunks of earlier openings for segments that are gone: garbage unless named."""
        container = self._container
        found: list[str] = []
        for uid, names in imports_listed(listed, container=container.index).items():
            if uid in container.segments.by_uid or uid in self._granted:
                continue
            # Read the row last: a segment found in neither place no longer exists. A damaged row counts as present.
            bounds = records.range_of(records.uid_key(records.TAG_SEGMENT, container.index, uid))
            damaged: list[bytes] = []
            if not await container.rows.scan(bounds, limit=1, damaged=damaged) and not damaged:
                found += [str(name) for name in names if name.epoch < container.log.epoch]
        return found


def adopt(container: Container, segment: Segment, operation: codec.AdoptOperation, now_ms: int) -> int:
    """Change durable state: the chunks are the segment's. Recovery takes the same step."""
    index = container.index
    at = operation.offset
    for item in operation.chunks:
        position = 0
        for block in item.blocks:
            end = position + block.size_bytes
            record = records.BlockRecord(end=end, event_count=block.event_count, crc32c=block.crc32c)
            container.rows.put(records.block_key(index, item.name, position), records.encode_block(record))
            position = end
        chunk = Chunk(item.name, at, length=position, block_count=len(item.blocks), event_count=item.event_count)
        segment.chunks.add(chunk)
        container.rows.put(records.chunk_key(index, segment.uid, at), records.encode_chunk(chunk.record()))
        # Looked for as orphans are: it is in no row that was read before.
        container.reclaimer.chunk_moved(item.name)
        segment.event_count += item.event_count
        at = chunk.end
    segment.open_chunk = None
    container.telemetry.add("adopted_bytes", at - segment.length)
    segment.length = at
    segment.modified_ms = now_ms
    container.changes.note(segment)
    container.mark_dirty(segment)
    return at


def _import_name(chunk: ImportedChunk) -> ImportName:
    name = parse_import_name(chunk.name)
    if name is None or chunk.size_bytes < 1 or chunk.event_count < 0:
        raise InvalidArgumentError("not an imported chunk", chunk=chunk.name[:200], size_bytes=chunk.size_bytes)
    return name


def _check_list(chunks: Sequence[ImportedChunk], offset: int) -> None:
    if not 0 < len(chunks) <= ADOPT_MAX_CHUNKS:
        raise InvalidArgumentError("so many chunks cannot be adopted", chunks=len(chunks), limit=ADOPT_MAX_CHUNKS)
    if len({chunk.name for chunk in chunks}) != len(chunks) or offset < 0:
        raise InvalidArgumentError("chunk is named twice, or the offset is negative", offset=offset)


def _refusal(segment: Segment) -> PenstockError | None:
    if not is_transaction_name(segment.name):
        return InvalidArgumentError("only a transaction adopts chunks", segment=segment.name)
    if segment.next_sealed:
        return SegmentSealedError("segment is sealed", segment=segment.name, length_bytes=segment.next_length)
    return None


def _misplaced(segment: Segment, names: Sequence[ImportName]) -> PenstockError | None:
    known: Mapping[str, None] = {chunk.name: None for chunk in segment.chunks.items}
    for name in names:
        if name.uid != segment.uid or str(name) in known:
            return InvalidArgumentError(
                "chunk was not granted for this segment, or is adopted already", segment=segment.name, chunk=str(name)
            )
    return None


def _lies_there(segment: Segment, offset: int, chunks: Sequence[ImportedChunk]) -> bool:
    """Whether these chunks are the last of the segment, from the offset on."""
    found = [chunk for chunk in segment.chunks.items if chunk.start >= offset]
    return [(item.name, item.length) for item in found] == [(item.name, item.size_bytes) for item in chunks] and (
        found[0].start == offset and found[-1].end == segment.next_length
    )


def _wrong_blocks(blocks: Sequence[IndexRecord], index: bytes, chunk: ImportedChunk) -> str | None:
    """What the sidecar says otherwise than the chunk's writer; None: nothing."""
    if not blocks or len(blocks) > BLOCKS_MAX or len(blocks) * RECORD_BYTES != len(index):
        return f"{len(blocks)} blocks in {len(index)} bytes"
    if blocks[-1].end != chunk.size_bytes:
        return f"blocks end at {blocks[-1].end} of {chunk.size_bytes}"
    if any(not 0 < item.end - item.start < 1 << 32 or not 0 <= item.event_count < 1 << 32 for item in blocks):
        return "a block has no legal size"
    events = sum(item.event_count for item in blocks)
    return None if events == chunk.event_count else f"{events} events of {chunk.event_count}"
