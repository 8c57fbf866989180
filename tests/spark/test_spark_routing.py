"""Rows that name their streams: where they go, what is refused, and crashes between the streams' commits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType
from sink_query import Context, stored
from spark_world import World, in_order, open_here

from penstock.model.errors import (
    EventTooLargeError,
    InternalError,
    InvalidArgumentError,
    InvalidNameError,
    NotConnectedError,
    ScopeNotFoundError,
    StreamNotFoundError,
    StreamSealedError,
    WriterInUseError,
)
from penstock.model.names import StreamName
from penstock.spark.connect import Services, link
from penstock.spark.options import parse_sink, parse_write
from penstock.spark.reasons import reason
from penstock.spark.schema import READ_MARK, routing_columns
from penstock.spark.source import PenstockSource
from penstock.spark.writing import attempt
from penstock.spark.writing.messages import RoutedWritten
from penstock.spark.writing.sink import StreamWriter
from penstock.spark.writing.targets import RowTargets
from tests.flat_control import SUBJECTS, Around

A, B, C = (StreamName("plant", name) for name in "abc")
Row = tuple[StreamName, bytes]


@pytest.fixture
def world(world_here: World) -> World:
    return world_here


class Query:
    """A query whose rows name their streams; its tasks run here."""

    def __init__(self, data: Path, monkeypatch: pytest.MonkeyPatch, query: str = "q", **options: str) -> None:
        self._given = parse_sink({"controller": str(data), **options})
        self._patch = monkeypatch
        self._query = query
        self.runs = 0
        self._planned = self.writer()

    def writer(self) -> StreamWriter:
        return StreamWriter(open_here, self._given, True, ("scope", "stream"))

    def restart(self) -> None:
        """The query is another run of its checkpoint, and plans the batch anew."""
        self.runs += 1
        self._planned = self.writer()

    def task(self, batch: int, rows: Sequence[Row], partition: int = 0) -> RoutedWritten:
        said = {
            "sql.streaming.queryId": self._query,
            "streaming.sql.batchId": str(batch),
            "spark.jobGroup.id": f"run {self.runs}",
        }
        self._patch.setattr(attempt.TaskContext, "get", lambda: Context(partition, said))
        message = self._planned.write(iter([batch_of(rows[:3]), batch_of([]), batch_of(rows[3:])]))
        assert isinstance(message, RoutedWritten)
        return message

    def run(self, batch: int, *tasks: Sequence[Row]) -> list[RoutedWritten]:
        self._planned = self.writer()
        messages = [self.task(batch, rows, partition) for partition, rows in enumerate(tasks)]
        self.writer().commit([*messages], batchId=batch)
        return messages


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    columns = {
        "event": pa.array([event for _, event in rows], pa.binary()),
        "routing_key": pa.array([event.split(b":")[0].decode() for _, event in rows], pa.string()),
        "scope": pa.array([stream.scope for stream, _ in rows], pa.string()),
        "stream": pa.array([stream.stream for stream, _ in rows], pa.string()),
    }
    return pa.record_batch(columns)


def dealt(first: int, last: int, streams: Sequence[StreamName] = (A, B, C)) -> list[Row]:
    """Rows ``key:number`` for the streams in turn, in which the numbers of a key rise."""
    return [(streams[number % len(streams)], b"k%d:%d" % (number % 7, number)) for number in range(first, last)]


def check_once(data: Path, rows: Sequence[Row]) -> None:
    for stream in (A, B, C):
        found = stored(data, stream)
        assert sorted(found) == sorted(event for target, event in rows if target == stream), stream
        assert in_order(found)


@pytest.mark.parametrize("way", ["inline", "direct", "wire"])
def test_each_row_comes_once_to_the_stream_that_it_names(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way != "inline":
        monkeypatch.setattr(attempt, "INLINE_BYTES", 0)
    for name, segments in (("a", 1), ("b", 2), ("c", 3)):
        world.create(name, segments)
    query = Query(data, monkeypatch, direct=str(way != "wire"))
    messages = query.run(0, dealt(0, 300), [], dealt(300, 400, (B,)))
    assert {written.inline is not None for item in messages for _, written in item.parts} == {way == "inline"}
    check_once(data, dealt(0, 300) + dealt(300, 400, (B,)))
    # A repeat after the commit is a no-op in all streams.
    query.restart()
    query.run(0, dealt(0, 300), [], dealt(300, 400, (B,)))
    query.run(1, dealt(400, 450, (C,)))
    check_once(data, dealt(0, 300) + dealt(300, 400, (B,)) + dealt(400, 450, (C,)))


def test_small_streams_stay_in_the_message_beside_a_large_one(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "INLINE_BYTES", 4000)
    for name in "abc":
        world.create(name)
    query = Query(data, monkeypatch)
    rows = [*dealt(0, 10), *((B, b"k:%d:" % number + bytes(500)) for number in range(10, 40)), *dealt(40, 50)]
    (message,) = query.run(0, rows)
    assert {stream: written.inline is None for stream, written in message.parts} == {A: False, B: True, C: False}
    assert sum(written.rows for _, written in message.parts) == len(rows)
    check_once(data, rows)


class Crash(Exception):
    """The process dies here."""


class Crashing:
    """A controller whose caller dies at the commit of a stream: before it is decided, or before the answer."""

    def __init__(self, inner: Any, at: int, *, decided: bool) -> None:
        self._inner = inner
        self._left = at
        self._decided = decided

    def __getattr__(self, name: str) -> Any:
        return getattr(Around(self._inner, self._heard), name) if name in SUBJECTS else getattr(self._inner, name)

    def _heard(self, name: str, call: Callable[..., Any]) -> Any:
        if name != "batches.commit":
            return call

        async def commit(*rest: Any, **named: Any) -> Any:
            self._left -= 1
            if self._left >= 0:
                return await call(*rest, **named)
            if self._left == -1 and self._decided:
                await call(*rest, **named)
            raise Crash

        return commit


@pytest.mark.parametrize("way", ["inline", "direct"])
def test_a_crash_between_two_streams_commits_is_repaired_by_the_repeat(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr("penstock.spark.writing.streams_commit._STREAMS_AT_ONCE", 1)
    if way == "direct":
        monkeypatch.setattr(attempt, "INLINE_BYTES", 0)
    for name in "abc":
        world.create(name, 2)
    query = Query(data, monkeypatch)
    query.run(0, dealt(0, 30))
    real = link(open_here, str(data))
    services = real._services
    assert services is not None
    places = [(at, decided) for at in range(3) for decided in (False, True)]
    for batch, (at, decided) in enumerate(places, 1):
        before = [len(stored(data, stream)) for stream in (A, B, C)]
        tasks = dealt(60 * batch, 60 * batch + 30), dealt(60 * batch + 30, 60 * batch + 60)
        with monkeypatch.context() as patch:
            crashing = cast(Any, Crashing(services.controller, at, decided=decided))
            patch.setattr(real, "_services", Services(crashing, services.segments, services.close))
            with pytest.raises((Crash, ExceptionGroup)):
                query.run(batch, *tasks)
        # Exactly the streams that were decided have the batch.
        after = [len(stored(data, stream)) for stream in (A, B, C)]
        assert [now - then for now, then in zip(after, before, strict=True)] == [
            20 * (number < at + decided) for number in range(3)
        ]
        query.restart()
        query.run(batch, *tasks)
    check_once(data, dealt(0, 30) + dealt(60, 60 * len(places) + 60))


REFUSED: list[tuple[list[tuple[Any, Any]], Any, str]] = [
    ([("plant", None)], InvalidArgumentError, "names no stream.*column=stream"),
    ([(None, "a")], InvalidArgumentError, "names no stream.*column=scope"),
    ([("plant", "no_such")], InvalidNameError, "has an illegal stream name"),
    ([("plant", "")], InvalidNameError, "has an illegal stream name"),
    ([("_system", "audit")], InvalidNameError, "has an illegal stream name"),
    ([("other", "plant/a")], InvalidArgumentError, "two scopes"),
    ([("plant", "missing")], StreamNotFoundError, "create it first, or set allow_create_stream=true"),
    ([("nowhere", "a")], (ScopeNotFoundError, StreamNotFoundError), "create it first, or set allow_create"),
    ([("plant", "sealed")], StreamSealedError, "write to another"),
    ([("plant", f"s{number}") for number in range(9)], InvalidArgumentError, "max_streams"),
]


@pytest.mark.parametrize("way", ["inline", "direct"])
def test_what_cannot_be_routed_is_refused_before_anything_is_written(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "direct":
        monkeypatch.setattr(attempt, "INLINE_BYTES", 0)
    world.create("a")
    world.seal(world.create("sealed"))
    query = Query(data, monkeypatch, max_streams="8")
    good = [(A, b"k:0")] * 4
    for rows, kind, words in REFUSED:
        with pytest.raises(kind, match=words) as caught:
            query.run(0, good, [*good, *((StreamName(*names), b"k:1") for names in rows)])
        assert "\n" not in (reason(caught.value) or "\n")
        assert stored(data, A) == []
    query.run(0, good)
    assert len(stored(data, A)) == 4


def test_streams_are_created_only_if_the_options_allow_it(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.create("a")
    made = [(StreamName("plant", "new"), b"k:%d" % number) for number in range(9)]
    query = Query(data, monkeypatch, allow_create_stream="true", default_num_segments="3")
    query.run(0, [(A, b"k:0"), *made])
    assert len(world.tail(StreamName("plant", "new")).positions) == 3
    other = [(StreamName("nowhere", "new"), b"k:0")]
    with pytest.raises(ScopeNotFoundError, match="allow_create_scope"):
        query.run(1, other)
    Query(data, monkeypatch, allow_create_stream="true", allow_create_scope="true").run(1, other)
    assert stored(data, StreamName("nowhere", "new")) == [b"k:0"]


def test_a_large_event_is_refused_whichever_stream_it_names(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "INLINE_BYTES", 64 << 20)
    query = Query(data, monkeypatch)
    with pytest.raises(EventTooLargeError):
        query.task(0, [(A, b"k:0"), (B, bytes((8 << 20) + 1))])


def test_another_query_under_a_used_name_is_refused_in_every_stream(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.create("a")
    world.create("b")
    Query(data, monkeypatch, "q1", writer_id="w").run(0, [(B, b"k:0")])
    other = Query(data, monkeypatch, "q2", writer_id="w")
    with pytest.raises(WriterInUseError):
        other.run(1, [(A, b"k:1"), (B, b"k:1")])
    assert (stored(data, A), stored(data, B)) == ([], [b"k:0"])


@pytest.mark.parametrize("direct", ["true", "false"])
def test_a_task_holds_no_more_for_many_streams_than_for_one(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch, direct: str
) -> None:
    monkeypatch.setattr(attempt, "INLINE_BYTES", 0)
    monkeypatch.setattr(attempt, "HELD_BYTES", 40_000)
    streams = [world.create(f"many-{number}") for number in range(12)]
    rows = [(streams[number % 12], b"k:%d:" % number + bytes(1000)) for number in range(480)]
    peaks: list[int] = []
    send = attempt.Attempt._send

    async def watched(self: attempt.Attempt, *rest: Any) -> None:
        await send(self, *rest)
        peaks.append(sum(item.held_bytes for item in self._sendings()))

    monkeypatch.setattr(attempt.Attempt, "_send", watched)
    query = Query(data, monkeypatch, direct=direct)
    query._planned = query.writer()
    said = {"sql.streaming.queryId": "q", "streaming.sql.batchId": "0"}
    monkeypatch.setattr(attempt.TaskContext, "get", lambda: Context(0, said))
    message = query._planned.write(iter([batch_of(rows[first : first + 24]) for first in range(0, 480, 24)]))
    query.writer().commit([message], batchId=0)
    assert max(peaks) <= 40_000
    for stream in streams:
        assert stored(data, stream) == [event for target, event in rows if target == stream]


def test_an_abort_ends_the_transactions_of_every_stream(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "INLINE_BYTES", 0)
    for name in "abc":
        world.create(name)
    query = Query(data, monkeypatch, direct="false")
    message = query.task(0, dealt(0, 9))
    query.writer().abort([message, None], batchId=0)
    for stream, written in message.parts:
        assert written.transaction is not None
        assert world.transactions(stream, [written.transaction]) == ["aborted"]


def test_a_store_that_is_away_costs_a_batch_nothing(world: World, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit is asked again, and goes on where it was."""
    for name in "abc":
        world.create(name)
    query = Query(data, monkeypatch)
    real = link(open_here, str(data))
    services = real._services
    assert services is not None
    lost = 2

    class Away(Crashing):
        def _heard(self, name: str, call: Callable[..., Any]) -> Any:
            async def commit(*rest: Any, **named: Any) -> Any:
                nonlocal lost
                if lost:
                    lost -= 1
                    raise NotConnectedError("away")
                return await call(*rest, **named)

            return commit if name == "batches.commit" else call

    away = cast(Any, Away(services.controller, 0, decided=False))

    async def nothing() -> None:
        """The store is the fixture's."""

    async def again(address: str) -> Services:
        return Services(away, services.segments, nothing)

    with monkeypatch.context() as patch:
        patch.setattr(real, "_connector", again)
        patch.setattr(real, "_services", Services(away, services.segments, nothing))
        query.run(0, dealt(0, 30))
    real._services = services
    assert lost == 0
    check_once(data, dealt(0, 30))


