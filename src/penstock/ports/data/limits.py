"""Limits on the growth of streams, and which segments have grown."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


class LimitAction(enum.Enum):
    """What an append beyond a limit meets: QuotaHeldError (try again), QuotaExceededError, or nothing (``NOTIFY``)."""

    HOLD = "hold"
    REJECT = "reject"
    NOTIFY = "notify"


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendLimit:
    """How long the segments of one stream may grow together.

    ``total_bytes`` bounds the sum of the lengths of ``segments`` (truncated bytes included), ``total_events`` that of their
    event counts; None: no bound. An append that would pass a bound is refused, whole; transactions count once merged, and
    take no appends while the stream is at a bound. ``action``: what an append meets that would pass ``total_bytes``, and
    ``total_events`` too where ``events_action`` is None. ``reason``: fields of the error. A limit without bounds lifts it.

    Segments of the stream that are created after count as well, also for later limits that do not name them. One that is
    deleted counts on with the length it had, until a limit does not name it.
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
    """Segments that have grown or were sealed since a mark, those of transactions and transient ones left out: their merge
    is growth of the target. ``complete=False``: the mark was too old, look at all."""

    mark: int
    names: Sequence[str]
    complete: bool


class Limits(Protocol):
    """What the retention job sets, and what it is woken by. Each of the waiting calls has one caller."""

    async def limit_appends(self, limits: Sequence[AppendLimit]) -> None:
        """Replace the limits of the named streams. In force for every append that is queued after; forgotten at a restart
        of the store. Loads the segments that are not counted yet."""
        ...

    async def limits_reached(self) -> Sequence[str]:
        """Wait until appends have met a limit, of whatever action; returns the streams, each once per limit set. A
        ``NOTIFY`` that the stream is past when it is set counts as met. One caller."""
        ...

    async def changed_segments(self, after: int) -> SegmentChanges:
        """What has grown or was sealed since ``after`` (0, or the last mark; that one is forgotten then). One caller."""
        ...
