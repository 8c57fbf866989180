from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scaling_world import DAY_MINUTES, ScalingWorld, uniform

from penstock.core.scaling.decision import (
    MERGE_SHARE,
    RANGE_MIN,
    ScalingDecision,
    ScalingFacts,
    decide_scaling,
    heat_of,
    split_range,
)
from penstock.core.scaling.rates import MINUTE_MS, RateMeter
from penstock.model.errors import InvalidArgumentError
from penstock.model.policies import ScaleType, ScalingPolicy
from penstock.model.scaling import Heat, ScalingAction, SegmentRates
from penstock.model.segments import KeyRange, SegmentId, SegmentRange, make_segment_id

TARGET = 100


def by_events(*, factor: int = 2, minimum: int = 1, target: int = TARGET) -> ScalingPolicy:
    return ScalingPolicy(type=ScaleType.EVENTS_PER_S, target_rate=target, factor=factor, min_segments=minimum)


def steady(rate: float, minutes: float = 100) -> SegmentRates:
    return SegmentRates(two=rate, five=rate, ten=rate, twenty=rate, measured_minutes=minutes)


def facts_of(
    rates: list[SegmentRates | None], *, policy: ScalingPolicy | None = None, bounds: list[float] | None = None
) -> ScalingFacts:
    ends = bounds or [place / len(rates) for place in range(len(rates) + 1)]
    active = [
        SegmentRange(segment=make_segment_id(0, place), keys=KeyRange(low=low, high=high))
        for place, (low, high) in enumerate(pairwise(ends))
    ]
    return ScalingFacts(
        policy=policy or by_events(),
        active=active,
        rates={item.segment: rate for item, rate in zip(active, rates, strict=True) if rate is not None},
        minutes_since_scale=1000,
    )


def decided(*rates: float, policy: ScalingPolicy | None = None) -> ScalingDecision:
    return decide_scaling(facts_of([steady(rate) for rate in rates], policy=policy))


def widths(decision: ScalingDecision) -> list[float]:
    return [keys.high - keys.low for keys in decision.new_ranges]


# --- rates -------------------------------------------------------------------------------------------------------


def test_rates_cover_the_last_two_five_ten_and_twenty_minutes() -> None:
    meter, count = RateMeter(7, now_ms=0), 7
    for half in range(1, 81):
        # 10 a second until minute 30, then 100 a second.
        count += 30 * (10 if half <= 60 else 100)
        meter.sample(count, now_ms=half * 30_000)
    rates = meter.rates(count, now_ms=40 * MINUTE_MS)
    assert (rates.two, rates.five, rates.ten, rates.twenty) == (100, 100, 100, 55)
    assert rates.measured_minutes == 40
    assert rates.peak == 100


def test_a_young_meter_answers_the_rate_since_it_began() -> None:
    meter = RateMeter(0, now_ms=0)
    assert meter.rates(50, now_ms=0).peak == 0
    rates = meter.rates(600, now_ms=MINUTE_MS)
    assert (rates.two, rates.twenty, rates.measured_minutes) == (10, 10, 1)


def test_samples_closer_than_half_a_minute_take_no_room() -> None:
    meter = RateMeter(0, now_ms=0)
    for second in range(24 * 3600):
        meter.sample(second, now_ms=second * 1000)
    assert len(meter._times_ms) <= 42
    assert meter.rates(24 * 3600 - 1, now_ms=(24 * 3600 - 1) * 1000).twenty == 1


@given(
    growth=st.lists(st.integers(0, 10_000), min_size=1, max_size=120),
    minute_ms=st.sampled_from([10, 1000, MINUTE_MS]),
)
def test_every_rate_lies_between_the_slowest_and_the_fastest_half_minute(growth: list[int], minute_ms: int) -> None:
    meter, count = RateMeter(0, now_ms=0, minute_ms=minute_ms), 0
    for place, added in enumerate(growth, start=1):
        count += added
        meter.sample(count, now_ms=place * minute_ms / 2)
    rates = meter.rates(count, now_ms=len(growth) * minute_ms / 2)
    fastest, slowest = (pick(growth) * 2000 / minute_ms for pick in (max, min))
    for rate in (rates.two, rates.five, rates.ten, rates.twenty):
        assert slowest - 1e-6 <= rate <= fastest + 1e-6


