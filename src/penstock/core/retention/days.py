"""On which days the data that a decision frees was written, as far as recorded cuts show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.core.retention.decision import RetentionDecision
from penstock.core.retention.moves import events_before

DAY_MS = 86_400_000


class FreedDay(NamedTuple):
    """Deleted data of one day. ``day``: days since 1970-01-01, UTC. ``events``: None if not counted."""

    day: int
    bytes: int
    events: int | None


def gone_bytes(decision: RetentionDecision) -> int:
    """Bytes that the decision deletes: what it frees, or everything if it deletes the stream."""
    outlook = decision.situation.outlook
    if decision.deletes_stream and outlook.tail is not None:
        return max(0, outlook.tail.size_bytes - outlook.head_bytes)
    return decision.frees_bytes


def freed_by_day(decision: RetentionDecision) -> list[FreedDay]:
    """Bytes that the decision deletes, by day of writing, oldest first; adds up to ``gone_bytes``.

    Data counts for the day of the first record behind it, or of the tail: it existed by then, but not at the record
    before. So a day is late by at most one recording period.
    """
    outlook = decision.situation.outlook
    gone = gone_bytes(decision)
    if not gone:
        return []
    start, end = outlook.head_bytes, outlook.head_bytes + gone
    first, last = outlook.until_size(start), outlook.until_size(end - 1)
    if last < len(outlook.records):
        newest_ms = outlook.time_at(last)
    else:
        newest_ms = outlook.now_ms if outlook.tail is None else outlook.tail.time_ms
    before, after = _events(decision)
    counts: list[int | None] = []
    if before is not None and after is not None:
        counts = [outlook.count_at(place) for place in range(first, last)]
        if None in counts:
            after = None
    found: list[FreedDay] = []
    day, size, events = None, start, before
    for place in range(first, last):
        # Records are in order of time: a day is complete when the next one begins.
        this = outlook.time_at(place) // DAY_MS
        if this != day and day is not None:
            upto, count = outlook.size_at(place - 1), counts[place - 1 - first] if after is not None else None
            _end(found, day, size, upto, events, count)
            size, events = upto, count
        day = this
    newest = newest_ms // DAY_MS
    if day is not None and newest > day:
        upto, count = outlook.size_at(last - 1), counts[-1] if after is not None else None
        _end(found, day, size, upto, events, count)
        size, events = upto, count
    _end(found, newest if day is None else max(day, newest), size, end, events, after)
    return found


def merged_days(parts: Sequence[Sequence[FreedDay]]) -> Sequence[FreedDay]:
    """Deletions of several consecutive decisions: one entry per day, oldest first."""
    some = [part for part in parts if part]
    if len(some) < 2:
        return some[0] if some else ()
    found: dict[int, FreedDay] = {}
    for item in (item for part in some for item in part):
        known = found.get(item.day, FreedDay(item.day, 0, 0))
        events = None if known.events is None or item.events is None else known.events + item.events
        found[item.day] = FreedDay(item.day, known.bytes + item.bytes, events)
    return [found[day] for day in sorted(found)]


def _end(found: list[FreedDay], day: int, size: int, upto: int, events: int | None, count: int | None) -> None:
    if upto > size:
        found.append(FreedDay(day, upto - size, None if events is None or count is None else count - events))


def _events(decision: RetentionDecision) -> tuple[int | None, int | None]:
    """Events of the whole history before the head, and before the end of the deleted data."""
    outlook = decision.situation.outlook
    if not outlook.counts_events:
        return None, None
    before = 0 if outlook.facts.head is None else outlook.facts.head_event_count
    if decision.deletes_stream:
        return before, None if outlook.tail is None else outlook.tail.event_count
    if before is None or decision.truncate is None:
        return before, None
    return before, events_before(outlook, decision.truncate)
