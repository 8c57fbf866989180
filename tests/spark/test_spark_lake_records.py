"""Records in a table of a lake: keys, values, headers and times are columns, and a schema describes their values."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from job_world import source_options
from pyspark.errors import PySparkException
from spark_world import World

from penstock.codec.records import encode_record
from penstock.model.errors import ConflictError, InvalidArgumentError
from penstock.model.names import StreamName
from penstock.model.records import Record
from penstock.spark.cli.session import typed
from penstock.spark.jobs.lake.job import LakeRequest, append_to_table
from penstock.spark.lake.opening import TableAddress, open_table
from penstock.spark.lake.port import FORMATS

pytestmark = pytest.mark.spark
AT = datetime.datetime(2026, 1, 31, 23, tzinfo=datetime.UTC)
AT_MS = int(AT.timestamp() * 1000)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
RECORDS = [
    Record('{"n": 1}', key="a", headers={"lang": "en"}, timestamp_ms=AT_MS),
    Record('{"n": 2}', key="b"),
    Record('{"n": 3}', key="a", timestamp_ms=AT_MS + 3_600_000),
    Record(None, key="b"),
]


def request_of(kind: str, address: str, stream: StreamName, root: Path, **more: Any) -> LakeRequest:
    if kind == "iceberg":
        catalog = {"type": "sql", "uri": f"sqlite:///{root}/catalog.db", "warehouse": str(root / "warehouse")}
        place = TableAddress(format=kind, target=f"shop.{more.pop('name', 't')}", catalog=catalog)
    else:
        place = TableAddress(format=kind, target=str(root / more.pop("name", "t")))
    return LakeRequest(read=source_options(address, stream, event_format="record"), address=place, **more)


def found(request: LakeRequest, columns: str) -> list[Any]:
    rows = duckdb.from_arrow(open_table(request.address).read())
    return rows.query("t", f'select {columns} from t order by segment_id, "offset"').fetchall()


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
def test_records_are_columns_and_a_schema_describes_their_values(
    kind: str, spark: Any, address: str, world: World, tmp_path: Path
) -> None:
    stream = world.create(f"records{kind}", 1)
    world.write(stream, [encode_record(record) for record in RECORDS])
    plain = request_of(kind, address, stream, tmp_path, name="plain", partition="hour", time="timestamp")
    assert append_to_table(spark, plain).events == 4
    assert found(plain, 'key, value, headers, epoch_ms("timestamp")') == [
        (b"a", b'{"n": 1}', [{"key": "lang", "value": b"en"}], AT_MS),
        (b"b", b'{"n": 2}', None, None),
        (b"a", b'{"n": 3}', None, AT_MS + 3_600_000),
        (b"b", None, None, None),
    ]
    with pytest.raises(ConflictError, match="differing=event_format"):
        append_to_table(spark, replace(plain, read=source_options(address, stream)))
    values = request_of(kind, address, stream, tmp_path, name="values", schema="n BIGINT")
    append_to_table(spark, values)
    assert found(values, "decode(key), n, epoch_ms(timestamp)") == [
        ("a", 1, AT_MS),
        ("b", 2, None),
        ("a", 3, AT_MS + 3_600_000),
        ("b", None, None),
    ]
    latest = request_of(
        kind, address, stream, tmp_path, name="latest", schema="n BIGINT", key="key", delete_when="value is null"
    )
    append_to_table(spark, latest)
    assert found(latest, "key, n") == [("a", 3)]
    world.write(stream, [encode_record(Record('{"n": 4}', key="b")), encode_record(Record(None, key="a"))])
    append_to_table(spark, latest)
    assert found(latest, "key, n") == [("b", 4)]


def test_a_record_that_does_not_fit_stops_the_run_or_has_nulls(
    spark: Any, address: str, world: World, tmp_path: Path
) -> None:
    stream = world.create("recordsbad", 1)
    bad = [Record("no json", key="a"), Record('{"n": 5}', key=b"\xff")]
    world.write(stream, [encode_record(record) for record in [RECORDS[0], *bad]])
    values = request_of("delta", address, stream, tmp_path, name="values", schema="n BIGINT")
    keyed = request_of("delta", address, stream, tmp_path, name="keyed", key="key")
    for request in (values, keyed):
        with pytest.raises(PySparkException) as failed:
            append_to_table(spark, request)
        error = typed(failed.value)
        assert isinstance(error, InvalidArgumentError)
        assert "does not fit the schema" in str(error)
    append_to_table(spark, replace(values, bad_events="null"))
    assert found(values, "key, n") == [(b"a", 1), (b"a", None), (b"\xff", 5)]
    append_to_table(spark, replace(keyed, bad_events="null"))
    assert found(keyed, "key, value, epoch_ms(timestamp)") == [("a", b"no json", None)]
    assert open_table(keyed.address).read().schema.field("headers").type == HEADERS
