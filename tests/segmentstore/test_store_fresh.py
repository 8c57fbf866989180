"""Segments that live for a moment: made without a look for their names, gone without a trace in the metadata."""

from __future__ import annotations

import pytest
from store_world import World, append, content, run

from penstock.model.errors import SegmentNotFoundError

SEGMENT = "scope/stream/0.#epoch.0"
OTHER = "scope/stream/1.#epoch.0"


def txn(number: int, parent: str = SEGMENT) -> str:
    return f"{parent}#transaction.{number:032x}"


def reported(world: World, method: str) -> list[tuple]:
    """The arguments of each call of the key-value store from here on."""
    calls: list[tuple] = []
    real = getattr(world.keyvalue, method)

    async def call(*arguments, **named):
        calls.append((*arguments, *named.values()))
        return await real(*arguments, **named)

    setattr(world.keyvalue, method, call)
    return calls


def test_fresh_segments_are_durable_and_were_not_looked_for() -> None:
    async def body(world: World) -> None:
        await world.store.create_segment(SEGMENT)
        await world.store.create_segment(OTHER)
        looked = reported(world, "get_many")
        await world.store.create_fresh([txn(1), txn(1, OTHER)])
        assert looked == []
        store = await world.crash()
        for name in (txn(1), txn(1, OTHER)):
            assert (await store.info(name)).length == 0
        await append(store, txn(1), b"events")
        assert await store.merge(SEGMENT, txn(1)) == 6

    run(body)


def test_a_transaction_between_two_checkpoints_asks_for_no_deletion() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        await store.flush()
        commits = reported(world, "commit")
        for number in range(3):
            await store.create_fresh([txn(number)])
            await append(store, txn(number), b"%d" % number)
            assert await store.merge_run(SEGMENT, [txn(number)]) == 1
        await store.create_fresh([txn(7)])
        await append(store, txn(7), b"aborted")
        await store.delete(txn(7))
        await store.flush()
        deleted = [key for puts, deletes, ranges in commits for key in (*deletes, *(start for start, _ in ranges))]
        # Rows of chunks and of what is not tiered come and go as ever; none names a segment that is gone.
        assert [key for key in deleted if key[:1] in (b"n", b"s", b"a")] == []
        assert await content(store, SEGMENT) == b"012"
        store = await world.crash()
        assert await content(store, SEGMENT) == b"012"
        for number in (0, 7):
            with pytest.raises(SegmentNotFoundError):
                await store.info(txn(number))

    run(body)


def test_a_transaction_that_a_checkpoint_has_seen_is_deleted_for_good() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        await store.create_fresh([txn(1), txn(2)])
        await append(store, txn(1), b"one")
        await append(store, txn(2), b"two")
        await store.flush()
        assert await store.merge_run(SEGMENT, [txn(1)]) == 1
        await store.delete(txn(2))
        await store.flush()
        store = await world.crash()
        assert await content(store, SEGMENT) == b"one"
        for number in (1, 2):
            with pytest.raises(SegmentNotFoundError):
                await store.info(txn(number))

    run(body)
