"""Limits on the growth of streams, and which segments have grown."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Protocol, runtime_checkable

from penstock.model.values.dataclass import dataclass


class LimitAction(enum.Enum):
    """The result of an append beyond a limit: QuotaHeldError (try again), QuotaExceededError, or success
    (``NOTIFY``)."""

    HOLD = "hold"
    REJECT = "reject"
    NOTIFY = "notify"


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendLimit:
    """A limit on the total size of one stream's segments.

    ``total_bytes`` bounds the sum of the lengths of ``segments`` (truncated bytes included), ``total_events`` that of their
    event counts; None: no bound. An append that would exceed a bound is refused as a whole. Transactions count once
    merged, and take no appends while the stream is at a bound. ``action`` applies to appends beyond ``total_bytes``,
    and also beyond ``total_events`` if ``events_action`` is None. ``reason``: fields of the error. A limit without
    bounds lifts it.

    Segments of the stream that are created later count as well, also for later limits that do not name them. A deleted
    segment keeps counting with its last length until a limit does not name it.
    """

    stream: str
    segments: Sequence[str]
    total_bytes: int | None = None
    total_events: int | None = None
    quota_bytes: int | None = None
    quota_events: int | None = None
    action: LimitAction = LimitAction.HOLD
    events_action: LimitAction | None = None
    reason: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentChanges:
    """Segments that have grown or were sealed since a mark, without transaction and transient segments: their merge
    counts as growth of the target. ``complete=False``: the mark was too old, so check all segments."""

    mark: int
    names: Sequence[str]
    complete: bool


class Limits(Protocol):
    """Limits that the retention job sets, and calls that wake it. Each waiting call has one caller."""

    async def limit_appends(self, limits: Sequence[AppendLimit]) -> None:
        """Replace the limits of the named streams. In force for every append queued later; forgotten when the store
        restarts. Loads the segments that are not counted yet."""
        ...

    async def limits_reached(self) -> Sequence[str]:
        """Wait until appends reach a limit with any action; returns the streams, each once per limit set. A ``NOTIFY``
        limit that is already exceeded when it is set counts as reached. One caller."""
        ...

    async def changed_segments(self, after: int) -> SegmentChanges:
        """Segments that have grown or were sealed since ``after`` (0, or the last mark, which is then discarded). One
        caller."""
        ...


@runtime_checkable
class LimitUse(Protocol):
    """A store that can share a limit with others."""

    def limit_used(self, stream: str) -> tuple[int, int]:
        """Bytes and events of the segments of the stream here, queued appends included; zeros if it has no limit."""
        ...
