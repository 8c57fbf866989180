"""Chunks that clients write into tier 2: where they may write, and how the store adopts them.

A place is granted for one segment of a transaction, and contains that segment's uid. While the segment exists, nothing
in the place is removed. The segment names adopted chunks, and they are deleted with it like any other. Once it is
merged or deleted, chunks that were not adopted are garbage (``tiering.import_garbage``), because the uid is never
reused. So only references decide what is garbage; time decides at most when to check.

Source: docs/design/0016-sink.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from weakref import WeakValueDictionary

from crc32c import crc32c

from penstock.codec.store import operations as codec
from penstock.codec.store.chunk_index import RECORD_BYTES, IndexRecord, decode_records, index_name
from penstock.core.segments.garbage import ImportName, parse_import_name
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
from penstock.ports.data.imports import ADOPT_MAX_CHUNKS, ImportedChunk, ImportGrant
from penstock.segmentstore.calls import segments as segment_calls
from penstock.segmentstore.calls.segments import Operations
from penstock.segmentstore.parts import StoreParts
from penstock.segmentstore.segment import Segment
from penstock.segmentstore.tiering.import_garbage import ImportGarbage

_READS = 16
"""Sidecars that are read at the same time."""

NO_SEGMENT = 0
"""Uid of no segment, in the name of the marker."""


class Imports:
    """The imports of one container."""

    def __init__(self, operations: Operations, parts: StoreParts, garbage: ImportGarbage) -> None:
        self._operations = operations
        self._state = operations.state
        self._parts = parts
        self._garbage = garbage
        self._count = 0
        self._locks: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        """One for each segment that chunks are being adopted for."""
        self._marker: str | None = None
        self._marking = asyncio.Lock()

    # --- a place to write ---------------------------------------------------------------------------------

    async def grant(self, name: str) -> ImportGrant:
        """See ``ChunkImports.grant_import``."""
        operations, storage, settings = self._operations, self._parts.chunks, self._parts.settings
        marker = await self._marked()
        segment = (await segment_calls.find(operations, name)).require_plain()
        error = _refusal(segment) or self._no_room(segment)
        if error is not None:
            await segment_calls.refuse(operations, segment, error)
        self._count += 1
        state = self._state
        place = ImportName(container=state.index, uid=segment.uid, epoch=state.log.epoch, grant=self._count, number=0)
        self._garbage.granted(segment.uid, place.epoch, place.grant)
        # Wait until the segment is durable: nobody would clean up the place of a segment that a crash undoes.
        await segment_calls.agree(operations, segment, None)
        return ImportGrant(
            segment=name,
            prefix=place.prefix,
            location=storage.location(marker),
            marker=marker,
            appends=storage.mutable,
            chunk_bytes=segment.rollover_bytes or settings.chunk_bytes,
            block_bytes=settings.flush_bytes,
        )

    async def _marked(self) -> str:
        """The name of the marker, which exists when this returns. Each opening has its own: older ones are garbage."""
        async with self._marking:
            if self._marker is None:
                nonce = self._parts.rng.uuid().int
                name = ImportName(
                    container=self._state.index,
                    uid=NO_SEGMENT,
                    epoch=self._state.log.epoch,
                    grant=nonce,
                    number=0,
                )
                try:
                    await self._parts.chunks.append(str(name), 0, [b"penstock\n"])
                    await self._parts.chunks.sync(str(name))
                except OSError as error:
                    raise UnavailableError("tier 2 cannot be written", chunk=str(name), cause=repr(error)) from error
                self._marker = str(name)
            return self._marker

    def _no_room(self, segment: Segment) -> PenstockError | None:
        return self._state.log.shortage.refusal() or (segment.gate.take(segment, 0, 0) if segment.gate else None)

    # --- adoption -----------------------------------------------------------------------------------------

    async def adopt(self, name: str, offset: int, chunks: Sequence[ImportedChunk]) -> int:
        """See ``ChunkImports.adopt_chunks``."""
        operations = self._operations
        names = [_import_name(chunk) for chunk in chunks]
        _check_list(chunks, offset)
        segment = (await segment_calls.find(operations, name)).require_plain()
        with segment.pinned():
            async with self._locks.setdefault(segment.uid, asyncio.Lock()):
                # First wait until it is known whether operations of earlier calls, even abandoned ones, have happened.
                await segment_calls.agree(operations, segment, None)
                if offset < segment.next_length and _lies_there(segment, offset, chunks):
                    return segment.next_length
                error = _refusal(segment) or _misplaced(segment, names) or self._no_room(segment)
                if error is not None:
                    await segment_calls.refuse(operations, segment, error)
                adopted = await self._verified(chunks)
                # The chunks were read across awaits: the transaction may have been decided meanwhile.
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
        operations = self._operations
        segment = (await segment_calls.find(operations, name)).require_plain()
        error = _refusal(segment) or _misplaced(segment, names)
        if error is None and segment.next_length != offset:
            error = ConditionFailedError(
                "segment has another length", segment=name, expected=offset, actual=segment.next_length
            )
        if error is not None:
            await segment_calls.refuse(operations, segment, error)
        operation = codec.AdoptOperation(uid=segment.uid, offset=offset, chunks=adopted)
        prepared = segment_calls.Prepared(
            operations, segment, operation, lambda now_ms: operations.steps.adopt(segment, operation, now_ms)
        )
        size_bytes, events = sum(item.size_bytes for item in chunks), sum(item.event_count for item in chunks)
        error = segment.gate.take(segment, size_bytes, events) if segment.gate is not None else None
        if error is not None:
            await segment_calls.refuse(operations, segment, error)
        segment.next_length += size_bytes
        segment.next_events += events
        return int(await prepared.submit())

    async def _verified(self, chunks: Sequence[ImportedChunk]) -> tuple[codec.AdoptedChunk, ...]:
        """The chunks with the blocks that their sidecars describe. Raises CorruptDataError."""
        found: list[codec.AdoptedChunk] = []
        failure: PenstockError | None = None
        for start in range(0, len(chunks), _READS):
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(self._look(chunk)) for chunk in chunks[start : start + _READS]]
            except* PenstockError as failed:
                failure = next(leaves(failed))
            # Not inside the task group: Python before 3.11.4 wraps what is raised there in an exception group.
            if failure is not None:
                raise failure
            found += [task.result() for task in tasks]
        return tuple(found)

    async def _look(self, chunk: ImportedChunk) -> codec.AdoptedChunk:
        storage = self._parts.chunks
        try:
            index = await storage.read(index_name(chunk.name), 0, BLOCKS_MAX * RECORD_BYTES + 1)
            # One byte if the chunk has the expected length, more or less otherwise.
            last = await storage.read(chunk.name, chunk.size_bytes - 1, 2)
        except SegmentNotFoundError as error:
            raise CorruptDataError("imported chunk is missing", chunk=chunk.name) from error
        except OSError as error:
            raise UnavailableError("tier 2 cannot be read", chunk=chunk.name, cause=repr(error)) from error
        if crc32c(index) != chunk.index_crc32c or len(last) != 1:
            raise CorruptDataError("imported chunk differs from what its writer reported", chunk=chunk.name)
        try:
            blocks = list(decode_records(index))
        except VersionTooNewError as error:
            raise CorruptDataError("sidecar of an imported chunk cannot be read", chunk=chunk.name) from error
        wrong = _wrong_blocks(blocks, index, chunk)
        if wrong is not None:
            raise CorruptDataError(
                "blocks of the sidecar do not add up to the imported chunk", chunk=chunk.name, reason=wrong
            )
        return codec.AdoptedChunk(
            name=chunk.name,
            blocks=tuple(
                codec.AdoptedBlock(size_bytes=item.end - item.start, event_count=item.event_count, crc32c=item.crc32c)
                for item in blocks
            ),
        )


def _import_name(chunk: ImportedChunk) -> ImportName:
    name = parse_import_name(chunk.name)
    if name is None or chunk.size_bytes < 1 or chunk.event_count < 0:
        raise InvalidArgumentError("not an imported chunk", chunk=chunk.name[:200], size_bytes=chunk.size_bytes)
    return name


def _check_list(chunks: Sequence[ImportedChunk], offset: int) -> None:
    if not 0 < len(chunks) <= ADOPT_MAX_CHUNKS:
        raise InvalidArgumentError(
            "number of chunks to adopt is out of range", chunks=len(chunks), limit=ADOPT_MAX_CHUNKS
        )
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
    """Whether these chunks are already the last of the segment, from the offset on."""
    found = [chunk for chunk in segment.chunks.items if chunk.start >= offset]
    return [(item.name, item.length) for item in found] == [(item.name, item.size_bytes) for item in chunks] and (
        found[0].start == offset and found[-1].end == segment.next_length
    )


def _wrong_blocks(blocks: Sequence[IndexRecord], index: bytes, chunk: ImportedChunk) -> str | None:
    """How the sidecar contradicts the chunk's writer; None if it does not."""
    if not blocks or len(blocks) > BLOCKS_MAX or len(blocks) * RECORD_BYTES != len(index):
        return f"{len(blocks)} blocks in {len(index)} bytes"
    if blocks[-1].end != chunk.size_bytes:
        return f"blocks end at {blocks[-1].end} of {chunk.size_bytes}"
    if any(not 0 < item.end - item.start < 1 << 32 or not 0 <= item.event_count < 1 << 32 for item in blocks):
        return "a block has no legal size"
    events = sum(item.event_count for item in blocks)
    return None if events == chunk.event_count else f"{events} events of {chunk.event_count}"
