"""The controller's table: typed records, compare-and-set, and one way to retry after a lost race."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Generic, TypeAlias, TypeVar

from penstock.codec.control.record import Record
from penstock.controller import keys
from penstock.model.errors import (
    AlreadyExistsError,
    BadKeyVersionError,
    EventTooLargeError,
    InvalidArgumentError,
    KeyNotFoundError,
    SegmentNotFoundError,
    StorageFullError,
    ThrottledError,
)
from penstock.model.values.dataclass import dataclass
from penstock.ports.data.tables import (
    ANY_VERSION,
    KEY_ABSENT,
    TABLE_BATCH_MAX,
    TableCheck,
    TableEntry,
    TablePut,
    TableRemoval,
    Tables,
)

R = TypeVar("R", bound=Record)
T = TypeVar("T")

Watcher: TypeAlias = Callable[[TablePut, int | None], None]
"""Called with a put and its version. None: it is not known whether the put is durable."""

REFUSED = (
    BadKeyVersionError,
    KeyNotFoundError,
    ThrottledError,
    StorageFullError,
    EventTooLargeError,
    InvalidArgumentError,
    SegmentNotFoundError,
)
"""Errors after which no part of a ``put`` is written, now or later."""

PAGE = 500  # entries of one scan, which bounds the memory of a page
CHUNK = 200
"""Maximum items of one batch: below the table's limit, with room for the records that decide."""

_TRIES = 32  # lost races in a row before the caller is asked to come back later
_PAUSE_MAX_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored(Generic[R]):
    """A record as it was read, with the version on which a change of it is conditional. ``value=None``: absent."""

    key: bytes
    value: R | None
    version: int

    def put(self, record: Record) -> TablePut:
        """Replace the record; fails if it was changed since it was read."""
        return TablePut(key=self.key, value=record.encode(), version=self.version)

    def remove(self) -> TableRemoval:
        return TableRemoval(key=self.key, version=self.version)


