"""Holds on the files of a data directory, between a store and a backup in another process. They are kernel locks, so a hold
ends when its process dies. Source: docs/design/0023-backup.md."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.model.errors import UnavailableError, UnsupportedError

_CHUNKS, _LOG = "metadata", "wal"
"""The directory whose lock protects the chunks, and the one for the log. Both are local directories that exist in every data
directory, even if the chunks are in a bucket."""
_PAUSE_S = 0.005


class FileHolds:
    """Implements ``ports.holds.SpaceHolds`` for the store of a data directory."""

    def __init__(self, data: Path) -> None:
        self._data = data

    @contextmanager
    def chunks(self) -> Iterator[bool]:
        with _shared(self._data / _CHUNKS) as free:
            yield free

    @contextmanager
    def log(self) -> Iterator[bool]:
        with _shared(self._data / _LOG) as free:
            yield free


@contextmanager
def hold_chunks(data: Path, *, wait_s: float = 60.0) -> Iterator[None]:
    """Inside the block, the store of the directory frees no chunks. Blocks until a running deletion has ended.

    Raises UnavailableError (not within ``wait_s``), UnsupportedError (the file system cannot lock directories), OSError.
    """
    with _exclusive(data / _CHUNKS, wait_s):
        yield


@contextmanager
def hold_log(data: Path, *, wait_s: float = 60.0) -> Iterator[None]:
    """The same for files of the log. Keep it short: if the log gets full, appends wait."""
    with _exclusive(data / _LOG, wait_s):
        yield


@contextmanager
def _shared(directory: Path) -> Iterator[bool]:
    descriptor = _opened(directory)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:
            # The file system has no such locks, so no backup can begin either.
            yield True
            return
        try:
            yield True
        finally:
            # Unlock explicitly: a forked process may also have the descriptor and would keep the lock.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


@contextmanager
def _exclusive(directory: Path, wait_s: float) -> Iterator[None]:
    descriptor = _opened(directory)
    try:
        until = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > until:
                    raise UnavailableError(
                        "another backup of the store is running, or the store is freeing space without a pause; try again",
                        path=str(directory),
                    ) from error
                time.sleep(_PAUSE_S)
            except OSError as error:
                raise UnsupportedError(
                    "the file system cannot lock directories, so a running store cannot be backed up; "
                    "stop it, or back up a snapshot of the file system",
                    path=str(directory),
                ) from error
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _opened(directory: Path) -> int:
    return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
