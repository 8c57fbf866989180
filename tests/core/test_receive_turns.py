"""Turns of connections that receive large frames while memory is short, against peers of every kind."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from penstock.core.segments.receive_turns import FREE_BYTES, STEP_BYTES, TURN_BYTES, ReceiveTurns

MIB = 1 << 20
TURN_S = 0.25
GRACE_S = 4 * TURN_S
PASS_S = 0.01
"""One pass of the loop."""
SOCKET_BYTES = 256 << 10
FRAME_BYTES = 2 * MIB
BUDGET_BYTES = 6 * MIB


@dataclass
class Peer:
    number: int
    rate: float
    """Bytes in a second, from the beginning or once ``burst`` is sent."""
    burst: int
    frames: list[int]
    ends_at: int | None = None
    """Where in its first frame it falls silent."""
    ready: int = 0
    sent: int = 0
    cut: bool = False
    began: float | None = None
    longest: float = 0.0

    @property
    def done(self) -> bool:
        return not self.frames

    def pass_by(self) -> None:
        """What comes into its socket in a pass."""
        most = self.frames[0] if self.ends_at is None else self.ends_at
        burst = max(0, self.burst - self.sent - self.ready)
        room = max(0, SOCKET_BYTES - self.ready)
        self.ready += int(min(max(burst, self.rate * PASS_S), room, most - self.sent - self.ready))


class Crowd:
    """Peers and the rule, in passes of a loop. Raises where the memory is more than it may be."""

    def __init__(self, peers: list[Peer], rng: random.Random, budget: int = BUDGET_BYTES) -> None:
        self.turns: ReceiveTurns[int] = ReceiveTurns(budget_bytes=budget, turn_s=TURN_S, grace_s=GRACE_S)
        self.peers = peers
        self.now = 0.0
        self.most = 0
        self._rng = rng
        self._tick_at: float | None = None
        self.needed = False

    def run(self, until, limit_s: float) -> bool:
        while not until():
            if self.now > limit_s:
                return False
            self.step()
        return True

    def step(self) -> None:
        self.now += PASS_S
        active = [one for one in self.peers if not one.done and not one.cut]
        self._rng.shuffle(active)
        for peer in active:
            self._receive(peer)
        self.most = max(self.most, self.turns.held_bytes)
        allowed = self.turns.budget_bytes + FRAME_BYTES + len(self.peers) * (STEP_BYTES + FREE_BYTES)
        assert self.turns.held_bytes <= allowed
        if self._tick_at is None and self.turns.contested:
            self._tick_at = self.now + TURN_S
        if self._tick_at is not None and self.now >= self._tick_at:
            self._tick_at = None
            self._tick()

    def _tick(self) -> None:
        contested = self.turns.contested
        step = self.turns.tick(self.now)
        for number in (*step.silent, *step.weak):
            # Nobody is cut whose memory no one waits for, nor anybody who keeps sending.
            assert contested
            peer = next(one for one in self.peers if one.number == number)
            assert peer.ends_at is not None
            assert peer.sent == peer.ends_at
            peer.cut = True
            self.turns.forget(number, self.now)

    def _receive(self, peer: Peer) -> None:
        peer.pass_by()
        if peer.began is None and peer.ready:
            peer.began = self.now
        for _ in range(8):
            if not peer.ready or peer.number in self.turns.waiting:
                break
            size = min(peer.ready, self.turns.room(peer.number))
            peer.ready -= size
            peer.sent += size
            missing = peer.frames[0] - peer.sent
            if missing:
                self.turns.note(peer.number, peer.sent, missing, self.now)
                continue
            peer.frames.pop(0)
            peer.sent = 0
            self.turns.note(peer.number, 0, 0, self.now)
            peer.longest = max(peer.longest, self.now - (peer.began or self.now))
            peer.began = None
            break
        if peer.began is not None:
            peer.longest = max(peer.longest, self.now - peer.began)


def slow_peer(number: int, rng: random.Random) -> Peer:
    rate = rng.uniform(2, 6) * TURN_BYTES / TURN_S
    return Peer(number, rate, rng.choice((0, rng.randrange(FRAME_BYTES))), [rng.randrange(MIB, FRAME_BYTES)])


def silent_peer(number: int, rng: random.Random) -> Peer:
    size = rng.randrange(MIB, FRAME_BYTES)
    return Peer(number, 1e9, size, [size], ends_at=rng.randrange(size))


@pytest.mark.parametrize("seed", range(60))
def test_all_who_keep_sending_finish_within_the_memory(seed: int) -> None:
    rng = random.Random(seed)
    makers = (
        slow_peer,
        silent_peer,
        lambda number, rng: Peer(
            number, 1e9, 0, [rng.randrange(1000, FRAME_BYTES) for _ in range(rng.randrange(1, 9))]
        ),
    )
    peers = [rng.choice(makers)(number, rng) for number in range(rng.randrange(2, 50))]
    world = Crowd(peers, rng)
    ended = world.run(lambda: all(one.done or one.ends_at is not None for one in peers), limit_s=400)
    assert ended
    live = [one for one in peers if not one.done and not one.cut]
    assert world.turns.held_bytes == sum(one.sent for one in live if one.sent > FREE_BYTES)


@pytest.mark.parametrize("silent", [0, 0.5, 1])
@pytest.mark.parametrize("count", [5, 20, 80, 320])
def test_a_quick_writer_waits_no_longer_beside_more_slow_peers(count: int, silent: float) -> None:
    worst = 0.0
    for seed in range(3):
        rng = random.Random(seed)
        quick = Peer(0, 1e9, 0, [MIB // 2] * 3)
        others = [(silent_peer if rng.random() < silent else slow_peer)(number, rng) for number in range(1, count + 1)]
        for peer in others:
            # They come with much at once, and then trickle.
            peer.burst = rng.randrange(FRAME_BYTES // 4, peer.frames[0])
        world = Crowd([quick], rng)
        world.run(lambda quick=quick: quick.done, limit_s=10)
        world.peers += others
        for _ in range(300):
            world.step()
        quick.frames = [rng.choice((MIB // 8, MIB // 2, MIB, FRAME_BYTES)) for _ in range(12)]
        quick.longest = 0.0
        assert world.run(lambda quick=quick: quick.done, limit_s=world.now + 60)
        worst = max(worst, quick.longest)
    assert worst <= GRACE_S + 3 * TURN_S


def test_a_silent_holder_stays_while_nobody_needs_its_memory() -> None:
    rng = random.Random(1)
    peers = [Peer(number, 1e9, MIB, [FRAME_BYTES], ends_at=MIB) for number in range(4)]
    world = Crowd([], rng)
    for peer in peers:
        world.peers.append(peer)
        for _ in range(1000):
            world.step()
    assert world.turns.crowded
    assert not world.turns.contested
    assert not any(peer.cut for peer in peers)
