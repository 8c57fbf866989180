"""Transactions: events that become readable together, or not at all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING
from uuid import UUID

from penstock.client.retry import DEADLINE_S, Backoff, retrying
from penstock.client.tasks import TaskOwner
from penstock.client.writer import AsyncWriter
from penstock.client.writer_core import WriterSettings
from penstock.model.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    PenstockError,
    TransactionNotFoundError,
    TransactionStateError,
)
from penstock.model.names import StreamName, segment_name, transaction_segment_name
from penstock.model.segments import SegmentId, SegmentRange
from penstock.ports.controller_service import (
    LEASE_MAX_MS,
    LEASE_MIN_MS,
    ControllerService,
    PingStatus,
    Transaction,
    TransactionStatus,
)
from penstock.ports.files import Buffer
from penstock.ports.rng import Rng
from penstock.ports.segment_service import SegmentService

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

_COMMIT_PAUSE_S = 0.002
_ABORT_S = 10.0
"""How long leaving a block by an exception may take: the caller's exception waits for it."""


class _TransactionLayout:
    """The transaction's own segments. Nothing follows them: when they are gone, so is the transaction."""

    def __init__(self, stream: StreamName, transaction: Transaction) -> None:
        self.stream = stream
        self._transaction = transaction

    async def segments(self) -> Sequence[SegmentRange]:
        return self._transaction.segments

    def name_of(self, segment: SegmentId) -> str:
        return transaction_segment_name(segment_name(self.stream, segment), self._transaction.id)

    async def successors(self, segment: SegmentId, cause: PenstockError) -> Sequence[SegmentRange]:
        raise TransactionStateError("transaction takes no more events", txn=self._transaction.id) from cause


