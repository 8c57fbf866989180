"""When lanes are drained: the first event at once, then together, and never most of the time."""

from __future__ import annotations

import pytest

from penstock.client.writing.rounds import SLICE_LANES, LaneRounds
from penstock.client.writing.segment_sender import Lane, SenderState

LINGER_S = 0.002


class Timer:
    """As uvloop's handles: they do not say when they are due where that is at once."""

    def __init__(self, at, call) -> None:
        self.at, self.call, self.over = at, call, False

    def cancel(self) -> None:
        self.over = True


class ByHand:
    """A loop whose time moves on request, and while lanes are drained."""

    def __init__(self, drain_s: float = 0.0) -> None:
        self.now = 100.0
        self.timers: list[Timer] = []
        self.drained: list[tuple[float, list[Lane]]] = []
        self.drain_s = drain_s
        self.lent = False
        self.on_their_way = 0
        self.rounds = LaneRounds(
            self,  # type: ignore[arg-type]
            LINGER_S,
            self.drain,
            lambda: 1000,
            lambda: self.lent,
            lambda: self.on_their_way,
        )

    def time(self) -> float:
        return self.now

    def call_soon(self, call) -> Timer:
        return self.call_at(self.now, call)

    def call_at(self, when, call) -> Timer:
        self.timers.append(Timer(when, call))
        return self.timers[-1]

    def waiting(self) -> list[Timer]:
        self.timers = [timer for timer in self.timers if not timer.over]
        return self.timers

    def until(self, when: float) -> None:
        while due := [timer for timer in self.waiting() if timer.at <= when]:
            timer = min(due, key=lambda one: one.at)
            timer.over = True
            self.now = max(self.now, timer.at)
            timer.call()
        self.now = when

    def step(self) -> None:
        """Call what is due next, alone."""
        timer = min(self.waiting(), key=lambda one: one.at)
        timer.over = True
        self.now = max(self.now, timer.at)
        timer.call()

    def drain(self, lanes) -> None:
        self.drained.append((self.now, list(lanes)))
        self.now += self.drain_s * len(lanes)
        for lane in lanes:
            lane.take()


class Sender:
    def __init__(self) -> None:
        self.has_room, self.due, self.state = True, False, SenderState.OPEN


def lane_of() -> Lane:
    return Lane(Sender())  # type: ignore[arg-type]


def write(hand: ByHand, lane: Lane) -> None:
    """As a writer does."""
    lane.written.extend((None, b"x"))
    if lane.limit == 0:
        lane.limit = 1000
        hand.rounds.wake(lane)


def test_the_first_event_goes_at_once_and_the_next_have_company() -> None:
    hand, lane = ByHand(), lane_of()
    write(hand, lane)
    assert [lanes for _, lanes in hand.drained] == [[lane]]
    for _ in range(5):
        write(hand, lane)
    assert len(hand.drained) == 1
    hand.until(100.0 + LINGER_S)
    assert [round(at - 100, 6) for at, _ in hand.drained] == [0, LINGER_S]
    hand.until(101.0)
    assert lane.limit == 0, "nothing came: the next event is a first one again"
    assert hand.waiting() == []
    write(hand, lane)
    assert hand.drained[-1] == (101.0, [lane])


def test_an_event_that_comes_while_its_lane_is_found_empty_is_not_left() -> None:
    hand, lane = ByHand(), lane_of()
    write(hand, lane)

    class Late(list):  # type: ignore[type-arg]
        """Empty when first looked at; by the second look another thread has added its event, having seen the old limit."""

        looks = 0

        def __bool__(self) -> bool:
            self.looks += 1
            if self.looks == 2:
                self.extend((None, b"late"))
            return len(self) > 0

    lane.written = Late()
    hand.until(100.0 + 2 * LINGER_S)
    assert lane.written == []
    assert len(hand.drained) == 2


def test_lanes_that_wake_while_draining_takes_all_the_time_are_drained_together() -> None:
    hand = ByHand(drain_s=0.001)
    lanes = [lane_of() for _ in range(50)]
    for lane in lanes:
        write(hand, lane)
    assert hand.drained == [(100.0, [lanes[0]])]
    hand.until(100.2)
    assert [len(drained) for _, drained in hand.drained] == [1, 49]
    assert hand.drained[1][0] == pytest.approx(100.001 + 3 * 0.050), "three times as long as fifty are going to take"
    for lane in lanes:
        write(hand, lane)
    hand.until(101.0)
    at = [began for began, _ in hand.drained]
    assert at[2] - (at[1] + 0.049) == pytest.approx(3 * 0.050)


