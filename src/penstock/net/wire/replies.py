"""The bound on large replies, over all connections of a server. Their size is known only once they are built."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol


class Collector(Protocol):
    """A connection that receives large replies."""

    def cut(self, reason: str) -> None:
        """Close now, and log why."""
        ...


class LargeReplies:
    """Grants room for replies that may be as large as a frame: entries of tables, lists of chunks.

    Replies count until their peers have read them. At ``limit_bytes`` or more, others wait. Then peers that have not
    read for ``patience_s`` are disconnected, longest first. At most one reply exceeds the limit: replies are built one
    at a time, because each takes the memory of a frame and of the values in it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, limit_bytes: int, patience_s: float) -> None:
        self._loop = loop
        self._limit_bytes = limit_bytes
        self._patience_s = patience_s
        self._working = False
        self._unsent: dict[Collector, tuple[int, float]] = {}
        """By peer: unread bytes, and since when they wait; longest wait first."""
        self._unsent_bytes = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def unsent_bytes(self) -> int:
        return self._unsent_bytes

    @asynccontextmanager
    async def room(self) -> AsyncIterator[None]:
        """Room to build a reply, from entry to exit, in order of request. Cancelled: nothing is held."""
        while self._working or self._unsent_bytes >= self._limit_bytes:
            place: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append(place)
            if self._timer is None:
                self._timer = self._loop.call_later(self._patience_s, self._look)
            try:
                await place
            except asyncio.CancelledError:
                # Woken just before it was cancelled: pass the turn to the next one.
                self._wake()
                raise
        self._working = True
        try:
            yield
        finally:
            self._working = False
            self._wake()

    def sent(self, peer: Collector, size_bytes: int) -> None:
        """Count bytes sent to a peer that does not read them for now."""
        before, since = self._unsent.get(peer, (0, self._loop.time()))
        self._unsent[peer] = before + size_bytes, since
        self._unsent_bytes += size_bytes

    def collected(self, peer: Collector) -> None:
        """The peer has read what it was sent, or has disconnected."""
        size_bytes, _ = self._unsent.pop(peer, (0, 0.0))
        if size_bytes:
            self._unsent_bytes -= size_bytes
            self._wake()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _wake(self) -> None:
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return

    def _look(self) -> None:
        self._timer = None
        if not any(not place.done() for place in self._waiting):
            return
        self._timer = self._loop.call_later(self._patience_s, self._look)
        peer, (_, since) = next(iter(self._unsent.items()), (None, (0, 0.0)))
        if (
            peer is not None
            and self._unsent_bytes >= self._limit_bytes
            and self._loop.time() - since >= self._patience_s
        ):
            peer.cut("others wait, and it does not read its replies")
