"""The clocks of this machine."""

from __future__ import annotations

import time


class RealClock:
    """Implements ``ports.clock.Clock``."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


def boot_seconds() -> float:
    """Seconds since the machine started, including sleep. It never jumps, and cannot be set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
