"""Pulsar's retention, message expiry and backlog quotas, in the words of its document, said as a policy document.

Pulsar's pair (time in minutes, size in MB) is ``min_age_s`` and ``min_bytes`` with ``combine: any``; -1 is null. Ledgers are
recorded cuts. Here a minute is 1 s and a MB is 10 bytes.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from retention_world import TWO, at, cut, one_segment, record

from penstock.core.policies.levels import resolve
from penstock.core.retention.planner import RetentionFacts, RetentionRule, WriterState, decide
from penstock.model.retention import (
    EMPTY,
    Backlog,
    Combine,
    EffectivePolicy,
    Measure,
    OnExceed,
    PolicyDocument,
    Retain,
    Unsubscribed,
)


def pulsar(time: int, size: int, **backlog: object) -> EffectivePolicy:
    document = PolicyDocument(
        retain=Retain(
            min_age_s=None if time < 0 else time,
            min_bytes=None if size < 0 else 10 * size,
            combine=Combine.ANY,
            measure=Measure.SEGMENT,
        ),
        unsubscribed=Unsubscribed.RELEASE,
        backlog=Backlog(**backlog),  # type: ignore[arg-type]
    )
    return resolve(document, EMPTY, EMPTY)


def topic(applied: EffectivePolicy, **more: object) -> RetentionFacts:
    """Ledgers of 20 bytes closed at 1 … 5 s; nothing is in the open one."""
    return one_segment(applied, 20, 40, 60, 80, 100, **more)


READ = {"sub": at(100)}


@pytest.mark.parametrize(
    ("time", "size", "head"),
    [
        (-1, -1, None),  # infinite retention
        (-1, 5, 40),  # based on the size limit
        (-1, 6, 40),  # at the limit exactly it goes
        (2, -1, 60),  # based on the time limit
        (9, -1, None),
        (0, 0, 100),  # disabled: messages are not reserved
        (9, 5, 40),  # either limit lets go: here the size
        (2, 9, 60),  # here the time
        (2, 5, 60),
        (4, 5, 40),
    ],
)
@pytest.mark.parametrize("subscribers", [{}, READ])
def test_the_table_of_time_and_size_limits(time: int, size: int, head: int | None, subscribers: dict) -> None:
    """ "Retention policies", the table: for acknowledged messages, and for those without an active subscription."""
    decision = decide(topic(pulsar(time, size), subscribers=subscribers), now_ms=5000)
    assert decision.truncate == (None if head is None else at(head))


def test_the_retention_settings_do_not_affect_unacknowledged_messages() -> None:
    facts = topic(pulsar(0, 0), subscribers={"fast": at(100), "slow": at(30)})
    decision = decide(facts, now_ms=10**9)
    assert (decision.truncate, decision.rule, decision.evictions) == (at(30), RetentionRule.SUBSCRIBERS, ())


def test_by_default_messages_are_retained_that_are_in_at_least_one_backlog() -> None:
    """ "By default, for each topic, brokers only retain messages that are in at least one backlog." """
    assert decide(topic(pulsar(0, 0)), now_ms=5000).truncate == at(100)
    assert decide(topic(pulsar(0, 0), subscribers={"a": at(0)}), now_ms=5000).frees_bytes == 0


def test_a_backlog_counts_in_the_size_that_is_held_against_the_limit() -> None:
    facts = topic(pulsar(-1, 5), subscribers={"slow": at(45)})
    # 55 bytes are not acknowledged: with them the limit of 50 is reached, so that acknowledged ones go at once.
    assert decide(facts, now_ms=5000).truncate == at(45)
    assert decide(topic(pulsar(-1, 7), subscribers={"slow": at(45)}), now_ms=5000).truncate == at(20)


def test_an_older_ledger_inside_the_limits_shields_a_younger_one() -> None:
    facts = topic(pulsar(3, -1), subscribers=READ)
    assert decide(facts, now_ms=5999).truncate == at(40)
    assert decide(facts, now_ms=6000).truncate == at(60)


def test_the_example_of_10_gb_and_3_hours() -> None:
    """ "When the size of messages reaches 10 GB … within 3 hours"; "After 3 hours, even if the message size is less"."""
    size_first = decide(topic(pulsar(3 * 3600, 8), subscribers=READ), now_ms=5000)
    assert size_first.truncate == at(20)
    time_first = decide(topic(pulsar(3 * 3600, 1000), subscribers=READ), now_ms=1000 + 3 * 3_600_000)
    assert time_first.truncate == at(20)


def test_each_partition_has_its_own_limit() -> None:
    facts = RetentionFacts(
        history=TWO,
        policy=pulsar(-1, 3),
        retention_set=[record(1000, 10, 60), record(2000, 30, 80), record(3000, 50, 100)],
    )
    # 30 bytes are left of the first at 10, and of the second at 60; of both together 60 at 30 and 80 would do.
    assert decide(facts, now_ms=9000).truncate == cut(s0e0=10, s1e0=60)
    whole = replace(facts, policy=replace(pulsar(-1, 6), measure=Measure.STREAM))
    assert decide(whole, now_ms=9000).truncate == cut(s0e0=10, s1e0=60)
    uneven = replace(facts, retention_set=[record(1000, 0, 60), record(2000, 0, 100)])
    assert decide(uneven, now_ms=9000).truncate == cut(s0e0=0, s1e0=60)


def test_messages_not_acknowledged_within_the_ttl_go_with_the_acknowledged_ones() -> None:
    """ "When the TTL expires, Pulsar automatically moves the message to the acknowledged state"."""
    facts = topic(pulsar(0, 0, ttl_s=2), subscribers={"a": at(10), "b": at(90)})
    decision = decide(facts, now_ms=5000)
    assert [(item.subscriber, item.end) for item in decision.expirations] == [("a", at(60))]
    assert decision.truncate == at(60)


def test_expired_messages_are_still_subject_to_retention() -> None:
    decision = decide(topic(pulsar(-1, 9, ttl_s=2), subscribers={"a": at(10)}), now_ms=5000)
    assert (len(decision.expirations), decision.truncate) == (1, None)


@pytest.mark.parametrize(
    ("on_exceed", "state", "evicted"),
    [
        (OnExceed.HOLD, WriterState.HOLD, 0),  # producer_request_hold
        (OnExceed.REJECT, WriterState.REJECT, 0),  # producer_exception
        (OnExceed.EVICT, WriterState.NOTIFY, 1),  # consumer_backlog_eviction
    ],
)
def test_the_three_backlog_policies(on_exceed: OnExceed, state: WriterState, evicted: int) -> None:
    decision = decide(topic(pulsar(0, 0, max_bytes=50, on_exceed=on_exceed), subscribers={"a": at(20)}), now_ms=5000)
    assert (decision.writers.state, len(decision.evictions)) == (state, evicted)
    assert decision.writers.exceeded is not (evicted == 1)


def test_a_quota_of_0_is_always_exceeded() -> None:
    decision = decide(topic(pulsar(0, 0, max_bytes=0), subscribers=READ), now_ms=5000)
    assert (decision.writers.exceeded, decision.writers.total_bytes) == (True, 100)


def test_readers_never_count() -> None:
    """A reader is no subscriber of ours; one that has published nothing holds neither data nor writers."""
    decision = decide(topic(pulsar(0, 0, max_bytes=1), subscribers={"reader": {}}), now_ms=5000)
    assert (decision.truncate, decision.writers.state) == (at(100), WriterState.OPEN)
