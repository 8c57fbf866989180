from __future__ import annotations

from pathlib import Path
from struct import pack

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.codec.events import EVENT_MAX_BYTES
from penstock.core.streams.routing import Router
from penstock.model.errors import CorruptDataError, EventTooLargeError, InvalidArgumentError
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId, even_ranges
from penstock.spark.reading.plan import Block, Piece, Share
from penstock.spark.reading.scan import Fetch, Shape, event_places, read_share
from penstock.spark.writing.frames import APPEND_BYTES, Sorter, event_bytes, frame

SEGMENT = SegmentId(3 << 32 | 7)
STREAM = StreamName("plant", "turbine")
SCHEMA = pa.schema(
    [
        ("event", pa.binary()),
        ("scope", pa.string()),
        ("stream", pa.string()),
        ("segment_id", pa.int64()),
        ("offset", pa.int64()),
    ]
)
# Runs of equal lengths take another way than the rest.
events_lists = st.lists(
    st.tuples(st.binary(max_size=30), st.integers(1, 60)).map(lambda item: [item[0]] * item[1]), max_size=12
).map(lambda runs: [event for run in runs for event in run])


def framed(events: list[bytes]) -> bytes:
    return b"".join(pack(">ii", 0, len(event)) + event for event in events)


def places(events: list[bytes]) -> list[int]:
    found = [0]
    for event in events:
        found.append(found[-1] + 8 + len(event))
    return found


def share(*pieces: Piece) -> Share:
    return Share(stream=STREAM, pieces=pieces, lease=None, lease_until_ms=0)


def no_store(segment: SegmentId, offset: int, size: int) -> bytes:
    raise AssertionError("the store was asked")


def store_of(data: bytes, step: int = 1 << 20) -> Fetch:
    def fetch(segment: SegmentId, offset: int, size: int) -> bytes:
        assert segment == SEGMENT
        return data[offset : offset + min(size, step)]

    return fetch


def read(pieces: Share, fetch: Fetch, rows: int = 10_000, schema: pa.Schema = SCHEMA) -> pa.Table:
    batches = list(read_share(pieces, Shape(schema, STREAM, rows), fetch))
    assert all(batch.num_rows <= rows for batch in batches)
    return pa.Table.from_batches(batches, schema=schema)


def chunk(path: Path, data: bytes, cuts: list[int]) -> Piece:
    path.write_bytes(data)
    bounds = sorted({0, len(data), *cuts})
    blocks = tuple(Block(a, b, crc32c(data[a:b])) for a, b in zip(bounds, bounds[1:], strict=False))
    return Piece(segment=SEGMENT, start=0, end=len(data), location=str(path), chunk_start=0, blocks=blocks)


@settings(deadline=None)
@given(events=events_lists, torn=st.binary(max_size=7))
def test_events_are_found_where_they_are(events: list[bytes], torn: bytes) -> None:
    tail = b"\0\0\0" + torn if torn else b""
    data = framed(events) + tail[:7]
    assert event_places(data).tolist() == places(events)
    assert event_places(b"????" + data + b"??", 4, 4 + len(data)).tolist() == places(events)


@settings(deadline=None)
@given(events=events_lists, step=st.integers(1, 100))
def test_reads_of_any_size_give_the_same_events(events: list[bytes], step: int) -> None:
    data = framed(events)
    found = read(share(Piece(segment=SEGMENT, start=0, end=len(data))), store_of(data, step), rows=7)
    assert found["event"].to_pylist() == events
    assert found["offset"].to_pylist() == places(events)[:-1]
    assert set(found["segment_id"].to_pylist()) <= {SEGMENT}
    assert set(found["scope"].to_pylist()) <= {"plant"}
    assert set(found["stream"].to_pylist()) <= {"turbine"}


def test_a_file_is_read_without_the_store_and_columns_come_as_asked(tmp_path: Path) -> None:
    events = [b"%d" % item * (item % 9) for item in range(5000)]
    data = framed(events)
    piece = chunk(tmp_path / "c", data, places(events)[::100])
    wanted = pa.schema([("offset", pa.int64()), ("event", pa.binary())])
    found = read(share(piece), no_store, rows=999, schema=wanted)
    assert found["event"].to_pylist() == events
    assert found["offset"].to_pylist() == places(events)[:-1]


