"""The controller over the real segment store, with storage in memory, reopened after a crash."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from controller_world import (
    QUIET,
    STREAM,
    config,
    cut_at,
    name_of,
    scale_to,
    seg,
)
from disks import WRITER, Disks, everything

from penstock.model.cuts import StreamCut
from penstock.model.errors import PenstockError
from penstock.model.names import transaction_segment_name
from penstock.model.policies import ReaderGroupRetention, RetentionPolicy, RetentionType
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.ports.control.transactions import TransactionStatus
from penstock.segmentstore.store import SegmentStore


def test_a_day_in_the_life_of_a_stream_survives_crashes() -> None:
    async def run() -> None:
        disks = Disks()
        async with disks.serving(crash=True) as (store, controller):
            await controller.scopes.create("s")
            await controller.streams.create(STREAM, config(2, RetentionPolicy(type=RetentionType.SIZE, minimum=0)))
            await disks.write(store, name_of(seg(0, 0)), b"a" * 10)
            txn = await controller.transactions.create(STREAM, lease_ms=10_000)
            for item in txn.segments:
                await disks.write(store, transaction_segment_name(name_of(item.segment), txn.id), b"t" * 3)
            late = await controller.transactions.create(STREAM, lease_ms=10_000)
            for item in late.segments:
                await disks.write(store, transaction_segment_name(name_of(item.segment), late.id), b"late")
            await controller.transactions.commit(STREAM, txn.id)
        async with disks.serving(crash=True) as (store, controller):
            assert await controller.transactions.status(STREAM, txn.id) is TransactionStatus.COMMITTED
            assert await everything(store, name_of(seg(0, 0))) == b"a" * 10 + b"ttt"
            assert await everything(store, name_of(seg(0, 1))) == b"ttt"
            await scale_to(controller, 3)
            assert (await controller.cuts.tail(STREAM)).positions == {seg(1, n): 0 for n in (2, 3, 4)}
            description = await controller.streams.describe(STREAM)
            assert (description.size_bytes, description.written_bytes) == (16, 16)
            await controller.groups.create(
                ReaderGroupConfig(
                    scope="s",
                    name="g",
                    id=WRITER,
                    retention=ReaderGroupRetention.MANUAL,
                    start_cuts={STREAM: StreamCut(STREAM, {seg(0, 0): 0, seg(0, 1): 0})},
                )
            )
        async with disks.serving() as (store, controller):
            disks.clock.ms += 1000
            await controller.retention.run(STREAM)
            assert (await controller.streams.describe(STREAM)).held_by == "subscriber s/g"
            done = cut_at({seg(0, 0): 13, seg(1, 2): 0, seg(1, 3): 0, seg(1, 4): 0, seg(0, 1): 3})
            assert not await controller.cuts.is_valid(STREAM, done)
            await controller.subscribers.publish(
                "s/g", group_id=WRITER, generation=0, cut=cut_at({seg(1, n): 0 for n in (2, 3, 4)})
            )
            disks.clock.ms += 1000
            await controller.retention.run(STREAM)
            description = await controller.streams.describe(STREAM)
            assert (description.size_bytes, description.written_bytes) == (0, 16)
            await controller.streams.seal(STREAM)
            assert await controller.transactions.status(STREAM, late.id) is TransactionStatus.ABORTED
            await controller.streams.delete(STREAM)
            await controller.groups.delete("s", "g")
            await controller.scopes.delete("s")
            assert await controller.scopes.list() == []

    asyncio.run(run())


def test_a_deleted_stream_is_empty_then_restored_and_its_chunks_go_after_the_grace() -> None:
    data = b"in a chunk" * 100_000

    async def is_on_disk(disks: Disks, store: SegmentStore) -> bool:
        await store.flush()
        return await disks.chunks.allocated_bytes() > len(data)

    async def run() -> None:
        disks = Disks(replace(QUIET, deletion_grace_ms=1000))
        name = name_of(seg(0, 0))
        async with disks.serving(crash=True) as (store, controller):
            await controller.scopes.create("s")
            await controller.streams.create(STREAM, config(1))
            await disks.write(store, name, data)
            await controller.streams.delete(STREAM, seal=True)
            assert await everything(store, name) == b""
        async with disks.serving(crash=True) as (store, controller):
            assert await everything(store, name) == b""
            await controller.streams.restore(STREAM)
            assert await everything(store, name) == data
        async with disks.serving() as (store, controller):
            assert await everything(store, name) == data
            assert await is_on_disk(disks, store)
            await controller.streams.delete(STREAM, seal=True)
            assert await is_on_disk(disks, store), "the grace keeps the data"
            disks.clock.ms += 1000
            await controller.sweep()
        async with disks.serving() as (store, controller):
            assert await controller.streams.list_deleted() == []
            assert not await is_on_disk(disks, store)

    asyncio.run(run())


def test_a_rolling_commit_merges_into_duplicates_in_the_same_container() -> None:
    async def run() -> None:
        disks = Disks()
        async with disks.serving() as (store, controller):
            await controller.scopes.create("s")
            await controller.streams.create(STREAM, config(4))
            txns = []
            for number in range(2):
                txn = await controller.transactions.create(STREAM, lease_ms=10_000)
                for item in txn.segments:
                    await disks.write(store, transaction_segment_name(name_of(item.segment), txn.id), b"%d" % number)
                txns.append(txn.id)
            await scale_to(controller, 5)
            assert await controller.batches.commit(STREAM, writer="w", batch=0, transactions=txns)
            for number in range(4):
                assert await everything(store, name_of(seg(2, number))) == b"01"
            assert [item.segment for item in await controller.layout.current(STREAM)] == [
                seg(3, number) for number in range(4, 9)
            ]

    asyncio.run(run())


def test_a_store_that_closes_under_a_workflow_gives_it_to_the_next_one() -> None:
    async def run() -> None:
        disks = Disks()
        async with disks.serving() as (_, controller):
            await controller.scopes.create("s")
            await controller.streams.create(STREAM, config(2))
        for passes in range(0, 30, 3):
            async with disks.serving(crash=True) as (store, controller):
                count = len(await controller.layout.current(STREAM))
                task = asyncio.ensure_future(scale_to(controller, 5 - count))
                for _ in range(passes):
                    await asyncio.sleep(0)
                await store.close(checkpoint=False)
                outcome = (await asyncio.gather(task, return_exceptions=True))[0]
                assert not isinstance(outcome, Exception) or isinstance(outcome, PenstockError)
            async with disks.serving() as (store, controller):
                ranges = await controller.layout.current(STREAM)
                assert len(ranges) in (count, 5 - count)
                for item in ranges:
                    assert not (await store.info(name_of(item.segment))).sealed
                description = await controller.streams.describe(STREAM)
                for epoch in range(description.epoch):
                    for item in await controller.layout.of_epoch(STREAM, epoch):
                        assert (await store.info(name_of(item.segment))).sealed
                        assert await controller.layout.successors(STREAM, item.segment)

    asyncio.run(run())
