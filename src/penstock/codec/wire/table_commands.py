"""The commands of Pravega's segment-store protocol for table segments, as values, like those of ``wire_commands``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.codec.wire.commands import NO_OFFSET, Payload
from penstock.codec.wire.layout import WireEntry, WireKey


class GetTableSegmentInfo(NamedTuple):
    rid: int
    segment: str
    token: str = ""


class TableSegmentInfo(NamedTuple):
    rid: int
    segment: str
    start_offset: int
    length: int
    entry_count: int
    key_bytes: int


class CreateTableSegment(NamedTuple):
    """``key_bytes`` 0: a hash table; else a sorted one whose keys have that length."""

    rid: int
    segment: str
    token: str = ""
    sorted_deprecated: bool = False
    key_bytes: int = 0
    rollover_bytes: int = 0


class DeleteTableSegment(NamedTuple):
    rid: int
    segment: str
    must_be_empty: bool
    token: str = ""


class UpdateTableEntries(NamedTuple):
    rid: int
    segment: str
    token: str
    entries: Sequence[WireEntry]
    table_offset: int = NO_OFFSET


class TableEntriesUpdated(NamedTuple):
    rid: int
    versions: Sequence[int]


class RemoveTableKeys(NamedTuple):
    rid: int
    segment: str
    token: str
    keys: Sequence[WireKey]
    table_offset: int = NO_OFFSET


class TableKeysRemoved(NamedTuple):
    rid: int
    segment: str


class ReadTable(NamedTuple):
    rid: int
    segment: str
    token: str
    keys: Sequence[WireKey]


class TableRead(NamedTuple):
    rid: int
    segment: str
    entries: Sequence[WireEntry]


class ReadTableKeys(NamedTuple):
    """``first`` and ``last`` are inclusive; empty: unbounded. ``reserved`` is always 0."""

    rid: int
    segment: str
    token: str
    suggested_count: int
    continuation: Payload = b""
    reserved: int = 0
    first: Payload = b""
    last: Payload = b""


class TableKeysRead(NamedTuple):
    rid: int
    segment: str
    keys: Sequence[WireKey]
    continuation: Payload


class ReadTableEntries(NamedTuple):
    rid: int
    segment: str
    token: str
    suggested_count: int
    continuation: Payload = b""
    reserved: int = 0
    first: Payload = b""
    last: Payload = b""


class TableEntriesRead(NamedTuple):
    rid: int
    segment: str
    entries: Sequence[WireEntry]
    continuation: Payload


class ReadTableEntriesDelta(NamedTuple):
    rid: int
    segment: str
    token: str
    from_position: int
    suggested_count: int


class TableEntriesDeltaRead(NamedTuple):
    rid: int
    segment: str
    entries: Sequence[WireEntry]
    should_clear: bool
    reached_end: bool
    last_position: int


REQUESTS = (
    GetTableSegmentInfo,
    CreateTableSegment,
    DeleteTableSegment,
    UpdateTableEntries,
    RemoveTableKeys,
    ReadTable,
    ReadTableKeys,
    ReadTableEntries,
    ReadTableEntriesDelta,
)


# --- errors -----------------------------------------------------------------------------------------------


class TableSegmentNotEmpty(NamedTuple):
    rid: int
    segment: str
    trace: str = ""


class TableKeyDoesNotExist(NamedTuple):
    rid: int
    segment: str
    trace: str = ""


class TableKeyBadVersion(NamedTuple):
    rid: int
    segment: str
    trace: str = ""
