"""Truncation of segments, with and without a way back."""

from __future__ import annotations

from typing import Protocol


class Truncation(Protocol):
    """Drops the oldest bytes of segments. Bytes that were truncated with ``keep`` can come back until they are released."""

    async def truncate(self, name: str, offset: int, *, keep: bool = False) -> None:
        """Drop the bytes before ``offset``. At or before the start: nothing happens. Raises InvalidArgumentError beyond the
        length. ``keep``: they are gone for readers, but stay on disk until ``release``, and ``restore`` brings them back.
        Without ``keep`` all is dropped that lies before the new start, what was kept included.
        """
        ...

    async def release(self, name: str, offset: int) -> None:
        """Give back kept bytes before ``offset``, for good. Nothing kept there: nothing happens. Raises
        InvalidArgumentError behind the start."""
        ...

    async def restore(self, name: str, offset: int) -> int:
        """Let readers have the kept bytes from ``offset`` on again; returns where the segment starts now: at ``offset``, or
        at the oldest byte kept where that lies behind it."""
        ...
