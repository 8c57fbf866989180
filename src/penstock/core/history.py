"""A stream's past: which segments were active in which epoch, and how long the sealed ones became."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.model.segments import KeyRange, SegmentId, SegmentRange


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRecord:
    """The segments active in one epoch, in key order; together they tile [0, 1)."""

    epoch: int
    segments: Sequence[SegmentRange]
    created_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamHistory:
    """All epochs of a stream, oldest first, and the final lengths of sealed segments.

    Lengths stay here after their segments are deleted: sizes are counted from the beginning of history.
    """

    epochs: Sequence[EpochRecord]
    sealed_lengths: Mapping[SegmentId, int] = field(default_factory=dict)

    @property
    def active(self) -> EpochRecord:
        return self.epochs[-1]

    def ranges(self) -> dict[SegmentId, KeyRange]:
        """Key range of every segment that ever was."""
        return {item.segment: item.keys for record in self.epochs for item in record.segments}
