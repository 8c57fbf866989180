"""How an operation changes durable state. The committer and recovery share these steps, so that replay repeats them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.codec.store import operation_frames as frames
from penstock.codec.store import operations as codec
from penstock.codec.store import rows as records
from penstock.core.segments.garbage import gap_name
from penstock.ports.files import Buffer
from penstock.ports.segment_service import KEY_ABSENT
from penstock.segmentstore.segment import KIND_HASH, AttributeState, Chunk, Segment

if TYPE_CHECKING:
    from penstock.segmentstore.container import Container


def create(container: Container, segment: Segment, now_ms: int) -> None:
    """The segment becomes visible."""
    segment.modified_ms = now_ms
    container.segments.show(segment)
    key = records.name_key(container.index, segment.name)
    container.rows.put_new(key, records.number(segment.uid))
    if segment.table is not None:
        container.rows.put_new(records.copy_key(key), records.number(segment.uid))
    container.mark_dirty(segment)


def append(
    container: Container, segment: Segment, offset: int, data: Buffer, count: int, address: int, now_ms: int
) -> None:
    """The bytes become readable. Parked reads are woken by the caller, after the answers."""
    size = len(data)
    if size:
        if not segment.cache.untiered:
            container.tiering.add(segment)
        segment.cache.append(offset, data, count, address, now_ms)
        container.tiering.grown(segment)
        segment.length = offset + size
    segment.event_count += count
    segment.modified_ms = now_ms
    if segment.change_mark != container.changes.mark:
        container.changes.note(segment)
    container.mark_dirty(segment)


def append_run(container: Container, segment: Segment, run: frames.AppendRun, address: int, now_ms: int) -> None:
    """Many appends at once, with their writers' numbers. Their attributes are in memory, and nothing waits for them."""
    if run.end > run.offset:
        if not segment.cache.untiered:
            container.tiering.add(segment)
        before = {writer: segment.attributes[writer].durable for writer in run.last}
        segment.cache.append_run(run, address, before, now_ms)
        container.tiering.grown(segment)
        segment.length = run.end
    for writer, number in run.last.items():
        state = segment.attributes[writer]
        state.durable = state.pending = number
        segment.dirty_attributes[writer] = None
    segment.event_count += run.event_count
    segment.modified_ms = now_ms
    if segment.change_mark != container.changes.mark:
        container.changes.note(segment)
    container.mark_dirty(segment)


def seal(container: Container, segment: Segment, now_ms: int) -> int:
    if not segment.sealed:
        segment.sealed = True
        segment.modified_ms = now_ms
        container.changes.note(segment)
        container.mark_dirty(segment)
    return segment.length


def truncate(container: Container, segment: Segment, offset: int) -> None:
    """The head moves, and what lies before it is given back."""
    if offset > segment.start_offset:
        segment.start_offset = offset
        _give_back(container, segment, offset)


def keep(container: Container, segment: Segment, offset: int) -> None:
    """The head moves for readers alone."""
    if offset > segment.start_offset:
        segment.start_offset = offset
        container.mark_dirty(segment)


def release(container: Container, segment: Segment, offset: int) -> None:
    """Kept bytes are given back."""
    if offset > segment.kept_offset:
        _give_back(container, segment, offset)


def restore(container: Container, segment: Segment, offset: int) -> int:
    """Readers have kept bytes again; answers where the segment starts."""
    start = max(offset, segment.kept_offset)
    if start < segment.start_offset:
        segment.start_offset = start
        container.mark_dirty(segment)
    return segment.start_offset


def _give_back(container: Container, segment: Segment, offset: int) -> None:
    """Chunks wholly before the offset are named no more."""
    segment.kept_offset = offset
    segment.cache.drop_before(offset)
    if not segment.cache.untiered:
        container.tiering.remove(segment)
    for chunk in segment.chunks.take_before(offset):
        _release_chunk(container, segment, chunk)
    container.reclaimer.head_moved(segment)
    container.mark_dirty(segment)


def delete(container: Container, segment: Segment) -> None:
    """The segment and everything of it is gone."""
    container.imports.ended(segment, segment.chunks.items, merged=False)
    for chunk in segment.chunks.take_all():
        _release_chunk(container, segment, chunk)
    container.rows.delete_range(records.range_of(records.uid_key(records.TAG_MERGED, container.index, segment.uid)))
    if segment.table is not None:
        for tag in (records.TAG_ENTRY, records.TAG_CHANGE):
            container.rows.delete_range(records.range_of(records.uid_key(tag, container.index, segment.uid)))
    _vanish(container, segment)


def attribute(container: Container, segment: Segment, state: AttributeState, key: int, value: int) -> bool:
    state.durable = value
    state.fixed = True
    segment.dirty_attributes[key] = None
    container.mark_dirty(segment)
    return True


