"""Transactions: events that become readable together, or not at all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING
from uuid import UUID

from penstock.client.options import number
from penstock.client.retry import DEADLINE_S, FULL_S, Backoff, retrying
from penstock.client.tasks import TaskOwner
from penstock.client.writing.lanes import check_key
from penstock.client.writing.prepare import Prepared, checked_events, event_of
from penstock.client.writing.settings import WriterSettings
from penstock.client.writing.times import check_writer, checked_time
from penstock.client.writing.writer import AsyncWriter
from penstock.codec.events import HEADER_BYTES
from penstock.model.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    PenstockError,
    QuotaHeldError,
    StorageFullError,
    ThrottledError,
    TransactionNotFoundError,
    TransactionStateError,
    UnsupportedError,
)
from penstock.model.names import StreamName, segment_name, transaction_segment_name
from penstock.model.records import Record
from penstock.model.segments import SegmentId, SegmentRange
from penstock.ports import forks
from penstock.ports.control.plane import ControlPlane
from penstock.ports.control.transactions import (
    LEASE_MAX_MS,
    LEASE_MIN_MS,
    EventBlock,
    NotedTime,
    PingStatus,
    Transaction,
    TransactionStatus,
)
from penstock.ports.data.service import SegmentService
from penstock.ports.files import Buffer
from penstock.ports.rng import Rng

if TYPE_CHECKING:
    from penstock.client.writing.arrow import ArrowEvents, ArrowKeys

log = logging.getLogger(__name__)

HELD_MAX_BYTES = 64 << 10
"""Up to this many bytes, events wait for the commit and are sent with it, in one call: a small transaction then needs
no line to any segment. Above it, events are sent while others are written."""

_COMMIT_PAUSE_S = 0.002
_ABORT_S = 10.0
"""How long the abort may take when a block ends with an exception: the caller's exception waits for it."""


class _TransactionLayout:
    """The transaction's own segments. They have no successors: when they are deleted, the transaction is over."""

    def __init__(self, stream: StreamName, transaction: Transaction) -> None:
        self.stream = stream
        self._transaction = transaction

    async def segments(self) -> Sequence[SegmentRange]:
        return self._transaction.segments

    def name_of(self, segment: SegmentId) -> str:
        return transaction_segment_name(segment_name(self.stream, segment), self._transaction.id)

    def writer_id(self, random: UUID, *, least_ms: int = 0) -> UUID:
        return random  # Its numbers are deleted with the transaction's segments.

    async def successors(self, segment: SegmentId, cause: PenstockError) -> Sequence[SegmentRange]:
        raise TransactionStateError(
            "transaction takes no more events: it was committed or aborted, or its lease ended",
            txn=self._transaction.id,
        ) from cause

    async def note_time(self, writer: str, time_ms: int | None) -> None:
        raise TransactionStateError("a transaction notes its time with its commit", txn=self._transaction.id)


class _Held:
    """Events that wait for the commit."""

    __slots__ = ("events", "keys", "size")

    def __init__(self) -> None:
        self.events: list[bytes] = []
        self.keys: list[str | None] = []
        self.size = 0

    def add(self, event: bytes, key: str | None) -> None:
        self.events.append(event)
        self.keys.append(key)
        self.size += len(event) + HEADER_BYTES

    @property
    def given_keys(self) -> list[str | None] | None:
        """None where no event has one."""
        return self.keys if any(key is not None for key in self.keys) else None


