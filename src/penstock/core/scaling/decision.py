"""Which segments of a stream to split or merge, decided from their rates.

Thresholds of a split are Pravega's: 5 times the target over 2 minutes, twice over 5, or more than it over 10. Two
further rules keep a stream from flapping: the load must still be there, and two segments merge only where both together
stayed below half of the target. Source: docs/design/0039-scaling-by-rate.md, "The decision".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from penstock.core.streams.history import EpochRecord
from penstock.core.units import counted
from penstock.model.errors import InvalidArgumentError
from penstock.model.policies import SEGMENTS_MAX, ScaleType, ScalingPolicy
from penstock.model.scaling import Heat, ScalingAction, SegmentRates
from penstock.model.segments import KeyRange, SegmentId, SegmentRange, epoch_of, number_of
from penstock.model.values.dataclass import dataclass

COOLDOWN_MINUTES = 10
"""No decision changes a stream that has changed its segments within this time."""

MUTE_MINUTES = 10
"""A store reports a segment once in this time."""

MERGE_SHARE = 0.5
"""Two neighbours merge where the sum of their highest rates is below this share of the target."""

RANGE_MIN = 1e-4
"""No split makes a range of keys narrower than this. One hot key stays hot in however narrow a range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingFacts:
    """What a decision needs. ``active``: the segments in key order. ``rates`` may lack some: those count as new.

    ``minutes_since_scale``: minutes since the active segments last changed.
    """

    policy: ScalingPolicy
    active: Sequence[SegmentRange]
    rates: Mapping[SegmentId, SegmentRates]
    minutes_since_scale: float
    cooldown_minutes: float = COOLDOWN_MINUTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingDecision:
    """Seal ``sealed`` and open ``new_ranges``, which cover the same keys; both empty for ``NONE``.

    ``reason`` is one sentence for people. ``heat`` has each active segment.
    """

    action: ScalingAction
    reason: str
    sealed: tuple[SegmentId, ...] = ()
    new_ranges: tuple[KeyRange, ...] = ()
    heat: Mapping[SegmentId, Heat]


def heat_of(rates: SegmentRates | None, target_rate: float) -> Heat:
    """Hot, cold, or neither. Raises InvalidArgumentError for a target that is not positive."""
    if target_rate <= 0:
        raise InvalidArgumentError("a target rate must be above 0", target_rate=target_rate)
    if rates is None:
        return Heat.NEW
    if hot_rate(rates, target_rate) is not None:
        return Heat.HOT
    if rates.measured_minutes < 20:
        return Heat.NEW
    return Heat.COLD if rates.peak < MERGE_SHARE * target_rate else Heat.WARM


def hot_rate(rates: SegmentRates, target_rate: float) -> float | None:
    """The highest of the rates by which the segment is hot; None if it is not.

    The load must not have ended: the rate over two minutes is above the target in any case.
    """
    if rates.two <= target_rate:
        return None
    limits = ((2, rates.two, 5), (5, rates.five, 2), (10, rates.ten, 1))
    found = [
        rate for minutes, rate, times in limits if rates.measured_minutes >= minutes and rate > times * target_rate
    ]
    return max(found, default=None)


def minutes_since_scale(
    active: EpochRecord, rates: Mapping[SegmentId, SegmentRates], *, now_ms: int, minute_ms: int
) -> float:
    """Minutes since the active segments last changed, of ``minute_ms`` each.

    If the clock has gone back behind that change, it is as long ago as the store has measured all segments that it
    opened: a clock that was a year ahead for a moment does not keep a stream from scaling for a year.
    """
    if now_ms >= active.created_ms:
        return (now_ms - active.created_ms) / minute_ms
    opened = [item.segment for item in active.segments if epoch_of(item.segment) == active.epoch]
    if any(segment not in rates for segment in opened):
        return 0.0
    return min((rates[segment].measured_minutes for segment in opened), default=0.0)


def decide_scaling(facts: ScalingFacts) -> ScalingDecision:
    """What to do with the stream now.

    All hot segments are split in one step, in at most ``factor`` parts each. Where none can be split, pairs of cold
    neighbours are merged, coldest first, while more than ``min_segments`` are left.
    """
    policy = facts.policy
    if policy.type is ScaleType.FIXED:
        return ScalingDecision(action=ScalingAction.NONE, reason="The number of segments is fixed.", heat={})
    heat = {item.segment: heat_of(facts.rates.get(item.segment), policy.target_rate) for item in facts.active}
    if facts.minutes_since_scale < facts.cooldown_minutes:
        left = math.ceil(facts.cooldown_minutes - facts.minutes_since_scale)
        reason = f"The segments changed recently; the next change is possible in {left} min."
        return ScalingDecision(action=ScalingAction.NONE, reason=reason, heat=heat)
    return _split(facts, heat) or _merge(facts, heat) or _stay(facts, heat)


