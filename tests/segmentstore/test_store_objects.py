"""A store whose tier 2 is written once: the laws hold, few objects are made, none is written twice, failures lose nothing."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager, suppress

import pytest
from importer import PARENT, TXN, write_chunks
from object_world import ObjectWorld
from store_laws import Between, StoreLaws
from store_world import PATIENCE_S, append, content

from penstock.codec.events import frame_events
from penstock.model.errors import UnavailableError
from penstock.storage.chunks.object_chunks import ObjectChunks
from penstock.testing.conformance import laws, run_conformance
from penstock.testing.conformance.erasure import ErasureLaws
from penstock.testing.conformance.segments import SegmentLaws

SMALL = {"containers": 1, "flush_bytes": 100, "chunk_bytes": 1000, "tier_run_bytes": 1000, "free_head_bytes": 1}
KB100 = 100_000
LARGE = {"flush_bytes": KB100, "chunk_bytes": 10 * KB100, "tier_run_bytes": 10 * KB100, "tier_unit_bytes": 4 * KB100}
"""Appends large enough to be blocks of their own; small ones share one."""


@asynccontextmanager
async def world(**settings):
    made = ObjectWorld(**(SMALL | settings))
    await made.open()
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield made
    finally:
        await made.store.close(checkpoint=False)


class ObjectStoreLaws(StoreLaws):
    def __init__(self, what: str, reopening: str, **settings) -> None:
        super().__init__(what, reopening, **settings)
        self.world = ObjectWorld(**settings)

    @asynccontextmanager
    async def open(self):
        self.world.chunks = ObjectChunks(self.world.objects)
        await self.world.open()
        try:
            yield Between(self.world, self.what)
        finally:
            await self.world.store.close(checkpoint=self.reopening == "restart")


@pytest.mark.parametrize("what", ["nothing", "flush", "evict"])
@pytest.mark.parametrize("law", [*laws(SegmentLaws), *laws(ErasureLaws)])
def test_laws_of_segments_over_objects(law: str, what: str) -> None:
    settings = {"flush_bytes": 30, "chunk_bytes": 100, "free_head_bytes": 1}
    run_conformance(lambda: ObjectStoreLaws(what, "crash", **settings), law=law)


def test_a_segment_gathers_a_unit_before_it_becomes_an_object() -> None:
    async def main() -> None:
        async with world(tier_unit_bytes=450) as w:
            await w.store.create_segment("a/b/0")
            for _ in range(8):
                await append(w.store, "a/b/0", b"x" * 50)
            for _ in range(50):
                await asyncio.sleep(0)
            assert await w.data_objects() == {}
            await append(w.store, "a/b/0", b"x" * 60)
            while not await w.data_objects():
                await asyncio.sleep(0)
            assert sum((await w.data_objects()).values()) in (450, 460)
            assert len(await w.data_objects()) == 1
            assert await content(w.store, "a/b/0") == b"x" * 460

    asyncio.run(main())


def test_no_object_is_ever_written_twice_and_runs_become_one_object() -> None:
    async def main() -> None:
        async with world() as w:
            await w.store.create_segment("a/b/0")
            data = b""
            for number in range(12):
                part = bytes((number,)) * 90
                data += part
                await append(w.store, "a/b/0", part)
                if number % 4 == 3:
                    await w.store.flush()
            assert set(w.puts.values()) == {1}
            sizes = list((await w.data_objects()).values())
            assert sum(sizes) == len(data)
            await w.crash()
            await append(w.store, "a/b/0", b"end")
            await w.store.flush()
            assert set(w.puts.values()) == {1}
            await w.evict()
            assert await content(w.store, "a/b/0") == data + b"end"

    asyncio.run(main())


def test_the_dead_head_of_an_object_waits_for_the_whole_and_is_told_so() -> None:
    async def main() -> None:
        async with world(**LARGE) as w:
            await w.store.create_segment("a/b/0")
            for _ in range(4):
                await append(w.store, "a/b/0", b"x" * KB100)
            await w.store.flush()
            (name,) = await w.data_objects()
            (found,) = await w.store.chunk_ranges("a/b/0", 0, 4 * KB100)
            assert len(found.blocks) == 4
            await w.store.truncate("a/b/0", 350_000)
            await w.settle()
            space = (await w.store.spaces(["a/b/0"]))["a/b/0"]
            assert (space.pending_free_bytes, space.partial_bytes, space.freed_bytes) == (350_000, 350_000, 0)
            assert await content(w.store, "a/b/0") == b"x" * 50_000
            await append(w.store, "a/b/0", b"y" * KB100)
            await w.store.truncate("a/b/0", 4 * KB100)
            await w.settle()
            space = (await w.store.spaces(["a/b/0"]))["a/b/0"]
            assert (space.pending_free_bytes, space.partial_bytes, space.freed_bytes) == (0, 0, 4 * KB100)
            assert name in w.deleted
            assert f"{name}.idx" in w.deleted

    asyncio.run(main())


def test_a_unit_of_several_blocks_becomes_one_object() -> None:
    async def main() -> None:
        async with world(**LARGE) as w:
            await w.store.create_segment("a/b/0")
            for _ in range(4):
                await append(w.store, "a/b/0", b"x" * KB100)
            while not (found := await w.data_objects()):
                await asyncio.sleep(0)
            assert list(found.values()) == [4 * KB100]

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(12))
def test_uploads_that_fail_before_or_after_they_are_applied_lose_and_leave_nothing(seed: int) -> None:
    rng = random.Random(seed)

    async def main() -> None:
        async with world(retry_min_s=0.001, retry_max_s=0.002) as w:
            w.fail = lambda verb, name, applied: rng.random() < 0.15
            await w.store.create_segment("a/b/0")
            data, start = b"", 0
            for number in range(60):
                part = rng.randbytes(rng.randrange(1, 200))
                data += part
                await append(w.store, "a/b/0", part)
                if rng.random() < 0.3:
                    # Tried again by the store itself, and by the next flush.
                    with suppress(UnavailableError):
                        await w.store.flush()
                if rng.random() < 0.1:
                    start = rng.randrange(start, len(data))
                    await w.store.truncate("a/b/0", start)
                if number % 20 == 19:
                    await w.crash()
            w.fail = lambda verb, name, applied: False
            await w.crash()
            await w.settle()
            assert await content(w.store, "a/b/0") == data[start:]
            assert set(w.puts.values()) == {1}
            ranges = await w.store.chunk_ranges("a/b/0", start, len(data))
            named = {f"chunks/{item.name}" for item in ranges}
            assert set(await w.data_objects()) == named
            assert set(await w.objects.list("chunks")) == named | {f"{name}.idx" for name in named}

    asyncio.run(main())


def test_objects_that_others_put_are_adopted_and_go_with_their_segment():
    async def scenario():
        async with world(**SMALL) as made:
            for name in (PARENT, TXN):
                await made.store.create_segment(name)
            grant = await made.store.grant_import(TXN)
            assert not grant.appends
            # Another process, which shares nothing with the store but the bucket.
            chunks = await write_chunks(ObjectChunks(made.objects), grant, [[b"one"], [b"two"]])
            await write_chunks(ObjectChunks(made.objects), await made.store.grant_import(TXN), [[b"lost"]])
            await made.store.adopt_chunks(TXN, 0, chunks)
            await made.store.merge(PARENT, TXN)
            await made.crash()
            assert await content(made.store, PARENT) == frame_events([b"one", b"two"])
            await made.settle()
            assert [name for name in made.puts if name.endswith("-0") and "/i0-" not in name]
            found = await made.data_objects()
            assert {name.removeprefix("chunks/") for name in found if "/i0-" not in name} == {
                item.name for item in chunks
            }
            await made.store.delete(PARENT)
            await made.settle()
            assert [name for name in await made.data_objects() if "/i0-" not in name] == []

    asyncio.run(scenario())
