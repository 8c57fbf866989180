"""One segment in memory: its durable state, and its state once the queued operations are durable."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TypeAlias

from penstock.codec.store.rows import ChunkRecord, SegmentRecord
from penstock.core.segments.placement import is_transaction_name, is_transient_name
from penstock.model.errors import CorruptDataError, InvalidArgumentError, PenstockError
from penstock.model.values.dataclass import dataclass
from penstock.ports.data.chunks import ChunkBlock
from penstock.ports.data.segments import SegmentInfo
from penstock.ports.data.tables import TableKind
from penstock.ports.files import Buffer
from penstock.segmentstore.tiering.tail_cache import CacheMemory, TailCache


class Gate(Protocol):
    """Counts what appends add to a segment, and refuses those beyond a limit."""

    def take(self, segment: Segment, size_bytes: int, events: int, *, single: bool = True) -> PenstockError | None:
        """Count an append that is about to be queued, or return the error that refuses it. Not ``single``: a run of
        appends; if it reaches a limit it is refused, and each append has to be decided by itself."""
        ...

    def count(self, segment: Segment, size_bytes: int, events: int) -> None:
        """The segment grows or shrinks without a check."""
        ...


class Waiter(Protocol):
    """A read parked at a segment's tail."""

    def wake(self) -> None:
        """The segment has changed; called once. Must not fail."""
        ...


KIND_PLAIN, KIND_HASH, KIND_SORTED = 0, 1, 2  # kinds of segments, as stored (docs/formats/metadata.md, SEGMENT)
TABLE_KINDS = {TableKind.HASH: KIND_HASH, TableKind.SORTED: KIND_SORTED}


class AttributeState:
    """An attribute or a writer's last event number: its pending value (once queued operations are durable), and its
    durable one.

    ``fixed``: set as an attribute, or by an earlier version that did not distinguish them. It never expires.
    """

    __slots__ = ("durable", "fixed", "pending")

    def __init__(self, value: int, *, fixed: bool = False) -> None:
        self.pending = value
        self.durable = value
        self.fixed = fixed


class Chunk:
    """A chunk of a segment. The byte of segment offset ``o`` is at ``o - start`` in it; only its first ``length`` bytes
    are valid.

    ``blocks`` are in chunk positions, not segment offsets, so that a merge moves a chunk without changing them; None
    until needed. ``freed`` bytes at its head were freed. ``event_count``: None until its blocks were summed.
    ``joined_ms``: when a merge moved it here; its blocks may be older than their neighbours in the segment.
    """

    __slots__ = ("block_count", "blocks", "event_count", "freed", "joined_ms", "length", "name", "start")

    def __init__(
        self,
        name: str,
        start: int,
        *,
        length: int = 0,
        freed: int = 0,
        block_count: int = 0,
        event_count: int | None = 0,
        joined_ms: int | None = None,
    ) -> None:
        self.joined_ms = joined_ms
        self.name = name
        self.start = start
        self.length = length
        self.freed = freed
        self.block_count = block_count
        self.event_count = event_count
        self.blocks: list[ChunkBlock] | None = [] if block_count == 0 else None

    @property
    def end(self) -> int:
        return self.start + self.length

    def record(self) -> ChunkRecord:
        return ChunkRecord(
            name=self.name,
            length=self.length,
            freed=self.freed,
            block_count=self.block_count,
            event_count=self.event_count,
            joined_ms=self.joined_ms,
        )


