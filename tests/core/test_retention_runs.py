"""Streams that live through many cycles: what the plan says is what then happens, and the laws hold at every step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
from retention_facts import _Counts, some_policy
from retention_living import Event, LivingWorld
from retention_model import Model

from penstock.core.cuts.order import at_or_after, check_cut, check_within, head_of, upper_bound
from penstock.core.retention.planner import (
    Hold,
    RetentionDecision,
    RetentionFacts,
    RetentionRule,
    StreamCutRecord,
    SubscriberActivity,
    WriterState,
    decide,
    explain,
)
from penstock.model.retention import EffectivePolicy
from penstock.model.segments import SegmentRange, even_ranges, make_segment_id

RUNS, CYCLES = 150, 14
_UNREAD = {
    RetentionRule.TTL: lambda policy: policy.ttl_ms is not None,
    RetentionRule.BACKLOG_BYTES: lambda policy: policy.backlog_bytes is not None,
    RetentionRule.BACKLOG_EVENTS: lambda policy: policy.backlog_events is not None,
    RetentionRule.BACKLOG_AGE: lambda policy: policy.backlog_age_ms is not None,
    RetentionRule.SUBSCRIBERS_MAXIMUM: lambda policy: policy.max_bytes is not None or policy.max_age_ms is not None,
    RetentionRule.OVERLAP_MAXIMUM: lambda policy: policy.max_bytes is not None or policy.max_age_ms is not None,
}


@dataclass
class Store:
    """A stream and its controller, which does what the planner says and nothing else."""

    random: Random
    world: LivingWorld
    policy: EffectivePolicy
    head: dict[int, int] | None = None
    records: list[StreamCutRecord] = field(default_factory=list)
    cuts: dict[str, dict[int, int]] = field(default_factory=dict)
    holds: list[Hold] = field(default_factory=list)
    gone: set[Event] = field(default_factory=set)
    exact: bool = False

    def facts(self) -> RetentionFacts:
        history, counts = self.world.history, _Counts(self.world)
        # As a controller does it: what is lost before the head is nobody's backlog.
        cuts = {n: upper_bound(history, [c, self.head]) if c and self.head else c for n, c in self.cuts.items()}
        activity = {
            name: SubscriberActivity(
                backlog_events=len(self.world.events) - counts.before(cut) if cut else None,
                last_active_ms=self.random.choice([None, self.world.now_ms]),
            )
            for name, cut in cuts.items()
        }
        return RetentionFacts(
            history=history,
            policy=self.policy,
            head=self.head,
            retention_set=list(self.records),
            subscribers=cuts,
            tail=replace(self.world.tail(), event_count=len(self.world.events)),
            holds=self.holds,
            activity=activity,
            last_append_ms=self.world.now_ms,
            boundaries=[self.world.boundary(item, self.records) for item in self.world.moments] if self.exact else (),
        )

    def live(self) -> None:
        for _ in range(self.random.randint(1, 6)):
            self.world.step(self.random)
        for name in ("a", "b"):
            if self.random.random() < 0.4:
                cut = self.world.some_cut(self.random)
                before = self.cuts.get(name)
                self.cuts[name] = upper_bound(self.world.history, [before, cut]) if before else cut
        if self.random.random() < 0.15:
            cut = self.random.choice([None, self.world.some_cut(self.random)])
            self.holds.append(Hold(id=f"h{len(self.holds)}", positions=cut, until_ms=self.world.now_ms + 20))

    def perform(self, decision: RetentionDecision) -> None:
        if decision.record is not None:
            self.records.append(decision.record)
        for item in (*decision.expirations, *decision.evictions):
            self.cuts[item.subscriber] = dict(item.end)
        for drop in decision.drops:
            del self.cuts[drop.subscriber]
        if decision.truncate is not None:
            self.head = dict(decision.truncate)
        if decision.prune_through_ms is not None:
            forgotten = [r for r in self.records if r.time_ms <= decision.prune_through_ms]
            self.records = [r for r in self.records if r.time_ms > decision.prune_through_ms]
            if decision.truncate is not None:
                # What lies behind the new head may be needed yet.
                assert all(at_or_after(self.world.history, decision.truncate, r.positions) for r in forgotten)


def cycle(store: Store) -> None:
    facts, world = store.facts(), store.world
    history, counts, now_ms = facts.history, _Counts(world), world.now_ms
    decision = decide(facts, now_ms=now_ms)
    assert decide(replace(facts), now_ms=now_ms) == decision
    old_head = facts.head or head_of(history)
    before = {name: cut for name, cut in facts.subscribers.items() if cut}
    store.perform(decision)
    head = store.head or head_of(history)
    check_cut(history, head)
    check_within(history, head)
    assert at_or_after(history, head, old_head)
    gone = {event for event in world.events if counts.passed(head, event)}
    fresh = gone - store.gone
    assert sum(event.size for event in fresh) == decision.frees_bytes
    store.gone = gone
    if fresh:
        # Cuts may lie inside events only where the world's own cuts do, which are between events.
        assert len(fresh) == decision.summary().events or decision.summary().events is None
        _check_minimum(facts, world, now_ms, decision)
        _check_readers(store, before, fresh, decision, counts)
        _check_holds(facts, fresh, now_ms, counts)
    kept = sum(event.size for event in world.events if event not in gone)
    ranges = explain(facts, now_ms=now_ms)
    assert sum(item.bytes for item in ranges) == kept + decision.frees_bytes
    assert sum(item.bytes for item in decision.held_by) == kept
    _check_writers(store, decision, counts)


def _check_minimum(facts: RetentionFacts, world: LivingWorld, now_ms: int, decision: RetentionDecision) -> None:
    """What no rule goes below, measured on the events that are left, not on the planner's cuts."""
    assert decision.truncate is not None
    model = Model(facts, world.events, now_ms)
    place = model.place(decision.truncate)
    candidate = model.place(decision.candidate or decision.truncate)
    assert model.leaves_minimum(place) or not model.leaves_minimum(candidate), decision.rule
    by_size = facts.policy.given("retain.min_bytes") and not facts.policy.given("retain.min_age_s")  # type: ignore[union-attr]
    if by_size and facts.policy.measure.value == "stream":  # type: ignore[union-attr]
        assert model.left(place) >= (facts.policy.min_bytes or 0)  # type: ignore[union-attr]


