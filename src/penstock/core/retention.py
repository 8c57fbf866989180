"""The retention planner: facts and a time in, one decision out. The job, the dry run and ``explain`` all call it.

Source: docs/design/0007-retention.md, rules R1 to R12; "low", "top" and "edge" are its words.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.core.cut_order import (
    CutOrder,
    Positions,
    at_or_after,
    compare,
    head_of,
    lower_bound,
    size_till,
    upper_bound,
)
from penstock.core.history import StreamHistory
from penstock.core.retention_decision import RetentionDecision, Situation
from penstock.core.retention_facts import (
    Eviction,
    HeldRange,
    Hold,
    Holder,
    HolderKind,
    RetentionFacts,
    RetentionRule,
    StreamCutRecord,
)
from penstock.model.policies import RetentionPolicy, RetentionType

__all__ = [
    "Eviction",
    "HeldRange",
    "Hold",
    "Holder",
    "HolderKind",
    "RetentionDecision",
    "RetentionFacts",
    "RetentionRule",
    "StreamCutRecord",
    "decide",
    "explain",
]

_EVICTING = (RetentionRule.SUBSCRIBERS_MAXIMUM, RetentionRule.OVERLAP_MAXIMUM)


def decide(facts: RetentionFacts, *, now_ms: int) -> RetentionDecision:
    """Decide one retention cycle of a stream. The same facts and time give the same decision.

    The cut to truncate at leaves at least the policy's minimum (in recorded cuts or acknowledged ones), is at or after the
    head, passes no hold, and passes an acknowledged cut only where the policy has a maximum and with an eviction record.

    Args:
        facts: The stream; all cuts must be valid cuts of its history.
        now_ms: Wall clock, milliseconds since the Unix epoch.
    Raises:
        InvalidCutError: A cut names a segment that the history does not have, or leaves keys without position.
    """
    return _Cycle(facts, now_ms).decision()


def explain(facts: RetentionFacts, *, now_ms: int) -> tuple[HeldRange, ...]:
    """Why each byte from the head to the tail is still there: ranges in order, each with exactly one holder.

    The ranges sum to the size of the stream. Bytes that the next cycle removes are held by nobody but their time
    (``HolderKind.DUE``). Of several holders of a byte, the strongest is named: a hold, no policy, the subscriber furthest
    behind, the minimum. Raises as ``decide``.
    """
    return decide(facts, now_ms=now_ms).ranges()


@dataclass(frozen=True, slots=True)
class _Choice:
    rule: RetentionRule
    cut: Positions | None = None
    record_time_ms: int | None = None


class _Cycle:
    """One decision in the making: what is derived from the facts, each thing once."""

    def __init__(self, facts: RetentionFacts, now_ms: int) -> None:
        self.facts = facts
        self.now_ms = now_ms
        self.history: StreamHistory = facts.history
        self.record = self._due_record()
        given = facts.retention_set
        self.records: Sequence[StreamCutRecord] = given if self.record is None else [*given, self.record]
        self.tail = facts.tail or (self.records[-1] if self.records else None)
        self.head: Positions = facts.head or head_of(facts.history)
        self.head_bytes = size_till(facts.history, self.head) if facts.head else 0
        # The bound is ordered per key over all epochs; who has published nothing does not vote.
        self.bound = lower_bound(facts.history, facts.subscribers.values()) or None
        self.holds = [hold for hold in facts.holds if hold.until_ms is None or now_ms < hold.until_ms]
        self.low: StreamCutRecord | None = None
        self.truncate: Positions | None = None

    def _due_record(self) -> StreamCutRecord | None:
        facts = self.facts
        if facts.tail is None or facts.policy is None:
            return None
        if not facts.retention_set:
            return facts.tail
        newest = facts.retention_set[-1]
        due = self.now_ms - newest.time_ms > facts.frequency_ms
        # A clock that went back, or a size that shrank, would break the order of the set.
        fits = facts.tail.time_ms > newest.time_ms and facts.tail.size_bytes >= newest.size_bytes
        return facts.tail if due and fits else None

    def decision(self) -> RetentionDecision:
        choice = self._choose()
        self.truncate = self._permitted(choice.cut)
        frees = 0
        if self.truncate is not None:
            frees = size_till(self.history, self.truncate) - self.head_bytes
        return RetentionDecision(
            record=self.record,
            candidate=choice.cut,
            truncate=self.truncate,
            rule=choice.rule,
            prune_through_ms=self._prune_through(choice),
            evictions=self._evictions(choice.rule) if choice.rule in _EVICTING else (),
            frees_bytes=frees,
            next_due_ms=self._next_due(),
            why=self._why(choice, frees),
            situation=None if self.tail is None else self._situation(self.tail),
        )

    # --- which cut ------------------------------------------------------------------------------------------------

    def _choose(self) -> _Choice:
        policy = self.facts.policy
        if policy is None:
            return _Choice(RetentionRule.NO_POLICY)
        if self.tail is None:
            return _Choice(RetentionRule.NO_RECORD)
        low, top = self._low_and_top(policy)
        self.low = self.records[low] if low >= 0 else None
        if self.bound is None:
            return self._without_bound(policy, low, top)
        if policy.type is RetentionType.SIZE:
            return self._by_size(policy, self.bound, low, top)
        return self._by_time(policy, self.bound, low, top)

    def _low_and_top(self, policy: RetentionPolicy) -> tuple[int, int]:
        """Places in the set: of the newest record that leaves at least the minimum (-1: none), and of the record that
        leaves most within minimum and maximum, ``low`` where none does. Of equal ones the newest counts."""
        records, maximum = self.records, policy.maximum
        if policy.type is RetentionType.SIZE:
            end = self.tail.size_bytes if self.tail else 0
            low = bisect_right(records, end - policy.minimum, key=_size) - 1
            if maximum is None or low < 0:
                return low, min(low, 0)
            first = bisect_left(records, end - maximum, key=_size)
            if first > low:
                return low, low
            return low, bisect_right(records, records[first].size_bytes, key=_size) - 1
        low = bisect_right(records, self.now_ms - policy.minimum, key=_time) - 1
        if maximum is None or low < 0:
            return low, min(low, 0)
        return low, min(low, bisect_left(records, self.now_ms - maximum, key=_time))

    def _at(self, rule: RetentionRule, place: int) -> _Choice:
        record = self.records[place]
        return _Choice(rule, record.positions, record.time_ms)

    def _without_bound(self, policy: RetentionPolicy, low: int, top: int) -> _Choice:
        if low < 0:
            return _Choice(RetentionRule.BELOW_MINIMUM)
        size = (self.tail.size_bytes if self.tail else 0) - self.head_bytes
        if policy.type is RetentionType.SIZE and policy.maximum is not None and size > policy.maximum:
            return self._at(RetentionRule.MAXIMUM, top)
        return self._at(RetentionRule.MINIMUM, low)

    def _by_size(self, policy: RetentionPolicy, bound: Positions, low: int, top: int) -> _Choice:
        end = self.tail.size_bytes if self.tail else 0
        left = end - size_till(self.history, bound)
        if left < policy.minimum:
            if low < 0:
                return _Choice(RetentionRule.BELOW_MINIMUM)
            return self._at_low(bound, low)
        if policy.maximum is None or left <= policy.maximum:
            return _Choice(RetentionRule.SUBSCRIBERS, bound)
        if low < 0 or end - self.records[top].size_bytes >= left:
            # No record frees more than what is acknowledged anyway.
            return _Choice(RetentionRule.SUBSCRIBERS, bound)
        if compare(self.history, bound, self.records[top].positions) is CutOrder.OVERLAPS:
            return self._past_overlap(bound, low, top)
        return self._at(RetentionRule.SUBSCRIBERS_MAXIMUM, top)

    def _by_time(self, policy: RetentionPolicy, bound: Positions, low: int, top: int) -> _Choice:
        if low < 0:
            return _Choice(RetentionRule.BELOW_MINIMUM)
        order = compare(self.history, self.records[low].positions, bound)
        if order in (CutOrder.BEFORE, CutOrder.OVERLAPS):
            return self._at_low(bound, low)
        edge = -1
        if policy.maximum is not None:
            edge = bisect_right(self.records, self.now_ms - policy.maximum, key=_time) - 1
        if edge < 0:
            return _Choice(RetentionRule.SUBSCRIBERS, bound)
        order = compare(self.history, bound, self.records[edge].positions)
        if order is CutOrder.BEFORE:
            return self._at(RetentionRule.SUBSCRIBERS_MAXIMUM, top)
        if order is CutOrder.OVERLAPS:
            return self._past_overlap(bound, low, top)
        return _Choice(RetentionRule.SUBSCRIBERS, bound)

    def _at_low(self, bound: Positions, low: int) -> _Choice:
        """The bound leaves less than the minimum: at ``low``, or, where that passes the bound at some key, at the newest
        record that does not."""
        if at_or_after(self.history, bound, self.records[low].positions):
            return self._at(RetentionRule.SUBSCRIBERS_MINIMUM, low)
        place = self._newest_at_or_before(bound, low) if low else -1
        if place < 0:
            return _Choice(RetentionRule.OVERLAP_MINIMUM)
        return self._at(RetentionRule.OVERLAP_MINIMUM, place)

    def _past_overlap(self, bound: Positions, low: int, top: int) -> _Choice:
        """The bound leaves more than the maximum at some keys only: at the oldest record that is behind it nowhere.

        Where only records below the minimum are, the minimum wins: at ``top``, which keeps both limits.
        """
        place = bisect_left(
            range(low + 1), True, key=lambda i: at_or_after(self.history, self.records[i].positions, bound)
        )
        if place > low:
            return self._at(RetentionRule.SUBSCRIBERS_MAXIMUM, top)
        return self._at(RetentionRule.OVERLAP_MAXIMUM, place)

    def _newest_at_or_before(self, cut: Positions, upto: int) -> int:
        """Place of the newest of the first ``upto`` records that is ahead of ``cut`` nowhere; -1: none."""
        records = self.records
        return (
            bisect_left(range(upto), True, key=lambda i: not at_or_after(self.history, cut, records[i].positions)) - 1
        )

    # --- may it be done -------------------------------------------------------------------------------------------

    def _permitted(self, candidate: Positions | None) -> Positions | None:
        """The candidate, or what holds and the tail leave of it; None where that does not move the head forward.

        At the head itself a candidate passes: truncating there again changes nothing, but prunes the set.
        """
        if candidate is None or self.facts.truncating:
            return None
        allowed = candidate
        if self.facts.tail is not None:
            # What was acknowledged beyond the tail cannot be truncated: no store goes beyond a segment's length.
            allowed = self._clamped(allowed, self.facts.tail.positions)
        for hold in self.holds:
            if hold.positions is None:
                return None
            allowed = self._clamped(allowed, hold.positions)
        order = compare(self.history, allowed, self.head)
        if order is CutOrder.AFTER or (order is CutOrder.EQUAL and allowed is candidate):
            return allowed
        # No second choice: a later cycle has newer records.
        return None

    def _clamped(self, cut: Positions, limit: Positions) -> Positions:
        return cut if at_or_after(self.history, limit, cut) else lower_bound(self.history, [cut, limit])

    def _prune_through(self, choice: _Choice) -> int | None:
        if self.truncate is None:
            return None
        if self.truncate is choice.cut and choice.record_time_ms is not None:
            records = self.records
            place = bisect_right(records, choice.record_time_ms, key=_time) - 1
            # Later records of the very same cut would only be chosen again.
            while place + 1 < len(records) and records[place + 1].positions == self.truncate:
                place += 1
            return records[place].time_ms
        place = self._newest_at_or_before(self.truncate, len(self.records))
        return self.records[place].time_ms if place >= 0 else None

    def _evictions(self, rule: RetentionRule) -> tuple[Eviction, ...]:
        target = self.truncate
        if target is None:
            return ()
        found = []
        history = self.history
        target_bytes = size_till(history, target)
        for name in sorted(self.facts.subscribers):
            cut = self.facts.subscribers[name]
            if not cut or at_or_after(history, cut, target):
                continue
            kept, end = cut, target
            if not at_or_after(history, target, cut):
                kept, end = lower_bound(history, [cut, target]), upper_bound(history, [cut, target])
            if not at_or_after(history, kept, self.head):
                # What lies before the head was lost earlier, and reported then.
                kept = upper_bound(history, [kept, self.head])
            lost = target_bytes - size_till(history, kept)
            if lost > 0:
                found.append(Eviction(subscriber=name, start=cut, end=end, bytes=lost, rule=rule))
        return tuple(found)

    # --- what else there is to say --------------------------------------------------------------------------------

    def _situation(self, tail: StreamCutRecord) -> Situation:
        return Situation(
            facts=self.facts,
            tail=tail,
            head=self.head,
            head_bytes=self.head_bytes,
            bound=self.bound,
            holds=self.holds,
            low=self.low,
            truncate=self.truncate,
        )

    def _next_due(self) -> int | None:
        times = [hold.until_ms for hold in self.holds if hold.until_ms is not None]
        policy = self.facts.policy
        if policy is not None and policy.type is RetentionType.TIME:
            for age_ms in (policy.minimum, policy.maximum):
                if age_ms is None:
                    continue
                place = bisect_right(self.records, self.now_ms - age_ms, key=_time)
                if place < len(self.records):
                    times.append(self.records[place].time_ms + age_ms)
        return min(times, default=None)

    def _why(self, choice: _Choice, frees: int) -> str:
        reason = _REASONS[choice.rule]
        if choice.cut is None:
            return f"Nothing is truncated: {reason}."
        if self.truncate is choice.cut:
            return f"Truncation frees {frees} bytes: {reason}."
        if self.truncate is not None:
            return f"Truncation before that cut, at a hold or the tail, frees {frees} bytes: {reason}."
        if self.facts.truncating:
            return f"Nothing is truncated while a truncation is in flight, though {reason}."
        if at_or_after(self.history, choice.cut, self.head):
            return f"Nothing is truncated, because a hold forbids it, though {reason}."
        return f"Nothing is truncated, because the chosen cut is not wholly at or after the head, though {reason}."


_REASONS = {
    RetentionRule.NO_POLICY: "the stream has no retention policy",
    RetentionRule.NO_RECORD: "no cut has been recorded yet",
    RetentionRule.BELOW_MINIMUM: "no cut leaves the policy's minimum",
    RetentionRule.MINIMUM: "no subscriber has published, and this is the newest recorded cut that leaves the minimum",
    RetentionRule.MAXIMUM: "no subscriber has published, the stream is over its maximum, "
    "and this recorded cut leaves most within the limits",
    RetentionRule.SUBSCRIBERS: "all subscribers have acknowledged what lies before the cut",
    RetentionRule.SUBSCRIBERS_MINIMUM: "subscribers have acknowledged more, "
    "and this is the newest recorded cut that leaves the minimum",
    RetentionRule.SUBSCRIBERS_MAXIMUM: "subscribers lag beyond the maximum, which overrules them",
    RetentionRule.OVERLAP_MINIMUM: "the minimum falls across the subscribers' cut, "
    "so that only a recorded cut wholly before theirs will do",
    RetentionRule.OVERLAP_MAXIMUM: "the maximum falls across the subscribers' cut, "
    "so that the first recorded cut wholly ahead of theirs is taken",
}


def _size(record: StreamCutRecord) -> int:
    return record.size_bytes


def _time(record: StreamCutRecord) -> int:
    return record.time_ms
