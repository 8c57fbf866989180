"""Which segments of a stream may be read, so that no event overtakes an older one of its key. Decisions only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.model.cuts import NOT_STARTED
from penstock.model.segments import KeyRange, SegmentId


def readable(
    waiting: Iterable[SegmentId], unfinished: Iterable[SegmentId], ranges: Mapping[SegmentId, KeyRange]
) -> list[SegmentId]:
    """Those of ``waiting`` that may be begun, oldest first: no older segment that holds some of their keys is unfinished
    or waiting itself.

    Comparing all older segments, not only the named predecessors, covers predecessors that are not discovered yet: their
    own, unfinished, ancestors hold the same keys.
    """
    waiting = sorted(waiting)
    blockers = [*unfinished, *waiting]
    return [
        segment
        for segment in waiting
        if not any(other < segment and ranges[other].overlaps(ranges[segment]) for other in blockers)
    ]


def normalised(positions: Mapping[SegmentId, int], ranges: Mapping[SegmentId, KeyRange]) -> dict[SegmentId, int]:
    """The positions as one consistent cut: at each key the oldest segment counts.

    A segment some of whose keys are at an older one is "not started"; one whose keys all are is left out.
    """
    result: dict[SegmentId, int] = {}
    for segment in sorted(positions):
        covered = [other for other in result if ranges[other].overlaps(ranges[segment])]
        if not covered:
            result[segment] = positions[segment]
        elif not _covers([ranges[other] for other in covered], ranges[segment]):
            result[segment] = NOT_STARTED
    return result


def _covers(parts: Iterable[KeyRange], whole: KeyRange) -> bool:
    edge = whole.low
    for part in sorted(parts):
        if part.low > edge:
            return False
        edge = max(edge, part.high)
    return edge >= whole.high
