"""The chunks of segments in tier 2, and leases that keep them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from penstock.model.values.dataclass import dataclass

HOLDER_MAX_BYTES = 512
"""Of the words that say who took a lease."""


LEASE_PARTS_MAX = 100_000
"""The maximum number of tasks under one lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkBlock:
    """A run of whole appends inside a chunk: its offset in the segment, its checksum, and its number of events.

    ``first_ms`` and ``last_ms``: the store's wall clock, in milliseconds since the Unix epoch, when the segment got the
    block's first and last append; None if an earlier version wrote it.
    """

    start_offset: int
    end_offset: int
    crc32c: int
    event_count: int
    first_ms: int | None = None
    last_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRange:
    """A chunk that holds bytes of a segment. ``location`` is a path another process can read, or None.

    The byte of segment offset ``o`` lies at ``o - start_offset`` in the chunk. ``blocks`` begin at event boundaries, except
    for blocks in which no event begins (``event_count`` 0): they continue a large event.
    """

    name: str
    location: str | None
    start_offset: int
    end_offset: int
    blocks: Sequence[ChunkBlock]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A lease on a segment: its end, by the store's wall clock in milliseconds, and the holder's own description, which
    may be empty."""

    id: UUID
    until_ms: int
    holder: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leased:
    """The segments whose chunks a lease holds, and those for which the store had no lease left. Each is in the order of
    the call. Segments that do not exist are in neither. ``renewed``: the store had the lease already."""

    granted: Sequence[str] = ()
    refused: Sequence[str] = ()
    renewed: bool = False


class LeasedChunks(Protocol):
    """Locations of segments' bytes in tier 2, for callers that read them directly."""

    async def chunk_ranges(self, name: str, start: int, end: int) -> Sequence[ChunkRange]:
        """The tiered part of ``start <= offset < end``, in order; bytes behind the last range are not tiered yet."""
        ...

    async def lease_chunks(self, names: Sequence[str], lease: UUID, *, until_ms: int, holder: str = "") -> Leased:
        """Keep the chunks of these segments on disk until that wall time, despite truncation or deletion. A repeated
        call extends the lease.

        ``holder``: who takes the lease, shown in reports of what holds space; if empty, the earlier one stays. A lease
        counts once, however many segments it holds. A store with too many leases refuses segments in its answer and
        grants the others. Raises InvalidArgumentError (longer than a store allows, or ``HOLDER_MAX_BYTES``). After an error
        a new lease holds nothing, except in a worker that has died meanwhile, until its end time; a lease from before
        may hold more. Cancelled: any of the segments may be leased; ``release_lease`` ends that."""
        ...

    async def release_lease(self, lease: UUID) -> None: ...

    async def finish_lease_part(self, lease: UUID, part: int, parts: int) -> None:
        """Record that task number ``part``, from 0, of the ``parts`` tasks under the lease is done. After the last one,
        the lease is released. Repeating a task changes nothing. A restart of the store forgets the count, so the lease
        may last until its end time. Raises InvalidArgumentError (not ``0 <= part < parts <= LEASE_PARTS_MAX``)."""
        ...
