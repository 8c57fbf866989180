"""What a segment store offers, in process or over the wire."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol
from uuid import UUID

from penstock.model.errors import CorruptDataError, PenstockError
from penstock.ports.files import Buffer

NO_EVENT = -(1 << 63)
"""Last event number of a writer that the segment does not know; also "attribute is absent"."""

READ_MAX_BYTES = 2 << 20
APPEND_MAX_BYTES = (1 << 24) - 1
KEY_MAX_BYTES = 8192
VALUE_MAX_BYTES = (1 << 20) - 8192
TABLE_BATCH_MAX = 256

ANY_VERSION = -(1 << 63)
KEY_ABSENT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo:
    """Durable state of a segment. ``start_offset <= offset < length`` can be read.

    ``kept_offset``: bytes from there to ``start_offset`` are gone for readers but kept on disk (see ``truncate``); None:
    none are. ``event_count``: events ever appended or merged, truncated ones included.
    """

    name: str
    start_offset: int
    length: int
    sealed: bool
    last_modified_ms: int
    kept_offset: int | None = None
    event_count: int = 0


@dataclass(slots=True, kw_only=True)
class Append:
    """One atomic append. ``data`` is borrowed until the append is done.

    A store in this process may keep a memoryview of 16 KiB or more for reads instead of copying it: what it views must not
    be written again while it is referenced. A bytearray is always copied.

    ``event_number`` is the writer's highest in the data, ``event_count`` how many it holds. ``previous`` is what the caller
    knows to be the writer's last stored number (from ``setup_append`` or its last append). ``expected_offset`` makes it
    conditional on the segment's length.
    """

    segment: str
    writer: UUID
    data: Buffer
    event_number: int
    event_count: int = 1
    previous: int
    expected_offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """A durable append: the segment's length right after it."""

    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRead:
    """Bytes from ``offset`` on. ``parts`` are views, valid until the event loop is yielded to unless kept referenced
    (a kept view holds its buffer in memory). ``end_of_segment``: sealed, and nothing lies behind these bytes."""

    offset: int
    parts: Sequence[Buffer]
    at_tail: bool
    end_of_segment: bool


class TableKind(enum.Enum):
    HASH = "hash"
    SORTED = "sorted"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEntry:
    """An entry as read. ``version=KEY_ABSENT`` and an empty value: there is no such key."""

    key: bytes
    value: bytes
    version: int


DAMAGED_VERSION = 1 << 62
"""Version of an entry that cannot be read: above all real versions."""


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
class AttributeChange:
    """A change of one attribute, made only where it has the ``expected`` value (``NO_EVENT`` = absent; None = always)."""

    attribute: UUID
    value: int
    expected: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLength:
    """Refuse the batch unless the table is ``length`` long, as ``table_info`` returned it: nothing has changed since."""

    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDelta:
    """Entries changed since a position, oldest change first, removed keys left out."""

    entries: Sequence[TableEntry]
    should_clear: bool
    reached_end: bool
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkBlock:
    """A run of whole appends inside a chunk: its place in the segment, its checksum, how many events it holds.

    ``first_ms`` and ``last_ms``: the store's wall clock, in milliseconds since the Unix epoch, when the segment got the first
    and the last append of it; None where an earlier version wrote it.
    """

    start_offset: int
    end_offset: int
    crc32c: int
    event_count: int
    first_ms: int | None = None
    last_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRange:
    """A chunk that holds bytes of a segment. ``location`` is a path another process can read, or None.

    The byte of segment offset ``o`` lies at ``o - start_offset`` in the chunk. ``blocks`` begin at event boundaries, except
    for those that hold the beginning of no event (``event_count`` 0): they go on with a large one.
    """

    name: str
    location: str | None
    start_offset: int
    end_offset: int
    blocks: Sequence[ChunkBlock]


HOLDER_MAX_BYTES = 512
"""Of the words that say who took a lease."""

