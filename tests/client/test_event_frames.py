"""Laws of event framing: what is framed is parsed, cut anywhere, whatever the lengths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.events import cut_events, event_bounds, event_header, frame_events, missing_bytes, split_events
from penstock.model.errors import CorruptDataError

EVENTS = st.lists(st.binary(max_size=40), max_size=30)
EQUAL = st.tuples(st.integers(0, 20), st.integers(0, 40)).map(lambda pair: [bytes([7]) * pair[0]] * pair[1])


def test_golden_bytes():
    assert frame_events([b"ab", b""]) == bytes.fromhex("00000000 00000002 6162 00000000 00000000")
    assert event_header(300) == bytes.fromhex("00000000 0000012c")


@given(events=EVENTS | EQUAL)
def test_split_inverts_frame(events):
    assert split_events(frame_events(events)) == events


@given(events=EVENTS | EQUAL, extra=EVENTS, cut=st.integers(0, 400))
def test_a_block_cut_anywhere_gives_its_whole_events(events, extra, cut):
    everything = [*events, *extra]
    framed = frame_events(everything)
    part = framed[:cut]
    bounds = event_bounds(part)
    found = cut_events(part, bounds)
    assert found == everything[: len(found)]
    rest = len(part) - bounds[-1]
    assert rest >= 0
    if len(found) < len(everything):
        assert rest < 8 + len(everything[len(found)])
        if rest:
            assert 1 <= missing_bytes(part, bounds[-1]) <= 8 + len(everything[len(found)]) - rest


@pytest.mark.parametrize("bad", ["00000001 00000002 6162", "ffffffff 00000001 61", "00000000 80000000 61"])
def test_what_is_no_header_is_corrupt(bad):
    good = frame_events([b"fine"])
    with pytest.raises(CorruptDataError) as caught:
        event_bounds(good + bytes.fromhex(bad), segment="s", offset=100)
    assert caught.value.fields["offset"] == 112


def test_a_block_with_a_partial_event_is_not_split():
    with pytest.raises(CorruptDataError):
        split_events(frame_events([b"abc"])[:-1])
