"""A small store of segments in memory: the whole of ``LocalSegmentService``, with a gate in front of durability."""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from penstock.codec.events import event_bounds
from penstock.model.errors import (
    AlreadyExistsError,
    BadKeyVersionError,
    ConditionFailedError,
    EventTooLargeError,
    InvalidArgumentError,
    KeyNotFoundError,
    NotEmptyError,
    PenstockError,
    QuotaExceededError,
    QuotaHeldError,
    SegmentNotFoundError,
    SegmentSealedError,
    ThrottledError,
    TruncatedError,
    UnsupportedError,
    WriterFencedError,
)
from penstock.model.names import transient_segment_name
from penstock.model.scaling import SegmentRates
from penstock.ports.control.layout import Endpoint
from penstock.ports.data.chunks import ChunkRange, Leased
from penstock.ports.data.limits import AppendLimit, LimitAction, SegmentChanges
from penstock.ports.data.rates import RateWatch
from penstock.ports.data.segments import NO_EVENT, Append, AppendDone, Appended, AppendedPart, SegmentInfo, SegmentRead
from penstock.ports.data.space import DiskSpace, SegmentSpace
from penstock.ports.data.tables import (
    ANY_VERSION,
    KEY_ABSENT,
    KEY_MAX_BYTES,
    TABLE_BATCH_MAX,
    TableDelta,
    TableEntry,
    TableKind,
    TableLength,
    TablePut,
    TableRemoval,
)
from penstock.segmentstore.rates import RateMeters
from tests.flat_control import FlatControl
from tests.net.appends_one_by_one import AppendsOneByOne

_RECORD_BYTES = 17


@dataclass
class _Segment:
    data: bytearray = field(default_factory=bytearray)
    durable: int = 0
    start: int = 0
    kept: int = 0
    events: int = 0
    sealed: bool = False
    writers: dict[UUID, int] = field(default_factory=dict)
    attributes: dict[UUID, int] = field(default_factory=dict)
    boundaries: list[int] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    deleted: bool = False
    watchers: dict[_Watch, None] = field(default_factory=dict)

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()
        watchers, self.watchers = self.watchers, {}
        for watcher in watchers:
            watcher.wake()


class _Watch:
    def __init__(self, store: MemorySegments, segment: _Segment, changed: Callable[[], None]) -> None:
        self._store, self._segment, self._changed = store, segment, changed
        self._count = 1
        segment.watchers[self] = None
        store.waiting_reads += 1

    @property
    def gone(self) -> bool:
        return all(segment is not self._segment for segment in self._store.segments.values())

    def join(self) -> bool:
        self._count += 1
        self._store.waiting_reads += 1
        return True

    def cancel(self) -> None:
        if self in self._segment.watchers:
            self._count -= 1
            self._store.waiting_reads -= 1
            if not self._count:
                del self._segment.watchers[self]

    def wake(self) -> None:
        self._store.waiting_reads -= self._count
        self._changed()


@dataclass
class _Table:
    kind: TableKind
    key_bytes: int
    position: int = 0
    entries: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    log: list[tuple[int, bytes]] = field(default_factory=list)


class OneEndpoint(FlatControl):
    """The only question that segments ask a controller."""

    def __init__(self, host: str, port: int) -> None:
        self.answer = Endpoint(host=host, port=port)
        self.asked = 0

    async def layout_endpoint(self, segment: str) -> Endpoint:
        self.asked += 1
        return self.answer


