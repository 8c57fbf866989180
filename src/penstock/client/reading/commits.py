"""What the program of one reader has processed of each segment, and which finished segments the group may know of. No I/O.

Source: docs/design/0031-reader-groups.md, "Commits".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.client.reading.group_state import Ends, Positions, SegmentKey
from penstock.model.segments import SegmentRange


class Commits:
    """The committed positions of one reader. ``auto``: all events for which it returned a later one are committed.

    Laws: a committed position never moves back while the reader has the segment. The group learns of the end of a segment
    only when all of its events are committed, so a reader that takes over begins at an uncommitted event at the latest.
    """

    def __init__(self, *, auto: bool) -> None:
        self._auto = auto
        self._at: Positions = {}

    @property
    def is_explicit(self) -> bool:
        """Whether only commits count."""
        return not self._auto

    def begin(self, key: SegmentKey, offset: int) -> None:
        """The reader got the segment at this offset."""
        self._at[key] = offset

    def forget(self, key: SegmentKey) -> None:
        """The reader no longer has the segment."""
        self._at.pop(key, None)

    def commit(self, positions: Mapping[SegmentKey, int]) -> None:
        """The program has processed the events before these positions. Segments that the reader does not have are
        ignored."""
        for key, offset in positions.items():
            if key in self._at:
                self._at[key] = max(self._at[key], offset)

    def recordable(self, read: Mapping[SegmentKey, int]) -> Positions:
        """The positions for the group. ``read``: after the events that were followed by another one, or committed."""
        return dict(read) if self._auto else dict(self._at)

    def covers(self, key: SegmentKey, read: int) -> bool:
        """Whether all events of the segment before the offset ``read`` are committed."""
        return self._auto or self._at.get(key, read) >= read

    def finishable(self, ended: Ends, read: Mapping[SegmentKey, int]) -> dict[SegmentKey, Sequence[SegmentRange]]:
        """The ended segments that the group may finish, in order: all their events are committed, and so are those of
        the ended segments that they follow. ``read``: where each of them ended."""
        found: dict[SegmentKey, Sequence[SegmentRange]] = {}
        behind: set[SegmentKey] = set()
        for key, successors in ended.items():
            if key not in behind and self.covers(key, read.get(key, 0)):
                found[key] = successors
            else:
                behind |= {(key[0], item.segment) for item in successors}
        return found

    def waiting(self, ended: Ends) -> Ends:
        """The ended segments that the group may not know of yet. With automatic commits it learns of them at once."""
        return {} if self._auto else dict(ended)
