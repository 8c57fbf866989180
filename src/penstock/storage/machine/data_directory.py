"""The directory that holds everything of one store, and who may use it."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self, TextIO

from penstock.model.errors import CorruptDataError, DirectoryInUseError, InvalidArgumentError, VersionTooNewError
from penstock.storage.machine.calls import make_directories, replace_file

FORMAT_VERSION = 1
VERSION = "VERSION"
BACKUP_MANIFEST = "MANIFEST.json"
BACKUP_DATA = "data"
"""The directory of a backup that holds the files of the data directory."""
_NEW = "new"
"""Follows the number in ``VERSION`` until the first start is complete. Without it, missing parts were lost."""
_LOCK = "LOCK"
_HARMLESS = frozenset((_LOCK, f"{VERSION}.tmp", "lost+found", "access"))
"""What may lie in a directory that is still to become ours: a first start that died, a mount point's own, and users that
were added before the first start."""

_OURS = ("metadata/store.db", "wal/EPOCH", "workers.json")
"""Files that only a data directory contains: by them, a data directory without its ``VERSION`` is recognized."""


class DataDirectory:
    """A data directory held by this process, until ``close`` or its end. ``path`` is absolute."""

    held: ClassVar[dict[str, int]] = {}
    """Paths that are open, and in which process: a fork knows its parent's. A pid alone would not tell, since processes in
    two containers may have the same."""

    def __init__(self, path: Path, *locks: TextIO | _DirectoryLock) -> None:
        self.path = path
        self._locks = locks
        self._pid = os.getpid()
        self.held[str(path.resolve())] = os.getpid()

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Lock the directory; create it if it is missing. Blocks for a few milliseconds.

        Raises, before any change: DirectoryInUseError (field ``pid``), VersionTooNewError, InvalidArgumentError (it
        holds only files that are not ours), CorruptDataError (its VERSION is unreadable or lost: fields ``missing`` and
        ``found``). StorageFullError, OSError.
        """
        directory = Path(path).absolute()
        check_directory(directory)
        if not directory.exists():
            make_directories(directory)
        lock = _take_lock(directory)
        itself: _DirectoryLock | None = None
        try:
            itself = _lock_itself(directory, fcntl.LOCK_EX)
            # Again under the lock: another process may have taken the directory since the first check.
            check_directory(directory)
            if not (directory / VERSION).exists():
                replace_file(directory / VERSION, f"{FORMAT_VERSION} {_NEW}\n".encode())
        except BaseException:
            for taken in (lock, itself):
                if taken is not None:
                    _unlock(taken)
                    taken.close()
            raise
        return cls(directory, lock, itself)

    @classmethod
    def look(cls, path: str | os.PathLike[str]) -> Self:
        """Keep others from taking the directory while it is inspected; nothing in it is changed. Inspections can run
        concurrently.

        Raises: InvalidArgumentError (there is none), DirectoryInUseError (a store runs on it).
        """
        directory = Path(path).absolute()
        if not directory.is_dir():
            raise InvalidArgumentError("there is no such directory", path=str(directory))
        name = directory / _LOCK
        locks: list[TextIO | _DirectoryLock] = []
        try:
            if name.exists():
                descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
                locks.append(os.fdopen(descriptor, encoding="ascii"))
                fcntl.flock(locks[0], fcntl.LOCK_SH | fcntl.LOCK_NB)
            locks.append(_lock_itself(directory, fcntl.LOCK_SH))
        except BaseException as error:
            for lock in locks:
                lock.close()
            if isinstance(error, BlockingIOError):
                pid = name.read_text(encoding="ascii", errors="replace")[:20].strip() or "unknown"
                raise DirectoryInUseError(
                    "another process uses the data directory", path=str(directory), pid=pid
                ) from error
            raise
        return cls(directory, *locks)

    def mark_complete(self) -> None:
        """Record durably that the first start is complete: from now on, missing parts were lost. Raises OSError."""
        if not is_complete(self.path):
            replace_file(self.path / VERSION, f"{FORMAT_VERSION}\n".encode())

    def close(self) -> None:
        """Let others open the directory. The LOCK file stays: without it nobody can identify the owner of the lock.

        A fork shares the lock with its parent, and the lock lasts as long as one of them has it open. So the process that
        locked the directory unlocks it, even if others have it open. A fork only closes its own descriptors.
        """
        if not self._locks[0].closed:
            self.held.pop(str(self.path.resolve()), None)
            for lock in self._locks:
                if self._pid == os.getpid():
                    _unlock(lock)
                lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _DirectoryLock:
    """A lock on a directory itself."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.closed = False

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        os.close(self._descriptor)
        self.closed = True


def is_complete(directory: Path) -> bool:
    """Whether a store was ever completely created here. False if the directory does not exist or its first start died.

    Raises CorruptDataError, VersionTooNewError.
    """
    version = directory / VERSION
    return version.exists() and parse_version(version.read_bytes()[:40], version)


def is_backup(directory: Path) -> bool:
    """Whether the directory is a complete backup. Raises OSError."""
    manifest = directory / BACKUP_MANIFEST
    if not manifest.is_file():
        return False
    with manifest.open("rb") as file:
        return b'"penstock"' in file.read(100)


def lost_part(directory: Path, *, missing: str, found: str) -> CorruptDataError:
    """The error for a start on a used directory that has lost a part."""
    return CorruptDataError(
        "the data directory has lost a part, so no store starts on it, and nothing was changed; "
        "put the part back or mount its disk. `penstock doctor` reports what is left, "
        "`penstock rebuild` saves what tier 2 has",
        path=str(directory),
        missing=missing,
        found=found,
    )


def parse_version(text: bytes, file: Path) -> bool:
    """Whether the text of a ``VERSION`` belongs to a completely created store.

    Raises CorruptDataError, VersionTooNewError.
    """
    number, _, rest = text.decode("ascii", "replace").strip().partition(" ")
    if not number.isdecimal() or rest not in ("", _NEW):
        raise CorruptDataError("version of the data directory cannot be read", file=str(file))
    if int(number) > FORMAT_VERSION:
        raise VersionTooNewError(
            "data directory was written by a newer version",
            path=str(file.parent),
            version=int(number),
            newest_known=FORMAT_VERSION,
        )
    return rest == ""


def _unlock(lock: TextIO | _DirectoryLock) -> None:
    # Some file systems cannot lock directories: then there is nothing to unlock.
    with suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_UN)


def check_directory(directory: Path) -> None:
    """Raise what ``open`` raises for the directory's content; nothing is changed."""
    if not directory.exists():
        return
    if not directory.is_dir():
        raise InvalidArgumentError("data path is not a directory", path=str(directory))
    itself = directory.resolve()
    if itself.name == BACKUP_DATA and is_backup(itself.parent):
        raise InvalidArgumentError(
            "this directory is inside a backup, which a store would change: "
            "use penstock restore BACKUP --data NEW to create a store from it",
            backup=str(itself.parent),
        )
    version = directory / VERSION
    if not version.exists():
        foreign = sorted(entry.name for entry in directory.iterdir() if entry.name not in _HARMLESS)
        ours = [name for name in _OURS if (directory / name).exists()]
        if ours:
            raise CorruptDataError(
                "the data directory has lost its file VERSION, so no store can start on it; nothing was changed; "
                f"put the file back from a copy, or write one that holds {FORMAT_VERSION}",
                path=str(directory),
                missing=VERSION,
                found=", ".join(ours),
            )
        if foreign:
            raise InvalidArgumentError(
                "the directory holds files of another program; name an empty or a new one",
                path=str(directory),
                found=foreign[0],
            )
        return
    parse_version(version.read_bytes()[:40], version)


def _lock_itself(directory: Path, how: int) -> _DirectoryLock:
    """Lock the directory too: people delete lock files that they think are stale, and a deleted file locks nobody out.

    Raises DirectoryInUseError. On a file system that cannot lock directories, only the file is locked.
    """
    lock = _DirectoryLock(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise DirectoryInUseError(
            "another process uses the data directory, and its LOCK file was removed",
            path=str(directory),
            pid="unknown",
        ) from error
    except OSError:
        return lock
    return lock


def _take_lock(directory: Path) -> TextIO:
    path = directory / _LOCK
    path.touch(mode=0o600)
    lock = path.open("r+", encoding="ascii")
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            ours = DataDirectory.held.get(str(directory.resolve())) == os.getpid()
            raise DirectoryInUseError(
                "this process has the data directory open already"
                if ours
                else "another process uses the data directory; stop it, or connect to it if it is a server",
                path=str(directory),
                pid=lock.read(20).strip() or "unknown",
            ) from error
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
    except BaseException:
        lock.close()
        raise
    return lock
