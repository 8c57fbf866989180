"""Segments that have grown or were sealed since the last poll."""

from __future__ import annotations

from penstock.ports.data.limits import SegmentChanges
from penstock.segmentstore.segment import Segment


class Changes:
    """Names of changed segments, for one caller that polls with the mark of its last answer.

    An append costs one comparison: a segment is noted once for each mark. The last answer is kept until its mark comes
    back, so that a lost answer can be requested again. Above ``limit`` names all are dropped, and the next answer
    reports that. Marks begin with the epoch of the log, so a mark from before a restart is not valid.
    """

    def __init__(self, *, epoch: int, limit: int) -> None:
        self.mark = epoch << 32 | 1
        self._limit = limit
        self._reported_since: int | None = None
        self._reported: dict[str, None] = {}
        self._noted: dict[str, None] = {}
        self._lost = False

    def note(self, segment: Segment) -> None:
        """The segment has changed. Parts are not noted: their merge is a change of the target."""
        segment.change_mark = self.mark
        if segment.is_part or self._lost:
            return
        self._noted[segment.name] = None
        if len(self._noted) + len(self._reported) > self._limit:
            self._noted, self._reported, self._lost = {}, {}, True

    def take(self, after: int) -> SegmentChanges:
        """See ``SegmentService.changed_segments``."""
        complete = not self._lost and after in (self.mark, self._reported_since)
        if not complete:
            self._reported, self._reported_since = {}, None
        elif after == self.mark:
            self._reported, self._reported_since = self._noted, after
        else:
            self._reported |= self._noted
        self._noted, self._lost = {}, False
        self.mark += 1
        return SegmentChanges(mark=self.mark, names=list(self._reported), complete=complete)
