"""A stream in a table of a lake: each event once, typed, up to a cut that is in the table itself."""

from __future__ import annotations

import datetime
import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from job_world import source_options
from pyspark.errors import PySparkException
from spark_world import World
from typer.testing import CliRunner

from penstock.app.cli.main import app
from penstock.model.errors import ConflictError, InvalidArgumentError, PenstockError, WriterInUseError
from penstock.model.names import StreamName
from penstock.spark.cli import erase as cli_erase
from penstock.spark.cli.session import typed
from penstock.spark.jobs.lake import job as lake_job
from penstock.spark.jobs.lake.job import LakeRequest, append_to_table, follow_with_table
from penstock.spark.lake.delta import DeltaLakeTable
from penstock.spark.lake.opening import TableAddress, open_table
from penstock.spark.lake.port import FORMATS, Change

pytestmark = pytest.mark.spark
SLOW = pytest.mark.slow

SCHEMA = "id BIGINT, name STRING, at TIMESTAMP, tags ARRAY<STRING>"
AT = datetime.datetime(2026, 1, 31, 23, tzinfo=datetime.UTC)


def event(number: int) -> bytes:
    at = (AT + datetime.timedelta(minutes=number)).isoformat()
    # World routes by what comes before the first colon.
    return json.dumps({"id": number, "name": f"n{number}", "at": at, "tags": ["a", str(number)]}).encode()


def request_of(kind: str, address: str, stream: StreamName, root: Path, **more: Any) -> LakeRequest:
    if kind == "iceberg":
        catalog = {"type": "sql", "uri": f"sqlite:///{root}/catalog.db", "warehouse": str(root / "warehouse")}
        place = TableAddress(format=kind, target=f"plant.{stream.stream}", catalog=catalog)
    else:
        place = TableAddress(format=kind, target=str(root / "t"))
    given: dict[str, Any] = {"schema": SCHEMA, "partition": "hour", "time": "at", **more}
    return LakeRequest(read=source_options(address, stream), address=place, **given)


def rows_in(request: LakeRequest) -> list[tuple[Any, ...]]:
    rows = duckdb.from_arrow(open_table(request.address).read())
    return rows.query("found", 'select id, name, epoch_us("at"), tags from found order by id').fetchall()


