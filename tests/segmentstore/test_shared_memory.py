"""Stores that share the memory of events: one that ends, in whatever way and moment, leaves nothing of its own there."""

from __future__ import annotations

import asyncio
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st
from store_world import World

from penstock.ports.data.segments import Append
from penstock.ports.data.tables import TablePut
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tiering.tail_cache import CacheMemory

NAMES = tuple(f"shop/s{number}/0.#epoch.0" for number in range(3))
steps = st.lists(
    st.tuples(
        st.sampled_from(("append", "large", "merge", "seal", "delete", "flush", "table", "queue")), st.integers(0, 2)
    ),
    max_size=25,
)


class Driver:
    """Calls a store, and forgets the answers of appends that it only queues."""

    def __init__(self, store: SegmentStore) -> None:
        self.store = store
        self.numbers: dict[str, int] = {}

    async def append(self, name: str, size: int, *, wait: bool = True) -> None:
        if name not in self.numbers:
            self.numbers[name] = await self.store.setup_append(name, UUID(int=1))
        previous = self.numbers[name]
        number = max(previous, -1) + 1
        request = Append(
            segment=name, writer=UUID(int=1), data=bytes(size), event_number=number, event_count=1, previous=previous
        )
        self.numbers[name] = number
        if wait:
            await self.store.append(request)
        else:
            self.store.submit_append(request, lambda _: None)

    async def run(self, step: str, name: str) -> None:
        match step:
            case "append":
                await self.append(name, 100)
            case "large":
                await self.append(name, 50_000)
            case "queue":
                await self.append(name, 1000, wait=False)
            case "merge":
                source = await self.store.create_transient(name, UUID(int=2))
                await self.append(source, 300)
                await self.store.merge(name, source)
            case "seal":
                await self.store.seal(name)
                await self.run("delete", name)
            case "delete":
                await self.store.delete(name)
                self.numbers.pop(name, None)
                await self.store.create_segment(name)
            case "flush":
                await self.store.flush()
            case "table":
                await self.store.table_update("shop/t/table", [TablePut(key=name.encode(), value=b"v" * 50)])


@settings(max_examples=40, deadline=None)
@given(steps=steps, checkpoint=st.booleans(), evict=st.booleans())
def test_a_store_that_ends_leaves_no_bytes_in_the_shared_memory(steps, checkpoint, evict):
    async def main() -> None:
        memory = CacheMemory(64 << 20)
        world = World(**({"max_loaded_segments": 1} if evict else {}))
        world.options["memory"] = memory
        for _ in range(2):  # the second one begins with what the first one left in the log
            store = await world.open()
            driver = Driver(store)
            known = await store.infos(NAMES)
            for name in NAMES:
                if not known:
                    await store.create_segment(name)
            if not known:
                await store.create_table("shop/t/table")
            for step, index in steps:
                await driver.run(step, NAMES[index])
            await store.close(checkpoint=checkpoint)
            assert (memory.cached_bytes, memory.unflushed_bytes, memory.queued_bytes) == (0, 0, 0)

    asyncio.run(main())
