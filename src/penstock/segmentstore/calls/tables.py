"""Table segments: keys with versions, compared and set in atomic batches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from penstock.codec.store import operations as codec
from penstock.codec.store import rows as records
from penstock.model.errors import (
    BadKeyVersionError,
    ConditionFailedError,
    EventTooLargeError,
    InvalidArgumentError,
    KeyNotFoundError,
    NotEmptyError,
    PenstockError,
    StorageFullError,
    ThrottledError,
    UnsupportedError,
)
from penstock.ports.data.segments import SegmentInfo
from penstock.ports.data.tables import (
    ANY_VERSION,
    DAMAGED_VERSION,
    KEY_ABSENT,
    KEY_MAX_BYTES,
    TABLE_BATCH_MAX,
    TABLE_BATCH_MAX_BYTES,
    VALUE_MAX_BYTES,
    DamagedEntry,
    TableCheck,
    TableDelta,
    TableEntry,
    TableKind,
    TableLength,
    TablePut,
    TableRemoval,
)
from penstock.segmentstore.calls import segments as segment_calls
from penstock.segmentstore.calls.segments import Operations
from penstock.segmentstore.parts import StoreParts
from penstock.segmentstore.segment import KIND_SORTED, TABLE_KINDS, Segment, TableState

_PAGE_MAX = 10_000  # entries of one scan


class TableOperations(Operations, Protocol):
    """As ``Operations``, plus the commits of changed rows."""

    @property
    def parts(self) -> StoreParts: ...

    def check_online(self) -> None:
        """Raises ContainerOfflineError once the container has stopped."""
        ...

    async def next_commit(self) -> None:
        """Request a checkpoint, and return once rows are committed or the container is offline."""
        ...


async def create(operations: TableOperations, name: str, *, kind: TableKind, key_bytes: int) -> None:
    """See ``SegmentService.create_table``."""
    if kind is TableKind.SORTED and not 0 < key_bytes <= KEY_MAX_BYTES:
        raise InvalidArgumentError("sorted table needs the length of its keys", key_bytes=key_bytes)
    if kind is TableKind.HASH and key_bytes != 0:
        raise InvalidArgumentError("hash table has keys of any length", key_bytes=key_bytes)
    await segment_calls.create(operations, name, kind=TABLE_KINDS[kind], key_bytes=key_bytes)


async def delete(operations: TableOperations, name: str, *, must_be_empty: bool) -> None:
    segment = await segment_calls.find(operations, name)
    table = segment.require_table()
    if must_be_empty and table.next_entry_count:
        error = NotEmptyError("table holds entries", segment=name, entries=table.next_entry_count)
        await segment_calls.refuse(operations, segment, error)
    await segment_calls.remove(operations, segment)


async def change(
    operations: TableOperations, name: str, asked: Sequence[TablePut | TableRemoval | TableCheck | TableLength]
) -> Sequence[int]:
    """See ``SegmentService.table_update`` and ``table_remove``: a version for each change."""
    lengths = [item.length for item in asked if isinstance(item, TableLength)]
    changes = [item for item in asked if not isinstance(item, TableLength)]
    if len(changes) > TABLE_BATCH_MAX:
        raise InvalidArgumentError("batch has too many items", items=len(changes), limit=TABLE_BATCH_MAX)
    await _room(operations)
    while True:
        segment = await segment_calls.find(operations, name)
        table = segment.require_table()
        items = [
            (bytes(item.key), bytes(item.value) if isinstance(item, TablePut) else None)
            for item in changes
            if not isinstance(item, TableCheck)
        ]
        checked = [bytes(item.key) for item in changes if isinstance(item, TableCheck)]
        _check_sizes(segment, [*items, *((key, None) for key in checked)])
        with segment.pinned():
            versions = await _versions(operations, segment, table, [*(key for key, _ in items), *checked])
        if versions is not None and operations.state.segments.is_current(segment):
            break
    # No await is allowed between the conditions and the change.
    error = _other_length(segment, lengths) or _condition_failed(name, changes, versions)
    if error is None and not changes:
        return list(await segment_calls.agree(operations, segment, []))
    error = error or _throttled(operations)
    if error is not None:
        await segment_calls.refuse(operations, segment, error)
    if not items:
        return list(await segment_calls.agree(operations, segment, [versions[key] for key in checked]))
    operation = codec.TableOperation(
        uid=segment.uid,
        position=segment.next_length,
        items=tuple(codec.TableItem(key=key, value=value, previous=versions[key]) for key, value in items),
    )
    prepared = segment_calls.Prepared(
        operations, segment, operation, lambda now_ms: operations.steps.table_change(segment, operation, now_ms)
    )
    _foresee(segment, table, operation)
    written = iter(await prepared.submit())
    return [versions[bytes(item.key)] if isinstance(item, TableCheck) else next(written) for item in changes]


def _check_sizes(segment: Segment, items: Sequence[tuple[bytes, bytes | None]]) -> None:
    total = 0
    for key, value in items:
        size = len(value or b"")
        total += len(key) + size
        if len(key) > KEY_MAX_BYTES or size > VALUE_MAX_BYTES:
            raise EventTooLargeError(
                "table key or value is too large", segment=segment.name, key_bytes=len(key), value_bytes=size
            )
        if segment.kind == KIND_SORTED and len(key) != segment.key_bytes:
            raise InvalidArgumentError(
                "key has another length than the table's keys", key_bytes=len(key), expected=segment.key_bytes
            )
    if total > TABLE_BATCH_MAX_BYTES:
        raise EventTooLargeError(
            "batch is too large", segment=segment.name, size_bytes=total, limit=TABLE_BATCH_MAX_BYTES
        )


async def _versions(
    operations: TableOperations, segment: Segment, table: TableState, keys: Sequence[bytes]
) -> dict[bytes, int] | None:
    """Version of each key once the queued changes are durable; None: the table was deleted meanwhile."""
    distinct = list(dict.fromkeys(keys))
    rows = {key: _entry_key(operations, segment, key) for key in distinct}
    while True:
        unknown = [key for key in distinct if key not in table.next_versions]
        generation = operations.state.rows.generation
        damaged: list[bytes] = []
        stored = await operations.state.rows.get_many([rows[key] for key in unknown], damaged=damaged)
        fetched = dict(zip(unknown, stored, strict=True))
        if not operations.state.segments.is_current(segment):
            return None
        versions: dict[bytes, int] = {}
        for key in distinct:
            pending = table.next_versions.get(key)
            changed, row = operations.state.rows.peek(rows[key])
            if pending is not None:
                versions[key] = pending[0]
            elif not changed and rows[key] in damaged:
                versions[key] = DAMAGED_VERSION
            elif changed or key in fetched:
                value = row if changed else fetched[key]
                versions[key] = KEY_ABSENT if value is None else records.decode_entry(value)[0]
        # The rows read may lack changes that left memory meanwhile; a pending key may have become durable.
        if len(versions) == len(distinct) and operations.state.rows.generation == generation:
            return versions


def _other_length(segment: Segment, lengths: Sequence[int]) -> PenstockError | None:
    for length in lengths:
        if length != segment.next_length:
            return ConditionFailedError(
                "table has another length", segment=segment.name, expected=length, actual=segment.next_length
            )
    return None


def _condition_failed(
    name: str, changes: Sequence[TablePut | TableRemoval | TableCheck], versions: dict[bytes, int]
) -> PenstockError | None:
    for item in changes:
        actual = versions[bytes(item.key)]
        if item.version == ANY_VERSION or item.version == actual:
            continue
        if actual == KEY_ABSENT:
            return KeyNotFoundError("no such key", segment=name, key=item.key[:64], expected=item.version)
        return BadKeyVersionError(
            "key has another version", segment=name, key=item.key[:64], expected=item.version, actual=actual
        )
    return None


def _behind(operations: TableOperations) -> bool:
    """Whether more rows have changed than one checkpoint should write."""
    return operations.state.rows.changed_bytes >= 4 * operations.parts.settings.checkpoint_rows_bytes


def _throttled(operations: TableOperations) -> StorageFullError | ThrottledError | None:
    if _behind(operations):
        return operations.state.log.shortage.refusal() or ThrottledError(
            "metadata does not keep up",
            resource="changed_rows_bytes",
            limit=4 * operations.parts.settings.checkpoint_rows_bytes,
            waited_s=operations.parts.settings.rows_wait_s,
        )
    return None


async def _room(operations: TableOperations) -> None:
    """Wait up to a limit while metadata does not keep up; on a full disk, do not wait."""
    try:
        async with asyncio.timeout(operations.parts.settings.rows_wait_s):
            while _behind(operations) and operations.state.log.shortage.refusal() is None:
                operations.check_online()
                await operations.next_commit()
    except TimeoutError:
        return  # The next decision reports why it refuses.


def _foresee(segment: Segment, table: TableState, operation: codec.TableOperation) -> None:
    """Change pending state as the operation will change durable state."""
    position = operation.position
    present: dict[bytes, bool] = {}
    for item in operation.items:
        before = present.get(item.key, item.previous != KEY_ABSENT)
        present[item.key] = item.value is not None
        table.next_entry_count += present[item.key] - before
        table.next_versions[item.key] = (KEY_ABSENT if item.value is None else position, position)
        position += item.record_bytes
    segment.next_length = position


async def _visible(operations: TableOperations, name: str) -> tuple[Segment, TableState]:
    segment = await operations.state.segments.find_visible(name)
    return segment, segment.require_table()


async def get(operations: TableOperations, name: str, keys: Sequence[bytes]) -> Sequence[TableEntry]:
    segment, _ = await _visible(operations, name)
    if len(keys) > TABLE_BATCH_MAX:
        raise InvalidArgumentError("batch has too many items", items=len(keys), limit=TABLE_BATCH_MAX)
    keys = [bytes(key) for key in keys]
    for key in keys:
        _check_key(segment, key)
    rows = [_entry_key(operations, segment, key) for key in keys]
    damaged: list[bytes] = []
    values = await operations.state.rows.get_many(rows, damaged=damaged)
    return [
        DamagedEntry(key=key) if row in damaged else _entry(key, value)
        for key, row, value in zip(keys, rows, values, strict=True)
    ]


def _check_key(segment: Segment, key: bytes) -> None:
    _check_sizes(segment, [(key, None)])


def _entry(key: bytes, value: bytes | None) -> TableEntry:
    if value is None:
        return TableEntry(key=key, value=b"", version=KEY_ABSENT)
    version, data = records.decode_entry(value)
    return TableEntry(key=key, value=data, version=version)


async def scan(
    operations: TableOperations, name: str, *, after: bytes | None, limit: int, first: bytes | None, last: bytes | None
) -> Sequence[TableEntry]:
    """See ``SegmentService.table_scan``."""
    segment, _ = await _visible(operations, name)
    if limit <= 0:
        raise InvalidArgumentError("scan needs a limit", limit=limit)
    start, end = records.range_of(_entry_key(operations, segment, b""))
    head = len(start)
    if first is not None:
        start = max(start, _entry_key(operations, segment, bytes(first)))
    if after is not None:
        start = max(start, _entry_key(operations, segment, bytes(after)) + b"\0")
    if last is not None:
        end = min(end, _entry_key(operations, segment, bytes(last)) + b"\0")
    damaged: list[bytes] = []
    rows = await operations.state.rows.scan((start, end), limit=min(limit, _PAGE_MAX), damaged=damaged)
    if not damaged:
        return [_entry(key[head:], value) for key, value in rows]
    found = {key: _entry(key[head:], value) for key, value in rows}
    found.update((key, DamagedEntry(key=key[head:])) for key in damaged)
    # If more sound rows may follow, the page ends at the last sound row: the next page starts after its last key.
    full = len(rows) == min(limit, _PAGE_MAX)
    return [found[key] for key in sorted(found) if not full or key <= rows[-1][0]][:limit]


async def delta(operations: TableOperations, name: str, position: int, limit: int) -> TableDelta:
    """See ``SegmentService.table_delta``. Tables are never compacted: ``should_clear`` is False."""
    segment, _ = await _visible(operations, name)
    if segment.kind == KIND_SORTED:
        raise UnsupportedError("sorted table has no order of changes", segment=name)
    if limit <= 0 or not 0 <= position <= segment.length:
        raise InvalidArgumentError(
            "position lies outside the table", segment=name, position=position, length=segment.length, limit=limit
        )
    reached = segment.length
    limit = min(limit, _PAGE_MAX)
    base = records.uid_key(records.TAG_CHANGE, operations.state.index, segment.uid)
    base_of_entries = _entry_key(operations, segment, b"")
    _, end = records.range_of(base)
    changes = await operations.state.rows.scan((base + records.number(position), end), limit=limit)
    values = await operations.state.rows.get_many([base_of_entries + key for _, key in changes])
    entries: list[TableEntry] = []
    for (row, key), value in zip(changes, values, strict=True):
        entry = _entry(key, value)
        # Changed again since the rows were listed: it is listed again, behind this position.
        if entry.version == records.parse_number(row[-8:]):
            entries.append(entry)
    full = len(changes) == limit
    if full:
        seen = records.parse_number(changes[-1][0][-8:])
        # The end of the last change's record: the smallest size suffices, because the next record begins behind it.
        reached = seen + codec.TABLE_RECORD_BYTES + len(changes[-1][1])
        value = values[-1]
        if value is not None and records.decode_entry(value)[0] == seen:
            reached += len(records.decode_entry(value)[1])
    elif changes:
        reached = max(reached, records.parse_number(changes[-1][0][-8:]) + 1)
    return TableDelta(entries=entries, should_clear=False, reached_end=not full, position=reached)


async def info(operations: TableOperations, name: str) -> tuple[SegmentInfo, int, int]:
    segment, table = await _visible(operations, name)
    return segment.info(), table.entry_count, segment.key_bytes


def _entry_key(operations: TableOperations, segment: Segment, key: bytes) -> bytes:
    return records.uid_key(records.TAG_ENTRY, operations.state.index, segment.uid, key)
