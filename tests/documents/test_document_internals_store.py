"""Pravega internals, the segment store: what the overview promises to users, by its place there."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from documents_world import (
    FIRST,
    STREAM,
    WRITER,
    World,
    life,
    play,
    play_lives,
    storage,
)

from penstock.core.segments.placement import container_of
from penstock.model.errors import (
    ContainerOfflineError,
    PenstockError,
)
from penstock.model.names import StreamName, segment_name, transaction_segment_name
from penstock.ports.data.segments import NO_EVENT, Append
from penstock.testing.simulation.machine.loop import SimLoop

NAME = segment_name(STREAM, FIRST)
SCOPES = "/v1/scopes"

NAME = segment_name(STREAM, FIRST)


async def write(w: World, count: int) -> None:
    async with w.store.stream(STREAM).writer() as writer:
        await writer.write_many([f"{number}" for number in range(count)])


# --- segment store ------------------------------------------------------------------------------------------------


def test_the_segment_store_knows_segments_and_no_streams() -> None:
    """Segment store: it is agnostic to streams; what follows what is the controller's to say."""

    async def story(w: World) -> None:
        for name in ("any/name/at.#epoch.0", "other/one/0.#epoch.0"):
            await w.segments.create_segment(name)
            await w.segments.setup_append(name, WRITER)
            request = Append(segment=name, writer=WRITER, data=b"bytes", event_number=1, previous=NO_EVENT)
            assert (await w.segments.append(request)).end_offset == 5
        assert not await w.controller.scopes.list()

    play(story)


def test_what_was_acknowledged_survives_the_process() -> None:
    """Segment store, tier 1: once an application has learnt that its write succeeded, it is not lost despite faults."""
    loop = SimLoop(1)
    disks = storage(loop)

    async def main() -> None:
        async with life(loop, disks, "first") as first:
            await first.stream()
            await write(first, 50)
            # The first process never gets to close: another one begins on its disks.
            async with life(loop, disks, "second") as second:
                assert len(await second.read()) == 50

    loop.run(main(), max_seconds=3600)


def test_an_old_owner_is_fenced_out() -> None:
    """Segment store, tier 1 and containers: a container has one owner at a time; an old one that still thinks that it owns it
    is fenced out."""
    loop = SimLoop(1)
    disks = storage(loop)

    async def main() -> None:
        async with life(loop, disks, "zombie") as zombie:
            await zombie.stream()
            await zombie.append(10)
            async with life(loop, disks, "owner") as owner:
                with pytest.raises(PenstockError) as caught:
                    await zombie.append(10)
                assert isinstance(caught.value, ContainerOfflineError)
                await owner.append(10)
                assert await owner.size() == 20

    loop.run(main(), max_seconds=3600)


def test_data_moves_to_tier_2_and_then_leaves_tier_1() -> None:
    """Segment store: data is migrated to tier 2 asynchronously, and then truncated from tier 1."""

    async def story(w: World) -> None:
        await w.stream()
        await w.append(*[1000] * 20)
        assert await w.segments.chunk_ranges(NAME, 0, 1 << 20) == []
        assert sum(len(frame) for _, frame in w.disks.log_state.frames) > 20_000
        await asyncio.sleep(30)
        (chunk,) = await w.segments.chunk_ranges(NAME, 0, 1 << 20)
        assert (chunk.start_offset, chunk.end_offset) == (0, 20_000)
        assert sum(len(frame) for _, frame in w.disks.log_state.frames) < 10_000
        assert len(await w.read()) == 20

    play(story, flush_interval_s=5.0, checkpoint_interval_s=5.0)


def test_tail_reads_come_from_memory_and_catch_up_reads_from_tier_2() -> None:
    """Segment store, reads: data just written is read from the cache; older data is a miss, and fetched from tier 2."""

    async def before(w: World) -> None:
        await w.stream()
        reads = _counted(w)
        await write(w, 200)
        assert len(await w.read()) == 200
        assert reads == []
        await w.segments.flush()

    async def after(w: World) -> None:
        reads = _counted(w)
        assert len(await w.read()) == 200
        assert len(reads) > 0

    play_lives(before, after)


def _counted(w: World) -> list[str]:
    """Names of the chunks that are read from now on."""
    real, names = w.disks.chunks.read, []

    async def read(name: str, offset: int, length: int) -> bytes:
        names.append(name)
        return await real(name, offset, length)

    w.disks.chunks.read = read  # type: ignore[method-assign]
    return names


def test_tier_1_serves_recovery_alone() -> None:
    """Segment store, reads: data in tier 1 is used for recovery alone; what is in tier 2 is read without it."""

    async def before(w: World) -> None:
        await w.stream()
        await write(w, 100)
        await w.segments.flush()

    async def after(w: World) -> None:
        w.disks.log_state.frames.clear()
        assert len(await w.read()) == 100

    play_lives(before, after)


def test_segments_are_spread_over_containers() -> None:
    """Segment containers: the work is split over containers, each responsible for all operations on its segments."""
    names = [segment_name(StreamName("s", f"t{number}"), FIRST) for number in range(200)]
    owners = [container_of(name, 4) for name in names]
    assert set(owners) == {0, 1, 2, 3}
    assert min(owners.count(item) for item in range(4)) > 25
    # A transaction's segment is merged by one container alone.
    txn = UUID(int=5)
    assert [container_of(transaction_segment_name(name, txn), 4) for name in names] == owners


def test_each_container_recovers_its_segments() -> None:
    """Segment containers: the container is the unit of recovery; its next owner restores it from its log.
    Differs: one log for all containers"""

    async def before(w: World) -> None:
        for number in range(8):
            await w.stream(name=StreamName("s", f"t{number}"))
            await w.append(10 + number, stream=StreamName("s", f"t{number}"))

    async def after(w: World) -> None:
        assert [await w.size(StreamName("s", f"t{number}")) for number in range(8)] == list(range(10, 18))

    play_lives(before, after, containers=3)
