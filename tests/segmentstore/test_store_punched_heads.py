"""A head that was punched, and a crash before its row says so: nobody takes the hole for damage, nobody for data."""

from __future__ import annotations

from uuid import UUID

from store_world import World, Writer, content, run

SEGMENT = "scope/stream/0.#epoch.0"
SIZES = {"flush_bytes": 100, "chunk_bytes": 10_000, "free_head_bytes": 100}


def event(number: int) -> bytes:
    return (92).to_bytes(8, "big") + bytes([number]) * 92


async def punched_and_crashed(world: World, *, at: int = 350) -> None:
    """Eight events; the head up to ``at`` is truncated and punched; a crash takes the row that would say so. A lease keeps
    the store from doing it again."""
    store = world.store
    await store.create_segment(SEGMENT)
    one = await Writer(store, SEGMENT).setup()
    for number in range(8):
        await one.append(event(number))
    await world.settle()
    container = store._container(SEGMENT)
    await store.truncate(SEGMENT, at)
    await container.checkpointer.checkpoint()
    (chunk,) = (await container.segments.find_visible(SEGMENT)).chunks.items
    await container.reclaimer.free()
    assert chunk.freed == at // 100 * 100
    store = await world.crash()
    (chunk,) = (await store._container(SEGMENT).segments.find_visible(SEGMENT)).chunks.items
    assert chunk.freed == 0, "the crash took the row"
    await store.lease_chunks([SEGMENT], UUID(int=1), until_ms=world.clock.now_ms() + 60_000)


def test_scrub_does_not_report_the_hole_as_damage() -> None:
    async def body(world: World) -> None:
        await punched_and_crashed(world)
        cursor, damage = None, []
        while True:
            page = await world.store.scrub(cursor, 1 << 20)
            damage += page.damage
            cursor = page.cursor
            if cursor is None:
                break
        assert damage == []

    run(body, **SIZES)


def test_an_erasure_is_not_stopped_by_the_hole() -> None:
    async def body(world: World) -> None:
        await punched_and_crashed(world)
        store = world.store
        ranges = await store.event_ranges(SEGMENT, [500])
        (erased,) = await store.erase(SEGMENT, ranges, erasure="e" * 32)
        assert erased.blanked_bytes == 92
        blank = event(5)[:8] + bytes(92)
        wanted = b"".join(blank if number == 5 else event(number) for number in range(4, 8))
        assert await content(store, SEGMENT, 400) == wanted
        store = await world.crash()
        assert await content(store, SEGMENT, 400) == wanted

    run(body, **SIZES)


def test_reads_and_counts_are_correct_beside_the_hole() -> None:
    async def body(world: World) -> None:
        await punched_and_crashed(world, at=300)
        store = world.store
        assert await content(store, SEGMENT) == b"".join(map(event, range(3, 8)))
        assert await store.count_events(SEGMENT, 300, 800) == 5

    run(body, **SIZES)
