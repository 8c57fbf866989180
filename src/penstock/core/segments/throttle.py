"""Memory: when appends that are not tiered yet must hurry or wait, and what caches may hold of a process's budget."""

from __future__ import annotations

from penstock.model.errors import ThrottledError


def append_throttled(held_bytes: int, *, limit_bytes: int, adding_bytes: int) -> ThrottledError | None:
    """The refusal of an append that would go over the limit, or None. An idle store takes any append."""
    if held_bytes and held_bytes + adding_bytes > limit_bytes:
        return ThrottledError(
            "tier 2 does not keep up", resource="unflushed_bytes", limit=limit_bytes, held_bytes=held_bytes
        )
    return None


def tiering_is_urgent(held_bytes: int, *, limit_bytes: int) -> bool:
    """Whether to tier without waiting for full blocks: half of what may be held is used up."""
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
    """What the caches may hold from now on, given what the whole process holds, in bytes.

    Above the budget they give up what is too much, at once: of all that a process holds they alone can be dropped. Below it
    they get back half of the room at a time, so that they do not swing.

    Args:
        allowed_bytes: What they were allowed until now. ``cached_bytes``: what they hold.
        most_bytes, least_bytes: Bounds of the answer.
    """
    room = budget_bytes - resident_bytes
    if room < 0:
        return max(least_bytes, min(most_bytes, min(allowed_bytes, cached_bytes) + room))
    return max(least_bytes, min(most_bytes, max(allowed_bytes, min(cached_bytes, most_bytes)) + room // 2))
