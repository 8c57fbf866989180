"""Watermarks from the marks of writers: never back, never ahead of the slowest writer that takes part."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.cuts.order import at_or_after
from penstock.core.streams.history import EpochRecord, StreamHistory
from penstock.core.streams.watermarks import (
    TIMEOUT_MS,
    Watermark,
    WriterMark,
    advance,
    marks_before,
    noted,
    timeout_of,
    writer_position,
)
from penstock.model.errors import InvalidArgumentError, InvalidCutError, TimeGoesBackError
from penstock.model.segments import KeyRange, SegmentRange, make_segment_id

A, B = make_segment_id(0, 0), make_segment_id(0, 1)
C = make_segment_id(1, 2)  # A and B merged
HISTORY = StreamHistory(
    epochs=[
        EpochRecord(
            epoch=0,
            segments=(
                SegmentRange(segment=A, keys=KeyRange(low=0.0, high=0.5)),
                SegmentRange(segment=B, keys=KeyRange(low=0.5, high=1.0)),
            ),
            created_ms=0,
        ),
        EpochRecord(epoch=1, segments=(SegmentRange(segment=C, keys=KeyRange(low=0.0, high=1.0)),), created_ms=1),
    ],
    sealed_lengths={A: 100, B: 100},
)


def mark(time_ms: int, *, at: int = 0, noted_ms: int = 0, left: bool = False) -> WriterMark:
    return WriterMark(time_ms=time_ms, position={A: at, B: at}, noted_ms=noted_ms, left=left)


def test_the_slowest_writer_bounds_times_below_and_the_furthest_the_cut() -> None:
    found = advance(HISTORY, {"a": mark(5, at=10), "b": mark(9, at=3)}, None, now_ms=0, timeout_ms=1000)
    assert found.watermark == Watermark(lower_ms=5, upper_ms=9, cut={A: 10, B: 10})
    assert not found.forgotten


def test_a_writer_that_is_not_ahead_holds_the_watermark_back_until_its_timeout() -> None:
    previous = Watermark(lower_ms=5, upper_ms=9, cut={A: 10, B: 10})
    writers = {"slow": mark(5, noted_ms=100), "fast": mark(50, noted_ms=900)}
    held = advance(HISTORY, writers, previous, now_ms=1099, timeout_ms=1000)
    assert (held.watermark, list(held.forgotten), held.due_ms) == (None, [], 1100)
    late = advance(HISTORY, writers, previous, now_ms=1100, timeout_ms=1000)
    assert late.watermark is not None
    assert late.watermark.lower_ms == 50
    assert list(late.forgotten) == ["slow"]


def test_a_writer_that_left_counts_until_the_watermark_has_reached_it() -> None:
    writers = {"gone": mark(5, left=True), "here": mark(7)}
    first = advance(HISTORY, writers, None, now_ms=0, timeout_ms=1000)
    assert first.watermark is not None
    assert (first.watermark.lower_ms, list(first.forgotten)) == (5, [])
    second = advance(HISTORY, writers, first.watermark, now_ms=0, timeout_ms=1000)
    assert second.watermark is not None
    assert (second.watermark.lower_ms, list(second.forgotten)) == (7, ["gone"])


def test_without_writers_there_is_nothing_to_wait_for() -> None:
    found = advance(HISTORY, {}, None, now_ms=0, timeout_ms=1000)
    assert (found.watermark, found.due_ms) == (None, None)


def test_times_and_positions_of_a_writer_never_go_back() -> None:
    known = mark(7, at=5)
    for given_ms, at, error in ((6, 5, TimeGoesBackError), (7, 4, InvalidCutError), (1 << 63, 5, InvalidArgumentError)):
        with pytest.raises(error):
            noted(HISTORY, known, time_ms=given_ms, position={A: at, B: at}, now_ms=1)
    assert noted(HISTORY, known, time_ms=7, position={A: 5, B: 5}, now_ms=1) == replace(known, noted_ms=1)
    # The noted position may be of a later epoch.
    assert noted(HISTORY, known, time_ms=7, position={C: 0}, now_ms=1).position == {C: 0}


def test_a_position_during_a_scale_becomes_one_of_the_epoch_that_was_begun() -> None:
    assert writer_position(HISTORY, {A: 4, B: -1}) == {A: 4, B: -1}
    assert writer_position(HISTORY, {B: 10, C: 7}) == {C: 7}
    assert writer_position(HISTORY, {A: 4}) == {A: 4, B: 0}
    for wrong in ({B: -1}, {}, {A: 4, B: 4, make_segment_id(7, 9): 1}):
        with pytest.raises(InvalidCutError):
            writer_position(HISTORY, wrong)


def test_unset_timeouts_have_a_default() -> None:
    assert (timeout_of(0), timeout_of(5)) == (TIMEOUT_MS, 5)


positions = st.one_of(
    st.tuples(st.integers(-1, 100), st.integers(-1, 100)).map(lambda at: {A: at[0], B: at[1]}),
    st.integers(0, 50).map(lambda at: {C: at}),
)
steps = st.lists(
    st.tuples(
        st.sampled_from(["note", "note", "note", "leave", "pass"]),
        st.sampled_from("abc"),
        st.integers(0, 30),
        positions,
        st.integers(0, 40),
    ),
    max_size=40,
)
TIMEOUT = 60


@given(steps)
def test_watermarks_never_go_back_and_never_pass_an_active_writer(steps) -> None:
    writers: dict[str, WriterMark] = {}
    previous: Watermark | None = None
    now_ms = 0
    for what, name, time_ms, position, passed_ms in steps:
        now_ms += passed_ms
        known = writers.get(name)
        if what == "note":
            try:
                writers[name] = noted(HISTORY, known, time_ms=time_ms, position=position, now_ms=now_ms)
            except (TimeGoesBackError, InvalidCutError):
                assert writers.get(name) is known
        elif what == "leave" and known is not None:
            writers[name] = replace(known, left=True)
        found = advance(HISTORY, writers, previous, now_ms=now_ms, timeout_ms=TIMEOUT)
        # Deciding again from the same facts, as after a crash, decides the same.
        assert found == advance(HISTORY, dict(reversed(writers.items())), previous, now_ms=now_ms, timeout_ms=TIMEOUT)
        for gone in found.forgotten:
            mark = writers.pop(gone)
            assert mark.left or now_ms - mark.noted_ms >= TIMEOUT
        if found.watermark is None:
            if previous is not None and writers:
                assert min(item.time_ms for item in writers.values()) <= previous.lower_ms
            continue
        after = found.watermark
        assert writers
        assert after.lower_ms == min(item.time_ms for item in writers.values())
        assert after.upper_ms >= max(item.time_ms for item in writers.values())
        assert all(at_or_after(HISTORY, after.cut, item.position) for item in writers.values())
        if previous is not None:
            assert after.lower_ms > previous.lower_ms
            assert after.upper_ms >= previous.upper_ms
            assert at_or_after(HISTORY, after.cut, previous.cut)
        # Once it is stored, the same marks bring no further one, unless all are ahead of it.
        previous = after


@given(steps)
def test_a_silent_writer_holds_the_watermark_no_longer_than_its_timeout(steps) -> None:
    writers = {name: mark(time_ms, noted_ms=at) for _, name, time_ms, _, at in steps}
    previous = Watermark(lower_ms=10, upper_ms=30, cut={A: 0, B: 0})
    last = max([item.noted_ms for item in writers.values()], default=0)
    found = advance(HISTORY, writers, previous, now_ms=last + TIMEOUT, timeout_ms=TIMEOUT)
    ahead = {name for name, item in writers.items() if item.time_ms > 10}
    assert set(found.forgotten) == writers.keys() - ahead
    assert (found.watermark is not None) == bool(ahead)


@given(st.lists(st.integers(0, 100), max_size=8).map(sorted), st.integers(0, 100))
def test_passed_marks_are_those_whose_cut_was_read(cuts, at) -> None:
    expected = sum(cut <= at for cut in cuts)
    assert marks_before(HISTORY, [{A: cut, B: 0} for cut in cuts], {A: at, B: 0}) == expected
