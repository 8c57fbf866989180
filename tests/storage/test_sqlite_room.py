"""The metadata owns its room on disk from the first opening on; what is allocated for it changes no row."""

import asyncio
import errno
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import StorageFullError
from penstock.storage.machine.offload import ThreadOffload
from penstock.storage.rows import sqlite_keyvalue, sqlite_room
from penstock.storage.rows.sqlite_keyvalue import SqliteKeyValue
from penstock.storage.rows.sqlite_look import look_at_metadata
from penstock.storage.rows.sqlite_room import ROOM_BYTES
from penstock.storage.rows.sqlite_snapshot import snapshot

Rows = dict[bytes, bytes]
MADE_BYTES = ROOM_BYTES * 5 // 4


def opened(path: Path, rows: Rows | None = None, then: Callable[[], None] = lambda: None) -> Rows:
    """Open the file, call ``then`` while it is open and nothing was committed, commit the rows, and return all rows."""

    async def run() -> Rows:
        async with ThreadOffload() as offload:
            store = await SqliteKeyValue.open(path, offload)
            try:
                then()
                if rows:
                    await store.commit(list(rows.items()))
                return dict(await store.scan(b"", b"\xfe", limit=10_000))
            finally:
                await store.close()

    return asyncio.run(run())


def log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def free_bytes(path: Path) -> int:
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        pages: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
        return pages * 4096
    finally:
        connection.close()


def check_owned(path: Path) -> None:
    for item in (path, log_of(path)):
        found = item.stat()
        assert found.st_blocks * 512 >= found.st_size >= ROOM_BYTES
    assert free_bytes(path) >= ROOM_BYTES


def test_each_opening_owns_free_pages_and_a_log_and_writes_neither(tmp_path: Path) -> None:
    path = tmp_path / "store.db"

    def left() -> bytes:
        """SQLite's log, where another process or a late close of a connection has kept it."""
        return log_of(path).read_bytes() if log_of(path).exists() else b""

    before = left()

    def look() -> None:
        check_owned(path)
        log = log_of(path).read_bytes()
        assert log.startswith(before)
        assert not any(log[len(before) :])
        assert {item.name for item in tmp_path.iterdir()} == {"store.db", "store.db-wal", "store.db-shm"}

    opened(path, {b"key": b"value"}, look)
    assert path.stat().st_mode & 0o777 == 0o600
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    # Rows may grow a little until the room is created again.
    before = left()
    opened(path, {b"%04d" % number: bytes(900) for number in range(700)}, look)
    before = left()
    assert len(opened(path, None, look)) == 701


