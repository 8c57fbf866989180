"""A remote segment store: ``SegmentService`` over Pravega's wire protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeVar
from uuid import UUID

from penstock.codec.wire import commands as c
from penstock.codec.wire import table_commands as t
from penstock.codec.wire.frames import Command
from penstock.codec.wire.layout import WireEntry, WireKey
from penstock.model.errors import (
    AccessError,
    EventTooLargeError,
    InvalidArgumentError,
    PenstockError,
    UnsupportedError,
)
from penstock.model.ledgers import LogWipe
from penstock.model.scaling import SegmentRates
from penstock.net.dial.direct_line import DirectLine, dial_direct
from penstock.net.dial.line_calls import LineCalls
from penstock.net.dial.security import PLAIN, DialSecurity
from penstock.net.dial.segment_tokens import SegmentTokens
from penstock.net.dial.wire_append_pool import RemoteAppends
from penstock.net.dial.wire_dial import DialLimits
from penstock.net.dial.wire_pool import ConnectionPool
from penstock.net.dial.wire_reads import RemoteReads, waitless
from penstock.net.native.remote import NativeSegments
from penstock.net.wire.requests import token_after
from penstock.net.wire.wire_errors import error_of
from penstock.ports.control.plane import ControlPlane
from penstock.ports.data.chunks import ChunkRange, Leased
from penstock.ports.data.erasing import ErasedChunk
from penstock.ports.data.imports import ImportedChunk, ImportGrant
from penstock.ports.data.limits import AppendLimit, SegmentChanges
from penstock.ports.data.rates import RateWatch
from penstock.ports.data.segments import Append, AppendDone, Appended, SegmentInfo, SegmentRead
from penstock.ports.data.space import DiskSpace, SegmentSpace
from penstock.ports.data.tables import (
    KEY_ABSENT,
    KEY_MAX_BYTES,
    TABLE_BATCH_MAX,
    VALUE_MAX_BYTES,
    TableCheck,
    TableDelta,
    TableEntry,
    TableKind,
    TableLength,
    TablePut,
    TableRemoval,
)
from penstock.ports.integrity import ScrubPage
from penstock.ports.rng import Rng
from penstock.ports.telemetry import Telemetry

__all__ = ["DialLimits", "RemoteSegments"]

R = TypeVar("R", bound=Command)

_OWN_CONTROLLER = "only a store's own controller can do that"


class RemoteSegments:
    """``SegmentService`` over the wire, from entry to exit. ``controller`` locates segments; both are borrowed.

    Reads, queries, seals and truncations are retried while their store is unavailable, for ``limits.retry_for_s`` or
    until the caller's own deadline cancels them. An append whose connection is lost fails with NotConnectedError, and
    so do all appends after it: ``setup_append`` returns how much is stored.
    """

    create_fresh = None
    merge_run = None
    table_change = None

    def __init__(
        self,
        controller: ControlPlane,
        *,
        native: NativeSegments,
        rng: Rng,
        telemetry: Telemetry,
        limits: DialLimits | None = None,
        security: DialSecurity = PLAIN,
        tokens: SegmentTokens | None = None,
    ) -> None:
        """``tokens``: None where segments need none; otherwise borrowed, as the rest."""
        self._native = native
        self._pool = ConnectionPool(
            controller.layout.endpoint,
            rng=rng,
            telemetry=telemetry,
            limits=limits or DialLimits(),
            security=security,
            tokens=tokens,
        )
        self._reads = RemoteReads(self._pool)
        self._appends = RemoteAppends(self._pool)
        self.calls = LineCalls(self._pool)
        """Controller calls over connections to the store, for a controller that is given them."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections. Calls in flight fail with NotConnectedError."""
        self._appends.close()
        await self._pool.close()

    async def _ask(self, name: str, kind: type[R], build: Callable[[int], Command], *, repeat: bool = False) -> R:
        """The reply of this kind. Any other reply is raised as the error that it reports."""
        reply = await self._pool.call(name, build, repeat=repeat)
        if not isinstance(reply, kind):
            raise error_of(reply, name)
        return reply

    # --- appends and reads ---

    async def setup_append(self, name: str, writer: UUID) -> int:
        return await self._appends.setup(name, writer)

    async def append(self, request: Append) -> Appended:
        """As the port says. Cancelled: the append may or may not happen, and its data must stay unchanged until the
        connection has sent it."""
        return await self._appends.append(request)

    def submit_append(self, request: Append, done: AppendDone) -> None:
        """As ``LocalSegmentService.submit_append``: the answer comes as a callback, which needs neither a task nor a
        future."""
        try:
            self._appends.submit(request, done)
        except PenstockError as error:
            # Never inside this call: the caller may not be ready for the answer yet.
            asyncio.get_running_loop().call_soon(done, error)

    def withdraw_appends(self, segment: str, writer: UUID) -> None:
        """See ``ports.data.direct_appends.DirectAppends``."""
        self._appends.withdraw(segment, writer)

    async def open_direct(self, segment: str, writer: UUID) -> DirectLine:
        """See ``ports.data.direct_appends.DirectAppends``. The caller owns the line: closing this object leaves it
        open."""
        endpoint = await self._pool.endpoint(segment)
        tokens = self._pool.tokens
        try:
            line = await dial_direct(
                endpoint,
                segment,
                writer,
                connect_s=self._pool.limits.connect_s,
                security=self._pool.security,
                token=tokens.of(segment),
            )
        except AccessError:
            tokens.refused(segment)
            raise
        self._pool.telemetry.add("direct_lines")
        return line

    async def read(self, name: str, offset: int, max_bytes: int, *, wait: bool = True) -> SegmentRead:
        if not wait:
            found = waitless(await self.info(name), offset)
            if found is not None:
                return found
        return await self._reads.read(name, offset, max_bytes)

    async def info(self, name: str) -> SegmentInfo:
        reply = await self._ask(
            name, c.StreamSegmentInfo, lambda rid: c.GetStreamSegmentInfo(rid, name, ""), repeat=True
        )
        return SegmentInfo(
            name=name,
            start_offset=reply.start_offset,
            length=reply.length,
            sealed=reply.sealed,
            last_modified_ms=reply.last_modified_ms,
        )

    async def next_event_boundary(self, name: str, offset: int) -> int:
        reply = await self._ask(name, c.OffsetLocated, lambda rid: c.LocateOffset(rid, name, offset, ""), repeat=True)
        return reply.offset

    # --- segments ---

    async def create_segment(self, name: str, *, rollover_bytes: int = 0) -> None:
        await self._ask(name, c.SegmentCreated, lambda rid: c.CreateSegment(rid, name, 0, 0, "", rollover_bytes))

    async def seal(self, name: str) -> int:
        await self._ask(name, c.SegmentSealed, lambda rid: c.SealSegment(rid, name, ""), repeat=True)
        return (await self.info(name)).length

    async def truncate(self, name: str, offset: int, *, keep: bool = False) -> None:
        if keep:
            raise UnsupportedError(_OWN_CONTROLLER, segment=name)
        reply = await self._pool.call(name, lambda rid: c.TruncateSegment(rid, name, offset, ""), repeat=True)
        if isinstance(reply, c.SegmentIsTruncated):
            if offset <= reply.start_offset:
                return  # nothing is left below that offset
            raise InvalidArgumentError("truncation offset is past the end", segment=name, offset=offset)
        if not isinstance(reply, c.SegmentTruncated):
            raise error_of(reply, name)

    async def delete(self, name: str) -> None:
        await self._ask(name, c.SegmentDeleted, lambda rid: c.DeleteSegment(rid, name, ""))

    async def create_transient(self, parent: str, writer: UUID) -> str:
        """As the port says; the segment lives no longer than the connection that created it."""
        reply = await self._ask(parent, c.SegmentCreated, lambda rid: c.CreateTransientSegment(rid, writer, parent, ""))
        return reply.segment

    async def merge(self, target: str, source: str) -> int:
        reply = await self._ask(target, c.SegmentsMerged, lambda rid: c.MergeSegments(rid, target, source, ""))
        return reply.target_length

    async def get_attribute(self, name: str, attribute: UUID) -> int:
        reply = await self._ask(
            name, c.SegmentAttribute, lambda rid: c.GetSegmentAttribute(rid, name, attribute, ""), repeat=True
        )
        return reply.value

    async def update_attribute(self, name: str, attribute: UUID, value: int, *, expected: int | None) -> bool:
        while True:
            # The wire protocol only compares and sets. An unconditional update compares with the present value, until
            # no other update comes between.
            old = await self.get_attribute(name, attribute) if expected is None else expected
            if await self._compare_and_set(name, attribute, value, old):
                return True
            if expected is not None:
                return False

    async def _compare_and_set(self, name: str, attribute: UUID, value: int, old: int) -> bool:
        reply = await self._ask(
            name,
            c.SegmentAttributeUpdated,
            lambda rid: c.UpdateSegmentAttribute(rid, name, attribute, value, old, ""),
        )
        return reply.success

    # --- tables ---

    async def create_table(self, name: str, *, kind: TableKind = TableKind.HASH, key_bytes: int = 0) -> None:
        is_sorted = kind is TableKind.SORTED
        if is_sorted != (key_bytes > 0):
            raise InvalidArgumentError(
                "sorted tables, and only they, have a key length", kind=kind.value, key_bytes=key_bytes
            )
        await self._ask(
            name, c.SegmentCreated, lambda rid: t.CreateTableSegment(rid, name, "", is_sorted, key_bytes, 0)
        )

    async def delete_table(self, name: str, *, must_be_empty: bool = False) -> None:
        await self._ask(name, c.SegmentDeleted, lambda rid: t.DeleteTableSegment(rid, name, must_be_empty, ""))

    async def table_update(self, name: str, puts: Sequence[TablePut | TableCheck | TableLength]) -> Sequence[int]:
        _check_batch(name, len(puts))
        entries: list[WireEntry] = []
        for put in puts:
            if isinstance(put, TableLength):
                raise UnsupportedError("this client cannot send conditions on a table's length", segment=name)
            _check_key(name, put.key)
            if isinstance(put, TableCheck):
                raise UnsupportedError("the wire protocol has no condition without a change", segment=name)
            if len(put.value) > VALUE_MAX_BYTES:
                raise EventTooLargeError("value is too large", size_bytes=len(put.value), limit_bytes=VALUE_MAX_BYTES)
            entries.append(WireEntry(put.key, put.version, put.value))
        reply = await self._ask(
            name, t.TableEntriesUpdated, lambda rid: t.UpdateTableEntries(rid, name, "", entries, c.NO_OFFSET)
        )
        return reply.versions

    async def table_remove(self, name: str, removals: Sequence[TableRemoval | TableLength]) -> None:
        _check_batch(name, len(removals))
        keys: list[WireKey] = []
        for removal in removals:
            if isinstance(removal, TableLength):
                raise UnsupportedError("this client cannot send conditions on a table's length", segment=name)
            _check_key(name, removal.key)
            keys.append(WireKey(removal.key, removal.version))
        await self._ask(name, t.TableKeysRemoved, lambda rid: t.RemoveTableKeys(rid, name, "", keys, c.NO_OFFSET))

    async def table_get(self, name: str, keys: Sequence[bytes]) -> Sequence[TableEntry]:
        found: list[TableEntry] = []
        for start in range(0, len(keys), TABLE_BATCH_MAX):
            found.extend(await self._entries(name, keys[start : start + TABLE_BATCH_MAX]))
        return found

    async def _entries(self, name: str, keys: Sequence[bytes]) -> Sequence[TableEntry]:
        asked = [WireKey(key, KEY_ABSENT) for key in keys]
        try:
            reply = await self._ask(name, t.TableRead, lambda rid: t.ReadTable(rid, name, "", asked), repeat=True)
        except InvalidArgumentError:
            if len(keys) == 1:
                raise
            # The values do not fit into one frame.
            middle = len(keys) // 2
            return [*await self._entries(name, keys[:middle]), *await self._entries(name, keys[middle:])]
        return [_entry(item) for item in reply.entries]

    async def table_scan(
        self, name: str, *, after: bytes | None, limit: int, first: bytes | None = None, last: bytes | None = None
    ) -> Sequence[TableEntry]:
        token = b"" if after is None else token_after(after)
        reply = await self._ask(
            name,
            t.TableEntriesRead,
            lambda rid: t.ReadTableEntries(rid, name, "", limit, token, 0, first or b"", last or b""),
            repeat=True,
        )
        return [_entry(item) for item in reply.entries]

    async def table_delta(self, name: str, position: int, limit: int) -> TableDelta:
        reply = await self._ask(
            name,
            t.TableEntriesDeltaRead,
            lambda rid: t.ReadTableEntriesDelta(rid, name, "", position, limit),
            repeat=True,
        )
        return TableDelta(
            entries=[_entry(item) for item in reply.entries],
            should_clear=reply.should_clear,
            reached_end=reply.reached_end,
            position=reply.last_position,
        )

    async def table_info(self, name: str) -> tuple[SegmentInfo, int, int]:
        """As the port says; the time of the last change is not sent, so it is 0."""
        reply = await self._ask(name, t.TableSegmentInfo, lambda rid: t.GetTableSegmentInfo(rid, name, ""), repeat=True)
        info = SegmentInfo(
            name=name, start_offset=reply.start_offset, length=reply.length, sealed=False, last_modified_ms=0
        )
        return info, reply.entry_count, reply.key_bytes

    # --- calls that the wire protocol lacks ---

    async def chunk_ranges(self, name: str, start: int, end: int) -> Sequence[ChunkRange]:
        return await self._native.chunk_ranges(name, start, end)

    async def erased_ranges(self, name: str, start: int, end: int) -> Sequence[tuple[int, int]]:
        return await self._native.erased_ranges(name, start, end)

    async def event_ranges(self, name: str, offsets: Sequence[int]) -> Sequence[tuple[int, int]]:
        raise UnsupportedError(_OWN_CONTROLLER, segment=name, offsets=len(offsets))

    async def erase(self, name: str, ranges: Sequence[tuple[int, int]], *, erasure: str) -> Sequence[ErasedChunk]:
        raise UnsupportedError(_OWN_CONTROLLER, segment=name, erasure=erasure)

    async def wipe_log(self) -> LogWipe:
        raise UnsupportedError(_OWN_CONTROLLER)

    async def lease_chunks(self, names: Sequence[str], lease: UUID, *, until_ms: int, holder: str = "") -> Leased:
        return await self._native.lease_chunks(names, lease, until_ms=until_ms, holder=holder)

    async def release_lease(self, lease: UUID) -> None:
        await self._native.release_lease(lease)

    async def finish_lease_part(self, lease: UUID, part: int, parts: int) -> None:
        await self._native.finish_lease_part(lease, part, parts)

    async def infos(self, names: Sequence[str]) -> Mapping[str, SegmentInfo]:
        return await self._native.infos(names)

    async def spaces(self, names: Sequence[str]) -> Mapping[str, SegmentSpace]:
        return await self._native.spaces(names)

    async def count_events(self, name: str, start: int, end: int) -> int:
        return await self._native.count_events(name, start, end)

    async def release(self, name: str, offset: int) -> None:
        raise UnsupportedError(_OWN_CONTROLLER, segment=name, offset=offset)

    async def restore(self, name: str, offset: int) -> int:
        raise UnsupportedError(_OWN_CONTROLLER, segment=name, offset=offset)

    async def disk(self) -> DiskSpace:
        return await self._native.disk()

    async def grant_import(self, name: str) -> ImportGrant:
        """See ``ports.data.imports.ChunkImports``."""
        return await self._native.grant_import(name)

    async def adopt_chunks(self, name: str, offset: int, chunks: Sequence[ImportedChunk]) -> int:
        """See ``ports.data.imports.ChunkImports``."""
        return await self._native.adopt_chunks(name, offset, chunks)

    async def scrub(self, cursor: str | None, max_bytes: int) -> ScrubPage:
        """See ``ports.integrity.Scrubbable``."""
        return await self._native.scrub(cursor, max_bytes)

    async def limit_appends(self, limits: Sequence[AppendLimit]) -> None:
        raise UnsupportedError(_OWN_CONTROLLER, limits=len(limits))

    async def limits_reached(self) -> Sequence[str]:
        raise UnsupportedError(_OWN_CONTROLLER)

    async def changed_segments(self, after: int) -> SegmentChanges:
        raise UnsupportedError(_OWN_CONTROLLER, after=after)

    async def measure_rates(self, watches: Sequence[RateWatch]) -> None:
        raise UnsupportedError(_OWN_CONTROLLER, watches=len(watches))

    async def segment_rates(self, names: Sequence[str]) -> Mapping[str, SegmentRates]:
        raise UnsupportedError(_OWN_CONTROLLER, segments=len(names))

    async def rates_reported(self) -> Sequence[str]:
        raise UnsupportedError(_OWN_CONTROLLER)


def _check_batch(name: str, count: int) -> None:
    if count > TABLE_BATCH_MAX:
        raise InvalidArgumentError("batch is too large", segment=name, items=count, limit=TABLE_BATCH_MAX)


def _check_key(name: str, key: bytes) -> None:
    if len(key) > KEY_MAX_BYTES:
        raise EventTooLargeError("key is too large", segment=name, size_bytes=len(key), limit_bytes=KEY_MAX_BYTES)


def _entry(item: WireEntry) -> TableEntry:
    return TableEntry(key=item.key, value=item.value, version=item.version)
