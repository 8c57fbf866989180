"""Runs of appends in the store: answered once for what is stored together, and once for what is refused."""

from __future__ import annotations

import asyncio
from uuid import UUID

from store_world import World, content

from penstock.codec.store.operation_frames import decode_operations
from penstock.codec.store.operations import AppendOperation
from penstock.model.errors import ContainerOfflineError, QuotaExceededError
from penstock.ports.data.limits import AppendLimit, LimitAction
from penstock.ports.data.segments import NO_EVENT, Append, Appended, AppendedPart, Pieces

SEGMENT = "s/t/0.#epoch.0"
WRITER = UUID(int=7)
RUN = Append(
    segment=SEGMENT,
    writer=WRITER,
    data=b"a" * 100 + b"b" * 100 + b"c" * 100,
    event_number=6,
    event_count=6,
    previous=NO_EVENT,
    pieces=Pieces([100, 100, 100], [1, 2, 3]),
)


async def prepared(store, total_bytes: int | None = None) -> None:
    await store.create_segment(SEGMENT)
    await store.setup_append(SEGMENT, WRITER)
    limit = AppendLimit(stream="s/t", segments=(SEGMENT,), total_bytes=total_bytes, action=LimitAction.REJECT)
    await store.limit_appends([limit])


async def settled(store) -> None:
    for container in store.containers:
        await container.drain()


def test_a_run_is_one_operation_of_the_log_and_recovered_as_such() -> None:
    async def main() -> None:
        world = World(containers=1)
        async with world.opened(crash=True) as store:
            await prepared(store)
            outcomes: list[object] = []
            store.submit_append(RUN, outcomes.append)
            await settled(store)
            assert outcomes == [Appended(end_offset=300)]
            frames = [frame async for _, frame in world.make_log().replay()]
            appends = [one for frame in frames for one in decode_operations(frame) if isinstance(one, AppendOperation)]
            assert [(one.event_number, one.event_count, bytes(one.data)) for one in appends] == [(6, 6, RUN.data)]
        async with world.opened() as store:
            assert await content(store, SEGMENT) == RUN.data
            assert (await store.info(SEGMENT)).event_count == 6
            assert await store.setup_append(SEGMENT, WRITER) == 6

    asyncio.run(main())


def test_a_run_that_is_refused_in_part_is_answered_for_each_part() -> None:
    async def main() -> None:
        world = World(containers=1)
        async with world.opened() as store:
            await prepared(store, 250)
            outcomes: list[object] = []
            store.submit_append(RUN, outcomes.append)
            await settled(store)
            *stored, refused = outcomes
            assert stored == [
                AppendedPart(end_offset=100, event_number=1),
                AppendedPart(end_offset=200, event_number=3),
            ]
            assert isinstance(refused, QuotaExceededError)
            assert await content(store, SEGMENT) == RUN.data[:200]
            assert await store.setup_append(SEGMENT, WRITER) == 3

    asyncio.run(main())


def test_a_store_that_stops_answers_a_divided_run_once() -> None:
    async def main() -> None:
        world = World(containers=1)
        async with world.opened(crash=True) as store:
            await prepared(store, 250)
            outcomes: list[object] = []
            store.submit_append(RUN, outcomes.append)
            store.containers[0].go_offline("stopped by the test", None)
            await asyncio.sleep(0)
            assert [type(one) for one in outcomes] == [ContainerOfflineError]

    asyncio.run(main())
