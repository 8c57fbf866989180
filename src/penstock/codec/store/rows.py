"""Rows of a container in the key-value store: their keys and values.

Every key begins with a tag and the container, so that containers share one store. Integers in keys are big-endian and
unsigned: key order is number order. Source: docs/formats/metadata.md.
"""

from __future__ import annotations

import struct

from penstock.codec.store import layouts
from penstock.model.errors import CorruptDataError, VersionTooNewError
from penstock.model.values.dataclass import dataclass

VERSION = 1
SEGMENT_VERSION = 2
"""Version 2 adds the kept offset. Rows of version 1 are read as well: they have no kept bytes."""
CHUNK_VERSION = 3
"""Version 2 adds the count of events. Rows of version 1 are read as well, and stay at version 1: their count is
unknown."""

TAG_STORE = b"S"
TAG_CONTAINER = b"c"
TAG_NAME = b"n"
TAG_SEGMENT = b"s"
TAG_ATTRIBUTE = b"a"
TAG_CHUNK = b"k"
TAG_BLOCK = b"b"
TAG_ENTRY = b"t"
TAG_CHANGE = b"v"
TAG_FREE = b"p"
TAG_LEASE = b"l"
TAG_MERGED = b"m"
TAG_MERGED_TIME = b"x"
TAG_FLUSHED = b"f"
TAG_OUTBOX = b"j"
TAG_CATALOGUE = b"g"
TAG_ERASED = b"e"
TAG_WIPE = b"w"
TAG_ASIDE = b"d"
TAG_COPY = b"y"
TAG_LACKING = b"q"
TAG_WRITERS = b"o"
TAG_LEASES_LOGGED = b"L"
TAG_LEASED_NAME = b"N"

CATALOGUED = frozenset(b"nsakbtvmxfedolLN")
"""Tags of the rows that the catalogue of tier 2 repeats: all except garbage, and rows that concern this copy only."""

STORE_KEY = TAG_STORE
STORE_COPY_KEY = TAG_STORE + b"+"
"""Key of a copy of the store's row: without that row nothing of the store can be found."""

_HEAD = struct.Struct(">cH")
_UID = struct.Struct(">Q")
_STORE = layouts.STORE.struct()
_CONTAINER = layouts.CONTAINER.struct()
_SEGMENT = layouts.SEGMENT.struct()
_SEGMENT_1 = layouts.SEGMENT.struct(11)
_CHUNK = layouts.CHUNK.struct()
_CHUNK_2 = layouts.CHUNK.struct(5)
_CHUNK_1 = layouts.CHUNK.struct(4)
_BLOCK = layouts.BLOCK.struct()
_BLOCK_1 = layouts.BLOCK.struct(3)
_LEASE = layouts.LEASE.struct()
_FREE = layouts.FREE.struct()
_FLUSHED = layouts.FLUSHED.struct()
_CATALOGUE = layouts.CATALOGUE.struct()
_INT = struct.Struct(">q")
_WRITER = struct.Struct(">qI")
_WRITERS = layouts.WRITERS.struct()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRecord:
    """The last epoch that wrote, and the log address up to which all rows of the container are complete."""

    epoch: int
    complete_upto: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WritersRecord:
    """The container's total open time in seconds, and the floor: unknown writers that were created before it are
    refused (milliseconds since the Unix epoch)."""

    age_s: int
    floor_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRecord:
    """State of a segment. ``kind`` as in the create operation; ``entry_count`` is for tables only.

    ``kept_offset``: the first byte on disk; below ``start_offset`` if bytes are kept that readers no longer see.
    """

    name: str
    kind: int
    key_bytes: int
    rollover_bytes: int
    start_offset: int
    length: int
    sealed: bool
    modified_ms: int
    event_count: int
    freed_bytes: int
    entry_count: int
    kept_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRecord:
    """A chunk of a segment: its valid length, the bytes freed at its head, and its numbers of blocks and events.

    ``event_count`` is None if an earlier version wrote the chunk: then sum over its blocks. ``joined_ms``: when a merge
    moved it to the segment that names it; None: no merge did.
    """

    name: str
    length: int
    freed: int
    block_count: int
    event_count: int | None
    joined_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRecord:
    """A block: its end in the chunk's file, its checksum, its number of events, and the times of its first and last
    append; None if an earlier version wrote it."""

    end: int
    event_count: int
    crc32c: int
    first_ms: int | None = None
    last_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """The end of a lease on a segment, wall clock in ms, and a description of its holder, which may be empty."""

    until_ms: int
    holder: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeRecord:
    """A chunk to be deleted, because no segment names it any more: its former segment, and its bytes.

    ``segment`` is empty if an earlier version wrote the row.
    """

    uid: int
    size_bytes: int
    segment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueRecord:
    """The last batch for the catalogue, and the container's row from the same commit."""

    sequence: int
    epoch: int
    complete_upto: int


