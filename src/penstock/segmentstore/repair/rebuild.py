"""Rebuild metadata rows from the catalogue of tier 2 in a new key-value store, limited to the data that tier 2 holds.

Source: docs/design/0015-integrity.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import field, replace

from penstock.codec.store import catalogue as codec
from penstock.codec.store import rows as records
from penstock.model.errors import CorruptDataError
from penstock.model.values.dataclass import dataclass
from penstock.ports.data.segments import NO_EVENT
from penstock.ports.keyvalue import KeyValueStore
from penstock.ports.objects import Objects
from penstock.segmentstore.metadata import MetadataRows

_PAGE = 1000  # rows of one scan, which bounds the memory of a page


@dataclass(slots=True, kw_only=True)
class ContainerCatalogue:
    """What was read of one container. ``applied`` is the last batch, made at ``time_ms``; None: there is no sound snapshot.

    ``damage``: sentences, one for each object that is missing or unsound. ``lost_batches``: how many are known to follow that
    could not be applied. ``complete_upto``: the log address up to which the applied batches hold all operations; -1: not
    known.
    """

    container: int
    containers: int = 0
    epoch: int = 0
    applied: int | None = None
    time_ms: int | None = None
    lost_batches: int = 0
    complete_upto: int = -1
    damage: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltSegment:
    """A segment as rebuilt from tier 2. ``lost_*``: what its row recorded but tier 2 does not hold."""

    name: str
    uid: int
    container: int
    record: records.SegmentRecord
    chunks: Sequence[tuple[int, records.ChunkRecord]]
    lost_bytes: int
    lost_events: int
    writers_set_back: int


async def read_object(objects: Objects, name: str) -> codec.CatalogueObject:
    """Raises: CorruptDataError (missing or damaged), VersionTooNewError, what the objects raise."""
    try:
        size = await objects.size(name)
        data = await objects.read(name, 0, size)
    except FileNotFoundError as error:
        raise CorruptDataError("object of the catalogue is missing", object=name) from error
    return codec.decode_object(name, data)


async def list_catalogue(objects: Objects) -> dict[int, list[codec.ObjectName]]:
    """Names of the catalogue's objects by container."""
    found: dict[int, list[codec.ObjectName]] = {}
    for text in await objects.list(codec.DIRECTORY):
        name = codec.parse_object_name(text)
        if name is not None:
            found.setdefault(name.container, []).append(name)
    return found


async def load_container(
    objects: Objects, container: int, names: Sequence[codec.ObjectName], keyvalue: KeyValueStore | None
) -> ContainerCatalogue:
    """Apply the newest sound snapshot and the batches behind it to ``keyvalue``; None: only inspect.

    Raises: VersionTooNewError, UnavailableError, OSError; damage is reported, not raised.
    """
    state = ContainerCatalogue(container=container)
    state.epoch = max((name.epoch for name in names), default=0)
    ends = sorted((name for name in names if name.end), key=lambda name: (name.last, name.run), reverse=True)
    for end in ends:
        if await _apply_snapshot(objects, names, end, None, state):
            if keyvalue is not None:
                await _apply_snapshot(objects, names, end, keyvalue, state)
            await _apply_journals(objects, names, end, keyvalue, state)
            break
    else:
        state.damage.append((f"{codec.DIRECTORY}/{container:x}", "there is no sound snapshot"))
    return state


async def _apply_snapshot(
    objects: Objects,
    names: Sequence[codec.ObjectName],
    end: codec.ObjectName,
    keyvalue: KeyValueStore | None,
    state: ContainerCatalogue,
) -> bool:
    """Whether all its objects are sound; with ``keyvalue`` their rows are put there."""
    parts = {name.part: name for name in names if name.kind is codec.Kind.SNAPSHOT and name.run == end.run}
    for number in range(end.part + 1):
        if number not in parts:
            place = str(replace(end, part=number, end=False, last=0))
            state.damage.append((place, "object of the catalogue is missing"))
            return False
        try:
            found = await read_object(objects, str(parts[number]))
            rows = list(codec.decode_rows(found.payload)) if found.damage is None else []
        except CorruptDataError as error:
            state.damage.append((str(parts[number]), error.message))
            return False
        if found.damage is not None or len(rows) != found.count:
            state.damage.append((str(parts[number]), found.damage or "rows are missing"))
            return False
        state.containers = max(state.containers, found.containers)
        if keyvalue is not None and rows:
            await keyvalue.commit(rows)
    return True


