"""Segments: created, appended to, read, merged, sealed, deleted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from penstock.model.errors import PenstockError
from penstock.ports.files import Buffer

NO_EVENT = -(1 << 63)
"""Last event number of a writer that the segment does not know; also "attribute is absent"."""


READ_MAX_BYTES = 2 << 20


APPEND_MAX_BYTES = (1 << 24) - 1


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


AppendDone = Callable[[Appended | PenstockError], None]


class Segments(Protocol):
    """Runs of bytes that are appended to and read."""

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

    async def count_events(self, name: str, start: int, end: int) -> int:
        """How many events lie in ``start <= offset < end``, exactly. Both are event boundaries between the oldest kept byte
        and the length. Raises TruncatedError, InvalidArgumentError.

        An event is what the writer of an append has counted; a transient segment is one. Where data have no event headers
        that agree with that count (byte streams), and a bound cuts a block, its events count in proportion to its bytes."""
        ...

    async def next_event_boundary(self, name: str, offset: int) -> int:
        """The smallest known event boundary at or behind ``offset``; the length where none is known."""
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


class SegmentBatches(Protocol):
    """Changes of many segments by one sync. Each is None where the store does not offer it."""

    @property
    def create_fresh(self) -> Callable[[Sequence[str]], Awaitable[None]] | None:
        """``create_fresh(names)`` creates plain segments without looking for existing ones: only a caller whose names are
        unique may use it. Raises what ``create_segment`` raises, once all have ended."""
        ...

    @property
    def merge_run(self) -> Callable[[str, Sequence[str]], Awaitable[int]] | None:
        """``merge_run(target, sources)`` merges sources in their order; returns how many. It ends at the first source that
        does not exist, or that ``merge`` would refuse."""
        ...
