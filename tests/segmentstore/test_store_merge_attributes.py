"""Merges with conditions on attributes: decided with the merge, and durable with it or not at all."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from store_world import World, append, content, run

from penstock.model.errors import ConditionFailedError, SegmentSealedError
from penstock.ports.data.attributes import AttributeChange
from penstock.ports.data.segments import NO_EVENT

SEGMENT = "scope/stream/0.#epoch.0"
FIRST, SECOND = UUID(int=8), UUID(int=9)


def txn(number: int) -> str:
    return f"{SEGMENT}#transaction.{number:032x}"


async def prepared(world: World, count: int = 2) -> None:
    await world.store.create_segment(SEGMENT)
    for number in range(count):
        await world.store.create_fresh([txn(number)])
        await append(world.store, txn(number), b"%d" % number)


async def values(store) -> list[int]:
    return [await store.get_attribute(SEGMENT, key) for key in (FIRST, SECOND)]


def test_a_merge_that_is_refused_changes_no_attribute() -> None:
    async def body(world: World) -> None:
        await prepared(world)
        unmet = [AttributeChange(attribute=FIRST, value=1), AttributeChange(attribute=SECOND, value=1, expected=7)]
        with pytest.raises(ConditionFailedError):
            await world.store.merge(SEGMENT, txn(0), updates=unmet)
        assert await values(world.store) == [NO_EVENT, NO_EVENT]
        await world.store.seal(SEGMENT)
        with pytest.raises(SegmentSealedError):
            await world.store.merge(SEGMENT, txn(0), updates=unmet[:1])
        store = await world.crash()
        assert await values(store) == [NO_EVENT, NO_EVENT]

    run(body)


def test_of_merges_that_expect_the_same_value_one_is_made() -> None:
    async def body(world: World) -> None:
        await prepared(world, 6)
        update = [AttributeChange(attribute=FIRST, value=1, expected=NO_EVENT)]
        asked = [world.store.merge(SEGMENT, txn(number), updates=update) for number in range(6)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert sorted(map(str, (type(item).__name__ for item in answers))) == ["ConditionFailedError"] * 5 + ["int"]
        assert len(await content(world.store, SEGMENT)) == 1

    run(body)


def test_what_was_merged_with_its_attributes_survives_a_crash_and_a_repeat() -> None:
    async def body(world: World) -> None:
        await prepared(world)
        updates = [
            AttributeChange(attribute=FIRST, value=1, expected=NO_EVENT),
            AttributeChange(attribute=FIRST, value=2, expected=1),
            AttributeChange(attribute=SECOND, value=5),
        ]
        assert await world.store.merge(SEGMENT, txn(0), updates=updates) == 1
        store = await world.crash()
        assert await values(store) == [2, 5]
        # An answer that was lost: the same again finds it done, whatever the attributes are by now.
        assert await store.merge(SEGMENT, txn(0), updates=updates) == 1
        assert await content(store, SEGMENT) == b"0"
        assert await values(store) == [2, 5]

    run(body)
