"""A Spark job follows the erasure feed of a server with two workers, and deletes what it derived from erased events."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.testing.server import ServerProcess

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.slow]

WHO = {"who": "ann", "why": "request 17"}
USERS = [f"canary-{number}@example.com" for number in range(6)]
TOTAL = 600
PATIENCE_S = 30
FEED = "n LONG, erasure STRING, segments ARRAY<STRUCT<segment: LONG, events: ARRAY<ARRAY<LONG>>>>"


def wait_for_feed(store: Any, count: int) -> None:
    until = time.monotonic() + PATIENCE_S
    while True:
        with store.stream("_system/erasures").reader(until_tail=True) as reader:
            if len(list(reader)) >= count:
                return
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_query_deletes_the_rows_of_erased_events_and_no_others(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql import functions as spark_sql

    with ServerProcess(tmp_path / "data", "--workers", "2") as server, penstock.connect(server.address) as store:
        stream = store.create_stream("demo/clicks", create_scope=True, segments=4)
        with stream.writer() as writer:
            events = [json.dumps({"user": USERS[number % 6]}).encode() for number in range(TOTAL)]
            writer.write_many(events, [str(number) for number in range(TOTAL)])
        read = spark.read.format("penstock").option("controller", server.address)
        clicks = read.load("demo/clicks")
        user = spark_sql.get_json_object(spark_sql.col("event").cast("string"), "$.user")
        derived = tmp_path / "derived"
        clicks.select("segment_id", "offset", user.alias("user")).write.parquet(str(derived))
        table = {"rows": spark.read.parquet(str(derived))}

        def delete(batch: Any, number: int) -> None:
            """At least once, as ``foreachBatch`` is: deleting a row twice is deleting it."""
            item = spark_sql.from_json(spark_sql.col("event").cast("string"), FEED)
            ranges = batch.select(spark_sql.explode(item.segments).alias("s")).select(
                "s.segment", spark_sql.explode("s.events").alias("e")
            )
            gone = ranges.select("segment", spark_sql.col("e")[0].alias("start"), spark_sql.col("e")[1].alias("end"))
            rows = table["rows"]
            erased = (
                (rows["segment_id"] == gone["segment"])
                & (rows["offset"] >= gone["start"])
                & (rows["offset"] < gone["end"])
            )
            left = tmp_path / f"left-{number}"
            rows.join(gone, erased, "left_anti").write.mode("overwrite").parquet(str(left))
            table["rows"] = spark.read.parquet(str(left))

        def follow() -> None:
            given = {"controller": server.address, "start_stream_cut": "earliest"}
            source = spark.readStream.format("penstock").options(**given).load("_system/erasures")
            query = source.writeStream.foreachBatch(delete).option("checkpointLocation", str(tmp_path / "checkpoint"))
            query.trigger(availableNow=True).start().awaitTermination(120)

        for erased, name in enumerate(USERS[:2], 1):
            store.cases().open("demo", [name], json_field="user", case=f"c{erased}", **WHO)
            store.cases().look(f"c{erased}")
            wait_for_feed(store, erased)
            follow()
            found = {
                row.user: row.n for row in table["rows"].groupBy("user").agg(spark_sql.count("*").alias("n")).collect()
            }
            assert found == dict.fromkeys(USERS[erased:], TOTAL // 6)
        assert sorted({row.user for row in clicks.select(user.alias("user")).collect()}) == sorted(USERS[2:])
