"""Writes one ledger as objects."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from penstock.codec.log_objects import LogObject, encode_object, object_name
from penstock.model.errors import (
    AlreadyExistsError,
    FencedError,
    InvalidArgumentError,
    PenstockError,
    StorageFullError,
    UnavailableError,
)
from penstock.model.values.dataclass import dataclass
from penstock.ports.files import Buffer
from penstock.ports.objects import ExclusiveObjects
from penstock.storage.object_log.limits import ObjectLogLimits

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Entry:
    number: int
    data: bytes
    done: asyncio.Future[int]


@dataclass(slots=True, eq=False)
class _Write:
    """An object under way."""

    head: LogObject
    data: bytes
    entries: Sequence[_Entry]
    is_stored: bool = False


class ObjectWriter:
    """Implements ``ports.cluster.ledgers.LedgerWriter``. The header is object 0, which the caller has written.

    Entries are acknowledged once their object, and all before it, are stored. If tier 2 does not answer, or is full, each
    write is repeated with the same name and bytes until it is known whose object has the name. ``end``: ends the ledger at
    the first free number, and returns its last entry.
    """

    def __init__(
        self,
        objects: ExclusiveObjects,
        ledger: int,
        limits: ObjectLogLimits,
        end: Callable[[int, int], Awaitable[int]],
    ) -> None:
        self._objects = objects
        self._ledger = ledger
        self._limits = limits
        self._end = end
        self._confirmed = 0
        self._open_number = 1
        """Of the first object that is not acknowledged."""
        self._next_entry = self._next_number = 1
        self._queue: deque[_Entry] = deque()
        self._queued_bytes = 0
        self._writes: deque[_Write] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._paid_s = float("-inf")
        """Until when the objects so far use up the average of one for each interval."""
        self._timer: asyncio.Handle | None = None
        self._failure: PenstockError | None = None
        self._is_stopped = False

    @property
    def ledger(self) -> int:
        return self._ledger

    @property
    def is_stopped(self) -> bool:
        return self._is_stopped

    @property
    def confirmed(self) -> int:
        """As the port says."""
        return self._confirmed

    @property
    def failed(self) -> Sequence[str]:
        """As the port says: there are no bookies."""
        return ()

    def add(self, parts: Sequence[Buffer]) -> Awaitable[int]:
        """As the port says. Entries are queued without a limit: the log has one."""
        data = b"".join(parts)
        if len(data) > self._limits.entry_max_bytes:
            raise InvalidArgumentError(
                "entry is too large for a ledger", size_bytes=len(data), limit_bytes=self._limits.entry_max_bytes
            )
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if self._failure is not None:
            _refuse(done, self._failure)
            return done
        self._queue.append(_Entry(self._next_entry, data, done))
        self._next_entry += 1
        self._queued_bytes += len(data)
        if self._timer is None or self._queued_bytes >= self._limits.object_bytes:
            # Not at once: appends of one pass of the event loop share an object.
            self._come_back(0)
        return done

    async def close(self) -> int:
        """As the port says. Entries that are not acknowledged are void, unless their objects are before the end."""
        self.stop(UnavailableError("ledger is closed", ledger=self._ledger))
        return await self._end(self._open_number, self._confirmed)

    def stop(self, error: PenstockError) -> None:
        """From now on, nothing is written or acknowledged. Objects that were under way may still arrive."""
        self._is_stopped = True
        if self._failure is None:
            self._failure = error
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        self._refuse_from(self._open_number, self._failure)

    async def ended(self) -> None:
        """Return once no task of the writer runs any more, after ``stop``."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- objects

    def _come_back(self, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(wait_s, self._begin) if wait_s > 0 else loop.call_soon(self._begin)

    def _begin(self) -> None:
        """Begin the objects that are due, and come back for the rest."""
        self._timer = None
        loop = asyncio.get_running_loop()
        while self._queue and self._failure is None:
            if sum(not one.is_stored for one in self._writes) >= self._limits.writes:
                return  # the next one that is stored comes back
            wait_s = self._paid_s - self._limits.burst * self._limits.interval_s - loop.time()
            if self._queued_bytes < self._limits.object_bytes and wait_s > 0:
                self._come_back(wait_s)
                return
            self._begin_one(loop)

    def _begin_one(self, loop: asyncio.AbstractEventLoop) -> None:
        entries: list[_Entry] = []
        size_bytes = 0
        while self._queue and (not entries or size_bytes + len(self._queue[0].data) <= self._limits.object_bytes):
            entries.append(self._queue.popleft())
            size_bytes += len(entries[-1].data)
        self._queued_bytes -= size_bytes
        head = LogObject(
            ledger=self._ledger,
            number=self._next_number,
            first=entries[0].number,
            count=len(entries),
            settled=self._open_number,
        )
        write = _Write(head, encode_object(head, [one.data for one in entries]), entries)
        self._next_number += 1
        self._paid_s = max(self._paid_s, loop.time()) + self._limits.interval_s
        self._writes.append(write)
        task = loop.create_task(self._store(write))
        self._tasks.add(task)
        task.add_done_callback(lambda ended: self._stored(write, ended))

    def _stored(self, write: _Write, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:  # whatever it is: without this object, none behind it counts
            _log.error("object of a log cannot be written", extra={"ledger": self._ledger, "error": repr(error)})
            self._refuse_from(
                write.head.number, UnavailableError("object of a log cannot be written", cause=repr(error))
            )

    async def _store(self, write: _Write) -> None:
        try:
            await self._until_stored(object_name(self._ledger, write.head.number), write.data)
        except FencedError as error:
            self._refuse_from(write.head.number, error)
        else:
            write.is_stored = True
            self._acknowledge()
            self._begin()

    async def _until_stored(self, name: str, data: bytes) -> None:
        """Return once the object has these bytes. Raises FencedError: it has others."""
        pause_s, longest_s = self._limits.retry_s
        is_noted = False
        while True:
            try:
                await self._objects.create_new(name, data)
                return
            except AlreadyExistsError:
                if await self._has(name, data):
                    return
            except (UnavailableError, StorageFullError) as error:
                if not is_noted:
                    _log.warning(
                        "tier 2 does not take an object of the log; appends wait",
                        extra={"object": name, "error": str(error)},
                    )
                is_noted = True
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)

    async def _has(self, name: str, data: bytes) -> bool:
        """Whether the object is there with these bytes. False: it cannot be read now. Raises FencedError: with others."""
        try:
            found = await self._objects.read_whole(name)
        except (UnavailableError, FileNotFoundError):
            return False
        if found != data:
            raise FencedError("another opening has ended the ledger", ledger=self._ledger, object=name)
        return True

    def _acknowledge(self) -> None:
        while self._writes and self._writes[0].is_stored and not self._is_stopped:
            write = self._writes.popleft()
            self._open_number = write.head.number + 1
            for entry in write.entries:
                self._confirmed = entry.number
                if not entry.done.done():
                    entry.done.set_result(entry.number)

    def _refuse_from(self, number: int, error: PenstockError) -> None:
        """Nothing from this object on counts. What is before it may still be acknowledged."""
        if self._failure is None:
            self._failure = error
        kept = [one for one in self._writes if one.head.number < number]
        void = [entry for one in self._writes if one.head.number >= number for entry in one.entries]
        self._writes = deque(kept)
        for entry in (*void, *self._queue):
            _refuse(entry.done, error)
        self._queue.clear()


def _refuse(done: asyncio.Future[int], error: PenstockError) -> None:
    if not done.done():
        done.set_exception(type(error)(error.message, **error.fields))
        done.exception()  # a caller that has left is no reason for a warning
