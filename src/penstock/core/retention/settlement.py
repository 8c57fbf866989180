"""What retention does to a stream that is not used in the meantime: decision after decision, until nothing is due.

Source: docs/design/0034-settling-and-explaining.md, "Until nothing is due".
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock.core.cuts.order import Positions, upper_bound
from penstock.core.retention.decision import RetentionDecision
from penstock.core.retention.explain import range_at
from penstock.core.retention.facts import (
    Advance,
    Drop,
    HeldRange,
    HolderKind,
    RecordColumns,
    RetentionFacts,
    RetentionRule,
    StreamCutRecord,
    SubscriberActivity,
)
from penstock.core.retention.moves import events_before
from penstock.core.retention.outlook import Outlook
from penstock.core.retention.planner import decide
from penstock.core.retention.words import sentence
from penstock.model.values.dataclass import dataclass

STEPS_MAX = 64
"""Maximum number of decisions in a row. Each moves the head, moves or drops a subscriber, or prunes all records, so an
idle stream needs few. For a stream that receives appends there might always be another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step as shown to users: a decision, or several truncations in a row by one rule. A cut at a number of bytes
    misses it by less than one event per segment, so each of these truncations comes closer to the limit."""

    decision: RetentionDecision
    frees_bytes: int

    @property
    def why(self) -> str:
        """The step as a sentence."""
        item = self.decision
        return sentence(item.situation, item.candidate, self.frees_bytes, item.writers)

    def plus(self, other: RetentionDecision) -> Step | None:
        """The step extended by the next decision; None if that decision is another step."""
        own = self.decision
        if own.rule is not other.rule or not (_only_truncates(own) and _only_truncates(other)):
            return None
        return Step(decision=other, frees_bytes=self.frees_bytes + other.frees_bytes)


def _only_truncates(item: RetentionDecision) -> bool:
    return item.moves_head and not (item.expirations or item.evictions or item.drops or item.deletes_stream)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """At least one decision, in the order in which they are made.

    After each but the last, more may be due. After the last one nothing is due, unless ``STEPS_MAX`` were made or the
    stream grew meanwhile.
    """

    decisions: Sequence[RetentionDecision]

    @property
    def steps(self) -> Sequence[Step]:
        """The decisions that move the head or a subscriber, drop one, or delete the stream, in order."""
        found: list[Step] = []
        for item in self.decisions:
            if not (item.takes or item.deletes_stream):
                continue
            joined = found[-1].plus(item) if found else None
            if joined is None:
                found.append(Step(decision=item, frees_bytes=item.frees_bytes))
            else:
                found[-1] = joined
        return found

    @property
    def main(self) -> RetentionDecision:
        """The decision with the furthest cut: the last one that truncates, else the first one."""
        return next((item for item in reversed(self.decisions) if item.moves_head), self.decisions[0])

    @property
    def last(self) -> RetentionDecision:
        """The decision that describes what is left."""
        return self.decisions[-1]

    @property
    def truncate(self) -> Positions | None:
        """The head after all decisions. If none moves it, the same as for a single decision."""
        return self.main.truncate

    @property
    def frees_bytes(self) -> int:
        """Bytes that all decisions together free."""
        return sum(item.frees_bytes for item in self.decisions)

    @property
    def expirations(self) -> tuple[Advance, ...]:
        """Moves by time-to-live, in order."""
        return tuple([move for item in self.decisions for move in item.expirations])

    @property
    def evictions(self) -> tuple[Advance, ...]:
        """Moves by quotas and maximums, in order."""
        return tuple([move for item in self.decisions for move in item.evictions])

    @property
    def drops(self) -> tuple[Drop, ...]:
        """Subscribers to drop, in order."""
        return tuple([drop for item in self.decisions for drop in item.drops])

    @property
    def why(self) -> str:
        """The sentences of all steps. If there are no steps, that of the first decision."""
        return " ".join(item.why for item in self.steps) or self.decisions[0].why

    @property
    def stays(self) -> str:
        """What holds the data that remains after all decisions, as a sentence; empty if nothing remains."""
        return self.last.stays_of("The other" if self.frees_bytes else "All")

    @property
    def hurt(self) -> Sequence[str]:
        """Subscribers that are moved past unread data, or dropped, sorted."""
        moved = {item.subscriber for item in (*self.expirations, *self.evictions)}
        return sorted(moved | {item.subscriber for item in self.drops})

    def times_ms(self) -> tuple[int | None, int | None] | None:
        """When the deleted data was appended: first and last time by the nearest records, each None if there is none.
        None: both are None, or nothing is deleted."""
        found = [item.summary() for item in self.decisions if item.frees_bytes]
        if not found or (found[0].since_ms is None and found[-1].until_ms is None):
            return None
        return found[0].since_ms, found[-1].until_ms

    def ranges(self) -> tuple[HeldRange, ...]:
        """The stream from head to tail, as ``planner.explain`` returns it. What any of the decisions frees is
        due. The rest is held as after the last decision."""
        due = [part for item in self.decisions[:-1] for part in item.ranges() if part.kind is HolderKind.DUE]
        return (*due, *self.last.ranges())

    def range_at(self, position: Positions) -> HeldRange | None:
        """As ``RetentionDecision.range_at``, of these ranges."""
        for item in self.decisions[:-1]:
            found = range_at(item.situation, position)
            if found is not None and found.kind is HolderKind.DUE:
                return found
        return range_at(self.last.situation, position)


def settle(facts: RetentionFacts, *, now_ms: int) -> Settlement:
    """Decide, then decide again on the remaining data, until a decision changes nothing. Raises as ``decide``.

    All steps use the given boundaries. A caller that can find better ones must pass new ones for each step.
    """
    return settle_from(facts, decide(facts, now_ms=now_ms), now_ms=now_ms)


def settle_from(facts: RetentionFacts, decision: RetentionDecision, *, now_ms: int) -> Settlement:
    """As ``settle``, if the first decision has been made already."""
    decisions = [decision]
    while goes_on(decision, len(decisions)):
        facts = facts_after(facts, decision)
        decision = decide(facts, now_ms=now_ms)
        decisions.append(decision)
    return Settlement(decisions=decisions)


def goes_on(decision: RetentionDecision, made: int) -> bool:
    """Whether to decide again after this decision, the ``made``-th in a row."""
    return decision.moves_on and not decision.deletes_stream and made < STEPS_MAX


def only_repeats(earlier: Sequence[RetentionDecision], decision: RetentionDecision) -> bool:
    """Whether the decision takes something, and each of its rules has taken something in an earlier one."""
    acted = {rule for item in earlier for rule in _rules_of(item)}
    return decision.takes and not decision.deletes_stream and acted.issuperset(_rules_of(decision))


def _rules_of(decision: RetentionDecision) -> list[RetentionRule]:
    rules = [item.rule for item in (*decision.expirations, *decision.evictions)]
    rules += [item.rule for item in decision.drops]
    return [*rules, decision.rule] if decision.moves_head else rules


def facts_after(facts: RetentionFacts, decision: RetentionDecision) -> RetentionFacts:
    """The facts after the decision is performed, with the boundaries as they were.

    Event counts before the head, and the unread events of a moved subscriber, come from the nearest cuts with counts;
    None if there are none. The oldest unread event of such a subscriber is not known.
    """
    head, cuts = head_after(facts, decision), subscribers_after(facts, decision)
    outlook = decision.situation.outlook
    events = facts.head_event_count
    if head is not facts.head:
        events = None if head is None or not outlook.counts_events else events_before(outlook, head)
    return replace(
        facts,
        head=head,
        retention_set=records_after(facts.retention_set, decision),
        subscribers=cuts,
        activity=_activity_after(facts, cuts, outlook),
        frequency_ms=0,
        head_event_count=events,
    )


def _activity_after(
    facts: RetentionFacts, cuts: Mapping[str, Positions], outlook: Outlook
) -> Mapping[str, SubscriberActivity]:
    """The activity of the subscribers at these cuts. Lost events no longer count as unread."""
    moved = {
        name: item
        for name, item in facts.activity.items()
        if name in cuts and cuts[name] != facts.subscribers.get(name)
    }
    if not moved:
        return facts.activity
    found = dict(facts.activity)
    for name, item in moved.items():
        unread = None
        if outlook.tail is not None and outlook.tail.event_count is not None:
            before = events_before(outlook, cuts[name])
            unread = None if before is None else outlook.tail.event_count - before
        found[name] = replace(item, oldest_unacked_ms=None, backlog_events=unread)
    return found


def head_after(facts: RetentionFacts, decision: RetentionDecision) -> Positions | None:
    """The head once the decision is performed."""
    return decision.truncate if decision.moves_head else facts.head


def records_after(records: Sequence[StreamCutRecord], decision: RetentionDecision) -> Sequence[StreamCutRecord]:
    """The retention set once the decision is performed."""
    prune_ms = decision.prune_through_ms
    if isinstance(records, RecordColumns):
        records = records if decision.record is None else records.plus(decision.record)
        return records if prune_ms is None else records.since(bisect_right(records.times, prune_ms))
    if decision.record is not None:
        records = [*records, decision.record]
    return records if prune_ms is None else records[bisect_right(records, prune_ms, key=_time_of) :]


def _time_of(record: StreamCutRecord) -> int:
    return record.time_ms


def subscribers_after(facts: RetentionFacts, decision: RetentionDecision) -> Mapping[str, Positions]:
    """The subscribers' positions once the decision is performed. Data before the head is lost to them."""
    gone = {item.subscriber for item in decision.drops}
    cuts = {name: cut for name, cut in facts.subscribers.items() if name not in gone}
    for item in (*decision.expirations, *decision.evictions):
        if item.subscriber in cuts:
            cuts[item.subscriber] = item.end
    head = head_after(facts, decision)
    if head is not None and decision.moves_head:
        cuts = {name: upper_bound(facts.history, [cut, head]) if cut else cut for name, cut in cuts.items()}
    return cuts
