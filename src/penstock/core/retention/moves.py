"""Rules that act on subscribers and writers: TTL, backlog quotas, and the removal of idle subscribers and streams.

Source: docs/design/0007-retention.md, "Before truncation". Times are those of recorded cuts and boundaries, so a rule
may act up to one recording period late, but never early.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field

from penstock.core.cuts.order import CutOrder, Positions, at_or_after, compare, lower_bound, size_till, upper_bound
from penstock.core.retention.candidates import ByteCuts, Spot
from penstock.core.retention.facts import (
    OPEN,
    Advance,
    Drop,
    RetentionRule,
    StreamCutRecord,
    WriterVerdict,
)
from penstock.core.retention.outlook import Outlook
from penstock.core.retention.writers import Bound, verdict_of
from penstock.model.retention import Combine, EffectivePolicy, IdleWhen, OnExceed
from penstock.model.values.dataclass import dataclass

PRUNE_BATCH = 64
"""Number of records that are pruned together when the stream is not truncated."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The positions of subscribers before a rule moved some of them."""

    rule: RetentionRule
    before: Mapping[str, Positions]


@dataclass(slots=True)
class Moves:
    """What the rules before truncation do. ``cuts``: positions of the published subscribers afterwards. ``bound``:
    their lower bound, None if no subscriber has published. ``due``: times at which the result may change although the
    stream does not. ``stages``: the rules that moved or dropped a subscriber, in order."""

    cuts: Mapping[str, Positions]
    bound: Positions | None = None
    expirations: tuple[Advance, ...] = ()
    evictions: tuple[Advance, ...] = ()
    drops: tuple[Drop, ...] = ()
    deletes_stream: bool = False
    writers: WriterVerdict = OPEN
    due: list[int] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    mover: _Mover | None = None

    def writers_after(self, advances: Iterable[Advance]) -> WriterVerdict:
        """The verdict after a maximum has moved subscribers too. Data that they lost no longer blocks writers."""
        return self.writers if self.mover is None else self.mover.writers_after(advances)


def moves_of(outlook: Outlook) -> Moves:
    """Apply TTL, then quotas by bytes, events and age, then idleness."""
    if outlook.policy is None or outlook.shape is None or not outlook.shape.moves:
        # The bound is ordered per key over all epochs. A subscriber that has published nothing does not count.
        return Moves(outlook.published, lower_bound(outlook.history, outlook.published.values()) or None)
    return _Mover(outlook, outlook.policy).moves()


class Goal:
    """A cut to which a rule moves subscribers, with the values that are the same for all of them."""

    __slots__ = ("cut", "outlook", "rule", "size", "stop")

    def __init__(self, outlook: Outlook, cut: Positions, rule: RetentionRule, size: int | None = None) -> None:
        """``size``: bytes of the history before the cut. Pass it only if the cut is known to be at or after the
        head."""
        self.outlook = outlook
        self.cut = self.stop = cut
        self.rule = rule
        if size is not None:
            self.size = size
            return
        history, head = outlook.history, outlook.head
        self.stop = cut if at_or_after(history, cut, head) else upper_bound(history, [cut, head])
        self.size = size_till(history, self.stop)

    def advance(self, name: str, cut: Positions) -> Advance | None:
        """The record of moving the subscriber from ``cut`` to the goal. None if it loses no data by the move.

        Data before the head is not counted: it was lost, and reported, earlier.
        """
        outlook, history = self.outlook, self.outlook.history
        order = compare(history, cut, self.cut)
        if order is CutOrder.AFTER or order is CutOrder.EQUAL:
            return None
        end, stop, size = self.cut, self.stop, self.size
        if order is CutOrder.OVERLAPS:
            end, stop = upper_bound(history, [end, cut]), upper_bound(history, [stop, cut])
            size = size_till(history, stop)
        start = cut if at_or_after(history, cut, outlook.head) else upper_bound(history, [cut, outlook.head])
        lost = size - size_till(history, start)
        if lost <= 0:
            return None
        events = _events(outlook, name, cut, start, stop) if outlook.counts_events else None
        return Advance(subscriber=name, start=cut, end=end, bytes=lost, rule=self.rule, events=events)


