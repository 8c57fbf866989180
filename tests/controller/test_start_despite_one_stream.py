"""What one stream was given, or meets, must not keep the store from starting."""

from __future__ import annotations

import asyncio

import pytest
from disks import Disks

from penstock.model.errors import InvalidArgumentError
from penstock.model.names import StreamName
from penstock.model.policies import RetentionPolicy, RetentionType, ScaleType, ScalingPolicy, StreamConfig
from penstock.segmentstore.store import SegmentStore

STREAMS = [StreamName.parse(f"s{number}/t") for number in range(2)]


@pytest.mark.parametrize(
    "config",
    [
        StreamConfig(rollover_bytes=1 << 63),
        StreamConfig(timestamp_aggregation_ms=1 << 64),
        StreamConfig(retention=RetentionPolicy(type=RetentionType.TIME, minimum=1 << 63)),
        StreamConfig(scaling=ScalingPolicy(type=ScaleType.EVENTS_PER_S, target_rate=1 << 70, factor=2)),
    ],
)
def test_a_number_that_cannot_be_stored_is_refused_and_leaves_nothing(config):
    async def main() -> None:
        disks, name, other = Disks(), STREAMS[0], STREAMS[1]
        async with disks.serving(crash=True) as (_, controller):
            for stream in (name, other):
                await controller.scopes.create(stream.scope)
            with pytest.raises(InvalidArgumentError):
                await controller.streams.create(name, config)
            assert await controller.streams.list(name.scope) == []
            await controller.streams.create(other, StreamConfig())
            with pytest.raises(InvalidArgumentError):
                await controller.streams.update(other, config)
        async with disks.serving() as (_, controller):
            await controller.streams.create(name, StreamConfig())
            assert (await controller.streams.describe(other)).config == StreamConfig()

    asyncio.run(main())


def test_an_unexpected_error_of_one_stream_keeps_no_store_from_starting(monkeypatch):
    async def main() -> None:
        disks, name, other = Disks(), STREAMS[0], STREAMS[1]
        create = SegmentStore.create_segment

        async def fail(store, segment: str, **more) -> None:
            if segment.startswith(str(name)):
                raise OverflowError("planted")
            await create(store, segment, **more)

        monkeypatch.setattr(SegmentStore, "create_segment", fail)
        async with disks.serving(crash=True) as (_, controller):
            for stream in (name, other):
                await controller.scopes.create(stream.scope)
            with pytest.raises(OverflowError):
                await controller.streams.create(name, StreamConfig())
        async with disks.serving() as (_, controller):
            await controller.streams.create(other, StreamConfig())
            await controller.sweep()
            monkeypatch.setattr(SegmentStore, "create_segment", create)
            await controller.sweep()
            assert (await controller.streams.describe(name)).config == StreamConfig()

    asyncio.run(main())
