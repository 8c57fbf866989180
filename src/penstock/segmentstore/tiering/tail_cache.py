"""The tail cache: bytes that are not tiered yet or were tiered recently.

Large appends are kept as the views that they arrived in. Small ones are copied into shared blocks, so that they neither
pin a receive buffer nor cost an object each. An entry begins and ends at append boundaries.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence

from penstock.core.segments.rolling import block_cut
from penstock.ports.files import Buffer

LARGE_BYTES = 16 << 10
"""From this size on an append's own buffer is kept: below, copying is cheaper than pinning."""

_BLOCK_MIN = 512  # bytes of the first block of a segment
_BLOCK_MAX = 64 << 10  # bytes of the largest block
_COMPACT_MIN = 1024  # entries of the queue before it is compacted


class Entry:
    """Bytes ``start <= offset < end`` of a segment. ``address`` is the lowest log address that holds any of them.

    ``numbers``: the last event number in it of each writer; None if not needed, as for merged bytes. ``first_ms``,
    ``last_ms``: the wall clock when the segment got its first and its last append.
    """

    __slots__ = ("address", "capacity", "data", "end", "events", "first_ms", "last_ms", "numbers", "start", "tiered")

    def __init__(
        self, start: int, end: int, data: Buffer, *, capacity: int, events: int, address: int, time_ms: int
    ) -> None:
        self.first_ms = self.last_ms = time_ms
        self.start = start
        self.end = end
        self.data: Buffer | None = data
        self.capacity = capacity
        self.events = events
        self.address = address
        self.tiered = False
        self.numbers: dict[int, int] | None = None

    def view(self, start: int, end: int) -> memoryview:
        """A view of part of the entry, by segment offsets."""
        return memoryview(self.data or b"")[start - self.start : end - self.start]


class CacheMemory:
    """Bytes of all tail caches of a store; evicts tiered bytes, oldest first, above ``limit_bytes``.

    Both limits can be changed while the store runs. Appends are throttled at ``unflushed_limit_bytes``.
    """

    __slots__ = (
        "_compact_at",
        "_evictable",
        "_most",
        "cached_bytes",
        "limit_bytes",
        "on_limit",
        "queued_bytes",
        "unflushed_bytes",
        "unflushed_limit_bytes",
    )

    def __init__(self, limit_bytes: int, unflushed_limit_bytes: int = 256 << 20) -> None:
        self._most = limit_bytes, unflushed_limit_bytes
        self.limit_bytes = limit_bytes
        self.unflushed_limit_bytes = unflushed_limit_bytes
        self.cached_bytes = 0
        self.unflushed_bytes = 0
        self.queued_bytes = 0
        self.on_limit: dict[Callable[[], None], None] = {}
        """Called after the limits have changed: what was little under the old ones may now be too much."""
        self._evictable: deque[tuple[TailCache, Entry]] = deque()
        self._compact_at = _COMPACT_MIN

    def allow(self, limit_bytes: int, unflushed_limit_bytes: int) -> None:
        """Change both limits, up to their first values. Evictable bytes beyond are dropped at once."""
        self.limit_bytes = min(limit_bytes, self._most[0])
        self.unflushed_limit_bytes = min(unflushed_limit_bytes, self._most[1])
        self.trim()
        for changed in self.on_limit:
            changed()

    def tiered(self, cache: TailCache, entry: Entry) -> None:
        """The entry is tiered and may be evicted."""
        self._evictable.append((cache, entry))
        if len(self._evictable) >= self._compact_at:
            # Truncated entries stay listed behind a live one; without this the list would grow forever.
            self._evictable = deque(item for item in self._evictable if item[1].data is not None)
            self._compact_at = max(_COMPACT_MIN, 2 * len(self._evictable))

    def room_for(self, size_bytes: int) -> int:
        """``size_bytes`` if a block may take that much before it is filled, else 0. Tiered bytes make room for it."""
        self.trim()
        fits = self.cached_bytes + size_bytes <= self.limit_bytes
        return size_bytes if fits or self._evictable else 0

    def trim(self) -> None:
        while self._evictable and (self.cached_bytes > self.limit_bytes or self._evictable[0][1].data is None):
            cache, entry = self._evictable.popleft()
            if entry.data is not None:
                cache.discard(entry)


