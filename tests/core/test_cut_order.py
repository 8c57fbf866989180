from __future__ import annotations

import pickle
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from retention_world import (
    World,
    brute_is_valid,
    brute_passed,
    brute_size,
    covers,
    cut,
    even,
    history_of,
    keys_of,
    position_at,
    seg,
    worlds,
)

from penstock.core.cuts.order import (
    CutOrder,
    at_or_after,
    bytes_between,
    check_cut,
    check_within,
    compare,
    head_of,
    lower_bound,
    missing_lengths,
    segments_between,
    segments_to_delete,
    size_till,
    storage_offsets,
    successors,
    upper_bound,
)
from penstock.core.streams.history import StreamHistory
from penstock.model.errors import InvalidCutError, SegmentNotFoundError

THIRD = 1 / 3

# 0 splits to 3 and 4; 4, 1 and 2 merge to 5; 3 and 5 merge to 6.
MERGING = history_of(
    {"0#0": (0.0, THIRD), "1#0": (THIRD, 2 / 3), "2#0": (2 / 3, 1.0)},
    {"3#1": (0.0, 1 / 6), "4#1": (1 / 6, THIRD), "1#0": (THIRD, 2 / 3), "2#0": (2 / 3, 1.0)},
    {"3#1": (0.0, 1 / 6), "5#2": (1 / 6, 1.0)},
    {"6#3": (0.0, 1.0)},
    sealed={"0#0": 100, "1#0": 100, "2#0": 100, "3#1": 10, "4#1": 20, "5#2": 30},
)

# 0,1 | 0,2,3 | 0,2,4,5 | 0,4,5,6,7 | 4,5,6,7,8,9
SPLITTING = history_of(
    {"0#0": (0.0, 0.5), "1#0": (0.5, 1.0)},
    {"0#0": (0.0, 0.5), "2#1": (0.5, 0.75), "3#1": (0.75, 1.0)},
    {"0#0": (0.0, 0.5), "2#1": (0.5, 0.75), "4#2": (0.75, 0.875), "5#2": (0.875, 1.0)},
    {"0#0": (0.0, 0.5), "6#3": (0.5, 0.6), "7#3": (0.6, 0.75), "4#2": (0.75, 0.875), "5#2": (0.875, 1.0)},
    {
        "8#4": (0.0, 0.25),
        "9#4": (0.25, 0.5),
        "6#3": (0.5, 0.6),
        "7#3": (0.6, 0.75),
        "4#2": (0.75, 0.875),
        "5#2": (0.875, 1.0),
    },
    sealed={"0#0": 10, "1#0": 20, "2#1": 30, "3#1": 40},
)


# --- worked examples ----------------------------------------------------------------------------------------------


def test_sizes_of_the_worked_example_count_sealed_segments_for_ever() -> None:
    two = {"0#0": (0.0, 0.5), "1#0": (0.5, 1.0)}
    second = {"2#1": (0.0, 0.5), "3#1": (0.5, 1.0)}
    third = {"4#2": (0.0, 0.25), "5#2": (0.25, 0.5), "3#1": (0.5, 1.0)}
    first_cut, second_cut = cut(s0e0=9, s1e0=10), cut(s2e1=29, s3e1=30)
    assert size_till(history_of(two), first_cut) == 19
    scaled = history_of(two, second, sealed={"0#0": 70, "1#0": 70})
    assert size_till(scaled, second_cut) == 199
    again = history_of(two, second, third, sealed={"0#0": 70, "1#0": 70, "2#1": 50})
    third_cut = cut(s3e1=40, s4e2=30, s5e2=30)
    assert size_till(again, third_cut) == 290
    assert bytes_between(again, None, third_cut) == 290
    assert bytes_between(again, first_cut, second_cut) == 180
    assert bytes_between(again, second_cut, third_cut) == 91


def test_lower_bound_of_the_worked_example_keeps_a_segment_that_nobody_started() -> None:
    bound = lower_bound(MERGING, [cut(s0e0=7, s5e2=-1), cut(s0e0=3, s2e0=9, s5e2=-1)])
    assert bound == cut(s0e0=3, s2e0=9, s5e2=-1)


def test_lower_bound_drops_a_segment_that_is_hidden_everywhere() -> None:
    bound = lower_bound(MERGING, [cut(s0e0=1, s5e2=-1), cut(s0e0=2, s1e0=3, s5e2=-1), cut(s0e0=2, s2e0=4, s5e2=-1)])
    assert bound == cut(s0e0=1, s1e0=3, s2e0=4)


