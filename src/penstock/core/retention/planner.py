"""The retention planner: facts and a time in, one decision out. The job, the dry run and ``explain`` all call it.

Source: docs/design/0007-retention.md. One decision applies TTL, backlog quotas, idle subscribers and truncation, in
this order. Truncation uses the positions to which the earlier rules have moved subscribers.
"""

from __future__ import annotations

from penstock.core.cuts.order import (
    CutOrder,
    Positions,
    at_or_after,
    compare,
    lower_bound,
    size_till,
)
from penstock.core.retention.decision import RetentionDecision
from penstock.core.retention.explain import Situation
from penstock.core.retention.facts import (
    Advance,
    Drop,
    Eviction,
    HeldRange,
    Hold,
    Holder,
    HolderKind,
    RetentionFacts,
    RetentionRule,
    StreamCutRecord,
    SubscriberActivity,
    WriterState,
    WriterVerdict,
)
from penstock.core.retention.limits import GeneralRule
from penstock.core.retention.moves import Goal, Moves, moves_of, prunable
from penstock.core.retention.outlook import Ages, Outlook, PolicyShape
from penstock.core.retention.pravega_rules import Choice, PravegaRules

__all__ = [
    "Advance",
    "Drop",
    "Eviction",
    "HeldRange",
    "Hold",
    "Holder",
    "HolderKind",
    "RetentionDecision",
    "RetentionFacts",
    "RetentionRule",
    "StreamCutRecord",
    "SubscriberActivity",
    "WriterState",
    "WriterVerdict",
    "decide",
    "explain",
]

_EVICTING = (RetentionRule.SUBSCRIBERS_MAXIMUM, RetentionRule.OVERLAP_MAXIMUM)


def decide(facts: RetentionFacts, *, now_ms: int) -> RetentionDecision:
    """Decide one retention cycle of a stream. The same facts and time give the same decision.

    The truncation leaves at least the policy's minimum, as far as the given and the acknowledged cuts can measure it.
    Its cut is at or after the head and never passes a hold. Only a maximum, TTL or a quota makes it pass a subscriber's
    acknowledged position, and the decision records that. TTL and quotas move subscribers even under a hold, because a
    hold keeps data, not positions.

    Args:
        facts: The stream; all cuts must be valid cuts of its history.
        now_ms: Wall clock, milliseconds since the Unix epoch.
    Raises:
        InvalidCutError: A cut names a segment that the history does not have, or has no position for some keys.
    """
    outlook = Outlook(facts, now_ms)
    return _Cycle(outlook, moves_of(outlook)).decision()


def explain(facts: RetentionFacts, *, now_ms: int) -> tuple[HeldRange, ...]:
    """Why each byte from the head to the tail is kept: ranges in order, each with exactly one holder.

    The ranges sum to the size of the stream. Bytes that the next cycle deletes have the holder ``HolderKind.DUE``. If a
    byte has several holders, the strongest is named. From strongest to weakest: a hold, a policy that could not be
    read, no policy, the subscriber furthest behind, the minimum, the policy while there are no subscribers. Raises as
    ``decide``.
    """
    return decide(facts, now_ms=now_ms).ranges()


