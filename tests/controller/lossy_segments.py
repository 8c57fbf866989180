"""Segments that lose answers of the metadata table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from memory_segments import MemorySegments

from penstock.model.errors import UnavailableError
from penstock.model.ledgers import LogWipe
from penstock.ports.data.tables import TablePut


class Lossy(MemorySegments):
    """Loses the answer of one table update that ``lose`` chooses. Blanks nothing: it has no chunks and no log."""

    lose: Callable[[TablePut], bool] | None = None
    broken = False

    async def table_update(self, name: str, puts: Any) -> Any:
        versions = await super().table_update(name, puts)
        if self.lose is not None and any(isinstance(put, TablePut) and self.lose(put) for put in puts):
            self.lose = None
            raise UnavailableError("answer was lost")
        return versions

    async def event_ranges(self, name: str, offsets: Sequence[int]) -> list[tuple[int, int]]:
        return [(offset + 8, offset + 10) for offset in offsets]

    async def erase(self, name: str, ranges: Any, *, erasure: str) -> list[Any]:
        if self.broken:
            self.broken = False
            raise KeyError("unexpected")
        return []

    async def wipe_log(self) -> LogWipe:
        return LogWipe()