class AsyncTransaction:
    """An open transaction on one stream. ``async with`` commits on success and aborts on an exception.

    Scaling of the stream neither disturbs nor waits for it. While it is open its lease is renewed in the background; a
    process that dies leaves it to be aborted by the store after ``lease_s``.
    """

    def __init__(
        self,
        stream: StreamName,
        segments: SegmentService,
        controller: ControllerService,
        rng: Rng,
        settings: WriterSettings,
        *,
        lease_s: float,
    ) -> None:
        self.stream = stream
        if isinstance(lease_s, bool) or not isinstance(lease_s, int | float):
            raise InvalidArgumentError("lease_s is a number of seconds", lease_s=lease_s, type=type(lease_s).__name__)
        self.lease_ms = round(lease_s * 1000)
        if not LEASE_MIN_MS <= self.lease_ms <= LEASE_MAX_MS:
            raise InvalidArgumentError(
                "lease is out of range", lease_s=lease_s, minimum_s=LEASE_MIN_MS / 1000, maximum_s=LEASE_MAX_MS / 1000
            )
        self._segments = segments
        self._controller = controller
        self._rng = rng
        self._settings = settings
        self._transaction: Transaction | None = None
        self._writer: AsyncWriter | None = None
        self._lost: BaseException | None = None
        self._decided = False
        self._tasks = TaskOwner(self._lose)

    @property
    def id(self) -> UUID:
        """The transaction's id. Raises InvalidArgumentError before it is open."""
        return self._opened()[0].id

    def _opened(self) -> tuple[Transaction, AsyncWriter]:
        if self._transaction is None or self._writer is None:
            raise InvalidArgumentError("transaction is not open", stream=str(self.stream))
        return self._transaction, self._writer

    async def open(self) -> None:
        """Begin. Nothing happens where it is open.

        Raises StreamNotFoundError, StreamSealedError, UnavailableError, TransactionStateError (committed or aborted: a
        decided transaction is not begun again).
        """
        if self._transaction is not None and self._writer is not None:
            if self._decided:
                raise TransactionStateError("transaction is decided; begin another one", txn=self._transaction.id)
            return
        self._transaction = await retrying(
            lambda: self._controller.create_transaction(self.stream, lease_ms=self.lease_ms), self._rng
        )
        layout = _TransactionLayout(self.stream, self._transaction)
        self._writer = AsyncWriter(layout, self._segments, self._rng, self._settings)
        await self._writer.open()
        self._tasks.start(self._keep_lease())

    def _lose(self, error: BaseException) -> None:
        self._lost = error

    async def _keep_lease(self) -> None:
        while True:
            await asyncio.sleep(self.lease_ms / 3000)
            await self.ping()

    async def ping(self) -> None:
        """Renew the lease. Raises TransactionStateError (decided, or open for too long), TransactionNotFoundError."""
        txn = self.id
        status = await retrying(
            lambda: self._controller.ping_transaction(self.stream, txn, lease_ms=self.lease_ms), self._rng
        )
        if status is PingStatus.UNKNOWN:
            raise TransactionNotFoundError("transaction is not known", txn=txn)
        if status is not PingStatus.OK:
            raise TransactionStateError("lease was not renewed", txn=txn, state=status.value)

    def check(self) -> None:
        """Raise what keeps it from taking events: InvalidArgumentError (not open), TransactionStateError (decided), or how
        its lease was lost."""
        self._writable()

    def _writable(self) -> AsyncWriter:
        writer = self._opened()[1]
        if self._lost is not None:
            raise self._lost
        if self._decided:
            raise TransactionStateError("transaction is decided", txn=self.id)
        return writer

    async def write(self, event: Buffer | str, key: str | None = None) -> None:
        """As ``AsyncWriter.write``. Raises TransactionStateError, TransactionNotFoundError too."""
        await self._writable().write(event, key)

    async def write_many(self, events: Sequence[Buffer | str], keys: Sequence[str | None] | None = None) -> None:
        """As ``AsyncWriter.write_many``."""
        await self._writable().write_many(events, keys)

    async def write_arrow(self, array: pa.Array, keys: pa.Array | None = None) -> None:
        """As ``AsyncWriter.write_arrow``."""
        await self._writable().write_arrow(array, keys)

    async def flush(self) -> None:
        """Return once every event written so far is durable, though not readable."""
        await self._writable().flush()

    async def commit(self, *, wait: bool = True, deadline_s: float = DEADLINE_S) -> None:
        """Make all events readable at once. ``wait``: return when they are; else when it is decided.

        Raises: TransactionStateError (aborted), TransactionNotFoundError (lease ran out), DeadlineExceededError (decided;
        readable later).
        """
        writer = self._writable()
        await writer.close()
        await self._decide_end()
        txn = self.id
        status = await retrying(
            lambda: self._controller.commit_transaction(self.stream, txn), self._rng, deadline_s=deadline_s
        )
        if wait and status is not TransactionStatus.COMMITTED:
            await self._wait_for(TransactionStatus.COMMITTED, deadline_s)

    async def abort(self, *, wait: bool = True, deadline_s: float = DEADLINE_S) -> None:
        """Drop all events. ``wait``: return when the status is ABORTED; else when it is decided.

        Raises: TransactionStateError (committed), DeadlineExceededError (decided; the removal goes on).
        """
        writer = self._opened()[1]
        await writer.abort()
        await self._decide_end()
        txn = self.id
        await retrying(lambda: self._controller.abort_transaction(self.stream, txn), self._rng, deadline_s=deadline_s)
        if wait:
            await self._wait_for(TransactionStatus.ABORTED, deadline_s)

    async def abandon(self) -> None:
        """End this side of it without a word: the store aborts it when its lease runs out."""
        if self._writer is not None:
            await self._writer.abort()
        self._lost = self._lost or InvalidArgumentError("store is closed")
        await self._tasks.close()

    async def _decide_end(self) -> None:
        self._decided = True
        await self._tasks.close()

    async def status(self) -> TransactionStatus:
        """Where the transaction is now."""
        txn = self.id
        return await retrying(lambda: self._controller.transaction_status(self.stream, txn), self._rng)

    async def _wait_for(self, wanted: TransactionStatus, deadline_s: float) -> None:
        # A commit takes milliseconds, unless much waits before it.
        backoff = Backoff(self._rng, first_s=_COMMIT_PAUSE_S)
        give_up_at = asyncio.get_running_loop().time() + deadline_s
        while True:
            status = await self.status()
            if status is wanted:
                return
            if wanted is TransactionStatus.ABORTED:
                if status is TransactionStatus.UNKNOWN:
                    return  # gone, and forgotten by now
            elif status in (TransactionStatus.ABORTING, TransactionStatus.ABORTED, TransactionStatus.UNKNOWN):
                raise TransactionStateError("transaction was not committed", txn=self.id, state=status.value)
            if asyncio.get_running_loop().time() > give_up_at:
                raise DeadlineExceededError("transaction ends without us", txn=self.id, state=status.value)
            await backoff.sleep()

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
                await self._tasks.close()
            return
        try:
            # Whoever was interrupted does not want to wait.
            await self.abort(wait=issubclass(kind, Exception), deadline_s=_ABORT_S)
        except PenstockError as failure:
            # The caller's exception tells more; the store aborts the transaction when its lease runs out.
            log.warning("transaction could not be aborted", extra={"txn": str(self.id), "error": str(failure)})
        finally:
            await self._tasks.close()
