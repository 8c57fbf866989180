"""A small real segment service in memory, which can fail at any mutating call, before or after its effect.

Calls that arrive in one pass of the loop share one "sync", as in the store, so that ``syncs`` counts durable round trips.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from penstock.model.errors import (
    AlreadyExistsError,
    BadKeyVersionError,
    ConditionFailedError,
    ContainerOfflineError,
    InvalidArgumentError,
    KeyNotFoundError,
    NotEmptyError,
    QuotaExceededError,
    QuotaHeldError,
    SegmentNotFoundError,
    SegmentSealedError,
    TruncatedError,
    WriterFencedError,
)
from penstock.model.scaling import SegmentRates
from penstock.ports.data.limits import AppendLimit, LimitAction, SegmentChanges
from penstock.ports.data.rates import RateWatch
from penstock.ports.data.segments import NO_EVENT, Append, Appended, SegmentInfo, SegmentRead
from penstock.ports.data.space import DiskSpace, SegmentSpace
from penstock.ports.data.tables import (
    ANY_VERSION,
    KEY_ABSENT,
    TABLE_BATCH_MAX,
    VALUE_MAX_BYTES,
    TableCheck,
    TableEntry,
    TableKind,
)


@dataclass
class Seg:
    """``ends``: where events end. ``kept``: the oldest byte on disk where that lies before ``start``."""

    data: bytearray = field(default_factory=bytearray)
    start: int = 0
    sealed: bool = False
    freed: int = 0
    ends: list[int] = field(default_factory=list)
    kept: int | None = None
    modified_ms: int = 0
    writers: dict[UUID, int] = field(default_factory=dict)

    @property
    def oldest(self) -> int:
        return self.start if self.kept is None else self.kept


@dataclass
class Table:
    entries: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    position: int = 0


def co_location(name: str) -> str:
    """What decides the container: a merge is one step only where this is the same for both."""
    return re.sub(r"\.#epoch\.\d+", "", re.split("#transaction|#transient", name)[0])


class MemorySegments:
    create_fresh = None

    def __init__(self) -> None:
        self.segments: dict[str, Seg] = {}
        self.tables: dict[str, Table] = {}
        self.merged: set[tuple[str, str]] = set()
        self.mutations = 0
        self.syncs = 0
        self.fail_at: int | None = None
        self.effect_first = False
        self.offline = False
        self.now_ms: Callable[[], int] = lambda: 0
        self.limits: dict[str, AppendLimit] = {}
        self.counted = 0
        self.reads = 0
        self.rates: dict[str, SegmentRates] = {}
        self.watches: dict[str, RateWatch] = {}
        self.reports: asyncio.Queue[str] = asyncio.Queue()
        self._reached: dict[str, None] = {}
        self._met = asyncio.Event()
        self._changed: dict[str, int] = {}
        self._change = 0
        self._wave: asyncio.Future[None] | None = None

    # --- faults and syncs ------------------------------------------------------------------------------------------

    def arm(self, after: int, *, effect_first: bool) -> None:
        """Fail at the call number ``after`` (1: the next one) and at all that follow."""
        self.fail_at, self.effect_first = self.mutations + after, effect_first

    def heal(self) -> None:
        self.fail_at, self.offline = None, False

    def _check(self) -> None:
        if self.offline:
            raise ContainerOfflineError("container is offline")

    async def _sync(self) -> None:
        if self._wave is None:
            loop = asyncio.get_running_loop()
            self._wave = loop.create_future()
            loop.call_soon(self._end_wave)
        await self._wave

    def _end_wave(self) -> None:
        wave, self._wave = self._wave, None
        self.syncs += 1
        if wave is not None and not wave.done():
            wave.set_result(None)

    async def _mutate(self, effect):
        self._check()
        self.mutations += 1
        fails = self.fail_at is not None and self.mutations >= self.fail_at
        if fails and not (self.effect_first and self.mutations == self.fail_at):
            self.offline = True
            raise ContainerOfflineError("container is offline")
        result = effect()
        await self._sync()
        if fails:
            self.offline = True
            raise ContainerOfflineError("container is offline")
        return result

    def _segment(self, name: str) -> Seg:
        if name not in self.segments:
            raise SegmentNotFoundError("no such segment", segment=name)
        return self.segments[name]

    def _table(self, name: str) -> Table:
        if name not in self.tables:
            raise SegmentNotFoundError("no such table", segment=name)
        return self.tables[name]

    # --- segments ------------------------------------------------------------------------------------------------

    async def create_segment(self, name: str, *, rollover_bytes: int = 0) -> None:
        def effect() -> None:
            if name in self.segments:
                raise AlreadyExistsError("segment exists", segment=name)
            self.segments[name] = Seg()

        await self._mutate(effect)

    def write(self, name: str, data: bytes, *, event_bytes: int = 1) -> None:
        """What appends do, for tests: events of that many bytes each, the last one of what is left."""
        segment = self._segment(name)
        if segment.sealed:
            raise SegmentSealedError("sealed", segment=name, length_bytes=len(segment.data))
        self._check_limits(name, len(data), -(-len(data) // event_bytes))
        first, last = len(segment.data), len(segment.data) + len(data)
        segment.ends += [*range(first + event_bytes, last, event_bytes), *([last] if data else [])]
        segment.data += data
        self._grown(name, segment)

    def _grown(self, name: str, segment: Seg) -> None:
        segment.modified_ms = self.now_ms()
        self._change += 1
        self._changed[name] = self._change

    def _check_limits(self, name: str, size: int, events: int) -> None:
        for limit in self.limits.values():
            if name not in limit.segments:
                continue
            there = [self.segments[other] for other in limit.segments if other in self.segments]
            bytes_after = sum(len(item.data) for item in there) + size
            events_after = sum(len(item.ends) for item in there) + events
            for total, after, action in (
                (limit.total_bytes, bytes_after, limit.action),
                (limit.total_events, events_after, limit.events_action or limit.action),
            ):
                if total is None or after <= total:
                    continue
                self._reached[limit.stream] = None
                self._met.set()
                if action is LimitAction.HOLD:
                    raise QuotaHeldError("backlog quota is reached", **limit.reason)
                if action is LimitAction.REJECT:
                    raise QuotaExceededError("backlog quota is reached", **limit.reason)

    async def setup_append(self, name: str, writer: UUID) -> int:
        self._check()
        return self._segment(name).writers.get(writer, NO_EVENT)

    async def append(self, request: Append) -> Appended:
        def effect() -> Appended:
            segment = self._segment(request.segment)
            if segment.sealed:
                raise SegmentSealedError("sealed", segment=request.segment, length_bytes=len(segment.data))
            if segment.writers.get(request.writer, NO_EVENT) != request.previous:
                raise WriterFencedError("another writer has this id", segment=request.segment)
            if request.event_number <= request.previous:
                raise InvalidArgumentError("event number does not increase", event_number=request.event_number)
            if request.expected_offset not in (None, len(segment.data)):
                raise ConditionFailedError(
                    "segment has another length", expected=request.expected_offset, actual=len(segment.data)
                )
            size = len(memoryview(request.data))
            self._check_limits(request.segment, size, request.event_count)
            first = len(segment.data)
            segment.data += request.data
            share = size // request.event_count
            segment.ends += [first + share * number for number in range(1, request.event_count)] + [first + size]
            segment.writers[request.writer] = request.event_number
            self._grown(request.segment, segment)
            return Appended(end_offset=len(segment.data))

        return await self._mutate(effect)

    async def read(self, name: str, offset: int, max_bytes: int, *, wait: bool = True) -> SegmentRead:
        segment = self._segment(name)
        if offset < segment.start:
            raise TruncatedError("truncated", segment=name, start_offset=segment.start)
        part = bytes(segment.data[offset : offset + max_bytes])
        return SegmentRead(offset=offset, parts=[part], at_tail=True, end_of_segment=segment.sealed)

    async def info(self, name: str) -> SegmentInfo:
        self._check()
        segment = self._segment(name)
        self.reads += 1
        return SegmentInfo(
            name=name,
            start_offset=segment.start,
            length=len(segment.data),
            sealed=segment.sealed,
            last_modified_ms=segment.modified_ms,
            kept_offset=segment.kept,
            event_count=len(segment.ends),
        )

    async def seal(self, name: str) -> int:
        def effect() -> int:
            segment = self._segment(name)
            if not segment.sealed:
                segment.sealed = True
                self._change += 1
                self._changed[name] = self._change
            return len(segment.data)

        return await self._mutate(effect)

    async def truncate(self, name: str, offset: int, *, keep: bool = False) -> None:
        def effect() -> None:
            segment = self._segment(name)
            if not 0 <= offset <= len(segment.data):
                raise InvalidArgumentError("offset is outside the segment", offset=offset, length=len(segment.data))
            if offset <= segment.start:
                return
            if keep and segment.kept is None:
                segment.kept = segment.start
            segment.start = offset
            if segment.kept is None:
                segment.freed = offset

        await self._mutate(effect)

    async def release(self, name: str, offset: int) -> None:
        def effect() -> None:
            segment = self._segment(name)
            if offset > segment.start:
                raise InvalidArgumentError("release behind the start", offset=offset, start=segment.start)
            if segment.kept is not None and offset > segment.kept:
                segment.freed = offset
                segment.kept = None if offset == segment.start else offset

        await self._mutate(effect)

    async def restore(self, name: str, offset: int) -> int:
        def effect() -> int:
            segment = self._segment(name)
            if segment.kept is not None:
                segment.start = min(segment.start, max(offset, segment.kept))
                segment.kept = None if segment.kept == segment.start else segment.kept
            return segment.start

        return await self._mutate(effect)

    async def count_events(self, name: str, start: int, end: int) -> int:
        self._check()
        segment = self._segment(name)
        if start < segment.oldest:
            raise TruncatedError("truncated", segment=name, start_offset=segment.oldest)
        known = {0, segment.oldest, *segment.ends}
        if not start <= end <= len(segment.data) or start not in known or end not in known:
            raise InvalidArgumentError("not a boundary of events", segment=name, start=start, end=end)
        self.counted += end - start
        return bisect_right(segment.ends, end) - bisect_right(segment.ends, start)

    async def next_event_boundary(self, name: str, offset: int) -> int:
        self._check()
        segment = self._segment(name)
        if offset <= segment.start:
            return segment.start
        place = bisect_left(segment.ends, offset)
        return segment.ends[place] if place < len(segment.ends) else len(segment.data)

    async def limit_appends(self, limits: Sequence[AppendLimit]) -> None:
        self._check()
        for limit in limits:
            self.limits.pop(limit.stream, None)
            if limit.total_bytes is not None or limit.total_events is not None:
                self.limits[limit.stream] = limit

    async def limits_reached(self) -> list[str]:
        while not self._reached:
            self._met.clear()
            await self._met.wait()
        found, self._reached = list(self._reached), {}
        return found

    async def measure_rates(self, watches: Sequence[RateWatch]) -> None:
        self._check()
        for watch in watches:
            self.watches.pop(watch.stream, None)
            if watch.segments:
                self.watches[watch.stream] = watch

    async def segment_rates(self, names: Sequence[str]) -> dict[str, SegmentRates]:
        """What a test has put into ``rates``, of the segments that are measured."""
        self._check()
        measured = {name for watch in self.watches.values() for name in watch.segments}
        return {name: self.rates[name] for name in names if name in measured and name in self.rates}

    async def rates_reported(self) -> list[str]:
        return [await self.reports.get()]

    async def changed_segments(self, after: int) -> SegmentChanges:
        self._check()
        names = [name for name, change in self._changed.items() if change > after]
        return SegmentChanges(mark=self._change, names=names, complete=True)

    async def disk(self) -> DiskSpace:
        self._check()
        used = sum(len(item.data) - item.oldest for item in self.segments.values())
        return DiskSpace(total_bytes=1 << 30, free_bytes=(1 << 30) - used, used_bytes=used)

    async def delete(self, name: str) -> None:
        def effect() -> None:
            self._segment(name)
            del self.segments[name]

        await self._mutate(effect)

    async def merge(self, target: str, source: str) -> int:
        def effect() -> int:
            into = self._segment(target)
            if co_location(target) != co_location(source):
                raise InvalidArgumentError("merge across containers", target=target, source=source)
            if (target, source) in self.merged:
                return len(into.data)
            segment = self._segment(source)
            if into.sealed:
                raise SegmentSealedError("sealed", segment=target, length_bytes=len(into.data))
            into.ends += [len(into.data) + end for end in segment.ends]
            into.data += segment.data
            self._grown(target, into)
            del self.segments[source]
            self.merged.add((target, source))
            return len(into.data)

        return await self._mutate(effect)

    async def merge_run(self, target: str, sources) -> int:
        """A crash leaves any number of them merged, from the first on."""
        plain = []
        for source in sources:
            if source not in self.segments or (target, source) in self.merged or self._segment(target).sealed:
                break
            plain.append(self.merge(target, source))
        await asyncio.gather(*plain)
        return len(plain)

    async def spaces(self, names) -> dict[str, SegmentSpace]:
        return {
            name: SegmentSpace(
                name=name,
                live_bytes=len(seg.data) - seg.start,
                tiered_bytes=len(seg.data) - seg.start,
                pending_free_bytes=seg.start - seg.oldest,
                freed_bytes=seg.freed,
                kept_bytes=seg.start - seg.oldest,
            )
            for name in names
            if (seg := self.segments.get(name)) is not None
        }

    async def get_attribute(self, name: str, attribute: UUID) -> int:
        return NO_EVENT

    # --- tables --------------------------------------------------------------------------------------------------

    async def create_table(self, name: str, *, kind: TableKind = TableKind.HASH, key_bytes: int = 0) -> None:
        def effect() -> None:
            if name in self.tables:
                raise AlreadyExistsError("table exists", segment=name)
            self.tables[name] = Table()

        await self._mutate(effect)

    async def delete_table(self, name: str, *, must_be_empty: bool = False) -> None:
        def effect() -> None:
            table = self._table(name)
            if must_be_empty and table.entries:
                raise NotEmptyError("table is not empty")
            del self.tables[name]

        await self._mutate(effect)

    def _check_version(self, table: Table, key: bytes, version: int) -> None:
        if version == ANY_VERSION:
            return
        found = table.entries.get(key)
        if found is None:
            if version != KEY_ABSENT:
                raise KeyNotFoundError("no such key", key=key)
        elif found[1] != version:
            raise BadKeyVersionError("bad version", key=key, expected=version, actual=found[1])

    async def table_update(self, name: str, puts) -> list[int]:
        def effect() -> list[int]:
            table = self._table(name)
            if len(puts) > TABLE_BATCH_MAX:
                raise InvalidArgumentError("too many items", items=len(puts))
            for put in puts:
                assert isinstance(put, TableCheck) or len(put.value) <= VALUE_MAX_BYTES
                self._check_version(table, put.key, put.version)
            versions = []
            for put in puts:
                if isinstance(put, TableCheck):
                    versions.append(put.version)
                    continue
                table.position += 17 + len(put.key) + len(put.value)
                table.entries[put.key] = (put.value, table.position)
                versions.append(table.position)
            return versions

        return await self._mutate(effect)

    async def table_remove(self, name: str, removals) -> None:
        def effect() -> None:
            table = self._table(name)
            if len(removals) > TABLE_BATCH_MAX:
                raise InvalidArgumentError("too many items", items=len(removals))
            for removal in removals:
                self._check_version(table, removal.key, removal.version)
            for removal in removals:
                table.entries.pop(removal.key, None)

        await self._mutate(effect)

    async def table_change(self, name: str, changes) -> list[int]:
        def effect() -> list[int]:
            table = self._table(name)
            if len(changes) > TABLE_BATCH_MAX:
                raise InvalidArgumentError("too many items", items=len(changes))
            for item in changes:
                self._check_version(table, item.key, item.version)
            versions = []
            for item in changes:
                if isinstance(item, TableCheck):
                    versions.append(item.version)
                    continue
                value = getattr(item, "value", None)
                table.position += 17 + len(item.key) + len(value or b"")
                versions.append(table.position)
                if value is None:
                    table.entries.pop(item.key, None)
                else:
                    table.entries[item.key] = (value, table.position)
            return versions

        return await self._mutate(effect)

    async def table_get(self, name: str, keys) -> list[TableEntry]:
        self._check()
        self.reads += 1
        await asyncio.sleep(0)
        table = self._table(name)
        return [self._entry(table, key) for key in keys]

    @staticmethod
    def _entry(table: Table, key: bytes) -> TableEntry:
        value, version = table.entries.get(key, (b"", KEY_ABSENT))
        return TableEntry(key=key, value=value, version=version)

    async def table_scan(self, name: str, *, after, limit: int, first=None, last=None) -> list[TableEntry]:
        self._check()
        self.reads += 1
        await asyncio.sleep(0)
        table = self._table(name)
        found = [
            key
            for key in sorted(table.entries)
            if (after is None or key > after) and (first is None or key >= first) and (last is None or key <= last)
        ]
        return [self._entry(table, key) for key in found[:limit]]

    async def table_info(self, name: str):
        self._check()
        table = self._table(name)
        info = SegmentInfo(name=name, start_offset=0, length=table.position, sealed=False, last_modified_ms=0)
        return info, len(table.entries), 0
