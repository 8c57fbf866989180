"""Records as columns of Spark: what is read comes back when it is written, and a plain event is never a wrong row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from struct import pack
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType
from spark_world import World, open_here

from penstock.codec.records import encode_record
from penstock.core.streams.routing import Router
from penstock.model.errors import EventTooLargeError, InvalidArgumentError, NotARecordError
from penstock.model.names import StreamName
from penstock.model.records import KEY_MAX_BYTES, Record, routing_key_of
from penstock.model.segments import SegmentId, even_ranges
from penstock.spark.connect import close_links
from penstock.spark.options import parse_read, parse_source, parse_write
from penstock.spark.reading.plan import Piece, Share
from penstock.spark.reading.scan import Shape, read_share
from penstock.spark.records import columns_of, record_events
from penstock.spark.schema import check_read_schema, check_record_schema, check_write_schema, read_columns
from penstock.spark.source import PenstockSource
from penstock.spark.writing import attempt, sink
from penstock.spark.writing.frames import Sorter

STREAM = StreamName("plant", "turbine")
SEGMENT = SegmentId(3)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
FIELDS = [("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS), ("timestamp", pa.timestamp("us", "UTC"))]
SCHEMA = pa.schema([*FIELDS, ("offset", pa.int64())])
RECORD = {"event_format": "record"}


def drawn() -> st.SearchStrategy[Record]:
    blobs = st.none() | st.binary(max_size=20)
    names = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
    return st.builds(
        lambda value, key, headers, time_ms: Record(value, key=key, headers=headers, timestamp_ms=time_ms),
        blobs,
        blobs,
        st.lists(st.tuples(names, blobs), max_size=3),
        st.none() | st.integers(-(2**53), 2**53),
    )


@settings(deadline=None)
@given(st.lists(drawn(), max_size=20))
def test_columns_of_records_are_the_records(records: list[Record]) -> None:
    made = columns_of(records, pa.schema(FIELDS))
    rows = pa.RecordBatch.from_arrays([made[name] for name, _ in FIELDS], schema=pa.schema(FIELDS))
    rows.validate(full=True)
    events, routes = record_events(rows, "routing_key")
    assert events.to_pylist() == [encode_record(record) for record in records]
    assert routes.to_pylist() == [routing_key_of(record.key) for record in records]
    later, _ = record_events(rows.slice(1), "routing_key")
    assert later.to_pylist() == events.to_pylist()[1:]


def read(events: list[bytes], *, plain_events: Any = "fail", erased: Any = None) -> list[dict[str, Any]]:
    raw = b"".join(pack(">ii", 0, len(event)) + event for event in events)
    piece = Piece(segment=SEGMENT, start=0, end=len(raw))
    shape = Shape(SCHEMA, STREAM, 7, plain_events=plain_events)
    share = Share(stream=STREAM, pieces=(piece,), lease=None, lease_until_ms=0)
    batches = read_share(share, shape, lambda segment, offset, size: raw[offset : offset + size], erased)
    return [row for batch in batches for row in batch.to_pylist()]


RECORDS = [encode_record(Record(b"%d" % number, key=b"k%d" % (number % 3))) for number in range(20)]


def test_a_plain_event_fails_with_its_offset_or_is_a_row_of_nulls() -> None:
    events = [*RECORDS[:9], b"plain", *RECORDS[9:]]
    with pytest.raises(NotARecordError, match="plain_events=null") as caught:
        read(events)
    assert caught.value.fields["offset"] == sum(len(event) + 8 for event in RECORDS[:9])
    rows = read(events, plain_events="null")
    assert len(rows) == 21
    assert [row["value"] for row in rows if row["key"] is not None] == [b"%d" % number for number in range(20)]
    assert [rows[9][name] for name, _ in FIELDS] == [None] * 4


def test_an_erased_record_is_left_out() -> None:
    events = [RECORDS[0], bytes(len(RECORDS[1])), RECORDS[2]]
    start = len(RECORDS[0]) + 8
    rows = read(events, erased=lambda segment, low, high: [(start + 8, start + 8 + len(RECORDS[1]))])
    assert [row["value"] for row in rows] == [b"0", b"2"]


def test_a_time_that_spark_cannot_hold_is_no_wrong_row() -> None:
    event = encode_record(Record(b"x", timestamp_ms=1 << 62))
    with pytest.raises(Exception, match="out of range for Spark"):
        read([event])
    assert read([event], plain_events="null")[0]["value"] is None


def test_a_routing_key_of_its_own_beats_the_key() -> None:
    rows = pa.record_batch({"value": ["a", "b"], "key": ["k", "k"], "routing_key": pa.array([None, "r"], pa.string())})
    events, routes = record_events(rows, "routing_key")
    assert routes.to_pylist() == ["k", "r"]
    assert events.to_pylist() == [encode_record(Record(value, key="k")) for value in ("a", "b")]


@pytest.mark.parametrize(
    ("columns", "kind"),
    [
        ({"key": pa.array([b"k", b"k" * (KEY_MAX_BYTES + 1)])}, EventTooLargeError),
        ({"headers": pa.array([None, [{"key": None, "value": b""}]], HEADERS)}, InvalidArgumentError),
        ({"headers": pa.array([None, [None]], HEADERS)}, InvalidArgumentError),
    ],
)
def test_a_row_that_is_no_record_is_named(columns: dict[str, pa.Array], kind: type[Exception]) -> None:
    with pytest.raises(kind, match="row=1"):
        record_events(pa.record_batch({"value": [b"1", b"2"], **columns}), "routing_key")


def test_options_and_columns_of_records_are_checked() -> None:
    given = {"stream": "plant/turbine"}
    assert parse_source({**given, **RECORD, "plainEvents": "null"}).plain_events == "null"
    assert parse_write({**given, "eventFormat": "RECORD"}).records
    assert not parse_read(given).records
    for parse, wrong in (
        (parse_source, {"event_format": "json"}),
        (parse_source, {**RECORD, "plain_events": "skip"}),
        (parse_source, {"plain_events": "null"}),
        (parse_write, {**RECORD, "event_column": "value"}),
        (parse_write, {**RECORD, "plain_events": "null"}),
    ):
        with pytest.raises(InvalidArgumentError):
            parse({**given, **wrong})
    assert [name for name, _ in read_columns(None, records=True)][:4] == [name for name, _ in FIELDS]
    check_read_schema([("key", "binary"), ("event", "binary")], records=True)
    with pytest.raises(InvalidArgumentError, match="event_format=record"):
        read_columns(("key",))
    with pytest.raises(InvalidArgumentError, match="event_format=record"):
        check_write_schema([("event", "binary"), ("key", "binary")], event="event", routing_key="routing_key")
    assert check_record_schema([("value", "string"), ("key", "string"), ("offset", "bigint")], routing_key="r")
    assert not check_record_schema([("value", "binary")], routing_key="r")
    for columns in (
        [("key", "binary")],
        [("value", "int")],
        [("value", "binary"), ("event", "binary")],
        [("value", "binary"), ("price", "int")],
        [("value", "binary"), ("timestamp", "bigint")],
        [("value", "binary"), ("value", "binary")],
        [("value", "binary"), ("headers", "map<string,binary>")],
    ):
        with pytest.raises(InvalidArgumentError):
            check_record_schema(columns, routing_key="r")


@pytest.fixture
def world(world_here: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(PenstockSource, "connector", staticmethod(open_here))
    monkeypatch.setattr(sink, "_identity", lambda: ("q", 0))
    yield world_here
    close_links()


def source(data: Path, stream: StreamName, **options: str) -> PenstockSource:
    return PenstockSource({"controller": str(data), "path": str(stream), **RECORD, **options})


def rows_of(data: Path, stream: StreamName, *, schema: StructType | None = None) -> list[pa.RecordBatch]:
    made = source(data, stream)
    reader = made.reader(schema or made.schema())
    return [batch for partition in reader.partitions() for batch in reader.read(partition)]


@pytest.mark.parametrize("inline_bytes", [0, attempt.INLINE_BYTES])
def test_a_copy_keeps_keys_headers_times_and_order_per_key(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch, inline_bytes: int
) -> None:
    monkeypatch.setattr(attempt, "INLINE_BYTES", inline_bytes)
    records = [
        Record(b"%d" % number, key=b"k\xff%d" % (number % 7), headers={"n": "x"}, timestamp_ms=number)
        for number in range(200)
    ]
    old, new = world.create("old", 1), world.create("new", 3)
    columns = columns_of(records, pa.schema(FIELDS))
    # The copy has the columns of the read that are not written, as Spark hands them over.
    for stream, rows in ((old, [pa.record_batch(columns)]), (new, None)):
        writer = source(data, stream).streamWriter(source(data, old).schema(), overwrite=False)
        writer.commit([writer.write(iter(rows_of(data, old) if rows is None else rows))], batchId=0)
    found = [row for batch in rows_of(data, new) for row in batch.to_pylist()]
    ranges = even_ranges(3)
    assert len(found) == 200
    for key in {record.key for record in records}:
        mine = [row for row in found if row["key"] == key]
        assert [row["value"] for row in mine] == [record.value for record in records if record.key == key]
        place = Router(ranges).index_of(routing_key_of(key) or "")
        assert {row["segment_id"] for row in mine} == {place}
    assert {row["headers"][0]["value"] for row in found} == {b"x"}
    assert sorted(int(row["timestamp"].timestamp() * 1000) for row in found) == list(range(200))


def test_writing_needs_no_key() -> None:
    parts = list(Sorter(even_ranges(1), turn=0).sort(record_events(pa.record_batch({"value": [b"x"]}), "r")[0], None))
    assert bytes(parts[0].data)[8:] == encode_record(Record(b"x"))


@pytest.mark.parametrize("inline_bytes", [0, attempt.INLINE_BYTES])
def test_records_go_to_the_streams_that_their_rows_name(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch, inline_bytes: int
) -> None:
    monkeypatch.setattr(attempt, "INLINE_BYTES", inline_bytes)
    records = [
        Record(b"%d" % number, key=b"k\xff%d" % (number % 7), headers={"n": "x"}, timestamp_ms=number)
        for number in range(300)
    ]
    streams = [world.create(name, segments) for name, segments in (("one", 1), ("two", 2), ("three", 3))]
    # The stream that a row names is no property of its record: each key has rows in every stream.
    named = [streams[number % 3] for number in range(300)]
    columns = columns_of(records, pa.schema(FIELDS))
    rows = pa.record_batch({**columns, "stream": pa.array([str(stream) for stream in named])})
    schema = StructType([source(data, streams[0]).schema()[name] for name, _ in FIELDS]).add("stream", "string")
    routed = PenstockSource({"controller": str(data), **RECORD})
    for _ in range(2):  # the second time is a repeat
        writer = routed.streamWriter(schema, overwrite=False)
        writer.commit([writer.write(iter([rows.slice(0, 40), rows.slice(40)]))], batchId=0)
    for segments, stream in enumerate(streams, 1):
        found = [row for batch in rows_of(data, stream) for row in batch.to_pylist()]
        mine = [record for record, target in zip(records, named, strict=True) if target == stream]
        assert sorted(row["value"] for row in found) == sorted(record.value or b"" for record in mine)
        for key in {record.key for record in mine}:
            of_key = [row for row in found if row["key"] == key]
            assert [row["value"] for row in of_key] == [record.value for record in mine if record.key == key]
            place = Router(even_ranges(segments)).index_of(routing_key_of(key) or "")
            assert {row["segment_id"] for row in of_key} == {place}
        assert {row["headers"][0]["value"] for row in found} == {b"x"}
    # One row that names no stream, and nothing is written.
    bad = pa.record_batch({**columns, "stream": pa.array([None, *(str(stream) for stream in named[1:])])})
    monkeypatch.setattr(sink, "_identity", lambda: ("q", 1))
    with pytest.raises(InvalidArgumentError, match="names no stream"):
        routed.streamWriter(schema, overwrite=False).write(iter([bad]))
