"""SQL over streams: views, and tables of Spark's catalog."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from spark_world import World, keyed

import penstock
from penstock.model.records import Record
from penstock.spark.reasons import reason

pytestmark = pytest.mark.spark


def test_a_view_and_a_table_read_a_stream_in_sql_and_as_a_stream(
    spark: Any, address: str, world: World, tmp_path: Path
) -> None:
    stream = world.create("sql")
    world.write(stream, keyed(0, 100))
    given = (
        f"controller '{address}', path 'plant/sql', start_stream_cut 'earliest', columns 'event, offset, append_time'"
    )
    spark.sql(f"CREATE TEMPORARY VIEW turbine USING penstock OPTIONS ({given})")
    row = spark.sql("SELECT count(*) AS n, min(offset) AS first, max(append_time) AS last FROM turbine").first()
    assert (row.n, row.first) == (100, 0)
    assert row.last is not None
    assert spark.sql("SELECT * FROM turbine WHERE cast(event AS string) LIKE 'k0:%' LIMIT 3").count() == 3

    # Spark hands a Python source behind a catalog's table the options of the read alone.
    spark.sql(f"CREATE TABLE turbines USING penstock OPTIONS ({given})")
    with pytest.raises(Exception, match="SELECT") as caught:
        spark.table("turbines").count()
    assert "temporary view" in (reason(caught.value) or "")
    options = {"controller": address, "path": "plant/sql", "start_stream_cut": "earliest"}
    assert spark.read.options(**options).table("turbines").count() == 100
    said = ", ".join(f"'{name}' = '{value}'" for name, value in options.items())
    assert spark.sql(f"SELECT count(*) AS n FROM turbines WITH ({said})").first().n == 100
    assert _stream_of(spark.readStream.options(**options).table("turbines"), tmp_path / "checkpoint") == 100


@pytest.mark.slow
def test_insert_into_appends_and_a_permanent_view_is_a_name_in_the_catalog(
    spark: Any, address: str, world: World
) -> None:
    stream = world.create("inserted", 2)
    given = f"'controller' = '{address}', 'path' = '{stream}'"
    spark.sql(f"CREATE TABLE sink (event STRING, routing_key STRING) USING penstock OPTIONS ({given})")
    spark.sql(f"CREATE TABLE source (event BINARY, offset BIGINT) USING penstock OPTIONS ({given})")
    spark.sql(f"CREATE VIEW events AS SELECT cast(event AS string) AS event FROM source WITH ({given})")
    spark.sql(f"INSERT INTO sink WITH ({given}) VALUES ('a', 'k'), ('b', NULL)")
    spark.sql(f"INSERT INTO sink WITH ({given}) (event) SELECT 'c'")
    spark.table("events").selectExpr("concat(event, '!') AS event", "'k' AS routing_key").writeTo("sink").options(
        controller=address, path=str(stream)
    ).append()
    # No options here, and each query sees what was written before it.
    assert {row.event for row in spark.sql("SELECT event FROM events").collect()} == {*"abc", "a!", "b!", "c!"}

    # A temporary view keeps the end that its first query saw.
    spark.sql(f"CREATE TEMPORARY VIEW frozen USING penstock OPTIONS ({given.replace(' = ', ' ')})")
    assert spark.sql("SELECT * FROM frozen").count() == 6
    spark.sql("INSERT INTO frozen (event) SELECT cast('d' AS binary)")
    assert spark.sql("SELECT * FROM frozen").count() == 6
    assert spark.sql("SELECT * FROM events").count() == 7

    for statement, words in (
        ("INSERT INTO sink VALUES ('x', 'k')", "INSERT INTO table WITH"),
        (f"INSERT OVERWRITE sink WITH ({given}) SELECT 'x', 'k'", "never overwritten"),
        (f"CREATE TABLE made USING penstock OPTIONS ({given}) AS SELECT 'x' AS event", "INSERT INTO table WITH"),
    ):
        with pytest.raises(Exception, match="InvalidArgumentError") as caught:
            spark.sql(statement)
        assert words in (reason(caught.value) or "")
    for statement, condition in (
        (f"SELECT * FROM penstock.`{stream}`", "UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY"),
        ("DELETE FROM sink", "(?i)delete"),
    ):
        with pytest.raises(Exception, match=condition):
            spark.sql(statement)
    assert spark.sql("SELECT * FROM events").count() == 7


@pytest.mark.slow
def test_rows_go_to_the_streams_that_they_name_and_a_copy_keeps_their_names(
    spark: Any, address: str, world: World, tmp_path: Path
) -> None:
    world.create("wind", 2)
    rows = [(f"k{number % 3}:{number}", f"k{number % 3}", ("wind", "solar")[number % 2]) for number in range(60)]
    frame = spark.createDataFrame(rows, "event string, routing_key string, stream string")
    writer = frame.write.format("penstock").options(controller=address, scope="plant").mode("append")
    with pytest.raises(Exception, match="allow_create_stream") as caught:
        writer.save()
    assert (reason(caught.value) or "").startswith("StreamNotFoundError")
    writer.option("allow_create_stream", "true").save()
    given = {"controller": address, "stream": "plant/wind,plant/solar", "start_stream_cut": "earliest"}
    query = (
        spark.readStream.format("penstock")
        .options(**given)
        .load()
        .writeStream.format("penstock")
        .options(controller=address, scope="copy", allow_create_stream="true", allow_create_scope="true")
        .option("checkpointLocation", str(tmp_path / "copy"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    copied = spark.read.format("penstock").options(controller=address, scope="copy").load()
    found = copied.selectExpr("cast(event as string) AS event", "stream").collect()
    assert sorted((row.event, row.stream) for row in found) == sorted((event, name) for event, _, name in rows)


def _stream_of(frame: Any, checkpoint: Path) -> int:
    rows: list[int] = []
    query = (
        frame.writeStream.foreachBatch(lambda batch, number: rows.append(batch.count()))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    return sum(rows)


def test_a_copy_of_records_keeps_their_keys(spark: Any, address: str, world: World) -> None:
    records = [
        Record(b"%d" % number, key=f"k{number % 5}", headers={"n": "x"}, timestamp_ms=1_757_930_000_000 + number)
        for number in range(50)
    ]
    stream = world.create("records")
    with penstock.connect(address) as store, store.stream(stream).writer() as writer:
        writer.write_many(records)
    given = {"controller": address, "event_format": "record"}
    frame = spark.read.format("penstock").options(**given).load("plant/records")
    assert frame.columns == ["key", "value", "headers", "timestamp", "scope", "stream", "segment_id", "offset"]
    made = {**given, "default_num_segments": "3"}
    frame.write.format("penstock").options(**made).mode("append").save("plant/records-copy")
    copied = spark.read.format("penstock").options(**given).load("plant/records-copy").collect()
    assert len({row.segment_id for row in copied}) > 1
    for key in {record.key for record in records}:
        mine = [bytes(row.value) for row in copied if bytes(row.key) == key]
        assert mine == [record.value for record in records if record.key == key]
    assert {(row.headers[0].key, bytes(row.headers[0].value)) for row in copied} == {("n", b"x")}
    assert {int(row.timestamp.timestamp() * 1000) for row in copied} == {record.timestamp_ms for record in records}