def test_lower_bound_across_epochs_of_the_worked_example() -> None:
    history = history_of(
        {"0#0": (0.0, 0.5), "1#0": (0.5, 1.0)},
        {"2#1": (0.0, 0.6), "3#1": (0.6, 1.0)},
        {"2#1": (0.0, 0.6), "4#2": (0.6, 0.8), "5#2": (0.8, 1.0)},
        {"2#1": (0.0, 0.6), "6#3": (0.6, 0.7), "7#3": (0.7, 0.8), "5#2": (0.8, 1.0)},
        {"8#4": (0.0, 0.7), "9#4": (0.7, 1.0)},
    )
    ahead, behind = cut(s0e0=1, s2e1=-1, s8e4=-1, s9e4=1), cut(s1e0=1, s2e1=-1)
    check_cut(history, ahead)
    check_cut(history, behind)
    assert lower_bound(history, [ahead, behind]) == cut(s0e0=1, s1e0=1)


def test_comparison_of_the_worked_examples() -> None:
    history = even(2)
    ten = cut(s0e0=10, s1e0=10)
    assert compare(history, cut(s0e0=0, s1e0=10), ten) is CutOrder.BEFORE
    assert compare(history, ten, cut(s0e0=0, s1e0=10)) is CutOrder.AFTER
    assert compare(history, cut(s0e0=1, s1e0=11), ten) is CutOrder.OVERLAPS
    assert compare(history, dict(ten), ten) is CutOrder.EQUAL


def test_a_cut_with_an_unstarted_segment_equals_itself_and_can_be_moved_forward() -> None:
    before, after = cut(s0e0=1, s2e0=1, s5e2=-1), cut(s0e0=1, s2e0=2, s5e2=-1)
    assert compare(MERGING, before, dict(before)) is CutOrder.EQUAL
    assert compare(MERGING, after, before) is CutOrder.AFTER
    assert at_or_after(MERGING, after, before)
    assert not at_or_after(MERGING, before, after)
    assert compare(MERGING, cut(s0e0=5, s5e2=-1), cut(s0e0=9, s2e0=9, s5e2=-1)) is CutOrder.OVERLAPS


def test_not_started_counts_as_the_beginning_of_the_segment() -> None:
    assert compare(MERGING, cut(s3e1=4, s5e2=-1), cut(s3e1=4, s5e2=0)) is CutOrder.EQUAL
    assert compare(MERGING, cut(s3e1=4, s5e2=-1), cut(s3e1=4, s5e2=1)) is CutOrder.BEFORE


def test_segments_to_delete_of_the_worked_example() -> None:
    first, second = cut(s0e0=1, s2e1=1, s4e2=0, s5e2=0), cut(s2e1=5, s4e2=0, s5e2=0, s8e4=0, s9e4=0)
    assert segments_to_delete(SPLITTING, head_of(SPLITTING), first) == [seg("1#0"), seg("3#1")]
    assert segments_to_delete(SPLITTING, None, first) == [seg("1#0"), seg("3#1")]
    assert segments_to_delete(SPLITTING, first, second) == [seg("0#0")]


def test_segments_hidden_behind_an_unstarted_one_are_deleted_once_it_is_passed() -> None:
    old, new = cut(s0e0=1, s2e0=1, s5e2=-1), cut(s6e3=0)
    assert segments_to_delete(MERGING, None, old) == [seg("1#0")]
    assert segments_to_delete(MERGING, old, new) == [seg(n) for n in ("0#0", "2#0", "3#1", "4#1", "5#2")]
    assert bytes_between(MERGING, old, new) == 99 + 99 + 10 + 20 + 30


@pytest.mark.parametrize(
    ("history", "positions", "reason"),
    [
        (even(2), {}, "no positions"),
        (even(2), cut(s0e0=1), "no position"),
        (even(2), cut(s0e0=1, s1e0=-2), "negative"),
        (even(2), cut(s0e0=1, s1e0=1, s9e9=0), "never had"),
        (SPLITTING, cut(s0e0=1, s7e3=1, s4e2=0, s5e2=0), "no position"),
        (SPLITTING, cut(s2e1=0, s4e2=-1, s9e4=2), "no position"),
        (MERGING, cut(s0e0=1, s1e0=1, s2e0=1, s5e2=0), "older one of the cut is unfinished"),
        (MERGING, cut(s3e1=0, s4e1=1, s1e0=1, s2e0=1, s0e0=-1), "older one of the cut is unfinished"),
        (MERGING, cut(s2e0=1, s6e3=-1), "part of its range"),
    ],
)
def test_check_cut_names_the_broken_part_of_the_rule(history: StreamHistory, positions: dict, reason: str) -> None:
    with pytest.raises(InvalidCutError, match=reason):
        check_cut(history, positions)


