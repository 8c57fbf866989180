"""The streaming source driven as Spark drives it, without Spark, on a real store."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows
from spark_driver import SCHEMA, Driver, logged
from spark_world import World, in_order, keyed, open_here

from penstock.model.answers.reclaim import PendingReason
from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidArgumentError, InvalidCutError, TruncatedError, WriterInUseError
from penstock.model.names import StreamName, segment_name
from penstock.model.policies import ReaderGroupRetention
from penstock.model.segments import SegmentId
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.spark.connect import Services
from penstock.spark.options import parse_read
from penstock.spark.reading.planning import now_ms
from penstock.spark.source import BatchReader


@pytest.fixture
def world(world_here: World) -> World:
    return world_here


@pytest.mark.parametrize("tiered", [True, False])
@pytest.mark.parametrize("direct", ["true", "false"])
def test_every_event_comes_once_and_in_order(world: World, data: Path, tiered: bool, direct: str) -> None:
    stream = world.create("s", 3)
    events = keyed(0, 3000)
    world.write(stream, events)
    if tiered:
        world.wait_tiered(stream)
    driver = Driver(data, stream, direct=direct, target_partition_bytes="5000")
    (found,) = driver.all()
    assert sorted(found) == sorted(events)
    assert in_order(found)
    assert driver.batch() is None


@pytest.mark.parametrize("tiered", [True, False])
@pytest.mark.parametrize("limit", [ReadMaxBytes(4000), ReadMaxRows(250)])
def test_a_batch_stays_within_its_limit_and_wastes_little_of_it(
    world: World, data: Path, tiered: bool, limit: ReadLimit
) -> None:
    stream = world.create("s", 2)
    events = keyed(0, 2000)
    world.write(stream, events)
    if tiered:
        world.wait_tiered(stream)
    driver = Driver(data, stream)
    batches: list[list[bytes]] = []
    while (found := driver.batch(limit)) is not None:
        batches.append(found)
    sizes = [sum(len(event) + 8 for event in batch) for batch in batches]
    assert sorted(event for batch in batches for event in batch) == sorted(events)
    assert in_order([event for batch in batches for event in batch])
    if isinstance(limit, ReadMaxBytes):
        assert max(sizes) <= 4000
        most = sum(sizes) / 4000
    else:
        assert max(len(batch) for batch in batches) <= 250
        most = len(events) / 250
    # Where tiering has cut a block short, one batch may get little; all together are half full and more.
    assert len(batches) <= 2 * most + 2


def test_an_event_larger_than_the_limit_goes_through_alone(world: World, data: Path) -> None:
    stream = world.create("s")
    world.write(stream, [b"k:0", b"k:1" + bytes(3000), b"k:2"], block=1)
    driver = Driver(data, stream, max_bytes_per_trigger="100")
    assert [[event[:3] for event in batch] for batch in driver.all()] == [[b"k:0"], [b"k:1"], [b"k:2"]]


def test_both_limits_hold_together(world: World, data: Path) -> None:
    stream = world.create("s")
    world.write(stream, keyed(0, 100) + [b"k:%d:" % n + bytes(500) for n in range(100, 120)])
    driver = Driver(data, stream, max_bytes_per_trigger="3000", max_events_per_trigger="40")
    batches = driver.all()
    assert sum(len(batch) for batch in batches) == 120
    assert max(len(batch) for batch in batches) == 40
    assert max(sum(len(event) + 8 for event in batch) for batch in batches) <= 3000
    assert driver.reader.getDefaultReadLimit() == ReadMaxBytes(3000)


def test_read_all_available_overrides_the_options(world: World, data: Path) -> None:
    stream = world.create("s")
    world.write(stream, keyed(0, 500))
    found = Driver(data, stream, max_bytes_per_trigger="1000").batch(ReadAllAvailable())
    assert found == keyed(0, 500)


def test_order_of_a_key_survives_scaling_in_any_portions(world: World, data: Path) -> None:
    stream = world.create("s", 2)
    world.write(stream, keyed(0, 400))
    world.scale(stream, 3)
    world.write(stream, keyed(400, 800))
    world.scale(stream, 2)
    world.write(stream, keyed(800, 1000))
    driver = Driver(data, stream, max_events_per_trigger="97")
    batches = driver.all()
    found = [event for batch in batches for event in batch]
    assert sorted(found) == sorted(keyed(0, 1000))
    assert in_order(found)
    # The tasks of a batch run side by side: where it has a segment and its successor, one task reads both.
    for start, end in pairwise(driver.log):
        parts = driver.reader.partitions(start, end)
        epochs = {piece.segment >> 32 for part in parts for piece in part.value.pieces}
        assert len(epochs) <= 1 or len(parts) == 1


@pytest.mark.parametrize("has_events", [True, False])
def test_a_backlog_over_many_scalings_takes_few_batches(world: World, data: Path, has_events: bool) -> None:
    stream = world.create("s")
    for number in range(20):
        world.write(stream, keyed(10 * number, 10 * number + 10) if has_events or number in (0, 19) else [])
        world.scale(stream, 1 + number % 3)
    driver = Driver(data, stream, subscriber="q")
    batches = driver.all()
    found = [event for batch in batches for event in batch]
    assert sorted(found) == sorted(keyed(0, 200) if has_events else keyed(0, 10) + keyed(190, 200))
    assert in_order(found)
    assert len(batches) <= 2
    assert world.published(stream, "q") == world.tail(stream)
    for start, end in pairwise(driver.log):
        assert len(driver.reader.partitions(start, end)) <= 1


def test_a_batch_over_scalings_is_no_larger_than_a_task_should_be(world: World, data: Path) -> None:
    stream = world.create("s")
    for number in range(10):
        world.write(stream, keyed(100 * number, 100 * number + 100))
        world.scale(stream, 2 + number % 2)
    driver = Driver(data, stream, target_partition_bytes="3000")
    batches = driver.all()
    found = [event for batch in batches for event in batch]
    assert sorted(found) == sorted(keyed(0, 1000))
    assert in_order(found)
    # About 14 kB, in batches of 3 kB; each scaling alone would have its own.
    assert max(sum(len(event) + 8 for event in batch) for batch in batches) <= 3000
    assert len(batches) <= 8


def test_a_repeated_batch_over_scalings_reads_the_same(world: World, data: Path) -> None:
    stream = world.create("s")
    for number in range(6):
        world.write(stream, keyed(50 * number, 50 * number + 50))
        world.scale(stream, 1 + number % 3)
    driver = Driver(data, stream, max_events_per_trigger="120")
    batches = driver.all()
    assert max(len(batch) for batch in batches) <= 120
    world.write(stream, keyed(300, 400))
    again = Driver(data, stream)
    for number, batch in enumerate(batches):
        assert again.read(driver.log[number], driver.log[number + 1]) == batch


def test_a_batch_over_scalings_stops_before_truncated_successors(world: World, data: Path) -> None:
    stream = world.create("s")
    world.write(stream, keyed(0, 10))
    lenient = Driver(data, stream, fail_on_data_loss="false")
    lenient.log.append(logged(lenient.reader.initialOffset()))
    for number in range(1, 4):
        world.scale(stream, 1)
        world.write(stream, keyed(10 * number, 10 * number + 10))
    middle = world.tail(stream)
    world.scale(stream, 2)
    world.write(stream, keyed(40, 50))
    world.truncate(stream, middle)
    assert sorted(event for batch in lenient.all() for event in batch) == sorted(keyed(40, 50))


def test_a_query_at_the_tail_goes_on_behind_a_scale(world: World, data: Path) -> None:
    stream = world.create("s")
    world.write(stream, keyed(0, 10))
    driver = Driver(data, stream)
    assert driver.batch() == keyed(0, 10)
    world.scale(stream, 2)
    world.write(stream, keyed(10, 20))
    assert sorted(event for batch in driver.all() for event in batch) == sorted(keyed(10, 20))


def test_a_repeated_batch_reads_the_same_after_more_was_written(world: World, data: Path) -> None:
    stream = world.create("s", 2)
    world.write(stream, keyed(0, 500))
    driver = Driver(data, stream, max_events_per_trigger="120")
    batches = driver.all()
    world.scale(stream, 3)
    world.write(stream, keyed(500, 900))
    again = Driver(data, stream)
    for number, batch in enumerate(batches):
        assert again.read(driver.log[number], driver.log[number + 1]) == batch


def test_available_now_stops_at_what_was_there(world: World, data: Path) -> None:
    stream = world.create("s", 2)
    world.write(stream, keyed(0, 300))
    driver = Driver(data, stream, max_events_per_trigger="100")
    driver.reader.prepareForTriggerAvailableNow()
    first = driver.batch()
    world.write(stream, keyed(300, 400))
    world.scale(stream, 3)
    world.write(stream, keyed(400, 500))
    rest = [event for batch in driver.all() for event in batch]
    assert sorted((first or []) + rest) == sorted(keyed(0, 300))
    # The next run starts at the checkpoint and takes what came later.
    later = Driver(data, stream)
    later.log = driver.log[-1:]
    later.reader.prepareForTriggerAvailableNow()
    assert sorted(event for batch in later.all() for event in batch) == sorted(keyed(300, 500))


def test_an_end_cut_ends_the_query_for_good(world: World, data: Path) -> None:
    stream = world.create("s")
    world.write(stream, keyed(0, 50))
    end = world.tail(stream)
    world.write(stream, keyed(50, 90))
    driver = Driver(data, stream, end_stream_cut=end.to_text(), max_events_per_trigger="20")
    assert [event for batch in driver.all() for event in batch] == keyed(0, 50)
    with pytest.raises(InvalidArgumentError, match="can only end at a cut"):
        Driver(data, stream, end_stream_cut="latest")


def test_a_query_starts_at_the_latest_unless_told_otherwise(world: World, data: Path) -> None:
    stream = world.create("s")
    world.write(stream, keyed(0, 50))
    driver = Driver(data, stream, start_stream_cut="")
    assert driver.batch() is None
    world.write(stream, keyed(50, 60))
    assert driver.batch() == keyed(50, 60)


def test_truncated_data_fails_the_query_or_is_skipped_as_asked(
    world: World, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stream = world.create("s")
    world.write(stream, keyed(0, 100))
    strict, lenient = Driver(data, stream), Driver(data, stream, fail_on_data_loss="false")
    for driver in (strict, lenient):
        driver.log.append(logged(driver.reader.initialOffset()))
    cut = world.tail(stream)
    world.write(stream, keyed(100, 150))
    world.truncate(stream, cut)
    with pytest.raises(TruncatedError, match="fail_on_data_loss") as caught:
        strict.batch()
    assert caught.value.start_offset == cut.positions[next(iter(cut.positions))]
    assert lenient.batch() == keyed(100, 150)
    assert "skipped data that was deleted before it was read. stream=plant/s segment=0 from=0 to=1290" in caplog.text
    assert strict.reader.reportLatestOffset() is None


def test_a_query_that_lost_whole_segments_goes_on_at_the_head_if_it_may(world: World, data: Path) -> None:
    stream = world.create("s", 2)
    world.write(stream, keyed(0, 100))
    strict, lenient = Driver(data, stream), Driver(data, stream, fail_on_data_loss="false")
    for driver in (strict, lenient):
        driver.log.append(logged(driver.reader.initialOffset()))
    world.scale(stream, 3)
    world.truncate(stream, world.tail(stream))
    world.write(stream, keyed(100, 150))
    with pytest.raises(TruncatedError):
        strict.batch()
    assert sorted(event for batch in lenient.all() for event in batch) == sorted(keyed(100, 150))


@pytest.mark.parametrize("subscriber", ["", "q"])
def test_a_start_that_lacks_segments_is_refused(world: World, data: Path, subscriber: str) -> None:
    stream = world.create("s", 2)
    world.write(stream, keyed(0, 50))
    for positions in ({0: 0}, {0: 0, 7: 0}, {0: 0, 1 << 32: 0}):
        half = StreamCut(stream, {SegmentId(item): offset for item, offset in positions.items()})
        driver = Driver(data, stream, start_stream_cut=half.to_text(), subscriber=subscriber)
        with pytest.raises(InvalidCutError, match="not a position of this stream"):
            driver.batch()
    assert world.published(stream, "q") is None


def test_a_checkpoint_of_another_stream_is_refused(world: World, data: Path) -> None:
    one, other = world.create("one"), world.create("other")
    offset = Driver(data, one).reader.initialOffset()
    with pytest.raises(InvalidCutError, match="another stream"):
        Driver(data, other).reader.latestOffset(offset, ReadAllAvailable())


def test_a_subscriber_holds_from_registration_and_follows_what_is_committed(world: World, data: Path) -> None:
    stream = world.create("s", 2)
    world.write(stream, keyed(0, 100))
    driver = Driver(data, stream, subscriber="spark", max_events_per_trigger="40")
    driver.log.append(logged(driver.reader.initialOffset()))
    assert world.published(stream, "spark") == world.head(stream)
    driver.batch()
    assert world.published(stream, "spark") == world.head(stream), "published before it was committed"
    # The next batch begins: the one before is in the commit log, though Spark has not said so.
    driver.batch()
    first = _cut(stream, driver.log[1])
    assert world.published(stream, "spark") == first
    driver.reader.commit(driver.log[1])
    assert world.published(stream, "spark") == first
    driver.reader.commit(driver.log[2])
    assert world.published(stream, "spark") == _cut(stream, driver.log[2])
    world.truncate(stream, _cut(stream, driver.log[2]))
    assert sum(len(batch) for batch in driver.all()) == 100 - 80


def test_a_restarted_subscriber_never_moves_back(world: World, data: Path) -> None:
    stream = world.create("s")
    world.write(stream, keyed(0, 100))
    driver = Driver(data, stream, subscriber="spark", max_events_per_trigger="40")
    driver.all()
    last = _cut(stream, driver.log[-1])
    assert world.published(stream, "spark") == last
    again = Driver(data, stream, subscriber="spark")
    again.read(driver.log[0], driver.log[1])
    assert world.published(stream, "spark") == last
    # A new query without a start of its own goes on where the subscriber is, if it takes it over.
    fresh = Driver(data, stream, subscriber="spark", start_stream_cut="", replaces_query="any")
    world.write(stream, keyed(100, 120))
    assert fresh.batch() == keyed(100, 120)


def test_a_subscriber_publishes_behind_a_scale(world: World, data: Path) -> None:
    stream = world.create("s", 2)
    world.write(stream, keyed(0, 50))
    world.scale(stream, 3)
    world.write(stream, keyed(50, 90))
    driver = Driver(data, stream, subscriber="spark")
    driver.all()
    driver.reader.commit(driver.log[-1])
    assert world.published(stream, "spark") == world.tail(stream)
    world.truncate(stream, world.tail(stream))
    world.write(stream, keyed(90, 95))
    assert sorted(driver.batch() or []) == sorted(keyed(90, 95))


def test_a_reader_group_that_does_something_else_is_not_taken_for_a_subscriber(world: World, data: Path) -> None:
    stream = world.create("s")

    async def group(services: Services) -> None:
        await services.controller.groups.create(
            ReaderGroupConfig(
                scope="plant",
                name="app",
                id=uuid4(),
                retention=ReaderGroupRetention.NONE,
                start_cuts={stream: StreamCut(stream, {})},
            )
        )

    world.link.run(group)
    with pytest.raises(InvalidArgumentError, match="not a manual subscriber"):
        Driver(data, stream, subscriber="app").reader.initialOffset()


@pytest.mark.parametrize("has_read", [False, True])
def test_a_reader_group_made_by_hand_is_not_taken_over_and_keeps_its_data(
    world: World, data: Path, has_read: bool, caplog: pytest.LogCaptureFixture
) -> None:
    stream = world.create("s")
    world.write(stream, keyed(0, 30))
    middle = world.tail(stream)
    world.write(stream, keyed(30, 60))

    async def group(services: Services) -> None:
        made = await services.controller.groups.create(
            ReaderGroupConfig(
                scope="plant",
                name="app",
                id=uuid4(),
                retention=ReaderGroupRetention.MANUAL,
                start_cuts={stream: await services.controller.cuts.head(stream)},
            )
        )
        if has_read:
            await services.controller.subscribers.publish(
                made.full_name, group_id=made.id, generation=made.generation, cut=middle
            )

    world.link.run(group)
    held = world.published(stream, "app")
    running = Driver(data, stream, subscriber="mine")
    assert running.batch() == keyed(0, 60)
    renamed = Driver(data, stream, subscriber="app")
    renamed.log = list(running.log)
    for driver in (
        Driver(data, stream, subscriber="app"),
        Driver(data, stream, subscriber="app", start_stream_cut="", replaces_query="another"),
        renamed,
    ):
        with pytest.raises(WriterInUseError, match="replaces_query=unknown"):
            driver.batch()
    assert world.published(stream, "app") == held
    assert "nothing holds the data between" not in caplog.text
    taking = Driver(data, stream, subscriber="app", start_stream_cut="", replaces_query="unknown")
    assert taking.batch() == keyed(30 if has_read else 0, 60)
    taking.all()
    assert world.published(stream, "app") == world.tail(stream)
    world.write(stream, keyed(60, 70))
    # A restart needs the option no more.
    restarted = Driver(data, stream, subscriber="app")
    restarted.log = list(taking.log)
    assert restarted.all() == [keyed(60, 70)]


def test_a_batch_read_covers_all_epochs_between_its_cuts(world: World, data: Path) -> None:
    stream = world.create("s", 2)
    world.write(stream, keyed(0, 300))
    start = world.tail(stream)
    world.write(stream, keyed(300, 500))
    world.scale(stream, 3)
    world.write(stream, keyed(500, 700))
    world.wait_tiered(stream)
    end = world.tail(stream)
    world.write(stream, keyed(700, 800))
    found = batch(data, stream, start_stream_cut=start.to_text(), end_stream_cut=end.to_text())
    assert sorted(found) == sorted(keyed(300, 700))
    assert sorted(batch(data, stream)) == sorted(keyed(0, 800))
    assert in_order(batch(data, stream, target_partition_bytes="2000"))


def test_a_leased_plan_outlives_truncation(world: World, data: Path) -> None:
    stream = world.create("s")
    world.write(stream, keyed(0, 5000))
    world.wait_tiered(stream)
    reader = batch_reader(data, stream)
    plan = reader.partitions()
    world.truncate(stream, world.tail(stream))
    assert [event for item in plan for rows in reader.read(item) for event in rows["event"].to_pylist()] == keyed(
        0, 5000
    )
    assert batch(data, stream) == []


@pytest.mark.parametrize("tiered", [True, False])
def test_a_batch_leases_chunks_where_it_reads_chunks_and_gives_them_back(
    world: World, data: Path, tiered: bool
) -> None:
    stream = world.create("s", 2)
    world.write(stream, keyed(0, 3000))
    if tiered:
        world.wait_tiered(stream)
    driver = Driver(data, stream)
    start = logged(driver.reader.initialOffset())
    end = logged(driver.reader.latestOffset(start, ReadAllAvailable()))
    shares = [item.value for item in driver.reader.partitions(start, end)]
    reads_chunks = any(piece.location for share in shares for piece in share.pieces)
    assert reads_chunks or not tiered
    assert {share.lease is not None for share in shares} == {reads_chunks}
    world.truncate(stream, world.tail(stream))
    assert held_by_leases(world, stream) == reads_chunks
    driver.reader.latestOffset(end, ReadAllAvailable())
    assert not held_by_leases(world, stream)


def held_by_leases(world: World, stream: StreamName) -> bool:
    async def account(services: Services) -> Mapping[str, Any]:
        return await services.controller.retention.reclaim(stream)

    return any(item.why is PendingReason.LEASE for item in world.link.run(account).pending)


def test_a_leased_plan_outlives_its_segments_also_where_its_lease_is_to_be_extended(world: World, data: Path) -> None:
    stream = world.create("s")
    world.write(stream, keyed(0, 5000))
    world.wait_tiered(stream)
    reader = batch_reader(data, stream)
    late = [InputPartition(replace(item.value, lease_until_ms=now_ms())) for item in reader.partitions()]
    # Nothing of the segment is left but what the lease keeps.
    world.scale(stream, 2)
    world.truncate(stream, world.tail(stream))
    assert [event for item in late for rows in reader.read(item) for event in rows["event"].to_pylist()] == keyed(
        0, 5000
    )


def test_a_batch_read_of_what_is_gone_fails_or_skips(world: World, data: Path) -> None:
    stream = world.create("s")
    start = world.tail(stream)
    world.write(stream, keyed(0, 100))
    cut = world.tail(stream)
    world.write(stream, keyed(100, 130))
    world.truncate(stream, cut)
    assert batch(data, stream, start_stream_cut=start.to_text(), fail_on_data_loss="false") == keyed(100, 130)
    with pytest.raises(TruncatedError, match="truncated before it was read"):
        batch(data, stream, start_stream_cut=start.to_text())
    assert segment_name(stream, next(iter(cut.positions))).startswith("plant/s/")


@pytest.mark.parametrize("scaled", [True, False])
def test_what_goes_between_plan_and_read_fails_the_task_and_says_what_would_skip_it(
    world: World, data: Path, scaled: bool
) -> None:
    stream = world.create("s")
    world.write(stream, keyed(0, 100))
    reader = batch_reader(data, stream, direct="false")
    plan = reader.partitions()
    if scaled:
        world.scale(stream, 2)
    world.truncate(stream, world.tail(stream))
    with pytest.raises(TruncatedError, match="fail_on_data_loss=false skips"):
        list(reader.read(plan[0]))


def batch_reader(data: Path, stream: StreamName, **options: str) -> BatchReader:
    return BatchReader(open_here, parse_read({"controller": str(data), "path": str(stream), **options}), SCHEMA)


def batch(data: Path, stream: StreamName, **options: str) -> list[bytes]:
    reader = batch_reader(data, stream, **options)
    return [event for item in reader.partitions() for rows in reader.read(item) for event in rows["event"].to_pylist()]


def _cut(stream: StreamName, offset: dict[str, Any]) -> StreamCut:
    return StreamCut(stream, {int(segment): at for segment, at in offset["segments"].items()})  # type: ignore[misc]


def test_space_under_a_plan_comes_back_when_its_lease_ends_and_the_account_says_whose_it_is(
    world: World, data: Path
) -> None:
    stream = world.create("s")
    world.write(stream, keyed(0, 4000))
    world.wait_tiered(stream)
    given = {"controller": str(data), "path": str(stream), "lease_seconds": "1", "application": "report of May"}
    reader = BatchReader(open_here, parse_read(given), SCHEMA)
    plan = reader.partitions()
    before_ms = now_ms()
    world.truncate(stream, world.tail(stream))

    async def account(services: Services) -> Mapping[str, Any]:
        return await services.controller.retention.reclaim(stream)

    (held,) = [item for item in world.link.run(account).pending if item.why is PendingReason.LEASE]
    (lease,) = held.leases
    assert lease.holder == "Spark batch read of report of May"
    assert before_ms - 1000 <= lease.until_ms == held.until_ms <= before_ms + 1000
    assert held.bytes > 32 << 10
    # The process that planned it died: nobody extends the lease, and nobody releases it.
    del reader, plan

    async def given_back(services: Services) -> int:
        async with asyncio.timeout(20):
            while (report := await services.controller.retention.reclaim(stream)).pending_bytes:
                await asyncio.sleep(0.05)
        return report.freed_bytes

    assert world.link.run(given_back) >= held.bytes
    assert now_ms() >= held.until_ms
