"""The sink driven as Spark drives it, without Spark, on a real store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType
from sink_query import SCHEMA, Query, read_with, stored
from spark_world import World, in_order, keyed, open_here

from penstock.model.errors import (
    ConflictError,
    InvalidArgumentError,
    InvalidNameError,
    NotConnectedError,
    ScopeNotFoundError,
    StreamNotFoundError,
    StreamSealedError,
    TransactionNotFoundError,
    TransactionStateError,
    WriterFencedError,
)
from penstock.model.names import StreamName
from penstock.ports.control.transactions import Transaction
from penstock.ports.data.segments import Append, Appended
from penstock.spark.connect import Services, close_links, link
from penstock.spark.options import parse_write
from penstock.spark.reasons import reason
from penstock.spark.source import PenstockSource
from penstock.spark.writing import attempt, sending, sink, wire_attempt
from penstock.spark.writing.batch_commit import is_repeat
from penstock.spark.writing.messages import TaskWritten
from penstock.spark.writing.sink import StreamWriter
from tests.flat_control import SUBJECTS, Around


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


WAYS = ("inline", "direct", "wire")
"""How rows come into the store: by the driver, as chunks in tier 2, as appends."""


@pytest.fixture(params=WAYS, autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param != "inline":
        monkeypatch.setattr(attempt, "INLINE_BYTES", 0)
    monkeypatch.setattr(Query, "way", request.param)
    return str(request.param)


@pytest.fixture
def world(data: Path) -> Iterator[World]:
    try:
        yield World(link(open_here, str(data)))
    finally:
        close_links()


def used(messages: Sequence[TaskWritten]) -> list[UUID]:
    """The transactions that tasks wrote to."""
    found = [item.transaction or (item.shared and item.shared.transaction) for item in messages]
    return list(dict.fromkeys(item for item in found if item))


def test_rows_of_all_tasks_become_readable_together_and_in_order_of_their_keys(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = world.create("s", 3)
    query = Query(data, stream, "q", monkeypatch)
    messages = [query.task(0, keyed(0, 500)), query.task(0, keyed(500, 900), 1), query.task(0, [], 2)]
    assert stored(data, stream) == []
    assert used(messages[2:]) == []
    # In the order of partitions, whatever order they come in.
    query.writer().commit(messages[::-1], batchId=0)
    assert sorted(stored(data, stream)) == sorted(keyed(0, 900))
    query.run(1, keyed(900, 1000))
    found = stored(data, stream)
    assert sorted(found) == sorted(keyed(0, 1000))
    assert in_order(found)


def test_a_batch_that_is_committed_twice_is_there_once(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = world.create("s", 2)
    query = Query(data, stream, "q", monkeypatch)
    messages = query.run(0, keyed(0, 50), keyed(50, 90))
    query.writer().commit([*messages], batchId=0)
    # A restart that finds no commit in Spark's log runs the tasks anew.
    again = query.run(0, keyed(0, 50), keyed(50, 90))
    assert used(again) == []
    assert sorted(stored(data, stream)) == sorted(keyed(0, 90))


def test_attempts_of_two_runs_of_a_batch_never_both_count(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = world.create("s", 2)
    query = Query(data, stream, "q", monkeypatch)
    zombie = query.task(0, keyed(0, 50))
    query.run(0, keyed(0, 50))
    query.writer().commit([zombie], batchId=0)
    assert sorted(stored(data, stream)) == sorted(keyed(0, 50))
    assert set(world.transactions(stream, used([zombie]))) <= {"aborted"}


def test_abort_ends_what_is_open_and_nothing_else(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    stream = world.create("s", 2)
    query = Query(data, stream, "q", monkeypatch)
    committed = query.run(0, keyed(0, 50))
    query.writer().abort([*committed, None], batchId=0)
    opened = query.task(1, keyed(50, 60))
    query.writer().abort([opened, None], batchId=1)
    query.writer().abort([opened], batchId=1)
    assert sorted(stored(data, stream)) == sorted(keyed(0, 50))
    assert world.transactions(stream, used([*committed, opened])) == ["committed", "aborted"] * (way != "inline")
    with pytest.raises((TransactionNotFoundError, TransactionStateError), match="run it again"):
        query.writer().commit(
            [opened, TaskWritten("q/plant/s", 1, UUID(int=99), 1, 1, source=opened.source)], batchId=1
        )


def test_a_task_that_fails_leaves_nothing_behind(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    stream = world.create("s")
    query = Query(data, stream, "q", monkeypatch)
    seen: list[UUID] = []
    begin = sending.Sending._begin

    async def watched(self: sending.Sending) -> Transaction:
        made = await begin(self)
        seen.append(made.id)
        return made

    monkeypatch.setattr(sending.Sending, "_begin", watched)
    whole = query.task(0, [b"k:0"])
    files = imported_files(data)
    monkeypatch.setattr(sink, "_identity", lambda: ("q", 0))
    good = pa.record_batch({"event": [b"a", b"b"], "routing_key": ["k", "k"]})
    broken = pa.record_batch({"event": [b"a", None], "routing_key": ["k", "k"]})
    with pytest.raises(InvalidArgumentError, match="null"):
        query._planned.write(iter([good, broken]))
    assert world.transactions(stream, seen) == ["open", "aborted"] * (way == "wire")
    assert imported_files(data) == files
    # Another attempt of the task wins all the same.
    query.writer().commit([whole, query.task(0, [b"k:1"], 1)], batchId=0)
    assert stored(data, stream) == [b"k:0", b"k:1"]


def test_rows_that_name_another_stream_are_refused_and_nothing_of_their_task_stays(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = world.create("s")
    query = Query(data, stream, "q", monkeypatch)
    source = PenstockSource({"controller": str(data), "path": str(stream), "direct": str(query.way != "wire")})
    monkeypatch.setattr(PenstockSource, "connector", staticmethod(open_here))
    columns = StructType().add("event", "binary").add("scope", "string").add("stream", "string")
    writer = source.streamWriter(columns, overwrite=False)
    monkeypatch.setattr(sink, "_identity", lambda: ("q", 0))

    def rows(scope: str, *names: str | None) -> pa.RecordBatch:
        events = [b"%d" % number for number in range(len(names))]
        named = {"scope": pa.array([scope] * len(names), pa.string()), "stream": pa.array(names, pa.string())}
        return pa.record_batch({"event": events, **named})

    files = imported_files(data)
    for wrong, column in (
        (rows(stream.scope, "s", "t"), "column=stream found=t"),
        (rows(stream.scope, "s", None), "column=stream found=None"),
        (rows("other", "s"), "column=scope found=other"),
    ):
        with pytest.raises(InvalidArgumentError, match="another stream") as caught:
            writer.write(iter([rows(stream.scope, "s"), wrong]))
        assert column in str(caught.value)
        assert imported_files(data) == files
    message = writer.write(iter([rows(stream.scope, "s", str(stream))]))
    writer.commit([message], batchId=0)
    assert stored(data, stream) == [b"0", b"1"]


def imported_files(data: Path) -> list[str]:
    """Chunks that tasks wrote, and their sidecars."""
    return sorted(path.name for path in (data / "chunks").glob("*/i*") if not path.name.startswith("i0-"))


def test_what_attempts_left_goes_once_their_batch_is_decided(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    stream = world.create("s", 2)
    query = Query(data, stream, "q", monkeypatch)
    won = query.task(0, keyed(0, 50))
    query.task(0, keyed(0, 50))
    assert len(imported_files(data)) == (8 if way == "direct" else 0)
    query.writer().commit([won], batchId=0)
    lost = query.task(1, keyed(50, 60))
    query.writer().abort([lost], batchId=1)
    world.flush()
    assert len(imported_files(data)) == (4 if way == "direct" else 0)
    assert sorted(stored(data, stream)) == sorted(keyed(0, 50))


def test_partitions_of_one_key_are_in_order_whichever_way_they_take(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few rows beside many, as of a range that was cut and sorted."""
    stream = world.create("s", 3)
    query = Query(data, stream, "q", monkeypatch)
    query.plan()
    messages = []
    bounds = [0, 3, 900, 905, 1800, 1801, 1802]
    for partition, (first, last) in enumerate(pairwise(bounds)):
        monkeypatch.setattr(attempt, "INLINE_BYTES", 1000)
        messages.append(query.task(0, keyed(first, last), partition))
    assert {item.inline is None for item in messages} == {True, False}
    query.writer().commit(messages[3:] + messages[:3], batchId=0)
    found = stored(data, stream)
    assert sorted(found) == sorted(keyed(0, 1802))
    assert in_order(found)