def merge(container: Container, target: Segment, source: Segment, offset: int, now_ms: int) -> int:
    """The source's chunks and cached bytes become the target's, ``offset`` bytes further on; nothing is copied."""
    container.imports.ended(source, source.chunks.items, merged=True)
    for chunk in source.chunks.take_all():
        chunk.start += offset
        chunk.joined_ms = now_ms
        target.chunks.add(chunk)
        container.rows.put(
            records.chunk_key(container.index, target.uid, chunk.start), records.encode_chunk(chunk.record())
        )
        container.reclaimer.chunk_moved(chunk.name)
    # A chunk that came from elsewhere is never grown: its owner may be writing to it at this moment.
    target.open_chunk = None
    if source.cache.untiered and not target.cache.untiered:
        container.tiering.add(target)
    container.tiering.remove(source)
    target.cache.adopt(source.cache, offset, now_ms)
    target.length = offset + source.length
    target.event_count += source.event_count
    target.modified_ms = now_ms
    container.changes.note(target)
    _remember_merge(container, target, source.name, now_ms)
    container.leases.follow(source, target)
    container.mark_dirty(target)
    _vanish(container, source)
    return target.length


def _remember_merge(container: Container, target: Segment, source: str, now_ms: int) -> None:
    """Record the merge, so that a repeated call gets the same answer."""
    key = records.uid_key(records.TAG_MERGED, container.index, target.uid, source.encode())
    container.rows.put(key, records.encode_int(now_ms))
    container.rows.put(records.merged_time_key(container.index, now_ms, target.uid, source), b"")


def merge_damaged(
    container: Container, target: Segment, source: int, name: str | None, length: int, now_ms: int
) -> None:
    """As ``merge``, for a source whose metadata is damaged. Its bytes keep their range, and reads of them are refused.
    ``name``: None if the row of its name is damaged as well.

    The range belongs to a chunk that nobody has written, and that has one block without a row. The source's own chunks stay
    where they are, and its rows name them.
    """
    if length:
        gap = str(gap_name(container.index, source))
        chunk = Chunk(gap, target.length, length=length, block_count=1, event_count=0, joined_ms=now_ms)
        target.chunks.add(chunk)
        container.rows.put(
            records.chunk_key(container.index, target.uid, chunk.start), records.encode_chunk(chunk.record())
        )
    if name is not None:
        _remember_merge(container, target, name, now_ms)
    target.open_chunk = None
    target.length += length
    target.modified_ms = now_ms
    container.changes.note(target)
    container.mark_dirty(target)


def table_change(container: Container, segment: Segment, operation: codec.TableOperation, now_ms: int) -> list[int]:
    """Apply a batch; answers the version of each item."""
    table = segment.require_table()
    version = operation.position
    versions: list[int] = []
    batch: dict[bytes, int] = {}
    last_change: dict[bytes, int] = {}
    for item in operation.items:
        entry_key = records.uid_key(records.TAG_ENTRY, container.index, segment.uid, item.key)
        previous = batch.get(item.key, item.previous)
        if previous != KEY_ABSENT and segment.kind == KIND_HASH:
            container.rows.delete(_change_key(container, segment, previous))
        if item.value is None:
            container.rows.delete(entry_key)
            table.entry_count -= previous != KEY_ABSENT
            batch[item.key] = KEY_ABSENT
        else:
            put = container.rows.put_new if previous == KEY_ABSENT else container.rows.put
            put(entry_key, records.encode_entry(version, item.value))
            if segment.kind == KIND_HASH:
                container.rows.put_new(_change_key(container, segment, version), item.key)
            table.entry_count += previous == KEY_ABSENT
            batch[item.key] = version
        versions.append(version)
        last_change[item.key] = version
        version += item.record_bytes
    segment.length = version
    segment.modified_ms = now_ms
    container.mark_dirty(segment)
    for key, changed_at in last_change.items():
        pending = table.next_versions.get(key)
        if pending is not None and pending[1] == changed_at:
            del table.next_versions[key]
    return versions


def _change_key(container: Container, segment: Segment, version: int) -> bytes:
    return records.uid_key(records.TAG_CHANGE, container.index, segment.uid, records.number(version))


def _release_chunk(container: Container, segment: Segment, chunk: Chunk) -> None:
    """The segment names the chunk no more. Its file goes after the checkpoint that says so."""
    if segment.open_chunk is chunk:
        segment.open_chunk = None
    container.rows.delete(records.chunk_key(container.index, segment.uid, chunk.start))
    container.rows.delete_range(records.range_of(records.block_prefix(container.index, chunk.name)))
    container.rows.delete(records.erased_key(container.index, chunk.name))
    container.reclaimer.release(segment, chunk.name, chunk.length - chunk.freed)


def _vanish(container: Container, segment: Segment) -> None:
    segment.gone = segment.next_gone = True
    segment.open_chunk = None
    segment.cache.clear()
    container.tiering.remove(segment)
    segment.attributes.clear()
    segment.dirty_attributes.clear()
    index, uid, stored = container.index, segment.uid, segment.stored
    container.rows.delete_range(records.range_of(records.uid_key(records.TAG_CHUNK, index, uid)), stored=stored)
    if stored:
        container.rows.delete_range(records.range_of(records.uid_key(records.TAG_ATTRIBUTE, index, uid)))
        container.rows.delete_range(records.range_of(records.flushed_key(index, uid)))
        container.rows.delete(records.uid_key(records.TAG_SEGMENT, index, uid))
    container.rows.delete(records.name_key(index, segment.name))
    if segment.table is not None:
        for key in (records.name_key(index, segment.name), records.uid_key(records.TAG_SEGMENT, index, uid)):
            container.rows.delete(records.copy_key(key))
    container.dirty.pop(segment, None)
    container.segments.hide(segment)
