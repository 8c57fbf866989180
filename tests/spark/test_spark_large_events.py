"""Events of several appends: they lie in several blocks, and perhaps in several chunks of tier 2."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from pyspark.sql.datasource import EqualTo
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxRows
from spark_driver import SCHEMA, Driver
from spark_world import World, keyed, open_here

from penstock.codec.events import frame_events
from penstock.model.names import StreamName, segment_name
from penstock.model.segments import SegmentId
from penstock.ports.data.segments import Append
from penstock.spark.connect import Services
from penstock.spark.options import parse_read
from penstock.spark.source import FilteringReader

PART_BYTES = 6000  # more than a block of the store here; a chunk has 32 KiB


def write_large(world: World, stream: StreamName, event: bytes, number: int) -> None:
    """Write the event as clients write large ones: parts in a transient segment, which is merged."""

    async def write(services: Services) -> None:
        segments, parent, data = services.segments, segment_name(stream, SegmentId(0)), frame_events([event])
        writer = UUID(int=number)
        name = await segments.create_transient(parent, writer)
        last = await segments.setup_append(name, writer)
        for part, start in enumerate(range(0, len(data), PART_BYTES), 1):
            await segments.append(
                Append(
                    segment=name,
                    writer=writer,
                    data=data[start : start + PART_BYTES],
                    event_number=part,
                    event_count=1,
                    previous=last if part == 1 else part - 1,
                )
            )
        await segments.merge(parent, name)

    world.link.run(write)


@pytest.fixture
def stream(world_here: World) -> StreamName:
    return world_here.create("s")


@pytest.fixture
def events(world_here: World, stream: StreamName) -> list[bytes]:
    """All events of the stream, tiered except for the last ones."""
    found = keyed(0, 300)
    world_here.write(stream, found)
    for number, size in enumerate((50_000, 7_000, 120_000)):
        large = [b"k0:%d:" % number + bytes([number + 1]) * size]
        write_large(world_here, stream, large[0], number + 1)
        small = keyed(1000 * number, 1000 * number + 40)
        world_here.write(stream, small)
        found += large + small
    world_here.wait_tiered(stream)
    return found


@pytest.mark.parametrize("direct", ["true", "false"])
@pytest.mark.parametrize("target", ["5000", "40000", "1000000"])
def test_large_events_are_read_whole_and_the_others_from_their_chunks(
    data: Path, stream: StreamName, events: list[bytes], direct: str, target: str
) -> None:
    driver = Driver(data, stream, direct=direct, target_partition_bytes=target)
    assert driver.all() == [events]


@pytest.mark.parametrize("limit", [ReadMaxBytes(9_000), ReadMaxBytes(60_000), ReadMaxRows(7), ReadMaxRows(301)])
def test_a_batch_never_ends_inside_a_large_event(
    data: Path, stream: StreamName, events: list[bytes], limit: ReadLimit
) -> None:
    driver, found = Driver(data, stream), []
    while (batch := driver.batch(limit)) is not None:
        found += batch
    assert found == events


def test_filters_leave_no_part_of_a_large_event(data: Path, stream: StreamName, events: list[bytes]) -> None:
    options = parse_read({"controller": str(data), "path": str(stream)})
    offsets = [0]
    for event in events:
        offsets.append(offsets[-1] + len(event) + 8)
    for place in (0, 299, 300, 301, 341, 342, 343, 384, len(events) - 1):
        reader = FilteringReader(open_here, options, SCHEMA)
        reader.pushFilters([EqualTo(("offset",), offsets[place])])
        rows = [row for share in reader.partitions() for batch in reader.read(share) for row in batch.to_pylist()]
        assert [row["event"] for row in rows if row["offset"] == offsets[place]] == [events[place]]
