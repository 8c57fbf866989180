"""Chunks written into a store's tier 2 by another process: durable and whole, or an error that says what; never the wrong place."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from penstock.codec.events import frame_events
from penstock.codec.store.chunk_builder import BuiltChunk, ChunkBuilder
from penstock.codec.store.chunk_index import decode_records, index_name
from penstock.model.errors import StorageFullError, UnavailableError
from penstock.ports.data.imports import ImportGrant
from penstock.storage.chunks import imports as real_imports
from penstock.storage.chunks.imports import FilePlace, _BucketPlace, open_place
from penstock.storage.memory.memory_objects import MemoryObjects

MARKER = "3/i0-1-abc-0"


def grant(location: str | None) -> ImportGrant:
    return ImportGrant(
        segment="s",
        prefix="3/i7-1-2-",
        location=location,
        marker=MARKER,
        appends=True,
        chunk_bytes=1 << 20,
        block_bytes=1 << 10,
    )


def built(size: int = 10) -> BuiltChunk:
    builder = ChunkBuilder(block_bytes=1 << 10, chunk_bytes=1 << 40)
    for number in range(3):
        builder.add(memoryview(frame_events([bytes([number]) * size])), 1)
    made = builder.finish()
    assert made is not None
    return made


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    (tmp_path / "3").mkdir()
    (tmp_path / MARKER).touch()
    return tmp_path


@pytest.mark.parametrize("size", [1, 500_000])
def test_a_chunk_and_its_sidecar_are_there_as_they_were_built(tier: Path, size: int) -> None:
    async def scenario() -> None:
        place = await open_place(grant(str(tier / MARKER)))
        assert place is not None
        chunk = built(size)
        found = await asyncio.gather(*(place.write(number, chunk) for number in range(3)))
        await place.settle()
        assert [item.name for item in found] == [f"3/i7-1-2-{number}" for number in range(3)]
        for item in found:
            assert (tier / item.name).read_bytes() == b"".join(chunk.parts)
            index = (tier / index_name(item.name)).read_bytes()
            assert index == chunk.index
            assert sum(record.event_count for record in decode_records(index)) == item.event_count == 3
        await place.remove([0, 1, 7])
        assert sorted(path.name for path in (tier / "3").iterdir()) == ["i0-1-abc-0", "i7-1-2-2", "i7-1-2-2.idx"]

    asyncio.run(scenario())


def test_what_is_not_the_stores_tier_2_is_no_place(tier: Path) -> None:
    async def scenario() -> None:
        assert await open_place(grant(None)) is None
        # A directory of the same name on another machine has no such marker.
        (tier / MARKER).unlink()
        assert await open_place(grant(str(tier / MARKER))) is None
        assert (
            await open_place(grant(f"s3://nowhere-{os.getpid()}/chunks/{MARKER}?endpoint=http%3A%2F%2F127.0.0.1%3A9"))
            is None
        )

    pytest.importorskip("obstore")
    asyncio.run(scenario())


def test_files_that_the_store_could_not_read_are_not_written(tier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.geteuid()
    monkeypatch.setattr(real_imports.os, "geteuid", lambda: own + 1)
    assert asyncio.run(open_place(grant(str(tier / MARKER)))) is None


def test_no_file_is_ever_written_a_second_time(tier: Path) -> None:
    async def scenario() -> None:
        place = FilePlace(grant(str(tier / MARKER)))
        await place.write(0, built())
        with pytest.raises(UnavailableError, match="cannot be written"):
            await place.write(0, built(20))
        assert (tier / "3/i7-1-2-0").read_bytes() == b"".join(built().parts)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, StorageFullError), (errno.EDQUOT, StorageFullError), (errno.EIO, UnavailableError)],
)
def test_a_disk_that_refuses_is_told_by_what_to_do(
    tier: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(real_imports.os, "fdatasync", fail)
    with pytest.raises(kind):
        asyncio.run(FilePlace(grant(str(tier / MARKER))).write(0, built()))


def test_objects_are_put_whole_with_their_sidecars() -> None:
    async def scenario() -> None:
        objects = MemoryObjects()
        place = _BucketPlace(grant(None), objects)
        item = await place.write(1, built())
        await place.settle()
        assert await objects.read(item.name, 0, 1 << 20) == b"".join(built().parts)
        assert await objects.read(index_name(item.name), 0, 1 << 20) == built().index
        await place.remove([1, 2])
        assert await objects.list("3") == {}

    asyncio.run(scenario())
