"""Restore segments that were set aside, in a rebuild. The catalogue holds their undamaged rows, and the log's changes to
them. This module applies the changes. Source: docs/design/0040-damaged-rows.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field, replace

from crc32c import crc32c

from penstock.codec.store import operation_frames as frames
from penstock.codec.store import operations as codec
from penstock.codec.store import rows as records
from penstock.codec.store.chunk_index import IndexRecord, encode_record, index_name
from penstock.core.segments.garbage import ChunkName, gap_name
from penstock.model.errors import CorruptDataError
from penstock.model.values.dataclass import dataclass
from penstock.ports.chunks import ChunkStorage
from penstock.ports.data.segments import NO_EVENT
from penstock.ports.keyvalue import KeyValueStore
from penstock.segmentstore.metadata import MetadataRows

_BLOCK_BYTES = 1 << 20
_CHUNK_BYTES = 64 << 20
_MARK_BYTES = 11
"""Length of the key of a mark. Keys of frames are longer."""


@dataclass(slots=True, kw_only=True)
class RestoredAside:
    """Result for one container. ``failed``: segments whose changes could not be applied, and why. ``made``: chunks that
    were written; ``dropped``: chunks of the old store that no row names now.
    """

    restored: list[str] = field(default_factory=list)
    failed: list[tuple[int, str | None, str]] = field(default_factory=list)
    made: dict[str, None] = field(default_factory=dict)
    dropped: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class _Buffer:
    """Consecutive bytes that are not in a chunk yet: the next block."""

    start: int
    first_ms: int
    last_ms: int
    data: bytearray = field(default_factory=bytearray)
    events: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.data)


@dataclass(slots=True, kw_only=True)
class _Segment:
    """A segment's state after its rows and the changes applied so far. ``changed``: the rows are outdated."""

    uid: int
    record: records.SegmentRecord
    chunks: dict[int, records.ChunkRecord]
    buffer: _Buffer | None = None
    growing: int | None = None
    """Start of the chunk that takes the next block."""
    index: list[bytes] = field(default_factory=list)
    changed: bool = False


async def restore_aside(keyvalue: KeyValueStore, container: int, *, epoch: int, chunks: ChunkStorage) -> RestoredAside:
    """Apply changes that were set aside to the rows from the catalogue, and write their bytes to ``chunks``, under names of
    ``epoch``. Afterwards nothing is set aside. Called before ``settle_container``.

    Raises what the stores raise. Changes that cannot be applied are reported in the result, not raised.
    """
    work = _Restore(MetadataRows(keyvalue), container, epoch, chunks)
    return await work.run()


