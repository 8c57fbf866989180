"""Positions in a stream, and what lies between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.model.cuts import StreamCut
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSpan:
    """Bytes ``start <= offset < end`` of a segment, and how many events they are; None where nobody can tell any more."""

    segment: SegmentId
    start: int
    end: int
    events: int | None


class Cuts(Protocol):
    """Cuts of a stream. All calls may raise ScopeNotFoundError and StreamNotFoundError."""

    async def head(self, stream: StreamName) -> StreamCut: ...

    async def tail(self, stream: StreamName) -> StreamCut:
        """A cut at the current end. Also for sealed streams."""
        ...

    async def segments_between(self, stream: StreamName, start: StreamCut, end: StreamCut) -> Sequence[SegmentId]:
        """All segments from ``start`` to ``end``, both included, oldest first. Unbounded: head, tail. Raises InvalidCutError
        where ``end`` is before ``start``."""
        ...

    async def measure(self, stream: StreamName, start: StreamCut, end: StreamCut) -> Sequence[SegmentSpan]:
        """What lies from one cut to a later one, exactly: parts of segments that are not empty, oldest segment first, those
        that were truncated or deleted since included. An unbounded ``end`` is the tail.

        Raises InvalidCutError (not a cut of the stream, an unbounded ``start``, an ``end`` before it)."""
        ...

    async def is_valid(self, stream: StreamName, cut: StreamCut) -> bool: ...
