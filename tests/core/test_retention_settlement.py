"""Decisions in a row on a stream that nobody uses meanwhile end at a place where nothing is due."""

from __future__ import annotations

from random import Random

import pytest
from retention_facts import some_facts
from retention_world import one_segment, size

from penstock.core.cuts.order import at_or_after, head_of, size_till
from penstock.core.retention.planner import HolderKind, RetentionFacts, RetentionRule, decide
from penstock.core.retention.settlement import STEPS_MAX, facts_after, settle

CHUNKS, WORLDS = 4, 80


def test_a_stream_over_its_maximum_goes_down_to_its_minimum_in_two_decisions() -> None:
    facts = one_segment(size(10, 40), 20, 40, 60, 80, 100)
    found = settle(facts, now_ms=5000)
    assert [item.decision.rule for item in found.steps] == [RetentionRule.MAXIMUM, RetentionRule.MINIMUM]
    assert (found.truncate, found.frees_bytes) == ({0: 80}, 80)
    assert [(item.kind, item.bytes) for item in found.ranges()] == [
        (HolderKind.DUE, 60),
        (HolderKind.DUE, 20),
        (HolderKind.UNRECORDED, 10),
        (HolderKind.MINIMUM, 10),
    ]
    (first, second) = (found.range_at({0: 10}), found.range_at({0: 70}))
    assert first is not None
    assert second is not None
    assert (first.kind, second.kind) == (HolderKind.DUE, HolderKind.DUE)


def perform(facts: RetentionFacts, now_ms: int) -> tuple[RetentionFacts, int]:
    """What single decisions do, by themselves, until one changes nothing: the stream after, and the bytes that went."""
    freed = 0
    for _ in range(STEPS_MAX):
        decision = decide(facts, now_ms=now_ms)
        changed = facts_after(facts, decision)
        freed += decision.frees_bytes
        same = (changed.head, changed.subscribers) == (facts.head, facts.subscribers)
        same = same and list(changed.retention_set) == list(facts.retention_set)
        facts = changed
        if same or decision.deletes_stream:
            break
    return facts, freed


@pytest.mark.parametrize("chunk", [*range(CHUNKS), *(pytest.param(n, marks=pytest.mark.slow) for n in range(4, 50))])
def test_decisions_end_where_nothing_is_due(chunk: int) -> None:
    for seed in range(chunk * WORLDS, (chunk + 1) * WORLDS):
        facts, _, now_ms = some_facts(Random(seed))
        try:
            check(facts, now_ms)
        except Exception as error:
            error.add_note(f"seed={seed}")
            raise


def check(facts: RetentionFacts, now_ms: int) -> None:
    found = settle(facts, now_ms=now_ms)
    assert len(found.decisions) < 16
    left, freed = perform(facts, now_ms)
    head = facts.head or head_of(facts.history)
    assert found.frees_bytes == freed == size_till(facts.history, left.head or head) - size_till(facts.history, head)
    assert at_or_after(facts.history, left.head or head, head)
    ranges = found.ranges()
    assert sum(item.bytes for item in ranges if item.kind is HolderKind.DUE) == freed
    for before, after in zip(ranges, ranges[1:], strict=False):
        assert before.end_bytes == after.start_bytes
    if found.last.deletes_stream:
        return
    again = settle(left, now_ms=now_ms)
    assert (len(again.decisions), again.frees_bytes, again.steps) == (1, 0, [])
    assert all(item.kind is not HolderKind.DUE for item in again.ranges())
