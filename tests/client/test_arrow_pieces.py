"""Arrow arrays become blocks: the same events in the same order as event by event, whatever their lengths."""

from __future__ import annotations

import random
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.writing.arrow import ArrowBatch, PieceMemory
from penstock.client.writing.lanes import LaneMap, Piece
from penstock.client.writing.segment_sender import Lane
from penstock.codec.events import frame_events, split_events
from penstock.model.errors import InvalidArgumentError

BLOCK_BYTES = 64 << 10


class NoSender:
    """Lanes here lead nowhere."""


def lane_map(count: int) -> LaneMap:
    return LaneMap([Piece(i / count, (i + 1) / count, Lane(NoSender())) for i in range(count)])  # type: ignore[arg-type]


def written(array, keys, lanes, memory=None):
    """Per lane, the events and the keys of its blocks; and the blocks."""
    events: dict[int, list[bytes]] = {}
    own_keys: dict[int, list[str | None]] = {}
    blocks = []
    for prepared in ArrowBatch(array, keys, BLOCK_BYTES, memory or PieceMemory(1 << 24)).pieces(lambda: lanes):
        for lane, block in prepared:
            found = split_events(bytes(block.data))
            assert len(found) == block.event_count
            events.setdefault(id(lane), []).extend(found)
            own_keys.setdefault(id(lane), []).extend(block.keys_in(lane) or [None] * block.event_count)
            blocks.append(block)
    return events, own_keys, blocks


lengths = st.one_of(
    st.lists(st.integers(0, 40), max_size=200),
    st.tuples(st.integers(0, 300), st.integers(0, 200)).map(lambda pair: [pair[0]] * pair[1]),
)


@settings(deadline=None)
@given(
    lengths=lengths, segments=st.integers(1, 5), skipped=st.integers(0, 3), with_null=st.booleans(), keyed=st.booleans()
)
def test_each_lane_gets_its_events_in_order_with_their_keys(lengths, segments, skipped, with_null, keyed):
    lanes = lane_map(segments)
    events = [bytes([number % 251]) * length for number, length in enumerate(lengths)]
    names = [None if with_null and number % 5 == 0 else f"k{number % 17}" for number in range(len(events))]
    array = pa.array(events, pa.binary()).slice(min(skipped, len(events)))
    keys = pa.array(names, pa.string()).slice(min(skipped, len(events))) if keyed else None
    events, names = events[skipped:], names[skipped:]
    got, got_keys, blocks = written(array, keys, lanes)
    assert sorted(event for own in got.values() for event in own) == sorted(events)
    for key in {name for name in names if name is not None} if keyed else ():
        lane = id(lanes[key])
        places = [index for index, name in enumerate(got_keys[lane]) if name == key]
        assert [got[lane][place] for place in places] == [e for e, n in zip(events, names, strict=True) if n == key]
    assert all(block.size <= 2 * BLOCK_BYTES for block in blocks)


