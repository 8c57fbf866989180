"""Rows of a container that have changed since the last checkpoint, over those in the key-value store."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from typing import Protocol

from penstock.ports.keyvalue import KeyValueStore

_PAGE = 1000


class _Changes:
    """Changed rows (None: deleted), their keys in order, and the ranges deleted before them.

    Ranges are those of whole prefixes, none of which is the beginning of another: they are equal or apart.
    """

    __slots__ = ("_starts", "keys", "ranges", "rows")

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes | None] = {}
        self.keys: list[bytes] = []
        self.ranges: dict[bytes, bytes] = {}
        self._starts: list[bytes] = []

    def put(self, key: bytes, value: bytes | None) -> int:
        """Returns by how many bytes the changes grew."""
        old = self.rows.get(key, b"") or b""
        if key not in self.rows:
            insort(self.keys, key)
        self.rows[key] = value
        return len(key) + len(value or b"") - len(old)

    def delete_range(self, start: bytes, end: bytes) -> None:
        low, high = bisect_left(self.keys, start), bisect_left(self.keys, end)
        for key in self.keys[low:high]:
            del self.rows[key]
        del self.keys[low:high]
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
    """What goes along with each commit, to say what it changed."""

    def take(
        self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes], ranges: Sequence[tuple[bytes, bytes]]
    ) -> tuple[Sequence[tuple[bytes, bytes]], Sequence[bytes]]:
        """Rows to put, and keys to delete, beside these changes."""
        ...

    def taken(self) -> None:
        """The commit is durable."""
        ...


class MetadataRows:
    """Reads see every change at once; the store gets them in one atomic commit per checkpoint.

    A read sees each row as it was at some instant between its call and its return, and never misses a row that was there
    all the while.
    """

    def __init__(self, store: KeyValueStore) -> None:
        self._store = store
        self.outbox: Outbox | None = None
        self._changes = _Changes()
        self._committing: _Changes | None = None
        self.changed_bytes = 0
        self.generation = 0
        """Grows whenever changes leave memory: what was read before may be older than what was seen in ``peek``."""

    @property
    def changed(self) -> bool:
        return not self._changes.is_empty()

    def put(self, key: bytes, value: bytes) -> None:
        self.changed_bytes += self._changes.put(key, value)

    def delete(self, key: bytes) -> None:
        self.changed_bytes += self._changes.put(key, None)

    def delete_range(self, bounds: tuple[bytes, bytes]) -> None:
        """Delete all rows with ``start <= key < end`` that were put before."""
        self._changes.delete_range(*bounds)

    def peek(self, key: bytes) -> tuple[bool, bytes | None]:
        """Whether the row is among the changes, and its value there."""
        for changes in (self._changes, self._committing):
            if changes is not None:
                if key in changes.rows:
                    return True, changes.rows[key]
                if changes.covers(key):
                    return True, None
        return False, None

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        seen = [self.peek(key) for key in keys]
        missing = [key for key, (known, _) in zip(keys, seen, strict=True) if not known]
        if not missing:
            return [value for _, value in seen]
        stored = iter(await self._store.get_many(missing))
        return [value if known else next(stored) for known, value in seen]

    async def get(self, key: bytes) -> bytes | None:
        return (await self.get_many([key]))[0]

    async def scan(self, bounds: tuple[bytes, bytes], *, limit: int) -> list[tuple[bytes, bytes]]:
        """Up to ``limit`` rows with ``start <= key < end``, in key order."""
        start, end = bounds
        found: list[tuple[bytes, bytes]] = []
        while start < end and len(found) < limit:
            overlay = self._overlay(start, end)
            layers = self._layers()
            page = await self._store.scan(start, end, limit=limit)
            full = len(page) >= limit
            bound = page[-1][0] + b"\0" if full else end
            rows: dict[bytes, bytes | None] = {
                key: value for key, value in page if not any(layer.covers(key) for layer in layers)
            }
            rows.update((key, value) for key, value in overlay.items() if key < bound)
            found.extend((key, value) for key, value in sorted(rows.items()) if value is not None)
            start = bound
        return found[:limit]

    async def scan_all(self, bounds: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
        """All rows with ``start <= key < end``, in key order, read in pages."""
        start, end = bounds
        found: list[tuple[bytes, bytes]] = []
        while True:
            page = await self.scan((start, end), limit=_PAGE)
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
        """Make all changes durable in one step. The changes of this instant are taken before the first await.

        Never called twice at once. Cancelled or failed: the changes stay, to go with the next commit. Raises what
        ``KeyValueStore.commit`` raises.
        """
        taken, self._changes = self._changes, _Changes()
        self._committing = taken
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
            self.generation += 1

    def _take_back(self, taken: _Changes) -> None:
        newer, self._changes = self._changes, taken
        # A range deletes what was put before it, so it comes first; what was put since comes last.
        for start, end in newer.ranges.items():
            taken.delete_range(start, end)
        for key, value in newer.rows.items():
            taken.put(key, value)
