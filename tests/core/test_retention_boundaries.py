"""Limits of bytes where there are no records, or none near: boundaries between events are as good, and nothing else of them is."""

from __future__ import annotations

from typing import Any

from retention_world import ONE, TWO, age, at, cut, one_segment, record, size

from penstock.core.policies.levels import resolve
from penstock.core.retention.planner import RetentionDecision, RetentionFacts, RetentionRule, StreamCutRecord, decide
from penstock.model.retention import EMPTY, EffectivePolicy, Measure, PolicyDocument, Retain


def policy(**retain: Any) -> EffectivePolicy:
    return resolve(PolicyDocument(retain=Retain(**retain)), EMPTY, EMPTY)


def unrecorded(
    applied: EffectivePolicy, *boundaries: int, subscriber: int | None = 0, **more: Any
) -> RetentionDecision:
    """100 bytes that nobody has recorded, with these boundaries; a cycle at 5000 ms."""
    facts = RetentionFacts(
        history=ONE,
        policy=applied,
        tail=record(5000, 100),
        boundaries=[record(5000, item) for item in boundaries],
        subscribers={} if subscriber is None else {"a": at(subscriber)},
        **more,
    )
    return decide(facts, now_ms=5000)


def test_a_maximum_takes_what_it_must_and_no_more() -> None:
    for applied in (size(0, 40), policy(max_bytes=40, min_age_s=0), policy(max_bytes=40, measure=Measure.SEGMENT)):
        decision = unrecorded(applied, 30, 63, 95)
        assert (decision.truncate, decision.rule) == (at(63), RetentionRule.SUBSCRIBERS_MAXIMUM)
        assert [item.bytes for item in decision.evictions] == [63]
        # Without any the tail, which is recorded now, is the only cut there is.
        assert unrecorded(applied).truncate == at(100)


def test_a_minimum_lets_go_what_it_may_and_no_more() -> None:
    for applied in (size(10), policy(min_bytes=10, max_age_s=9), policy(min_bytes=10, measure=Measure.SEGMENT)):
        for subscriber in (None, 100, 95):
            assert unrecorded(applied, 40, 87, 91, subscriber=subscriber).truncate == at(87)
            assert unrecorded(applied, subscriber=subscriber).truncate is None


def test_minimum_and_maximum_are_kept_both_where_a_boundary_lies_between() -> None:
    for applied in (size(10, 40), policy(min_bytes=10, max_bytes=40, measure=Measure.SEGMENT)):
        assert unrecorded(applied, 55, 65, 88).truncate == at(65)
        # None leaves so little: the minimum decides.
        assert unrecorded(applied, 55, 95).truncate == at(55)
        assert unrecorded(applied, 95).frees_bytes == 0


def test_an_age_knows_no_boundaries() -> None:
    assert unrecorded(age(1000, 4000), 30, 63).truncate is None
    assert unrecorded(policy(min_age_s=1, max_bytes=40), 30, 63).truncate is None


def test_a_record_that_does_as_well_is_taken_and_forgotten_with_all_before_it() -> None:
    between = StreamCutRecord(time_ms=4000, size_bytes=60, positions=at(60))
    facts = one_segment(size(40), 20, 40, 60, 100, boundaries=[between])
    assert (decide(facts, now_ms=9000).truncate, decide(facts, now_ms=9000).prune_through_ms) == (at(60), 3000)


def test_at_a_boundary_only_the_records_before_it_are_forgotten() -> None:
    between = StreamCutRecord(time_ms=4000, size_bytes=55, positions=at(55))
    decision = decide(one_segment(size(45), 20, 40, 60, 100, boundaries=[between]), now_ms=9000)
    assert (decision.truncate, decision.prune_through_ms) == (at(55), 2000)
    first = StreamCutRecord(time_ms=1000, size_bytes=15, positions=at(15))
    decision = decide(one_segment(size(85), 20, 40, 60, 100, boundaries=[first]), now_ms=9000)
    assert (decision.truncate, decision.prune_through_ms) == (at(15), None)


def test_boundaries_that_overlap_what_is_read_give_way_to_those_that_do_not() -> None:
    def stream(applied: EffectivePolicy) -> RetentionDecision:
        facts = RetentionFacts(
            history=TWO,
            policy=applied,
            tail=record(5000, 50, 50),
            boundaries=[record(5000, *ends) for ends in ((5, 20), (35, 10), (40, 20), (31, 31), (42, 42))],
            subscribers={"a": cut(s0e0=30, s1e0=25)},
        )
        return decide(facts, now_ms=5000)

    below = stream(size(50))
    assert (below.truncate, below.rule) == (cut(s0e0=5, s1e0=20), RetentionRule.OVERLAP_MINIMUM)
    above = stream(size(5, 43))
    assert (above.truncate, above.rule) == (cut(s0e0=31, s1e0=31), RetentionRule.OVERLAP_MAXIMUM)


def test_each_segment_takes_its_own_place_out_of_whichever_boundary_has_it() -> None:
    facts = RetentionFacts(
        history=TWO,
        policy=policy(max_bytes=20, min_bytes=5, measure=Measure.SEGMENT),
        tail=record(5000, 50, 90),
        boundaries=[record(5000, 33, 40), record(5000, 10, 72)],
        subscribers={"a": cut(s0e0=0, s1e0=0)},
    )
    assert decide(facts, now_ms=5000).truncate == cut(s0e0=33, s1e0=72)