def _split(facts: ScalingFacts, heat: Mapping[SegmentId, Heat]) -> ScalingDecision | None:
    target, room = facts.policy.target_rate, SEGMENTS_MAX - len(facts.active)
    split: list[tuple[SegmentRange, int, float]] = []
    for item in sorted(facts.active, key=lambda item: -_peak(facts, item)):
        rate = hot_rate(facts.rates[item.segment], target) if heat[item.segment] is Heat.HOT else None
        if rate is None:
            continue
        wanted = math.ceil(min(rate / target, facts.policy.factor))
        parts = min(max(2, wanted), 1 + room, _parts_max(item.keys))
        if parts >= 2:
            split.append((item, parts, rate))
            room -= parts - 1
    if not split:
        return None
    split.sort(key=lambda found: found[0].keys.low)
    said = ", ".join(f"{show(item.segment)} at {rate:.1f}/s into {parts}" for item, parts, rate in split[:3])
    more = f" and {len(split) - 3} more" if len(split) > 3 else ""
    unit = _unit(facts.policy)
    return ScalingDecision(
        action=ScalingAction.SPLIT,
        reason=f"Split {said}{more}: above the target of {target} {unit}/s.",
        sealed=tuple(item.segment for item, _, _ in split),
        new_ranges=tuple(keys for item, parts, _ in split for keys in split_range(item.keys, parts)),
        heat=heat,
    )


def _merge(facts: ScalingFacts, heat: Mapping[SegmentId, Heat]) -> ScalingDecision | None:
    limit = MERGE_SHARE * facts.policy.target_rate
    pairs = [
        (_peak(facts, left) + _peak(facts, right), left, right)
        for left, right in pairwise(facts.active)
        if heat[left.segment] is Heat.COLD and heat[right.segment] is Heat.COLD
    ]
    merged: list[tuple[SegmentRange, SegmentRange]] = []
    taken: set[SegmentId] = set()
    spare = len(facts.active) - facts.policy.min_segments
    for rate, left, right in sorted(pairs, key=lambda pair: (pair[0], pair[1].keys.low)):
        if len(merged) < spare and rate < limit and not taken & {left.segment, right.segment}:
            merged.append((left, right))
            taken |= {left.segment, right.segment}
    if not merged:
        return None
    merged.sort(key=lambda pair: pair[0].keys.low)
    said = ", ".join(f"{show(left.segment)} and {show(right.segment)}" for left, right in merged[:3])
    more = f" and {counted(len(merged) - 3, 'more pair')}" if len(merged) > 3 else ""
    return ScalingDecision(
        action=ScalingAction.MERGE,
        reason=f"Merge {said}{more}: for 20 min together below {limit:g} {_unit(facts.policy)}/s, half of the target.",
        sealed=tuple(item.segment for pair in merged for item in pair),
        new_ranges=tuple(KeyRange(low=left.keys.low, high=right.keys.high) for left, right in merged),
        heat=heat,
    )


def _stay(facts: ScalingFacts, heat: Mapping[SegmentId, Heat]) -> ScalingDecision:
    found = list(heat.values())
    if Heat.HOT in found:
        reason = (
            f"A segment is hot and cannot be split: a stream has at most {SEGMENTS_MAX} segments, "
            "and a range that is this narrow may hold one busy key."
        )
    elif Heat.COLD in found and len(found) <= facts.policy.min_segments:
        reason = f"Segments are cold, and the stream has its minimum of {facts.policy.min_segments}."
    elif Heat.COLD in found:
        reason = "Segments are cold, but no two neighbours together stay below half of the target."
    elif Heat.NEW in found:
        reason = "No segment is hot, and some are not measured for 20 min yet."
    else:
        reason = "No segment is hot or cold."
    return ScalingDecision(action=ScalingAction.NONE, reason=reason, heat=heat)


def split_range(keys: KeyRange, parts: int) -> tuple[KeyRange, ...]:
    """``parts`` ranges of equal width that cover the same keys exactly. Raises InvalidArgumentError if ``parts`` is
    below 1."""
    if parts < 1:
        raise InvalidArgumentError("a range must be split into at least one part", parts=parts)
    width = keys.high - keys.low
    bounds = [keys.low, *(keys.low + width * place / parts for place in range(1, parts)), keys.high]
    return tuple(KeyRange(low=low, high=high) for low, high in pairwise(bounds))


def show(segment: SegmentId) -> str:
    """The segment as people read it: ``number#epoch``."""
    return f"{number_of(segment)}#{epoch_of(segment)}"


def _peak(facts: ScalingFacts, item: SegmentRange) -> float:
    rates = facts.rates.get(item.segment)
    return 0.0 if rates is None else rates.peak


def _parts_max(keys: KeyRange) -> int:
    return int((keys.high - keys.low) / RANGE_MIN + 1e-9)


def _unit(policy: ScalingPolicy) -> str:
    return "events" if policy.type is ScaleType.EVENTS_PER_S else "kB"
