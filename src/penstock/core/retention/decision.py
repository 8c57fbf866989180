"""The planner's answer as plain data: the effect of one cycle on one stream.

Source: docs/design/0007-retention.md.
"""

from __future__ import annotations

from dataclasses import field

from penstock.core.cuts.order import CutOrder, Positions, compare
from penstock.core.retention.explain import Situation, held_bytes, held_ranges, range_at
from penstock.core.retention.facts import (
    OPEN,
    Advance,
    Drop,
    HeldRange,
    Holder,
    HolderKind,
    RetentionRule,
    StreamCutRecord,
    WriterVerdict,
)
from penstock.core.retention.plan import PlanSummary, summary_of
from penstock.core.retention.words import sentence
from penstock.core.units import format_size
from penstock.model.values.dataclass import dataclass


def _most_bytes_first(item: tuple[tuple[HolderKind, str], int]) -> int:
    return -item[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionDecision:
    """The effect of one cycle on one stream.

    ``record``: append it to the retention set first; it stays in any case. ``candidate``: the cut that the rules
    choose. ``truncate``: where to truncate now; None if nothing is chosen, the candidate lies before the head, a
    truncation is in flight, or a hold forbids it; before the candidate if a hold or the tail lies before it.
    ``prune_through_ms``: once the truncation has started, drop the records up to and including that time; also if
    ``truncate`` is None, since TTL and quotas may no longer need records at which nothing truncates.
    ``frees_bytes``: bytes that the truncation removes. ``next_due_ms``: the earliest time at which the decision may
    change through time alone; None: never.

    ``expirations``: subscribers moved by time-to-live; ``evictions``: by a quota, in the order in which they are made,
    then by a maximum, which apply only if the truncation is done. A subscriber may be in both; each advance starts
    where the previous one ended. ``drops``: silent subscribers to remove. ``deletes_stream``: the stream is unused and
    can be deleted; then nothing else of the decision is needed. ``writers``: how far writers may append afterwards.

    ``situation`` is the input for the other properties, which are computed on demand because they cost more than the
    decision.
    """

    record: StreamCutRecord | None
    candidate: Positions | None
    truncate: Positions | None
    rule: RetentionRule
    prune_through_ms: int | None
    evictions: tuple[Advance, ...]
    frees_bytes: int
    next_due_ms: int | None
    situation: Situation = field(repr=False, compare=False)
    expirations: tuple[Advance, ...] = ()
    drops: tuple[Drop, ...] = ()
    deletes_stream: bool = False
    writers: WriterVerdict = OPEN

    @property
    def moves_head(self) -> bool:
        """Whether the head moves. Truncating at the head itself only prunes records."""
        outlook = self.situation.outlook
        return self.truncate is not None and (
            compare(outlook.history, self.truncate, outlook.head) is not CutOrder.EQUAL
        )

    @property
    def takes(self) -> bool:
        """Whether the decision moves the head, moves a subscriber or drops one."""
        return bool(self.expirations or self.evictions or self.drops) or self.moves_head

    @property
    def moves_on(self) -> bool:
        """Whether more may be due afterwards: the head moves, a subscriber moves or is dropped, or all records are
        dropped, so that the tail is recorded next. After a truncation at the tail nothing is left to delete."""
        return (self.takes or self._forgets_all) and not self._empties

    @property
    def _empties(self) -> bool:
        outlook = self.situation.outlook
        if self.truncate is None or outlook.tail is None:
            return False
        return compare(outlook.history, self.truncate, outlook.tail.positions) is CutOrder.EQUAL

    @property
    def _forgets_all(self) -> bool:
        records = self.situation.outlook.facts.retention_set
        if self.prune_through_ms is None or self.record is not None or not records:
            return False
        return records[-1].time_ms <= self.prune_through_ms

    @property
    def why(self) -> str:
        """The decision as a sentence, plus one sentence for each effect on subscribers, writers and the stream."""
        return sentence(self.situation, self.candidate, self.frees_bytes, self.writers)

    @property
    def held_by(self) -> tuple[Holder, ...]:
        """What holds the remaining data, most bytes first. Computed on demand, because it takes most of a cycle's
        time."""
        found = sorted(held_bytes(self.situation).items(), key=_most_bytes_first)
        return tuple([Holder(kind=kind, name=name, bytes=size) for (kind, name), size in found])

    @property
    def stays(self) -> str:
        """What holds the remaining data, as a sentence; empty if nothing remains."""
        return self.stays_of("The other" if self.frees_bytes else "All")

    def stays_of(self, whole: str) -> str:
        """As ``stays``. ``whole`` begins the sentence if one holder keeps all of it: "All", or "The other"."""
        held = self.held_by
        if not held:
            return ""
        total = format_size(sum(holder.bytes for holder in held))
        if len(held) > 1:
            return f"{total} are kept: {', '.join(f'{format_size(item.bytes)} {item.in_words()}' for item in held)}."
        # If no rule applies at all, ``why`` has said it.
        alone = held[0].kind in (HolderKind.NO_POLICY, HolderKind.UNREADABLE_POLICY)
        return f"{whole} {total} are kept{'' if alone else f' {held[0].in_words()}'}."

    def ranges(self) -> tuple[HeldRange, ...]:
        """The stream from head to tail, as ``penstock.core.retention.planner.explain`` returns it."""
        return held_ranges(self.situation)

    def summary(self) -> PlanSummary:
        """The deleted data: events and times if known, and which subscribers lose data. Computed on demand."""
        return summary_of(self.situation, self.frees_bytes, (*self.expirations, *self.evictions), self.drops)

    def range_at(self, position: Positions) -> HeldRange | None:
        """The range that starts at the position, its holder, and its end: ``release_ms`` is that of the data that
        begins there. None before the head and at the tail."""
        return range_at(self.situation, position)
