"""The clock for the age of data and the end of leases. It counts elapsed time, however the wall clock is changed.

Source: docs/design/0012-retention-clock.md.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.codec.control.truncations import ClockRecord
from penstock.controller import retention_keys
from penstock.controller.metadata import Metadata, overwrite
from penstock.controller.set_aside import SetAside
from penstock.ports.clock import Clock
from penstock.ports.data.tables import KEY_ABSENT

_MOVED_MS = 60_000
"""How far the wall clock may drift from this one before the drift is recorded."""


class RetentionClock:
    """Milliseconds, near the Unix epoch's. Never runs faster than ``steady``, never goes back within a process.

    After a restart it continues by the elapsed wall clock time less ``slack_ms``, and never before the recorded time.
    ``steady`` counts elapsed seconds, from any start.
    """

    def __init__(
        self, metadata: Metadata, wall: Clock, steady: Callable[[], float], set_aside: SetAside, *, slack_ms: int
    ) -> None:
        self._metadata = metadata
        self._set_aside = set_aside
        self._wall = wall
        self._steady = steady
        self._slack_ms = slack_ms
        self._base_ms: int | None = None
        self._began_s = 0.0
        self._behind_ms = 0
        self._recorded: ClockRecord | None = None
        self._is_durable = False

    def now_ms(self) -> int:
        """Milliseconds. Before ``start`` the wall clock's."""
        wall_ms = self._wall.now_ms()
        if self._base_ms is None:
            return wall_ms
        # Rounding errors of float seconds must not cost a whole millisecond.
        now_ms = self._base_ms + int((self._steady() - self._began_s) * 1000 + 1e-3)
        self._behind_ms = max(self._behind_ms, now_ms - wall_ms)
        return now_ms

    def certain_ms(self) -> int:
        """What has passed by both clocks: a time that a user gave has come if this has reached it."""
        return min(self.now_ms(), self._wall.now_ms())

    async def lasting_ms(self) -> int:
        """As ``now_ms``, for the start of something that must last, such as a lease. Records the clock of this process
        first.

        The next process continues from the last record. Without a record of this process, the next clock could run
        ahead of this one, and a lease that began here would end early.
        """
        if not self._is_durable:
            await self.record()
        return self.now_ms()

    def until_ms(self, wall_ms: int) -> int:
        """Convert a time that a user gave: the time on this clock when both clocks have reached it."""
        return wall_ms + max(0, self.now_ms() - self._wall.now_ms())

    def stamped_ms(self, wall_ms: int) -> int:
        """Convert a time that was read from the wall clock to this clock. Never too early, however far the wall clock
        lagged."""
        self.now_ms()
        return wall_ms + self._behind_ms

    def began_ms(self, wall_ms: int) -> int:
        """Convert a time that was read from the wall clock to this clock, for the start of a range. Too early rather
        than too late: this clock may be behind the wall clock, and then shows earlier times for what came after."""
        return wall_ms - max(0, self._wall.now_ms() - self.now_ms())

    async def start(self) -> None:
        """Continue from the last process's record. If it cannot be read, start from the wall clock less the slack.

        A store without a readable record gets one here, before any lease begins.
        """
        (entry,) = await self._metadata.entries([retention_keys.CLOCK])
        found = None if entry.version == KEY_ABSENT else self._set_aside.read(entry, ClockRecord)
        wall_ms = self._wall.now_ms()
        self._began_s = self._steady()
        self._recorded = found
        if found is None:
            # A clock that is behind keeps data longer, never shorter.
            self._base_ms = wall_ms if entry.version == KEY_ABSENT else wall_ms - self._slack_ms
            # Leases begin after this. Without a record, a crash and a clock set ahead would end them at the next start.
            await self.record()
            return
        away_ms = max(0, wall_ms - found.wall_ms - self._slack_ms)
        self._base_ms = found.retention_ms + away_ms
        self._behind_ms = found.behind_ms

    async def record_moves(self) -> None:
        """Record that the wall clock was set, even if nothing else is recorded. The next start measures the elapsed
        time from the last recorded wall time. If a correction after it were missing, it would count as elapsed time."""
        known = self._recorded
        now_ms, wall_ms = self.now_ms(), self._wall.now_ms()
        if known is not None and abs((wall_ms - now_ms) - (known.wall_ms - known.retention_ms)) > _MOVED_MS:
            await self.record()

    async def record_within(self, age_ms: int) -> None:
        """Record the clock, unless it was recorded in the last ``age_ms``."""
        known = self._recorded
        if known is None or self.now_ms() - known.retention_ms >= age_ms:
            await self.record()

    async def record(self) -> None:
        """Record the clock. Called together with records that use its time, so that an idle store writes nothing.

        A clock that has not started knows only the wall clock, and must not replace the last process's record.
        """
        if self._base_ms is None:
            return
        now_ms = self.now_ms()
        now = ClockRecord(retention_ms=now_ms, wall_ms=self._wall.now_ms(), behind_ms=self._behind_ms)
        # Also if only the wall clock has moved: its jumps must not add up between two records.
        if now != self._recorded:
            await self._metadata.put(overwrite(retention_keys.CLOCK, now))
            self._recorded = now
        self._is_durable = True
