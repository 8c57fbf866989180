"""One bit of a row rots, and the log has changes for it: a rebuild gives back all that was acknowledged and flushed."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from pathlib import Path

import pytest
from integrity_world import append, block, content, lose_log_and_metadata, running, stay

from penstock.app.integrity.rebuild import RebuildReport, rebuild
from penstock.codec.store import rows as records
from penstock.model.names import StreamName, segment_name, transaction_segment_name
from penstock.model.policies import StreamConfig

STREAM = StreamName("s", "t")


def rot(data: Path, row: bytes) -> None:
    with sqlite3.connect(data / "metadata/store.db") as db:
        ((value,),) = db.execute("select value from kv where key=?", (row,)).fetchall()
        flipped = bytes([value[0]]) + bytes([value[1] ^ 1]) + bytes(value[2:])
        db.execute("update kv set value=? where key=?", (flipped, row))
    db.close()


def row_of(runtime, name: str) -> bytes:
    container = runtime.segments._container(name)
    return records.uid_key(records.TAG_SEGMENT, container.index, container.segments.pending(name).uid)


async def whole(data: Path, name: str) -> bytes:
    async with running(data) as runtime:
        info = await runtime.segments.info(name)
        return await content(runtime, name, 0, info.length)


async def open_damaged(tmp_path: Path, row: bytes, *, more: str | None = None) -> RebuildReport:
    """Start on the crash image with the row rotten, close in order, and rebuild from tier 2."""
    rot(tmp_path / "crash", row)
    async with running(tmp_path / "crash") as runtime:
        if more is not None:
            await append(runtime, more, block(9))
        await runtime.segments.flush()
    lose_log_and_metadata(tmp_path / "crash")
    report = await rebuild(str(tmp_path / "crash"), tmp_path / "new")
    stay(tmp_path / "new")
    return report


@pytest.mark.parametrize("checkpoint", [False, True])
def test_what_was_acknowledged_before_the_row_rotted_is_there(tmp_path: Path, checkpoint: bool) -> None:
    async def main() -> None:
        async with running(tmp_path / "old") as runtime:
            await runtime.controller.scopes.create("s")
            await runtime.controller.streams.create(STREAM, StreamConfig())
            (name,) = [segment_name(STREAM, item.segment) for item in await runtime.controller.layout.current(STREAM)]
            await append(runtime, name, block(1))
            await runtime.segments.flush()
            last = await append(runtime, name, block(2))
            for container in runtime.segments.containers if checkpoint else ():
                await container.checkpointer.checkpoint()
            row = row_of(runtime, name)
            shutil.copytree(tmp_path / "old", tmp_path / "crash")
        report = await open_damaged(tmp_path, row)
        assert report.is_complete, report.as_json()
        assert report.restored == [name]
        assert await whole(tmp_path / "new", name) == block(1) + block(2)
        async with running(tmp_path / "new") as runtime:
            assert await append(runtime, name, block(3)) == last + 1
            assert (await runtime.segments.info(name)).event_count == 3
        assert await whole(tmp_path / "new", name) == block(1) + block(2) + block(3)

    asyncio.run(main())


def test_a_committed_transaction_whose_row_rotted_is_in_its_place(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "old") as runtime:
            controller = runtime.controller
            await controller.scopes.create("s")
            await controller.streams.create(STREAM, StreamConfig())
            txn = await controller.transactions.create(STREAM, lease_ms=100_000)
            name = segment_name(STREAM, txn.segments[0].segment)
            part = transaction_segment_name(name, txn.id)
            await append(runtime, name, block(1))
            await append(runtime, part, block(2))
            await runtime.segments.flush()
            row = row_of(runtime, part)
            await controller.transactions.commit(STREAM, txn.id)
            await append(runtime, name, block(3))
            shutil.copytree(tmp_path / "old", tmp_path / "crash")
        report = await open_damaged(tmp_path, row, more=name)
        assert report.is_complete, report.as_json()
        assert report.restored == [part]
        assert await whole(tmp_path / "new", name) == b"".join(map(block, (1, 2, 3, 9)))

    asyncio.run(main())


def test_what_cannot_be_applied_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalogue without the row of the segment: nothing can be applied to it, and the report is not complete."""
    name = "s/t/0.#epoch.0"
    monkeypatch.setattr(records, "CATALOGUED", records.CATALOGUED - set(records.TAG_SEGMENT))

    async def main() -> None:
        async with running(tmp_path / "old") as runtime:
            await runtime.segments.create_segment(name)
            await runtime.segments.flush()
            await append(runtime, name, block(1))
            row = row_of(runtime, name)
            shutil.copytree(tmp_path / "old", tmp_path / "crash")
        report = await open_damaged(tmp_path, row)
        uid = records.parse_number(row[3:])
        assert not report.is_complete
        assert [item.place for item in report.damage] == [records.aside_key(row[2], uid).hex()]
        assert report.restored == []

    asyncio.run(main())
