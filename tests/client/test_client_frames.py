"""Events as tables of Arrow, Polars and DuckDB, with the columns of the Spark source; and tables as events."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from client_world import open_services, simulate

import penstock
from penstock.client import frames
from penstock.model.errors import InvalidArgumentError, MissingExtraError, StreamNotFoundError
from penstock.spark.schema import DEFAULT_COLUMNS
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng

ROWS = 500


@pytest.fixture(scope="module")
def store() -> Iterator[penstock.Store]:
    with penstock.Store(lambda: open_services(RealClock(), RealRng())) as opened:
        for name in ("s/a", "s/b"):
            with opened.create_stream(name, segments=2, create_scope=True).writer(block_bytes=4096) as writer:
                for number in range(ROWS):
                    writer.write(f"{name} {number}", f"k{number % 7}")
        yield opened


def fresh(store: penstock.Store, name: str) -> penstock.Stream:
    return store.create_stream(f"new/{name}", create_scope=True)


def data_of(stream: penstock.Stream) -> list[Any]:
    with stream.reader(until_tail=True) as reader:
        return [json.loads(event.data) for event in reader]


def test_the_columns_are_those_of_the_spark_source() -> None:
    assert frames.DEFAULT_COLUMNS == DEFAULT_COLUMNS


def test_a_table_has_every_event_with_its_place(store: penstock.Store) -> None:
    with store.reader(["s/a", "s/b"], until_tail=True) as reader:
        events = list(reader)
    with store.reader(["s/a", "s/b"], until_tail=True) as reader:
        table = reader.to_arrow()
        assert reader.read() is None
    assert tuple(table.schema.names) == DEFAULT_COLUMNS
    found = {(row["stream"], row["segment_id"], row["offset"], row["event"]) for row in table.to_pylist()}
    assert found == {(event.stream.stream, event.segment, event.offset, event.data) for event in events}
    assert set(table.column("scope").to_pylist()) == {"s"}
    assert table.num_rows == 2 * ROWS


def test_a_range_and_some_columns(store: penstock.Store) -> None:
    stream = store.stream("s/a")
    with stream.reader(until_tail=True) as reader:
        for _ in range(100):
            reader.read()
        middle = reader.position()
    with stream.reader(end=middle) as first, stream.reader(start=middle, until_tail=True, append_times=True) as second:
        before, after = first.to_arrow(["offset", "event"]), second.to_arrow()
    assert before.schema.names == ["offset", "event"]
    assert 90 <= before.num_rows <= 110
    assert before.num_rows + after.num_rows == ROWS
    assert after.schema.names[-1] == "append_time"
    ages = [(datetime.now(UTC) - at).total_seconds() for at in after.column("append_time").to_pylist()]
    assert 0 <= min(ages) <= max(ages) < 3600
    with stream.reader(start="latest", until_tail=True) as reader:
        assert reader.to_arrow().num_rows == 0


def test_polars_and_duckdb_get_the_same_rows(store: penstock.Store) -> None:
    stream = store.stream("s/a")
    with stream.reader(until_tail=True) as reader:
        frame = reader.to_polars()
    assert frame.height == ROWS
    assert frame["event"].dtype == pl.Binary
    with stream.reader(until_tail=True) as reader, duckdb.connect() as connection:
        relation = reader.to_duckdb(connection, ["event", "segment_id"])
        counted = relation.aggregate("segment_id, count(*)").fetchall()
    assert dict(counted) == dict(frame["segment_id"].value_counts().iter_rows())
    with stream.reader(until_tail=True) as reader:
        assert reader.to_duckdb(columns=["offset"]).aggregate("count(*)").fetchall() == [(ROWS,)]


def test_a_reader_of_arrow_takes_a_block_at_a_time(store: penstock.Store) -> None:
    with store.stream("s/a").reader(until_tail=True) as reader:
        batches = reader.to_arrow_reader(["event"])
        first = batches.read_next_batch()
        rest = list(reader)  # the reader goes on where the batches stopped
    assert 0 < first.num_rows < ROWS
    assert first.num_rows + len(rest) == ROWS


def test_a_reader_without_an_end_makes_no_table(store: penstock.Store) -> None:
    with store.reader(["s/a", "s/b"], end={"s/a": "latest"}) as reader:
        for make in (reader.to_arrow, reader.to_polars, reader.to_duckdb):
            with pytest.raises(InvalidArgumentError, match="no end"):
                make()
        assert reader.to_arrow_reader().read_next_batch().num_rows
    for columns in (["value"], ["event", "event"], [], "event", ["append_time"]):
        with store.stream("s/a").reader(until_tail=True) as reader, pytest.raises(InvalidArgumentError):
            reader.to_arrow(columns)


def test_the_asynchronous_reader_makes_the_same_tables() -> None:
    async def test(world: Any) -> None:
        stream = await world.store.create_stream("s/a", segments=2, create_scope=True)
        table = pa.table({"user": ["a", None, "b"], "n": [1, 2, 3]})
        assert await stream.write_table(table, key="user") == 3
        async with stream.reader(until_tail=True) as reader:
            found = await reader.to_arrow(["event"])
        assert sorted(map(json.loads, found.column("event").to_pylist()), key=lambda row: row["n"]) == table.to_pylist()
        async with world.store.reader(["s/a"], until_tail=True) as reader:
            assert (await reader.to_polars()).height == 3
        with pytest.raises(InvalidArgumentError, match="no end"):
            await stream.reader().to_arrow()

    simulate(test)


def test_rows_become_json_objects_in_order_per_key(store: penstock.Store) -> None:
    stream = store.create_stream("new/rows", segments=3, create_scope=True)
    count = 10_000
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    table = pa.table(
        {
            "user": [n % 5 if n % 11 else None for n in range(count)],
            "n": range(count),
            "price": [Decimal("1.50")] * count,
            "at": [at] * count,
            "tags": [["x"]] * count,
        }
    )
    assert stream.write_table(table, key="user") == count
    found = data_of(stream)
    assert len(found) == count
    for user in range(5):
        numbers = [row["n"] for row in found if row["user"] == user]
        assert numbers == sorted(numbers)
    assert found[0] | {"n": 0, "user": 0} == {"n": 0, "user": 0, "price": "1.50", "at": at.isoformat(), "tags": ["x"]}


@pytest.mark.parametrize("kind", ["batch", "reader", "polars", "pandas", "duckdb"])
def test_every_kind_of_table_is_written(store: penstock.Store, kind: str) -> None:
    stream = fresh(store, kind)
    table = pa.table({"event": ["one", "two"], "key": ["a", "b"]})
    given: Any = {
        "batch": lambda: table.to_batches()[0],
        "reader": table.to_reader,
        "polars": lambda: pl.from_arrow(table),
        "pandas": lambda: pd.DataFrame({"event": ["one", "two"], "key": ["a", "b"]}),
        "duckdb": lambda: duckdb.from_arrow(table),
    }[kind]()
    assert stream.write_table(given, key="key") == 2
    with stream.reader(until_tail=True) as reader:
        assert sorted(event.data for event in reader) == [b"one", b"two"]


def test_a_stream_is_copied_through_a_reader_of_arrow(store: penstock.Store) -> None:
    copy = fresh(store, "copy")
    with store.stream("s/a").reader(until_tail=True) as reader:
        assert copy.write_table(reader.to_arrow_reader(), key="segment_id") == ROWS
    with copy.reader(until_tail=True) as reader:
        assert sorted(event.data for event in reader) == sorted(f"s/a {number}".encode() for number in range(ROWS))


@pytest.mark.parametrize(
    ("table", "options", "says"),
    [
        ([1, 2], {}, "a table must come from pyarrow"),
        (pa.table({"a": [1]}), {"key": "b"}, "key is not one column"),
        (pa.table({"a": [1]}), {"event": "b"}, "event is not one column"),
        (pa.table({"a": [b"1"]}), {}, "cannot be written as JSON"),
        (pa.table([[1], [2]], ["a", "a"]), {}, "different names"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is(
    store: penstock.Store, table: Any, options: dict[str, str], says: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=says):
        store.stream("new/none").write_table(table, **options)  # before the stream is looked for
    with pytest.raises(StreamNotFoundError):
        store.stream("s/none").write_table(pa.table({"a": [1]}))


@pytest.mark.parametrize(
    "bad",
    [
        pa.table({"v": [float("nan")]}),
        pa.table({"event": pa.array([None], pa.string())}),
        pa.table({"v": pa.array([10**15], pa.timestamp("s"))}),  # no time of Python
        pa.table({"v": pa.array([2**31 - 1], pa.int32()).cast(pa.date32())}),
        pa.table({"v": pa.array([5], pa.timestamp("s", tz="Mars/Base"))}),
    ],
    ids=["nan", "null", "time", "date", "zone"],
)
def test_a_value_that_cannot_be_written_ends_the_call_and_counts_the_rows_before(
    store: penstock.Store, bad: pa.Table
) -> None:
    stream = store.create_stream("new/bad", create_scope=True, if_absent=True)
    start = stream.tail()
    name = bad.schema.names[0]
    good: list[Any] = ["x"] * 3 if name == "event" else [None] * 3
    table = pa.concat_tables([pa.table({name: pa.array(good, bad.schema.field(0).type)}), bad])
    with pytest.raises(InvalidArgumentError) as error:
        stream.write_table(table)
    assert error.value.fields["written_before"] == 3
    with stream.reader(start=start, until_tail=True) as reader:
        assert len(list(reader)) == 3


@pytest.mark.parametrize(("package", "extra"), [("pyarrow", "arrow"), ("polars", "polars"), ("duckdb", "duckdb")])
def test_a_missing_library_is_named_with_its_extra_and_nothing_is_read(
    store: penstock.Store, monkeypatch: pytest.MonkeyPatch, package: str, extra: str
) -> None:
    real = frames.import_module

    def missing(name: str) -> Any:
        if name == package:
            raise ModuleNotFoundError(name, name=name)
        return real(name)

    monkeypatch.setattr(frames, "import_module", missing)
    with store.stream("s/a").reader(until_tail=True) as reader:
        calls = {"pyarrow": "to_arrow", "polars": "to_polars", "duckdb": "to_duckdb"}
        with pytest.raises(MissingExtraError, match=rf"penstock\[{extra}\]"):
            getattr(reader, calls[package])()
        assert len(list(reader)) == ROWS


def test_importing_the_package_loads_no_library() -> None:
    code = (
        "import sys, penstock; penstock.Store; assert not {'pyarrow', 'polars', 'duckdb', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
