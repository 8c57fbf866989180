"""No erasure changes any count, position or lag, also where the head lies inside a block."""

from __future__ import annotations

import random
from bisect import bisect_left
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.codec.events import event_bounds, frame_events
from penstock.core.segments.erasure import blank, dead_payloads
from penstock.model.cuts import StreamCut

NAME = "s/t/0.#epoch.0"


def events_of(stream):
    with stream.reader(until_tail=True) as reader:
        return list(reader)


def counts(store, offsets, end):
    count = store._inner.segments.count_events
    return [store._thread.call(count(NAME, offset, end)) for offset in offsets]


@pytest.mark.parametrize("seed", range(6))
def test_no_erasure_changes_a_count_a_position_or_a_lag(tmp_path, seed):
    rng = random.Random(seed)
    data = tmp_path / "data"
    store = penstock.open(data)
    try:
        stream = store.create_stream("s/t", create_scope=True)
        with stream.writer() as writer:
            for number in range(1500):
                writer.write(b"%06d" % number + b"x" * rng.choice([0, 3, 50, 2000]), key="k")
        events = events_of(stream)
        offsets = [event.offset for event in events]
        end = stream.tail().positions[0]
        store.reader_group("s/slow", ["s/t"], retention="manual")
        head = 0
        alive = dict(enumerate(events))
        for _ in range(3):
            head = rng.randrange(head + 1, head + 300)
            stream.truncate(StreamCut(stream.name, {0: offsets[head]}))
            wanted = [*sorted(rng.sample(range(head, len(events)), 12)), len(events)]
            places = [*offsets, end]
            before = counts(store, [places[item] for item in wanted], end)
            assert before == [len(events) - item for item in wanted]
            cuts = stream.head(), stream.tail()
            lag = [(item.lag_events, item.lag_bytes) for item in stream.subscribers()]
            chosen = rng.sample([item for item in alive if item >= head], 3)
            stream.erase([alive.pop(item) for item in chosen], who="a", why="b")
            assert counts(store, [places[item] for item in wanted], end) == before
            assert (stream.head(), stream.tail()) == cuts
            assert [(item.lag_events, item.lag_bytes) for item in stream.subscribers()] == lag
            assert events_of(stream) == [event for item, event in alive.items() if item >= head]
            if rng.random() < 0.5:
                store.close()
                store = penstock.open(data)
                stream = store.stream("s/t")
                assert counts(store, [places[item] for item in wanted], end) == before
    finally:
        store.close()


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=8), st.data())
def test_dead_payloads_are_blank_and_headers_stay(events, draw):
    data = bytearray(frame_events(events))
    before = event_bounds(bytes(data))
    cut = draw.draw(st.integers(0, len(data)))
    end = draw.draw(st.sampled_from(before))
    torn = draw.draw(st.booleans())
    if torn:
        data = data[: max(cut, end)]
        before = event_bounds(bytes(data))
    counted = len(before) - 1 + (before[-1] < len(data))
    blank(data, 0, dead_payloads(data, counted, end))
    assert list(event_bounds(bytes(data))) == list(before)
    for start, stop in pairwise(before[: bisect_left(before, end) + 1]):
        assert not any(data[start + 8 : stop])


@given(st.binary(max_size=60), st.integers(0, 5), st.integers(0, 60))
def test_dead_bytes_that_are_not_events_are_blanked_in_full(text, events, end):
    data = bytearray(text)
    end = min(end, len(data))
    found = dead_payloads(data, events, end)
    blank(data, 0, found)
    assert len(data) == len(text)
    assert data[end:] == text[end:]
    if found == [(0, end)]:
        assert not any(data[:end])
