"""Transactions of a stream: begin, renew, decide, and report their outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from penstock.codec.audit import AuditEntry, AuditKind
from penstock.codec.control.streams import (
    CompletedRecord,
    CounterRecord,
    JoinRecord,
    StreamState,
    TransactionRecord,
    TransactionState,
)
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.metadata import changing, create, stored
from penstock.controller.retention.audit import check_not_own
from penstock.controller.segments import create_fresh, create_segments, delete_segments
from penstock.controller.stream_view import StreamView
from penstock.controller.streams.epochs import load_epoch
from penstock.controller.streams.updates import check_not_sealed
from penstock.controller.streams.workflows import exclusive, settle_soon
from penstock.controller.tasks import each
from penstock.controller.transactions.decisions import abort_if_open, decide, load_transactions
from penstock.controller.transactions.positions import commit_with_positions, release_positions, settle_positions
from penstock.core.streams.transactions import (
    PingVerdict,
    Verb,
    decide_ping,
    is_stray,
    make_transaction_id,
    open_record,
    renewed_until,
    transaction_epoch,
)
from penstock.model.callers import current_caller
from penstock.model.errors import (
    InvalidArgumentError,
    SegmentNotFoundError,
    StreamSealedError,
    TransactionStateError,
    WriterFencedError,
)
from penstock.model.names import StreamName, segment_name, transaction_segment_name
from penstock.model.segments import SegmentId, SegmentRange
from penstock.ports.control.transactions import (
    EventBlock,
    NotedTime,
    OpenTransaction,
    PingStatus,
    PositionCommit,
    StreamTransaction,
    Transaction,
    TransactionStatus,
)
from penstock.ports.data.segments import NO_EVENT, Append

COMPLETED_MAX = 500  # transactions that one call lists, newest first

COMMIT_S = 0.2
"""How long the answer to a commit waits for the merge."""

_IDS_AT_ONCE = 1 << 16
"""Transaction numbers reserved in one step. Unused numbers of a crashed controller are never used."""

_PREPARED_MAX = 10_000
"""Shared transactions whose segments are known to exist."""

_STATUS = {
    TransactionState.OPEN: TransactionStatus.OPEN,
    TransactionState.COMMITTING: TransactionStatus.COMMITTING,
    TransactionState.COMMITTED: TransactionStatus.COMMITTED,
    TransactionState.ABORTING: TransactionStatus.ABORTING,
    TransactionState.ABORTED: TransactionStatus.ABORTED,
}


class Transactions:
    """Transactions of all streams."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._next = 0
        self._reserved = 0
        self._reserving = asyncio.Lock()
        self._prepared: dict[UUID, None] = {}

    async def _number(self) -> int:
        """A number that is unique among all transactions of the store."""
        while self._next == self._reserved:
            # One caller reserves for all that wait: several at once would only conflict on the record.
            async with self._reserving:
                if self._next == self._reserved:
                    await changing(self._reserve)
        self._next += 1
        return self._next - 1

    async def _reserve(self) -> None:
        found = await self._ctx.metadata.get(keys.TRANSACTION_COUNTER, CounterRecord)
        first = 1 if found.value is None else found.value.value  # an id of zeros alone would read as none
        await self._ctx.metadata.put(found.put(CounterRecord(value=first + _IDS_AT_ONCE)))
        self._next, self._reserved = first, first + _IDS_AT_ONCE

    async def create(self, stream: StreamName, *, lease_ms: int) -> Transaction:
        """Its segments exist when this returns. Raises InvalidArgumentError (lease), StreamSealedError.

        Cancelled: the transaction is aborted when its lease ends.
        """
        ctx = self._ctx
        view, txn, segments = await changing(lambda: self._begin(stream, lease_ms))
        # No two transactions have the same id, so nobody has these names.
        names = [transaction_segment_name(segment_name(stream, item.segment), txn) for item in segments]
        await create_fresh(ctx.segments, names)
        await self._check_still_open(view, txn, names)
        ctx.telemetry.add("transactions_begun")
        return Transaction(id=txn, segments=segments)

    async def _begin(self, name: StreamName, lease_ms: int) -> tuple[StreamView, UUID, tuple[SegmentRange, ...]]:
        ctx = self._ctx
        view = await self._open_stream(name, lease_ms)
        history = await ctx.histories.remaining(view)
        txn = make_transaction_id(history.active.epoch, await self._number())
        record = await self._record(view, history.active.epoch, lease_ms, key=None)
        await ctx.metadata.put(create(keys.transaction(name, txn), record), view.check())
        return view, txn, tuple(history.active.segments)

    async def join(self, stream: StreamName, key: UUID, *, lease_ms: int) -> Transaction:
        """See ``ControlPlane.transactions.join``."""
        return await changing(lambda: self._join(stream, key, lease_ms))

    async def _join(self, name: StreamName, key: UUID, lease_ms: int) -> Transaction:
        ctx = self._ctx
        view = await self._open_stream(name, lease_ms)
        history = await ctx.histories.remaining(view)
        found = (await ctx.metadata.get(keys.join(name, key), JoinRecord)).value
        if found is None:
            txn = make_transaction_id(history.active.epoch, await self._number())
            record = await self._record(view, history.active.epoch, lease_ms, key=key)
            # If another call created it first, this put fails, and the next attempt finds that transaction.
            await ctx.metadata.put(
                create(keys.join(name, key), JoinRecord(transaction=txn)),
                create(keys.transaction(name, txn), record),
                view.check(),
            )
            ctx.telemetry.add("transactions_begun")
        else:
            txn = found.transaction
            status = await self.ping(name, txn, lease_ms=lease_ms)
            if status is not PingStatus.OK:
                raise TransactionStateError("shared transaction has ended", txn=str(txn), state=status.value)
        epoch = next((item for item in history.epochs if item.epoch == transaction_epoch(txn)), None)
        if epoch is None:
            epoch = await load_epoch(ctx, name, transaction_epoch(txn))
        await self._prepare(name, txn, [item.segment for item in epoch.segments])
        await self._check_still_open(view, txn)
        return Transaction(id=txn, segments=tuple(epoch.segments))

    async def _prepare(self, name: StreamName, txn: UUID, segments: Sequence[SegmentId]) -> None:
        """Its segments exist when this returns, even if the controller that began it crashed. Raises
        TransactionStateError."""
        if txn in self._prepared:
            return
        # Under the lock that decisions use: a merged segment must not be created again.
        async with exclusive(self._ctx, name):
            state = (await load_transactions(self._ctx.metadata, name, [txn])).facts[0].state
            if state is not TransactionState.OPEN:
                raise TransactionStateError(
                    "shared transaction has ended", txn=str(txn), state=state.value if state else None
                )
            await create_segments(
                self._ctx.segments, [transaction_segment_name(segment_name(name, item), txn) for item in segments]
            )
        if len(self._prepared) >= _PREPARED_MAX:
            self._prepared.clear()
        self._prepared[txn] = None

    async def _open_stream(self, name: StreamName, lease_ms: int) -> StreamView:
        """Raises InvalidArgumentError (lease), StreamSealedError."""
        settings = self._ctx.settings
        check_not_own(name)
        if not settings.lease_min_ms <= lease_ms <= settings.lease_max_ms:
            raise InvalidArgumentError(
                "lease of a transaction is outside the limits",
                lease_ms=lease_ms,
                least_ms=settings.lease_min_ms,
                most_ms=settings.lease_max_ms,
            )
        view = await self._ctx.streams.get(name)
        check_not_sealed(view, writes=True)
        return view

    async def _record(self, view: StreamView, epoch: int, lease_ms: int, *, key: UUID | None) -> TransactionRecord:
        settings = self._ctx.settings
        return open_record(
            epoch,
            incarnation=view.record.incarnation,
            now_ms=await self._ctx.retention_clock.lasting_ms(),
            lease_ms=lease_ms,
            lifetime_leases=settings.lifetime_leases,
            lifetime_max_ms=settings.lifetime_max_ms,
            key=key,
        )

    async def _check_still_open(self, view: StreamView, txn: UUID, fresh: Sequence[str] = ()) -> None:
        """Check again: the stream may have been sealed, or deleted, while the ``fresh`` segments were created."""
        ctx, name = self._ctx, view.name
        now = await ctx.streams.find(name)
        same = now is not None and now.record.incarnation == view.record.incarnation
        if now is not None and same and now.record.state is StreamState.ACTIVE:
            return
        await abort_if_open(ctx, name, txn)
        await delete_segments(ctx.segments, fresh)
        settle_soon(ctx, name)
        raise StreamSealedError("stream was sealed while the transaction began", stream=str(name), txn=str(txn))

    async def ping(self, stream: StreamName, txn: UUID, *, lease_ms: int) -> PingStatus:
        """Renew the lease. Raises InvalidArgumentError for a lease that is not positive."""
        if lease_ms < 1:
            raise InvalidArgumentError("lease is not positive", lease_ms=lease_ms)
        await self._ctx.streams.get(stream)
        return await changing(lambda: self._ping(stream, txn, lease_ms))

    async def _ping(self, name: StreamName, txn: UUID, lease_ms: int) -> PingStatus:
        ctx = self._ctx
        loaded = await load_transactions(ctx.metadata, name, [txn])
        now_ms = await ctx.retention_clock.lasting_ms()
        verdict = decide_ping(loaded.facts[0], now_ms=now_ms, lease_ms=lease_ms, lease_max_ms=ctx.settings.lease_max_ms)
        found = loaded.records[txn]
        if verdict is PingVerdict.OK and found.value is not None:
            until = renewed_until(found.value, now_ms=now_ms, lease_ms=lease_ms)
            if until != found.value.expires_ms:
                await ctx.metadata.put(found.put(replace(found.value, expires_ms=until)))
        return PingStatus[verdict.name]

    async def commit(
        self, stream: StreamName, txn: UUID, blocks: Sequence[EventBlock] = (), noted: NotedTime | None = None
    ) -> TransactionStatus:
        """Append the blocks and decide to commit; the merge follows. COMMITTED: the merge is done; COMMITTING: it
        continues.

        Raises TransactionNotFoundError, TransactionStateError; with blocks also the errors that ``ControlPlane`` names.
        """
        if blocks:
            await self._fill(stream, txn, blocks)
        with self._ctx.transactions.outcomes.of(txn) as ended:
            if await self._end(stream, txn, Verb.COMMIT, noted) is TransactionState.COMMITTED:
                return TransactionStatus.COMMITTED
            # Waiting a little here costs less than a later status request.
            await asyncio.wait({ended}, timeout=COMMIT_S)
            known = ended.done() and ended.result() is TransactionState.COMMITTED
        return TransactionStatus.COMMITTED if known else TransactionStatus.COMMITTING

    async def _fill(self, name: StreamName, txn: UUID, blocks: Sequence[EventBlock]) -> None:
        """The blocks are durable when this returns, or the transaction was decided before."""
        try:
            await each(blocks, lambda block: self._append(name, txn, block))
        except SegmentNotFoundError as error:
            # Already merged or removed, by an earlier attempt or another caller; the decision reports it.
            if (await load_transactions(self._ctx.metadata, name, [txn])).facts[0].state is TransactionState.OPEN:
                raise InvalidArgumentError(
                    "block is for no segment of the transaction", stream=str(name), txn=str(txn), **error.fields
                ) from error

    async def _append(self, name: StreamName, txn: UUID, block: EventBlock) -> None:
        segments = self._ctx.segments
        segment = transaction_segment_name(segment_name(name, block.segment), txn)
        request = Append(
            segment=segment,
            writer=block.writer,
            data=block.data,
            event_number=block.event_count,
            event_count=block.event_count,
            previous=NO_EVENT,
        )
        try:
            await segments.append(request)
        except WriterFencedError as error:
            # An earlier attempt of this call appended it: it is stored once.
            last = await segments.setup_append(segment, block.writer)
            if last != block.event_count:
                raise InvalidArgumentError(
                    "writer of the block has appended something else",
                    segment=segment,
                    last=last,
                    events=block.event_count,
                ) from error

    async def commit_with_positions(
        self, transactions: Sequence[StreamTransaction], positions: PositionCommit
    ) -> TransactionStatus:
        """See ``ControlPlane.transactions.commit_with_positions``."""
        return await commit_with_positions(self._ctx, transactions, positions, wait_s=COMMIT_S)

    async def settle_positions(self, transactions: Sequence[StreamTransaction], positions: PositionCommit) -> bool:
        """See ``ControlPlane.transactions.settle_positions``."""
        return await settle_positions(self._ctx, transactions, positions)

    async def release_positions(self, positions: PositionCommit) -> None:
        """See ``ControlPlane.transactions.release_positions``."""
        await release_positions(self._ctx, positions)

    async def abort(self, stream: StreamName, txn: UUID) -> None:
        """Decide to abort; the removal follows. Audited if the caller states who asks or why. Raises as ``commit``."""
        caller = current_caller()
        # Writers abort their own transactions all the time, and state nothing.
        stated = caller is not None and (caller.who or caller.why or caller.via == "http")
        entry = AuditEntry(
            kind=AuditKind.ABORT,
            target=str(stream),
            fields={"transaction": str(txn), "epoch": transaction_epoch(txn)},
        )
        await self._end(stream, txn, Verb.ABORT, audited=[entry] if stated else [])
        if stated:
            self._ctx.audit.soon()

    async def _end(
        self,
        name: StreamName,
        txn: UUID,
        verb: Verb,
        noted: NotedTime | None = None,
        *,
        audited: Sequence[AuditEntry] = (),
    ) -> TransactionState | None:
        ctx = self._ctx
        view = await ctx.streams.get(name)
        if view.record.state is StreamState.SEALED and await abort_if_open(ctx, name, txn):
            # Begun during sealing by a controller that crashed then: there is no segment left to merge it into.
            settle_soon(ctx, name)
        decided = await ctx.tasks.run(decide(ctx, name, txn, verb, noted=noted, audited=audited))
        settle_soon(ctx, name)
        return decided

    async def status(self, stream: StreamName, txn: UUID) -> TransactionStatus:
        """``UNKNOWN`` for one that never existed, or ended more than a day ago."""
        await self._ctx.streams.get(stream)
        loaded = await load_transactions(self._ctx.metadata, stream, [txn])
        state = loaded.facts[0].state
        return TransactionStatus.UNKNOWN if state is None else _STATUS[state]

    async def list_open(self, stream: StreamName) -> Sequence[OpenTransaction]:
        """See ``ControlPlane.transactions.list_open``. Records that cannot be read are left out."""
        ctx = self._ctx
        view = await ctx.streams.get(stream)
        txns: list[UUID] = []
        async for entry in ctx.metadata.scan_all(keys.transactions(stream)):
            txn, record = ctx.set_aside.key(entry, keys.txn_of), ctx.set_aside.read(entry, TransactionRecord)
            if txn is None or record is None:
                continue
            if not is_stray(txn, record, incarnation=view.record.incarnation, active_epoch=view.record.epoch):
                txns.append(txn)
        return [
            OpenTransaction(
                id=item.txn,
                state=_STATUS[item.state],
                epoch=transaction_epoch(item.txn),
                expires_ms=item.record.expires_ms,
                deadline_ms=item.record.deadline_ms,
                begun_ms=item.record.begun_ms,
                writer=item.record.noted_by if item.record.pin is None else item.record.pin.writer,
                batch=None if item.record.pin is None else item.record.pin.batch,
                shared=item.record.key is not None,
            )
            for item in (await load_transactions(ctx.metadata, stream, txns)).facts
            if item.record is not None and item.state is not None and item.completed is None
        ]

    async def list_completed(self, stream: StreamName) -> Sequence[tuple[UUID, TransactionStatus]]:
        """Newest first, at most 500."""
        ctx = self._ctx
        await ctx.streams.get(stream)
        page = await ctx.metadata.scan(keys.completions(stream), limit=COMPLETED_MAX)
        txns = [txn for entry in page if (txn := ctx.set_aside.key(entry, keys.txn_of)) is not None]
        entries = await ctx.metadata.entries([keys.completed(stream, txn) for txn in txns]) if txns else []
        outcomes = [stored(entry, CompletedRecord).value for entry in entries]
        return [(txn, _STATUS[item.state]) for txn, item in zip(txns, outcomes, strict=True) if item is not None]
