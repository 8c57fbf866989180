"""Memory held for appends that are not tiered yet: when to hurry, when to refuse."""

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
