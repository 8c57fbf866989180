"""Counters, gauges and distributions of one process, in dicts."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from penstock.model.errors import CorruptDataError
from penstock.model.values.dataclass import dataclass
from penstock.ports.telemetry import Labels, Tally

BOUNDS_S = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025),
    *(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
"""Upper bounds of the buckets of every distribution, in seconds: from one sync of a fast disk to the longest call."""


@dataclass(slots=True)
class Distribution:
    """Durations in buckets. ``counts``: one for each bound, and one for longer durations."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    sum_s: float = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The metrics of one process at one moment; plain values, so that they can cross to another process.

    Each entry is a name, the values of its labels, and the value. Of a distribution it is the sum in seconds, followed
    by the counts of the buckets.
    """

    counts: Sequence[tuple[str, Labels, int]]
    gauges: Sequence[tuple[str, Labels, float]]
    distributions: Sequence[tuple[str, Labels, Sequence[float]]]

    def to_lists(self) -> list[list[list[object]]]:
        """The same in lists. ``from_lists`` reads them."""
        return [
            [[name, list(labels), value] for name, labels, value in self.counts],
            [[name, list(labels), value] for name, labels, value in self.gauges],
            [[name, list(labels), list(values)] for name, labels, values in self.distributions],
        ]

    @classmethod
    def from_lists(cls, lists: Sequence[Sequence[Sequence[Any]]]) -> Snapshot:
        """The snapshot that another process of the same version sent. Raises CorruptDataError if it is none."""
        try:
            counts, gauges, distributions = lists
            return cls(
                counts=[(str(name), _labels(labels), int(value)) for name, labels, value in counts],
                gauges=[(str(name), _labels(labels), float(value)) for name, labels, value in gauges],
                distributions=[(str(name), _labels(labels), _sums(values)) for name, labels, values in distributions],
            )
        except (TypeError, ValueError, OverflowError) as error:
            raise CorruptDataError("value is not a snapshot of metrics", reason=str(error)) from error


def _labels(values: Sequence[Any]) -> Labels:
    return tuple(str(value) for value in values)


def _sums(values: Sequence[Any]) -> Sequence[float]:
    if len(values) != len(BOUNDS_S) + 2:
        raise ValueError(f"a distribution has {len(BOUNDS_S) + 2} numbers, not {len(values)}")
    return [float(value) for value in values]


class Counters:
    """``ports.telemetry.Telemetry`` that remembers: ``counts`` only grow, ``gauges`` hold the last value.

    Everything is a plain number until it is read: a ``Counter`` would cost an append twice as much as a dict.
    """

    steady_s = staticmethod(time.perf_counter)

    def __init__(self) -> None:
        self.gauges: dict[str, float] = {}
        self._tallies: dict[str, Tally] = {}
        self._counts: dict[tuple[str, Labels], int] = {}
        self._gauges: dict[tuple[str, Labels], float] = {}
        self._distributions: dict[tuple[str, Labels], Distribution] = {}

    def begin(self, names: Sequence[str]) -> None:
        """Show these counters from now on, with 0. Prometheus sees no increase in a counter that appears with its first
        event, so an alert would miss that event."""
        for name in names:
            self.tally(name)

    @property
    def counts(self) -> Mapping[str, int]:
        """The counts without labels, now."""
        return {name: tally.value for name, tally in self._tallies.items()}

    def tally(self, name: str) -> Tally:
        found = self._tallies.get(name)
        if found is None:
            found = self._tallies[name] = Tally()
        return found

    def durations(self, name: str) -> Callable[[float], None]:
        return self._distribution(name, ()).observe

    def add(self, name: str, amount: int = 1, labels: Labels = ()) -> None:
        if labels:
            self._counts[name, labels] = self._counts.get((name, labels), 0) + amount
        else:
            self.tally(name).value += amount

    def gauge(self, name: str, value: float, labels: Labels = ()) -> None:
        if labels:
            self._gauges[name, labels] = value
        else:
            self.gauges[name] = value

    def observe(self, name: str, seconds: float, labels: Labels = ()) -> None:
        self._distribution(name, labels).observe(seconds)

    def _distribution(self, name: str, labels: Labels) -> Distribution:
        found = self._distributions.get((name, labels))
        if found is None:
            found = self._distributions[name, labels] = Distribution()
        return found

    def snapshot(self) -> Snapshot:
        """All values now."""
        return Snapshot(
            counts=[
                *((name, (), value) for name, value in self.counts.items()),
                *((name, labels, value) for (name, labels), value in self._counts.items()),
            ],
            gauges=[
                *((name, (), value) for name, value in self.gauges.items()),
                *((name, labels, value) for (name, labels), value in self._gauges.items()),
            ],
            distributions=[
                (name, labels, (found.sum_s, *found.counts)) for (name, labels), found in self._distributions.items()
            ],
        )
