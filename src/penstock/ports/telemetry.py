"""Counters and gauges, named with their unit last (``appended_bytes``)."""

from __future__ import annotations

from typing import Protocol


class Telemetry(Protocol):
    """Receives metrics. Calls are cheap, never fail and never block."""

    def add(self, name: str, amount: int = 1) -> None:
        """Count up."""
        ...

    def gauge(self, name: str, value: float) -> None:
        """Set the current value."""
        ...
