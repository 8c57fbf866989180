"""The key-value store for production: one SQLite file."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Self, TypeVar

from crc32c import crc32c

from penstock.model.errors import (
    CorruptDataError,
    DamagedRowError,
    InternalError,
    PenstockError,
    StorageFullError,
    UnavailableError,
    VersionTooNewError,
)
from penstock.ports import forks
from penstock.ports.integrity import RowCheck
from penstock.ports.offload import Offload
from penstock.storage.machine.calls import sync_directory
from penstock.storage.machine.serial import Serial
from penstock.storage.rows.sqlite_room import ROOM_KEY, create_with_room, keep_room
from penstock.storage.rows.sqlite_rows import refuse_hidden_rows

_log = logging.getLogger(__name__)
T = TypeVar("T")

FORMAT_VERSION = 1
_APPLICATION_ID = 0x50535453
"""ASCII "PSTS". SQLite stores it in the file's header; a file that is not ours is refused before it is touched."""

_SQLITE_HEADER = struct.Struct(">60xi4xi")
"""``user_version`` and ``application_id`` in the header of every SQLite file."""

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS kv (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
    f"PRAGMA application_id={_APPLICATION_ID}",
    f"PRAGMA user_version={FORMAT_VERSION}",
)

_INLINE_KEYS_MAX = 32  # keys; more use a temporary table, below SQLite's limit of parameters
_CRC_BYTES = 4
_PROBLEMS_MAX = 20  # problems that a report lists


