"""The durable log, shared by the containers of a store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.codec.store import operation_frames as frames
from penstock.codec.store import operations as codec
from penstock.core.segments.append_rules import APPEND_MAX_BYTES
from penstock.model.errors import PenstockError, StorageFullError
from penstock.model.ledgers import LogWipe
from penstock.ports.durable_log import DurableLog, LogAddress
from penstock.ports.files import Buffer
from penstock.ports.telemetry import Telemetry
from penstock.segmentstore.shortage import Shortage


class Committer(Protocol):
    """A container, as the shared log sees it."""

    def take_frame(self) -> tuple[Sequence[Buffer], int] | None:
        """Take what is queued as one frame, with its size; None: nothing is queued. The frame is then in flight."""
        ...

    def committed(self, address: int) -> None:
        """The taken frame is durable at the address."""
        ...

    def commit_later(self) -> None:
        """Let the container's own task append what is queued or was taken."""
        ...

    def go_offline(self, reason: str, error: BaseException | None) -> None: ...


class SharedLog:
    """Passes frames to the log, and tracks the highest durable address of all containers.

    ``filled`` is called after every ``fill_bytes`` written, and when the log is full: then all containers should tier
    and checkpoint. ``shortage`` records a full disk; for ``pause_s`` after a refusal the log gets no appends.
    """

    def __init__(self, log: DurableLog, *, fill_bytes: int, pause_s: float, telemetry: Telemetry) -> None:
        self._log = log
        self._steady_s = telemetry.steady_s
        self._writes = telemetry.tally("log_writes")
        self._written_bytes = telemetry.tally("log_written_bytes")
        self._observe_s = telemetry.durations("log_write_seconds")
        self._fill_bytes = fill_bytes
        self._since_bytes = 0
        self._truncated = 0
        self._due: dict[Committer, None] = {}
        self.filled: Callable[[], None] | None = None
        self.last_address = 0
        self.operation_max_bytes = log.max_frame_bytes - frames.FRAME.size
        """Size of the largest operation that may be queued. A larger one would fit no frame, and end its container."""
        self.append_max_bytes = min(APPEND_MAX_BYTES, self.operation_max_bytes - codec.APPEND.size)
        self.shortage = Shortage(log.refuse_waits, pause_s=pause_s)

    def commit_soon(self, committer: Committer) -> None:
        """At the end of this pass of the loop, commit what this and other containers have queued."""
        if not self._due:
            asyncio.get_running_loop().call_soon(self._commit_due)
        self._due[committer] = None

    def _commit_due(self) -> None:
        """One write and one sync for all, in place if the log can: then a single append costs no task and no thread
        hop."""
        due, self._due = list(self._due), {}
        taken: list[tuple[Committer, Sequence[Buffer], int]] = []
        for committer in due:
            frame = committer.take_frame()
            if frame is None:
                continue
            taken.append((committer, *frame))
        frames = [parts for _, parts, size_bytes in taken if size_bytes]
        addresses: Sequence[int] | None = ()
        began_s = self._steady_s()
        if frames:
            try:
                addresses = self._log.append_in_place(frames)
            except (OSError, PenstockError) as error:
                for committer, _, _ in taken:
                    committer.go_offline("log append failed", error)
                return
        if addresses is None:
            for committer, _, _ in taken:
                committer.commit_later()
            return
        if frames:
            self._writes.value += 1
            self._observe_s(self._steady_s() - began_s)
        left = iter(addresses)
        for committer, _, size_bytes in taken:
            if size_bytes:
                address = next(left)
                self._note(address, size_bytes)
                committer.committed(address)
            else:
                committer.committed(0)

    @property
    def epoch(self) -> int:
        return self._log.epoch

    async def append(self, parts: Sequence[Buffer], size_bytes: int, *, vital: bool) -> int:
        """Raises what ``DurableLog.append`` raises."""
        began_s = self._steady_s()
        try:
            address = await self._log.append(parts, vital=vital)
        except StorageFullError as error:
            # To make room in a full log, truncate it.
            self._since_bytes = 0
            self.shortage.log_refused(error)
            if self.filled is not None:
                self.filled()
            raise
        self._writes.value += 1
        self._observe_s(self._steady_s() - began_s)
        self._note(address, size_bytes)
        return address

    def _note(self, address: int, size_bytes: int) -> None:
        self.last_address = max(self.last_address, address)
        self._since_bytes += size_bytes
        self._written_bytes.value += size_bytes
        if self._since_bytes >= self._fill_bytes and self.filled is not None:
            self._since_bytes = 0
            self.filled()

    async def begin_wipe(self, frame: Sequence[Buffer]) -> None:
        """See ``DurableLog.begin_wipe``. ``frame``, which changes nothing, is the first frame of the new file: only the
        newest file knows the log's last address, so older files cannot go before it holds a frame."""
        await self._log.begin_wipe()
        await self.append(frame, sum(map(len, frame)), vital=True)
        # The file that was active until here still holds truncated frames.
        self._truncated = 0

    async def end_wipe(self) -> LogWipe | None:
        """See ``DurableLog.end_wipe``."""
        return await self._log.end_wipe()

    async def wipes_from_ms(self) -> int:
        """See ``DurableLog.wipes_from_ms``."""
        return await self._log.wipes_from_ms()

    async def truncate(self, upto: int) -> None:
        """Truncate the log up to and including ``upto``, unless that was already done."""
        if upto > self._truncated:
            await self._log.truncate(LogAddress(upto))
            self._truncated = upto
            self.shortage.log_shrank()
