"""A stream's history: the active segments of each epoch, and the final lengths of sealed segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from itertools import accumulate

from penstock.model.segments import KeyRange, SegmentId, SegmentRange
from penstock.model.values.dataclass import dataclass

REMEMBERED_MAX = 256
"""Maximum number of cuts for which a history caches results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRecord:
    """The segments active in one epoch, in key order; together they tile [0, 1)."""

    epoch: int
    segments: Sequence[SegmentRange]
    created_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryIndex:
    """What look-ups in a history need, computed once for each history.

    ``ids``: all segments ever, oldest first. ``bytes_below[i]``: final lengths of ``ids[:i]``, an unknown one counting
    0. ``last``: index into ``epochs`` of the last epoch in which a segment was active.

    Results that depend only on the segments of a cut are cached by these segments once computed. ``passed``: bytes of
    the segments before the cut; ``own``: for each segment of a tail its keys, those that count for it and their bytes
    (``cut_compose.Counted``).
    """

    ranges: Mapping[SegmentId, KeyRange]
    last: Mapping[SegmentId, int]
    ids: Sequence[SegmentId]
    bytes_below: Sequence[int]
    passed: dict[tuple[SegmentId, ...], int] = field(default_factory=dict)
    own: dict[tuple[SegmentId, ...], Sequence[tuple[KeyRange, Sequence[SegmentId], int]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamHistory:
    """All epochs of a stream, oldest first, and the final lengths of sealed segments.

    Lengths stay here after their segments are deleted: sizes are counted from the beginning of history. Neither the
    sequence nor the mapping may change once they are given; a later state of the stream is another history.
    """

    epochs: Sequence[EpochRecord]
    sealed_lengths: Mapping[SegmentId, int] = field(default_factory=dict)
    _index: HistoryIndex | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def active(self) -> EpochRecord:
        return self.epochs[-1]

    @property
    def gap(self) -> int | None:
        """The oldest epoch before the active one whose record is missing. None: the epochs are complete."""
        if len(self.epochs) == self.active.epoch + 1:
            return None
        return next(place for place, record in enumerate(self.epochs) if record.epoch != place)

    @property
    def index(self) -> HistoryIndex:
        """Look-up tables of this history, built at the first use and kept with it."""
        index = self._index
        if index is None:
            index = _build_index(self)
            # The index is a cache, not part of the value, so setting it on the frozen object is safe.
            object.__setattr__(self, "_index", index)
        return index

    def with_lengths(self, lengths: Mapping[SegmentId, int]) -> StreamHistory:
        """A history of the same epochs with other final lengths, sharing the tables that do not depend on them."""
        other = StreamHistory(epochs=self.epochs, sealed_lengths=lengths)
        index = self.index
        below = list(accumulate((lengths.get(segment, 0) for segment in index.ids), initial=0))
        shared = HistoryIndex(ranges=index.ranges, last=index.last, ids=index.ids, bytes_below=below)
        object.__setattr__(other, "_index", shared)
        return other

    def ranges(self) -> Mapping[SegmentId, KeyRange]:
        """Key range of every segment of the history."""
        return self.index.ranges


def _build_index(history: StreamHistory) -> HistoryIndex:
    ranges: dict[SegmentId, KeyRange] = {}
    last: dict[SegmentId, int] = {}
    for position, record in enumerate(history.epochs):
        for item in record.segments:
            ranges[item.segment] = item.keys
            last[item.segment] = position
    ids = sorted(ranges)
    lengths = history.sealed_lengths
    below = list(accumulate((lengths.get(segment, 0) for segment in ids), initial=0))
    return HistoryIndex(ranges=ranges, last=last, ids=ids, bytes_below=below)
