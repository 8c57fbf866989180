"""Two sides of one workload, the product and the bare loop, measured in turns of one run."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.measure import percentile
from bench.stages.kinds import kinds
from bench.stages.sampling import Profile, sampled, thread_cpu_s


@dataclass(slots=True, kw_only=True)
class Side:
    """``work`` does the workload once and returns how many units that were. ``waits``: latencies in microseconds, if the
    workload is about latency; ``prepare`` runs before each turn, outside of what is measured.
    ``repeats`` is false if its processes end with the turn, ``sampled`` if the side is a physical limit without stages."""

    pids: Mapping[str, int]
    work: Callable[[], int]
    prepare: Callable[[], None] = lambda: None
    repeats: bool = True
    sampled: bool = True
    waits: list[float] = field(default_factory=list)


REFERENCE_NS = 30.0
"""One iteration of the loop below on a quiet core of the machine that the documented figures are from."""


def iteration_ns(count: int = 200_000) -> float:
    """CPU of one iteration of a fixed loop now. On a shared machine it varies by several times within minutes."""
    began, total = time.thread_time(), 0
    for number in range(count):
        total += number % 7
    return (time.thread_time() - began) / count * 1e9


def here() -> int:
    return os.getpid()


@dataclass(slots=True)
class Outcome:
    """What one side took, for each unit: microseconds of CPU by process and turn, scaled to the reference core, and units
    a second, as they were."""

    cpu_us: dict[str, list[float]] = field(default_factory=dict)
    iteration_ns: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    profiles: dict[str, Profile] = field(default_factory=dict)
    kinds: dict[str, dict[str, float]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {"units_per_s": statistics.median(self.rates), "processes": {}}
        found["iteration_ns"] = statistics.median(self.iteration_ns)
        if self.waits:
            found |= {"p50_us": percentile(self.waits, 0.5), "p99_us": percentile(self.waits, 0.99)}
        for name, values in self.cpu_us.items():
            us = statistics.median(values)
            profile = self.profiles.get(name, Profile())
            stages = {
                stage: {"us": share * us, "places": profile.places_of(stage)}
                for stage, share in profile.shares().items()
            }
            of_kind = {kind: share * us for kind, share in self.kinds.get(name, {}).items()}
            found["processes"][name] = {
                "cpu_us": us,
                "low": min(values),
                "high": max(values),
                "stages": stages,
                "kinds": of_kind,
            }
        return found


def _turn(side: Side, outcome: Outcome) -> None:
    side.prepare()
    slowness = iteration_ns() / REFERENCE_NS
    before = {name: sum(thread_cpu_s(pid).values()) for name, pid in side.pids.items()}
    side.waits.clear()
    began = time.perf_counter()
    units = side.work()
    took = time.perf_counter() - began
    used = {name: sum(thread_cpu_s(pid).values()) - before[name] for name, pid in side.pids.items()}
    slowness = (slowness + iteration_ns() / REFERENCE_NS) / 2
    outcome.iteration_ns.append(slowness * REFERENCE_NS)
    for name in side.pids:
        outcome.cpu_us.setdefault(name, []).append(used[name] / units * 1e6 / slowness)
    outcome.rates.append(units / took)
    outcome.waits += side.waits


def compare(sides: Mapping[str, Side], rounds: int, directory: Path, sampled_s: float) -> dict[str, Outcome]:
    """Turns without a sampler for the figures, then as many as ``sampled_s`` takes with it, for the shares alone."""
    found = {name: Outcome() for name in sides}
    for side in sides.values():
        side.prepare()
        side.work()  # opens what is opened once
    names = list(sides)
    for turn in range(rounds):
        for name in names if turn % 2 == 0 else reversed(names):
            _turn(sides[name], found[name])
    for name, side in sides.items():
        if not side.sampled:
            continue
        side.prepare()
        with sampled(side.pids, directory) as profiles:
            _repeat(side, sampled_s)
        found[name].profiles = profiles
        side.prepare()
        with kinds(side.pids, directory) as of_kind:
            _repeat(side, sampled_s / 2)
        found[name].kinds = of_kind
    return found


def _repeat(side: Side, seconds: float) -> None:
    until = time.perf_counter() + seconds
    side.work()
    while side.repeats and time.perf_counter() < until:
        side.prepare()
        side.work()
