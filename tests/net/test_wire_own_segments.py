"""What the store keeps of itself is read by anybody, and changed over the wire by nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import pytest
from wire_memory_store import MemorySegments
from wire_peers import remote, run, stage

from penstock.codec.wire import commands as c
from penstock.model.errors import PenstockError, RetentionHoldError, SegmentNotFoundError
from penstock.ports.data.attributes import AttributeChange
from penstock.ports.data.segments import NO_EVENT, Append
from penstock.ports.data.tables import TablePut, TableRemoval

AUDIT = "_system/audit/0.#epoch.0"
TABLE = "_system/_tables/controller"
DATA = "s/t/0.#epoch.0"
GROUP = "_system/_RGreaders/0.#epoch.0"
WRITER = UUID(int=7)
APPEND = Append(segment=AUDIT, writer=WRITER, data=b"forged", event_number=2, previous=1)

CHANGES = {
    "setup": lambda store: store.setup_append(AUDIT, WRITER),
    "append": lambda store: store.append(APPEND),
    "seal": lambda store: store.seal(AUDIT),
    "truncate": lambda store: store.truncate(AUDIT, 1),
    "delete": lambda store: store.delete(AUDIT),
    "merge into": lambda store: store.merge(AUDIT, "s/t/0.#epoch.0"),
    "merge from": lambda store: store.merge("s/t/0.#epoch.0", AUDIT),
    "transient": lambda store: store.create_transient(AUDIT, WRITER),
    "attribute": lambda store: store.update_attribute(AUDIT, WRITER, 1, expected=None),
    "table put": lambda store: store.table_update(TABLE, [TablePut(key=b"stream/s/t", value=b"{}")]),
    "table removal": lambda store: store.table_remove(TABLE, [TableRemoval(key=b"stream/s/t")]),
    "table": lambda store: store.delete_table(TABLE),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_audit_stream_and_the_tables_of_the_store_are_not_changed_over_the_wire(change: str) -> None:
    async def main() -> None:
        async with stage() as scene, remote(scene.server, scene.store) as store:
            await scene.store.create_segment(AUDIT)
            await scene.store.create_segment("s/t/0.#epoch.0")
            await scene.store.create_table(TABLE)
            await scene.store.append(
                Append(segment=AUDIT, writer=WRITER, data=b"entry", event_number=1, previous=NO_EVENT)
            )
            await scene.store.table_update(TABLE, [TablePut(key=b"stream/s/t", value=b"kept")])
            with pytest.raises(SegmentNotFoundError):
                await CHANGES[change](store)
            read = await store.read(AUDIT, 0, 100, wait=False)
            assert b"".join(bytes(part) for part in read.parts) == b"entry"
            (entry,) = await store.table_get(TABLE, [b"stream/s/t"])
            assert entry.value == b"kept"
            assert not (await store.info(AUDIT)).sealed

    run(main())


def test_the_erasure_feed_is_read_and_not_changed_over_the_wire() -> None:
    feed = "_system/erasures/0.#epoch.0"

    async def main() -> None:
        async with stage() as scene, remote(scene.server, scene.store) as store:
            await scene.store.create_segment(feed)
            await scene.store.append(
                Append(segment=feed, writer=WRITER, data=b"event", event_number=1, previous=NO_EVENT)
            )
            for change in (store.seal(feed), store.truncate(feed, 1), store.setup_append(feed, WRITER)):
                with pytest.raises(SegmentNotFoundError):
                    await change
            read = await store.read(feed, 0, 100, wait=False)
            assert b"".join(bytes(part) for part in read.parts) == b"event"

    run(main())


def test_reader_groups_on_the_audit_stream_keep_their_state_beside_it() -> None:
    async def main() -> None:
        async with stage() as scene, remote(scene.server, scene.store) as store:
            await scene.store.create_segment(GROUP)
            try:
                assert await store.setup_append(GROUP, WRITER) == NO_EVENT
            except PenstockError as error:
                pytest.fail(f"{error}")

    run(main())


def test_what_a_hold_covers_is_not_removed_by_segment_either() -> None:
    asked: list[tuple[str, int | None]] = []

    @asynccontextmanager
    async def guard(segment: str, offset: int | None) -> AsyncIterator[None]:
        asked.append((segment, offset))
        if offset is None or offset > 3:
            raise RetentionHoldError("a hold forbids the removal", hold="h", owner="legal", reason="case 7")
        yield

    async def main() -> None:
        async with stage(guard=guard) as scene, remote(scene.server, scene.store) as store:
            await scene.store.create_segment(DATA)
            await scene.store.create_segment("s/other/0.#epoch.0")
            await scene.store.append(
                Append(segment=DATA, writer=WRITER, data=b"entry", event_number=1, previous=NO_EVENT)
            )
            for removal in (
                store.truncate(DATA, 4),
                store.delete(DATA),
                store.merge("s/other/0.#epoch.0", DATA),
            ):
                with pytest.raises(RetentionHoldError) as refused:
                    await removal
                wanted = {"hold": "h", "owner": "legal", "reason": "case 7"}
                assert refused.value.fields | wanted == refused.value.fields
            await store.truncate(DATA, 3)
            assert (await store.info(DATA)).start_offset == 3

    run(main())
    assert asked == [(DATA, 4), (DATA, None), (DATA, None), (DATA, 3)]


@pytest.mark.parametrize("kind", ["truncate", "delete", "merge", "merge many"])
def test_the_guard_holds_for_as_long_as_a_removal_takes(kind: str) -> None:
    """The store removes between the guard's beginning and its end: what is placed in between would not be seen."""
    steps: list[str] = []

    @asynccontextmanager
    async def guard(segment: str, offset: int | None) -> AsyncIterator[None]:
        steps.append(f"begin {segment} {offset}")
        await asyncio.sleep(0)
        yield
        steps.append("end")

    class Noting(MemorySegments):
        async def truncate(self, name: str, offset: int, *, keep: bool = False) -> None:
            await asyncio.sleep(0)
            await super().truncate(name, offset, keep=keep)
            steps.append("done")

        async def delete(self, name: str) -> None:
            await asyncio.sleep(0)
            await super().delete(name)
            steps.append("done")

        async def merge(self, target: str, source: str, *, updates: Sequence[AttributeChange] = ()) -> int:
            await asyncio.sleep(0)
            length = await super().merge(target, source, updates=updates)
            steps.append("done")
            return length

    async def main() -> None:
        async with stage(Noting(), guard=guard) as scene:
            peer = await scene.peer()
            for name in ("a", "b"):
                await scene.store.create_segment(name)
                scene.store.segments[name].data += b"data"
            request = {
                "truncate": c.TruncateSegment(1, "b", 2, ""),
                "delete": c.DeleteSegment(1, "b", ""),
                "merge": c.MergeSegments(1, "a", "b", ""),
                "merge many": c.MergeSegmentsBatch(1, "a", ("b",), ""),
            }[kind]
            assert not isinstance(await peer.ask(request), c.ErrorMessage)

    run(main())
    assert steps == [f"begin b {2 if kind == 'truncate' else None}", "done", "end"]