def expected(end: int) -> list[tuple[Any, ...]]:
    us = [int((AT + datetime.timedelta(minutes=n)).timestamp() * 1_000_000) for n in range(end)]
    return [(n, f"n{n}", us[n], ["a", str(n)]) for n in range(end)]


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[] if kind == "delta" else SLOW) for kind in FORMATS])
def test_each_event_is_in_the_table_once_and_the_stream_may_forget_it(
    kind: str, spark: Any, address: str, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = world.create(f"lake{kind}", 2)
    world.write(stream, [event(n) for n in range(100)])
    request = request_of(kind, address, stream, tmp_path, compact_at=4)
    looked = append_to_table(spark, request, dry_run=True)
    assert looked.read_bytes > 0
    assert open_table(request.address).state() is None
    first = append_to_table(spark, request)
    assert (first.events, rows_in(request)) == (100, expected(100))
    subscriber = first.subscriber.partition("/")[2]
    assert world.published(stream, subscriber) == world.tail(stream)
    world.truncate(stream, world.tail(stream))
    world.scale(stream, 3)
    world.write(stream, [event(n) for n in range(100, 130)])

    class Died(Exception):
        pass

    def die(*_: Any, **__: Any) -> Any:
        raise Died

    table = open_table(request.address)
    with monkeypatch.context() as patched:
        patched.setattr(type(table), "commit", die)
        with pytest.raises(Died):
            append_to_table(spark, request)
    assert rows_in(request) == expected(100)
    real = lake_job.publish_table
    with monkeypatch.context() as patched:
        published: list[int] = []

        async def second_dies(*given: Any, **named: Any) -> None:
            published.append(1)
            if len(published) == 2:
                die()
            await real(*given, **named)

        patched.setattr(lake_job, "publish_table", second_dies)
        with pytest.raises(Died):
            append_to_table(spark, request)
    assert rows_in(request) == expected(130)
    assert world.published(stream, subscriber) != world.tail(stream)
    again = append_to_table(spark, request)
    assert (again.events, again.start) == (0, again.end)
    assert rows_in(request) == expected(130)
    assert world.published(stream, subscriber) == world.tail(stream)
    seen: list[int] = []

    class Enough(Exception):
        pass

    def on_commit(report: Any) -> None:
        seen.append(report.events)
        if len(seen) == 2:
            raise Enough
        world.write(stream, [event(n) for n in range(140, 145)])

    world.write(stream, [event(n) for n in range(130, 140)])
    append = lake_job._Run._append
    erased: list[int] = []

    def erasure_first(run: Any, rows: Any, schema: Any, state: Any, cut: str) -> Any:
        if not erased:
            erased.append(1)
            run._table.commit(state, Change(cut=state.cut, erasure="e1"))
        return append(run, rows, schema, state, cut)

    monkeypatch.setattr(lake_job._Run, "_append", erasure_first)
    with pytest.raises(Enough):
        follow_with_table(spark, request, every_s=0.0, on_commit=on_commit)
    assert (seen, rows_in(request)) == ([10, 5], expected(145))
    assert len(open_table(request.address).files()) <= 8  # merged, on executors


def test_what_does_not_fit_is_refused_and_nothing_is_half_done(
    spark: Any, address: str, world: World, tmp_path: Path
) -> None:
    stream = world.create("lakebad", 1)
    request = request_of("delta", address, stream, tmp_path)
    cases: list[tuple[LakeRequest, str]] = [
        (replace(request, schema="offset STRING"), "reserves"),
        (replace(request, schema="Hour STRING"), "reserves"),
        (replace(request, schema="a INT, A INT"), "twice"),
        (replace(request, time="name"), "TIMESTAMP"),
        (replace(request, time="none"), "TIMESTAMP"),
        (replace(request, partition="week"), "hour or day"),
        (replace(request, bad_events="drop"), "bad_events"),
        (replace(request, compact_at=1), "at least 2"),
        (replace(request, subscriber="a/b"), "name"),
    ]
    for wanted, words in cases:
        with pytest.raises(InvalidArgumentError, match=words):
            append_to_table(spark, wanted)
    assert not (tmp_path / "t").exists()
    world.write(stream, [event(0), b'{"id": "x"}', b"no json"])
    with pytest.raises(PySparkException) as failed:
        append_to_table(spark, request)
    error = typed(failed.value)
    assert isinstance(error, InvalidArgumentError)
    assert "does not fit the schema" in str(error)
    assert "offset=" in str(error)
    assert rows_in(request) == []
    assert world.published(stream, "lake-lakebad-t") == world.head(stream)
    kept = append_to_table(spark, replace(request, bad_events="null"))
    assert (kept.events, len(rows_in(request))) == (3, 3)
    others: list[tuple[LakeRequest, type[PenstockError], str]] = [
        (replace(request, schema="id BIGINT, at TIMESTAMP"), ConflictError, "differing=schema"),
        (replace(request, partition="day"), ConflictError, "differing=partition"),
        (
            replace(
                request, subscriber="lake-lakebad-t", address=replace(request.address, target=str(tmp_path / "other"))
            ),
            WriterInUseError,
            "another query",
        ),
    ]
    for wanted, kind, words in others:
        with pytest.raises(kind, match=words):
            append_to_table(spark, wanted)
    assert isinstance(open_table(request.address), DeltaLakeTable)
    assert len(rows_in(request)) == 3


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[] if kind == "delta" else SLOW) for kind in FORMATS])
def test_an_event_whose_time_no_partition_can_have_does_not_fit_the_schema(
    kind: str, spark: Any, address: str, world: World, tmp_path: Path
) -> None:
    stream = world.create(f"laketime{kind}", 1)
    request = request_of(kind, address, stream, tmp_path, schema="id BIGINT, at TIMESTAMP")
    # Milliseconds where Spark expects seconds, and years that dates lack.
    strange = ["1780000000000", '"+12345-01-01T00:00:00Z"', '"0000-12-31T23:59:59.999999Z"', "253402300800"]
    # The first and last moment that fit, and no time at all.
    fitting = ['"0001-01-01T00:00:00Z"', '"9999-12-31T23:59:59.999999Z"', "null"]
    world.write(stream, [b'{"id": %d, "at": %s}' % (n, at.encode()) for n, at in enumerate([*fitting, *strange])])
    with pytest.raises(PySparkException) as failed:
        append_to_table(spark, request)
    assert "does not fit the schema" in str(typed(failed.value))
    kept = append_to_table(spark, replace(request, bad_events="null"))
    assert kept.events == 7
    rows = duckdb.from_arrow(open_table(request.address).read())
    assert rows.query("t", 'select list(id order by id), count("at") from t').fetchall() == [(list(range(7)), 2)]


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[] if kind == "delta" else SLOW) for kind in FORMATS])
def test_an_erasure_lists_the_table_and_reaches_every_file_of_it(
    kind: str, spark: Any, address: str, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_erase, "spark_session", lambda *_, **__: nullcontext(spark))
    stream = world.create(f"erased{kind}", 2)
    (tmp_path / "lake").mkdir()
    request = request_of(kind, address, stream, tmp_path / "lake", schema=None, partition=None, time="append_time")
    for start in (0, 20, 40):
        world.write(stream, [event(n) for n in range(start, start + 20)])
        append_to_table(spark, request)
    (tmp_path / "values").write_text("n7\nn25\n")
    settings = [f"--catalog={name}={value}" for name, value in request.address.catalog.items()]

    def command(*more: str) -> Any:
        words = ["spark", "erase", str(stream), "--json-field", "name", "--values-from", str(tmp_path / "values")]
        words += ["--reason", "request 17", "--owner", "ann", "--id", f"r17{kind}", "--yes", "--controller", address]
        return CliRunner().invoke(app, [*words, *more])

    found = command()
    assert found.exit_code == 0, found.output
    assert f"rows of a table, until penstock spark erase --tables deletes them: {request.address.registered()}" in (
        found.output
    )
    assert events_left(tmp_path / "lake") >= {7, 25}
    if kind == "iceberg":
        found = command("--tables", "--catalog", "type=sql", "--catalog", f"uri=sqlite:///{tmp_path}/other.db")
        assert isinstance(found.exception, ConflictError), found.output
        assert "pending" in found.output
    found = command("--tables", *settings)
    assert found.exit_code == 0, found.output
    assert "done, 2 rows" in found.output
    assert events_left(tmp_path / "lake") == set(range(60)) - {7, 25}
    again = command("--tables", "--json", *settings)
    (table,) = json.loads(again.output)["tables"]
    assert (table["state"], table["rows"]) == ("done", 0)
    # The stream continues in the table.
    world.write(stream, [event(n) for n in range(60, 70)])
    append_to_table(spark, request)
    assert events_left(tmp_path / "lake") == set(range(70)) - {7, 25}


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
def test_a_table_of_keys_has_the_latest_event_of_each(
    kind: str, spark: Any, address: str, world: World, tmp_path: Path
) -> None:
    stream = world.create(f"keys{kind}", 1)
    schema = "k STRING, n BIGINT, gone BOOLEAN"
    how = {"schema": schema, "time": "append_time", "key": "k", "delete_when": "gone", "compact_at": 0}
    request = request_of(kind, address, stream, tmp_path, **how)
    latest: dict[str, int] = {}

    def write(changes: list[tuple[str | None, bool]]) -> None:
        events = []
        for number, (key, gone) in enumerate(changes, start=len(latest) * 1000):
            if gone and key is not None:
                latest.pop(key, None)
            elif key is not None:
                latest[key] = number
            # World routes by what comes before the first colon: one routing key for all.
            events.append(json.dumps({"k": key, "n": number, "gone": gone}).encode())
        world.write(stream, events)
        append_to_table(spark, request)
        rows = duckdb.from_arrow(open_table(request.address).read())
        found = rows.query("found", "select key, k, n from found").fetchall()
        assert sorted(found) == sorted((key, key, n) for key, n in latest.items())

    with pytest.raises(InvalidArgumentError, match="reserves"):
        append_to_table(spark, replace(request, schema="key STRING, k STRING"))
    write([("a", False), ("b", False), ("a", False), (None, False), ("c", False), ("d", True)])
    write([("b", False), ("c", True), ("e", False)])
    write([("a", True), ("b", True), ("e", True)])
    write([("z", False)])
    assert append_to_table(spark, request).events == 0
    before = open_table(request.address).state()
    world.write(stream, [b'{"k": "z", "n": "bad"}', b"no json", b'{"k": "z", "n": 77, "gone": false}'])
    with pytest.raises(PySparkException, match="does not fit the schema"):
        append_to_table(spark, request)
    assert open_table(request.address).state() == before
    append_to_table(spark, replace(request, bad_events="null"))
    assert open_table(request.address).read().column("n").to_pylist() == [77]
    with pytest.raises(ConflictError, match="differing=key"):
        append_to_table(spark, replace(request, key="n"))
    with pytest.raises(InvalidArgumentError, match="give a key"):
        append_to_table(spark, replace(request, key=None))


def events_left(root: Path) -> set[int]:
    """Numbers of the events in all Parquet files below the directory, of any version of the table."""
    found: set[int] = set()
    for path in root.rglob("penstock-*.parquet"):
        rows = pq.read_table(str(path), partitioning=None)
        found |= {json.loads(text)["id"] for text in rows.column("event").to_pylist()}
    return found
