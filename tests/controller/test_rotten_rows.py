"""A row of the metadata that rots, of whatever table or segment: the controller opens, and serves every other stream."""

from __future__ import annotations

import asyncio
import copy
from collections import Counter
from contextlib import suppress
from uuid import UUID

import pytest
from controller_world import cut_at, name_of, scale_to, seg
from disks import Disks, everything

from penstock.codec.store import rows as records
from penstock.controller.transactions import commits
from penstock.model.errors import CorruptDataError, PenstockError
from penstock.model.names import StreamName, transaction_segment_name
from penstock.model.policies import RetentionPolicy, RetentionType, ScalingPolicy, StreamConfig
from penstock.model.retention import PolicyDocument, Retain
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.ports.control.transactions import TransactionStatus
from tests.rotten_keyvalue import RottenKeyValue

STREAMS = [StreamName.parse(f"s{number}/t") for number in range(3)]
GROUP = UUID(int=5)


async def fill(disks: Disks) -> None:
    async with disks.serving(crash=True) as (store, controller):
        for name in STREAMS:
            await controller.scopes.create(name.scope)
            limit = RetentionPolicy(type=RetentionType.SIZE, minimum=200)
            config = StreamConfig(scaling=ScalingPolicy(min_segments=2), retention=limit, tags=("tag",))
            await controller.streams.create(name, config)
            await controller.policies.set(name.scope, PolicyDocument(retain=Retain(min_bytes=100)))
            for number in range(2):
                await disks.write(store, name_of(seg(0, number), name), b"a" * 300)
            await scale_to(controller, 3, name)
            await controller.groups.create(
                ReaderGroupConfig(
                    scope=name.scope,
                    name="g",
                    id=GROUP,
                    start_cuts={name: cut_at({seg(1, 2): 0, seg(1, 3): 0, seg(1, 4): 0}, name)},
                )
            )
            txn = await controller.transactions.create(name, lease_ms=10_000)
            await controller.transactions.commit(name, txn.id)
            await controller.transactions.create(name, lease_ms=10_000)
        await store.flush()
        await disks.write(store, name_of(seg(1, 2), STREAMS[0]), b"late")


async def use(store, controller, disks: Disks, name: StreamName) -> None:
    segments = await controller.layout.current(name)
    for item in segments:
        await disks.write(store, name_of(item.segment, name), b"day" * 50)
        assert (await everything(store, name_of(item.segment, name))).endswith(b"day" * 50)
    assert (await controller.streams.describe(name)).size_bytes > 0
    await controller.policies.effective(name)


async def a_day(disks: Disks) -> dict[str, Exception]:
    """Two openings with retention, sweeps and writes. Returns the streams that refused a call."""
    refused: dict[str, Exception] = {}
    for turn in range(2):
        async with disks.serving(crash=turn == 0) as (store, controller):
            for name in STREAMS:
                try:
                    await use(store, controller, disks, name)
                except PenstockError as error:
                    refused.setdefault(str(name), error)
            disks.clock.ms += 12 * 3_600_000
            await controller.run_retention_cycles()
            await controller.sweep()
            for name in STREAMS:
                try:
                    await controller.retention.run(name)
                except PenstockError as error:
                    refused.setdefault(str(name), error)
            await store.flush()
            assert store.offline is None
    return refused


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_a_damaged_row_affects_only_its_stream(every):
    async def main() -> None:
        disks = Disks()
        disks.keyvalue = RottenKeyValue()
        await fill(disks)
        state = disks.log_state, disks.keyvalue, disks.chunks, disks.clock.ms
        seen: Counter[bytes] = Counter()
        for key in [None, *list(state[1].all_keys())[::every]]:
            if key is not None and key[:1] != b"t":
                seen[key[:1]] += 1
                if seen[key[:1]] > 2 and key[:1] not in b"nsy":
                    continue
            disks.log_state, disks.keyvalue, disks.chunks, disks.clock.ms = copy.deepcopy(state)
            if key is not None:
                disks.keyvalue.rotten[key] = None
            refused = await a_day(disks)
            assert len(refused) <= (key is not None), (key, refused)
            assert all(isinstance(error, CorruptDataError) for error in refused.values()), (key, refused)

    asyncio.run(main())


def test_commits_go_on_though_the_row_of_what_was_merged_rots(monkeypatch):
    """The first commit was merged, and a crash came before its outcome was remembered."""

    async def crash(*_: object) -> None:
        raise asyncio.CancelledError

    async def main() -> None:
        disks, name = Disks(), STREAMS[0]
        disks.keyvalue = RottenKeyValue()
        async with disks.serving(crash=True) as (store, controller):
            await controller.scopes.create(name.scope)
            await controller.streams.create(name, StreamConfig())
            txn = await controller.transactions.create(name, lease_ms=10_000)
            base = name_of(txn.segments[0].segment, name)
            part = transaction_segment_name(base, txn.id)
            await disks.write(store, part, b"first")
            for container in store.containers:
                await container.checkpointer.checkpoint()
            container = store._container(part)
            row = records.uid_key(records.TAG_SEGMENT, container.index, container.segments.pending(part).uid)
            with monkeypatch.context() as patched, suppress(asyncio.CancelledError):
                patched.setattr(commits, "_complete", crash)
                await controller.transactions.commit(name, txn.id)
            assert await controller.transactions.status(name, txn.id) is TransactionStatus.COMMITTING
            assert (await store.info(base)).length == len(b"first")
        disks.keyvalue.rotten[row] = None
        length = len(b"first")
        for word in (b"second", b"third"):
            async with disks.serving() as (store, controller):
                later = await controller.transactions.create(name, lease_ms=10_000)
                await disks.write(store, transaction_segment_name(base, later.id), word)
                await controller.transactions.commit(name, later.id)
                length += len(word)
                assert (await store.info(base)).length == length
                for one in (txn, later):
                    assert await controller.transactions.status(name, one.id) is TransactionStatus.COMMITTED

    asyncio.run(main())
