# ruff: noqa: N803 - Spark names these arguments.
"""Writing from Spark, exactly once: a transaction for each task, one decision for each batch.

A task appends its rows to the segments of a transaction and hands its id to the driver. The driver commits the
transactions of a batch by a single call that the controller decides once, keyed by (writer, batch): a repeated batch is a
no-op, whoever repeats it and why. What loses - speculative and crashed attempts - ends with its lease.
Source: docs/design/0009-spark.md.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.client.retry import RETRYABLE
from penstock.model.errors import (
    AlreadyExistsError,
    ConflictError,
    InternalError,
    PenstockError,
    ScopeNotFoundError,
    StreamNotFoundError,
    TransactionNotFoundError,
    TransactionStateError,
    WriterFencedError,
)
from penstock.model.names import segment_name, transaction_segment_name
from penstock.model.policies import ScalingPolicy, StreamConfig
from penstock.ports.controller_service import PingStatus, Transaction, TransactionStatus
from penstock.ports.segment_service import Append
from penstock.spark.connect import RETRY_S, Connector, Link, Services, link, patiently
from penstock.spark.options import WriteOptions
from penstock.spark.reasons import readable

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark.frames import Framed

log = logging.getLogger("penstock.spark")

_IN_FLIGHT_BYTES = 32 << 20
_ABORT_S = 3.0
"""How long an abort may take: the failure behind it is to be reported, and a lease ends what is not aborted."""


@dataclass(frozen=True)
class TaskWritten(WriterCommitMessage):  # type: ignore[misc]
    """What a task hands to the driver. ``transaction=None``: it had no rows, or the batch is committed already."""

    writer: str
    batch: int
    transaction: UUID | None
    rows: int
    size_bytes: int


def is_repeat(last: int | None, batch: int, *, writer: str, ordered: bool) -> bool:
    """Whether the writer has committed the batch already.

    Args:
        last: The last batch that the writer committed.
        ordered: Whether batches come from one checkpoint, which repeats none but its last.
    Raises:
        ConflictError: An older batch from a checkpoint: it is a new one, under the name of an old one. To take it for a
            repeat would lose its data in silence.
    """
    if last is None or batch > last:
        return False
    if ordered and batch < last:
        raise ConflictError(
            "writer has committed later batches: a new checkpoint needs another writer_id, or reset_writer=true",
            writer=writer,
            batch=batch,
            last=last,
        )
    return True


class _Writer:
    """What batch and streaming writers share. Pickled to tasks; holds plain values only."""

    def __init__(self, connector: Connector, options: WriteOptions, keyed: bool) -> None:
        self._connector = connector
        self._options = options
        self._keyed = keyed

    def _server(self) -> Link:
        return link(self._connector, self._options.controller)

    def _write(self, iterator: Iterator[pa.RecordBatch], writer: str, batch: int, *, ordered: bool) -> TaskWritten:
        server, stream = self._server(), self._options.stream

        async def last(services: Services) -> int | None:
            try:
                return await services.controller.last_batch(stream, writer=writer)
            except (StreamNotFoundError, ScopeNotFoundError):
                return None  # is made with the first row, if it may be

        if is_repeat(server.ask(last), batch, writer=writer, ordered=ordered):
            for _ in iterator:
                pass  # Spark wants its rows taken
            return TaskWritten(writer, batch, None, 0, 0)
        task = TaskWrite(self._options, self._keyed)
        return server.run(lambda services: task.run(services, iterator, writer, batch))

    def _commit(self, messages: Sequence[WriterCommitMessage | None], *, ordered: bool) -> None:
        """Commit the transactions of all tasks as one batch."""
        written = [message for message in messages if isinstance(message, TaskWritten)]
        transactions = [message.transaction for message in written if message.transaction is not None]
        if not transactions:
            return
        if len({(message.writer, message.batch) for message in written}) != 1:
            raise InternalError("tasks of one batch disagree about it", batches=sorted({m.batch for m in written}))
        writer, batch, stream = written[0].writer, written[0].batch, self._options.stream

        async def commit(services: Services) -> bool:
            is_repeat(
                await services.controller.last_batch(stream, writer=writer), batch, writer=writer, ordered=ordered
            )
            return await services.controller.commit_batch(stream, writer=writer, batch=batch, transactions=transactions)

        if not self._server().ask(commit):
            log.info("batch was committed before", extra={"writer": writer, "batch": batch})

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort what is open. Spark calls this too where a commit failed after it was decided: that stays decided."""
        written = [message.transaction for message in messages if isinstance(message, TaskWritten)]
        transactions = [transaction for transaction in written if transaction is not None]
        if not transactions:
            return
        try:
            self._server().run(partial(_abort_all, options=self._options, transactions=transactions))
        except (*RETRYABLE, TimeoutError) as error:
            # Spark reports what failed here in place of what led here.
            log.warning(
                "transactions are left to their leases", extra={"count": len(transactions), "error": str(error)}
            )


async def _abort_all(services: Services, options: WriteOptions, transactions: Sequence[UUID]) -> None:
    async with asyncio.timeout(_ABORT_S):
        for transaction in transactions:
            await abort_if_open(services, options, transaction)


