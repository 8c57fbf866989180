"""The wall clock of this machine."""

from __future__ import annotations

import time


class RealClock:
    """Implements ``ports.clock.Clock``."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000
