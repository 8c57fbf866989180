"""Wall time. Waits come from the event loop, never from here."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Wall clock. It may jump in either direction; nothing that deletes data may trust it to be monotone."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        ...
