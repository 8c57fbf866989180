"""Disk space that a SQLite file and its log own before they need it.

A full disk gets space back only after a commit that records it; that commit must not need space itself. SQLite uses
free pages before the file grows, and overwrites its log from the start once the log was moved into the file.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from penstock.model.errors import StorageFullError
from penstock.storage.machine.calls import allocate, sync_directory

_log = logging.getLogger(__name__)

ROOM_BYTES = 4 << 20
"""Four times the changed rows of a usual checkpoint; one that does not fit is tried again as others make room."""
ROOM_KEY = b"\xff" * 16


def create_with_room(path: Path, schema: Sequence[str]) -> bool:
    """Create a SQLite file by these statements, with free pages. Blocks.

    A crash leaves the whole file, or none and ``path`` with the suffix ``.new``, which the next call replaces.
    False, without a file: the disk has no room, its file system cannot allocate space, or the log or journal of an
    earlier file is left: SQLite deletes those beside an empty file, but would apply them to this one.

    Raises: sqlite3.Error, OSError: there is no file, or its name may not be durable.
    """
    if any(path.with_name(path.name + suffix).exists() for suffix in ("-wal", "-journal")):
        return False
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    try:
        new.touch(mode=0o600)
        _write(new, schema)
        descriptor = os.open(new, os.O_RDWR | os.O_CLOEXEC)
        try:
            if not allocate(descriptor, str(new), os.fstat(descriptor).st_size):
                return False
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        new.replace(path)
    except StorageFullError:
        return False
    except sqlite3.Error as error:
        if not _is_full(error):
            raise
        return False
    finally:
        new.unlink(missing_ok=True)
    sync_directory(path.parent)
    return True


def _write(path: Path, schema: Sequence[str]) -> None:
    """Write the file in one transaction without a journal. Its free pages are a hole: SQLite does not write them."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        cache_kib = _made_bytes() // 512  # twice the pages: none of them is written before the commit
        for setting in ("journal_mode=OFF", "synchronous=OFF", "secure_delete=OFF", f"cache_size={-cache_kib}"):
            connection.execute(f"PRAGMA {setting}").fetchall()
        connection.execute("BEGIN")
        for statement in schema:
            connection.execute(statement)
        # SQLite makes the zeros of a plain table in place, and does not write them if they are deleted before the table.
        connection.execute("CREATE TABLE room (value BLOB)")
        connection.execute("INSERT INTO room VALUES (zeroblob(?))", (_made_bytes(),))
        connection.execute("DELETE FROM room")
        connection.execute("DROP TABLE room")
        connection.execute("COMMIT")
    finally:
        connection.close()


def keep_room(writer: sqlite3.Connection, path: Path) -> None:
    """Own ``ROOM_BYTES`` on disk beyond what is used, in the file and in SQLite's log; a warning if the disk is full.

    Raises: sqlite3.Error, OSError.
    """
    page = writer.execute("PRAGMA page_size").fetchone()[0]
    free = writer.execute("PRAGMA freelist_count").fetchone()[0] * page
    try:
        if free >= ROOM_BYTES and _allocate_log(path):
            return
        _fill_and_free(writer, path)
    except StorageFullError:
        _log.warning("disk is full; no space is reserved for metadata", extra={"file": str(path)})


def _allocate_log(path: Path) -> bool:
    """Let the log of the open file own ``ROOM_BYTES``. False if there is no log, or its file system cannot allocate.

    What is added reads as zeros. SQLite takes a log up to the first frame whose salt or checksum is wrong, and nothing
    of a log whose header is invalid, so zeros behind its content change nothing. Raises StorageFullError, OSError.
    """
    log = path.with_name(f"{path.name}-wal")
    with suppress(FileNotFoundError):
        # SQLite locks the file and its index, not its log: closing a descriptor of the log releases no lock.
        descriptor = os.open(log, os.O_RDWR | os.O_CLOEXEC)
        try:
            return os.fstat(descriptor).st_size >= ROOM_BYTES or allocate(descriptor, str(log), ROOM_BYTES)
        finally:
            os.close(descriptor)
    return False


def _fill_and_free(writer: sqlite3.Connection, path: Path) -> None:
    """Let the file and its log grow by a large row that is deleted again. Raises StorageFullError, sqlite3.Error."""
    for size_bytes in (_made_bytes(), ROOM_BYTES):
        try:
            writer.execute("BEGIN IMMEDIATE")
            writer.execute("INSERT OR REPLACE INTO kv (key, value) VALUES (?, zeroblob(?))", (ROOM_KEY, size_bytes))
            writer.execute("COMMIT")
            writer.execute("PRAGMA wal_checkpoint(RESTART)")
            writer.execute("DELETE FROM kv WHERE key = ?", (ROOM_KEY,))
            return
        except sqlite3.Error as error:
            if writer.in_transaction:
                writer.execute("ROLLBACK")
            if not _is_full(error):
                raise
    raise StorageFullError("disk is full", file=str(path))


def _made_bytes() -> int:
    """What is created when room is missing: rows may use a fifth of it until it has to be created again."""
    return ROOM_BYTES + ROOM_BYTES // 4


def _is_full(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(code, int) and code & 0xFF == sqlite3.SQLITE_FULL
