"""The reclaim account: every byte on disk is named once, and the sums are those of the store."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.retention.facts import Hold
from penstock.core.segments.reclaim import KeptRange, ReclaimFacts, SegmentFacts, reclaim_report
from penstock.core.streams.history import EpochRecord, StreamHistory
from penstock.model.answers.reclaim import PendingLease, PendingReason
from penstock.model.segments import KeyRange, SegmentRange, make_segment_id

OLD, LEFT, RIGHT = make_segment_id(0, 0), make_segment_id(1, 1), make_segment_id(1, 2)
HISTORY = StreamHistory(
    epochs=(
        EpochRecord(epoch=0, segments=(SegmentRange(segment=OLD, keys=KeyRange(low=0.0, high=1.0)),)),
        EpochRecord(
            epoch=1,
            segments=(
                SegmentRange(segment=LEFT, keys=KeyRange(low=0.0, high=0.5)),
                SegmentRange(segment=RIGHT, keys=KeyRange(low=0.5, high=1.0)),
            ),
        ),
    ),
    sealed_lengths={OLD: 100},
)


def space(live=0, tiered=0, pending=0, freed=0, **more):
    return SegmentFacts(live_bytes=live, tiered_bytes=tiered, pending_free_bytes=pending, freed_bytes=freed, **more)


def facts(segments, kept=(), holds=(), head=None):
    return ReclaimFacts(history=HISTORY, head=head or {LEFT: 10, RIGHT: 0}, segments=segments, kept=kept, holds=holds)


def reclaimed(facts):
    return reclaim_report(facts, stream="s/t", at_ms=5)


def found(report):
    return [(item.why.value, item.bytes, item.until_ms, item.name) for item in report.pending]


FIRST = KeptRange(before={}, after={OLD: 60}, due_ms=500)
SECOND = KeptRange(before={OLD: 60}, after={LEFT: 10, RIGHT: 0}, due_ms=900)
GRACED = {OLD: space(pending=100, kept_bytes=100), LEFT: space(90, 90, 10, kept_bytes=10), RIGHT: space(30, 20)}


def test_kept_bytes_wait_for_the_truncation_that_keeps_them():
    report = reclaimed(facts(GRACED, kept=[FIRST, SECOND]))
    assert found(report) == [("grace", 60, 500, ""), ("grace", 50, 900, "")]
    assert (report.disk_bytes, report.live_bytes, report.tiered_bytes, report.freed_bytes) == (220, 120, 110, 0)


def test_a_later_truncation_waits_for_an_earlier_one():
    late = KeptRange(before={}, after={OLD: 60}, due_ms=2000)
    assert found(reclaimed(facts(GRACED, kept=[late, SECOND]))) == [("grace", 110, 2000, "")]


def test_a_hold_keeps_what_it_covers_and_all_that_waits_behind_it():
    hold = Hold(id="audit", until_ms=None, positions={OLD: 50})
    assert found(reclaimed(facts(GRACED, kept=[FIRST, SECOND], holds=[hold]))) == [("hold", 110, None, "audit")]
    behind = Hold(id="late", until_ms=700, positions={OLD: 80})
    assert found(reclaimed(facts(GRACED, kept=[FIRST, SECOND], holds=[behind]))) == [
        ("grace", 60, 500, ""),
        ("hold", 50, 900, "late"),
    ]


def test_leases_blocks_and_checkpoints_have_their_names():
    leases = (PendingLease(id="b", until_ms=77, holder="report"), PendingLease(id="a", until_ms=70))
    segments = {LEFT: space(90, 90, 60, 5, leased_bytes=20, leased_until_ms=77, partial_bytes=10, leases=leases)}
    report = reclaimed(facts(segments))
    assert [item.leases for item in report.pending] == [leases, (), ()]
    assert found(report) == [("lease", 20, 77, ""), ("block", 10, None, ""), ("checkpoint", 30, None, "")]
    # What was deleted whole counts as given back.
    assert report.freed_bytes == 105


def test_a_segment_before_the_head_that_nothing_keeps_is_being_deleted():
    report = reclaimed(facts({OLD: space(0, 40, 60), LEFT: space(5, 5)}))
    assert found(report) == [("deleted", 100, None, "")]
    assert report.tiered_bytes == 5


@st.composite
def spaces(draw):
    number = st.integers(0, 1000)
    pending = draw(number)
    kept = draw(st.integers(0, pending))
    leased = draw(st.integers(0, pending - kept))
    partial = draw(st.integers(0, pending - kept - leased))
    return space(
        draw(number),
        draw(number),
        pending,
        draw(number),
        kept_bytes=kept,
        leased_bytes=leased,
        leased_until_ms=draw(st.none() | number),
        partial_bytes=partial,
    )


@given(
    st.dictionaries(st.sampled_from([OLD, LEFT, RIGHT]), spaces()),
    st.sampled_from([(), (FIRST,), (FIRST, SECOND), (SECOND,)]),
    st.lists(st.builds(Hold, id=st.text(max_size=3), until_ms=st.none() | st.integers(0, 2000)), max_size=2),
    st.sampled_from([{OLD: 60}, {LEFT: 10, RIGHT: 0}, {LEFT: 10, RIGHT: 30}]),
)
def test_every_byte_on_disk_is_named_exactly_once(segments, kept, holds, head):
    report = reclaimed(facts(segments, kept, holds, head))
    assert report.disk_bytes == sum(item.tiered_bytes + item.pending_free_bytes for item in segments.values())
    assert report.disk_bytes == report.tiered_bytes + report.pending_bytes
    assert all(item.bytes > 0 for item in report.pending)
    assert len({(item.why, item.until_ms, item.name) for item in report.pending}) == len(report.pending)
    if holds and kept and any(item.kept_bytes for item in segments.values()):
        assert all(item.why is not PendingReason.GRACE or item.until_ms is None for item in report.pending)