class ChunkList:
    """Chunks of one segment, in order of offset. Gaps are bytes not tiered yet."""

    __slots__ = ("_starts", "items")

    def __init__(self) -> None:
        self.items: list[Chunk] = []
        self._starts: list[int] = []

    def add(self, chunk: Chunk) -> None:
        index = bisect_right(self._starts, chunk.start)
        self.items.insert(index, chunk)
        self._starts.insert(index, chunk.start)

    def find(self, offset: int) -> Chunk | None:
        """The chunk that holds the byte at ``offset``."""
        index = bisect_right(self._starts, offset) - 1
        return self.items[index] if index >= 0 and offset < self.items[index].end else None

    def covers(self, start: int, end: int) -> bool:
        """Whether chunks hold all of ``start <= offset < end`` without a gap."""
        while start < end:
            chunk = self.find(start)
            if chunk is None:
                return False
            start = chunk.end
        return True

    def take_before(self, offset: int) -> list[Chunk]:
        """Remove and return the chunks that end at or before ``offset``."""
        count = 0
        while count < len(self.items) and self.items[count].end <= offset:
            count += 1
        taken = self.items[:count]
        del self.items[:count], self._starts[:count]
        return taken

    def between(self, start: int, end: int) -> list[Chunk]:
        """The chunks that hold a byte of ``start <= offset < end``, in order."""
        index = max(0, bisect_right(self._starts, start) - 1)
        found: list[Chunk] = []
        for chunk in self.items[index:]:
            if chunk.start >= end:
                break
            if chunk.end > start:
                found.append(chunk)
        return found

    def replace(self, chunk: Chunk, by: Chunk) -> None:
        """Replace a listed chunk by another one that begins at the same offset."""
        self.items[bisect_right(self._starts, chunk.start) - 1] = by

    def take_all(self) -> list[Chunk]:
        taken, self.items, self._starts = self.items, [], []
        return taken

    def holds(self, chunk: Chunk) -> bool:
        index = bisect_right(self._starts, chunk.start) - 1
        return index >= 0 and self.items[index] is chunk


@dataclass(slots=True)
class TableState:
    """State of a table: its number of entries, and the pending changes of keys.

    ``next_versions`` holds the version (``KEY_ABSENT``: removed) and the position of the change that will set it: two
    removals of one key differ only in the position.
    """

    entry_count: int
    next_entry_count: int
    next_versions: dict[bytes, tuple[int, int]]


