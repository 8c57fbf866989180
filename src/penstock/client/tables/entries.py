"""Keys, entries and changes of key-value tables, and the checks that need no store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from penstock.client.options import COUNT_MAX, as_bytes
from penstock.core.streams.table_routing import partition_of
from penstock.model.errors import EventTooLargeError, InvalidArgumentError
from penstock.model.values.dataclass import dataclass
from penstock.ports.control.tables import TableConfig
from penstock.ports.data.tables import (
    ANY_VERSION,
    KEY_ABSENT,
    TABLE_BATCH_MAX,
    TABLE_BATCH_MAX_BYTES,
    VALUE_MAX_BYTES,
    TableEntry,
    TablePut,
    TableRemoval,
)
from penstock.ports.files import Buffer

KeyPart: TypeAlias = Buffer | str
Key: TypeAlias = KeyPart | tuple[KeyPart, KeyPart]
"""The primary key, or the primary and the secondary key. Text is UTF-8. The lengths in bytes are those of the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An entry of a key-value table as it was read. Each change of a key gives it a larger ``version``.

    ``secondary`` is empty in a table without secondary keys.
    """

    primary: bytes
    secondary: bytes
    value: bytes
    version: int

    @property
    def key(self) -> tuple[bytes, bytes]:
        """Primary and secondary key, as the calls of a table accept them."""
        return self.primary, self.secondary


@dataclass(frozen=True, slots=True)
class Put:
    """Set the value, whatever is there."""

    key: Key
    value: Buffer | str


@dataclass(frozen=True, slots=True)
class Insert:
    """Set the value if the key is absent."""

    key: Key
    value: Buffer | str


@dataclass(frozen=True, slots=True)
class Replace:
    """Set the value if the key has this version."""

    key: Key
    value: Buffer | str
    version: int


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove the key; with ``version``, only if it has this one."""

    key: Key
    version: int | None = None


Change: TypeAlias = Put | Insert | Replace


class FullKey(NamedTuple):
    """A key in the store's form, and its partition."""

    data: bytes
    partition: int


def whole(name: str, given: object, *, least: int = 0) -> int:
    """The number, if it is whole, at least ``least`` and has 64 bits at most. Raises InvalidArgumentError."""
    if isinstance(given, bool) or not isinstance(given, int) or not least <= given <= COUNT_MAX:
        raise InvalidArgumentError(
            f"{name} must be a whole number of at least {least}",
            **{name: repr(given)[:60], "type": type(given).__name__},
        )
    return given


def parts_of(key: object) -> tuple[bytes, bytes]:
    """Primary and secondary key. Raises InvalidArgumentError."""
    if not isinstance(key, tuple):
        return as_bytes(key, "key"), b""
    if len(key) != 2:
        raise InvalidArgumentError(
            "a key must be a primary key, or a pair of primary and secondary key", parts=len(key)
        )
    return as_bytes(key[0], "primary key"), as_bytes(key[1], "secondary key")


def full_key(key: object, config: TableConfig) -> FullKey:
    """The key in the table of that configuration. Raises InvalidArgumentError (no key, or one of another length)."""
    primary, secondary = parts_of(key)
    check_length("primary key", primary, config.primary_key_bytes)
    check_length("secondary key", secondary, config.secondary_key_bytes)
    return FullKey(primary + secondary, partition_of(primary, config.partitions))


def check_length(name: str, given: bytes, expected: int) -> None:
    """Raises InvalidArgumentError where a part of a key has another length than the table's."""
    if len(given) != expected:
        raise InvalidArgumentError(
            f"{name} has another length than those of the table", given_bytes=len(given), expected_bytes=expected
        )


def puts_of(changes: Sequence[Change], config: TableConfig) -> tuple[int, Sequence[TablePut]]:
    """The partition, and the changes as the store takes them.

    Raises InvalidArgumentError (no change, keys of several primary keys, more than 256); EventTooLargeError.
    """
    _check_kinds(changes, (Put, Insert, Replace))
    partition = _common_partition([item.key for item in changes], config)
    puts: list[TablePut] = []
    for item in changes:
        value = as_bytes(item.value, "value")
        if len(value) > VALUE_MAX_BYTES:
            raise EventTooLargeError("value is too large", size_bytes=len(value), limit_bytes=VALUE_MAX_BYTES)
        match item:
            case Put():
                version = ANY_VERSION
            case Insert():
                version = KEY_ABSENT
            case Replace():
                version = whole("version", item.version)
        puts.append(TablePut(key=full_key(item.key, config).data, value=value, version=version))
    size = sum(len(put.key) + len(put.value) for put in puts)
    if size > TABLE_BATCH_MAX_BYTES:
        raise EventTooLargeError("changes are too large together", size_bytes=size, limit_bytes=TABLE_BATCH_MAX_BYTES)
    return partition, puts


def removals_of(changes: Sequence[Remove], config: TableConfig) -> tuple[int, Sequence[TableRemoval]]:
    """As ``puts_of``, for removals."""
    _check_kinds(changes, (Remove,))
    partition = _common_partition([item.key for item in changes], config)
    return partition, [
        TableRemoval(
            key=full_key(item.key, config).data,
            version=ANY_VERSION if item.version is None else whole("version", item.version),
        )
        for item in changes
    ]


def entry_of(stored: TableEntry, config: TableConfig) -> Entry:
    """The entry as users see it. Raises CorruptDataError if its value cannot be read."""
    edge = config.primary_key_bytes
    return Entry(primary=stored.key[:edge], secondary=stored.key[edge:], value=stored.value, version=stored.version)


def _check_kinds(changes: object, kinds: tuple[type, ...]) -> None:
    names = " or ".join(kind.__name__ for kind in kinds)
    if not isinstance(changes, Sequence) or isinstance(changes, str | bytes | bytearray | memoryview):
        raise InvalidArgumentError(f"changes must be a list of {names}", type=type(changes).__name__)
    if not 0 < len(changes) <= TABLE_BATCH_MAX:
        raise InvalidArgumentError(f"one step must make 1 to {TABLE_BATCH_MAX} changes", changes=len(changes))
    for item in changes:
        if not isinstance(item, kinds):
            raise InvalidArgumentError(f"a change must be {names}", type=type(item).__name__)


def _common_partition(keys: Sequence[Key], config: TableConfig) -> int:
    if len({parts_of(key)[0] for key in keys}) > 1:
        raise InvalidArgumentError("keys that change in one step must have the same primary key")
    return full_key(keys[0], config).partition
