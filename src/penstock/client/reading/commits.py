"""What one reader has read of each segment, what its program has processed of it, and which finished segments the group
may know of. No I/O.

Source: docs/design/0031-reader-groups.md, "Commits".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from penstock.client.reading.blocks import Block, Event
from penstock.client.reading.group_state import Ends, Positions, SegmentKey
from penstock.model.errors import InvalidArgumentError
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

    @property
    def positions(self) -> Positions:
        """The last committed position of each segment that the reader has."""
        return dict(self._at)

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


class Progress:
    """The segments of one reader: how far it has read each, which block its program has now, and what is committed.

    A segment is in ``ending`` when it was read to its end and its successors are not known yet, then in ``ended`` until the
    group knows.
    """

    def __init__(self, *, auto: bool) -> None:
        self.commits = Commits(auto=auto)
        self.read_to: Positions = {}
        """After the last block that was returned before the current one."""
        self.current: Block | None = None
        self.ended: dict[SegmentKey, Sequence[SegmentRange]] = {}
        self.ending: SegmentKey | None = None
        self.cut_short = False
        """Whether the segment that ends was deleted before it was read to its end."""

    def begin(self, key: SegmentKey, offset: int) -> None:
        """The reader got the segment at this offset."""
        self.read_to[key] = offset
        self.commits.begin(key, offset)

    def drop(self, key: SegmentKey) -> None:
        """The reader no longer has the segment."""
        del self.read_to[key]
        self.ended.pop(key, None)
        self.commits.forget(key)
        if self.ending == key:
            self.ending = None
        if self._is_current(key):
            self.current = None

    def settle_current(self) -> None:
        """The program has asked for more: it has read the current block."""
        if self.current is not None:
            self.read_to[self.current.stream, self.current.segment] = self.current.end_offset
            self.current = None

    def _is_current(self, key: SegmentKey) -> bool:
        return self.current is not None and (self.current.stream, self.current.segment) == key

    def positions(self) -> Positions:
        """After the events that were followed by another one, or committed."""
        positions = dict(self.read_to)
        if self.current is not None:
            positions[self.current.stream, self.current.segment] = self.current.position
        return positions

    def returned(self, key: SegmentKey) -> int:
        """The end of the last event of the segment that the program got."""
        block = self.current
        return block.returned if block is not None and self._is_current(key) else self.read_to[key]

    def finishable(self) -> Ends:
        """The ended segments that the group may finish; see ``Commits``."""
        return self.commits.finishable(self.ended, self.read_to)

    def recordable(self) -> Positions:
        """The positions for the group."""
        return self.commits.recordable(self.positions())

    def spare(self, held: Iterable[SegmentKey]) -> Sequence[SegmentKey]:
        """Segments that can be given up now, the youngest first: not the one whose events are being handed out, and none
        with events that wait for a commit, which another reader would return again."""
        here = self.positions()
        return [
            key
            for key in sorted(held, reverse=True)
            if key != self.ending and not self._is_current(key) and self.commits.covers(key, here.get(key, 0))
        ]

    def mark(self, event: Event | None) -> Positions | None:
        """Commit all returned events, or the one and those before it in its segment; returns their ends.

        None: the reader has lost the segment since it returned the event. Nothing is committed.
        Raises InvalidArgumentError: no event of a reader.
        """
        block = self.current
        if event is None:
            if block is not None:
                block.finish_returned()
            marked = self.positions()
        else:
            if not isinstance(event, Event):
                raise InvalidArgumentError("commit needs an event that this reader returned", event=repr(event)[:60])
            key = (event.stream, event.segment)
            # Otherwise it was returned before the segment went to another reader and came back.
            if key not in self.read_to or event.next_offset > self.returned(key):
                return None
            if block is not None and self._is_current(key) and event.next_offset > block.offset:
                if not block.begins(event.offset):
                    raise InvalidArgumentError(
                        "no event begins at the offset", stream=str(event.stream), offset=event.offset
                    )
                block.finish(event.next_offset)
            marked = {key: event.next_offset}
        self.commits.commit(marked)
        return marked