class _Cycle:
    """The state of one decision. Computes each value derived from the facts only once."""

    __slots__ = ("bound", "facts", "general", "history", "moves", "outlook", "truncate", "unused_due_ms", "unused_ms")

    def __init__(self, outlook: Outlook, moves: Moves) -> None:
        self.outlook = outlook
        self.moves = moves
        self.facts = outlook.facts
        self.history = outlook.history
        self.bound = moves.bound
        self.general: GeneralRule | None = None
        self.truncate: Positions | None = None
        self.unused_ms: int | None = None
        self.unused_due_ms: int | None = None

    def decision(self) -> RetentionDecision:
        outlook, moves = self.outlook, self.moves
        shape = outlook.shape
        if shape is not None and shape.records and (not shape.policy.truncates or shape.floor.unlimited):
            self.unused_ms, self.unused_due_ms = prunable(outlook, shape.policy)
        choice = self._choose()
        self.truncate = self._permitted(choice.cut)
        frees = 0
        if self.truncate is not None:
            size = choice.size if self.truncate is choice.cut else None
            frees = (size_till(self.history, self.truncate) if size is None else size) - outlook.head_bytes
        evictions, writers = moves.evictions, moves.writers
        if choice.rule in _EVICTING:
            maximum = self._evictions(choice.rule, outlook.head_bytes + frees)
            evictions += maximum
            writers = moves.writers_after(maximum) if maximum else writers
        return RetentionDecision(
            record=outlook.record,
            candidate=choice.cut,
            truncate=self.truncate,
            rule=choice.rule,
            prune_through_ms=self._prune_through(choice, outlook.head_bytes + frees),
            evictions=evictions,
            frees_bytes=frees,
            next_due_ms=self._next_due(choice),
            expirations=moves.expirations,
            drops=moves.drops,
            deletes_stream=moves.deletes_stream,
            writers=writers,
            situation=Situation(outlook, moves, self.bound, self.truncate, choice.rule, self.general),
        )

    def _choose(self) -> Choice:
        outlook = self.outlook
        if self.facts.unreadable:
            return Choice(RetentionRule.UNREADABLE_POLICY)
        shape, tail = outlook.shape, outlook.tail
        if shape is None or not shape.policy.truncates:
            return Choice(RetentionRule.NO_POLICY)
        if tail is None:
            return Choice(RetentionRule.NO_RECORD)
        if shape.pravega is not None and self._by_pravega(shape):
            return PravegaRules(outlook, shape.pravega, self.bound, tail.size_bytes).choose()
        self.general = GeneralRule(outlook, shape, self.bound, tail)
        return self.general.choose()

    def _by_pravega(self, shape: PolicyShape) -> bool:
        """Whether Pravega's rules cover the policy and the case. They cannot keep data without subscribers."""
        return shape.pravega is not None and (self.bound is not None or shape.releases)

    # --- limits on the candidate ----------------------------------------------------------------------------------

    def _permitted(self, candidate: Positions | None) -> Positions | None:
        """The candidate, limited by holds and the tail. None if that does not move the head forward.

        A candidate equal to the head is returned: truncating there changes no data, but prunes the retention set.
        """
        if candidate is None or self.facts.truncating:
            return None
        outlook = self.outlook
        allowed = candidate
        if self.facts.tail is not None:
            # A cut acknowledged beyond the tail is limited to it, because a store cannot truncate beyond a segment's
            # length.
            allowed = self._clamped(allowed, self.facts.tail.positions)
        for hold in outlook.holds:
            if hold.positions is None:
                return None
            allowed = self._clamped(allowed, hold.positions)
        order = compare(self.history, allowed, outlook.head)
        if order is CutOrder.AFTER or (order is CutOrder.EQUAL and allowed is candidate):
            return allowed
        # Do not choose another cut now: a later cycle has newer records.
        return None

    def _clamped(self, cut: Positions, limit: Positions) -> Positions:
        return cut if at_or_after(self.history, limit, cut) else lower_bound(self.history, [cut, limit])

    def _prune_through(self, choice: Choice, size: int) -> int | None:
        records = self.outlook.records
        if self.truncate is None:
            return self.unused_ms
        if self.truncate is choice.cut and choice.record_time_ms is not None:
            place = self.outlook.until_time(choice.record_time_ms) - 1
            # Later records at the same cut would only lead to the same choice again.
            while place + 1 < len(records) and self.outlook.cut_at(place + 1) == self.truncate:
                place += 1
            return self.outlook.time_at(place)
        count = self.outlook.records_till(self.truncate, size)
        return self.outlook.time_at(count - 1) if count else None

    def _evictions(self, rule: RetentionRule, size: int) -> tuple[Advance, ...]:
        cuts = self.moves.cuts
        if self.truncate is None:
            return ()
        goal = Goal(self.outlook, self.truncate, rule, size)
        return tuple([item for name in sorted(cuts) if (item := goal.advance(name, cuts[name])) is not None])

    # --- next decision --------------------------------------------------------------------------------------------

    def _next_due(self, choice: Choice) -> int | None:
        outlook, shape = self.outlook, self.outlook.shape
        times = [due_ms for due_ms in (outlook.record_due_ms, self.unused_due_ms) if due_ms is not None]
        times += self.moves.due
        for hold in outlook.holds:
            if hold.until_ms is not None:
                times.append(hold.until_ms)
        if shape is not None and shape.ages and choice.rule is not RetentionRule.NO_RECORD:
            times += self._ages_due(shape, shape.ages, choice)
        return min(times, default=None)

    def _ages_due(self, shape: PolicyShape, ages: Ages, choice: Choice) -> list[int]:
        """When the next record reaches an age that may change the choice."""
        least_ms, most_ms = ages.minimum, ages.maximum
        rule = choice.rule
        times: list[int] = []
        settled = rule in (RetentionRule.SUBSCRIBERS, RetentionRule.UNSUBSCRIBED)
        if self._by_pravega(shape):
            # Maximums apply only beyond the minimum, and a later minimum does not move the subscribers' cut.
            if settled:
                least_ms = None
            elif rule not in _EVICTING:
                most_ms = None
        elif self.bound is None and shape.releases:
            # Everything beyond the minimum is deleted at once, so no maximum can require more.
            most_ms = None
        elif settled and not shape.has_maximum:
            least_ms = None
        records = self.outlook.records
        if least_ms is not None:
            place = self.outlook.place_aged(least_ms) + 1
            if place < len(records):
                times.append(self.outlook.time_at(place) + least_ms)
        if most_ms is not None:
            place = self.outlook.place_aged(most_ms) + 1
            if settled:
                place = max(place, self.outlook.records_till(choice.cut or self.outlook.head))
            if place < len(records):
                times.append(self.outlook.time_at(place) + most_ms)
        return times
