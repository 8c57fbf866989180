"""Limits of a log whose entries are objects."""

from __future__ import annotations

from penstock.codec.bookie import ENTRY_MAX_BYTES
from penstock.model.values.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectLogLimits:
    """Sizes in bytes, times in seconds.

    An object is begun when ``object_bytes`` are queued, or at once as long as small ones average at most one for each
    ``interval_s``; ``burst`` of them may be ahead of that. Fewer than ``writes`` are under way. So small appends cost at most
    345,600 writes a day, for which S3 charges 1.73 dollars, and an append to a store that rests waits for one write.
    ``retry_s``: first and longest pause between attempts. ``reads``: objects that are read at the same time.
    """

    object_bytes: int = 4 << 20
    interval_s: float = 0.25
    burst: int = 40
    writes: int = 4
    retry_s: tuple[float, float] = (0.1, 5.0)
    entry_max_bytes: int = ENTRY_MAX_BYTES
    reads: int = 8
