"""Batches: many transactions that become readable together, exactly once, under a writer's batch number.

First every transaction is pinned to the batch. Then one compare-and-set on the writer's record names the batch and its
transactions, in the same step as the entry of the commit queue: from then on they are committed, despite crashes. Until
then a pinned transaction can still be aborted, but only by a step that also changes the writer's record, so that the
decision fails. Source: docs/design/0035-transactions.md, "Batches".
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from penstock.codec.control.streams import BatchRecord, DecisionRecord, StreamState, TransactionRecord
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.metadata import Stored, changing
from penstock.controller.streams.workflows import exclusive, settle_soon, settled
from penstock.controller.transactions.decisions import (
    NO_BATCH,
    LoadedTransactions,
    abort_if_open,
    load_transactions,
    put_queued,
)
from penstock.controller.transactions.writer_names import check_remembered, dated, forget_names
from penstock.core.segments.append_rules import is_text
from penstock.core.streams.batch_memory import JOBS_KEPT, NAMES_KEPT, is_forgettable, jobs_to_forget, names_to_forget
from penstock.core.streams.query_source import BatchPlace, check_job, classify_batch, owned_by
from penstock.core.streams.transactions import BatchVerdict, decide_batch, pinned
from penstock.model.errors import InvalidArgumentError, PenstockError
from penstock.model.names import StreamName
from penstock.model.policies import LONG_MAX
from penstock.model.queries import UNKNOWN_QUERY, QuerySource
from penstock.ports.data.tables import TableRemoval

log = logging.getLogger(__name__)

TRANSACTIONS_MAX = 10_000  # transactions of one batch; their record stays below the table's 1 MiB
FORGET_EVERY = 100
"""Number of new names of a stream between two checks of how many names it remembers."""

_STREAMS_MAX = 100_000  # streams whose new names are counted
WRITER_MAX_BYTES = 1024
_NONE = BatchRecord(batch=NO_BATCH, transactions=())


class Batches:
    """Batches of all writers."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._new_names: dict[StreamName, int] = {}

    async def last(self, stream: StreamName, *, writer: str, source: QuerySource | None = None) -> int | None:
        """The last batch that the writer committed, or None. Also None for a source that takes the name over.

        Raises: WriterInUseError (the name belongs to another query, or another run of it; without a source: to any query),
        WriterForgottenError.
        """
        await self._ctx.streams.get(stream)
        known = (await self._ctx.metadata.get(keys.batch(stream, _checked_writer(writer)), BatchRecord)).value
        if known is None:
            await check_remembered(self._ctx, stream, writer)
            return None
        if source is None:
            # A caller that skips a batch because of this answer does not offer it, so it is refused here.
            check_job(known, None, writer=writer)
            return None if known.batch == NO_BATCH else known.batch
        if known.query:
            # Ask as for the next batch, because only that batch's number decides whether it is a repeat.
            taken_over = classify_batch(known, known.batch + 1, source, writer=writer) is BatchPlace.TAKEN_OVER
        else:
            taken_over = source.replaces == UNKNOWN_QUERY
        return None if taken_over or known.batch == NO_BATCH else known.batch

    async def commit(
        self,
        stream: StreamName,
        *,
        writer: str,
        batch: int,
        transactions: Sequence[UUID],
        source: QuerySource | None = None,
        one_job: bool = False,
    ) -> bool:
        """True once the transactions are readable; False if the writer has already committed the batch with others.

        A source without transactions only records that it writes under the name, not the batch's number. ``one_job``: the
        caller generated the name for this one batch, so it may be forgotten after ``JOBS_KEPT`` other jobs.
        Raises: TransactionNotFoundError (nothing is committed), InvalidArgumentError; WriterInUseError and ConflictError (the
        name belongs to another source, or the checkpoint is an older copy; nothing is committed), WriterForgottenError.
        """
        _checked_writer(writer)
        if not 0 <= batch <= LONG_MAX:
            raise InvalidArgumentError("batch number is not legal", batch=batch, rule=f"0 to {LONG_MAX}")
        if len(transactions) > TRANSACTIONS_MAX:
            raise InvalidArgumentError(
                "batch has too many transactions", transactions=len(transactions), most=TRANSACTIONS_MAX
            )
        if len(set(transactions)) != len(transactions):
            raise InvalidArgumentError("batch names a transaction twice", writer=writer, batch=batch)
        await self._ctx.streams.get(stream)
        if source is not None and not transactions:
            return await self._ctx.tasks.run(self._claim(stream, writer, batch, source))
        return await self._ctx.tasks.run(
            self._commit(stream, writer, batch, tuple(transactions), source, one_job=one_job)
        )

    async def _claim(self, name: StreamName, writer: str, batch: int, source: QuerySource) -> bool:
        """Record the owner, as the commit of a batch does. False if the writer has already committed the batch."""

        async def attempt() -> bool:
            known = await self._ctx.metadata.get(keys.batch(name, writer), BatchRecord)
            place = classify_batch(known.value, batch, source, writer=writer)
            if known.value is None:
                await check_remembered(self._ctx, name, writer)
                return True  # Nothing was written under the name, so nobody owns it yet.
            if place is BatchPlace.TAKEN_OVER:
                return await self._take_over(name, known, source)
            await self._put_owner(known, known.value, source)
            return place is not BatchPlace.REPEAT

        return await changing(attempt)

    async def _take_over(self, name: StreamName, known: Stored[BatchRecord], source: QuerySource) -> bool:
        """Give the name to the source, with no batch committed.

        Until a decided batch is performed, only this record says that its transactions are committed. So the queue is emptied
        first. A batch that is decided later changes the record, and this attempt fails.
        """
        async with exclusive(self._ctx, name):
            await settled(self._ctx, name)
            await self._put_owner(known, replace(known.value or _NONE, batch=NO_BATCH, transactions=()), source)
        return True

    async def _put_owner(self, known: Stored[BatchRecord], record: BatchRecord, source: QuerySource | None) -> None:
        owned = dated(self._ctx, owned_by(record, source), known.value)
        if owned != known.value:
            await self._ctx.metadata.put(known.put(owned))

    async def _commit(
        self,
        name: StreamName,
        writer: str,
        batch: int,
        txns: tuple[UUID, ...],
        source: QuerySource | None,
        *,
        one_job: bool,
    ) -> bool:
        # Earlier decisions are finished first: the writer's record can name the transactions of only one batch.
        async with exclusive(self._ctx, name):
            view = await settled(self._ctx, name)
            if view.record.state is StreamState.SEALED:
                for txn in txns:
                    await abort_if_open(self._ctx, name, txn)
            verdict, is_new = await changing(lambda: self._decide(name, writer, batch, txns, source, one_job=one_job))
            await settled(self._ctx, name)
            if is_new:
                await self._forget(name)
        if verdict is not BatchVerdict.SUPERSEDED:
            return True
        for txn in txns:
            await abort_if_open(self._ctx, name, txn)
        settle_soon(self._ctx, name)
        return False

    async def _forget(self, name: StreamName) -> None:
        """Delete records of jobs beyond the number that is kept, and of names that are silent for long. The stream's lock is
        held and its queue is empty, so no transaction needs the record to know that it was decided."""
        seen = self._new_names.get(name)
        if seen is not None and seen < FORGET_EVERY:
            self._new_names[name] = seen + 1
            return
        if len(self._new_names) >= _STREAMS_MAX:
            self._new_names.clear()
        self._new_names[name] = 1
        metadata, prefix = self._ctx.metadata, keys.batches(name)
        try:
            found = [(self._ctx.set_aside.text(entry, prefix), entry) async for entry in metadata.scan_all(prefix)]
            entries = {writer: entry for writer, entry in found if writer is not None}
            read = [
                (writer, entry.version, record)
                for writer, entry in entries.items()
                if (record := self._ctx.set_aside.read(entry, BatchRecord)) is not None
            ]
            jobs = [(writer, version) for writer, version, record in read if record.one_job]
            gone = jobs_to_forget(jobs, kept=JOBS_KEPT)
            await metadata.remove_if_unchanged(
                [TableRemoval(key=entries[writer].key, version=entries[writer].version) for writer in gone]
            )
            names = names_to_forget(read, now_ms=self._ctx.retention_clock.now_ms(), kept=NAMES_KEPT)
            await forget_names(self._ctx, name, names, entries)
        except PenstockError as error:
            # The batch is committed. A later call deletes the records.
            log.info("old writers are forgotten later", extra={"stream": str(name), "error": str(error)})

    async def _decide(
        self,
        name: StreamName,
        writer: str,
        batch: int,
        txns: tuple[UUID, ...],
        source: QuerySource | None,
        *,
        one_job: bool,
    ) -> tuple[BatchVerdict, bool]:
        """Returns also whether the writer's name is new."""
        ctx = self._ctx
        # The writer's record is read before the transactions, because an abort of one of them changes it.
        known = await ctx.metadata.get(keys.batch(name, writer), BatchRecord)
        is_new = known.value is None
        if is_new:
            await check_remembered(ctx, name, writer)
        loaded = await load_transactions(ctx.metadata, name, txns)
        verdict = decide_batch(known.value, batch, loaded.facts, source, writer=writer)
        if verdict is BatchVerdict.SUPERSEDED and known.value is not None:
            # A restarted run repeats the last batch: from here on earlier runs are refused.
            await self._put_owner(known, known.value, source)
        if verdict is not BatchVerdict.COMMIT:
            return verdict, is_new
        if await self._pin(loaded, writer, batch):
            # Pinned now. Only an attempt that finds them all pinned may decide.
            return await self._decide(name, writer, batch, txns, source, one_job=one_job)
        decided = replace(
            known.value or _NONE,
            batch=batch,
            transactions=txns,
            one_job=is_forgettable(known.value, one_job=one_job),
        )
        await put_queued(
            ctx,
            {name: DecisionRecord(commit=True, transactions=txns)},
            known.put(dated(ctx, owned_by(decided, source), known.value)),
        )
        ctx.telemetry.add("batches_committed")
        return verdict, is_new

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
    if not is_text(writer) or not 0 < len(writer.encode()) <= WRITER_MAX_BYTES:
        raise InvalidArgumentError(
            f"name of a writer must have 1 to {WRITER_MAX_BYTES} bytes of UTF-8", writer=ascii(writer[:80])
        )
    return writer
