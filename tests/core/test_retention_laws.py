"""What holds for every decision, over random streams that scale, merge and roll."""

from __future__ import annotations

import re
from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from retention_world import World, brute_size, covers, keys_of, position_at, pravega, worlds

from penstock.core.cuts.order import at_or_after, check_cut, check_within, head_of, lower_bound
from penstock.core.retention.outlook import shape_of
from penstock.core.retention.planner import (
    Hold,
    HolderKind,
    RetentionFacts,
    RetentionRule,
    StreamCutRecord,
    decide,
    explain,
)
from penstock.core.streams.history import StreamHistory
from penstock.model.policies import RetentionType

RULES_OF_A_MAXIMUM = (RetentionRule.SUBSCRIBERS_MAXIMUM, RetentionRule.OVERLAP_MAXIMUM)
LAWS = settings(deadline=None, max_examples=250)


@st.composite
def situations(draw: st.DrawFn) -> tuple[RetentionFacts, int, Random]:
    world, random = draw(worlds(steps=40))
    facts = _facts(world, random)
    return facts, world.now_ms + random.choice([0, 1, 30]), random


def _facts(world: World, random: Random) -> RetentionFacts:
    tail = world.tail()
    kind = random.choice(list(RetentionType))
    scale = tail.size_bytes if kind is RetentionType.SIZE else max(world.now_ms - 1000, 1)
    minimum = random.choice([0, random.randint(0, scale // 4), random.randint(0, scale)])
    maximum = random.choice([None, minimum + random.randint(0, scale // 3), minimum + random.randint(0, scale)])
    head = None
    if world.records and random.random() < 0.5:
        head = lower_bound(world.history, [random.choice(world.records).positions, world.some_cut(random)])
    records = world.records[random.choice([0, 0, random.randint(0, len(world.records))]) :]
    subscribers = {f"s{n}": random.choice([{}, world.some_cut(random)]) for n in range(random.randint(0, 3))}
    holds = []
    if random.random() < 0.2:
        where = random.choice([None, world.some_cut(random)])
        holds.append(Hold(id="h", positions=where, until_ms=random.choice([None, world.now_ms + 10])))
    return RetentionFacts(
        history=world.history,
        policy=pravega(kind, minimum, maximum),
        head=head,
        truncating=random.random() < 0.05,
        retention_set=records,
        subscribers=subscribers,
        tail=tail if random.random() < 0.8 or not records else None,
        frequency_ms=random.choice([0, 10]),
        holds=holds,
    )


# --- a slow second opinion: no searching, every record and every key is looked at --------------------------------


def _behind(history: StreamHistory, a: dict, b: dict) -> bool:
    return any(position_at(history, a, key) < position_at(history, b, key) for key in keys_of(history))


def slow_choice(facts: RetentionFacts, now_ms: int) -> dict | None:
    history, policy = facts.history, shape_of(facts.policy).pravega
    records = list(facts.retention_set)
    tail = facts.tail or records[-1]
    if facts.tail is not None and (
        not records
        or (
            now_ms - records[-1].time_ms > facts.frequency_ms
            and facts.tail.time_ms > records[-1].time_ms
            and facts.tail.size_bytes >= records[-1].size_bytes
        )
    ):
        records.append(facts.tail)
    by_size = policy.by_size

    def kept(record: StreamCutRecord) -> int:
        return tail.size_bytes - record.size_bytes if by_size else now_ms - record.time_ms

    enough = [record for record in records if kept(record) >= policy.minimum]
    low = enough[-1] if enough else None
    within = [record for record in enough if policy.maximum is None or kept(record) <= policy.maximum]
    top = max(reversed(within), key=kept) if within else low
    published = [positions for positions in facts.subscribers.values() if positions]
    if not published:
        if low is None:
            return None
        head = facts.head or head_of(history)
        over = policy.maximum is not None and tail.size_bytes - brute_size(history, head) > policy.maximum
        return top.positions if by_size and over else low.positions
    bound = lower_bound(history, published)

    def at_low() -> dict | None:
        if low is None or not _behind(history, bound, low.positions):
            return low and low.positions
        before = [record for record in enough if not _behind(history, bound, record.positions)]
        return before[-1].positions if before else None

    def past_overlap() -> dict:
        ahead = [record for record in enough if not _behind(history, record.positions, bound)]
        return ahead[0].positions if ahead else top.positions

    def overlaps(record: StreamCutRecord) -> bool:
        return _behind(history, bound, record.positions) and _behind(history, record.positions, bound)

    if by_size:
        left = tail.size_bytes - brute_size(history, bound)
        if left < policy.minimum:
            return at_low()
        if policy.maximum is None or left <= policy.maximum or top is None or kept(top) >= left:
            return bound
        return past_overlap() if overlaps(top) else top.positions
    if low is None:
        return None
    if _behind(history, low.positions, bound):
        return at_low()
    old = [record for record in records if policy.maximum is not None and kept(record) >= policy.maximum]
    if not old or not _behind(history, bound, old[-1].positions):
        return bound
    return past_overlap() if overlaps(old[-1]) else top.positions


@LAWS
@given(situations())
def test_the_choice_agrees_with_looking_at_every_record_and_key(situation: tuple[RetentionFacts, int, Random]) -> None:
    facts, now_ms, _ = situation
    chosen = decide(facts, now_ms=now_ms).candidate
    assert (None if chosen is None else dict(chosen)) == slow_choice(facts, now_ms)


@LAWS
@given(situations())
def test_the_same_facts_give_the_same_decision(situation: tuple[RetentionFacts, int, Random]) -> None:
    facts, now_ms, _ = situation
    again = replace(facts, subscribers=dict(reversed(facts.subscribers.items())))
    assert decide(facts, now_ms=now_ms) == decide(again, now_ms=now_ms)
    assert explain(facts, now_ms=now_ms) == explain(again, now_ms=now_ms)


@LAWS
@given(situations())
def test_every_decision_can_be_read_by_people(situation: tuple[RetentionFacts, int, Random]) -> None:
    facts, now_ms, _ = situation
    decision = decide(facts, now_ms=now_ms)
    assert decision.why.startswith("Deletes " if decision.frees_bytes else "Nothing is deleted")
    for text in (decision.why, decision.stays):
        assert re.fullmatch(r"([A-Z0-9](?:[^.{}]|\.\d)*\. ?)*", text), text
        assert "bytes" not in text, "a size has a unit that people read"
    assert (decision.stays == "") == (decision.held_by == ())
    assert not (decision.frees_bytes and decision.stays.startswith("All ")), "not all is kept if some is deleted"


@given(situations())
def test_the_head_never_moves_back_and_never_past_the_tail(situation: tuple[RetentionFacts, int, Random]) -> None:
    facts, now_ms, _ = situation
    decision = decide(facts, now_ms=now_ms)
    if decision.truncate is None:
        assert decision.frees_bytes == 0
        assert decision.prune_through_ms is None
        return
    history = facts.history
    head = facts.head or head_of(history)
    assert at_or_after(history, decision.truncate, head)
    check_cut(history, decision.truncate)
    check_within(history, decision.truncate)
    if facts.tail is not None:
        assert at_or_after(history, facts.tail.positions, decision.truncate)
    assert decision.frees_bytes == brute_size(history, decision.truncate) - brute_size(history, head)


@LAWS
@given(situations())
def test_what_is_left_is_never_below_the_minimum(situation: tuple[RetentionFacts, int, Random]) -> None:
    facts, now_ms, _ = situation
    decision = decide(facts, now_ms=now_ms)
    if decision.truncate is None:
        return
    policy = shape_of(facts.policy).pravega
    if policy.by_size:
        end = (facts.tail or facts.retention_set[-1]).size_bytes
        assert end - brute_size(facts.history, decision.truncate) >= policy.minimum
    else:
        records = [*facts.retention_set, *([decision.record] if decision.record else [])]
        old = [record for record in records if now_ms - record.time_ms >= policy.minimum]
        assert any(at_or_after(facts.history, record.positions, decision.truncate) for record in old)


@LAWS
@given(situations())
def test_a_subscriber_is_passed_by_a_maximum_only_and_with_an_eviction_record(
    situation: tuple[RetentionFacts, int, Random],
) -> None:
    facts, now_ms, _ = situation
    decision = decide(facts, now_ms=now_ms)
    history = facts.history
    evicted = {item.subscriber: item for item in decision.evictions}
    head = facts.head or head_of(history)
    for name, positions in facts.subscribers.items():
        if not positions or decision.truncate is None or not _behind(history, positions, decision.truncate):
            assert name not in evicted
            continue
        lost = 0
        for segment in history.ranges():
            lost += _unread(history, segment, positions, decision.truncate, head)
        if lost:
            assert shape_of(facts.policy).pravega.maximum is not None
            assert decision.rule in RULES_OF_A_MAXIMUM
            assert evicted[name].bytes == lost
            assert at_or_after(history, evicted[name].end, decision.truncate)
            assert at_or_after(history, evicted[name].end, positions)
        else:
            assert name not in evicted


def _unread(history: StreamHistory, segment: int, cut: dict, target: dict, head: dict) -> int:
    """Bytes of the segment before ``target`` that lie neither before the cut nor before the head."""

    def reached(positions: dict) -> int:
        key = next(key for key in keys_of(history) if covers(history, segment, key))
        if segment in positions:
            return max(positions[segment], 0)
        return history.sealed_lengths[segment] if position_at(history, positions, key)[0] > segment else 0

    return max(0, reached(target) - max(reached(cut), reached(head)))


@LAWS
@given(situations())
def test_a_hold_always_wins(situation: tuple[RetentionFacts, int, Random]) -> None:
    facts, now_ms, _ = situation
    decision = decide(facts, now_ms=now_ms)
    for hold in facts.holds:
        if decision.truncate is None or (hold.until_ms is not None and now_ms >= hold.until_ms):
            continue
        assert hold.positions is not None
        assert not _behind(facts.history, hold.positions, decision.truncate) or decision.frees_bytes == 0


@LAWS
@given(situations())
def test_pruning_forgets_exactly_the_records_at_or_before_the_new_head(
    situation: tuple[RetentionFacts, int, Random],
) -> None:
    facts, now_ms, _ = situation
    decision = decide(facts, now_ms=now_ms)
    if decision.truncate is None:
        return
    records = [*facts.retention_set, *([decision.record] if decision.record else [])]
    forgotten = [r for r in records if decision.prune_through_ms is not None and r.time_ms <= decision.prune_through_ms]
    expected = [r for r in records if not _behind(facts.history, decision.truncate, r.positions)]
    assert forgotten == expected


@LAWS
@given(situations())
def test_the_explanation_sums_to_the_size_of_the_stream(situation: tuple[RetentionFacts, int, Random]) -> None:
    facts, now_ms, _ = situation
    ranges = explain(facts, now_ms=now_ms)
    history = facts.history
    start = brute_size(history, facts.head or head_of(history))
    end = (facts.tail or facts.retention_set[-1]).size_bytes
    assert sum(item.bytes for item in ranges) == max(0, end - start)
    for before, after in zip(ranges, ranges[1:], strict=False):
        assert before.end_bytes == after.start_bytes
    for item in ranges:
        assert item.bytes > 0
        for positions, size in ((item.start, item.start_bytes), (item.end, item.end_bytes)):
            assert positions is None or brute_size(history, positions) == size
    decision = decide(facts, now_ms=now_ms)
    if facts.tail is not None:
        assert sum(item.bytes for item in ranges if item.kind is HolderKind.DUE) == decision.frees_bytes
    kept = sum(item.bytes for item in ranges if item.kind is not HolderKind.DUE)
    assert sum(item.bytes for item in decision.held_by) == kept
