"""A damaged row, and a catalogue that has no usable snapshot; erasures beside a damaged row."""

from __future__ import annotations

import asyncio

import pytest
from rotten_world import SEGMENTS, RottenWorld, events, fill
from store_world import append, content

from penstock.codec.store import rows as records
from penstock.model.errors import CorruptDataError
from penstock.segmentstore.repair.rebuild import list_catalogue, load_container, take_missing_rows
from penstock.storage.memory.memory_keyvalue import MemoryKeyValue
from penstock.storage.memory.memory_objects import MemoryObjects


async def catalogued(world: RottenWorld) -> tuple[list[bytes], MemoryKeyValue]:
    """Keys that the catalogue lacks, and all rows that it has."""
    keyvalue, lacking = MemoryKeyValue(), []
    for index, names in sorted((await list_catalogue(world.objects)).items()):
        state = await load_container(world.objects, index, names, keyvalue)
        assert state.damage == []
        lacking += await take_missing_rows(keyvalue, index)
    return lacking, keyvalue


def test_a_store_without_a_snapshot_writes_one_though_a_row_is_damaged():
    """Until there is one, the log keeps everything, of all containers."""

    async def main() -> None:
        world = RottenWorld(catalogue=True)
        await world.open()
        await fill(world)
        await world.restart()
        await world.store.close()
        disks = world.disks()
        rows = {key[:1]: key for key in world.keyvalue.all_keys() if key[0] in records.CATALOGUED}
        assert set(rows) >= set(map(bytes, zip(b"nsakbtvmx")))
        for row in rows.values():
            world.put_in(disks)
            world.keyvalue.rotten[row] = None
            world.objects = MemoryObjects()
            await world.open()
            await append(world.store, SEGMENTS[4], events("more", 20), number=3)
            await world.store.flush()
            for container in world.store.containers:
                assert container.catalogue.safe >= 0, row
                assert container.checkpointer.needed_from() is None, row
            await world.restart()
            await world.store.flush()
            assert all(container.catalogue.safe >= 0 for container in world.store.containers), row
            await world.store.close()
            still = [key for key in world.keyvalue.rotten if key == row]
            lacking, found = await catalogued(world)
            # A row that was deleted since may still be reported, never the other way round.
            assert set(still) <= set(lacking) <= {row}
            expected = [key for key in world.keyvalue.all_keys() if key[0] in records.CATALOGUED and key not in still]
            assert [key for key, _ in await found.scan(b"", b"\xff", limit=10_000)] == expected

    asyncio.run(main())


def test_a_snapshot_that_lacks_a_row_replaces_none_that_holds_it():
    """The outbox is damaged too, so that what lies in tier 2 cannot be continued."""

    async def main() -> None:
        world = RottenWorld(catalogue=True)
        await world.open()
        await fill(world)
        await world.store.close(checkpoint=False)
        rows = world.keyvalue.all_keys()
        entry = next(key for key in rows if key[:1] == b"t")
        outbox = next(key for key in rows if key[:1] == b"j" and key[1:3] == entry[1:3])
        world.keyvalue.rotten = {entry: None, outbox: None}
        before = {name for name in await world.objects.list("catalogue") if "/s-" in name}
        assert before
        await world.open()
        await world.store.flush()
        assert all(container.catalogue.safe >= 0 for container in world.store.containers)
        after = await world.objects.list("catalogue")
        index = int.from_bytes(entry[1:3], "big")
        assert {name for name in before if name.startswith(f"catalogue/{index:x}/")} <= set(after)
        await world.store.close()
        assert (await catalogued(world))[0] == [entry]

    asyncio.run(main())


# --- erasures beside a damaged row ------------------------------------------------------------------------


@pytest.mark.parametrize("tag", [b"k", b"s"])
def test_a_damaged_row_of_one_segment_does_not_stop_erasures_of_others(tag):
    async def main() -> None:
        world = RottenWorld()
        store = await world.open()
        for name in SEGMENTS:
            await store.create_segment(name)
            await append(store, name, events("x", 20))
        await store.flush()
        damaged = SEGMENTS[0]
        container = store._container(damaged)
        other = next(name for name in SEGMENTS[1:] if store._container(name) is container)
        uid = container.segments.pending(damaged).uid
        chunks = [item.name for item in await store.chunk_ranges(damaged, 0, 100)]
        await store.close()
        rest = records.number(0) if tag == b"k" else b""
        world.keyvalue.rotten[records.uid_key(tag, container.index, uid, rest)] = None
        store = await world.open()
        for word in ("e", "f"):
            await store.erase(other, [(48, 96)], erasure=word)
            assert await content(store, other) != events("x", 20)
            store = await world.restart()
        with pytest.raises(CorruptDataError):
            await store.erase(damaged, [(48, 96)], erasure="f")
        assert set(chunks) <= set(await world.chunks.list())
        await store.close()

    asyncio.run(main())


def test_what_a_damaged_row_may_name_is_not_wiped():
    """A chunk of a segment that is gone: it may have been merged, into the erased segment or into the damaged one."""

    async def main() -> None:
        world = RottenWorld()
        store = await world.open()
        for name in SEGMENTS:
            await store.create_segment(name)
        damaged = SEGMENTS[0]
        container = store._container(damaged)
        other = next(name for name in SEGMENTS[1:] if store._container(name) is container)
        part = damaged + "#transaction." + "a" * 32
        await append(store, other, events("x", 20))
        await store.create_segment(part)
        await append(store, part, events("txn", 20))
        await store.flush()
        await store.merge(damaged, part)
        await store.flush()
        uid = container.segments.pending(damaged).uid
        chunks = [item.name for item in await store.chunk_ranges(damaged, 0, 100)]
        await store.close()
        world.keyvalue.rotten[records.chunk_key(container.index, uid, 0)] = None
        store = await world.open()
        with pytest.raises(CorruptDataError):
            await store.erase(other, [(48, 96)], erasure="e")
        assert set(chunks) <= set(await world.chunks.list())
        await store.close()

    asyncio.run(main())
