"""TTL, backlog quotas, idleness and writers: each rule by its own words, on streams small enough to see."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import UNSET
from retention_world import TWO, at, cut, one_segment, record

from penstock.core.planner_json.answers import writers_of
from penstock.core.policies.levels import resolve
from penstock.core.retention.planner import (
    Hold,
    RetentionFacts,
    RetentionRule,
    StreamCutRecord,
    SubscriberActivity,
    WriterState,
    decide,
    explain,
)
from penstock.model.retention import (
    EMPTY,
    Backlog,
    Combine,
    EffectivePolicy,
    Idle,
    IdleWhen,
    OnExceed,
    PolicyDocument,
    Retain,
    Unsubscribed,
)


def policy(*, retain: Retain | None = None, unsubscribed: Any = None, **fields: Any) -> EffectivePolicy:
    """``ttl_s``, ``max_bytes`` …: of the backlog; ``subscriber_s``, ``stream_s`` …: of idleness."""
    idle = {name: fields.pop(name) for name in list(fields) if name in ("subscriber_s", "stream_s", "stream_when")}
    document = PolicyDocument(
        retain=retain or Retain(),
        **({} if unsubscribed is None else {"unsubscribed": unsubscribed}),
        backlog=Backlog(**fields),
        idle=Idle(**idle),
    )
    return resolve(document, EMPTY, EMPTY)


def stream(applied: EffectivePolicy, **more: Any) -> RetentionFacts:
    """Cuts at 1000 … 5000 ms at 20, 40, 60, 80, 100 bytes; 100 is the tail."""
    return one_segment(applied, 20, 40, 60, 80, 100, **more)


NOTHING = Retain(min_bytes=0)

# --- time to live -------------------------------------------------------------------------------------------------


def test_messages_not_acknowledged_within_the_time_are_acknowledged_automatically() -> None:
    facts = stream(policy(ttl_s=2, retain=NOTHING), subscribers={"slow": at(5), "quick": at(90)})
    decision = decide(facts, now_ms=5000)
    [moved] = decision.expirations
    assert (moved.subscriber, moved.start, moved.end, moved.bytes) == ("slow", at(5), at(60), 55)
    assert moved.rule is RetentionRule.TTL
    assert decision.truncate == at(60)
    assert "The time to live moves slow past 55 B of unread data." in decision.why


def test_ttl_is_never_early_and_its_record_is_due_to_the_millisecond() -> None:
    facts = stream(policy(ttl_s=2, retain=NOTHING), subscribers={"a": at(60)})
    waiting = decide(facts, now_ms=5999)
    assert (waiting.expirations, waiting.next_due_ms) == ((), 6000)
    [moved] = decide(facts, now_ms=6000).expirations
    assert (moved.end, moved.bytes) == (at(80), 20)


def test_ttl_frees_nothing_by_itself_without_a_retention_policy() -> None:
    decision = decide(stream(policy(ttl_s=1), subscribers={"a": at(5)}), now_ms=9000)
    assert [item.end for item in decision.expirations] == [at(100)]
    assert (decision.rule, decision.truncate) == (RetentionRule.NO_POLICY, None)


def test_ttl_moves_nobody_back_and_nobody_that_has_published_nothing() -> None:
    decision = decide(stream(policy(ttl_s=4), subscribers={"a": at(21), "b": {}}), now_ms=5000)
    assert decision.expirations == ()


def test_a_boundary_lets_ttl_go_further_than_the_records() -> None:
    between = StreamCutRecord(time_ms=2500, size_bytes=49, positions=at(49))  # type: ignore[arg-type]
    facts = stream(policy(ttl_s=2), subscribers={"a": at(5)}, boundaries=[between])
    assert decide(facts, now_ms=4600).expirations[0].end == at(49)
    assert decide(facts, now_ms=4400).expirations[0].end == at(40)


def test_a_subscriber_ahead_at_one_segment_stays_ahead_there() -> None:
    facts = RetentionFacts(
        history=TWO,
        policy=policy(ttl_s=1),
        retention_set=[record(1000, 20, 20), record(3000, 50, 50)],
        subscribers={"a": cut(s0e0=5, s1e0=40)},
    )
    [moved] = decide(facts, now_ms=3000).expirations
    assert (moved.end, moved.bytes) == (cut(s0e0=20, s1e0=40), 15)


def test_what_lies_before_the_head_was_lost_before() -> None:
    facts = stream(policy(ttl_s=2, retain=NOTHING), subscribers={"a": at(5)}, head=at(40))
    assert [item.bytes for item in decide(facts, now_ms=5000).expirations] == [20]
    assert decide(replace(facts, head=at(60)), now_ms=5000).expirations == ()


def test_events_lost_are_counted_where_cuts_have_counts() -> None:
    counted = [replace(item, event_count=item.size_bytes // 10) for item in stream(policy()).retention_set]
    facts = stream(policy(ttl_s=2), subscribers={"a": at(20), "b": at(30), "c": at(25)})
    facts = replace(facts, retention_set=counted, activity={"b": SubscriberActivity(backlog_events=7)})
    moved = decide(facts, now_ms=5000).expirations
    assert [(item.subscriber, item.events) for item in moved] == [("a", 4), ("b", 3), ("c", None)]


# --- backlog quotas -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on_exceed", "state"), [(OnExceed.HOLD, WriterState.HOLD), (OnExceed.REJECT, WriterState.REJECT)]
)
def test_writers_may_go_as_far_as_the_slowest_subscriber_and_the_limit(on_exceed: OnExceed, state: WriterState) -> None:
    applied = policy(max_bytes=50, on_exceed=on_exceed)
    facts = stream(applied, subscribers={"slow": at(60), "quick": at(90)})
    verdict = decide(facts, now_ms=5000).writers
    assert (verdict.state, verdict.total_bytes, verdict.exceeded) == (state, 110, False)
    assert (verdict.rule, verdict.subscriber) == (RetentionRule.BACKLOG_BYTES, "slow")
    exceeded = decide(replace(facts, subscribers={"slow": at(50)}), now_ms=5000)
    assert (exceeded.writers.exceeded, exceeded.writers.total_bytes) == (True, 100)
    assert exceeded.evictions == ()
    assert "until subscriber slow has caught up" in exceeded.why


def test_nobody_waits_where_nobody_has_published() -> None:
    verdict = decide(stream(policy(max_bytes=1), subscribers={"a": {}}), now_ms=5000).writers
    assert (verdict.state, verdict.total_bytes, verdict.rule) == (WriterState.OPEN, None, None)


def test_what_was_acknowledged_beyond_the_tail_gives_no_room() -> None:
    verdict = decide(stream(policy(max_bytes=50), subscribers={"a": at(5000)}), now_ms=5000).writers
    assert verdict.total_bytes == 150


def test_a_quota_of_events_counts_events() -> None:
    tail = replace(record(6000, 120), event_count=30)
    facts = stream(policy(max_events=10), tail=tail, subscribers={"a": at(100), "b": at(90)})
    activity = {"a": SubscriberActivity(backlog_events=4), "b": SubscriberActivity(backlog_events=9)}
    verdict = decide(replace(facts, activity=activity), now_ms=6000).writers
    assert (verdict.total_events, verdict.exceeded, verdict.subscriber) == (31, False, "b")
    activity["a"] = SubscriberActivity(backlog_events=10)
    verdict = decide(replace(facts, activity=activity), now_ms=6000).writers
    assert (verdict.total_events, verdict.exceeded, verdict.subscriber) == (30, True, "a")
    assert decide(facts, now_ms=6000).writers.state is WriterState.OPEN


def test_each_quota_acts_by_itself() -> None:
    limits = {"max_bytes": 50, "max_age_s": 3, "on_exceed_bytes": OnExceed.EVICT, "evict_to": 0.5}
    facts = stream(policy(**limits, on_exceed=OnExceed.HOLD), subscribers={"a": at(30)})
    young = decide(facts, now_ms=4999)
    assert [(item.rule, item.bytes) for item in young.evictions] == [(RetentionRule.BACKLOG_BYTES, 50)]
    assert (young.writers.bytes_state, young.writers.total_bytes) == (WriterState.NOTIFY, 130)
    # What is left is too old for the other quota, which holds writers before the first one's bound.
    old = decide(facts, now_ms=9000)
    assert [item.rule for item in old.evictions] == [RetentionRule.BACKLOG_BYTES]
    assert (old.writers.bytes_state, old.writers.total_bytes) == (WriterState.HOLD, 100)
    assert (old.writers.rule, old.writers.state) == (RetentionRule.BACKLOG_AGE, WriterState.HOLD)


def test_bounds_of_bytes_and_events_do_what_each_quota_says() -> None:
    tail = replace(record(6000, 120), event_count=30)
    applied = policy(max_events=10, max_bytes=200, on_exceed_events=OnExceed.REJECT)
    facts = stream(applied, tail=tail, subscribers={"a": at(100)})
    facts = replace(facts, activity={"a": SubscriberActivity(backlog_events=10)})
    verdict = decide(facts, now_ms=6000).writers
    assert (verdict.bytes_state, verdict.events_state) == (WriterState.HOLD, WriterState.REJECT)
    assert (verdict.state, verdict.rule) == (WriterState.REJECT, RetentionRule.BACKLOG_EVENTS)
    reported = writers_of(verdict)
    assert (reported.bytes_state, reported.events_state) == ("hold", "reject")
    one = decide(replace(facts, policy=policy(max_events=10, max_bytes=200)), now_ms=6000).writers
    assert writers_of(one).bytes_state is UNSET


def test_a_backlog_is_too_old_only_where_that_is_certain() -> None:
    applied = policy(max_age_s=3, on_exceed=OnExceed.REJECT)
    facts = stream(applied, subscribers={"a": at(30)})
    # Byte 30 was there at 2000 at the latest: nothing earlier is known of it.
    assert decide(facts, now_ms=4999).writers.state is WriterState.OPEN
    assert decide(facts, now_ms=4999).next_due_ms == 5000
    verdict = decide(facts, now_ms=5000).writers
    assert (verdict.state, verdict.exceeded, verdict.total_bytes) == (WriterState.REJECT, True, 100)
    exact = replace(facts, activity={"a": SubscriberActivity(oldest_unacked_ms=1700)})
    assert decide(exact, now_ms=4699).next_due_ms == 4700
    assert decide(exact, now_ms=4700).writers.rule is RetentionRule.BACKLOG_AGE
    assert decide(replace(facts, subscribers={"a": at(100)}), now_ms=9000).writers.state is WriterState.OPEN


def test_eviction_goes_down_to_its_share_slowest_first_each_lagging_subscriber_in_turn() -> None:
    applied = policy(max_bytes=70, on_exceed=OnExceed.EVICT, evict_to=0.9, retain=NOTHING)
    facts = stream(applied, subscribers={"b": at(10), "a": at(20), "c": at(50)})
    decision = decide(facts, now_ms=5000)
    # 63 bytes may stay: the first cut that leaves no more leaves 60.
    assert [(item.subscriber, item.end, item.bytes) for item in decision.evictions] == [
        ("b", at(40), 30),
        ("a", at(40), 20),
    ]
    assert {item.rule for item in decision.evictions} == {RetentionRule.BACKLOG_BYTES}
    assert decision.truncate == at(40)
    assert (decision.writers.state, decision.writers.total_bytes) == (WriterState.NOTIFY, 110)


def test_eviction_starts_at_the_limit() -> None:
    applied = policy(max_bytes=70, on_exceed=OnExceed.EVICT)
    assert decide(stream(applied, subscribers={"a": at(31)}), now_ms=5000).evictions == ()
    assert len(decide(stream(applied, subscribers={"a": at(30)}), now_ms=5000).evictions) == 1


def test_eviction_takes_a_boundary_where_one_lies_nearer() -> None:
    applied = policy(max_bytes=70, on_exceed=OnExceed.EVICT)
    nearer = StreamCutRecord(time_ms=3000, size_bytes=37, positions=at(37))  # type: ignore[arg-type]
    facts = stream(applied, subscribers={"a": at(10)}, boundaries=[nearer])
    assert decide(facts, now_ms=5000).evictions[0].end == at(37)


def test_eviction_does_not_take_everything_where_a_cut_below_the_limit_lies_between() -> None:
    applied = policy(max_bytes=90, on_exceed=OnExceed.EVICT, evict_to=0.1)
    assert decide(one_segment(applied, 20, 100, subscribers={"a": at(5)}), now_ms=5000).evictions[0].end == at(20)
    bare = one_segment(applied, 5, 100, subscribers={"a": at(5)})
    assert decide(bare, now_ms=5000).evictions[0].end == at(100)


def test_eviction_by_events_looks_at_cuts_that_have_counts_only() -> None:
    applied = policy(max_events=6, on_exceed=OnExceed.EVICT, evict_to=0.5)
    counted = [replace(item, event_count=item.size_bytes // 10) for item in stream(applied).retention_set]
    facts = stream(applied, subscribers={"a": at(20)}, activity={"a": SubscriberActivity(backlog_events=8)})
    assert decide(facts, now_ms=5000).evictions == ()
    [moved] = decide(replace(facts, retention_set=counted), now_ms=5000).evictions
    assert (moved.end, moved.events, moved.rule) == (at(80), 6, RetentionRule.BACKLOG_EVENTS)
    after = decide(replace(facts, retention_set=counted), now_ms=5000).writers
    assert (after.exceeded, after.total_events) == (False, 14)


def test_eviction_by_age_takes_what_is_older_than_its_share_from_everybody() -> None:
    applied = policy(max_age_s=3, on_exceed=OnExceed.EVICT, evict_to=0.5)
    facts = stream(applied, subscribers={"slow": at(30), "quick": at(50), "last": at(90)})
    assert decide(facts, now_ms=4999).evictions == ()
    moved = decide(facts, now_ms=5000).evictions
    assert [(item.subscriber, item.end) for item in moved] == [("slow", at(60)), ("quick", at(60))]
    assert {item.rule for item in moved} == {RetentionRule.BACKLOG_AGE}


def test_bytes_come_before_age_and_ttl_before_both() -> None:
    applied = policy(ttl_s=4, max_bytes=50, max_age_s=2, on_exceed=OnExceed.EVICT, evict_to=1.0)
    decision = decide(stream(applied, subscribers={"a": at(10)}), now_ms=5000)
    assert [(item.rule, item.start, item.end) for item in (*decision.expirations, *decision.evictions)] == [
        (RetentionRule.TTL, at(10), at(20)),
        (RetentionRule.BACKLOG_BYTES, at(20), at(60)),
    ]


def test_a_hold_keeps_the_data_and_not_the_position() -> None:
    applied = policy(ttl_s=2, retain=NOTHING)
    decision = decide(stream(applied, subscribers={"a": at(5)}, holds=[Hold(id="h")]), now_ms=5000)
    assert ([item.end for item in decision.expirations], decision.truncate) == ([at(60)], None)


# --- idleness -----------------------------------------------------------------------------------------------------


def seen(last_ms: int) -> SubscriberActivity:
    return SubscriberActivity(last_active_ms=last_ms)


def test_a_silent_subscriber_is_dropped_and_holds_nothing_from_then_on() -> None:
    applied = policy(subscriber_s=3, retain=NOTHING)
    facts = stream(
        applied, subscribers={"gone": at(5), "here": at(70)}, activity={"gone": seen(1000), "here": seen(4900)}
    )
    waiting = decide(facts, now_ms=3999)
    assert (waiting.drops, waiting.truncate, waiting.next_due_ms) == ((), at(5), 4000)
    decision = decide(facts, now_ms=5000)
    [drop] = decision.drops
    assert (drop.subscriber, drop.start, drop.last_active_ms) == ("gone", at(5), 1000)
    assert decision.truncate == at(70)
    assert "Drops gone: no acknowledgement for too long." in decision.why


def test_one_that_nobody_has_ever_heard_of_is_not_dropped() -> None:
    assert decide(stream(policy(subscriber_s=3), subscribers={"a": at(5)}), now_ms=10**12).drops == ()


def test_a_subscriber_that_never_published_is_dropped_too() -> None:
    decision = decide(stream(policy(subscriber_s=3), subscribers={"a": {}}, activity={"a": seen(0)}), now_ms=5000)
    assert [item.start for item in decision.drops] == [{}]


@pytest.mark.parametrize(
    ("applied", "deleted"),
    [
        (policy(stream_s=3), True),
        (policy(stream_s=3, retain=NOTHING), True),
        (policy(stream_s=3, retain=Retain(min_bytes=1)), False),
        (policy(stream_s=3, retain=Retain(min_age_s=6)), False),
        (policy(stream_s=3, retain=Retain(min_age_s=5)), True),
        (policy(stream_s=3, retain=Retain(min_bytes=1, min_age_s=5)), True),
        (policy(stream_s=3, retain=Retain(min_bytes=None, min_age_s=None)), False),
        (policy(stream_s=3, retain=NOTHING, unsubscribed=Unsubscribed.KEEP), False),
        (policy(stream_s=7), False),
    ],
)
def test_an_idle_stream_goes_once_its_minimum_lets_its_data_go(applied: EffectivePolicy, deleted: bool) -> None:
    facts = stream(applied, last_append_ms=4000)
    assert decide(facts, now_ms=9000).deletes_stream is deleted


def test_an_empty_idle_stream_goes_whatever_its_minimum_is() -> None:
    applied = policy(stream_s=3, retain=Retain(min_bytes=None))
    assert decide(stream(applied, head=at(100), last_append_ms=4000), now_ms=9000).deletes_stream


def test_when_an_idle_stream_goes_is_known_beforehand() -> None:
    applied = policy(stream_s=3, retain=Retain(min_age_s=6))
    facts = stream(applied, head=at(100), last_append_ms=4000)
    assert decide(facts, now_ms=6999).next_due_ms == 7000
    assert decide(facts, now_ms=7000).deletes_stream
    assert "unused" in decide(facts, now_ms=7000).why


def test_an_idle_stream_has_no_subscriber_or_none_with_a_backlog() -> None:
    nobody = policy(stream_s=3)
    caught_up = policy(stream_s=3, stream_when=IdleWhen.CAUGHT_UP)
    there = stream(nobody, subscribers={"a": at(100)}, last_append_ms=0)
    assert not decide(there, now_ms=9000).deletes_stream
    assert decide(replace(there, policy=caught_up), now_ms=9000).deletes_stream
    assert not decide(replace(there, policy=caught_up, subscribers={"a": at(99)}), now_ms=9000).deletes_stream
    assert not decide(replace(there, policy=caught_up, subscribers={"a": {}}), now_ms=9000).deletes_stream


def test_nothing_deletes_a_stream_that_is_held_or_of_which_nothing_is_known() -> None:
    facts = stream(policy(stream_s=3), last_append_ms=0)
    assert decide(facts, now_ms=9000).deletes_stream
    held = Hold(id="h", positions=at(100), until_ms=9001)  # type: ignore[arg-type]
    assert not decide(replace(facts, holds=[held]), now_ms=9000).deletes_stream
    assert not decide(replace(facts, last_append_ms=None), now_ms=9000).deletes_stream
    assert not decide(replace(facts, truncating=True), now_ms=9000).deletes_stream


# --- what cannot be read, what is not needed ----------------------------------------------------------------------


def test_under_a_policy_that_could_not_be_read_no_rule_acts() -> None:
    applied = policy(ttl_s=1, max_bytes=1, on_exceed=OnExceed.EVICT, subscriber_s=1, stream_s=1, retain=NOTHING)
    facts = stream(applied, subscribers={"a": at(5)}, activity={"a": seen(0)}, last_append_ms=0, tail=record(9000, 110))
    decision = decide(replace(facts, unreadable="scope document is of version 2"), now_ms=9000)
    assert decision.rule is RetentionRule.UNREADABLE_POLICY
    assert (decision.truncate, decision.candidate) == (None, None)
    assert (decision.expirations, decision.evictions, decision.drops, decision.deletes_stream) == ((), (), (), False)
    assert decision.writers.state is WriterState.OPEN
    assert decision.record is not None
    assert "version 2" in decision.why
    assert [item.kind.value for item in decision.held_by] == ["unreadable-policy"]


def test_records_that_nothing_truncates_at_are_forgotten_in_batches_once_ttl_has_passed_them() -> None:
    facts = one_segment(policy(ttl_s=1), *range(1, 201), subscribers={"a": at(200)})
    decision = decide(facts, now_ms=200_000)
    assert (decision.truncate, decision.prune_through_ms) == (None, 192_000)
    early = decide(facts, now_ms=100_000)
    assert (early.prune_through_ms, early.next_due_ms) == (64_000, 130_000)
    assert decide(facts, now_ms=129_999).prune_through_ms == 64_000
    assert decide(facts, now_ms=130_000).prune_through_ms == 128_000


# --- explaining ---------------------------------------------------------------------------------------------------


def parts(facts: RetentionFacts, now_ms: int = 5000) -> list[tuple[str, str, int, int | None]]:
    return [(item.kind.value, item.name, item.bytes, item.release_ms) for item in explain(facts, now_ms=now_ms)]


def test_what_goes_unread_is_named_by_the_rule_that_takes_it() -> None:
    applied = policy(ttl_s=4, max_bytes=70, on_exceed=OnExceed.EVICT, retain=Retain(min_bytes=0, max_bytes=50))
    facts = stream(applied, subscribers={"a": at(5)})
    assert parts(facts) == [
        ("due", "", 5, 5000),
        ("due", "ttl", 15, 5000),
        ("due", "backlog-bytes", 20, 5000),
        ("due", "subscribers-maximum", 20, 5000),
        ("subscriber", "a", 40, 8000),
    ]


def test_a_range_tells_when_time_alone_lets_it_go() -> None:
    by_age = policy(retain=Retain(min_age_s=10))
    assert parts(stream(by_age)) == [("minimum", "", 100, 11_000)]
    held = stream(by_age, holds=[Hold(id="h", positions=at(80), until_ms=7777)])  # type: ignore[arg-type]
    assert parts(held) == [("minimum", "", 80, 11_000), ("hold", "h", 20, 7777)]
    keeps = policy(retain=Retain(max_age_s=30), unsubscribed=Unsubscribed.KEEP)
    assert parts(stream(keeps)) == [("unsubscribed", "", 100, 31_000)]
    idle = policy(subscriber_s=3, retain=NOTHING)
    facts = stream(idle, subscribers={"a": at(0)}, activity={"a": seen(4500)})
    assert parts(facts) == [("subscriber", "a", 100, 7500)]


def test_a_position_inside_a_range_tells_when_it_goes_itself() -> None:
    facts = stream(policy(retain=Retain(min_age_s=10)), head=at(10))
    decision = decide(facts, now_ms=5000)
    for offset, release_ms in ((10, 11_000), (19, 11_000), (20, 12_000), (79, 14_000), (99, 15_000)):
        found = decision.range_at(at(offset))  # type: ignore[arg-type]
        assert found is not None
        assert (found.kind.value, found.bytes, found.release_ms) == ("minimum", 100 - offset, release_ms)
    assert decision.range_at(at(9)) is None  # type: ignore[arg-type]
    assert decision.range_at(at(100)) is None  # type: ignore[arg-type]
    unread = decide(stream(policy(retain=NOTHING, ttl_s=60), subscribers={"a": at(5)}), now_ms=5000)
    found = unread.range_at(at(45))  # type: ignore[arg-type]
    assert found is not None
    assert (found.name, found.release_ms) == ("a", 63_000)
    held = decide(replace(facts, holds=[Hold(id="h", until_ms=7777)]), now_ms=5000).range_at(at(45))  # type: ignore[arg-type]
    assert held is not None
    assert (held.name, held.release_ms) == ("h", 7777)


def test_of_two_minimums_either_lets_go_or_both_must() -> None:
    either = policy(retain=Retain(min_bytes=50, min_age_s=4))
    assert parts(stream(either)) == [("due", "", 40, 5000), ("unrecorded", "", 10, None), ("minimum", "", 50, 7000)]

    both = policy(retain=Retain(min_bytes=50, min_age_s=4, combine=Combine.ALL))
    assert parts(stream(both)) == [("due", "", 20, 5000), ("minimum", "", 80, 6000)]


def test_the_summary_of_a_plan_counts_events_and_names_who_is_hurt() -> None:
    applied = policy(ttl_s=2, subscriber_s=3, retain=NOTHING)
    counted = [replace(item, event_count=item.size_bytes // 10) for item in stream(applied).retention_set]
    facts = replace(stream(applied), retention_set=counted, head=at(20), head_event_count=2)
    facts = replace(facts, subscribers={"slow": at(25), "gone": at(30)}, activity={"gone": seen(1)})
    found = decide(facts, now_ms=5000).summary()
    assert (found.events, found.since_ms, found.until_ms) == (4, 1000, 3000)
    assert found.subscribers == ("gone", "slow")
    assert decide(replace(facts, policy=None), now_ms=5000).summary().events == 0