# --- one decision ------------------------------------------------------------------------------------------------


def test_a_segment_is_hot_by_pravegas_three_thresholds() -> None:
    for minutes, times in ((2, 5), (5, 2), (10, 1)):
        hot, enough = steady(times * TARGET + 1, minutes), steady(times * TARGET + 1, minutes - 0.1)
        assert heat_of(hot, TARGET) is Heat.HOT
        assert heat_of(enough, TARGET) is Heat.NEW
        assert heat_of(steady(TARGET, minutes), TARGET) is Heat.NEW


def test_a_burst_that_has_ended_splits_nothing() -> None:
    after = SegmentRates(two=0, five=3 * TARGET, ten=4 * TARGET, twenty=4 * TARGET, measured_minutes=60)
    assert heat_of(after, TARGET) is Heat.WARM


def test_a_segment_is_cold_only_after_twenty_minutes_below_half_the_target() -> None:
    assert heat_of(steady(49, 20), TARGET) is Heat.COLD
    assert heat_of(steady(49, 19), TARGET) is Heat.NEW
    assert heat_of(steady(50, 20), TARGET) is Heat.WARM
    assert heat_of(SegmentRates(two=60, five=1, ten=1, twenty=1, measured_minutes=60), TARGET) is Heat.WARM


def test_a_hot_segment_splits_into_as_many_parts_as_its_rate_asks_up_to_the_factor() -> None:
    for rate, parts in ((101, 2), (250, 3), (10_000, 4)):
        found = decided(rate, policy=by_events(factor=4))
        assert found.action is ScalingAction.SPLIT
        assert widths(found) == pytest.approx([1 / parts] * parts)


def test_all_hot_segments_split_in_one_step_and_nothing_merges_meanwhile() -> None:
    found = decided(300, 1, 1, 200, policy=by_events(factor=2))
    assert (found.action, len(found.sealed), len(found.new_ranges)) == (ScalingAction.SPLIT, 2, 4)
    assert found.reason == "Split 0#0 at 300.0/s into 2, 3#0 at 200.0/s into 2: above the target of 100 events/s."


def test_cold_neighbours_merge_in_pairs_down_to_the_minimum_the_coldest_first() -> None:
    found = decided(20, 20, 5, 5, policy=by_events(minimum=1))
    assert found.action is ScalingAction.MERGE
    assert [(keys.low, keys.high) for keys in found.new_ranges] == [(0.0, 0.5), (0.5, 1.0)]
    found = decided(20, 20, 5, 5, policy=by_events(minimum=3))
    assert [(keys.low, keys.high) for keys in found.new_ranges] == [(0.5, 1.0)]
    found = decided(20, 20, 5, 5, policy=by_events(minimum=4))
    assert found.action is ScalingAction.NONE
    assert found.reason == "Segments are cold, and the stream has its minimum of 4."


def test_neighbours_that_together_reach_half_of_the_target_stay_apart() -> None:
    assert decided(25, 24).action is ScalingAction.MERGE
    found = decided(25, 25)
    assert (found.action, found.reason) == (
        ScalingAction.NONE,
        "Segments are cold, but no two neighbours together stay below half of the target.",
    )


def test_cold_segments_that_are_no_neighbours_stay() -> None:
    assert decided(1, 80, 1).action is ScalingAction.NONE


