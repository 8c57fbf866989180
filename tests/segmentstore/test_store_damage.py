"""A row of the metadata that rots costs that row: the store starts, all else is right, nothing is deleted for it."""

from __future__ import annotations

import asyncio
import copy
import pickle

import pytest
from rotten_world import SEGMENTS, TABLES, RottenWorld, events, fill
from store_world import PATIENCE_S, World, Writer, append, content, writer

from penstock.codec.store import rows as records
from penstock.model.errors import BadKeyVersionError, CorruptDataError, PenstockError
from penstock.net.workers.values import decode_value, encode_value
from penstock.ports.data.tables import ANY_VERSION, DamagedEntry, TableKind, TablePut, TableRemoval


async def state(store, name: str):
    if name in TABLES:
        return [(item.key, item.value) for item in await store.table_scan(name, after=None, limit=100)]
    start = (await store.info(name)).start_offset
    numbers = [await store.setup_append(name, writer(number)) for number in (1, 2)]
    return start, await content(store, name), numbers


async def states(store) -> dict[str, object]:
    """What each segment holds; the error of one that is refused."""
    found: dict[str, object] = {}
    for name in [*SEGMENTS, *TABLES]:
        try:
            found[name] = await state(store, name)
        except PenstockError as error:
            found[name] = error
    return found


async def a_day(world: World, refused: dict[str, None]) -> dict[str, None]:
    """Writes, truncations, tiering and restarts. Adds segments that refuse a call. Returns the truncated ones."""
    truncated: dict[str, None] = {}
    for turn in range(3):
        for name in SEGMENTS:
            try:
                last = await world.store.setup_append(name, writer(5))
                one = Writer(world.store, name, 5)
                one.last = last
                await one.append(events(f"day{turn}", 4))
                info = await world.store.info(name)
                await world.store.truncate(name, min(info.length, info.start_offset + 700))
                truncated[name] = None
                await world.store.spaces([name])
                await content(world.store, name)
            except CorruptDataError:
                refused[name] = None
        for table in TABLES:
            try:
                await world.store.table_update(table, [TablePut(key=b"z%d" % turn, value=b"z", version=ANY_VERSION)])
            except CorruptDataError:
                refused[table] = None
        world.clock.ms += 8 * 3_600_000
        await world.settle()
        assert world.store.offline is None
        await (world.crash() if turn == 1 else world.restart())
    return truncated


async def rot(world: World, disks, key: bytes | None, sound: dict[str, object]) -> dict[str, object]:
    """Damage one row, and simulate a day. Returns the final content of every segment."""
    world.put_in(disks)
    if key is not None:
        world.keyvalue.rotten[key] = None
    files = set(await world.chunks.list())
    await world.open()
    try:
        found = await states(world.store)
        refused = {name: None for name, value in found.items() if isinstance(value, PenstockError)}
        for name, value in found.items():
            if name in refused:
                assert isinstance(value, CorruptDataError), (name, value)
            else:
                assert value == sound[name], name
        assert len(refused) <= 1, refused
        named = await names_of(world, files)
        truncated = await a_day(world, refused)
        assert len(refused) <= 1, refused
        # The chunks of the refused segment still exist, whatever was freed of the others.
        left = set(await world.chunks.list())
        for name in refused.keys() - truncated.keys():
            assert named.get(name, set()) <= left, name
        after = await states(world.store)
        return {name: value for name, value in after.items() if name not in refused}
    finally:
        await world.store.close(checkpoint=False)


async def names_of(world: World, files: set[str]) -> dict[str, set[str]]:
    """The chunks that each segment names in its sound rows."""
    found: dict[str, set[str]] = {}
    for container in world.store.containers:
        damaged: list[bytes] = []
        bounds = records.range_of(records.prefix(records.TAG_SEGMENT, container.index))
        uids = {
            records.parse_number(key[3:11]): records.decode_segment(value).name
            for key, value in await container.rows.scan_all(bounds, damaged=damaged)
        }
        bounds = records.range_of(records.prefix(records.TAG_CHUNK, container.index))
        for key, value in await container.rows.scan_all(bounds, damaged=damaged):
            name = uids.get(records.parse_number(key[3:11]))
            if name is not None and records.decode_chunk(value).name in files:
                found.setdefault(name, set()).add(records.decode_chunk(value).name)
    return found


def rot_rows(*, catalogue: bool) -> dict[str, int]:
    async def main() -> dict[str, int]:
        world = RottenWorld(catalogue=catalogue)
        await world.open()
        await fill(world)
        sound = await states(world.store)
        assert not any(isinstance(value, Exception) for value in sound.values())
        await world.store.close(checkpoint=False)
        disks = world.disks()
        tags: dict[str, int] = {}
        keys = world.keyvalue.all_keys()
        expected = await rot(world, disks, None, sound)
        assert len(expected) == len(sound)
        for key in keys:
            tags[key[:1].decode()] = tags.get(key[:1].decode(), 0) + 1
            try:
                async with asyncio.timeout(PATIENCE_S):
                    for name, value in (await rot(world, disks, key, sound)).items():
                        assert value == expected[name], name
            except BaseException as error:
                error.add_note(f"row {key!r}")
                raise
        return tags

    return asyncio.run(main())


