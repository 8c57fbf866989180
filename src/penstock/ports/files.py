"""Files of one data directory. One await per I/O primitive, so that simulation can crash between any two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from penstock.model.values.dataclass import dataclass

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
        """Make all earlier writes durable, including the size. After an ``OSError`` the file must not be trusted or
        written again: the kernel may have silently dropped the pages."""
        ...

    async def read_at(self, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes; shorter only at the end of the file."""
        ...

    async def read_into(self, offset: int, room: memoryview, *, ahead: int = 0) -> int:
        """Read into ``room`` and return how many bytes were read; fewer than fit only at the end of the file.

        The next ``ahead`` bytes are likely to be needed soon: a real disk may start to fetch them. Cancelled: ``room``
        may still be written for a while, and must not be reused.
        """
        ...

    async def size(self) -> int: ...

    async def resize(self, length: int) -> None:
        """Truncate, or extend with zeros. Durable after ``sync``."""
        ...

    async def punch(self, start: int, end: int) -> None:
        """Free the disk space of the whole blocks inside ``start <= offset < end``; those bytes then read as zeros.
        Does nothing if the file system cannot do this."""
        ...

    async def close(self) -> None: ...


class InPlaceFile(File, Protocol):
    """A file that can also be used without an await, when the event loop may wait for the disk."""

    def read_in_place(self, offset: int, length: int, *, wait: bool = False) -> bytes | None:
        """As ``read_at``, or None if it would wait for the disk or for other calls. ``wait``: wait for the disk, and never
        return None. Only for a few bytes whose answer must be known now."""
        ...

    def takes_in_place(self, size_bytes: int) -> bool:
        """Whether ``commit_in_place`` of this many bytes is likely to work: it may still return False."""
        ...

    def commit_in_place(self, offset: int, parts: Sequence[Buffer]) -> bool:
        """As ``write_at`` and then ``sync``. False: it would block the event loop for too long; nothing was done."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWrite:
    """One file of ``BatchFiles.write_together``."""

    path: str
    offset: int
    parts: Sequence[Buffer]


class Files(Protocol):
    """A directory tree that we own. Paths are relative, with ``/``, and consist of digits, letters, ``.``, ``-``,
    ``_``. ``"."`` is the tree's root.

    A created, renamed or unlinked name is durable only after ``sync_dir`` of its directory.
    """

    async def open(self, path: str, *, create: bool = False, direct: bool = False) -> File:
        """Open for reading and writing. Raises FileNotFoundError unless ``create``.

        ``direct`` requests large writes past the cache of the operating system, if supported: for files that grow and
        are rarely read soon. It changes no guarantee.
        """
        ...

    async def exists(self, path: str) -> bool: ...

    async def list(self, directory: str) -> Sequence[str]:
        """Names in the directory, sorted; empty if it does not exist."""
        ...

    async def make_dir(self, directory: str) -> None:
        """Create with parents; no error if it exists."""
        ...

    async def rename(self, source: str, target: str) -> None:
        """Atomically, replacing ``target``."""
        ...

    async def unlink(self, path: str) -> None:
        """Remove a file. No error if it is missing."""
        ...

    async def sync_dir(self, directory: str) -> None: ...

    async def allocated_bytes(self, directory: str) -> int:
        """Disk space of all files below, as ``du`` counts."""
        ...

    async def free_bytes(self) -> int:
        """Bytes that can still be written to the underlying disk."""
        ...

    async def total_bytes(self) -> int:
        """The total size of the underlying disk."""
        ...

    def location(self, path: str) -> str | None:
        """The path by which another process of this host may read the file, or None if there is none."""
        ...


class BatchFiles(Files, Protocol):
    """Files that can also be written in batches, with one wait for the disk."""

    async def write_together(self, writes: Sequence[FileWrite]) -> Sequence[Exception | None]:
        """Write the parts of each file at its offset, truncate the file behind them, and make its content durable, but
        not its name. A file is created if its offset is 0. Paths are distinct, and not open elsewhere.

        Returns the failure of each, or None: FileNotFoundError, CorruptDataError (it ends before ``offset``, and
        nothing was written), and what ``File.write_at`` and ``File.sync`` raise.
        """
        ...
