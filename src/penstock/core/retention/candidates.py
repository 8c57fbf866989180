"""The cuts that byte limits choose from: those of the retention set, and additional boundaries.

Records are ordered, and are searched; boundaries are few and unordered, and are checked one by one. A record is
preferred to an equally good boundary. Source: docs/design/0007-retention.md.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from penstock.core.cuts.order import Positions, at_or_after
from penstock.core.retention.facts import StreamCutRecord
from penstock.core.retention.outlook import Outlook

Spot = int | StreamCutRecord
"""A record by its place in the set, or a boundary. A record of a large set is made only when it is asked for."""


class ByteCuts:
    """Searches by size. Sizes count from the beginning of history."""

    __slots__ = ("_boundaries", "_outlook")

    def __init__(self, outlook: Outlook, boundaries: Sequence[StreamCutRecord]) -> None:
        self._outlook = outlook
        self._boundaries = boundaries

    def size(self, spot: Spot) -> int:
        return self._outlook.size_at(spot) if isinstance(spot, int) else spot.size_bytes

    def cut(self, spot: Spot) -> Positions:
        return self._outlook.cut_at(spot) if isinstance(spot, int) else spot.positions

    def latest(self, size: int) -> Spot | None:
        """The furthest cut with at most ``size`` bytes before it, the newest of equal records; None: no such cut."""
        place = self._outlook.until_size(size) - 1
        best: Spot | None = place if place >= 0 else None
        for item in self._boundaries:
            if item.size_bytes <= size and (best is None or item.size_bytes > self.size(best)):
                best = item
        return best

    def earliest(self, size: int) -> Spot | None:
        """The first cut with at least ``size`` bytes before it, the oldest of equal records; None: no such cut."""
        place = self._outlook.until_size(size - 1)
        best: Spot | None = place if place < len(self._outlook.records) else None
        for item in self._boundaries:
            if item.size_bytes >= size and (best is None or item.size_bytes < self.size(best)):
                best = item
        return best

    def latest_within(self, bound: Positions, records: int, size: int | None) -> Spot | None:
        """The furthest cut that is not ahead of ``bound`` at any key, from the first ``records`` records and boundaries
        of at most ``size`` bytes (None: no boundary)."""
        place = min(records, self._outlook.records_till(bound)) - 1
        best: Spot | None = place if place >= 0 else None
        for item in self._boundaries if size is not None else ():
            fits = size is not None and item.size_bytes <= size
            if fits and (best is None or item.size_bytes > self.size(best)) and self._reaches(bound, item.positions):
                best = item
        return best

    def earliest_past(self, bound: Positions, records: int, size: int | None) -> Spot | None:
        """The first cut that is not behind ``bound`` at any key, from the same cuts."""
        cut_at = self._outlook.cut_at
        place = bisect_left(range(records), True, key=lambda i: self._reaches(cut_at(i), bound))
        best: Spot | None = place if place < records else None
        for item in self._boundaries if size is not None else ():
            fits = size is not None and item.size_bytes <= size
            if fits and (best is None or item.size_bytes < self.size(best)) and self._reaches(item.positions, bound):
                best = item
        return best

    def _reaches(self, cut: Positions, other: Positions) -> bool:
        return at_or_after(self._outlook.history, cut, other)
