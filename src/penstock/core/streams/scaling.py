"""Compute the next epoch: for a scale request, another fixed number of segments, or rolling transactions.

Source: docs/design/0032-order-of-cuts.md, "Epochs", and Pravega's controller API.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from penstock.core.streams.history import EpochRecord, StreamHistory
from penstock.model.errors import InvalidArgumentError, ScaleConflictError
from penstock.model.policies import SEGMENTS_MAX
from penstock.model.segments import KeyRange, SegmentId, SegmentRange, even_ranges, make_segment_id, number_of
from penstock.model.values.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """A scale that gives the stream even ranges: the active segments to seal, and the ranges to open."""

    sealed: tuple[SegmentId, ...]
    new_ranges: tuple[KeyRange, ...]


def next_number(history: StreamHistory) -> int:
    """The lowest unused segment number of this history."""
    return 1 + max(number_of(segment) for segment in history.index.ids)


def plan_scale(
    history: StreamHistory,
    sealed: Sequence[SegmentId],
    new_ranges: Sequence[KeyRange],
    *,
    next_number: int,
    min_segments: int,
    created_ms: int = 0,
) -> EpochRecord:
    """The epoch that follows once ``sealed`` are replaced by segments over ``new_ranges``.

    New segments are numbered from ``next_number`` on, in the order of ``new_ranges``. Nothing else changes. Raises:
    ScaleConflictError (a segment is of the past), InvalidArgumentError (a segment that never was or is named twice;
    ranges that overlap or cover other keys than the sealed ones; a number of segments outside the limits).
    """
    active = history.active
    current = {item.segment: item for item in active.segments}
    if not sealed or not new_ranges:
        raise InvalidArgumentError(
            "a scale seals at least one segment and opens at least one", sealed=len(sealed), new=len(new_ranges)
        )
    if len(set(sealed)) != len(sealed):
        raise InvalidArgumentError("a scale names a segment twice", sealed=list(sealed))
    for segment in sealed:
        if segment in current:
            continue
        if segment in history.index.ranges:
            raise ScaleConflictError("segment is no longer active", segment=segment, epoch=active.epoch)
        raise InvalidArgumentError("the stream never had this segment", segment=segment)
    if _union(current[segment].keys for segment in sealed) != _union(new_ranges):
        raise InvalidArgumentError("new ranges do not cover the keys of the sealed segments exactly")
    count = len(current) - len(sealed) + len(new_ranges)
    if not min_segments <= count <= SEGMENTS_MAX:
        raise InvalidArgumentError(
            "the scale would leave too few or too many segments",
            segments=count,
            min_segments=min_segments,
            max_segments=SEGMENTS_MAX,
        )
    epoch = active.epoch + 1
    fresh = [
        SegmentRange(segment=make_segment_id(epoch, next_number + place), keys=keys)
        for place, keys in enumerate(new_ranges)
    ]
    gone = set(sealed)
    kept = [item for item in active.segments if item.segment not in gone]
    return EpochRecord(epoch=epoch, segments=_in_key_order([*kept, *fresh]), created_ms=created_ms)


def plan_resize(history: StreamHistory, count: int) -> Resize | None:
    """The scale that gives the active epoch ``count`` even ranges. None if it has them already.

    Segments whose range is one of the even ones stay. Raises: InvalidArgumentError (``count`` outside the limits).
    """
    if not 1 <= count <= SEGMENTS_MAX:
        raise InvalidArgumentError(f"a stream must have 1 to {SEGMENTS_MAX} segments", count=count)
    wanted = even_ranges(count)
    have = {item.keys for item in history.active.segments}
    stays = have.intersection(wanted)
    sealed = tuple(item.segment for item in history.active.segments if item.keys not in stays)
    if not sealed:
        return None
    return Resize(sealed=sealed, new_ranges=tuple(keys for keys in wanted if keys not in stays))


def rolling_epochs(history: StreamHistory, txn_epoch: int, *, created_ms: int = 0) -> tuple[EpochRecord, EpochRecord]:
    """The two epochs in which transactions begun in ``txn_epoch`` are committed after the stream has scaled.

    First a duplicate of that epoch, into whose segments the transactions are merged (and which is sealed at once), then
    a duplicate of the active one. Numbers and ranges are those of the originals; epochs, and so ids, are new. Raises:
    InvalidArgumentError (no such epoch, or the active one, which needs no rolling).
    """
    active = history.active
    original = next((record for record in history.epochs if record.epoch == txn_epoch), None)
    if original is None or original is active:
        raise InvalidArgumentError("not an epoch of the past", epoch=txn_epoch, active_epoch=active.epoch)
    return (
        _duplicate(original, active.epoch + 1, created_ms),
        _duplicate(active, active.epoch + 2, created_ms),
    )


def _duplicate(record: EpochRecord, epoch: int, created_ms: int) -> EpochRecord:
    segments = [
        SegmentRange(segment=make_segment_id(epoch, number_of(item.segment)), keys=item.keys)
        for item in record.segments
    ]
    return EpochRecord(epoch=epoch, segments=_in_key_order(segments), created_ms=created_ms)


def _in_key_order(segments: Iterable[SegmentRange]) -> tuple[SegmentRange, ...]:
    return tuple(sorted(segments, key=lambda item: item.keys.low))


def _union(ranges: Iterable[KeyRange]) -> list[tuple[float, float]]:
    """Maximal runs of keys, compared as exact doubles. Raises ``InvalidArgumentError`` where two ranges overlap."""
    order = sorted(ranges)
    for before, after in pairwise(order):
        if after.low < before.high:
            raise InvalidArgumentError("new ranges overlap", low=after.low, high=before.high)
    runs: list[tuple[float, float]] = []
    for keys in order:
        if runs and runs[-1][1] == keys.low:
            runs[-1] = (runs[-1][0], keys.high)
        else:
            runs.append((keys.low, keys.high))
    return runs