async def abort_if_open(services: Services, options: WriteOptions, transaction: UUID) -> None:
    """Abort a transaction unless something else was decided about it."""
    try:
        status = await services.controller.transaction_status(options.stream, transaction)
        if status is TransactionStatus.OPEN:
            await services.controller.abort_transaction(options.stream, transaction)
    except (TransactionNotFoundError, TransactionStateError, StreamNotFoundError):
        log.info("nothing left to abort", extra={"transaction": str(transaction)})


class BatchWriter(_Writer, DataSourceArrowWriter):  # type: ignore[misc]
    """``df.write``: one batch. Its identity is (txnAppId, txnVersion), or made up here and shared by all tasks."""

    def __init__(self, connector: Connector, options: WriteOptions, keyed: bool) -> None:
        super().__init__(connector, options, keyed)
        # Spark pickles this one object to all tasks and to the commit.
        app, self._batch = options.job or (options.writer_id or "", 0)
        unique = f"job-{uuid4()}"
        self._name = f"{app}/{options.stream}" if options.job else f"{app or 'spark'}-{unique}/{options.stream}"

    @readable
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write(iterator, self._name, self._batch, ordered=False)

    @readable
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(messages, ordered=False)

    @readable
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):  # type: ignore[misc]
    """``df.writeStream``: batches of a checkpoint, by their number."""

    @readable
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        query, batch = _identity()
        named = self._options.writer_id
        name = query if named is None else f"{named}#{query}" if self._options.reset_writer else named
        return self._write(iterator, f"{name}/{self._options.stream}", batch, ordered=True)

    @readable
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        for message in messages:
            if isinstance(message, TaskWritten) and message.batch != batchId:
                raise InternalError(
                    "Spark commits another batch than its tasks wrote", batch=batchId, task=message.batch
                )
        self._commit(messages, ordered=True)

    @readable
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._abort(messages)


def _identity() -> tuple[str, int]:
    """Query and batch of this task: the same after every restart from the checkpoint."""
    context = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context else None
    batch = context.getLocalProperty("streaming.sql.batchId") if context else None
    if query is None or batch is None:
        raise InternalError("Spark does not tell its tasks the query and batch", query=query, batch=batch)
    return str(query), int(batch)


class TaskWrite:
    """One task's rows, through one transaction."""

    def __init__(self, options: WriteOptions, keyed: bool) -> None:
        self._options = options
        self._keyed = keyed
        self._rows = 0
        self._bytes = 0

    async def run(self, services: Services, iterator: Iterator[pa.RecordBatch], writer: str, batch: int) -> TaskWritten:
        """Write all rows durably into an open transaction. Where it fails, the transaction is aborted."""
        transaction: Transaction | None = None
        try:
            for rows in iterator:
                if rows.num_rows == 0:
                    continue
                if transaction is None:
                    # Made twice where an answer was lost: the first is left to its lease.
                    transaction = await patiently(lambda: self._begin(services))
                    appender = _Appender(services, self._options, transaction)
                    sorter = self._sorter(transaction)
                events, keys = self._columns(rows)
                for part in sorter(events, keys):
                    await appender.append(part)
                self._rows += rows.num_rows
                self._bytes += rows.nbytes
                await appender.keep_alive()
            if transaction is not None:
                await appender.flush()
                await appender.keep_alive(now=True)
        except BaseException:
            if transaction is not None:
                await appender.cancel()
                await _abort_after_failure(services, self._options, transaction.id)
            raise
        return TaskWritten(writer, batch, transaction.id if transaction else None, self._rows, self._bytes)

    def _sorter(self, transaction: Transaction) -> Callable[[pa.Array, pa.Array | None], Iterator[Framed]]:
        from penstock.spark.frames import Sorter

        context = TaskContext.get()
        turn = context.partitionId() if context else 0
        return Sorter([item.keys for item in transaction.segments], turn=turn).sort

    def _columns(self, rows: pa.RecordBatch) -> tuple[pa.Array, pa.Array | None]:
        from penstock.spark.frames import event_bytes

        keys = rows.column(self._options.routing_key_column) if self._keyed else None
        return event_bytes(rows.column(self._options.event_column)), keys

    async def _begin(self, services: Services) -> Transaction:
        controller, options = services.controller, self._options
        try:
            return await controller.create_transaction(options.stream, lease_ms=options.lease_ms)
        except (ScopeNotFoundError, StreamNotFoundError) as error:
            if not options.create_stream:
                raise
            if isinstance(error, ScopeNotFoundError) or not await controller.scope_exists(options.stream.scope):
                if not options.create_scope:
                    raise
                await _unless_exists(controller.create_scope(options.stream.scope))
        config = StreamConfig(scaling=ScalingPolicy(min_segments=options.segments))
        await _unless_exists(controller.create_stream(options.stream, config))
        return await controller.create_transaction(options.stream, lease_ms=options.lease_ms)


async def _unless_exists(creation: Awaitable[None]) -> None:
    with suppress(AlreadyExistsError):  # another task was first
        await creation


