"""How an operation changes durable state. The committer and recovery share these steps, so that replay repeats them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.codec.store import operation_frames as frames
from penstock.codec.store import operations as codec
from penstock.codec.store import rows as records
from penstock.core.segments.garbage import gap_name
from penstock.ports.data.tables import KEY_ABSENT
from penstock.ports.telemetry import Telemetry
from penstock.segmentstore.segment import KIND_HASH, AppendRow, AttributeState, Chunk, Segment
from penstock.segmentstore.state import ContainerState
from penstock.segmentstore.tiering.import_garbage import ImportGarbage
from penstock.segmentstore.tiering.leases import Leases
from penstock.segmentstore.tiering.reclaimer import Reclaimer
from penstock.segmentstore.tiering.tier_writer import TierWriter


class Transitions:
    """The steps of one container. ``memory``: bytes of tail caches and queues, shared with the other containers."""

    __slots__ = (
        "_changes",
        "_garbage",
        "_index",
        "_leases",
        "_mark_dirty",
        "_reclaimer",
        "_rows",
        "_state",
        "_telemetry",
        "_tiering",
        "memory",
    )

    def __init__(
        self,
        state: ContainerState,
        telemetry: Telemetry,
        *,
        tiering: TierWriter,
        reclaimer: Reclaimer,
        leases: Leases,
        garbage: ImportGarbage,
    ) -> None:
        self._state = state
        self._telemetry = telemetry
        self._tiering = tiering
        self._reclaimer = reclaimer
        self._leases = leases
        self._garbage = garbage
        # Each append takes these steps, so what they need is one attribute lookup away.
        self._index, self._rows, self._changes = state.index, state.rows, state.changes
        self._mark_dirty = state.mark_dirty
        self.memory = state.memory

    def create(self, segment: Segment, now_ms: int) -> None:
        """The segment becomes visible."""
        segment.modified_ms = now_ms
        self._state.segments.show(segment)
        key = records.name_key(self._index, segment.name)
        self._rows.put_new(key, records.number(segment.uid))
        if segment.table is not None:
            self._rows.put_new(records.copy_key(key), records.number(segment.uid))
        self._mark_dirty(segment)

    def appends(self, rows: Sequence[AppendRow], address: int, now_ms: int) -> list[int]:
        """Make the bytes readable, in order. Returns the length of the segment after each append. The caller wakes parked
        reads after it has answered the appends."""
        tiering, mark, block_bytes = self._tiering, self._changes.mark, self._tiering.block_bytes
        ends: list[int] = []
        for segment, state, writer, number, count, offset, data, size in rows:
            if size:
                cache = segment.cache
                if not cache.untiered:
                    tiering.add(segment)
                cache.append(offset, data, count, address, now_ms)
                cache.wrote(writer, number, state.durable)
                if cache.untiered_bytes >= block_bytes:
                    tiering.grown(segment)
                segment.length = offset + size
                segment.event_count += count
            state.durable = number
            segment.dirty_attributes[writer] = None
            segment.modified_ms = now_ms
            if segment.change_mark != mark:
                self._changes.note(segment)
            if not segment.dirty:
                self._mark_dirty(segment)
            ends.append(segment.length)
        return ends

    def append_run(
        self, segment: Segment, run: frames.AppendRun, last: Mapping[int, int], address: int, now_ms: int
    ) -> None:
        """Many appends at once. ``last``: the last number of each of their writers, whose attributes are in memory. No
        read waits for the bytes."""
        if run.end > run.offset:
            self.untiered(segment, run.offset, run, address, now_ms)
            for writer, number in last.items():
                segment.cache.wrote(writer, number, segment.attributes[writer].durable)
            self._tiering.grown(segment)
            segment.length = run.end
        for writer, number in last.items():
            state = segment.attributes[writer]
            state.durable = state.pending = number
            segment.dirty_attributes[writer] = None
        segment.event_count += run.event_count
        segment.modified_ms = now_ms
        if segment.change_mark != self._changes.mark:
            self._changes.note(segment)
        self._mark_dirty(segment)

    def untiered(self, segment: Segment, offset: int, run: frames.AppendRun, address: int, now_ms: int) -> None:
        """The segment has untiered bytes that recovery found in the log. A merge may have moved them to ``offset``."""
        if not segment.cache.untiered:
            self._tiering.add(segment)
        segment.cache.append(offset, run.data, run.event_count, address, now_ms)

    def seal(self, segment: Segment, now_ms: int) -> int:
        if not segment.sealed:
            segment.sealed = True
            segment.modified_ms = now_ms
            self._changes.note(segment)
            self._mark_dirty(segment)
        return segment.length

    def truncate(self, segment: Segment, offset: int) -> None:
        """The head moves, and the bytes before it are freed."""
        if offset > segment.start_offset:
            segment.start_offset = offset
            self._give_back(segment, offset)

    def keep(self, segment: Segment, offset: int) -> None:
        """The head moves only for readers."""
        if offset > segment.start_offset:
            segment.start_offset = offset
            self._mark_dirty(segment)

    def release(self, segment: Segment, offset: int) -> None:
        """Kept bytes are freed."""
        if offset > segment.kept_offset:
            self._give_back(segment, offset)

    def restore(self, segment: Segment, offset: int) -> int:
        """Readers see kept bytes again. Answers the new start of the segment."""
        start = max(offset, segment.kept_offset)
        if start < segment.start_offset:
            segment.start_offset = start
            self._mark_dirty(segment)
        return segment.start_offset

    def _give_back(self, segment: Segment, offset: int) -> None:
        """Release the chunks that lie completely before the offset."""
        segment.kept_offset = offset
        segment.cache.drop_before(offset)
        if not segment.cache.untiered:
            self._tiering.remove(segment)
        for chunk in segment.chunks.take_before(offset):
            self._release_chunk(segment, chunk)
        self._reclaimer.head_moved(segment)
        self._mark_dirty(segment)

    def delete(self, segment: Segment) -> None:
        """The segment and all its data are deleted."""
        self._garbage.ended(segment, segment.chunks.items, merged=False)
        for chunk in segment.chunks.take_all():
            self._release_chunk(segment, chunk)
        self._rows.delete_range(records.range_of(records.uid_key(records.TAG_MERGED, self._index, segment.uid)))
        if segment.table is not None:
            for tag in (records.TAG_ENTRY, records.TAG_CHANGE):
                self._rows.delete_range(records.range_of(records.uid_key(tag, self._index, segment.uid)))
        self._vanish(segment)

    def attribute(self, segment: Segment, state: AttributeState, key: int, value: int) -> bool:
        state.durable = value
        state.fixed = True
        segment.dirty_attributes[key] = None
        self._mark_dirty(segment)
        return True

    def merge(self, target: Segment, source: Segment, offset: int, now_ms: int) -> int:
        """The source's chunks and cached bytes move to the target, shifted by ``offset`` bytes, without a copy."""
        self._garbage.ended(source, source.chunks.items, merged=True)
        for chunk in source.chunks.take_all():
            chunk.start += offset
            chunk.joined_ms = now_ms
            target.chunks.add(chunk)
            self._rows.put(
                records.chunk_key(self._index, target.uid, chunk.start), records.encode_chunk(chunk.record())
            )
            self._reclaimer.chunk_moved(chunk.name)
        # A merged chunk is never extended: its previous owner may be writing to it right now.
        target.open_chunk = None
        if source.cache.untiered and not target.cache.untiered:
            self._tiering.add(target)
        self._tiering.remove(source)
        target.cache.adopt(source.cache, offset, now_ms)
        target.length = offset + source.length
        target.event_count += source.event_count
        target.modified_ms = now_ms
        self._changes.note(target)
        self._remember_merge(target, source.name, now_ms)
        self._leases.follow(source, target)
        self._mark_dirty(target)
        self._vanish(source)
        return target.length

    def _remember_merge(self, target: Segment, source: str, now_ms: int) -> None:
        """Record the merge, so that a repeated call gets the same answer."""
        key = records.uid_key(records.TAG_MERGED, self._index, target.uid, source.encode())
        self._rows.put(key, records.encode_int(now_ms))
        self._rows.put(records.merged_time_key(self._index, now_ms, target.uid, source), b"")

    def merge_damaged(self, target: Segment, source: int, name: str | None, length: int, now_ms: int) -> None:
        """As ``merge``, for a source whose metadata is damaged. Its bytes keep their range in the target, and reads of
        them are refused.
        ``name``: None if the row of its name is damaged as well.

        The range belongs to a chunk that was never written, with one block that has no row. The source's own chunks
        stay where they are, and its rows name them.
        """
        if length:
            gap = str(gap_name(self._index, source))
            chunk = Chunk(gap, target.length, length=length, block_count=1, event_count=0, joined_ms=now_ms)
            target.chunks.add(chunk)
            self._rows.put(
                records.chunk_key(self._index, target.uid, chunk.start), records.encode_chunk(chunk.record())
            )
        if name is not None:
            self._remember_merge(target, name, now_ms)
        target.open_chunk = None
        target.length += length
        target.modified_ms = now_ms
        self._changes.note(target)
        self._mark_dirty(target)

    def adopt(self, segment: Segment, operation: codec.AdoptOperation, now_ms: int) -> int:
        """Change durable state: add the chunks to the segment. Recovery takes the same step."""
        index = self._index
        at = operation.offset
        for item in operation.chunks:
            position = 0
            for block in item.blocks:
                end = position + block.size_bytes
                record = records.BlockRecord(end=end, event_count=block.event_count, crc32c=block.crc32c)
                self._rows.put(records.block_key(index, item.name, position), records.encode_block(record))
                position = end
            chunk = Chunk(item.name, at, length=position, block_count=len(item.blocks), event_count=item.event_count)
            segment.chunks.add(chunk)
            self._rows.put(records.chunk_key(index, segment.uid, at), records.encode_chunk(chunk.record()))
            # Report it to the search for orphans, which may have read the rows before it was added.
            self._reclaimer.chunk_moved(item.name)
            segment.event_count += item.event_count
            at = chunk.end
        segment.open_chunk = None
        self._telemetry.add("adopted_bytes", at - segment.length)
        segment.length = at
        segment.modified_ms = now_ms
        self._changes.note(segment)
        self._mark_dirty(segment)
        return at

    def table_change(self, segment: Segment, operation: codec.TableOperation, now_ms: int) -> list[int]:
        """Apply a batch; answers the version of each item."""
        table = segment.require_table()
        version = operation.position
        versions: list[int] = []
        batch: dict[bytes, int] = {}
        last_change: dict[bytes, int] = {}
        for item in operation.items:
            entry_key = records.uid_key(records.TAG_ENTRY, self._index, segment.uid, item.key)
            previous = batch.get(item.key, item.previous)
            if previous != KEY_ABSENT and segment.kind == KIND_HASH:
                self._rows.delete(self._change_key(segment, previous))
            if item.value is None:
                self._rows.delete(entry_key)
                table.entry_count -= previous != KEY_ABSENT
                batch[item.key] = KEY_ABSENT
            else:
                put = self._rows.put_new if previous == KEY_ABSENT else self._rows.put
                put(entry_key, records.encode_entry(version, item.value))
                if segment.kind == KIND_HASH:
                    self._rows.put_new(self._change_key(segment, version), item.key)
                table.entry_count += previous == KEY_ABSENT
                batch[item.key] = version
            versions.append(version)
            last_change[item.key] = version
            version += item.record_bytes
        segment.length = version
        segment.modified_ms = now_ms
        self._mark_dirty(segment)
        for key, changed_at in last_change.items():
            pending = table.next_versions.get(key)
            if pending is not None and pending[1] == changed_at:
                del table.next_versions[key]
        return versions

    def _change_key(self, segment: Segment, version: int) -> bytes:
        return records.uid_key(records.TAG_CHANGE, self._index, segment.uid, records.number(version))

    def _release_chunk(self, segment: Segment, chunk: Chunk) -> None:
        """The segment no longer names the chunk. Its file is deleted after the checkpoint that records this."""
        if segment.open_chunk is chunk:
            segment.open_chunk = None
        self._rows.delete(records.chunk_key(self._index, segment.uid, chunk.start))
        self._rows.delete_range(records.range_of(records.block_prefix(self._index, chunk.name)))
        self._rows.delete(records.erased_key(self._index, chunk.name))
        self._reclaimer.release(segment, chunk.name, chunk.length - chunk.freed)

    def _vanish(self, segment: Segment) -> None:
        segment.gone = segment.next_gone = True
        self._leases.keep_name(segment)
        segment.open_chunk = None
        segment.cache.clear()
        self._tiering.remove(segment)
        segment.attributes.clear()
        segment.dirty_attributes.clear()
        index, uid, stored = self._index, segment.uid, segment.stored
        self._rows.delete_range(records.range_of(records.uid_key(records.TAG_CHUNK, index, uid)), stored=stored)
        if stored:
            self._rows.delete_range(records.range_of(records.uid_key(records.TAG_ATTRIBUTE, index, uid)))
            self._rows.delete_range(records.range_of(records.flushed_key(index, uid)))
            self._rows.delete(records.uid_key(records.TAG_SEGMENT, index, uid))
        self._rows.delete(records.name_key(index, segment.name))
        if segment.table is not None:
            for key in (records.name_key(index, segment.name), records.uid_key(records.TAG_SEGMENT, index, uid)):
                self._rows.delete(records.copy_key(key))
        self._state.dirty.pop(segment, None)
        self._state.segments.hide(segment)
