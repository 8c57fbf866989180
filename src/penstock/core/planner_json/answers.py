"""Decisions as typed answers, with readable segment names. ``msgspec`` writes them as JSON.

Source: docs/formats/planner.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from penstock.core.planner_json.stream import encode_cut
from penstock.core.retention.decision import RetentionDecision
from penstock.core.retention.facts import (
    Advance,
    Drop,
    HeldRange,
    Hold,
    HolderKind,
    RetentionFacts,
    StreamCutRecord,
    WriterState,
    WriterVerdict,
)
from penstock.core.retention.planner import decide
from penstock.core.retention.settlement import Settlement, settle_from
from penstock.model.answers.explanation import ExplainedRange
from penstock.model.answers.plan import (
    CutRecord,
    DroppedSubscriber,
    Holding,
    LinePlan,
    MovedSubscriber,
    PlanStep,
    RetentionRun,
    SettledPlan,
    Writers,
)

VERSION = 1


def line_plan(line_id: object, facts: RetentionFacts, *, now_ms: int) -> LinePlan:
    """The decision for one line of facts, with a summary: events and times of the deleted data, and which subscribers
    lose data.

    ``settled``, if more is due afterwards: the combined effect of this decision and the next ones. Raises what
    ``decide`` raises.
    """
    decision = decide(facts, now_ms=now_ms)
    found = decision.summary()
    settlement = settle_from(facts, decision, now_ms=now_ms)
    goes_on = any(item.takes or item.deletes_stream for item in settlement.decisions[1:])
    candidate, record = encode_cut(decision.candidate), decision.record
    return LinePlan(
        version=VERSION,
        id=line_id,
        candidate=candidate,
        truncate=candidate if decision.truncate is decision.candidate else encode_cut(decision.truncate),
        rule=decision.rule.word,
        record=None if record is None else record_of(record),
        prune_through_ms=decision.prune_through_ms,
        held_by=_holders(decision),
        expire=_moved(decision.expirations),
        evict=_moved(decision.evictions),
        drop=_dropped(decision.drops),
        delete_stream=decision.deletes_stream,
        writers=writers_of(decision.writers),
        frees_bytes=decision.frees_bytes,
        next_due_ms=decision.next_due_ms,
        why=decision.why,
        events=found.events,
        time_range_ms=None if found.since_ms is None and found.until_ms is None else [found.since_ms, found.until_ms],
        subscribers=list(found.subscribers),
        settled=_settled(settlement) if goes_on else UNSET,
    )


def _settled(found: Settlement) -> SettledPlan:
    counts = [item.summary().events for item in found.decisions]
    return SettledPlan(
        truncate=encode_cut(found.truncate),
        rule=found.main.rule.word,
        frees_bytes=found.frees_bytes,
        events=None if None in counts else sum(item for item in counts if item is not None),
        delete_stream=found.last.deletes_stream,
        subscribers=found.hurt,
        steps=_steps(found),
    )


def run_of(stream: str, found: Settlement) -> RetentionRun:
    """Consecutive decisions as one answer: their total effect, what holds the remaining data, and the steps that change
    something."""
    main, last = found.main, found.last
    records = [item.record for item in found.decisions if item.record is not None]
    pruned = [item.prune_through_ms for item in found.decisions if item.prune_through_ms is not None]
    return RetentionRun(
        version=VERSION,
        id=stream,
        candidate=encode_cut(main.candidate),
        truncate=encode_cut(main.truncate),
        rule=main.rule.word,
        record=record_of(records[0]) if records else None,
        prune_through_ms=max(pruned, default=None),
        held_by=_holders(last),
        expire=_moved(found.expirations),
        evict=_moved(found.evictions),
        drop=_dropped(found.drops),
        delete_stream=last.deletes_stream,
        writers=writers_of(last.writers),
        frees_bytes=found.frees_bytes,
        next_due_ms=last.next_due_ms,
        why=found.why,
        steps=_steps(found),
    )


def _steps(found: Settlement) -> Sequence[PlanStep]:
    return [
        PlanStep(
            rule=item.decision.rule.word,
            truncate=encode_cut(item.decision.truncate),
            frees_bytes=item.frees_bytes,
            expire=_moved(item.decision.expirations),
            evict=_moved(item.decision.evictions),
            drop=_dropped(item.decision.drops),
            delete_stream=item.decision.deletes_stream,
            why=item.why,
        )
        for item in found.steps
    ]


def ranges_of(ranges: Sequence[HeldRange], holds: Sequence[Hold] = ()) -> Sequence[ExplainedRange]:
    """Ranges from head to tail. A range that one of ``holds`` keeps has the owner and reason of the hold."""
    known = {hold.id: hold for hold in holds}
    found = []
    for item in ranges:
        hold = known[item.name] if known and item.kind is HolderKind.HOLD else None
        found.append(
            ExplainedRange(
                kind=item.kind.word,
                name=item.name,
                bytes=item.bytes,
                start=encode_cut(item.start),
                end=encode_cut(item.end),
                release_ms=item.release_ms,
                owner=UNSET if hold is None else hold.owner,
                reason=UNSET if hold is None else hold.reason,
            )
        )
    return found


def writers_of(item: WriterVerdict) -> Writers:
    """How far writers may append; the effect of each bound only if the two differ."""
    differ = not {item.bytes_state, item.events_state} - {WriterState.OPEN} <= {item.state}
    return Writers(
        state=item.state.word,
        total_bytes=item.total_bytes,
        total_events=item.total_events,
        exceeded=item.exceeded,
        rule=None if item.rule is None else item.rule.word,
        subscriber=item.subscriber,
        bytes_state=item.bytes_state.word if differ else UNSET,
        events_state=item.events_state.word if differ else UNSET,
    )


def record_of(record: StreamCutRecord) -> CutRecord:
    """A record of the retention set; its event count only if known."""
    return CutRecord(
        time_ms=record.time_ms,
        size_bytes=record.size_bytes,
        cut=encode_cut(record.positions),
        event_count=UNSET if record.event_count is None else record.event_count,
    )


def _holders(decision: RetentionDecision) -> Sequence[Holding]:
    return [Holding(kind=item.kind.word, name=item.name, bytes=item.bytes) for item in decision.held_by]


def _moved(advances: Sequence[Advance]) -> Sequence[MovedSubscriber]:
    return [
        MovedSubscriber(
            subscriber=item.subscriber,
            start=encode_cut(item.start),
            end=encode_cut(item.end),
            bytes=item.bytes,
            events=item.events,
            rule=item.rule.word,
        )
        for item in advances
    ]


def _dropped(drops: Sequence[Drop]) -> Sequence[DroppedSubscriber]:
    return [
        DroppedSubscriber(
            subscriber=item.subscriber,
            start=encode_cut(item.start),
            last_active_ms=item.last_active_ms,
            rule=item.rule.word,
        )
        for item in drops
    ]
