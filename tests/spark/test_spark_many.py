"""One source over several streams: choice, order, joining, deletion, subscribers and checkpoints, on a real store."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import StructType
from spark_driver import Driver, logged
from spark_world import World, in_order, keyed, open_here

from penstock.model.cuts import StreamCut
from penstock.model.errors import (
    InvalidArgumentError,
    InvalidCutError,
    InvalidNameError,
    ScopeNotFoundError,
    StreamNotFoundError,
    SubscriberNotFoundError,
    TruncatedError,
    WriterInUseError,
)
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId
from penstock.spark.choice import Matching, Named
from penstock.spark.options import parse_read, parse_source
from penstock.spark.reading.losses import offsets_in
from penstock.spark.reading.positions import offsets_of
from penstock.spark.reading.stream import StreamReader
from penstock.spark.source import BatchReader

NAMED = StructType().add("scope", "string").add("stream", "string").add("event", "binary")
A, B, C = (StreamName("plant", name) for name in "abc")


@pytest.fixture
def world(world_here: World, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("penstock.spark.reading.stream.LISTING_S", 0.0)
    monkeypatch.setattr("penstock.spark.reading.stream._LISTING_SHARE", 0)
    return world_here


class Many(Driver):
    """As ``Driver``, of several streams: events by stream."""

    def __init__(self, data: Path, log: list[dict[str, Any]] | None = None, **options: str) -> None:
        given = {"controller": str(data), "start_stream_cut": "earliest", **options}
        self.reader = StreamReader(open_here, parse_source({k: v for k, v in given.items() if v}), NAMED)
        self.log = list(log or ())

    def rows(self, start: dict[str, Any], end: dict[str, Any]) -> dict[str, list[bytes]]:
        found: dict[str, list[bytes]] = {}
        for partition in self.reader.partitions(start, end):
            for batch in self.reader.read(partition):
                for row in batch.to_pylist():
                    found.setdefault(f"{row['scope']}/{row['stream']}", []).append(row["event"])
        return found

    def next(self) -> dict[str, list[bytes]] | None:
        before = len(self.log) or 1
        if self.batch() is None:
            return None
        return self.rows(self.log[before - 1], self.log[before])

    def rest(self) -> dict[str, list[bytes]]:
        found: dict[str, list[bytes]] = {}
        while (batch := self.next()) is not None:
            for stream, events in batch.items():
                found.setdefault(stream, []).extend(events)
        return found


def delete(world: World, stream: StreamName) -> None:
    world.link.run(lambda services: services.controller.streams.delete(stream, seal=True))
    world.forget(stream)


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        ({"stream": "plant/a, plant/b"}, Named((A, B))),
        ({"scope": "plant", "stream": "b,a"}, Named((B, A))),
        ({"path": "plant/a,plant/b"}, Named((A, B))),
        ({"stream": "plant/a"}, Named((A,))),
        ({"scope": "plant"}, Matching(scope="plant", pattern=None)),
        ({"streamPattern": "plant/.*"}, Matching(scope=None, pattern="plant/.*")),
        ({"scope": "plant", "stream_pattern": ".*/a"}, Matching(scope="plant", pattern=".*/a")),
    ],
)
def test_streams_are_chosen_by_name_by_pattern_or_by_scope(given: dict[str, str], choice: object) -> None:
    assert parse_source(given).choice == choice


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"stream": "plant/a,plant/b,plant/a"}, InvalidArgumentError, "names a stream twice. stream=plant/a"),
        ({"scope": "plant", "stream": "a,plant/a"}, InvalidArgumentError, "twice"),
        ({"stream": "plant/a,,plant/b"}, InvalidArgumentError, "empty name"),
        ({"stream": "plant/a,plant/b c"}, InvalidNameError, "option stream: .*b c"),
        ({"stream": "plant/a,_system/_tables"}, InvalidNameError, "option stream"),
        ({"stream": "plant/a,b"}, InvalidNameError, "SCOPE/STREAM"),
        ({"scope": "other", "stream": "plant/a,b"}, InvalidArgumentError, "two scopes"),
        (
            {"stream": "plant/a", "streamPattern": "plant/.*"},
            InvalidArgumentError,
            "stream and stream_pattern .*drop one",
        ),
        ({"path": "plant/a", "streamPattern": "plant/.*"}, InvalidArgumentError, "drop one"),
        ({"stream": "plant/a,plant/b", "path": "plant/c"}, InvalidArgumentError, "two sets"),
        ({"streamPattern": "plant/("}, InvalidArgumentError, "stream_pattern must be a regular expression"),
        ({"scope": "_system"}, InvalidNameError, "option scope"),
        ({}, InvalidArgumentError, "which stream"),
        (
            {"scope": "plant", "start_stream_cut": StreamCut(A, {SegmentId(0): 0}).to_text()},
            InvalidArgumentError,
            "start_stream_cut is a cut of one stream",
        ),
    ],
)
def test_a_choice_that_cannot_be_meant_is_refused(given: dict[str, str], error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        parse_source(given)


def test_jobs_of_one_stream_refuse_several() -> None:
    with pytest.raises(InvalidArgumentError, match="one stream"):
        parse_read({"stream": "plant/a,plant/b"})


def test_a_choice_of_nothing_is_refused_where_a_read_begins(world: World, data: Path) -> None:
    world.create("a")
    for options, error, words in (
        ({"streamPattern": "plant/x.*"}, StreamNotFoundError, "no stream matches option stream_pattern"),
        ({"streamPattern": "a"}, StreamNotFoundError, "whole names SCOPE/STREAM"),
        ({"streamPattern": "_system/.*"}, StreamNotFoundError, "no stream matches"),
        ({"scope": "nowhere"}, ScopeNotFoundError, "nowhere"),
        ({"stream": "plant/a,plant/absent"}, StreamNotFoundError, "absent"),
    ):
        given = parse_source({"controller": str(data), **options})
        with pytest.raises(error, match=words):
            Many(data, **options).batch()
        with pytest.raises(error, match=words):
            BatchReader(open_here, given, NAMED).partitions()


@pytest.mark.parametrize(
    "options", [{"stream": "plant/a,plant/b"}, {"scope": "plant"}, {"streamPattern": "plant/[ab]"}]
)
def test_rows_of_all_streams_come_once_with_their_names(world: World, data: Path, options: dict[str, str]) -> None:
    for stream, segments in ((A, 1), (B, 2)):
        world.create(stream.stream, segments)
        world.write(stream, keyed(0, 500))
    query = Many(data, **options)
    first = query.rest()
    assert {stream: sorted(events) for stream, events in first.items()} == {
        str(s): sorted(keyed(0, 500)) for s in (A, B)
    }
    world.write(B, keyed(500, 510))
    assert sorted(query.rest()[str(B)]) == sorted(keyed(500, 510))
    reader = BatchReader(open_here, parse_source({"controller": str(data), **options}), NAMED)
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert sorted((row["stream"], row["event"]) for row in rows) == sorted(
        [("a", event) for event in keyed(0, 500)] + [("b", event) for event in keyed(0, 510)]
    )


def test_small_streams_share_a_task_and_limits_hold_for_all_together(world: World, data: Path) -> None:
    streams = [world.create(f"s{n}") for n in range(6)]
    for stream in streams:
        world.write(stream, keyed(0, 60))
    query = Many(data, scope="plant")
    query.batch()
    assert len(query.reader.partitions(query.log[0], query.log[1])) == 1
    for limit in (ReadMaxRows(50), ReadMaxBytes(700)):
        query = Many(data, scope="plant")
        sizes, found = [], []
        while (events := query.batch(limit)) is not None:
            sizes.append(len(events) if isinstance(limit, ReadMaxRows) else sum(len(event) + 8 for event in events))
            found += events
        assert sorted(found) == sorted(keyed(0, 60) * 6)
        assert max(sizes) <= (50 if isinstance(limit, ReadMaxRows) else 700)


def test_a_stream_that_appears_joins_at_its_head_and_in_the_same_query(world: World, data: Path) -> None:
    world.create("a")
    world.write(A, keyed(0, 10))
    query = Many(data, streamPattern="plant/.*", start_stream_cut="latest")
    assert query.next() is None
    world.create("b")
    world.write(B, keyed(0, 20))
    assert query.rest() == {str(B): keyed(0, 20)}
    world.write(A, keyed(10, 15))
    again = Many(data, query.log[-1:], streamPattern="plant/.*")
    world.create("c")
    world.write(C, keyed(0, 5))
    assert again.rest() == {str(A): keyed(10, 15), str(C): keyed(0, 5)}


def test_available_now_reads_the_streams_that_are_there_when_it_begins(world: World, data: Path) -> None:
    for stream in (A, B):
        world.create(stream.stream)
        world.write(stream, keyed(0, 10))
    query = Many(data, scope="plant")
    query.reader.prepareForTriggerAvailableNow()
    world.create("c")
    for stream in (A, B, C):
        world.write(stream, keyed(10, 20))
    assert query.rest() == {str(A): keyed(0, 10), str(B): keyed(0, 10)}
    later = Many(data, query.log[-1:], scope="plant")
    later.reader.prepareForTriggerAvailableNow()
    assert later.rest() == dict.fromkeys((str(A), str(B), str(C)), keyed(10, 20))


def test_a_checkpoint_of_one_stream_goes_on_when_more_are_chosen(world: World, data: Path) -> None:
    for stream in (A, B):
        world.create(stream.stream)
        world.write(stream, keyed(0, 30))
    one = Driver(data, A, subscriber="q")
    one.all()
    world.write(A, keyed(30, 40))
    many = Many(data, one.log[-1:], stream="plant/a,plant/b", subscriber="q")
    assert many.rest() == {str(A): keyed(30, 40), str(B): keyed(0, 30)}
    assert {entry["query"] for entry in many.log[-1]["streams"]} == {one.log[-1]["query"]}
    # And back, where the other stream is not chosen any more.
    with pytest.raises(InvalidCutError, match=r"do not choose.* stream=plant/b"):
        Many(data, many.log[-1:], stream="plant/a").batch()
    with pytest.raises(InvalidCutError, match=r"do not choose.* stream=plant/a"):
        Many(data, one.log[-1:], stream="plant/b,plant/c").batch()


@pytest.mark.parametrize("subscriber", ["", "q"])
@pytest.mark.parametrize("has_read", [True, False])
def test_a_deleted_stream_is_data_loss(world: World, data: Path, subscriber: str, has_read: bool) -> None:
    for stream in (A, B):
        world.create(stream.stream)
        world.write(stream, keyed(0, 30))
    options = {"scope": "plant", "subscriber": subscriber}
    query = Many(data, **options)
    if has_read:
        query.rest()
    else:
        query.log.append(logged(query.reader.initialOffset()))
    delete(world, A)
    world.write(B, keyed(30, 40))
    with pytest.raises(StreamNotFoundError, match=r"fail_on_data_loss=false.* stream=plant/a"):
        Many(data, query.log, **options).batch()
    lenient = Many(data, query.log, fail_on_data_loss="false", **options)
    assert lenient.next() == {str(B): keyed(30 if has_read else 0, 40)}
    (gone,) = [entry for entry in lenient.log[-1]["streams"] if entry["stream"] == str(A)]
    assert [item["rule"] for item in gone["lost"]] == ["deleted"]
    assert lenient.next() is None
    world.write(B, keyed(40, 41))
    assert lenient.next() == {str(B): keyed(40, 41)}
    assert [entry["stream"] for entry in lenient.log[-1]["streams"]] == [str(B)]
    # A new stream of the name joins as any other.
    world.create("a")
    world.write(A, keyed(0, 7))
    assert lenient.rest() == {str(A): keyed(0, 7)}
    if subscriber:
        assert world.published(A, "q") == world.tail(A)


def test_truncated_data_of_one_stream_is_reported_with_its_name(world: World, data: Path) -> None:
    for stream in (A, B):
        world.create(stream.stream)
        world.write(stream, keyed(0, 30))
    query = Many(data, scope="plant")
    query.log.append(logged(query.reader.initialOffset()))
    world.truncate(A, world.tail(A))
    with pytest.raises(TruncatedError, match="stream=plant/a"):
        query.batch()
    lenient = Many(data, query.log, scope="plant", fail_on_data_loss="false")
    assert lenient.rest() == {str(B): keyed(0, 30)}
    progress = {"sources": [{"endOffset": offset} for offset in lenient.log]}
    lost = [(offset["stream"], len(offset.get("lost", ()))) for offset in offsets_in(progress)]
    assert sum(count for stream, count in lost if stream == str(A)) == 1
    assert sum(count for stream, count in lost if stream == str(B)) == 0


def test_a_subscriber_holds_every_stream_also_those_that_join(world: World, data: Path) -> None:
    for stream in (A, B):
        world.create(stream.stream)
        world.write(stream, keyed(0, 30))
    query = Many(data, scope="plant", subscriber="q")
    query.log.append(logged(query.reader.initialOffset()))
    assert [world.published(stream, "q") for stream in (A, B)] == [world.head(stream) for stream in (A, B)]
    query.rest()
    assert [world.published(stream, "q") for stream in (A, B)] == [world.tail(stream) for stream in (A, B)]
    # What is committed may be deleted, and more streams may come behind that.
    world.truncate(A, world.tail(A))
    world.create("c")
    world.write(C, keyed(0, 9))
    begin = world.head(C)
    query.batch()
    assert world.published(C, "q") == begin
    query.rest()
    assert world.published(C, "q") == world.tail(C)
    other = Many(data, scope="plant", subscriber="q")
    with pytest.raises(WriterInUseError):
        other.batch()
    restarted = Many(data, query.log[-1:], scope="plant", subscriber="q")
    world.write(B, keyed(30, 31))
    assert restarted.rest() == {str(B): keyed(30, 31)}


def test_a_subscriber_that_is_removed_from_one_stream_fails_the_query(world: World, data: Path) -> None:
    for stream in (A, B):
        world.create(stream.stream)
        world.write(stream, keyed(0, 30))
    query = Many(data, scope="plant", subscriber="q")
    query.rest()
    world.link.run(lambda services: services.controller.groups.delete("plant", "q"))
    world.write(B, keyed(30, 31))
    query.batch()
    with pytest.raises(SubscriberNotFoundError):
        query.batch()


def test_offsets_of_many_are_read_back_and_anything_else_is_refused() -> None:
    choice = Matching(scope="plant", pattern=None)
    one = {"v": 1, "stream": "plant/a", "segments": {"0": 5}}
    assert offsets_of(one, choice).keys() == {A}
    assert offsets_of({"v": 4, "streams": [one]}, choice) == offsets_of(one, choice)
    for broken in (
        {"v": 4},
        {"v": 4, "streams": [7]},
        {"v": 4, "streams": [{"v": 1}]},
        {"v": 5},
        {"v": 1, "stream": 7},
    ):
        with pytest.raises(InvalidCutError):
            offsets_of(broken, choice)


@pytest.mark.parametrize("seed", range(6))
def test_streams_that_scale_come_and_go_deliver_each_event_once_in_order(world: World, data: Path, seed: int) -> None:
    """Restarts at any step, from the checkpoint; a batch that is repeated is the same."""
    rng = random.Random(seed)
    names, written = list("abcd"), dict.fromkeys("abcd", 0)
    alive: list[str] = []
    seen: dict[str, list[bytes]] = {}
    log: list[dict[str, Any]] = []
    options = {"streamPattern": "plant/.*", "max_events_per_trigger": "13", "subscriber": "q" if seed % 2 else ""}
    query: Many | None = None
    for _ in range(40):
        act = rng.random()
        if (act < 0.15 or not alive) and len(alive) < len(names):
            alive.append(names[len(alive)])
            world.create(alive[-1])
        elif act < 0.5:
            name = rng.choice(alive)
            world.write(StreamName("plant", name), keyed(written[name], written[name] + 9))
            written[name] += 9
        elif act < 0.65:
            world.scale(StreamName("plant", rng.choice(alive)), rng.randrange(1, 4))
        elif act < 0.75:
            query = None
        else:
            query = query or Many(data, log, **options)
            before = len(query.log) or 1
            if (events := query.next()) is not None:
                assert (
                    Many(data, **{**options, "subscriber": ""}).rows(query.log[before - 1], query.log[before]) == events
                )
                for stream, some in events.items():
                    seen.setdefault(stream, []).extend(some)
            log = query.log[-1:] if len(query.log) > 1 or log else []
            if not log:
                query, seen = None, {}
    query = Many(data, log, **options)
    for stream, some in query.rest().items():
        seen.setdefault(stream, []).extend(some)
    for name in alive:
        found = seen.get(f"plant/{name}", [])
        assert sorted(found) == sorted(keyed(0, written[name]))
        assert in_order(found)
