"""The asynchronous API of one key-value table."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from penstock.client.options import as_bytes
from penstock.client.retry import retrying
from penstock.client.tables.entries import (
    Change,
    Entry,
    FullKey,
    Insert,
    Key,
    KeyPart,
    Put,
    Remove,
    Replace,
    check_length,
    entry_of,
    full_key,
    puts_of,
    removals_of,
)
from penstock.client.tables.scan import PAGE_ENTRIES, Scan, ScanRange
from penstock.core.streams.table_routing import partition_of
from penstock.model.errors import (
    BadKeyVersionError,
    FencedError,
    InvalidArgumentError,
    KeyNotFoundError,
    NotConnectedError,
    SegmentNotFoundError,
    StorageFullError,
    TableNotFoundError,
    ThrottledError,
    UnavailableError,
)
from penstock.model.names import StreamName, table_segment_name
from penstock.ports.control.plane import ControlPlane
from penstock.ports.control.tables import TableConfig
from penstock.ports.data.tables import ANY_VERSION, KEY_ABSENT, TABLE_BATCH_MAX, TableEntry, Tables
from penstock.ports.files import Buffer
from penstock.ports.rng import Rng

T = TypeVar("T")


class AsyncTable:
    """One key-value table by name. Making one does no I/O; calls raise TableNotFoundError where there is no such table.

    A key is a primary key, or a pair of primary and secondary key; text is UTF-8. Keys have the lengths of the table
    (``config``). Each change is durable when its call returns, and gives the key a larger version.

    Changes are repeated while the store cannot be reached. A ``put`` or an unconditional ``remove`` may then be applied
    twice. If it is not known whether a conditional change was made, NotConnectedError says so: read the key again.
    After a table was deleted and created again with other partitions, make a new object.
    """

    def __init__(self, name: StreamName, segments: Tables, controller: ControlPlane, rng: Rng) -> None:
        self._name = name
        self._segments = segments
        self._controller = controller
        self._rng = rng
        self._config: TableConfig | None = None

    def __repr__(self) -> str:
        return f"<Table {self._name}>"

    @property
    def name(self) -> StreamName:
        """Scope and name; its text is ``scope/table``."""
        return self._name

    async def config(self) -> TableConfig:
        """Partitions and lengths of keys. Raises TableNotFoundError."""
        name = self._name
        self._config = await retrying(lambda: self._controller.tables.get(name.scope, name.stream), self._rng)
        return self._config

    async def exists(self) -> bool:
        """Whether there is such a table."""
        try:
            await self.config()
        except TableNotFoundError:
            return False
        return True

    async def delete(self) -> None:
        """Delete the table with its entries. Raises TableNotFoundError."""
        self._config = None
        await self._controller.tables.delete(self._name.scope, self._name.stream)

    # --- reading ---

    async def get(self, key: Key) -> Entry | None:
        """The entry of the key, or None. Raises InvalidArgumentError (a key of another length), CorruptDataError."""
        return (await self.get_many([key]))[0]

    async def get_many(self, keys: Sequence[Key]) -> list[Entry | None]:
        """The entries of the keys, in order; None where there is none. Not a snapshot. Raises as ``get``."""
        if not isinstance(keys, Sequence) or isinstance(keys, str | bytes | bytearray | memoryview | tuple):
            raise InvalidArgumentError("keys must be a list", type=type(keys).__name__)
        return await self._with_config(lambda config: self._get(keys, config))

    async def _get(self, keys: Sequence[Key], config: TableConfig) -> list[Entry | None]:
        places = [full_key(key, config) for key in keys]
        found: dict[FullKey, Entry | None] = {}
        for partition in sorted({place.partition for place in places}):
            own = list(dict.fromkeys(place for place in places if place.partition == partition))
            segment = table_segment_name(self._name, partition)
            for start in range(0, len(own), TABLE_BATCH_MAX):
                step = own[start : start + TABLE_BATCH_MAX]
                asked = [place.data for place in step]
                stored = await retrying(partial(self._segments.table_get, segment, asked), self._rng)
                for place, item in zip(step, stored, strict=True):
                    found[place] = None if item.version == KEY_ABSENT else entry_of(item, config)
        return [found[place] for place in places]

    def scan(
        self, *, first: KeyPart | None = None, last: KeyPart | None = None, primary: KeyPart | None = None
    ) -> AsyncIterator[Entry]:
        """Entries in the order of their keys' bytes, those of all partitions together.

        ``first`` and ``last`` are the bounds, both inclusive: primary keys or, with ``primary``, secondary keys of that
        primary key. None: no bound. An entry that stays during the scan is never missed; what changes meanwhile may or
        may not be seen. Raises InvalidArgumentError (a key of another length), CorruptDataError.
        """
        return _entries_of(self.pages(first=first, last=last, primary=primary))

    def pages(self, *, first: KeyPart | None, last: KeyPart | None, primary: KeyPart | None) -> Scan:
        """As ``scan``, a page at a time."""
        names = ("first", "last", "primary")
        low, high, one = (
            None if given is None else as_bytes(given, name)
            for name, given in zip(names, (first, last, primary), strict=True)
        )
        return Scan(lambda: self._with_config(lambda config: self._range(config, low, high, one)), self._page)

    async def _range(
        self, config: TableConfig, first: bytes | None, last: bytes | None, primary: bytes | None
    ) -> ScanRange:
        width, rest = config.primary_key_bytes, config.secondary_key_bytes
        if primary is not None:
            check_length("primary key", primary, width)
            width, rest = rest, 0
        for name, bound in (("first key", first), ("last key", last)):
            if bound is not None:
                check_length(name, bound, width)
        numbers = range(config.partitions) if primary is None else [partition_of(primary, config.partitions)]
        head = primary or b""
        return ScanRange(
            config=config,
            partitions=numbers,
            first=head + (b"\0" * width if first is None else first) + b"\0" * rest,
            last=head + (b"\xff" * width if last is None else last) + b"\xff" * rest,
        )

    async def _page(self, partition: int, after: bytes | None, first: bytes, last: bytes) -> Sequence[TableEntry]:
        segment = table_segment_name(self._name, partition)
        try:
            return await retrying(
                lambda: self._segments.table_scan(segment, after=after, limit=PAGE_ENTRIES, first=first, last=last),
                self._rng,
            )
        except SegmentNotFoundError as error:
            self._config = None
            raise self._gone() from error

    # --- changing ---

    async def put(self, key: Key, value: Buffer | str) -> int:
        """Set the value of the key, whatever is there, and return its version.

        Raises InvalidArgumentError (a key of another length), EventTooLargeError (a value over 1016 KiB),
        StorageFullError. Nothing was changed then.
        """
        return (await self.update([Put(key, value)]))[0]

    async def insert(self, key: Key, value: Buffer | str) -> int:
        """Set the value of the key if it is absent, and return its version.

        Raises BadKeyVersionError (the key exists), and as ``put``. Nothing was changed then.
        """
        return (await self.update([Insert(key, value)]))[0]

    async def replace(self, key: Key, value: Buffer | str, version: int) -> int:
        """Set the value of the key if it has this version, and return the new version.

        Raises BadKeyVersionError (it has another version), KeyNotFoundError (it is absent), and as ``put``. Nothing was
        changed then.
        """
        return (await self.update([Replace(key, value, version)]))[0]

    async def remove(self, key: Key, version: int | None = None) -> None:
        """Remove the key; with ``version``, only if it has this version. An absent key without ``version`` is no error.

        Raises BadKeyVersionError, KeyNotFoundError, InvalidArgumentError. Nothing was changed then.
        """
        await self.remove_many([Remove(key, version)])

    async def update(self, changes: Sequence[Change]) -> Sequence[int]:
        """Make several changes of one primary key in one step, all or none, and return the versions in order.

        At most 256 changes, of 16 MiB together. Each condition is checked against the state before the step. Of changes of
        the same key the last one counts. Raises as ``replace``, and InvalidArgumentError for keys of several primary keys.
        """
        return await self._with_config(lambda config: self._update(changes, config))

    async def _update(self, changes: Sequence[Change], config: TableConfig) -> Sequence[int]:
        partition, puts = puts_of(changes, config)
        segment = table_segment_name(self._name, partition)
        conditional = any(put.version != ANY_VERSION for put in puts)
        return await self._changing(lambda: self._segments.table_update(segment, puts), conditional=conditional)

    async def remove_many(self, removals: Sequence[Remove]) -> None:
        """Remove several keys of one primary key in one step, all or none. At most 256.

        Raises as ``remove``, and InvalidArgumentError for keys of several primary keys.
        """
        await self._with_config(lambda config: self._remove(removals, config))

    async def _remove(self, given: Sequence[Remove], config: TableConfig) -> None:
        partition, removals = removals_of(given, config)
        segment = table_segment_name(self._name, partition)
        conditional = any(item.version != ANY_VERSION for item in removals)
        await self._changing(lambda: self._segments.table_remove(segment, removals), conditional=conditional)

    async def _changing(self, change: Callable[[], Awaitable[T]], *, conditional: bool) -> T:
        """The answer of the change, repeated while the store cannot be reached."""
        lost: UnavailableError | FencedError | None = None

        async def attempt() -> T:
            nonlocal lost
            try:
                return await change()
            except (StorageFullError, ThrottledError):
                raise
            except (UnavailableError, FencedError) as error:
                lost = error
                raise

        try:
            return await retrying(attempt, self._rng)
        except (BadKeyVersionError, KeyNotFoundError) as error:
            if lost is None or not conditional:
                # Users know the table and the key, not its segment.
                fields = {name: value for name, value in error.fields.items() if name != "segment"}
                raise type(error)(error.message, table=str(self._name), **fields) from None
            # The attempt whose answer was lost may be what changed the version.
            raise NotConnectedError(
                "connection was lost during a conditional change, which may or may not have been made; read the keys",
                table=str(self._name),
                lost=str(lost),
            ) from error

    async def _with_config(self, work: Callable[[TableConfig], Awaitable[T]]) -> T:
        """The answer of ``work``; once more with a fresh configuration where the known one is that of a deleted table."""
        known = self._config
        try:
            return await work(known or await self.config())
        except SegmentNotFoundError:
            fresh = await self.config()
        except InvalidArgumentError:
            if known is None:
                raise
            fresh = await self.config()
            if fresh == known:
                raise
        try:
            return await work(fresh)
        except SegmentNotFoundError as error:
            raise self._gone() from error

    def _gone(self) -> TableNotFoundError:
        return TableNotFoundError("no such key-value table", scope=self._name.scope, table=self._name.stream)


async def _entries_of(pages: Scan) -> AsyncIterator[Entry]:
    while page := await pages.next_page():
        for entry in page:
            yield entry
