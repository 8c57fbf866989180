"""A peer that speaks the wire protocol and asks for the removal of what is not its own: refused with the protocol's own errors,
nothing lost, and the store goes on, after a restart as before it."""

import asyncio
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from penstock.app.settings import EmbeddedSettings, StandaloneSettings
from penstock.app.standalone import open_standalone
from penstock.client.store import AsyncStore
from penstock.codec.wire import commands as c
from penstock.codec.wire import frames as wire
from penstock.codec.wire import table_commands as t
from penstock.codec.wire.layout import WireEntry, WireKey

AUDIT, METADATA = "_system/audit/0.#epoch.0", "_system/_tables/controller"
ILLEGAL_ARGUMENT = 0
EVENTS = [b"event %d" % number for number in range(20)]


@asynccontextmanager
async def serving(data, workers):
    """A server: the store as its own client sees it, and a raw peer of whichever port serves a segment."""
    settings = StandaloneSettings(
        store=EmbeddedSettings(data=data), controller_port=0, store_port=0, http_port=0, workers=workers
    )
    async with asyncio.timeout(60), open_standalone(settings) as server:
        runtime = server.runtime

        async def ask(segment, command):
            place = await runtime.controller.layout.endpoint(segment)
            reader, writer = await asyncio.open_connection(place.host, place.port)

            async def say(said):
                writer.write(wire.encode(said))
                code, size = wire.HEADER.unpack(await reader.readexactly(8))
                return wire.decode(code, memoryview(await reader.readexactly(size)))

            try:
                await say(c.Hello(wire.VERSION_HIGH, wire.VERSION_LOW))
                return await say(command)
            finally:
                writer.close()

        yield AsyncStore(runtime.segments, runtime.controller, runtime.clock, runtime.rng), ask


def removals(segment, *, whole_only):
    """Every request that takes bytes, or the end, of a segment away."""
    stray = f"{segment.partition('#')[0]}#epoch.99"
    yield c.DeleteSegment(1, segment)
    yield c.MergeSegments(2, stray, segment)
    yield c.MergeSegmentsBatch(3, stray, [segment])
    yield t.DeleteTableSegment(4, segment, False)
    if not whole_only:
        yield c.TruncateSegment(5, segment, 8)


def forgeries(segment):
    """What else would change a segment of the store's own."""
    key, entry = WireKey(b"stream/s/live", -1), WireEntry(b"stream/s/live", -1, b"{}")
    yield c.SealSegment(6, segment)
    yield c.UpdateSegmentAttribute(7, segment, UUID(int=1), 1, 0)
    yield c.CreateTransientSegment(8, UUID(int=1), segment)
    yield t.UpdateTableEntries(9, segment, "", [entry])
    yield t.RemoveTableKeys(10, segment, "", [key])
    yield c.CreateSegment(11, segment, 0, 0)
    yield t.CreateTableSegment(12, segment)
    yield c.SetupAppend(13, UUID(int=1).bytes, segment)


async def events_of(stream):
    async with stream.reader(until_tail=True) as reader:
        return [event.data async for event in reader]


@pytest.mark.parametrize("workers", [None, 2])
def test_a_peer_that_asks_for_the_removal_of_what_is_not_its_own_gets_nothing(tmp_path, workers):
    async def first():
        async with serving(tmp_path / "data", workers) as (store, ask):
            stream = await store.create_stream("s/live", segments=1, create_scope=True)
            async with stream.writer() as writer:
                for event in EVENTS[:10]:
                    await writer.write(event, key="k")
            await stream.scale(2)
            async with stream.writer() as writer:
                for event in EVENTS[10:]:
                    await writer.write(event, key="k")
            await store.holds("s").add(owner="legal", reason="case 7", hold_id="h")
            await store.holds("s").release("h", owner="legal")
            audit = store.stream("_system/audit")
            async with asyncio.timeout(30):
                # Entries come to the stream behind what they tell of.
                while not (reported := await events_of(audit)):
                    await asyncio.sleep(0.01)
            active = [f"s/live/{number}.#epoch.1" for number in (1, 2)]
            async with stream.transaction() as transaction:
                await transaction.write(b"last", key="k")
                await transaction.flush()
                open_ones = [f"{name}#transaction.{UUID(str(transaction.id)).hex}" for name in active]
                # In time order, as a sweep over all names would.
                for segment in ["s/live/0.#epoch.0", *active]:
                    for command in removals(segment, whole_only=True):
                        answer = await ask(segment, command)
                        assert isinstance(answer, c.ErrorMessage), (command, answer)
                        assert answer.code == ILLEGAL_ARGUMENT
                        assert isinstance(command, t.DeleteTableSegment) or "belongs to a stream" in answer.message
                for segment in open_ones:
                    for command in removals(segment, whole_only=False):
                        answer = await ask(segment, command)
                        assert isinstance(answer, c.ErrorMessage), (command, answer)
            for segment in (AUDIT, METADATA):
                for command in (*removals(segment, whole_only=False), *forgeries(segment)):
                    answer = await ask(segment, command)
                    assert isinstance(answer, c.NoSuchSegment), (command, answer)
            await sound(store, stream)
            assert (await events_of(audit))[: len(reported)] == reported

    async def sound(store, stream):
        assert await events_of(stream) == [*EVENTS, b"last"]
        assert [str(item) for item in await store.holds("s").list()] == []

    async def second():
        async with serving(tmp_path / "data", workers) as (store, _):
            stream = store.stream("s/live")
            await sound(store, stream)
            await stream.scale(3)
            async with stream.writer() as writer:
                await writer.write(b"more", key="k")
            assert await events_of(stream) == [*EVENTS, b"last", b"more"]
            await stream.seal()
            await stream.delete()

    asyncio.run(first())
    asyncio.run(second())


def test_a_segment_that_a_peer_seals_is_the_end_for_writers_and_takes_nothing_from_readers(tmp_path):
    """Byte streams of Pravega's clients seal their segment themselves, so it is granted, and the stream lives on in scaling."""

    async def scene():
        async with serving(tmp_path / "data", None) as (store, ask):
            stream = await store.create_stream("s/live", segments=1, create_scope=True)
            async with stream.writer() as writer:
                await writer.write(b"one", key="k")
            sealed = await ask("s/live/0.#epoch.0", c.SealSegment(1, "s/live/0.#epoch.0"))
            assert isinstance(sealed, c.SegmentSealed)
            assert await events_of(stream) == [b"one"]
            await stream.scale(1)
            async with stream.writer() as writer:
                await writer.write(b"two", key="k")
            assert await events_of(stream) == [b"one", b"two"]

    asyncio.run(scene())
