"""The streaming source where scalings cross: a query that is behind on some segments, and the stream is several epochs on."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from spark_driver import Driver, logged
from spark_world import World, in_order

from penstock.core.streams.routing import hash_key
from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidCutError


@pytest.fixture
def world(world_here: World) -> World:
    return world_here


def key_within(low: float, high: float) -> str:
    """A routing key whose hash lies there."""
    return next(key for key in map(str, range(999)) if low < hash_key(key) < high)


def numbered(key: str, first: int, last: int) -> list[bytes]:
    return [b"%s:%05d:" % (key.encode(), number) + bytes(90) for number in range(first, last)]


def test_a_merge_of_merges_waits_for_unread_predecessors(world: World, data: Path) -> None:
    stream, hot = world.create("s"), key_within(0.0, 0.25)
    world.scale(stream, 4)
    world.write(stream, numbered(hot, 0, 600))
    world.scale(stream, 2)
    world.write(stream, numbered(hot, 600, 650))
    world.scale(stream, 1)
    world.write(stream, numbered(hot, 650, 700))
    found = [event for batch in Driver(data, stream, max_bytes_per_trigger="9000").all() for event in batch]
    assert in_order(found)
    assert found == numbered(hot, 0, 700)


def crossed(world: World, name: str, *, last: int = 3) -> tuple[StreamCut, list[bytes]]:
    """A stream scaled 2 to 4 to ``last``, with most events in its first segment, the cut before the last scale, and events."""
    stream = world.create(name, 2)
    hot, cold = key_within(0.34, 0.49), key_within(0.7, 1.0)
    events = numbered(hot, 0, 500) + numbered(cold, 0, 20)
    world.write(stream, events)
    world.scale(stream, 4)
    second = numbered(hot, 500, 540) + numbered(cold, 20, 40)
    world.write(stream, second)
    middle = world.tail(stream)
    world.scale(stream, last)
    third = numbered(hot, 540, 580)
    world.write(stream, third)
    return middle, events + second + third


def test_a_subscriber_never_gets_stuck_at_an_offset_that_is_not_a_cut(world: World, data: Path) -> None:
    middle, events = crossed(world, "s")
    stream = middle.stream
    driver = Driver(data, stream, max_bytes_per_trigger="9000", subscriber="sub")
    found: list[bytes] = []
    while (batch := driver.batch()) is not None:
        found += batch
        driver.reader.commit(driver.log[-1])
        # Each offset is a cut, and so is what a start from it publishes.
        cut = StreamCut(stream, {int(item): at for item, at in driver.log[-1]["segments"].items()})  # type: ignore[misc]
        assert world.link.run(lambda services, cut=cut: services.controller.cuts.is_valid(stream, cut))
    assert in_order(found)
    assert sorted(found) == sorted(events)
    assert world.published(stream, "sub") == world.tail(stream)


@pytest.mark.parametrize("subscriber", ["", "sub"])
def test_a_damaged_checkpoint_of_an_earlier_version_continues_without_loss_or_repeat(
    world: World, data: Path, caplog: pytest.LogCaptureFixture, subscriber: str
) -> None:
    middle, events = crossed(world, "s")
    stream = middle.stream
    first, second = sorted(world.head(stream).positions)
    tail = world.tail(stream)
    # An earlier version took the middle segments for passed, and began the last ones beside the unread first one.
    size = len(events[0]) + 8
    poisoned = {first: 100 * size, **tail.positions}
    driver = Driver(data, stream, max_bytes_per_trigger="9000", subscriber=subscriber)
    driver.log.append(
        {"v": 1, "stream": str(stream), "segments": {str(item): poisoned[item] for item in sorted(poisoned)}}
    )
    found: list[bytes] = []
    with caplog.at_level(logging.WARNING):
        while (batch := driver.batch()) is not None:
            found += batch
            # Restarted behind every batch.
            later = Driver(data, stream, max_bytes_per_trigger="9000", subscriber=subscriber)
            later.log = driver.log
            driver = later
    assert "they wait now" in caplog.text
    hot = key_within(0.34, 0.49).encode()
    assert [int(event.split(b":")[1]) for event in found if event.startswith(hot)] == [
        *range(100, 500),
        *range(500, 540),
    ], "what the last segments had given is not given again, what lies between is"
    assert second not in {int(item) for item in driver.log[-1]["segments"]}
    assert logged(driver.log[-1])["segments"] == {str(item): tail.positions[item] for item in sorted(tail.positions)}
    if subscriber:
        assert world.published(stream, "sub") == tail


def test_an_unfinished_batch_of_a_damaged_checkpoint_is_read_as_it_was_planned(world: World, data: Path) -> None:
    middle, events = crossed(world, "s")
    stream = middle.stream
    first, _ = sorted(world.head(stream).positions)
    size = len(events[0]) + 8
    late = sorted(world.tail(stream).positions)
    start = {str(first): 100 * size} | {str(item): 0 for item in late}
    end = {str(first): 110 * size} | {str(item): world.tail(stream).positions[item] for item in late}
    driver = Driver(data, stream, max_bytes_per_trigger="9000")
    given = [{"v": 1, "stream": str(stream), "segments": item} for item in (start, end)]
    again = driver.read(given[0], given[1])
    assert sorted(again) == sorted(
        numbered(key_within(0.34, 0.49), 100, 110) + numbered(key_within(0.34, 0.49), 540, 580)
    )


def test_a_truncation_into_a_later_epoch_skips_only_truncated_events(world: World, data: Path) -> None:
    middle, _ = crossed(world, "s")
    stream = middle.stream
    driver = Driver(data, stream, max_bytes_per_trigger="9000", fail_on_data_loss="false")
    found: list[bytes] = []
    for _ in range(3):
        found += driver.batch() or []
    hot = max(middle.positions, key=lambda item: middle.positions[item])
    world.truncate(stream, StreamCut(stream, {**middle.positions, hot: middle.positions[hot] // 2}))
    left = Driver(data, stream).all()
    while (batch := driver.batch()) is not None:
        found += batch
    assert in_order(found)
    assert len(found) == len(set(found))
    assert {event for batch in left for event in batch} <= set(found)


def test_an_offset_that_is_not_a_cut_is_not_recorded(world: World, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.core.cuts import read_order

    middle, _ = crossed(world, "s")
    driver = Driver(data, middle.stream, max_bytes_per_trigger="9000")
    # The defect of earlier versions: what is not among the positions counts as passed.
    monkeypatch.setattr(read_order, "is_reached", lambda *_: True)
    with pytest.raises(InvalidCutError, match="was not recorded"):
        driver.all()


def test_a_checkpoint_that_cannot_be_repaired_is_refused_with_instructions(world: World, data: Path) -> None:
    middle, _ = crossed(world, "s")
    driver = Driver(data, middle.stream)
    lacking = {str(min(middle.positions)): 0, str(max(world.tail(middle.stream).positions)): 0}
    driver.log.append({"v": 1, "stream": str(middle.stream), "segments": lacking})
    with pytest.raises(InvalidCutError, match="start_stream_cut"):
        driver.batch()
