"""Tier 1 on replicated ledgers. Source: docs/design/0062-log-on-bookkeeper.md."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TypeVar

from penstock.codec.store.container_record import ContainerRecord, ListedLedger
from penstock.core.cluster import ownership
from penstock.model.errors import (
    ContainerOfflineError,
    CorruptDataError,
    FencedError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    PenstockError,
    StorageFullError,
    UnavailableError,
)
from penstock.model.ledgers import LedgerSpec, LogWipe
from penstock.model.values.dataclass import dataclass
from penstock.ports.cluster.ledgers import Ledgers, LedgerWriter
from penstock.ports.cluster.nodes import VersionedNodes
from penstock.ports.durable_log import LogAddress
from penstock.ports.files import Buffer
from penstock.ports.rng import Rng
from penstock.storage.ledgers.beginnings import Beginnings, BegunLedger
from penstock.storage.ledgers.ending import end_task
from penstock.storage.ledgers.keyring import Keyring, Sealing
from penstock.storage.ledgers.limits import LedgerLogLimits
from penstock.storage.ledgers.log_record import HeldRecord, Opening
from penstock.storage.ledgers.publications import HeldPublications
from penstock.storage.ledgers.removals import Removals
from penstock.storage.ledgers.replay import Replay
from penstock.storage.ledgers.wiping import Wiping

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

_FRAME_BYTES = 64
"""Overhead that each frame in flight counts beside its bytes: entry headers and objects. So empty frames count too."""


@asynccontextmanager
async def open_ledger_log(
    ledgers: Ledgers,
    nodes: VersionedNodes,
    *,
    path: str,
    rng: Rng,
    opening: Opening | None = None,
    spec: LedgerSpec | None = None,
    limits: LedgerLogLimits | None = None,
    sealing: Sealing | None = None,
) -> AsyncIterator[LedgerLog]:
    """Open the log whose record is the node ``path`` for the duration of the block; see ``LedgerLog.open`` and
    ``HeldRecord.take``, which raise. ``sealing``: how ledgers are encrypted; None: they are not, and none can be read."""
    clock = None if sealing is None else sealing.clock
    held = await HeldRecord.take(nodes, path, rng=rng, opening=opening or Opening(), clock=clock)
    keyring = None if sealing is None else Keyring(sealing, uid=held.record.uid, epoch=held.record.epoch, rng=rng)
    spec, limits = spec or LedgerSpec(), limits or LedgerLogLimits()
    opened = await LedgerLog.open(ledgers, held, spec=spec, limits=limits, keyring=keyring)
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
    ledger is begun, for as long as it takes. If the ledger was fenced, and the coordinator does not answer who owns the
    log, they wait for ``fenced_s``; then the log is offline. ``publications`` are noted in its record.
    """

    def __init__(
        self, ledgers: Ledgers, held: HeldRecord, spec: LedgerSpec, limits: LedgerLogLimits, keyring: Keyring | None
    ) -> None:
        self._ledgers = ledgers
        self._held = held
        self._limits = limits
        self._keyring = keyring
        self._beginnings = Beginnings(ledgers, spec, keyring, uid=held.record.uid, epoch=held.record.epoch)
        self._last = 0
        self._next = 1
        self._current: BegunLedger | None = None
        self._ledger_bytes = 0
        self._ledger_since_s = 0.0
        self._ledger_first = 1
        self._fenced_at_s: float | None = None
        """When this opening was last known to be the owner, if another client has fenced its ledger since."""
        self._fruitless = 0  # ledgers in a row in which nothing was acknowledged
        self._removals = Removals(ledgers, held, lambda ledger: None if keyring is None else keyring.retire(ledger))
        self._wiping = Wiping(held, self._removals, keyring)
        self._spare: BegunLedger | None = None
        """The next ledger, while a roll has created it and the record does not name it yet."""
        self.publications = HeldPublications(held)
        self._unacknowledged: deque[_Frame] = deque()
        self._in_flight_bytes = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._rolling: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._closing = False
        self._replaying = self._replayed = False

    @classmethod
    async def open(
        cls,
        ledgers: Ledgers,
        held: HeldRecord,
        *,
        spec: LedgerSpec,
        limits: LedgerLogLimits,
        keyring: Keyring | None = None,
    ) -> LedgerLog:
        """Fence the newest ledger of the record that ``held`` has frozen. From here on, no earlier opening acknowledges
        anything. In this order, the list cannot grow while its ledgers are fenced.

        Raises: CorruptDataError, VersionTooNewError, ContainerOfflineError (a later opening was faster),
        UnavailableError: bookies or coordinator do not answer.
        """
        for ledger in ownership.unfenced(held.record):
            found = await ledgers.take_over(ledger)
            await held.change(partial(ownership.ended, ledger=ledger, last=found.last))
        return cls(ledgers, held, spec, limits, keyring)

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
        replay = Replay(self._ledgers, self._held.record, self._keyring, self._held.check)
        async for address, frame in replay.frames():
            yield LogAddress(address), frame
        self._next, self._last = replay.next_address, replay.next_address - 1
        begun = await self._beginnings.begin(replay.next_address)
        try:
            await self._extend(begun)
        except ContainerOfflineError:
            await self._removals.discard(begun.writer.ledger)
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
        self._check_online()
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
        self._check_online()
        try:
            await self._removals.change(lambda record: ownership.published(record, truncated=upto))
        except ContainerOfflineError as error:
            self._fail(error)
            raise
        await self._removals.run()

    async def wipes_from_ms(self) -> int:
        """As the port says. Raises UnavailableError: tier 2 does not answer."""
        self._check_online()
        return await self._wiping.from_ms()

    async def begin_wipe(self) -> LogAddress:
        """As the port says, once all frames so far are acknowledged: the next ledger would have them too."""
        self._check_online()
        upto = self._next - 1
        while self._wiping.keyring.seals and (self._ledger_first <= upto or not self._is_sealed()):
            earlier = [one.done for one in self._unacknowledged if one.address <= upto]
            if earlier:
                await asyncio.wait(earlier)
            self._check_online()
            self._start_roll()
            if self._rolling is not None:
                await asyncio.wait([self._rolling])
            self._check_online()
        self._wiping.upto = upto
        return LogAddress(upto)

    async def end_wipe(self) -> LogWipe | None:
        """As the port says."""
        self._check_online()
        return await self._wiping.end(lambda: [one.writer.ledger for one in (self._current, self._spare) if one])

    def _is_sealed(self) -> bool:
        return self._current is not None and self._current.cipher is not None

    def _check_online(self) -> None:
        if self._failure is not None or self._closing:
            raise self._offline()

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
                    if self._current is not None:
                        self._rolling.cancel()  # the current ledger still serves, and the next one is not needed
                    await asyncio.shield(asyncio.gather(self._rolling, return_exceptions=True))
                current, self._current = self._current, None
                if current is not None and self._failure is None:
                    last = await current.writer.close()
                    await self._held.change(lambda record: ownership.ended(record, current.writer.ledger, last))
        except (TimeoutError, UnavailableError, FencedError, NotFoundError) as error:  # a successor may have deleted it
            _log.warning("ledger was left open", extra={"epoch": self.epoch, "error": repr(error)})
        finally:
            rolling = self._rolling
            if rolling is not None:
                rolling.cancel()
            self._fail(ContainerOfflineError("log is closed", epoch=self.epoch))  # before an await: it can be cancelled
            if rolling is not None:
                await end_task(rolling)
            if self._keyring is not None:
                await self._keyring.close()

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
        current = self._current
        if current is None:
            return
        if current.entries == 0:
            self._ledger_since_s = asyncio.get_running_loop().time()
        for entry in current.add_entries(frame.address, frame.data, entry_max_bytes=self._limits.entry_max_bytes):
            added = asyncio.ensure_future(current.writer.add(entry))
        frame.entry = current.entries
        self._ledger_bytes += len(frame.data)
        added.add_done_callback(lambda one: self._added(current, frame, one))

    def _added(self, current: BegunLedger, frame: _Frame, added: asyncio.Future[int]) -> None:
        if added.cancelled() or self._failure is not None or current is not self._current:
            return  # an answer of a ledger that is being closed acknowledges nothing
        if added.exception() is not None:
            if isinstance(added.exception(), FencedError):
                self._note_fence()
            self._start_roll()
            return
        if added.result() != frame.entry:
            # The number is the nonce of an encrypted entry: it must be the one that the entry was encrypted with.
            self._fail(InternalError("ledger gave an entry an unexpected number", entry=frame.entry))
            return
        self._acknowledge(frame.address)
        if current.writer.failed and self._ledger_age_s() >= self._limits.ledger_age_min_s:
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
        if self._rolling is None and self._failure is None and self._current is not None:
            self._rolling = asyncio.get_running_loop().create_task(self._roll())

    async def _roll(self) -> None:
        """Begin another ledger, end the current one, and send again what is not acknowledged. The current ledger serves
        until the other one can, however long its bookies take. Every step can be repeated."""
        current, self._spare = self._current, None
        try:
            if current is not None:
                if self._fenced_at_s is not None:
                    await self._until_done(self._check_owner, "log's record cannot be read")
                await self._rest_if_fruitless()
                first = self._last + 1
                self._spare = await self._until_done(lambda: self._beginnings.begin(first), "no ledger can be created")
                self._current = None
                last = await self._until_done(lambda: self._end_ledger(current.writer), "ledger cannot be closed")
                sent = ((frame.address, frame.entry) for frame in self._unacknowledged)
                self._acknowledge(ownership.acknowledged_upto(sent, last))
                await self._extend(self._spare, (current.writer.ledger, last))
        except BaseException as error:
            if self._closing and self._current is not None:
                raise
            self._fail(error)  # whatever it is: without another ledger, appends would wait without end
            if self._spare is not None and isinstance(error, ContainerOfflineError):
                await self._removals.discard(self._spare.writer.ledger)
            if not isinstance(error, PenstockError):
                raise
        finally:
            self._rolling = self._spare = None

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
                    "a ledger of the log was fenced, so another store may own the log now, and ZooKeeper does not answer;"
                    " start the store again when ZooKeeper answers",
                    epoch=self.epoch,
                    waited_s=self._limits.fenced_s,
                ) from error
            raise
        if self._fenced_at_s is not None:
            self._fenced_at_s = asyncio.get_running_loop().time()

    async def _rest_if_fruitless(self) -> None:
        """Wait ever longer between ledgers in which nothing is acknowledged, as on bookies that refuse all frames."""
        self._fruitless = self._fruitless + 1 if self._last < self._ledger_first else 0
        if self._fruitless > 1:
            first_s, longest_s = self._limits.retry_s
            await asyncio.sleep(min(first_s * 2.0 ** min(self._fruitless - 2, 16), longest_s))

    async def _extend(self, begun: BegunLedger, before: tuple[int, int] | None = None) -> None:
        """List the new ledger in the record, and use it. ``before``: the one that we wrote before it, and its last
        entry."""
        first = self._unacknowledged[0].address if self._unacknowledged else self._next
        listed = ListedLedger(ledger=begun.writer.ledger, first=first, sealed=begun.cipher is not None)

        def extend(record: ContainerRecord) -> ContainerRecord:
            known = record if before is None else ownership.ended(record, *before)
            return ownership.extended(known, listed)

        await self._until_done(lambda: self._removals.change(extend), "log's record cannot be changed")
        await self._removals.run()
        self._fenced_at_s = None
        self._current, self._ledger_bytes, self._ledger_first = begun, 0, first
        for frame in self._unacknowledged:
            frame.entry = 0
            self._send(frame)

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
                        "log waits and tries again",
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
