"""The name of a writer belongs to one query, and to one run of it: no rows vanish because they pass for a repeat."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
from sink_query import Context, Query, stored
from spark_world import World, open_here

from penstock.codec.control.streams import BatchRecord
from penstock.controller import keys
from penstock.controller.controller import Controller
from penstock.controller.metadata import overwrite
from penstock.model.errors import ConflictError, InvalidArgumentError, WriterInUseError
from penstock.model.names import StreamName
from penstock.spark.connect import Services
from penstock.spark.options import parse_write
from penstock.spark.writing import attempt
from penstock.spark.writing.sink import BatchWriter

MANY = [b"k:%d:" % number + bytes(2000) for number in range(200)]
"""More than a message takes: the tasks ask for the last batch."""


@pytest.fixture
def world(world_here: World) -> World:
    return world_here


def forget_owner(world: World, stream: StreamName, writer: str, batch: int) -> None:
    """Leave the record as versions wrote it that did not record queries."""

    async def put(services: Services) -> None:
        assert isinstance(services.controller, Controller)
        record = BatchRecord(batch=batch, transactions=())
        await services.controller.batches._ctx.metadata.put(overwrite(keys.batch(stream, writer), record))

    world.link.run(put)


@pytest.mark.parametrize("rows", [[b"k:tuesday"], MANY], ids=["few", "many"])
def test_rows_of_a_new_checkpoint_under_a_used_name_are_refused_and_not_dropped(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch, rows: list[bytes]
) -> None:
    stream = world.create("s")
    old = Query(data, stream, "q1", monkeypatch, writer_id="daily")
    old.run(0, [b"k:monday"])
    fresh = Query(data, stream, "q2", monkeypatch, writer_id="daily")
    with pytest.raises(WriterInUseError, match="replaces_query") as caught:
        fresh.run(0, rows)
    assert (caught.value.fields["owner"], caught.value.fields["query"]) == ("q1", "q2")
    assert caught.value.fields["writer"] == f"daily/{stream}"
    # The query that has the name goes on, and a repeat of its batch writes nothing.
    old.run(0, [b"k:monday"])
    old.run(1, [b"k:wednesday"])
    assert stored(data, stream) == [b"k:monday", b"k:wednesday"]


def test_a_new_checkpoint_whose_first_batches_are_empty_is_refused_with_the_first(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = world.create("s")
    old = Query(data, stream, "q1", monkeypatch, writer_id="daily")
    old.run(0, [b"k:0"])
    old.run(1, [b"k:1"])
    fresh = Query(data, stream, "q2", monkeypatch, writer_id="daily")
    with pytest.raises(WriterInUseError):
        fresh.run(0, [])
    with pytest.raises(WriterInUseError):
        fresh.run(1, [b"k:2"])
    with pytest.raises(WriterInUseError):
        fresh.run(2, [b"k:3"])
    assert stored(data, stream) == [b"k:0", b"k:1"]


def test_a_name_is_taken_over_on_purpose_and_its_owner_is_refused_from_then_on(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = world.create("s")
    old = Query(data, stream, "q1", monkeypatch, writer_id="daily")
    for batch in range(3):
        old.run(batch, [b"k:%d" % batch])
    fresh = Query(data, stream, "q2", monkeypatch, writer_id="daily", replaces_query="q1")
    fresh.run(0, [])
    with pytest.raises(WriterInUseError, match="another query"):
        old.run(3, [b"k:late"])
    fresh.run(1, [b"k:3"])
    # The option stays on: the query goes on from its checkpoint, and repeats are repeats.
    fresh.run(1, [b"k:3"])
    fresh.run(2, MANY)
    fresh.run(2, MANY)
    with pytest.raises(ConflictError, match=r"older copy|later batches"):
        fresh.run(1, [b"k:3"])
    assert stored(data, stream) == [b"k:0", b"k:1", b"k:2", b"k:3", *MANY]


def test_two_live_runs_of_one_checkpoint_do_not_drop_each_others_batches(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = world.create("s")
    first = Query(data, stream, "q", monkeypatch)
    copy = Query(data, stream, "q", monkeypatch)
    first.run_id, copy.run_id = "run-1", "run-2"
    first.run(0, [b"k:0"])
    # What starts from a checkpoint repeats its last batch, and has the name from then on.
    copy.run(0, [b"k:0"])
    for rows in ([b"k:first"], [], MANY):
        with pytest.raises(WriterInUseError, match="another run"):
            first.run(1, rows)
    copy.run(1, [b"k:1"])
    later = Query(data, stream, "q", monkeypatch)
    later.run_id = "run-3"
    later.run(2, [])
    with pytest.raises(WriterInUseError, match="another run"):
        copy.run(3, [b"k:3"])
    later.run(3, [b"k:3"])
    assert stored(data, stream) == [b"k:0", b"k:1", b"k:3"]


def test_records_without_a_query_from_earlier_versions_lose_nothing(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = world.create("s")
    for name in ("repeat", "other", "later", "older"):
        forget_owner(world, stream, f"{name}/{stream}", 4)
        query = Query(data, stream, "q", monkeypatch, writer_id=name)
        if name == "later":
            query.run(5, [b"k:later"])
            continue
        for rows in ([b"k:" + name.encode()], MANY, []):
            with pytest.raises(ConflictError, match=r"earlier version|later batches"):
                query.run(3 if name == "older" else 4, rows)
    Query(data, stream, "q", monkeypatch, writer_id="repeat", replaces_query="q").run(4, [b"k:repeat"])
    Query(data, stream, "q", monkeypatch, writer_id="other", replaces_query="unknown").run(4, [b"k:other"])
    Query(data, stream, "q", monkeypatch, writer_id="older", replaces_query="unknown").run(3, MANY)
    assert stored(data, stream) == [b"k:later", b"k:other", *MANY]


def test_a_name_that_holds_the_querys_id_needs_no_recorded_owner(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, query = world.create("s"), str(uuid4())
    forget_owner(world, stream, f"{query}/{stream}", 4)
    Query(data, stream, query, monkeypatch).run(4, [b"k:again"])
    Query(data, stream, query, monkeypatch).run(5, [b"k:5"])
    assert stored(data, stream) == [b"k:5"]


def test_only_the_record_of_a_plain_job_is_marked_as_one_that_may_be_forgotten(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa

    stream = world.create("s")
    monkeypatch.setattr(attempt.TaskContext, "get", lambda: Context(0, {}))
    persons = f"spark-job-{uuid4()}"
    for options in ({}, {"writer_id": "w"}, {"txnAppId": persons, "txnVersion": "3"}):
        given = {"controller": str(data), "path": str(stream), **options}
        writer = BatchWriter(open_here, parse_write(given), False)
        writer.commit([writer.write(iter([pa.record_batch({"event": [b"k:1"]})]))])
    Query(data, stream, "q", monkeypatch, writer_id=f"{persons}-mine").run(0, [b"k:1"])

    async def marks(services: Services) -> dict[str, bool]:
        assert isinstance(services.controller, Controller)
        prefix, metadata = keys.batches(stream), services.controller.batches._ctx.metadata
        return {
            entry.key[len(prefix) :].decode(): BatchRecord.decode(entry.value).one_job
            async for entry in metadata.scan_all(prefix)
        }

    found = world.link.run(marks)
    assert sorted(name.split("-")[0] for name, one_job in found.items() if one_job) == ["spark", "w"]
    assert {name: one_job for name, one_job in found.items() if name.startswith(persons)} == {
        f"{persons}/{stream}": False,
        f"{persons}-mine/{stream}": False,
    }


def test_versions_of_a_batch_function_belong_to_its_query(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa

    stream = world.create("s")

    def write(query: str | None, version: int, event: bytes, **options: str) -> None:
        said = {} if query is None else {"sql.streaming.queryId": query}
        monkeypatch.setattr(attempt.TaskContext, "get", lambda: Context(0, said))
        given = {"controller": str(data), "path": str(stream), "txnAppId": "app", "txnVersion": str(version)}
        writer = BatchWriter(open_here, parse_write({**given, **options}), False)
        writer.commit([writer.write(iter([pa.record_batch({"event": [event]})]))])

    write("q1", 0, b"k:0")
    write("q1", 0, b"k:0")
    with pytest.raises(WriterInUseError):
        write("q2", 0, b"k:other")
    write("q2", 0, b"k:1", replaces_query="q1")
    for version in (0, 1):
        with pytest.raises(WriterInUseError, match="names none"):
            write(None, version, b"k:job")
    write("q2", 1, b"k:2")
    assert stored(data, stream) == [b"k:0", b"k:1", b"k:2"]


@pytest.mark.parametrize("events", [[b"k:query"], MANY], ids=["few", "many"])
def test_a_batch_function_and_a_plain_job_do_not_drop_each_others_rows(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch, events: list[bytes]
) -> None:
    import pyarrow as pa

    stream = world.create("s")

    def write(query: str | None, version: int, rows: list[bytes], **options: str) -> None:
        said = {} if query is None else {"sql.streaming.queryId": query, "streaming.sql.batchId": str(version)}
        monkeypatch.setattr(attempt.TaskContext, "get", lambda: Context(0, said))
        given = {"controller": str(data), "path": str(stream), "txnAppId": "app", "txnVersion": str(version)}
        writer = BatchWriter(open_here, parse_write({**given, **options}), False)
        writer.commit([writer.write(iter([pa.record_batch({"event": rows})]))])

    write(None, 0, [b"k:job"])
    write(None, 0, [b"k:job"])
    with pytest.raises(WriterInUseError, match="replaces_query=unknown"):
        write("q", 0, events)
    write("q", 0, events, replaces_query="unknown")
    write("q", 0, events)
    with pytest.raises(WriterInUseError, match="names none"):
        write(None, 0, events)
    assert stored(data, stream) == [b"k:job", *events]


def test_a_batch_function_over_spark_connect_names_its_query_or_is_refused(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa

    stream = world.create("s")
    over_connect = {"spark.job.tags": "SparkConnect_OperationTag_User__Session_s_Operation_o,mine"}

    def write(said: dict[str, str], version: int, event: bytes, **options: str) -> None:
        monkeypatch.setattr(attempt.TaskContext, "get", lambda: Context(0, said))
        given = {"controller": str(data), "path": str(stream), "txnAppId": "app", "txnVersion": str(version)}
        writer = BatchWriter(open_here, parse_write({**given, **options}), False)
        writer.commit([writer.write(iter([pa.record_batch({"event": [event]})]))])

    with pytest.raises(InvalidArgumentError, match="set txnQuery"):
        write(over_connect, 0, b"k:0")
    write(over_connect, 0, b"k:0", txnQuery="q1")
    write(over_connect, 0, b"k:0", txnQuery="q1")
    with pytest.raises(WriterInUseError):
        write(over_connect, 0, b"k:other", txnQuery="q2")
    with pytest.raises(WriterInUseError, match="set txnQuery"):
        write(over_connect, 1, b"k:job", txnQuery="none")
    write(over_connect, 1, b"k:1", txnQuery="q1")
    with pytest.raises(WriterInUseError):
        write({"sql.streaming.queryId": "q1"}, 2, b"k:2", txnQuery="q2")
    write({"sql.streaming.queryId": "q2"}, 2, b"k:2", txnQuery="q1")
    with pytest.raises(WriterInUseError, match="set txnQuery"):
        write({"spark.job.tags": "mine"}, 3, b"k:job")
    write({"spark.job.tags": "mine"}, 3, b"k:3", txnQuery="q1")
    assert stored(data, stream) == [b"k:%d" % version for version in range(4)]
    with pytest.raises(InvalidArgumentError, match="belongs to txnAppId"):
        parse_write({"path": str(stream), "txnQuery": "q"})


def test_a_batch_function_on_an_older_copy_of_its_checkpoint_is_refused_and_its_rows_are_not_dropped(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa

    stream = world.create("s")

    def write(batch: int, version: int, event: bytes, app: str = "app") -> None:
        said = {"sql.streaming.queryId": "q", "streaming.sql.batchId": str(batch)}
        monkeypatch.setattr(attempt.TaskContext, "get", lambda: Context(0, said))
        given = {"controller": str(data), "path": str(stream), "txnAppId": app, "txnVersion": str(version)}
        writer = BatchWriter(open_here, parse_write(given), False)
        writer.commit([writer.write(iter([pa.record_batch({"event": [event]})]))])

    for batch in range(5):
        write(batch, batch, b"k:%d" % batch)
    write(4, 4, b"k:4")
    for batch in (3, 2, 1):
        with pytest.raises(ConflictError, match="older copy"):
            write(batch, batch, b"k:others")
    assert stored(data, stream) == [b"k:%d" % batch for batch in range(5)]
    # Versions of the program's own making may be lower in a repeat: here each batch writes twice.
    for version, batch in ((0, 0), (1, 0), (0, 0), (1, 0), (2, 1), (3, 1), (2, 1), (3, 1)):
        write(batch, version, b"k:%d of two" % version, app="two")
    assert stored(data, stream)[5:] == [b"k:%d of two" % version for version in range(4)]