class _Restore:
    def __init__(self, rows: MetadataRows, container: int, epoch: int, chunks: ChunkStorage) -> None:
        self._rows = rows
        self._container = container
        self._epoch = epoch
        self._chunks = chunks
        self._found = RestoredAside()
        self._waiting: dict[int, list[int]] = {}
        """Addresses of the frames of each segment that was set aside; the next one is last."""
        self._upto: dict[int, int] = {}
        self._failed: dict[int, None] = {}
        self._segments: dict[int, _Segment | None] = {}
        """None: the segment does not exist, or was deleted."""

    async def run(self) -> RestoredAside:
        await self._list()
        names: dict[int, str | None] = {}
        for uid in self._waiting:
            segment = await self._load(uid)
            names[uid] = None if segment is None else segment.record.name
            if segment is None:
                self._fail(uid, None, "its rows are not in the catalogue")
        for uid in self._waiting:
            await self._drain(uid, None)
        for segment in self._segments.values():
            if segment is not None:
                await self._close_chunk(segment)
                self._put(segment)
        self._found.restored = [str(name) for uid, name in names.items() if uid not in self._failed]
        self._rows.delete_range(records.range_of(records.prefix(records.TAG_ASIDE, self._container)))
        await self._rows.commit()
        return self._found

    async def _list(self) -> None:
        start, end = records.range_of(records.prefix(records.TAG_ASIDE, self._container))
        while page := await self._rows.scan((start, end), limit=1):
            ((key, value),) = page
            uid = records.parse_number(key[3:_MARK_BYTES])
            waiting = self._waiting.setdefault(uid, [])
            if len(key) == _MARK_BYTES:
                self._upto[uid] = records.decode_int(value)
            else:
                waiting.append(records.parse_number(key[_MARK_BYTES:]))
            start = key + b"\0"
        for waiting in self._waiting.values():
            waiting.reverse()

    def _fail(self, uid: int, name: str | None, why: str) -> None:
        if uid not in self._failed:
            self._failed[uid] = None
            self._found.failed.append((uid, name, why))

    async def _load(self, uid: int) -> _Segment | None:
        if uid not in self._segments:
            row = await self._rows.get(records.uid_key(records.TAG_SEGMENT, self._container, uid))
            bounds = records.range_of(records.uid_key(records.TAG_CHUNK, self._container, uid))
            self._segments[uid] = None
            if row is not None:
                self._segments[uid] = _Segment(
                    uid=uid,
                    record=records.decode_segment(row),
                    chunks={
                        records.parse_number(key[-8:]): records.decode_chunk(value)
                        for key, value in await self._rows.scan_all(bounds)
                    },
                )
        return self._segments[uid]

    async def _drain(self, uid: int, upto: int | None) -> None:
        """Apply the frames of a segment that was set aside, up to this address; None: all."""
        waiting = self._waiting[uid]
        while waiting and (upto is None or waiting[-1] <= upto):
            address = waiting.pop()
            segment = self._segments[uid]
            if uid in self._failed or segment is None:
                continue
            frame = await self._rows.get(records.aside_key(self._container, uid, address))
            try:
                if frame is None or uid not in self._upto:
                    raise CorruptDataError("changes that were set aside are incomplete")
                header = frames.decode_frame_header(frame)
                for operation in frames.decode_operations(frame):
                    await self._apply(segment, operation, address, header.time_ms)
            except CorruptDataError as error:
                self._fail(uid, segment.record.name, error.message)

    # --- operations ---------------------------------------------------------------------------------------

    async def _apply(self, segment: _Segment, operation: codec.Operation, address: int, time_ms: int) -> None:
        is_old = address <= self._upto[segment.uid]
        if isinstance(operation, codec.AppendOperation):
            await self._append(segment, operation, time_ms, is_old=is_old)
            return
        if is_old:
            return  # The rows hold it.
        segment.changed = True
        record = segment.record
        match operation:
            case codec.SealOperation():
                segment.record = replace(record, sealed=True, modified_ms=time_ms)
            case codec.TruncateOperation(offset=offset) if offset > record.start_offset:
                segment.record = replace(record, start_offset=offset)
                self._give_back(segment, offset)
            case codec.KeepOperation(offset=offset):
                segment.record = replace(record, start_offset=max(offset, record.start_offset))
            case codec.ReleaseOperation(offset=offset):
                self._give_back(segment, offset)
            case codec.RestoreOperation(offset=offset):
                start = max(offset, record.kept_offset)
                segment.record = replace(record, start_offset=min(start, record.start_offset))
            case codec.AttributeOperation():
                self._put_attribute(segment.uid, operation.attribute, operation.value)
            case codec.MergeOperation():
                await self._merge(segment, operation, address, time_ms)
            case codec.DeleteOperation():
                for chunk in segment.chunks.values():
                    self._drop(chunk)
                await self._vanish(segment)
            case codec.TruncateOperation():
                pass
            case _:
                raise CorruptDataError("changes of a table, or imported chunks, were set aside, and are not applied")

    async def _append(self, segment: _Segment, operation: codec.AppendOperation, time_ms: int, *, is_old: bool) -> None:
        offset, data, count = operation.offset, operation.data, operation.event_count
        if is_old:
            for start, end in _uncovered(segment, offset, offset + len(data)):
                events = count if start == offset else 0
                await self._write(segment, start, data[start - offset : end - offset], events, time_ms)
            return
        record = segment.record
        if offset != record.length:
            raise CorruptDataError("the changes that were set aside do not continue the segment")
        await self._write(segment, offset, data, count, time_ms)
        self._put_attribute(segment.uid, operation.writer, operation.event_number)
        segment.changed = True
        segment.record = replace(
            record,
            length=offset + len(data),
            event_count=record.event_count + count,
            modified_ms=time_ms,
        )

    async def _merge(self, segment: _Segment, operation: codec.MergeOperation, address: int, time_ms: int) -> None:
        """Apply a merge whose target, source or both (``segment``) were set aside."""
        if operation.source == segment.uid:
            if operation.uid not in self._waiting:
                await self._join_gap(segment, operation.length, time_ms)
            return  # Otherwise it is applied to the target, which was set aside too.
        if operation.source in self._waiting:
            await self._drain(operation.source, address)
        source = await self._load(operation.source)
        if source is None or operation.source in self._failed or source.record.length != operation.length:
            raise CorruptDataError("a segment that was merged into this one has changed")
        if operation.offset != segment.record.length:
            raise CorruptDataError("the changes that were set aside do not continue the segment")
        segment.record = replace(segment.record, length=operation.offset + operation.length, modified_ms=time_ms)
        await self._take_over(segment, source, operation.offset, time_ms)
        key = records.uid_key(records.TAG_MERGED, self._container, segment.uid, source.record.name.encode())
        self._rows.put(key, records.encode_int(time_ms))
        self._rows.put(records.merged_time_key(self._container, time_ms, segment.uid, source.record.name), b"")

    async def _join_gap(self, source: _Segment, length: int, time_ms: int) -> None:
        """Put merged bytes into the gap that was left for them in a segment that was not set aside."""
        if source.record.length != length:
            raise CorruptDataError("a merged segment has changed since the merge")
        gap = str(gap_name(self._container, source.uid))
        place = await self._find_chunk(gap)
        if place is None:  # Truncated or deleted since.
            for chunk in source.chunks.values():
                self._drop(chunk)
            await self._vanish(source)
            return
        uid, start = place
        target = await self._load(uid)
        if target is None:
            raise CorruptDataError("the target of a merge is missing")
        del target.chunks[start]
        self._rows.delete(records.chunk_key(self._container, uid, start))
        target.changed = True
        await self._take_over(target, source, start, time_ms)

    async def _take_over(self, target: _Segment, source: _Segment, offset: int, time_ms: int) -> None:
        await self._close_chunk(source)
        await self._close_chunk(target)
        for start, chunk in source.chunks.items():
            if offset + start + chunk.length <= target.record.kept_offset:
                self._drop(chunk)
            else:
                target.chunks[offset + start] = replace(chunk, joined_ms=time_ms)
        target.record = replace(target.record, event_count=target.record.event_count + source.record.event_count)
        await self._vanish(source)

    async def _find_chunk(self, name: str) -> tuple[int, int] | None:
        """The segment that has the chunk, and the chunk's offset in it."""
        for segment in self._segments.values():
            for start, chunk in () if segment is None else segment.chunks.items():
                if segment is not None and chunk.name == name:
                    return segment.uid, start
        bounds = records.range_of(records.prefix(records.TAG_CHUNK, self._container))
        for key, value in await self._rows.scan_all(bounds):
            uid = records.parse_number(key[3:11])
            if records.decode_chunk(value).name == name and uid not in self._segments:
                return uid, records.parse_number(key[-8:])
        return None

    def _give_back(self, segment: _Segment, offset: int) -> None:
        if offset <= segment.record.kept_offset:
            return
        segment.record = replace(segment.record, kept_offset=offset)
        for start, chunk in list(segment.chunks.items()):
            if start + chunk.length <= offset and start != segment.growing:
                self._drop(chunk)
                del segment.chunks[start]
                self._rows.delete(records.chunk_key(self._container, segment.uid, start))

    def _drop(self, chunk: records.ChunkRecord) -> None:
        self._found.dropped[chunk.name] = None
        self._rows.delete_range(records.range_of(records.block_prefix(self._container, chunk.name)))
        self._rows.delete(records.erased_key(self._container, chunk.name))

    async def _vanish(self, segment: _Segment) -> None:
        index, uid = self._container, segment.uid
        self._segments[uid] = None
        for tag in (records.TAG_CHUNK, records.TAG_ATTRIBUTE, records.TAG_FLUSHED):
            self._rows.delete_range(records.range_of(records.uid_key(tag, index, uid)))
        self._rows.delete(records.uid_key(records.TAG_SEGMENT, index, uid))
        name = records.name_key(index, segment.record.name)
        row = await self._rows.get(name)
        if row is not None and records.parse_number(row) == uid:
            self._rows.delete(name)

    def _put_attribute(self, uid: int, attribute: int, value: int) -> None:
        key = records.uid_key(records.TAG_ATTRIBUTE, self._container, uid, attribute.to_bytes(16, "big"))
        if value == NO_EVENT:
            self._rows.delete(key)
        else:
            self._rows.put(key, records.encode_int(value))

    # --- bytes --------------------------------------------------------------------------------------------

    async def _write(self, segment: _Segment, offset: int, data: memoryview, events: int, time_ms: int) -> None:
        if not data:
            return
        buffer = segment.buffer
        if buffer is not None and (buffer.end != offset or len(buffer.data) >= _BLOCK_BYTES):
            await self._write_block(segment, buffer)
            buffer = None
        if buffer is None:
            buffer = segment.buffer = _Buffer(start=offset, first_ms=time_ms, last_ms=time_ms)
        buffer.data += data
        buffer.events += events
        buffer.last_ms = time_ms

    async def _write_block(self, segment: _Segment, buffer: _Buffer) -> None:
        segment.buffer = None
        begin = segment.growing
        if begin is not None:
            length = segment.chunks[begin].length
            if begin + length != buffer.start or length >= _CHUNK_BYTES:
                await self._close_chunk(segment)
                begin = None
        if begin is None:
            begin = segment.growing = buffer.start
            name = str(ChunkName(container=self._container, uid=segment.uid, epoch=self._epoch, start=begin))
            self._found.made[name] = None
            segment.chunks[begin] = records.ChunkRecord(name=name, length=0, freed=0, block_count=0, event_count=0)
        chunk = segment.chunks[begin]
        await self._chunks.append(chunk.name, chunk.length, [bytes(buffer.data)])
        block = records.BlockRecord(
            end=chunk.length + len(buffer.data),
            event_count=buffer.events,
            crc32c=crc32c(bytes(buffer.data)),
            first_ms=buffer.first_ms,
            last_ms=buffer.last_ms,
        )
        key = records.block_key(self._container, chunk.name, chunk.length)
        self._rows.put(key, records.encode_block(block))
        record = IndexRecord(
            index=chunk.block_count,
            start=chunk.length,
            end=block.end,
            segment_start=buffer.start,
            event_count=block.event_count,
            crc32c=block.crc32c,
        )
        segment.index.append(encode_record(record))
        segment.chunks[begin] = replace(
            chunk,
            length=block.end,
            block_count=chunk.block_count + 1,
            event_count=(chunk.event_count or 0) + block.event_count,
        )
        segment.changed = True

    async def _close_chunk(self, segment: _Segment) -> None:
        """Finish the open chunk durably, with all bytes that wait to be written."""
        if segment.buffer is not None:
            await self._write_block(segment, segment.buffer)
        if segment.growing is not None:
            name, segment.growing = segment.chunks[segment.growing].name, None
            await self._chunks.sync(name)
            await self._chunks.append(index_name(name), 0, segment.index)
            await self._chunks.sync(index_name(name))
            segment.index = []

    def _put(self, segment: _Segment) -> None:
        if segment.changed:
            key = records.uid_key(records.TAG_SEGMENT, self._container, segment.uid)
            self._rows.put(key, records.encode_segment(segment.record))
            for start, chunk in segment.chunks.items():
                place = records.chunk_key(self._container, segment.uid, start)
                self._rows.put(place, records.encode_chunk(chunk))


def _uncovered(segment: _Segment, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The part of these bytes that is kept and not in a chunk yet."""
    taken: Sequence[tuple[int, int]] = sorted((begin, begin + chunk.length) for begin, chunk in segment.chunks.items())
    at = start if end > segment.record.kept_offset else end
    for first, last in taken:
        if last <= at or at >= end:
            continue
        if first > at:
            yield at, min(first, end)
        at = max(at, last)
    if at < end:
        yield at, end
