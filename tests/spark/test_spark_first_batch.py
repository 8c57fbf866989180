"""A first batch that fails after Spark has logged its end: the next run repeats it. Spark then asks for the start again."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from spark_driver import Driver, logged
from spark_world import World, keyed

import penstock.spark.reading.stream as stream_module
from penstock.model.cuts import StreamCut
from penstock.model.errors import TruncatedError, WriterInUseError
from penstock.model.names import StreamName


@pytest.fixture
def world(world_here: World, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(stream_module, "LONG_POLL_S", 0.0)
    return world_here


def plan(driver: Driver) -> list[bytes]:
    """Batch 0 as far as its tasks have read it, with nothing committed. The log holds its end."""
    start = logged(driver.reader.initialOffset())
    end = logged(driver.reader.latestOffset(start, driver.reader.getDefaultReadLimit()))
    driver.log = [end]
    return driver.read(start, end)


def repeat(failed: Driver, data: Path, stream: StreamName, **options: str) -> tuple[Driver, list[bytes]]:
    """A new process repeats batch 0, called as Spark calls it."""
    other = Driver(data, stream, **options)
    other.log = list(failed.log)
    return other, other.read(logged(other.reader.initialOffset()), other.log[0])


def cut_behind(world: World, data: Path, stream: StreamName, events: int) -> StreamCut:
    probe = Driver(data, stream)
    start = logged(probe.reader.initialOffset())
    end = logged(probe.reader.latestOffset(start, ReadMaxRows(events)))
    return StreamCut(stream, {int(segment): offset for segment, offset in end["segments"].items()})


def lost_bytes(driver: Driver) -> dict[int, int]:
    """What the offsets in the log report as passed over, by segment."""
    found: dict[int, int] = {}
    for offset in driver.log:
        for loss in offset.get("lost", ()):
            found[loss["segment"]] = found.get(loss["segment"], 0) + loss["to"] - loss["from"]
    return found


@pytest.mark.parametrize("start", ["earliest", ""])
def test_a_query_with_a_subscriber_repeats_its_first_batch_at_every_start(world: World, data: Path, start: str) -> None:
    stream = world.create("s")
    options = {"subscriber": "q", "start_stream_cut": start}
    first = Driver(data, stream, **options)
    begin = logged(first.reader.initialOffset())
    world.write(stream, keyed(0, 30))
    first.log = [logged(first.reader.latestOffset(begin, first.reader.getDefaultReadLimit()))]
    assert first.read(begin, first.log[0]) == keyed(0, 30)
    for number in range(1, 4):
        world.write(stream, keyed(30 * number, 30 * number + 30))
        later, events = repeat(first, data, stream, **options)
        assert events == keyed(0, 30)
        assert dict(world.published(stream, "q").positions) == {0: 0}, "nothing of the batch is committed"
    assert [event for batch in later.all() for event in batch] == keyed(30, 120)
    with pytest.raises(WriterInUseError):
        Driver(data, stream, **options).batch()


def test_a_repeated_first_batch_begins_where_it_began(world: World, data: Path) -> None:
    for name, written_since in (("a", 30), ("b", 60)):
        stream = world.create(name)
        world.write(stream, keyed(0, 10))
        first = Driver(data, stream, start_stream_cut="")
        begin = logged(first.reader.initialOffset())
        world.write(stream, keyed(10, 30))
        first.log = [logged(first.reader.latestOffset(begin, first.reader.getDefaultReadLimit()))]
        world.write(stream, keyed(30, written_since))
        later, events = repeat(first, data, stream, start_stream_cut="")
        assert events == keyed(10, 30)
        assert [event for batch in later.all() for event in batch] == keyed(30, written_since)


def test_a_first_batch_without_events_is_a_start_that_holds(world: World, data: Path) -> None:
    """Spark logs the end of batch 0 although nothing is new; so it does for a second source of the query."""
    stream = world.create("s")
    world.write(stream, keyed(0, 10))
    first = Driver(data, stream, start_stream_cut="")
    assert plan(first) == []
    world.write(stream, keyed(10, 30))
    later, events = repeat(first, data, stream, start_stream_cut="")
    assert events == []
    assert later.batch() == keyed(10, 30)
    assert later.batch() is None


def test_what_is_truncated_from_a_failed_first_batch_is_a_loss(world: World, data: Path) -> None:
    stream = world.create("s")
    world.write(stream, keyed(0, 30))
    first = Driver(data, stream)
    assert plan(first) == keyed(0, 30)
    cut = cut_behind(world, data, stream, 10)
    world.truncate(stream, cut)
    with pytest.raises(TruncatedError):
        repeat(first, data, stream)
    later, events = repeat(first, data, stream, fail_on_data_loss="false")
    assert events == keyed(10, 30)
    world.write(stream, keyed(30, 40))
    assert later.batch() == keyed(30, 40)
    assert lost_bytes(later) == {0: sum(cut.positions.values())}


def test_a_truncation_behind_a_failed_first_batch_is_two_losses(world: World, data: Path) -> None:
    stream = world.create("s")
    world.write(stream, keyed(0, 30))
    options = {"max_events_per_trigger": "10", "fail_on_data_loss": "false"}
    first = Driver(data, stream, **options)
    assert plan(first) == keyed(0, 10)
    cut = cut_behind(world, data, stream, 20)
    world.truncate(stream, cut)
    later, events = repeat(first, data, stream, **options)
    assert events == []
    assert later.batch() == keyed(20, 30)
    assert lost_bytes(later) == {0: sum(cut.positions.values())}


def test_of_two_queries_that_begin_at_once_the_second_moves_nothing(world: World, data: Path) -> None:
    stream = world.create("s")
    early = Driver(data, stream, subscriber="q")
    begin = logged(early.reader.initialOffset())
    world.write(stream, keyed(0, 30))
    late = Driver(data, stream, subscriber="q", start_stream_cut="latest")
    at = logged(late.reader.initialOffset())
    late.reader.latestOffset(at, late.reader.getDefaultReadLimit())
    assert dict(world.published(stream, "q").positions) == {0: 0}, "what the first query has not read stays held"
    early.log = [logged(early.reader.latestOffset(begin, early.reader.getDefaultReadLimit()))]
    assert early.read(begin, early.log[0]) == keyed(0, 30)
    with pytest.raises(WriterInUseError):
        late.reader.latestOffset(at, late.reader.getDefaultReadLimit())


@pytest.mark.parametrize("removes", ["query", "from"])
def test_a_first_batch_of_an_earlier_version_is_read(world: World, data: Path, removes: str) -> None:
    stream = world.create("s")
    world.write(stream, keyed(0, 30))
    first = Driver(data, stream, subscriber="q")
    plan_start = logged(first.reader.initialOffset())
    end = logged(first.reader.latestOffset(plan_start, first.reader.getDefaultReadLimit()))
    first.log = [{name: value for name, value in end.items() if name not in ("from", removes)} | {"v": 1}]
    later, events = repeat(first, data, stream, subscriber="q")
    assert events == keyed(0, 30)
    assert later.batch() is None


@pytest.mark.parametrize("seed", range(6))
def test_a_query_that_dies_at_any_step_delivers_each_event_once(world: World, data: Path, seed: int) -> None:
    """A committed batch counts once; a batch that is repeated must hold the same events."""
    rng = random.Random(seed)
    stream = world.create("s", 2)
    options = {"start_stream_cut": rng.choice(["earliest", "latest", ""]), "max_events_per_trigger": "7"}
    if rng.random() < 0.6:
        options["subscriber"] = "q"
    log: list[Any] = []
    seen: list[bytes] = []
    committed, written, planned = -1, 0, None
    first_start = None
    for _ in range(25):
        world.write(stream, keyed(written, written + 5))
        written += 5
        driver = Driver(data, stream, **options)
        while True:
            if len(log) - 1 == committed:
                if committed < 0:
                    start = logged(driver.reader.initialOffset())
                    first_start = start["segments"]
                else:
                    start = log[-1]
                end = logged(driver.reader.latestOffset(start, driver.reader.getDefaultReadLimit()))
                if (end == start and log) or rng.random() < 0.3:
                    break
                log.append(end)
                planned = None
            else:
                start = log[-2] if len(log) > 1 else logged(driver.reader.initialOffset())
            if rng.random() < 0.3:
                break
            found = driver.read(start, log[-1])
            assert planned in (None, found)
            planned = found
            if rng.random() < 0.4:
                break
            committed += 1
            seen += found
    driver = Driver(data, stream, **options)
    if committed < len(log) - 1:
        seen += driver.read(log[-2] if len(log) > 1 else logged(driver.reader.initialOffset()), log[-1])
    driver.log = log
    seen += [event for batch in driver.all() for event in batch]
    whole = Driver(data, stream)
    begin = logged(whole.reader.initialOffset()) | {"segments": first_start}
    begin.pop("from", None)
    end = {"v": 1, "stream": str(stream), "segments": log[-1]["segments"]}
    assert sorted(seen) == sorted(whole.read({**begin, "v": 1}, end))
    assert len(seen) > 20


def test_a_query_that_ran_without_its_subscriber_is_still_its_owner(world: World, data: Path) -> None:
    stream = world.create("s")
    log: list[Any] = []
    for number, options in enumerate(({"subscriber": "q"}, {}, {"subscriber": "q"})):
        world.write(stream, keyed(30 * number, 30 * number + 30))
        driver = Driver(data, stream, **options)
        driver.log = log
        assert driver.batch() == keyed(30 * number, 30 * number + 30)
        assert driver.batch() is None
    assert dict(world.published(stream, "q").positions) == dict(world.tail(stream).positions)
