"""Measures the disk of a store."""

from __future__ import annotations

from typing import Protocol

from penstock.ports.data.space import DiskSpace


class Disk(Protocol):
    """Measures the disk on each call."""

    async def space(self) -> DiskSpace:
        """Raises OSError."""
        ...
