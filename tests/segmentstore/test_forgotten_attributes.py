"""Attributes leave memory only if no queued operation changes them, whatever value the last of these will leave."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from held_calls import Held
from store_world import World, run, writer

from penstock.ports.data.segments import Append

SEGMENT = "scope/stream/0.#epoch.0"
WRITER = writer(1)


async def _two_queued(world: World, *, by_append: bool) -> tuple[Held, asyncio.Future, asyncio.Future]:
    """Queue a change of 5 to 7 and one back to 5, one frame each; let the attribute leave memory; hold the second frame."""
    store = world.store
    await store.create_segment(SEGMENT)
    assert await store.update_attribute(SEGMENT, WRITER, 5, expected=None)
    assert await store.update_attribute(SEGMENT, writer(2), 5, expected=None)
    await store.flush()
    container = store._container(SEGMENT)
    numbers = itertools.count()
    held = Held(container.state.log, "append", matches=lambda *_: next(numbers) == 1)
    if by_append:
        there = asyncio.ensure_future(
            store.append(
                Append(segment=SEGMENT, writer=WRITER, data=b"x" * 8, event_number=7, event_count=1, previous=5)
            )
        )
    else:
        there = asyncio.ensure_future(store.update_attribute(SEGMENT, WRITER, 7, expected=5))
    await asyncio.sleep(0)
    back = asyncio.ensure_future(store.update_attribute(SEGMENT, WRITER, 5, expected=7))
    await asyncio.sleep(0)
    segment = container.segments.visible(SEGMENT)
    assert segment is not None
    assert segment.pending_operations == 2
    container.segments.evict_idle(1000)
    assert not container.segments.forget_attribute(segment, WRITER.int)
    # Anybody may look meanwhile.
    assert await store.get_attribute(SEGMENT, WRITER) == 5
    await held.reached.wait()
    await there
    assert not back.done()
    return held, there, back


@pytest.mark.parametrize("by_append", [False, True], ids=["set", "appended"])
def test_a_change_that_is_acknowledged_is_seen_although_a_queued_one_takes_it_back(by_append: bool) -> None:
    async def body(world: World) -> None:
        held, _, back = await _two_queued(world, by_append=by_append)
        assert await world.store.get_attribute(SEGMENT, WRITER) == 7
        held.release.set()
        assert await back
        assert await world.store.get_attribute(SEGMENT, WRITER) == 5
        await world.store.flush()
        assert await world.store.get_attribute(SEGMENT, WRITER) == 5

    run(body, max_loaded_attributes=1, frame_operations=1)


@pytest.mark.parametrize("by_append", [False, True], ids=["set", "appended"])
def test_a_checkpoint_between_the_two_writes_what_is_acknowledged(by_append: bool) -> None:
    async def body(world: World) -> None:
        held, _, back = await _two_queued(world, by_append=by_append)
        container = world.store._container(SEGMENT)
        container.checkpointer._write_rows(container.state.applied_address)
        segment = container.segments.visible(SEGMENT)
        assert segment is not None
        assert await container.rows.get(container.segments.attribute_key(segment, WRITER.int)) is not None
        segment.attributes.clear()
        assert await world.store.get_attribute(SEGMENT, WRITER) == 7
        held.release.set()
        assert await back

    run(body, max_loaded_attributes=1, frame_operations=1)