NAMES = st.sampled_from(["a", "b", "plant/a", "plant/b"])


@given(rows=st.lists(st.tuples(st.sampled_from(["plant", "yard"]), st.sampled_from(["a", "b", "c"])), max_size=30))
def test_every_row_is_in_one_place_and_in_order(rows: list[tuple[str, str]]) -> None:
    targets = RowTargets(parse_sink({}), ("scope", "stream"))
    scopes, streams = ([row[part] for row in rows] for part in (0, 1))
    given_rows = pa.record_batch({"scope": pa.array(scopes, pa.string()), "stream": pa.array(streams, pa.string())})
    if not rows:
        return
    seen: list[int] = []
    for stream, places in targets.split(given_rows):
        mine = list(range(len(rows))) if places is None else places.tolist()
        assert mine == sorted(mine)
        assert {rows[place] for place in mine} == {(stream.scope, stream.stream)}
        seen += mine
    assert sorted(seen) == list(range(len(rows)))


@given(names=st.lists(NAMES, min_size=1, max_size=20))
def test_a_name_with_and_without_its_scope_is_one_stream(names: list[str]) -> None:
    targets = RowTargets(parse_sink({"scope": "plant"}), ("stream",))
    found = [stream for stream, _ in targets.split(pa.record_batch({"stream": names}))]
    assert len(found) == len(set(found)) == len({name[-1] for name in names})


