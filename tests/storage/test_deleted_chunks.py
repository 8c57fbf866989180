"""Reads of a chunk beside its deletion."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from penstock.model.errors import SegmentNotFoundError
from penstock.storage.chunks.file_chunks import FileChunks
from penstock.storage.machine.files import RealFile, RealFiles
from penstock.storage.machine.offload import ThreadOffload

NAME = "0/1-1-0"
SIZE = 3 << 20


class Overlapping(RealFiles):
    """A removal waits until the file was opened, and an open file waits for the removal, as far as they may overlap."""

    def begin(self) -> None:
        self.opened, self.removed = asyncio.Event(), asyncio.Event()

    async def open(self, path: str, *, create: bool = False, direct: bool = False) -> RealFile:
        file = await super().open(path, create=create, direct=direct)
        if not create:
            self.opened.set()
            await self.removed.wait()
        return file

    async def unlink(self, path: str) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self.opened.wait(), 0.2)
        await super().unlink(path)
        self.removed.set()


def test_a_read_beside_a_deletion_gets_all_bytes_or_no_chunk(tmp_path: Path) -> None:
    async def run() -> None:
        async with ThreadOffload() as offload:
            files = Overlapping(tmp_path, offload)
            files.begin()
            chunks = FileChunks(files)
            await chunks.append(NAME, 0, [bytes(SIZE)])
            await chunks.sync(NAME)
            await chunks.close()
            deleting = asyncio.create_task(chunks.delete(NAME))
            await asyncio.sleep(0)
            with suppress(SegmentNotFoundError):
                assert len(await chunks.read(NAME, 0, SIZE)) == SIZE
            await deleting
            assert await chunks.list() == []
            assert not chunks._handles

    asyncio.run(run())
