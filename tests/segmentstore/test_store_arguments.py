"""Nothing that a caller's arguments can cause ends a container: values and sizes of every kind, against every call."""

from __future__ import annotations

import asyncio
import inspect
import random
from typing import Any

import pytest
from importer import PARENT, TXN, write_chunks
from store_arguments import LIMIT, SmallFrames, calls
from store_world import World, append, content, run, writer

from penstock.model.errors import InvalidArgumentError, PenstockError
from penstock.ports.data.imports import ChunkImports
from penstock.ports.data.segments import Append
from penstock.ports.data.service import LocalSegmentService, SegmentService
from penstock.ports.data.tables import TableKind


def small_frames(test: Any) -> None:
    async def main() -> None:
        world = SmallFrames()
        await world.open()
        try:
            await test(world)
        finally:
            await world.store.close(checkpoint=False)

    asyncio.run(main())


class Names:
    """Notes which calls are looked up, and makes none."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.found.add(name)
        return lambda *_, **__: None


def test_every_call_of_the_ports_is_made() -> None:
    names = Names()
    for call in calls(random.Random(1), names):
        call()
    asked = {
        name
        for port in (SegmentService, LocalSegmentService, ChunkImports)
        for name, _ in inspect.getmembers(port, inspect.iscoroutinefunction)
    }
    # These take no arguments, and the last two wait.
    assert asked - names.found == {"disk", "flush", "limits_reached", "rates_reported"}


def no_argument_ends_a_container(seed: int, turns: int) -> None:
    rng = random.Random(seed)

    async def body(world: World) -> None:
        store = world.store
        for name in (PARENT, TXN):
            await store.create_segment(name)
            await append(store, name, b"a" * 900, number=100)
        await store.create_table("s/h")
        await store.create_table("s/o", kind=TableKind.SORTED, key_bytes=2)
        for _ in range(turns):
            for call in calls(rng, store):
                try:
                    async with asyncio.timeout(10):
                        await call()
                except PenstockError:
                    pass
                assert store.offline is None
        last = [f"q/{number}/0.#epoch.0" for number in range(6)]
        for name in last:
            await store.create_segment(name)
            await append(store, name, b"on")
        store = await world.crash()
        assert [await content(store, name) for name in last] == [b"on"] * 6

    small_frames(body)


@pytest.mark.parametrize("seed", range(4))
def test_no_argument_of_any_call_ends_a_container(seed: int) -> None:
    no_argument_ends_a_container(seed, 40)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_no_argument_of_very_many_calls_ends_a_container(seed: int) -> None:
    no_argument_ends_a_container(seed, 1000)


def test_an_adoption_of_more_blocks_than_a_frame_takes_is_refused() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(PARENT)
        await store.create_segment(TXN)
        grant = await store.grant_import(TXN)
        chunks = await write_chunks(world.chunks, grant, [[b"e"] * 400 for _ in range(6)])
        with pytest.raises(InvalidArgumentError) as refused:
            await store.adopt_chunks(TXN, 0, chunks)
        assert refused.value.fields["limit_bytes"] < LIMIT < refused.value.fields["size_bytes"]
        assert store.offline is None
        half = await store.adopt_chunks(TXN, 0, chunks[:3])
        assert await store.adopt_chunks(TXN, half, chunks[3:]) == sum(item.size_bytes for item in chunks)
        await append(store, PARENT, b"on")

    small_frames(body)


def test_a_number_that_the_log_cannot_hold_is_refused_before_it_is_queued() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(PARENT)
        await append(store, PARENT, b"a")
        for number in (1 << 63, 1 << 70):
            with pytest.raises(InvalidArgumentError):
                await store.append(Append(segment=PARENT, writer=writer(1), data=b"b", event_number=number, previous=0))
            with pytest.raises(InvalidArgumentError):
                await store.update_attribute(PARENT, writer(2), number, expected=None)
            with pytest.raises(InvalidArgumentError):
                await store.create_segment("s/b/0.#epoch.0", rollover_bytes=number)
        assert await append(store, PARENT, b"b") == 2

    run(body)
