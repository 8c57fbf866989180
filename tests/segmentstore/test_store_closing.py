"""A store that ends leaves nothing behind, also if the task that closes it is cancelled again meanwhile."""

from __future__ import annotations

import asyncio

import pytest
from store_world import World, append

from penstock.segmentstore.tasks import finish

SEGMENT = "shop/clicks/0.#epoch.0"


@pytest.mark.parametrize("cancels", [0, 1, 2, 3])
@pytest.mark.parametrize("checkpoint", [True, False])
@pytest.mark.parametrize("passes", [0, 1, 2])
def test_cancellations_do_not_skip_the_end_of_background_work(cancels: int, checkpoint: bool, passes: int) -> None:
    async def main() -> None:
        world = World()
        await world.open()
        store = world.store
        before = asyncio.all_tasks()
        assert any(task.get_name().endswith("-tier") for task in before)
        await store.create_segment(SEGMENT)
        await append(store, SEGMENT, b"event")
        closing = asyncio.create_task(store.close(checkpoint=checkpoint))
        for _ in range(passes):
            await asyncio.sleep(0)
        for _ in range(cancels):
            closing.cancel()
            await asyncio.sleep(0)
        await asyncio.wait({closing})
        if not cancels or passes:  # one that is cancelled before it starts does nothing
            assert not [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("container-")]
            assert store.offline is not None
        else:
            await store.close(checkpoint=False)

    asyncio.run(main())


def test_a_cleanup_is_finished_before_its_caller_learns_of_the_cancellation() -> None:
    async def main() -> None:
        ended = []

        async def cleanup() -> None:
            await asyncio.sleep(0.01)
            ended.append(True)

        task = asyncio.create_task(finish(cleanup()))
        for _ in range(3):
            await asyncio.sleep(0)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == [True]

        async def failing() -> None:
            raise OSError("disk")

        with pytest.raises(OSError, match="disk"):
            await finish(failing())

    asyncio.run(main())
