"""Deciding transactions: the one durable step that fixes their outcome. Any process can then perform it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from penstock.codec.audit import AuditEntry
from penstock.codec.control.streams import (
    BatchRecord,
    CompletedRecord,
    DecisionRecord,
    TransactionRecord,
    TransactionState,
)
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.metadata import Metadata, Stored, changing, create, stored
from penstock.core.streams.transactions import TransactionFacts, Verb, has_expired, must_decide
from penstock.model.names import StreamName
from penstock.model.values.dataclass import dataclass
from penstock.ports.control.transactions import NotedTime
from penstock.ports.data.tables import TableCheck, TablePut

NO_BATCH = -1
"""Batch number of a writer that has committed none, but whose record was needed to decide something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTransactions:
    """The stored records of some transactions, in their order, with the versions that changes are conditional on.

    ``batches`` holds the record of every writer that pins one of them.
    """

    facts: Sequence[TransactionFacts]
    records: Mapping[UUID, Stored[TransactionRecord]]
    batches: Mapping[str, Stored[BatchRecord]]


async def load_transactions(metadata: Metadata, name: StreamName, txns: Sequence[UUID]) -> LoadedTransactions:
    """Read the records first, then the outcomes and the batches that pin them: an outcome is written before its record
    is removed, and a batch never drops its decided transactions."""
    entries = await metadata.entries([keys.transaction(name, txn) for txn in txns])
    records = {txn: stored(entry, TransactionRecord) for txn, entry in zip(txns, entries, strict=True)}
    # An undecided one has no outcome. This is the common case, and a lookup of a missing key costs most.
    ended = [txn for txn, item in records.items() if not _is_undecided(item.value)]
    known = await metadata.entries([keys.completed(name, txn) for txn in ended]) if ended else []
    outcomes = {txn: stored(entry, CompletedRecord).value for txn, entry in zip(ended, known, strict=True)}
    pins = {txn: item.value.pin for txn, item in records.items() if item.value is not None and item.value.pin}
    writers = sorted({pin.writer for pin in pins.values()})
    found = await metadata.entries([keys.batch(name, writer) for writer in writers]) if writers else []
    batches = {writer: stored(entry, BatchRecord) for writer, entry in zip(writers, found, strict=True)}
    facts = [
        TransactionFacts(
            txn=txn,
            record=records[txn].value,
            completed=outcomes.get(txn),
            batch=batches[pins[txn].writer].value if txn in pins else None,
        )
        for txn in txns
    ]
    return LoadedTransactions(facts=facts, records=records, batches=batches)


def _is_undecided(record: TransactionRecord | None) -> bool:
    # The record of a pinned one does not show whether its batch is decided.
    return record is not None and record.state is TransactionState.OPEN and record.pin is None


async def put_queued(
    ctx: Context, decisions: Mapping[StreamName, DecisionRecord], *puts: TablePut | TableCheck
) -> None:
    """Decide: the ``puts`` and an entry at the end of the commit queue of each stream, in one step. Raises as
    ``Metadata.put``."""
    queues = ctx.transactions.queues
    while unknown := [name for name in decisions if queues.of(name).last is None]:
        for name in unknown:
            await _find_end(ctx, name)
    places: dict[StreamName, int] = {}
    for name in decisions:
        queue = queues.of(name)
        queue.last = places[name] = (NO_BATCH if queue.last is None else queue.last) + 1
    entries = [create(keys.queue_entry(name, places[name]), decision) for name, decision in decisions.items()]
    try:
        # Fails if a place is taken: another caller decides at the same time.
        await ctx.metadata.put(*entries, *puts)
    except BaseException:
        for name in decisions:
            queues.forget(name)
        raise
    for name, place in places.items():
        queues.added(name, place)


async def _find_end(ctx: Context, name: StreamName) -> None:
    known = NO_BATCH
    async for entry in ctx.metadata.scan_all(keys.queue(name)):
        known = keys.queue_place(entry.key)
    queue = ctx.transactions.queues.of(name)
    queue.last = known if queue.last is None else max(known, queue.last)


async def decide(
    ctx: Context,
    name: StreamName,
    txn: UUID,
    verb: Verb,
    *,
    noted: NotedTime | None = None,
    audited: Sequence[AuditEntry] = (),
) -> TransactionState | None:
    """Decide to commit or to abort. If that was decided before, return the current state.

    ``audited`` is recorded with the decision.
    Raises: TransactionNotFoundError, TransactionStateError (the opposite was decided).
    """

    async def attempt() -> TransactionState | None:
        loaded = await load_transactions(ctx.metadata, name, [txn])
        if not must_decide(loaded.facts[0], verb):
            return loaded.facts[0].state
        await _decide_open(ctx, name, loaded, txn, verb, noted, ctx.audit.puts(audited))
        return None

    return await changing(attempt)


async def _decide_open(
    ctx: Context,
    name: StreamName,
    loaded: LoadedTransactions,
    txn: UUID,
    verb: Verb,
    noted: NotedTime | None = None,
    also: Sequence[TablePut] = (),
) -> None:
    found = loaded.records[txn]
    record = found.value
    if record is None:
        return
    commit = verb is Verb.COMMIT
    state = TransactionState.COMMITTING if commit else TransactionState.ABORTING
    decided = replace(record, state=state)
    if noted is not None:
        decided = replace(decided, noted_by=noted.writer, noted_ms=noted.time_ms)
    puts = [found.put(decided), *also]
    if not commit and record.pin is not None:
        # A batch that is being decided depends on this transaction: changing its record makes it check again.
        batch = loaded.batches[record.pin.writer]
        puts.append(batch.put(batch.value or BatchRecord(batch=NO_BATCH, transactions=())))
    await put_queued(ctx, {name: DecisionRecord(commit=commit, transactions=(txn,))}, *puts)


async def abort_if_open(ctx: Context, name: StreamName, txn: UUID, *, expired_at_ms: int | None = None) -> bool:
    """Decide to abort an open transaction; with ``expired_at_ms`` only if its lease has ended by then.

    Returns whether it did. Unknown and decided transactions do not change.
    """

    async def attempt() -> bool:
        loaded = await load_transactions(ctx.metadata, name, [txn])
        facts = loaded.facts[0]
        if facts.state is not TransactionState.OPEN:
            return False
        if expired_at_ms is not None and not has_expired(facts, now_ms=expired_at_ms):
            return False
        await _decide_open(ctx, name, loaded, txn, Verb.ABORT)
        return True

    return await changing(attempt)
