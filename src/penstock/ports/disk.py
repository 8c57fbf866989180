"""The disk that a store lives on, measured."""

from __future__ import annotations

from typing import Protocol

from penstock.ports.data.space import DiskSpace


class Disk(Protocol):
    """Measures as of now: each answer is fresh."""

    async def space(self) -> DiskSpace:
        """Raises OSError."""
        ...
