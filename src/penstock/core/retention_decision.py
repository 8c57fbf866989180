"""The decision of a cycle, and who holds the bytes that it leaves: ranges from head to tail with one holder each.

Source: docs/design/0007-retention.md, "Explaining".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.core.cut_order import Positions, at_or_after, lower_bound, size_till, upper_bound
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
from penstock.model.policies import RetentionType


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A stream after a cycle's decision: the facts, what was derived from them, and where it is truncated.

    ``low`` is the newest record that leaves the policy's minimum.
    """

    facts: RetentionFacts
    tail: StreamCutRecord
    head: Positions
    head_bytes: int
    bound: Positions | None
    holds: Sequence[Hold]
    low: StreamCutRecord | None
    truncate: Positions | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionDecision:
    """What one cycle does with one stream.

    ``record``: append it to the retention set first; it stays, whatever follows. ``candidate``: the cut that the rules
    choose. ``truncate``: where to truncate now; None where nothing is chosen, the candidate lies behind the head, a
    truncation is in flight, or a hold forbids it; before the candidate where a hold or the tail lies before it.
    ``prune_through_ms``: once the truncation has started, forget the records up to and including that time.
    ``frees_bytes``: what the truncation removes. ``next_due_ms``: when the passing of time alone may change the decision;
    None: never. ``situation`` is what ``held_by`` is worked out from; None where there is no tail.
    """

    record: StreamCutRecord | None
    candidate: Positions | None
    truncate: Positions | None
    rule: RetentionRule
    prune_through_ms: int | None
    evictions: tuple[Eviction, ...]
    frees_bytes: int
    next_due_ms: int | None
    why: str
    situation: Situation | None = field(default=None, repr=False, compare=False)

    @property
    def held_by(self) -> tuple[Holder, ...]:
        """Who keeps what is left, most bytes first. Worked out when asked for; the larger part of a cycle's time."""
        total: dict[tuple[HolderKind, str], int] = {}
        for item in self.ranges():
            if item.kind is not HolderKind.DUE:
                total[item.kind, item.name] = total.get((item.kind, item.name), 0) + item.bytes
        holders = [Holder(kind=kind, name=name, bytes=size) for (kind, name), size in total.items()]
        holders.sort(key=lambda holder: -holder.bytes)
        return tuple(holders)

    @property
    def stays(self) -> str:
        """Who keeps what is left, as a sentence; empty where nothing is left."""
        held = self.held_by
        if not held:
            return ""
        total = sum(holder.bytes for holder in held)
        parts = ", ".join(f"{holder.bytes} by {holder.in_words()}" for holder in held)
        return f"{total} bytes stay: {parts}."

    def ranges(self) -> tuple[HeldRange, ...]:
        """The stream from head to tail, as ``penstock.core.retention.explain`` gives it."""
        return () if self.situation is None else held_ranges(self.situation)


def held_ranges(situation: Situation) -> tuple[HeldRange, ...]:
    """Ranges from head to tail, in order, none empty, summing to the stream's size."""
    walk = _Walk(situation)
    facts, low = situation.facts, situation.low
    for hold in situation.holds:
        walk.take(HolderKind.HOLD, hold.id, walk.base if hold.positions is None else hold.positions)
    if facts.policy is None:
        walk.take(HolderKind.NO_POLICY, "", walk.base)
    else:
        for name, cut in _furthest_behind_first(situation):
            walk.take(HolderKind.SUBSCRIBER, name, cut)
        rest = HolderKind.TRUNCATING if facts.truncating else HolderKind.UNRECORDED
        if facts.policy.type is RetentionType.SIZE:
            walk.take_down_to(HolderKind.MINIMUM, situation.tail.size_bytes - facts.policy.minimum)
        else:
            walk.take(HolderKind.MINIMUM, "", walk.base if low is None else low.positions)
        walk.take(rest, "", walk.base)
    if situation.truncate is not None:
        walk.base, walk.base_bytes = situation.head, situation.head_bytes
        walk.take(HolderKind.DUE, "", walk.base)
    return tuple(reversed(walk.found))


def _furthest_behind_first(situation: Situation) -> list[tuple[str, Positions]]:
    facts = situation.facts
    if situation.bound is None:
        return []
    published = [(name, cut) for name, cut in facts.subscribers.items() if cut]
    slowest = [(name, cut) for name, cut in published if cut == situation.bound]
    if slowest:
        # It is ahead of nobody anywhere, so that whatever another one holds it holds too.
        return [min(slowest, key=lambda item: item[0])]
    return sorted(published, key=lambda item: (size_till(facts.history, item[1]), item[0]))


class _Walk:
    """From the tail towards the head: each holder takes what lies behind its cut and is not taken yet."""

    def __init__(self, situation: Situation) -> None:
        self.history = situation.facts.history
        self.base: Positions = situation.head
        self.base_bytes = situation.head_bytes
        if situation.truncate is not None:
            self.base = situation.truncate
            self.base_bytes = size_till(self.history, self.base)
        self.at: Positions | None = situation.tail.positions
        self.at_cut: Positions = situation.tail.positions
        self.at_bytes = situation.tail.size_bytes
        self.found: list[HeldRange] = []

    def take(self, kind: HolderKind, name: str, cut: Positions) -> None:
        """Give the holder all that is left behind ``cut``, but nothing before the base."""
        if cut is not self.base:
            if at_or_after(self.history, cut, self.at_cut):
                return
            cut = lower_bound(self.history, [cut, self.at_cut])
            if not at_or_after(self.history, cut, self.base):
                cut = upper_bound(self.history, [cut, self.base])
        size = self.base_bytes if cut is self.base else size_till(self.history, cut)
        self._give(kind, name, min(size, self.at_bytes), cut)
        self.at_cut = cut

    def take_down_to(self, kind: HolderKind, size: int) -> None:
        """Give the holder what is left above ``size`` bytes since the beginning of history: a bound that is no cut."""
        if size <= self.base_bytes:
            self.take(kind, "", self.base)
        elif size < self.at_bytes:
            self._give(kind, "", size, None)

    def _give(self, kind: HolderKind, name: str, size: int, cut: Positions | None) -> None:
        if size < self.at_bytes:
            self.found.append(
                HeldRange(kind=kind, name=name, start_bytes=size, end_bytes=self.at_bytes, start=cut, end=self.at)
            )
        self.at, self.at_bytes = cut, size
