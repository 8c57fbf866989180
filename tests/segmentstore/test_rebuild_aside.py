"""A segment that was set aside for a rotten row costs nothing in the end: calls repeat as at first, and a rebuild has all of it."""

from __future__ import annotations

import asyncio
import random

import pytest
from rebuilt_store import reborn
from rotten_world import RottenWorld, events
from store_world import PATIENCE_S, Writer, append, content, writer

from penstock.codec.store import rows as records
from penstock.model.errors import SegmentNotFoundError

BASES = [f"s/t/{number}.#epoch.0" for number in range(3)]
WRITERS = range(1, 4)


def txn_of(base: str, number: int) -> str:
    return f"{base}#transaction.{number:032x}"


def row_of(world: RottenWorld, name: str) -> bytes:
    container = world.store._container(name)
    segment = container.segments.pending(name)
    assert segment is not None
    return records.uid_key(records.TAG_SEGMENT, container.index, segment.uid)


async def checkpoint(world: RottenWorld) -> None:
    for container in world.store.containers:
        await container.checkpointer.checkpoint()


def run(scenario, **settings) -> None:
    async def main() -> None:
        world = RottenWorld(**settings)
        await world.open()
        async with asyncio.timeout(PATIENCE_S):
            await scenario(world)

    asyncio.run(main())


def test_a_merge_from_what_is_set_aside_is_answered_when_it_is_repeated():
    async def scenario(world: RottenWorld) -> None:
        store, base = world.store, BASES[0]
        first, second = txn_of(base, 1), txn_of(base, 2)
        await store.create_segment(base)
        for name in (first, second):
            await store.create_segment(name)
            await append(store, name, events("txn", 5), number=9)
        await checkpoint(world)
        row = row_of(world, first)
        merged = await store.merge(base, first)
        await store.close(checkpoint=False)
        world.keyvalue.rotten[row] = None
        await world.open()
        for _ in range(3):
            assert await world.store.merge(base, first) == merged
            with pytest.raises(SegmentNotFoundError):
                await world.store.info(first)
            await world.restart()
        assert await world.store.merge_run(base, [second]) == 1
        assert (await world.store.info(base)).length == 2 * merged
        await world.store.create_segment(first)  # The name is free.
        await world.store.close()

    run(scenario)


def test_a_segment_that_is_set_aside_stays_deleted():
    async def scenario(world: RottenWorld) -> None:
        store, base = world.store, BASES[0]
        await store.create_segment(base)
        await append(store, base, events("x", 5))
        await checkpoint(world)
        row = row_of(world, base)
        await store.delete(base)
        await store.close(checkpoint=False)
        world.keyvalue.rotten[row] = None
        await world.open()
        for _ in range(2):
            for call in (world.store.delete, world.store.info):
                with pytest.raises(SegmentNotFoundError):
                    await call(base)
            await world.restart()
        await world.store.create_segment(base)
        await append(world.store, base, events("again", 2))
        await world.restart()
        assert await content(world.store, base) == events("again", 2)
        await world.store.close()

    run(scenario)


# --- rebuilt after any history ----------------------------------------------------------------------------


async def live(world: RottenWorld, rng: random.Random) -> list[str]:
    """Things of all kinds happen. Returns all names."""
    store = world.store
    for base in BASES:
        await store.create_segment(base)
    names, open_txns, sealed = list(BASES), [], {}
    for step in range(60):
        name = rng.choice([*BASES, *open_txns])
        deed = rng.randrange(12)
        if deed < 5 and name not in sealed:
            one = Writer(store, name, rng.choice(WRITERS))
            one.last = await store.setup_append(name, one.id)
            count = rng.randrange(1, 6)
            await one.append(events(f"{step}-", count), count=count)
        elif deed == 5:
            open_txns.append(txn_of(rng.choice(BASES), step))
            names.append(open_txns[-1])
            await store.create_segment(open_txns[-1])
        elif deed == 6 and open_txns:
            txn = open_txns.pop(rng.randrange(len(open_txns)))
            await (store.delete(txn) if rng.random() < 0.2 else store.merge(txn.partition("#trans")[0], txn))
        elif deed == 7:
            await change_head(store, rng.choice(BASES), rng)
        elif deed == 8:
            await store.update_attribute(name, writer(20), step, expected=None)
        elif deed == 9 and step < 50:
            await checkpoint(world)
        elif deed == 10 and step < 30:
            await store.flush()
        elif deed == 11 and name in open_txns:
            sealed[name] = await store.seal(name)
    return names


async def change_head(store, base: str, rng: random.Random) -> None:
    info = await store.info(base)
    at = rng.randrange(info.start_offset, info.length + 1)
    deed = rng.randrange(4)
    if deed == 0:
        await store.truncate(base, at)
    elif deed == 1:
        await store.truncate(base, at, keep=True)
    elif deed == 2:
        await store.release(base, info.start_offset)
    else:
        await store.restore(base, rng.randrange(info.start_offset + 1))


async def states(store, names: list[str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name in names:
        try:
            info = await store.info(name)
            numbers = [await store.setup_append(name, writer(number)) for number in WRITERS]
            mark = await store.get_attribute(name, writer(20))
            data = await content(store, name)
            found[name] = (info.start_offset, info.length, info.sealed, info.event_count, numbers, mark, data)
        except SegmentNotFoundError:
            found[name] = None
    return found


async def rebuilt_states(world: RottenWorld, names: list[str]) -> dict[str, object]:
    aside: list = []
    store = await reborn(world, aside=aside)
    try:
        assert [item.failed for item in aside] == [[]] * len(aside)
        return await states(store, names)
    finally:
        await store.close(checkpoint=False)


@pytest.mark.parametrize("seed", range(6))
def test_a_rebuild_has_all_that_was_set_aside(seed):
    async def scenario(world: RottenWorld) -> None:
        rng = random.Random(seed)
        names = await live(world, rng)
        await world.store.close(checkpoint=False)
        disks = world.disks()
        await world.open()
        expected = await states(world.store, names)
        await world.store.close(checkpoint=False)
        rows = [key for key in world.keyvalue.all_keys() if key[:1] in (b"s", b"k")]
        set_aside = 0
        for keys in [[key] for key in rows] + [rng.sample(rows, 2) for _ in range(4)]:
            world.put_in(disks)
            world.keyvalue.rotten = dict.fromkeys(keys)
            await world.open()
            if not any(container.segments.aside for container in world.store.containers):
                await world.store.close(checkpoint=False)
                continue
            set_aside += 1
            if rng.random() < 0.5:
                await world.crash()
            await world.store.flush()
            if rng.random() < 0.5:
                await world.restart()
            await world.store.close()
            assert await rebuilt_states(world, names) == expected, keys
        assert set_aside

    run(scenario, catalogue=True)
