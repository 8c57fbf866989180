"""Choose which connections may receive the rest of a large frame when receive memory is short.

While at most half of the budget is used, all connections receive without a turn. Above that, the rest of a frame needs
a turn:

* Quick connections receive side by side while the bytes that they hold and still need fit into the budget. New connections
  may use two thirds of it. So new connections cannot block quick ones, even if they turn out to be slow.
* One connection at a time has the lane: a slow one, or one whose frame does not fit otherwise. Only a quick one may exceed
  the budget there, or, if nothing else fits, the one that needs least. So one connection can always finish.
* A connection that does not finish in its turn while others wait is slow from then on. It keeps its bytes, and waits.
  So slow connections take turns from each other, and not from quick ones.
* A connection that sends nothing in its turn loses it, and is still read a little. It is closed only if others
  wait for memory and it was silent for ``grace_s``. After an equal wait, one that sent too little in its turn is closed too.

The budget does not count the one step (``STEP_BYTES``) that was read from each waiting connection.
This module uses no event loop: the caller passes what arrives and the time, and acts on the answers.
Source: docs/design/0028-limits-and-memory.md.
"""

from __future__ import annotations

from dataclasses import field
from enum import Enum, IntEnum
from typing import Generic, TypeVar

from penstock.model.values.dataclass import dataclass

K = TypeVar("K")

FREE_BYTES = 16 << 10
"""The first bytes of a frame, which are not counted."""
STEP_BYTES = 64 << 10
TURN_BYTES = 64 << 10
"""A connection that sends less in a turn may be closed if others wait for its memory."""
_MANY = 64  # connections; where there are more, each receives in the free step only


class Standing(IntEnum):
    """What is known of a connection. Lower values have priority."""

    QUICK = 0
    NEW = 1
    SLOW = 2


class State(Enum):
    """``OPEN`` receives without a turn, until its next bytes while memory is short."""

    OPEN = 0
    WAITING = 1
    BESIDE = 2
    BEYOND = 3