LEASE_PARTS_MAX = 100_000
"""The maximum number of tasks under one lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A lease on a segment: until when, by the store's wall clock in milliseconds, and who took it, in words of its own;
    empty where nobody said."""

    id: UUID
    until_ms: int
    holder: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSpace:
    """What a segment takes on disk, and what is still to be given back.

    Of ``pending_free_bytes``: ``kept_bytes`` wait for ``release``; ``leased_bytes`` for ``leases``, the last of which comes
    first and ends at ``leased_until_ms``; ``partial_bytes`` lie before the head inside the first chunk and are too few, or no
    whole block.
    The rest goes with the next checkpoint. All are bytes of events: of each file, its sidecar and a part of its last page
    come to that. Kept bytes that are not tiered yet are on no chunk, and not told of.

    A segment that was deleted has one as long as chunks of it are on disk, with nothing but what is pending.
    """

    name: str
    live_bytes: int
    tiered_bytes: int
    pending_free_bytes: int
    freed_bytes: int
    kept_bytes: int = 0
    leased_bytes: int = 0
    leased_until_ms: int | None = None
    partial_bytes: int = 0
    leases: Sequence[Lease] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedChunk:
    """What an erasure made of a chunk: bytes of the segment with ``start_offset <= offset < end_offset``.

    ``before`` and ``after`` are the SHA-256 of those bytes, ``kept`` that of the same bytes without the ranges of this
    erasure, before as after. ``blanked_bytes``: those that it was the first to erase. ``name_before``: the chunk that was
    replaced.
    """

    name_before: str
    start_offset: int
    end_offset: int
    blanked_bytes: int
    before: bytes
    after: bytes
    kept: bytes


class LimitAction(enum.Enum):
    """What an append beyond a limit meets: QuotaHeldError (try again), QuotaExceededError, or nothing (``NOTIFY``)."""

    HOLD = "hold"
    REJECT = "reject"
    NOTIFY = "notify"


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendLimit:
    """How long the segments of one stream may grow together.

    ``total_bytes`` bounds the sum of the lengths of ``segments`` (truncated bytes included), ``total_events`` that of their
    event counts; None: no bound. An append that would pass a bound is refused, whole; transactions count once merged, and
    take no appends while the stream is at a bound. ``action``: what an append meets that would pass ``total_bytes``, and
    ``total_events`` too where ``events_action`` is None. ``reason``: fields of the error. A limit without bounds lifts it.

    Segments of the stream that are created after count as well, also for later limits that do not name them. One that is
    deleted counts on with the length it had, until a limit does not name it.
    """

    stream: str
    segments: Sequence[str]
    total_bytes: int | None = None
    total_events: int | None = None
    quota_bytes: int | None = None
    quota_events: int | None = None
    action: LimitAction = LimitAction.HOLD
    events_action: LimitAction | None = None
    reason: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentChanges:
    """Segments that have grown or were sealed since a mark, those of transactions and transient ones left out: their merge
    is growth of the target. ``complete=False``: the mark was too old, look at all."""

    mark: int
    names: Sequence[str]
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpace:
    """The disk that a store lives on. ``budget_bytes``: what the store may take of it, None without limit;
    ``used_bytes``: what all its files take; ``free_bytes``: what may still be written."""

    total_bytes: int
    free_bytes: int
    used_bytes: int
    budget_bytes: int | None = None


AppendDone = Callable[[Appended | PenstockError], None]