def test_nothing_changes_during_the_cooldown_and_without_rates() -> None:
    facts = facts_of([steady(1000)])
    young = ScalingFacts(policy=facts.policy, active=facts.active, rates=facts.rates, minutes_since_scale=9.5)
    assert decide_scaling(young).reason == "The segments changed recently; the next change is possible in 1 min."
    assert decide_scaling(young).action is ScalingAction.NONE
    unknown = decide_scaling(facts_of([None, None]))
    assert (unknown.action, set(unknown.heat.values())) == (ScalingAction.NONE, {Heat.NEW})


def test_a_fixed_stream_never_scales_by_rate() -> None:
    found = decide_scaling(facts_of([steady(1000)], policy=ScalingPolicy(min_segments=1)))
    assert (found.action, found.reason) == (ScalingAction.NONE, "The number of segments is fixed.")


def test_a_range_that_is_too_narrow_for_a_split_says_so() -> None:
    found = decide_scaling(facts_of([steady(1000), steady(80)], bounds=[0.0, 1.5 * RANGE_MIN, 1.0]))
    assert found.action is ScalingAction.NONE
    assert "one busy key" in found.reason


@pytest.mark.parametrize("target", [0, -1])
def test_a_target_that_is_no_rate_is_refused(target: int) -> None:
    with pytest.raises(InvalidArgumentError):
        heat_of(steady(1), target)


# --- laws --------------------------------------------------------------------------------------------------------


@st.composite
def scaling_facts(draw: st.DrawFn) -> ScalingFacts:
    count = draw(st.integers(1, 12))
    inner = draw(st.lists(st.integers(1, 99_999), min_size=count - 1, max_size=count - 1, unique=True))
    one = st.floats(0, 20 * TARGET, allow_nan=False)
    some = st.builds(
        SegmentRates, two=one, five=one, ten=one, twenty=one, measured_minutes=st.sampled_from([0, 3, 7, 12, 25])
    )
    policy = by_events(factor=draw(st.integers(2, 9)), minimum=draw(st.integers(1, 14)))
    rates = draw(st.lists(st.none() | some, min_size=count, max_size=count))
    return facts_of(rates, policy=policy, bounds=[0.0, *(place / 100_000 for place in sorted(inner)), 1.0])


@settings(max_examples=400)
@given(facts=scaling_facts())
def test_a_decision_covers_the_same_keys_exactly_once_within_factor_and_minimum(facts: ScalingFacts) -> None:
    found = decide_scaling(facts)
    keys = {item.segment: item.keys for item in facts.active}
    kept = [item.keys for item in facts.active if item.segment not in found.sealed]
    after = sorted([*kept, *found.new_ranges])
    assert (after[0].low, after[-1].high) == (0.0, 1.0)
    assert all(left.high == right.low for left, right in pairwise(after))
    assert (found.action is ScalingAction.NONE) == (not found.sealed)
    if found.action is ScalingAction.SPLIT:
        assert all(found.heat[segment] is Heat.HOT for segment in found.sealed)
        for segment in found.sealed:
            parts = [part for part in found.new_ranges if keys[segment].overlaps(part)]
            assert 2 <= len(parts) <= facts.policy.factor
    if found.action is ScalingAction.MERGE:
        assert Heat.COLD in found.heat.values()
        assert len(found.sealed) == 2 * len(found.new_ranges)
        assert len(after) >= facts.policy.min_segments
        for part in found.new_ranges:
            total = sum(facts.rates[segment].peak for segment in found.sealed if keys[segment].overlaps(part))
            assert total < MERGE_SHARE * TARGET


@given(low=st.floats(0, 0.9), width=st.floats(1e-3, 0.1), parts=st.integers(1, 100))
def test_a_split_range_is_covered_exactly(low: float, width: float, parts: int) -> None:
    found = split_range(KeyRange(low=low, high=low + width), parts)
    assert (len(found), found[0].low, found[-1].high) == (parts, low, low + width)
    assert all(left.high == right.low for left, right in pairwise(found))


