"""Lag of a query, from its offsets, and what is reported where chunks cannot be read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from spark_driver import SCHEMA, Driver
from spark_world import World, keyed, open_here

from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidCutError, UnavailableError, UnsupportedError
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId
from penstock.ports.control.subscribers import SubscriberInfo
from penstock.spark import connect, lag
from penstock.spark.connect import Link
from penstock.spark.lags import subscriber_lag
from penstock.spark.options import parse_read
from penstock.spark.reading import losses
from penstock.spark.reading import progress as reading_progress
from penstock.spark.reading.plan import Piece, Share
from penstock.spark.reading.positions import Loss
from penstock.spark.reading.progress import LagListener, lags
from penstock.spark.reading.scan import Shape, read_share
from penstock.spark.source import BatchReader
from tests.flat_control import FlatControl


@pytest.fixture
def world(world_here: World) -> World:
    return world_here


def progress(offset: dict[str, Any]) -> dict[str, Any]:
    return {"name": "q", "id": "1", "sources": [{"endOffset": offset}, {"endOffset": "not ours"}, {"endOffset": None}]}


def share_link(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store in this process has one connection: that of the test."""

    class Borrowed(Link):
        def __init__(self, connector: Any, address: str) -> None:
            self.ask = world.link.ask  # type: ignore[method-assign]

        def close(self) -> None:
            """It is the test's."""

    monkeypatch.setattr("penstock.spark.reading.progress.Link", Borrowed)


