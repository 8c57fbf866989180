"""Many clients at once over storage that takes its time: each sees what it would see alone."""

from __future__ import annotations

import asyncio
import random

import pytest
from store_world import World, Writer, content, writer

from penstock.model.errors import SegmentNotFoundError, TruncatedError
from penstock.ports.data.segments import NO_EVENT
from penstock.ports.data.tables import KEY_ABSENT, TablePut, TableRemoval
from penstock.segmentstore.store import SegmentStore
from penstock.storage.memory.memory_chunks import MemoryChunks
from penstock.storage.memory.memory_keyvalue import MemoryKeyValue
from penstock.storage.memory.memory_log import MemoryLog

PATIENCE_S = 60.0


class SlowKeyValue(MemoryKeyValue):
    """Reads yield as well, before or after they look."""

    async def get_many(self, keys):
        await self._pause()
        found = await super().get_many(keys)
        await self._pause()
        return found

    async def scan(self, start, end, *, limit, reverse=False):
        await self._pause()
        found = await super().scan(start, end, limit=limit, reverse=reverse)
        await self._pause()
        return found


class SlowWorld(World):
    """``evicts``: at every await of the storage, whatever may leave memory leaves it."""

    def __init__(self, seed: int, *, evicts: bool, **settings) -> None:
        super().__init__(**settings)
        self.random = random.Random(seed)
        self.evicts = evicts
        self.serves = False
        self.keyvalue = SlowKeyValue(pause=self.pause)
        self.chunks = MemoryChunks(pause=self.pause)

    async def open(self) -> SegmentStore:
        self.serves = False  # Nothing leaves memory in recovery.
        store = await super().open()
        self.serves = True
        return store

    async def pause(self) -> None:
        for _ in range(self.random.choice((0, 0, 1, 2, 5, 20))):
            await asyncio.sleep(0)
            self.evict_now()
        self.evict_now()

    def evict_now(self) -> None:
        for container in self.store.containers if self.evicts and self.serves else ():
            for _ in range(2):
                container.segments.evict_idle(0)

    def make_log(self) -> MemoryLog:
        return MemoryLog(self.log_state, pause=self.pause)


class SegmentClient:
    """Owns one segment and its transaction, and knows what must be in them."""

    def __init__(self, world: SlowWorld, number: int) -> None:
        self.world = world
        self.random = random.Random(world.random.random())
        self.name = f"s/t{number}/0.#epoch.0"
        self.txn = self.name + "#transaction." + "a" * 32
        self.data: bytes | None = None
        self.start = 0
        self.last: dict[int, int] = {}
        self.attribute = NO_EVENT
        self.serial = number * 1_000_000

    def bytes(self) -> bytes:
        self.serial += 1
        return b"%09d|" % self.serial * self.random.choice((0, 1, 5, 100, 2000))

    async def step(self) -> None:
        store = self.world.store
        if self.data is None:
            with pytest.raises(SegmentNotFoundError):
                await store.info(self.name)
            await store.create_segment(self.name)
            self.data, self.start, self.last, self.attribute = b"", 0, {}, NO_EVENT
            return
        await self.random.choice(
            (
                self.append,
                self.append,
                self.append,
                self.merge,
                self.truncate,
                self.check,
                self.attributes,
                self.delete,
                self.look,
            )
        )()

    async def append(self) -> None:
        number = self.random.randrange(1, 4)
        one = Writer(self.world.store, self.name, number)
        one.last = self.last.get(number, NO_EVENT)
        answers: list = []
        ends = []
        for _ in range(self.random.randrange(1, 5)):
            data = self.bytes()
            one.submit(data, answers)
            self.data += data
            ends.append(len(self.data))
        while len(answers) < len(ends):
            await asyncio.sleep(0)
        assert [getattr(answer, "end_offset", answer) for answer in answers] == ends
        self.last[number] = one.last

    async def merge(self) -> None:
        store = self.world.store
        await store.create_segment(self.txn)
        one = await Writer(store, self.txn).setup()
        assert one.last == NO_EVENT
        added = b""
        for _ in range(self.random.randrange(3)):
            data = self.bytes()
            await one.append(data)
            added += data
            await self.world.pause()
        if self.random.random() < 0.2:
            await store.delete(self.txn)
            return
        self.data += added
        assert await store.merge(self.name, self.txn) == len(self.data)
        assert await store.merge(self.name, self.txn) == len(self.data)

    async def truncate(self) -> None:
        self.start = self.random.randrange(self.start, len(self.data) + 1)
        await self.world.store.truncate(self.name, self.start)

    async def attributes(self) -> None:
        value = self.random.randrange(5)
        assert not await self.world.store.update_attribute(self.name, writer(9), value, expected=self.attribute + 1)
        assert await self.world.store.update_attribute(self.name, writer(9), value, expected=self.attribute)
        self.attribute = value

    async def delete(self) -> None:
        if self.random.random() < 0.3:
            await self.world.store.delete(self.name)
            self.data = None

    async def look(self) -> None:
        """While others change memory, and this segment is truncated, each answer is true of one of its states."""
        store, length = self.world.store, len(self.data)
        lower = self.start
        self.start = self.random.randrange(lower, length + 1)
        calls = [
            store.count_events(self.name, lower, length),
            store.chunk_ranges(self.name, lower, length),
            store.next_event_boundary(self.name, self.random.randrange(length + 1)),
            store.spaces([self.name]),
            store.read(self.name, self.random.randrange(lower, length + 1), 1000, wait=False),
        ]
        *found, truncated = await asyncio.gather(*calls, store.truncate(self.name, self.start), return_exceptions=True)
        assert truncated is None
        for answer in found:
            assert isinstance(answer, TruncatedError) or not isinstance(answer, BaseException), repr(answer)

    async def check(self) -> None:
        store = self.world.store
        if self.data is None:
            with pytest.raises(SegmentNotFoundError):
                await store.info(self.name)
            return
        info = await store.info(self.name)
        assert (info.start_offset, info.length) == (self.start, len(self.data))
        assert await content(store, self.name) == self.data[self.start :]
        for number, last in self.last.items():
            assert await store.setup_append(self.name, writer(number)) == last
        assert await store.get_attribute(self.name, writer(9)) == self.attribute


