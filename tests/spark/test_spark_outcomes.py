"""What becomes of a query and of its subscriber, whatever happens to either or to the stream. The table is in docs/reference/spark.md."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from spark_driver import SCHEMA, Driver, logged
from spark_world import World, keyed, open_here

from penstock.model.errors import (
    InvalidCutError,
    StreamNotFoundError,
    SubscriberNotFoundError,
    TruncatedError,
    WriterInUseError,
)
from penstock.model.names import StreamName
from penstock.model.policies import RetentionPolicy, RetentionType, ScalingPolicy, StreamConfig
from penstock.model.retention import Idle, PolicyDocument
from penstock.spark.connect import Services, link
from penstock.spark.options import parse_read
from penstock.spark.reading.losses import losses
from penstock.spark.reading.positions import Loss, Offset
from penstock.spark.source import BatchReader


@pytest.fixture
def world(world_here: World) -> World:
    return world_here


def again(driver: Driver, data: Path, stream: StreamName, **options: str) -> Driver:
    """Another run over the checkpoint of ``driver``."""
    other = Driver(data, stream, **options)
    other.log = driver.log
    return other


def flat(batches: list[list[bytes]]) -> list[bytes]:
    return [event for batch in batches for event in batch]


def published(world: World, stream: StreamName, subscriber: str = "q") -> dict[int, int] | None:
    cut = world.published(stream, subscriber)
    return None if cut is None else dict(cut.positions)


# --- runs, checkpoints, names -----------------------------------------------------------------------------------


def test_a_second_run_goes_on_where_the_first_has_ended(world: World, data: Path) -> None:
    stream = world.create("s", 2)
    world.write(stream, keyed(0, 100))
    first = Driver(data, stream, subscriber="q")
    assert sorted(flat(first.all())) == sorted(keyed(0, 100))
    world.write(stream, keyed(100, 150))
    second = again(first, data, stream, subscriber="q")
    assert sorted(flat(second.all())) == sorted(keyed(100, 150))
    assert published(world, stream) == dict(world.tail(stream).positions)


def test_the_older_of_two_runs_is_refused_and_the_subscriber_never_moves_back(world: World, data: Path) -> None:
    """Spark ends all but one of them, by its checkpoint; a copy of the checkpoint it knows nothing of."""
    stream = world.create("s")
    world.write(stream, keyed(0, 150))
    one = Driver(data, stream, subscriber="q", max_events_per_trigger="30")
    assert one.batch()
    assert one.batch()
    copy = Driver(data, stream, subscriber="q", max_events_per_trigger="30")
    copy.log = list(one.log)
    seen: list[int] = []
    for _ in range(2):
        assert copy.batch()
        cut = published(world, stream)
        assert cut is not None
        seen.append(sum(cut.values()))
    assert seen == sorted(seen)
    assert one.log == copy.log[: len(one.log)]
    with pytest.raises(WriterInUseError, match="another run"):
        one.batch()
    copy.all()
    assert published(world, stream) == dict(world.tail(stream).positions)


def test_a_second_query_under_one_subscriber_is_refused_unless_it_takes_it_over(world: World, data: Path) -> None:
    stream = world.create("s")
    world.write(stream, keyed(0, 100))
    first = Driver(data, stream, subscriber="q", max_events_per_trigger="20")
    # Begun while the first one had nothing in its log.
    early = Driver(data, stream, subscriber="q", max_events_per_trigger="20")
    early.log.append(logged(early.reader.initialOffset()))
    assert first.batch()
    assert first.batch()
    held = published(world, stream)
    for second in (
        early,
        Driver(data, stream, subscriber="q"),
        Driver(data, stream, subscriber="q", start_stream_cut=""),
    ):
        with pytest.raises(WriterInUseError, match="replaces_query") as caught:
            second.batch()
        assert caught.value.fields["owner"] == first.log[-1]["query"]
        assert caught.value.fields["subscriber"] == "plant/q"
    assert published(world, stream) == held
    third = Driver(
        data,
        stream,
        subscriber="q",
        start_stream_cut="",
        replaces_query=first.log[-1]["query"],
        max_events_per_trigger="20",
    )
    assert flat(third.all()) == keyed(20, 100)
    with pytest.raises(WriterInUseError, match="another query"):
        first.batch()
    # A restart of the new owner needs the option no more, and does not mind it.
    world.write(stream, keyed(100, 110))
    for options in ({}, {"replaces_query": first.log[-1]["query"]}):
        assert again(third, data, stream, subscriber="q", **options).batch() in (keyed(100, 110), None)


def test_a_start_before_anything_is_in_the_log_does_not_block_the_next_one(world: World, data: Path) -> None:
    stream = world.create("s")
    world.write(stream, keyed(0, 30))
    for _ in range(3):
        stopped = Driver(data, stream, subscriber="q")
        stopped.log = [logged(stopped.reader.initialOffset())]
        stopped.log.append(logged(stopped.reader.latestOffset(stopped.log[0], ReadAllAvailable())))
    # Spark logs an offset before it asks for partitions, and repeats the batch from its log.
    for _ in range(2):
        later = again(stopped, data, stream, subscriber="q")
        assert later.read(*later.log) == keyed(0, 30)
    with pytest.raises(WriterInUseError):
        Driver(data, stream, subscriber="q").batch()
    assert later.batch() is None
    assert published(world, stream) == dict(world.tail(stream).positions)


def test_a_checkpoint_of_an_earlier_version_becomes_the_owner_of_its_subscriber(world: World, data: Path) -> None:
    stream = world.create("s")
    world.write(stream, keyed(0, 30))
    driver = Driver(data, stream, subscriber="q", max_events_per_trigger="10")
    # What such a version left: an offset without an id, and a subscriber of no query.
    first = driver.reader.latestOffset(logged(driver.reader.initialOffset()), driver.reader.getDefaultReadLimit())
    driver.log = [{name: value for name, value in logged(first).items() if name != "query"}]
    again(driver, data, stream, subscriber="q", max_events_per_trigger="10").all()
    with pytest.raises(WriterInUseError):
        Driver(data, stream, subscriber="q").batch()


@pytest.mark.parametrize("start", ["earliest", ""])
def test_a_new_or_deleted_checkpoint_begins_anew_or_where_its_subscriber_is(
    world: World, data: Path, start: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream = world.create("s")
    world.write(stream, keyed(0, 100))
    first = Driver(data, stream, subscriber="q", max_events_per_trigger="40")
    first.batch()
    first.batch()
    before = published(world, stream)
    with caplog.at_level(logging.WARNING):
        with pytest.raises(WriterInUseError, match="replaces_query"):
            Driver(data, stream, subscriber="q", start_stream_cut=start).batch()
        assert published(world, stream) == before
        fresh = Driver(data, stream, subscriber="q", start_stream_cut=start, replaces_query="any")
        found = flat(fresh.all())
    assert found == (keyed(0, 100) if start else keyed(40, 100)), "what was committed is reported one batch late"
    assert ("begins before the position of its subscriber" in caplog.text) == bool(start)
    after = published(world, stream)
    assert before is not None
    assert after is not None
    assert sum(after.values()) >= sum(before.values())


def test_another_subscriber_over_a_checkpoint_holds_from_what_is_committed_and_the_old_one_stays(
    world: World, data: Path
) -> None:
    stream = world.create("s")
    world.write(stream, keyed(0, 100))
    first = Driver(data, stream, subscriber="old", max_events_per_trigger="40")
    first.batch()
    first.batch()
    renamed = again(first, data, stream, subscriber="new")
    assert flat(renamed.all()) == keyed(80, 100)
    old, new = published(world, stream, "old"), published(world, stream, "new")
    assert new == dict(world.tail(stream).positions)
    assert old == {0: first.log[1]["segments"]["0"]}, "it holds until it is removed"


def test_a_checkpoint_of_another_stream_is_refused(world: World, data: Path) -> None:
    one, two = world.create("one"), world.create("two")
    world.write(one, keyed(0, 10))
    world.write(two, keyed(0, 10))
    first = Driver(data, one, subscriber="q")
    first.all()
    other = again(first, data, two, subscriber="q")
    with pytest.raises(InvalidCutError, match="checkpoint belongs to another stream"):
        other.batch()
    assert published(world, two) is None, "it has registered nowhere"


# --- subscribers that are moved or removed ----------------------------------------------------------------------


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_subscriber_that_is_passed_by_a_maximum_fails_or_skips_exactly_that(
    world: World, data: Path, fail: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream = world.create("s")
    world.write(stream, keyed(0, 100))
    driver = Driver(data, stream, subscriber="q", fail_on_data_loss=fail, max_events_per_trigger="30")
    assert driver.batch() == keyed(0, 30)
    world.write(stream, keyed(100, 200))
    policy = RetentionPolicy(type=RetentionType.SIZE, maximum=1000)
    config = StreamConfig(scaling=ScalingPolicy(min_segments=1), retention=policy)

    async def evict(services: Services) -> int:
        await services.controller.streams.update(stream, config)
        await services.controller.retention.run(stream)
        return max((await services.controller.cuts.head(stream)).positions.values())

    head = world.link.run(evict)
    if fail == "true":
        with pytest.raises(TruncatedError, match="fail_on_data_loss=false skips what was deleted"):
            driver.batch()
        return
    found = flat(driver.all())
    # By content: events read and events reported as lost are together all that was written, each once.
    ends = {0: 0}
    for number, event in enumerate(keyed(0, 200), 1):
        ends[number] = ends[number - 1] + 8 + len(event)
    lost = [item for offset in driver.log for item in Offset.from_json(stream, offset).lost]
    assert [(item.segment, item.start, item.end) for item in lost] == [(0, ends[30], head)]
    assert lost[0].rule == "subscribers-maximum"
    skipped = [number for number in range(200) if ends[30] <= ends[number] < head]
    assert lost[0].events in (None, len(skipped))
    assert found == keyed(30 + len(skipped), 200)
    lines = [record.getMessage() for record in caplog.records if record.name == "penstock.spark"]
    assert [line for line in lines if "skipped data" in line] == [
        f"skipped data that was deleted before it was read. stream=plant/s {lost[0]}"
    ]
    assert published(world, stream) == dict(world.tail(stream).positions)


def test_a_subscriber_that_is_moved_on_loses_no_more_than_is_gone(world: World, data: Path) -> None:
    """A time to live moves it; as long as nothing is truncated the query reads on, and publishes once it is past that."""
    stream = world.create("s")
    world.write(stream, keyed(0, 100))
    driver = Driver(data, stream, subscriber="q", max_events_per_trigger="30")
    driver.batch()
    tail = world.tail(stream)
    world.link.run(lambda services: services.controller.subscribers.move(stream, "plant/q", tail))
    assert flat(driver.all()) == keyed(30, 100)
    assert published(world, stream) == dict(tail.positions)


def test_a_subscriber_that_is_deleted_under_a_query_fails_it_and_the_next_run_registers_it_again(
    world: World, data: Path
) -> None:
    stream = world.create("s")
    world.write(stream, keyed(0, 100))
    driver = Driver(data, stream, subscriber="q", max_events_per_trigger="30")
    driver.batch()
    driver.batch()
    world.link.run(lambda services: services.controller.groups.delete("plant", "q"))
    with pytest.raises(SubscriberNotFoundError, match="removed while the query ran"):
        driver.batch()
    assert published(world, stream) is None
    restarted = again(driver, data, stream, subscriber="q", max_events_per_trigger="30")
    assert restarted.batch() == keyed(60, 90)
    assert published(world, stream) == {0: restarted.log[2]["segments"]["0"]}


def heard_ms(world: World, stream: StreamName) -> int | None:
    found = world.link.run(lambda services: services.controller.subscribers.describe(stream))
    return None if not found else found[0].updated_ms


def test_a_subscriber_that_is_dropped_fails_the_query_and_the_next_run_registers_it_again(
    world: World, data: Path
) -> None:
    """Removed by a person, or idle for too long: the group is there still, and holds nothing."""
    stream = world.create("s")
    world.write(stream, keyed(0, 100))
    driver = Driver(data, stream, subscriber="q", max_events_per_trigger="30")
    driver.batch()
    driver.batch()
    world.link.run(lambda services: services.controller.subscribers.remove(stream, "plant/q"))
    with pytest.raises(SubscriberNotFoundError, match="removed while the query ran"):
        driver.batch()
    assert published(world, stream) is None
    restarted = again(driver, data, stream, subscriber="q", max_events_per_trigger="30")
    assert restarted.batch() == keyed(60, 90)
    assert published(world, stream) == {0: restarted.log[2]["segments"]["0"]}


def test_a_query_with_nothing_to_read_renews_and_one_that_only_starts_does_not(world: World, data: Path) -> None:
    stream = world.create("s")
    world.write(stream, keyed(0, 10))
    idle = PolicyDocument(idle=Idle(subscriber_s=1_000_000))
    driver = Driver(data, stream, subscriber="q")
    assert driver.batch() == keyed(0, 10)
    before = heard_ms(world, stream)
    assert before is not None
    # It commits what it has read: that is heard anyway.
    assert driver.batch() is None
    committed = heard_ms(world, stream)
    assert committed is not None
    assert committed > before
    assert again(driver, data, stream, subscriber="q").batch() is None
    assert heard_ms(world, stream) == committed, "no rule asks whether it lives"
    world.link.run(lambda services: services.controller.policies.set(stream, idle))
    restarted = again(driver, data, stream, subscriber="q")
    assert restarted.batch() is None
    alive = heard_ms(world, stream)
    assert alive is not None
    assert alive > committed
    world.write(stream, keyed(10, 20))
    for _ in range(3):
        failing = again(driver, data, stream, subscriber="q")
        end = failing.reader.latestOffset(failing.log[-1], failing.reader.getDefaultReadLimit())
        assert end != failing.log[-1]
        # Here it fails: nothing of the batch is committed.
    assert heard_ms(world, stream) == alive


# --- streams that end or are made again --------------------------------------------------------------------------


def delete(world: World, stream: StreamName) -> None:
    async def work(services: Services) -> None:
        await services.controller.streams.seal(stream)
        await services.controller.streams.delete(stream)

    world.link.run(work)


def test_a_stream_that_is_deleted_ends_its_query_with_an_error(world: World, data: Path) -> None:
    stream = world.create("s")
    world.write(stream, keyed(0, 10))
    driver = Driver(data, stream, fail_on_data_loss="false")
    driver.all()
    delete(world, stream)
    with pytest.raises(StreamNotFoundError):
        driver.batch()


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.parametrize("when", ["between runs", "between runs up to now", "under a run"])
def test_a_stream_that_is_made_again_is_never_taken_for_the_old_one(
    world: World, data: Path, fail: str, when: str
) -> None:
    stream = world.create("s", 2)
    world.write(stream, keyed(0, 50))
    driver = Driver(data, stream, fail_on_data_loss=fail)
    driver.all()
    old = {int(segment): offset for segment, offset in driver.log[-1]["segments"].items()}
    delete(world, stream)
    world.create("s", 2)
    world.forget(stream)
    world.write(stream, keyed(50, 120))
    if when != "under a run":
        driver = again(driver, data, stream, fail_on_data_loss=fail)
    if when == "between runs up to now":
        driver.reader.prepareForTriggerAvailableNow()
    if fail == "true":
        with pytest.raises(InvalidCutError, match="deleted and made again"):
            driver.batch()
        return
    assert sorted(flat(driver.all())) == sorted(keyed(50, 120))
    (reported,) = [Offset.from_json(stream, offset).lost for offset in driver.log if "lost" in offset]
    assert reported == tuple(Loss(segment=item, start=old[item], end=None, rule="deleted") for item in sorted(old))


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_store_that_was_set_up_anew_is_never_taken_for_the_old_one(
    world: World, data: Path, tmp_path: Path, fail: str
) -> None:
    stream = world.create("s", 2)
    world.write(stream, keyed(0, 50))
    driver = Driver(data, stream)
    driver.all()
    ahead = world.tail(stream)
    # Another store under the name of the first: its segments have the same numbers, and hold less.
    other = tmp_path / "other"
    anew = World(link(open_here, str(other)))
    anew.create("s", 2)
    anew.write(stream, keyed(0, 20))
    for subscriber in ("", "q"):
        for available_now in (True, False):
            later = again(driver, other, stream, fail_on_data_loss=fail, subscriber=subscriber)
            if available_now:
                later.reader.prepareForTriggerAvailableNow()
            with pytest.raises(InvalidCutError, match="ends before this position"):
                later.batch()
            assert published(anew, stream) is None
        fresh = Driver(other, stream, start_stream_cut=ahead.to_text(), subscriber=subscriber)
        with pytest.raises(InvalidCutError, match="ends before this position"):
            fresh.batch()
    given = {"controller": str(other), "path": str(stream), "end_stream_cut": ahead.to_text()}
    with pytest.raises(InvalidCutError, match="beyond the tail"):
        BatchReader(open_here, parse_read(given), SCHEMA).partitions()


def test_a_subscriber_of_a_stream_that_is_made_again_is_refused_until_it_is_removed(world: World, data: Path) -> None:
    stream = world.create("s")
    world.write(stream, keyed(0, 50))
    driver = Driver(data, stream, subscriber="q", fail_on_data_loss="false")
    driver.all()
    delete(world, stream)
    world.create("s")
    world.forget(stream)
    world.write(stream, keyed(50, 120))
    with pytest.raises(InvalidCutError, match="penstock group delete plant/q"):
        driver.batch()
    fresh = Driver(data, stream, subscriber="q")
    with pytest.raises(InvalidCutError, match="penstock group delete plant/q"):
        fresh.batch()
    world.link.run(lambda services: services.controller.groups.delete("plant", "q"))
    assert flat(Driver(data, stream, subscriber="q").all()) == keyed(50, 120)


def test_a_sealed_stream_is_read_to_its_end_and_no_further(world: World, data: Path) -> None:
    stream = world.create("s", 2)
    world.write(stream, keyed(0, 50))
    driver = Driver(data, stream, subscriber="q")
    world.link.run(lambda services: services.controller.streams.seal(stream))
    assert sorted(flat(driver.all())) == sorted(keyed(0, 50))
    assert driver.batch() is None
    assert published(world, stream) == dict(world.tail(stream).positions)
    later = again(driver, data, stream, subscriber="q")
    later.reader.prepareForTriggerAvailableNow()
    assert later.batch() is None


def test_a_stream_that_is_scaled_under_its_query_loses_and_repeats_nothing(world: World, data: Path) -> None:
    stream = world.create("s", 2)
    driver = Driver(data, stream, subscriber="q", max_events_per_trigger="70")
    found: list[bytes] = []
    for turn in range(4):
        world.write(stream, keyed(turn * 100, turn * 100 + 100))
        found += driver.batch() or []
        world.scale(stream, 2 + turn % 3)
    found += flat(driver.all())
    assert sorted(found) == sorted(keyed(0, 400))
    assert published(world, stream) == dict(world.tail(stream).positions)


# --- cuts ---------------------------------------------------------------------------------------------------------


def test_an_end_before_the_start_is_refused_by_a_batch_and_ends_a_query_at_once(world: World, data: Path) -> None:
    stream = world.create("s")
    world.write(stream, keyed(0, 50))
    middle = world.tail(stream).to_text()
    world.write(stream, keyed(50, 90))
    given = {"controller": str(data), "path": str(stream), "start_stream_cut": "latest", "end_stream_cut": middle}
    with pytest.raises(InvalidCutError, match="end of a range lies before its start"):
        BatchReader(open_here, parse_read(given), SCHEMA).partitions()
    driver = Driver(data, stream, start_stream_cut=world.tail(stream).to_text(), end_stream_cut=middle)
    assert driver.batch() is None
    world.write(stream, keyed(90, 99))
    assert driver.batch() is None


# --- losses --------------------------------------------------------------------------------------------------------


def test_losses_are_told_segment_by_segment_over_scales_and_found_in_a_checkpoint(
    world: World, data: Path, tmp_path: Path
) -> None:
    stream = world.create("s", 2)
    world.write(stream, keyed(0, 100))
    driver = Driver(data, stream, fail_on_data_loss="false", max_events_per_trigger="20")
    came = driver.batch() or []
    lengths = dict(world.tail(stream).positions)
    world.scale(stream, 3)
    world.write(stream, keyed(100, 200))
    cut = world.tail(stream)
    world.write(stream, keyed(200, 260))
    world.truncate(stream, cut)
    came += flat(driver.all())
    (lost,) = [Offset.from_json(stream, offset).lost for offset in driver.log if "lost" in offset]
    stood = {int(segment): offset for segment, offset in driver.log[1]["segments"].items()}
    expected = {(segment, stood[segment], end) for segment, end in lengths.items()}
    expected |= {(segment, 0, end) for segment, end in cut.positions.items()}
    assert {(item.segment, item.start, item.end) for item in lost} == {item for item in expected if item[1] < item[2]}
    assert {item.rule for item in lost} == {"manual"}
    written = sum(8 + len(event) for event in keyed(0, 260))
    assert sum(8 + len(event) for event in came) + sum((item.end or 0) - item.start for item in lost) == written
    events = [item.events for item in lost]
    if None not in events:
        assert len(came) + sum(count or 0 for count in events) == 260
    log = tmp_path / "checkpoint" / "offsets"
    log.mkdir(parents=True)
    for number, offset in enumerate(driver.log[1:]):
        (log / str(number)).write_text("v1\n{}\n" + str(logged(offset)).replace("'", '"').replace("None", "null"))
    assert losses(tmp_path / "checkpoint") == [(str(stream), item) for item in lost]


def test_what_goes_between_an_offset_and_its_plan_is_told_with_the_next_offset(world: World, data: Path) -> None:
    stream = world.create("s")
    world.write(stream, keyed(0, 50))
    driver = Driver(data, stream, fail_on_data_loss="false", direct="false")
    start = logged(driver.reader.initialOffset())
    end = logged(driver.reader.latestOffset(start, driver.reader.getDefaultReadLimit()))
    cut = world.tail(stream)
    world.truncate(stream, cut)
    assert driver.read(start, end) == []
    world.write(stream, keyed(50, 60))
    later = logged(driver.reader.latestOffset(end, driver.reader.getDefaultReadLimit()))
    assert driver.read(end, later) == keyed(50, 60)
    (lost,) = Offset.from_json(stream, later).lost
    assert (lost.segment, lost.start, lost.end, lost.rule) == (0, 0, cut.positions[next(iter(cut.positions))], "manual")


def test_what_goes_between_plan_and_read_is_passed_over_by_the_task(
    world: World, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stream = world.create("s")
    world.write(stream, keyed(0, 50), block=10)
    middle = world.tail(stream)
    world.write(stream, keyed(50, 90))
    for fail in ("true", "false"):
        driver = Driver(data, stream, fail_on_data_loss=fail, direct="false")
        start = logged(driver.reader.initialOffset())
        end = logged(driver.reader.latestOffset(start, driver.reader.getDefaultReadLimit()))
        planned = driver.reader.partitions(start, end)
        world.truncate(stream, middle)
        if fail == "true":
            with pytest.raises(TruncatedError):
                [rows for part in planned for rows in driver.reader.read(part)]
            world.write(stream, keyed(90, 95))
            middle = world.tail(stream)
            world.write(stream, keyed(95, 99))
        else:
            found = [
                event for part in planned for rows in driver.reader.read(part) for event in rows["event"].to_pylist()
            ]
            assert found == keyed(95, 99)
            assert f"to={middle.positions[next(iter(middle.positions))]}" in caplog.text