class Segment:
    """State of a segment. Fields that begin with ``next_`` include the queued operations; readers never see them.

    ``kept_offset <= start_offset``: readers no longer see the bytes in between; they stay in memory and on disk like
    visible ones.
    ``is_part``: a transaction or transient segment, to be merged. ``gate`` checks appends if they are limited.
    ``change_mark``: the mark at which the segment was last noted as changed. ``marks``: the rows about writers with
    untiered bytes (``tiering.flushed``); False: none, None: unknown. ``stored``: the key-value store may hold rows of
    it; False if it was created since the last checkpoint, so that all of it is in memory. ``pins``: how many calls keep
    it in memory (``pinned``).
    """

    __slots__ = (
        "attributes",
        "cache",
        "change_mark",
        "chunks",
        "dirty",
        "dirty_attributes",
        "event_count",
        "freed_bytes",
        "gate",
        "gone",
        "is_part",
        "is_transient",
        "kept_offset",
        "key_bytes",
        "kind",
        "length",
        "marks",
        "modified_ms",
        "name",
        "next_events",
        "next_gone",
        "next_kept",
        "next_length",
        "next_sealed",
        "next_start",
        "open_chunk",
        "pending_operations",
        "pins",
        "queued_attributes",
        "rollover_bytes",
        "sealed",
        "start_offset",
        "stored",
        "table",
        "touched",
        "uid",
        "untiered_since",
        "waiters",
    )

    def __init__(self, uid: int, record: SegmentRecord, memory: CacheMemory) -> None:
        self.uid = uid
        self.name = record.name
        self.kind = record.kind
        self.key_bytes = record.key_bytes
        self.rollover_bytes = record.rollover_bytes
        self.start_offset = self.next_start = record.start_offset
        self.kept_offset = self.next_kept = record.kept_offset
        self.length = self.next_length = record.length
        self.sealed = self.next_sealed = record.sealed
        self.gone = self.next_gone = False
        self.modified_ms = record.modified_ms
        self.event_count = self.next_events = record.event_count
        self.is_transient = is_transient_name(record.name)
        self.is_part = self.is_transient or is_transaction_name(record.name)
        self.gate: Gate | None = None
        self.change_mark = 0
        self.freed_bytes = record.freed_bytes
        self.marks: dict[int, int] | bool | None = False
        self.table: TableState | None = None
        if record.kind != KIND_PLAIN:
            self.table = TableState(record.entry_count, record.entry_count, {})
        self.attributes: dict[int, AttributeState] = {}
        self.dirty_attributes: dict[int, None] = {}
        self.queued_attributes: dict[int, int] = {}
        """How many queued operations set each attribute, appends not counted."""
        self.dirty = False
        self.stored = False
        self.cache = TailCache(memory)
        self.chunks = ChunkList()
        self.open_chunk: Chunk | None = None
        self.waiters: dict[Waiter, None] = {}
        self.pending_operations = 0
        self.pins = 0
        self.touched = True
        self.untiered_since = 0.0

    def record(self) -> SegmentRecord:
        return SegmentRecord(
            name=self.name,
            kind=self.kind,
            key_bytes=self.key_bytes,
            rollover_bytes=self.rollover_bytes,
            start_offset=self.start_offset,
            length=self.length,
            sealed=self.sealed,
            modified_ms=self.modified_ms,
            event_count=self.event_count,
            freed_bytes=self.freed_bytes,
            entry_count=self.table.entry_count if self.table else 0,
            kept_offset=self.kept_offset,
        )

    def info(self) -> SegmentInfo:
        return SegmentInfo(
            name=self.name,
            start_offset=self.start_offset,
            length=self.length,
            sealed=self.sealed,
            last_modified_ms=self.modified_ms,
            kept_offset=self.kept_offset if self.kept_offset < self.start_offset else None,
            event_count=self.event_count,
        )

    def require_table(self) -> TableState:
        """The table's own state. Raises InvalidArgumentError for a plain segment."""
        if self.table is None:
            raise InvalidArgumentError("segment is not a table", segment=self.name)
        return self.table

    def require_plain(self) -> Segment:
        """Self. Raises InvalidArgumentError for a table."""
        if self.table is not None:
            raise InvalidArgumentError("segment is a table", segment=self.name)
        return self

    def forget_pending(self) -> None:
        """The queued operations will not happen: return to the durable state."""
        if self.gate is not None:
            self.gate.count(self, self.length - self.next_length, self.event_count - self.next_events)
        self.next_start, self.next_kept, self.next_length = self.start_offset, self.kept_offset, self.length
        self.next_events = self.event_count
        self.next_sealed, self.next_gone = self.sealed, self.gone
        self.pending_operations = 0
        for state in self.attributes.values():
            state.pending = state.durable
        self.queued_attributes.clear()
        if self.table is not None:
            self.table.next_entry_count = self.table.entry_count
            self.table.next_versions.clear()

    def forget_settled(self) -> None:
        """Evict attributes that no queued operation changes and whose current value is in the rows.

        Equal values are not enough: of two queued changes, the second may restore the durable value. Appends alone cannot,
        because their numbers only grow.

        A caller that is loading an attribute meanwhile must retry: the row it read may be older than the evicted value.
        """
        self.attributes = {
            key: state
            for key, state in self.attributes.items()
            if state.pending != state.durable or key in self.dirty_attributes or key in self.queued_attributes
        }

    def attribute_queued(self, key: int) -> None:
        """An operation that sets the attribute is queued: the attribute stays in memory until ``attribute_set``."""
        self.queued_attributes[key] = self.queued_attributes.get(key, 0) + 1

    def attribute_set(self, key: int) -> None:
        """The oldest queued operation that sets the attribute is durable."""
        left = self.queued_attributes.pop(key) - 1
        if left:
            self.queued_attributes[key] = left

    def wake(self) -> None:
        """Let the parked reads check again, in order of arrival."""
        waiters, self.waiters = self.waiters, {}
        for waiter in waiters:
            waiter.wake()

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """Keep the segment in memory. Across an await it stays the object that all other code sees and changes.

        Enter it with no await since the lookup. Operations still change a pinned segment. After an await, check ``gone`` and
        ``chunks.holds`` again. Without a pin the object may be replaced, and its answers are outdated (``is_current``).
        """
        self.pins += 1
        try:
            yield
        finally:
            self.pins -= 1

    @property
    def is_idle(self) -> bool:
        """Whether it may be evicted: all of it is in the key-value store and chunks, and no call uses it."""
        return not (
            self.dirty
            or self.dirty_attributes
            or self.pending_operations
            or self.pins
            or self.waiters
            or self.cache.untiered
        )


AppendRow: TypeAlias = tuple[Segment, AttributeState, int, int, int, int, Buffer, int]
"""A decided append: segment, writer's state, writer, last event number, events, offset, data, and bytes of data."""


def bytes_lost(segment: Segment, offset: int) -> CorruptDataError:
    """The error for a durable offset that is neither in memory nor in a chunk: the row of its chunk is lost."""
    return CorruptDataError(
        "row of a chunk is missing: no row says where these bytes are; penstock scrub reports the range",
        segment=segment.name,
        offset=offset,
        length=segment.length,
    )
