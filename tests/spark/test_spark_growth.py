"""What a query asks its store, and what it writes to its checkpoint, as the stream has more segments and epochs."""

from __future__ import annotations

import json
from collections import Counter
from contextvars import ContextVar
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spark_driver import SCHEMA, Driver
from spark_world import World, keyed, open_here

from penstock.model.segments import KeyRange
from penstock.segmentstore.store import SegmentStore
from penstock.spark.options import parse_read
from penstock.spark.reading import one_stream
from penstock.spark.reading.one_stream import any_overlap
from penstock.spark.source import BatchReader

COUNTED = ("info", "infos", "chunk_ranges", "lease_chunks", "next_event_boundary")

_inside: ContextVar[bool] = ContextVar("inside", default=False)
"""Whether a call of the store is running, which may use others."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each call of the store was made."""
    found: Counter[str] = Counter()
    for name in COUNTED:
        monkeypatch.setattr(SegmentStore, name, counting(name, getattr(SegmentStore, name), found))
    return found


def counting(name: str, call: Any, found: Counter[str]) -> Any:
    async def counted(self: SegmentStore, *given: Any, **named: Any) -> Any:
        if _inside.get():
            return await call(self, *given, **named)
        found[name] += 1
        token = _inside.set(True)
        try:
            return await call(self, *given, **named)
        finally:
            _inside.reset(token)

    return counted


def test_a_batch_of_few_events_in_many_segments_asks_for_no_segment_alone(
    world_here: World, data: Path, calls: Counter[str]
) -> None:
    stream = world_here.create("s", 20)
    world_here.write(stream, keyed(0, 2000, keys=200))
    driver = Driver(data, stream)
    start = driver.reader.initialOffset()
    end = driver.reader.latestOffset(start, driver.reader.getDefaultReadLimit())
    calls.clear()
    driver.reader.partitions(start, end)
    assert sum(calls.values()) <= 2, calls
    assert sorted(driver.read(start, end)) == sorted(keyed(0, 2000, keys=200))


@pytest.mark.parametrize("columns", ["event", "event, append_time"])
def test_a_plan_over_many_epochs_asks_for_all_segments_at_once(
    world_here: World, data: Path, calls: Counter[str], columns: str
) -> None:
    stream, events = world_here.create("s", 2), []
    for number in range(8):
        part = keyed(100 * number, 100 * number + 100)
        world_here.write(stream, part)
        world_here.scale(stream, 2)
        events += part
    calls.clear()
    given = {"controller": str(data), "path": str(stream), "columns": columns}
    reader = BatchReader(open_here, parse_read(given), SCHEMA)
    shares = reader.partitions()
    assert calls["info"] <= 2, calls
    assert calls["lease_chunks"] == 1, calls
    rows = [row for share in shares for batch in reader.read(share) for row in batch.to_pylist()]
    assert sorted(row["event"] for row in rows) == sorted(events)


def test_an_offset_names_a_bounded_number_of_finished_segments(
    world_here: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_stream, "_FINISHED_MAX", 6)
    stream, events = world_here.create("s", 2), []
    for number in range(12):
        part = keyed(100 * number, 100 * number + 100)
        world_here.write(stream, part)
        world_here.scale(stream, 2)
        events += part
    driver = Driver(data, stream)
    batches = driver.all()
    assert sorted(event for batch in batches for event in batch) == sorted(events)
    assert len(batches) <= 6
    assert max(len(offset.get("finished", ())) for offset in driver.log) < 6 + 2
    assert max(len(json.dumps(offset)) for offset in driver.log) < 1000


@given(bounds=st.lists(st.tuples(st.integers(0, 19), st.integers(1, 4)), max_size=8))
def test_overlaps_are_found_as_if_each_range_was_compared_with_each(bounds: list[tuple[int, int]]) -> None:
    ranges = [KeyRange(low=low / 20, high=min(20, low + size) / 20) for low, size in bounds]
    assert any_overlap(ranges) == any(one.overlaps(other) for one, other in combinations(ranges, 2))