@dataclass(slots=True, eq=False)
class _Peer(Generic[K]):
    key: K
    standing: Standing
    since: float
    """Start of its turn, its wait or its frame."""
    seen: float
    """When its last bytes came."""
    held: int = 0
    missing: int = 0
    state: State = State.OPEN
    turn_bytes: int = 0
    stepped: int = 0
    lost: bool = False
    """Whether it lost a turn in this frame."""
    weak: bool = False
    """Whether its last turn brought less than ``TURN_BYTES``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Generic[K]):
    """What to do now. ``wake``: connections to read again. Others need memory, so close those in ``silent``, which send
    nothing although they are read, and those in ``weak``, which sent too little in their turn."""

    wake: list[K] = field(default_factory=list)
    silent: list[K] = field(default_factory=list)
    weak: list[K] = field(default_factory=list)


class ReceiveTurns(Generic[K]):
    """The rule and its state. All times are the caller's, in seconds."""

    def __init__(self, *, budget_bytes: int, turn_s: float, grace_s: float) -> None:
        self.budget_bytes = budget_bytes
        self._turn_s = turn_s
        self._grace_s = grace_s
        self.connections: dict[K, _Peer[K]] = {}
        """The connections that hold enough of a frame to be counted."""
        self._standing: dict[K, Standing] = {}
        self.waiting: dict[K, _Peer[K]] = {}
        """The connections that may not receive now."""
        self._beside: dict[K, _Peer[K]] = {}
        self._beyond: _Peer[K] | None = None
        self._ceiling = budget_bytes
        self._beyond_from = 0
        """Bytes that the connection in the lane held when it began."""
        self._slow_next = False
        self.held_bytes = 0
        self._stepped = 0
        """Bytes that waiting connections hold, for each at most what was read before its wait."""
        self._claimed = 0
        """Bytes that the connections that receive side by side still need."""

    @property
    def crowded(self) -> bool:
        """Whether the rest of a frame needs a turn."""
        return 2 * self.held_bytes > self.budget_bytes

    @property
    def contested(self) -> bool:
        """Whether any wait."""
        return bool(self.waiting)

    def room(self, key: K) -> int:
        """How many bytes it may receive at once."""
        left_bytes = self.budget_bytes - self.held_bytes
        if left_bytes >= self.held_bytes:
            return left_bytes if left_bytes > STEP_BYTES else STEP_BYTES
        peer = self.connections.get(key)
        if peer is not None and peer.state in (State.BESIDE, State.BEYOND):
            return max(STEP_BYTES, peer.missing)
        return STEP_BYTES if len(self.connections) <= _MANY else FREE_BYTES

    def note(self, key: K, held: int, missing: int, now: float) -> Step[K]:
        """Record how many bytes of an incomplete frame the connection holds, and how many it still needs."""
        peer = self.connections.get(key)
        changed = False
        if held <= FREE_BYTES:
            if peer is None:
                return Step()
            self._finished(peer, now)
            self._drop(peer)
            return self._decide(now)
        if peer is None:
            peer = _Peer(key=key, standing=self._standing.get(key, Standing.NEW), since=now, seen=now)
            self.connections[key] = peer
        elif held < peer.held or missing > peer.missing:
            self._finished(peer, now)
            changed = True
        if held > peer.held:
            peer.seen = now
            peer.turn_bytes += held - peer.held
        if peer.state is State.BESIDE:
            self._claimed += missing - peer.missing
        self.held_bytes += held - peer.held
        peer.held, peer.missing = held, missing
        if peer.state is State.OPEN and self.crowded:
            self._wait(peer, now)
            changed = True
        return self._decide(now) if changed else Step()

    def forget(self, key: K, now: float) -> Step[K]:
        """Remove a closed connection."""
        self._standing.pop(key, None)
        peer = self.connections.get(key)
        if peer is None:
            return Step()
        self._drop(peer)
        return self._decide(now)

    def tick(self, now: float) -> Step[K]:
        """End turns, and find connections to close. Call it every ``turn_s`` while it is ``contested``."""
        if not self.waiting:
            return Step()
        for peer in [one for one in self._beside.values() if now - one.since >= self._turn_s]:
            self._lose(peer, now)
        leader = self._beyond
        if leader is not None and now - leader.since >= self._turn_s:
            others = any(one.standing < Standing.SLOW for one in self.waiting.values())
            if others or leader.turn_bytes < TURN_BYTES:
                self._lose(leader, now)
            else:
                leader.standing, leader.lost, leader.weak = Standing.SLOW, True, False
                leader.since, leader.turn_bytes = now, 0
        wake = self._decide(now).wake
        silent, weak = self._in_the_way(now)
        return Step(wake=wake, silent=silent, weak=weak)

    # --- turns ---

    def _leave(self, peer: _Peer[K]) -> None:
        """Leave the current state. The caller sets the next one."""
        if peer.state is State.BESIDE:
            del self._beside[peer.key]
            self._claimed -= peer.missing
        elif peer.state is State.WAITING:
            del self.waiting[peer.key]
            self._stepped -= peer.stepped
        elif peer.state is State.BEYOND:
            self._beyond = None
        peer.state = State.OPEN

    def _wait(self, peer: _Peer[K], now: float) -> None:
        self._leave(peer)
        peer.state, peer.since = State.WAITING, now
        peer.stepped = min(peer.held, STEP_BYTES + FREE_BYTES)
        self._stepped += peer.stepped
        self.waiting[peer.key] = peer

    def _finished(self, peer: _Peer[K], now: float) -> None:
        """A frame is complete: update the standing of its connection."""
        quick = not peer.lost and peer.state is not State.WAITING and now - peer.since < self._turn_s
        if quick:
            peer.standing = Standing.QUICK if peer.standing < Standing.SLOW else Standing.NEW
        self._standing[peer.key] = peer.standing
        self._leave(peer)
        peer.lost = peer.weak = False
        peer.since, peer.turn_bytes = now, 0

    def _drop(self, peer: _Peer[K]) -> None:
        self._leave(peer)
        del self.connections[peer.key]
        self.held_bytes -= peer.held

    def _lose(self, peer: _Peer[K], now: float) -> None:
        sent = peer.turn_bytes
        peer.standing, peer.lost, peer.weak = Standing.SLOW, True, sent < TURN_BYTES
        if sent:
            self._wait(peer, now)
        else:
            # Still read: its next bytes show that it is alive.
            self._leave(peer)
            peer.since = now

    def _begin(self, peer: _Peer[K], state: State, now: float) -> None:
        self._leave(peer)
        peer.state, peer.since, peer.turn_bytes = state, now, 0
        if state is State.BESIDE:
            self._beside[peer.key] = peer
            self._claimed += peer.missing
        else:
            self._beyond, self._beyond_from = peer, peer.held

    def _decide(self, now: float) -> Step[K]:
        """Give a turn to each connection that may continue."""
        wake: list[K] = []
        if not self.crowded:
            for peer in [*self.waiting.values(), *self._beside.values()]:
                if peer.state is State.WAITING:
                    wake.append(peer.key)
                self._leave(peer)
                peer.since = now
            if self._beyond is not None:
                self._leave(self._beyond)
            return Step(wake=wake)
        if not self.waiting:
            return Step()
        for peer in sorted(
            (one for one in self.waiting.values() if one.standing < Standing.SLOW),
            key=lambda one: (one.standing, one.missing),
        ):
            if not self._fits_beside(peer):
                break
            self._begin(peer, State.BESIDE, now)
            wake.append(peer.key)
        leader = self._next_beyond() if self._beyond is None else None
        if leader is not None:
            if self._settled <= self.budget_bytes:
                self._ceiling = self.budget_bytes + leader.missing
            self._slow_next = leader.standing < Standing.SLOW
            self._begin(leader, State.BEYOND, now)
            wake.append(leader.key)
        return Step(wake=wake)

    def _fits_beside(self, peer: _Peer[K]) -> bool:
        # The connection in the lane has its own room.
        lane = 0 if self._beyond is None else max(0, self._beyond.held - self._beyond_from)
        limit = self.budget_bytes if peer.standing is Standing.QUICK else self.budget_bytes * 2 // 3
        return self._settled - lane + self._claimed + peer.missing <= limit

    def _next_beyond(self) -> _Peer[K] | None:
        """Choose the next connection for the lane. Slow ones and others alternate. Of the others, quick ones come first, then
        the longest wait. Of the slow ones, the one that needs least comes first."""
        settled, budget = self._settled, self.budget_bytes
        begun = settled + self._claimed
        slow: list[_Peer[K]] = []
        others: list[_Peer[K]] = []
        for one in self.waiting.values():
            if one.standing is Standing.SLOW:
                if begun + one.missing <= budget:
                    slow.append(one)
            elif begun + one.missing <= budget or (one.standing is Standing.QUICK and self._fits_beyond(one)):
                others.append(one)
        if others and not (slow and self._slow_next):
            return min(others, key=lambda one: (one.standing, one.since))
        if slow:
            return min(slow, key=lambda one: (one.weak, one.missing))
        fitting = [one for one in self.waiting.values() if self._fits_beyond(one)]
        return min(fitting, key=lambda one: (one.weak, one.missing), default=None)

    def _fits_beyond(self, peer: _Peer[K]) -> bool:
        settled = self._settled
        return settled <= self.budget_bytes or settled + self._claimed + peer.missing <= self._ceiling

    @property
    def _settled(self) -> int:
        return self.held_bytes - self._stepped

    def _in_the_way(self, now: float) -> tuple[list[K], list[K]]:
        """Choose what to close because others need memory: as many silent ones as needed; if there are none, one weak one."""
        late = [one for one in self.waiting.values() if not one.weak and now - one.since >= self._turn_s]
        if not late:
            return [], []
        silent = [
            one for one in self.connections.values() if one.state is State.OPEN and now - one.seen >= self._grace_s
        ]
        if not silent and any(one.standing < Standing.SLOW and now - one.since >= self._grace_s for one in late):
            weak = [one for one in self.waiting.values() if one.weak]
            return [], [max(weak, key=lambda one: one.held).key] if weak else []
        wanted = max(one.missing for one in late)
        cut: list[K] = []
        for peer in sorted(silent, key=lambda one: -one.held):
            if wanted <= 0:
                break
            cut.append(peer.key)
            wanted -= peer.held
        return cut, []
