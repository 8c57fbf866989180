"""How one task attempt writes its rows.

A few rows go to the driver in the task's message. More rows are written to the store's tier 2, as chunks of a
transaction that all attempts of the batch share. If this process cannot access tier 2, they are appended to a
transaction of this attempt alone. The choice is made once, when there are too many rows for a message. Source:
docs/design/0016-sink.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

import pyarrow as pa
from pyspark import TaskContext

from penstock.codec.events import EVENT_MAX_BYTES
from penstock.model.errors import EventTooLargeError, UnsupportedError
from penstock.model.queries import QuerySource
from penstock.ports.control.transactions import Transaction
from penstock.spark.connect import Connector, Services, patiently
from penstock.spark.options import WriteOptions
from penstock.spark.writing.direct_attempt import DirectAttempt
from penstock.spark.writing.frames import (
    APPEND_BYTES,
    EVENT,
    KEY,
    Sorter,
    check_targets,
    event_bytes,
    inline_rows,
    largest_event,
)
from penstock.spark.writing.keep_alive import KeepAlive, renew
from penstock.spark.writing.messages import SharedWritten, TaskWritten
from penstock.spark.writing.transactions import abort_after_failure, opened
from penstock.spark.writing.wire_attempt import WireAttempt

if TYPE_CHECKING:
    from penstock.spark.writing.frames import Framed

log = logging.getLogger("penstock.spark")

INLINE_BYTES = 128 << 10
"""The most that goes to the driver in a task's message: 8,000 tasks stay within the default limit of Spark's driver."""


class Attempt:
    """One attempt of a task. ``key`` belongs to the transaction that all attempts of this run of the batch share."""

    def __init__(
        self,
        connector: Connector,
        options: WriteOptions,
        *,
        keyed: bool,
        target_columns: Sequence[str] = (),
        key: UUID,
        writer: str,
        batch: int,
        source: QuerySource | None,
    ) -> None:
        self._connector = connector
        self._options = options
        self._keyed = keyed
        self._target_columns = target_columns
        self._key = key
        self._writer = writer
        self._batch = batch
        self._source = source
        context = TaskContext.get()
        self._partition = context.partitionId() if context else 0
        self._rows = 0
        self._bytes = 0

    def few(self, iterator: Iterator[pa.RecordBatch]) -> tuple[list[pa.RecordBatch], bool]:
        """The first rows, as columns of plain events and keys, and whether they are all rows and fit into a message."""
        held: list[pa.RecordBatch] = []
        held_bytes = 0
        for rows in iterator:
            if rows.num_rows:
                held.append(self._plain(rows))
                held_bytes += held[-1].nbytes
                if held_bytes > INLINE_BYTES:
                    return held, False
        return held, True

    def inline(self, held: list[pa.RecordBatch]) -> TaskWritten:
        """The message that contains the rows themselves. Raises EventTooLargeError."""
        largest = max((largest_event(rows) for rows in held), default=0)
        if largest > EVENT_MAX_BYTES:
            raise EventTooLargeError("event is too large", length_bytes=largest, limit_bytes=EVENT_MAX_BYTES)
        return self._message(inline=inline_rows(held) if held else None)

    def nothing(self) -> TaskWritten:
        """The message of a task that has no rows or whose batch is already committed."""
        return TaskWritten(self._writer, self._batch, None, 0, 0, self._partition, source=self._source)

    async def write(
        self, services: Services, held: list[pa.RecordBatch], iterator: Iterator[pa.RecordBatch]
    ) -> TaskWritten:
        """Write all rows durably, the held ones first. If it fails, the transaction is abandoned."""
        shared: Transaction | None = None
        if self._options.direct:
            shared = await self._join(services)
            # Without access to tier 2, the driver still gets the transaction, to end it.
            direct = None if shared is None else await self._open_direct(services, shared, held[0])
            if shared is not None and direct is not None:
                await self._send(services, direct, shared, held, iterator)
                chunks = await direct.finish()
                await renew(services, self._options.stream, shared.id, self._options.lease_ms)
                return self._message(shared=SharedWritten(self._key, shared.id, chunks))
        own = await patiently(lambda: opened(services, self._options, lambda: self._begin(services)))
        try:
            await self._send(services, WireAttempt(services, self._options.stream, own), own, held, iterator)
            await renew(services, self._options.stream, own.id, self._options.lease_ms)
        except BaseException:
            await abort_after_failure(services, self._options, own.id)
            raise
        left = None if shared is None else SharedWritten(self._key, shared.id)
        return self._message(transaction=own.id, shared=left)

    async def _send(
        self,
        services: Services,
        sender: DirectAttempt | WireAttempt,
        transaction: Transaction,
        held: list[pa.RecordBatch],
        iterator: Iterator[pa.RecordBatch],
    ) -> None:
        """Send all rows. They are durable when this returns; no write is in flight when it fails."""
        options = self._options
        part_bytes = sender.block_bytes if isinstance(sender, DirectAttempt) else APPEND_BYTES
        sort = self._sorter(transaction, part_bytes).sort
        lease = KeepAlive(self._connector, options.controller, options.stream, transaction.id, options.lease_ms)
        try:
            for rows in held:
                await self._take(sender, sort, rows)
            held.clear()
            for rows in iterator:
                if rows.num_rows:
                    await self._take(sender, sort, self._plain(rows))
                    lease.check()
            await sender.finish()
        except BaseException:
            await sender.cancel()
            raise
        finally:
            lease.stop()

    async def _take(
        self,
        sender: DirectAttempt | WireAttempt,
        sort: Callable[[pa.Array, pa.Array | None], Iterator[Framed]],
        rows: pa.RecordBatch,
    ) -> None:
        for part in sort(rows.column(EVENT), rows.column(KEY) if self._keyed else None):
            await sender.add(part)

    def _message(
        self, *, transaction: UUID | None = None, inline: bytes | None = None, shared: SharedWritten | None = None
    ) -> TaskWritten:
        return TaskWritten(
            self._writer,
            self._batch,
            transaction,
            self._rows,
            self._bytes,
            self._partition,
            inline,
            shared,
            self._source,
        )

    def _plain(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Plain events and their keys. Raises InvalidArgumentError if an event is null or a row names another
        stream."""
        check_targets(rows, self._target_columns, self._options.stream)
        self._rows += rows.num_rows
        self._bytes += rows.nbytes
        columns = {EVENT: event_bytes(rows.column(self._options.event_column))}
        if self._keyed:
            columns[KEY] = rows.column(self._options.routing_key_column)
        return pa.record_batch(columns)

    def _sorter(self, transaction: Transaction, part_bytes: int) -> Sorter:
        ranges = [item.keys for item in transaction.segments]
        return Sorter(ranges, turn=self._partition, part_bytes=part_bytes)

    # --- transactions -------------------------------------------------------------------------------------

    async def _join(self, services: Services) -> Transaction | None:
        """The transaction that the attempts share; None if the store does not support one."""
        options = self._options
        try:
            return await patiently(
                lambda: opened(
                    services,
                    options,
                    lambda: services.controller.transactions.join(options.stream, self._key, lease_ms=options.lease_ms),
                )
            )
        except UnsupportedError:
            return None

    async def _open_direct(self, services: Services, shared: Transaction, rows: pa.RecordBatch) -> DirectAttempt | None:
        keys = rows.column(KEY) if self._keyed else None
        first = next(self._sorter(shared, APPEND_BYTES).sort(rows.column(EVENT), keys))
        direct = DirectAttempt(services, self._options.stream, shared)
        if await direct.open(first.index):
            return direct
        log.info(
            "tier 2 cannot be accessed from here, sending rows to the store",
            extra={"stream": self._options.stream},
        )
        return None

    async def _begin(self, services: Services) -> Transaction:
        # If an answer was lost, it is created twice: the first one ends with its lease.
        return await services.controller.transactions.create(self._options.stream, lease_ms=self._options.lease_ms)
