"""Files of one data directory. One await per I/O primitive, so that simulation can crash between any two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
"""What writers take. The callee must be done with it when the call returns."""


class File(Protocol):
    """One open file. Calls on one file never overlap: the caller awaits each before the next."""

    async def write_at(self, offset: int, parts: Sequence[Buffer]) -> None:
        """Write the parts back to back at ``offset``; all of them, or raise.

        Readable at once by this process; durable only after ``sync``. After an error any prefix may have been written.
        Raises: StorageFullError (no space or quota), OSError (anything else).
        """
        ...

    async def sync(self) -> None:
        """Make all earlier writes durable, the size included. After an ``OSError`` the file must not be trusted or
        written again: the kernel may have dropped the pages and forgotten."""
        ...

    async def read_at(self, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes; shorter only at the end of the file."""
        ...

    async def read_into(self, offset: int, room: memoryview, *, ahead: int = 0) -> int:
        """Read into ``room`` and return how many bytes came; fewer than fit only at the end of the file.

        The next ``ahead`` bytes are likely to be wanted soon: a real disk may begin to fetch them. Cancelled: ``room`` may
        still be written to for a while, and must not be used again by anyone.
        """
        ...

    async def size(self) -> int: ...

    async def resize(self, length: int) -> None:
        """Cut off or extend by zeros. Durable after ``sync``."""
        ...

    async def punch(self, start: int, end: int) -> None:
        """Give the space of ``start <= offset < end`` back to the disk, as far as whole blocks lie inside; those bytes
        then read as zeros. Where the file system cannot, nothing happens."""
        ...

    async def close(self) -> None: ...


class InPlaceFile(File, Protocol):
    """A file that can also be used without an await, where the event loop may wait for the disk."""

    def read_in_place(self, offset: int, length: int) -> bytes | None:
        """As ``read_at``, or None where it would wait for the disk or for other calls."""
        ...

    def takes_in_place(self, size_bytes: int) -> bool:
        """Whether ``commit_in_place`` of so many bytes is worth preparing: it may still say no."""
        ...

    def commit_in_place(self, offset: int, parts: Sequence[Buffer]) -> bool:
        """As ``write_at`` and then ``sync``. False: it would keep the event loop for too long; nothing was done."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWrite:
    """One file's part of ``BatchFiles.write_together``."""

    path: str
    offset: int
    parts: Sequence[Buffer]


class Files(Protocol):
    """A directory tree of ours. Paths are relative, with ``/``, made by us of digits, letters, ``.``, ``-``, ``_``.
    ``"."`` is the tree's root.

    A created, renamed or unlinked name is durable only after ``sync_dir`` of its directory.
    """

    async def open(self, path: str, *, create: bool = False, direct: bool = False) -> File:
        """Open for reading and writing. Raises FileNotFoundError unless ``create``.

        ``direct`` asks for large writes past the cache of the operating system, where there is such a way: for files that
        grow and are rarely read soon. It changes no law.
        """
        ...

    async def exists(self, path: str) -> bool: ...

    async def list(self, directory: str) -> Sequence[str]:
        """Names in the directory, sorted; empty where it does not exist."""
        ...

    async def make_dir(self, directory: str) -> None:
        """Create with parents; no error where it exists."""
        ...

    async def rename(self, source: str, target: str) -> None:
        """Atomically, replacing ``target``."""
        ...

    async def unlink(self, path: str) -> None:
        """Remove a file. No error where it is missing."""
        ...

    async def sync_dir(self, directory: str) -> None: ...

    async def allocated_bytes(self, directory: str) -> int:
        """Disk space of all files below, as ``du`` counts."""
        ...

    async def free_bytes(self) -> int:
        """What may still be written to the disk below."""
        ...

    async def total_bytes(self) -> int:
        """The size of the disk below, whoever uses it."""
        ...

    def location(self, path: str) -> str | None:
        """The path by which another process of this host may read the file, or None where there is none."""
        ...


class BatchFiles(Files, Protocol):
    """Files that can also be written many at a time, with one wait for the disk. Others are written one by one."""

    async def write_together(self, writes: Sequence[FileWrite]) -> Sequence[Exception | None]:
        """Write the parts of each at its offset, cut the file off behind them, and make it durable, its name aside. A file is
        created where its offset is 0. No path comes twice, and none is open elsewhere.

        Tells of each what made it fail, or None: FileNotFoundError, CorruptDataError (it ends before ``offset``, and nothing
        was written), and what ``File.write_at`` and ``File.sync`` raise.
        """
        ...