def events_before(outlook: Outlook, cut: Positions) -> int | None:
    """Number of events in the whole history before the cut. None unless a record, a boundary, the tail or the head has
    the same position and an event count."""
    records = outlook.records
    size = size_till(outlook.history, cut)
    place = outlook.until_size(size - 1)
    while place < len(records) and records[place].size_bytes == size:
        if records[place].event_count is not None and _same(outlook, records[place].positions, cut):
            return records[place].event_count
        place += 1
    others = outlook.facts.boundaries if outlook.tail is None else (outlook.tail, *outlook.facts.boundaries)
    for item in others:
        if item.event_count is not None and item.size_bytes == size and _same(outlook, item.positions, cut):
            return item.event_count
    return outlook.facts.head_event_count if _same(outlook, cut, outlook.head) else None


def _same(outlook: Outlook, a: Positions, b: Positions) -> bool:
    return a == b or compare(outlook.history, a, b) is CutOrder.EQUAL


def _events(outlook: Outlook, name: str, cut: Positions, start: Positions, stop: Positions) -> int | None:
    end = events_before(outlook, stop)
    if end is None:
        return None
    first = events_before(outlook, start)
    if first is None and start is cut and cut == outlook.published.get(name):
        activity, tail = outlook.facts.activity.get(name), outlook.tail
        if activity is not None and activity.backlog_events is not None and tail is not None:
            first = None if tail.event_count is None else tail.event_count - activity.backlog_events
    return None if first is None else max(0, end - first)


def prunable(outlook: Outlook, policy: EffectivePolicy) -> tuple[int | None, int | None]:
    """For a policy that never truncates: the time up to which TTL and quotas need no records, and when to check again.
    Each is None if there is no such time.

    Records are pruned in batches, so that an idle stream is not woken for each of its records.
    """
    records = outlook.records
    if len(records) <= PRUNE_BATCH or outlook.tail is None:
        return None, None
    end = outlook.tail.size_bytes
    places = [len(records) - 1]
    if policy.bytes_action is OnExceed.EVICT and policy.backlog_bytes is not None:
        places.append(outlook.until_size(end - policy.backlog_bytes) - 1)
    if policy.events_action is OnExceed.EVICT and policy.backlog_events is not None:
        # Some records may have no event count, so the oldest record that eviction needs is not known.
        return None, None
    free = min(places)
    ages = [age_ms for age_ms in (policy.ttl_ms, policy.backlog_age_ms) if age_ms is not None]
    reached = min([free, *(outlook.place_aged(age_ms) for age_ms in ages)])
    count = max(0, reached) // PRUNE_BATCH * PRUNE_BATCH
    due_ms = None
    if ages and count + PRUNE_BATCH <= free:
        due_ms = records[count + PRUNE_BATCH].time_ms + max(ages)
    return (records[count - 1].time_ms if count else None), due_ms


