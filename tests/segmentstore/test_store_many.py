"""Appends that a frame brought: decided, stored and answered as if each came alone."""

from __future__ import annotations

import asyncio
import random
from uuid import UUID

import pytest
from store_world import World, content

from penstock.codec.store.operation_frames import decode_operations
from penstock.codec.store.operations import AppendOperation
from penstock.core.segments.placement import container_of
from penstock.model.errors import ContainerOfflineError, PenstockError, StorageFullError
from penstock.ports.data.direct_appends import FrameAppend
from penstock.ports.data.limits import AppendLimit, LimitAction
from penstock.ports.data.segments import NO_EVENT, Append, Appended

NAMES = [f"s/t/{number}.#epoch.0" for number in range(6)]
LIMITED, SEALED, TABLE, UNKNOWN = "s/l/0.#epoch.0", "s/x/0.#epoch.0", "s/x/table", "s/x/1.#epoch.0"
WRITERS = [UUID(int=number) for number in (7, 8)]


async def prepared(world: World) -> None:
    store = world.store
    for name in (*NAMES, LIMITED, SEALED):
        await store.create_segment(name)
        for writer in WRITERS:
            await store.setup_append(name, writer)
    await store.create_table(TABLE)
    limit = AppendLimit(stream="s/l", segments=(LIMITED,), total_bytes=3_000, action=LimitAction.REJECT)
    await store.limit_appends([limit])


def frames_of(seed: int) -> list[list[FrameAppend]]:
    rng = random.Random(seed)
    last: dict[tuple[str, UUID], int] = {}
    frames: list[list[FrameAppend]] = []
    for _ in range(6):
        frame: list[FrameAppend] = []
        for _ in range(rng.randrange(1, 30)):
            name = rng.choice((*NAMES, *NAMES, LIMITED, SEALED, TABLE, UNKNOWN))
            writer = rng.choice(WRITERS)
            before = last.get((name, writer), NO_EVENT)
            if rng.random() < 0.05:
                before -= 1  # its number does not continue what is stored
            count = rng.randrange(1, 4)
            number = max(before, 0) + count
            last[name, writer] = number
            data = bytes([rng.randrange(256)]) * rng.choice((0, 10, 500, 900, 20_000))
            frame.append((name, writer, memoryview(data), number, count, before))
        frames.append(frame)
    return frames


async def outcomes_of(world: World, frames: list[list[FrameAppend]], *, together: bool, seal_at: int) -> list[list]:
    """What each append of each frame was answered with; the answers of a writer come in order."""
    found: list[list] = []
    for at, frame in enumerate(frames):
        outcomes: list[object] = [None] * len(frame)
        answered: list[int] = []

        def done(places, outcome, outcomes=outcomes, answered=answered) -> None:
            for index, place in enumerate(places):
                assert outcomes[place] is None
                outcomes[place] = outcome if isinstance(outcome, PenstockError) else outcome[index]
                answered.append(place)

        if at == seal_at:
            sealing = asyncio.create_task(world.store.seal(SEALED))
            await asyncio.sleep(0)
        if together:
            world.store.submit_appends(frame, done)
        else:
            for place, (name, writer, data, number, count, previous) in enumerate(frame):
                request = Append(
                    segment=name, writer=writer, data=data, event_number=number, event_count=count, previous=previous
                )
                world.store.submit_append(
                    request,
                    lambda outcome, place=place, done=done: done(
                        (place,), (outcome.end_offset,) if isinstance(outcome, Appended) else outcome
                    ),
                )
        assert not answered, "never from within the call"
        if at == seal_at:
            await sealing
        while None in outcomes:
            await asyncio.sleep(0)
        for name, writer in {append[:2] for append in frame}:
            mine = [place for place in answered if frame[place][:2] == (name, writer)]
            assert mine == sorted(mine)
        found.append([(type(one), str(one)) if isinstance(one, PenstockError) else one for one in outcomes])
        if at == 3:
            await world.evict()
    return found


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("operations", [4096, 3])
def test_a_frame_has_the_outcome_of_its_appends_one_by_one(seed: int, operations: int) -> None:
    async def main() -> None:
        frames = frames_of(seed)
        seen = []
        for together in (False, True):
            world = World(containers=2, frame_operations=operations, frame_bytes=30_000)
            async with world.opened(crash=True) as store:
                await prepared(world)
                outcomes = await outcomes_of(world, frames, together=together, seal_at=seed % 6)
                facts = [(await store.info(name)).event_count for name in (*NAMES, LIMITED, SEALED)]
            async with world.opened() as store:
                data = [await content(store, name) for name in (*NAMES, LIMITED, SEALED)]
                last = [await store.setup_append(name, one) for name in (*NAMES, LIMITED) for one in WRITERS]
                assert facts == [(await store.info(name)).event_count for name in (*NAMES, LIMITED, SEALED)]
            seen.append((outcomes, facts, data, last))
        assert seen[0] == seen[1]

    asyncio.run(main())


