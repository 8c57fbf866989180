"""What a rebuild compares: heads never lie in what was truncated, and stored segments that no stream names are found."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.cuts.order import check_cut, within_ends
from penstock.core.streams.after_rebuild import head_after_rebuild, readable_segments, unreachable_bytes
from penstock.core.streams.history import EpochRecord, StreamHistory
from penstock.model.segments import KeyRange, SegmentId, SegmentRange, make_segment_id


def ranged(epoch: int, number: int, low: float, high: float) -> SegmentRange:
    return SegmentRange(segment=make_segment_id(epoch, number), keys=KeyRange(low=low, high=high))


A, B = ranged(0, 0, 0.0, 0.5), ranged(0, 1, 0.5, 1.0)
C, D = ranged(1, 2, 0.0, 0.25), ranged(1, 3, 0.25, 0.5)
E = ranged(2, 4, 0.25, 1.0)
HISTORY = StreamHistory(
    epochs=[
        EpochRecord(epoch=0, segments=[A, B]),
        EpochRecord(epoch=1, segments=[C, D, B]),
        EpochRecord(epoch=2, segments=[C, E]),
    ]
)
ALL = [item.segment for item in (A, B, C, D, E)]
LONG = dict.fromkeys(ALL, 1000)


def head(cut: dict[SegmentId, int], starts: dict[SegmentId, int], ends: dict[SegmentId, int] = LONG) -> object:
    return dict(head_after_rebuild(HISTORY, cut, starts, ends))


def test_a_head_that_fits_stays() -> None:
    assert head({}, dict.fromkeys(ALL, 0)) == {}
    cut = {A.segment: 10, B.segment: 20}
    assert head(cut, {A.segment: 10, B.segment: 5}) == cut


def test_a_head_follows_a_segment_that_was_truncated_further() -> None:
    assert head({}, {A.segment: 7}) == {A.segment: 7, B.segment: 0}
    assert head({A.segment: 10, B.segment: 0}, {A.segment: 40}) == {A.segment: 40, B.segment: 0}


def test_a_head_passes_the_segments_before_one_that_was_truncated() -> None:
    # D follows A, whose other keys went to C; B is not concerned.
    assert head({}, {D.segment: 5}) == {B.segment: 0, C.segment: 0, D.segment: 5}
    # E follows D and B.
    assert head({A.segment: 3, B.segment: 4}, {E.segment: 5}) == {C.segment: 0, E.segment: 5}


def test_a_head_beyond_the_end_of_a_segment_moves_to_the_end() -> None:
    assert head({A.segment: 900, B.segment: 20}, {}, {A.segment: 600}) == {A.segment: 600, B.segment: 20}


def test_what_lies_before_the_head_moves_nothing() -> None:
    cut = {C.segment: 1, E.segment: 2}
    assert head(cut, {A.segment: 500, B.segment: 500, D.segment: 500}) == cut


@given(
    starts=st.dictionaries(st.sampled_from(ALL), st.integers(0, 100)),
    ends=st.dictionaries(st.sampled_from(ALL), st.integers(100, 200)),
    cut=st.sampled_from(
        [{}, {A.segment: 50, B.segment: 150}, {C.segment: 10, D.segment: 0, B.segment: 5}, {C.segment: 1, E.segment: 2}]
    ),
)
def test_a_reader_at_the_head_meets_no_truncated_byte(
    starts: dict[SegmentId, int], ends: dict[SegmentId, int], cut: dict[SegmentId, int]
) -> None:
    found = head_after_rebuild(HISTORY, cut, starts, ends)
    if found:
        check_cut(HISTORY, found)
    for segment in readable_segments([one.segments for one in HISTORY.epochs], found):
        assert starts.get(segment, 0) <= max(found.get(segment, 0), 0)
    assert all(at <= ends.get(segment, at) for segment, at in found.items())
    assert head_after_rebuild(HISTORY, found, starts, ends) == found


def test_readable_segments_are_those_from_the_head_on() -> None:
    epochs = [one.segments for one in HISTORY.epochs]
    assert readable_segments(epochs, {}) == set(ALL)
    assert readable_segments(epochs, {C.segment: 0, D.segment: 1, B.segment: 0}) == set(ALL) - {A.segment}
    assert readable_segments(epochs, {C.segment: 0, E.segment: 0}) == {C.segment, E.segment}


def test_segments_that_no_stream_names_are_found() -> None:
    txn = f"{'ab' * 16}"
    held = {
        "s/known/0.#epoch.0": 1,
        "s/known/2.#epoch.2": 2,
        "s/new/0.#epoch.0": 4,
        "s/deleted/0.#epoch.0": 8,
        f"s/known/0.#epoch.0#transaction.{txn}": 16,
        f"s/known/0.#epoch.0#transaction.{'cd' * 16}": 32,
        f"s/known/0.#epoch.0#transient.{txn}.{txn}": 64,
        "not a segment": 128,
    }
    found = unreachable_bytes(held, epochs={"s/known": 1}, deleted=["s/deleted"], transactions=[txn])
    assert found == {
        "s/known": {"s/known/2.#epoch.2": 2, f"s/known/0.#epoch.0#transaction.{'cd' * 16}": 32},
        "s/new": {"s/new/0.#epoch.0": 4},
    }


def test_a_cut_beyond_an_end_is_that_end() -> None:
    history = HISTORY.with_lengths({A.segment: 60})
    assert within_ends(history, {A.segment: 90, B.segment: 90}) == {A.segment: 60, B.segment: 90}
    assert within_ends(history, {A.segment: -1, B.segment: 0}) == {A.segment: -1, B.segment: 0}
