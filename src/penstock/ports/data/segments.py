"""Segments: created, appended to, read, merged, sealed, deleted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from penstock.model.errors import PenstockError
from penstock.model.traces.spans import SpanContext
from penstock.model.values.dataclass import dataclass
from penstock.ports.files import Buffer

NO_EVENT = -(1 << 63)
"""Last event number of a writer that the segment does not know; also "attribute is absent"."""


READ_MAX_BYTES = 2 << 20


APPEND_MAX_BYTES = (1 << 24) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo:
    """Durable state of a segment. ``start_offset <= offset < length`` can be read.

    ``kept_offset``: bytes from there to ``start_offset`` are hidden from readers but kept on disk (see ``truncate``);
    None: none. ``event_count``: events ever appended or merged, truncated ones included.
    """

    name: str
    start_offset: int
    length: int
    sealed: bool
    last_modified_ms: int
    kept_offset: int | None = None
    event_count: int = 0


class Pieces(NamedTuple):
    """The appends of a run: size of the data and number of events of each. None is empty."""

    sizes: Sequence[int]
    counts: Sequence[int]


@dataclass(slots=True, kw_only=True)
class Append:
    """One atomic append, or a run of them. ``data`` is borrowed until the append is done.

    A store in this process may keep a memoryview of 16 KiB or more for reads instead of copying it: the viewed buffer
    must not be written again while it is referenced. A bytearray is always copied.

    ``event_number`` is the writer's highest number in the data, ``event_count`` the number of events. ``previous`` is
    the writer's last stored number as the caller knows it (from ``setup_append`` or its last append).
    ``expected_offset`` makes it conditional on the segment's length. ``trace``: the sampled span that it belongs to, for a
    store in another process.

    ``pieces``: at least two appends that follow each other. Their data are joined, ``event_count`` is their sum, and
    ``event_number`` is the last number; each number is the one before plus the number of events. There is no condition.
    The outcome is that of the same appends one by one. Only ``ServedReads.submit_append`` takes a run.
    """

    segment: str
    writer: UUID
    data: Buffer
    event_number: int
    event_count: int = 1
    previous: int
    expected_offset: int | None = None
    trace: SpanContext | None = None
    pieces: Pieces | None = None

    def singles(self) -> Iterator[Append]:
        """The appends of a run, in order; their data are views."""
        if self.pieces is None:
            yield self
            return
        view, at, previous = memoryview(self.data), 0, self.previous
        number = self.event_number - self.event_count
        for size, count in zip(*self.pieces, strict=True):
            at, number = at + size, number + count
            yield Append(
                segment=self.segment,
                writer=self.writer,
                data=view[at - size : at],
                event_number=number,
                event_count=count,
                previous=previous,
            )
            previous = number


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """A durable append: the segment's length right after it."""

    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendedPart(Appended):
    """The first appends of a run are durable, those up to ``event_number``. The outcome of the others comes later."""

    event_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRead:
    """Bytes from ``offset`` on. ``parts`` are views, valid until the event loop is yielded to unless kept referenced
    (a kept view holds its buffer in memory). ``end_of_segment``: the segment is sealed, and these are its last
    bytes."""

    offset: int
    parts: Sequence[Buffer]
    at_tail: bool
    end_of_segment: bool


AppendDone = Callable[[Appended | PenstockError], None]


class Segments(Protocol):
    """Byte sequences that are appended to and read."""

    async def create_segment(self, name: str, *, rollover_bytes: int = 0) -> None:
        """Raises AlreadyExistsError."""
        ...

    async def setup_append(self, name: str, writer: UUID) -> int:
        """The writer's last event number in the segment, or ``NO_EVENT``. Works on sealed segments too."""
        ...

    async def append(self, request: Append) -> Appended:
        """Append atomically and durably.

        Appends to one segment are ordered by their calls. Raises: SegmentSealedError, WriterFencedError (the stored
        number is not ``previous``), ConditionFailedError (``expected_offset`` is not the length; the writer's state is
        as before), InvalidArgumentError (larger than ``APPEND_MAX_BYTES``, no events, or a number not above
        ``previous``).
        """
        ...

    async def read(self, name: str, offset: int, max_bytes: int, *, wait: bool = True) -> SegmentRead:
        """Read available bytes from ``offset``, at most ``max_bytes``; at the tail, wait for more or for the seal if
        ``wait``.

        Returns only durable bytes. Without ``wait`` an empty read at the tail returns at once.
        Raises: TruncatedError (``offset`` lies before the start), InvalidArgumentError (behind the end of a sealed segment).
        """
        ...

    async def info(self, name: str) -> SegmentInfo: ...

    async def infos(self, names: Sequence[str]) -> Mapping[str, SegmentInfo]:
        """As ``info`` for each, in one call; missing segments are left out."""
        ...

    async def seal(self, name: str) -> int:
        """Seal, and return the final length. Idempotent."""
        ...

    async def count_events(self, name: str, start: int, end: int) -> int:
        """How many events lie in ``start <= offset < end``, exactly. Both are event boundaries between the oldest kept byte
        and the length. Raises TruncatedError, InvalidArgumentError.

        The writer of an append states its number of events; a transient segment is one event. If data have no matching
        event headers (byte streams) and a bound cuts a block, its events count in proportion to its bytes."""
        ...

    async def next_event_boundary(self, name: str, offset: int) -> int:
        """The smallest known event boundary at or behind ``offset``; the length if none is known."""
        ...

    async def delete(self, name: str) -> None: ...

    async def create_transient(self, parent: str, writer: UUID) -> str:
        """Create a segment to be merged into ``parent``, and return its name."""
        ...

    async def merge(self, target: str, source: str) -> int:
        """Move all of ``source`` to the end of ``target`` atomically; ``source`` no longer exists afterwards. Returns
        the new length of the target. If the source was already merged into this target, returns the target's length.
        Raises: SegmentSealedError (target), InvalidArgumentError (a truncated source), SegmentNotFoundError."""
        ...


class SegmentBatches(Protocol):
    """Changes of many segments with one sync. Each is None if the store does not support it."""

    @property
    def create_fresh(self) -> Callable[[Sequence[str]], Awaitable[None]] | None:
        """``create_fresh(names)`` creates plain segments without looking for existing ones: only a caller whose names are
        unique may use it. Raises what ``create_segment`` raises, once all have ended."""
        ...

    @property
    def merge_run(self) -> Callable[[str, Sequence[str]], Awaitable[int]] | None:
        """``merge_run(target, sources)`` merges sources in order; returns how many. It stops at the first source that
        does not exist or that ``merge`` would refuse."""
        ...
