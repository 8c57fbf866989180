"""What stands above the rules (head, holds, tail), and who holds what is left."""

from __future__ import annotations

from dataclasses import replace

import pytest
from retention_world import TWO, age, aged, at, cut, history_of, one_segment, record, size

from penstock.core.retention.planner import (
    Hold,
    HolderKind,
    RetentionFacts,
    StreamCutRecord,
    decide,
    explain,
)
from penstock.model.errors import InvalidCutError

# --- what stands above the rules ----------------------------------------------------------------------------------


def test_a_candidate_behind_the_head_is_dropped_without_a_second_choice() -> None:
    facts = one_segment(size(50), 10, 40, 60, 100, head=at(41))
    decision = decide(facts, now_ms=9000)
    assert (decision.candidate, decision.truncate, decision.prune_through_ms) == (at(40), None, None)
    assert decision.frees_bytes == 0
    assert "head" in decision.why


def test_a_candidate_at_the_head_only_prunes() -> None:
    decision = decide(one_segment(size(50), 10, 40, 60, 100, head=at(40)), now_ms=9000)
    assert (decision.truncate, decision.frees_bytes, decision.prune_through_ms) == (at(40), 0, 2000)


def test_while_a_truncation_is_in_flight_none_is_started_but_cuts_are_recorded() -> None:
    facts = one_segment(size(50), 10, 40, tail=record(9000, 100), truncating=True)
    decision = decide(facts, now_ms=9000)
    assert (decision.candidate, decision.truncate) == (at(40), None)
    assert decision.record is not None
    assert {item.kind: item.bytes for item in decision.held_by} == {HolderKind.MINIMUM: 50, HolderKind.TRUNCATING: 50}


def test_a_hold_on_the_stream_beats_every_rule() -> None:
    facts = one_segment(size(0, 10), 10, 40, 100, subscribers={"a": at(100)}, holds=[Hold(id="case-7", owner="legal")])
    decision = decide(facts, now_ms=9000)
    assert (decision.candidate, decision.truncate) == (at(100), None)
    assert [(item.kind, item.name, item.bytes) for item in decision.held_by] == [(HolderKind.HOLD, "case-7", 100)]
    assert "hold" in decision.why


def test_a_hold_ends_at_its_time() -> None:
    facts = one_segment(size(0), 10, 100, holds=[Hold(id="h", until_ms=9000)])
    waiting = decide(facts, now_ms=8999)
    assert (waiting.truncate, waiting.next_due_ms) == (None, 9000)
    assert decide(facts, now_ms=9000).truncate == at(100)


def test_a_hold_from_a_cut_on_lets_go_what_lies_before_it() -> None:
    facts = one_segment(size(0), 10, 40, 100, holds=[Hold(id="h", positions=at(33))])  # type: ignore[arg-type]
    decision = decide(facts, now_ms=9000)
    assert (decision.candidate, decision.truncate, decision.prune_through_ms) == (at(100), at(33), 1000)
    assert decision.frees_bytes == 33
    stuck = decide(replace(facts, head=at(33)), now_ms=9000)
    assert (stuck.truncate, "hold" in stuck.why) == (None, True)


def test_two_holds_of_different_places_are_both_kept() -> None:
    holds = [Hold(id="x", positions=cut(s0e0=5, s1e0=9)), Hold(id="y", positions=cut(s0e0=9, s1e0=5))]
    facts = RetentionFacts(history=TWO, policy=size(0), retention_set=[record(1000, 20, 20)], holds=holds)
    assert decide(facts, now_ms=9000).truncate == cut(s0e0=5, s1e0=5)


def test_what_a_subscriber_acknowledged_beyond_the_tail_is_not_truncated() -> None:
    facts = RetentionFacts(
        history=TWO,
        policy=size(0),
        tail=record(1000, 10, 100),
        subscribers={"a": cut(s0e0=50, s1e0=0)},
    )
    decision = decide(facts, now_ms=9000)
    assert decision.candidate == cut(s0e0=50, s1e0=0)
    assert decision.truncate == cut(s0e0=10, s1e0=0)


