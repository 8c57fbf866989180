from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.moments import followers_of, from_cut
from penstock.core.cuts.read_order import enter_successors, later_of, settled
from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidCutError
from penstock.model.names import StreamName
from penstock.model.segments import KeyRange, SegmentId, SegmentRange, make_segment_id
from penstock.ports.control.layout import Successor
from penstock.spark.reading.positions import Offset, Positions, in_turn, ranges_of

STREAM = StreamName("plant", "turbine")
WHOLE, LEFT, RIGHT = KeyRange(low=0.0, high=1.0), KeyRange(low=0.0, high=0.5), KeyRange(low=0.5, high=1.0)
A, B, C = (SegmentId(item) for item in (0, 1, 2))
X, Y, Z = (make_segment_id(1, item) for item in (3, 4, 5))
positions = st.dictionaries(st.integers(0, 1 << 62).map(SegmentId), st.integers(-1, 1 << 60), max_size=20)


def follows(segment: SegmentId, *predecessors: SegmentId, keys: KeyRange = WHOLE) -> Successor:
    return Successor(range=SegmentRange(segment=segment, keys=keys), predecessors=predecessors)


KEYS = {A: KeyRange(low=0.0, high=0.3), B: KeyRange(low=0.3, high=0.6), C: KeyRange(low=0.6, high=1.0)}


def enter(
    found: Positions, successors: dict[SegmentId, list[Successor]], keys: dict[SegmentId, KeyRange] = KEYS
) -> Positions:
    return enter_successors(found, followers_of(successors), keys)


@settings(deadline=None)
@given(found=positions, finished=positions, ahead=positions)
def test_an_offset_survives_sparks_log(found: Positions, finished: Positions, ahead: Positions) -> None:
    offset = Offset(found, finished, ahead=ahead)
    text = json.dumps(offset.to_json(STREAM))
    assert Offset.from_json(STREAM, json.loads(text)) == offset
    shuffled = Offset(
        dict(reversed(found.items())), dict(reversed(finished.items())), ahead=dict(reversed(ahead.items()))
    )
    assert json.dumps(shuffled.to_json(STREAM)) == text


def test_offsets_of_another_stream_or_version_are_refused() -> None:
    good = Offset({A: 8}).to_json(STREAM)
    assert good == {"v": 1, "stream": "plant/turbine", "segments": {"0": 8}}
    for bad in ({**good, "v": 4}, {**good, "stream": "plant/dam"}, {**good, "segments": {"a": 1}}, {"v": 1}, {}):
        with pytest.raises(InvalidCutError):
            Offset.from_json(STREAM, bad)


def test_a_split_is_entered_once_its_segment_is_finished() -> None:
    split = [follows(X, A, keys=LEFT), follows(Y, A, keys=RIGHT)]
    assert enter({A: 10, B: 4}, {A: split}) == {X: 0, Y: 0, B: 4}


def test_a_merge_waits_for_all_that_it_replaces() -> None:
    merge = [follows(X, A, B)]
    assert enter({A: 10, B: 4}, {A: merge}) == {A: 10, B: 4}
    assert enter({A: 10, B: 4}, {A: merge, B: merge}) == {X: 0}


def test_segments_that_changed_together_are_replaced_together() -> None:
    after_a = [follows(X, A), follows(Y, A, B)]
    after_b = [follows(Y, A, B), follows(Z, B)]
    assert enter({A: 10, B: 4, C: 1}, {A: after_a}) == {A: 10, B: 4, C: 1}
    assert enter({A: 10, B: 4, C: 1}, {A: after_a, B: after_b}) == {C: 1, X: 0, Y: 0, Z: 0}


def test_the_last_segments_of_a_sealed_stream_stay() -> None:
    assert enter({A: 10}, {A: []}) == {A: 10}


def test_a_segment_that_is_not_started_waits_for_the_older_one_only() -> None:
    cut = StreamCut(STREAM, {A: 10, X: -1, Y: -1})
    begun = from_cut(cut, {A: LEFT, X: LEFT, Y: RIGHT})
    assert begun == {A: 10, X: -1, Y: 0}
    # B, which Y's keys had before, is passed and named no more; it does not hold X up.
    assert enter(begun, {A: [follows(X, A, B)]}, {A: LEFT, B: RIGHT, X: LEFT, Y: RIGHT}) == {X: 0, Y: 0}


def test_a_batch_reads_what_its_two_offsets_say() -> None:
    start = Offset({A: 10, B: 4, C: 7})
    end = Offset({B: 9, C: 7, X: 0, Y: 0}, {A: 30})
    assert ranges_of(start, end) == [(A, 10, 30), (B, 4, 9)]
    assert ranges_of(end, Offset({B: 9, C: 7, X: 5, Y: 0})) == [(X, 0, 5)]
    with pytest.raises(InvalidCutError, match="backwards"):
        ranges_of(end, Offset({B: 8}))


