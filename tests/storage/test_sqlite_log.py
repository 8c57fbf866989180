"""SQLite's own log: without it a commit would not be durable, and SQLite says in its answer alone that there is none."""

import asyncio
import errno
import sqlite3
from pathlib import Path

import pytest

from penstock.model.errors import UnavailableError
from penstock.storage.machine.offload import ThreadOffload
from penstock.storage.rows import sqlite_keyvalue
from penstock.storage.rows.sqlite_keyvalue import SqliteKeyValue


def opened(path: Path) -> None:
    async def run() -> None:
        async with ThreadOffload() as offload:
            store = await SqliteKeyValue.open(path, offload)
            try:
                await store.commit([(b"key", b"value")])
                assert await store.get_many([b"key"]) == [b"value"]
            finally:
                await store.close()

    asyncio.run(run())


def test_a_place_where_sqlite_keeps_no_log_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store.db"
    connect = sqlite3.connect

    def without_shared_memory(file: Path, **given: object) -> sqlite3.Connection:
        return connect(f"file:{file}?vfs=unix-dotfile", uri=True, **given)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(sqlite3, "connect", without_shared_memory)
    with pytest.raises(UnavailableError, match="log") as caught:
        opened(path)
    assert caught.value.fields["mode"] == "delete"
    # Once there is one, the same file is opened, and made whole.
    monkeypatch.undo()
    opened(path)
    assert connect(path).execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize("existing", [False, True])
def test_a_log_whose_name_may_be_lost_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existing: bool
) -> None:
    """SQLite ignores that the directory of its new log could not be synced; the commits in it would be lost with the name."""
    path = tmp_path / "store.db"
    if existing:
        opened(path)

    def fails_for_the_log(directory: Path) -> None:
        if (directory / "store.db-wal").exists():
            raise OSError(errno.EIO, "sync failed")

    monkeypatch.setattr(sqlite_keyvalue, "sync_directory", fails_for_the_log)
    with pytest.raises(OSError, match="sync failed"):
        opened(path)
    monkeypatch.undo()
    opened(path)
