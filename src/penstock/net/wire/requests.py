"""Answers to every request of the wire protocol except appends and reads: one method per command."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any
from uuid import UUID

from penstock.codec.wire import commands as c
from penstock.codec.wire import table_commands as t
from penstock.codec.wire.frames import FRAME_MAX_BYTES, Command
from penstock.codec.wire.layout import WireChunk, WireEntry, WireKey
from penstock.model.errors import ConditionFailedError, InvalidArgumentError, SegmentNotFoundError, UnsupportedError
from penstock.model.names import RECORD_STREAMS, SYSTEM_SCOPE
from penstock.model.policies import ScaleType, ScalingPolicy
from penstock.net.wire.wire_errors import is_own
from penstock.ports.data.attributes import AttributeChange
from penstock.ports.data.service import ServedStore
from penstock.ports.data.tables import (
    KEY_ABSENT,
    TABLE_BATCH_MAX,
    TableEntry,
    TableKind,
    TableLength,
    TablePut,
    TableRemoval,
)

_STEP, _STEP_MAX = 4, 16
"""Entries requested from the store at a time; few if they are large, because each may take several copies of a
megabyte."""
_LARGE_BYTES = 64 << 10
_SCAN_MAX = 1000  # entries of one reply
REPLY_BYTES = 8 << 20
_ENTRY_OVERHEAD = 28  # bytes of an entry in a reply, besides its key and value
_REPLACE, _REPLACE_IF_EQUALS = 1, 4  # kinds of changes of an attribute in Pravega's protocol
_TOKEN_PREFIX = b"\x00"
SCALE_POLICY_TYPE, SCALE_POLICY_RATE = UUID(int=1 << 127 | 2), UUID(int=1 << 127 | 3)
"""Attributes in which Pravega keeps the scaling policy of a segment."""
_SCALE_CODES = {ScaleType.FIXED: 0, ScaleType.KILOBYTES_PER_S: 1, ScaleType.EVENTS_PER_S: 2}
_SCALE_TYPES = {code: kind for kind, code in _SCALE_CODES.items()}

Handler = Callable[[Any], Awaitable[Command]]

_OWN = (*(f"{stream}/" for stream in RECORD_STREAMS), f"{SYSTEM_SCOPE}/_tables/")
"""Segments that only the store itself changes: its metadata and its records of decisions about data."""
LARGE = (
    t.ReadTable,
    t.ReadTableKeys,
    t.ReadTableEntries,
    t.ReadTableEntriesDelta,
    c.ListStorageChunks,
)
"""Requests whose replies may be as large as a frame, whatever their own size."""
_CHANGES = (
    c.CreateSegment,
    t.CreateTableSegment,
    c.SealSegment,
    c.DeleteSegment,
    c.UpdateSegmentPolicy,
    c.UpdateSegmentAttribute,
    c.TruncateSegment,
    c.CreateTransientSegment,
    c.MergeSegments,
    c.MergeSegmentsBatch,
    t.DeleteTableSegment,
    t.UpdateTableEntries,
    t.RemoveTableKeys,
)


def check_changeable(segment: str) -> None:
    """Raises SegmentNotFoundError for a segment that clients may read but not change: for a writer it does not
    exist."""
    if segment.startswith(_OWN):
        raise SegmentNotFoundError("an internal segment of the store cannot be changed by clients", segment=segment)


PassOn = Callable[[Command], Awaitable[Command | None]]
"""Sends a request to the store that has its segment, and returns the answer; None: that store is this one. The answer may
raise what a store raises, NotConnectedError (nobody knows whether it happened) and ContainerOfflineError."""

CALLS_CAPABILITY = "CallController"
"""Listed among the names of ``store.info`` if the store's port answers controller calls."""

ControllerCall = Callable[[c.CallController], Awaitable[Command]]
"""Answers a call of the controller: ControllerAnswered or ControllerRefused."""

RemovalGuard = Callable[[str, int | None], AbstractAsyncContextManager[None]]
"""While it is open, the bytes of the named segment before the offset (None: all of them) may be removed: no hold is
placed until it exits. Entering raises RetentionHoldError if they must be kept."""


