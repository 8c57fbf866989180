"""Performs decisions about transactions: merges in commit order, rolling commits, removals.

The commit queue has one entry for each decision, in order. An entry is removed only after all its transactions are
recorded as completed. So after a crash, any process can finish it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from penstock.codec.control.streams import (
    CompletedRecord,
    DecisionRecord,
    EpochEntry,
    MarkerRecord,
    StreamRecord,
    TransactionState,
    Work,
    WorkKind,
)
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.metadata import CHUNK, overwrite, stored
from penstock.controller.segments import create_segments, delete_segments
from penstock.controller.stream_view import StreamView
from penstock.controller.streams.epochs import end_work, epoch_put, lengths_put, load_epoch, put_stream, seal_segments
from penstock.controller.streams.tails import tail_positions
from penstock.controller.tasks import each
from penstock.controller.transactions.decisions import load_transactions
from penstock.controller.watermarks.notes import note_commit
from penstock.core.streams.history import EpochRecord
from penstock.core.streams.scaling import rolling_epochs
from penstock.core.streams.transactions import TransactionFacts, commit_runs, is_stray, merge_targets, transaction_epoch
from penstock.model.errors import InternalError, SegmentNotFoundError
from penstock.model.names import StreamName, segment_name, transaction_segment_name
from penstock.model.segments import SegmentId, number_of
from penstock.ports.control.transactions import NotedTime
from penstock.ports.data.tables import KEY_ABSENT, TABLE_BATCH_MAX, TablePut, TableRemoval

log = logging.getLogger(__name__)

ENTRIES = 64
"""Queue entries performed together: enough to share the syncs of their completion."""

ROLL_MAX = 1000
"""Transactions of one rolling commit; their ids are in the stream's record."""

PRUNE_PER_PASS = 400  # outcomes removed with one commit, so that no commit waits long


async def drain(ctx: Context, view: StreamView) -> StreamView:
    """Perform all decisions of the stream's queue, in order. The stream's lock is held; no other work is under way."""
    while entries := await _next(ctx, view.name):
        view = await _perform(ctx, view, entries)
    return view


async def _next(ctx: Context, name: StreamName) -> Sequence[tuple[bytes, DecisionRecord]]:
    """The oldest entries of the queue. If this process knows their places, no search is needed."""
    while (places := ctx.transactions.queues.waiting(name, limit=ENTRIES)) is not None:
        if not places:
            return []
        page = await ctx.metadata.entries([keys.queue_entry(name, place) for place in places])
        ctx.transactions.queues.gone(
            name, [place for place, entry in zip(places, page, strict=True) if entry.version == KEY_ABSENT]
        )
        present = [(entry.key, DecisionRecord.decode(entry.value)) for entry in page if entry.version != KEY_ABSENT]
        if present:
            return present
    found = await ctx.metadata.scan(keys.queue(name), limit=ENTRIES)
    ctx.transactions.queues.found(
        name, [keys.queue_place(entry.key) for entry in found], all_there_are=len(found) < ENTRIES
    )
    return [(entry.key, DecisionRecord.decode(entry.value)) for entry in found]


async def _perform(ctx: Context, view: StreamView, entries: Sequence[tuple[bytes, DecisionRecord]]) -> StreamView:
    decided: dict[UUID, bool] = {}
    for _, entry in entries:
        for txn in entry.transactions:
            # The first decision counts: no later entry undoes it.
            decided.setdefault(txn, entry.commit)
    facts = (await load_transactions(ctx.metadata, view.name, list(decided))).facts
    strays = await _strays(ctx, view, facts)
    # A transaction of an earlier stream of the name was deleted with that stream, regardless of the decision.
    outcomes: dict[UUID, TransactionState] = dict.fromkeys(strays, TransactionState.ABORTED)
    # One that is completed and only left its entry is skipped: its segments are deleted.
    living = [
        item.txn for item in facts if item.completed is None and item.record is not None and item.txn not in outcomes
    ]
    aborted = [txn for txn in living if not decided[txn]]
    if aborted:
        await remove_transaction_segments(ctx, view.name, aborted)
        outcomes.update(dict.fromkeys(aborted, TransactionState.ABORTED))
    committed = [txn for txn in living if decided[txn]]
    for epoch, txns in commit_runs(((txn, transaction_epoch(txn)) for txn in committed), longest=ROLL_MAX):
        targets = await _targets(ctx, view, epoch)
        if targets is None:
            view = await finish_roll(ctx, await _begin_roll(ctx, view, epoch, txns))
        else:
            await _merge(ctx, view.name, targets, txns)
            outcomes.update(dict.fromkeys(txns, TransactionState.COMMITTED))
    await _note_times(ctx, view, [item for item in facts if decided[item.txn] and item.txn not in strays])
    shared = [item.record.key for item in facts if item.record is not None and item.record.key is not None]
    gone = [*(key for key, _ in entries), *(keys.join(view.name, key) for key in shared)]
    await _complete(ctx, view.name, outcomes, list(decided), gone, [key for key, _ in entries])
    await _prune_sometimes(ctx, view.name, len(decided))
    return view