class SegmentService(Protocol):
    """A store of segments. All effects are durable when a call returns; all are safe to repeat.

    Every call may raise ContainerOfflineError, UnavailableError and its subclasses, and, where a segment is named,
    SegmentNotFoundError.
    """

    async def create_segment(self, name: str, *, rollover_bytes: int = 0) -> None:
        """Raises AlreadyExistsError."""
        ...

    async def setup_append(self, name: str, writer: UUID) -> int:
        """The last event number that the segment holds of this writer, or ``NO_EVENT``. Works on sealed segments too."""
        ...

    async def append(self, request: Append) -> Appended:
        """Append atomically and durably.

        Appends of one segment take their place in call order. Raises: SegmentSealedError, WriterFencedError (the stored
        number is not ``previous``), ConditionFailedError (``expected_offset`` is not the length; the writer's state is as
        before), InvalidArgumentError (larger than ``APPEND_MAX_BYTES``, no events, or a number not above ``previous``).
        """
        ...

    async def read(self, name: str, offset: int, max_bytes: int, *, wait: bool = True) -> SegmentRead:
        """Read from ``offset`` what is there, at most ``max_bytes``; at the tail wait for more, or for the seal, if ``wait``.

        Never returns bytes that a crash could take back. Without ``wait`` an empty read at the tail returns at once.
        Raises: TruncatedError (``offset`` lies before the start), InvalidArgumentError (behind the end of a sealed segment).
        """
        ...

    async def info(self, name: str) -> SegmentInfo: ...

    async def infos(self, names: Sequence[str]) -> Mapping[str, SegmentInfo]:
        """As ``info`` of each, in one call; those that do not exist are left out."""
        ...

    async def seal(self, name: str) -> int:
        """Seal, and return the final length. Idempotent."""
        ...

    async def truncate(self, name: str, offset: int, *, keep: bool = False) -> None:
        """Drop the bytes before ``offset``. At or before the start: nothing happens. Raises InvalidArgumentError beyond the
        length. ``keep``: they are gone for readers, but stay on disk until ``release``, and ``restore`` brings them back.
        Without ``keep`` all is dropped that lies before the new start, what was kept included.
        """
        ...

    async def release(self, name: str, offset: int) -> None:
        """Give back kept bytes before ``offset``, for good. Nothing kept there: nothing happens. Raises
        InvalidArgumentError behind the start."""
        ...

    async def restore(self, name: str, offset: int) -> int:
        """Let readers have the kept bytes from ``offset`` on again; returns where the segment starts now: at ``offset``, or
        at the oldest byte kept where that lies behind it."""
        ...

    async def count_events(self, name: str, start: int, end: int) -> int:
        """How many events lie in ``start <= offset < end``, exactly. Both are event boundaries between the oldest kept byte
        and the length. Raises TruncatedError, InvalidArgumentError.

        An event is what the writer of an append has counted; a transient segment is one. Where data have no event headers
        that agree with that count (byte streams), and a bound cuts a block, its events count in proportion to its bytes."""
        ...

    async def delete(self, name: str) -> None: ...

    async def create_transient(self, parent: str, writer: UUID) -> str:
        """Create a segment to be merged into ``parent``, and return its name."""
        ...

    async def merge(self, target: str, source: str) -> int:
        """Move the whole of ``source`` to the end of ``target`` as one atomic step; ``source`` is gone after. Returns the
        new length of the target. Where the source was merged into this target already, returns the target's length.
        Raises: SegmentSealedError (target), InvalidArgumentError (a truncated source), SegmentNotFoundError."""
        ...

    async def get_attribute(self, name: str, attribute: UUID) -> int:
        """The value, or ``NO_EVENT`` where absent."""
        ...

    async def update_attribute(self, name: str, attribute: UUID, value: int, *, expected: int | None) -> bool:
        """Compare and set (``NO_EVENT`` = absent; None = always). Returns whether it was set."""
        ...

    async def create_table(self, name: str, *, kind: TableKind = TableKind.HASH, key_bytes: int = 0) -> None:
        """Create a table segment; ``SORTED`` ones have keys of exactly ``key_bytes``. Raises AlreadyExistsError."""
        ...

    async def delete_table(self, name: str, *, must_be_empty: bool = False) -> None:
        """Raises NotEmptyError."""
        ...

    async def table_update(self, name: str, puts: Sequence[TablePut | TableCheck | TableLength]) -> Sequence[int]:
        """Apply all or nothing; conditions look at the state before the batch; the last of equal keys wins. Returns a
        version for each put and check, in order: for a put one larger than any before, for a check the version that it asked
        for. Raises: ConditionFailedError (another length), KeyNotFoundError, BadKeyVersionError, EventTooLargeError,
        InvalidArgumentError (more than ``TABLE_BATCH_MAX`` items), UnsupportedError (a check or length, over a wire that has
        none)."""
        ...

    async def table_remove(self, name: str, removals: Sequence[TableRemoval | TableLength]) -> None:
        """As ``table_update``."""
        ...

    async def table_get(self, name: str, keys: Sequence[bytes]) -> Sequence[TableEntry]:
        """One entry per key, in order."""
        ...

    async def table_scan(
        self, name: str, *, after: bytes | None, limit: int, first: bytes | None = None, last: bytes | None = None
    ) -> Sequence[TableEntry]:
        """Up to ``limit`` entries in key order, behind key ``after``, within the inclusive bounds. Empty: the end. Keys that
        neither come nor go during the scan are never missed. An unreadable entry comes as ``DamagedEntry``, here and from
        ``table_get``."""
        ...

    async def table_delta(self, name: str, position: int, limit: int) -> TableDelta:
        """Entries changed at or behind ``position`` (0, or one returned earlier). Raises InvalidArgumentError beyond the
        end."""
        ...

    async def table_info(self, name: str) -> tuple[SegmentInfo, int, int]:
        """Segment info (``length`` is the position behind the last change), entry count, key length."""
        ...

    async def chunk_ranges(self, name: str, start: int, end: int) -> Sequence[ChunkRange]:
        """The tiered part of ``start <= offset < end``, in order; what lies behind the last range is not tiered yet."""
        ...

    async def lease_chunks(self, name: str, lease: UUID, *, until_ms: int, holder: str = "") -> None:
        """Keep the segment's chunks on disk until that wall time, whatever is truncated or deleted. Repeating extends.

        ``holder``: who takes the lease, shown in reports of what holds space; if empty, the earlier one stays. A lease
        counts once, however many segments it holds. Raises InvalidArgumentError (longer than a store allows, or
        ``HOLDER_MAX_BYTES``), ThrottledError (``resource="leases"``: too many)."""
        ...

    async def release_lease(self, lease: UUID) -> None: ...

    async def finish_lease_part(self, lease: UUID, part: int, parts: int) -> None:
        """Note that task number ``part``, from 0, of the ``parts`` tasks under the lease is done. After the last one,
        the lease is released. Repeating a task changes nothing. A restart of the store forgets the count, so the lease
        may hold until its time ends. Raises InvalidArgumentError (not ``0 <= part < parts <= LEASE_PARTS_MAX``)."""
        ...

    async def next_event_boundary(self, name: str, offset: int) -> int:
        """The smallest known event boundary at or behind ``offset``; the length where none is known."""
        ...

    async def event_ranges(self, name: str, offsets: Sequence[int]) -> Sequence[tuple[int, int]]:
        """Where the payloads of the events lie that begin at the offsets: half-open, in order. Events without payload, and
        offsets that come twice, give nothing. What the segment holds by now is tiered. Raises InvalidArgumentError (no event
        begins there), TruncatedError."""
        ...

    async def erase(self, name: str, ranges: Sequence[tuple[int, int]], *, erasure: str) -> Sequence[ErasedChunk]:
        """Blank ranges of bytes for good: zeros of the same length, at the same offsets, for whoever reads from here on.

        When it returns, tier 2 and the caches hold none of them: what held them was overwritten where it can be, and deleted,
        whatever leases it; the log may, until ``wipe_log``. Chunks of truncated data are wiped. A repeat with the same
        ``erasure`` changes nothing and returns the same. Raises SegmentNotFoundError (the segment was deleted, and none of
        its chunks is on disk, leased or not), InvalidArgumentError (ranges overlap or end after the segment),
        CorruptDataError, UnavailableError, OSError. If cancelled or failed, some ranges may be blank; repeat the call.
        """
        ...

    async def erased_ranges(self, name: str, start: int, end: int) -> Sequence[tuple[int, int]]:
        """What was erased of ``start <= offset < end``: half-open, in order. Ranges that touch come as one."""
        ...

    async def wipe_log(self) -> None:
        """Return once no file of any log, spare ones included, holds a byte that was erased before the call. Tiers and
        checkpoints everything. Raises what the storage raises."""
        ...

    async def spaces(self, names: Sequence[str]) -> Mapping[str, SegmentSpace]:
        """What each segment takes, deleted ones included while chunks of them are on disk; absent ones are left out."""
        ...

    async def limit_appends(self, limits: Sequence[AppendLimit]) -> None:
        """Replace the limits of the named streams. In force for every append that is queued after; forgotten at a restart
        of the store. Loads the segments that are not counted yet."""
        ...

    async def limits_reached(self) -> Sequence[str]:
        """Wait until appends have met a limit, of whatever action; returns the streams, each once per limit set. A
        ``NOTIFY`` that the stream is past when it is set counts as met. One caller."""
        ...

    async def changed_segments(self, after: int) -> SegmentChanges:
        """What has grown or was sealed since ``after`` (0, or the last mark; that one is forgotten then). One caller."""
        ...

    async def disk(self) -> DiskSpace:
        """The space of the disk below the store, as of now. Raises UnsupportedError where it knows of none, OSError."""
        ...