class Metadata:
    """Typed access to one table. Owns no task; the segment service is borrowed."""

    def __init__(self, segments: Tables, table: str = keys.TABLE) -> None:
        self._segments = segments
        self._table = table
        self._watchers: list[Watcher] = []

    def watch(self, watcher: Watcher) -> None:
        """Call ``watcher`` for every later ``put``, once it is durable, or once it is not known whether it is."""
        self._watchers.append(watcher)

    async def bootstrap(self) -> None:
        """Create the table unless it exists."""
        try:
            await self._segments.table_info(self._table)
        except SegmentNotFoundError:
            try:
                await self._segments.create_table(self._table)
            except AlreadyExistsError:
                return

    async def get(self, key: bytes, kind: type[R]) -> Stored[R]:
        """One record. Raises CorruptDataError, VersionTooNewError."""
        (entry,) = await self._segments.table_get(self._table, [key])
        return stored(entry, kind)

    async def entries(self, wanted: Sequence[bytes]) -> Sequence[TableEntry]:
        """Raw entries, in the order of the keys. They are one snapshot if they fit into one batch."""
        if len(wanted) <= TABLE_BATCH_MAX:
            return await self._segments.table_get(self._table, wanted)
        found: list[TableEntry] = []
        for start in range(0, len(wanted), TABLE_BATCH_MAX):
            found += await self._segments.table_get(self._table, wanted[start : start + TABLE_BATCH_MAX])
        return found

    async def scan(self, prefix: bytes, *, after: bytes | None = None, limit: int = PAGE) -> Sequence[TableEntry]:
        """Up to ``limit`` entries whose keys begin with ``prefix``, in key order, after key ``after``."""
        return await self._segments.table_scan(
            self._table, after=after, limit=limit, first=prefix, last=prefix + b"\xff"
        )

    async def scan_all(self, prefix: bytes, *, after: bytes | None = None) -> AsyncIterator[TableEntry]:
        """All entries with the prefix, a page at a time."""
        while True:
            page = await self.scan(prefix, after=after)
            for entry in page:
                yield entry
            if len(page) < PAGE:
                return
            after = page[-1].key

    async def put(self, *puts: TablePut | TableCheck) -> Sequence[int]:
        """Apply all or nothing, durably; returns the new versions.

        Raises: BadKeyVersionError, KeyNotFoundError (another writer was faster; ``changing`` retries).
        """
        try:
            versions = await self._segments.table_update(self._table, puts)
        except REFUSED:
            raise
        except BaseException:
            self._notify(puts, [None] * len(puts))
            raise
        self._notify(puts, versions)
        return versions

    def _notify(self, puts: Sequence[TablePut | TableCheck], versions: Sequence[int | None]) -> None:
        for watcher in self._watchers:
            for item, version in zip(puts, versions, strict=True):
                if isinstance(item, TablePut):
                    watcher(item, version)

    async def change(self, puts: Sequence[TablePut], removals: Sequence[TableRemoval]) -> None:
        """Puts and removals: all or nothing if the store supports it, else the puts first. Raises as ``put``."""
        together = self._segments.table_change
        if together is not None:
            await together(self._table, [*puts, *removals])
            return
        if puts:
            await self.put(*puts)
        await self.remove(*removals)

    async def put_many(self, puts: Sequence[TablePut]) -> None:
        """Apply in batches, each of them all or nothing."""
        for start in range(0, len(puts), CHUNK):
            await self._segments.table_update(self._table, puts[start : start + CHUNK])

    async def remove(self, *removals: TableRemoval) -> None:
        """Remove in batches. Raises as ``put``."""
        for start in range(0, len(removals), CHUNK):
            await self._segments.table_remove(self._table, removals[start : start + CHUNK])

    async def remove_keys(self, gone: Sequence[bytes]) -> None:
        """Remove the keys, whatever their values."""
        await self.remove(*(TableRemoval(key=key) for key in gone))

    async def remove_prefix(self, prefix: bytes) -> None:
        """Remove all keys with the prefix. Repeatable."""
        while page := await self.scan(prefix):
            await self.remove_keys([entry.key for entry in page])

    async def remove_if_unchanged(self, removals: Sequence[TableRemoval]) -> None:
        """Remove each of the keys that was not changed since it was read."""
        for start in range(0, len(removals), CHUNK):
            part = removals[start : start + CHUNK]
            try:
                await self._segments.table_remove(self._table, part)
            except (BadKeyVersionError, KeyNotFoundError):
                for removal in part:
                    await self._remove_one(removal)

    async def _remove_one(self, removal: TableRemoval) -> None:
        try:
            await self._segments.table_remove(self._table, [removal])
        except (BadKeyVersionError, KeyNotFoundError):
            # It was changed or removed meanwhile: leave it.
            return


def stored(entry: TableEntry, kind: type[R]) -> Stored[R]:
    """A raw entry as a record. Raises CorruptDataError, VersionTooNewError."""
    value = None if entry.version == KEY_ABSENT else kind.decode(entry.value)
    return Stored(key=entry.key, value=value, version=entry.version)


def create(key: bytes, record: Record) -> TablePut:
    """A put that fails if the key exists."""
    return TablePut(key=key, value=record.encode(), version=KEY_ABSENT)


def overwrite(key: bytes, record: Record) -> TablePut:
    return TablePut(key=key, value=record.encode(), version=ANY_VERSION)


async def changing(attempt: Callable[[], Awaitable[T]]) -> T:
    """Run ``attempt`` (read, decide, compare-and-set) until it wins its race, with growing pauses.

    Raises: ThrottledError once it has lost 32 times in a row; nothing was changed then.
    """
    for lost in range(_TRIES):
        try:
            return await attempt()
        except (BadKeyVersionError, KeyNotFoundError):
            await asyncio.sleep(min(0.0005 * lost, _PAUSE_MAX_S))
    raise ThrottledError("metadata changes faster than it can be decided on", resource="metadata", limit=_TRIES)