def test_the_later_of_two_positions_is_taken_key_by_key() -> None:
    ranges = {A: LEFT, B: RIGHT, X: LEFT, Y: KeyRange(low=0.5, high=0.75), Z: KeyRange(low=0.75, high=1.0)}
    assert later_of({A: 5, B: 9}, {A: 7, B: 3}, ranges) == ({A: 7, B: 9}, [A])
    assert later_of({A: 5, B: 9}, {X: 2, B: 3}, ranges) == ({B: 9, X: 2}, [A])
    assert later_of({A: 5, Y: 1, Z: 2}, {A: 0, B: 99}, ranges) == ({A: 5, Y: 1, Z: 2}, [])
    assert later_of({A: 5, B: 9}, {A: 5, Y: 0, Z: 4}, ranges) == ({A: 5, Y: 0, Z: 4}, [B])


@settings(deadline=None)
@given(data=st.data())
def test_raising_positions_is_idempotent_and_never_moves_back(data: st.DataObject) -> None:
    ranges = {A: LEFT, B: RIGHT, X: LEFT, Y: RIGHT}

    def draw() -> Positions:
        halves = [data.draw(st.sampled_from([A, X])), data.draw(st.sampled_from([B, Y]))]
        return {item: data.draw(st.integers(0, 9)) for item in halves}

    here, floor = draw(), draw()
    raised, _ = later_of(here, floor, ranges)
    assert later_of(raised, floor, ranges) == (raised, [])
    assert later_of(raised, here, ranges) == (raised, [])
    for half in (LEFT, RIGHT):
        at = {
            name: next((i, o) for i, o in p.items() if ranges[i] == half)
            for name, p in (("here", here), ("floor", floor), ("raised", raised))
        }
        assert at["raised"] == max(at["here"], at["floor"])


def test_a_predecessor_that_lies_ahead_does_not_count_as_passed() -> None:
    # Two segments became four, and those three: at A the reader is far behind, X and Y come after it.
    quarters = [KeyRange(low=n / 4, high=(n + 1) / 4) for n in range(4)]
    w, x, y, z = (make_segment_id(1, n) for n in range(2, 6))
    last = make_segment_id(2, 6)
    keys = {A: LEFT, B: RIGHT, w: quarters[0], x: quarters[1], y: quarters[2], z: quarters[3]}
    middle = KeyRange(low=0.25, high=0.75)
    follow = {y: [follows(last, x, y, keys=middle)]}
    assert enter({A: 10, y: 5, z: 5}, follow, keys) == {A: 10, y: 5, z: 5}
    assert enter({w: 0, x: 3, y: 5, z: 5}, follow, keys) == {w: 0, x: 3, y: 5, z: 5}
    assert enter({w: 0, x: 3, y: 5, z: 5}, {**follow, x: follow[y]}, keys) == {w: 0, z: 5, last: 0}


def test_a_segment_that_was_started_too_early_waits_and_continues_at_its_offset() -> None:
    keys = {A: LEFT, B: RIGHT, X: WHOLE}
    found, ahead = settled({A: 10, X: 7}, keys)
    assert (found, ahead) == ({A: 10, X: -1}, {X: 7})
    start, end = Offset({A: 10, X: 7}), Offset({A: 15, X: -1}, ahead={X: 7})
    assert ranges_of(start, end) == [(A, 10, 15)]
    entered = enter_successors({A: 20, X: -1}, followers_of({A: [follows(X, A, B)]}), keys, ahead)
    assert entered == {X: 7}
    assert in_turn(entered, ahead) == ({X: 7}, {})
    assert in_turn({X: 0}, {X: 7}) == ({X: 7}, {})
    assert in_turn({A: 1, X: -1}, {X: 7}) == ({A: 1, X: -1}, {X: 7})
    assert ranges_of(end, Offset(entered, {A: 20})) == [(A, 15, 20)]
    assert ranges_of(Offset({A: 1, X: -1}, ahead={X: 7}), Offset({A: 2, X: -1}, ahead={X: 7})) == [(A, 1, 2)]


def test_a_floor_passes_older_segments_even_if_its_own_segment_is_known() -> None:
    keys = {A: LEFT, B: RIGHT, X: LEFT, Y: RIGHT}
    # X waits for A; the head is at X: A lies before it.
    assert later_of({A: 5, X: -1, Y: 3}, {X: 0, Y: 1}, keys) == ({X: 0, Y: 3}, [A])
    assert later_of({A: 5, X: -1, Y: 3}, {A: 7, X: -1, Y: 1}, keys) == ({A: 7, X: -1, Y: 3}, [A])
    assert later_of({A: 5, X: -1, Y: 3}, {A: 2, B: 4}, keys) == ({A: 5, X: -1, Y: 3}, [])


def test_groups_that_end_at_once_are_entered_together() -> None:
    last = make_segment_id(2, 6)
    third, fourth = KeyRange(low=0.5, high=0.75), KeyRange(low=0.75, high=1.0)
    keys = {A: LEFT, Y: third, Z: fourth, last: RIGHT}
    follow = {A: [follows(X, A, keys=LEFT)], Y: [follows(last, Y, Z, keys=RIGHT)]}
    # Z is passed, and known as a predecessor alone; it is compared with X, which was entered just before.
    assert enter({A: 1, Y: 1, last: -1}, follow, keys) == {X: 0, last: 0}