class TableClient:
    """Owns some keys of a table that it shares with others."""

    TABLE = "_system/table/0"

    def __init__(self, world: SlowWorld, number: int) -> None:
        self.world = world
        self.random = random.Random(world.random.random())
        self.keys = [b"%d-%d" % (index, number) for index in range(4)]
        self.versions: dict[bytes, int] = {}
        self.values: dict[bytes, bytes] = {}

    async def step(self) -> None:
        store = self.world.store
        keys = self.random.sample(self.keys, self.random.randrange(1, 4))
        if self.random.random() < 0.3:
            held = [TableRemoval(key=key, version=self.versions[key]) for key in keys if key in self.versions]
            await store.table_remove(self.TABLE, held)
            for item in held:
                del self.versions[item.key], self.values[item.key]
            return
        puts = [
            TablePut(key=key, value=b"%d" % self.random.randrange(99), version=self.versions.get(key, KEY_ABSENT))
            for key in keys
        ]
        versions = await store.table_update(self.TABLE, puts)
        for put, version in zip(puts, versions, strict=True):
            assert version > self.versions.get(put.key, -1)
            self.versions[put.key], self.values[put.key] = version, put.value
        await self.check()

    async def check(self) -> None:
        entries = await self.world.store.table_get(self.TABLE, self.keys)
        for entry in entries:
            assert entry.version == self.versions.get(entry.key, KEY_ABSENT), entry
            assert entry.value == self.values.get(entry.key, b"")
        scanned = await self.world.store.table_scan(self.TABLE, after=None, limit=1000)
        mine = {entry.key: entry.value for entry in scanned if entry.key in self.keys}
        assert mine == self.values


async def maintain(world: SlowWorld) -> None:
    """Tier, checkpoint, free and evict all the time."""
    while True:
        for container in world.store.containers:
            for work in (container.tiering.tier_all, container.checkpointer.checkpoint, container.reclaimer.free):
                await work()
                await world.pause()
            for _ in range(2):
                container.segments.evict_idle(0)
        await asyncio.sleep(0)


async def play(seed: int, *, evicts: bool) -> None:
    world = SlowWorld(
        seed,
        evicts=evicts,
        containers=2,
        flush_bytes=5_000,
        chunk_bytes=20_000,
        free_head_bytes=500,
        cache_bytes=20_000,
    )
    async with asyncio.timeout(PATIENCE_S):
        await world.open()
        await world.store.create_table(TableClient.TABLE)
        clients = [SegmentClient(world, number) for number in range(3)]
        clients += [TableClient(world, number) for number in range(2)]

        async def live(client) -> None:
            for _ in range(12):
                await client.step()
                await world.pause()

        for _ in range(2):
            maintaining = asyncio.ensure_future(maintain(world))
            try:
                await asyncio.gather(*(live(client) for client in clients))
            finally:
                assert not maintaining.done(), maintaining.exception()
                maintaining.cancel()
                await asyncio.wait({maintaining})
            for client in clients:
                await client.check()
            await world.blackout()
            for client in clients:
                await client.check()
        await world.settle()
        for client in clients:
            await client.check()
        named = set()
        for client in clients:
            if isinstance(client, SegmentClient) and client.data is not None:
                ranges = await world.store.chunk_ranges(client.name, client.start, len(client.data))
                named |= {item.name for item in ranges} | {item.name + ".idx" for item in ranges}
        assert set(await world.chunks.list()) == named
        assert not world.log_state.frames
        memory = world.store._memory
        assert (memory.unflushed_bytes, memory.queued_bytes) == (0, 0)
        await world.store.close()


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("evicts", [False, True], ids=["", "evicting"])
def test_clients_do_not_disturb_each_other(seed: int, evicts: bool) -> None:
    asyncio.run(play(seed, evicts=evicts))
