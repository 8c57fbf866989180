"""The space of the file system below a data directory."""

from __future__ import annotations

from penstock.ports.data.space import DiskSpace
from penstock.ports.files import Files


class FileDisk:
    """Implements ``ports.disk.Disk``.

    ``budget_bytes`` limits all files of the store together; None: the whole disk. Files of others reduce the free
    space, but are not counted as used.
    """

    def __init__(self, files: Files, *, budget_bytes: int | None = None) -> None:
        self._files = files
        self._budget_bytes = budget_bytes

    async def space(self) -> DiskSpace:
        used_bytes = await self._files.allocated_bytes(".")
        free_bytes = await self._files.free_bytes()
        if self._budget_bytes is not None:
            free_bytes = max(0, min(free_bytes, self._budget_bytes - used_bytes))
        return DiskSpace(
            total_bytes=await self._files.total_bytes(),
            free_bytes=free_bytes,
            used_bytes=used_bytes,
            budget_bytes=self._budget_bytes,
        )
