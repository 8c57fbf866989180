"""The retention planner on one core: decisions from facts in memory, and whole lines of the offline face.

Rates are per second of CPU time, so that what else runs on the machine shows less.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from bench.measure import Figure, figure
from penstock.core.planner_json.lines import plan_lines
from penstock.core.planner_json.requests import decode_facts
from penstock.core.retention.planner import RetentionFacts, decide

START_MS = 1_700_000_000_000
SEGMENTS = [f"{number}#0" for number in range(4)]
STEP = 100
"""Bytes that each segment grows by between two records, one second apart."""

POLICIES: dict[str, Any] = {
    "size, within the limits": {"type": "size", "min": 4_000, "max": 60_000},
    "time, maximum overrules a subscriber": {"type": "time", "min": 10_000, "max": 50_000},
    "size, minimum": {"type": "size", "min": 34_000},
    "bytes or age, per segment": {"retain": {"min_bytes": 4_000, "min_age_s": 60, "measure": "segment"}},
    "bytes and age, TTL, quota, idleness": {
        "retain": {"min_bytes": 4_000, "min_age_s": 20, "combine": "all", "max_age_s": 90},
        "backlog": {"ttl_s": 80, "max_bytes": 40_000, "max_age_s": 85, "on_exceed": "hold"},
        "idle": {"subscriber_s": 86_400, "stream_s": 86_400},
    },
}


def facts_line(number: int, records: int, policy: Any) -> dict[str, Any]:
    """A stream of four segments and three subscribers, a few bytes different from every other one."""

    def cut(base: int) -> dict[str, int]:
        return {name: base + 7 * place for place, name in enumerate(SEGMENTS)}

    def record(place: int) -> dict[str, Any]:
        base = place * STEP + number
        return {"time_ms": START_MS + place * 1000, "size_bytes": 4 * base + 42, "cut": cut(base)}

    end = records * STEP
    return {
        "version": 1,
        "id": f"bench/stream-{number}",
        "now_ms": START_MS + (records + 1) * 1000,
        "frequency_ms": 60_000,
        "stream": {
            "scope": "bench",
            "name": f"stream-{number}",
            "epochs": [[{"segment": n, "low": p / 4, "high": (p + 1) / 4} for p, n in enumerate(SEGMENTS)]],
            "sealed": {},
        },
        "truncated_at": cut(5),
        "truncating": False,
        "policy": policy,
        "retention_set": [record(place) for place in range(1, records + 1)],
        "subscribers": {
            "delays": {"cut": cut(end * 30 // 100 + number)},
            "audit": {"cut": cut(end * 20 // 100)},
            "spark": {"cut": {name: end // 4 - 30 * place for place, name in enumerate(SEGMENTS)}},
        },
        "tail": record(records + 1),
        "hold": None,
    }


class PlannerBench:
    """``scale`` is the share of 20,000 decisions for each policy."""

    def __init__(self, runs: int, scale: float) -> None:
        self.runs = runs
        self.count = max(200, int(20_000 * scale))

    def run(self) -> list[Figure]:
        figures = [self._decisions(name, policy) for name, policy in POLICIES.items()]
        return figures + [self._lines(records) for records in (10, 100)]

    def _decisions(self, name: str, policy: Any) -> Figure:
        streams = [decode_facts(facts_line(number, 100, policy)) for number in range(100)]
        now_ms = streams[0].now_ms
        plain = [_with_plain_records(item.facts) for item in streams]

        def work() -> int:
            for facts in plain:
                decide(facts, now_ms=now_ms)
            return len(plain)

        rates = self._rates(work)
        work_name = f"plan: {name}; 100 records, 4 segments, 3 subscribers"
        return figure("P1", work_name, "decisions/s/core", rates, target=">= 20 k")

    def _lines(self, records: int) -> Figure:
        policy = POLICIES["size, within the limits"]
        lines = [json.dumps(facts_line(number, records, policy)) for number in range(100)]

        def work() -> int:
            return sum(answer.usable for answer in plan_lines(lines))

        rates = self._rates(work)
        work_name = f"plan --facts: JSON in, JSON out; {records} records, {len(lines[0]):,} bytes a line"
        return figure("P1", work_name, "lines/s/core", rates, target=">= 10 k")

    def _rates(self, work: Callable[[], int]) -> Sequence[float]:
        work()
        rates = []
        for _ in range(self.runs):
            started, done = time.process_time(), 0
            while done < self.count:
                done += work()
            rates.append(done / (time.process_time() - started))
        return rates


def _with_plain_records(facts: RetentionFacts) -> RetentionFacts:
    """The same with records as a controller has them: objects, made before."""
    return RetentionFacts(
        history=facts.history,
        policy=facts.policy,
        head=facts.head,
        retention_set=list(facts.retention_set),
        subscribers=facts.subscribers,
        tail=facts.tail,
        frequency_ms=facts.frequency_ms,
    )