async def _abort_after_failure(services: Services, options: WriteOptions, transaction: UUID) -> None:
    try:
        async with asyncio.timeout(_ABORT_S):
            await abort_if_open(services, options, transaction)
    except (PenstockError, TimeoutError) as error:
        # The failure that led here is what counts; the lease ends the transaction.
        log.warning("transaction is left to its lease", extra={"transaction": str(transaction), "error": str(error)})


@dataclass(slots=True)
class _Lane:
    """One segment of the transaction: its last event number, and what is sent and not known to be durable.

    ``sent`` by event number, in order. ``lost_at``: since when the store is away, without an append in between.
    """

    name: str
    last: int | None = None
    sent: dict[int, Append] = field(default_factory=dict)
    lost_at: float | None = None


class _Appender:
    """Appends to the segments of a transaction, several at a time, in order within each; keeps the transaction alive.

    Outlasts ``RETRY_S`` of a store that is away: what it had acknowledged is durable, it says itself how much of the rest
    it has, and what is missing is sent again.
    """

    def __init__(self, services: Services, options: WriteOptions, transaction: Transaction) -> None:
        self._services = services
        self._options = options
        self._transaction = transaction
        self._lanes = [
            _Lane(transaction_segment_name(segment_name(options.stream, item.segment), transaction.id))
            for item in transaction.segments
        ]
        self._writer = uuid4()
        self._pending: dict[asyncio.Task[object], tuple[_Lane, Append]] = {}
        self._renewed_at = time.monotonic()

    async def append(self, part: Framed) -> None:
        """Send a part. Returns once it is on its way and no more than 32 MiB are. Raises what an earlier append raised."""
        lane = self._lanes[part.index]
        if lane.last is None:
            lane.last = await self._stored(lane)
        number = max(lane.last, 0) + part.count
        request = Append(
            segment=lane.name,
            writer=self._writer,
            data=part.data,
            event_number=number,
            event_count=part.count,
            previous=lane.last,
        )
        lane.last = number
        lane.sent[number] = request
        self._send(lane, request)
        while sum(len(request.data) for _, request in self._pending.values()) > _IN_FLIGHT_BYTES:
            await self._settle(asyncio.FIRST_COMPLETED)
        # Let the bytes out before the caller blocks on its next rows.
        await asyncio.sleep(0)

    def _send(self, lane: _Lane, request: Append) -> None:
        task: asyncio.Task[object] = asyncio.ensure_future(self._services.segments.append(request))
        self._pending[task] = lane, request

    async def _stored(self, lane: _Lane) -> int:
        return await patiently(lambda: self._services.segments.setup_append(lane.name, self._writer))

    async def flush(self) -> None:
        """Return once everything is durable."""
        while self._pending:
            await self._settle(asyncio.ALL_COMPLETED)

    async def _settle(self, when: str) -> None:
        done, _ = await asyncio.wait(self._pending, return_when=when)
        lost: list[_Lane] = []
        for task in done:
            lane, _ = self._pending[task]
            if self._lost(task) and lane not in lost:
                lost.append(lane)
        for lane in lost:
            await self._resume(lane)

    def _lost(self, task: asyncio.Task[object]) -> bool:
        """Take the outcome of an append. True where the store went away before it was told. Raises any other error."""
        lane, request = self._pending.pop(task)
        try:
            task.result()
        except RETRYABLE:
            if lane.lost_at is None:
                lane.lost_at = time.monotonic()
            elif time.monotonic() - lane.lost_at > RETRY_S:
                raise
            return True
        except WriterFencedError:
            # The line was opened anew for this append, and the store lacks what was lost before it.
            if next(iter(lane.sent)) == request.event_number:
                raise
            return True
        del lane.sent[request.event_number]
        lane.lost_at = None
        return False

    async def _resume(self, lane: _Lane) -> None:
        """Ask the store for the last number that it has of a lane, and send what lies behind it again."""
        behind = [task for task, (other, _) in self._pending.items() if other is lane]
        if behind:
            await asyncio.wait(behind)
            for task in behind:
                self._lost(task)
        stored = await self._stored(lane)
        lane.sent = {number: request for number, request in lane.sent.items() if number > stored}
        for request in lane.sent.values():
            self._send(lane, request)

    async def cancel(self) -> None:
        """Give up what is under way, and wait until it is over."""
        for task in self._pending:
            task.cancel()
        await asyncio.gather(*self._pending, return_exceptions=True)
        self._pending.clear()

    async def keep_alive(self, *, now: bool = False) -> None:
        """Renew the lease, when a third of it has gone, or ``now``. Raises TransactionStateError where it has ended."""
        lease_ms = self._options.lease_ms
        if not now and (time.monotonic() - self._renewed_at) * 3000 < lease_ms:
            return
        status = await patiently(
            lambda: self._services.controller.ping_transaction(
                self._options.stream, self._transaction.id, lease_ms=lease_ms
            )
        )
        if status is not PingStatus.OK:
            raise TransactionStateError(
                "transaction ended while rows were written to it", txn=self._transaction.id, state=status.value
            )
        self._renewed_at = time.monotonic()
