"""When the lanes of a writer are looked at: together, and no more often than it pays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from penstock.client.lanes import Lane
from penstock.client.segment_sender import SenderState

_REST = 3.0
_REST_MAX_S = 0.25


class LaneRounds:
    """Looks at the busy lanes of a writer, all in one go, ``linger_s`` after it looked last.

    The first event of an idle lane does not wait. But a block costs as much as dozens of events: where draining takes more
    than a quarter of the time, what waits gathers for longer, at most a quarter of a second. Else a writer to thousands of
    segments would send each event by itself, at a fraction of the rate. Lives in one event loop.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        linger_s: float,
        drain: Callable[[Sequence[Lane]], None],
        limit_bytes: Callable[[], int],
        lent: Callable[[], bool],
    ) -> None:
        """``drain`` sends what lanes hold; ``limit_bytes`` is the size at which a lane is drained in between.

        ``lent``: whether the writing thread sends events itself for now; then each lane wakes with its next event.
        """
        self._loop = loop
        self._linger_s = linger_s
        self._drain = drain
        self._limit_bytes = limit_bytes
        self._lent = lent
        self._busy: dict[Lane, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._rested_at = 0.0

    def wake(self, lane: Lane) -> None:
        """The lane got its first event since it was left idle."""
        self._busy[lane] = None
        if self._loop.time() >= self._rested_at:
            self._drain_and_rest([lane])
            self._look_at(max(self._loop.time() + self._linger_s, self._rested_at))
        else:
            self._look_at(self._rested_at)

    def close(self) -> None:
        """Look at nothing more."""
        self._busy.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_at(self, when: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._lent():
            self._busy.clear()
            return
        if self._loop.time() < self._rested_at:
            # Another lane was drained since this was set.
            self._look_at(self._rested_at)
            return
        ready: list[Lane] = []
        for lane in list(self._busy):
            if not lane.events:
                lane.limit = 0
                if not lane.events:  # an event may have come from another thread before it saw the limit
                    del self._busy[lane]
                    continue
                lane.limit = self._limit_bytes()
            sender = lane.sender
            if sender.has_room or sender.state in (SenderState.NEW, SenderState.RETIRED):
                ready.append(lane)
            else:
                # Sent with the next acknowledgement.
                sender.due = True
        if ready:
            self._drain_and_rest(ready)
        if self._busy:
            self._look_at(max(self._loop.time() + self._linger_s, self._rested_at))

    def _drain_and_rest(self, lanes: Sequence[Lane]) -> None:
        begun = self._loop.time()
        self._drain(lanes)
        ended = self._loop.time()
        self._rested_at = ended + min(_REST * (ended - begun), _REST_MAX_S)
