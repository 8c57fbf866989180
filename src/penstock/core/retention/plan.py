"""What a plan says beside the decision: how many events would go, how old they are, and who is hurt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.core.cuts.order import at_or_after
from penstock.core.retention.explain import Situation
from penstock.core.retention.facts import Advance, Drop
from penstock.core.retention.moves import events_before


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSummary:
    """``events``: how many the truncation removes; None where cuts have no event counts. ``since_ms`` and ``until_ms``:
    between when they were appended, by the records around them; None: not known. ``subscribers``: who is moved past unread
    data or dropped, sorted."""

    events: int | None
    since_ms: int | None
    until_ms: int | None
    subscribers: tuple[str, ...]


def summary_of(situation: Situation, frees: int, advances: Sequence[Advance], drops: Sequence[Drop]) -> PlanSummary:
    """The summary of a decision that frees so many bytes. None: no events, no times."""
    outlook, truncate = situation.outlook, situation.truncate
    hurt: tuple[str, ...] = ()
    if advances or drops:
        hurt = tuple(sorted({item.subscriber for item in advances} | {item.subscriber for item in drops}))
    if truncate is None or not frees:
        return PlanSummary(events=0, since_ms=None, until_ms=None, subscribers=hurt)
    before = after = None
    if outlook.counts_events:
        after = events_before(outlook, truncate)
        before = events_before(outlook, outlook.head) if outlook.facts.head else 0
    history, records = outlook.history, outlook.records
    # The last record nowhere ahead of the head was made before any of it, the first nowhere behind the cut after all.
    first = outlook.records_till(outlook.head, outlook.head_bytes) - 1
    fewer = outlook.until_size(outlook.head_bytes + frees - 1)
    until_ms = None
    for place in range(fewer, len(records)):
        if at_or_after(history, outlook.cut_at(place), truncate):
            until_ms = outlook.time_at(place)
            break
    if until_ms is None and outlook.tail is not None and at_or_after(history, outlook.tail.positions, truncate):
        until_ms = outlook.tail.time_ms
    return PlanSummary(
        events=None if before is None or after is None else after - before,
        since_ms=outlook.time_at(first) if first >= 0 else None,
        until_ms=until_ms,
        subscribers=hurt,
    )
