"""The size of a stream's files, what was freed, and what is still to be freed. Source: docs/formats/planner.md."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from msgspec import Struct

__all__ = ["PendingBytes", "PendingLease", "PendingReason", "ReclaimReport"]


class PendingReason(enum.Enum):
    """Why bytes that nobody can read are still on disk."""

    GRACE = "grace"
    HOLD = "hold"
    LEASE = "lease"
    BLOCK = "block"
    CHECKPOINT = "checkpoint"
    DELETED = "deleted"


class PendingLease(Struct, frozen=True, kw_only=True):
    """A lease on bytes: its holder's own description, and its end, milliseconds since the Unix epoch."""

    id: str
    holder: str = ""
    until_ms: int


class PendingBytes(Struct, frozen=True, kw_only=True):
    """Bytes that are still to be freed.

    ``until_ms``: not before then, milliseconds since the Unix epoch; None: not known, or as soon as possible. ``name``: of
    the hold, else empty. ``leases``: those that keep the bytes, the one that ends last first.
    """

    bytes: int
    why: PendingReason
    until_ms: int | None = None
    name: str = ""
    leases: Sequence[PendingLease] = ()


class ReclaimReport(Struct, frozen=True, kw_only=True):
    """The account of a stream's files in bytes; ``disk_bytes`` = ``tiered_bytes`` + ``pending_bytes``.

    ``at_ms``: now by the retention clock. ``live_bytes``: what readers can read, in files or not yet; ``tiered_bytes``:
    the part of it in files. ``freed_bytes``: freed since the stream was created. ``pending``: adds up to
    ``pending_bytes``, the earliest ``until_ms`` first.
    """

    version: int
    stream: str
    at_ms: int
    disk_bytes: int
    live_bytes: int
    tiered_bytes: int
    freed_bytes: int
    pending_bytes: int
    pending: Sequence[PendingBytes]
