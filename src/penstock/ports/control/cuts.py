"""Positions in a stream, and the data between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.model.cuts import StreamCut
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId
from penstock.model.values.dataclass import dataclass
from penstock.ports.control.watermarks import Watermarks


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSpan:
    """Bytes ``start <= offset < end`` of a segment, and how many events they hold; None if that is no longer known."""

    segment: SegmentId
    start: int
    end: int
    events: int | None


class Cuts(Watermarks, Protocol):
    """Cuts of a stream, and the times that writers note at them.

    All calls may raise ScopeNotFoundError and StreamNotFoundError.
    """

    async def head(self, stream: StreamName) -> StreamCut: ...

    async def tail(self, stream: StreamName) -> StreamCut:
        """A cut at the current end. Also for sealed streams."""
        ...

    async def segments_between(self, stream: StreamName, start: StreamCut, end: StreamCut) -> Sequence[SegmentId]:
        """All segments from ``start`` to ``end``, both included, oldest first. Unbounded: head, tail. Raises
        InvalidCutError if ``end`` is before ``start``."""
        ...

    async def measure(self, stream: StreamName, start: StreamCut, end: StreamCut) -> Sequence[SegmentSpan]:
        """The exact data from one cut to a later one: non-empty parts of segments, oldest segment first, including
        those truncated or deleted since. An unbounded ``end`` is the tail.

        Raises InvalidCutError (not a cut of the stream, an unbounded ``start``, an ``end`` before it)."""
        ...

    async def before(self, stream: StreamName, cut: StreamCut, events: int) -> StreamCut:
        """The cut with ``events`` events between it and ``cut``, or a few less where segments end; the head if there are
        no more. All segments go back together, each in proportion to its bytes. An unbounded ``cut`` is the tail.

        Raises InvalidArgumentError (``events`` below 0, or events there were never counted), InvalidCutError (not a cut
        of the stream, or a segment of it waits for an older one)."""
        ...

    async def is_valid(self, stream: StreamName, cut: StreamCut) -> bool: ...
