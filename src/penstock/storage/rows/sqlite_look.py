"""Rows of a SQLite file that no process has open, read without changing it or the files beside it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from crc32c import crc32c

from penstock.model.errors import DamagedRowError
from penstock.model.values.dataclass import dataclass
from penstock.storage.rows.sqlite_keyvalue import check_format, check_header, translated
from penstock.storage.rows.sqlite_room import ROOM_KEY
from penstock.storage.rows.sqlite_rows import CRC_BYTES, refuse_hidden_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataLook:
    """``rows``: the value of each requested key, None if it does not exist. ``first``: the first row of each
    range, or None; a row with a damaged value is skipped."""

    rows: Sequence[bytes | None]
    first: Sequence[tuple[bytes, bytes] | None]


def look_at_metadata(
    path: Path,
    *,
    keys: Sequence[tuple[bytes, bytes]],
    ranges: Sequence[tuple[bytes, bytes]],
    verify: bool,
) -> MetadataLook | None:
    """Read some rows; None if there is no metadata yet: no file, an empty one, or one without a table.

    ``keys``: each with the key of its copy, which is read if the row is damaged or missing. ``verify``: check pages and
    all rows too, as an opening does. Blocks as long as that takes. The caller keeps others from opening the file.

    Raises: CorruptDataError, VersionTooNewError, DamagedRowError (a row and its copy), OSError, UnavailableError.
    """
    check_header(path)
    if not path.exists() or path.stat().st_size == 0:
        return None
    try:
        with _unchanged(path) as connection:
            connection.text_factory = bytes
            check_format(connection, path)
            if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
                return None
            if verify:
                refuse_hidden_rows(connection, path, unsealed=ROOM_KEY)
            rows = [_row(connection, path, key, copy) for key, copy in keys]
            return MetadataLook(rows=rows, first=[_first(connection, *bounds) for bounds in ranges])
    except sqlite3.Error as error:
        raise translated(error, path) from error


@contextmanager
def _unchanged(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that cannot write. SQLite rewrites the index of its log even for readers, so the index is restored."""
    log, index = path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")
    has_log = log.exists() and log.stat().st_size > 0
    before = index.read_bytes() if index.exists() else None
    # Without a log nothing needs the index, and SQLite would try to create both.
    how = "mode=ro" if has_log else "mode=ro&immutable=1"
    connection = sqlite3.connect(f"file:{quote(str(path))}?{how}", uri=True, isolation_level=None, timeout=5.0)
    try:
        yield connection
    finally:
        connection.close()
        if before is None:
            index.unlink(missing_ok=True)
        elif index.exists() and index.read_bytes() != before:
            index.write_bytes(before)


def _row(connection: sqlite3.Connection, path: Path, key: bytes, copy: bytes) -> bytes | None:
    """The row; its copy if the row is damaged or missing. None if both are missing. Raises DamagedRowError if one is
    damaged and the other gives no value."""
    found = connection.execute("SELECT value FROM kv WHERE key = ?", (key,)).fetchone()
    value = None if found is None else _sound(key, found[0])
    if value is None and copy != key:
        value = _row(connection, path, copy, copy)
    if value is None and found is not None:
        raise DamagedRowError("value fails its checksum", file=str(path), key=key.hex())
    return value


def _first(connection: sqlite3.Connection, start: bytes, end: bytes) -> tuple[bytes, bytes] | None:
    query = "SELECT key, value FROM kv WHERE key >= ? AND key < ? ORDER BY key"
    for key, stored in connection.execute(query, (start, end)):
        value = _sound(key, stored)
        if value is not None:
            return key, value
    return None


def _sound(key: bytes, stored: object) -> bytes | None:
    if not isinstance(stored, bytes) or len(stored) < CRC_BYTES:
        return None
    checksum: int = crc32c(stored[CRC_BYTES:], crc32c(key))
    return stored[CRC_BYTES:] if checksum == int.from_bytes(stored[:CRC_BYTES], "big") else None
