"""The general rule, for policies that Pravega has no words for: by its own words, on streams small enough to see."""

from __future__ import annotations

from typing import Any

import pytest
from retention_world import TWO, at, cut, history_of, one_segment, record

from penstock.core.policies.levels import resolve
from penstock.core.retention.planner import RetentionDecision, RetentionFacts, RetentionRule, StreamCutRecord, decide
from penstock.model.retention import EMPTY, Combine, EffectivePolicy, Measure, PolicyDocument, Retain, Unsubscribed


def policy(unsubscribed: Any = None, **retain: Any) -> EffectivePolicy:
    more = {} if unsubscribed is None else {"unsubscribed": unsubscribed}
    return resolve(PolicyDocument(retain=Retain(**retain), **more), EMPTY, EMPTY)


def decided(applied: EffectivePolicy, subscriber: int | None = None, **more: Any) -> RetentionDecision:
    """Cuts at 1000 … 5000 ms at 20, 40, 60, 80, 100 bytes, asked at 5000."""
    subscribers = {} if subscriber is None else {"a": at(subscriber)}
    return decide(one_segment(applied, 20, 40, 60, 80, 100, subscribers=subscribers, **more), now_ms=5000)


@pytest.mark.parametrize(
    ("combine", "min_bytes", "min_age_s", "head"),
    [
        (Combine.ANY, 30, 3, 60),
        (Combine.ANY, 70, 2, 60),
        (Combine.ALL, 30, 3, 40),
        (Combine.ALL, 70, 2, 20),
        (Combine.ANY, None, 3, 40),
        (Combine.ALL, None, 3, None),
        (Combine.ANY, 30, None, 60),
        (Combine.ANY, None, None, None),
        (Combine.ANY, 0, 3, 100),
        (Combine.ALL, 0, 3, 40),
        (Combine.ALL, 0, 0, 100),
    ],
)
def test_two_minimums_by_any_and_by_all(combine: Combine, min_bytes: Any, min_age_s: Any, head: int | None) -> None:
    applied = policy(combine=combine, min_bytes=min_bytes, min_age_s=min_age_s)
    expected = None if head is None else at(head)
    assert decided(applied).candidate == expected
    assert decided(applied, 100).candidate == expected


def test_a_dimension_that_nobody_names_takes_no_part() -> None:
    assert decided(policy(min_bytes=None, combine=Combine.ALL, max_age_s=1)).candidate is None
    assert decided(policy(min_age_s=3, max_bytes=90, combine=Combine.ALL)).candidate == at(40)


def test_what_all_have_acknowledged_goes_to_the_byte() -> None:
    decision = decided(policy(min_bytes=30, min_age_s=60), 47)
    assert (decision.truncate, decision.rule) == (at(47), RetentionRule.SUBSCRIBERS)


def test_a_maximum_of_age_acts_when_it_is_certain_and_a_maximum_of_bytes_at_the_next_cut() -> None:
    applied = policy(max_bytes=55, max_age_s=4)
    decision = decided(applied, 5)
    assert (decision.truncate, decision.rule) == (at(60), RetentionRule.SUBSCRIBERS_MAXIMUM)
    assert [(item.bytes, item.end) for item in decision.evictions] == [(55, at(60))]
    assert decided(policy(max_bytes=95, max_age_s=3.001), 5).truncate == at(20)
    assert decided(policy(max_bytes=95, max_age_s=5), 5).truncate == at(5)


def test_a_maximum_never_goes_below_the_minimum() -> None:
    assert decided(policy(min_age_s=3, max_bytes=10), 5).truncate == at(40)
    assert decided(policy(min_age_s=3, min_bytes=70, max_bytes=80, combine=Combine.ALL), 5).truncate == at(20)


def test_start_and_cap_may_each_leave_the_minimum_and_both_together_not() -> None:
    facts = RetentionFacts(
        history=TWO,
        policy=policy(min_bytes=50, max_age_s=3),
        retention_set=[record(1000, 0, 0), record(2000, 10, 40), record(5000, 50, 50)],
        subscribers={"a": cut(s0e0=40, s1e0=0)},
    )
    decision = decide(facts, now_ms=5000)
    assert (decision.truncate, decision.rule) == (cut(s0e0=10, s1e0=40), RetentionRule.SUBSCRIBERS_MAXIMUM)


