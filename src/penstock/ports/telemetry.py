"""Counters, gauges and distributions, named with their unit last (``appended_bytes``)."""

from __future__ import annotations

from typing import Protocol

Labels = tuple[str, ...]
"""The values of a metric's labels, in the order that ``app.metrics.catalogue`` lists. Few values in all: each
combination is kept."""


class Telemetry(Protocol):
    """Receives metrics. Calls are cheap, never fail and never block."""

    def add(self, name: str, amount: int = 1, labels: Labels = ()) -> None:
        """Count up."""
        ...

    def gauge(self, name: str, value: float, labels: Labels = ()) -> None:
        """Set the current value."""
        ...

    def observe(self, name: str, seconds: float, labels: Labels = ()) -> None:
        """Add one duration to a distribution."""
        ...

    def steady_s(self) -> float:
        """Seconds of a clock that never jumps, for ``observe`` only. The event loop's clock stands still during a pass."""
        ...


class NoTelemetry:
    """Drops everything."""

    def add(self, name: str, amount: int = 1, labels: Labels = ()) -> None: ...

    def gauge(self, name: str, value: float, labels: Labels = ()) -> None: ...

    def observe(self, name: str, seconds: float, labels: Labels = ()) -> None: ...

    def steady_s(self) -> float:
        return 0.0
