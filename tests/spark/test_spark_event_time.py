"""The column ``event_time_bound``: one value for a batch, never ahead of what earlier batches have read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql.types import StructType
from spark_world import World, open_here

from penstock.controller.controller import Controller
from penstock.model.errors import InvalidArgumentError
from penstock.model.names import StreamName
from penstock.spark.connect import Services, close_links, link
from penstock.spark.jobs.export.job import ExportRequest
from penstock.spark.options import parse_read, parse_source
from penstock.spark.reading.stream import StreamReader
from penstock.spark.schema import READ_COLUMNS
from penstock.spark.source import BatchReader

SCHEMA = StructType().add("event", "binary").add("event_time_bound", "timestamp")
BEGAN_MS = 1_800_000_000_000
Rows = list[tuple[bytes, int | None]]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    try:
        yield World(link(open_here, str(tmp_path / "data")))
    finally:
        close_links()


def note(world: World, stream: StreamName, writer: str, time_ms: int) -> None:
    """Note a time at the tail, and let the watermark follow."""

    async def noted(services: Services) -> None:
        controller = cast(Controller, services.controller)
        await controller.cuts.note_time(stream, writer, time_ms)
        await controller.advance_watermarks()

    world.link.ask(noted)


def rows(reader: Any, partitions: Any) -> Rows:
    return [
        (event, None if at is None else round(at.timestamp() * 1000) - BEGAN_MS)
        for item in partitions
        for batch in reader.read(item)
        for event, at in zip(batch["event"].to_pylist(), batch["event_time_bound"].to_pylist(), strict=True)
    ]


def test_each_batch_has_the_bound_of_its_start(world: World, tmp_path: Path) -> None:
    stream = world.create("s", 2)
    options = parse_read({"controller": str(tmp_path / "data"), "path": str(stream), "start_stream_cut": "earliest"})
    reader = StreamReader(open_here, options, SCHEMA)
    at = reader.initialOffset()
    bounds = []
    for number in range(4):
        events = [b"k%d:%d" % (key, number) for key in range(10)]
        world.write(stream, events)
        note(world, stream, "w", BEGAN_MS + number)
        if number == 1:
            world.scale(stream, 3)
        found: Rows = []
        while len(found) < len(events):
            reached = reader.latestOffset(at, reader.getDefaultReadLimit())
            assert reached != at
            partitions = reader.partitions(at, reached)
            found += rows(reader, partitions)
            # The same offsets give the same rows, and no earlier bound.
            assert all(bound is not None or number == 0 for _, bound in rows(reader, partitions))
            at = reached
        assert sorted(event for event, _ in found) == sorted(events)
        bounds.append({bound for _, bound in found})
    # Only batches that end before the note count: the times of a batch bound the next one.
    assert bounds[0] == {None}
    assert bounds[1:] == [{0}, {1}, {2}]
    reader.stop()


def test_a_batch_read_has_the_bound_of_its_start(world: World, tmp_path: Path) -> None:
    stream = world.create("s")
    world.write(stream, [b"k:0"])
    note(world, stream, "w", BEGAN_MS + 5)
    start = world.tail(stream)
    world.write(stream, [b"k:1"])
    note(world, stream, "w", BEGAN_MS + 9)
    for begin, expected in (("earliest", [(b"k:0", None), (b"k:1", None)]), (start.to_text(), [(b"k:1", 5)])):
        given = {"controller": str(tmp_path / "data"), "path": str(stream), "start_stream_cut": begin}
        reader = BatchReader(open_here, parse_read(given), SCHEMA)
        assert rows(reader, reader.partitions()) == expected


def test_a_read_of_several_streams_has_the_bound_of_the_slowest(world: World, tmp_path: Path) -> None:
    streams = [world.create(name) for name in ("a", "b")]
    given = {"controller": str(tmp_path / "data"), "stream": "plant/a, plant/b", "start_stream_cut": "earliest"}
    reader = StreamReader(open_here, parse_source(given), SCHEMA)
    at = reader.initialOffset()
    for number, (expected, noted) in enumerate(((None, (7, None)), (None, (8, 3)), (3, (9, 20)), (9, (10, 21)))):
        for stream, time_ms in zip(streams, noted, strict=True):
            world.write(stream, [b"k:%d" % number])
            if time_ms is not None:
                note(world, stream, "w", BEGAN_MS + time_ms)
        reached = reader.latestOffset(at, reader.getDefaultReadLimit())
        found = rows(reader, reader.partitions(at, reached))
        assert found == [(b"k:%d" % number, expected)] * 2
        at = reached
    reader.stop()


def test_numbers_that_are_no_times_of_spark_are_unknown(world: World, tmp_path: Path) -> None:
    stream = world.create("s")
    world.write(stream, [b"k:0"])
    note(world, stream, "w", 1 << 62)
    start = world.tail(stream)
    world.write(stream, [b"k:1"])
    given = {"controller": str(tmp_path / "data"), "path": str(stream), "start_stream_cut": start.to_text()}
    reader = BatchReader(open_here, parse_read(given), SCHEMA)
    assert rows(reader, reader.partitions()) == [(b"k:1", None)]


def test_the_column_is_a_timestamp_and_not_exported() -> None:
    assert READ_COLUMNS["event_time_bound"] == "timestamp"
    with pytest.raises(InvalidArgumentError, match="columns are of event"):
        ExportRequest(read={"path": "s/t"}, output=Path("out"), columns=("event", "event_time_bound")).checked()