def test_few_lanes_that_cost_little_wait_no_longer_than_they_are_to_linger() -> None:
    hand = ByHand(drain_s=0.00001)
    lanes = [lane_of() for _ in range(20)]
    for lane in lanes:
        write(hand, lane)
    hand.until(100.1)
    assert [len(drained) for _, drained in hand.drained] == [1, 19]
    assert hand.drained[1][0] <= 100.0 + LINGER_S


def test_a_round_of_many_lanes_waits_for_most_of_the_one_before_but_not_for_ever() -> None:
    hand = ByHand(drain_s=0.000001)
    lanes = [lane_of() for _ in range(100)]
    hand.on_their_way = 26
    for lane in lanes:
        write(hand, lane)
    hand.until(100.1)
    assert [len(drained) for _, drained in hand.drained] == [1]
    hand.on_their_way = 25
    hand.until(100.1 + 2 * LINGER_S)
    assert [len(drained) for _, drained in hand.drained] == [1, 99]
    hand.on_their_way = 1000
    for lane in lanes:
        write(hand, lane)
    hand.until(101.0)
    assert [len(drained) for _, drained in hand.drained] == [1, 99, 1, 99]
    assert hand.drained[3][0] == pytest.approx(hand.drained[2][0] + 0.25, abs=2 * LINGER_S)
    hand.until(102.0)
    for lane in lanes[:50]:
        write(hand, lane)
    hand.until(102.0 + 2 * LINGER_S)
    assert [len(drained) for _, drained in hand.drained[4:]] == [1, 49], "few lanes wait for nobody"


def test_no_event_waits_longer_than_a_quarter_of_a_second() -> None:
    hand = ByHand(drain_s=0.001)
    lanes = [lane_of() for _ in range(1000)]
    for _ in range(3):
        for lane in lanes:
            write(hand, lane)
        hand.until(hand.now + 2)
    at = [(began, len(drained)) for began, drained in hand.drained]
    waits = [after - (before + count * 0.001) for (before, count), (after, _) in zip(at, at[1:], strict=False)]
    write(hand, lanes[0])
    assert sum(count for _, count in at) == 3 * 1000
    assert all(wait <= 0.25 or wait > 0.5 for wait in waits), "or there was nothing to drain"


def test_a_round_of_very_many_lanes_is_drained_in_slices_with_passes_of_the_loop_between() -> None:
    hand = ByHand(drain_s=0.00001)
    lanes = [lane_of() for _ in range(2 * SLICE_LANES + 10)]
    others = []
    first = lane_of()
    write(hand, first)
    for lane in lanes:
        write(hand, lane)
    hand.call_at(hand.now + LINGER_S, lambda: others.append(len(hand.drained)))
    before = len(hand.drained)
    hand.until(hand.now + 1.0)
    sizes = [len(drained) for _, drained in hand.drained[before:]]
    assert sizes[:3] == [SLICE_LANES, SLICE_LANES, 10]
    assert [lane for _, drained in hand.drained[before : before + 3] for lane in drained] == lanes
    assert others[0] < before + 3, "others have their turn between two slices"
    assert hand.waiting() == [], "all are idle again"


def test_an_end_between_two_slices_is_the_end() -> None:
    hand = ByHand(drain_s=0.00001)
    lanes = [lane_of() for _ in range(2 * SLICE_LANES)]
    for lane in lanes:
        write(hand, lane)
    while not any(len(drained) == SLICE_LANES for _, drained in hand.drained):
        hand.step()
    drained = len(hand.drained)
    hand.rounds.close()
    hand.until(hand.now + 1.0)
    assert len(hand.drained) == drained


def test_a_sender_without_room_is_left_to_its_next_acknowledgement() -> None:
    hand, lane = ByHand(), lane_of()
    write(hand, lane)
    write(hand, lane)
    lane.sender.has_room = False
    hand.until(100.0 + 1.5 * LINGER_S)
    assert lane.sender.due
    assert len(hand.drained) == 1
    assert lane.limit > 0, "still looked at"


def test_nothing_is_looked_at_after_the_end() -> None:
    hand, lane = ByHand(), lane_of()
    write(hand, lane)
    write(hand, lane)
    hand.rounds.close()
    hand.until(102.0)
    assert len(hand.drained) == 1
    assert hand.waiting() == []


def test_lanes_that_the_writing_thread_sends_itself_are_left_alone_until_they_wake_again():
    hand, lane = ByHand(), lane_of()
    write(hand, lane)
    assert len(hand.drained) == 1
    hand.lent, lane.limit = True, 0
    hand.until(hand.now + 10 * LINGER_S)
    assert (lane.limit, hand.waiting(), len(hand.drained)) == (0, [], 1)
    hand.lent = False
    write(hand, lane)
    assert len(hand.drained) == 2
