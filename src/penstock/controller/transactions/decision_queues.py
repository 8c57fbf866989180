"""Cached places in the commit queues of streams, so that a process finds its own decisions without a search."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from penstock.model.names import StreamName

_STREAMS_MAX = 10_000  # streams whose queues are in memory


class _Queue:
    """``last``: the highest known used place. ``entries``: places of entries that were not performed yet; all of them
    once ``complete``."""

    __slots__ = ("complete", "entries", "last")

    def __init__(self) -> None:
        self.last: int | None = None
        self.entries: dict[int, None] = {}
        self.complete = False


class DecisionQueues:
    """Holds only places; the entries are read from the table. To see the entries of other processes, call ``forget``
    first."""

    def __init__(self) -> None:
        self._queues: OrderedDict[StreamName, _Queue] = OrderedDict()

    def of(self, name: StreamName) -> _Queue:
        """The cached queue of the stream; a new empty one if none is cached."""
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = _Queue()
            if len(self._queues) > _STREAMS_MAX:
                self._queues.popitem(last=False)
        else:
            self._queues.move_to_end(name)
        return queue

    def added(self, name: StreamName, place: int) -> None:
        """The entry at the place is durable."""
        self.of(name).entries[place] = None

    def found(self, name: StreamName, places: Sequence[int], *, all_there_are: bool) -> None:
        """Record the entries that a scan of the table found, oldest first."""
        queue = self.of(name)
        queue.entries.update(dict.fromkeys(places))
        queue.complete = queue.complete or all_there_are
        if places and queue.last is not None:
            queue.last = max(queue.last, places[-1])

    def waiting(self, name: StreamName, *, limit: int) -> Sequence[int] | None:
        """The oldest places whose entries were not performed yet; None: read the table."""
        queue = self._queues.get(name)
        if queue is None or not queue.complete:
            return None
        return sorted(queue.entries)[:limit]

    def gone(self, name: StreamName, places: Sequence[int]) -> None:
        """The entries were performed and removed."""
        queue = self._queues.get(name)
        if queue is not None:
            for place in places:
                queue.entries.pop(place, None)

    def forget(self, name: StreamName) -> None:
        """Drop the cache, which may be wrong: the next call reads the table."""
        self._queues.pop(name, None)