class SqliteKeyValue:
    """Implements ``ports.keyvalue.KeyValueStore``. Opened by ``open``, closed by ``close``.

    Values carry a CRC32C over key and value, because SQLite does not checksum its pages. Up to 32 keys are read in
    place (about 20 us); commits, scans and larger reads run in threads, commits one at a time in call order.
    """

    def __init__(
        self,
        path: Path,
        offload: Offload,
        writer: sqlite3.Connection,
        reader: sqlite3.Connection,
        scanner: sqlite3.Connection,
    ) -> None:
        self._path = path
        self._writer = writer
        self._reader = reader
        self._scanner = scanner
        self._offload = offload
        self._writes = Serial(offload)
        self._scans = Serial(offload)
        self._closed = False
        self._owner = forks.current()
        forks.register(self)

    def abandon_in_child(self) -> None:
        """See ``ports.forks.Handle``. SQLite forbids even closing a connection in the child, so it is kept."""

    @classmethod
    async def open(
        cls, path: str | os.PathLike[str], offload: Offload, *, room: bool = True, checked: bool = False
    ) -> Self:
        """Open or create the file; its directory must exist. ``room``: keep free space in it for when the disk is full.
        ``checked``: the caller has just verified the rows, as ``sqlite_look`` does.

        Raises: VersionTooNewError, CorruptDataError (not ours, or damaged): nothing was changed. StorageFullError.
        """
        target = Path(path)
        opening = asyncio.ensure_future(offload.run(lambda: _open_all(target, room=room, checked=checked)))
        try:
            writer, reader, scanner = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_abandoned)
            raise
        return cls(target, offload, writer, reader, scanner)

    async def get_many(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        self._check_open()
        if len(keys) <= _INLINE_KEYS_MAX:
            return self._guard(lambda: self._get(self._reader, keys))
        return await self._scans.run(lambda: self._guard(lambda: self._get(self._scanner, keys)))

    async def scan(
        self, start: bytes, end: bytes, *, limit: int, reverse: bool = False
    ) -> Sequence[tuple[bytes, bytes]]:
        self._check_open()
        order = "DESC" if reverse else "ASC"
        query = f"SELECT key, value FROM kv WHERE key >= ? AND key < ? ORDER BY key {order} LIMIT ?"

        def scan() -> Sequence[tuple[bytes, bytes]]:
            rows = self._scanner.execute(query, (start, end, max(limit, 0))).fetchall()
            return [(key, self._unsealed(key, value)) for key, value in rows]

        return await self._scans.run(lambda: self._guard(scan))

    async def commit(
        self,
        puts: Iterable[tuple[bytes, bytes]],
        deletes: Iterable[bytes] = (),
        *,
        delete_ranges: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        self._check_open()
        rows = [(key, _sealed(key, value)) for key, value in puts]
        gone = [(key,) for key in deletes]
        ranges = list(delete_ranges)

        def commit() -> None:
            try:
                self._commit(rows, gone, ranges)
            except sqlite3.OperationalError as error:
                if not isinstance(translated(error, self._path), StorageFullError):
                    raise
                # Move SQLite's own log into the file, so that the log is overwritten from its beginning.
                self._writer.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
                self._commit(rows, gone, ranges)

        await self._writes.run(lambda: self._guard(commit))

    def _commit(
        self, rows: Sequence[tuple[bytes, bytes]], gone: Sequence[tuple[bytes]], ranges: Sequence[tuple[bytes, bytes]]
    ) -> None:
        cursor = self._writer
        cursor.execute("BEGIN IMMEDIATE")
        try:
            cursor.executemany("DELETE FROM kv WHERE key >= ? AND key < ?", ranges)
            cursor.executemany("DELETE FROM kv WHERE key = ?", gone)
            cursor.executemany("INSERT OR REPLACE INTO kv (key, value) VALUES (?, ?)", rows)
            cursor.execute("COMMIT")
        except BaseException:
            if cursor.in_transaction:
                cursor.execute("ROLLBACK")
            raise

    async def check_rows(self, start: bytes, *, limit: int) -> RowCheck:
        """As ``ports.integrity.CheckedRows`` says."""
        self._check_open()

        def check() -> RowCheck:
            query = "SELECT key, value FROM kv WHERE key >= ? ORDER BY key LIMIT ?"
            rows = self._scanner.execute(query, (start, limit)).fetchall()
            damaged = [_as_bytes(key) for key, value in rows if not _is_sound(key, value)]
            return RowCheck(
                next_key=_as_bytes(rows[-1][0]) + b"\0" if len(rows) == limit else None,
                rows=len(rows),
                size_bytes=sum(len(key) + len(value) for key, value in rows),
                damaged=damaged,
            )

        return await self._scans.run(lambda: self._guard(check))

    async def check_pages(self) -> Sequence[str]:
        """As ``ports.integrity.CheckedRows`` says. Uses its own connection: reads and commits continue."""
        self._check_open()

        def check() -> Sequence[str]:
            connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=5.0)
            try:
                connection.execute("PRAGMA query_only=ON")
                said = [str(row[0]) for row in connection.execute(f"PRAGMA integrity_check({_PROBLEMS_MAX})")]
            except sqlite3.DatabaseError as error:
                said = [str(error)]
            finally:
                connection.close()
            return [] if said == ["ok"] else said

        return await self._offload.run(check)

    async def close(self) -> None:
        """Wait for what is in flight, then close the file."""
        if self._closed:
            return
        self._closed = True
        await self._scans.run(lambda: None)
        await self._writes.run(self._close_all)

    def _close_all(self) -> None:
        # The writer last: the last connection to close folds SQLite's own log into the file.
        for connection in (self._reader, self._scanner, self._writer):
            connection.close()

    def _get(self, connection: sqlite3.Connection, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        found: list[bytes | None] = []
        for key in keys:
            row = connection.execute("SELECT value FROM kv WHERE key = ?", (key,)).fetchall()
            found.append(self._unsealed(key, row[0][0]) if row else None)
        return found

    def _unsealed(self, key: bytes, stored: object) -> bytes:
        if isinstance(stored, bytes) and _is_sound(key, stored):
            return stored[_CRC_BYTES:]
        raise DamagedRowError("value fails its checksum", file=str(self._path), key=key.hex())

    def _guard(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except sqlite3.Error as error:
            raise translated(error, self._path) from error

    def _check_open(self) -> None:
        forks.check(self._owner)
        if self._closed:
            raise InternalError("key-value store is used after close", file=str(self._path))


def _as_bytes(key: object) -> bytes:
    """A key as stored: a damaged page may hold a key of another type."""
    return key if isinstance(key, bytes) else str(key).encode()


def _is_sound(key: object, stored: object) -> bool:
    if not isinstance(key, bytes) or not isinstance(stored, bytes) or len(stored) < _CRC_BYTES:
        return False
    checksum: int = crc32c(stored[_CRC_BYTES:], crc32c(key))
    return checksum == int.from_bytes(stored[:_CRC_BYTES], "big")


def _sealed(key: bytes, value: bytes) -> bytes:
    checksum: int = crc32c(value, crc32c(key))
    return checksum.to_bytes(_CRC_BYTES, "big") + value


def _open_all(
    path: Path, *, room: bool, checked: bool
) -> tuple[sqlite3.Connection, sqlite3.Connection, sqlite3.Connection]:
    opened: list[sqlite3.Connection] = []
    try:
        check_header(path)
        if not path.exists() and not (room and create_with_room(path, _SCHEMA)):
            path.touch(mode=0o600)
            sync_directory(path.parent)
        while len(opened) < 3:
            opened.append(sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0))
        writer, reader, scanner = opened
        for connection in opened:
            # Nothing here is text. A value with that type is damaged: it must reach its checksum, not a decoder.
            connection.text_factory = bytes
        # Check again through SQLite: the newest header may be in SQLite's own log, while the file holds an older one.
        check_format(writer, path)
        _keep_log(writer, path)
        writer.execute("PRAGMA synchronous=FULL")
        if writer.execute("PRAGMA user_version").fetchone()[0] == 0:
            writer.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA:
                writer.execute(statement)
            writer.execute("COMMIT")
        if room:
            # An inspection must be able to open a damaged file too; it checks the rows itself.
            if not checked:
                refuse_hidden_rows(writer, path, unsealed=ROOM_KEY)
            keep_room(writer, path)
        for connection in (reader, scanner):
            connection.execute("PRAGMA query_only=ON")
            connection.execute("SELECT key FROM kv LIMIT 1").fetchall()
        # SQLite syncs the directory after it creates its log, but ignores the error: after a power loss the log and all
        # commits in it would have no name.
        sync_directory(path.parent)
    except BaseException as error:
        for connection in opened:
            connection.close()
        if isinstance(error, sqlite3.Error):
            raise translated(error, path) from error
        raise
    return writer, reader, scanner


def _keep_log(writer: sqlite3.Connection, path: Path) -> None:
    """Switch SQLite to its write-ahead log. If it cannot (a failing disk, a file system without shared memory), it
    reports that only in its answer and continues with a rollback journal, with which a power loss may restore deleted
    rows."""
    mode = bytes(writer.execute("PRAGMA journal_mode=WAL").fetchone()[0]).decode(errors="replace")
    if mode != "wal":
        raise UnavailableError(
            "SQLite cannot keep its log here; commits would not be durable", file=str(path), mode=mode
        )


def check_header(path: Path) -> None:
    """Look at SQLite's file header without opening a connection, which might already change the file."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb") as file:
        header = file.read(_SQLITE_HEADER.size)
    if len(header) < _SQLITE_HEADER.size or not header.startswith(b"SQLite format 3\0"):
        raise CorruptDataError("metadata file is damaged, or not one of Penstock", file=str(path))
    version, application = _SQLITE_HEADER.unpack(header)
    _check_ids(path, application, version, foreign=application != 0)


def check_format(connection: sqlite3.Connection, path: Path) -> None:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    _check_ids(path, application, version, foreign=tables > 0)


def _check_ids(path: Path, application: int, version: int, *, foreign: bool) -> None:
    if application != _APPLICATION_ID and foreign:
        raise CorruptDataError(
            "metadata file is damaged, or not one of Penstock", file=str(path), application=application
        )
    if version > FORMAT_VERSION:
        raise VersionTooNewError(
            "metadata was written by a newer version", file=str(path), version=version, newest_known=FORMAT_VERSION
        )


def _close_abandoned(
    opening: asyncio.Future[tuple[sqlite3.Connection, sqlite3.Connection, sqlite3.Connection]],
) -> None:
    if not opening.cancelled() and opening.exception() is None:
        for connection in opening.result():
            connection.close()


def translated(error: sqlite3.Error, path: Path) -> PenstockError | OSError:
    code = getattr(error, "sqlite_errorcode", None)
    primary = code & 0xFF if isinstance(code, int) else None
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return CorruptDataError("metadata file is damaged", file=str(path), detail=str(error))
    if primary == sqlite3.SQLITE_FULL:
        return StorageFullError("disk is full", file=str(path))
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return UnavailableError("metadata file is locked by another process", file=str(path))
    if primary in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return OSError(f"metadata file: {error}: {path}")
    return InternalError("metadata file refused a statement", file=str(path), detail=str(error))
