"""Bulk jobs end to end: one Spark session, one served store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from job_world import source_options
from spark_world import World, keyed

from penstock.model.errors import InvalidArgumentError, NotFoundError
from penstock.model.names import StreamName
from penstock.spark.jobs.export.job import ExportRequest, export
from penstock.spark.jobs.load import LoadRequest, load, load_frame
from penstock.spark.jobs.progress import Progress

pytestmark = pytest.mark.spark


def stored(spark: Any, address: str, stream: StreamName) -> list[Any]:
    """Rows of the stream in the order of each segment."""
    rows = spark.read.format("penstock").options(**source_options(address, stream)).load().collect()
    return sorted(rows, key=lambda row: (row.segment_id, row.offset))


def loading(address: str, stream: StreamName, *paths: Path, **more: Any) -> LoadRequest:
    write = source_options(address, stream, default_num_segments="3")
    return LoadRequest(paths=tuple(map(str, paths)), write=write, **more)


def readings(count: int) -> list[dict[str, Any]]:
    return [{"sensor": f"s{number % 9}", "at": number * 37 % count, "value": number / 7} for number in range(count)]


def test_what_is_loaded_arrives_once_in_the_order_of_each_key(
    spark: Any, address: str, world: World, tmp_path: Path
) -> None:
    count = 2000
    spark.createDataFrame(readings(count)).repartition(5).write.parquet(str(tmp_path / "in put"))
    stream = StreamName("plant", "loaded")
    request = loading(address, stream, tmp_path / "in put", key="sensor", order_by=("at",))
    looked = load(spark, request, dry_run=True)
    assert (looked.parts, looked.skipped, looked.events) == (1, 0, 0)
    assert json.loads(str(looked.sample[0]["event"])).keys() == {"sensor", "at", "value"}
    reported: list[Progress] = []
    done = load(spark, request, on_progress=reported.append)
    assert (done.events, done.skipped) == (count, 0)
    assert reported[-1] == Progress(what="parts", done=1, total=1)
    rows = stored(spark, address, stream)
    found = [json.loads(bytes(row.event)) for row in rows]
    assert sorted(item["at"] for item in found) == list(range(count))
    assert len({row.segment_id for row in rows}) == 3
    for sensor in {item["sensor"] for item in found}:
        times = [item["at"] for item in found if item["sensor"] == sensor]
        assert times == sorted(times)
    again = load(spark, request)
    assert (again.events, again.skipped, again.load) == (0, 1, done.load)
    assert load(spark, replace(request, again=True)).events == count
    assert len(stored(spark, address, stream)) == 2 * count


@pytest.mark.slow
def test_a_load_in_parts_goes_on_with_the_first_that_is_missing(
    spark: Any, address: str, world: World, tmp_path: Path
) -> None:
    for number in range(4):
        lines = [json.dumps({"sensor": "s", "at": number * 10 + item}) for item in range(10)]
        (tmp_path / f"{number}.jsonl").write_text("\n".join(lines))
    stream = StreamName("plant", "parts")
    request = loading(address, stream, *sorted(tmp_path.iterdir()), key="sensor", part_bytes=400)
    whole = load(spark, request, dry_run=True)
    assert whole.parts == 4

    class Died(Exception):
        pass

    def die(progress: Progress) -> None:
        if progress.what == "parts" and progress.done == 2:
            raise Died

    with pytest.raises(Died):
        load(spark, request, on_progress=die)
    assert len(stored(spark, address, stream)) == 20
    rest = load(spark, request)
    assert (rest.skipped, rest.events) == (2, 20)
    found = [json.loads(bytes(row.event))["at"] for row in stored(spark, address, stream)]
    assert found == list(range(40))


@pytest.mark.slow
def test_parts_of_an_ordered_load_keep_the_order_across_files(
    spark: Any, address: str, world: World, tmp_path: Path
) -> None:
    rows = readings(300)
    for number in range(3):  # each file has times of all over the place
        lines = [f"{row['sensor']},{row['at']}" for row in rows[number::3]]
        (tmp_path / f"{number}.csv").write_text("\n".join(["sensor,at", *lines]))
    stream = StreamName("plant", "ordered")
    request = loading(
        address,
        stream,
        tmp_path,
        format="csv",
        schema="sensor STRING, at BIGINT",
        key="sensor",
        order_by=("at desc",),
        part_bytes=1000,
    )
    done = load(spark, request)
    assert done.parts > 1
    assert done.events == 300
    found = [json.loads(bytes(row.event)) for row in stored(spark, address, stream)]
    assert len(found) == 300
    for sensor in {item["sensor"] for item in found}:
        times = [item["at"] for item in found if item["sensor"] == sensor]
        assert times == sorted(times, reverse=True)


def test_an_export_loads_back_as_the_events_that_it_holds(
    spark: Any, address: str, world: World, tmp_path: Path
) -> None:
    stream = world.create("there", 2)
    events = [b"k%d:\x00\xff%d" % (number % 5, number) for number in range(500)]
    world.write(stream, events)
    read = source_options(address, stream, target_partition_bytes="2k")
    report = export(spark, ExportRequest(read=read, output=tmp_path / "out"))
    assert report.events == 500
    assert report.shares > 2
    assert spark.read.parquet(str(tmp_path / "out")).count() == 500
    back = StreamName("plant", "back")
    request = loading(
        address,
        back,
        tmp_path / "out",
        key="substring_index(cast(event as string), ':', 1)",
        order_by=("segment_id", "offset"),
    )
    assert load(spark, request).events == 500
    found = [bytes(row.event) for row in stored(spark, address, back)]
    assert sorted(found) == sorted(events)
    assert [item for item in found if item.startswith(b"k1:")] == [item for item in events if item.startswith(b"k1:")]


@pytest.mark.slow
def test_an_export_whose_process_is_killed_is_finished_by_another(
    spark: Any, address: str, world: World, tmp_path: Path
) -> None:
    stream = world.create("killed", 4)
    written = keyed(0, 20_000)
    world.write(stream, written)
    world.wait_tiered(stream)
    output, done = tmp_path / "out", tmp_path / ".out.exporting" / "_penstock" / "done"
    command = [
        *(sys.executable, "-m", "penstock", "spark", "export", str(stream), str(output), "--controller", address),
        *("--option", "target_partition_bytes=4k", "--master", "local[1]"),
    ]
    with subprocess.Popen(
        command, stderr=subprocess.DEVNULL, start_new_session=True, env=os.environ | {"TMPDIR": str(tmp_path)}
    ) as process:
        deadline = time.monotonic() + 240
        while not (done.is_dir() and len(list(done.glob("[0-9]*.json"))) >= 3):
            assert process.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert not output.exists()
    read = {"controller": address, "stream": str(stream), "target_partition_bytes": "4k"}
    report = export(spark, ExportRequest(read=read, output=output))
    assert 3 <= report.resumed < report.shares
    found = [bytes(row.event) for row in spark.read.parquet(str(output)).select("event").collect()]
    assert sorted(found) == sorted(written)


def test_input_without_rows_loads_as_nothing(spark: Any, address: str, world: World, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("sensor,at\n")
    request = loading(address, StreamName("plant", "empty"), tmp_path / "in.csv", key="sensor", order_by=("at",))
    assert load(spark, request).events == 0


def test_a_frame_is_written_once_under_its_version(spark: Any, address: str, world: World) -> None:
    stream = StreamName("plant", "frame")
    request = loading(address, stream)
    frame = spark.range(100).selectExpr("id", "id % 3 as k")
    for _ in range(2):
        load_frame(spark, frame, request, job=("nightly", 1))
    assert len(stored(spark, address, stream)) == 100


def test_input_that_cannot_be_loaded_is_refused_with_the_reason(
    spark: Any, address: str, world: World, tmp_path: Path
) -> None:
    stream = StreamName("plant", "bad")
    (tmp_path / "a.csv").write_text("x\n1\n")
    (tmp_path / "b.dat").write_text("")
    cases: list[tuple[LoadRequest, type[Exception], str]] = [
        (loading(address, stream), InvalidArgumentError, "at least one file"),
        (loading(address, stream, tmp_path / "none.parquet"), NotFoundError, "no such input"),
        (loading(address, stream, tmp_path / "b.dat"), InvalidArgumentError, "the format is not clear"),
        (loading(address, stream, tmp_path / "a.csv", format="xml"), InvalidArgumentError, "formats are"),
        (loading(address, stream, tmp_path / "a.csv", order_by=("x",)), InvalidArgumentError, "name one"),
        (
            loading(address, stream, tmp_path / "a.csv", event="cast(x as int)"),
            InvalidArgumentError,
            "binary or a string",
        ),
        (loading(address, stream, tmp_path / "a.csv", part_bytes=0), InvalidArgumentError, "at least 1 byte"),
    ]
    for request, error, words in cases:
        with pytest.raises(error, match=words):
            load(spark, request)