def test_two_started_segments_that_overlap_without_more_pieces_than_segments_are_refused() -> None:
    history = history_of({"0#0": (0.0, 0.5), "1#0": (0.5, 1.0)}, {"2#1": (0.0, 0.25), "3#1": (0.25, 1.0)})
    with pytest.raises(InvalidCutError, match="older one of the cut is unfinished"):
        check_cut(history, cut(s0e0=1, s3e1=1))


def test_check_within_refuses_an_offset_beyond_the_end_of_a_sealed_segment() -> None:
    check_within(MERGING, cut(s0e0=100, s1e0=100, s2e0=100))
    with pytest.raises(InvalidCutError, match=r"length=100"):
        check_within(MERGING, cut(s0e0=101, s1e0=0, s2e0=0))


def test_successors_name_all_of_their_predecessors() -> None:
    follow = successors(MERGING, seg("4#1"))
    assert [(item.segment, before) for item, before in follow] == [(seg("5#2"), [seg("4#1"), seg("1#0"), seg("2#0")])]
    assert [item.segment for item, _ in successors(MERGING, seg("0#0"))] == [seg("3#1"), seg("4#1")]
    assert [before for _, before in successors(MERGING, seg("3#1"))] == [[seg("3#1"), seg("5#2")]]
    assert successors(MERGING, seg("6#3")) == []
    with pytest.raises(SegmentNotFoundError):
        successors(MERGING, seg("7#3"))


def test_ranges_refuse_an_end_before_their_start() -> None:
    early, late = cut(s0e0=1, s1e0=1), cut(s0e0=2, s1e0=0)
    for start, end in ((late, early), (cut(s0e0=2, s1e0=2), early)):
        with pytest.raises(InvalidCutError, match="before its start"):
            segments_between(even(2), start, end)
        with pytest.raises(InvalidCutError, match="before its start"):
            bytes_between(even(2), start, end)


def test_segments_between_takes_the_beginning_and_the_active_epoch_for_none() -> None:
    assert segments_between(MERGING, None, None) == [
        seg(f"{n}#{e}") for n, e in [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 3)]
    ]
    assert segments_between(MERGING, cut(s5e2=3, s3e1=0), None) == [seg("3#1"), seg("5#2"), seg("6#3")]
    assert segments_between(SPLITTING, None, cut(s0e0=9, s1e0=3)) == [seg("0#0"), seg("1#0")]


def test_missing_lengths_are_those_of_passed_segments_only() -> None:
    history = history_of({"0#0": (0.0, 1.0)}, {"1#1": (0.0, 0.5), "2#1": (0.5, 1.0)})
    assert missing_lengths(history, cut(s0e0=5)) == []
    assert missing_lengths(history, cut(s1e1=0, s2e1=0)) == [seg("0#0")]


def test_storage_offsets_leave_out_what_is_not_started() -> None:
    assert list(storage_offsets(cut(s5e2=-1, s2e0=4, s0e0=0)).items()) == [(seg("0#0"), 0), (seg("2#0"), 4)]


def test_a_history_survives_pickling_with_its_index() -> None:
    assert len(MERGING.ranges()) == 7
    copy = pickle.loads(pickle.dumps(MERGING))
    assert copy == MERGING
    assert size_till(copy, cut(s6e3=5)) == 365


@pytest.mark.parametrize("function", [size_till, missing_lengths, lambda h, c: compare(h, c, head_of(h))])
def test_no_positions_are_no_cut(function) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidCutError):
        function(even(2), {})


# --- laws ---------------------------------------------------------------------------------------------------------


def _brute_order(history: StreamHistory, a: dict, b: dict) -> CutOrder:
    pairs = [(position_at(history, a, key), position_at(history, b, key)) for key in keys_of(history)]
    less, greater = any(x < y for x, y in pairs), any(x > y for x, y in pairs)
    if less and greater:
        return CutOrder.OVERLAPS
    return CutOrder.BEFORE if less else CutOrder.AFTER if greater else CutOrder.EQUAL


@settings(deadline=None)
@given(worlds())
def test_order_agrees_with_looking_at_every_key(given_: tuple[World, Random]) -> None:
    world, random = given_
    history = world.history
    a, b = world.some_cut(random), world.some_cut(random)
    order = _brute_order(history, a, b)
    assert compare(history, a, b) is order
    assert at_or_after(history, a, b) is (order in (CutOrder.AFTER, CutOrder.EQUAL))
    assert compare(history, a, dict(a)) is CutOrder.EQUAL
    turned = {CutOrder.BEFORE: CutOrder.AFTER, CutOrder.AFTER: CutOrder.BEFORE}
    assert compare(history, b, a) is turned.get(order, order)


