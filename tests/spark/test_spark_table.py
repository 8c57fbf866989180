"""A stream as a table: the latest event of each key, up to a cut that retention knows."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from job_world import source_options
from pyspark.errors import AnalysisException
from spark_world import World

from penstock.model.errors import (
    AlreadyExistsError,
    ConflictError,
    DirectoryInUseError,
    InvalidArgumentError,
    NotFoundError,
    PenstockError,
    WriterInUseError,
)
from penstock.model.names import StreamName
from penstock.spark.jobs import table as table_job
from penstock.spark.jobs.table import TableRequest, read_table, update_table
from penstock.spark.jobs.table_files import TableDirectory

pytestmark = pytest.mark.spark

SCHEMA = "k STRING, n BIGINT, gone BOOLEAN"


class Feed:
    """Writes changes of keys to a stream, and knows what the table must be."""

    def __init__(self, world: World, stream: StreamName) -> None:
        self.world = world
        self.stream = stream
        self.latest: dict[str, int] = {}
        self._rng = random.Random(3)
        self._number = 0

    def write(self, count: int, keys: Sequence[str]) -> None:
        events: list[bytes] = []
        for _ in range(count):
            key = self._rng.choice(keys)
            gone = self._rng.random() < 0.1
            self._number += 1
            if gone:
                self.latest.pop(key, None)
            else:
                self.latest[key] = self._number
            # World routes by what comes before the first colon, which must be the same for all events of a key.
            events.append(f'{{"k"   :"{key}", "n": {self._number}, "gone": {str(gone).lower()}}}'.encode())
        self.world.write(self.stream, events)


def of(address: str, stream: StreamName, directory: Path, **more: Any) -> TableRequest:
    given = {"schema": SCHEMA, "key": "k", "delete_when": "gone", "buckets": 8, **more}
    return TableRequest(read=source_options(address, stream), directory=directory, **given)


def rows(spark: Any, directory: Path) -> dict[str, int]:
    found = read_table(spark, directory).select("key", "n").collect()
    assert len({row.key for row in found}) == len(found)
    return {row.key: row.n for row in found}


def test_the_table_is_the_latest_of_each_key_and_the_stream_may_forget_it(
    spark: Any, address: str, world: World, tmp_path: Path
) -> None:
    stream = world.create("table", 1)
    feed = Feed(world, stream)
    request = of(address, stream, tmp_path / "t")
    keys = [f"k{number}" for number in range(40)]
    feed.write(400, keys)
    looked = update_table(spark, request, dry_run=True)
    assert looked.read_bytes > 0
    assert not (tmp_path / "t").exists()
    assert world.published(stream, f"table-{stream.stream}-t") is None
    first = update_table(spark, request)
    assert rows(spark, tmp_path / "t") == feed.latest
    assert first.events == 400
    assert first.rows == len(feed.latest)
    assert world.published(stream, f"table-{stream.stream}-t") == world.tail(stream)
    # What the table has, the stream may forget: the next run does not miss it, over a scale as well.
    world.truncate(stream, world.tail(stream))
    feed.write(50, keys[:2])
    world.scale(stream, 3)
    feed.write(5, ["k0"])
    before = {path.name: path.stat().st_ino for path in (tmp_path / "t" / "current").glob("bucket=*/*.parquet")}
    second = update_table(spark, request)
    assert rows(spark, tmp_path / "t") == feed.latest
    assert second.events == 55
    assert second.buckets <= 2
    after = {path.name: path.stat().st_ino for path in (tmp_path / "t" / "current").glob("bucket=*/*.parquet")}
    assert len(before.items() & after.items()) >= len(before) - 2  # the same files, not copies
    assert world.published(stream, f"table-{stream.stream}-t") == world.tail(stream)
    third = update_table(spark, request)
    assert (third.number, third.events, third.end) == (second.number, 0, second.end)
    plain = pq.read_table(os.path.realpath(tmp_path / "t" / "current"))
    assert dict(zip(plain.column("key").to_pylist(), plain.column("n").to_pylist(), strict=True)) == feed.latest


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "where",
    [
        pytest.param("write", marks=SLOW),
        pytest.param("publish", marks=SLOW),
        pytest.param("turn", marks=SLOW),
        pytest.param("tell", marks=SLOW),
    ],
)
def test_a_run_that_dies_leaves_the_version_before_or_the_one_after(
    spark: Any, address: str, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    stream = world.create(f"dies{where}", 1)
    feed = Feed(world, stream)
    request = of(address, stream, tmp_path / "t", buckets=2)
    feed.write(60, ["a", "b", "c"])
    update_table(spark, request)
    held = world.published(stream, f"table-{stream.stream}-t")
    old = dict(feed.latest)
    feed.write(60, ["b", "c", "d"])

    class Died(Exception):
        pass

    def die(*_: Any, **__: Any) -> Any:
        raise Died

    with monkeypatch.context() as patched:
        match where:
            case "write":
                patched.setattr(table_job, "_rows_by_bucket", die)
            case "publish":
                patched.setattr(TableDirectory, "publish", die)
            case "turn":
                patched.setattr("penstock.spark.jobs.table_files.os.symlink", die)
            case "tell":
                patched.setattr(TableDirectory, "forget", die)
        with pytest.raises(Died):
            update_table(spark, request)
    assert rows(spark, tmp_path / "t") == (feed.latest if where == "tell" else old)
    if where != "tell":
        assert world.published(stream, f"table-{stream.stream}-t") == held  # what the table lacks is held
    update_table(spark, request)
    assert rows(spark, tmp_path / "t") == feed.latest
    assert world.published(stream, f"table-{stream.stream}-t") == world.tail(stream)
    assert not list((tmp_path / "t" / "versions").glob(".*.making"))


@pytest.mark.slow
def test_a_table_of_raw_events_counts_those_without_a_key(
    spark: Any, address: str, world: World, tmp_path: Path
) -> None:
    stream = world.create("raw", 1)
    key = "nullif(substring_index(cast(event as string), ':', 1), 'none')"
    world.write(stream, [b"a:1", b"none:1", b"a:2"])
    request = of(address, stream, tmp_path / "t", schema=None, key=key, delete_when=None)
    report = update_table(spark, request)
    assert (report.events, report.without_key, report.rows) == (3, 1, 1)
    (row,) = read_table(spark, tmp_path / "t").collect()
    assert (row.key, bytes(row.event)) == ("a", b"a:2")


def test_what_cannot_be_a_table_is_refused_with_the_reason(
    spark: Any, address: str, world: World, tmp_path: Path
) -> None:
    stream = world.create("refused", 1)
    request = of(address, stream, tmp_path / "t")
    assert update_table(spark, request).rows == 0
    assert rows(spark, tmp_path / "t") == {}
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "file").touch()
    cases: list[tuple[TableRequest, type[PenstockError], str]] = [
        (replace(request, buckets=4), ConflictError, "differing=buckets"),
        (replace(request, directory=tmp_path / "foreign"), AlreadyExistsError, "is not a table"),
        (
            replace(request, directory=Path("/nowhere/at/all")),
            InvalidArgumentError,
            "the directory for the table does not exist",
        ),
        (replace(request, buckets=0), InvalidArgumentError, "buckets"),
        (replace(request, read={**request.read, "event_format": "record"}), InvalidArgumentError, "lake --record"),
        (replace(request, keep=0), InvalidArgumentError, "at least one version"),
        (replace(request, key=" "), InvalidArgumentError, "expression for its key"),
        (replace(request, subscriber="a/b"), InvalidArgumentError, "name"),
        (
            replace(request, directory=tmp_path / "second", subscriber=f"table-{stream.stream}-t"),
            WriterInUseError,
            "subscriber belongs to another query",
        ),
        (of(address, stream, tmp_path / "x", schema="offset STRING", key="offset"), InvalidArgumentError, "reserves"),
        (of(address, stream, tmp_path / "x", schema="Key STRING", key="Key"), InvalidArgumentError, "columns=Key"),
    ]
    for wanted, error, words in cases:
        with pytest.raises(error, match=words):
            update_table(spark, wanted)
    with pytest.raises(AnalysisException, match="colour"):
        update_table(spark, of(address, stream, tmp_path / "x", key="colour"))
    # Nothing holds the stream for a table that was never made.
    assert world.published(stream, f"table-{stream.stream}-x") is None
    named = of(address, stream, tmp_path / "e", schema="event STRING, n INT", key="event", delete_when=None)
    assert update_table(spark, named).rows == 0
    with TableDirectory(tmp_path / "t").held(), pytest.raises(DirectoryInUseError):
        update_table(spark, request)
    with pytest.raises(NotFoundError):
        read_table(spark, tmp_path / "none")
    page = (Path(__file__).parents[2] / "docs/formats/lake.md").read_text().partition("`table.json`:")[2]
    documented = {name for line in page.splitlines() for name in re.findall(r"`(\w+)`", [*line.split("|"), ""][1])}
    assert documented == json.loads((tmp_path / "t/current/_penstock/table.json").read_text()).keys()
