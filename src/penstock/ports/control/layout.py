"""The past, current and future segments of a stream, and their key ranges."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Protocol

from penstock.model.answers.scaling import StreamScaling
from penstock.model.names import StreamName
from penstock.model.segments import KeyRange, SegmentId, SegmentRange
from penstock.model.values.dataclass import dataclass

__all__ = ["ScaleResult"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Successor:
    """A segment that follows; it may be read once all ``predecessors`` are read to their end."""

    range: SegmentRange
    predecessors: Sequence[SegmentId]


class ScaleStatus(enum.Enum):
    IN_PROGRESS = "in progress"
    DONE = "done"
    UNKNOWN_EPOCH = "unknown epoch"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleResult:
    """New segments, and the epoch that was active before."""

    segments: Sequence[SegmentRange]
    epoch_before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochInfo:
    """An epoch of a stream: its segments in key order, and when it was decided, in milliseconds."""

    epoch: int
    created_ms: int
    segments: Sequence[SegmentRange]


class Layout(Protocol):
    """The segments of a stream. All calls that name a stream may raise ScopeNotFoundError and StreamNotFoundError."""

    async def current(self, stream: StreamName) -> Sequence[SegmentRange]:
        """Active segments in key order; empty once the stream is sealed."""
        ...

    async def of_epoch(self, stream: StreamName, epoch: int) -> Sequence[SegmentRange]:
        """Raises InvalidArgumentError for an epoch that never existed."""
        ...

    async def epochs(self, stream: StreamName) -> Sequence[EpochInfo]:
        """All epochs, oldest first. Raises ScopeNotFoundError, StreamNotFoundError."""
        ...

    async def successors(self, stream: StreamName, segment: SegmentId) -> Sequence[Successor]:
        """Empty: the stream ends at this segment, or the segment is still active (then it is not sealed)."""
        ...

    async def ranges(self, stream: StreamName, segments: Sequence[SegmentId]) -> Mapping[SegmentId, KeyRange]:
        """Key ranges of segments that exist or existed."""
        ...

    async def is_active(self, stream: StreamName, segment: SegmentId) -> bool: ...

    async def scale(
        self, stream: StreamName, *, sealed: Sequence[SegmentId], new_ranges: Sequence[KeyRange]
    ) -> ScaleResult:
        """Replace active segments by new ones over the same keys. Raises ScaleConflictError, InvalidArgumentError,
        StreamSealedError."""
        ...

    async def scale_status(self, stream: StreamName, epoch: int) -> ScaleStatus: ...

    async def scaling(self, stream: StreamName) -> StreamScaling:
        """The rates of the active segments, what scaling by rate would do now and why, and its last changes."""
        ...

    async def endpoint(self, segment: str) -> Endpoint:
        """Who serves the segment. No check that it exists."""
        ...