class AsyncTransaction:
    """An open transaction on one stream. ``async with`` commits on success and aborts on an exception.

    Scaling of the stream neither disturbs nor waits for it. While it is open its lease is renewed in the background; if
    the process dies, the store aborts the transaction after ``lease_s``.
    """

    def __init__(
        self,
        stream: StreamName,
        segments: SegmentService,
        controller: ControlPlane,
        rng: Rng,
        settings: WriterSettings,
        *,
        lease_s: float,
        writer: str | None = None,
    ) -> None:
        self.stream = stream
        number("lease_s", lease_s)
        if writer is not None:
            check_writer(writer)
        self._name = writer
        self.lease_ms = round(lease_s * 1000)
        if not LEASE_MIN_MS <= self.lease_ms <= LEASE_MAX_MS:
            raise InvalidArgumentError(
                "lease is out of range", lease_s=lease_s, minimum_s=LEASE_MIN_MS / 1000, maximum_s=LEASE_MAX_MS / 1000
            )
        self._segments = segments
        self._controller = controller
        self.rng = rng
        self.settings = settings
        self._transaction: Transaction | None = None
        self._writer: AsyncWriter | None = None
        self._held: _Held | None = _Held()
        """None: what is written goes to the writer."""
        self._asked: Prepared | None = None
        """The arguments of the first commit request. A repeat uses the same: the first one may have succeeded with
        them."""
        self._lost: BaseException | None = None
        self._decided = False
        self._commits = False
        """Whether all events are durable, but the answer to its commit is still missing."""
        self._tasks = TaskOwner(self._lose)
        self._renewal: asyncio.TimerHandle | None = None
        self._owner = forks.current()

    @property
    def id(self) -> UUID:
        """The transaction's id. Raises InvalidArgumentError before it is open."""
        return self._opened()[0].id

    def _opened(self) -> tuple[Transaction, AsyncWriter]:
        if self._transaction is None or self._writer is None:
            raise InvalidArgumentError("transaction is not open", stream=str(self.stream))
        return self._transaction, self._writer

    async def open(self) -> None:
        """Begin. Does nothing if the transaction is open.

        Raises StreamNotFoundError, StreamSealedError, UnavailableError, TransactionStateError (committed or aborted: a
        decided transaction is not begun again).
        """
        if self._transaction is not None and self._writer is not None:
            if self._decided:
                raise TransactionStateError("transaction is decided; begin another one", txn=self._transaction.id)
            return
        self._transaction = await retrying(
            lambda: self._controller.transactions.create(self.stream, lease_ms=self.lease_ms), self.rng
        )
        layout = _TransactionLayout(self.stream, self._transaction)
        self._writer = AsyncWriter(layout, self._segments, self.rng, self.settings)
        await self._writer.open()
        # A task that sleeps until then would cost a small transaction as much as its events.
        self._renewal = asyncio.get_running_loop().call_later(self.lease_ms / 3000, self._renew)

    def _lose(self, error: BaseException) -> None:
        self._lost = error

    def _renew(self) -> None:
        self._renewal = None
        self._tasks.start(self._keep_lease())

    async def _keep_lease(self) -> None:
        while True:
            # No caller waits for it, and a transaction whose lease is not renewed is lost.
            await self._ping(full_s=DEADLINE_S)
            await asyncio.sleep(self.lease_ms / 3000)

    async def _end_lease(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            self._renewal = None
        await self._tasks.close()

    async def ping(self) -> None:
        """Renew the lease; done in the background too.

        Raises TransactionStateError (decided, or open for too long), TransactionNotFoundError, UnavailableError,
        StorageFullError (within seconds).
        """
        await self._ping(full_s=FULL_S)

    async def _ping(self, *, full_s: float) -> None:
        txn = self.id
        status = await retrying(
            lambda: self._controller.transactions.ping(self.stream, txn, lease_ms=self.lease_ms),
            self.rng,
            full_s=full_s,
        )
        if status is PingStatus.UNKNOWN:
            raise TransactionNotFoundError("transaction is not known", txn=txn)
        if status is not PingStatus.OK:
            raise TransactionStateError("lease was not renewed", txn=txn, state=status.value)

    def check(self) -> None:
        """Raises the reason why it takes no events: InvalidArgumentError (not open), TransactionStateError (decided, or
        a commit was requested), or the error that ended its lease."""
        self._taking()

    def _taking(self) -> AsyncWriter:
        writer = self._writable()
        if self._asked is not None:
            raise TransactionStateError(
                "transaction takes no more events after a commit request: commit it again, or abort it",
                txn=self.id,
            )
        return writer

    def _writable(self) -> AsyncWriter:
        forks.check(self._owner)
        writer = self._opened()[1]
        if self._lost is not None:
            raise self._lost
        if self._decided:
            raise TransactionStateError("transaction is decided", txn=self.id)
        return writer

    async def write(self, event: Buffer | str | Record, key: str | None = None) -> None:
        """As ``AsyncWriter.write``. Raises TransactionStateError, TransactionNotFoundError too."""
        writer = self._taking()
        if self._held is not None:
            data, key = event_of(event, key)
            check_key(key)
            if self._held.size + len(data) + HEADER_BYTES <= HELD_MAX_BYTES:
                self._held.add(data, key)
                return
            self._let_go(writer)
        await writer.write(event, key)

    async def write_many(
        self, events: Sequence[Buffer | str | Record], keys: Sequence[str | None] | None = None
    ) -> None:
        """As ``AsyncWriter.write_many``."""
        writer = self._taking()
        if self._held is not None:
            data, keys = checked_events(events, keys)
            for key in keys or ():
                check_key(key)
            if self._held.size + sum(map(len, data)) + len(data) * HEADER_BYTES <= HELD_MAX_BYTES:
                for event, key in zip(data, keys or [None] * len(data), strict=True):
                    self._held.add(event, key)
                return
            self._let_go(writer)
        await writer.write_many(events, keys)

    async def write_arrow(self, array: ArrowEvents, keys: ArrowKeys | None = None) -> None:
        """As ``AsyncWriter.write_arrow``."""
        writer = self._taking()
        self._let_go(writer)
        await writer.write_arrow(array, keys)

    async def flush(self) -> None:
        """Return once every event written so far is durable, though not readable."""
        writer = self._taking()
        self._let_go(writer)
        await writer.flush()

    def _let_go(self, writer: AsyncWriter) -> None:
        """Send the events that wait for the commit, and all later ones, without waiting for them. This happens in one
        step, so that an interruption after it loses no event."""
        held = self._held
        if held is not None and held.events:
            writer.take(writer.prepare(held.events, held.given_keys))
        self._held = None

    async def commit(
        self, *, wait: bool = True, deadline_s: float = DEADLINE_S, timestamp_ms: int | None = None
    ) -> None:
        """Make all events readable at once. ``wait``: return when they are; else when it is decided.

        ``timestamp_ms``: the events of this transaction and of earlier ones have times up to this one, as
        ``AsyncWriter.note_time``. The store notes it for the ``writer`` of the transaction once the events are readable.
        If the writer has noted a later time, the events are committed and this time is not noted. Of repeated commits, the
        first counts.

        On a full disk its events wait as those of a writer do; the decision fails within seconds.

        Raises: TransactionStateError (aborted), TransactionNotFoundError (lease ran out), DeadlineExceededError (after
        ``deadline_s``: decided, readable later), UnavailableError, StorageFullError, what its writes failed
        with, InvalidArgumentError (a timestamp without a ``writer``, or no whole number of 64 bits; nothing is decided).

        Failed or interrupted before it is decided, it may be repeated until its lease ends: with all events, or not at
        all.
        """
        number("deadline_s", deadline_s, least=0)
        noted = None if timestamp_ms is None else self._note(timestamp_ms)
        status = None if self._commits else await self._commit_written(deadline_s, noted)
        if status is None:
            txn, writer = self.id, self._opened()[1]
            await self._decide_end()
            await writer.close()
            status = await retrying(
                lambda: self._controller.transactions.commit(self.stream, txn, noted=noted),
                self.rng,
                deadline_s=deadline_s,
            )
            self._commits = False
        if wait and status is not TransactionStatus.COMMITTED:
            await wait_for(self, TransactionStatus.COMMITTED, deadline_s)

    def _note(self, timestamp_ms: int) -> NotedTime:
        """Raises InvalidArgumentError."""
        checked_time("timestamp_ms", timestamp_ms)
        if self._name is None:
            raise InvalidArgumentError(
                'name the writer that notes the time: stream.transaction(writer="...")', timestamp_ms=timestamp_ms
            )
        return NotedTime(writer=self._name, time_ms=timestamp_ms)

    async def _commit_written(self, deadline_s: float, noted: NotedTime | None) -> TransactionStatus | None:
        """Commit together with the waiting events, if possible. None: nothing is decided, and all events are
        durable."""
        writer = self._writable()
        status = await self._commit_held(writer, deadline_s, noted)
        if status is None:
            # Not with ``close``: a second call would treat it as done, even if it was only partly done.
            await writer.flush()
            self._commits = True
        return status

    async def _commit_held(
        self, writer: AsyncWriter, deadline_s: float, noted: NotedTime | None
    ) -> TransactionStatus | None:
        """Commit with all events in one call. None: nothing is decided, and the writer has the events."""
        if self._asked is None:
            held = self._held
            if held is None or not held.events:
                return None
            prepared = writer.prepare(held.events, held.given_keys)
            if len({lane.sender.segment for lane, _ in prepared}) < len(prepared):
                writer.take(prepared)
                self._held = None
                return None
            self._asked, self._held = prepared, None
        txn = self.id
        blocks = [
            EventBlock(
                segment=lane.sender.segment,
                writer=lane.sender.writer,
                event_count=block.event_count,
                data=block.data,
            )
            for lane, block in self._asked
        ]

        async def whole() -> TransactionStatus | None:
            try:
                return await self._controller.transactions.commit(self.stream, txn, blocks=blocks, noted=noted)
            except (UnsupportedError, ThrottledError, StorageFullError, QuotaHeldError):
                return None

        try:
            status = await retrying(whole, self.rng, deadline_s=deadline_s)
        except (TransactionNotFoundError, TransactionStateError):
            await self._decide_end()
            raise
        if status is None:
            # An earlier try may have succeeded although its answer was lost. A refusal now would hide that.
            found = await self.status()
            status = found if found in (TransactionStatus.COMMITTING, TransactionStatus.COMMITTED) else None
        if status is None:
            # The writer knows how to wait. Its blocks bear the same numbers of the same ids: none is stored twice.
            prepared, self._asked = self._asked, None
            await writer.adopt(prepared)
            return None
        await self._decide_end()
        await writer.abort()
        return status

    async def abort(self, *, wait: bool = True, deadline_s: float = DEADLINE_S) -> None:
        """Drop all events. ``wait``: return when the status is ABORTED; else when it is decided.

        Raises: TransactionStateError (committed), DeadlineExceededError (after ``deadline_s``: decided, the removal
        continues).
        """
        forks.check(self._owner)
        number("deadline_s", deadline_s, least=0)
        writer = self._opened()[1]
        await writer.abort()
        await self._decide_end()
        txn = self.id
        await retrying(lambda: self._controller.transactions.abort(self.stream, txn), self.rng, deadline_s=deadline_s)
        if wait:
            await wait_for(self, TransactionStatus.ABORTED, deadline_s)

    async def abandon(self) -> None:
        """Close this side without a call to the store, which aborts the transaction when its lease expires."""
        if self._writer is not None:
            await self._writer.abort()
        self._lost = self._lost or InvalidArgumentError("store is closed")
        await self._end_lease()

    async def _decide_end(self) -> None:
        self._decided = True
        await self._end_lease()

    async def status(self) -> TransactionStatus:
        """Where the transaction is now. Raises InvalidArgumentError before it is open."""
        txn = self.id
        return await retrying(lambda: self._controller.transactions.status(self.stream, txn), self.rng)

    async def __aenter__(self) -> AsyncTransaction:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._decided:
            return
        if kind is None:
            try:
                await self.commit()
            finally:
                await self._end_lease()
                await self._opened()[1].abort()
            return
        try:
            # An interrupted caller does not want to wait.
            await self.abort(wait=issubclass(kind, Exception), deadline_s=_ABORT_S)
        except PenstockError as failure:
            # The caller's exception tells more; the store aborts the transaction when its lease runs out.
            log.warning("transaction could not be aborted", extra={"txn": str(self.id), "error": str(failure)})
        finally:
            await self._end_lease()


async def wait_for(transaction: AsyncTransaction, wanted: TransactionStatus, deadline_s: float) -> None:
    """Return once a decided transaction is COMMITTED or ABORTED, as ``wanted``. Raises TransactionStateError (decided
    otherwise), DeadlineExceededError."""
    # A commit takes milliseconds, unless much waits before it.
    backoff = Backoff(transaction.rng, first_s=_COMMIT_PAUSE_S)
    give_up_at = asyncio.get_running_loop().time() + deadline_s
    while True:
        status = await transaction.status()
        if status is wanted:
            return
        if wanted is TransactionStatus.ABORTED:
            if status is TransactionStatus.UNKNOWN:
                return  # deleted, and no longer remembered
        elif status in (TransactionStatus.ABORTING, TransactionStatus.ABORTED, TransactionStatus.UNKNOWN):
            raise TransactionStateError("transaction was not committed", txn=transaction.id, state=status.value)
        if asyncio.get_running_loop().time() > give_up_at:
            raise DeadlineExceededError(
                "transaction is still ending; the store completes it in the background",
                txn=transaction.id,
                state=status.value,
            )
        await backoff.sleep()