class RequestHandlers:
    """Serves commands from ``store``. ``created`` holds the transient segments that live as long as the connection.

    ``guard`` is entered before bytes of a segment are removed. ``calls``: controller calls that are answered here, by
    name. ``pass_on``: for requests about tables by clients that are not ours: Pravega's Python client asks once where a
    table is, and never again. ``reply_bytes``: the size of a listing, which one entry may exceed.
    """

    def __init__(
        self,
        store: ServedStore,
        guard: RemovalGuard | None = None,
        calls: Mapping[str, ControllerCall] | None = None,
        *,
        pass_on: PassOn | None = None,
        reply_bytes: int = REPLY_BYTES,
    ) -> None:
        self._store = store
        self._reply_bytes = reply_bytes
        self._guard = guard
        self._calls = calls or {}
        self._pass_on = pass_on
        # A dict for its order: segments are deleted in the order in which they were created.
        self.created: dict[str, None] = {}
        self._handlers: dict[Any, Handler] = {
            c.GetStreamSegmentInfo: self._info,
            c.LocateOffset: self._locate,
            c.CreateSegment: self._create,
            c.SealSegment: self._seal,
            c.DeleteSegment: self._delete,
            c.UpdateSegmentPolicy: self._update_policy,
            c.GetSegmentAttribute: self._get_attribute,
            c.UpdateSegmentAttribute: self._update_attribute,
            c.TruncateSegment: self._truncate,
            c.CreateTransientSegment: self._create_transient,
            c.MergeSegments: self._merge,
            c.MergeSegmentsBatch: self._merge_batch,
            t.GetTableSegmentInfo: self._table_info,
            t.CreateTableSegment: self._create_table,
            t.DeleteTableSegment: self._delete_table,
            t.UpdateTableEntries: self._table_update,
            t.RemoveTableKeys: self._table_remove,
            t.ReadTable: self._table_get,
            t.ReadTableKeys: self._table_keys,
            t.ReadTableEntries: self._table_entries,
            t.ReadTableEntriesDelta: self._table_delta,
            c.FlushToStorage: self._flush,
            c.ListStorageChunks: self._list_chunks,
            c.CallController: self._call,
        }

    async def answer(self, command: Command) -> Command:
        """The reply. Raises what the store raises, and UnsupportedError for commands that are known but not offered."""
        handler = self._handlers.get(type(command))
        if handler is None:
            raise UnsupportedError(type(command).__name__)
        if isinstance(command, _CHANGES):
            for segment in (subject_of(command), getattr(command, "source", ""), *getattr(command, "sources", ())):
                check_changeable(segment)
        return await handler(command)

    async def passed(self, command: Command) -> Command | None:
        """The answer of another store, as ``PassOn``; None: answer the request here."""
        if self._pass_on is None or not isinstance(command, t.REQUESTS) or is_own(command):
            return None
        return await self._pass_on(command)

    async def _info(self, command: c.GetStreamSegmentInfo) -> Command:
        info = await self._store.info(command.segment)
        return c.StreamSegmentInfo(
            command.rid,
            command.segment,
            True,
            info.sealed,
            False,
            info.last_modified_ms,
            info.length,
            info.start_offset,
        )

    async def _locate(self, command: c.LocateOffset) -> Command:
        boundary = await self._store.next_event_boundary(command.segment, command.offset)
        return c.OffsetLocated(command.rid, command.segment, boundary)

    async def _create(self, command: c.CreateSegment) -> Command:
        policy = _policy_of(command.segment, command.scale_type, command.target_rate)
        await self._store.create_segment(command.segment, rollover_bytes=max(0, command.rollover_bytes))
        if policy.type is not ScaleType.FIXED:
            await self._set_policy(command.segment, policy)
        return c.SegmentCreated(command.rid, command.segment)

    async def _seal(self, command: c.SealSegment) -> Command:
        await self._store.seal(command.segment)
        return c.SegmentSealed(command.rid, command.segment)

    def _removal(self, segment: str, offset: int | None) -> AbstractAsyncContextManager[None]:
        return nullcontext() if self._guard is None else self._guard(segment, offset)

    async def _delete(self, command: c.DeleteSegment) -> Command:
        async with self._removal(command.segment, None):
            await self._store.delete(command.segment)
        self.created.pop(command.segment, None)
        return c.SegmentDeleted(command.rid, command.segment)

    async def _update_policy(self, command: c.UpdateSegmentPolicy) -> Command:
        policy = _policy_of(command.segment, command.scale_type, command.target_rate)
        await self._store.info(command.segment)
        await self._set_policy(command.segment, policy)
        return c.SegmentPolicyUpdated(command.rid, command.segment)

    async def _set_policy(self, segment: str, policy: ScalingPolicy) -> None:
        """Keep the policy as the attributes in which Pravega keeps it. What is measured follows from the stream alone."""
        for attribute, value in (
            (SCALE_POLICY_TYPE, _SCALE_CODES[policy.type]),
            (SCALE_POLICY_RATE, policy.target_rate),
        ):
            await self._store.update_attribute(segment, attribute, value, expected=None)

    async def _get_attribute(self, command: c.GetSegmentAttribute) -> Command:
        return c.SegmentAttribute(command.rid, await self._store.get_attribute(command.segment, command.attribute))

    async def _update_attribute(self, command: c.UpdateSegmentAttribute) -> Command:
        done = await self._store.update_attribute(
            command.segment, command.attribute, command.value, expected=command.expected
        )
        return c.SegmentAttributeUpdated(command.rid, done)

    async def _truncate(self, command: c.TruncateSegment) -> Command:
        async with self._removal(command.segment, command.offset):
            # For an offset before the start or beyond the end, the reply holds the true start, as Pravega's does. The
            # Java client reads it as "already truncated", the Python client raises.
            start = (await self._store.info(command.segment)).start_offset
            try:
                await self._store.truncate(command.segment, command.offset)
            except InvalidArgumentError:
                start = (await self._store.info(command.segment)).start_offset
            else:
                if command.offset >= start:
                    return c.SegmentTruncated(command.rid, command.segment)
        return c.SegmentIsTruncated(command.rid, command.segment, start, "", command.offset)

    async def _create_transient(self, command: c.CreateTransientSegment) -> Command:
        name = await self._store.create_transient(command.parent, command.writer)
        self.created[name] = None
        return c.SegmentCreated(command.rid, name)

    async def _merge(self, command: c.MergeSegments) -> Command:
        for update in command.updates:
            if update.kind not in (_REPLACE, _REPLACE_IF_EQUALS):
                raise InvalidArgumentError(
                    "only replace and replace-if-equals are offered for attributes", kind=update.kind
                )
        updates = [
            AttributeChange(
                attribute=item.attribute, value=item.new, expected=item.old if item.kind == _REPLACE_IF_EQUALS else None
            )
            for item in command.updates
        ]
        async with self._removal(command.source, None):
            try:
                length = await self._store.merge(command.target, command.source, updates=updates)
            except ConditionFailedError:
                return c.SegmentAttributeUpdated(command.rid, False)
        self.created.pop(command.source, None)
        return c.SegmentsMerged(command.rid, command.target, command.source, length)

    async def _merge_batch(self, command: c.MergeSegmentsBatch) -> Command:
        lengths = []
        for source in command.sources:
            async with self._removal(source, None):
                lengths.append(await self._store.merge(command.target, source))
            self.created.pop(source, None)
        return c.SegmentsBatchMerged(command.rid, command.target, command.sources, lengths)

    async def _flush(self, command: c.FlushToStorage) -> Command:
        # Pravega's containers are not ours: the whole store flushes, whichever container is named.
        await self._store.flush()
        return c.StorageFlushed(command.rid)

    async def _list_chunks(self, command: c.ListStorageChunks) -> Command:
        info = await self._store.info(command.segment)
        ranges = await self._store.chunk_ranges(command.segment, info.start_offset, info.length)
        chunks = [
            WireChunk(
                length=found.end_offset - found.start_offset,
                length_in_storage=found.end_offset - found.start_offset,
                start_offset=found.start_offset,
                name=found.name,
                exists=True,
            )
            for found in ranges
        ]
        return c.StorageChunksListed(command.rid, chunks)

    async def _call(self, command: c.CallController) -> Command:
        call = self._calls.get(command.call)
        if call is None:
            raise UnsupportedError(command.call)
        return await call(command)

    async def _table_info(self, command: t.GetTableSegmentInfo) -> Command:
        info, count, key_bytes = await self._store.table_info(command.segment)
        return t.TableSegmentInfo(command.rid, command.segment, info.start_offset, info.length, count, key_bytes)

    async def _create_table(self, command: t.CreateTableSegment) -> Command:
        kind = TableKind.SORTED if command.key_bytes else TableKind.HASH
        await self._store.create_table(command.segment, kind=kind, key_bytes=command.key_bytes)
        return c.SegmentCreated(command.rid, command.segment)

    async def _delete_table(self, command: t.DeleteTableSegment) -> Command:
        # An empty table holds nothing that anybody protects: reader groups delete theirs in this way.
        async with nullcontext() if command.must_be_empty else self._removal(command.segment, None):
            await self._store.delete_table(command.segment, must_be_empty=command.must_be_empty)
        return c.SegmentDeleted(command.rid, command.segment)

    async def _wrong_offset(self, rid: int, segment: str, offset: int) -> Command:
        info, _, _ = await self._store.table_info(segment)
        return c.SegmentIsTruncated(rid, segment, info.start_offset, "", offset)

    async def _table_update(self, command: t.UpdateTableEntries) -> Command:
        puts = [TablePut(key=item.key, value=item.value, version=item.version) for item in command.entries]
        try:
            versions = await self._store.table_update(command.segment, [*_at_length(command.table_offset), *puts])
        except ConditionFailedError:
            return await self._wrong_offset(command.rid, command.segment, command.table_offset)
        return t.TableEntriesUpdated(command.rid, versions)

    async def _table_remove(self, command: t.RemoveTableKeys) -> Command:
        removals = [TableRemoval(key=item.key, version=item.version) for item in command.keys]
        try:
            await self._store.table_remove(command.segment, [*_at_length(command.table_offset), *removals])
        except ConditionFailedError:
            return await self._wrong_offset(command.rid, command.segment, command.table_offset)
        return t.TableKeysRemoved(command.rid, command.segment)

    async def _table_get(self, command: t.ReadTable) -> Command:
        if len(command.keys) > TABLE_BATCH_MAX:
            raise InvalidArgumentError("too many keys in one request", keys=len(command.keys), limit=TABLE_BATCH_MAX)
        keys = [item.key for item in command.keys]
        entries: list[TableEntry] = []
        size, most = 0, _STEP
        while True:
            step = await self._store.table_get(command.segment, keys[len(entries) : len(entries) + most])
            size += sum(map(_entry_bytes, step))
            if size > FRAME_MAX_BYTES - (1 << 17):
                raise InvalidArgumentError("entries do not fit into one reply", keys=len(keys))
            entries += step
            if len(entries) >= len(keys):
                break
            most = _following(most, step)
            # So few entries are read inline, in milliseconds; other requests run in between.
            await asyncio.sleep(0)
        return t.TableRead(command.rid, command.segment, [_wire_entry(item) for item in entries])

    async def _table_keys(self, command: t.ReadTableKeys) -> Command:
        entries = await self._scan(command)
        keys = [WireKey(item.key, item.version) for item in entries]
        return t.TableKeysRead(command.rid, command.segment, keys, _token(command, entries))

    async def _table_entries(self, command: t.ReadTableEntries) -> Command:
        entries = await self._scan(command)
        return t.TableEntriesRead(
            command.rid, command.segment, [_wire_entry(item) for item in entries], _token(command, entries)
        )

    async def _scan(self, command: t.ReadTableKeys | t.ReadTableEntries) -> Sequence[TableEntry]:
        """Entries after the continuation: as many as requested and as fit into one reply; at least one if there is
        one."""
        wanted = min(max(command.suggested_count, 1), _SCAN_MAX)
        after = after_of(bytes(command.continuation))
        found: list[TableEntry] = []
        size, most = 0, _STEP
        while len(found) < wanted and size < self._reply_bytes:
            step = await self._store.table_scan(
                command.segment,
                after=after,
                limit=min(most, wanted - len(found)),
                first=bytes(command.first) or None,
                last=bytes(command.last) or None,
            )
            if not step:
                break
            for item in step:
                size += _entry_bytes(item)
                if found and size > self._reply_bytes:
                    break
                found.append(item)
            after = found[-1].key
            most = _following(most, step)
        return found

    async def _table_delta(self, command: t.ReadTableEntriesDelta) -> Command:
        wanted = min(max(command.suggested_count, 1), _SCAN_MAX)
        found: list[TableEntry] = []
        size, most, position = 0, _STEP, command.from_position
        should_clear = reached_end = False
        while len(found) < wanted and not reached_end:
            delta = await self._store.table_delta(command.segment, position, min(most, wanted - len(found)))
            more = sum(map(_entry_bytes, delta.entries))
            if size + more > self._reply_bytes:
                if found:
                    break
                if most > 1:
                    most = 1
                    continue
            found += delta.entries
            size += more
            position, reached_end = delta.position, delta.reached_end
            should_clear = should_clear or delta.should_clear
            most = _following(most, delta.entries)
        return t.TableEntriesDeltaRead(
            command.rid, command.segment, [_wire_entry(item) for item in found], should_clear, reached_end, position
        )


