"""Batches: many transactions that become readable together, exactly once, under a writer's batch number.

First every transaction is pinned to the batch. Then one compare-and-set on the writer's record names the batch and its
transactions, in the same step as the entry of the commit queue: from there on they are committed, whatever crashes. A
pinned transaction can still be aborted until then, but only by a step that touches the writer's record too, so that the
decision meets it. Source: docs/design/0006-controller.md, "Batches".
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from penstock.codec.metadata import BatchRecord, DecisionRecord, StreamState, TransactionRecord
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.decisions import NO_BATCH, LoadedTransactions, abort_if_open, load_transactions, put_queued
from penstock.controller.metadata import Stored, changing
from penstock.controller.workflows import exclusive, settle_soon, settled
from penstock.core.transactions import BatchVerdict, decide_batch, pinned
from penstock.model.errors import InvalidArgumentError
from penstock.model.names import StreamName

TRANSACTIONS_MAX = 10_000
WRITER_MAX_BYTES = 1024


class Batches:
    """Batches of all writers."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    async def last(self, name: StreamName, *, writer: str) -> int | None:
        """The last batch that the writer committed, or None."""
        await self._ctx.stream(name)
        found = await self._ctx.metadata.get(keys.batch(name, _checked_writer(writer)), BatchRecord)
        return None if found.value is None or found.value.batch == NO_BATCH else found.value.batch

    async def commit(self, name: StreamName, *, writer: str, batch: int, transactions: Sequence[UUID]) -> bool:
        """True once the transactions are readable; False where the writer has committed the batch otherwise.

        Raises: TransactionNotFoundError (nothing is committed), InvalidArgumentError.
        """
        _checked_writer(writer)
        if batch < 0:
            raise InvalidArgumentError("batch number is negative", batch=batch)
        if len(transactions) > TRANSACTIONS_MAX:
            raise InvalidArgumentError(
                "batch has too many transactions", transactions=len(transactions), most=TRANSACTIONS_MAX
            )
        if len(set(transactions)) != len(transactions):
            raise InvalidArgumentError("batch names a transaction twice", writer=writer, batch=batch)
        await self._ctx.stream(name)
        return await self._ctx.tasks.run(self._commit(name, writer, batch, tuple(transactions)))

    async def _commit(self, name: StreamName, writer: str, batch: int, txns: tuple[UUID, ...]) -> bool:
        # What was decided earlier is finished first: the writer's record can name the transactions of one batch only.
        async with exclusive(self._ctx, name):
            view = await settled(self._ctx, name)
            if view.record.state is StreamState.SEALED:
                for txn in txns:
                    await abort_if_open(self._ctx, name, txn)
            verdict = await changing(lambda: self._decide(name, writer, batch, txns))
            await settled(self._ctx, name)
        if verdict is not BatchVerdict.SUPERSEDED:
            return True
        for txn in txns:
            await abort_if_open(self._ctx, name, txn)
        settle_soon(self._ctx, name)
        return False

    async def _decide(self, name: StreamName, writer: str, batch: int, txns: tuple[UUID, ...]) -> BatchVerdict:
        ctx = self._ctx
        # The writer's record is read before the transactions: whoever aborts one of them changes it.
        known = await ctx.metadata.get(keys.batch(name, writer), BatchRecord)
        loaded = await load_transactions(ctx, name, txns)
        verdict = decide_batch(known.value, batch, loaded.facts)
        if verdict is not BatchVerdict.COMMIT:
            return verdict
        if await self._pin(loaded, writer, batch):
            # Pinned now. Only a look that finds them all pinned may decide.
            return await self._decide(name, writer, batch, txns)
        await put_queued(
            ctx,
            name,
            DecisionRecord(commit=True, transactions=txns),
            known.put(BatchRecord(batch=batch, transactions=txns)),
        )
        ctx.telemetry.add("batches_committed")
        return verdict

    async def _pin(self, loaded: LoadedTransactions, writer: str, batch: int) -> bool:
        """Pin those that are not pinned to this batch; returns whether there were any."""
        puts = [
            found.put(wanted)
            for found in loaded.records.values()
            for wanted in (_wanted(found, writer, batch),)
            if wanted is not None
        ]
        await self._ctx.metadata.put_many(puts)
        return bool(puts)


def _wanted(found: Stored[TransactionRecord], writer: str, batch: int) -> TransactionRecord | None:
    if found.value is None:
        return None
    wanted = pinned(found.value, writer, batch)
    return None if wanted == found.value else wanted


def _checked_writer(writer: str) -> str:
    """Raises InvalidArgumentError."""
    if not 0 < len(writer.encode()) <= WRITER_MAX_BYTES:
        raise InvalidArgumentError(f"name of a writer has 1 to {WRITER_MAX_BYTES} bytes", writer=writer[:80])
    return writer
