"""The space that segments and the store take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.ports.data.chunks import Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSpace:
    """What a segment takes on disk, and what is still to be given back.

    Of ``pending_free_bytes``: ``kept_bytes`` wait for ``release``; ``leased_bytes`` for ``leases``, the last of which comes
    first and ends at ``leased_until_ms``; ``partial_bytes`` lie before the head inside the first chunk and are too few, or no
    whole block.
    The rest goes with the next checkpoint. All are bytes of events: of each file, its sidecar and a part of its last page
    come to that. Kept bytes that are not tiered yet are on no chunk, and not told of.

    A segment that was deleted has one as long as chunks of it are on disk, with nothing but what is pending.
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
    """The disk that a store lives on. ``budget_bytes``: what the store may take of it, None without limit;
    ``used_bytes``: what all its files take; ``free_bytes``: what may still be written."""

    total_bytes: int
    free_bytes: int
    used_bytes: int
    budget_bytes: int | None = None


class Space(Protocol):
    """What segments take on disk, and what the disk has."""

    async def spaces(self, names: Sequence[str]) -> Mapping[str, SegmentSpace]:
        """What each segment takes, deleted ones included while chunks of them are on disk; absent ones are left out."""
        ...

    async def disk(self) -> DiskSpace:
        """The space of the disk below the store, as of now. Raises UnsupportedError where it knows of none, OSError."""
        ...
