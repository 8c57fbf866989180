"""Blocking calls on files of this machine: complete, with the errors that callers distinguish."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from penstock.model.errors import StorageFullError
from penstock.ports.files import Buffer

_IOV_MAX = 1024  # buffers of one call, the limit of Linux
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_NOT_CACHED = frozenset((errno.EAGAIN, errno.EOPNOTSUPP))
_KEEP_SIZE_AND_PUNCH = 0x01 | 0x02  # flags of fallocate, from falloc.h
_libc = ctypes.CDLL(None, use_errno=True)

_SYNCED_AS_A_WHOLE = frozenset((0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x01021994))
"""ext2 to ext4, XFS, Btrfs, F2FS, tmpfs, by the numbers that ``statfs`` has for them."""


def sync_directory(path: Path) -> None:
    """Make created, renamed and removed names in the directory durable. Blocks. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directories(path: Path) -> None:
    """Create a directory durably, with missing parent directories. Blocks. Raises OSError.

    Each name is an entry of its parent directory. Unless the parent is synced, a power loss may remove the name and its tree.
    """
    missing = [step for step in (*reversed(path.parents), path) if not step.is_dir()]
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    for step in missing:
        sync_directory(step.parent)


def replace_file(path: Path, data: bytes) -> None:
    """Write ``data`` as the whole file, atomically and durably. Blocks. Raises StorageFullError, OSError."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            write_all(descriptor, path.name, 0, [memoryview(data)])
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except OSError as error:
        raise translated(error, str(path)) from error
    sync_directory(path.parent)


def write_new(path: Path, data: bytes) -> None:
    """Write ``data`` as a new file, durably except for its name. Blocks. Raises FileExistsError, StorageFullError, OSError:
    then a part may be written."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if data:
            write_all(descriptor, path.name, 0, [memoryview(data)])
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, path: str, offset: int, views: Sequence[memoryview]) -> None:
    """Write all of the views back to back. Raises StorageFullError, OSError; then some of them may be written."""
    index = 0
    rest = list(views)
    try:
        while index < len(rest):
            written = os.pwritev(descriptor, rest[index : index + _IOV_MAX], offset)
            if written == 0:
                raise OSError(errno.EIO, "write made no progress", path)
            offset += written
            while index < len(rest) and written >= len(rest[index]):
                written -= len(rest[index])
                index += 1
            if written:
                rest[index] = rest[index][written:]
    except OSError as error:
        raise translated(error, path) from error


def write_at_once(descriptor: int, path: str, offset: int, parts: Sequence[Buffer], size_bytes: int) -> None:
    """As ``write_all``, but faster if the parts (bytes or views of bytes) are few and one call writes them all."""
    written = 0
    if len(parts) <= _IOV_MAX:
        try:
            written = os.pwritev(descriptor, parts, offset)
        except OSError as error:
            raise translated(error, path) from error
    if written < size_bytes:
        write_all(descriptor, path, offset, [memoryview(part).cast("B") for part in parts if len(part)])


def read_all(descriptor: int, offset: int, length: int) -> bytes:
    """Up to ``length`` bytes: fewer at the end of the file."""
    data = os.pread(descriptor, length, offset)
    if len(data) in (0, length):
        return data
    parts = [data]
    while data and (missing := length - sum(map(len, parts))) > 0:
        data = os.pread(descriptor, missing, offset + length - missing)
        parts.append(data)
    return b"".join(parts)


def read_into(descriptor: int, offset: int, room: memoryview, done: int) -> int:
    """Fill ``room`` from its byte ``done`` on. Returns how far it is filled: to its end, or to the end of the file."""
    while done < len(room):
        count = os.preadv(descriptor, [room[done:]], offset + done)
        if count == 0:
            break
        done += count
    return done


def read_cached_into(descriptor: int, offset: int, room: memoryview) -> int:
    """Fill ``room`` from the page cache without waiting for the disk. Returns how many bytes were filled."""
    try:
        return os.preadv(descriptor, [room], offset, os.RWF_NOWAIT)
    except OSError as error:
        if error.errno in _NOT_CACHED:
            return 0
        raise


def read_cached(descriptor: int, offset: int, length: int) -> bytes | None:
    """The bytes if all of them are in the page cache, else None: then a thread must wait for the disk."""
    buffer = bytearray(length)
    try:
        count = os.preadv(descriptor, [buffer], offset, os.RWF_NOWAIT)
    except OSError as error:
        if error.errno in _NOT_CACHED:
            return None
        raise
    return bytes(buffer) if count == length else None


def punch_hole(descriptor: int, path: str, offset: int, length: int) -> None:
    """Free the bytes on disk, if the file system can. Blocks. Raises StorageFullError, OSError."""
    if _libc.fallocate64(descriptor, _KEEP_SIZE_AND_PUNCH, ctypes.c_int64(offset), ctypes.c_int64(length)) == 0:
        return
    number = ctypes.get_errno()
    if number not in (errno.EOPNOTSUPP, errno.ENOSYS):
        raise translated(OSError(number, os.strerror(number), path), path)


def allocate(descriptor: int, path: str, size_bytes: int) -> bool:
    """Give the first ``size_bytes`` of a file their disk space; a shorter file gets that length. What was not written
    reads as zeros. Blocks. False if the file system cannot do this. Raises StorageFullError, OSError."""
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            return False
        raise translated(error, path) from error
    return True


def may_be_synced_as_a_whole(descriptor: int) -> bool:
    """Whether ``sync_file_system`` on this file system does all that a sync of each file would, and reports lost
    writes.

    Not on FUSE, which does not pass the call to its server, nor on overlayfs, which hides errors of the layer below.
    Untested file systems count as unsafe.
    """
    found = (ctypes.c_ulong * 64)()
    if not hasattr(_libc, "fstatfs") or _libc.fstatfs(descriptor, found) != 0:
        return False
    return (found[0] & 0xFFFFFFFF) in _SYNCED_AS_A_WHOLE


def sync_file_system(descriptor: int) -> bool:
    """Make everything written to the file system of an open file durable, by any process. False if that is unsupported.

    Blocks. Raises OSError if any write was lost since the descriptor was opened.
    """
    if not hasattr(_libc, "syncfs"):
        return False
    if _libc.syncfs(descriptor) == 0:
        return True
    number = ctypes.get_errno()
    if number == errno.ENOSYS:
        return False
    raise OSError(number, os.strerror(number))


def allocated_below(directory: Path) -> int:
    """Bytes of disk that a directory and all below it take, as ``du`` counts them. What is deleted meanwhile is
    skipped."""
    total = 0
    pending = [directory]
    with suppress(FileNotFoundError):
        total += directory.stat().st_blocks * 512
    while pending:
        try:
            entries = list(os.scandir(pending.pop()))
        except FileNotFoundError:
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                pending.append(Path(entry.path))
            try:
                total += entry.stat(follow_symlinks=False).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def translated(error: OSError, path: str) -> OSError | StorageFullError:
    """The error to raise: StorageFullError if the disk has no room."""
    if error.errno in _FULL:
        return StorageFullError("disk is full", path=path, errno=errno.errorcode[error.errno])
    return error
