"""What an undo of truncations restored, and what it could not."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from penstock.model.answers.plan import Offsets

__all__ = ["LostTruncation", "RestoredSubscriber", "UndoneTruncations"]


class RestoredSubscriber(Struct, frozen=True, kw_only=True):
    """A subscriber that rules had moved or dropped.

    ``restored``: whether it was moved back; else ``reason`` says why not. ``at``: its cut now; ``wanted``: its cut before;
    None: it has published none.
    """

    name: str
    restored: bool
    reason: str
    at: Offsets | None
    wanted: Offsets | None


class LostTruncation(Struct, frozen=True, kw_only=True):
    """A truncation whose bytes are lost. ``at_ms``: milliseconds since the Unix epoch; ``rule``: ``manual``: by a call."""

    at_ms: int
    rule: str
    bytes: int


class UndoneTruncations(Struct, frozen=True, kw_only=True):
    """Truncations that were undone.

    ``head``: the head after the undo; ``head_cut``: the same as the text of a stream cut. ``truncations``, ``bytes``:
    how many were undone. ``protected_until_ms``: until then rules do not delete the restored data, wall clock.
    ``subscribers``: that rules had moved, by name. ``not_restored``: truncations in the requested time whose bytes are
    lost, oldest first.
    """

    stream: str
    head: Offsets
    head_cut: str
    truncations: int
    bytes: int
    protected_until_ms: int
    subscribers: Sequence[RestoredSubscriber]
    not_restored: Sequence[LostTruncation]