# --- keys -------------------------------------------------------------------------------------------------


def prefix(tag: bytes, container: int) -> bytes:
    return _HEAD.pack(tag, container)


def container_copy_key(container: int) -> bytes:
    """Key of a copy of the container's row: without that row it is unknown where the log continues."""
    return prefix(TAG_CONTAINER, container) + b"+"


def copy_key(key: bytes) -> bytes:
    """Key of a second row with the same value, for tables without which nothing in the store can be found."""
    return TAG_COPY + key[1:3] + key[:1] + key[3:]


def aside_key(container: int, uid: int, address: int | None = None) -> bytes:
    """Key of the mark on a segment with damaged metadata, or of the changes that one frame of the log makes in it."""
    return uid_key(TAG_ASIDE, container, uid, b"" if address is None else _UID.pack(address))


def lacking_key(container: int, key: bytes) -> bytes:
    """Key of the mark on a row that a snapshot of the catalogue lacks, because it was damaged. No store has such rows."""
    return prefix(TAG_LACKING, container) + key


def uid_key(tag: bytes, container: int, uid: int, rest: bytes = b"") -> bytes:
    """Key of a row of one segment."""
    return _HEAD.pack(tag, container) + _UID.pack(uid) + rest


def range_of(start: bytes) -> tuple[bytes, bytes]:
    """The half-open range of all keys that begin with ``start``, which does not end in 0xFF only."""
    trimmed = start.rstrip(b"\xff")
    return start, trimmed[:-1] + bytes([trimmed[-1] + 1])


def number(value: int) -> bytes:
    """An offset or version as part of a key."""
    return _UID.pack(value)


def parse_number(data: bytes) -> int:
    return int(_UID.unpack(data)[0])


def name_key(container: int, name: str) -> bytes:
    return prefix(TAG_NAME, container) + name.encode()


def chunk_key(container: int, uid: int, start: int) -> bytes:
    return uid_key(TAG_CHUNK, container, uid, _UID.pack(start))


def block_prefix(container: int, chunk: str) -> bytes:
    return prefix(TAG_BLOCK, container) + chunk.encode() + b"\0"


def block_key(container: int, chunk: str, start: int) -> bytes:
    return block_prefix(container, chunk) + _UID.pack(start)


def free_key(container: int, chunk: str) -> bytes:
    return prefix(TAG_FREE, container) + chunk.encode()


def erased_key(container: int, chunk: str) -> bytes:
    """Key of the erased ranges of a chunk (``codec.store.erased``)."""
    return prefix(TAG_ERASED, container) + chunk.encode()


def wipe_key(container: int, chunk: str) -> bytes:
    """Key of the mark on a chunk that is to be overwritten before it is deleted. Its value is empty."""
    return prefix(TAG_WIPE, container) + chunk.encode()


def lease_key(container: int, lease: int, uid: int) -> bytes:
    return prefix(TAG_LEASE, container) + lease.to_bytes(16, "big") + _UID.pack(uid)


def parse_lease_key(key: bytes) -> tuple[int, int]:
    """Lease and segment uid of a lease row's key."""
    return int.from_bytes(key[3:19], "big"), parse_number(key[19:])


def flushed_key(container: int, uid: int, writer: int | None = None) -> bytes:
    """Key of the counts of a segment's bytes in tier 2, or of a writer's last number in them."""
    return uid_key(TAG_FLUSHED, container, uid, b"" if writer is None else writer.to_bytes(16, "big"))


