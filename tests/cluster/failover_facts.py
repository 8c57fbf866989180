"""What a run with failures has shown: judged from the files that the load wrote. See ``failover_load`` for the files."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.kill_cycles import check


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
