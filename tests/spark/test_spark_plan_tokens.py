"""The token of a plan: tasks need no credentials, and can do no more than the plan. Spark's calls are made here.

The driver has the credentials of a user in its environment. What it ships is pickled, and tasks run without them.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from auth_world import PASSWORD, AuthServer, auth_server, without_credentials
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

import penstock
from penstock.model.credentials import Credentials
from penstock.model.errors import InvalidArgumentError, PermissionDeniedError, PlanExpiredError, UnauthenticatedError
from penstock.model.names import StreamName
from penstock.spark.connect import close_links, dial
from penstock.spark.options import parse_sink, parse_source
from penstock.spark.reading.stream import StreamReader
from penstock.spark.source import BatchReader
from penstock.spark.worker import plan_access
from penstock.spark.worker.plan_access import PlanConnector, token_groups
from penstock.spark.writing.sink import BatchWriter
from penstock.storage.machine.clock import RealClock

pytestmark = pytest.mark.server
SCHEMA = StructType().add("event", "binary")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuthServer]:
    with auth_server(tmp_path_factory.mktemp("auth")) as running:
        with running.store() as store:
            for name in ("in", "other"):
                with store.create_stream(f"plant/{name}").writer() as writer:
                    for number in range(20):
                        writer.write(f"{name}:{number}".encode(), key="k")
        yield running


class Places:
    """The environments of the driver and of the executors, of which this process has one at a time."""

    def __init__(self, patch: pytest.MonkeyPatch, server: AuthServer) -> None:
        self._patch = patch
        self._server = server

    def _become(self, environment: dict[str, str]) -> None:
        close_links()
        for name in plan_access.os.environ.keys() - without_credentials(plan_access.os.environ).keys():
            self._patch.delenv(name)
        for name, value in environment.items():
            self._patch.setenv(name, value)

    def driver(self, user: str = "etl") -> None:
        self._become(self._server.environment(user))

    def executor(self) -> None:
        self._become({"PENSTOCK_TLS_CA": str(self._server.authority)})


@pytest.fixture
def places(server: AuthServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Places]:
    found = Places(monkeypatch, server)
    found.driver()
    yield found
    close_links()


def shipped(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def reader_of(server: AuthServer, **options: str) -> BatchReader:
    return BatchReader(dial, parse_source({"controller": server.address, "path": "plant/in", **options}), SCHEMA)


def rows_of(reader: Any, partitions: Any) -> list[bytes]:
    return [event for item in partitions for rows in reader.read(item) for event in rows["event"].to_pylist()]


def token_of(partitions: Any) -> str:
    access = partitions[0].value.access
    assert isinstance(access, PlanConnector)
    return access._token


def connected(server: AuthServer, token: str) -> penstock.Store:
    return penstock.connect(server.address, tls_ca=server.authority, credentials=Credentials.bearer(token))


def written(store: penstock.Store, name: str) -> None:
    with store.stream(name).writer() as writer:
        writer.write(b"x")
        writer.flush()


def test_tasks_of_a_batch_read_need_no_credentials(server: AuthServer, places: Places) -> None:
    reader, partitions = shipped((plan := reader_of(server), plan.partitions()))
    places.executor()
    with pytest.raises(UnauthenticatedError):
        reader_of(server).partitions()
    plan_access._newest.clear()  # a process that has served very many plans forgets the older ones
    assert rows_of(reader, partitions) == [b"in:%d" % number for number in range(20)]


def test_tasks_of_each_micro_batch_have_a_token(server: AuthServer, places: Places) -> None:
    options = parse_source({"controller": server.address, "path": "plant/in", "start_stream_cut": "earliest"})
    plan = StreamReader(dial, options, SCHEMA)
    start = plan.initialOffset()
    end = plan.latestOffset(start, ReadAllAvailable())
    reader, partitions = shipped((plan, plan.partitions(start, end)))
    places.executor()
    assert rows_of(reader, partitions) == [b"in:%d" % number for number in range(20)]


@pytest.mark.parametrize("direct", ["true", "false"])
def test_tasks_of_a_write_need_no_credentials(server: AuthServer, places: Places, tmp_path: Path, direct: str) -> None:
    path = f"plant/written-{direct}"
    options = parse_sink({"controller": server.address, "path": path, "direct": direct})
    writer = shipped(BatchWriter(dial, options, False).planned())
    places.executor()
    rows = pa.record_batch({"event": [bytes([65 + number]) * 200_000 for number in range(3)]})
    written = writer.write(iter([rows]))
    assert written.inline is None, "the task itself has sent the rows"
    places.driver()
    writer.commit([written])
    with server.store() as store, store.stream(path).reader() as reader:
        assert [bytes(reader.read(timeout_s=10).data)[:1] for _ in range(3)] == [b"A", b"B", b"C"]


def test_a_token_to_read_reads_no_other_stream_and_writes_none(server: AuthServer, places: Places) -> None:
    token = token_of(reader_of(server).partitions())
    with connected(server, token) as store:
        with store.stream("plant/in").reader() as reader:
            assert bytes(reader.read(timeout_s=10).data) == b"in:0"
        with pytest.raises(PermissionDeniedError), store.stream("plant/other").reader() as reader:
            reader.read(timeout_s=10)
        for name in ("plant/in", "plant/other"):
            with pytest.raises(PermissionDeniedError):
                written(store, name)
        with pytest.raises(PermissionDeniedError):
            store.stream("plant/in").delete()
        with pytest.raises(PermissionDeniedError):
            store.create_stream("plant/more")


def test_a_token_to_write_reads_nothing_and_writes_no_other_stream(server: AuthServer, places: Places) -> None:
    options = parse_sink({"controller": server.address, "path": "plant/in"})
    access = BatchWriter(dial, options, False).planned()._tasks
    assert isinstance(access, PlanConnector)
    with connected(server, access._token) as store:
        with pytest.raises(PermissionDeniedError), store.stream("plant/in").reader() as reader:
            reader.read(timeout_s=10)
        with pytest.raises(PermissionDeniedError):
            written(store, "plant/other")


def test_a_reader_gets_no_token_to_write(server: AuthServer, places: Places) -> None:
    places.driver("rob")
    plan = reader_of(server)
    assert rows_of(plan, plan.partitions())
    with pytest.raises(PermissionDeniedError):
        BatchWriter(dial, parse_sink({"controller": server.address, "path": "plant/in"}), False).planned()


def test_rows_that_name_their_streams_are_written_only_where_the_user_may(server: AuthServer, places: Places) -> None:
    server.change("sam", "/scope:plant/stream:oth*=write", "/scope:plant=read")
    places.driver("sam")
    options = parse_sink({"controller": server.address, "scope": "plant"})
    access = BatchWriter(dial, options, False, ("stream",)).planned()._tasks
    assert isinstance(access, PlanConnector)
    with connected(server, access._token) as store:
        written(store, "plant/other")
        with pytest.raises(PermissionDeniedError):
            written(store, "plant/in")


def test_removing_a_user_ends_the_tokens_of_its_plans(server: AuthServer, places: Places) -> None:
    server.change("tim", "/scope:plant=read")
    places.driver("tim")
    reader, partitions = shipped((plan := reader_of(server), plan.partitions()))
    server.change("tim")
    places.executor()
    with pytest.raises(UnauthenticatedError, match="user of the plan was removed"):
        rows_of(reader, partitions)


class Later:
    """The clock of an executor, so many seconds ahead."""

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds

    def now_ms(self) -> int:
        return RealClock().now_ms() + self._seconds * 1000


def test_a_task_that_starts_late_fails_with_what_to_do(
    server: AuthServer, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, partitions = shipped((plan := reader_of(server), plan.partitions()))
    places.executor()
    monkeypatch.setattr(plan_access, "RealClock", lambda: Later(3601))
    with pytest.raises(PlanExpiredError, match=r"run the query again.*token_seconds"):
        rows_of(reader, partitions)


def test_a_task_renews_its_token_after_half_of_its_life(
    server: AuthServer, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, partitions = shipped((plan := reader_of(server, token_seconds="600"), plan.partitions()))
    first = token_of(partitions)
    places.executor()
    key = plan_access._claims(first).key
    monkeypatch.setattr(plan_access, "RealClock", lambda: Later(301))
    assert rows_of(reader, partitions) == [b"in:%d" % number for number in range(20)]
    second = plan_access._newest[key]
    assert plan_access._claims(second).expires_s >= plan_access._claims(first).expires_s
    with connected(server, second) as store, pytest.raises(PermissionDeniedError):
        store.stream("plant/other").reader().__enter__().read(timeout_s=10)


def test_pickled_tasks_show_no_token_and_no_password(server: AuthServer, places: Places) -> None:
    partitions = reader_of(server).partitions()
    writer = BatchWriter(dial, parse_sink({"controller": server.address, "path": "plant/in"}), False).planned()
    for shown in (repr(partitions[0].value), repr(partitions[0].value.access), repr(vars(writer))):
        assert "eyJ" not in shown
    assert server.environment("etl")["PENSTOCK_PASSWORD_FILE"].encode() not in pickle.dumps((partitions, writer))


@pytest.mark.parametrize("option", ["user", "password", "token", "credentials", "passwordFile", "authorization"])
@pytest.mark.parametrize("parse", [parse_source, parse_sink])
def test_no_option_takes_a_secret_and_the_refusal_does_not_repeat_it(parse: Any, option: str) -> None:
    with pytest.raises(InvalidArgumentError, match="no such option") as refused:
        parse({"path": "plant/in", option: PASSWORD})
    assert PASSWORD not in str(refused.value)
    assert PASSWORD not in repr(refused.value.fields)


@pytest.mark.parametrize("value", ["9", "86401", "-1", "1h", "1" * 30])
@pytest.mark.parametrize("parse", [parse_source, parse_sink])
def test_a_token_is_valid_for_ten_seconds_to_a_day(parse: Any, value: str) -> None:
    for legal in ("10", "86400"):
        assert parse({"path": "plant/in", "token_seconds": legal}).token_s == int(legal)
    with pytest.raises(InvalidArgumentError, match="token_seconds must be a whole number from 10 to 86400"):
        parse({"path": "plant/in", "token_seconds": value})


@pytest.mark.parametrize("count", [0, 1, 7, 200])
def test_a_token_has_only_as_many_streams_as_fit(count: int) -> None:
    streams = [StreamName("s" * 100, f"{number:0100d}") for number in range(count)]
    groups = token_groups(streams)
    assert [item for group in groups for item in group] == streams
    assert all(sum(len(str(item)) for item in group) <= 6_000 for group in groups)