def test_a_scale_between_the_tasks_and_the_commit_changes_nothing(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = world.create("s", 2)
    query = Query(data, stream, "q", monkeypatch)
    query.run(0, keyed(0, 100))
    query.plan()
    first = query.task(1, keyed(100, 200))
    world.scale(stream, 3)
    second = query.task(1, keyed(200, 300), 1)
    world.scale(stream, 2)
    query.writer().commit([first, second], batchId=1)
    query.run(2, keyed(300, 400))
    found = stored(data, stream)
    assert sorted(found) == sorted(keyed(0, 400))
    assert in_order(found)


def test_a_sealed_stream_is_told_with_what_to_do(world: World, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = world.create("s", 2)
    query = Query(data, stream, "q", monkeypatch)
    task = query.task(0, keyed(0, 50))
    world.seal(stream)
    with pytest.raises((StreamSealedError, TransactionStateError, TransactionNotFoundError)) as met:
        query.writer().commit([task], batchId=0)
    line = reason(met.value)
    assert line is not None
    assert "; " in line
    assert "\n" not in line
    with pytest.raises(StreamSealedError, match="write to another"):
        query.run(1, keyed(0, 50))


def test_a_new_checkpoint_under_an_old_name_is_refused_unless_reset(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = world.create("s")
    old = Query(data, stream, "q1", monkeypatch, writer_id="app")
    old.run(0, [b"k:0"])
    old.run(1, [b"k:1"])
    fresh = Query(data, stream, "q2", monkeypatch, writer_id="app")
    with pytest.raises(ConflictError, match="reset_writer"):
        fresh.run(0, [b"k:2"])
    reset = Query(data, stream, "q2", monkeypatch, writer_id="app", reset_writer="true")
    reset.run(0, [b"k:2"])
    reset.run(0, [b"k:2"])
    assert stored(data, stream) == [b"k:0", b"k:1", b"k:2"]


def test_queries_do_not_take_each_others_batches_for_repeats(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = world.create("s")
    for name in ("q1", "q2"):
        Query(data, stream, name, monkeypatch).run(0, [b"k:0"])
    assert stored(data, stream) == [b"k:0", b"k:0"]


def test_a_missing_stream_is_made_only_where_that_is_allowed(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = StreamName("new", "made")
    for refused in ({"allow_create_scope": "false"}, {"allow_create_stream": "false"}):
        with pytest.raises((StreamNotFoundError, ScopeNotFoundError)):
            Query(data, stream, "q", monkeypatch, **refused).run(0, [b"k:0"])
    Query(data, stream, "q", monkeypatch, default_num_segments="3").run(0, keyed(0, 20))
    assert sorted(stored(data, stream)) == sorted(keyed(0, 20))
    assert len(world.tail(stream).positions) == 3


def test_large_parts_are_in_flight_together_and_arrive_in_order(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = world.create("s", 2)
    events = [b"k%d:%d:" % (n % 5, n) + bytes(200_000) for n in range(60)]
    Query(data, stream, "q", monkeypatch).run(0, events)
    found = stored(data, stream)
    assert sorted(found) == sorted(events)
    assert in_order(found)


class Flaky:
    """A real store that goes away under appends: of those of a turn, some are stored, and no answer comes for any.

    As on the wire, what is appended behind a lost append is refused, until the writer asks what is stored.
    """

    def __init__(self, services: Services, *, stored: int, turns: int) -> None:
        self._segments = services.segments
        self._stored = stored
        self._turns = turns
        self._broken: dict[str, int] = {}
        self.lost = self.refused = self.setups = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._segments, name)

    async def setup_append(self, name: str, writer: UUID) -> int:
        self.setups += 1
        self._broken.pop(name, None)
        return await self._segments.setup_append(name, writer)

    async def append(self, request: Append) -> Appended:
        if request.segment in self._broken or (self.lost < self._turns and self._breaks(request)):
            after = self._broken[request.segment] = self._broken.get(request.segment, 0) + 1
            if after > 1:
                self.refused += 1
                raise WriterFencedError("last event number differs", segment=request.segment)
            self.lost += 1
            if self.lost <= self._stored:
                await self._segments.append(request)
            raise NotConnectedError("connection to a segment store is lost", segment=request.segment)
        return await self._segments.append(request)

    def _breaks(self, request: Append) -> bool:
        return request.event_number > 3


@pytest.mark.parametrize("way", ["wire"], indirect=True)
def test_a_store_that_goes_away_under_appends_gets_each_event_once(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = world.create("s", 2)
    made: list[Flaky] = []

    async def flaky(address: str) -> Services:
        services = await open_here(address)
        made.append(Flaky(services, stored=2, turns=4))
        return Services(services.controller, cast(Any, made[-1]), services.close)

    close_links()
    events = [b"k%d:%d:" % (n % 5, n) + bytes(300_000) for n in range(80)]
    monkeypatch.setattr(sink, "_identity", lambda: ("q", 0))
    given = parse_write({"controller": str(data), "path": str(stream), "direct": "false"})
    rows = pa.record_batch({"event": events, "routing_key": [event.split(b":")[0].decode() for event in events]})
    writer = StreamWriter(flaky, given, True)
    writer.commit([writer.write(iter([rows]))], batchId=0)
    found = [bytes(event) for event in read_with(flaky, data, stream)]
    close_links()
    assert sorted(found) == sorted(events)
    assert in_order(found)
    assert made[0].lost == 4
    assert made[0].refused > 0
    assert made[0].setups > 2


class Late:
    """A real store in which answers of the commit's calls are lost, and the calls arrive behind their repeats' questions."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._segments = services.segments
        self.lost: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._segments, name)

    def _lose(self, what: str) -> bool:
        self.lost.append(what)
        return self.lost.count(what) <= 2

    async def append(self, request: Append) -> Appended:
        done = await self._segments.append(request)
        if self._lose("append"):
            raise NotConnectedError("connection to a segment store is lost", segment=request.segment)
        return done

    async def grant_import(self, name: str) -> Any:
        return await cast(Any, self._segments).grant_import(name)

    async def adopt_chunks(self, name: str, offset: int, chunks: Any) -> int:
        done = await cast(Any, self._segments).adopt_chunks(name, offset, chunks)
        if self._lose("adopt"):
            raise NotConnectedError("connection to a server is lost", segment=name)
        return int(done)


@pytest.mark.parametrize("way", ["inline", "direct"], indirect=True)
def test_a_commit_whose_answers_are_lost_goes_on_where_it_stood(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    stream = world.create("s", 2)
    made: list[Late] = []
    real = link(open_here, str(data))

    async def late(address: str) -> Services:
        assert real._services is not None
        made.append(Late(real._services))

        async def closed() -> None:
            return None

        return Services(real._services.controller, cast(Any, made[-1]), closed)

    monkeypatch.setattr(sink, "_identity", lambda: ("q", 0))
    writer = StreamWriter(late, parse_write({"controller": str(data), "path": str(stream)}), True)
    events = keyed(0, 300)
    rows = pa.record_batch({"event": events, "routing_key": [event.split(b":")[0].decode() for event in events]})
    with monkeypatch.context() as patch:
        # The loop in which the store lives: in another one it would be asked, and never wake.
        patch.setattr(link(late, str(data)), "_runner", real._runner)
        writer.commit([writer.write(iter([rows]))], batchId=0)
    found = stored(data, stream)
    assert sorted(found) == sorted(events)
    assert in_order(found)
    # A call that was cancelled because another one's answer was lost is not asked again where it was done.
    assert any(item.lost for item in made)


@pytest.mark.parametrize("way", ["wire"], indirect=True)
def test_a_writer_that_is_really_fenced_says_so(world: World, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = world.create("s")
    query = Query(data, stream, "q", monkeypatch)

    class Fenced:
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        async def append(self, request: Append) -> Appended:
            raise WriterFencedError("last event number differs", segment=request.segment)

    appender = wire_attempt.WireAttempt

    def fenced(services: Services, *rest: Any) -> Any:
        return appender(Services(services.controller, cast(Any, Fenced(services.segments)), services.close), *rest)

    monkeypatch.setattr(sending, "WireAttempt", fenced)
    with pytest.raises(WriterFencedError):
        query.task(0, [b"k:0"])


def test_an_abort_gives_up_soon_and_hides_nothing(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def nowhere(address: str) -> Services:
        raise NotConnectedError("no store answers at this address", address=address)

    given = parse_write({"controller": "here:1", "path": "plant/s"})
    writer = StreamWriter(nowhere, given, True)
    writer.abort([TaskWritten("q/plant/s", 1, UUID(int=99), 1, 1), None], batchId=1)
    assert "left to their leases" in caplog.text


def test_overwriting_is_refused_before_anything_is_written() -> None:
    source = PenstockSource({"path": "plant/s"})
    with pytest.raises(InvalidArgumentError, match=r"mode\('append'\)"):
        source.writer(SCHEMA, overwrite=True)
    with pytest.raises(InvalidArgumentError, match=r"outputMode\('append'\)"):
        source.streamWriter(schema=SCHEMA, overwrite=True)


def test_an_illegal_stream_name_is_refused_when_the_writer_is_made() -> None:
    source = PenstockSource({"path": "plant/restart_copy"})
    for make in (source.writer, source.streamWriter):
        with pytest.raises(InvalidNameError, match="option stream: stream name is not legal"):
            make(SCHEMA, overwrite=False)


@settings(deadline=None)
@given(last=st.one_of(st.none(), st.integers(0, 9)), batch=st.integers(0, 9))
def test_a_repeat_is_the_last_batch_and_nothing_older_passes_for_one(last: int | None, batch: int) -> None:
    if last is not None and batch < last:
        with pytest.raises(ConflictError):
            is_repeat(last, batch, writer="w", ordered=True)
        assert is_repeat(last, batch, writer="w", ordered=False)
    else:
        assert is_repeat(last, batch, writer="w", ordered=True) is (last == batch)


class Heard:
    """A part of a real store; remembers what was asked of it, in order, and the transactions it has begun."""

    def __init__(self, inner: Any, calls: list[str], begun: list[UUID]) -> None:
        self._inner = inner
        self._calls = calls
        self._begun = begun

    def __getattr__(self, name: str) -> Any:
        if name in SUBJECTS:
            return getattr(Around(self._inner, self._heard), name)
        return self._heard(name, getattr(self._inner, name))

    def _heard(self, name: str, call: Any) -> Any:
        self._calls.append(name)
        return self._create if name == "transactions.create" else call

    async def _create(self, stream: StreamName, *, lease_ms: int) -> Transaction:
        made: Transaction = await self._inner.transactions.create(stream, lease_ms=lease_ms)
        self._begun.append(made.id)
        return made


@pytest.mark.parametrize("way", ["inline"], indirect=True)
def test_few_rows_are_committed_by_few_calls_and_a_repeat_leaves_nothing(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    stream = world.create("s")
    real = link(open_here, str(data))
    calls: list[str] = []
    begun: list[UUID] = []

    services = real._services
    assert services is not None
    controller, segments = (Heard(part, calls, begun) for part in (services.controller, services.segments))
    monkeypatch.setattr(real, "_services", Services(cast(Any, controller), cast(Any, segments), services.close))
    monkeypatch.setattr(sink, "_identity", lambda: ("q", 0))
    writer = StreamWriter(open_here, parse_write({"controller": str(data), "path": str(stream)}), False)
    message = writer.write(iter([pa.record_batch({"event": [b"a", b"b"]})]))
    assert calls == []
    writer.commit([message], batchId=0)
    once = ["batches.last", "transactions.create", "setup_append", "append", "batches.commit"]
    assert calls == once
    writer.commit([message], batchId=0)
    assert calls[len(once) :] == ["batches.last", "transactions.create", "batches.commit"]
    assert stored(data, stream) == [b"a", b"b"]
    assert world.transactions(stream, begun) == ["committed", "aborted"]