def outbox_key(container: int, sequence: int) -> bytes:
    return prefix(TAG_OUTBOX, container) + _UID.pack(sequence)


def merged_time_key(container: int, merged_ms: int, uid: int, source: str) -> bytes:
    return prefix(TAG_MERGED_TIME, container) + _UID.pack(merged_ms) + _UID.pack(uid) + source.encode()


def parse_merged_time_key(key: bytes) -> tuple[int, bytes]:
    """Target uid, and the source's name as bytes."""
    return parse_number(key[11:19]), key[19:]


# --- values -----------------------------------------------------------------------------------------------


def encode_int(value: int) -> bytes:
    return _INT.pack(value)


def decode_int(data: bytes) -> int:
    _check(len(data) == _INT.size, "number", data)
    return int(_INT.unpack(data)[0])


def encode_writer(number: int, used_s: int) -> bytes:
    """A writer's last event number, and the container's age when the row was written, seconds."""
    return _WRITER.pack(number, min(used_s, 0xFFFFFFFF))


def decode_writer(data: bytes) -> tuple[int, int | None]:
    """Value and age of an attribute's row. Without an age: an attribute, or a writer of an earlier version."""
    if len(data) == _INT.size:
        return decode_int(data), None
    _check(len(data) == _WRITER.size, "writer", data)
    number, used_s = _WRITER.unpack(data)
    return number, used_s


def encode_writers(record: WritersRecord) -> bytes:
    return _WRITERS.pack(VERSION, record.age_s, record.floor_ms)


def decode_writers(data: bytes) -> WritersRecord:
    _check(len(data) == _WRITERS.size, "writers", data)
    version, age_s, floor_ms = _WRITERS.unpack(data)
    _check_version(version)
    return WritersRecord(age_s=age_s, floor_ms=floor_ms)


def encode_store(containers: int) -> bytes:
    return _STORE.pack(VERSION, containers)


def decode_store(data: bytes) -> int:
    """How many containers the store was created with."""
    _check(len(data) == _STORE.size, "store", data)
    version, containers = _STORE.unpack(data)
    _check_version(version)
    return int(containers)


def encode_container(record: ContainerRecord) -> bytes:
    return _CONTAINER.pack(VERSION, record.epoch, record.complete_upto)


def decode_container(data: bytes) -> ContainerRecord:
    _check(len(data) == _CONTAINER.size, "container", data)
    version, epoch, complete = _CONTAINER.unpack(data)
    _check_version(version)
    return ContainerRecord(epoch=epoch, complete_upto=complete)


def encode_segment(record: SegmentRecord) -> bytes:
    head = _SEGMENT.pack(
        SEGMENT_VERSION,
        record.kind,
        int(record.sealed),
        record.key_bytes,
        record.rollover_bytes,
        record.start_offset,
        record.length,
        record.modified_ms,
        record.event_count,
        record.freed_bytes,
        record.entry_count,
        record.kept_offset,
    )
    return head + record.name.encode()


def decode_segment(data: bytes) -> SegmentRecord:
    _check(len(data) > 0, "segment", data)
    _check_version(data[0], SEGMENT_VERSION)
    layout = _SEGMENT_1 if data[0] == 1 else _SEGMENT
    _check(len(data) >= layout.size, "segment", data)
    _, kind, sealed, key_bytes, rollover, start, length, modified, events, freed, entries, *kept = layout.unpack_from(
        data
    )
    return SegmentRecord(
        name=_text(data[layout.size :]),
        kind=kind,
        key_bytes=key_bytes,
        rollover_bytes=rollover,
        start_offset=start,
        length=length,
        sealed=bool(sealed),
        modified_ms=modified,
        event_count=events,
        freed_bytes=freed,
        entry_count=entries,
        kept_offset=kept[0] if kept else start,
    )


def encode_chunk(record: ChunkRecord) -> bytes:
    head = record.length, record.freed, record.block_count
    events = record.event_count
    if events is None and record.joined_ms is None:
        packed = _CHUNK_1.pack(1, *head)
    elif events is not None and record.joined_ms is None:
        packed = _CHUNK_2.pack(2, *head, events)
    else:
        packed = _CHUNK.pack(CHUNK_VERSION, *head, _absent(events), _absent(record.joined_ms))
    return packed + record.name.encode()


