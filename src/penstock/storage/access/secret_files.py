"""Files with secrets: readable by their owner only, replaced as a whole."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.model.errors import InvalidArgumentError
from penstock.storage.machine.calls import make_directories

FOLDER = "access"
"""The folder in a data directory."""
_MODE = 0o600  # of files
MALFORMED = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading JSON raises that is no JSON, or not of the expected form."""


def read_secret(path: Path, *, max_bytes: int) -> bytes | None:
    """The contents; None if there is no such file. Raises InvalidArgumentError (others can read or change the file, or it
    is too large), OSError."""
    try:
        # A pipe of this name must not block the server.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)  # ``fdopen`` would fail for a directory and leave it open
        raise InvalidArgumentError("a file with secrets must be a regular file; move this away", path=str(path))
    with os.fdopen(descriptor, "rb") as file:
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise InvalidArgumentError(
                "a file with secrets must be readable by its owner only: chmod 600", path=str(path)
            )
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise InvalidArgumentError("the file is too large", path=str(path), limit_bytes=max_bytes)
    return data


def write_secret(path: Path, data: bytes) -> None:
    """Replace the file durably: after a crash it is the old one or the new one. Raises OSError."""
    _make_parent(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)  # of a process that died
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), _MODE)
            _give_to_owner(file.fileno(), path.parent)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from changing the file until the block ends. Blocks while another one does."""
    _make_parent(path)
    descriptor = os.open(
        path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
    )
    try:
        _give_to_owner(descriptor, path.parent)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _give_to_owner(descriptor: int, folder: Path) -> None:
    """Let a file that root writes belong to the owner of its folder: the server, which may be another user, must be able
    to read it."""
    owner, found = folder.stat(), os.fstat(descriptor)
    # A link that the owner of the folder has made to a file of root must not give that file away.
    is_ours = stat.S_ISREG(found.st_mode) and found.st_nlink == 1
    if os.geteuid() == 0 and owner.st_uid != 0 and is_ours:
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _make_parent(path: Path) -> None:
    """Make the folder, for the owner of the directory that it is in: root may write the first file of a server."""
    folder = path.parent
    if folder.exists():
        return
    missing = [step for step in (*reversed(folder.parents), folder) if not step.is_dir()]
    make_directories(folder)
    for step in missing:
        descriptor = os.open(step, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            owner = step.parent.stat()
            if os.geteuid() == 0 and owner.st_uid != 0:
                os.fchown(descriptor, owner.st_uid, owner.st_gid)
            if step == folder:
                os.fchmod(descriptor, 0o700)
        finally:
            os.close(descriptor)