def test_a_scope_of_the_options_must_be_that_of_the_rows() -> None:
    rows = pa.record_batch({"scope": ["yard"], "stream": ["a"]})
    with pytest.raises(InvalidArgumentError, match="another scope than option scope"):
        RowTargets(parse_sink({"scope": "plant"}), ("scope", "stream")).split(rows)
    with pytest.raises(InvalidArgumentError, match="without its scope"):
        RowTargets(parse_sink({}), ("stream",)).split(rows)


def test_columns_route_rows_only_without_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    read = {READ_MARK: True}
    copied = [("event", "binary", {}), ("scope", "string", read), ("stream", "string", read)]
    assert routing_columns(copied, "event", "routing_key", scope=None) == ("scope", "stream")
    # A copy of streams into another scope.
    assert routing_columns(copied, "event", "routing_key", scope="backup") == ("stream",)
    for fields, words in (
        ([("event", "binary", {})], "rows with a column stream"),
        ([("stream", "int", {})], "must be strings"),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            routing_columns(fields, "event", "routing_key", scope=None)
    schema = StructType().add("event", "binary").add("stream", "string")
    with pytest.raises(InvalidArgumentError, match="rows with a column stream"):
        PenstockSource({}).streamWriter(StructType().add("event", "binary"), overwrite=False)
    with pytest.raises(InvalidArgumentError, match="never overwritten"):
        PenstockSource({}).writer(schema, overwrite=True)
    with pytest.raises(InvalidArgumentError, match="max_streams belongs"):
        parse_write({"path": "plant/s", "max_streams": "3"})
    with pytest.raises(InternalError):
        _ = parse_sink({"scope": "plant"}).stream