def _absent(value: int | None) -> int:
    return -1 if value is None else value


def _present(value: int) -> int | None:
    return None if value == -1 else value


def decode_chunk(data: bytes) -> ChunkRecord:
    _check(len(data) > 0, "chunk", data)
    _check_version(data[0], CHUNK_VERSION)
    layout = {1: _CHUNK_1, 2: _CHUNK_2}.get(data[0], _CHUNK)
    _check(len(data) > layout.size, "chunk", data)
    _, length, freed, blocks, *more = layout.unpack_from(data)
    return ChunkRecord(
        name=_text(data[layout.size :]),
        length=length,
        freed=freed,
        block_count=blocks,
        event_count=_present(more[0]) if more else None,
        joined_ms=_present(more[1]) if len(more) > 1 else None,
    )


def encode_block(record: BlockRecord) -> bytes:
    if record.first_ms is None or record.last_ms is None:
        return _BLOCK_1.pack(record.end, record.event_count, record.crc32c)
    return _BLOCK.pack(record.end, record.event_count, record.crc32c, record.first_ms, record.last_ms)


def decode_block(data: bytes) -> BlockRecord:
    _check(len(data) in (_BLOCK.size, _BLOCK_1.size), "block", data)
    if len(data) == _BLOCK_1.size:
        end, events, checksum = _BLOCK_1.unpack(data)
        return BlockRecord(end=end, event_count=events, crc32c=checksum)
    end, events, checksum, first_ms, last_ms = _BLOCK.unpack(data)
    return BlockRecord(end=end, event_count=events, crc32c=checksum, first_ms=first_ms, last_ms=last_ms)


def encode_lease(record: LeaseRecord) -> bytes:
    return _LEASE.pack(record.until_ms) + record.holder.encode()


def decode_lease(data: bytes) -> LeaseRecord:
    _check(len(data) >= _LEASE.size, "lease", data)
    return LeaseRecord(until_ms=_LEASE.unpack_from(data)[0], holder=_text(data[_LEASE.size :]))


def encode_free(record: FreeRecord) -> bytes:
    return _FREE.pack(record.uid, record.size_bytes) + record.segment.encode()


def decode_free(data: bytes) -> FreeRecord:
    _check(len(data) >= _FREE.size, "free", data)
    uid, size_bytes = _FREE.unpack_from(data)
    return FreeRecord(uid=uid, size_bytes=size_bytes, segment=_text(data[_FREE.size :]))


def encode_flushed(events: int) -> bytes:
    """``events``: how many of the segment's events are not tiered."""
    return _FLUSHED.pack(VERSION, events)


def decode_flushed(data: bytes) -> int:
    _check(len(data) == _FLUSHED.size, "flushed", data)
    version, events = _FLUSHED.unpack(data)
    _check_version(version)
    return int(events)


def encode_catalogue(record: CatalogueRecord) -> bytes:
    return _CATALOGUE.pack(VERSION, record.sequence, record.epoch, record.complete_upto)


def decode_catalogue(data: bytes) -> CatalogueRecord:
    _check(len(data) == _CATALOGUE.size, "catalogue", data)
    version, sequence, epoch, complete = _CATALOGUE.unpack(data)
    _check_version(version)
    return CatalogueRecord(sequence=sequence, epoch=epoch, complete_upto=complete)


def encode_entry(version: int, value: bytes) -> bytes:
    return _INT.pack(version) + value


def decode_entry(data: bytes) -> tuple[int, bytes]:
    """Version and value of a table entry."""
    _check(len(data) >= _INT.size, "entry", data)
    return int(_INT.unpack_from(data)[0]), data[_INT.size :]


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CorruptDataError("name in a metadata row is not text", data=data[:40].hex()) from error


def _check(holds: bool, kind: str, data: bytes) -> None:
    if not holds:
        raise CorruptDataError("metadata row has the wrong size", kind=kind, size_bytes=len(data))


def _check_version(version: int, known: int = VERSION) -> None:
    if version > known:
        raise VersionTooNewError("metadata was written by a newer version", version=version, known=known)
    if version < 1:
        raise CorruptDataError("metadata row has an invalid version", version=version)
