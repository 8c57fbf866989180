"""The names of new chunks are durable before they count, and many share the sync of their directory."""

from __future__ import annotations

import asyncio

import pytest

from penstock.storage.chunks.file_chunks import FileChunks
from penstock.storage.machine.files import RealFiles

PATIENCE_S = 20.0


class NoThreads:
    async def run(self, work):
        return work()


class Watched(RealFiles):
    """Counts the syncs of directories; holds them at a gate; fails the chosen ones."""

    def __init__(self, root) -> None:
        super().__init__(root, NoThreads(), placement="inline")
        self.made: list[str] = []
        self.synced: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.reached = asyncio.Event()
        self.fail = 0

    async def make_dir(self, directory: str) -> None:
        self.made.append(directory)
        await super().make_dir(directory)

    async def sync_dir(self, directory: str) -> None:
        self.reached.set()
        await self.gate.wait()
        if self.fail:
            self.fail -= 1
            raise OSError("disk error")
        await super().sync_dir(directory)
        self.synced.append(directory)


def run(test, tmp_path) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S):
            files = Watched(tmp_path)
            chunks = FileChunks(files)
            await test(files, chunks)
            await chunks.close()

    asyncio.run(main())


async def write(chunks: FileChunks, name: str) -> None:
    await chunks.append(name, 0, [b"data"])
    await chunks.sync(name)


def test_many_new_chunks_share_the_sync_of_their_directory(tmp_path) -> None:
    async def body(files: Watched, chunks: FileChunks) -> None:
        await write(chunks, "0/first")
        assert files.synced == ["chunks/0", "chunks", "."]
        files.gate.clear()
        files.reached.clear()
        names = [f"0/c{number}" for number in range(20)]
        for name in names:
            await chunks.append(name, 0, [b"data"])
        syncs = [asyncio.ensure_future(chunks.sync(name)) for name in names]
        await files.reached.wait()
        late = asyncio.ensure_future(write(chunks, "0/late"))
        while "0/late" not in chunks._unnamed["chunks/0"]:
            await asyncio.sleep(0)
        assert not any(sync.done() for sync in (*syncs, late)), "none is durable before its name is"
        files.gate.set()
        await asyncio.gather(*syncs, late)
        assert len(files.synced) - 3 <= 2, "one for all that were there when it began, and one for the late one"
        assert files.made == ["chunks/0"]
        await chunks.sync("0/c3")
        assert len(files.synced) - 3 <= 2, "a name that is durable stays so"

    run(body, tmp_path)


def test_a_chunk_made_while_its_directory_is_synced_waits_for_the_next_sync(tmp_path) -> None:
    async def body(files: Watched, chunks: FileChunks) -> None:
        await write(chunks, "0/first")
        files.gate.clear()
        files.reached.clear()
        early = asyncio.ensure_future(write(chunks, "0/early"))
        await files.reached.wait()
        await chunks.append("0/late", 0, [b"data"])
        files.gate.set()
        await early
        before = len(files.synced)
        await chunks.sync("0/late")
        assert files.synced[before:] == ["chunks/0"]

    run(body, tmp_path)


def test_a_directory_that_failed_to_sync_is_synced_again_for_all_of_its_names(tmp_path) -> None:
    async def body(files: Watched, chunks: FileChunks) -> None:
        await write(chunks, "0/first")
        files.fail = 1
        await chunks.append("0/a", 0, [b"data"])
        await chunks.append("0/b", 0, [b"data"])
        with pytest.raises(OSError, match="disk error"):
            await chunks.sync("0/a")
        before = len(files.synced)
        await chunks.sync("0/b")
        await chunks.sync("0/a")
        assert files.synced[before:] == ["chunks/0"]

    run(body, tmp_path)


def test_a_chunk_deleted_and_made_again_is_named_again(tmp_path) -> None:
    async def body(files: Watched, chunks: FileChunks) -> None:
        await write(chunks, "0/a")
        files.gate.clear()
        files.reached.clear()
        await chunks.append("0/b", 0, [b"data"])
        syncing = asyncio.ensure_future(chunks.sync("0/b"))
        await files.reached.wait()
        await chunks.delete("0/b")
        await chunks.append("0/b", 0, [b"data"])
        files.gate.set()
        await syncing
        before = len(files.synced)
        await chunks.sync("0/b")
        assert len(files.synced) == before, "its own wait has seen to the newer name too"
        assert not chunks._unnamed["chunks/0"]

    run(body, tmp_path)
