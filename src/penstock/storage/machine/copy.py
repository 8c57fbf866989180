"""Copies of files, with their checksums."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator
from io import RawIOBase
from pathlib import Path

from penstock.model.values.dataclass import dataclass
from penstock.storage.machine.calls import make_directories, sync_directory, translated

_STEP_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """A file that was copied: its size in bytes, and the SHA-256 of its content in hex."""

    size_bytes: int
    sha256: str


def copy_file(source: Path, target: Path, *, upto_bytes: int | None = None, size_bytes: int = 0) -> Copied:
    """Copy the file as it is now. Replaces ``target``, creates its directory. Blocks. The content is durable, not the name.

    ``upto_bytes``: copy only this many bytes, then zeros up to ``size_bytes``.
    Runs of zeros become holes, so the freed head of a chunk takes no space in the copy either.
    Raises FileNotFoundError, StorageFullError, OSError.
    """
    with source.open("rb", buffering=0) as reading:
        return write_pieces(_pieces(reading, upto_bytes, size_bytes), target)


def _pieces(reading: RawIOBase, upto_bytes: int | None, size_bytes: int) -> Iterator[bytes]:
    left = sys.maxsize if upto_bytes is None else upto_bytes
    done = 0
    while left > 0 and (piece := reading.read(min(_STEP_BYTES, left))):
        yield piece
        left -= len(piece)
        done += len(piece)
    while done < size_bytes:
        zeros = bytes(min(_STEP_BYTES, size_bytes - done))
        yield zeros
        done += len(zeros)


def write_pieces(pieces: Iterable[bytes], target: Path) -> Copied:
    """The same from pieces of bytes; also raises what ``pieces`` raises."""
    make_directories(target.parent)
    digest, size = hashlib.sha256(), 0
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb", buffering=0) as writing:
            for piece in pieces:
                digest.update(piece)
                if piece.count(0) == len(piece):
                    writing.seek(len(piece), os.SEEK_CUR)
                else:
                    _write(writing.fileno(), piece)
                size += len(piece)
            writing.truncate(size)
            os.fsync(writing.fileno())
    except OSError as error:
        raise translated(error, str(target)) from error
    return Copied(size_bytes=size, sha256=digest.hexdigest())


def checksum_file(path: Path) -> Copied:
    """Size and checksum of a file. Blocks. Raises FileNotFoundError, OSError."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as reading:
        while step := reading.read(_STEP_BYTES):
            digest.update(step)
            size += len(step)
    return Copied(size_bytes=size, sha256=digest.hexdigest())


def sync_tree(root: Path) -> None:
    """Make all names below ``root`` durable. Blocks. Raises OSError."""
    for directory in sorted((path for path in root.rglob("*") if path.is_dir()), reverse=True):
        sync_directory(directory)
    sync_directory(root)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
