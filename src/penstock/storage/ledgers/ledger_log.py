"""Tier 1 on replicated ledgers. Source: docs/design/0062-log-on-bookkeeper.md."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from penstock.codec.store.container_record import ContainerRecord, ListedLedger
from penstock.codec.store.ledger_entries import FrameJoiner, LedgerHeader, decode_header, encode_header, parts_of
from penstock.core.cluster import ownership
from penstock.model.errors import (
    ContainerOfflineError,
    CorruptDataError,
    FencedError,
    InternalError,
    InvalidArgumentError,
    NotEnoughBookiesError,
    PenstockError,
    StorageFullError,
    UnavailableError,
    UnsupportedError,
)
from penstock.model.ledgers import COPIES_MIN, LedgerSpec
from penstock.ports.cluster.ledgers import Ledgers, LedgerWriter
from penstock.ports.cluster.nodes import Nodes
from penstock.ports.durable_log import LogAddress
from penstock.ports.files import Buffer
from penstock.ports.rng import Rng
from penstock.storage.ledgers.limits import LedgerLogLimits
from penstock.storage.ledgers.log_record import HeldRecord, Opening
from penstock.storage.ledgers.publications import HeldPublications
from penstock.storage.ledgers.removals import Removals

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

LOG_LABEL = "log"
"""Names the label of a ledger with the ``uid`` of its log."""
_FRAME_BYTES = 64
"""What a frame in flight counts beside its bytes: headers of its entries, and objects. Frames without bytes count too."""
_NO_WIPE = "a log on BookKeeper cannot be wiped: bookies keep deleted bytes until they compact"


@asynccontextmanager
async def open_ledger_log(
    ledgers: Ledgers,
    nodes: Nodes,
    *,
    path: str,
    rng: Rng,
    opening: Opening | None = None,
    spec: LedgerSpec | None = None,
    limits: LedgerLogLimits | None = None,
) -> AsyncIterator[LedgerLog]:
    """Open the log whose record is the node ``path`` for the duration of the block; see ``LedgerLog.open`` and
    ``HeldRecord.take``, which raise."""
    held = await HeldRecord.take(nodes, path, rng=rng, opening=opening or Opening())
    opened = await LedgerLog.open(ledgers, held, spec=spec or LedgerSpec(), limits=limits or LedgerLogLimits())
    try:
        yield opened
    finally:
        await opened.close()


@dataclass(slots=True, eq=False)
class _Frame:
    """A frame that is not acknowledged. ``entry``: its last entry in the current ledger; 0: it is not in it."""

    address: int
    data: bytes
    done: asyncio.Future[LogAddress]
    entry: int = 0


class LedgerLog:
    """Implements ``ports.durable_log.DurableLog``. Opened by ``open``, closed by ``close``.

    The record of the log lists its ledgers. An opening freezes the record (a new epoch), fences the newest ledger, and
    after ``replay`` extends the list by a ledger of its own. When too few bookies are left, appends wait until another
    ledger is begun, for as long as it takes. When the ledger was fenced and the coordinator does not answer whose log it
    is, they wait for ``fenced_s``; then the log is offline. ``publications`` are noted in its record.
    """

    def __init__(self, ledgers: Ledgers, held: HeldRecord, spec: LedgerSpec, limits: LedgerLogLimits) -> None:
        self._ledgers = ledgers
        self._held = held
        # Tools find the ledgers of a log by it, and those that no record names any more.
        self._spec = replace(spec, labels=(*spec.labels, (LOG_LABEL, held.record.uid.encode())))
        self._limits = limits
        self._last = 0
        self._next = 1
        self._writer: LedgerWriter | None = None
        self._entries = 0  # of ours in the current ledger, behind its header
        self._ledger_bytes = 0
        self._ledger_since_s = 0.0
        self._ledger_first = 1
        self._fenced_at_s: float | None = None
        """When this opening was last known to be the owner, if another client has fenced its ledger since."""
        self._fruitless = 0  # ledgers in a row in which nothing was acknowledged
        self._removals = Removals(ledgers, held)
        self.publications = HeldPublications(held)
        self._unacknowledged: deque[_Frame] = deque()
        self._in_flight_bytes = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._rolling: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._closing = False
        self._replaying = self._replayed = False

    @classmethod
    async def open(cls, ledgers: Ledgers, held: HeldRecord, *, spec: LedgerSpec, limits: LedgerLogLimits) -> LedgerLog:
        """Fence the newest ledger of the record that ``held`` has frozen. From here on, no earlier opening acknowledges
        anything. In this order, the list cannot grow while its ledgers are fenced.

        Raises: CorruptDataError, VersionTooNewError, ContainerOfflineError (a later opening was faster),
        UnavailableError: bookies or coordinator do not answer.
        """
        for ledger in ownership.unfenced(held.record):
            found = await ledgers.take_over(ledger)
            await held.change(partial(ownership.ended, ledger=ledger, last=found.last))
        return cls(ledgers, held, spec, limits)

    @property
    def epoch(self) -> int:
        return self._held.record.epoch

    @property
    def uid(self) -> str:
        """Identifies the log; drawn when it was made."""
        return self._held.record.uid

    @property
    def last(self) -> LogAddress:
        return LogAddress(self._last)

    @property
    def max_frame_bytes(self) -> int:
        return self._limits.frame_max_bytes

    async def replay(self) -> AsyncIterator[tuple[LogAddress, bytes]]:
        """As the port says. At its end, the log has a new ledger for appends."""
        if self._replaying:
            raise InternalError("log was already replayed by this opening", epoch=self.epoch)
        self._replaying = True
        record = self._held.record
        # Without ledgers: a new log, or one that was lost and continues behind what tier 2 has.
        self._next = record.ledgers[0].first if record.ledgers else record.truncated + 1
        for listed in record.ledgers:
            if listed.first != self._next or listed.last is None:
                raise CorruptDataError("ledgers of the log leave a gap", ledger=listed.ledger, expected=self._next)
            joiner = FrameJoiner(listed.ledger, listed.first)
            async for entry, data in self._ledgers.read(listed.ledger, 0, listed.last):
                if entry == 0:
                    _check_header(data, listed)
                    continue
                frame = joiner.add(data)
                if frame is not None and frame[0] > record.truncated:
                    yield LogAddress(frame[0]), frame[1]
            self._next = joiner.next_address
        self._last = self._next - 1
        writer = await self._create(encode_header(LedgerHeader(epoch=self.epoch, first=self._next)))
        try:
            await self._extend(writer)
        except ContainerOfflineError:
            await self._removals.discard(writer.ledger)
            raise
        self._replayed = True

    async def append(self, parts: Sequence[Buffer], *, vital: bool = False) -> LogAddress:
        """As the port says. The parts are copied."""
        data = b"".join(parts)
        if len(data) > self._limits.frame_max_bytes:
            raise InvalidArgumentError(
                "frame is larger than the limit of the log",
                size_bytes=len(data),
                limit_bytes=self._limits.frame_max_bytes,
            )
        if self._failure is None and not self._closing and not self._replayed:
            raise InternalError("log was not replayed before an append", epoch=self.epoch)
        await self._room(len(data) + _FRAME_BYTES)
        if self._failure is not None or self._closing:
            raise self._offline()
        frame = _Frame(self._next, data, asyncio.get_running_loop().create_future())
        self._next += 1
        self._unacknowledged.append(frame)
        self._in_flight_bytes += len(data) + _FRAME_BYTES
        self._send(frame)
        self._roll_if_due()
        return await frame.done

    def append_in_place(self, frames: Sequence[Sequence[Buffer]]) -> Sequence[LogAddress] | None:
        """As the port says: never, because bookies are asked over the network."""
        return None

    def refuse_waits(self, error: StorageFullError | None) -> None:
        """As the port says: this log has no limit of its own."""

    async def truncate(self, upto: LogAddress) -> None:
        """As the port says. Ledgers that the record no longer names are deleted; if that fails, they stay as orphans."""
        if self._failure is not None or self._closing:
            raise self._offline()
        try:
            await self._removals.change(lambda record: ownership.published(record, truncated=upto))
        except ContainerOfflineError as error:
            self._fail(error)
            raise
        await self._removals.run()

    async def begin_wipe(self) -> LogAddress:
        """Raises UnsupportedError: bookies free bytes late, and overwrite none."""
        raise UnsupportedError(_NO_WIPE)

    async def end_wipe(self) -> bool:
        """Raises as ``begin_wipe``."""
        raise UnsupportedError(_NO_WIPE)

    async def close(self) -> None:
        """Wait for appends in flight, then close the ledger, so that the next opening need not fence it. If bookies do
        not answer within ``close_s``, the ledger is left to the next opening.
        """
        if self._closing:
            return
        self._closing = True
        self._wake_all()
        try:
            async with asyncio.timeout(self._limits.close_s):
                if self._unacknowledged:
                    await asyncio.wait([one.done for one in self._unacknowledged])  # gather would cancel them
                if self._rolling is not None:
                    if self._writer is not None:
                        self._rolling.cancel()  # the current ledger still serves, and the next one is not needed
                    await asyncio.shield(asyncio.gather(self._rolling, return_exceptions=True))
                writer, self._writer = self._writer, None
                if writer is not None and self._failure is None:
                    last = await writer.close()
                    await self._held.change(lambda record: ownership.ended(record, writer.ledger, last))
        except (TimeoutError, UnavailableError, FencedError) as error:
            _log.warning("ledger was left open", extra={"epoch": self.epoch, "error": repr(error)})
        finally:
            rolling = self._rolling
            if rolling is not None:
                rolling.cancel()
            self._fail(ContainerOfflineError("log is closed", epoch=self.epoch))  # before an await: it can be cancelled
            if rolling is not None:
                await asyncio.gather(rolling, return_exceptions=True)

    # --- appends

    async def _room(self, size_bytes: int) -> None:
        """Return when it is the caller's turn and there is room, or when the log has ended."""
        if not self._waiting and not self._is_full(size_bytes):
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            while self._waiting[0] is not place or self._is_full(size_bytes):
                if self._failure is not None or self._closing:
                    return
                await place
                index = self._waiting.index(place)
                place = self._waiting[index] = asyncio.get_running_loop().create_future()
        finally:
            self._waiting.remove(place)
            self._wake_first()

    def _is_full(self, size_bytes: int) -> bool:
        return bool(self._unacknowledged) and self._in_flight_bytes + size_bytes > self._limits.in_flight_bytes

    def _send(self, frame: _Frame) -> None:
        """Add the frame to the current ledger; while there is none, it waits for the next."""
        writer = self._writer
        if writer is None:
            return
        if self._entries == 0:
            self._ledger_since_s = asyncio.get_running_loop().time()
        for entry in parts_of(frame.address, frame.data, entry_max_bytes=self._limits.entry_max_bytes):
            added = asyncio.ensure_future(writer.add(entry))
            self._entries += 1
        frame.entry = self._entries
        self._ledger_bytes += len(frame.data)
        added.add_done_callback(lambda one: self._added(writer, frame, one))

    def _added(self, writer: LedgerWriter, frame: _Frame, added: asyncio.Future[int]) -> None:
        if added.cancelled() or self._failure is not None or writer is not self._writer:
            return  # an answer of a ledger that is being closed acknowledges nothing
        if added.exception() is not None:
            if isinstance(added.exception(), FencedError):
                self._note_fence()
            self._start_roll()
            return
        self._acknowledge(frame.address)
        if writer.failed and self._ledger_age_s() >= self._limits.ledger_age_min_s:
            self._start_roll()

    def _acknowledge(self, upto: int) -> None:
        while self._unacknowledged and self._unacknowledged[0].address <= upto:
            frame = self._unacknowledged.popleft()
            self._in_flight_bytes -= len(frame.data) + _FRAME_BYTES
            self._last = frame.address
            if not frame.done.done():
                frame.done.set_result(LogAddress(frame.address))
        self._wake_first()

    # --- ledgers

    def _ledger_age_s(self) -> float:
        return asyncio.get_running_loop().time() - self._ledger_since_s

    def _roll_if_due(self) -> None:
        if self._ledger_bytes >= self._limits.ledger_bytes or self._ledger_age_s() >= self._limits.ledger_age_s:
            self._start_roll()

    def _start_roll(self) -> None:
        if self._rolling is None and self._failure is None and self._writer is not None:
            self._rolling = asyncio.get_running_loop().create_task(self._roll())

    async def _roll(self) -> None:
        """Begin another ledger, end the current one, and send again what is not acknowledged. The current ledger serves
        until the other one can, however long its bookies take. Every step can be repeated."""
        writer, spare = self._writer, None
        try:
            if writer is not None:
                if self._fenced_at_s is not None:
                    await self._until_done(self._check_owner, "log's record cannot be read")
                await self._rest_if_fruitless()
                header = encode_header(LedgerHeader(epoch=self.epoch, first=self._last + 1))
                spare = await self._until_done(lambda: self._create(header), "no ledger can be created")
                self._writer = None
                last = await self._until_done(lambda: self._end_ledger(writer), "ledger cannot be closed")
                sent = ((frame.address, frame.entry) for frame in self._unacknowledged)
                self._acknowledge(ownership.acknowledged_upto(sent, last))
                await self._extend(spare, (writer.ledger, last))
        except BaseException as error:
            if self._closing and self._writer is not None:
                raise
            self._fail(error)  # whatever it is: without another ledger, appends would wait without end
            if spare is not None and isinstance(error, ContainerOfflineError):
                await self._removals.discard(spare.ledger)
            if not isinstance(error, PenstockError):
                raise
        finally:
            self._rolling = None

    async def _end_ledger(self, writer: LedgerWriter) -> int:
        """The last entry of the ledger, which is closed. Checks the record first, because BookKeeper's own recovery
        fences too."""
        try:
            return await writer.close()
        except FencedError:
            self._note_fence()
            await self._check_owner()
        last = (await self._ledgers.take_over(writer.ledger)).last
        if last < writer.confirmed:
            known = {"ledger": writer.ledger, "last": last, "acknowledged": writer.confirmed}
            raise CorruptDataError("another client closed the ledger before its acknowledged end", **known)
        return last

    def _note_fence(self) -> None:
        """From now on, this opening may be a deposed one that still answers reads."""
        if self._fenced_at_s is None:
            self._fenced_at_s = asyncio.get_running_loop().time()

    async def _check_owner(self) -> None:
        """Return if the record still names this opening. Raises ContainerOfflineError: it does not, or the coordinator
        has not answered for ``fenced_s`` after a fence. UnavailableError: it does not answer now; try again."""
        try:
            await self._held.check()
        except UnavailableError as error:
            since_s = self._fenced_at_s
            if since_s is not None and asyncio.get_running_loop().time() - since_s >= self._limits.fenced_s:
                raise ContainerOfflineError(
                    "a ledger of the log was fenced, and ZooKeeper does not answer whether another store owns the log"
                    " now; start the store again when ZooKeeper answers",
                    epoch=self.epoch,
                    waited_s=self._limits.fenced_s,
                ) from error
            raise
        if self._fenced_at_s is not None:
            self._fenced_at_s = asyncio.get_running_loop().time()

    async def _rest_if_fruitless(self) -> None:
        """Ledgers that bring nothing, such as on bookies that refuse each frame, follow each other ever more slowly."""
        self._fruitless = self._fruitless + 1 if self._last < self._ledger_first else 0
        if self._fruitless > 1:
            first_s, longest_s = self._limits.retry_s
            await asyncio.sleep(min(first_s * 2.0 ** min(self._fruitless - 2, 16), longest_s))

    async def _extend(self, writer: LedgerWriter, before: tuple[int, int] | None = None) -> None:
        """List the new ledger in the record, and use it. ``before``: the one that we wrote before it, and its last
        entry."""
        first = self._unacknowledged[0].address if self._unacknowledged else self._next
        listed = ListedLedger(ledger=writer.ledger, first=first)

        def extend(record: ContainerRecord) -> ContainerRecord:
            known = record if before is None else ownership.ended(record, *before)
            return ownership.extended(known, listed)

        await self._until_done(lambda: self._removals.change(extend), "log's record cannot be changed")
        await self._removals.run()
        self._fenced_at_s = None
        self._writer, self._entries, self._ledger_bytes, self._ledger_first = writer, 0, 0, first
        for frame in self._unacknowledged:
            frame.entry = 0
            self._send(frame)

    async def _create(self, header: bytes) -> LedgerWriter:
        """A ledger with all copies, or with two if only two bookies can be written to."""
        try:
            return await self._ledgers.create(self._spec, header)
        except NotEnoughBookiesError:
            if self._spec.copies <= COPIES_MIN:
                raise
        fewer = replace(self._spec, copies=COPIES_MIN, acks=COPIES_MIN)
        writer = await self._ledgers.create(fewer, header)
        _log.warning("log continues with fewer copies", extra={"copies": COPIES_MIN, "wanted": self._spec.copies})
        return writer

    async def _until_done(self, attempt: Callable[[], Awaitable[_T]], problem: str) -> _T:
        """Repeat the attempt while bookies or coordinator do not answer. Ends only if another opening owns the log, or
        may own it: see ``_check_owner``."""
        pause_s, longest_s = self._limits.retry_s
        steady_s = asyncio.get_running_loop().time
        since_s: float | None = None
        while True:
            try:
                done = await attempt()
            except UnavailableError as error:
                if since_s is None:  # one line for an outage, however many attempts it takes
                    since_s = steady_s()
                    _log.warning(
                        "log waits and repeats the step",
                        extra={"problem": problem, "epoch": self.epoch, "error": str(error)},
                    )
            else:
                if since_s is not None:
                    waited_s = round(steady_s() - since_s, 1)
                    _log.warning("log continues after a wait", extra={"epoch": self.epoch, "waited_s": waited_s})
                return done
            if self._fenced_at_s is not None and attempt != self._check_owner:
                with suppress(UnavailableError):  # the attempt is repeated anyway
                    await self._check_owner()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)

    # --- its end

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
            if not self._closing:
                _log.error("log is offline", extra={"epoch": self.epoch, "error": repr(error)})
        while self._unacknowledged:
            frame = self._unacknowledged.popleft()
            if not frame.done.done():
                frame.done.set_exception(self._offline())
                frame.done.exception()  # a caller that has left is no reason for a warning
        self._in_flight_bytes = 0
        self._wake_all()

    def _wake_first(self) -> None:
        if self._waiting and not self._waiting[0].done():
            self._waiting[0].set_result(None)

    def _wake_all(self) -> None:
        for place in self._waiting:
            if not place.done():
                place.set_result(None)

    def _offline(self) -> ContainerOfflineError:
        reason = str(self._failure) if self._failure is not None else "closed"
        error = ContainerOfflineError("log is offline; open it again", epoch=self.epoch, reason=reason)
        error.__cause__ = self._failure
        return error


def _check_header(data: bytes, listed: ListedLedger) -> None:
    header = decode_header(data, ledger=listed.ledger)
    if header.first > listed.first:  # the header was written while the ledger before was still in use
        raise CorruptDataError(
            "ledger is not the one that the log's record names", ledger=listed.ledger, first=header.first
        )
