"""What a lease promised when it was answered holds: over releases, merges, renewals and crashes, in every order."""

from __future__ import annotations

import asyncio
import random
from uuid import UUID

import pytest
from store_world import World, append, run

from penstock.model.errors import InvalidArgumentError

SEGMENT = "scope/stream/0.#epoch.0"
TABLE = "scope/table/0.#epoch.0"
HOUR_MS = 3_600_000


async def leased_segment(world: World, *, until_ms: int) -> UUID:
    store, lease = world.store, world.rng.uuid()
    await store.create_segment(SEGMENT)
    await append(store, SEGMENT, b"data")
    await store.flush()
    await store.lease_chunks([SEGMENT], lease, until_ms=world.clock.now_ms() + until_ms)
    return lease


async def held_until_ms(world: World, name: str = SEGMENT) -> int | None:
    """The time until which the store would keep the segment's chunks after a deletion, as it reports it."""
    container = world.store._container(name)
    uid = (await container.segments.find_visible(name)).uid
    return max((item.until_ms for item in container.leases.on({uid: None})), default=None)


def test_a_lease_taken_again_after_its_release_outlives_a_crash() -> None:
    async def body(world: World) -> None:
        lease = await leased_segment(world, until_ms=HOUR_MS)
        await world.store.release_lease(lease)
        await world.store.lease_chunks([SEGMENT], lease, until_ms=world.clock.now_ms() + HOUR_MS)
        await world.store.flush()
        store = await world.crash()
        (chunk,) = await store.chunk_ranges(SEGMENT, 0, 4)
        await store.delete(SEGMENT)
        await world.settle()
        assert chunk.name in await world.chunks.list()

    run(body)


def test_a_renewal_outlives_the_merge_before_it() -> None:
    async def body(world: World) -> None:
        store, now_ms = world.store, world.clock.now_ms()
        lease = world.rng.uuid()
        await store.create_segment(SEGMENT)
        await append(store, SEGMENT, b"target")
        source = await store.create_transient(SEGMENT, world.rng.uuid())
        await append(store, source, b"source")
        await store.lease_chunks([source], lease, until_ms=now_ms + 10_000)
        await store.merge(SEGMENT, source)
        await store.lease_chunks([SEGMENT], lease, until_ms=now_ms + HOUR_MS)
        await store.flush()
        await world.crash()
        assert await held_until_ms(world) == now_ms + HOUR_MS

    run(body)


def test_a_release_does_not_end_the_lease_that_was_taken_after_it() -> None:
    async def body(world: World) -> None:
        lease = await leased_segment(world, until_ms=HOUR_MS)
        real = world.keyvalue.commit

        async def slow(*arguments, **named) -> None:
            await real(*arguments, **named)
            for _ in range(5):
                await asyncio.sleep(0)

        world.keyvalue.commit = slow
        releasing = asyncio.ensure_future(world.store.release_lease(lease))
        await asyncio.sleep(0)
        await world.store.lease_chunks([SEGMENT], lease, until_ms=world.clock.now_ms() + HOUR_MS)
        await releasing
        assert await held_until_ms(world) is not None
        await world.crash()
        assert await held_until_ms(world) is not None

    run(body)


class SlowCommits(World):
    """Commits take some passes of the loop before and after they happen."""

    def __init__(self, seed: int) -> None:
        super().__init__(containers=1)
        self.random = random.Random(seed)
        real = self.keyvalue.commit

        async def commit(*arguments, **named) -> None:
            await self.pause()
            await real(*arguments, **named)
            await self.pause()

        self.keyvalue.commit = commit

    async def pause(self) -> None:
        for _ in range(self.random.randrange(4)):
            await asyncio.sleep(0)


async def play(seed: int) -> None:
    world = SlowCommits(seed)
    draw = world.random
    store = await world.open()
    await store.create_segment(SEGMENT)
    leases = [world.rng.uuid() for _ in range(2)]
    for _ in range(20):
        promised: dict[UUID, int | None] = {}
        waiting: list[asyncio.Future[None]] = []
        for _ in range(draw.randrange(1, 6)):
            lease, now_ms = draw.choice(leases), world.clock.now_ms()
            what = draw.randrange(6)
            if what == 0:
                waiting.append(asyncio.ensure_future(store.release_lease(lease)))
                promised[lease] = None
            elif what == 1:
                waiting.append(asyncio.ensure_future(store.containers[0].checkpointer.checkpoint()))
            elif what == 2:
                source = await store.create_transient(SEGMENT, world.rng.uuid())
                await append(store, source, b"x")
                await store.lease_chunks([source], lease, until_ms=now_ms + 1000)
                await store.merge(SEGMENT, source)
                promised[lease] = max(promised.get(lease) or 0, now_ms + 1000)
            elif what == 3:
                # The merge may be queued before the lease, or after it.
                source = await store.create_transient(SEGMENT, world.rng.uuid())
                await append(store, source, b"x")
                merging = asyncio.ensure_future(store.merge(SEGMENT, source))
                for _ in range(draw.randrange(3)):
                    await asyncio.sleep(0)
                leased = await store.lease_chunks([source], lease, until_ms=now_ms + HOUR_MS)
                await merging
                if leased.granted:
                    promised[lease] = max(promised.get(lease) or 0, now_ms + HOUR_MS)
            else:
                until_ms = now_ms + draw.randrange(1000, HOUR_MS)
                task = store.lease_chunks([SEGMENT], lease, until_ms=until_ms)
                waiting.append(asyncio.ensure_future(task))
                promised[lease] = max(promised.get(lease) or 0, until_ms)
            for _ in range(draw.randrange(3)):
                await asyncio.sleep(0)
            world.clock.ms += draw.randrange(3)
        await asyncio.gather(*waiting)
        if draw.random() < 0.5:
            store = await world.crash()
        uid = (await store.containers[0].segments.find_visible(SEGMENT)).uid
        found = {item.id: item.until_ms for item in store.containers[0].leases.on({uid: None})}
        for lease, until_ms in promised.items():
            if until_ms is None:
                assert lease not in found
            else:
                assert found.get(lease, 0) >= until_ms
    await world.store.close(checkpoint=False)


@pytest.mark.parametrize("seed", range(40))
def test_every_answered_lease_is_kept(seed: int) -> None:
    asyncio.run(play(seed))


def test_a_name_that_is_refused_leaves_no_lease_on_the_others() -> None:
    async def body(world: World) -> None:
        store, until_ms = world.store, world.clock.now_ms() + HOUR_MS
        await store.create_segment(SEGMENT)
        await append(store, SEGMENT, b"data")
        await store.create_table(TABLE)
        with pytest.raises(InvalidArgumentError, match="segment is a table"):
            await store.lease_chunks([SEGMENT, TABLE], world.rng.uuid(), until_ms=until_ms)
        assert await held_until_ms(world) is None
        await store.lease_chunks([SEGMENT], world.rng.uuid(), until_ms=until_ms)
        assert await held_until_ms(world) == until_ms

    run(body)
