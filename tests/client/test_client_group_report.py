"""A group is described exactly: who reads what, and how far behind it is, wherever its positions are stored."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from client_world import simulate

from penstock.codec.answers import as_json
from penstock.model.errors import InvalidArgumentError, ReaderGroupNotFoundError
from penstock.model.policies import ReaderGroupRetention
from penstock.ports.control.groups import ReaderGroupConfig

EVENT_BYTES = 8 + 4


async def fill(stream, count):
    async with stream.writer() as writer:
        for number in range(count):
            await writer.write(f"{number:04}", f"k{number}")


@pytest.mark.parametrize("retention", ["none", "manual", "automatic"])
def test_members_assignment_and_lag_of_every_kind_of_group(retention):
    async def test(world):
        store = world.store
        stream = await store.create_stream("a/s", segments=2, create_scope=True)
        await fill(stream, 30)
        await world.real_segments.flush()
        group = await store.reader_group("a/g", ["a/s"], retention=retention)
        await asyncio.sleep(60)
        before = await store.describe_reader_group("a/g")
        assert (before.group, before.retention, before.owner, before.members) == ("a/g", retention, "reader group", [])
        (there,) = before.streams
        assert (there.lag_bytes, there.lag_events) == (30 * EVENT_BYTES, 30)
        assert 60_000 <= there.lag_ms < 61_000
        assert (there.acknowledged is None) == (retention == "none")
        assert sum(map(len, before.unassigned.values())) == 2
        async with group.reader("one", auto_commit=False) as one, group.reader("two", auto_commit=False) as two:
            await asyncio.sleep(5)
            events = [await one.read() for _ in range(3)]
            await one.commit()
            found = await store.describe_reader_group("a/g")
            assert found.unassigned == {}
            assert [item.name for item in found.members] == ["one", "two"]
            assigned = {
                name: {f"{segment}#0" for _, segment in each.assigned()} for name, each in (("one", one), ("two", two))
            }
            assert {item.name: set(item.segments["a/s"]) for item in found.members} == assigned
            assert found.members[0].segments["a/s"][f"{events[0].segment}#0"] == 3 * EVENT_BYTES
            (there,) = found.streams
            assert (there.lag_bytes, there.lag_events) == (27 * EVENT_BYTES, 27)
            assert as_json(found)["streams"][0]["lag_events"] == 27
        await store.reset_reader_group("a/g", "latest")
        (there,) = (await store.describe_reader_group("a/g")).streams
        assert (there.lag_bytes, there.lag_events, there.lag_ms) == (0, 0, 0)

    simulate(test)


def test_truncated_data_is_no_lag():
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        await fill(stream, 10)
        await world.store.reader_group("a/g", ["a/s"])
        await stream.truncate(await stream.tail())
        await fill(stream, 4)
        (there,) = (await world.store.describe_reader_group("a/g")).streams
        assert (there.lag_bytes, there.lag_events) == (4 * EVENT_BYTES, 4)

    simulate(test)


@pytest.mark.parametrize("scaled", [False, True])
def test_a_group_of_another_client_is_described_by_what_it_has_acknowledged(scaled):
    async def test(world):
        store = world.store
        stream = await store.create_stream("a/s", create_scope=True)
        await fill(stream, 10)
        begin = await stream.head()
        if scaled:
            await stream.scale(3)
        await fill(stream, 5)
        for name, kind in (("j", ReaderGroupRetention.MANUAL), ("n", ReaderGroupRetention.NONE)):
            config = ReaderGroupConfig(
                scope="a", name=name, id=UUID(int=5), retention=kind, start_cuts={stream.name: begin}
            )
            await world.controller.groups.create(config)
            found = await store.describe_reader_group(f"a/{name}")
            (there,) = found.streams
            assert (there.lag_bytes, there.lag_events, found.members) == (15 * EVENT_BYTES, 15, [])
        async with store.stream("a/_RGn").writer() as writer:
            await writer.write("state of the Java client")
        found = await store.describe_reader_group("a/n")
        assert found.owner == "reader group (Java)"
        assert (found.streams[0].position, found.streams[0].lag_bytes) == (None, None)
        assert not await world.segments.infos(["a/_GROUPn/0.#epoch.0"])

    simulate(test)


def test_a_deleted_stream_of_a_group_has_no_lag_and_hides_nothing():
    async def test(world):
        store = world.store
        for name in ("s", "t"):
            await fill(await store.create_stream(f"a/{name}", create_scope=name == "s"), 3)
        await store.reader_group("a/g", ["a/s", "a/t"])
        await store.stream("a/s").delete(seal=True)
        gone, there = (await store.describe_reader_group("a/g")).streams
        assert (gone.position, gone.lag_bytes, there.lag_events) == (None, None, 3)
        await store.create_stream("a/s")
        gone, there = (await store.describe_reader_group("a/g")).streams
        assert (gone.lag_bytes, there.lag_events) == (None, 3)

    simulate(test)


def test_groups_are_listed_over_the_store():
    async def test(world):
        store = world.store
        assert await store.reader_groups() == []
        for scope in ("b", "a"):
            await store.create_stream(f"{scope}/s", create_scope=True)
            for name in ("y", "x"):
                await store.reader_group(f"{scope}/{name}", [f"{scope}/s"])
        assert await store.reader_groups() == ["a/x", "a/y", "b/x", "b/y"]
        assert await store.reader_groups("b") == ["b/x", "b/y"]
        with pytest.raises(ReaderGroupNotFoundError):
            await store.describe_reader_group("a/none")
        with pytest.raises(InvalidArgumentError):
            await store.describe_reader_group("none")

    simulate(test)
