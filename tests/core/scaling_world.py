"""A stream that scales by rate under a load that is a function of time, in steps of simulated time, without I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.core.scaling.decision import ScalingDecision, ScalingFacts, decide_scaling
from penstock.core.scaling.rates import MINUTE_MS, RateMeter
from penstock.core.streams.history import EpochRecord, StreamHistory
from penstock.core.streams.scaling import next_number, plan_scale
from penstock.model.policies import ScalingPolicy
from penstock.model.scaling import ScalingAction, SegmentRates
from penstock.model.segments import KeyRange, SegmentId, SegmentRange, even_ranges, make_segment_id

DAY_MINUTES = 1440


def uniform(keys: KeyRange) -> float:
    """The share of the load that falls on the keys."""
    return keys.high - keys.low


@dataclass(slots=True, kw_only=True)
class ScalingWorld:
    """``load(minute)`` is the events per second of the whole stream, ``share(keys)`` the part of it in a range."""

    policy: ScalingPolicy
    load: Callable[[float], float]
    share: Callable[[KeyRange], float] = uniform
    step_minutes: float = 1.0
    minute: float = 0.0
    scaled_minute: float = 0.0
    decisions: list[tuple[float, ScalingDecision]] = field(default_factory=list)
    facts: list[ScalingFacts] = field(default_factory=list)
    """What each of the decisions was made from."""
    epoch: EpochRecord = field(init=False)
    active: list[SegmentRange] = field(default_factory=list)
    counts: dict[SegmentId, float] = field(default_factory=dict)
    meters: dict[SegmentId, RateMeter] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._open(
            EpochRecord(
                epoch=0,
                created_ms=0,
                segments=tuple(
                    SegmentRange(segment=make_segment_id(0, place), keys=keys)
                    for place, keys in enumerate(even_ranges(self.policy.min_segments))
                ),
            )
        )

    def _open(self, epoch: EpochRecord) -> None:
        self.epoch = epoch
        self.active = list(epoch.segments)
        wanted = [item.segment for item in self.active]
        self.counts = {segment: self.counts.get(segment, 0.0) for segment in wanted}
        now_ms = self.minute * MINUTE_MS
        self.meters = {segment: self.meters.get(segment) or RateMeter(0, now_ms=now_ms) for segment in wanted}

    def rates(self) -> dict[SegmentId, SegmentRates]:
        now_ms = self.minute * MINUTE_MS
        return {
            segment: meter.rates(int(self.counts[segment]), now_ms=now_ms) for segment, meter in self.meters.items()
        }

    def step(self) -> ScalingDecision:
        """One step of time, then one decision, which is performed. ``plan_scale`` refuses one that is not allowed."""
        rate = self.load(self.minute)
        self.minute += self.step_minutes
        for item in self.active:
            self.counts[item.segment] += rate * self.share(item.keys) * self.step_minutes * 60
            self.meters[item.segment].sample(int(self.counts[item.segment]), now_ms=self.minute * MINUTE_MS)
        facts = ScalingFacts(
            policy=self.policy,
            active=self.active,
            rates=self.rates(),
            minutes_since_scale=self.minute - self.scaled_minute,
        )
        decision = decide_scaling(facts)
        if decision.action is not ScalingAction.NONE:
            history = StreamHistory(epochs=[self.epoch])
            following = plan_scale(
                history,
                decision.sealed,
                decision.new_ranges,
                next_number=next_number(history),
                min_segments=self.policy.min_segments,
                created_ms=0,
            )
            self.decisions.append((self.minute, decision))
            self.facts.append(facts)
            self.scaled_minute = self.minute
            self._open(following)
        return decision

    def run(self, minutes: float) -> None:
        until = self.minute + minutes
        while self.minute < until:
            self.step()
