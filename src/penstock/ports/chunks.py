"""Tier 2: named objects of raw segment bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.model.values.dataclass import dataclass
from penstock.ports.files import Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkWrite:
    """One object of ``ChunkStorage.append_together``: the arguments of ``append``."""

    name: str
    offset: int
    parts: Sequence[Buffer]


class ChunkReads(Protocol):
    """Reads objects, and finds them."""

    async def read(self, name: str, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes; shorter only at the end. Raises SegmentNotFoundError if it does not exist."""
        ...

    async def read_into(self, name: str, offset: int, room: memoryview, *, ahead: int = 0) -> int:
        """As ``read``, into ``room``; returns how many bytes were read. See ``ports.files.File.read_into``."""
        ...

    async def list(self) -> Sequence[str]:
        """All names, sorted."""
        ...

    def location(self, name: str) -> str | None:
        """Where another process may read the object (a path or a URL), or None if it must read through the store."""
        ...

    async def allocated_bytes(self) -> int:
        """Disk space of all objects, as ``du`` counts."""
        ...


class ChunkAppends(Protocol):
    """Writes objects at their end."""

    @property
    def mutable(self) -> bool:
        """Whether objects grow after a ``sync`` and lose their head before they are deleted.

        If False, an object is written once: after a ``sync`` it takes no more appends (UnsupportedError), after a
        failed one nothing at all (OSError). ``free_head`` does nothing. Each object costs requests, so few large ones
        are better.
        """
        ...

    async def append(self, name: str, offset: int, parts: Sequence[Buffer]) -> None:
        """Write the parts at ``offset``, creating the object if ``offset`` is 0. Not durable before ``sync``.

        ``offset`` is the durable length that the caller knows: bytes beyond it, left by a failed attempt, are
        overwritten.
        Raises: StorageFullError, SegmentNotFoundError (``offset`` > 0 and no such object), OSError; UnsupportedError (see
        ``mutable``).
        """
        ...

    async def sync(self, name: str) -> None:
        """Make the object durable up to its end, its name included."""
        ...

    async def append_together(self, writes: Sequence[ChunkWrite]) -> Sequence[Exception | None]:
        """``append`` and ``sync`` several objects, each name once. Cheaper than one by one if the storage allows it.

        Returns for each object the error that ``append`` or ``sync`` would raise, or None: it is durable. Failures are
        independent. Cancelled: writes that have begun run to their end, and later calls on these objects wait for them.
        """
        ...


class ChunkRemoval(Protocol):
    """Frees space, and destroys the content of objects."""

    async def free_head(self, name: str, upto: int) -> None:
        """Free the space of the bytes before ``upto``, as far as the backend can. They are never read again."""
        ...

    async def wipe(self, name: str) -> None:
        """Overwrite all bytes of the object, durably, as far as the backend can: it is about to be deleted, and its
        content must not remain. No error if it does not exist. Immutable objects stay unchanged."""
        ...

    async def trim(self, name: str, length: int) -> None:
        """Overwrite and cut off, durably, the bytes behind ``length``, which a failed write or one undone by a crash
        may have left. Does nothing if there are none, the object does not exist, or it was written whole."""
        ...

    async def delete(self, name: str) -> None:
        """Remove the object; no error if it does not exist. A power loss may restore it: see ``sync_deletes``."""
        ...

    async def sync_deletes(self, directory: str) -> None:
        """Return once all deletions of objects whose names begin with ``directory`` and a slash are durable, also those
        of other callers. No error if there were none."""
        ...


class ChunkStorage(ChunkReads, ChunkAppends, ChunkRemoval, Protocol):
    """Objects that are appended to and truncated at the head, and are otherwise immutable.

    We make the names, and they contain the owner's epoch, so that two owners never write the same object.
    """

    async def close(self) -> None: ...
