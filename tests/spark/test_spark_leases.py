"""What batch reads hold of a store, and when they give it back."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyspark.sql.datasource import LessThan
from spark_driver import SCHEMA
from spark_world import World, keyed, open_here

from penstock.model.errors import ThrottledError
from penstock.model.names import StreamName, segment_name
from penstock.model.segments import SegmentId
from penstock.segmentstore.store import SegmentStore
from penstock.spark.connect import Services
from penstock.spark.options import parse_read
from penstock.spark.reading.planning import now_ms
from penstock.spark.source import BatchReader, FilteringReader


def reader(data: Path, stream: StreamName, **options: str) -> BatchReader:
    given = {"controller": str(data), "path": str(stream), **options}
    return BatchReader(open_here, parse_read(given), SCHEMA)


def rows(reader: BatchReader, partitions: Sequence[Any]) -> list[bytes]:
    found: list[bytes] = []
    for partition in partitions:
        task, share = pickle.loads(pickle.dumps((reader, partition)))
        for batch in task.read(share):
            found += batch.column("event").to_pylist()
    return found


def leases(world: World) -> set[int]:
    async def held(services: Services) -> set[int]:
        assert isinstance(services.segments, SegmentStore)
        return {lease for container in services.segments.containers for lease, _ in container.leases}

    return world.link.run(held)


def take_all_leases(world: World, stream: StreamName) -> None:
    """All that the container of the stream's first segment gives."""

    async def take(services: Services) -> None:
        name, until_ms = segment_name(stream, SegmentId(0)), now_ms() + 60_000
        calls = [services.segments.lease_chunks([name], UUID(int=n), until_ms=until_ms) for n in range(1000)]
        await asyncio.gather(*calls)

    world.link.run(take)


@pytest.mark.slow
def test_reads_of_many_segments_leave_leases_for_others(world_here: World, data: Path) -> None:
    many, other = world_here.create("many", 2000), world_here.create("other")
    world_here.write(many, keyed(0, 3000, keys=3000))
    world_here.write(other, keyed(0, 10))
    for _ in range(3):
        reader(data, many).partitions()
    one = reader(data, other, direct="true")
    assert rows(one, one.partitions()) == keyed(0, 10)


def test_a_read_to_the_end_gives_its_lease_back(world_here: World, data: Path) -> None:
    stream = world_here.create("s", 3)
    world_here.write(stream, keyed(0, 2000))
    world_here.wait_tiered(stream)
    one = reader(data, stream, target_partition_bytes="4000")
    shares = one.partitions()
    assert len(shares) > 3
    assert len(leases(world_here)) == 1
    # A task that is repeated, and one that is over before another one, change nothing.
    first = rows(one, [*shares[3:], shares[3], shares[4]])
    assert len(leases(world_here)) == 1
    assert len(first) + len(rows(one, shares[:3])) > 2000
    assert leases(world_here) == set()


def test_each_plan_has_a_lease_of_its_own(world_here: World, data: Path) -> None:
    stream = world_here.create("s")
    world_here.write(stream, keyed(0, 100))
    one, two = reader(data, stream), reader(data, stream)
    first, second = one.partitions(), two.partitions()
    assert len(leases(world_here)) == 2
    rows(one, first)
    assert len(leases(world_here)) == 1
    rows(two, second)
    assert leases(world_here) == set()


def test_a_plan_that_no_task_reads_keeps_no_lease(
    world_here: World, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.spark.connect.RETRY_S", 0.2)
    stream, cut = world_here.create("s", 3), world_here.create("cut", 16)
    for one in (stream, cut):
        world_here.write(one, keyed(0, 2000))
        world_here.wait_tiered(one)
    filtered = FilteringReader(open_here, parse_read({"controller": str(data), "path": str(stream)}), SCHEMA)
    filtered.pushFilters([LessThan(("offset",), 0)])
    assert not filtered.partitions()
    assert leases(world_here) == set()
    # A plan that fails where some of its segments are held already.
    take_all_leases(world_here, stream)
    with pytest.raises(ThrottledError):
        reader(data, cut, direct="always").partitions()
    assert not [lease for lease in leases(world_here) if lease >= 1000]


@pytest.mark.parametrize("columns", ["event", "event, append_time"])
def test_a_plan_reads_through_the_store_where_no_lease_is_left(
    world_here: World, data: Path, columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.spark.connect.RETRY_S", 0.2)  # of the refusal at the end; else it takes 30 s
    stream = world_here.create("s")
    world_here.write(stream, keyed(0, 1000))
    world_here.wait_tiered(stream)

    take_all_leases(world_here, stream)
    one = reader(data, stream, columns=columns)
    shares = one.partitions()
    assert {piece.location for share in shares for piece in share.value.pieces} == {None}
    assert {share.value.lease for share in shares} == {None}
    assert rows(one, shares) == keyed(0, 1000)
    with pytest.raises(ThrottledError):
        reader(data, stream, direct="always").partitions()
