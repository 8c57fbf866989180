"""What a plan shows besides the decision: the number and age of the deleted events, and which subscribers lose data."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.cuts.order import at_or_after
from penstock.core.retention.explain import Situation
from penstock.core.retention.facts import Advance, Drop
from penstock.core.retention.moves import events_before
from penstock.model.values.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSummary:
    """``events``: how many the truncation deletes; None if cuts have no event counts. ``since_ms``, ``until_ms``: they
    were appended between these times, according to the nearest records; None if unknown. ``subscribers``: those that
    are moved past unread data, or dropped, sorted."""

    events: int | None
    since_ms: int | None
    until_ms: int | None
    subscribers: tuple[str, ...]


def summary_of(situation: Situation, frees: int, advances: Sequence[Advance], drops: Sequence[Drop]) -> PlanSummary:
    """The summary of a decision that frees ``frees`` bytes. If it is None, the summary has no events and no times."""
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
    # The deleted data is newer than the last record at or before the head, and older than the first record at or after
    # the cut.
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
