"""What this process knows of the commit queues of streams, so that performing its own decisions takes no search for them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from penstock.model.names import StreamName

_STREAMS_MAX = 10_000  # streams whose queues are in memory


class _Queue:
    """``last``: the highest place that was taken, as far as is known. ``entries``: places with entries that were not
    performed yet; all that there are once ``complete``."""

    __slots__ = ("complete", "entries", "last")

    def __init__(self) -> None:
        self.last: int | None = None
        self.entries: dict[int, None] = {}
        self.complete = False


class DecisionQueues:
    """Places only: what an entry says is read from the table. Another process's entries are found by looking: whoever must
    not miss them forgets the queue first."""

    def __init__(self) -> None:
        self._queues: OrderedDict[StreamName, _Queue] = OrderedDict()

    def of(self, name: StreamName) -> _Queue:
        """What is known of the stream's queue; a queue of which nothing is known begins here."""
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
        """Entries that a look at the table has found, from the oldest on."""
        queue = self.of(name)
        queue.entries.update(dict.fromkeys(places))
        queue.complete = queue.complete or all_there_are
        if places and queue.last is not None:
            queue.last = max(queue.last, places[-1])

    def waiting(self, name: StreamName, *, limit: int) -> Sequence[int] | None:
        """The oldest places whose entries were not performed yet; None: only the table knows."""
        queue = self._queues.get(name)
        if queue is None or not queue.complete:
            return None
        return sorted(queue.entries)[:limit]

    def gone(self, name: StreamName, places: Sequence[int]) -> None:
        """The entries were performed and taken away."""
        queue = self._queues.get(name)
        if queue is not None:
            for place in places:
                queue.entries.pop(place, None)

    def forget(self, name: StreamName) -> None:
        """Look at the table again next time: what is known may be wrong."""
        self._queues.pop(name, None)
