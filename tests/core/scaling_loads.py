"""Loads of a stream over days, drawn from a seed: noise, weekends, spikes, hot keys, and drift around the thresholds."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from scaling_world import DAY_MINUTES, ScalingWorld

from penstock.core.scaling.decision import MERGE_SHARE, ScalingDecision, ScalingFacts, hot_rate
from penstock.model.policies import ScaleType, ScalingPolicy
from penstock.model.scaling import ScalingAction
from penstock.model.segments import KeyRange

TARGET = 100
Load = Callable[[float], float]
Share = Callable[[KeyRange], float]


def _random_at(seed: int, place: int) -> random.Random:
    """Chance that depends only on the seed and a place in time, so that a load is a function of time."""
    return random.Random(seed * 1_000_003 + place)


def _day(minute: float) -> float:
    """0 at midnight, 1 at noon."""
    return 0.5 - 0.5 * math.cos(2 * math.pi * minute / DAY_MINUTES)


def diurnal(_: int, peak: float) -> Load:
    return lambda minute: peak * (0.02 + 0.98 * _day(minute))


def noisy(seed: int, peak: float) -> Load:
    """Each minute differs from the curve by a third up or down, and by half now and then."""

    def load(minute: float) -> float:
        chance = _random_at(seed, int(minute))
        return peak * (0.05 + 0.95 * _day(minute)) * math.exp(chance.gauss(0, 0.35))

    return load


def weekly(seed: int, peak: float) -> Load:
    """Five days of work and two of rest."""

    def load(minute: float) -> float:
        rest = int(minute / DAY_MINUTES) % 7 >= 5
        return (
            peak
            * (0.1 if rest else 1.0)
            * (0.02 + 0.98 * _day(minute))
            * _random_at(seed, int(minute)).uniform(0.9, 1.1)
        )

    return load


def spiky(seed: int, peak: float) -> Load:
    """A load with about six bursts a day, of 1 to 60 minutes and up to ten times of it."""

    def load(minute: float) -> float:
        slot = int(minute / 240)
        chance = _random_at(seed, slot)
        begin, length, times = chance.uniform(0, 180), chance.uniform(1, 60), chance.uniform(2, 10)
        inside = begin <= minute - 240 * slot < begin + length
        return peak * 0.1 * (times if inside else 1.0)

    return load


def drifting(seed: int, peak: float) -> Load:
    """A load that moves slowly around the rate at which it is split, and around the one at which it merges."""
    chance = random.Random(seed)
    periods = [chance.uniform(90, 3000) for _ in range(3)]

    def load(minute: float) -> float:
        around = TARGET * (1 if int(minute / (2 * DAY_MINUTES)) % 2 else MERGE_SHARE)
        wave = sum(math.sin(2 * math.pi * minute / period) for period in periods) / 3
        return around * max(1, round(peak / TARGET / 2)) * (1 + 0.3 * wave)

    return load


LOADS: dict[str, Callable[[int, float], Load]] = {
    item.__name__: item for item in (diurnal, noisy, weekly, spiky, drifting)
}


def even(keys: KeyRange) -> float:
    return keys.high - keys.low


def bent(seed: int) -> Share:
    """More load at one end of the keys than at the other."""
    bend = random.Random(seed).uniform(0.3, 3)
    return lambda keys: float(keys.high**bend - keys.low**bend)


def hot(seed: int) -> Share:
    """Half of the load has one key."""
    key = random.Random(seed).random()
    return lambda keys: 0.5 * (keys.high - keys.low) + (0.5 if keys.low <= key < keys.high else 0.0)


SHARES: dict[str, Callable[[int], Share]] = {"even": lambda _: even, "bent": bent, "hot": hot}


@dataclass(frozen=True, slots=True, kw_only=True)
class Days:
    """What a stream did in some days. ``turns``: splits after merges and merges after splits. ``undone_minutes``: the
    shortest time in which a change of a range of keys was taken back exactly, and by how much its rate had changed."""

    changes: int
    most_in_a_day: int
    turns_in_a_day: int
    most_segments: int
    undone_minutes: float
    undone_times: float


def run_days(load: str, share: str, seed: int, days: int) -> Days:
    """Run a stream for some days under a load, with a policy that the seed draws too."""
    chance = random.Random(f"{load}/{share}/{seed}")
    policy = ScalingPolicy(
        type=ScaleType.EVENTS_PER_S,
        target_rate=TARGET,
        factor=chance.choice((2, 3, 4, 8)),
        min_segments=chance.choice((1, 2, 5)),
    )
    peak = TARGET * chance.uniform(2, 16)
    world = ScalingWorld(policy=policy, load=LOADS[load](seed, peak), share=SHARES[share](seed), step_minutes=1)
    most = 0
    while world.minute < days * DAY_MINUTES:
        world.step()
        most = max(most, len(world.active))
    return summary(world, days, most)


def summary(world: ScalingWorld, days: int, most: int) -> Days:
    changes, turns = [0] * days, [0] * days
    for place, (minute, found) in enumerate(world.decisions):
        day = min(days - 1, int((minute - 1) / DAY_MINUTES))
        changes[day] += 1
        turns[day] += place > 0 and world.decisions[place - 1][1].action is not found.action
    undone = list(_undone(world))
    return Days(
        changes=len(world.decisions),
        most_in_a_day=max(changes),
        turns_in_a_day=max(turns),
        most_segments=most,
        undone_minutes=min((minutes for minutes, _ in undone), default=math.inf),
        undone_times=min((times for _, times in undone), default=math.inf),
    )


def _undone(world: ScalingWorld) -> Iterator[tuple[float, float]]:
    """For each range of keys that was one segment, was split and is one segment again, or the other way round: minutes
    in between, and the factor between the two rates of these keys that were reason for both changes."""
    known: dict[KeyRange, tuple[ScalingAction, float, float]] = {}
    for (minute, found), facts in zip(world.decisions, world.facts, strict=True):
        for keys, rate in _changed(found, facts):
            before = known.get(keys)
            if before is not None and before[0] is not found.action:
                yield minute - before[1], max(rate, before[2]) / max(min(rate, before[2]), 1e-9)
            known[keys] = (found.action, minute, rate)


def _changed(found: ScalingDecision, facts: ScalingFacts) -> Iterator[tuple[KeyRange, float]]:
    """Ranges that were one segment and are not, or are one now, each with the rate that its keys had."""
    sealed = [item for item in facts.active if item.segment in found.sealed]
    if found.action is ScalingAction.SPLIT:
        for item in sealed:
            yield item.keys, hot_rate(facts.rates[item.segment], TARGET) or 0.0
    else:
        for keys in found.new_ranges:
            yield keys, sum(facts.rates[item.segment].peak for item in sealed if keys.overlaps(item.keys))
