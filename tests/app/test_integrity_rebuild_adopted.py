"""From tier 2 alone, where chunks lie in it that somebody else wrote and the store adopted, some of them blanked since."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from integrity_world import lose_log_and_metadata, running, tier_all

from penstock.app.embedded import LocalRuntime
from penstock.app.integrity.rebuild import rebuild
from penstock.client.reading.blocks import Event
from penstock.client.store import AsyncStore
from penstock.codec.events import frame_events
from penstock.codec.store.chunk_builder import ChunkBuilder
from penstock.core.segments.garbage import is_marker, parse_import_name
from penstock.model.names import StreamName, segment_name, transaction_segment_name
from penstock.storage.chunks.imports import open_place

STREAM = StreamName("demo", "adopted")
SECRET = b"canary-7f3a"


def store_of(runtime: LocalRuntime) -> AsyncStore:
    return AsyncStore(runtime.segments, runtime.controller, runtime.clock, runtime.rng)


async def imported(runtime: LocalRuntime, batch: int, events: list[bytes], *, lose: bool = False) -> None:
    """One batch as the sink of Spark commits it: chunks of two attempts, of which the second is adopted."""
    txn = await runtime.controller.transactions.create(STREAM, lease_ms=30_000)
    segment = transaction_segment_name(segment_name(STREAM, txn.segments[0].segment), txn.id)
    for _ in range(2 if lose else 1):
        grant = await runtime.segments.grant_import(segment)
        place = await open_place(grant)
        assert place is not None
        builder = ChunkBuilder(block_bytes=4096, chunk_bytes=16 << 10)
        built = [builder.add(frame_events([event]), 1) for event in events]
        full = [item for item in [*built, builder.finish()] if item is not None]
        made = [await place.write(number, item) for number, item in enumerate(full)]
        await place.settle()
    assert len(made) > 1
    await runtime.segments.adopt_chunks(segment, 0, made)
    assert await runtime.controller.batches.commit(STREAM, writer="sink", batch=batch, transactions=[txn.id])


async def read(runtime: LocalRuntime) -> list[Event]:
    async with store_of(runtime).stream(STREAM).reader(until_tail=True) as reader:
        return [event async for event in reader]


def batch_of(number: int) -> list[bytes]:
    return [(SECRET if n % 50 == 7 else b"plain") + b" %d %d " % (number, n) + b"x" * 200 for n in range(300)]


@pytest.mark.parametrize("erased", [False, True])
def test_adopted_chunks_are_a_working_store_again(tmp_path: Path, erased: bool) -> None:
    async def made() -> list[Event]:
        async with running(tmp_path / "old") as runtime:
            store = store_of(runtime)
            stream = await store.create_stream(STREAM, segments=1, create_scope=True)
            await imported(runtime, 0, batch_of(0), lose=True)
            async with stream.writer() as writer:
                await writer.write(b"in between", "k")
            await imported(runtime, 1, batch_of(1))
            events = await read(runtime)
            assert [event.data for event in events] == [*batch_of(0), b"in between", *batch_of(1)]
            if erased:
                hits = [event for event in events if event.data.startswith(SECRET)]
                await stream.erase(hits, who="ann", why="x", erasure="e")
                events = await read(runtime)
                assert len(events) == 601 - len(hits)
            await tier_all(runtime)
            return events

    before = asyncio.run(made())
    lose_log_and_metadata(tmp_path / "old")
    chunks = {
        name: (tmp_path / "old" / "chunks" / name).read_bytes()
        for path in (tmp_path / "old" / "chunks").rglob("*")
        if path.is_file() and not is_marker(name := str(path.relative_to(tmp_path / "old" / "chunks")))
    }
    assert any(parse_import_name(name) is not None for name in chunks)
    report = asyncio.run(rebuild(str(tmp_path / "old"), tmp_path / "new"))
    assert (report.lost, report.damage) == ([], [])
    assert report.is_complete, report.as_json()

    async def looked_at() -> None:
        async with running(tmp_path / "new") as runtime:
            assert await read(runtime) == before
            stream = store_of(runtime).stream(STREAM)
            if erased:
                found = await stream.erasures.verify("e")
                assert found.holds, found.problems
            # It goes on: the same batch is there already, another one is not.
            await imported(runtime, 2, batch_of(2))
            assert [event.data for event in (await read(runtime))[len(before) :]] == batch_of(2)
            hits = [event for event in await read(runtime) if event.data.startswith(SECRET)]
            receipt = await stream.erase(hits, who="ann", why="y")
            assert receipt["sequence"] == 1 + erased
            found = await stream.erasures.verify(receipt["erasure"])
            assert found.holds, found.problems

    asyncio.run(looked_at())
    left = [path for path in (tmp_path / "new").rglob("*") if path.is_file() and SECRET in path.read_bytes()]
    assert left == []