class MemorySegments(AppendsOneByOne):
    """Appends become durable together at the end of a loop pass, or when ``open_gate`` is called after ``shut_gate``.

    ``fail_with`` makes everything that becomes durable next fail with that error instead; ``refuse_next`` appends, and
    table updates, are throttled.
    """

    withdraw_appends = None
    open_direct = None
    create_fresh = None
    merge_run = None
    table_change = None

    def __init__(self) -> None:
        self.segments: dict[str, _Segment] = {}
        self.tables: dict[str, _Table] = {}
        self.merged: dict[str, str] = {}
        self.leases: dict[UUID, str] = {}
        self.limits: dict[str, AppendLimit] = {}
        self.counted: dict[str, dict[str, tuple[int, int]]] = {}
        self.born: dict[str, dict[str, None]] = {}
        self.reached: dict[str, None] = {}
        self.reported: dict[str, None] = {}
        self.limit_met = asyncio.Event()
        self._rates = RateMeters(self._counters)
        self.changes: list[tuple[int, str]] = []
        self.mark = 1
        self.confirmed = -1
        self.fail_with: PenstockError | None = None
        self.refuse_next = 0
        self.refused = 0
        self.waiting_reads = 0
        self.setups = 0
        self.keep_views = False
        self.views: list[object] = []
        self._serial = 0
        self._pending: list[tuple[Append, AppendDone]] = []
        self._scheduled = False
        self._gate_shut = False
        self._settled = asyncio.Event()

    # --- durability ---

    @property
    def pending(self) -> int:
        return sum(1 if request.pieces is None else len(request.pieces.sizes) for request, _ in self._pending)

    def shut_gate(self) -> None:
        self._gate_shut = True

    def open_gate(self) -> None:
        self._gate_shut = False
        self._commit()

    def _commit(self) -> None:
        self._scheduled = False
        if self._gate_shut:
            return
        batch, self._pending = self._pending, []
        for request, done in batch:
            self._answer(request, done)
        settled, self._settled = self._settled, asyncio.Event()
        settled.set()

    async def _settle(self) -> None:
        while self._pending:
            await self._settled.wait()

    def _answer(self, request: Append, done: AppendDone) -> None:
        """Store the appends of a run one by one, and answer each."""
        for single in request.singles():
            outcome = self._apply(single)
            if isinstance(outcome, Appended) and single.event_number != request.event_number:
                outcome = AppendedPart(end_offset=outcome.end_offset, event_number=single.event_number)
            done(outcome)
            if isinstance(outcome, PenstockError):
                return

    def _apply(self, request: Append) -> Appended | PenstockError:
        if self.fail_with is not None:
            return self.fail_with
        if self.refuse_next:
            self.refuse_next -= 1
            self.refused += 1
            return ThrottledError("no room", resource="test", limit=0)
        segment = self.segments.get(request.segment)
        if segment is None:
            return SegmentNotFoundError("no such segment", segment=request.segment)
        if segment.sealed:
            return SegmentSealedError("sealed", segment=request.segment, length_bytes=len(segment.data))
        last = segment.writers.get(request.writer, NO_EVENT)
        if last != request.previous:
            return WriterFencedError("fenced", expected=request.previous, actual=last)
        if request.expected_offset is not None and request.expected_offset != len(segment.data):
            return ConditionFailedError("length", expected=request.expected_offset, actual=len(segment.data))
        refused = self._limited(request)
        if refused is not None:
            return refused
        if self.keep_views:
            self.views.append(request.data)
        segment.data += request.data
        segment.boundaries.append(len(segment.data))
        if "#transient." not in request.segment:
            segment.events += request.event_count
        elif request.data:
            segment.events = 1
        self._changed(request.segment)
        segment.writers[request.writer] = request.event_number
        segment.wake()
        return Appended(end_offset=len(segment.data))

    def submit_append(self, request: Append, done: AppendDone) -> None:
        self._pending.append((request, done))
        if not self._scheduled and not self._gate_shut:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._commit)

    async def append(self, request: Append) -> Appended:
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()

        def done(outcome: Appended | PenstockError) -> None:
            if isinstance(outcome, PenstockError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        self.submit_append(request, done)
        return await future

    # --- segments ---

    def _segment(self, name: str) -> _Segment:
        segment = self.segments.get(name)
        if segment is None:
            raise SegmentNotFoundError("no such segment", segment=name)
        return segment

    async def create_segment(self, name: str, *, rollover_bytes: int = 0) -> None:
        if name in self.segments or name in self.tables:
            raise AlreadyExistsError("exists", segment=name)
        self.segments[name] = _Segment()
        counted = self.counted.get(name.rpartition("/")[0])
        if counted is not None and "#transaction." not in name:
            counted[name] = 0, 0
            self.born[name.rpartition("/")[0]][name] = None

    async def setup_append(self, name: str, writer: UUID) -> int:
        self.setups += 1
        await self._settle()
        return self._segment(name).writers.get(writer, NO_EVENT)

    async def read(self, name: str, offset: int, max_bytes: int, *, wait: bool = True) -> SegmentRead:
        while True:
            segment = self._segment(name)
            end = len(segment.data)
            if offset < segment.start:
                raise TruncatedError("truncated", segment=name, start_offset=segment.start)
            if segment.sealed and offset > end:
                raise InvalidArgumentError("behind the end", segment=name)
            if offset < end or segment.sealed or not wait:
                data = bytes(segment.data[offset : offset + max_bytes])
                upto = offset + len(data)
                half = len(data) // 2
                return SegmentRead(
                    offset=offset,
                    parts=[memoryview(data)[:half], memoryview(data)[half:]] if data else [],
                    at_tail=upto >= end and not segment.sealed,
                    end_of_segment=segment.sealed and upto >= end,
                )
            self.waiting_reads += 1
            try:
                await segment.changed.wait()
            finally:
                self.waiting_reads -= 1

    async def flush(self) -> None:
        """Nothing to do: all is in memory."""

    def read_now(self, name: str, offset: int, max_bytes: int) -> SegmentRead | None:
        segment = self.segments.get(name)
        if segment is None or not segment.start <= offset <= len(segment.data):
            return None
        end = len(segment.data)
        data = bytes(segment.data[offset : offset + max_bytes])
        upto = offset + len(data)
        return SegmentRead(
            offset=offset,
            parts=[memoryview(data)[: len(data) // 2], memoryview(data)[len(data) // 2 :]] if data else [],
            at_tail=upto >= end and not segment.sealed,
            end_of_segment=segment.sealed and upto >= end,
        )

    def watch(self, name: str, offset: int, changed: Callable[[], None]) -> _Watch | None:
        segment = self.segments.get(name)
        if segment is None or segment.sealed or offset < len(segment.data):
            return None
        return _Watch(self, segment, changed)

    async def infos(self, names: Sequence[str]) -> Mapping[str, SegmentInfo]:
        return {name: await self.info(name) for name in names if name in self.segments}

    async def info(self, name: str) -> SegmentInfo:
        segment = self._segment(name)
        return SegmentInfo(
            name=name,
            start_offset=segment.start,
            length=len(segment.data),
            sealed=segment.sealed,
            last_modified_ms=1234,
            kept_offset=segment.kept if segment.kept < segment.start else None,
            event_count=segment.events,
        )

    async def seal(self, name: str) -> int:
        await self._settle()
        segment = self._segment(name)
        segment.sealed = True
        self._changed(name)
        segment.wake()
        return len(segment.data)

    async def truncate(self, name: str, offset: int, *, keep: bool = False) -> None:
        segment = self._segment(name)
        if offset > len(segment.data):
            raise InvalidArgumentError("beyond the end", segment=name)
        if offset > segment.start:
            segment.start = offset
            segment.kept = segment.kept if keep else offset

    async def release(self, name: str, offset: int) -> None:
        segment = self._segment(name)
        if offset > segment.start:
            raise InvalidArgumentError("behind the start", segment=name)
        segment.kept = max(segment.kept, offset)

    async def restore(self, name: str, offset: int) -> int:
        segment = self._segment(name)
        if offset < 0:
            raise InvalidArgumentError("negative", segment=name)
        segment.start = min(segment.start, max(offset, segment.kept))
        return segment.start

    async def count_events(self, name: str, start: int, end: int) -> int:
        segment = self._segment(name)
        if not 0 <= start <= end <= len(segment.data):
            raise InvalidArgumentError("outside", segment=name)
        if start < segment.kept:
            raise TruncatedError("truncated", segment=name, start_offset=segment.kept)
        return sum(start <= begin < end for begin in event_bounds(bytes(segment.data))[:-1])

    async def delete(self, name: str) -> None:
        segment = self._segment(name)
        for stream, counted in self.counted.items():
            if name in counted:
                counted[name] = len(segment.data), segment.events
                self.born[stream].pop(name, None)
        del self.segments[name]
        segment.wake()

    async def create_transient(self, parent: str, writer: UUID) -> str:
        self._serial += 1
        name = transient_segment_name(parent, writer, UUID(int=self._serial))
        self.segments[name] = _Segment()
        return name

    async def merge(self, target: str, source: str, *, updates=()) -> int:
        await self._settle()
        into = self._segment(target)
        if self.merged.get(source) == target:
            return len(into.data)
        part = self._segment(source)
        if into.sealed:
            raise SegmentSealedError("sealed", segment=target, length_bytes=len(into.data))
        if part.start:
            raise InvalidArgumentError("truncated source", segment=source)
        attributes = dict(into.attributes)
        for item in updates:
            actual = attributes.get(item.attribute, NO_EVENT)
            if item.expected is not None and actual != item.expected:
                raise ConditionFailedError("attribute", expected=item.expected, actual=actual)
            attributes[item.attribute] = item.value
        into.attributes = attributes
        into.data += part.data
        into.events += part.events
        into.boundaries.append(len(into.data))
        self._changed(target)
        del self.segments[source]
        self.merged[source] = target
        into.wake()
        part.wake()
        return len(into.data)

    async def get_attribute(self, name: str, attribute: UUID) -> int:
        return self._segment(name).attributes.get(attribute, NO_EVENT)

    async def update_attribute(self, name: str, attribute: UUID, value: int, *, expected: int | None) -> bool:
        attributes = self._segment(name).attributes
        if expected is not None and attributes.get(attribute, NO_EVENT) != expected:
            return False
        attributes[attribute] = value
        return True

    # --- tables ---

    def _table(self, name: str) -> _Table:
        table = self.tables.get(name)
        if table is None:
            raise SegmentNotFoundError("no such table", segment=name)
        return table

    async def create_table(self, name: str, *, kind: TableKind = TableKind.HASH, key_bytes: int = 0) -> None:
        if name in self.segments or name in self.tables:
            raise AlreadyExistsError("exists", segment=name)
        self.tables[name] = _Table(kind, key_bytes)

    async def delete_table(self, name: str, *, must_be_empty: bool = False) -> None:
        if self._table(name).entries and must_be_empty:
            raise NotEmptyError("not empty", segment=name)
        del self.tables[name]

    def _check(self, table: _Table, key: bytes, version: int) -> None:
        if len(key) > KEY_MAX_BYTES:
            raise EventTooLargeError("key", size_bytes=len(key))
        if table.key_bytes and len(key) != table.key_bytes:
            raise InvalidArgumentError("key has the wrong length", length=len(key))
        stored = table.entries.get(key)
        if version == ANY_VERSION:
            return
        if version == KEY_ABSENT:
            if stored is not None:
                raise BadKeyVersionError("present", key=key)
        elif stored is None:
            raise KeyNotFoundError("absent", key=key)
        elif stored[1] != version:
            raise BadKeyVersionError("other version", key=key)

    def _at_length(self, table, items):
        """The other items, where the table has the length that they ask for."""
        for item in items:
            if isinstance(item, TableLength) and item.length != table.position:
                raise ConditionFailedError("length", expected=item.length, actual=table.position)
        return [item for item in items if not isinstance(item, TableLength)]

    async def table_update(self, name: str, puts: Sequence[TablePut]) -> Sequence[int]:
        table = self._table(name)
        if self.refuse_next:
            self.refuse_next -= 1
            raise ThrottledError("no room", resource="test", limit=0)
        if len(puts) > TABLE_BATCH_MAX:
            raise InvalidArgumentError("batch", items=len(puts))
        puts = self._at_length(table, puts)
        for put in puts:
            self._check(table, put.key, put.version)
        versions = []
        for put in puts:
            versions.append(table.position)
            table.entries[put.key] = put.value, table.position
            table.log.append((table.position, put.key))
            table.position += _RECORD_BYTES + len(put.key) + len(put.value)
        return versions

    async def table_remove(self, name: str, removals: Sequence[TableRemoval]) -> None:
        table = self._table(name)
        removals = self._at_length(table, removals)
        for removal in removals:
            self._check(table, removal.key, removal.version)
        for removal in removals:
            table.entries.pop(removal.key, None)
            table.position += _RECORD_BYTES + len(removal.key)

    async def table_get(self, name: str, keys: Sequence[bytes]) -> Sequence[TableEntry]:
        table = self._table(name)
        found = [(key, *table.entries.get(key, (b"", KEY_ABSENT))) for key in keys]
        return [TableEntry(key=key, value=value, version=version) for key, value, version in found]

    async def table_scan(
        self, name: str, *, after: bytes | None, limit: int, first: bytes | None = None, last: bytes | None = None
    ) -> Sequence[TableEntry]:
        table = self._table(name)
        keys = sorted(table.entries)
        keys = [key for key in keys if (first is None or key >= first) and (last is None or key <= last)]
        begin = 0 if after is None else bisect.bisect_right(keys, after)
        return await self.table_get(name, keys[begin : begin + limit])

    async def table_delta(self, name: str, position: int, limit: int) -> TableDelta:
        table = self._table(name)
        if table.kind is TableKind.SORTED:
            raise UnsupportedError("delta of a sorted table")
        if position > table.position:
            raise InvalidArgumentError("beyond the end", position=position)
        entries = []
        upto = position
        for at, key in table.log:
            if at < position:
                continue
            if len(entries) == limit:
                return TableDelta(entries=entries, should_clear=False, reached_end=False, position=upto)
            stored = table.entries.get(key)
            if stored is not None and stored[1] == at:
                entries.append(TableEntry(key=key, value=stored[0], version=at))
                upto = at + _RECORD_BYTES + len(key) + len(stored[0])
        return TableDelta(entries=entries, should_clear=False, reached_end=True, position=table.position)

    async def table_info(self, name: str) -> tuple[SegmentInfo, int, int]:
        table = self._table(name)
        info = SegmentInfo(name=name, start_offset=0, length=table.position, sealed=False, last_modified_ms=0)
        return info, len(table.entries), table.key_bytes

    # --- beyond the wire ---

    async def next_event_boundary(self, name: str, offset: int) -> int:
        segment = self._segment(name)
        at = bisect.bisect_left(segment.boundaries, offset)
        return segment.boundaries[at] if at < len(segment.boundaries) else len(segment.data)

    async def chunk_ranges(self, name: str, start: int, end: int) -> Sequence[ChunkRange]:
        self._segment(name)
        return (ChunkRange(name="c", location=None, start_offset=start, end_offset=end, blocks=()),)

    async def lease_chunks(self, names: Sequence[str], lease: UUID, *, until_ms: int, holder: str = "") -> Leased:
        self.leases[lease] = list(names)
        return Leased(granted=names)

    async def release_lease(self, lease: UUID) -> None:
        self.leases.pop(lease, None)

    async def finish_lease_part(self, lease: UUID, part: int, parts: int) -> None:
        if part == parts - 1:
            self.leases.pop(lease, None)

    async def spaces(self, names: Sequence[str]) -> Mapping[str, SegmentSpace]:
        return {
            name: SegmentSpace(
                name=name,
                live_bytes=len(self.segments[name].data),
                tiered_bytes=0,
                pending_free_bytes=0,
                freed_bytes=0,
            )
            for name in names
            if name in self.segments
        }

    # --- what retention asks ---

    def _limited(self, request: Append) -> PenstockError | None:
        parent = request.segment.partition("#transaction.")[0].partition("#transient.")[0]
        for stream, limit in self.limits.items():
            counted = self.counted[stream]
            if parent not in counted:
                continue
            found = [self._counts(name, before) for name, before in counted.items()]
            size, events = sum(item[0] for item in found), sum(item[1] for item in found)
            if parent == request.segment:
                size, events = size + len(request.data), events + request.event_count
            else:
                size, events = size + 1, events + 1
            for total, after, action in (
                (limit.total_bytes, size, limit.action),
                (limit.total_events, events, limit.events_action or limit.action),
            ):
                if total is None or after <= total:
                    continue
                if stream not in self.reported:
                    self.reported[stream] = self.reached[stream] = None
                    self.limit_met.set()
                if action is not LimitAction.NOTIFY:
                    kind = QuotaHeldError if action is LimitAction.HOLD else QuotaExceededError
                    return kind("limit", **{"stream": stream} | limit.reason)
        return None

    def _counts(self, name: str, before: tuple[int, int]) -> tuple[int, int]:
        segment = self.segments.get(name)
        return before if segment is None else (len(segment.data), segment.events)

    def _changed(self, name: str) -> None:
        if "#" not in name.partition("#epoch.")[2]:
            self.changes.append((self.mark, name))

    async def limit_appends(self, limits: Sequence[AppendLimit]) -> None:
        for limit in limits:
            self.reported.pop(limit.stream, None)
            if limit.total_bytes is None and limit.total_events is None:
                self.limits.pop(limit.stream, None)
                self.counted.pop(limit.stream, None)
            else:
                self.limits[limit.stream] = limit
                before = self.counted.get(limit.stream, {})
                born = self.born.setdefault(limit.stream, {})
                for name in limit.segments:
                    born.pop(name, None)
                counted = {name: before.get(name, (0, 0)) for name in (*limit.segments, *born)}
                self.counted[limit.stream] = counted
                found = [self._counts(name, known) for name, known in counted.items()]
                past_bytes = limit.total_bytes is not None and sum(item[0] for item in found) > limit.total_bytes
                past_events = limit.total_events is not None and sum(item[1] for item in found) > limit.total_events
                events_action = limit.events_action or limit.action
                past_bytes = past_bytes and limit.action is LimitAction.NOTIFY
                if past_bytes or (past_events and events_action is LimitAction.NOTIFY):
                    self.reported[limit.stream] = self.reached[limit.stream] = None
                    self.limit_met.set()

    async def limits_reached(self) -> Sequence[str]:
        while not self.reached:
            self.limit_met.clear()
            await self.limit_met.wait()
        reached, self.reached = self.reached, {}
        return list(reached)

    def _counters(self, name: str) -> tuple[int, int] | None:
        segment = self.segments.get(name)
        return None if segment is None else (segment.events, len(segment.data))

    async def measure_rates(self, watches: Sequence[RateWatch]) -> None:
        wanted = [(watch, self._rates.unknown(watch)) for watch in watches]
        for watch, unknown in wanted:
            self._rates.set(watch, await self.infos(unknown))

    async def segment_rates(self, names: Sequence[str]) -> Mapping[str, SegmentRates]:
        return self._rates.rates(names)

    async def rates_reported(self) -> Sequence[str]:
        return await self._rates.reported()

    async def changed_segments(self, after: int) -> SegmentChanges:
        complete = after in (self.mark, self.confirmed)
        if complete:
            self.confirmed = after
        else:
            self.confirmed, self.changes = -1, []
        self.changes = [item for item in self.changes if item[0] >= after]
        self.mark += 1
        return SegmentChanges(
            mark=self.mark, names=list(dict.fromkeys(name for _, name in self.changes)), complete=complete
        )

    async def disk(self) -> DiskSpace:
        return DiskSpace(total_bytes=1000, free_bytes=900, used_bytes=100)