def test_what_nobody_subscribes_to_is_kept_up_to_the_maximum() -> None:
    kept = decided(policy(Unsubscribed.KEEP, min_bytes=10))
    assert (kept.candidate, kept.rule) == (None, RetentionRule.UNSUBSCRIBED)
    assert [item.kind.value for item in kept.held_by] == ["unsubscribed", "minimum"]
    capped = decided(policy(Unsubscribed.KEEP, min_bytes=10, max_bytes=70))
    assert (capped.truncate, capped.rule) == (at(40), RetentionRule.MAXIMUM)
    assert decided(policy(Unsubscribed.KEEP, min_bytes=10), 47).truncate == at(47)


def test_truncated_by_hand_beyond_the_choice_at_one_segment_the_other_is_still_freed() -> None:
    facts = RetentionFacts(
        history=TWO,
        policy=policy(min_bytes=10, min_age_s=60),
        head=cut(s0e0=30, s1e0=0),
        retention_set=[record(1000, 20, 20), record(2000, 50, 50)],
        subscribers={"a": cut(s0e0=25, s1e0=25)},
    )
    assert decide(facts, now_ms=5000).truncate == cut(s0e0=30, s1e0=25)


# --- each segment by itself ---------------------------------------------------------------------------------------

SPLIT = history_of({"0#0": (0, 1)}, {"1#1": (0, 0.5), "2#1": (0.5, 1)}, sealed={"0#0": 40})


def cut_record(time_ms: int, size: int, positions: dict[int, int]) -> StreamCutRecord:
    return StreamCutRecord(time_ms=time_ms, size_bytes=size, positions=positions)  # type: ignore[arg-type]


def split_stream(applied: EffectivePolicy, *tail: int, **more: Any) -> RetentionFacts:
    records = [
        cut_record(1000, 20, cut(s0e0=20)),
        cut_record(2000, 60, cut(s1e1=10, s2e1=10)),
        cut_record(3000, 40 + sum(tail), cut(s1e1=tail[0], s2e1=tail[1])),
    ]
    return RetentionFacts(history=SPLIT, policy=applied, retention_set=records, **more)


def test_a_segment_that_was_shared_stays_as_long_as_one_of_its_successors_wants_it() -> None:
    applied = policy(min_bytes=25, measure=Measure.SEGMENT)
    # The second successor has but 20 bytes of its own: nothing before it goes, although the first has enough.
    assert decide(split_stream(applied, 90, 20), now_ms=9000).candidate is None
    assert decide(split_stream(applied, 90, 35), now_ms=9000).truncate == cut(s1e1=10, s2e1=10)


def test_a_segment_that_only_takes_over_keeps_its_count() -> None:
    rolled = history_of(
        {"0#0": (0, 0.5), "1#0": (0.5, 1)}, {"0#1": (0, 0.5), "1#1": (0.5, 1)}, sealed={"0#0": 30, "1#0": 30}
    )
    records = [
        cut_record(1000, 30, cut(s0e0=20, s1e0=10)),
        cut_record(2000, 70, cut(s0e1=5, s1e1=5)),
    ]
    applied = policy(min_bytes=15, measure=Measure.SEGMENT)
    facts = RetentionFacts(history=rolled, policy=applied, retention_set=records)
    # 10 and 5 bytes are left of the first in two segments, 20 and 5 of the second.
    assert decide(facts, now_ms=9000).truncate == cut(s0e0=20, s1e0=10)


def test_a_maximum_for_each_segment_is_asked_where_it_is_passed_and_nowhere_else() -> None:
    applied = policy(max_bytes=50, measure=Measure.SEGMENT)
    records = [record(1000, 10, 10), record(2000, 60, 20), record(3000, 80, 30)]
    facts = RetentionFacts(history=TWO, policy=applied, retention_set=records, subscribers={"a": cut(s0e0=5, s1e0=5)})
    decision = decide(facts, now_ms=9000)
    assert decision.truncate == cut(s0e0=60, s1e0=5)
    assert [item.bytes for item in decision.evictions] == [55]
