"""A copy of a SQLite file that another process may be writing."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from urllib.parse import quote

from penstock.model.errors import CorruptDataError
from penstock.storage.machine.calls import make_directories
from penstock.storage.rows.sqlite_keyvalue import check_header, translated


def snapshot(source: Path, target: Path) -> None:
    """Write a consistent snapshot of ``source`` to the new file ``target``. The content is durable, the name not. Blocks.

    It contains everything that a running store committed before the call. The store can commit during the copy.
    Raises CorruptDataError (missing, or damaged), VersionTooNewError, UnavailableError (locked), StorageFullError, OSError.
    """
    if not source.exists():
        raise CorruptDataError("the metadata is missing", file=str(source))
    check_header(source)
    make_directories(target.parent)
    target.touch(mode=0o600)
    reading = sqlite3.connect(f"file:{quote(str(source))}?mode=ro", uri=True, isolation_level=None, timeout=5.0)
    try:
        writing = sqlite3.connect(target, isolation_level=None)
        try:
            # Copy all pages in one step: with several steps, every commit of the store would restart the copy.
            reading.backup(writing, pages=-1)
        finally:
            writing.close()
    except sqlite3.Error as error:
        # The full disk may be that of the copy, not that of the store.
        raise translated(error, target) from error
    finally:
        reading.close()
    descriptor = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