def _check_readers(
    store: Store, before: dict[str, Any], fresh: set[Event], decision: RetentionDecision, counts: _Counts
) -> None:
    """Whatever goes unread is in the record of an advance by a rule that the policy has, or its reader was dropped."""
    advances = (*decision.expirations, *decision.evictions)
    dropped = {item.subscriber for item in decision.drops}
    for item in advances:
        assert _UNREAD[item.rule](store.policy), item
    for name, cut in before.items():
        unread = [event for event in fresh if not counts.passed(cut, event)]
        if name in dropped or not unread:
            continue
        own = [item for item in advances if item.subscriber == name]
        assert own
        assert all(any(counts.passed(item.end, event) for item in own) for event in unread)
        assert sum(item.bytes for item in own) >= sum(event.size for event in unread)


def _check_holds(facts: RetentionFacts, fresh: set[Event], now_ms: int, counts: _Counts) -> None:
    for hold in facts.holds:
        if hold.until_ms is None or now_ms < hold.until_ms:
            assert hold.positions is not None
            assert all(counts.passed(hold.positions, event) for event in fresh)


def _check_writers(store: Store, decision: RetentionDecision, counts: _Counts) -> None:
    verdict = decision.writers
    assert (verdict.rule is None) is (verdict.state is WriterState.OPEN)
    if (
        verdict.total_bytes is not None
        and store.policy.backlog_bytes is not None
        and store.policy.backlog_age_ms is None
    ):
        slowest = verdict.subscriber if verdict.rule is RetentionRule.BACKLOG_BYTES else None
        if slowest is not None:
            read = sum(event.size for event in store.world.events if counts.passed(store.cuts[slowest], event))
            assert verdict.total_bytes == read + store.policy.backlog_bytes or store.policy.backlog_age_ms is not None


@pytest.mark.parametrize("chunk", range(5))
def test_the_laws_hold_at_every_step(chunk: int) -> None:
    for seed in range(chunk * RUNS // 5, (chunk + 1) * RUNS // 5):
        random = Random(seed)
        count = random.randint(1, 3)
        items = [SegmentRange(segment=make_segment_id(0, i), keys=k) for i, k in enumerate(even_ranges(count))]
        store = Store(random, LivingWorld([items]), some_policy(random, 120, 60), exact=seed % 2 == 1)
        try:
            for _ in range(CYCLES):
                store.live()
                cycle(store)
                if random.random() < 0.1:
                    store.policy = some_policy(random, 120, 60)
        except Exception as error:
            error.add_note(f"seed={seed}")
            raise


def test_a_second_cycle_at_the_same_time_takes_nothing_more() -> None:
    """But for the one case of the document that goes to its minimum in two steps: by size, above the maximum, unread; and
    where the first has emptied the retention set, so that the tail comes into it."""
    for seed in range(120):
        random = Random(seed)
        store = Store(
            random, LivingWorld([[SegmentRange(segment=0, keys=even_ranges(1)[0])]]), some_policy(random, 90, 60)
        )
        for _ in range(6):
            store.live()
            first = decide(store.facts(), now_ms=store.world.now_ms)
            store.perform(first)
            second = decide(store.facts(), now_ms=store.world.now_ms)
            again = first.rule is RetentionRule.MAXIMUM or first.drops or second.drops or second.record
            if not again:
                assert (second.frees_bytes, second.expirations, second.evictions) == (0, (), ()), seed
            store.perform(second)
