from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from retention_world import World, even, history_of, seg, worlds

from penstock.core.streams.history import EpochRecord, StreamHistory
from penstock.core.streams.scaling import next_number, plan_resize, plan_scale, rolling_epochs
from penstock.model.errors import InvalidArgumentError, ScaleConflictError
from penstock.model.segments import KeyRange, even_ranges, make_segment_id, number_of

HALF = 0.5


def keys(low: float, high: float) -> KeyRange:
    return KeyRange(low=low, high=high)


def test_a_scale_numbers_new_segments_in_the_order_asked_and_keeps_the_rest() -> None:
    record = plan_scale(
        even(2), [seg("1#0")], [keys(0.75, 1.0), keys(0.5, 0.75)], next_number=2, min_segments=1, created_ms=9
    )
    assert (record.epoch, record.created_ms) == (1, 9)
    assert [(item.segment, item.keys) for item in record.segments] == [
        (seg("0#0"), keys(0.0, 0.5)),
        (seg("3#1"), keys(0.5, 0.75)),
        (seg("2#1"), keys(0.75, 1.0)),
    ]


def test_a_merge_may_join_segments_that_are_not_neighbours() -> None:
    history = even(4)
    record = plan_scale(
        history,
        [seg("0#0"), seg("3#0"), seg("1#0")],
        [keys(0.0, 0.5), keys(0.75, 1.0)],
        next_number=4,
        min_segments=3,
    )
    assert [item.segment for item in record.segments] == [seg("4#1"), seg("2#0"), seg("5#1")]


@pytest.mark.parametrize(
    ("sealed", "ranges", "minimum", "reason"),
    [
        ([], [keys(0.0, 0.5)], 1, "at least one"),
        (["0#0"], [], 1, "at least one"),
        (["0#0", "0#0"], [keys(0.0, 0.5)], 1, "twice"),
        (["7#0"], [keys(0.0, 0.5)], 1, "never had"),
        (["0#0"], [keys(0.0, 0.4999999999999999)], 1, "exactly"),
        (["0#0"], [keys(0.0, 0.2), keys(0.3, 0.5)], 1, "exactly"),
        (["0#0"], [keys(0.0, 0.6)], 1, "exactly"),
        (["0#0"], [keys(0.0, 0.3), keys(0.2, 0.5)], 1, "overlap"),
        (["0#0", "1#0"], [keys(0.0, 1.0)], 2, "too few or too many segments"),
    ],
)
def test_a_scale_that_can_never_work_is_refused(
    sealed: list[str], ranges: list[KeyRange], minimum: int, reason: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=reason):
        plan_scale(even(2), [seg(name) for name in sealed], ranges, next_number=2, min_segments=minimum)


def test_a_scale_of_a_segment_of_the_past_is_a_conflict() -> None:
    history = history_of({"0#0": (0.0, 1.0)}, {"1#1": (0.0, 1.0)})
    with pytest.raises(ScaleConflictError, match="no longer active"):
        plan_scale(history, [seg("0#0")], [keys(0.0, 1.0)], next_number=2, min_segments=1)


@given(st.integers(1, 40), st.integers(1, 40))
def test_a_resize_leaves_even_ranges_whichever_way_it_goes(before: int, after: int) -> None:
    history = even(before)
    resize = plan_resize(history, after)
    if before == after:
        assert resize is None
        return
    assert resize is not None
    record = plan_scale(history, resize.sealed, resize.new_ranges, next_number=next_number(history), min_segments=after)
    assert [item.keys for item in record.segments] == list(even_ranges(after))


def test_a_resize_keeps_segments_that_have_their_range_already() -> None:
    history = history_of(
        {"0#0": (0.0, 0.5), "1#0": (0.5, 1.0)}, {"0#0": (0.0, 0.5), "2#1": (0.5, 0.75), "3#1": (0.75, 1.0)}
    )
    resize = plan_resize(history, 2)
    assert resize is not None
    assert (resize.sealed, resize.new_ranges) == ((seg("2#1"), seg("3#1")), (keys(0.5, 1.0),))


@pytest.mark.parametrize("count", [0, 10_001])
def test_a_resize_outside_the_limits_is_refused(count: int) -> None:
    with pytest.raises(InvalidArgumentError, match="segments"):
        plan_resize(even(1), count)


def test_rolling_duplicates_the_epoch_of_the_transaction_and_then_the_active_one() -> None:
    history = history_of({"0#0": (0.0, 1.0)}, {"1#1": (0.0, HALF), "2#1": (HALF, 1.0)})
    first, second = rolling_epochs(history, 0)
    assert (first.epoch, [item.segment for item in first.segments]) == (2, [make_segment_id(2, 0)])
    assert (second.epoch, [item.segment for item in second.segments]) == (3, [seg("1#3"), seg("2#3")])
    for epoch in (1, 7):
        with pytest.raises(InvalidArgumentError, match="past"):
            rolling_epochs(history, epoch)


@settings(deadline=None)
@given(worlds())
def test_rolling_changes_ids_and_nothing_else(given_: tuple[World, Random]) -> None:
    world, random = given_
    history = world.history
    if len(history.epochs) < 2:
        return
    past = random.randrange(len(history.epochs) - 1)
    pair = rolling_epochs(history, past)
    for copy, original in zip(pair, (history.epochs[past], history.active), strict=True):
        assert [item.keys for item in copy.segments] == [item.keys for item in original.segments]
        assert [number_of(item.segment) for item in copy.segments] == [number_of(i.segment) for i in original.segments]
        assert not {item.segment for item in copy.segments} & set(history.ranges())
    longer = StreamHistory(epochs=(*history.epochs, *pair))
    assert isinstance(longer.active, EpochRecord)
    assert next_number(longer) == next_number(history)
