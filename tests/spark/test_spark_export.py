"""Exports: exactly the range, once, whatever dies; and never half of it to be seen."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from job_world import HereSpark, Killed, source_options
from spark_world import World, in_order, keyed

import penstock
from penstock.model.cuts import StreamCut
from penstock.model.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptDataError,
    DirectoryInUseError,
    InvalidArgumentError,
    InvalidCutError,
    NotFoundError,
    PenstockError,
    StreamNotFoundError,
    TruncatedError,
    VersionTooNewError,
)
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId
from penstock.spark.jobs.event_time import EventTime
from penstock.spark.jobs.export.files import DoneShare, ExportDirectory
from penstock.spark.jobs.export.job import ExportReport, ExportRequest, export
from penstock.spark.jobs.progress import Progress


@pytest.fixture(scope="module")
def stream(world: World) -> StreamName:
    """Two segments, then four, chunks and a tail that lies in no chunk."""
    found = world.create("exported", 2)
    world.write(found, keyed(0, 3000))
    world.wait_tiered(found)
    world.scale(found, 4)
    world.write(found, keyed(3000, 4000))
    return found


def request(address: str, stream: StreamName, output: Path, **more: Any) -> ExportRequest:
    read = source_options(address, stream, target_partition_bytes="12k", **more.pop("read", {}))
    return ExportRequest(read=read, output=output, **more)


def events(output: Path) -> list[bytes]:
    """What any reader of Parquet finds, in the order of files, segments and offsets."""
    table = pq.read_table(output).sort_by([("segment_id", "ascending"), ("offset", "ascending")])
    return [bytes(item) for item in table.column("event").to_pylist()]


def test_an_export_is_exactly_what_lay_between_its_cuts(
    address: str, world: World, stream: StreamName, tmp_path: Path
) -> None:
    first = export(HereSpark(), request(address, stream, tmp_path / "first"))
    found = events(tmp_path / "first")
    assert sorted(found) == sorted(keyed(0, 4000))
    assert in_order(found)
    assert first.events == 4000
    assert first.shares >= 5
    assert first.event_bytes == sum(map(len, found))
    world.write(stream, keyed(4000, 4500))
    export(HereSpark(), request(address, stream, tmp_path / "second", after=tmp_path / "first"))
    assert sorted(events(tmp_path / "second")) == sorted(keyed(4000, 4500))
    again = export(HereSpark(), request(address, stream, tmp_path / "third", read={"end_stream_cut": first.end}))
    assert sorted(events(tmp_path / "third")) == sorted(keyed(0, 4000))
    assert again.end == first.end
    with pytest.raises(InvalidCutError, match="another stream"):
        export(
            HereSpark(),
            request(address, world.create("other"), tmp_path / "fourth", after=tmp_path / "first"),
        )


@pytest.mark.parametrize("after", [0, 1, 4])
def test_a_killed_export_goes_on_where_it_stopped(
    address: str, world: World, stream: StreamName, tmp_path: Path, after: int
) -> None:
    wanted = request(address, stream, tmp_path / "out", read={"lease_seconds": "600"})
    there = export(HereSpark(), wanted, dry_run=True).events
    with pytest.raises(Killed):
        export(HereSpark(after=after), wanted)
    assert not (tmp_path / "out").exists()
    world.write(stream, keyed(10_000, 10_100))  # "latest" is what it was when the export began
    spark = HereSpark()
    done = export(spark, wanted)
    assert done.resumed == after
    assert spark.ran == done.shares - after
    found = events(tmp_path / "out")
    assert len(found) == done.events == there
    assert sorted(path.name for path in (tmp_path / "out" / "_penstock").iterdir()) == ["manifest.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_truncation_takes_nothing_from_an_export_that_has_begun(address: str, world: World, tmp_path: Path) -> None:
    stream = world.create("truncated", 2)
    world.write(stream, keyed(0, 3000))
    world.wait_tiered(stream)
    wanted = request(address, stream, tmp_path / "out")
    with pytest.raises(Killed):
        export(HereSpark(after=1), wanted)
    world.truncate(stream, world.tail(stream))
    export(HereSpark(), wanted)
    assert sorted(events(tmp_path / "out")) == sorted(keyed(0, 3000))


def test_what_was_erased_is_in_no_share_that_is_written_after(address: str, world: World, tmp_path: Path) -> None:
    stream = world.create("erased", 1)
    world.write(stream, keyed(0, 3000))
    world.wait_tiered(stream)
    wanted = request(address, stream, tmp_path / "out")
    with pytest.raises(Killed):
        export(HereSpark(after=1), wanted)
    export(HereSpark(), replace(wanted, output=tmp_path / "all"))
    rows = pq.read_table(tmp_path / "all", columns=["offset", "event"]).sort_by("offset").to_pylist()
    gone = rows[-1]
    with penstock.connect(address) as client:
        client.stream(stream).erase({SegmentId(0): [gone["offset"]]}, who="ann", why="request 1")
    export(HereSpark(), wanted)
    assert events(tmp_path / "out") == [row["event"] for row in rows[:-1]]


def test_what_was_truncated_before_is_refused_or_put_down(address: str, world: World, tmp_path: Path) -> None:
    stream = world.create("headless", 1)
    world.write(stream, keyed(0, 500))
    start = world.head(stream)
    cut = world.tail(stream)
    world.write(stream, keyed(500, 600))
    world.truncate(stream, cut)
    wanted = request(address, stream, tmp_path / "out", read={"start_stream_cut": start.to_text()})
    with pytest.raises(TruncatedError):
        export(HereSpark(), wanted)
    export(HereSpark(), replace(wanted, read={**wanted.read, "fail_on_data_loss": "false"}))
    assert sorted(events(tmp_path / "out")) == sorted(keyed(500, 600))
    (lost,) = json.loads((tmp_path / "out" / "_penstock" / "manifest.json").read_text())["lost"]
    assert (lost["from"], lost["to"]) == (0, cut.positions[SegmentId(0)])


def test_what_an_attempt_leaves_behind_is_not_in_the_export(address: str, stream: StreamName, tmp_path: Path) -> None:
    wanted = request(address, stream, tmp_path / "out")
    with pytest.raises(Killed):
        export(HereSpark(after=3), wanted)
    staging = ExportDirectory(tmp_path / "out").staging
    (staging / "part-000009-halfway.parquet").write_bytes(b"PAR1 half a file")
    done = export(HereSpark(), wanted)
    assert len(events(tmp_path / "out")) == done.events


def test_of_two_attempts_at_a_share_the_first_counts(tmp_path: Path) -> None:
    directory = ExportDirectory(tmp_path / "out")
    with directory.held():
        for name in ("first", "second"):
            (directory.staging / f"{name}.parquet").write_bytes(b"x")
        kept = directory.record(_done("first.parquet"))
        assert directory.record(_done("second.parquet")) == kept
        assert directory.done() == [4]
        assert not (directory.staging / "second.parquet").exists()


def _done(path: str) -> DoneShare:
    return DoneShare(
        share=4, events=1, size_bytes=1, without_time=0, files=[{"path": path, "rows": 1, "size_bytes": 1}]
    )


def test_an_export_that_is_there_is_told_and_another_one_is_refused(
    address: str, stream: StreamName, tmp_path: Path
) -> None:
    wanted = request(address, stream, tmp_path / "out")
    first = export(HereSpark(), wanted)
    spark = HereSpark()
    second = export(spark, wanted)
    assert second == replace(first, resumed=first.shares)
    assert spark.ran == 0
    with pytest.raises(ConflictError, match="another export"):
        export(spark, replace(wanted, compression="none"))
    with pytest.raises(Killed):
        export(HereSpark(after=2), replace(wanted, output=tmp_path / "half"))
    with pytest.raises(ConflictError, match="differing=compression"):
        export(spark, replace(wanted, output=tmp_path / "half", compression="none"))
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "file").touch()
    with pytest.raises(AlreadyExistsError):
        export(spark, replace(wanted, output=tmp_path / "foreign"))
    held = ExportDirectory(tmp_path / "half")
    with held.held(), pytest.raises(DirectoryInUseError):
        export(spark, replace(wanted, output=tmp_path / "half"))


def test_a_manifest_that_cannot_be_read_stops_the_export(address: str, stream: StreamName, tmp_path: Path) -> None:
    wanted = request(address, stream, tmp_path / "out")
    export(HereSpark(), wanted)
    manifest = tmp_path / "out" / "_penstock" / "manifest.json"
    manifest.write_text(json.dumps({"version": 2}))
    with pytest.raises(VersionTooNewError):
        export(HereSpark(), wanted)
    manifest.write_text("{")
    with pytest.raises(CorruptDataError):
        export(HereSpark(), wanted)


def test_a_dry_run_says_what_would_be_and_writes_nothing(
    address: str, world: World, stream: StreamName, tmp_path: Path
) -> None:
    report = export(HereSpark(), request(address, stream, tmp_path / "out"), dry_run=True)
    tail = world.tail(stream)
    assert report.dry_run
    assert report.end == tail.to_text()
    assert report.events == export(HereSpark(), request(address, stream, tmp_path / "real")).events
    assert os.listdir(tmp_path) == ["real"]


def test_offsets_choose_the_events_that_begin_between_them(
    address: str, world: World, stream: StreamName, tmp_path: Path
) -> None:
    export(HereSpark(), request(address, stream, tmp_path / "all"))
    table = pq.read_table(tmp_path / "all")
    segment = 1
    rows = sorted((row["offset"], row["event"]) for row in table.to_pylist() if row["segment_id"] == segment)
    for low, high in ((rows[10][0] + 1, rows[-20][0] + 3), (0, rows[3][0]), (rows[-5][0], 1 << 40)):
        output = tmp_path / f"{low}-{high}"
        report = export(HereSpark(), request(address, stream, output, offsets={SegmentId(segment): (low, high)}))
        wanted = [event for offset, event in rows if low <= offset < high]
        assert events(output) == wanted
        assert report.events == len(wanted)
    with pytest.raises(InvalidArgumentError, match="no data there"):
        export(HereSpark(), request(address, stream, tmp_path / "x", offsets={SegmentId(1): (1 << 40, 1 << 41)}))


def test_partitions_are_of_the_time_that_events_tell(address: str, world: World, tmp_path: Path) -> None:
    stream = world.create("timed", 2)
    hour_us = 3_600_000_000
    base_us = 1_700_000_400_000_000 // hour_us * hour_us
    lines = [
        json.dumps({"k": f"k{number % 5}", "at": {"us": base_us + number * hour_us // 100}}).encode()
        for number in range(400)
    ]
    world.write(stream, [*lines, b"{}", b"no json"])
    wanted = request(address, stream, tmp_path / "out", partition="hour", time=EventTime(field="at.us", unit="us"))
    report = export(HereSpark(), wanted)
    assert report.without_time == 2
    directories = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").glob("date=*/hour=*"))
    assert len(directories) == 5
    assert directories[-1] == "date=__HIVE_DEFAULT_PARTITION__/hour=__HIVE_DEFAULT_PARTITION__"
    for path in (tmp_path / "out").glob("date=*/hour=[0-9]*/*.parquet"):
        times = pq.ParquetFile(path).read().column("time").to_pylist()
        assert {f"date={item:%Y-%m-%d}/hour={item:%H}" for item in times} == {"/".join(path.parts[-3:-1])}
    bounded = replace(
        wanted, output=tmp_path / "bounded", since_us=base_us + hour_us, until_us=base_us + 2 * hour_us, partition="day"
    )
    export(HereSpark(), bounded)
    kept = pq.read_table(tmp_path / "bounded", partitioning=None)
    assert sorted(kept.column("event").to_pylist()) == sorted(lines[100:200])


def test_without_a_time_field_partitions_and_bounds_go_by_append_time(
    address: str, world: World, tmp_path: Path
) -> None:
    stream = world.create("appended", 1)
    world.write(stream, keyed(0, 1000))
    world.wait_tiered(stream)
    between_us = time.time_ns() // 1000
    world.write(stream, keyed(1000, 1500))
    world.wait_tiered(stream)
    wanted = request(address, stream, tmp_path / "out", partition="hour")
    report = export(HereSpark(), wanted)
    assert (report.events, report.without_time) == (1500, 0)
    for path in (tmp_path / "out").glob("date=*/hour=*/*.parquet"):
        times = pq.ParquetFile(path).read().column("append_time").to_pylist()
        assert {f"date={item:%Y-%m-%d}/hour={item:%H}" for item in times} == {"/".join(path.parts[-3:-1])}
    for name, bounds, expected in (
        ("before", {"until_us": between_us}, keyed(0, 1000)),
        ("after", {"since_us": between_us}, keyed(1000, 1500)),
    ):
        export(HereSpark(), replace(wanted, output=tmp_path / name, partition=None, **bounds))
        assert sorted(events(tmp_path / name)) == sorted(expected)


def test_progress_is_told_up_to_the_end(address: str, stream: StreamName, tmp_path: Path) -> None:
    reported: list[Progress] = []
    report = export(HereSpark(), request(address, stream, tmp_path / "out"), on_progress=reported.append)
    assert reported[-1] == Progress(what="shares", done=report.shares, total=report.shares)


BAD: list[tuple[dict[str, Any], type[PenstockError], str]] = [
    ({"compression": "lz77"}, InvalidArgumentError, "compression must be one of"),
    ({"partition": "week", "time": EventTime(field="t")}, InvalidArgumentError, "hour or day"),
    ({"since_us": 5 * 10**15, "until_us": 4 * 10**15}, InvalidArgumentError, "time range is empty"),
    ({"columns": ("event", "colour")}, InvalidArgumentError, "columns are of"),
    ({"offsets": {SegmentId(0): (5, 5)}}, InvalidArgumentError, "range of offsets is empty"),
    ({"offsets": {SegmentId(0): (0, 9)}, "read": {"end_stream_cut": "latest"}}, InvalidArgumentError, "not both"),
    ({"read": {"stream": "none"}}, StreamNotFoundError, "none"),
    ({"read": {"maxBytes": "3"}}, InvalidArgumentError, "there is no such option"),
    ({"read": {"event_format": "record"}}, InvalidArgumentError, "as they are"),
    ({"after": Path("/nowhere")}, NotFoundError, "no finished export"),
    ({"output": Path("/nowhere/at/all")}, InvalidArgumentError, "the directory for the output does not exist"),
    ({"output": Path("/")}, InvalidArgumentError, "a directory of its own"),
    (
        {"after": Path("/x"), "read": {"start_stream_cut": "earliest"}},
        InvalidArgumentError,
        "an earlier export or a cut, not",
    ),
]


@pytest.mark.parametrize(("change", "error", "words"), BAD, ids=[words for _, _, words in BAD])
def test_what_cannot_be_exported_is_refused_with_the_reason(
    address: str, stream: StreamName, tmp_path: Path, change: dict[str, Any], error: type[PenstockError], words: str
) -> None:
    read = source_options(address, stream) | change.get("read", {})
    wanted = ExportRequest(**{"output": tmp_path / "out", **change, "read": read})
    with pytest.raises(error, match=words):
        export(HereSpark(), wanted)
    assert not (tmp_path / "out").exists()


def test_times_are_read_alone_as_they_are_read_together() -> None:
    together = [b'{"t": 1700000000000}', b'{"t": 1700000000001, "x": {"t": 5}}', b'{"x": 1}']
    clock = EventTime(field="t")
    whole = clock.times(pa.array(together, pa.binary()))
    assert whole == clock.times(pa.array([*together, b"no json"], pa.binary())).slice(0, 3)
    assert whole.null_count == 1
    texts = [b'{"t": "2026-11-22T10:00:00Z"}', b'{\n"t": "2026-11-22T12:00:00+02:00"}', b"{}"]
    found = clock.times(pa.array(texts, pa.binary()))
    assert found == clock.times(pa.array([*texts, b'{"t": true}'], pa.binary())).slice(0, 3)
    assert found[0] == found[1]


def test_a_time_that_no_calendar_has_is_none() -> None:
    clock = EventTime(field="t", unit="s")
    events = [b'{"t": 1e300}', b'{"t": 1700000000000}', b'{"t": "yesterday"}', b"[]", b""]
    assert clock.times(pa.array(events, pa.binary())).null_count == len(events)
    with pytest.raises(InvalidArgumentError):
        EventTime(field="a..b")
    with pytest.raises(InvalidArgumentError):
        EventTime(field="a", unit="weeks")


def test_a_report_is_json(address: str, stream: StreamName, tmp_path: Path) -> None:
    report = export(HereSpark(), request(address, stream, tmp_path / "out"))
    assert ExportReport(**json.loads(json.dumps(report.as_json()))) == report
    assert StreamCut.from_text(report.start).stream == stream


def test_the_manifest_is_what_its_page_says(address: str, stream: StreamName, tmp_path: Path) -> None:
    export(HereSpark(), request(address, stream, tmp_path / "out"))
    page = (Path(__file__).parents[2] / "docs/formats/lake.md").read_text().partition("`manifest.json`:")[2]
    table = page.partition("\n\n")[2].partition("\n\n")[0]
    documented = {name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    found = json.loads((tmp_path / "out" / "_penstock" / "manifest.json").read_text())
    assert documented == found.keys()
    assert {"path", "rows", "size_bytes"} == found["files"][0].keys()
