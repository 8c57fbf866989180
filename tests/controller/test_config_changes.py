"""Changes of one configuration at the same time: each is made on what the one before has left."""

import asyncio
from dataclasses import replace

import pytest
from controller_world import STREAM, config, with_stream
from memory_segments import MemorySegments

from penstock.model.errors import ConflictError, StreamSealedError
from penstock.model.policies import RetentionPolicy, RetentionType
from penstock.ports.control.streams import change_config

KEEPS = RetentionPolicy(type=RetentionType.SIZE, minimum=1)


def test_no_change_of_many_at_the_same_time_is_lost():
    async def run():
        async with with_stream(MemorySegments()) as controller:
            streams = controller.streams
            tags = [f"t{number}" for number in range(12)]
            await asyncio.gather(
                *(
                    change_config(streams, STREAM, lambda had, tag=tag: replace(had, tags=(*had.tags, tag)))
                    for tag in tags
                ),
                change_config(streams, STREAM, lambda had: replace(had, retention=KEEPS)),
            )
            found = await streams.config(STREAM)
            assert sorted(found.tags) == sorted(tags)
            assert found.retention == KEEPS

    asyncio.run(run())


def test_a_change_of_an_older_configuration_is_refused_and_a_repeated_one_is_not():
    async def run():
        async with with_stream(MemorySegments()) as controller:
            streams = controller.streams
            before = await streams.config(STREAM)
            await streams.update(STREAM, config(tags=("a",)), before=before)
            await streams.update(STREAM, config(tags=("a",)), before=before)
            with pytest.raises(ConflictError, match="has changed since"):
                await streams.update(STREAM, config(tags=("b",)), before=before)
            assert (await streams.config(STREAM)).tags == ("a",)

    asyncio.run(run())


def test_a_conflict_of_another_kind_is_raised_at_once():
    async def run():
        async with with_stream(MemorySegments()) as controller:
            await controller.streams.seal(STREAM)
            with pytest.raises(StreamSealedError):
                await change_config(controller.streams, STREAM, lambda had: replace(had, tags=("a",)))

    asyncio.run(run())