async def _apply_journals(
    objects: Objects,
    names: Sequence[codec.ObjectName],
    end: codec.ObjectName,
    keyvalue: KeyValueStore | None,
    state: ContainerCatalogue,
) -> None:
    applied = end.first
    newest = max(name.last for name in names)
    journals = sorted(
        (name for name in names if name.kind is codec.Kind.JOURNAL), key=lambda name: (name.first, name.last, name.run)
    )
    for name in journals:
        if name.last <= applied:
            continue
        if name.first > applied + 1:
            break
        try:
            found = await read_object(objects, str(name))
            for batch in codec.decode_batches(found.payload):
                if batch.sequence <= applied + 1:
                    state.complete_upto = max(state.complete_upto, batch.complete_upto)
                if batch.sequence == applied + 1:
                    if keyvalue is not None:
                        await keyvalue.commit(batch.puts, batch.deletes, delete_ranges=batch.ranges)
                    applied, state.time_ms = batch.sequence, batch.time_ms
        except CorruptDataError as error:
            state.damage.append((str(name), error.message))
    state.applied = applied
    state.lost_batches = newest - applied
    if applied < newest:
        state.damage.append((f"{codec.DIRECTORY}/{state.container:x}", f"batches behind {applied} cannot be applied"))
    if applied < end.last:
        state.damage.append((str(end), "snapshot needs batches that are lost: its rows are of different times"))


async def take_missing_rows(keyvalue: KeyValueStore, container: int) -> Sequence[bytes]:
    """Keys of rows that the snapshot lacks because they were damaged when it was written, unless a later batch put
    them. Their marks are deleted."""
    rows = MetadataRows(keyvalue)
    bounds = records.range_of(records.prefix(records.TAG_LACKING, container))
    marked = [key[len(bounds[0]) :] for key, _ in await rows.scan_all(bounds)]
    lacking = [key for key in marked if await rows.get(key) is None]
    for key in lacking:
        if key[:1] == records.TAG_WRITERS:
            rows.put(key, b"")  # Treat it as damaged: without the row there would be no floor.
    rows.delete_range(bounds)
    await rows.commit()
    return lacking


async def settle_container(keyvalue: KeyValueStore, container: int, *, epoch: int) -> AsyncIterator[RebuiltSegment]:
    """Adjust the rows to a store with an empty log, and report each segment.

    Removes what only the log held: bytes and events from the first gap on, and their writers' numbers. Raises
    CorruptDataError if rows cannot be read.
    """
    rows = MetadataRows(keyvalue)
    start, end = records.range_of(records.prefix(records.TAG_SEGMENT, container))
    while True:
        page = await rows.scan((start, end), limit=_PAGE)
        for key, value in page:
            yield await _settle_segment(rows, container, records.parse_number(key[-8:]), records.decode_segment(value))
        await rows.commit()
        if len(page) < _PAGE:
            break
        start = page[-1][0] + b"\0"
    rows.delete_range(records.range_of(records.prefix(records.TAG_FLUSHED, container)))
    record = records.ContainerRecord(epoch=epoch, complete_upto=0)
    rows.put(records.prefix(records.TAG_CONTAINER, container), records.encode_container(record))
    await rows.commit()


