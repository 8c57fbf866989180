"""Memory limits: when untiered appends are tiered early or refused, and how much memory the caches may use."""

from __future__ import annotations

from penstock.model.errors import ThrottledError


def append_throttled(held_bytes: int, *, limit_bytes: int, adding_bytes: int) -> ThrottledError | None:
    """The error for an append that would exceed the limit, or None. No append counts for more than half of the limit.

    So an append waits only while tiering is urgent. A large one would otherwise wait for the last held byte, which
    nothing tiers before it is due by its age, and forever beside small appends that keep coming.
    """
    if held_bytes + min(adding_bytes, limit_bytes // 2) > limit_bytes:
        return ThrottledError(
            "tier 2 does not keep up", resource="unflushed_bytes", limit=limit_bytes, held_bytes=held_bytes
        )
    return None


def tiering_is_urgent(held_bytes: int, *, limit_bytes: int) -> bool:
    """Whether to tier without waiting for full blocks, because half of the limit is used."""
    return held_bytes * 2 >= limit_bytes


def cache_allowance(
    resident_bytes: int,
    *,
    budget_bytes: int,
    allowed_bytes: int,
    cached_bytes: int,
    most_bytes: int,
    least_bytes: int,
) -> int:
    """The number of bytes that the caches may use from now on, given the memory of the whole process.

    Above the budget the caches free the excess at once, because nothing else in the process can be dropped. Below it
    they regain half of the free room at a time, so that their size does not oscillate.

    Args:
        allowed_bytes: What they were allowed until now. ``cached_bytes``: what they hold.
        most_bytes, least_bytes: Bounds of the answer.
    """
    room = budget_bytes - resident_bytes
    if room < 0:
        return max(least_bytes, min(most_bytes, min(allowed_bytes, cached_bytes) + room))
    return max(least_bytes, min(most_bytes, max(allowed_bytes, min(cached_bytes, most_bytes)) + room // 2))
