"""The space that segments and the store take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from penstock.model.values.dataclass import dataclass
from penstock.ports.data.chunks import Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSpace:
    """The disk space of a segment, and the part that is still to be freed.

    Of ``pending_free_bytes``: ``kept_bytes`` wait for ``release``; ``leased_bytes`` for ``leases``, sorted by latest
    end first, which is ``leased_until_ms``; ``partial_bytes`` lie before the head inside the first chunk, and are too
    few to free or not a whole block. The next checkpoint frees the rest. All are bytes of events: each file also takes
    its sidecar and part of its last page. Kept bytes that are not tiered yet are in no chunk, and not counted.

    A deleted segment has an entry while its chunks are on disk, with pending bytes only.
    """

    name: str
    live_bytes: int
    tiered_bytes: int
    pending_free_bytes: int
    freed_bytes: int
    kept_bytes: int = 0
    leased_bytes: int = 0
    leased_until_ms: int | None = None
    partial_bytes: int = 0
    leases: Sequence[Lease] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpace:
    """The disk of a store. ``budget_bytes``: the store's share of it, None without limit; ``used_bytes``: the size of
    all its files; ``free_bytes``: what can still be written."""

    total_bytes: int
    free_bytes: int
    used_bytes: int
    budget_bytes: int | None = None


class Space(Protocol):
    """Disk space of segments and of the store."""

    async def spaces(self, names: Sequence[str]) -> Mapping[str, SegmentSpace]:
        """The space of each segment, including deleted ones while their chunks are on disk; missing ones are left
        out."""
        ...

    async def disk(self) -> DiskSpace:
        """The space of the disk below the store, as of now. Raises UnsupportedError if the store has none, OSError."""
        ...