async def _note_times(ctx: Context, view: StreamView, committed: Sequence[TransactionFacts]) -> None:
    """Note the times of committed transactions, in their order, at the tail behind them. Repeatable."""
    records = [item.record for item in committed if item.record is not None and item.record.noted_by]
    if not records:
        return
    tail = await tail_positions(ctx, view, await ctx.histories.remaining(view))
    for record in records:
        note = NotedTime(writer=record.noted_by, time_ms=record.noted_ms)
        await note_commit(ctx, view.name, note, tail, view.record.incarnation)


async def _strays(ctx: Context, view: StreamView, facts: Sequence[TransactionFacts]) -> list[UUID]:
    def found(record: StreamRecord) -> list[UUID]:
        known = {"incarnation": record.incarnation, "active_epoch": record.epoch}
        return [item.txn for item in facts if item.record is not None and is_stray(item.txn, item.record, **known)]

    strays = found(view.record)
    if not strays:
        return []
    # Another controller may have scaled the stream since the view was read.
    now = await ctx.streams.find(view.name)
    strays = found(view.record if now is None else now.record)
    for txn in strays:
        log.warning("transaction of a deleted stream is skipped", extra={"stream": str(view.name), "txn": str(txn)})
    return strays


async def _targets(ctx: Context, view: StreamView, epoch: int) -> Mapping[SegmentId, SegmentId] | None:
    """Where the segments of transactions of the epoch are merged; None: only a rolling commit can."""
    history = await ctx.histories.remaining(view)
    begun_in = next((record for record in history.epochs if record.epoch == epoch), None)
    if begun_in is None:
        raise InternalError("epoch of a transaction is missing", stream=str(view.name), epoch=epoch)
    return merge_targets(begun_in, history.active)


async def _merge(ctx: Context, name: StreamName, targets: Mapping[SegmentId, SegmentId], txns: Sequence[UUID]) -> None:
    """Merge each transaction into each target, in the given order in each of them."""
    run = ctx.segments.merge_run

    async def merge_into(source: SegmentId) -> None:
        target = segment_name(name, targets[source])
        left = [transaction_segment_name(segment_name(name, source), txn) for txn in txns]
        while left:
            # Merges of existing segments share a sync; the one at which that run ends is merged separately.
            done = 0 if run is None or len(left) == 1 else await run(target, left)
            left = left[done:]
            if left:
                await _merge_one(ctx, target, left.pop(0))

    await each(list(targets), merge_into)


async def _merge_one(ctx: Context, target: str, source: str) -> None:
    try:
        await ctx.segments.merge(target, source)
    except SegmentNotFoundError:
        # A commit can fail between two of its segments, and the stream can scale before the retry. Segments merged
        # before the scale no longer exist and stay merged. The target itself must exist.
        await ctx.segments.info(target)


async def _begin_roll(ctx: Context, view: StreamView, epoch: int, txns: Sequence[UUID]) -> StreamView:
    history = await ctx.histories.remaining(view)
    first, second = rolling_epochs(history, epoch, created_ms=ctx.clock.now_ms())
    work = Work(kind=WorkKind.ROLL, base_epoch=view.record.epoch, txn_epoch=epoch, transactions=tuple(txns))
    changed = replace(view.record, work=work)
    versions = await ctx.metadata.put(
        view.put(changed), ctx.work.put(view.name), epoch_put(view.name, first), epoch_put(view.name, second)
    )
    return view.changed(changed, versions[0], marker=versions[1])


async def finish_roll(ctx: Context, view: StreamView) -> StreamView:
    """Perform or resume a rolling commit.

    The transactions go into a duplicate of their own epoch, which nobody knows until it is complete; then that epoch and a
    duplicate of the active one become history in one step; only then are their predecessors sealed.
    """
    work = view.record.work
    if work is None or work.kind is not WorkKind.ROLL:
        raise InternalError("there is no rolling commit to finish", stream=str(view.name))
    name = view.name
    begun_in = await load_epoch(ctx, name, work.txn_epoch)
    before = await load_epoch(ctx, name, work.base_epoch)
    merged = await load_epoch(ctx, name, work.base_epoch + 1)
    after = await load_epoch(ctx, name, work.base_epoch + 2)
    if view.record.epoch == work.base_epoch:
        fresh = [segment_name(name, item.segment) for record in (merged, after) for item in record.segments]
        await create_segments(ctx.segments, fresh, rollover_bytes=view.record.config.rollover_bytes)
        await _merge(ctx, name, _duplicates(begun_in, merged), work.transactions)
        view = await put_stream(ctx, view, replace(view.record, epoch=after.epoch))
    old = await seal_segments(ctx, name, [item.segment for item in before.segments])
    short = await seal_segments(ctx, name, [item.segment for item in merged.segments])
    # Do this before the work ends: a complete roll must not be begun again for the same transactions.
    await _remember(ctx, name, work.transactions, TransactionState.COMMITTED)
    return await end_work(
        ctx,
        view,
        replace(view.record, work=None),
        lengths_put(name, merged.epoch, old),
        lengths_put(name, after.epoch, short),
    )


