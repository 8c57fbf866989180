"""When the lanes of a writer are drained: together, and no more often than it pays."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from penstock.client.writing.segment_sender import Lane, SenderState

_REST = 3.0  # times the duration of the last round: for so long the loop is left to other work
_REST_MAX_S = 0.25
_CROWD_LANES = 64  # lanes from which on waiting for more of them fills larger blocks
SLICE_LANES = 256
"""Lanes that are drained in one pass of the loop: some ten milliseconds of work, and one frame."""


class LaneRounds:
    """Drains all busy lanes of a writer together, ``linger_s`` after the last round.

    The first event of an idle lane does not wait. But a block costs as much as dozens of events: where draining takes more
    than a quarter of the time, what waits gathers for longer, at most a quarter of a second: three times as long as the round
    before took, and as the one that comes is going to. Where many lanes are busy, a round also waits for most of the one
    before to be acknowledged, as long again at most. Else a writer to thousands of segments would send each event by itself,
    at a fraction of the rate. A round of very many lanes is drained in slices, one
    in each pass of the loop: what is drained is on its way while the next slice is. Lives in one event loop.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        linger_s: float,
        drain: Callable[[Sequence[Lane]], None],
        limit_bytes: Callable[[], int],
        lent: Callable[[], bool],
        on_their_way: Callable[[], int],
    ) -> None:
        """``drain`` sends what lanes hold; ``limit_bytes`` is the size at which a lane is drained in between.

        ``lent``: whether the writing thread sends events itself for now; then each lane wakes with its next event.
        ``on_their_way``: blocks that are not acknowledged.
        """
        self._loop = loop
        self._linger_s = linger_s
        self._drain = drain
        self._limit_bytes = limit_bytes
        self._lent = lent
        self._on_their_way = on_their_way
        self._busy: dict[Lane, None] = {}
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0  # not read from the handle: uvloop returns one without a time if that time has passed
        self._rested_at = 0.0
        self._ended_at = float("-inf")
        self._lane_s = 0.0  # what draining a lane took last
        self._left: deque[Lane] = deque()
        self._took_s = 0.0

    def wake(self, lane: Lane) -> None:
        """The lane got its first event since it became idle."""
        self._busy[lane] = None
        if self._left:
            return  # A round is under way; the next one has it.
        if self._loop.time() >= self._rested_at:
            self._begin([lane])
            self._look_at(max(self._loop.time() + self._linger_s, self._rested_at))
        else:
            self._look_at(self._rested_at)

    def close(self) -> None:
        """Look at nothing more."""
        self._busy.clear()
        self._left.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_at(self, when: float) -> None:
        if self._timer is not None:
            if self._timer_at <= when:
                return
            self._timer.cancel()
        self._timer_at = when
        self._timer = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._lent():
            self._busy.clear()
            return
        if self._left:
            return  # Its end looks again.
        due_at = self._due_at()
        if self._loop.time() < due_at:
            self._look_at(due_at)
            return
        ready: list[Lane] = []
        for lane in list(self._busy):
            if not lane.written:
                lane.limit = 0
                if not lane.written:  # Another thread may have added an event before it saw the limit.
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
            self._begin(ready)
        if self._busy and not self._left:
            self._look_at(max(self._loop.time() + self._linger_s, self._rested_at))

    def _due_at(self) -> float:
        """When the busy lanes are to be drained: perhaps later than it seemed when the look was asked for."""
        rest_s = min(_REST * self._lane_s * len(self._busy), _REST_MAX_S)
        due_at = max(self._rested_at, self._ended_at + rest_s)
        now = self._loop.time()
        is_crowd = len(self._busy) >= _CROWD_LANES and self._on_their_way() * 4 > len(self._busy)
        return now + self._linger_s if is_crowd and due_at <= now < due_at + _REST_MAX_S else due_at

    def _begin(self, lanes: Sequence[Lane]) -> None:
        self._took_s = 0.0
        self._left.extend(lanes)
        self._drain_slice()

    def _drain_slice(self) -> None:
        left = self._left
        lanes = [left.popleft() for _ in range(min(len(left), SLICE_LANES))]
        if left:
            self._loop.call_soon(self._next_slice)
        begun = self._loop.time()
        self._drain(lanes)
        ended = self._loop.time()
        self._took_s += ended - begun
        self._ended_at, self._lane_s = ended, (ended - begun) / max(1, len(lanes))
        self._rested_at = ended + min(_REST * self._took_s, _REST_MAX_S)

    def _next_slice(self) -> None:
        if self._lent():
            self._busy.clear()
            self._left.clear()
        if not self._left:
            return  # Closed meanwhile.
        self._drain_slice()
        if not self._left and self._busy:
            self._look_at(max(self._loop.time() + self._linger_s, self._rested_at))
