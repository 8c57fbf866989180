"""Facts and policies at random, and the check of the planner against the model."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from retention_living import LivingWorld
from retention_model import Decided, Model
from retention_world import keys_of, position_at

from penstock.core.cuts.order import check_cut, lower_bound
from penstock.core.policies.levels import effective_of, resolve, validate
from penstock.core.retention.planner import (
    Hold,
    HolderKind,
    RetentionDecision,
    RetentionFacts,
    SubscriberActivity,
    WriterState,
    decide,
    explain,
)
from penstock.model.errors import InvalidArgumentError
from penstock.model.policies import RetentionPolicy, RetentionType
from penstock.model.retention import (
    EMPTY,
    INHERIT,
    Backlog,
    Combine,
    EffectivePolicy,
    Idle,
    IdleWhen,
    Measure,
    OnExceed,
    PolicyDocument,
    Retain,
    Unsubscribed,
)
from penstock.model.segments import SegmentRange, even_ranges, make_segment_id


def some_policy(random: Random, size: int, span_ms: int) -> EffectivePolicy:
    """Any policy whose limits are of the order of what the stream has."""

    def limit(most: int, scale: float = 1) -> Any:
        value = random.choice([0, random.randint(0, max(1, most // 4)), random.randint(0, max(1, most))])
        return random.choice([INHERIT, INHERIT, None, value * scale, value * scale, value * scale])

    def positive(most: int, scale: float = 1) -> Any:
        return random.choice([INHERIT, random.randint(1, max(1, most)) * scale])

    quiet = random.random() < 0.4
    family = random.choice(["size", "time", "both", "both", "segments"])
    retain = Retain(
        min_bytes=INHERIT if family == "time" else limit(size),
        min_age_s=INHERIT if family in ("size", "segments") else limit(span_ms, 0.001),
        max_bytes=INHERIT if family == "time" else limit(size),
        max_age_s=INHERIT if family in ("size", "segments") else limit(span_ms, 0.001),
        combine=random.choice([INHERIT, Combine.ANY, Combine.ALL]),
        measure=Measure.SEGMENT if family == "segments" or random.random() < 0.2 else INHERIT,
    )
    document = PolicyDocument(
        retain=random.choice([retain, retain, retain, Retain()]),
        unsubscribed=random.choice([INHERIT, INHERIT, *Unsubscribed]),
        backlog=Backlog()
        if quiet
        else Backlog(
            ttl_s=positive(span_ms, 0.001),
            max_bytes=random.choice([INHERIT, positive(size)]),
            max_age_s=random.choice([INHERIT, positive(span_ms, 0.001)]),
            max_events=random.choice([INHERIT, positive(20)]),
            on_exceed=random.choice(list(OnExceed)),
            on_exceed_bytes=random.choice([INHERIT, INHERIT, *OnExceed]),
            on_exceed_age=random.choice([INHERIT, INHERIT, *OnExceed]),
            on_exceed_events=random.choice([INHERIT, INHERIT, *OnExceed]),
            evict_to=random.choice([INHERIT, 1.0, 0.5, 0.1]),
        ),
        idle=Idle()
        if quiet
        else Idle(
            subscriber_s=random.choice([INHERIT, INHERIT, positive(span_ms, 0.001)]),
            stream_s=random.choice([INHERIT, positive(span_ms, 0.001)]),
            stream_when=random.choice(list(IdleWhen)),
        ),
    )
    try:
        return resolve(validate(document), EMPTY, EMPTY)
    except InvalidArgumentError:
        # The minimum exceeds the maximum: no such policy comes to the planner.
        return some_policy(random, size, span_ms)


def some_world(random: Random) -> LivingWorld:
    items = [
        SegmentRange(segment=make_segment_id(0, i), keys=keys)
        for i, keys in enumerate(even_ranges(random.randint(1, 4)))
    ]
    world = LivingWorld([items])
    for _ in range(random.randint(0, 30)):
        world.step(random)
    return world


def some_facts(random: Random) -> tuple[RetentionFacts, LivingWorld, int]:
    world = some_world(random)
    history, tail = world.history, world.tail()
    model_counts = _Counts(world)
    tail = replace(tail, event_count=len(world.events))
    records = [replace(item, event_count=model_counts.before(item.positions)) for item in world.records]
    records = records[random.choice([0, 0, random.randint(0, len(records))]) :]
    head = None
    if world.records and random.random() < 0.5:
        head = lower_bound(history, [random.choice(world.records).positions, world.some_cut(random)])
    subscribers = {f"s{n}": random.choice([{}, *[world.some_cut(random)] * 3]) for n in range(random.randint(0, 3))}
    span_ms = max(world.now_ms - 1000, 2)
    now_ms = world.now_ms + random.choice([0, 1, 30])
    holds = []
    if random.random() < 0.2:
        where = random.choice([None, world.some_cut(random)])
        holds.append(Hold(id="h", positions=where, until_ms=random.choice([None, now_ms, now_ms + 10])))
    boundaries = []
    for item in records[1:]:
        if random.random() < 0.15:
            cut = lower_bound(history, [item.positions, world.some_cut(random)])
            size = sum(event.size for event in world.events if model_counts.passed(cut, event))
            boundaries.append(replace(item, positions=cut, size_bytes=size, event_count=model_counts.before(cut)))
    if random.random() < 0.5:
        for moment in random.choices(world.moments, k=3):
            count = model_counts.before(moment.positions)
            boundaries.append(replace(world.boundary(moment, records), event_count=count))
    activity = {
        name: SubscriberActivity(
            oldest_unacked_ms=min((e.time_ms for e in world.events if not model_counts.passed(cut, e)), default=None)
            if cut
            else None,
            backlog_events=len(world.events) - model_counts.before(cut) if cut else None,
            last_active_ms=random.choice([None, now_ms - random.randint(0, span_ms)]),
        )
        for name, cut in subscribers.items()
    }
    facts = RetentionFacts(
        history=history,
        policy=some_policy(random, tail.size_bytes, span_ms),
        head=head,
        truncating=random.random() < 0.05,
        retention_set=records,
        subscribers=subscribers,
        tail=tail,
        frequency_ms=random.choice([0, 10]),
        holds=holds,
        activity=activity,
        boundaries=boundaries,
        last_append_ms=random.choice([None, max((e.time_ms for e in world.events), default=1000)]),
        head_event_count=0 if head is None else model_counts.before(head),
    )
    return facts, world, now_ms


class _Counts:
    def __init__(self, world: LivingWorld) -> None:
        self.history = world.history
        self.events = world.events
        self.keys = keys_of(self.history)

    def passed(self, positions: Any, event: Any) -> bool:
        ranges = self.history.ranges()[event.segment]
        key = next(key for key in self.keys if ranges.low <= key < ranges.high)
        found = position_at(self.history, positions, key)
        return found is not None and found >= (event.segment, event.end)

    def before(self, positions: Any) -> int:
        return sum(self.passed(positions, event) for event in self.events)


def check(facts: RetentionFacts, world: LivingWorld, now_ms: int) -> RetentionDecision:
    model = Model(facts, world.events, now_ms)
    expected = model.decide()
    decision = decide(facts, now_ms=now_ms)
    candidate = None if decision.candidate is None else model.place(decision.candidate)
    assert candidate == expected.candidate
    head = model.head if decision.truncate is None else model.place(decision.truncate)
    assert head == (expected.head if decision.truncate is not None else model.head)
    if decision.truncate is None:
        assert expected.head == model.head
    else:
        check_cut(facts.history, decision.truncate)
    assert decision.frees_bytes == model.bytes_before(head) - model.bytes_before(model.head)
    assert [(i.subscriber, i.bytes) for i in decision.expirations] == [i[:2] for i in expected.expired]
    by_quota = [item for item in decision.evictions if item.rule.value.startswith("backlog")]
    assert [(i.subscriber, i.bytes, i.rule.value) for i in by_quota] == [(n, s, r) for n, s, _, r in expected.evicted]
    advances = zip((*decision.expirations, *by_quota), (*expected.expired, *expected.evicted), strict=True)
    counted = [(item.events, wanted[2]) for item, wanted in advances]
    assert all(count in (None, wanted) for count, wanted in counted)
    assert [item.subscriber for item in decision.drops] == expected.dropped
    assert decision.deletes_stream is expected.deletes
    verdict = decision.writers
    assert (verdict.total_bytes, verdict.total_events) == (expected.total_bytes, expected.total_events)
    assert (verdict.bytes_state.word, verdict.events_state.word) == (expected.bytes_state, expected.events_state)
    assert (verdict.state is WriterState.OPEN) is (expected.total_bytes is None and expected.total_events is None)
    _check_moves(model, expected, decision)
    _check_holders(model, expected, decision, facts, now_ms)
    return decision


def _check_moves(model: Model, expected: Decided, decision: RetentionDecision) -> None:
    """The last advance before truncation leaves each subscriber where the model has it; a maximum takes exactly what is
    not read of what goes."""
    ends = {item.subscriber: item.end for item in decision.expirations}
    maximum = []
    for item in decision.evictions:
        if item.rule.value.startswith("backlog"):
            ends[item.subscriber] = item.end
        else:
            maximum.append(item)
    for name, end in ends.items():
        check_cut(model.history, end)
        if name in expected.acked:
            assert model.place(end) == expected.acked[name]
    taken = {name: model._lost(place, expected.head)[0] for name, place in expected.acked.items()}
    if decision.truncate is None:
        taken = {}
    assert {item.subscriber: item.bytes for item in maximum} == {name: size for name, size in taken.items() if size}


def _check_holders(
    model: Model, expected: Decided, decision: RetentionDecision, facts: RetentionFacts, now_ms: int
) -> None:
    ranges = explain(facts, now_ms=now_ms)
    assert sum(item.bytes for item in ranges) == max(0, model.left(model.head))
    head = model.head if decision.truncate is None else expected.head
    due = [e for e in model.events if model.passed(head, e) and not model.passed(model.head, e)]
    left = [e for e in model.events if not model.passed(head, e)]
    holds = model._holds()
    held = [e for e in left if any(not model.passed(place, e) for place in holds)]
    if (
        decision.truncate is None
        and model.facts.holds
        and any(h.positions is None for h in model.facts.holds)
        and holds
    ):
        held = left
    wanted = {HolderKind.DUE: due, HolderKind.HOLD: held}
    rest = [e for e in left if e not in held]
    if not model.policy.truncates:
        wanted[HolderKind.NO_POLICY] = rest
    else:
        wanted[HolderKind.SUBSCRIBER] = [
            e for e in rest if any(not model.passed(place, e) for place in expected.acked.values())
        ]
    sums = dict.fromkeys(HolderKind, 0)
    for item in ranges:
        sums[item.kind] += item.bytes
    for kind, events in wanted.items():
        assert sums[kind] == sum(event.size for event in events), kind


def apart_facts(random: Random) -> tuple[RetentionFacts, LivingWorld, int]:
    """A subscriber anywhere, and a minimum and a maximum that it is often between: what Pravega's five relations are about."""
    facts, world, now_ms = some_facts(random)
    kind = random.choice(list(RetentionType))
    most = facts.tail.size_bytes if kind is RetentionType.SIZE and facts.tail else world.now_ms - 1000
    minimum = random.randint(0, most // 3)
    policy = RetentionPolicy(type=kind, minimum=minimum, maximum=minimum + random.randint(0, most // 3))
    facts = replace(
        facts,
        policy=effective_of(policy),
        subscribers={"s": world.some_cut(random)},
        activity={"s": SubscriberActivity()},
        head=None,
        truncating=False,
    )
    return facts, world, now_ms