@settings(max_examples=25, deadline=None)
@given(
    rate=st.floats(0, 30 * TARGET),
    factor=st.integers(2, 8),
    minimum=st.integers(1, 6),
    bend=st.floats(0.3, 3),
)
def test_a_steady_load_comes_to_rest_whatever_its_keys(rate: float, factor: int, minimum: int, bend: float) -> None:
    """Never flapping: what is split is not merged again and the other way round, so changes end and stay ended."""

    def share(keys: KeyRange) -> float:
        return float(keys.high**bend - keys.low**bend)

    world = ScalingWorld(
        policy=by_events(factor=factor, minimum=minimum), load=lambda _: rate, share=share, step_minutes=2
    )
    world.run(600)
    changes = len(world.decisions)
    world.run(600)
    assert len(world.decisions) == changes


def test_one_busy_key_ends_in_a_narrow_range_and_stays_there() -> None:
    def share(keys: KeyRange) -> float:
        return 1.0 if keys.low <= 0.3 < keys.high else 0.0

    world = ScalingWorld(policy=by_events(), load=lambda _: 5.0 * TARGET, share=share)
    world.run(2000)
    changes = len(world.decisions)
    world.run(2000)
    assert len(world.decisions) == changes
    assert len(world.active) <= 4


# --- days --------------------------------------------------------------------------------------------------------


def diurnal(peak: float) -> Callable[[float], float]:
    """From 2 % of the peak at night to the peak at noon, with a slow ripple of 15 %."""

    def load(minute: float) -> float:
        day = 0.5 - 0.5 * math.cos(2 * math.pi * minute / DAY_MINUTES)
        return peak * (0.02 + 0.98 * day) * (1 + 0.15 * math.sin(minute / 17))

    return load


def per_day(world: ScalingWorld, days: int) -> list[int]:
    found = [0] * days
    for minute, _ in world.decisions:
        found[min(days - 1, int(minute / DAY_MINUTES))] += 1
    return found


def flaps(world: ScalingWorld) -> int:
    """Changes of direction: a split that follows a merge, or a merge that follows a split."""
    actions = [found.action for _, found in world.decisions]
    return sum(before is not after for before, after in pairwise(actions))


def run_days(days: int, *, factor: int = 2) -> ScalingWorld:
    world = ScalingWorld(policy=by_events(factor=factor, minimum=2), load=diurnal(16 * TARGET), step_minutes=1)
    world.run(days * DAY_MINUTES)
    return world


def check_days(world: ScalingWorld, days: int) -> None:
    found = per_day(world, days)
    assert max(found) <= 12, found
    assert min(found[1:]) >= 2, "it follows the load"
    # Up once and down once a day.
    assert flaps(world) <= 2 * days


def test_four_days_of_diurnal_load_scales_up_once_and_down_once_a_day() -> None:
    check_days(run_days(4), 4)


@pytest.mark.slow
@pytest.mark.parametrize("factor", [2, 4])
def test_a_hundred_days_of_diurnal_load_scale_a_bounded_number_of_times_a_day(factor: int) -> None:
    world = run_days(100, factor=factor)
    check_days(world, 100)
    print(f"factor {factor}: {len(world.decisions)} changes in 100 days, most in a day {max(per_day(world, 100))}")


def test_the_number_of_segments_follows_the_load_up_and_down_again() -> None:
    world = ScalingWorld(
        policy=by_events(factor=4), load=lambda minute: 50 * 2 ** (minute / 60) if minute < 300 else 0.0
    )
    world.run(300)
    assert len(world.active) >= 8
    world.run(200)
    assert len(world.active) == 1


def _ids(world: ScalingWorld) -> list[SegmentId]:
    return [item.segment for item in world.active]


def test_a_minimum_above_the_load_is_kept() -> None:
    world = ScalingWorld(policy=by_events(minimum=3), load=lambda _: 0.0, share=uniform)
    before = _ids(world)
    world.run(300)
    assert _ids(world) == before
