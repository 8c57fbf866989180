"""Counts the appends of one connection, and measures some of them."""

from __future__ import annotations

from penstock.ports.telemetry import Telemetry


class AppendMeter:
    """Counts until ``report``.

    It measures one append at a time, from its arrival to its acknowledgement. A writer that waits for each
    acknowledgement has all of its appends measured, and one that does not pays for few.
    """

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._timed: object = None
        self._since_s = 0.0
        self._samples_s: list[float] = []
        self.throttled = 0
        self.appends = 0
        self.appended_bytes = 0
        self.appended_events = 0

    def arrived(self, item: object) -> None:
        if self._timed is None:
            self._timed, self._since_s = item, self._telemetry.steady_s()

    def acknowledged(self, item: object, events: int, size_bytes: int) -> None:
        self.appends += 1
        self.appended_events += events
        self.appended_bytes += size_bytes
        if item is self._timed:
            self._samples_s.append(self._telemetry.steady_s() - self._since_s)

    def ended(self, item: object) -> None:
        """The append has ended, whatever its outcome."""
        if item is self._timed:
            self._timed = None

    def report(self) -> None:
        """Add what was counted since the last call to the telemetry."""
        telemetry = self._telemetry
        if self.throttled:
            telemetry.add("wire_throttled_appends", self.throttled)
            self.throttled = 0
        if self.appends:
            telemetry.add("wire_appends", self.appends)
            telemetry.add("wire_appended_bytes", self.appended_bytes)
            telemetry.add("wire_appended_events", self.appended_events)
            self.appends = self.appended_bytes = self.appended_events = 0
        for sample_s in self._samples_s:
            telemetry.observe("wire_append_seconds", sample_s)
        self._samples_s.clear()
