"""Cuts between two others, at an exact number of bytes, over streams that scale, merge and roll."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st
from retention_world import TWO, World, cut, history_of, worlds

from penstock.core.cuts.between import cut_between
from penstock.core.cuts.compose import counted_segments
from penstock.core.cuts.order import at_or_after, check_cut, check_within, head_of, lower_bound, size_till


def test_all_segments_go_forward_together_by_their_share() -> None:
    assert cut_between(TWO, cut(s0e0=0, s1e0=0), cut(s0e0=30, s1e0=10), 20) == cut(s0e0=15, s1e0=5)


def test_what_follows_begins_once_all_before_it_is_passed() -> None:
    merged = history_of({"0#0": (0, 0.5), "1#0": (0.5, 1)}, {"2#1": (0, 1)}, sealed={"0#0": 10, "1#0": 30})
    assert cut_between(merged, cut(s0e0=0, s1e0=0), cut(s2e1=20), 39) == cut(s0e0=9, s1e0=30)
    assert cut_between(merged, cut(s0e0=0, s1e0=0), cut(s2e1=20), 45) == cut(s2e1=5)
    # The head of a subscriber in the middle of the merge: what it has not started waits for the rest.
    assert cut_between(merged, cut(s1e0=20, s2e1=-1), cut(s2e1=20), 35) == cut(s1e0=25, s2e1=-1)
    assert cut_between(merged, cut(s1e0=20, s2e1=-1), cut(s2e1=20), 50) == cut(s2e1=10)


def test_a_segment_whose_keys_are_behind_elsewhere_waits() -> None:
    # 0 goes on while 1 splits; then 0 and one half merge.
    history = history_of(
        {"0#0": (0, 0.5), "1#0": (0.5, 1)},
        {"0#0": (0, 0.5), "2#1": (0.5, 0.75), "3#1": (0.75, 1)},
        {"4#2": (0, 0.75), "3#1": (0.75, 1)},
        sealed={"0#0": 10, "1#0": 10, "2#1": 10},
    )
    tail = cut(s4e2=10, s3e1=10)
    assert cut_between(history, head_of(history), tail, 30) == cut(s2e1=5, s3e1=5, s4e2=-1)
    assert cut_between(history, head_of(history), tail, 45) == cut(s3e1=10, s4e2=5)


def test_a_way_to_what_is_not_started_cannot_be_told() -> None:
    assert cut_between(TWO, cut(s0e0=0, s1e0=0), cut(s0e0=1, s1e0=-1), 1) is None


@given(worlds(), st.floats(0, 1), st.booleans())
def test_a_cut_between_has_exactly_so_many_bytes_before_it(made: tuple[World, Random], share: float, own: bool) -> None:
    world, random = made
    history, tail = world.history, world.tail()
    low = world.some_cut(random) if own else head_of(history)
    high = next((r for r in world.records if at_or_after(history, r.positions, low)), tail).positions
    least, most = size_till(history, low), size_till(history, high)
    size = least + int((most - least) * share)
    found = cut_between(history, low, high, size)
    assert found is not None
    check_cut(history, found)
    check_within(history, found)
    assert size_till(history, found) == size
    assert at_or_after(history, found, low)
    assert at_or_after(history, high, found)


@given(worlds(), st.floats(0, 1))
def test_bytes_of_single_segments_are_met_as_exactly(made: tuple[World, Random], share: float) -> None:
    world, random = made
    history, tail = world.history, world.tail().positions
    low = lower_bound(history, [world.some_cut(random), tail])
    for item in counted_segments(history, tail):
        before = item.before(history, low)
        size = before + int((item.end - before) * share)
        found = cut_between(history, low, tail, size, item.segments)
        assert found is not None
        check_cut(history, found)
        assert item.before(history, found) == size
        assert at_or_after(history, found, low)
        assert at_or_after(history, tail, found)