class Watch(Protocol):
    """Somebody waits for a segment to change."""

    @property
    def gone(self) -> bool:
        """Whether the segment was deleted, or merged away. Another one may have its name by now."""
        ...

    def cancel(self) -> None:
        """Wait no longer. Does nothing once the change was told."""
        ...


class LocalSegmentService(SegmentService, Protocol):
    """A store in this process, which also takes appends and lets reads wait without a task or a future each."""

    async def flush(self) -> None:
        """Bring to tier 2 what is durable now, and let the log go. Raises what the storage raises."""
        ...

    async def merge(self, target: str, source: str, *, updates: Sequence[AttributeChange] = ()) -> int:
        """As ``SegmentService.merge``, together with changes of the target's attributes: all or nothing, also over a crash.
        Where the source was merged into this target already, no condition is asked. Raises ConditionFailedError too."""
        ...

    def read_now(self, name: str, offset: int, max_bytes: int) -> SegmentRead | None:
        """As ``read`` with ``wait=False``, of what is in memory. None: it takes waiting, or fails; ``read`` tells."""
        ...

    def watch(self, name: str, offset: int, changed: Callable[[], None]) -> Watch | None:
        """Call ``changed`` once, from the event loop, when the segment grows, is sealed, truncated or gone, or its store
        stops. None: ``offset`` does not lie at the tail of an open segment in memory, or too many wait; ``read`` tells.
        ``changed`` must be short: it stands between an append and the next."""
        ...

    def submit_append(self, request: Append, done: AppendDone) -> None:
        """Enqueue at once; ``done`` is called exactly once, from the event loop, in order of submission per segment, with
        the result or with what ``append`` would have raised. Never raises; the segment must have been set up."""
        ...
