"""Decide which bytes a batch read can skip because of its filters. Pure.

Spark still evaluates every filter: skipped bytes contain no row that passes; bytes that are read may contain rows that do
not. Pieces are trimmed only at the start of a block, which is an event boundary. Source: docs/reference/spark.md, Filters.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from penstock.codec.columns import column
from penstock.model.values.dataclass import dataclass
from penstock.spark.reading.plan import Piece, event_starts
from penstock.spark.schema import APPEND_TIME

_COLUMNS = ("segment_id", "offset", APPEND_TIME)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Span:
    """Values of a column that may pass: ``low <= value <= high``; None: no bound."""

    low: int | None = None
    high: int | None = None

    def at_least(self, low: int) -> Span:
        return self if self.low is not None and self.low >= low else replace(self, low=low)

    def at_most(self, high: int) -> Span:
        return self if self.high is not None and self.high <= high else replace(self, high=high)

    def holds(self, value: int | None) -> bool:
        """Whether the value may pass. Null passes no comparison, but it passes if there is no comparison."""
        if value is None:
            return self.low is None and self.high is None
        return (self.low is None or self.low <= value) and (self.high is None or value <= self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What may pass the filters: segment ids, offsets, and append times in microseconds since the Unix epoch."""

    segment_id: Span = Span()
    offset: Span = Span()
    append_time: Span = Span()

    def trimmed(self, piece: Piece) -> Piece | None:
        """The piece without those blocks at its start and end in which no row passes; None if nothing is left."""
        if not self.segment_id.holds(piece.segment):
            return None
        low, high = piece.start, piece.end
        if self.offset.low is not None:
            low = max(low, self.offset.low)
        if self.offset.high is not None:
            high = min(high, self.offset.high + 1)
        if piece.times:
            at, passing = piece.start, []
            for end, time_ms in piece.times:
                if self.append_time.holds(None if time_ms is None else time_ms * 1000):
                    passing.append((at, end))
                at = max(at, end)
            if not passing:
                return None
            low, high = max(low, passing[0][0]), min(high, passing[-1][1])
        return _between(piece, low, high) if low < high else None


def _between(piece: Piece, low: int, high: int) -> Piece:
    """The smallest section of the piece that begins and ends at the start of a block and contains all events that begin
    at ``low <= offset < high``."""
    ends = column(piece.blocks, "end")
    starts = event_starts(piece.blocks)
    first, last = bisect_right(starts, low), bisect_left(starts, high)
    start = starts[first - 1] if first else piece.start
    end = starts[last] if last < len(starts) else piece.end
    blocks = piece.blocks[bisect_left(column(piece.blocks, "start"), start) : bisect_right(ends, end)]
    return replace(piece, start=start, end=end, blocks=blocks)


def wanted_of(filters: Iterable[Filter]) -> Wanted:
    """What may pass all of the filters. Filters of other kinds, or on other columns or value types, are ignored."""
    spans = {name: Span() for name in _COLUMNS}
    for item in filters:
        name = item.attribute[0] if len(getattr(item, "attribute", ())) == 1 else None
        if name in spans:
            spans[name] = _narrowed(spans[name], item)
    return Wanted(segment_id=spans["segment_id"], offset=spans["offset"], append_time=spans[APPEND_TIME])


def _narrowed(span: Span, item: Filter) -> Span:
    values = (
        [_number(value) for value in item.value] if isinstance(item, In) else [_number(getattr(item, "value", None))]
    )
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return span
    low, high = min(known), max(known)
    match item:
        case EqualTo() | In():
            return span.at_least(low).at_most(high)
        case GreaterThan():
            return span.at_least(low + 1)
        case GreaterThanOrEqual():
            return span.at_least(low)
        case LessThan():
            return span.at_most(high - 1)
        case LessThanOrEqual():
            return span.at_most(high)
        case _:
            return span


def _number(value: Any) -> int | None:
    """An integer, or a time with a zone as microseconds; None for everything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, datetime) and value.tzinfo is not None:
        return (value - _EPOCH) // timedelta(microseconds=1)
    return None
