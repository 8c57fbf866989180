"""The rows of one attempt for one stream, on their way into a transaction.

They are written to the store's tier 2, as chunks of a transaction that all attempts of the batch share. If this process
cannot access tier 2, they are appended to a transaction of this attempt alone. Source: docs/design/0016-sink.md.
"""

from __future__ import annotations

import logging
from uuid import UUID

import pyarrow as pa

from penstock.model.errors import InternalError, UnsupportedError
from penstock.ports.control.transactions import Transaction
from penstock.spark.connect import Services, patiently
from penstock.spark.options import WriteOptions
from penstock.spark.writing.direct_attempt import DirectAttempt
from penstock.spark.writing.frames import APPEND_BYTES, EVENT, KEY, Sorter
from penstock.spark.writing.keep_alive import KeepAlive, renew
from penstock.spark.writing.messages import SharedWritten
from penstock.spark.writing.transactions import abort_after_failure, opened
from penstock.spark.writing.wire_attempt import WireAttempt

log = logging.getLogger("penstock.spark")


class Sending:
    """Rows of one stream. ``key`` belongs to the transaction that all attempts of this run of the batch share.

    Order of calls: ``open``, ``take`` for each batch of rows, ``finish``. After a failure: ``cancel``.
    """

    def __init__(
        self, services: Services, options: WriteOptions, *, key: UUID, partition: int, keyed: bool, lease: KeepAlive
    ) -> None:
        self._services = services
        self._options = options
        self._key = key
        self._partition = partition
        self._keyed = keyed
        self._lease = lease
        self._shared: Transaction | None = None
        self._own: Transaction | None = None
        self._sender: DirectAttempt | WireAttempt | None = None
        self._sorter: Sorter | None = None

    async def open(self, rows: pa.RecordBatch) -> None:
        """Join or begin the transaction. ``rows`` are the first ones; they are not sent yet."""
        options = self._options
        if options.direct:
            self._shared = await self._join()
            # Without access to tier 2, the driver still gets the transaction, to end it.
            direct = None if self._shared is None else await self._open_direct(self._shared, rows)
            if self._shared is not None and direct is not None:
                self._begin_sending(self._shared, direct, direct.block_bytes)
                return
        self._own = await patiently(lambda: opened(self._services, options, self._begin))
        self._begin_sending(self._own, WireAttempt(self._services, options.stream, self._own), APPEND_BYTES)

    def _begin_sending(self, transaction: Transaction, sender: DirectAttempt | WireAttempt, part_bytes: int) -> None:
        self._sender = sender
        self._sorter = self._sorter_of(transaction, part_bytes)
        self._lease.hold(self._options.stream, transaction.id)

    @property
    def held_bytes(self) -> int:
        """Bytes in memory that are not durable yet."""
        return 0 if self._sender is None else self._sender.held_bytes

    async def relieve(self) -> None:
        """Return once fewer bytes are held than before. Raises what a write raised."""
        await self._opened().relieve()

    async def take(self, rows: pa.RecordBatch) -> None:
        """Send rows. Some may be in flight when this returns. Raises what an earlier write raised."""
        sender, sorter = self._opened(), self._sorter
        if sorter is None:
            raise InternalError("rows are sent before the transaction is open", stream=self._options.stream)
        for part in sorter.sort(rows.column(EVENT), rows.column(KEY) if self._keyed else None):
            await sender.add(part)

    async def finish(self) -> tuple[UUID | None, SharedWritten | None]:
        """Return once all rows are durable: the attempt's own transaction, and what it wrote to the shared one."""
        sender = self._opened()
        chunks = await sender.finish()
        current = self._own if isinstance(sender, WireAttempt) else self._shared
        if current is not None:
            await renew(self._services, self._options.stream, current.id, self._options.lease_ms)
        shared = None if self._shared is None else SharedWritten(self._key, self._shared.id, chunks or ())
        return (None if self._own is None else self._own.id), shared

    async def cancel(self) -> None:
        """Stop; no write is in flight afterwards. Chunks are deleted, and a transaction of the attempt's own is aborted."""
        if self._sender is not None:
            await self._sender.cancel()
        if self._own is not None:
            await abort_after_failure(self._services, self._options, self._own.id)

    def _opened(self) -> DirectAttempt | WireAttempt:
        if self._sender is None:
            raise InternalError("rows are sent before the transaction is open", stream=self._options.stream)
        return self._sender

    def _sorter_of(self, transaction: Transaction, part_bytes: int) -> Sorter:
        ranges = [item.keys for item in transaction.segments]
        return Sorter(ranges, turn=self._partition, part_bytes=part_bytes)

    # --- transactions -------------------------------------------------------------------------------------

    async def _join(self) -> Transaction | None:
        """The transaction that the attempts share; None if the store does not support one."""
        options, transactions = self._options, self._services.controller.transactions
        try:
            return await patiently(
                lambda: opened(
                    self._services,
                    options,
                    lambda: transactions.join(options.stream, self._key, lease_ms=options.lease_ms),
                )
            )
        except UnsupportedError:
            return None

    async def _open_direct(self, shared: Transaction, rows: pa.RecordBatch) -> DirectAttempt | None:
        keys = rows.column(KEY) if self._keyed else None
        first = next(self._sorter_of(shared, APPEND_BYTES).sort(rows.column(EVENT), keys))
        direct = DirectAttempt(self._services, self._options.stream, shared)
        if await direct.open(first.index):
            return direct
        log.info(
            "tier 2 cannot be accessed from here, sending rows to the store",
            extra={"stream": self._options.stream},
        )
        return None

    async def _begin(self) -> Transaction:
        # If an answer was lost, it is created twice: the first one ends with its lease.
        options = self._options
        return await self._services.controller.transactions.create(options.stream, lease_ms=options.lease_ms)
