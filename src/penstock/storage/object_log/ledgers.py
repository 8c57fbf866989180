"""Ledgers whose entries are objects of an object store. Source: docs/design/0064-start-elsewhere.md."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import TypeVar

from penstock.codec.log_objects import (
    HEAD_BYTES,
    LEDGERS,
    LogObject,
    decode_entries,
    decode_head,
    encode_object,
    object_name,
    parse_object_name,
)
from penstock.model.errors import AlreadyExistsError, CorruptDataError, NotFoundError, UnavailableError
from penstock.model.ledgers import Bookie, LedgerInfo, LedgerSpec
from penstock.ports.clock import Clock
from penstock.ports.objects import ExclusiveObjects
from penstock.ports.rng import Rng
from penstock.storage.object_log.limits import ObjectLogLimits
from penstock.storage.object_log.writer import ObjectWriter

_T = TypeVar("_T")
_RANDOM_BITS = 20
_TRIES = 8
"""How often another number is drawn for a new ledger: the clock's milliseconds and 20 random bits make a number unique."""


@asynccontextmanager
async def open_object_ledgers(
    objects: ExclusiveObjects, *, clock: Clock, rng: Rng, limits: ObjectLogLimits | None = None
) -> AsyncIterator[ObjectLedgers]:
    """A client of the ledgers in ``objects``. Its writers end with the block."""
    ledgers = ObjectLedgers(objects, clock=clock, rng=rng, limits=limits or ObjectLogLimits())
    try:
        yield ledgers
    finally:
        await ledgers.close()


