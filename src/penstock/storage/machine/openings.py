"""Calls in threads that open or remove a file. A caller may stop waiting: its descriptor is then closed."""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from pathlib import Path

from penstock.model.errors import StorageFullError
from penstock.storage.machine.calls import translated

STEP_BYTES = 1 << 20  # how much of a removed file is freed at once


class Opening:
    """An open call in a thread. Its descriptor is closed again if the caller stopped waiting."""

    def __init__(self, target: Path, path: str, *, create: bool, read_only: bool) -> None:
        self._target = target
        self._path = path
        self._read_only = read_only
        access = os.O_RDONLY if read_only else os.O_RDWR | (os.O_CREAT if create else 0)
        self._flags = access | os.O_CLOEXEC | os.O_NOFOLLOW
        # One item at most; append and pop of a deque are atomic, so exactly one side closes.
        self._opened: deque[int] = deque()
        self._abandoned = False

    def run(self) -> None:
        try:
            self._opened.append(os.open(self._target, self._flags, 0o600))
        except OSError as error:
            raise translated(error, self._path) from error
        if self._abandoned:
            self._close()
        elif self._read_only and self._target.is_dir():
            # A directory can be opened for reading, but not for writing.
            self._close()
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(self._target))

    def abandon(self) -> None:
        self._abandoned = True
        self._close()

    def taken(self) -> int:
        return self._opened.pop()

    def _close(self) -> None:
        try:
            os.close(self._opened.pop())
        except IndexError:
            return


class Removal:
    """A call in a thread that removes a file's name. A large file without another name stays open in ``opening``."""

    def __init__(self, target: Path, path: str) -> None:
        self._target = target
        self.opening = Opening(target, path, create=False, read_only=False)

    def run(self) -> int:
        """Returns the size of the file if it stays open, else 0. Raises OSError."""
        try:
            found = self._target.lstat()
        except FileNotFoundError:
            return 0
        is_large = stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and found.st_size > STEP_BYTES
        if is_large:
            try:
                self.opening.run()
            except (OSError, StorageFullError):
                is_large = False  # It is removed at once.
        self._target.unlink(missing_ok=True)
        return found.st_size if is_large else 0
