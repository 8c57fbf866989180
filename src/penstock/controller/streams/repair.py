"""Repair of one stream whose transactions cannot be finished: removes records that are unreadable or not of the stream.

A stream is settled before anything else is done to it, so one decision that cannot be performed stops its scaling,
truncation, sealing, deletion and retention. Source: docs/how-to/operations.md, "A stream that is stuck".
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from penstock.codec.control.streams import (
    BatchRecord,
    DecisionRecord,
    ForgottenRecord,
    MarkerRecord,
    TransactionRecord,
    TransactionState,
)
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.metadata import overwrite
from penstock.controller.set_aside import UNREADABLE
from penstock.controller.stream_view import StreamView
from penstock.controller.streams.workflows import exclusive, settle
from penstock.controller.transactions.commits import remove_transaction_segments
from penstock.controller.transactions.decisions import load_transactions, put_queued
from penstock.core.streams.transactions import is_stray, transaction_epoch
from penstock.model.errors import PenstockError, StreamNotFoundError
from penstock.model.names import StreamName
from penstock.ports.data.tables import TableEntry, TablePut, TableRemoval

log = logging.getLogger(__name__)

_DECIDED = {TransactionState.COMMITTING: True, TransactionState.ABORTING: False}


async def repair_stream(ctx: Context, name: StreamName) -> Mapping[str, Any]:
    """Repair the records that block the stream, then finish the workflows that have begun on it.

    A decision outlives the record of its transaction: the record is made again from the queue entry, or from the batch that
    names it, and performed. A decided transaction takes the place of its queue entry if that cannot be read.
    Removes what can never be committed, with its segments: unreadable transactions that no readable record decided, and
    transactions that were not begun in this stream.

    Returns ``removed`` and ``requeued``, each a list of objects with ``key`` or ``txn`` and ``why``, and ``unreadable``:
    records that stay although they cannot be read, objects with ``key`` and ``why``. Does not change a sound stream.
    Raises: StreamNotFoundError; CorruptDataError, VersionTooNewError if the stream's own record cannot be read.
    """
    return await ctx.tasks.run(_repair(ctx, name))


async def _repair(ctx: Context, name: StreamName) -> Mapping[str, Any]:
    async with exclusive(ctx, name):
        view = await ctx.streams.find(name)
        if view is None:
            raise StreamNotFoundError("no such stream", stream=str(name))
        queued, lost = await _read_queue(ctx, name)
        removed = [_removed(entry, f"a decision that cannot be read: {error.message}") for entry, error in lost]
        batched = await _read_batches(ctx, name)
        decided = queued | {txn: TransactionState.COMMITTING for txn in batched or () if txn not in queued}
        removed += await _check_transactions(ctx, view, decided, is_complete=not lost and batched is not None)
        requeued = await _queue_again(ctx, name, queued, [entry for entry, _ in lost])
        ctx.transactions.queues.forget(name)
        await settle(ctx, name)
        unreadable = await _unreadable_names(ctx, name)
    for item in removed:
        log.warning("a repair removed a record", extra={"stream": str(name), **item})
    return {"stream": str(name), "removed": removed, "requeued": requeued, "unreadable": unreadable}


async def _unreadable_names(ctx: Context, name: StreamName) -> list[dict[str, str]]:
    """Records of forgotten names that cannot be read. They stay: only they refuse the names that they may hold."""
    why = "forgotten names that cannot be read: new names of writers that they may hold are refused"
    return [
        _removed(entry, why)
        for entry in [entry async for entry in ctx.metadata.scan_all(keys.forgotten(name))]
        if ctx.set_aside.read(entry, ForgottenRecord) is None
    ]


def _removed(entry: TableEntry, why: str) -> dict[str, str]:
    return {"key": entry.key.decode("utf-8", "backslashreplace"), "why": why}


async def _read_queue(
    ctx: Context, name: StreamName
) -> tuple[dict[UUID, TransactionState], list[tuple[TableEntry, PenstockError]]]:
    """The decisions of the readable entries, and the entries that cannot be read, in the order of the queue."""
    queued: dict[UUID, TransactionState] = {}
    lost: list[tuple[TableEntry, PenstockError]] = []
    for entry in [entry async for entry in ctx.metadata.scan_all(keys.queue(name))]:
        try:
            decision = DecisionRecord.decode(entry.value)
        except UNREADABLE as error:
            lost.append((entry, error))
            continue
        state = TransactionState.COMMITTING if decision.commit else TransactionState.ABORTING
        for txn in decision.transactions:
            queued.setdefault(txn, state)
    return queued, lost


async def _read_batches(ctx: Context, name: StreamName) -> set[UUID] | None:
    """The transactions that the last batches of writers committed. A queue entry can be missing; these records prove the
    decision as well. None: one cannot be read, and may name any transaction. For lookups only."""
    found: set[UUID] = set()
    async for entry in ctx.metadata.scan_all(keys.batches(name)):
        record = ctx.set_aside.read(entry, BatchRecord)
        if record is None:
            return None
        found.update(record.transactions)
    return found


async def _check_transactions(
    ctx: Context, view: StreamView, decided: Mapping[UUID, TransactionState], *, is_complete: bool
) -> list[dict[str, str]]:
    """``is_complete``: every entry of the queue and every record of a batch could be read."""
    removed: list[dict[str, str]] = []
    epochs = {int(entry.key.rsplit(b"/", 1)[1]) async for entry in ctx.metadata.scan_all(keys.epochs(view.name))}
    record = view.record
    for entry in [entry async for entry in ctx.metadata.scan_all(keys.transactions(view.name))]:
        txn = ctx.set_aside.key(entry, keys.txn_of)
        why = ""
        found: TransactionRecord | None = None
        try:
            found = TransactionRecord.decode(entry.value)
        except UNREADABLE as error:
            why = f"a transaction that cannot be read: {error.message}"
        is_of_epoch = txn is not None and transaction_epoch(txn) in epochs
        if not is_of_epoch:
            why = "a transaction of an epoch that the stream does not have"
        elif txn is not None and found is None and txn in decided:
            # The entry and the id hold all that is needed to perform a decision.
            await ctx.metadata.put(overwrite(entry.key, _record_again(view, txn, decided[txn])))
            why = f"{why}; its record was made again from the decision ({decided[txn].value})"
            removed.append(_removed(entry, why))
            continue
        elif (
            txn is not None
            and found is not None
            and is_stray(txn, found, incarnation=record.incarnation, active_epoch=record.epoch)
        ):
            why = "a transaction of an earlier stream of this name"
        if why:
            keep: list[TablePut] = []
            if is_of_epoch and txn is not None and (found is not None or is_complete):
                await remove_transaction_segments(ctx, view.name, [txn])
            elif txn is not None and transaction_epoch(txn) <= record.epoch:
                # A lost entry or batch may have committed it, or its epoch is lost: its segments stay. This key lets the
                # deletion of the stream and the receipts of erasures find them.
                keep.append(overwrite(keys.kept_transaction(view.name, txn), MarkerRecord()))
                why = f"{why}; its segments stay until the stream is deleted"
            await ctx.metadata.change(keep, [TableRemoval(key=entry.key)])
            removed.append(_removed(entry, why))
    return removed


def _record_again(view: StreamView, txn: UUID, state: TransactionState) -> TransactionRecord:
    return TransactionRecord(
        state=state,
        epoch=transaction_epoch(txn),
        expires_ms=0,
        deadline_ms=0,
        incarnation=view.record.incarnation,
    )


async def _queue_again(
    ctx: Context, name: StreamName, queued: Mapping[UUID, TransactionState], lost: Sequence[TableEntry]
) -> list[dict[str, str]]:
    """Give an entry to each decided transaction whose entry was lost, at the place of the first lost one."""
    waiting: dict[TransactionState, list[UUID]] = {state: [] for state in _DECIDED}
    for txn in [keys.txn_of(entry.key) async for entry in ctx.metadata.scan_all(keys.transactions(name))]:
        state = (await load_transactions(ctx.metadata, name, [txn])).facts[0].state
        if txn not in queued and state in _DECIDED:
            waiting[state].append(txn)
    first, rest = (lost[0], lost[1:]) if lost else (None, ())
    requeued: list[dict[str, str]] = []
    for state, txns in waiting.items():
        if not txns:
            continue
        decision = DecisionRecord(commit=_DECIDED[state], transactions=tuple(txns))
        if first is not None:
            await ctx.metadata.put(overwrite(first.key, decision))
            first = None
        else:
            await put_queued(ctx, {name: decision})
        unknown = "; the order of these decisions among each other is unknown" if len(txns) > 1 else ""
        why = f"it was {state.value} without a readable entry in the commit queue{unknown}"
        requeued += [{"txn": str(txn), "why": why} for txn in txns]
    await ctx.metadata.remove_keys([entry.key for entry in (*((first,) if first is not None else ()), *rest)])
    return requeued
