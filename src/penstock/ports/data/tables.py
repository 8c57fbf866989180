"""Tables: keys with versions, which change in atomic batches."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

from penstock.model.errors import CorruptDataError
from penstock.model.values.dataclass import dataclass
from penstock.ports.data.segments import SegmentInfo

KEY_MAX_BYTES = 8192


VALUE_MAX_BYTES = (1 << 20) - 8192


TABLE_BATCH_MAX = 256  # items of one batch, so that a step of the store stays short


TABLE_BATCH_MAX_BYTES = (1 << 24) - 1 - KEY_MAX_BYTES
"""Keys and values of one batch: what a frame of Pravega's wire protocol can carry."""


ANY_VERSION = -(1 << 63)


KEY_ABSENT = -1  # version of a key that does not exist, as in Pravega


DAMAGED_VERSION = 1 << 62
"""Version of an entry that cannot be read: above all real versions."""


class TableKind(enum.Enum):
    HASH = "hash"
    SORTED = "sorted"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEntry:
    """An entry as read. ``version=KEY_ABSENT`` and an empty value: there is no such key."""

    key: bytes
    value: bytes
    version: int


class DamagedEntry(TableEntry):
    """An entry whose key can be read but not its value: ``value`` raises CorruptDataError.

    A change that is conditional on its version, or unconditional, replaces it.
    """

    __slots__ = ()

    def __init__(self, *, key: bytes) -> None:
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "version", DAMAGED_VERSION)

    @property
    def value(self) -> bytes:
        raise CorruptDataError("table entry fails its checksum", key=self.key[:80])

    def __repr__(self) -> str:
        return f"DamagedEntry(key={self.key!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return partial(DamagedEntry, key=self.key), ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePut:
    """Set ``key`` if its version is ``version`` (``ANY_VERSION``: always; ``KEY_ABSENT``: only if absent)."""

    key: bytes
    value: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRemoval:
    """Remove ``key`` under the same conditions as ``TablePut``. Removing an absent key unconditionally is fine."""

    key: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCheck:
    """Refuse the batch unless ``key`` has ``version`` (``KEY_ABSENT``: unless it is absent). Changes nothing itself."""

    key: bytes
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLength:
    """Refuse the batch unless the table still has the ``length`` that ``table_info`` returned, so that nothing has
    changed since."""

    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDelta:
    """Entries changed since a position, oldest change first, removed keys left out."""

    entries: Sequence[TableEntry]
    should_clear: bool
    reached_end: bool
    position: int


class Tables(Protocol):
    """Segments that hold keys and values."""

    async def create_table(self, name: str, *, kind: TableKind = TableKind.HASH, key_bytes: int = 0) -> None:
        """Create a table segment; ``SORTED`` ones have keys of exactly ``key_bytes``. Raises AlreadyExistsError."""
        ...

    async def delete_table(self, name: str, *, must_be_empty: bool = False) -> None:
        """Raises NotEmptyError."""
        ...

    async def table_update(self, name: str, puts: Sequence[TablePut | TableCheck | TableLength]) -> Sequence[int]:
        """Apply all or nothing; conditions apply to the state before the batch; the last of equal keys wins. Returns a
        version for each put and check, in order: for a put, one larger than any before; for a check, the version that
        it required. Raises: ConditionFailedError (another length), KeyNotFoundError, BadKeyVersionError,
        EventTooLargeError, InvalidArgumentError (more than ``TABLE_BATCH_MAX`` items), UnsupportedError (a check or
        length, over a protocol without them)."""
        ...

    async def table_remove(self, name: str, removals: Sequence[TableRemoval | TableLength]) -> None:
        """As ``table_update``."""
        ...

    @property
    def table_change(
        self,
    ) -> Callable[[str, Sequence[TablePut | TableRemoval | TableCheck]], Awaitable[Sequence[int]]] | None:
        """``table_change(name, changes)`` combines ``table_update`` and ``table_remove`` in one step. None if the store
        does not support it."""
        ...

    async def table_get(self, name: str, keys: Sequence[bytes]) -> Sequence[TableEntry]:
        """One entry per key, in order."""
        ...

    async def table_scan(
        self, name: str, *, after: bytes | None, limit: int, first: bytes | None = None, last: bytes | None = None
    ) -> Sequence[TableEntry]:
        """Up to ``limit`` entries in key order, behind key ``after``, within the inclusive bounds. Empty: the end. Keys
        that exist during the whole scan are never missed. An unreadable entry is returned as ``DamagedEntry``, here and
        by ``table_get``."""
        ...

    async def table_delta(self, name: str, position: int, limit: int) -> TableDelta:
        """Entries changed at or behind ``position`` (0, or one returned earlier). Raises InvalidArgumentError beyond the
        end."""
        ...

    async def table_info(self, name: str) -> tuple[SegmentInfo, int, int]:
        """Segment info (``length`` is the position behind the last change), entry count, key length."""
        ...
