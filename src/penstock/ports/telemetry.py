"""Counters, gauges and distributions, named with their unit last (``appended_bytes``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

Labels = tuple[str, ...]
"""The values of a metric's labels, in the order that ``app.metrics.catalogue`` lists. Few values in all: each
combination is kept."""


class Tally:
    """A count that its user raises with ``+=``, without a call. It only grows, and is read when metrics are scraped."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


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

    def tally(self, name: str) -> Tally:
        """The count that ``add`` raises, for a place that counts with every append. The same one for each call."""
        ...

    def durations(self, name: str) -> Callable[[float], None]:
        """As ``observe`` without labels, for such a place: call the result with seconds."""
        ...

    def steady_s(self) -> float:
        """Seconds of a clock that never jumps, for ``observe`` only. The event loop's clock stands still during a pass."""
        ...


class NoTelemetry:
    """Drops everything."""

    def add(self, name: str, amount: int = 1, labels: Labels = ()) -> None: ...

    def gauge(self, name: str, value: float, labels: Labels = ()) -> None: ...

    def observe(self, name: str, seconds: float, labels: Labels = ()) -> None: ...

    def tally(self, name: str) -> Tally:
        return Tally()

    def durations(self, name: str) -> Callable[[float], None]:
        return _drop

    def steady_s(self) -> float:
        return 0.0


def _drop(_seconds: float) -> None:
    """Nobody measures."""
