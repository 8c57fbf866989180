"""Each rule of the retention document, by its own words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from retention_world import ONE, TWO, age, aged, at, cut, one_segment, pravega, record, size

from penstock.core.retention.planner import (
    HolderKind,
    RetentionFacts,
    RetentionRule,
    StreamCutRecord,
    decide,
)
from penstock.core.streams.history import StreamHistory
from penstock.model.errors import CorruptDataError
from penstock.model.policies import RetentionType
from penstock.model.retention import EffectivePolicy

# --- recording ----------------------------------------------------------------------------------------------------


def test_generate_a_tail_stream_cut_and_add_it_to_the_retention_set() -> None:
    tail = record(9000, 70)
    facts = one_segment(size(0), 10, tail=tail, frequency_ms=1000)
    decision = decide(facts, now_ms=9000)
    assert decision.record == tail
    assert decision.candidate == at(70)


def test_a_cut_is_recorded_only_once_the_newest_is_older_than_the_frequency() -> None:
    facts = one_segment(size(0), 10, tail=record(2000, 70), frequency_ms=1000)
    assert decide(facts, now_ms=2000).record is None
    assert decide(facts, now_ms=2001).record is not None
    assert decide(replace(facts, retention_set=()), now_ms=2000).record is not None


def test_a_cut_is_recorded_only_if_it_is_strictly_newer_and_not_smaller() -> None:
    facts = one_segment(size(0), 10, tail=record(1000, 70), frequency_ms=0)
    assert decide(facts, now_ms=5000).record is None
    assert decide(replace(facts, tail=record(5000, 9)), now_ms=5000).record is None


def test_bytes_are_counted_to_the_tail_even_where_it_is_not_recorded() -> None:
    facts = one_segment(size(50), 10, 60, tail=record(2500, 65), frequency_ms=10_000)
    assert decide(facts, now_ms=2500).candidate == at(10)
    assert decide(replace(facts, tail=None), now_ms=2500).candidate == at(10)
    assert decide(replace(facts, policy=size(5)), now_ms=2500).candidate == at(60)
    assert decide(replace(facts, policy=size(5), tail=None), now_ms=2500).candidate == at(10)


def test_a_stream_without_a_policy_is_never_considered_for_truncation() -> None:
    facts = one_segment(None, 10, 20, tail=record(9000, 70), subscribers={"a": at(70)})
    decision = decide(facts, now_ms=9000)
    assert (decision.candidate, decision.truncate, decision.record) == (None, None, None)
    assert decision.rule is RetentionRule.NO_POLICY
    assert [item.kind for item in decision.held_by] == [HolderKind.NO_POLICY]


def test_without_any_record_and_tail_nothing_is_decided() -> None:
    decision = decide(RetentionFacts(history=ONE, policy=size(0)), now_ms=1)
    assert (decision.rule, decision.truncate, decision.held_by) == (RetentionRule.NO_RECORD, None, ())


def test_records_out_of_order_are_refused() -> None:
    for second in (record(1000, 20), record(2000, 9)):
        with pytest.raises(CorruptDataError, match="out of order"):
            RetentionFacts(history=ONE, policy=None, retention_set=[record(1000, 10), second])


# --- size, nobody has published -----------------------------------------------------------------------------------


def test_if_the_size_is_less_than_min_limit_then_do_nothing() -> None:
    decision = decide(one_segment(size(100, 200), 10, 40, 99), now_ms=9000)
    assert (decision.candidate, decision.rule) == (None, RetentionRule.BELOW_MINIMUM)
    assert decision.why.startswith("Nothing is deleted")


def test_if_max_is_not_set_find_the_cut_closest_to_but_greater_than_the_min_limit() -> None:
    decision = decide(one_segment(size(50), 10, 40, 60, 100), now_ms=9000)
    assert (decision.truncate, decision.rule) == (at(40), RetentionRule.MINIMUM)
    assert decision.frees_bytes == 40
    assert decision.prune_through_ms == 2000


def test_a_cut_that_leaves_exactly_the_minimum_is_taken() -> None:
    assert decide(one_segment(size(60), 10, 40, 60, 100), now_ms=9000).truncate == at(40)
    assert decide(one_segment(size(61), 10, 40, 60, 100), now_ms=9000).truncate == at(10)


def test_if_the_size_exceeds_max_find_the_cut_closest_to_but_smaller_than_max() -> None:
    decision = decide(one_segment(size(10, 70), 20, 40, 80, 100), now_ms=9000)
    assert (decision.truncate, decision.rule) == (at(40), RetentionRule.MAXIMUM)


def test_a_cut_that_leaves_exactly_the_maximum_is_taken() -> None:
    assert decide(one_segment(size(10, 80), 20, 40, 80, 100), now_ms=9000).truncate == at(20)
    assert decide(one_segment(size(10, 79), 20, 40, 80, 100), now_ms=9000).truncate == at(40)


def test_if_the_size_is_between_the_limits_truncate_closest_to_the_min_limit() -> None:
    facts = one_segment(size(10, 70), 40, 80, 100, head=at(40))
    decision = decide(facts, now_ms=9000)
    assert (decision.truncate, decision.rule) == (at(80), RetentionRule.MINIMUM)
    assert decision.frees_bytes == 40


def test_the_size_is_measured_from_the_head_to_the_tail() -> None:
    facts = one_segment(size(10, 70), 20, 40, 80, 100)
    assert decide(facts, now_ms=9000).rule is RetentionRule.MAXIMUM
    assert decide(replace(facts, head=at(29)), now_ms=9000).rule is RetentionRule.MAXIMUM
    assert decide(replace(facts, head=at(30)), now_ms=9000).rule is RetentionRule.MINIMUM


def test_if_no_cut_lies_within_the_limits_the_one_closest_above_the_minimum_frees_what_it_can() -> None:
    decision = decide(one_segment(size(10, 30), 20, 40, 95, 100), now_ms=9000)
    assert decision.truncate == at(40)


def test_with_a_minimum_of_zero_everything_goes() -> None:
    assert decide(one_segment(size(0), 20, 40), now_ms=2000).truncate == at(40)
    assert decide(one_segment(age(0), 20, 40), now_ms=2000).truncate == at(40)


def test_the_retention_set_forgets_the_chosen_record_and_all_older_ones() -> None:
    facts = one_segment(size(0), 20, 40, 40, subscribers={"a": at(40)})
    assert decide(facts, now_ms=9000).prune_through_ms == 3000
    assert decide(replace(facts, subscribers={"a": at(39)}), now_ms=9000).prune_through_ms == 1000
    assert decide(replace(facts, subscribers={"a": at(19)}), now_ms=9000).prune_through_ms is None


# --- subscribers, by size -----------------------------------------------------------------------------------------


def test_one_subscriber_alone_is_the_lower_bound() -> None:
    decision = decide(one_segment(size(10, 90), 20, 40, 100, subscribers={"a": at(33)}), now_ms=9000)
    assert (decision.truncate, decision.rule) == (at(33), RetentionRule.SUBSCRIBERS)


def test_no_subscriber_loses_any_unconsumed_data() -> None:
    facts = RetentionFacts(
        history=TWO,
        policy=size(10, 90),
        retention_set=[record(1000, 50, 50)],
        subscribers={"a": cut(s0e0=30, s1e0=40), "b": cut(s0e0=40, s1e0=20)},
    )
    assert decide(facts, now_ms=9000).truncate == cut(s0e0=30, s1e0=20)


def test_if_nobody_has_published_the_stream_falls_back_to_its_size_or_time_policy() -> None:
    silent = one_segment(size(50), 10, 40, 60, 100, subscribers={"a": {}, "b": {}})
    assert decide(silent, now_ms=9000) == decide(replace(silent, subscribers={}), now_ms=9000)
    assert decide(replace(silent, subscribers={"a": {}, "b": at(45)}), now_ms=9000).truncate == at(45)


def test_case_i_the_bound_within_the_limits_is_where_the_stream_is_truncated() -> None:
    for offset in (11, 30, 50):
        decision = decide(one_segment(size(50, 89), 20, 40, 100, subscribers={"a": at(offset)}), now_ms=9000)
        assert (decision.truncate, decision.rule) == (at(offset), RetentionRule.SUBSCRIBERS)
        assert decision.frees_bytes == offset


def test_case_i_a_bound_that_leaves_exactly_the_minimum_or_the_maximum_is_kept() -> None:
    facts = one_segment(size(50, 80), 20, 40, 60, 100)
    for offset in (20, 50):
        assert decide(replace(facts, subscribers={"a": at(offset)}), now_ms=9000).rule is RetentionRule.SUBSCRIBERS


def test_case_ii_a_bound_that_leaves_less_than_the_minimum_is_discarded_for_the_closest_cut_above_it() -> None:
    decision = decide(one_segment(size(50, 90), 20, 40, 60, 100, subscribers={"a": at(51)}), now_ms=9000)
    assert (decision.truncate, decision.rule) == (at(40), RetentionRule.SUBSCRIBERS_MINIMUM)
    nothing = decide(one_segment(size(95), 20, 40, 100, subscribers={"a": at(51)}), now_ms=9000)
    assert (nothing.truncate, nothing.rule) == (None, RetentionRule.BELOW_MINIMUM)


def test_case_iii_a_bound_that_leaves_more_than_the_maximum_is_discarded_for_the_closest_cut_below_it() -> None:
    facts = one_segment(size(10, 70), 20, 40, 60, 100, subscribers={"slow": at(25), "quick": at(90)})
    decision = decide(facts, now_ms=9000)
    assert (decision.truncate, decision.rule) == (at(40), RetentionRule.SUBSCRIBERS_MAXIMUM)
    [eviction] = decision.evictions
    assert (eviction.subscriber, eviction.start, eviction.end, eviction.bytes) == ("slow", at(25), at(40), 15)
    assert eviction.rule is RetentionRule.SUBSCRIBERS_MAXIMUM


def test_case_iii_the_bound_stays_where_no_recorded_cut_frees_more() -> None:
    decision = decide(one_segment(size(10, 30), 20, 95, 100, subscribers={"a": at(20)}), now_ms=9000)
    assert (decision.truncate, decision.rule, decision.evictions) == (at(20), RetentionRule.SUBSCRIBERS, ())


TWO_RECORDS = [record(1000, 0, 6), record(2000, 4, 7), record(3000, 10, 8), record(4000, 15, 15)]


def test_case_iv_a_bound_overlapping_the_minimum_goes_back_to_the_first_cut_wholly_before_it() -> None:
    facts = RetentionFacts(
        history=TWO, policy=size(12, 30), retention_set=TWO_RECORDS, subscribers={"a": cut(s0e0=9, s1e0=10)}
    )
    decision = decide(facts, now_ms=9000)
    assert (decision.truncate, decision.rule) == (cut(s0e0=4, s1e0=7), RetentionRule.OVERLAP_MINIMUM)
    further = decide(replace(facts, subscribers={"a": cut(s0e0=13, s1e0=6)}), now_ms=9000)
    assert (further.truncate, further.rule) == (cut(s0e0=0, s1e0=6), RetentionRule.OVERLAP_MINIMUM)


def test_case_iv_nothing_goes_where_no_cut_lies_wholly_before_the_bound() -> None:
    facts = RetentionFacts(
        history=TWO, policy=size(12, 30), retention_set=TWO_RECORDS[2:], subscribers={"a": cut(s0e0=9, s1e0=10)}
    )
    decision = decide(facts, now_ms=9000)
    assert (decision.candidate, decision.rule) == (None, RetentionRule.OVERLAP_MINIMUM)


@pytest.mark.parametrize("kind", [RetentionType.SIZE, RetentionType.TIME])
def test_case_v_a_bound_overlapping_the_maximum_goes_to_the_first_cut_wholly_ahead_of_it(kind: RetentionType) -> None:
    records = [
        record(1000, 6, 1),
        record(2000, 10, 5),
        record(3000, 14, 14),
        record(4000, 20, 20),
        record(5000, 40, 40),
    ]
    limits = (45, 65) if kind is RetentionType.SIZE else (1500, 3000)
    facts = RetentionFacts(
        history=TWO,
        policy=pravega(kind, limits[0], limits[1]),
        retention_set=records,
        subscribers={"a": cut(s0e0=4, s1e0=9)},
    )
    decision = decide(facts, now_ms=5000)
    assert (decision.truncate, decision.rule) == (cut(s0e0=14, s1e0=14), RetentionRule.OVERLAP_MAXIMUM)
    [eviction] = decision.evictions
    assert (eviction.bytes, eviction.end) == (15, cut(s0e0=14, s1e0=14))


def test_case_v_never_goes_below_the_minimum() -> None:
    records = [record(1000, 10, 5), record(2000, 14, 14), record(3000, 40, 40)]
    facts = RetentionFacts(
        history=TWO, policy=size(60, 65), retention_set=records, subscribers={"a": cut(s0e0=4, s1e0=9)}
    )
    decision = decide(facts, now_ms=5000)
    assert (decision.truncate, decision.rule) == (cut(s0e0=10, s1e0=5), RetentionRule.SUBSCRIBERS_MAXIMUM)
    # At segment 1 the subscriber is ahead of the cut: it is moved to neither cut, but past both.
    [eviction] = decision.evictions
    assert (eviction.end, eviction.bytes) == (cut(s0e0=10, s1e0=9), 6)


# --- by time ------------------------------------------------------------------------------------------------------


def test_time_without_subscribers_takes_the_youngest_record_of_the_minimum_age() -> None:
    assert aged(age(2000)).truncate == at(60)
    assert aged(age(2001)).truncate == at(40)
    assert aged(age(2000, 3000)).truncate == at(60)
    assert aged(age(4001)).rule is RetentionRule.BELOW_MINIMUM


def test_time_deletes_nothing_before_the_minimum_age_even_if_all_is_consumed() -> None:
    assert aged(age(4001, 9000), 100).truncate is None
    assert aged(age(4000, 9000), 100).truncate == at(20)


def test_time_case_ii_the_record_of_the_minimum_age_wins_over_a_bound_ahead_of_it() -> None:
    decision = aged(age(2000, 4000), 61)
    assert (decision.truncate, decision.rule) == (at(60), RetentionRule.SUBSCRIBERS_MINIMUM)


def test_time_case_i_a_bound_between_minimum_and_maximum_age_is_kept() -> None:
    for offset in (60, 45, 40):
        assert aged(age(2000, 3000), offset).rule is RetentionRule.SUBSCRIBERS
        assert aged(age(2000, 3000), offset).truncate == at(offset)
    assert aged(age(2000), 1).truncate == at(1)
    assert aged(age(2000, 5000), 1).truncate == at(1)


def test_time_case_iii_a_bound_before_the_maximum_age_is_overruled() -> None:
    decision = aged(age(1000, 3000), 39)
    assert (decision.truncate, decision.rule) == (at(40), RetentionRule.SUBSCRIBERS_MAXIMUM)
    assert decision.evictions[0].bytes == 1
    assert aged(age(1000, 2500), 39).truncate == at(60)


def test_time_case_iv_goes_back_to_a_record_wholly_before_the_bound() -> None:
    facts = RetentionFacts(
        history=TWO, policy=age(2000), retention_set=TWO_RECORDS, subscribers={"a": cut(s0e0=9, s1e0=10)}
    )
    decision = decide(facts, now_ms=5000)
    assert (decision.truncate, decision.rule) == (cut(s0e0=4, s1e0=7), RetentionRule.OVERLAP_MINIMUM)


# --- asserted sequences -------------------------------------------------------------------------------------------


class Stream:
    """A stream of two segments that lives through cycles, as its controller would keep it."""

    def __init__(self, policy: EffectivePolicy) -> None:
        self.policy = policy
        self.history: StreamHistory = TWO
        self.head: Mapping[int, int] | None = None
        self.records: list[StreamCutRecord] = []
        self.subscribers: dict[str, Mapping[int, int]] = {}
        self.now_ms = 0

    def cycle(self, *tail: int, **subscribers: tuple[int, int]) -> object:
        """One cycle at this tail; the two offsets where it truncated, or None."""
        self.now_ms += 1
        for name, offsets in subscribers.items():
            self.subscribers[name] = dict(enumerate(offsets))
        facts = RetentionFacts(
            history=self.history,
            policy=self.policy,
            head=self.head,  # type: ignore[arg-type]
            retention_set=self.records,
            subscribers=self.subscribers,  # type: ignore[arg-type]
            tail=record(self.now_ms, *tail),
        )
        decision = decide(facts, now_ms=self.now_ms)
        if decision.record is not None:
            self.records.append(decision.record)
        if decision.truncate is None:
            return None
        self.head = decision.truncate
        self.records = [item for item in self.records if item.time_ms > (decision.prune_through_ms or 0)]
        return tuple(decision.truncate[segment] for segment in sorted(decision.truncate))


def test_asserted_sequence_of_two_subscribers_by_size() -> None:
    stream = Stream(size(2, 10))
    assert stream.cycle(2, 2, a=(1, 2), b=(2, 1)) == (1, 1)
    assert stream.cycle(2, 2, a=(2, 2), b=(2, 2)) is None
    assert stream.cycle(10, 10, a=(10, 10), b=(10, 9)) == (2, 2)
    assert stream.cycle(20, 20) == (10, 10)
    assert stream.cycle(30, 30, a=(22, 19), b=(21, 20)) == (21, 19)


def test_asserted_overlap_by_size_goes_back_to_the_newest_record_wholly_before_the_bound() -> None:
    stream = Stream(size(2, 20))
    stream.records = [record(1, 0, 6), record(2, 10, 8)]
    stream.now_ms = 2
    assert stream.cycle(10, 10, a=(9, 10)) == (0, 6)


def test_asserted_when_the_last_subscriber_leaves_the_plain_policy_rules_the_next_cycle() -> None:
    stream = Stream(size(90, 300))
    stream.records = [record(1, 60, 60)]
    stream.now_ms = 1
    assert stream.cycle(100, 110, a=(40, 50)) == (40, 50)
    stream.subscribers.clear()
    assert stream.cycle(150, 150) == (100, 110)


def test_asserted_no_subscriber_has_published_and_the_minimum_is_zero_everything_goes() -> None:
    stream = Stream(size(0))
    stream.subscribers = {"a": {}}
    assert stream.cycle(30, 20) == (30, 20)


def test_without_subscribers_a_stream_over_its_maximum_takes_two_cycles_to_its_minimum() -> None:
    stream = Stream(size(10, 60))
    stream.records = [record(place, place * 10, place * 10) for place in range(1, 6)]
    stream.now_ms = 5
    assert stream.cycle(60, 60) == (30, 30)
    assert stream.cycle(60, 60) == (50, 50)


def test_after_a_manual_truncation_candidates_behind_it_are_dropped_until_records_overtake_it() -> None:
    stream = Stream(size(20))
    stream.records = [record(1, 5, 5), record(2, 20, 20)]
    stream.now_ms = 2
    stream.head = cut(s0e0=25, s1e0=5)
    assert stream.cycle(30, 30) is None
    assert [item.time_ms for item in stream.records] == [1, 2, 3]
    assert stream.cycle(50, 50) == (30, 30)
