"""What lies before a cut, segment by segment, by the order of the stream and not by the numbers of its segments."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from retention_world import World, cut, history_of, keys_of, position_at, seg, worlds

from penstock.core.cuts.order import passed_until


def test_a_newer_segment_may_lie_before_a_cut_that_names_an_older_one() -> None:
    split = history_of(
        {"0#0": (0, 0.5), "1#0": (0.5, 1)},
        {"0#0": (0, 0.5), "2#1": (0.5, 0.75), "3#1": (0.75, 1)},
        sealed={"1#0": 10},
    )
    tail = cut(s0e0=7, s2e1=0, s3e1=0)
    assert passed_until(split, tail, seg("1#0")) is None
    assert passed_until(split, tail, seg("0#0")) == 7
    assert passed_until(split, tail, seg("2#1")) == 0
    assert passed_until(split, cut(s0e0=7, s1e0=3), seg("2#1")) == 0
    assert passed_until(split, tail, seg("9#1")) == 0


@settings(deadline=None, max_examples=200)
@given(worlds(steps=40))
def test_the_passed_part_of_a_segment_lies_before_the_cut_at_each_key(given_: tuple[World, Random]) -> None:
    world, random = given_
    history = world.history
    positions = world.some_cut(random)
    ranges = history.index.ranges
    for segment in history.index.ids:
        passed = passed_until(history, positions, segment)
        for key in keys_of(history):
            if ranges[segment].low <= key < ranges[segment].high:
                there, offset = position_at(history, positions, key)
                expected = None if there > segment else (0 if there < segment else max(0, offset))
                assert passed == expected
