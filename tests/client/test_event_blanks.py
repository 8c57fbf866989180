"""Events of zeros are found whatever their neighbours are; what was erased among them is left out, nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.client.reading.blanks import blank_events, without_erased
from penstock.client.reading.blocks import Block
from penstock.codec.events import event_bounds, frame_events
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId

STREAM = StreamName("s", "t")
payloads = st.one_of(
    st.integers(0, 20).map(bytes),
    st.binary(max_size=12),
    st.integers(0, 600).map(lambda size: b"x" * size),
    st.sampled_from([b"\0\0\0\1", b"a\0\0\0\0\0\0\0\0", b"\0\0\0\0\0\0\0\1\0", bytes(300), b"\0" * 9 + b"z"]),
)


@given(events=st.lists(payloads, max_size=30), tail=st.sampled_from([b"", b"\0\0", b"\0\0\0\0\0\0\0\x09\0"]))
def test_every_event_of_zeros_is_found_and_no_other(events, tail):
    raw = frame_events(events) + tail if events else tail
    bounds = event_bounds(raw)
    expected = [index for index, event in enumerate(events) if event and not any(event)]
    assert blank_events(raw, bounds) == expected


def test_an_event_that_came_in_pieces_is_among_them_where_one_may_be_blank():
    other = b"\0" * 3
    for event, asked in ((b"abc", False), (b"ab\0", True), (b"\0bc", True), (b"a\0c", False), (b"", False)):
        raw = frame_events([event, other, b"ab\0"])
        assert blank_events(raw, event_bounds(raw), torn=True) == ([0] if asked else []) + [1]
        assert blank_events(raw, event_bounds(raw)) == [1]
    large = b"a" * 70_000 + b"\0" + b"b"
    raw = frame_events([large])
    assert blank_events(raw, event_bounds(raw), torn=True) == [0]
    assert blank_events(frame_events([other]), event_bounds(frame_events([other])), torn=True) == [0]
    assert blank_events(b"\0", event_bounds(b"\0"), torn=True) == []


@given(data=st.data(), events=st.lists(payloads, min_size=1, max_size=30), equal=st.booleans())
def test_what_was_erased_is_left_out_and_the_rest_stays_where_it_was(data, events, equal):
    if equal:
        events = [event.ljust(20, b"q")[:20] for event in events]
    events = [bytes(len(event)) if data.draw(st.booleans()) else event for event in events]
    raw = frame_events(events)
    bounds = event_bounds(raw)
    block = Block(STREAM, SegmentId(3), 1000, raw, bounds)
    blank = blank_events(raw, bounds)
    gone = [index for index in blank if data.draw(st.booleans())]
    erased = [(1000 + bounds[index] + 8, 1000 + bounds[index + 1]) for index in gone]
    found = [event for run in without_erased(block, blank, erased) for event in run]
    kept = [index for index in range(len(events)) if index not in gone]
    assert [(event.offset, event.data) for event in found] == [(1000 + bounds[i], events[i]) for i in kept]
    assert all(event.segment == 3 and event.stream == STREAM for event in found)
