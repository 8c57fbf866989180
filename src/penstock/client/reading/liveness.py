"""Detect dead readers of a group from one reader's view, and choose how often a subscriber renews itself.

These are pure decisions.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.client.options import number
from penstock.model.errors import InvalidArgumentError
from penstock.model.values.dataclass import dataclass

Beat = tuple[str, int]
"""The incarnation of a reader, and the number that grows while it lives."""

_LEASE_PARTS = 3
"""An interval between two observations counts for at most one part of the lease. So a death takes more observations."""

RENEWAL_MAX_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTimes:
    """The times of a group's readers, in seconds. Raises InvalidArgumentError unless the lease is the longer one."""

    lease_s: float
    """After this long without a report a reader counts as dead."""
    refresh_s: float
    """How often a reader reports."""

    def __post_init__(self) -> None:
        number("lease_s", self.lease_s, above=0)
        number("refresh_s", self.refresh_s, above=0)
        if self.refresh_s >= self.lease_s:
            raise InvalidArgumentError(
                "the lease must be longer than the refresh interval", lease_s=self.lease_s, refresh_s=self.refresh_s
            )


def renewal_s(idle_ms: int | None) -> float:
    """Seconds after which a subscriber with nothing to read renews itself, or reads the policy again.

    ``idle_ms``: how long the policy allows it to be silent; None: forever. The interval is a third of that, so one late or
    lost renewal does no harm. It is at most 10 s, because the policy may change.
    """
    return RENEWAL_MAX_S if idle_ms is None else min(RENEWAL_MAX_S, idle_ms / 3000)


class SilenceTracker:
    """How long each other reader has been silent *while this one could observe it*.

    Time is this reader's own monotonic time, because clocks of machines need not agree. An interval between two observations
    counts only up to its planned length. While the store was unreachable, or this process was stopped, no reader could be
    observed. The first reader to come back must not treat all others as dead.
    """

    def __init__(self, *, lease_s: float, refresh_s: float) -> None:
        self._lease_s = lease_s
        self._interval_max_s = min(2 * refresh_s, lease_s / _LEASE_PARTS)
        self._looked_at: float | None = None
        self._silent: dict[str, tuple[Beat, float]] = {}

    def observe(self, beats: Mapping[str, Beat], now: float) -> None:
        """Record the beats of all others, seen at ``now`` seconds."""
        self._silent = {name: (beat, self._silent_s(name, beat, now)) for name, beat in beats.items()}
        self._looked_at = now

    def is_dead(self, name: str, beat: Beat, now: float) -> bool:
        """Whether a reader that shows this beat at ``now`` has been silent for longer than the lease."""
        return self._silent_s(name, beat, now) > self._lease_s

    def dead(self, beats: Mapping[str, Beat], now: float) -> list[str]:
        """Those of the others that have been silent for longer than the lease."""
        return [name for name, beat in beats.items() if self.is_dead(name, beat, now)]

    def _silent_s(self, name: str, beat: Beat, now: float) -> float:
        before = self._silent.get(name)
        if before is None or before[0] != beat or self._looked_at is None:
            return 0.0
        return before[1] + min(now - self._looked_at, self._interval_max_s)