class ObjectLedgers:
    """Implements ``ports.cluster.ledgers.Ledgers``. A ledger is a sequence of objects, numbered without gaps.

    Object 0 has the header, and each further one some entries. The ledger ends at the first object that is an end. It is
    created at the first free number, by its writer or by who takes the ledger over. From then on, no object of the writer
    counts: each needs the number of the end, or follows it. Nothing is decided by a listing.
    """

    def __init__(self, objects: ExclusiveObjects, *, clock: Clock, rng: Rng, limits: ObjectLogLimits) -> None:
        self._objects = objects
        self._clock = clock
        self._rng = rng
        self._limits = limits
        self._newest = 0
        self._writers: list[ObjectWriter] = []

    async def close(self) -> None:
        """End all writers. Cancelled: they are ended."""
        for writer in self._writers:
            writer.stop(UnavailableError("client of ledgers is closed", ledger=writer.ledger))
        await asyncio.gather(*(writer.ended() for writer in self._writers))

    async def bookies(self) -> Sequence[Bookie]:
        """As the port says: there are none."""
        return ()

    async def create(self, spec: LedgerSpec, header: bytes | Callable[[int], bytes]) -> ObjectWriter:
        """As the port says. Copies are the object store's concern, and so are labels."""
        for _ in range(_TRIES):
            drawn = self._clock.now_ms() << _RANDOM_BITS | self._rng.randrange(1 << _RANDOM_BITS)
            ledger = self._newest = max(drawn, self._newest + 1)
            entry = header if isinstance(header, bytes) else header(ledger)
            head = LogObject(ledger=ledger, number=0, first=0, count=1)
            try:
                await self._objects.create_new(object_name(ledger, 0), encode_object(head, [entry]))
            except AlreadyExistsError:
                continue  # perhaps our own, whose answer was lost: it stays as an orphan
            writer = ObjectWriter(self._objects, ledger, self._limits, partial(self._end, ledger))
            self._writers = [one for one in self._writers if not one.is_stopped] + [writer]
            return writer
        raise UnavailableError("no number is free for a new ledger", tries=_TRIES)

    async def find(self, ledger: int) -> LedgerInfo:
        """As the port says."""
        last, _, is_closed = await self._walk(ledger)
        return _info(ledger, last if is_closed else None)

    async def take_over(self, ledger: int) -> LedgerInfo:
        """As the port says."""
        while True:
            last, number, is_closed = await self._walk(ledger)
            if is_closed:
                return _info(ledger, last)
            if not await self._was_settled(ledger, number):
                return _info(ledger, await self._end(ledger, number, last))
            if await self._head(ledger, number) is None:
                # An end would make void what was acknowledged after it, even if somebody restores the object.
                raise CorruptDataError("object of a log is missing", object=object_name(ledger, number))
            # Otherwise its writer lives, and wrote it after it was looked for.

    async def read(self, ledger: int, first: int, last: int) -> AsyncIterator[tuple[int, bytes]]:
        """As the port says."""
        if first > last:
            return
        async with aclosing(self._ahead(lambda at: self._whole(ledger, at), 0 if first < 1 else 1)) as objects:
            async for number, data in objects:
                head = decode_head(data, ledger=ledger, number=number)
                for entry, payload in decode_entries(data, ledger=ledger, number=number):
                    if first <= entry <= last:
                        yield entry, payload
                if head.next_entry > last and not head.is_end:
                    return
                if head.is_end:
                    break
        await self._check_exists(ledger)
        raise CorruptDataError("ledger ends before an entry that it had", ledger=ledger, entry=last)

    async def delete(self, ledger: int) -> None:
        """As the port says. The header is deleted last, so that an interrupted deletion can be repeated."""
        names = [name for name in await self._objects.list(f"{LEDGERS}/{ledger:016x}") if parse_object_name(name)]
        for name in sorted(names, reverse=True):
            await self._objects.delete(name)

    async def present(self) -> Sequence[int]:
        """All ledgers of which an object is there now. Raises UnavailableError."""
        return sorted({found[0] for name in await self._objects.list(LEDGERS) if (found := parse_object_name(name))})

    async def header(self, ledger: int) -> bytes | None:
        """The header of the ledger. None: it is missing, because the deletion of the ledger was interrupted, or an object
        arrived after it. Raises UnavailableError, CorruptDataError, VersionTooNewError."""
        whole = await self._whole(ledger, 0)
        if whole is None:
            return None
        for _, data in decode_entries(whole[1], ledger=ledger, number=0):
            return data
        raise CorruptDataError("ledger has no header", ledger=ledger)

    # --- objects of a ledger

    async def _end(self, ledger: int, number: int, last: int) -> int:
        """End the ledger at the first free number, which is ``number`` or later; ``last`` is the entry before that object.
        Returns its last entry. Raises UnavailableError: repeat."""
        while True:
            end = LogObject(ledger=ledger, number=number, first=last + 1, is_end=True)
            try:
                await self._objects.create_new(object_name(ledger, number), encode_object(end))
                return last
            except AlreadyExistsError:
                found = await self._head(ledger, number)
            if found is None:
                raise UnavailableError("object of a log is neither free nor there", object=object_name(ledger, number))
            if found.is_end:
                return found.first - 1
            last, number = found.next_entry - 1, number + 1

    async def _walk(self, ledger: int) -> tuple[int, int, bool]:
        """The last entry, the number of the object after it, and whether that one is the end. Raises NotFoundError."""
        await self._check_exists(ledger)
        last, number = 0, 1
        async with aclosing(self._ahead(lambda at: self._head(ledger, at), number)) as heads:
            async for found in heads:
                if found.first != last + 1:
                    raise CorruptDataError("objects of a log leave a gap", object=object_name(ledger, number))
                if found.is_end:
                    return last, number, True
                last, number = found.next_entry - 1, number + 1
        return last, number, False

    async def _was_settled(self, ledger: int, number: int) -> bool:
        """Whether one of the next objects proves that the object with this number was acknowledged."""
        ahead = range(number + 1, number + 1 + self._limits.reads)
        found = await asyncio.gather(*(self._head(ledger, at) for at in ahead))
        return any(one is not None and one.settled > number for one in found)

    async def _ahead(self, read: Callable[[int], Awaitable[_T | None]], number: int) -> AsyncGenerator[_T, None]:
        """What ``read`` returns for this number and those after it, up to the first None; some are read ahead."""
        reading: deque[asyncio.Future[_T | None]] = deque()
        try:
            while True:
                while len(reading) < self._limits.reads:
                    reading.append(asyncio.ensure_future(read(number)))
                    number += 1
                found = await reading[0]
                reading.popleft()
                if found is None:
                    return
                yield found
        finally:
            for one in reading:
                one.cancel()
            await asyncio.gather(*reading, return_exceptions=True)

    async def _check_exists(self, ledger: int) -> None:
        if await self.header(ledger) is None:
            raise NotFoundError("ledger does not exist", ledger=ledger)

    async def _head(self, ledger: int, number: int) -> LogObject | None:
        try:
            data = await self._objects.read(object_name(ledger, number), 0, HEAD_BYTES)
        except FileNotFoundError:
            return None
        return decode_head(data, ledger=ledger, number=number)

    async def _whole(self, ledger: int, number: int) -> tuple[int, bytes] | None:
        try:
            return number, await self._objects.read_whole(object_name(ledger, number))
        except FileNotFoundError:
            return None


def _info(ledger: int, last: int | None) -> LedgerInfo:
    """``last``: None if the ledger is open."""
    end = -1 if last is None else last
    return LedgerInfo(ledger=ledger, closed=last is not None, last=end, size_bytes=0, bookies=(), labels=())
