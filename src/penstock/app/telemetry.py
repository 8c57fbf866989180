"""Counters and gauges of one process, in a dict."""

from __future__ import annotations

from collections import Counter


class Counters:
    """``ports.telemetry.Telemetry`` that remembers: ``counts`` only grow, ``gauges`` hold the last value."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.gauges: dict[str, float] = {}

    def add(self, name: str, amount: int = 1) -> None:
        self.counts[name] += amount

    def gauge(self, name: str, value: float) -> None:
        self.gauges[name] = value
