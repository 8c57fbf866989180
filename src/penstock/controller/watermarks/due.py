"""Which streams wait for a look at their watermarks. All of it may be forgotten but for the next start's look."""

from __future__ import annotations

from penstock.model.names import StreamName


class DueWatermarks:
    """Streams and the wall-clock times, in milliseconds, at which their writers' marks are looked at."""

    def __init__(self) -> None:
        self._due: dict[StreamName, int] = {}

    def at(self, name: StreamName, at_ms: int) -> None:
        """Look at the stream then, unless an earlier look is planned."""
        self._due[name] = min(at_ms, self._due.get(name, at_ms))

    def soon(self, name: StreamName) -> None:
        """Look at the stream with the next pass."""
        self.at(name, 0)

    def take(self, now_ms: int) -> list[StreamName]:
        """The streams whose time has come, in the order in which they were added. They are not due any longer."""
        ready = [name for name, at_ms in self._due.items() if at_ms <= now_ms]
        for name in ready:
            del self._due[name]
        return ready
