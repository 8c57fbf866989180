"""The planner against the slow model, over thousands of small streams that scale, merge and roll."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from retention_facts import apart_facts, check, some_facts

from penstock.core.retention.planner import (
    RetentionDecision,
    RetentionFacts,
    RetentionRule,
    WriterState,
    decide,
)

CHUNKS, WORLDS = 10, 160


def moments(facts: RetentionFacts, decision: RetentionDecision, now_ms: int, random: Random) -> list[int]:
    """Times from now on at which nothing may have changed by time alone."""
    if decision.next_due_ms is None:
        return [now_ms + 1, now_ms + random.randint(2, 2000), now_ms + 10**9]
    last = decision.next_due_ms - 1
    return [last, random.randint(now_ms, last)] if last >= now_ms else []


def test_nothing_changes_before_next_due_by_the_passing_of_time() -> None:
    due = changed = 0
    for seed in range(700):
        random = Random(seed)
        facts, _, now_ms = some_facts(random)
        decision = decide(facts, now_ms=now_ms)
        assert decision.next_due_ms is None or decision.next_due_ms > now_ms, seed
        for later_ms in moments(facts, decision, now_ms, random):
            assert decide(facts, now_ms=later_ms) == decision, f"seed={seed}"
        if decision.next_due_ms is not None:
            due += 1
            then = decide(facts, now_ms=decision.next_due_ms)
            same = replace(then, next_due_ms=decision.next_due_ms) == decision and then.held_by == decision.held_by
            changed += not same
    # A stream is not woken for nothing: nearly always there is something to do then.
    assert changed > 0.75 * due > 100, (changed, due)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_the_planner_decides_as_the_slow_model(chunk: int) -> None:
    for seed in range(chunk * WORLDS, (chunk + 1) * WORLDS):
        try:
            check(*some_facts(Random(seed)))
        except Exception as error:
            error.add_note(f"seed={seed}")
            raise


def test_the_planner_decides_as_the_slow_model_where_a_subscriber_and_limits_lie_apart() -> None:
    rules = set()
    for seed in range(500):
        try:
            rules.add(check(*apart_facts(Random(seed))).rule)
        except Exception as error:
            error.add_note(f"seed={seed}")
            raise
    assert {RetentionRule.OVERLAP_MINIMUM, RetentionRule.OVERLAP_MAXIMUM} <= rules


def test_the_worlds_reach_every_rule() -> None:
    """A model that is never asked proves nothing."""
    rules, others = set(), set()
    for seed in range(1000):
        facts, _, now_ms = some_facts(Random(seed))
        decision = decide(facts, now_ms=now_ms)
        rules.add(decision.rule.value)
        rules.update(item.rule.value for item in (*decision.expirations, *decision.evictions, *decision.drops))
        others.add(decision.writers.state)
        others.add(decision.deletes_stream)
    # The last one is rare here, and looked for by itself.
    never = {"no-record", "unreadable-policy", "idle-stream", "overlap-maximum"}
    assert rules >= {rule.value for rule in type(decision.rule)} - never
    assert others == {*WriterState, True, False}
