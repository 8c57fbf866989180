"""Times at which streams must be looked at: one for each stream, the earliest first, in bounded memory."""

from __future__ import annotations

import heapq

from penstock.model.names import StreamName


class DueTimes:
    """At most ``limit`` streams. Further ones are dropped and ``overflowed`` is set: then all streams must be looked
    at."""

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._at: dict[StreamName, int] = {}
        self._heap: list[tuple[int, StreamName]] = []
        self.overflowed = False

    def __len__(self) -> int:
        return len(self._at)

    def set(self, name: StreamName, at_ms: int | None) -> None:
        """Replace the time of the stream; None: it has none."""
        if at_ms is None:
            self._at.pop(name, None)
            return
        if self._at.get(name) == at_ms:
            return
        if name not in self._at and len(self._at) >= self._limit:
            self.overflowed = True
            return
        self._at[name] = at_ms
        heapq.heappush(self._heap, (at_ms, name))
        if len(self._heap) > 2 * len(self._at) + 64:
            self._heap = [(at, stream) for stream, at in self._at.items()]
            heapq.heapify(self._heap)

    def pop(self, now_ms: int) -> list[StreamName]:
        """Remove and return the streams whose time has come, earliest first."""
        found: list[StreamName] = []
        while self._heap and self._heap[0][0] <= now_ms:
            at_ms, name = heapq.heappop(self._heap)
            # A time that was set again is elsewhere in the heap.
            if self._at.get(name) == at_ms:
                del self._at[name]
                found.append(name)
        return found

    def first(self) -> int | None:
        """The earliest time; None if no stream has one."""
        while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_one(self, name: StreamName) -> bool:
        """Remove the stream's time; returns whether it had one."""
        return self._at.pop(name, None) is not None

    def clear(self) -> None:
        self._at.clear()
        self._heap.clear()
        self.overflowed = False