@pytest.mark.parametrize("catalogue", [True, False])
def test_a_damaged_row_affects_only_its_segment(catalogue):
    tags = rot_rows(catalogue=catalogue)
    assert set("Scnsakbtvlmxfp") | (set("gj") if catalogue else set()) <= set(tags), tags


@pytest.mark.parametrize("table", TABLES)
def test_a_damaged_entry_affects_only_its_key_until_the_next_change(table):
    async def main() -> None:
        world = RottenWorld()
        store = await world.open()
        kind = {} if table == TABLES[0] else {"kind": TableKind.SORTED, "key_bytes": 2}
        await store.create_table(table, **kind)
        keys = [b"k%d" % number for number in range(8)]
        await store.table_update(table, [TablePut(key=key, value=key, version=ANY_VERSION) for key in keys])
        await store.flush()
        world.keyvalue.rotten = {
            row: None for row in world.keyvalue.all_keys() if row[:1] == b"t" and row[-1:] in b"2345"
        }
        store = await world.restart()
        found: list = []
        while step := await store.table_scan(table, after=found[-1].key if found else None, limit=3):
            found += step
        assert [item.key for item in found] == keys
        assert [item.key for item in found if isinstance(item, DamagedEntry)] == keys[2:6]
        read = await store.table_get(table, [b"k2", b"k6", b"no"])
        assert [isinstance(item, DamagedEntry) for item in read] == [True, False, False]
        with pytest.raises(CorruptDataError):
            _ = read[0].value
        assert pickle.loads(pickle.dumps(read[0])).key == b"k2"
        assert decode_value(*joined(encode_value(read)))[0].key == b"k2"
        with pytest.raises(BadKeyVersionError):
            await store.table_update(table, [TablePut(key=b"k2", value=b"", version=3)])
        await store.table_update(table, [TablePut(key=b"k2", value=b"new", version=ANY_VERSION)])
        await store.table_update(table, [TablePut(key=b"k3", value=b"new", version=read[0].version)])
        await store.table_remove(table, [TableRemoval(key=b"k4")])
        await world.settle()
        store = await world.crash()
        assert [item.value for item in await store.table_get(table, [b"k2", b"k3", b"k4"])] == [b"new", b"new", b""]
        assert (await store.table_info(table))[1] == 7
        await store.close()

    asyncio.run(main())


def joined(encoded):
    text, beside = encoded
    return text, b"".join(beside)


async def lose(world: World, disks, key: bytes, sound: dict[str, object]) -> dict[str, object]:
    """As ``rot``, with a row that is missing."""
    lost = copy.deepcopy(disks)
    await lost[1].commit([], [key])
    return await rot(world, lost, None, sound)


def lose_rows(wanted: bytes) -> int:
    """How many rows with these tags there were, each of which was lost once."""

    async def main() -> int:
        world = RottenWorld()
        await world.open()
        await fill(world)
        sound = await states(world.store)
        await world.store.close(checkpoint=False)
        disks = world.disks()
        keys = [key for key in world.keyvalue.all_keys() if key[:1] in wanted]
        expected = await rot(world, disks, None, sound)
        for key in keys:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    for name, value in (await lose(world, disks, key, sound)).items():
                        assert value == expected[name], name
            except BaseException as error:
                error.add_note(f"row {key!r}")
                raise
        return len(keys)

    return asyncio.run(main())


def test_a_lost_row_that_has_a_copy_is_replaced_by_it():
    assert lose_rows(b"Sc") >= 4


def test_a_lost_row_of_a_chunk_affects_only_reads_of_its_segment():
    assert lose_rows(b"k") >= 4


def test_bytes_whose_chunk_row_is_lost_are_corrupt_for_reads_counts_and_erasures():
    async def main() -> None:
        world = RottenWorld()
        await world.open()
        name = SEGMENTS[0]
        await world.store.create_segment(name)
        await append(world.store, name, events("e", 10))
        await world.store.flush()
        await world.restart()
        await world.store.close()
        (key,) = [key for key in world.keyvalue.all_keys() if key[:1] == records.TAG_CHUNK]
        await world.keyvalue.commit([], [key])
        await world.open()
        length = (await world.store.info(name)).length
        for call in (
            world.store.read(name, 0, 100, wait=False),
            world.store.count_events(name, 0, length),
            world.store.event_ranges(name, [0]),
        ):
            with pytest.raises(CorruptDataError):
                await call
        await world.store.close(checkpoint=False)

    asyncio.run(main())
