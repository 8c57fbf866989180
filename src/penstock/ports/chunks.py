"""Tier 2: named objects of raw segment bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.ports.files import Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkWrite:
    """One object's part of ``ChunkStorage.append_together``: what ``append`` takes."""

    name: str
    offset: int
    parts: Sequence[Buffer]


class ChunkReads(Protocol):
    """Reads objects, and finds them."""

    async def read(self, name: str, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes; shorter only at the end. Raises SegmentNotFoundError where it is gone."""
        ...

    async def read_into(self, name: str, offset: int, room: memoryview, *, ahead: int = 0) -> int:
        """As ``read``, into ``room``; returns how many bytes came. See ``ports.files.File.read_into``."""
        ...

    async def list(self) -> Sequence[str]:
        """All names, sorted."""
        ...

    def location(self, name: str) -> str | None:
        """Where another process may read the object (a path or a URL), or None where it must ask the store."""
        ...

    async def allocated_bytes(self) -> int:
        """Space that all objects take, as ``du`` counts."""
        ...


class ChunkAppends(Protocol):
    """Writes objects at their end."""

    @property
    def mutable(self) -> bool:
        """Whether objects grow after a ``sync`` and lose their head before they are deleted.

        Where not, an object is written once: after a ``sync`` it takes nothing at its end (UnsupportedError), after a failed
        one nothing at all (OSError); ``free_head`` does nothing; and each object costs requests: few large ones are better.
        """
        ...

    async def append(self, name: str, offset: int, parts: Sequence[Buffer]) -> None:
        """Write the parts at ``offset``, creating the object where ``offset`` is 0. Not durable before ``sync``.

        ``offset`` is what the caller knows to be durable: bytes beyond it, left by a failed attempt, are overwritten.
        Raises: StorageFullError, SegmentNotFoundError (``offset`` > 0 and no such object), OSError; UnsupportedError (see
        ``mutable``).
        """
        ...

    async def sync(self, name: str) -> None:
        """Make the object durable up to its end, its name included."""
        ...

    async def append_together(self, writes: Sequence[ChunkWrite]) -> Sequence[Exception | None]:
        """``append`` and ``sync`` each of several objects, no name twice, where that costs less than one by one.

        Tells of each what made it fail, which is what the two raise, or None: it is durable. One's failure is not another's.
        Cancelled: what was begun goes on to its end, and later calls on these objects wait for that.
        """
        ...


class ChunkRemoval(Protocol):
    """Gives space back, and destroys what objects hold."""

    async def free_head(self, name: str, upto: int) -> None:
        """Give the space of the bytes before ``upto`` back, as far as the backend can. They are never read again."""
        ...

    async def wipe(self, name: str) -> None:
        """Overwrite all bytes of the object, durably, as far as the backend can: it is about to be deleted, and what it held
        must not be left behind. No error where it is gone. An object that never changes stays as it is."""
        ...

    async def trim(self, name: str, length: int) -> None:
        """Overwrite what lies behind ``length``, where a write that failed or that a crash took back may have left something,
        and cut it off, durably. Nothing where there is nothing, the object is gone, or it was written whole."""
        ...

    async def delete(self, name: str) -> None:
        """Remove the object; no error where it is gone. A power loss may bring it back: see ``sync_deletes``."""
        ...

    async def sync_deletes(self, directory: str) -> None:
        """Return once objects that were deleted stay gone, whoever deleted them: those whose names begin with ``directory``
        and a slash. No error where there were none."""
        ...


class ChunkStorage(ChunkReads, ChunkAppends, ChunkRemoval, Protocol):
    """Objects that grow at their end and lose their beginning, and are otherwise immutable.

    Names are made by us and hold the owner's epoch, so that two owners never write the same object.
    """

    async def close(self) -> None: ...
