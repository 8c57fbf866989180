"""A segment that leaves memory while somebody works with it: nothing is lost, and sound data is never called damaged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from store_world import World, Writer, append, content, run

from penstock.model.errors import TruncatedError
from penstock.ports.data.limits import AppendLimit
from penstock.segmentstore.container import Container

SEGMENT = "scope/stream/0.#epoch.0"
SMALL = {"flush_bytes": 100, "chunk_bytes": 1000, "free_head_bytes": 100}


def event(number: int) -> bytes:
    return (92).to_bytes(8, "big") + bytes([number]) * 92


async def filled(world: World, *, events: int = 8) -> Container:
    """A segment of ``events`` blocks of 100 bytes in one chunk, out of memory."""
    store = world.store
    await store.create_segment(SEGMENT)
    one = await Writer(store, SEGMENT).setup()
    for number in range(events):
        await one.append(event(number))
    await world.evict()
    return store._container(SEGMENT)


def evict(container: Container) -> None:
    for _ in range(2):
        container.segments.evict_idle(0)


class SlowCalls:
    """The first call of a storage method reads, then waits until ``release``."""

    def __init__(self, owner: object, method: str, *, tag: bytes | None = None) -> None:
        self.reached = asyncio.Event()
        self.release = asyncio.Event()
        real = getattr(owner, method)

        async def call(*arguments, **named):
            found = await real(*arguments, **named)
            if not self.reached.is_set() and (tag is None or arguments[0][:1] == tag):
                self.reached.set()
                await self.release.wait()
            return found

        setattr(owner, method, call)


async def with_dead_head(world: World, *, at: str) -> tuple[Container, SlowCalls]:
    """A container that frees a head, and waits at one of the two awaits."""
    container = await filled(world)
    await world.store.truncate(SEGMENT, 350)
    await container.checkpointer._checkpoint(everything=True)
    evict(container)
    await world.store.info(SEGMENT)
    slow = SlowCalls(world.keyvalue, "scan", tag=b"b") if at == "rows" else SlowCalls(world.chunks, "free_head")
    container.checkpointer.ask()
    await slow.reached.wait()
    evict(container)
    return container, slow


async def one_checkpoint(world: World) -> None:
    """Let the freeing end, then commit its row and let the log go. A second checkpoint would free the head once more, and
    hide a wrong row behind a right one."""
    for _ in range(200):
        await asyncio.sleep(0)
    await world.store.flush()


@pytest.mark.parametrize("at", ["rows", "punch"])
def test_the_head_of_a_deleted_chunk_is_not_freed(at: str) -> None:
    async def body(world: World) -> None:
        container, slow = await with_dead_head(world, at=at)
        await world.store.truncate(SEGMENT, 800)
        slow.release.set()
        await one_checkpoint(world)
        assert container.offline is None
        store = await world.crash()
        assert (await store.info(SEGMENT)).length == 800
        assert await append(store, SEGMENT, b"more") == 804
        await world.settle()
        assert store.offline is None
        assert await content(store, SEGMENT) == b"more"

    run(body, **SMALL)


@pytest.mark.parametrize("at", ["rows", "punch"])
def test_freeing_a_head_does_not_overwrite_a_new_length_with_an_old_one(at: str) -> None:
    async def body(world: World) -> None:
        container, slow = await with_dead_head(world, at=at)
        one = await Writer(world.store, SEGMENT).setup()
        for _ in range(4):
            await one.append(b"new!" * 25)
        await container.tiering.tier_all()
        slow.release.set()
        await one_checkpoint(world)
        store = await world.crash()
        assert await content(store, SEGMENT, 400) == b"".join(map(event, range(4, 8))) + b"new!" * 100

    run(body, flush_bytes=100, chunk_bytes=10_000, free_head_bytes=100)


async def ranges(world: World) -> object:
    return await world.store.chunk_ranges(SEGMENT, 0, 800)


async def boundary(world: World) -> object:
    return await world.store.next_event_boundary(SEGMENT, 150)


async def count(world: World) -> object:
    return await world.store.count_events(SEGMENT, 150, 750)


async def read(world: World) -> object:
    return await world.store.read(SEGMENT, 100, 10, wait=False)


async def spaces(world: World) -> object:
    return await world.store.spaces([SEGMENT])


async def events(world: World) -> object:
    return await world.store.event_ranges(SEGMENT, [100])


CALLS = [ranges, boundary, count, read, spaces, events]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
@pytest.mark.parametrize("grows", [False, True], ids=["truncated", "grown"])
def test_a_call_reports_no_damage_if_its_segment_leaves_memory(
    call: Callable[[World], Awaitable[object]], grows: bool
) -> None:
    async def body(world: World) -> None:
        container = await filled(world)
        if call is spaces:
            await world.store.truncate(SEGMENT, 350, keep=False)
            await container.checkpointer._checkpoint(everything=True)
            evict(container)
        slow = SlowCalls(world.keyvalue, "scan", tag=b"b")
        called = asyncio.ensure_future(call(world))
        await slow.reached.wait()
        evict(container)
        if grows:
            await append(world.store, SEGMENT, b"n" * 100, 2)
            await container.tiering.tier_all()
        else:
            await world.store.truncate(SEGMENT, 800)
        slow.release.set()
        try:
            await called
        except TruncatedError:
            assert not grows
        assert container.offline is None

    run(body, flush_bytes=100, chunk_bytes=10_000, free_head_bytes=100)


def test_a_segment_in_use_stays_in_memory_and_leaves_it_afterwards() -> None:
    async def body(world: World) -> None:
        container = await filled(world)
        segment = await container.segments.find_visible(SEGMENT)
        with segment.pinned(), segment.pinned():
            evict(container)
            assert container.segments.visible(SEGMENT) is segment
        evict(container)
        assert container.segments.visible(SEGMENT) is None

    run(body, **SMALL)


def test_more_sources_than_memory_holds_are_merged() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        sources = [f"{SEGMENT}#transaction.{number:032x}" for number in range(6)]
        for number, source in enumerate(sources):
            await store.create_segment(source)
            await append(store, source, b"%d" % number)
        await world.evict()
        assert await store.merge_run(SEGMENT, sources) == 6
        assert await content(store, SEGMENT) == b"012345"

    run(body, containers=1, max_loaded_segments=1)


def test_a_source_named_twice_is_merged_once() -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        source = f"{SEGMENT}#transaction.{1:032x}"
        await store.create_segment(source)
        await append(store, source, b"once")
        assert await store.merge_run(SEGMENT, [source, source]) == 1
        assert (await store.info(SEGMENT)).length == 4
        await store.flush()
        store = await world.crash()
        assert await content(store, SEGMENT) == b"once"

    run(body)


def test_a_limit_over_several_segments_is_set_while_all_that_is_idle_is_evicted() -> None:
    """Each segment that was loaded left before the next one came: the store never finished its start."""

    async def body(world: World) -> None:
        store = world.store
        names = [f"scope/stream/{number}.#epoch.0" for number in range(3)]
        for name in names:
            await store.create_segment(name)
        await world.evict()
        real, reads = world.keyvalue.scan, 0

        async def scan(*arguments, **named):
            nonlocal reads
            reads += 1
            assert reads < 100
            for container in store.containers:
                evict(container)
            return await real(*arguments, **named)

        world.keyvalue.scan = scan
        await store.limit_appends([AppendLimit(stream="scope/stream", segments=names, total_bytes=50)])
        assert len(store._limits._by_segment) == len(names)
        evict(store.containers[0])
        assert not any(container.segments.held for container in store.containers)

    run(body, containers=1)