@pytest.mark.parametrize("damage", ["flipped", "missing", "short"])
def test_a_bad_file_is_replaced_by_the_store(tmp_path: Path, damage: str) -> None:
    events = [b"event %d" % item for item in range(100)]
    data = framed(events)
    piece = chunk(tmp_path / "c", data, places(events)[::10])
    if damage == "missing":
        (tmp_path / "c").unlink()
    else:
        (tmp_path / "c").write_bytes(data[:-1] if damage == "short" else data[:50] + b"!" + data[51:])
    assert read(share(piece), store_of(data))["event"].to_pylist() == events


def test_bytes_that_fail_their_checksum_everywhere_are_never_handed_over(tmp_path: Path) -> None:
    events = [b"event %d" % item for item in range(100)]
    data = framed(events)
    piece = chunk(tmp_path / "c", data, [])
    bad = data[:50] + b"!" + data[51:]
    (tmp_path / "c").write_bytes(bad)
    with pytest.raises(CorruptDataError, match="checksum"):
        read(share(piece), store_of(bad))


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (framed([b"a", b"b"]) + b"\0\0\0\1\0\0\0\0", "no event begins at the offset.*offset=18"),
        (framed([b"a"]) + b"\xff" * 20, "no event begins at the offset.*offset=9"),
        (framed([b"a", b"bbbb"])[:-1], "inside an event.*offset=9"),
        (framed([b"a"]) + b"\0\0", "inside an event.*offset=9"),
    ],
)
def test_what_is_no_event_is_named_with_its_offset(tmp_path: Path, data: bytes, match: str) -> None:
    with pytest.raises(CorruptDataError, match=match):
        read(share(Piece(segment=SEGMENT, start=0, end=len(data))), store_of(data))
    with pytest.raises(CorruptDataError, match=match):
        read(share(chunk(tmp_path / "c", data, [])), store_of(data))


def test_a_large_event_is_put_together_from_many_reads() -> None:
    events = [b"a", bytes(3 << 20), b"b"]
    data = framed(events)
    found = read(share(Piece(segment=SEGMENT, start=0, end=len(data))), store_of(data, 100_000))
    assert found["event"].to_pylist() == events


@settings(deadline=None)
@given(events=events_lists, kind=st.sampled_from([pa.binary(), pa.large_binary()]), skip=st.integers(0, 5))
def test_framing_is_the_inverse_of_reading(events: list[bytes], kind: pa.DataType, skip: int) -> None:
    column = pa.array(events, kind)[skip:]
    data, bounds = frame(event_bytes(column))
    assert bytes(data) == framed(events[skip:])
    assert bounds.tolist() == places(events[skip:])


def test_events_that_cannot_be_stored_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="null"):
        event_bytes(pa.array([b"a", None]))
    with pytest.raises(EventTooLargeError):
        frame(pa.array([bytes(EVENT_MAX_BYTES + 1)]))
    assert event_bytes(pa.array(["é"])).to_pylist() == ["é".encode()]


@settings(max_examples=50, deadline=None)
@given(
    rows=st.lists(st.tuples(st.binary(max_size=9), st.one_of(st.none(), st.text(max_size=3))), max_size=60),
    segments=st.integers(1, 5),
)
def test_each_key_goes_to_its_segment_in_order(rows: list[tuple[bytes, str | None]], segments: int) -> None:
    ranges = even_ranges(segments)
    events, keys = pa.array([row[0] for row in rows], pa.binary()), pa.array([row[1] for row in rows], pa.string())
    parts = list(Sorter(ranges, turn=0).sort(events, keys))
    router = Router(ranges)
    turns = {part.index for part in parts} - {router.index_of(key) for _, key in rows if key is not None}
    assert len(turns) <= 1
    for index in range(segments):
        sent = b"".join(bytes(part.data) for part in parts if part.index == index)
        mine = [e for e, key in rows if (router.index_of(key) if key is not None else 1 % segments) == index]
        assert sent == framed(mine)
        assert sum(part.count for part in parts if part.index == index) == len(mine)