class _Mover:
    """One pass over the rules. Each rule starts from the cuts that the previous rule left."""

    def __init__(self, outlook: Outlook, policy: EffectivePolicy) -> None:
        self.outlook = outlook
        self.history = outlook.history
        self.now_ms = outlook.now_ms
        self.policy = policy
        self.cuts: dict[str, Positions] = dict(outlook.published)
        self.sizes = {name: size_till(self.history, cut) for name, cut in self.cuts.items()}
        tail = outlook.tail
        self.end = 0 if tail is None else tail.size_bytes
        self.events: dict[str, int | None] = {}
        self.oldest: dict[str, int] = {}
        self.spots = ByteCuts(outlook, outlook.facts.boundaries)
        for name, item in outlook.facts.activity.items():
            if name in self.cuts:
                self.events[name] = item.backlog_events
                if item.oldest_unacked_ms is not None:
                    self.oldest[name] = item.oldest_unacked_ms
        self.result = Moves(self.cuts)
        self._slowest: Positions | None = None
        self._passed: int | None = None

    def moves(self) -> Moves:
        result = self.result
        if self.outlook.tail is not None and self.cuts:
            result.expirations = tuple(self._ttl())
            result.evictions = tuple(self._quotas())
        result.drops = tuple(self._drops())
        result.writers = self._writers()
        result.mover = self if self.policy.limits_backlog else None
        result.deletes_stream = self._deletes_stream()
        result.bound = self._bound() or None
        return result

    def _bound(self) -> Positions:
        """The lower bound of the subscribers' positions. Cached, like ``_passed``, until a subscriber moves."""
        if self._slowest is None:
            self._slowest = lower_bound(self.history, self.cuts.values())
        return self._slowest

    def _passes(self, target: Positions) -> bool:
        """Whether every subscriber is at or after the cut for all keys, so that no rule needs to move any of them."""
        return at_or_after(self.history, self._bound(), target)

    # --- moving -----------------------------------------------------------------------------------------------

    def _aged(self, age_ms: int) -> Positions | None:
        """The latest record or boundary before which all data is at least ``age_ms`` old."""
        outlook = self.outlook
        place = outlook.place_aged(age_ms)
        best: Spot | None = place if place >= 0 else None
        for item in outlook.facts.boundaries:
            aged = item.time_ms <= self.now_ms - age_ms
            if aged and (best is None or item.size_bytes > self.spots.size(best)):
                best = item
        return None if best is None else self.spots.cut(best)

    def _advance(self, names: Iterable[str], target: Positions, rule: RetentionRule) -> list[Advance]:
        if self._passes(target):
            return []
        found: list[Advance] = []
        goal = Goal(self.outlook, target, rule)
        for name in names:
            item = goal.advance(name, self.cuts[name])
            if item is None:
                continue
            if not found:
                self.result.stages.append(Stage(rule, dict(self.cuts)))
            found.append(item)
            self._move(name, item.end)
        return found

    def _move(self, name: str, cut: Positions) -> None:
        self.cuts[name] = cut
        self._slowest = self._passed = None
        self.sizes[name] = size_till(self.history, cut)
        self.oldest.pop(name, None)
        self.events[name] = self._events_left(cut)

    def writers_after(self, advances: Iterable[Advance]) -> WriterVerdict:
        """As ``Moves.writers_after``. Does not change the cuts of the result."""
        kept, slowest = self.cuts, self._slowest
        self.cuts = dict(kept)
        for item in advances:
            self._move(item.subscriber, item.end)
        verdict = self._writers()
        self.cuts, self._slowest, self._passed = kept, slowest, None
        return verdict

    def _events_left(self, cut: Positions) -> int | None:
        """Number of events after a cut to which a rule has moved a subscriber. None if it is not known."""
        tail, outlook = self.outlook.tail, self.outlook
        if tail is None or tail.event_count is None or self.policy.backlog_events is None:
            return None
        before = events_before(outlook, cut)
        return None if before is None else tail.event_count - before

    def _left_bytes(self, record: StreamCutRecord) -> int:
        return self.end - record.size_bytes

    def _left_events(self, record: StreamCutRecord) -> int | None:
        tail = self.outlook.tail
        if tail is None or tail.event_count is None or record.event_count is None:
            return None
        return tail.event_count - record.event_count

    def _backlog(self, name: str) -> int:
        return max(0, self.end - self.sizes[name])

    def _slowest_first(self) -> list[str]:
        return sorted(self.cuts, key=lambda name: (self.sizes[name], name))

    def _ttl(self) -> list[Advance]:
        ttl_ms = self.policy.ttl_ms
        if ttl_ms is None:
            return []
        target = self._aged(ttl_ms)
        found = [] if target is None else self._advance(sorted(self.cuts), target, RetentionRule.TTL)
        self._due_when_aged(ttl_ms)
        return found

    def _due_when_aged(self, age_ms: int) -> None:
        """Record when the next cut that a subscriber has not reached will have this age."""
        outlook, history = self.outlook, self.history
        slowest = self._bound()
        if self._passed is None:
            self._passed = outlook.records_passed(slowest)
        behind = max(outlook.place_aged(age_ms) + 1, self._passed)
        if behind < len(outlook.records):
            self.result.due.append(outlook.time_at(behind) + age_ms)
        for item in outlook.facts.boundaries:
            if item.time_ms > self.now_ms - age_ms and not at_or_after(history, slowest, item.positions):
                self.result.due.append(item.time_ms + age_ms)

    # --- quotas -----------------------------------------------------------------------------------------------

    def _quotas(self) -> list[Advance]:
        policy = self.policy
        found: list[Advance] = []
        if policy.backlog_bytes is not None and policy.bytes_action is OnExceed.EVICT:
            found += self._evict(
                RetentionRule.BACKLOG_BYTES,
                policy.backlog_bytes,
                self._backlog,
                self._left_bytes,
                self._records_around,
            )
        if policy.backlog_events is not None and policy.events_action is OnExceed.EVICT:
            found += self._evict(
                RetentionRule.BACKLOG_EVENTS,
                policy.backlog_events,
                self.events.get,
                self._left_events,
                # Some records may have no count, so all are checked.
                lambda share: self.outlook.records,
            )
        if policy.backlog_age_ms is not None:
            evicts = policy.age_action is OnExceed.EVICT
            found += self._evict_aged(policy.backlog_age_ms, evicts=evicts)
        return found

    def _evict(
        self,
        rule: RetentionRule,
        limit: int,
        backlog: Callable[[str], int | None],
        left: Callable[[StreamCutRecord], int | None],
        records_around: Callable[[int], Sequence[StreamCutRecord]],
    ) -> list[Advance]:
        """If the slowest subscriber's backlog reaches the limit, move subscribers until at most the policy's share of
        the limit is left."""
        known = {name: size for name in self.cuts if (size := backlog(name)) is not None}
        if not known or max(known.values()) < limit:
            return []
        share = math.floor(limit * self.policy.evict_to)
        candidates = [*records_around(share), *self.outlook.facts.boundaries]
        target = self._cut_leaving(left, candidates, limit, share)
        if target is None:
            return []
        lagging = [name for name, size in known.items() if size > share]
        lagging.sort(key=lambda name: (-known[name], name))
        return self._advance(lagging, target, rule)

    def _records_around(self, share: int) -> Sequence[StreamCutRecord]:
        """The last record that leaves more bytes than this (the oldest of equal ones), up to the first that leaves no
        more."""
        outlook = self.outlook
        place = outlook.until_size(self.end - share - 1)
        before = [] if place == 0 else [outlook.records[outlook.until_size(outlook.size_at(place - 1) - 1)]]
        return [*before, *outlook.records[place : place + 1]]

    def _cut_leaving(
        self,
        left: Callable[[StreamCutRecord], int | None],
        candidates: Sequence[StreamCutRecord],
        limit: int,
        share: int,
    ) -> Positions | None:
        """The earliest cut that leaves at most the share. If only the tail does, the latest cut that leaves less than
        the limit. If there is none either, the tail."""
        tail = self.outlook.tail
        ends = () if tail is None else (tail,)
        found = [(size, item) for item in (*candidates, *ends) if (size := left(item)) is not None and size >= 0]
        fits = [pair for pair in found if pair[0] <= share]
        if not fits:
            return None
        best = max(fits, key=lambda pair: pair[0])
        between = [pair for pair in found if share < pair[0] < limit]
        chosen: tuple[int, StreamCutRecord] = best
        if best[0] == 0 < share and between:
            chosen = min(between, key=lambda pair: pair[0])
        return chosen[1].positions

    def _evict_aged(self, limit_ms: int, *, evicts: bool) -> list[Advance]:
        found: list[Advance] = []
        exceeded = self._is_aged(limit_ms)
        share_ms = math.ceil(limit_ms * self.policy.evict_to)
        if evicts and exceeded:
            target = self._aged(share_ms)
            if target is not None:
                found = self._advance(self._slowest_first(), target, RetentionRule.BACKLOG_AGE)
            self._due_when_aged(share_ms)
        self._due_when_aged(limit_ms)
        for name, oldest_ms in self.oldest.items():
            if oldest_ms + limit_ms > self.now_ms and self._backlog(name):
                self.result.due.append(oldest_ms + limit_ms)
        return found

    def _is_aged(self, limit_ms: int) -> bool:
        """Whether at least one unread event is certainly ``age_ms`` old."""
        for name, oldest_ms in self.oldest.items():
            if name in self.cuts and self.now_ms - oldest_ms >= limit_ms and self._backlog(name):
                return True
        target = self._aged(limit_ms)
        if target is None or self._passes(target):
            return False
        goal = Goal(self.outlook, target, RetentionRule.BACKLOG_AGE)
        return any(goal.advance(name, cut) is not None for name, cut in self.cuts.items())

    # --- dropped subscribers, writers, unused streams ------------------------------------------------------------

    def _drops(self) -> list[Drop]:
        idle_ms = self.policy.subscriber_idle_ms
        if idle_ms is None:
            return []
        found = []
        before = dict(self.cuts)
        heard = self.outlook.facts.activity
        for name in sorted(name for name in heard if name in self.outlook.facts.subscribers):
            activity = heard[name]
            if activity.last_active_ms is None:
                continue
            if self.now_ms - activity.last_active_ms < idle_ms:
                self.result.due.append(activity.last_active_ms + idle_ms)
                continue
            cut = self.cuts.pop(name, {})
            self._slowest = self._passed = None
            found.append(Drop(subscriber=name, start=cut, last_active_ms=activity.last_active_ms))
        if len(before) > len(self.cuts):
            self.result.stages.append(Stage(RetentionRule.IDLE_SUBSCRIBER, before))
        return found

    def _writers(self) -> WriterVerdict:
        policy, tail = self.policy, self.outlook.tail
        if not policy.limits_backlog or not self.cuts:
            return OPEN
        slowest = min(self.cuts, key=lambda name: (self.sizes[name], name))
        # Acknowledgements beyond the tail do not allow more appends: those bytes are not written yet.
        read = min(self.sizes[slowest], self.end) if tail is not None else self.sizes[slowest]
        found: list[Bound] = []

        def bound(rule: RetentionRule, action: OnExceed, total: int, name: str, *, reached: bool) -> None:
            found.append(Bound(rule=rule, action=action, total=total, reached=reached, subscriber=name))

        if policy.backlog_bytes is not None:
            over = tail is not None and self._backlog(slowest) >= policy.backlog_bytes
            total = read + policy.backlog_bytes
            bound(RetentionRule.BACKLOG_BYTES, policy.bytes_action, total, slowest, reached=over)
        known = {name: count for name in self.cuts if (count := self.events.get(name)) is not None}
        if policy.backlog_events is not None and known and tail is not None and tail.event_count is not None:
            behind = min(known, key=lambda name: (-known[name], name))
            over = known[behind] >= policy.backlog_events
            total = tail.event_count - known[behind] + policy.backlog_events
            bound(RetentionRule.BACKLOG_EVENTS, policy.events_action, total, behind, reached=over)
        waits = policy.backlog_age_ms is not None and policy.age_action is not OnExceed.EVICT
        if waits and tail is not None and self._is_aged(policy.backlog_age_ms or 0):
            bound(RetentionRule.BACKLOG_AGE, policy.age_action, tail.size_bytes, slowest, reached=True)
        return verdict_of(found)

    def _deletes_stream(self) -> bool:
        policy, outlook, facts = self.policy, self.outlook, self.outlook.facts
        last_ms, tail = facts.last_append_ms, outlook.tail
        if policy.stream_idle_ms is None or last_ms is None or tail is None:
            return False
        if outlook.holds or facts.truncating or not self._unused(tail):
            return False
        kept_ms = 0 if tail.size_bytes <= outlook.head_bytes else self._kept_until(last_ms)
        if kept_ms is None:
            return False
        at_ms = max(last_ms + policy.stream_idle_ms, kept_ms, policy.lock_until_ms or 0)
        if self.now_ms < at_ms:
            self.result.due.append(at_ms)
            return False
        return True

    def _unused(self, tail: StreamCutRecord) -> bool:
        dropped = {item.subscriber for item in self.result.drops}
        left = [name for name in self.outlook.facts.subscribers if name not in dropped]
        if self.policy.stream_idle_when is IdleWhen.NO_SUBSCRIBERS:
            return not left
        return all(name in self.cuts and at_or_after(self.history, self.cuts[name], tail.positions) for name in left)

    def _kept_until(self, last_ms: int) -> int | None:
        """When the minimum allows all data to be deleted. None: never, or the policy keeps data without subscribers."""
        policy, shape = self.policy, self.outlook.shape
        if shape is None or not policy.truncates:
            return 0
        if policy.given("unsubscribed") and not shape.releases and not self.cuts:
            return None
        limits = shape.floor
        if limits.unlimited:
            return None
        # A minimum of bytes always keeps the last bytes. A minimum age ends when the newest data reaches it.
        if limits.age_ms is None or (limits.size_bytes is not None and limits.combine is Combine.ALL):
            return 0 if limits.is_none else None
        return last_ms + limits.age_ms