def test_an_unstarted_segment_of_the_bound_stays_in_the_cut() -> None:
    history = history_of(
        {"0#0": (0.0, 0.5), "1#0": (0.5, 1.0)},
        {"2#1": (0.0, 1.0)},
        sealed={"0#0": 10, "1#0": 10},
    )
    tail = StreamCutRecord(time_ms=1000, size_bytes=25, positions=cut(s2e1=5))
    facts = RetentionFacts(
        history=history, policy=size(0), tail=tail, subscribers={"a": cut(s0e0=4, s2e1=-1), "b": cut(s2e1=2)}
    )
    decision = decide(facts, now_ms=9000)
    assert (decision.truncate, decision.frees_bytes) == (cut(s0e0=4, s2e1=-1), 14)


def test_a_subscriber_with_an_unknown_segment_stops_the_decision() -> None:
    with pytest.raises(InvalidCutError):
        decide(one_segment(size(0), 10, subscribers={"a": {99: 1}}), now_ms=9000)


def test_bytes_that_were_lost_before_the_head_are_not_reported_twice() -> None:
    facts = one_segment(size(10, 50), 20, 40, 60, 100, head=at(40), subscribers={"slow": at(5)})
    [eviction] = decide(facts, now_ms=9000).evictions
    assert (eviction.bytes, eviction.end) == (20, at(60))
    assert decide(replace(facts, head=at(60)), now_ms=9000).evictions == ()


def test_next_due_is_when_the_next_record_reaches_an_age() -> None:
    assert aged(age(2000)).next_due_ms == 6000
    assert aged(age(2000, 3500), 30).next_due_ms == 5500
    assert decide(one_segment(size(5), 10, 20), now_ms=9000).next_due_ms is None


# --- explaining ---------------------------------------------------------------------------------------------------


def held(facts: RetentionFacts, now_ms: int = 9000) -> list[tuple[str, str, int]]:
    return [(item.kind.value, item.name, item.bytes) for item in explain(facts, now_ms=now_ms)]


def test_explain_gives_each_byte_one_holder() -> None:
    facts = one_segment(size(50), 10, 40, 100, head=at(5), subscribers={"slow": at(30), "quick": at(60)})
    assert held(facts) == [("due", "", 25), ("subscriber", "slow", 70)]


def test_explain_names_the_minimum_and_what_no_record_reaches() -> None:
    assert held(one_segment(size(50), 10, 40, 100)) == [("due", "", 40), ("unrecorded", "", 10), ("minimum", "", 50)]
    assert held(one_segment(size(50), 60, 100)) == [("unrecorded", "", 50), ("minimum", "", 50)]
    assert held(one_segment(age(2000), 10, 40, 100), now_ms=4500) == [("due", "", 40), ("minimum", "", 60)]


def test_explain_names_the_hold_first_and_no_policy_before_subscribers() -> None:
    holds = [Hold(id="h", positions=at(80))]  # type: ignore[arg-type]
    assert held(one_segment(size(0), 10, 100, subscribers={"a": at(30)}, holds=holds)) == [
        ("due", "", 30),
        ("subscriber", "a", 50),
        ("hold", "h", 20),
    ]
    assert held(one_segment(None, 10, 100, subscribers={"a": at(30)}, holds=holds)) == [
        ("no-policy", "", 80),
        ("hold", "h", 20),
    ]


def test_explain_divides_between_subscribers_that_overlap() -> None:
    facts = RetentionFacts(
        history=TWO,
        policy=size(0),
        retention_set=[record(1000, 50, 50)],
        subscribers={"a": cut(s0e0=10, s1e0=40), "b": cut(s0e0=45, s1e0=20)},
    )
    assert held(facts) == [("due", "", 30), ("subscriber", "b", 20), ("subscriber", "a", 50)]


def test_held_by_is_the_sum_of_the_explanation() -> None:
    facts = one_segment(size(50), 10, 40, 100, subscribers={"a": at(60)})
    decision = decide(facts, now_ms=9000)
    assert [(item.kind.value, item.bytes) for item in decision.held_by] == [
        ("subscriber", 40),
        ("unrecorded", 10),
        ("minimum", 10),
    ]
    assert decision.ranges() == explain(facts, now_ms=9000)
