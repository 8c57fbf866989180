"""Choose which connections may continue to send when the requests of calls in flight take too much memory.

A request takes memory from its first byte until its call is answered. Each connection has ``FREE_BYTES`` that are not
counted, so small calls never wait. Beyond that, all connections share a budget. While it is used up, connections that
hold more than their free bytes wait, and continue in the order of their waits. If a request stays incomplete while others
wait, its connection is closed, the oldest request first, until half of the budget is free. A connection that has waited
too long is closed too. A client that does not receive its answer is treated like one that does not send its request,
because the call cannot end either.

This module uses no event loop: the caller passes what arrives and the time, in seconds, and acts on the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Generic, TypeVar

from penstock.model.values.dataclass import dataclass

K = TypeVar("K")

FREE_BYTES = 64 << 10
CALL_BYTES = 12 << 10
"""Memory of a call in flight without its request: objects, and metadata of usual length. Measured."""


@dataclass(slots=True)
class _Call:
    held_bytes: int
    began: float
    complete: bool = False
    answer_went_on: float | None = None
    """When the last part of the answer came from the server; None: the server is at work."""

    @property
    def owed_since(self) -> float | None:
        """Since when the gate waits for the client: for the rest of the request, or to receive more of the answer."""
        return self.answer_went_on if self.complete else self.began


@dataclass(slots=True, eq=False)
class _Peer(Generic[K]):
    key: K
    held_bytes: int = 0
    calls: dict[int, _Call] = field(default_factory=dict)
    waits_since: float | None = None
    full_since: float | None = None
    last_stream: int = 0
    used_at: float = float("-inf")

    @property
    def counted_bytes(self) -> int:
        return max(0, self.held_bytes - FREE_BYTES)

    @property
    def owed_since(self) -> float | None:
        """The oldest ``_Call.owed_since``. If nothing more can be sent to the client, this is the time since then, for
        all its calls. While the gate does not read from it, the client cannot request more of an answer."""
        waits = self.waits_since is not None
        calls = [call for call in self.calls.values() if not (waits and call.complete)]
        owed = [since for call in calls if (since := call.owed_since) is not None]
        if self.full_since is not None and self.calls:
            owed.append(self.full_since)
        return min(owed, default=None)


class CallMemory(Generic[K]):
    """The rule and its state."""

    def __init__(self, *, budget_bytes: int, crowded_s: float, waiting_s: float, request_s: float) -> None:
        """``crowded_s``, ``request_s``: how long a request may take to arrive, and a client to take more of an answer, while
        others wait, and otherwise. ``waiting_s``: how long a connection may wait."""
        self._budget_bytes = budget_bytes
        self._crowded_s = crowded_s
        self._waiting_s = waiting_s
        self._request_s = request_s
        self._peers: dict[K, _Peer[K]] = {}
        self._waiting: dict[K, _Peer[K]] = {}
        self._counted_bytes = 0

    @property
    def counted_bytes(self) -> int:
        """Held by all connections, beyond what each has free."""
        return self._counted_bytes

    @property
    def contested(self) -> bool:
        """Whether any connection waits."""
        return bool(self._waiting)

    def may_send(self, key: K) -> bool:
        return key not in self._waiting

    def begin(self, key: K, stream: int, size_bytes: int, now: float) -> None:
        """Note the head of a request. A second head of a call belongs to the same call; one of an older stream does not
        count."""
        peer = self._peers.get(key)
        if peer is None:
            peer = self._peers[key] = _Peer(key=key)
        if stream > peer.last_stream:
            peer.last_stream, peer.used_at = stream, now
            peer.calls[stream] = _Call(held_bytes=0, began=now)
            size_bytes += CALL_BYTES
        self.hold(key, stream, size_bytes, now)

    def hold(self, key: K, stream: int, size_bytes: int, now: float) -> None:
        """Note more bytes of a request; check ``may_send`` afterwards. Bytes of an ended call do not count."""
        peer = self._peers.get(key)
        call = None if peer is None else peer.calls.get(stream)
        if peer is None or call is None:
            return
        call.held_bytes += size_bytes
        self._grow(peer, size_bytes)
        if self._counted_bytes > self._budget_bytes and peer.counted_bytes and peer.waits_since is None:
            peer.waits_since = now
            self._waiting[key] = peer

    def complete(self, key: K, stream: int) -> None:
        """No more of the request will come."""
        peer = self._peers.get(key)
        if peer is not None and (call := peer.calls.get(stream)) is not None:
            call.complete = True

    def answer(self, key: K, stream: int, now: float) -> None:
        """The server has sent a part of the answer, but not the last."""
        peer = self._peers.get(key)
        if peer is not None and (call := peer.calls.get(stream)) is not None:
            call.answer_went_on = now

    def full(self, key: K, now: float | None) -> None:
        """The client receives no bytes since this time; None: it receives again."""
        peer = self._peers.get(key)
        if peer is not None:
            peer.full_since = now

    def answered(self, key: K, stream: int, now: float) -> Sequence[K]:
        """The call has ended. Returns the connections that may continue to send."""
        peer = self._peers.get(key)
        call = None if peer is None else peer.calls.pop(stream, None)
        if peer is None or call is None:
            return ()
        self._grow(peer, -call.held_bytes)
        return self._wake(now)

    def forget(self, key: K, now: float) -> Sequence[K]:
        """The connection is closed. Returns the connections that may continue to send."""
        peer = self._peers.pop(key, None)
        if peer is None:
            return ()
        self._waiting.pop(key, None)
        self._counted_bytes -= peer.counted_bytes
        return self._wake(now)

    def used_at(self, key: K, now: float) -> float | None:
        """When its last call began; ``-inf`` before the first. None: it waits for an answer, and the gate does not wait
        for it."""
        peer = self._peers.get(key)
        if peer is None:
            return float("-inf")
        busy = bool(peer.calls) and (peer.owed_since is None or self._takes(peer, now))
        return None if busy else peer.used_at

    def _takes(self, peer: _Peer[K], now: float) -> bool:
        """Whether all its requests are there, and it has taken something of its answers a moment ago."""
        return all(call.complete for call in peer.calls.values()) and self._age(peer, now) < self._crowded_s

    def late(self, now: float) -> list[K]:
        """The connections to close now. Call it every second, and more often while it is ``contested``."""
        late = [one.key for one in self._peers.values() if self._age(one, now) >= self._request_s]
        if not self._waiting:
            return late
        left = self._counted_bytes
        in_the_way = [one for one in self._peers.values() if one.counted_bytes and self._in_the_way(one, now)]
        for peer in sorted(in_the_way, key=lambda one: -self._age(one, now)):
            if 2 * left <= self._budget_bytes:
                break
            left -= peer.counted_bytes
            late.append(peer.key)
        return list(dict.fromkeys(late))

    def _age(self, peer: _Peer[K], now: float) -> float:
        since = peer.owed_since
        return 0.0 if since is None else now - since

    def _in_the_way(self, peer: _Peer[K], now: float) -> bool:
        waited_s = 0.0 if peer.waits_since is None else now - peer.waits_since
        return self._age(peer, now) >= self._crowded_s or waited_s >= self._waiting_s

    def _grow(self, peer: _Peer[K], size_bytes: int) -> None:
        before = peer.counted_bytes
        peer.held_bytes += size_bytes
        self._counted_bytes += peer.counted_bytes - before

    def _wake(self, now: float) -> Sequence[K]:
        """Those that hold little now, and then the others in the order of their waits, as far as there is room."""
        room = self._counted_bytes <= self._budget_bytes
        woken = [one for one in self._waiting.values() if room or not one.counted_bytes]
        for peer in woken:
            del self._waiting[peer.key]
            peer.waits_since = None
            for call in peer.calls.values():
                if call.answer_went_on is not None:
                    call.answer_went_on = now
        return [one.key for one in woken]
