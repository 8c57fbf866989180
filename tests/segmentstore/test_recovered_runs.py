"""What recovery takes of the log's runs of appends where tier 2 holds a part of them."""

from __future__ import annotations

import pytest
from store_world import World, Writer, append, content, run, writer

from penstock.codec.store.operation_frames import AppendRun, decode_runs
from penstock.model.errors import UnavailableError
from penstock.ports.data.segments import Appended
from penstock.segmentstore.segment import Segment

SEGMENT = "scope/stream/0.#epoch.0"
TXN = SEGMENT + "#transaction." + "0" * 32
SIZE, COUNT = 3000, 60
BLOCK = 64 << 10


async def one_frame(world: World, name: str) -> bytes:
    """Append from two writers at once, so that one frame holds all of it."""
    writers = [await Writer(world.store, name, number).setup() for number in (1, 2)]
    results: list[Appended] = []
    parts = [bytes([65 + index]) * SIZE for index in range(COUNT)]
    for index, part in enumerate(parts):
        writers[index % 2].submit(part, results)
    await world.store.info(name)
    await append(world.store, name, b"end", 3)
    assert all(isinstance(result, Appended) for result in results), results
    return b"".join([*parts, b"end"])


async def tier_one_block(world: World) -> None:
    """Tier the first block of each segment; the second fails. Then checkpoint."""
    real = world.chunks.append
    written: set[str] = set()

    async def once(name, offset, parts) -> None:
        if offset or written:
            raise UnavailableError("tier 2 is away")
        written.add(name)
        await real(name, offset, parts)

    world.chunks.append = once
    with pytest.raises(UnavailableError):
        await world.store.flush()
    for container in world.store.containers:
        await container.checkpointer.checkpoint()
    world.chunks.append = real


def loaded(world: World, name: str) -> Segment:
    return next(
        segment
        for container in world.store.containers
        for segment in container.segments.loaded()
        if segment.name == name
    )


def ends_of_runs(world: World) -> set[int]:
    found = [item for _, frame in world.log_state.frames for item in decode_runs(frame)]
    return {item.end for item in found if isinstance(item, AppendRun)}


SETTINGS = {"flush_bytes": BLOCK, "tier_run_bytes": 1}


def test_a_run_that_a_chunk_covers_in_part_is_kept_behind_the_chunk() -> None:
    async def body(world: World) -> None:
        await world.store.create_segment(SEGMENT)
        data = await one_frame(world, SEGMENT)
        await tier_one_block(world)
        tiered = loaded(world, SEGMENT).chunks.items[-1].end
        assert 0 < tiered < len(data)
        assert tiered not in ends_of_runs(world), "the chunk ends within a run"

        await world.crash()
        segment = loaded(world, SEGMENT)
        assert segment.cache.untiered[0].start == tiered
        assert segment.cache.untiered_bytes == len(data) - tiered
        assert await content(world.store, SEGMENT) == data
        assert [await world.store.setup_append(SEGMENT, writer(number)) for number in (1, 2)] == [COUNT // 2 - 1] * 2

        await world.store.flush()
        await world.restart()
        assert await content(world.store, SEGMENT) == data

    run(body, **SETTINGS)


def test_a_merged_run_that_a_chunk_covers_in_part_is_kept_behind_the_chunk() -> None:
    async def body(world: World) -> None:
        await world.store.create_segment(SEGMENT)
        await world.store.create_segment(TXN)
        data = await one_frame(world, TXN)
        await tier_one_block(world)
        tiered = loaded(world, TXN).chunks.items[-1].end
        assert tiered not in ends_of_runs(world), "the chunk ends within a run"
        await append(world.store, SEGMENT, b"first")
        await world.store.seal(TXN)
        await world.store.merge(SEGMENT, TXN)
        for container in world.store.containers:
            await container.checkpointer.checkpoint()

        await world.crash()
        segment = loaded(world, SEGMENT)
        assert [(item.start, item.address) for item in segment.cache.untiered][1][0] == len(b"first") + tiered
        assert await content(world.store, SEGMENT) == b"first" + data
        await world.store.flush()
        await world.restart()
        assert await content(world.store, SEGMENT) == b"first" + data

    run(body, **SETTINGS)