class TailCache:
    """Entries of one segment in order of offset. There may be gaps: evicted and merged ranges.

    ``behind``: for each writer with untiered bytes, its last number before them.
    """

    __slots__ = ("_entries", "_memory", "_open", "_starts", "_tiered_bytes", "behind", "untiered", "untiered_bytes")

    def __init__(self, memory: CacheMemory) -> None:
        self._memory = memory
        self._starts: list[int] = []
        self._entries: list[Entry] = []
        self._open: Entry | None = None
        self._tiered_bytes = 0
        self.untiered: deque[Entry] = deque()
        self.untiered_bytes = 0
        self.behind: dict[int, int] = {}

    def append(self, offset: int, data: Buffer, events: int, address: int, time_ms: int) -> None:
        """Cache an append that has become durable. Its offset is the segment's length before it."""
        size = len(data)
        if size >= LARGE_BYTES:
            # The owner of a bytearray may change or resize it later; a view only prevents resizing.
            kept = bytes(data) if type(data) is bytearray else data
            self._add(
                Entry(offset, offset + size, kept, capacity=size, events=events, address=address, time_ms=time_ms)
            )
            self._open = None
        else:
            entry = self._open
            if entry is None or entry.end != offset or entry.capacity - (offset - entry.start) < size:
                # Block sizes double, so that a segment with ten bytes does not hold 64 KiB. The first block after tiering
                # has room for as much as was tiered, unless most of the memory is held by such blocks.
                before = 2 * entry.capacity if entry else self._memory.room_for(self._tiered_bytes)
                capacity = min(_BLOCK_MAX, max(_BLOCK_MIN, 2 * size, before))
                entry = Entry(
                    offset, offset, bytearray(capacity), capacity=capacity, events=0, address=address, time_ms=time_ms
                )
                self._add(entry)
                self._open = entry
            at = offset - entry.start
            entry.data[at : at + size] = data  # type: ignore[index]
            entry.end = offset + size
            entry.events += events
            entry.last_ms = time_ms
        self.untiered_bytes += size
        self._memory.unflushed_bytes += size

    def wrote(self, writer: int, number: int, before: int) -> None:
        """The last append came from this writer, up to its event ``number``; ``before`` was its last number until
        then."""
        if self.untiered:
            if writer not in self.behind:
                self.behind[writer] = before
            entry = self.untiered[-1]
            if entry.numbers is None:
                entry.numbers = {writer: number}
            else:
                entry.numbers[writer] = number

    def _passed(self, entry: Entry) -> None:
        """The oldest untiered entry was tiered, or is no longer needed."""
        if not self.untiered:
            self.behind.clear()
        elif entry.numbers:
            self.behind.update(entry.numbers)
        entry.numbers = None

    def waiting_writers(self) -> dict[int, int]:
        """``behind``, only for writers that still have untiered bytes."""
        waiting: dict[int, None] = {}
        for entry in self.untiered:
            if entry.numbers:
                waiting.update(dict.fromkeys(entry.numbers))
        if len(waiting) < len(self.behind):
            self.behind = {writer: number for writer, number in self.behind.items() if writer in waiting}
        return self.behind

    def _add(self, entry: Entry) -> None:
        self._starts.append(entry.start)
        self._entries.append(entry)
        self.untiered.append(entry)
        self._memory.cached_bytes += entry.capacity

    def adopt(self, other: TailCache, shift: int, time_ms: int) -> None:
        """Take over all entries of another cache, shifted by ``shift`` bytes, behind our own; their time is
        ``time_ms``."""
        self._open = None
        for entry in other._entries:
            entry.numbers = None  # The source's writers are not writers of the target.
            entry.start += shift
            entry.end += shift
            entry.first_ms = entry.last_ms = time_ms
            self._starts.append(entry.start)
            self._entries.append(entry)
            if not entry.tiered:
                self.untiered.append(entry)
            else:
                self._memory.tiered(self, entry)
        self.untiered_bytes += other.untiered_bytes
        other._starts, other._entries, other._open = [], [], None
        other.untiered, other.untiered_bytes = deque(), 0
        other.behind = {}

    def views(self, offset: int, max_bytes: int) -> list[memoryview]:
        """Views of contiguous cached bytes from ``offset`` on; empty if ``offset`` is not cached."""
        index = bisect_right(self._starts, offset) - 1
        found: list[memoryview] = []
        while 0 <= index < len(self._entries) and max_bytes > 0:
            entry = self._entries[index]
            if not entry.start <= offset < entry.end:
                break
            end = min(entry.end, offset + max_bytes)
            found.append(entry.view(offset, end))
            max_bytes -= end - offset
            offset = end
            index += 1
        return found

    def entry_at(self, offset: int) -> Entry | None:
        """The entry that holds the byte at ``offset``."""
        index = bisect_right(self._starts, offset) - 1
        entry = self._entries[index] if index >= 0 else None
        return entry if entry is not None and offset < entry.end else None

    def boundary(self, offset: int) -> int | None:
        """The smallest end of an entry at or behind ``offset``, or ``offset`` if an entry starts there."""
        index = bisect_right(self._starts, offset) - 1
        if index >= 0:
            entry = self._entries[index]
            if entry.start == offset:
                return offset
            if offset <= entry.end:
                return entry.end
        return self._starts[index + 1] if index + 1 < len(self._starts) else None

    def next_blocks(self, block_bytes: int, run_bytes: int) -> Sequence[Sequence[Entry]]:
        """The oldest contiguous untiered bytes, cut into blocks: one, and as many more as ``run_bytes`` allow.

        Later appends are not added to these entries.
        """
        run: list[Entry] = []
        total = 0
        whole = True
        for entry in self.untiered:
            if run and entry.start != run[-1].end:
                break
            if total > max(run_bytes, block_bytes):
                whole = False
                break
            run.append(entry)
            total += entry.end - entry.start
        sizes = [entry.end - entry.start for entry in run]
        blocks: list[Sequence[Entry]] = []
        at = 0
        while at < len(run):
            count = block_cut(sizes[at:], block_bytes)
            if not run[at].events:
                # The rest of a large event: what follows begins its own block, because blocks show where events begin.
                count = next((index for index, entry in enumerate(run[at : at + count]) if entry.events), count)
            blocks.append(run[at : at + count])
            at += count
        if not whole and len(blocks) > 1:
            # Cut off by the run's limit, not by its own size: leave it for the next run.
            blocks.pop()
        if blocks and blocks[-1][-1] is self._open:
            self._open, self._tiered_bytes = None, total
        return blocks

    def mark_tiered(self, upto: int) -> None:
        """The first untiered entries, up to this offset, are durable in a chunk."""
        while self.untiered and self.untiered[0].end <= upto:
            entry = self.untiered.popleft()
            self._settled(entry)
            entry.tiered = True
            self._passed(entry)
            self._memory.tiered(self, entry)
        self._memory.trim()

    def drop_before(self, offset: int) -> None:
        """Drop the entries that lie completely before ``offset``, tiered or not."""
        count = bisect_right(self._starts, offset)
        while count and self._entries[count - 1].end > offset:
            count -= 1
        for entry in self._entries[:count]:
            self._forget(entry)
        del self._entries[:count], self._starts[:count]
        while self.untiered and self.untiered[0].end <= offset:
            self._passed(self.untiered.popleft())

    def clear(self) -> None:
        for entry in self._entries:
            self._forget(entry)
        self._entries, self._starts, self._open = [], [], None
        self.untiered.clear()
        self.behind.clear()

    def discard(self, entry: Entry) -> None:
        """Drop one tiered entry."""
        index = bisect_left(self._starts, entry.start)
        if index < len(self._entries) and self._entries[index] is entry:
            del self._entries[index], self._starts[index]
            self._forget(entry)

    def drop_tiered(self, start: int, end: int) -> None:
        """Drop the tiered entries that hold a byte of ``start <= offset < end``."""
        low = max(0, bisect_right(self._starts, start) - 1)
        high = bisect_left(self._starts, end)
        for entry in [item for item in self._entries[low:high] if item.tiered and item.end > start]:
            self.discard(entry)

    def _forget(self, entry: Entry) -> None:
        if not entry.tiered:
            self._settled(entry)
        if entry is self._open:
            self._open = None
        self._memory.cached_bytes -= entry.capacity
        entry.data = None

    def _settled(self, entry: Entry) -> None:
        size = entry.end - entry.start
        self.untiered_bytes -= size
        self._memory.unflushed_bytes -= size