def test_room_that_rows_have_used_is_created_again(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    opened(path, {b"%04d" % number: bytes(900) for number in range(3000)})
    assert free_bytes(path) < ROOM_BYTES

    def look() -> None:
        check_owned(path)
        assert free_bytes(path) >= MADE_BYTES

    assert len(opened(path, None, look)) == 3000


def killed(directory: Path, *, room: bool) -> Path:
    """A file and its log as a kill leaves them after several commits."""
    directory.mkdir()
    path = directory / "store.db"

    async def run() -> None:
        async with ThreadOffload() as offload:
            await (await SqliteKeyValue.open(directory / "alive.db", offload, room=room)).close()
            store = await SqliteKeyValue.open(directory / "alive.db", offload, room=room)
            for number in range(12):
                await store.commit([(b"%02d" % number, bytes([number + 1]) * 3000), (b"last", b"%d" % number)])
            shutil.copy(directory / "alive.db", path)
            shutil.copy(log_of(directory / "alive.db"), log_of(path))
            await store.close()

    asyncio.run(run())
    (directory / "alive.db").unlink()
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return killed(tmp_path_factory.mktemp("killed") / "small", room=False)


def rows_of(file: bytes, log: bytes) -> Rows:
    """What SQLite finds in a file with this log."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "store.db")
        path.write_bytes(file)
        log_of(path).write_bytes(log)
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            return dict(connection.execute("SELECT key, substr(value, 5) FROM kv"))
        finally:
            connection.close()


@given(data=st.data())
def test_zeros_behind_a_log_that_was_cut_anywhere_change_no_row(small: Path, data: st.DataObject) -> None:
    file, whole = small.read_bytes(), log_of(small).read_bytes()
    cut = data.draw(st.integers(0, len(whole)) | st.integers(0, 100))
    longer = whole[:cut] + bytes(data.draw(st.sampled_from((1, 24, 512, 4096, 3 * 4120, 200_000))))
    # Zeros may complete a frame that ended with zeros: those bytes are the ones that were written.
    while whole[cut : cut + 1] == longer[cut : cut + 1] == b"\0":
        cut += 1
    assert rows_of(file, longer) == rows_of(file, whole[:cut])


@pytest.mark.parametrize("frames", [0, 0.002, 1, 9.5])
def test_a_store_keeps_what_a_log_has_when_it_allocates_the_rest(tmp_path: Path, frames: float) -> None:
    path = killed(tmp_path / "killed", room=True)
    kept = log_of(path).read_bytes()[: int(32 + frames * 4120) if frames else 0]
    log_of(path).write_bytes(kept)
    expected = rows_of(path.read_bytes(), kept)
    assert opened(path, None, lambda: check_owned(path)) == expected
    assert len(expected) == {0: 0, 0.002: 0, 1: 0, 9.5: 3}[frames]


def test_a_log_of_zeros_is_an_empty_one_to_every_reader(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    rows = {b"a": b"1", b"b": b"2"}
    opened(path, rows)
    log_of(path).write_bytes(bytes(ROOM_BYTES))
    before = {item.name: item.read_bytes() for item in tmp_path.iterdir()}
    look = look_at_metadata(path, keys=[(b"a", b"a"), (b"x", b"x")], ranges=[(b"b", b"c")], verify=True)
    assert look is not None
    assert (look.rows, look.first) == ([b"1", None], [(b"b", b"2")])
    assert {item.name: item.read_bytes() for item in tmp_path.iterdir()} == before
    snapshot(path, tmp_path / "copy" / "store.db")
    assert opened(tmp_path / "copy" / "store.db") == rows
    log_of(path).write_bytes(bytes(ROOM_BYTES))
    assert opened(path, {b"c": b"3"}) == {**rows, b"c": b"3"}


@pytest.mark.parametrize("left", [b"", b"SQLite format 3\0", bytes(70_000)])
def test_what_an_interrupted_creation_leaves_is_replaced(tmp_path: Path, left: bytes) -> None:
    path = tmp_path / "store.db"
    path.with_name("store.db.new").write_bytes(left)
    assert opened(path, {b"a": b"1"}) == {b"a": b"1"}
    assert [item.name for item in tmp_path.iterdir()] == ["store.db"]


def test_a_new_file_gets_its_name_only_once_it_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(descriptor: int) -> None:
        raise OSError(errno.EIO, "sync failed")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="sync failed"):
        opened(tmp_path / "store.db")
    assert list(tmp_path.iterdir()) == []


def test_the_log_of_a_deleted_file_is_not_applied_to_a_new_one(small: Path, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    shutil.copy(log_of(small), log_of(path))
    assert opened(path, {b"a": b"1"}) == {b"a": b"1"}


def without_room(descriptor: int, path: str, size_bytes: int) -> bool:
    raise StorageFullError("disk is full", path=path, errno="ENOSPC")


def test_a_file_system_that_cannot_allocate_gets_room_by_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store.db"
    monkeypatch.setattr(sqlite_room, "allocate", lambda descriptor, path, size_bytes: False)
    for number in range(2):
        opened(path, {b"%d" % number: b"1"}, lambda: check_owned(path))
    assert [item.name for item in tmp_path.iterdir()] == ["store.db"]


def test_a_store_without_space_for_room_opens_and_reports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store.db"
    monkeypatch.setattr(sqlite_room, "allocate", without_room)
    opened(path, {b"a": b"1"})
    assert opened(path) == {b"a": b"1"}
    assert "no space is reserved for metadata" in caplog.text


@pytest.mark.parametrize("room", [MADE_BYTES, ROOM_BYTES])
def test_as_much_room_is_created_as_the_disk_has(tmp_path: Path, room: int) -> None:
    path = tmp_path / "store.db"
    writer = sqlite3.connect(path, isolation_level=None)
    writer.text_factory = bytes
    for statement in ("PRAGMA journal_mode=WAL", *sqlite_keyvalue._SCHEMA):
        writer.execute(statement)
    pages = room // 4096
    writer.execute(f"PRAGMA max_page_count={pages + 20}")
    sqlite_room.keep_room(writer, path)
    assert writer.execute("PRAGMA freelist_count").fetchone()[0] >= pages
    assert writer.execute("SELECT count(*) FROM kv").fetchone() == (0,)
    writer.close()