def token_after(key: bytes) -> bytes:
    """The continuation that means "after this key". Never empty: empty means the beginning."""
    return _TOKEN_PREFIX + key


def after_of(token: bytes) -> bytes | None:
    """Inverse of ``token_after``; None for the beginning. Raises InvalidArgumentError for a token that this store did
    not issue."""
    if not token:
        return None
    if token[:1] != _TOKEN_PREFIX:
        raise InvalidArgumentError("continuation was not issued by this store", size_bytes=len(token))
    return token[1:]


def subject_of(command: Command) -> str:
    """The segment that the errors of a request are about, as the client spelled it."""
    for field in ("segment", "target", "parent"):
        name = getattr(command, field, None)
        if name is not None:
            return str(name)
    return ""


def rid_of(command: Command) -> int:
    """The id of the request; 0 for a command without one."""
    return int(getattr(command, "rid", 0))


def writer_id(raw: bytes) -> UUID:
    return UUID(bytes=raw)


def _token(command: t.ReadTableKeys | t.ReadTableEntries, entries: Sequence[TableEntry]) -> bytes:
    return token_after(entries[-1].key) if entries else bytes(command.continuation)


def _entry_bytes(item: TableEntry) -> int:
    return len(item.key) + len(item.value) + _ENTRY_OVERHEAD


