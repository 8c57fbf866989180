"""An operation that cannot be encoded is refused without a trace: nothing later is decided as if it had happened."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest
from store_world import World, append, run, writer

from penstock.model.errors import InvalidArgumentError, SegmentNotFoundError
from penstock.ports.data.tables import TablePut, TableRemoval
from penstock.segmentstore import mutations

SEGMENT = "scope/stream/0.#epoch.0"
SOURCE = SEGMENT + "#transaction." + "0" * 32
TABLE = "scope/table"
Call = Callable[[World], Awaitable[object]]

CALLS: dict[str, Call] = {
    "create": lambda world: world.store.create_segment("scope/new"),
    "fresh": lambda world: world.store.create_fresh(["scope/new"]),
    "create table": lambda world: world.store.create_table("scope/new"),
    "seal": lambda world: world.store.seal(SEGMENT),
    "truncate": lambda world: world.store.truncate(SEGMENT, 6),
    "keep": lambda world: world.store.truncate(SEGMENT, 6, keep=True),
    "release": lambda world: world.store.release(SEGMENT, 2),
    "restore": lambda world: world.store.restore(SEGMENT, 1),
    "delete": lambda world: world.store.delete(SEGMENT),
    "merge": lambda world: world.store.merge(SEGMENT, SOURCE),
    "merge run": lambda world: world.store.merge_run(SEGMENT, [SOURCE]),
    "attribute": lambda world: world.store.update_attribute(SEGMENT, writer(9), 5, expected=None),
    "put": lambda world: world.store.table_update(TABLE, [TablePut(key=b"k", value=b"2")]),
    "remove": lambda world: world.store.table_remove(TABLE, [TableRemoval(key=b"k")]),
    "delete table": lambda world: world.store.delete_table(TABLE),
}


def pending(world: World) -> list[object]:
    """All that queued operations change."""
    found: list[object] = []
    for container in world.store.containers:
        found.append(sorted(container.segments._names))
        for name in sorted(container.segments._names):
            segment = container.segments.pending(name)
            if segment is None:
                continue
            state = {
                slot: getattr(segment, slot) for slot in segment.__slots__ if slot.startswith(("next_", "pending"))
            }
            table = segment.table and (segment.table.next_entry_count, dict(segment.table.next_versions))
            attributes = {key: value.pending for key, value in segment.attributes.items()}
            found.append((name, state, table, attributes))
    return found


@pytest.mark.parametrize("name", CALLS)
def test_an_operation_that_cannot_be_encoded_leaves_no_trace(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(world: World) -> None:
        store = world.store
        await store.create_segment(SEGMENT)
        await store.create_segment(SOURCE)
        await store.create_table(TABLE)
        await append(store, SEGMENT, b"0123456789")
        await append(store, SOURCE, b"abc")
        await store.truncate(SEGMENT, 3, keep=True)
        await store.table_update(TABLE, [TablePut(key=b"k", value=b"1")])
        assert await store.update_attribute(SEGMENT, writer(9), 4, expected=None)
        before = pending(world)

        def encode(_: object) -> bytes:
            raise struct.error("number does not fit")

        with monkeypatch.context() as patched:
            patched.setattr(mutations.codec, "encode", encode)
            with pytest.raises(InvalidArgumentError):
                await CALLS[name](world)
        assert pending(world) == before
        assert store.offline is None
        with pytest.raises(SegmentNotFoundError):
            await store.info("scope/new")
        assert await append(store, SEGMENT, b"more", 2) == 14
        store = await world.crash()
        assert (await store.info(SEGMENT)).length == 14
        assert await store.get_attribute(SEGMENT, UUID(int=9)) == 4

    run(body, containers=1)
