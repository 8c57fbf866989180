"""SQLite, chunk files, memory and the data directory: what the shared laws do not reach."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.model.errors import (
    ContainerOfflineError,
    CorruptDataError,
    DirectoryInUseError,
    InternalError,
    InvalidArgumentError,
    StorageFullError,
    VersionTooNewError,
)
from penstock.storage.chunks.file_chunks import FileChunks
from penstock.storage.machine.data_directory import DataDirectory
from penstock.storage.machine.files import RealFiles
from penstock.storage.machine.offload import ThreadOffload
from penstock.storage.memory.memory_chunks import MemoryChunks
from penstock.storage.memory.memory_log import MemoryLog, MemoryLogState
from penstock.storage.rows.sqlite_keyvalue import SqliteKeyValue
from penstock.testing.conformance.faults import FaultyFiles


def test_sqlite_refuses_newer_foreign_and_damaged_files_and_changes_nothing(tmp_path: Path) -> None:
    async def refused(path: Path, kind: type[Exception]) -> None:
        before = path.read_bytes()
        async with ThreadOffload() as offload:
            with pytest.raises(kind):
                await SqliteKeyValue.open(path, offload)
        assert path.read_bytes() == before

    async def run() -> None:
        newer = tmp_path / "newer.db"
        async with ThreadOffload() as offload:
            await (await SqliteKeyValue.open(newer, offload)).close()
        assert newer.stat().st_mode & 0o777 == 0o600
        with sqlite3.connect(newer) as connection:
            connection.execute("PRAGMA user_version=2")
        connection.close()
        await refused(newer, VersionTooNewError)
        foreign = tmp_path / "foreign.db"
        with sqlite3.connect(foreign) as connection:
            connection.execute("CREATE TABLE other (x)")
        connection.close()
        await refused(foreign, CorruptDataError)
        noise = tmp_path / "noise.db"
        noise.write_bytes(os.urandom(8192))
        await refused(noise, CorruptDataError)

    asyncio.run(run())


def test_sqlite_sees_a_flipped_bit_in_a_value(tmp_path: Path) -> None:
    path = tmp_path / "store.db"

    async def run() -> None:
        async with ThreadOffload() as offload:
            store = await SqliteKeyValue.open(path, offload)
            await store.commit([(b"key", b"a value that is easy to find")])
            await store.close()
            data = path.read_bytes().replace(b"easy to find", b"easy to fine")
            path.write_bytes(data)
            store = await SqliteKeyValue.open(path, offload)
            with pytest.raises(CorruptDataError):
                await store.get_many([b"key"])
            with pytest.raises(CorruptDataError):
                await store.scan(b"", b"z", limit=5)
            await store.close()
            with pytest.raises(InternalError):
                await store.get_many([b"key"])

    asyncio.run(run())


def test_sqlite_names_a_full_disk(tmp_path: Path) -> None:
    async def run() -> None:
        async with ThreadOffload() as offload:
            store = await SqliteKeyValue.open(tmp_path / "store.db", offload)
            await store.commit([(b"a", b"1")])
            store._writer.execute("PRAGMA max_page_count=10")
            with pytest.raises(StorageFullError):
                await store.commit([(b"a", b"2"), (b"big", bytes(8 << 20))])
            assert await store.get_many([b"a", b"big"]) == [b"1", None]
            store._writer.execute("PRAGMA max_page_count=100000")
            await store.commit([(b"a", b"2")])
            assert await store.get_many([b"a"]) == [b"2"]
            await store.close()

    asyncio.run(run())


def test_sqlite_keeps_commits_of_a_killed_process(tmp_path: Path) -> None:
    code = """
import asyncio, os, sys
from penstock.storage.machine.offload import ThreadOffload
from penstock.storage.rows.sqlite_keyvalue import SqliteKeyValue
async def main():
    store = await SqliteKeyValue.open(sys.argv[1], ThreadOffload())
    for number in range(20):
        await store.commit([(b"%02d" % number, b"v"), (b"last", b"%d" % number)])
    os.kill(os.getpid(), 9)