def test_events_without_keys_take_turns_and_appends_stay_small() -> None:
    sorter = Sorter(even_ranges(3), turn=0)
    batches = [list(sorter.sort(pa.array([b"x"]), None)) for _ in range(4)]
    assert [batch[0].index for batch in batches] == [1, 2, 0, 1]
    large = list(sorter.sort(pa.array([bytes(1 << 20)] * 5), None))
    assert [part.count for part in large] == [1] * 5
    assert all(len(part.data) <= APPEND_BYTES for part in large)


def test_rows_are_cut_into_batches_of_bounded_size() -> None:
    events = [bytes(8 << 20)] * 20
    data = framed(events)
    batches = list(
        read_share(
            share(Piece(segment=SEGMENT, start=0, end=len(data))),
            Shape(pa.schema([("event", pa.binary())]), STREAM, 10_000),
            store_of(data, 1 << 30),
        )
    )
    assert sum(batch.num_rows for batch in batches) == 20
    assert max(batch.nbytes for batch in batches) <= 65 << 20


def test_batches_stay_as_they_are_while_further_windows_are_read(tmp_path: Path) -> None:
    events = [bytes([item % 251 + 1]) * (90_000 + item) for item in range(150)]
    data = framed(events)
    piece = chunk(tmp_path / "c", data, places(events)[::10])
    assert len(data) > 12 << 20
    assert read(share(piece), no_store)["event"].to_pylist() == events


@settings(deadline=None)
@given(
    events=st.lists(
        st.one_of(st.integers(0, 12).map(bytes), st.binary(max_size=9), st.just(b"\0\0x\0")), min_size=1, max_size=300
    ),
    data=st.data(),
)
def test_erased_events_are_left_out_and_other_zeros_are_not(events: list[bytes], data: st.DataObject) -> None:
    raw, bounds = framed(events), places(events)
    blank = [index for index, event in enumerate(events) if event and not any(event)]
    gone = [index for index in blank if data.draw(st.booleans())]
    ranges = [(bounds[index] + 8, bounds[index + 1]) for index in gone]
    asked: list[tuple[int, int]] = []

    def erased(segment: SegmentId, start: int, end: int) -> list[tuple[int, int]]:
        asked.append((start, end))
        return ranges

    piece = Piece(segment=SEGMENT, start=0, end=len(raw))
    batches = read_share(share(piece), Shape(SCHEMA, STREAM, 7), store_of(raw), erased)
    found = pa.Table.from_batches(list(batches), schema=SCHEMA)
    kept = [index for index in range(len(events)) if index not in gone]
    assert found["event"].to_pylist() == [events[index] for index in kept]
    assert found["offset"].to_pylist() == [bounds[index] for index in kept]
    # Where there is no event of zeros nobody is asked.
    assert bool(asked) == bool(blank)


@pytest.mark.parametrize("how", ["wiped", "gone", "while it is read"])
def test_a_chunk_that_was_erased_since_the_plan_is_read_from_the_store(tmp_path: Path, how: str) -> None:
    events = [b"event %06d" % item * 5000 for item in range(200)]
    data, bounds = framed(events), places(events)
    assert len(data) > 8 << 20
    piece = chunk(tmp_path / "c", data, bounds[::10])
    index = 150
    blanked = bytearray(data)
    blanked[bounds[index] + 8 : bounds[index + 1]] = bytes(len(events[index]))
    batches = read_share(
        share(piece),
        Shape(SCHEMA, STREAM, 10_000),
        store_of(bytes(blanked)),
        lambda segment, start, end: [(bounds[index] + 8, bounds[index + 1])],
    )
    first = []
    if how == "while it is read":
        first.append(next(batches))
    if how == "gone":
        (tmp_path / "c").unlink()
    else:
        with open(tmp_path / "c", "r+b") as file:
            file.write(bytes(len(data)))
    found = pa.Table.from_batches([*first, *batches], schema=SCHEMA)["event"].to_pylist()
    assert found == events[:index] + events[index + 1 :]
