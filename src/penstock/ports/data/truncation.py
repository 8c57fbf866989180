"""Truncation of segments, permanent or with an undo."""

from __future__ import annotations

from typing import Protocol


class Truncation(Protocol):
    """Drops the oldest bytes of segments. Bytes truncated with ``keep`` can be restored until they are released."""

    async def truncate(self, name: str, offset: int, *, keep: bool = False) -> None:
        """Drop the bytes before ``offset``. An offset at or before the start does nothing. Raises InvalidArgumentError
        beyond the length. ``keep``: the bytes are hidden from readers, but stay on disk until ``release``, and
        ``restore`` makes them readable again. Without ``keep`` everything before the new start is dropped, including
        kept bytes.
        """
        ...

    async def release(self, name: str, offset: int) -> None:
        """Free kept bytes before ``offset`` permanently. Does nothing if none are kept there. Raises
        InvalidArgumentError behind the start."""
        ...

    async def restore(self, name: str, offset: int) -> int:
        """Make kept bytes from ``offset`` on readable again. Returns the new start of the segment: ``offset``, or the
        oldest kept byte if that lies behind it."""
        ...
