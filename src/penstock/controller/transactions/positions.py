"""Commits of a reader's positions together with transactions: one step decides both.

The reader first stores the positions in the state of its group, as prepared. The decision here makes them valid: it ends
the transactions and names the commit, in one batch. Before a client moves the segments of a reader with prepared positions,
it settles them. If they are not decided, it first aborts their transactions, so that a late decision fails.
Source: docs/design/0049-read-process-write.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace

from penstock.codec.control.readers import GroupRecord, GroupState, PositionCommitRecord
from penstock.codec.control.streams import DecisionRecord, StreamState, TransactionState
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.metadata import changing, overwrite
from penstock.controller.streams.workflows import settle_soon
from penstock.controller.transactions.decisions import abort_if_open, load_transactions, put_queued
from penstock.core.streams.transactions import Verb, must_decide
from penstock.model.errors import InvalidArgumentError, NotFoundError, ReaderGroupNotFoundError, TransactionStateError
from penstock.ports.control.transactions import TOGETHER_MAX, PositionCommit, StreamTransaction, TransactionStatus
from penstock.ports.data.tables import TableCheck, TablePut


async def commit_with_positions(
    ctx: Context, transactions: Sequence[StreamTransaction], positions: PositionCommit, *, wait_s: float
) -> TransactionStatus:
    """See ``ControlPlane.transactions.commit_with_positions``. ``wait_s``: how long the answer waits for the merges."""
    streams = {item.stream for item in transactions}
    if not 0 < len(streams) == len(transactions) <= TOGETHER_MAX:
        raise InvalidArgumentError(
            f"positions can be committed with 1 to {TOGETHER_MAX} transactions of different streams",
            transactions=len(transactions),
            streams=len(streams),
        )
    for item in transactions:
        view = await ctx.streams.get(item.stream)
        if view.record.state is StreamState.SEALED and await abort_if_open(ctx, item.stream, item.id):
            settle_soon(ctx, item.stream)
    with ExitStack() as stack:
        ends = [stack.enter_context(ctx.transactions.outcomes.of(item.id)) for item in transactions]
        before = await ctx.tasks.run(changing(lambda: _decide(ctx, transactions, positions)))
        for item in transactions:
            settle_soon(ctx, item.stream)
        open_ends = [end for end, state in zip(ends, before, strict=True) if state is not TransactionState.COMMITTED]
        if open_ends:
            await asyncio.wait(open_ends, timeout=wait_s)
        known = all(end.done() and end.result() is TransactionState.COMMITTED for end in open_ends)
    return TransactionStatus.COMMITTED if known else TransactionStatus.COMMITTING


async def _decide(
    ctx: Context, transactions: Sequence[StreamTransaction], positions: PositionCommit
) -> list[TransactionState | None]:
    """Decide, unless that was done. Returns the states before."""
    puts: list[TablePut | TableCheck] = []
    states: list[TransactionState | None] = []
    undecided = 0
    for item in transactions:
        loaded = await load_transactions(ctx.metadata, item.stream, [item.id])
        found = loaded.records[item.id]
        states.append(loaded.facts[0].state)
        if must_decide(loaded.facts[0], Verb.COMMIT) and found.value is not None:
            undecided += 1
            puts.append(found.put(replace(found.value, state=TransactionState.COMMITTING)))
    if not undecided:
        return states
    if undecided < len(transactions):
        raise TransactionStateError(
            "a transaction was committed without the others", reader=positions.reader, group=positions.full_name
        )
    group = await ctx.metadata.get(keys.group(positions.full_name), GroupRecord)
    if group.value is None or group.value.state is not GroupState.ACTIVE or group.value.id != positions.group_id:
        raise ReaderGroupNotFoundError("reader group was deleted", group=positions.full_name)
    await put_queued(
        ctx,
        {item.stream: DecisionRecord(commit=True, transactions=(item.id,)) for item in transactions},
        *puts,
        overwrite(_key(positions), PositionCommitRecord(commit=positions.id)),
        TableCheck(key=group.key, version=group.version),
    )
    return states


async def settle_positions(ctx: Context, transactions: Sequence[StreamTransaction], positions: PositionCommit) -> bool:
    """See ``ControlPlane.transactions.settle_positions``."""
    if await _is_committed(ctx, positions):
        return True
    for item in transactions:
        # The transactions of a deleted stream are deleted with it.
        with suppress(NotFoundError):
            if await ctx.tasks.run(abort_if_open(ctx, item.stream, item.id)):
                settle_soon(ctx, item.stream)
    # It may have been decided before the first abort; none can be from here on.
    return await _is_committed(ctx, positions)


async def _is_committed(ctx: Context, positions: PositionCommit) -> bool:
    found = await ctx.metadata.get(_key(positions), PositionCommitRecord)
    return found.value is not None and found.value.commit == positions.id


async def release_positions(ctx: Context, positions: PositionCommit) -> None:
    """See ``ControlPlane.transactions.release_positions``."""
    found = await ctx.metadata.get(_key(positions), PositionCommitRecord)
    if found.value is not None and found.value.commit == positions.id:
        await ctx.metadata.remove_if_unchanged([found.remove()])


def _key(positions: PositionCommit) -> bytes:
    return keys.position_commit(positions.full_name, positions.reader)
