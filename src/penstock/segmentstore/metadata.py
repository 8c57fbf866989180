"""Rows of a container: changes since the last checkpoint, layered over the key-value store."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from typing import Protocol

from penstock.model.errors import DamagedRowError
from penstock.ports.keyvalue import KeyValueStore

_PAGE = 1000  # rows of one scan, which bounds the memory of a page

_KNOWN_MAX = 1024  # small rows that stay in memory
_KNOWN_VALUE_BYTES = 2048
"""At most 2 MiB of each container; what is asked for all the time is small: names, records of streams."""


class _Changes:
    """Changed rows (None: deleted), their keys in order, and the ranges deleted before them.

    Ranges cover whole prefixes, none a prefix of another: two ranges are equal or disjoint. ``created``: keys
    of rows that the store does not hold. A deletion of such a row leaves no trace.
    """

    __slots__ = ("_starts", "created", "keys", "ranges", "rows")

    def __init__(self) -> None:
        self.created: dict[bytes, None] = {}
        self.rows: dict[bytes, bytes | None] = {}
        self.keys: list[bytes] = []
        self.ranges: dict[bytes, bytes] = {}
        self._starts: list[bytes] = []

    def put(self, key: bytes, value: bytes | None) -> int:
        """Returns how many bytes the changes grew by."""
        old = self.rows.get(key, b"") or b""
        if key not in self.rows:
            insort(self.keys, key)
        self.rows[key] = value
        return len(key) + len(value or b"") - len(old)

    def add(self, key: bytes, value: bytes) -> int:
        """As ``put``, for a row that neither the changes nor the store hold."""
        self.created[key] = None
        return self.put(key, value)

    def delete(self, key: bytes) -> int:
        """Returns as ``put``."""
        if key not in self.created:
            return self.put(key, None)
        del self.created[key], self.keys[bisect_left(self.keys, key)]
        return -len(key) - len(self.rows.pop(key) or b"")

    def delete_range(self, start: bytes, end: bytes, *, stored: bool = True) -> None:
        low, high = bisect_left(self.keys, start), bisect_left(self.keys, end)
        for key in self.keys[low:high]:
            del self.rows[key]
            self.created.pop(key, None)
        del self.keys[low:high]
        if not stored:
            return
        if start not in self.ranges:
            insort(self._starts, start)
        self.ranges[start] = end

    def between(self, start: bytes, end: bytes) -> Sequence[bytes]:
        return self.keys[bisect_left(self.keys, start) : bisect_left(self.keys, end)]

    def covers(self, key: bytes) -> bool:
        """Whether the key lies in a deleted range."""
        index = bisect_right(self._starts, key) - 1
        return index >= 0 and key < self.ranges[self._starts[index]]

    def is_empty(self) -> bool:
        return not self.rows and not self.ranges


class Outbox(Protocol):
    """Extra rows of each commit that record what it changed."""

    def take(
        self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes], ranges: Sequence[tuple[bytes, bytes]]
    ) -> tuple[Sequence[tuple[bytes, bytes]], Sequence[bytes]]:
        """Rows to put and keys to delete along with these changes."""
        ...

    def taken(self) -> None:
        """The commit is durable."""
        ...


class MetadataRows:
    """Reads see every change at once; the store gets them in one atomic commit per checkpoint.

    A read sees all its rows (a scan: those of each page) as they were at one instant between its call and its return.
    """

    def __init__(self, store: KeyValueStore) -> None:
        self._store = store
        self.outbox: Outbox | None = None
        self._changes = _Changes()
        self._committing: _Changes | None = None
        self._known: dict[bytes, bytes] = {}
        """Rows of the store as they were read since the last commit: nothing else changes them."""
        self.changed_bytes = 0
        self.generation = 0
        """Grows whenever changes leave memory: what was read before may be older than what was seen in ``peek``."""

    @property
    def changed(self) -> bool:
        return not self._changes.is_empty()

    def committed(self) -> MetadataRows:
        """The rows of the last commit, without later changes. Read only."""
        return MetadataRows(self._store)

    def put(self, key: bytes, value: bytes) -> None:
        self.changed_bytes += self._changes.put(key, value)

    def put_new(self, key: bytes, value: bytes) -> None:
        """As ``put``, where no row has the key now. If it is deleted before the next commit, the store never sees it,
        as with short-lived transactions."""
        before = self._committing
        if key in self._changes.rows or (before is not None and (key in before.rows or before.covers(key))):
            self.put(key, value)  # The store has a row, or may have one.
        else:
            self.changed_bytes += self._changes.add(key, value)

    def delete(self, key: bytes) -> None:
        self.changed_bytes += self._changes.delete(key)

    def delete_range(self, bounds: tuple[bytes, bytes], *, stored: bool = True) -> None:
        """Delete all rows with ``start <= key < end`` that were put before. Not ``stored``: all of them were put since the
        last commit began."""
        self._changes.delete_range(*bounds, stored=stored)

    def peek(self, key: bytes) -> tuple[bool, bytes | None]:
        """Whether the row is among the changes, and its value there."""
        for changes in (self._changes, self._committing):
            if changes is not None:
                if key in changes.rows:
                    return True, changes.rows[key]
                if changes.covers(key):
                    return True, None
        return False, None

    async def get_many(self, keys: Sequence[bytes], *, damaged: list[bytes] | None = None) -> list[bytes | None]:
        """The rows, None for each that is absent. ``damaged`` receives the keys of rows that fail their checksum; their
        answer is None. Without ``damaged`` the first of them raises DamagedRowError."""
        rotten: dict[bytes, None] = {}
        while True:
            try:
                found = await self._get_many([key for key in keys if key not in rotten])
            except DamagedRowError as error:
                if damaged is None:
                    raise
                rotten[error.row_key] = None
                continue
            if not rotten:
                return found
            if damaged is not None:
                damaged += rotten
            sound = iter(found)
            return [None if key in rotten else next(sound) for key in keys]

    async def _get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        while True:
            seen = [self.peek(key) for key in keys]
            missing = [key for key, (known, _) in zip(keys, seen, strict=True) if not known]
            if not missing:
                return [value for _, value in seen]
            before = self._moment()
            stored = iter(await self._read(missing))
            if self._moment() == before:
                return [value if known else next(stored) for known, value in seen]

    def _moment(self) -> tuple[int, bool]:
        """A value that changes when a commit begins or ends. If it is equal before and after a read of the store, the
        read is consistent with the changes in memory."""
        return self.generation, self._committing is not None

    async def _read(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        """Rows of the store."""
        known = [self._known.get(key) for key in keys]
        wanted = [key for key, value in zip(keys, known, strict=True) if value is None]
        if not wanted:
            return known
        generation = self.generation
        found = await self._store.get_many(wanted)
        if self.generation == generation:
            for key, value in zip(wanted, found, strict=True):
                if value is not None and len(value) <= _KNOWN_VALUE_BYTES:
                    if len(self._known) >= _KNOWN_MAX:
                        self._known.clear()
                    self._known[key] = value
        fresh = iter(found)
        return [next(fresh) if value is None else value for value in known]

    async def get(self, key: bytes) -> bytes | None:
        return (await self.get_many([key]))[0]

    async def scan(
        self, bounds: tuple[bytes, bytes], *, limit: int, damaged: list[bytes] | None = None
    ) -> list[tuple[bytes, bytes]]:
        """Up to ``limit`` rows with ``start <= key < end``, in key order.

        Rows that fail their checksum are skipped, and their keys are added to ``damaged``; the page is shorter then. Without
        that list the first of them raises DamagedRowError.
        """
        start, end = bounds
        found: list[tuple[bytes, bytes]] = []
        while start < end and len(found) < limit:
            overlay, layers, before = self._overlay(start, end), self._layers(), self._moment()
            rotten: list[bytes] = []
            page, bound = await self._page(start, end, limit, rotten)
            if self._moment() != before:
                continue
            rotten = [key for key in rotten if key not in overlay and not any(layer.covers(key) for layer in layers)]
            if rotten and damaged is None:
                raise DamagedRowError("value fails its checksum", key=rotten[0].hex())
            if damaged is not None:
                damaged += rotten
            rows: dict[bytes, bytes | None] = {
                key: value for key, value in page if not any(layer.covers(key) for layer in layers)
            }
            rows.update((key, value) for key, value in overlay.items() if key < bound)
            found.extend((key, value) for key, value in sorted(rows.items()) if value is not None)
            start = bound
        return found[:limit]

    async def _page(
        self, start: bytes, end: bytes, limit: int, damaged: list[bytes]
    ) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """Up to ``limit`` sound rows of the store, and where the next page begins; ``damaged`` receives the other keys."""
        found: list[tuple[bytes, bytes]] = []
        upto = end
        while start < end:
            try:
                page = await self._store.scan(start, upto, limit=limit - len(found))
            except DamagedRowError as error:
                if not start <= error.row_key < upto:
                    raise  # Pages of the store are damaged: its rows are out of order, and reading would never end.
                upto = error.row_key
                if start >= upto:  # All rows before it were read, or none exist.
                    damaged.append(upto)
                    start, upto = upto + b"\0", end
                continue
            found += page
            if len(found) >= limit:
                return found, found[-1][0] + b"\0"
            if upto == end:
                break
            damaged.append(upto)
            start, upto = upto + b"\0", end
        return found, end

    async def scan_all(
        self, bounds: tuple[bytes, bytes], *, damaged: list[bytes] | None = None
    ) -> list[tuple[bytes, bytes]]:
        """All rows with ``start <= key < end``, in key order, read in pages. ``damaged`` as in ``scan``."""
        start, end = bounds
        found: list[tuple[bytes, bytes]] = []
        while True:
            page = await self.scan((start, end), limit=_PAGE, damaged=damaged)
            found.extend(page)
            if len(page) < _PAGE:
                return found
            start = page[-1][0] + b"\0"

    def _layers(self) -> list[_Changes]:
        """Oldest first."""
        return [self._changes] if self._committing is None else [self._committing, self._changes]

    def _overlay(self, start: bytes, end: bytes) -> Mapping[bytes, bytes | None]:
        rows: dict[bytes, bytes | None] = {}
        for changes in self._layers():
            for key in [key for key in rows if changes.covers(key)]:
                rows[key] = None
            rows.update((key, changes.rows[key]) for key in changes.between(start, end))
        return rows

    async def commit(self) -> None:
        """Make all changes durable in one step. The current changes are taken before the first await.

        Must not run concurrently. If cancelled or failed, the changes stay for the next commit. Raises what
        ``KeyValueStore.commit`` raises.
        """
        taken, self._changes = self._changes, _Changes()
        self._committing = taken
        taken.created.clear()  # Even if this fails, the store may hold them.
        before, self.changed_bytes = self.changed_bytes, 0
        try:
            puts = [(key, value) for key, value in taken.rows.items() if value is not None]
            deletes = [key for key, value in taken.rows.items() if value is None]
            ranges = list(taken.ranges.items())
            more_puts, more_deletes = self.outbox.take(puts, deletes, ranges) if self.outbox is not None else ((), ())
            await self._store.commit([*puts, *more_puts], [*deletes, *more_deletes], delete_ranges=ranges)
            if self.outbox is not None:
                self.outbox.taken()
        except BaseException:
            self._take_back(taken)
            self.changed_bytes += before
            raise
        finally:
            self._committing = None
            self._known.clear()
            self.generation += 1

    def _take_back(self, taken: _Changes) -> None:
        newer, self._changes = self._changes, taken
        # A range deletes rows put before it, so it comes first; later puts come last.
        for start, end in newer.ranges.items():
            taken.delete_range(start, end)
        for key, value in newer.rows.items():
            taken.put(key, value)