def test_what_is_large_is_cut_into_even_pieces_and_blocks():
    lanes = lane_map(2)
    events = [number.to_bytes(4, "big") * 25 for number in range(60_000)]
    keys = [f"k{number % 100}" for number in range(len(events))]
    batch = ArrowBatch(pa.array(events, pa.binary()), pa.array(keys), BLOCK_BYTES, PieceMemory(1 << 24))
    left = [batch.left]
    sizes = []
    for prepared in batch.pieces(lambda: lanes):
        left.append(batch.left)
        sizes += [block.size for _, block in prepared]
    assert left[0] == (60_000, 60_000 * 108)
    assert left[-1] == (0, 0)
    assert len(left) > 5, "a piece is sent before the whole is framed"
    # The last piece is what is left.
    assert all(BLOCK_BYTES // 2 <= size <= 2 * BLOCK_BYTES for size in sizes[:-4])


def test_a_layout_that_changes_between_pieces_routes_the_rest():
    before, after = lane_map(1), lane_map(3)
    events = [b"x" * 100] * 40_000
    batch = ArrowBatch(
        pa.array(events), pa.array([f"k{number % 50}" for number in range(40_000)]), BLOCK_BYTES, PieceMemory(1 << 24)
    )
    current = [before]
    seen = []
    for prepared in batch.pieces(lambda: current[0]):
        seen.append({id(lane) for lane, _ in prepared})
        current[0] = after
    assert seen[0] == {id(before.pieces[0].lane)}
    assert set().union(*seen[1:]) == {id(piece.lane) for piece in after.pieces}


def test_memory_that_somebody_looks_at_is_never_framed_into():
    lanes, memory = lane_map(1), PieceMemory(4 << 20)
    held = []
    for number in range(12):
        event = bytes([number]) * 100
        _, _, blocks = written(pa.array([event] * 9000), None, lanes, memory)
        # Of each piece one block is still on its way, wherever that is.
        held.append((blocks[0].data[5 * 108 :], frame_events([event] * (blocks[0].event_count - 5))))
        del blocks
        if number % 3 == 2:
            held.pop(0)
        assert all(bytes(view) == expected for view, expected in held)


def test_memory_is_used_again_once_nobody_looks():
    memory = PieceMemory(4 << 20)
    first = memory.take(1000)
    place = first.__array_interface__["data"][0]
    second = memory.take(1000)
    assert second.__array_interface__["data"][0] != place
    view = memoryview(first)[10:20]
    del first
    third = memory.take(1000)
    assert third.__array_interface__["data"][0] not in (place, second.__array_interface__["data"][0])
    del view
    assert memory.take(1000).__array_interface__["data"][0] == place


def test_an_array_is_refused_before_any_of_it_is_framed():
    memory = PieceMemory(1 << 20)
    for array, keys in (
        (pa.array([b"a", None]), None),
        (pa.array([1]), None),
        (pa.array([b"a"]), pa.array(["k", "l"])),
    ):
        with pytest.raises(InvalidArgumentError):
            ArrowBatch(array, keys, BLOCK_BYTES, memory)


@pytest.mark.parametrize("shift", [-2, -1, 0, 1])
def test_memory_in_use_is_never_reused_on_any_python_version(monkeypatch, shift):
    real = sys.getrefcount
    monkeypatch.setattr(sys, "getrefcount", lambda thing: real(thing) - 1 + shift)
    memory = PieceMemory(4 << 20)
    rng = random.Random(shift)
    held: list[tuple[int, np.ndarray | memoryview]] = []
    for number in range(1000):
        array = memory.take(rng.randrange(1, 3 << 20))
        array[0] = array[len(array) // 2 - 1] = array[-1] = number % 251
        kind = rng.randrange(3)
        view = (
            array if kind == 0 else memoryview(array.data) if kind == 1 else memoryview(array.data)[: len(array) // 2]
        )
        held.append((number % 251, view))
        del array, view
        while len(held) > 3:
            mark, view = held.pop(rng.randrange(len(held)))
            assert not len(view) or (view[0] == mark and view[len(view) - 1] == mark)
            del view


EVENTS = [b"1", b"22", b"", b"4444"]
KEYS = ["a", None, "b", "a"]
COLUMNS = {"event": pa.array(EVENTS), "routing_key": pa.array(KEYS)}


@pytest.mark.parametrize("form", [pa.table, pa.record_batch])
@pytest.mark.parametrize("beside", [{}, {"segment_id": pa.array([0] * 4), "offset": pa.array(range(4))}])
def test_a_table_or_batch_is_written_as_its_columns_are(form, beside):
    whole, parts = lane_map(3), lane_map(3)
    events, keys, _ = written(form(COLUMNS | beside), None, whole)
    wanted, wanted_keys, _ = written(COLUMNS["event"], COLUMNS["routing_key"], parts)
    assert sorted(events.values()) == sorted(wanted.values())
    assert sorted(map(repr, keys.values())) == sorted(map(repr, wanted_keys.values()))
    alone, alone_keys, _ = written(form({"event": COLUMNS["event"]} | beside), None, lane_map(1))
    assert list(alone.values()) == [EVENTS]
    assert list(alone_keys.values()) == [[None] * 4]


def test_a_table_of_many_chunks_keeps_its_order():
    chunks = pa.chunked_array([EVENTS[:1], [], EVENTS[1:]])
    events, _, _ = written(pa.table({"event": chunks}), pa.chunked_array([["k"], ["k"] * 3]), lane_map(3))
    assert list(events.values()) == [EVENTS]


@pytest.mark.parametrize(
    ("given", "keys", "message"),
    [
        (pa.table({"data": EVENTS}), None, "one column event"),
        (pa.table([EVENTS, EVENTS], names=["event", "event"]), None, "one column event"),
        (pa.table(COLUMNS | {"colour": KEYS}), None, "surplus=colour"),
        (pa.table(COLUMNS), pa.array(KEYS), "keys are given twice"),
        (EVENTS, None, "type=list"),
        (None, None, "type=NoneType"),
        (pa.array(EVENTS), KEYS, "type=list"),
        (pa.array(EVENTS), pa.array([{"a": 1}] * 4), "keys must be text"),
        (pa.array(EVENTS), pa.array([b"\xff"] * 4), "keys must be text"),
        (pa.table({"event": [b"1", None]}), None, "events contain nulls; filter or fill them first"),
    ],
)
def test_what_cannot_be_written_is_refused_by_name(given, keys, message):
    with pytest.raises(InvalidArgumentError, match=message):
        ArrowBatch(given, keys, BLOCK_BYTES, PieceMemory(1 << 20))
