"""What a process knows of itself: memory, CPU, files, and the functions that do not work."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from penstock.app.metrics.catalogue import METRICS, MetricKind
from penstock.app.process_memory import resident_bytes
from penstock.app.telemetry import Counters, Snapshot
from penstock.core.segments.readiness import FUNCTIONS
from penstock.ports.clock import Clock
from penstock.segmentstore.store import SegmentStore

_FILES = Path("/proc/self/fd")
_FROM_ZERO = tuple(
    metric.name
    for metric in METRICS.values()
    if metric.kind is MetricKind.COUNTER and not metric.labels and metric.name != "cpu_seconds"
)


class ProcessMetrics:
    """The metrics of this process. ``store``: the segment store in it, once it is open."""

    def __init__(self, telemetry: Counters, clock: Clock, *, not_ready: Callable[[], Mapping[str, str]]) -> None:
        self._telemetry = telemetry
        self._clock = clock
        self._not_ready = not_ready
        self._started_s = clock.now_ms() / 1000
        telemetry.begin(_FROM_ZERO)

    def snapshot(self, *, budget_bytes: int, store: SegmentStore | None) -> Snapshot:
        """All metrics now."""
        telemetry = self._telemetry
        telemetry.gauge("up", 1)
        telemetry.gauge("started_time_seconds", self._started_s)
        telemetry.gauge("clock_time_seconds", self._clock.now_ms() / 1000)
        telemetry.gauge("memory_budget_bytes", budget_bytes)
        telemetry.gauge("resident_bytes", resident_bytes() or 0)
        telemetry.gauge("cpu_seconds", time.process_time())
        if _FILES.is_dir():
            telemetry.gauge("open_files", len(os.listdir(_FILES)))
        failing = self._not_ready()
        for function in FUNCTIONS:
            telemetry.gauge("not_ready", function in failing, (function,))
        if store is not None:
            store.report_memory()
        return telemetry.snapshot()