def _following(most: int, step: Sequence[TableEntry]) -> int:
    """How many entries to ask for next, after these."""
    largest = max(map(_entry_bytes, step), default=0)
    return min(most, _STEP) if largest > _LARGE_BYTES else min(_STEP_MAX, 2 * most)


def _wire_entry(item: TableEntry) -> WireEntry:
    if item.version == KEY_ABSENT:
        return WireEntry(item.key, KEY_ABSENT, b"")
    return WireEntry(item.key, item.version, item.value)


def is_text(command: Command) -> bool:
    """Whether all names and texts of the request are valid text: a lone surrogate stands for bytes that are not
    UTF-8."""
    return all(map(_encodes, _texts(command)))


def _texts(command: Command) -> Iterator[str]:
    for value in command:
        if isinstance(value, str):
            yield value
        elif isinstance(value, list | tuple):
            yield from (item for item in value if isinstance(item, str))


def _encodes(value: str) -> bool:
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _policy_of(segment: str, scale_type: int, target_rate: int) -> ScalingPolicy:
    """The scaling policy that a request gives a segment. Raises InvalidArgumentError."""
    kind = _SCALE_TYPES.get(scale_type)
    if kind is None:
        raise InvalidArgumentError("scaling type is unknown", segment=segment, type=scale_type)
    if kind is ScaleType.FIXED:
        return ScalingPolicy()
    return ScalingPolicy(type=kind, target_rate=target_rate, factor=2)


def _at_length(offset: int) -> list[TableLength]:
    """The condition that a request's offset sets. The store checks it in the same step as the change."""
    return [] if offset == c.NO_OFFSET else [TableLength(length=offset)]
