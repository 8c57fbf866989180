"""The durable log as the containers of a store share it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.model.errors import StorageFullError
from penstock.ports.durable_log import DurableLog, LogAddress
from penstock.ports.files import Buffer
from penstock.segmentstore.shortage import Shortage


class SharedLog:
    """Hands frames on, and knows the highest address that any container has seen become durable.

    ``filled`` is called whenever another ``fill_bytes`` have been written, and when the log is full: time for everyone to
    tier and checkpoint. ``shortage`` tells of a full disk; for ``pause_s`` after a refusal the log is not asked for appends.
    """

    def __init__(self, log: DurableLog, *, fill_bytes: int, pause_s: float) -> None:
        self._log = log
        self._fill_bytes = fill_bytes
        self._since_bytes = 0
        self._truncated = 0
        self.filled: Callable[[], None] | None = None
        self.last_address = 0
        self.shortage = Shortage(log.refuse_waits, pause_s=pause_s)

    @property
    def epoch(self) -> int:
        return self._log.epoch

    async def append(self, parts: Sequence[Buffer], size_bytes: int, *, vital: bool) -> int:
        """Raises what ``DurableLog.append`` raises."""
        try:
            address = await self._log.append(parts, vital=vital)
        except StorageFullError as error:
            # The way out of a full log is to need less of it.
            self._since_bytes = 0
            self.shortage.log_refused(error)
            if self.filled is not None:
                self.filled()
            raise
        self.last_address = max(self.last_address, address)
        self._since_bytes += size_bytes
        if self._since_bytes >= self._fill_bytes and self.filled is not None:
            self._since_bytes = 0
            self.filled()
        return address

    async def truncate(self, upto: int) -> None:
        """Forget the frames at and below ``upto``, unless that was done."""
        if upto > self._truncated:
            await self._log.truncate(LogAddress(upto))
            self._truncated = upto
            self.shortage.log_shrank()
