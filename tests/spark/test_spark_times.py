"""Append times of events, and ranges of time: nothing that belongs to a range is left out, and little else comes with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType
from spark_world import World, open_store

from penstock.client.moments import _place, cut_at
from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidArgumentError, InvalidCutError
from penstock.model.names import StreamName
from penstock.ports.control.layout import Endpoint
from penstock.ports.data.chunks import ChunkBlock, ChunkRange
from penstock.ports.data.segments import SegmentInfo
from penstock.spark.connect import Services, close_links, link
from penstock.spark.options import Moment, parse_read
from penstock.spark.reading.stream import StreamReader
from penstock.spark.reading.times import times_of
from penstock.spark.source import BatchReader

BEGAN_MS = 1_800_000_000_000
STEP_MS = 10_000


class SetClock:
    ms = BEGAN_MS

    def now_ms(self) -> int:
        return self.ms


CLOCK = SetClock()


async def open_timed(address: str) -> Services:
    async with AsyncExitStack() as stack:
        here = Endpoint(host="here", port=0)
        opened = open_store(Path(address), lambda name: here, clock=CLOCK)
        segments, controller = await stack.enter_async_context(opened)
        return Services(controller, segments, stack.pop_all().aclose)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    CLOCK.ms = BEGAN_MS
    try:
        yield World(link(open_timed, str(tmp_path / "data")))
    finally:
        close_links()


def read(data: Path, stream: StreamName, **options: str) -> dict[bytes, int | None]:
    """The events of a batch read, each with its append time in milliseconds since the clock began."""
    schema = StructType().add("event", "binary").add("append_time", "timestamp")
    reader = BatchReader(open_timed, parse_read({"controller": str(data), "path": str(stream), **options}), schema)
    found: dict[bytes, int | None] = {}
    for partition in reader.partitions():
        for rows in reader.read(partition):
            for event, at in zip(rows.column("event").to_pylist(), rows.column("append_time").to_pylist(), strict=True):
                assert event not in found
                found[event] = None if at is None else round(at.timestamp() * 1000) - BEGAN_MS
    return found


def write_minutes(world: World, stream: StreamName, first: int, last: int, *, tiered: bool) -> dict[bytes, int]:
    """A hundred events each ten seconds; each event names the time it came."""
    came: dict[bytes, int] = {}
    for step in range(first, last):
        CLOCK.ms = BEGAN_MS + step * STEP_MS
        events = [b"k%d:%d:%d" % (number % 7, step, number) for number in range(100)]
        world.write(stream, events)
        came |= dict.fromkeys(events, step * STEP_MS)
        if tiered:
            world.wait_tiered(stream)
    return came


@pytest.mark.parametrize("direct", ["true", "false"])
def test_a_range_of_time_holds_its_events_and_no_others_where_blocks_are_apart(
    world: World, tmp_path: Path, direct: str
) -> None:
    stream = world.create("s", 2)
    came = write_minutes(world, stream, 0, 4, tiered=True)
    world.scale(stream, 3)
    came |= write_minutes(world, stream, 4, 7, tiered=True)
    world.scale(stream, 2)
    came |= write_minutes(world, stream, 7, 9, tiered=True)
    data = tmp_path / "data"
    assert read(data, stream, direct=direct) == came, "each block holds the events of one time"
    for first in range(0, 10, 2):
        for last in range(first, 10, 3):
            options = {
                "start_timestamp": str(BEGAN_MS + first * STEP_MS),
                "end_timestamp": datetime.fromtimestamp((BEGAN_MS + last * STEP_MS) / 1000, UTC).isoformat(),
            }
            wanted = {event: at for event, at in came.items() if first * STEP_MS <= at < last * STEP_MS}
            assert read(data, stream, direct=direct, **options) == wanted


def test_what_is_not_tiered_came_at_the_last_append_at_the_latest(world: World, tmp_path: Path) -> None:
    stream = world.create("s")
    came = write_minutes(world, stream, 0, 2, tiered=True)
    came |= write_minutes(world, stream, 2, 5, tiered=False)
    data = tmp_path / "data"
    for event, at in read(data, stream).items():
        assert at is not None
        assert came[event] <= at <= 4 * STEP_MS
    found = read(data, stream, start_timestamp=str(BEGAN_MS + 3 * STEP_MS))
    assert found.keys() >= {event for event, at in came.items() if at >= 3 * STEP_MS}
    assert found.keys() <= {event for event, at in came.items() if at >= 2 * STEP_MS}
    assert read(data, stream, start_timestamp=str(BEGAN_MS + 4 * STEP_MS + 1)) == {}


def test_a_time_before_the_head_is_the_head(world: World, tmp_path: Path) -> None:
    stream = world.create("s")
    write_minutes(world, stream, 0, 2, tiered=True)
    world.truncate(stream, world.tail(stream))
    came = write_minutes(world, stream, 2, 3, tiered=True)
    assert read(tmp_path / "data", stream, start_timestamp=str(BEGAN_MS)) == came
    assert read(tmp_path / "data", stream, end_timestamp=str(BEGAN_MS)) == {}


def test_a_head_that_moves_while_a_time_is_looked_for_is_looked_at_again(world: World) -> None:
    stream = world.create("s", 2)
    write_minutes(world, stream, 0, 2, tiered=True)
    cut = world.tail(stream)
    write_minutes(world, stream, 2, 3, tiered=True)
    moved: list[str] = []

    async def find(services: Services) -> StreamCut:
        class Moving:
            def __getattr__(self, name: str) -> object:
                return getattr(services.segments, name)

            async def chunk_ranges(self, name: str, start: int, end: int) -> Sequence[ChunkRange]:
                if not moved:
                    moved.append(name)
                    await services.controller.streams.truncate(stream, cut)
                return await services.segments.chunk_ranges(name, start, end)

        return await cut_at(replace(services, segments=Moving()), stream, BEGAN_MS, end=False)

    assert world.link.run(find) == cut
    assert moved


def test_a_query_begins_at_a_time(world: World, tmp_path: Path) -> None:
    stream = world.create("s", 2)
    write_minutes(world, stream, 0, 3, tiered=True)
    CLOCK.ms += 1
    end = world.tail(stream)
    write_minutes(world, stream, 3, 5, tiered=True)
    given = {"controller": str(tmp_path / "data"), "path": str(stream)}
    given["start_timestamp"] = str(BEGAN_MS + 3 * STEP_MS)
    schema = StructType().add("event", "binary")
    reader = StreamReader(open_timed, parse_read(given), schema)
    assert {int(key): at for key, at in reader.initialOffset()["segments"].items()} == dict(end.positions)
    with pytest.raises(InvalidArgumentError, match="can only end at a cut"):
        StreamReader(open_timed, parse_read({**given, "end_timestamp": given["start_timestamp"]}), schema)
    with pytest.raises(InvalidCutError):
        read(tmp_path / "data", stream, start_timestamp=given["start_timestamp"], end_stream_cut=_first(world, stream))


def _first(world: World, stream: StreamName) -> str:
    return world.head(stream).to_text()


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1800000000000", BEGAN_MS),
        ("2027-01-15T08:00:00Z", BEGAN_MS),
        ("2027-01-15 08:00:00", BEGAN_MS),
        ("2027-01-15T09:00:00.001+01:00", BEGAN_MS + 1),
        ("2027-01-15", BEGAN_MS - 8 * 3_600_000),
        ("0", 0),
        ("1969-07-20T20:17:00Z", 0),
    ],
)
def test_times_are_iso_8601_or_milliseconds(text: str, time_ms: int) -> None:
    assert parse_read({"path": "a/b", "startTimestamp": text}).start == Moment(time_ms)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"start_timestamp": "yesterday"}, "a time such as 2026"),
        ({"start_timestamp": "17"}, "a time such as 2026"),
        ({"end_timestamp": "1800000000"}, "if it is in seconds, multiply by 1000"),
        ({"start_timestamp": "2027-01-15", "start_stream_cut": "earliest"}, "not both"),
        ({"start_timestamp": "2027-01-15", "end_timestamp": "2027-01-14"}, "ends before it begins"),
    ],
)
def test_times_that_make_no_sense_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        parse_read({"path": "a/b", **options})


# --- any history of a segment ---------------------------------------------------------------------------------


class Written:
    """A segment with blocks of ten bytes, in chunks, some of them untiered, the oldest perhaps of unknown time."""

    def __init__(
        self, spans: Sequence[tuple[int, int]], per_chunk: int, unknown: int, untiered: int, start: int
    ) -> None:
        at, self.blocks, self.times = 0, [], []
        for index, (gap, span) in enumerate(spans):
            first, last = at + gap, at + gap + span
            at = last
            self.times += [first, last]  # two events a block, five bytes each
            known = index >= unknown
            self.blocks.append(
                ChunkBlock(
                    start_offset=index * 10,
                    end_offset=index * 10 + 10,
                    crc32c=0,
                    event_count=2,
                    first_ms=first if known else None,
                    last_ms=last if known else None,
                )
            )
        tiered = self.blocks[: max(0, len(self.blocks) - untiered)]
        cuts = range(0, len(tiered), per_chunk)
        self.chunks = [tiered[cut : cut + per_chunk] for cut in cuts]
        self.state = SegmentInfo(
            name="s", start_offset=start, length=10 * len(spans), sealed=False, last_modified_ms=max([0, *self.times])
        )

    async def info(self, name: str) -> SegmentInfo:
        return self.state

    async def chunk_ranges(self, name: str, start: int, end: int) -> list[ChunkRange]:
        return [
            ChunkRange(
                name="c",
                location=None,
                start_offset=chunk[0].start_offset,
                end_offset=chunk[-1].end_offset,
                blocks=chunk,
            )
            for chunk in self.chunks
            if chunk[0].start_offset < end and start < chunk[-1].end_offset
        ]

    async def next_event_boundary(self, name: str, offset: int) -> int:
        return offset


SPANS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=12)


@given(
    spans=SPANS,
    per_chunk=st.integers(1, 4),
    chunks_unknown=st.integers(0, 2),
    untiered=st.integers(0, 4),
    begin=st.integers(0, 3),
    time_ms=st.integers(0, 50),
)
def test_no_event_of_a_range_is_left_out_and_only_blocks_that_straddle_it_come_with_it(
    spans: list[tuple[int, int]], per_chunk: int, chunks_unknown: int, untiered: int, begin: int, time_ms: int
) -> None:
    import asyncio

    start = 10 * min(begin, len(spans))
    unknown = chunks_unknown * per_chunk
    written = Written(spans, per_chunk, unknown, untiered, start)
    first = asyncio.run(_place(written, "s", 0, time_ms, end=False)).offset  # type: ignore[arg-type]
    last = asyncio.run(_place(written, "s", 0, time_ms, end=True)).offset  # type: ignore[arg-type]
    came = {offset * 5: at for offset, at in enumerate(written.times) if offset * 5 >= start}
    assert all(offset >= first for offset, at in came.items() if at >= time_ms), "from a time on"
    assert all(offset < last for offset, at in came.items() if at < time_ms), "up to a time"
    if not unknown and not untiered:
        straddling = [b for b in written.blocks if b.first_ms is not None and b.first_ms < time_ms <= (b.last_ms or 0)]
        room = 10 * len(straddling)
        assert sum(5 for offset, at in came.items() if at < time_ms and offset >= first) <= room
        assert sum(5 for offset, at in came.items() if at >= time_ms and offset < last) <= room


@given(
    spans=SPANS,
    per_chunk=st.integers(1, 4),
    untiered=st.integers(0, 4),
    low=st.integers(0, 12),
    size=st.integers(1, 12),
)
def test_an_append_time_is_never_before_the_event_and_at_most_a_block_behind_it(
    spans: list[tuple[int, int]], per_chunk: int, untiered: int, low: int, size: int
) -> None:
    written = Written(spans, per_chunk, 0, untiered, 0)
    start, end = min(low, len(spans)) * 10, min(low + size, len(spans)) * 10
    chunks = [
        ChunkRange(name="c", location=None, start_offset=c[0].start_offset, end_offset=c[-1].end_offset, blocks=c)
        for c in written.chunks
    ]
    times = times_of(start, end, chunks, written.state.last_modified_ms)
    assert [place for place, _ in times] == sorted({place for place, _ in times})
    assert start == end or times[-1][0] == end
    for offset in range(start, end, 5):
        documented = next(at for place, at in times if offset < place)
        block = written.blocks[offset // 10]
        assert documented is not None
        assert written.times[offset // 5] <= documented
        tiered = offset // 10 < len(spans) - untiered
        assert documented <= (block.last_ms if tiered else written.state.last_modified_ms)
