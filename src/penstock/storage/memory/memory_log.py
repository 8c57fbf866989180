"""Tier 1 in memory: for simulation, tests, and stores that may be lost with their process."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import field

from penstock.model.errors import ContainerOfflineError, InternalError, InvalidArgumentError, StorageFullError
from penstock.model.ledgers import LogWipe
from penstock.model.values.dataclass import dataclass
from penstock.ports.durable_log import LogAddress
from penstock.ports.files import Buffer

FRAME_MAX_BYTES = 17 << 20


@dataclass(slots=True)
class MemoryLogState:
    """The "disk" of a memory log: shared by all its openings, so that reopening and fencing can be tested.

    ``full`` makes appends raise ``StorageFullError``; ``fail_with``, once set, fails the next write and is cleared:
    the opening that makes the write goes offline.
    """

    frames: deque[tuple[LogAddress, bytes]] = field(default_factory=deque)
    last: int = 0
    epoch: int = 0
    full: bool = False
    fail_with: OSError | None = None


@dataclass(slots=True)
class _Pending:
    frame: bytes
    done: asyncio.Future[LogAddress]


class MemoryLog:
    """Implements ``ports.durable_log.DurableLog``. Creating one fences every earlier one of the same state.

    Args:
        state: Holds the frames. None: a new state.
        max_frame_bytes: Limit of one frame.
        pause: Awaited once for each group of appends, in place of the write and the sync. None: yield once.
    """

    def __init__(
        self,
        state: MemoryLogState | None = None,
        *,
        max_frame_bytes: int = FRAME_MAX_BYTES,
        pause: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._state = state if state is not None else MemoryLogState()
        self._state.epoch += 1
        self._epoch = self._state.epoch
        self._max_frame_bytes = max_frame_bytes
        self._pause = pause
        self._pending: list[_Pending] = []
        self._committer: asyncio.Task[None] | None = None
        self._offline: str | None = None
        self._replayed = False
        self._wiped_upto = 0

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def last(self) -> LogAddress:
        return LogAddress(self._state.last)

    @property
    def max_frame_bytes(self) -> int:
        return self._max_frame_bytes

    async def append(self, parts: Sequence[Buffer], *, vital: bool = False) -> LogAddress:
        if not self._replayed:
            raise InternalError("log was not replayed before an append")
        self._check_online()
        frame = b"".join(parts)
        if len(frame) > self._max_frame_bytes:
            raise InvalidArgumentError(
                "frame is larger than the limit of the log", size_bytes=len(frame), limit_bytes=self._max_frame_bytes
            )
        if self._state.full:
            raise StorageFullError("log is full", epoch=self._epoch)
        pending = _Pending(frame, asyncio.get_running_loop().create_future())
        self._pending.append(pending)
        if self._committer is None or self._committer.done():
            self._committer = asyncio.create_task(self._commit())
        return await pending.done

    def append_in_place(self, frames: Sequence[Sequence[Buffer]]) -> Sequence[LogAddress] | None:
        """Never: there is no disk to wait for."""
        return None

    def refuse_waits(self, error: StorageFullError | None) -> None:
        """Does nothing: no append waits here."""

    async def truncate(self, upto: LogAddress) -> None:
        self._check_online()
        frames = self._state.frames
        while frames and frames[0][0] <= upto:
            frames.popleft()

    async def begin_wipe(self) -> LogAddress:
        self._check_online()
        self._wiped_upto = self._state.last
        return LogAddress(self._wiped_upto)

    async def end_wipe(self) -> LogWipe | None:
        self._check_online()
        frames = self._state.frames
        return LogWipe() if not frames or frames[0][0] > self._wiped_upto else None

    async def wipes_from_ms(self) -> int:
        return 0

    async def replay(self) -> AsyncIterator[tuple[LogAddress, bytes]]:
        if self._replayed:
            raise InternalError("log was already replayed by this opening")
        self._check_online()
        for item in list(self._state.frames):
            yield item
        self._replayed = True

    async def close(self) -> None:
        if self._committer is not None:
            await asyncio.wait({self._committer})
        self._offline = self._offline or "log is closed"

    async def _commit(self) -> None:
        while self._pending:
            group, self._pending = self._pending, []
            if self._pause is None:
                await asyncio.sleep(0)
            else:
                await self._pause()
            error = self._write([item for item in group if not item.done.cancelled()])
            if error is not None:
                for item in group + self._pending:
                    if not item.done.done():
                        item.done.set_exception(error)
                self._pending.clear()

    def _write(self, group: Sequence[_Pending]) -> ContainerOfflineError | None:
        state = self._state
        if state.epoch != self._epoch:
            self._offline = "log is fenced"
        elif state.fail_with is not None:
            self._offline, state.fail_with = f"log failed: {state.fail_with}", None
        if self._offline is not None:
            return ContainerOfflineError(self._offline, epoch=self._epoch, newest_epoch=state.epoch)
        for item in group:
            state.last += 1
            state.frames.append((LogAddress(state.last), item.frame))
        for address, item in enumerate(group, state.last - len(group) + 1):
            item.done.set_result(LogAddress(address))
        return None

    def _check_online(self) -> None:
        if self._offline is None and self._state.epoch != self._epoch:
            self._offline = "log is fenced"
        if self._offline is not None:
            raise ContainerOfflineError(self._offline, epoch=self._epoch, newest_epoch=self._state.epoch)
