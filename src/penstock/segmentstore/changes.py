"""Which segments have grown or were sealed since someone looked."""

from __future__ import annotations

from penstock.ports.data.limits import SegmentChanges
from penstock.segmentstore.segment import Segment


class Changes:
    """Names of changed segments, for one caller that comes again with the mark it was given.

    An append costs one comparison: a segment is noted once for each mark. What the last answer told is kept until its mark
    comes back, so that an answer that was lost can be asked for again. Above ``limit`` names all are forgotten, and the
    next answer says so. Marks begin with the epoch of the log: one from before a restart is no mark of now.
    """

    def __init__(self, *, epoch: int, limit: int) -> None:
        self.mark = epoch << 32 | 1
        self._limit = limit
        self._told_since: int | None = None
        self._told: dict[str, None] = {}
        self._noted: dict[str, None] = {}
        self._lost = False

    def note(self, segment: Segment) -> None:
        """The segment has changed. Parts are not told of: their merge is a change of the target."""
        segment.change_mark = self.mark
        if segment.is_part or self._lost:
            return
        self._noted[segment.name] = None
        if len(self._noted) + len(self._told) > self._limit:
            self._noted, self._told, self._lost = {}, {}, True

    def take(self, after: int) -> SegmentChanges:
        """See ``SegmentService.changed_segments``."""
        complete = not self._lost and after in (self.mark, self._told_since)
        if not complete:
            self._told, self._told_since = {}, None
        elif after == self.mark:
            self._told, self._told_since = self._noted, after
        else:
            self._told |= self._noted
        self._noted, self._lost = {}, False
        self.mark += 1
        return SegmentChanges(mark=self.mark, names=list(self._told), complete=complete)
