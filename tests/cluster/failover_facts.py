"""What a run with failures has shown: judged from the files that the load wrote. See ``failover_load`` for the files."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.crash.kill_cycles import check

ELECTED = "another controller active"
"""Measured with each controller that is killed; not a failure of its own."""


@dataclass(frozen=True, slots=True)
class Probe:
    """An acknowledged event of a container's probe stream. Times in seconds of the machine's monotonic clock."""

    container: int
    number: int
    sent_s: float
    acked_s: float


def parse_probes(lines: Iterable[str]) -> list[Probe]:
    """A last line without its end, as a killed writer leaves it, is not there yet."""
    parts = (line.split() for line in lines if line.endswith("\n"))
    return [Probe(int(one), int(number), float(sent), float(acked)) for one, number, sent, acked in parts]


def first_after(probes: Iterable[Probe], moment_s: float) -> dict[int, float]:
    """For each container, seconds from the moment until the first acknowledgement of an event sent after it."""
    first: dict[int, float] = {}
    for probe in probes:
        if probe.sent_s >= moment_s:
            took_s = probe.acked_s - moment_s
            first[probe.container] = min(took_s, first.get(probe.container, math.inf))
    return first


@dataclass(slots=True)
class Counters:
    """Increments of counters in a table by compare-and-set, by several clients. ``stale``: reads that returned less than what
    some client had read or changed before the read began."""

    acked: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    stale: list[str] = field(default_factory=list)

    @classmethod
    def parse(cls, lines: Iterable[str]) -> Counters:
        found = cls()
        known: dict[str, list[tuple[float, int]]] = defaultdict(list)
        reads: list[tuple[str, int, float]] = []
        for line in lines:
            verb, name, *rest = line.split()
            if verb == "unknown":
                found.unknown[name] += 1
                continue
            known[name].append((float(rest[-1]), int(rest[0])))
            if verb == "acked":
                found.acked[name] += 1
            else:
                reads.append((name, int(rest[0]), float(rest[1])))
        for name, value, began_s in reads:
            least = max((one for ended_s, one in known[name] if ended_s < began_s), default=0)
            if value < least:
                found.stale.append(f"{name}: read {value} after {least}")
        return found

    def wrong(self, values: Mapping[str, int]) -> list[str]:
        """Counters whose value cannot follow from what was acknowledged and what may have happened."""
        return [
            f"{name}: {values.get(name, 0)} is not from {self.acked[name]} to {self.acked[name] + self.unknown[name]}"
            for name in sorted({*self.acked, *self.unknown, *values})
            if not self.acked[name] <= values.get(name, 0) <= self.acked[name] + self.unknown[name]
        ]


def event_anomalies(acked: Sequence[str], found: Sequence[str]) -> dict[str, int]:
    """Counts of ``lost``, ``duplicated`` and ``out_of_order`` events, and of ``gaps``: an event of a key is missing though a
    later one of the key was read."""
    numbers: dict[str, set[int]] = defaultdict(set)
    for event in found:
        key, number = event.split()
        numbers[key].add(int(number))
    gaps = sum(max(seen) + 1 - len(seen) for seen in numbers.values())
    return {**check(acked, found), "gaps": gaps}


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that at least this share of them does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def spread(values: Sequence[float]) -> dict[str, float]:
    """How many there are, and their median, 99th percentile and maximum."""
    return {
        "count": len(values),
        "p50": percentile(values, 0.5),
        "p99": percentile(values, 0.99),
        "max": max(values),
    }


def totals(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What several runs of ``failover_nemesis.run`` show together. A run with an anomaly is listed by its seed."""
    found: dict[str, Any] = {
        "runs": len(runs),
        "takeovers": sum(len(seconds) for one in runs for seconds in one["takeovers"].values()),
        "failures": sum(
            len(one["failures"].get(kind, ())) for one in runs for kind in one["failures"] if kind != ELECTED
        ),
        "with_anomalies": [one["seed"] for one in runs if broken(one)],
    }
    found |= {name: sum(one[name] for one in runs) for name in ("acked", "read", "increments", "unknown_increments")}
    for name in ("failures", "takeovers"):
        seconds: dict[str, list[float]] = defaultdict(list)
        for one in runs:
            for kind, values in one[name].items():
                seconds[kind] += values
        found[f"seconds_of_{name}"] = {kind: spread(values) for kind, values in sorted(seconds.items())}
        if name == "takeovers" and seconds:
            found["seconds_of_all_takeovers"] = spread([one for values in seconds.values() for one in values])
    return found


def broken(summary: Mapping[str, Any]) -> bool:
    """Whether a run shows an anomaly, or its load has failed."""
    return any(summary["anomalies"].values()) or summary["load_status"] != 0


def whole_lines(path: Path, start: int = 0) -> list[str]:
    """The lines of a file that another process may be writing, from the line that begins at or after a byte on; none if
    there is no file."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(0, start - 1))
        data = file.read()
    if start:
        data = data.partition(b"\n")[2]
    return [line for line in data.decode().splitlines(keepends=True) if line.endswith("\n")]