async def _settle_segment(
    rows: MetadataRows, container: int, uid: int, record: records.SegmentRecord
) -> RebuiltSegment:
    bounds = records.range_of(records.uid_key(records.TAG_CHUNK, container, uid))
    chunks = [
        (records.parse_number(key[-8:]), records.decode_chunk(value)) for key, value in await rows.scan_all(bounds)
    ]
    if record.kind:
        return _rebuilt_segment(record, uid, container, (), 0, 0, 0)
    reach = record.kept_offset
    kept: list[tuple[int, records.ChunkRecord]] = []
    for begin, chunk in chunks:
        if begin > reach:
            break
        kept.append((begin, chunk))
        reach = max(reach, begin + chunk.length)
    reach = min(reach, record.length)
    lost_bytes = record.length - reach
    lost_events = set_back = 0
    if lost_bytes:
        lost_events = await _lost_events(rows, container, uid, chunks[len(kept) :])
        set_back = await _set_back_writers(rows, container, uid)
        for begin, chunk in chunks[len(kept) :]:
            rows.delete(records.chunk_key(container, uid, begin))
            rows.delete_range(records.range_of(records.block_prefix(container, chunk.name)))
            rows.delete(records.erased_key(container, chunk.name))
    settled = replace(
        record,
        length=reach,
        start_offset=min(record.start_offset, reach),
        kept_offset=min(record.kept_offset, reach),
        event_count=max(0, record.event_count - lost_events),
    )
    if settled != record:
        rows.put(records.uid_key(records.TAG_SEGMENT, container, uid), records.encode_segment(settled))
    return _rebuilt_segment(settled, uid, container, kept, lost_bytes, lost_events, set_back)


def _rebuilt_segment(
    record: records.SegmentRecord,
    uid: int,
    container: int,
    chunks: Sequence[tuple[int, records.ChunkRecord]],
    lost_bytes: int,
    lost_events: int,
    writers_set_back: int,
) -> RebuiltSegment:
    return RebuiltSegment(
        name=record.name,
        uid=uid,
        container=container,
        record=record,
        chunks=chunks,
        lost_bytes=lost_bytes,
        lost_events=lost_events,
        writers_set_back=writers_set_back,
    )


async def _lost_events(
    rows: MetadataRows, container: int, uid: int, dropped: Sequence[tuple[int, records.ChunkRecord]]
) -> int:
    row = await rows.get(records.flushed_key(container, uid))
    untiered = 0 if row is None else records.decode_flushed(row)
    for _, chunk in dropped:
        if chunk.event_count is not None:
            untiered += chunk.event_count
            continue
        bounds = records.range_of(records.block_prefix(container, chunk.name))
        untiered += sum(records.decode_block(value).event_count for _, value in await rows.scan_all(bounds))
    return untiered


async def _set_back_writers(rows: MetadataRows, container: int, uid: int) -> int:
    """Give each writer the last number that tier 2 holds: on reconnect it resends everything after it."""
    start, end = records.range_of(records.flushed_key(container, uid))
    count = 0
    for key, value in await rows.scan_all((start + b"\0", end)):
        own = records.uid_key(records.TAG_ATTRIBUTE, container, uid, key[-16:])
        number = records.decode_int(value)
        before = await rows.get(own)
        used_s = None if before is None else records.decode_writer(before)[1]
        if number == NO_EVENT:
            rows.delete(own)
        else:
            # With the age of its last use, the number expires as usual. Without one it counts as an attribute, and
            # stays.
            rows.put(own, value if used_s is None else records.encode_writer(number, used_s))
        count += 1
    return count


async def blocks_of(
    rows: MetadataRows, container: int, chunk: records.ChunkRecord
) -> Sequence[tuple[int, records.BlockRecord]]:
    """Position and record of each block of a chunk. Raises CorruptDataError if they do not cover it exactly."""
    bounds = records.range_of(records.block_prefix(container, chunk.name))
    found: list[tuple[int, records.BlockRecord]] = []
    position = 0
    for key, value in await rows.scan(bounds, limit=chunk.block_count + 1):
        record = records.decode_block(value)
        if records.parse_number(key[-8:]) != position:
            break
        found.append((position, record))
        position = record.end
        if len(found) == chunk.block_count:
            break
    if position != chunk.length or len(found) != chunk.block_count:
        raise CorruptDataError(
            "blocks do not make up their chunk", chunk=chunk.name, blocks=len(found), expected=chunk.block_count
        )
    return found
