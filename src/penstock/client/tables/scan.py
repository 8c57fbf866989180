"""Reads a table in key order, page by page, from all of its partitions at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field

from penstock.client.tables.entries import Entry, entry_of
from penstock.model.values.dataclass import dataclass
from penstock.ports.control.tables import TableConfig
from penstock.ports.data.tables import TableEntry

PAGE_ENTRIES = 256  # of one partition, read at once

ReadPage = Callable[[int, bytes | None, bytes, bytes], Awaitable[Sequence[TableEntry]]]
"""Up to a page of entries of a partition, after a key, within inclusive bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRange:
    """Where a scan reads: the partitions, and inclusive bounds of keys."""

    config: TableConfig
    partitions: Sequence[int]
    first: bytes
    last: bytes


@dataclass(slots=True)
class _Partition:
    number: int
    after: bytes | None = None
    read: deque[TableEntry] = field(default_factory=deque)
    at_end: bool = False


class Scan:
    """Entries in key order. What changes meanwhile may or may not be seen; an entry that stays is never missed.

    ``find`` returns where to read; it is called by the first page. Not for several tasks at once.
    """

    def __init__(self, find: Callable[[], Awaitable[ScanRange]], read: ReadPage) -> None:
        self._find = find
        self._read = read
        self._range: ScanRange | None = None
        self._partitions: list[_Partition] = []

    async def next_page(self) -> Sequence[Entry]:
        """The next entries. Empty: the end. Cancelled or failed: the next call continues where this one was."""
        if self._range is None:
            self._range = await self._find()
            self._partitions = [_Partition(number) for number in self._range.partitions]
        for part in self._partitions:
            if not part.read and not part.at_end:
                page = await self._read(part.number, part.after, self._range.first, self._range.last)
                part.read.extend(page)
                part.at_end = not page
                part.after = page[-1].key if page else part.after
        self._partitions = [part for part in self._partitions if part.read]
        return [entry_of(stored, self._range.config) for stored in self._merged()]

    def _merged(self) -> Sequence[TableEntry]:
        """Entries in key order, until a partition must be read on."""
        found: list[TableEntry] = []
        while self._partitions and all(part.read for part in self._partitions):
            least = min(self._partitions, key=lambda part: part.read[0].key)
            found.append(least.read.popleft())
        return found