asyncio.run(main())
"""
    path = tmp_path / "store.db"
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == -9

    async def run() -> None:
        async with ThreadOffload() as offload:
            store = await SqliteKeyValue.open(path, offload)
            assert await store.get_many([b"19", b"last"]) == [b"v", b"19"]
            await store.close()

    asyncio.run(run())


def test_chunk_handles_stay_bounded_and_close(tmp_path: Path) -> None:
    async def run() -> None:
        async with ThreadOffload() as offload:
            before = len(os.listdir("/proc/self/fd"))
            chunks = FileChunks(RealFiles(tmp_path, offload), handles=4)
            for number in range(30):
                await chunks.append(f"0/{number}", 0, [b"%d" % number])
                await chunks.sync(f"0/{number}")
                assert len(chunks._handles) <= 4
            assert await asyncio.gather(*(chunks.read(f"0/{number}", 0, 9) for number in range(30))) == [
                b"%d" % number for number in range(30)
            ]
            assert chunks.location("0/7") == str(tmp_path / "chunks" / "0" / "7")
            await chunks.close()
            assert len(os.listdir("/proc/self/fd")) <= before + 4

    asyncio.run(run())


def test_chunk_sync_makes_its_name_durable_before_it_returns(tmp_path: Path) -> None:
    async def run() -> None:
        async with ThreadOffload() as offload:
            seen: list[tuple[str, str]] = []
            files = FaultyFiles(RealFiles(tmp_path, offload), lambda operation, path: seen.append((operation, path)))
            chunks = FileChunks(files)
            await chunks.append("3/c", 0, [b"x"])
            assert ("sync_dir", "chunks/3") not in seen
            await chunks.sync("3/c")
            assert seen.index(("sync", "chunks/3/c")) < seen.index(("sync_dir", "chunks/3"))
            assert ("sync_dir", "chunks") in seen
            seen.clear()
            await chunks.append("3/c", 1, [b"y"])
            await chunks.sync("3/c")
            assert [operation for operation, _ in seen if operation == "sync_dir"] == []
            await chunks.close()

    asyncio.run(run())


def test_chunk_whose_sync_failed_is_durable_only_after_it_is_written_again(tmp_path: Path) -> None:
    async def run() -> None:
        async with ThreadOffload() as offload:
            failing = False

            def before(operation: str, path: str) -> None:
                if failing and operation == "sync":
                    raise OSError(errno.EIO, "input/output error")

            chunks = FileChunks(FaultyFiles(RealFiles(tmp_path, offload), before))
            await chunks.append("0/c", 0, [b"durable"])
            await chunks.sync("0/c")
            await chunks.append("0/c", 7, [b" lost"])
            failing = True
            with pytest.raises(OSError, match="input/output"):
                await chunks.sync("0/c")
            failing = False
            with pytest.raises(OSError, match="not written again"):
                await chunks.sync("0/c")
            with pytest.raises(OSError, match="not written again"):
                await chunks.append("0/c", 12, [b"!"])
            await chunks.append("0/c", 7, [b" again"])
            await chunks.sync("0/c")
            assert await chunks.read("0/c", 0, 99) == b"durable again"
            await chunks.close()

    asyncio.run(run())


def test_memory_chunks_lose_what_was_not_synced_and_keep_to_their_budget() -> None:
    async def run() -> None:
        chunks = MemoryChunks(budget_bytes=10)
        await chunks.append("0/a", 0, [b"12345"])
        await chunks.sync("0/a")
        await chunks.append("0/a", 5, [b"67"])
        await chunks.append("0/b", 0, [b"89"])
        with pytest.raises(StorageFullError):
            await chunks.append("0/b", 2, [b"xx"])
        chunks.lose_unsynced()
        assert await chunks.list() == ["0/a"]
        assert await chunks.read("0/a", 0, 99) == b"12345"

    asyncio.run(run())


def test_memory_log_fails_as_told() -> None:
    async def run() -> None:
        state = MemoryLogState()
        log = MemoryLog(state)
        assert [item async for item in log.replay()] == []
        await log.append([b"a"])
        state.full = True
        with pytest.raises(StorageFullError):
            await log.append([b"b"])
        state.full = False
        assert await log.append([b"c"]) == 2
        state.fail_with = OSError("input/output error")
        with pytest.raises(ContainerOfflineError):
            await log.append([b"d"])
        with pytest.raises(ContainerOfflineError):
            await log.append([b"e"])
        assert [item async for item in MemoryLog(state).replay()] == [(1, b"a"), (2, b"c")]

    asyncio.run(run())


def test_data_directory_is_made_private_held_and_given_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "data"
    with DataDirectory.open(path) as directory:
        assert directory.path == path
        assert path.stat().st_mode & 0o777 == 0o700
        assert (path / "VERSION").read_text() == "1 new\n"
        with pytest.raises(DirectoryInUseError) as caught:
            DataDirectory.open(path)
        assert caught.value.fields["pid"] == str(os.getpid())
    DataDirectory.open(path).close()


def test_data_directory_of_a_killed_process_can_be_taken(tmp_path: Path) -> None:
    code = """
import os, sys
from penstock.storage.machine.data_directory import DataDirectory
directory = DataDirectory.open(sys.argv[1])
os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "d")], check=False).returncode == -9
    DataDirectory.open(tmp_path / "d").close()


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("VERSION", "2\n", VersionTooNewError),
        ("VERSION", "noise\n", CorruptDataError),
        ("thesis.doc", "precious", InvalidArgumentError),
    ],
)
def test_data_directory_refuses_what_is_not_its_own_and_changes_nothing(
    name: str, text: str, kind: type[Exception], tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(kind):
        DataDirectory.open(tmp_path)
    assert [item.name for item in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == text
    with pytest.raises(InvalidArgumentError):
        DataDirectory.open(tmp_path / name)


def test_data_directory_finishes_a_first_start_that_died(tmp_path: Path) -> None:
    (tmp_path / "LOCK").write_text("")
    (tmp_path / "VERSION.tmp").write_text("")
    (tmp_path / "lost+found").mkdir()
    DataDirectory.open(tmp_path).close()
    assert (tmp_path / "VERSION").read_text() == "1 new\n"


def test_data_directory_stays_held_by_who_has_it_when_its_lock_is_removed(tmp_path: Path) -> None:
    with DataDirectory.open(tmp_path / "d"):
        (tmp_path / "d" / "LOCK").unlink()
        for take in (DataDirectory.open, DataDirectory.look):
            with pytest.raises(DirectoryInUseError):
                take(tmp_path / "d")
    with DataDirectory.look(tmp_path / "d"), DataDirectory.look(tmp_path / "d"), pytest.raises(DirectoryInUseError):
        DataDirectory.open(tmp_path / "d")
    DataDirectory.open(tmp_path / "d").close()
