"""Rules of retention over the real segment store: counts, boundaries and limits are the store's own, and outlive crashes."""

from __future__ import annotations

import asyncio

import pytest
from controller_world import GROUP_ID, STREAM, config, cut_at, join, name_of, publish, quota, scale_to, seg
from disks import Disks, write_events

from penstock.model.errors import QuotaExceededError, TruncatedError
from penstock.model.retention import Backlog, OnExceed, PolicyDocument, Retain

NAME = name_of(seg(0, 0))


def test_an_eviction_by_events_is_exact_over_scales_and_crashes() -> None:
    async def run() -> None:
        disks = Disks()
        async with disks.serving(crash=True) as (store, controller):
            await controller.scopes.create("s")
            await controller.streams.create(STREAM, config())
            await controller.policies.set(STREAM, quota(OnExceed.EVICT, max_events=100, evict_to=0.5))
            await join(controller, "g", {seg(0, 0): 0})
            for number in range(6):
                await write_events(store, NAME, [1 + (number * 7 + item) % 40 for item in range(10)])
            await scale_to(controller, 2)
            for number in (1, 2):
                await write_events(store, name_of(seg(1, number)), [5] * 15)
        async with disks.serving(crash=True) as (store, controller):
            (found,) = await controller.subscribers.describe(STREAM)
            assert found.lag_events == 90
            await controller.retention.run(STREAM)
            assert await controller.retention.list_evictions(STREAM) == []
            for _ in range(2):
                await write_events(store, name_of(seg(1, 1)), [9] * 7)
            disks.clock.ms += 1000
            await controller.retention.run(STREAM)
            (lost,) = await controller.retention.list_evictions(STREAM)
            assert lost.events == 54
            (found,) = await controller.subscribers.describe(STREAM)
            assert found.lag_events == 50
        async with disks.serving() as (store, controller):
            (found,) = await controller.subscribers.describe(STREAM)
            assert found.lag_events == 50
            head = await controller.cuts.head(STREAM)
            assert found.cut == head
            assert (await controller.retention.run(STREAM)).evict == []

    asyncio.run(run())


def test_time_to_live_and_a_limit_of_bytes_hold_over_crashes() -> None:
    async def run() -> None:
        disks = Disks()
        document = PolicyDocument(
            retain=Retain(min_bytes=0), backlog=Backlog(ttl_s=60, max_bytes=1000, on_exceed=OnExceed.REJECT)
        )
        async with disks.serving(crash=True) as (store, controller):
            await controller.scopes.create("s")
            await controller.streams.create(STREAM, config())
            await controller.policies.set(STREAM, document)
            await join(controller, "g", {seg(0, 0): 0})
            written = await write_events(store, NAME, [92] * 5)
            await controller.retention.run(STREAM)
        disks.clock.ms += 30_000
        async with disks.serving(crash=True) as (store, controller):
            # The limit was there before anybody could append.
            with pytest.raises(QuotaExceededError) as caught:
                await write_events(store, NAME, [92] * 6)
            assert caught.value.fields["subscriber"] == "s/g"
            await write_events(store, NAME, [92] * 5)
            await controller.retention.run(STREAM)
            assert (await controller.streams.describe(STREAM)).size_bytes == 1000
        disks.clock.ms += 30_000
        async with disks.serving() as (store, controller):
            await controller.retention.run(STREAM)
            assert [item.events for item in await controller.retention.list_evictions(STREAM)] == [5]
            with pytest.raises(TruncatedError):
                await store.read(NAME, written - 1, 10)
            await write_events(store, NAME, [92] * 5)
            await publish(controller, "g", {seg(0, 0): 1000})
            moved = await controller.subscribers.move(STREAM, "s/g", cut_at({seg(0, 0): written}), dry_run=True)
            assert (moved.bytes, moved.events) == (written - 1000, -5)
            group = await controller.groups.get("s", "g")
            assert group.id == GROUP_ID

    asyncio.run(run())