def frame(count: int = 1) -> list[FrameAppend]:
    return [(name, WRITERS[0], memoryview(b"%d" % number), count, count, NO_EVENT) for number, name in enumerate(NAMES)]


def test_a_frame_is_one_frame_of_the_log_for_each_container() -> None:
    async def main() -> None:
        world = World(containers=2)
        async with world.opened(crash=True) as store:
            await prepared(world)
            done: list[object] = []
            store.submit_appends(frame(), lambda places, outcome: done.extend(zip(places, outcome, strict=True)))
            for container in store.containers:
                await container.drain()
            assert sorted(done) == [(place, 1) for place in range(len(NAMES))]
            log = [decode_operations(one) async for _, one in world.make_log().replay()]
            appends = [[one for one in some if isinstance(one, AppendOperation)] for some in log]
            sizes = [sum(container_of(name, 2) == index for name in NAMES) for index in range(2)]
            assert sorted(len(some) for some in appends if some) == sorted(sizes)

    asyncio.run(main())


@pytest.mark.parametrize("cause", ["offline", "full"])
def test_appends_of_a_frame_that_cannot_be_written_are_refused_and_change_nothing(cause: str) -> None:
    async def main() -> None:
        world = World(containers=1)
        async with world.opened(crash=True) as store:
            await prepared(world)
            (container,) = store.containers
            refused: dict[int, object] = {}
            store.submit_appends(frame(), lambda places, outcome: refused.update(dict.fromkeys(places, outcome)))
            if cause == "offline":
                container.go_offline("stopped by the test", None)
            else:
                container._refuse_all(StorageFullError("log is full"))
            await asyncio.sleep(0)
            kind = ContainerOfflineError if cause == "offline" else StorageFullError
            assert [type(refused[place]) for place in range(len(NAMES))] == [kind] * len(NAMES)
            assert store._memory.queued_bytes == 0
            if cause == "full":
                assert all(segment.is_idle or not segment.pending_operations for segment in container.segments.loaded())
                lengths: list[int] = []
                store.submit_appends(frame(), lambda places, outcome: lengths.extend(outcome))
                await container.drain()
                assert lengths == [1] * len(NAMES)

    asyncio.run(main())


def test_a_full_log_returns_each_segment_to_its_durable_state_once() -> None:
    """It visits all writers of the segment: for each of thousands of appends, it would stop the loop for seconds."""

    async def main() -> None:
        world = World(containers=1)
        async with world.opened(crash=True) as store:
            await prepared(world)
            (container,) = store.containers
            restored: list[str] = []
            restore = container.segments.restore
            container.segments.restore = lambda segment: [restored.append(segment.name), restore(segment)]
            refused: list[int] = []
            numbers = [NO_EVENT, *range(1, 500)]
            appends = [(NAMES[0], WRITERS[0], memoryview(b"x"), max(0, last) + 1, 1, last) for last in numbers]
            for frame in (appends[:300], appends[300:]):
                store.submit_appends(frame, lambda places, outcome: refused.extend(places))
            container._refuse_all(StorageFullError("log is full"))
            assert len(refused) == 500
            assert restored == NAMES[:1]
            lengths: list[int] = []
            store.submit_appends(appends, lambda places, outcome: lengths.extend(outcome))
            await container.drain()
            assert lengths == list(range(1, 501))

    asyncio.run(main())
