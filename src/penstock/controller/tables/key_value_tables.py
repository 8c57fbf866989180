"""Key-value tables: made, found, listed and deleted. Each is a set of sorted table segments, and a record in one table.

Source of the record: docs/formats/native-api.md, "Key-value tables".
"""

from __future__ import annotations

import asyncio
import enum
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, replace
from typing import TypeAlias

from penstock.controller import keys
from penstock.model.errors import (
    AlreadyExistsError,
    BadKeyVersionError,
    CorruptDataError,
    InvalidArgumentError,
    KeyNotFoundError,
    ScopeNotFoundError,
    SegmentNotFoundError,
    TableNotFoundError,
    UnavailableError,
    VersionTooNewError,
)
from penstock.model.names import KEY_VALUE_TABLES as RECORDS
from penstock.model.names import StreamName, check_name, table_segment_name
from penstock.model.policies import SEGMENTS_MAX
from penstock.model.values.dataclass import dataclass
from penstock.ports.control.scopes import PAGE_MAX, Scopes
from penstock.ports.control.tables import TableConfig
from penstock.ports.data.tables import KEY_ABSENT, TableEntry, TableKind, TablePut, TableRemoval, Tables

log = logging.getLogger(__name__)

CheckDeletion: TypeAlias = Callable[[str, str], Awaitable[None]]
"""Called with scope and table before a deletion begins. Raises ApprovalRequiredError, ConflictError."""

_VERSION = 1
_STATES_VERSION = 2
"""Version of records with a ``state``: the first version of the program would take such a table for a usable one."""


class TableState(enum.Enum):
    CREATING = "creating"
    ACTIVE = "active"
    DELETING = "deleting"


