"""A small real segment service in memory, which can fail at any mutating call, before or after its effect.

Calls that arrive in one pass of the loop share one "sync", as in the store, so that ``syncs`` counts durable round trips.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from uuid import UUID

from penstock.model.errors import (
    AlreadyExistsError,
    BadKeyVersionError,
    ContainerOfflineError,
    InvalidArgumentError,
    KeyNotFoundError,
    NotEmptyError,
    SegmentNotFoundError,
    SegmentSealedError,
)
from penstock.ports.segment_service import (
    ANY_VERSION,
    KEY_ABSENT,
    NO_EVENT,
    TABLE_BATCH_MAX,
    VALUE_MAX_BYTES,
    SegmentInfo,
    SegmentRead,
    SegmentSpace,
    TableEntry,
    TableKind,
)


@dataclass
class Seg:
    data: bytearray = field(default_factory=bytearray)
    start: int = 0
    sealed: bool = False
    freed: int = 0


@dataclass
class Table:
    entries: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    position: int = 0


def co_location(name: str) -> str:
    """What decides the container: a merge is one step only where this is the same for both."""
    return re.sub(r"\.#epoch\.\d+", "", re.split("#transaction|#transient", name)[0])


class MemorySegments:
    def __init__(self) -> None:
        self.segments: dict[str, Seg] = {}
        self.tables: dict[str, Table] = {}
        self.merged: set[tuple[str, str]] = set()
        self.mutations = 0
        self.syncs = 0
        self.fail_at: int | None = None
        self.effect_first = False
        self.offline = False
        self._wave: asyncio.Future[None] | None = None

    # --- faults and syncs ------------------------------------------------------------------------------------------

    def arm(self, after: int, *, effect_first: bool) -> None:
        """Fail at the call number ``after`` (1: the next one) and at all that follow."""
        self.fail_at, self.effect_first = self.mutations + after, effect_first

    def heal(self) -> None:
        self.fail_at, self.offline = None, False
        self._wave = None

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

    def write(self, name: str, data: bytes) -> None:
        """What an append does, for tests."""
        segment = self._segment(name)
        if segment.sealed:
            raise SegmentSealedError("sealed", segment=name, length_bytes=len(segment.data))
        segment.data += data

    async def read(self, name: str, offset: int, max_bytes: int, *, wait: bool = True) -> SegmentRead:
        segment = self._segment(name)
        part = bytes(segment.data[offset : offset + max_bytes])
        return SegmentRead(offset=offset, parts=[part], at_tail=True, end_of_segment=segment.sealed)

    async def info(self, name: str) -> SegmentInfo:
        self._check()
        segment = self._segment(name)
        return SegmentInfo(
            name=name, start_offset=segment.start, length=len(segment.data), sealed=segment.sealed, last_modified_ms=0
        )

    async def seal(self, name: str) -> int:
        def effect() -> int:
            segment = self._segment(name)
            segment.sealed = True
            return len(segment.data)

        return await self._mutate(effect)

    async def truncate(self, name: str, offset: int) -> None:
        def effect() -> None:
            segment = self._segment(name)
            if not 0 <= offset <= len(segment.data):
                raise InvalidArgumentError("offset is outside the segment", offset=offset, length=len(segment.data))
            if offset > segment.start:
                segment.freed += offset - segment.start
                segment.start = offset

        await self._mutate(effect)

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
            into.data += segment.data
            del self.segments[source]
            self.merged.add((target, source))
            return len(into.data)

        return await self._mutate(effect)

    async def spaces(self, names) -> dict[str, SegmentSpace]:
        return {
            name: SegmentSpace(
                name=name,
                live_bytes=len(seg.data) - seg.start,
                tiered_bytes=len(seg.data) - seg.start,
                pending_free_bytes=0,
                freed_bytes=seg.freed,
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
            if must_be_empty and self._table(name).entries:
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
                assert len(put.value) <= VALUE_MAX_BYTES
                self._check_version(table, put.key, put.version)
            versions = []
            for put in puts:
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

    async def table_get(self, name: str, keys) -> list[TableEntry]:
        self._check()
        await asyncio.sleep(0)
        table = self._table(name)
        return [self._entry(table, key) for key in keys]

    @staticmethod
    def _entry(table: Table, key: bytes) -> TableEntry:
        value, version = table.entries.get(key, (b"", KEY_ABSENT))
        return TableEntry(key=key, value=value, version=version)

    async def table_scan(self, name: str, *, after, limit: int, first=None, last=None) -> list[TableEntry]:
        self._check()
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
