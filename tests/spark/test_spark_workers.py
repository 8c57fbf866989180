"""Spark over a store that several workers serve: read directly and over the wire, and written exactly once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from spark_world import in_order, keyed

import penstock
from penstock.testing.server import ServerProcess

pytestmark = [pytest.mark.spark, pytest.mark.server]

TOTAL = 2_000


@pytest.mark.slow
def test_a_query_reads_and_writes_segments_of_both_workers(spark: Any, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--workers", "2") as server, penstock.connect(server.address) as store:
        source = store.create_stream("plant/in", segments=4, create_scope=True)
        target = store.create_stream("plant/out", segments=4)
        # So many bytes that tasks write chunks of both workers' tier 2 themselves.
        events = [event + b":" + bytes(200) for event in keyed(0, TOTAL)]
        with source.writer() as writer:
            writer.write_many(events, [event.split(b":")[0].decode() for event in events])
        given = {"controller": server.address, "scope": "plant"}
        read = spark.read.format("penstock").options(**given, stream="in")
        for direct in ("true", "false"):
            rows = read.option("direct", direct).load().orderBy("segment_id", "offset").collect()
            found = [bytes(row.event) for row in rows]
            assert sorted(found) == sorted(events)
            assert in_order(found)
            assert len({row.segment_id for row in rows}) > 1
        rows = read.option("direct", "true").load()
        (
            rows.selectExpr("event", "substring_index(cast(event as string), ':', 1) as routing_key")
            .write.format("penstock")
            .options(**given, stream="out")
            .mode("append")
            .save()
        )
        for worker in ("0", "1"):
            assert list((tmp_path / "data" / "workers" / worker).glob("chunks/*/i?*.idx"))
        with target.reader(until_tail=True) as reader:
            assert sorted(event.data for event in reader) == sorted(events)