def test_a_lag_is_what_a_query_has_not_read_over_scales_and_truncation(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share_link(world, monkeypatch)
    stream = world.create("s", 2)
    world.write(stream, keyed(0, 100))
    world.wait_tiered(stream)
    driver = Driver(data, stream, max_events_per_trigger="30")
    read = len(driver.batch() or [])
    world.scale(stream, 3)
    world.write(stream, keyed(100, 150))
    (lag,) = lags(progress(driver.log[-1]))
    assert (lag.stream, lag.events) == (stream, 150 - read)
    total = sum(len(event) + 8 for event in keyed(0, 150))
    assert lag.bytes == total - sum(driver.log[-1]["segments"].values())
    assert lag.seconds is not None
    assert 0 <= lag.seconds < 60
    shown = repr(replace(lag, seconds=2.4375))
    assert shown == f"Lag(stream='{stream}', bytes={lag.bytes}, events={lag.events}, seconds=2.438)"
    listener = LagListener()
    reported = SimpleNamespace(name="q", id="1", sources=[SimpleNamespace(endOffset=driver.log[-1])])
    listener.onQueryStarted(SimpleNamespace(name="q", id="1"))
    listener.onQueryProgress(SimpleNamespace(progress=reported))
    assert [(item.bytes, item.events) for item in listener.latest["q"]] == [(lag.bytes, lag.events)]
    listener.onQueryTerminated(SimpleNamespace(id="1"))
    assert listener.latest == {}
    driver.all()
    (lag,) = lags(progress(driver.log[-1]))
    assert (lag.bytes, lag.events, lag.seconds) == (0, 0, 0.0)
    assert lags(SimpleNamespace(lastProgress=None)) == []


def reported(driver: Driver) -> dict[str, Any]:
    """A progress of the driver's query, as Spark makes it."""
    latest = driver.reader.reportLatestOffset()
    return {"sources": [{"endOffset": json.dumps(driver.log[-1]), "latestOffset": json.dumps(latest)}]}


def test_a_source_reports_what_each_batch_leaves_unread(world: World, data: Path) -> None:
    stream = world.create("s", 2)
    world.write(stream, keyed(0, 100))
    driver = Driver(data, stream, max_events_per_trigger="30", subscriber="q")
    left = 100
    while (events := driver.batch()) is not None:
        left -= len(events)
        driver.reader._batch_lag._measure_at = 0.0
        latest = driver.reader.reportLatestOffset()
        assert latest is not None
        (lag,) = latest["lag"]
        assert (lag["stream"], lag["events"]) == (str(stream), left)
        assert (lag["bytes"] == 0) == (lag["seconds"] == 0.0) == (left == 0)
        assert (latest["controller"], latest["subscriber"]) == (str(data), "q")
        # Measured once for each batch.
        assert driver.reader.reportLatestOffset() == latest
    assert left == 0


def test_a_lag_that_takes_long_to_measure_is_left_out_and_an_error_fails_no_query(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stream = world.create("s")
    world.write(stream, keyed(0, 9))
    driver = Driver(data, stream, max_events_per_trigger="3")
    driver.batch()
    driver.reader._batch_lag._measure_at = float("inf")
    assert "lag" not in (driver.reader.reportLatestOffset() or {})
    driver.batch()
    driver.reader._batch_lag._measure_at = 0.0

    async def away(*_: object) -> None:
        raise UnavailableError("away")

    monkeypatch.setattr("penstock.spark.lags.unread_after", away)
    caplog.set_level("INFO", "penstock.spark")
    assert "lag" not in (driver.reader.reportLatestOffset() or {})
    assert "lag of a batch is not known" in caplog.text
    assert driver.batch()


def test_one_call_has_the_lag_of_all_streams_and_what_became_of_the_subscriber(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share_link(world, monkeypatch)
    names = [world.create(name) for name in ("a", "b")]
    for stream in names:
        world.write(stream, keyed(0, 20))
    query = Driver(data, names[0], path="", scope="plant", subscriber="q")
    query.all()
    world.write(names[1], keyed(20, 25))
    first, second = lag(SimpleNamespace(lastProgress=reported(query)))
    assert [(item.stream, item.events) for item in (first, second)] == [(names[0], 0), (names[1], 5)]
    assert first.subscriber is not None
    assert second.subscriber is not None
    assert (first.subscriber.name, first.subscriber.state) == ("q", "registered")
    # What it has published is as far as Spark has committed.
    assert (second.subscriber.events, second.subscriber.owner) == (
        5,
        f"Spark query {query.log[-1]['streams'][0]['query']}",
    )
    world.link.run(lambda services: services.controller.groups.delete("plant", "q"))
    assert {
        item.subscriber and item.subscriber.state for item in lag(SimpleNamespace(lastProgress=reported(query)))
    } == {"missing"}
    assert lag(SimpleNamespace(lastProgress=None)) == []
    assert {item.subscriber for item in lags(reported(query))} == {None}


def test_a_subscriber_of_another_query_is_told_from_ones_own() -> None:
    cut = StreamCut(StreamName("plant", "s"), {})
    known = SubscriberInfo(name="plant/q", generation=0, cut=cut, updated_ms=0, lag_bytes=9, lag_ms=2500, query="other")
    assert subscriber_lag("q", "mine", known).state == "taken over"
    own = subscriber_lag("q", "other", known)
    assert (own.state, own.bytes, own.events, own.seconds, own.held_bytes) == ("registered", 9, None, 2.5, None)
    fresh = subscriber_lag("q", "", replace(known, cut=None))
    assert (fresh.state, fresh.bytes) == ("registered", None)


def test_a_listener_outlives_a_stream_that_is_another_one_now(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    share_link(world, monkeypatch)
    stream = world.create("s")
    offset = {"v": 1, "stream": str(stream), "segments": {"77": 5}}
    with pytest.raises(InvalidCutError):
        lags(progress(offset))
    listener = LagListener()
    reported = SimpleNamespace(name=None, id="1", sources=[SimpleNamespace(endOffset=offset)])
    listener.onQueryProgress(SimpleNamespace(progress=reported))
    assert listener.latest == {}
    assert "lag is not known. query=1" in caplog.text


def test_a_store_of_an_earlier_version_tells_losses_as_far_as_it_can(
    world: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = world.create("s")
    world.write(stream, keyed(0, 50))
    start = dict(world.head(stream).positions)
    world.truncate(stream, world.tail(stream))
    end = dict(world.tail(stream).positions)

    class Older(FlatControl):
        async def cuts_measure(self, *_: object) -> None:
            raise UnsupportedError("the call is not offered by this server", rpc="Measure")

        async def retention_explain(self, *_: object, position: object) -> SimpleNamespace:
            return SimpleNamespace(gone=None)

    async def ask(_: connect.Services) -> tuple[Loss, ...]:
        services: Any = SimpleNamespace(controller=Older())
        return await losses.between(services, stream, start, end)

    (lost,) = world.link.run(ask)
    assert (lost.start, lost.end, lost.events, lost.rule) == (0, end[SegmentId(0)], None, None)


# --- where chunks cannot be read --------------------------------------------------------------------------------


def pieces(places: list[str | None]) -> tuple[Piece, ...]:
    return tuple(
        Piece(segment=SegmentId(0), start=at * 13, end=at * 13 + 13, location=place, chunk_start=at * 13)
        for at, place in enumerate(places)
    )


def shared(places: list[str | None], *, only: bool) -> tuple[list[bytes], list[int]]:
    """The events of a share, and the offsets that the store was asked for."""
    import pyarrow as pa

    asked: list[int] = []

    def fetch(segment: SegmentId, offset: int, size: int) -> bytes:
        asked.append(offset)
        return bytes(7) + b"\5" + b"%05d" % offset

    stream = StreamName("a", "b")
    share = Share(stream=stream, pieces=pieces(places), lease=uuid4(), lease_until_ms=0, only_direct=only)
    shape = Shape(pa.schema([pa.field("event", pa.binary())]), stream, 100)
    return [event for rows in read_share(share, shape, fetch) for event in rows["event"].to_pylist()], asked


NOWHERE = "s3://bucket/prefix/chunks/0/{}?endpoint=http%3A%2F%2F127.0.0.1%3A1"


def test_what_cannot_be_read_here_comes_from_the_store_and_its_neighbours_are_not_tried(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    for place in (str(tmp_path / "gone" / "{}"), NOWHERE):
        pytest.importorskip("obstore")
        caplog.clear()
        events, asked = shared([place.format(1), place.format(2), None], only=False)
        assert (events, asked) == ([b"00000", b"00013", b"00026"], [0, 13, 26])
        assert len([line for line in caplog.messages if "the store is asked" in line]) == 1


def test_direct_always_fails_with_one_line_and_still_reads_what_is_not_tiered(tmp_path: Path) -> None:
    assert shared([None], only=True) == ([b"00000"], [0])
    with pytest.raises(UnavailableError, match="direct=always allows no other source") as caught:
        shared([str(tmp_path / "gone" / "chunk")], only=True)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_direct_always_is_understood_and_reads_chunks(world: World, data: Path) -> None:
    stream = world.create("s")
    world.write(stream, keyed(0, 3000))
    world.wait_tiered(stream)
    world.write(stream, keyed(3000, 3010))
    given = {"controller": str(data), "path": str(stream), "direct": "always"}
    reader = BatchReader(open_here, parse_read(given), SCHEMA)
    planned = reader.partitions()
    assert all(item.value.only_direct for item in planned)
    found = [event for part in planned for rows in reader.read(part) for event in rows["event"].to_pylist()]
    assert found == keyed(0, 3010)


def test_a_listener_that_was_added_late_forgets_a_query_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_progress, "lags", lambda *_, **__: [])
    listener = LagListener()
    listener.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(name="named", id="1")))
    assert listener.latest == {"named": []}
    listener.onQueryTerminated(SimpleNamespace(id="1"))
    assert listener.latest == {}