@settings(deadline=None)
@given(worlds(steps=12))
def test_order_is_transitive(given_: tuple[World, Random]) -> None:
    world, random = given_
    history = world.history
    cuts = [world.some_cut(random) for _ in range(4)]
    for a in cuts:
        for b in cuts:
            for c in cuts:
                if at_or_after(history, a, b) and at_or_after(history, b, c):
                    assert at_or_after(history, a, c)


@settings(deadline=None)
@given(worlds())
def test_cuts_of_a_reader_group_are_valid(given_: tuple[World, Random]) -> None:
    world, random = given_
    positions = world.some_cut(random)
    assert brute_is_valid(world.history, positions)
    check_cut(world.history, positions)
    check_within(world.history, positions)


@settings(deadline=None, max_examples=300)
@given(worlds(steps=8), st.integers(0, 2))
def test_validity_agrees_with_looking_at_every_key(given_: tuple[World, Random], damage: int) -> None:
    world, random = given_
    history = world.history
    positions = world.some_cut(random)
    everything = sorted(history.ranges())
    for _ in range(damage):
        segment = random.choice(everything)
        if random.random() < 0.5:
            positions.pop(segment, None)
        else:
            positions[segment] = random.choice([-1, 0, 3])
    if brute_is_valid(history, positions):
        check_cut(history, positions)
    else:
        with pytest.raises(InvalidCutError):
            check_cut(history, positions)


@settings(deadline=None)
@given(worlds(), st.integers(1, 4))
def test_bounds_are_per_key_minimum_and_maximum_and_valid(given_: tuple[World, Random], count: int) -> None:
    world, random = given_
    history = world.history
    cuts = [world.some_cut(random) for _ in range(count)]
    low, high = lower_bound(history, [*cuts, {}]), upper_bound(history, [{}, *cuts])
    for key in keys_of(history):
        there = [position_at(history, one, key) for one in cuts]
        assert position_at(history, low, key) == min(there)
        assert position_at(history, high, key) == max(there)
    assert brute_is_valid(history, low)
    assert brute_is_valid(history, high)
    for one in cuts:
        assert at_or_after(history, one, low)
        assert at_or_after(history, high, one)
    assert lower_bound(history, []) == {}


@settings(deadline=None)
@given(worlds())
def test_sizes_are_additive_and_agree_with_counting_each_segment(given_: tuple[World, Random]) -> None:
    world, random = given_
    history = world.history
    first, other = world.some_cut(random), world.some_cut(random)
    middle = upper_bound(history, [first, other])
    last = world.tail().positions
    assert size_till(history, first) == brute_size(history, first)
    assert bytes_between(history, None, last) == world.tail().size_bytes
    assert bytes_between(history, first, middle) >= 0
    assert bytes_between(history, first, middle) + bytes_between(history, middle, last) == bytes_between(
        history, first, last
    )
    # Bytes are counted once, whichever way round two cuts are passed.
    below = lower_bound(history, [first, other])
    assert brute_size(history, below) + brute_size(history, middle) == brute_size(history, first) + brute_size(
        history, other
    )


@settings(deadline=None)
@given(worlds())
def test_segments_between_and_to_delete_agree_with_looking_at_every_key(given_: tuple[World, Random]) -> None:
    world, random = given_
    history = world.history
    start = world.some_cut(random)
    end = upper_bound(history, [start, world.some_cut(random)])
    keys = keys_of(history)
    expected = {
        segment
        for segment in history.ranges()
        for key in keys
        if covers(history, segment, key)
        and position_at(history, start, key)[0] <= segment <= position_at(history, end, key)[0]
    }
    assert segments_between(history, start, end) == sorted(expected)
    assert segments_to_delete(history, start, end) == sorted(brute_passed(history, end) - brute_passed(history, start))


@settings(deadline=None)
@given(worlds())
def test_following_successors_reaches_every_later_segment_once_its_predecessors_are_read(
    given_: tuple[World, Random],
) -> None:
    world, _ = given_
    history = world.history
    done: set[int] = set()
    frontier = [item.segment for item in history.epochs[0].segments]
    while frontier:
        segment = frontier.pop()
        done.add(segment)
        for item, before in successors(history, segment):
            if done.issuperset(before) and item.segment not in done and item.segment not in frontier:
                frontier.append(item.segment)
    assert done == set(history.ranges())


def test_hundreds_of_epochs_with_many_segments_are_walked_not_multiplied() -> None:
    world = World([[*even(4).epochs[0].segments]])
    random = Random(7)
    while len(world.epochs) < 400:
        world.step(random)
    history = world.history
    tail = world.tail().positions
    assert size_till(history, tail) == world.tail().size_bytes
    assert segments_between(history, None, tail) == sorted(history.ranges())
    check_cut(history, tail)
    assert set(segments_to_delete(history, None, tail)) == set(history.ranges()) - set(tail)