_LARGEST = TableConfig(partitions=SEGMENTS_MAX, primary_key_bytes=1, secondary_key_bytes=0, rollover_bytes=0)
"""Upper bound of the segments of a table whose record cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRecord:
    """A table as it is stored. ``version``: a change of the record requires this version."""

    config: TableConfig
    state: TableState
    version: int = KEY_ABSENT

    def encode(self) -> bytes:
        document = {"version": _VERSION, **asdict(self.config)}
        if self.state is not TableState.ACTIVE:
            document |= {"version": _STATES_VERSION, "state": self.state.value}
        return json.dumps(document, sort_keys=True).encode()

    @classmethod
    def decode(cls, data: bytes, version: int) -> TableRecord:
        """Raises ``CorruptDataError``, ``VersionTooNewError``."""
        try:
            document = json.loads(data)
            version_of = document.pop("version")
            if isinstance(version_of, int) and version_of > _STATES_VERSION:
                raise VersionTooNewError("record of a key-value table has a newer version", version=version_of)
            if version_of not in (_VERSION, _STATES_VERSION):
                raise CorruptDataError("record of a key-value table has an unknown version", record=data[:80])
            state = TableState(document.pop("state", TableState.ACTIVE.value))
            return cls(config=TableConfig(**document), state=state, version=version)
        except (ValueError, KeyError, TypeError, AttributeError, InvalidArgumentError) as error:
            raise CorruptDataError("record of a key-value table cannot be read", record=data[:80]) from error


class KeyValueTables:
    """``ports.control.tables.KeyValueTables``, over a store's ``Tables``.

    Every change that a crash interrupted can be repeated, and then completes.

    A record names its state, so that a change begins with one conditional step. A creation writes its record and then
    checks the scope. A deletion of the scope marks the scope and then checks for records. One of the two sees the
    other.
    """

    def __init__(self, scopes: Scopes, segments: Tables, gate: CheckDeletion | None = None) -> None:
        self._scopes = scopes
        self._segments = segments
        self._gate = gate
        self._locks: dict[bytes, asyncio.Lock] = {}
        self._using: dict[bytes, int] = {}

    @asynccontextmanager
    async def _alone(self, scope: str, name: str) -> AsyncIterator[None]:
        """No other call of this server changes the table meanwhile. Segments of a table and its successor share names."""
        key = _key(scope, name)
        lock = self._locks.setdefault(key, asyncio.Lock())
        self._using[key] = self._using.get(key, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._using[key] -= 1
            if not self._using[key]:
                del self._using[key], self._locks[key]

    async def create(self, scope: str, name: str, config: TableConfig) -> None:
        """Raises: ScopeNotFoundError, InvalidNameError, AlreadyExistsError; UnavailableError (another server changed it)."""
        check_name("table", name)
        if not await self._scopes.exists(scope):
            raise ScopeNotFoundError("no such scope", scope=scope)
        async with self._alone(scope, name):
            found = await self._record(scope, name)
            if found is not None and found.state is TableState.ACTIVE:
                raise AlreadyExistsError("a table has this name", scope=scope, table=name)
            if found is not None:
                # An interrupted creation or deletion: its segments belong to no table.
                await self._delete_segments(scope, name, found.config, found.version)
            begun = TableRecord(config=config, state=TableState.CREATING)
            version = await self._put(scope, name, begun, KEY_ABSENT if found is None else found.version)
            if not await self._scopes.exists(scope):
                await self._remove(scope, name, version)
                raise ScopeNotFoundError("no such scope", scope=scope)
            # An earlier version left segments without a record: they may have keys of another length.
            await self._delete_segments(scope, name, config, version)
            await self._create_segments(scope, name, config)
            await self._put(scope, name, replace(begun, state=TableState.ACTIVE), version)

    async def _create_segments(self, scope: str, name: str, config: TableConfig) -> None:
        key_bytes = config.primary_key_bytes + config.secondary_key_bytes
        for segment in _segment_names(scope, name, config):
            try:
                await self._segments.create_table(segment, kind=TableKind.SORTED, key_bytes=key_bytes)
            except AlreadyExistsError as error:
                # The leftovers are deleted already: another server took over the creation, and its table may be in use.
                raise _changed_meanwhile(scope, name) from error

    async def _delete_segments(self, scope: str, name: str, config: TableConfig, version: int) -> None:
        """Delete the segments that exist. Raises UnavailableError once the record has another version: another server
        changed it."""
        for segment in _segment_names(scope, name, config):
            with suppress(SegmentNotFoundError):
                await self._segments.table_info(segment)
                entry = await self._entry(scope, name)
                if entry is None or entry.version != version:
                    raise _changed_meanwhile(scope, name)
                await self._segments.delete_table(segment)

    async def _put(self, scope: str, name: str, record: TableRecord, version: int) -> int:
        """Write the record if it has this version. Returns the new version. Raises UnavailableError."""
        put = TablePut(key=_key(scope, name), value=record.encode(), version=version)
        try:
            try:
                return (await self._segments.table_update(RECORDS, [put]))[0]
            except SegmentNotFoundError:
                with suppress(AlreadyExistsError):  # another call was first
                    await self._segments.create_table(RECORDS)
                return (await self._segments.table_update(RECORDS, [put]))[0]
        except (BadKeyVersionError, KeyNotFoundError) as error:
            raise _changed_meanwhile(scope, name) from error

    async def _remove(self, scope: str, name: str, version: int) -> None:
        # If the record has changed, another server owns it.
        with suppress(BadKeyVersionError, KeyNotFoundError):
            await self._segments.table_remove(RECORDS, [TableRemoval(key=_key(scope, name), version=version)])

    async def get(self, scope: str, name: str) -> TableConfig:
        """Raises TableNotFoundError."""
        found = await self._record(scope, name)
        if found is None or found.state is not TableState.ACTIVE:
            raise TableNotFoundError("no such key-value table", scope=scope, table=name)
        return found.config

    async def _record(self, scope: str, name: str) -> TableRecord | None:
        entry = await self._entry(scope, name)
        return None if entry is None else TableRecord.decode(entry.value, entry.version)

    async def _entry(self, scope: str, name: str) -> TableEntry | None:
        return await _entry(self._segments, scope, name)

    async def delete(self, scope: str, name: str) -> None:
        """Delete the table, even if its record cannot be read. The record is deleted last, so that a repeated call
        finds what is left.

        Raises: TableNotFoundError; VersionTooNewError (a newer version wrote the record); UnavailableError (another server
        changed it); ApprovalRequiredError (it waits for another identity). A deletion that has begun needs no approval.
        """
        async with self._alone(scope, name):
            entry = await self._entry(scope, name)
            if entry is None:
                raise TableNotFoundError("no such key-value table", scope=scope, table=name)
            try:
                found = TableRecord.decode(entry.value, entry.version)
            except CorruptDataError as error:
                log.warning(
                    "a key-value table whose record cannot be read is deleted",
                    extra={"scope": scope, "table": name, "error": str(error)},
                )
                found = TableRecord(config=_LARGEST, state=TableState.ACTIVE, version=entry.version)
            if self._gate is not None and found.state is not TableState.DELETING:
                await self._gate(scope, name)
            deleting = replace(found, state=TableState.DELETING)
            version = await self._put(scope, name, deleting, found.version)
            await self._delete_segments(scope, name, found.config, version)
            await self._remove(scope, name, version)

    async def list(self, scope: str, *, after: str = "", limit: int = PAGE_MAX) -> Sequence[str]:
        """Names of the scope's tables after ``after``, sorted. Empty: the end."""
        try:
            entries = await self._segments.table_scan(
                RECORDS,
                after=_key(scope, after) if after else None,
                limit=min(limit, PAGE_MAX),
                first=_key(scope, ""),
                last=_key(scope, "\x7f"),  # after every legal name
            )
        except SegmentNotFoundError:
            return ()
        return tuple(entry.key.decode("utf-8", "backslashreplace").partition("/")[2] for entry in entries)


async def _entry(segments: Tables, scope: str, name: str) -> TableEntry | None:
    try:
        (entry,) = await segments.table_get(RECORDS, [_key(scope, name)])
    except SegmentNotFoundError:
        return None
    return None if entry.version == KEY_ABSENT else entry


async def table_version(segments: Tables, scope: str, name: str) -> int | None:
    """Identifies a table: another one of this name has another number. None: there is none."""
    entry = await _entry(segments, scope, name)
    return None if entry is None else entry.version


def _changed_meanwhile(scope: str, name: str) -> UnavailableError:
    return UnavailableError("another server changes the table at the same time; try again", scope=scope, table=name)


def _key(scope: str, name: str) -> bytes:
    return keys.encoded(f"{scope}/{name}")


def _segment_names(scope: str, name: str, config: TableConfig) -> Sequence[str]:
    return [table_segment_name(StreamName(scope, name), number) for number in range(config.partitions)]
