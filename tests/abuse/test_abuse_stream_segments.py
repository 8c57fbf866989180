"""A client that knows of segments alone does not break the streams that they belong to. What Pravega's clients send themselves
about a stream's segment is truncation (state synchronizers, byte streams) and sealing (byte streams); nothing deletes one."""

import asyncio
from uuid import UUID

import pytest

from penstock.app.settings import EmbeddedSettings, StandaloneSettings
from penstock.app.standalone import open_standalone
from penstock.client.store import AsyncStore
from penstock.codec.wire import commands as c
from penstock.codec.wire import frames as wire
from penstock.model.errors import TruncatedError


def run(tmp_path, scene):
    async def whole():
        settings = StandaloneSettings(
            store=EmbeddedSettings(data=tmp_path / "store"), controller_port=0, store_port=0, http_port=0
        )
        async with asyncio.timeout(60), open_standalone(settings) as server:
            runtime = server.runtime
            store = AsyncStore(runtime.segments, runtime.controller, runtime.clock, runtime.rng)
            reader, writer = await asyncio.open_connection("127.0.0.1", server.store.port)

            async def ask(command):
                writer.write(wire.encode(command))
                code, size = wire.HEADER.unpack(await reader.readexactly(8))
                return wire.decode(code, memoryview(await reader.readexactly(size)))

            await ask(c.Hello(wire.VERSION_HIGH, wire.VERSION_LOW))
            try:
                await scene(store, ask)
            finally:
                writer.close()

    asyncio.run(whole())


async def events_of(stream):
    async with stream.reader(until_tail=True) as reader:
        return [event.data async for event in reader]


@pytest.mark.parametrize("foreign", ["delete", "merge", "merge batch"])
def test_a_segment_of_a_stream_is_not_removed_over_the_wire(tmp_path, foreign):
    async def scene(store, ask):
        stream = await store.create_stream("s/live", segments=1, create_scope=True)
        async with stream.writer() as writer:
            await writer.write(b"one", key="k")
        segment = "s/live/0.#epoch.0"
        await ask(c.CreateSegment(1, "s/live/0.#epoch.0.side", 0, 0))
        asked = {
            "delete": c.DeleteSegment(2, segment, ""),
            "merge": c.MergeSegments(2, "s/live/0.#epoch.1", segment, "", []),
            "merge batch": c.MergeSegmentsBatch(2, "s/live/0.#epoch.1", [segment], ""),
        }[foreign]
        answer = await ask(asked)
        assert isinstance(answer, c.ErrorMessage)
        assert "belongs to a stream" in answer.message
        async with stream.writer() as writer:
            await writer.write(b"two", key="k")
        assert await events_of(stream) == [b"one", b"two"]

    run(tmp_path, scene)


def test_the_segment_of_an_open_transaction_is_not_removed_over_the_wire(tmp_path):
    async def scene(store, ask):
        stream = await store.create_stream("s/live", segments=1, create_scope=True)
        async with stream.transaction() as transaction:
            await transaction.write(b"one", key="k")
            await transaction.flush()
            name = f"s/live/0.#epoch.0#transaction.{UUID(str(transaction.id)).hex}"
            answer = await ask(c.DeleteSegment(2, name, ""))
            assert isinstance(answer, c.ErrorMessage), answer
        assert await events_of(stream) == [b"one"]

    run(tmp_path, scene)


def test_a_stream_whose_segment_a_synchronizer_truncated_goes_on(tmp_path):
    async def scene(store, ask):
        stream = await store.create_stream("s/live", segments=1, create_scope=True)
        async with stream.writer() as writer:
            await writer.write(b"one", key="k")
            await writer.write(b"two", key="k")
        truncated = await ask(c.TruncateSegment(2, "s/live/0.#epoch.0", 11, ""))
        assert truncated == c.SegmentTruncated(2, "s/live/0.#epoch.0")
        async with stream.writer() as writer:
            await writer.write(b"three", key="k")
        with pytest.raises(TruncatedError) as caught:
            await events_of(stream)
        assert caught.value.start_offset == 11
        await stream.truncate(await stream.tail())
        async with stream.writer() as writer:
            await writer.write(b"four", key="k")
        assert await events_of(stream) == [b"four"]
        await stream.seal()
        await stream.delete()

    run(tmp_path, scene)


def test_segments_of_no_stream_are_deleted_as_ever(tmp_path):
    async def scene(_store, ask):
        await ask(c.CreateSegment(1, "s/none/0.#epoch.0", 0, 0))
        assert isinstance(await ask(c.DeleteSegment(2, "s/none/0.#epoch.0", "")), c.SegmentDeleted)

    run(tmp_path, scene)
