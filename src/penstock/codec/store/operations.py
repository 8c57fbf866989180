"""Operations of a container, and each as bytes; ``operation_frames`` puts them into frames of the log.

Source: docs/formats/operations.md.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

from penstock.model.errors import CorruptDataError
from penstock.model.values.dataclass import dataclass

# First byte of an operation (docs/formats/operations.md), as are those below.
KIND_CREATE, KIND_APPEND, KIND_SEAL, KIND_TRUNCATE = 1, 2, 3, 4
KIND_DELETE, KIND_ATTRIBUTE, KIND_MERGE, KIND_TABLE = 5, 6, 7, 8  # as above
KIND_KEEP, KIND_RELEASE, KIND_RESTORE = 9, 10, 11  # as above
KIND_ADOPT = 12  # as above
KIND_LEASE, KIND_RELEASE_LEASE = 13, 14  # as above

CREATE = struct.Struct(">BQBHqH")
APPEND = struct.Struct(">BQq16sqII")
SEAL = struct.Struct(">BQ")
TRUNCATE = struct.Struct(">BQq")
DELETE = struct.Struct(">BQ")
KEEP = struct.Struct(">BQq")
RELEASE = struct.Struct(">BQq")
RESTORE = struct.Struct(">BQq")
ADOPT = struct.Struct(">BQqH")
ADOPT_CHUNK = struct.Struct(">HI")
ADOPT_BLOCK = struct.Struct(">III")
LEASE = struct.Struct(">BQ16sqH")
RELEASE_LEASE = struct.Struct(">BQ16s")
ATTRIBUTE = struct.Struct(">BQ16sq")
MERGE = struct.Struct(">BQQqq")
TABLE = struct.Struct(">BQqH")
TABLE_ITEM = struct.Struct(">BHIq")

ITEM_PUT, ITEM_REMOVE = 1, 2  # flag of an item of a table operation
TABLE_RECORD_BYTES = 17
"""How far one table change advances the position counter, besides its key and value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateOperation:
    """A segment is created. ``kind`` is 0 for plain, 1 for a hash table, 2 for a sorted table."""

    uid: int
    kind: int
    key_bytes: int
    rollover_bytes: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendOperation:
    """Bytes at ``offset``, which is the segment's length before the append. ``data`` is a view of the frame."""

    uid: int
    offset: int
    writer: int
    event_number: int
    event_count: int
    data: memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class SealOperation:
    uid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateOperation:
    """The bytes before ``offset`` are freed, including kept ones."""

    uid: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepOperation:
    """Readers begin at ``offset``; the bytes before it stay on disk."""

    uid: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseOperation:
    """Kept bytes before ``offset`` are freed."""

    uid: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOperation:
    """Readers begin at ``offset`` again, which is within the kept bytes."""

    uid: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOperation:
    """A segment or table is deleted with its content."""

    uid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributeOperation:
    uid: int
    attribute: int
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOperation:
    """All ``length`` bytes of ``source`` become the bytes of ``uid`` from ``offset`` on; ``source`` no longer
    exists."""

    uid: int
    source: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableItem:
    """One change: a put, or a removal if ``value`` is None. ``previous`` is the key's version before, or -1."""

    key: bytes
    value: bytes | None
    previous: int

    @property
    def record_bytes(self) -> int:
        return TABLE_RECORD_BYTES + len(self.key) + (0 if self.value is None else len(self.value))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOperation:
    """Changes of one batch. The first has version ``position``; each next one is ``record_bytes`` further on."""

    uid: int
    position: int
    items: tuple[TableItem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedBlock:
    """A run of whole events in an adopted chunk, directly after the previous block."""

    size_bytes: int
    event_count: int
    crc32c: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedChunk:
    """A complete chunk that is already in tier 2, and its blocks in order."""

    name: str
    blocks: tuple[AdoptedBlock, ...]

    @property
    def size_bytes(self) -> int:
        return sum(block.size_bytes for block in self.blocks)

    @property
    def event_count(self) -> int:
        return sum(block.event_count for block in self.blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptOperation:
    """The chunks, in order, become the bytes of ``uid`` from ``offset`` on, which is its length before the
    operation."""

    uid: int
    offset: int
    chunks: tuple[AdoptedChunk, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseOperation:
    """The lease holds the chunks of the segment until this time (milliseconds since the Unix epoch) at least."""

    uid: int
    lease: int
    until_ms: int
    holder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseLeaseOperation:
    """The lease no longer holds the segment; ``uid`` 0: any segment of the container."""

    uid: int
    lease: int


Change: TypeAlias = (
    CreateOperation
    | SealOperation
    | TruncateOperation
    | DeleteOperation
    | AttributeOperation
    | MergeOperation
    | TableOperation
    | KeepOperation
    | ReleaseOperation
    | RestoreOperation
    | AdoptOperation
    | LeaseOperation
    | ReleaseLeaseOperation
)
"""Every operation except an append."""
Operation: TypeAlias = AppendOperation | Change


def encode_create(operation: CreateOperation) -> bytes:
    name = operation.name.encode()
    head = CREATE.pack(
        KIND_CREATE, operation.uid, operation.kind, operation.key_bytes, operation.rollover_bytes, len(name)
    )
    return head + name


def encode_append_head(
    uid: int, offset: int, writer: int, event_number: int, event_count: int, data_bytes: int
) -> bytes:
    """The bytes before the data of an append. Positional arguments, because it runs once per append."""
    return APPEND.pack(KIND_APPEND, uid, offset, writer.to_bytes(16, "big"), event_number, event_count, data_bytes)


def encode_seal(operation: SealOperation) -> bytes:
    return SEAL.pack(KIND_SEAL, operation.uid)


def encode_truncate(operation: TruncateOperation) -> bytes:
    return TRUNCATE.pack(KIND_TRUNCATE, operation.uid, operation.offset)


def encode_keep(operation: KeepOperation) -> bytes:
    return KEEP.pack(KIND_KEEP, operation.uid, operation.offset)


def encode_release(operation: ReleaseOperation) -> bytes:
    return RELEASE.pack(KIND_RELEASE, operation.uid, operation.offset)


def encode_restore(operation: RestoreOperation) -> bytes:
    return RESTORE.pack(KIND_RESTORE, operation.uid, operation.offset)


def encode_delete(operation: DeleteOperation) -> bytes:
    return DELETE.pack(KIND_DELETE, operation.uid)


def encode_attribute(operation: AttributeOperation) -> bytes:
    return ATTRIBUTE.pack(KIND_ATTRIBUTE, operation.uid, operation.attribute.to_bytes(16, "big"), operation.value)


def encode_merge(operation: MergeOperation) -> bytes:
    return MERGE.pack(KIND_MERGE, operation.uid, operation.source, operation.offset, operation.length)


def encode_adopt(operation: AdoptOperation) -> bytes:
    parts = [ADOPT.pack(KIND_ADOPT, operation.uid, operation.offset, len(operation.chunks))]
    for chunk in operation.chunks:
        name = chunk.name.encode()
        parts += (ADOPT_CHUNK.pack(len(name), len(chunk.blocks)), name)
        parts += (ADOPT_BLOCK.pack(block.size_bytes, block.event_count, block.crc32c) for block in chunk.blocks)
    return b"".join(parts)


def encode_lease(operation: LeaseOperation) -> bytes:
    holder = operation.holder.encode()
    lease = operation.lease.to_bytes(16, "big")
    return LEASE.pack(KIND_LEASE, operation.uid, lease, operation.until_ms, len(holder)) + holder


def encode_release_lease(operation: ReleaseLeaseOperation) -> bytes:
    return RELEASE_LEASE.pack(KIND_RELEASE_LEASE, operation.uid, operation.lease.to_bytes(16, "big"))


def encode_table(operation: TableOperation) -> bytes:
    parts = [TABLE.pack(KIND_TABLE, operation.uid, operation.position, len(operation.items))]
    for item in operation.items:
        value = b"" if item.value is None else item.value
        flag = ITEM_REMOVE if item.value is None else ITEM_PUT
        parts += (TABLE_ITEM.pack(flag, len(item.key), len(value), item.previous), item.key, value)
    return b"".join(parts)


def encode(operation: Operation) -> bytes:
    """One operation as bytes, its data included."""
    match operation:
        case CreateOperation():
            return encode_create(operation)
        case AppendOperation():
            head = encode_append_head(
                operation.uid,
                operation.offset,
                operation.writer,
                operation.event_number,
                operation.event_count,
                len(operation.data),
            )
            return head + bytes(operation.data)
        case SealOperation():
            return encode_seal(operation)
        case TruncateOperation():
            return encode_truncate(operation)
        case DeleteOperation():
            return encode_delete(operation)
        case AttributeOperation():
            return encode_attribute(operation)
        case MergeOperation():
            return encode_merge(operation)
        case TableOperation():
            return encode_table(operation)
        case KeepOperation():
            return encode_keep(operation)
        case ReleaseOperation():
            return encode_release(operation)
        case RestoreOperation():
            return encode_restore(operation)
        case AdoptOperation():
            return encode_adopt(operation)
        case LeaseOperation():
            return encode_lease(operation)
        case ReleaseLeaseOperation():
            return encode_release_lease(operation)


def decode(view: memoryview, position: int) -> tuple[Operation, int]:
    """The operation at ``position``, its data a view, and where it ends. Raises CorruptDataError, struct.error, IndexError,
    UnicodeDecodeError."""
    if view[position] != KIND_APPEND:
        return decode_change(view, position)
    _, uid, offset, writer, number, count, length = APPEND.unpack_from(view, position)
    data, end = _take(view, position + APPEND.size, length)
    operation = AppendOperation(
        uid=uid,
        offset=offset,
        writer=int.from_bytes(writer, "big"),
        event_number=number,
        event_count=count,
        data=data,
    )
    return operation, end


def decode_change(view: memoryview, position: int) -> tuple[Change, int]:
    """As ``decode``, for operations other than appends."""
    kind = view[position]
    if kind == KIND_TABLE:
        return _decode_table(view, position)
    if kind == KIND_CREATE:
        _, uid, type_, key_bytes, rollover, name_bytes = CREATE.unpack_from(view, position)
        name, position = _take(view, position + CREATE.size, name_bytes)
        operation = CreateOperation(
            uid=uid, kind=type_, key_bytes=key_bytes, rollover_bytes=rollover, name=str(name, "utf-8")
        )
        return operation, position
    if kind == KIND_ADOPT:
        return _decode_adopt(view, position)
    if kind == KIND_LEASE:
        _, uid, lease, until_ms, holder_bytes = LEASE.unpack_from(view, position)
        holder, position = _take(view, position + LEASE.size, holder_bytes)
        number = int.from_bytes(lease, "big")
        return LeaseOperation(uid=uid, lease=number, until_ms=until_ms, holder=str(holder, "utf-8")), position
    return _decode_fixed(kind, view, position)


def _decode_fixed(kind: int, view: memoryview, position: int) -> tuple[Change, int]:
    if kind == KIND_SEAL:
        return SealOperation(uid=SEAL.unpack_from(view, position)[1]), position + SEAL.size
    if kind == KIND_TRUNCATE:
        _, uid, offset = TRUNCATE.unpack_from(view, position)
        return TruncateOperation(uid=uid, offset=offset), position + TRUNCATE.size
    if kind == KIND_DELETE:
        return DeleteOperation(uid=DELETE.unpack_from(view, position)[1]), position + DELETE.size
    if kind == KIND_ATTRIBUTE:
        _, uid, attribute, value = ATTRIBUTE.unpack_from(view, position)
        number = int.from_bytes(attribute, "big")
        return AttributeOperation(uid=uid, attribute=number, value=value), position + ATTRIBUTE.size
    if kind == KIND_MERGE:
        _, uid, source, offset, length = MERGE.unpack_from(view, position)
        return MergeOperation(uid=uid, source=source, offset=offset, length=length), position + MERGE.size
    if kind == KIND_KEEP:
        _, uid, offset = KEEP.unpack_from(view, position)
        return KeepOperation(uid=uid, offset=offset), position + KEEP.size
    if kind == KIND_RELEASE:
        _, uid, offset = RELEASE.unpack_from(view, position)
        return ReleaseOperation(uid=uid, offset=offset), position + RELEASE.size
    if kind == KIND_RESTORE:
        _, uid, offset = RESTORE.unpack_from(view, position)
        return RestoreOperation(uid=uid, offset=offset), position + RESTORE.size
    if kind == KIND_RELEASE_LEASE:
        _, uid, lease = RELEASE_LEASE.unpack_from(view, position)
        return ReleaseLeaseOperation(uid=uid, lease=int.from_bytes(lease, "big")), position + RELEASE_LEASE.size
    raise CorruptDataError("log frame holds an unknown operation", kind=kind, position=position)


def _decode_table(view: memoryview, position: int) -> tuple[Change, int]:
    _, uid, first, count = TABLE.unpack_from(view, position)
    position += TABLE.size
    items: list[TableItem] = []
    for _ in range(count):
        flag, key_bytes, value_bytes, previous = TABLE_ITEM.unpack_from(view, position)
        if flag not in (ITEM_PUT, ITEM_REMOVE):
            raise CorruptDataError("log frame holds an unknown table change", flag=flag, position=position)
        key, position = _take(view, position + TABLE_ITEM.size, key_bytes)
        value, position = _take(view, position, value_bytes)
        items.append(TableItem(key=bytes(key), value=bytes(value) if flag == ITEM_PUT else None, previous=previous))
    return TableOperation(uid=uid, position=first, items=tuple(items)), position


def _decode_adopt(view: memoryview, position: int) -> tuple[AdoptOperation, int]:
    _, uid, offset, count = ADOPT.unpack_from(view, position)
    position += ADOPT.size
    chunks: list[AdoptedChunk] = []
    for _ in range(count):
        name_bytes, block_count = ADOPT_CHUNK.unpack_from(view, position)
        name, position = _take(view, position + ADOPT_CHUNK.size, name_bytes)
        packed, position = _take(view, position, block_count * ADOPT_BLOCK.size)
        blocks = tuple(
            AdoptedBlock(size_bytes=size, event_count=events, crc32c=checksum)
            for size, events, checksum in ADOPT_BLOCK.iter_unpack(packed)
        )
        chunks.append(AdoptedChunk(name=str(name, "utf-8"), blocks=blocks))
    return AdoptOperation(uid=uid, offset=offset, chunks=tuple(chunks)), position


def _take(view: memoryview, position: int, length: int) -> tuple[memoryview, int]:
    end = position + length
    if end > len(view):
        raise CorruptDataError("log frame ends within an operation", position=position, size_bytes=len(view))
    return view[position:end], end
