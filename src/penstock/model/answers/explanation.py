"""Why the bytes of a stream are kept, or when and by which rule they were deleted. Source: docs/formats/planner.md."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType, field

from penstock.model.answers.plan import Offsets, RetentionRun
from penstock.model.retention import EffectivePolicy

__all__ = ["ExplainedRange", "Explanation", "GoneData"]


class ExplainedRange(Struct, frozen=True, kw_only=True):
    """Bytes from ``start`` to ``end`` (``from`` and ``to`` as JSON) and their one holder.

    ``kind``: a ``HolderKind``. ``name``: of the subscriber or hold; for unread ``due`` bytes, the rule; else empty. A
    cut is None if the bound is only a number of bytes. ``release_ms``: when the holder releases the first of these
    bytes through time alone, milliseconds since the Unix epoch; None: never through time alone. ``owner``,
    ``reason``: of a hold.
    """

    kind: str
    name: str
    bytes: int
    start: Offsets | None = field(name="from")
    end: Offsets | None = field(name="to")
    release_ms: int | None
    owner: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET


class GoneData(Struct, frozen=True, kw_only=True):
    """The truncation that deleted a position: when (milliseconds since the Unix epoch), by which rule (``manual``: by a
    call), how many bytes, and the head after it. All None if that is forgotten. ``certain``: False if an earlier
    truncation may have deleted the position."""

    at_ms: int | None
    rule: str | None
    bytes: int | None
    head: Offsets | None
    certain: bool


class Explanation(RetentionRun, frozen=True, kw_only=True):
    """What a cycle would do now, and what holds each byte.

    ``ranges``: from head to tail; with a position, the one that begins there. ``policy``, ``unreadable``, ``sentence``: as in
    ``RetentionPlan``. Only with a position, else UNSET: ``earliest_release_ms``, when time alone releases the data
    there, None: never; ``gone``: the truncation that deleted it if it lies before the head, else None.
    """

    policy: EffectivePolicy
    unreadable: str
    sentence: str
    ranges: Sequence[ExplainedRange]
    earliest_release_ms: int | UnsetType | None = UNSET
    gone: GoneData | UnsetType | None = UNSET
