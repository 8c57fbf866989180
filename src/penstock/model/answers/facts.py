"""The planner's input for a stream: a line of docs/formats/planner.md, which ``penstock retention plan --facts``
reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from penstock.model.answers.plan import CutRecord, Offsets

__all__ = ["FactsHistory", "FactsHold", "FactsSegment", "FactsSubscriber", "StreamFacts"]


class FactsSegment(Struct, frozen=True, kw_only=True):
    """A segment, as ``number#epoch``, and its keys: ``low <= key < high``, in [0, 1)."""

    segment: str
    low: float
    high: float


class FactsHistory(Struct, frozen=True, kw_only=True):
    """The stream: the segments of each epoch from the first on, and the final lengths of sealed segments in bytes."""

    scope: str
    name: str
    epochs: Sequence[Sequence[FactsSegment]]
    sealed: Offsets


class FactsSubscriber(Struct, frozen=True, kw_only=True):
    """A subscriber. ``cut``: what it has acknowledged, empty if it has published nothing. ``oldest_unacked_ms``: when its
    oldest unread event was appended; ``backlog_events``: unread events; ``last_active_ms``: when it last made progress or
    confirmed that nothing is unread; each UNSET if it is not known. Times are milliseconds since the Unix epoch."""

    cut: Offsets
    oldest_unacked_ms: int | UnsetType = UNSET
    backlog_events: int | UnsetType = UNSET
    last_active_ms: int | UnsetType = UNSET


class FactsHold(Struct, frozen=True, kw_only=True):
    """A hold: nothing after ``cut`` (None: nothing at all) is removed before ``until_ms`` (None: ever)."""

    id: str
    owner: str
    reason: str
    until_ms: int | None
    cut: Offsets | None


class StreamFacts(Struct, frozen=True, kw_only=True):
    """The facts that the planner decides by. Fields that are UNSET are not known, or empty.

    ``id``: the stream as ``scope/stream``; in a line, its own id. ``now_ms``: milliseconds since the Unix epoch.
    ``frequency_ms``: a cut is recorded if the newest one is older. ``truncated_at``: the head, None: the beginning of
    history; ``truncated_events``: events before it. ``truncating``: a truncation is in flight. ``policy``: the document of
    what applies, in the form of docs/formats/policy.md; ``unreadable``: why it cannot be read. ``retention_set``: recorded
    cuts, oldest first; ``boundaries``: further cuts between events. ``tail``: the end now. ``last_append_ms``: when the
    stream last took an event.
    """

    version: int
    id: Any
    now_ms: int
    frequency_ms: int
    stream: FactsHistory
    truncated_at: Offsets | None
    truncated_events: int | UnsetType = UNSET
    truncating: bool
    policy: Mapping[str, Any] | None
    unreadable: str | UnsetType = UNSET
    retention_set: Sequence[CutRecord]
    boundaries: Sequence[CutRecord] | UnsetType = UNSET
    subscribers: Mapping[str, FactsSubscriber]
    tail: CutRecord | None
    last_append_ms: int | UnsetType = UNSET
    hold: Sequence[FactsHold] | None
