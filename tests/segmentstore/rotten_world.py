"""A store whose rows can be damaged."""

from __future__ import annotations

import copy

from store_world import World, append, writer

from penstock.codec.events import frame_events
from penstock.ports.data.tables import ANY_VERSION, TableKind, TablePut
from tests.rotten_keyvalue import RottenKeyValue

SEGMENTS = [f"s/t/{number}.#epoch.0" for number in range(5)]
TABLES = ["s/h", "s/o"]
TXN = SEGMENTS[0] + "#transaction." + "a" * 32
LEASE = writer(77)


def events(word: str, count: int, size: int = 40) -> bytes:
    return frame_events([f"{word}{number}".encode().ljust(size, b".") for number in range(count)])


class RottenWorld(World):
    def __init__(self, **settings) -> None:
        super().__init__(chunk_bytes=2000, flush_bytes=500, free_head_bytes=500, **settings)
        self.keyvalue = RottenKeyValue()

    def disks(self):
        return copy.deepcopy((self.log_state, self.keyvalue, self.chunks, self.objects))

    def put_in(self, disks) -> None:
        self.log_state, self.keyvalue, self.chunks, self.objects = copy.deepcopy(disks)


async def fill(world: World) -> None:
    """Rows of every kind, and a log that changes most segments again after the last checkpoint."""
    store = world.store
    for name in SEGMENTS:
        await store.create_segment(name)
        for number in range(6):
            await append(store, name, events(f"{name[4]}-{number}-", 10), number=1 + number % 2)
    await store.create_table(TABLES[0])
    await store.create_table(TABLES[1], kind=TableKind.SORTED, key_bytes=2)
    for table in TABLES:
        await store.table_update(
            table, [TablePut(key=b"k%d" % n, value=b"v%d" % n, version=ANY_VERSION) for n in range(4)]
        )
    await store.flush()
    await store.create_segment(TXN)
    await append(store, TXN, events("txn", 5), number=9)
    await store.merge(SEGMENTS[0], TXN)
    await store.lease_chunks([SEGMENTS[1]], LEASE, until_ms=world.clock.now_ms() + 3_600_000, holder="test")
    await store.truncate(SEGMENTS[1], 2500)
    await store.truncate(SEGMENTS[2], 700)
    await store.flush()
    for name in SEGMENTS[:3]:
        await append(store, name, events(f"{name[4]}-late-", 3), number=1)
    await store.table_update(TABLES[0], [TablePut(key=b"k1", value=b"new", version=ANY_VERSION)])
    for container in store.containers:
        await container.checkpointer.checkpoint()
    for name in SEGMENTS[1:4]:
        await append(store, name, events(f"{name[4]}-last-", 3), number=1)
    await store.table_update(TABLES[1], [TablePut(key=b"k2", value=b"new", version=ANY_VERSION)])