def _duplicates(original: EpochRecord, copy: EpochRecord) -> dict[SegmentId, SegmentId]:
    by_number = {number_of(item.segment): item.segment for item in copy.segments}
    return {item.segment: by_number[number_of(item.segment)] for item in original.segments}


async def remove_transaction_segments(
    ctx: Context, name: StreamName, txns: Sequence[UUID], *, place: Callable[[bytes], bytes] = lambda key: key
) -> None:
    """Delete the segments of transactions that will never be merged. A transaction of an unknown epoch has none.

    ``place``: maps a key to where its record is now.
    """
    numbers = sorted({transaction_epoch(txn) for txn in txns})
    entries = await ctx.metadata.entries([place(keys.epoch(name, epoch)) for epoch in numbers])
    epochs = {epoch: stored(entry, EpochEntry).value for epoch, entry in zip(numbers, entries, strict=True)}
    await delete_segments(
        ctx.segments,
        [
            transaction_segment_name(segment_name(name, item.segment), txn)
            for txn in txns
            if (epoch := epochs[transaction_epoch(txn)]) is not None
            for item in epoch.segments
        ],
    )


async def _remember(ctx: Context, name: StreamName, txns: Sequence[UUID], state: TransactionState) -> None:
    now_ms = await ctx.retention_clock.lasting_ms()
    entries = await ctx.metadata.entries([keys.completed(name, txn) for txn in txns])
    # Record it once: a repeat after a crash must not list the transaction twice with two times.
    fresh = [txn for txn, entry in zip(txns, entries, strict=True) if stored(entry, CompletedRecord).value is None]
    for start in range(0, len(fresh), CHUNK // 2):
        part = fresh[start : start + CHUNK // 2]
        await ctx.metadata.put(*(put for txn in part for put in _outcome_puts(name, txn, state, now_ms)))
    ctx.telemetry.add("transactions_ended", len(fresh), (state.value,))
    for txn in txns:
        ctx.transactions.outcomes.ended(txn, state)


async def _complete(
    ctx: Context,
    name: StreamName,
    outcomes: Mapping[UUID, TransactionState],
    txns: Sequence[UUID],
    last: Sequence[bytes],
    entries: Sequence[bytes],
) -> None:
    """Record the outcomes, and remove the records of the transactions and, if ``last``, their queue entries.

    One step if it fits into a batch. Otherwise the entries are removed last, so that a later call finds the remaining
    work.
    """
    now_ms = await ctx.retention_clock.lasting_ms()
    gone = [TableRemoval(key=key) for key in last]
    for start in range(0, len(txns), ENTRIES):
        part = txns[start : start + ENTRIES]
        puts = [put for txn in part if txn in outcomes for put in _outcome_puts(name, txn, outcomes[txn], now_ms)]
        removals = [TableRemoval(key=keys.transaction(name, txn)) for txn in part]
        if start + ENTRIES >= len(txns) and len(puts) + len(removals) + len(gone) <= TABLE_BATCH_MAX:
            removals, gone = removals + gone, []
        await ctx.metadata.change(puts, removals)
    await ctx.metadata.remove(*gone)
    ctx.transactions.queues.gone(name, [keys.queue_place(key) for key in entries])
    for txn, state in outcomes.items():
        ctx.telemetry.add("transactions_ended", 1, (state.value,))
        ctx.transactions.outcomes.ended(txn, state)


def _outcome_puts(name: StreamName, txn: UUID, state: TransactionState, now_ms: int) -> tuple[TablePut, TablePut]:
    return (
        overwrite(keys.completed(name, txn), CompletedRecord(state=state, completed_ms=now_ms)),
        overwrite(keys.completion(name, now_ms, txn), MarkerRecord()),
    )


async def _prune_sometimes(ctx: Context, name: StreamName, completed: int) -> None:
    """Forget old outcomes at the first completion in this process, and whenever there may be many."""
    if ctx.transactions.must_prune(name, completed):
        await prune_completed(ctx, name, limit=PRUNE_PER_PASS)


async def prune_completed(ctx: Context, name: StreamName, *, limit: int) -> int:
    """Forget up to ``limit`` outcomes older than ``completed_ms``, and return how many."""
    latest = keys.completion(name, ctx.retention_clock.now_ms() - ctx.settings.completed_ms, UUID(int=(1 << 128) - 1))
    old = await ctx.metadata.scan(keys.completions(name), after=latest, limit=limit)
    if old:
        found = [(entry.key, ctx.set_aside.key(entry, keys.txn_of)) for entry in old]
        gone = [key for at, txn in found if txn is not None for key in (keys.completed(name, txn), at)]
        await ctx.metadata.remove_keys(gone)
    return len(old)
