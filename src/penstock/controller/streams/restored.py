"""What a controller does once in a restored or rebuilt store: its streams differ from those of the original.

Readers, queries and caches remember positions as offsets in segments. The original continued to write after the backup. If
the restored store gave the same offsets to other events, a reader with a position of the original would skip them without
an error. So each stream continues in new segments, whose numbers the original never reaches. The old segments are sealed at
their length in the backup. A position beyond it, or in a segment that only the original has, fails with InvalidCutError.
Source: docs/design/0023-backup.md.
"""

from __future__ import annotations

import logging

from penstock.codec.control.streams import CounterRecord, StreamState
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.metadata import changing
from penstock.controller.stream_view import StreamView
from penstock.controller.streams.epochs import begin_scale, finish_scale
from penstock.controller.streams.workflows import exclusive, settle
from penstock.controller.transactions.decisions import abort_if_open
from penstock.core.streams.scaling import plan_scale
from penstock.model.errors import CorruptDataError
from penstock.model.names import AUDIT_STREAM, StreamName

log = logging.getLogger(__name__)

_STREAMS, _TRANSACTIONS = b"stream/", b"txn/"


async def begin_restored(ctx: Context, jump: int) -> int:
    """Give every unsealed stream new segments, with numbers ``jump`` higher; return how many streams.

    Open transactions are aborted, because a later commit would create segments with the numbers of old epochs. Streams that
    are created later also begin above the jump. Streams for the state of clients (their names begin with ``_``) and the
    audit stream keep their segments, because their readers know one segment only. A stream whose history cannot be read
    cannot get a new epoch; it keeps its segments, and this is logged. Repeatable. Raises what the storage raises.
    """
    async for entry in ctx.metadata.scan_all(_TRANSACTIONS):
        txn = ctx.set_aside.key(entry, keys.txn_of)
        name = ctx.set_aside.stream(entry, _TRANSACTIONS, last=1)
        if txn is not None and name is not None:
            await abort_if_open(ctx, name, txn)
    await _raise_numbers(ctx, jump)
    names = [ctx.set_aside.stream(entry, _STREAMS) async for entry in ctx.metadata.scan_all(_STREAMS)]
    # The original goes on with its audit log.
    await ctx.audit.log.end()
    moved = 0
    for name in names:
        if name is None or name == AUDIT_STREAM or name.stream.startswith("_"):
            continue
        try:
            moved += await renew_segments(ctx, name, jump)
        except CorruptDataError as error:
            log.error(
                "stream keeps its segments after the restore: positions of the original may mean other events",
                extra={"stream": str(name), "error": str(error)},
            )
    return moved


async def _raise_numbers(ctx: Context, jump: int) -> None:
    """Make streams that are created later begin above the numbers that the original may use."""
    floor = await ctx.metadata.get(keys.NUMBER_FLOOR, CounterRecord)
    highest = 0 if floor.value is None else floor.value.value
    own = [entry async for entry in ctx.metadata.scan_all(keys.NUMBERS)]
    for entry in own:
        record = ctx.set_aside.read(entry, CounterRecord)
        if record is not None:
            highest = max(highest, record.value)
    # A name without its own record begins at this floor.
    await ctx.metadata.put(floor.put(CounterRecord(value=highest + jump)))
    await ctx.metadata.remove_keys([entry.key for entry in own])


async def renew_segments(ctx: Context, name: StreamName, jump: int = 0) -> bool:
    """Scale the stream to new segments with the same key ranges, and numbers ``jump`` higher; False: it is sealed or
    deleted. Raises what the storage raises."""

    async def attempt() -> bool:
        view: StreamView | None = await settle(ctx, name)
        if view is None or view.record.state is not StreamState.ACTIVE:
            return False
        history = await ctx.histories.of(view)
        active = history.active.segments
        following = plan_scale(
            history,
            [item.segment for item in active],
            [item.keys for item in active],
            next_number=view.record.next_number + jump,
            min_segments=1,
            created_ms=ctx.clock.now_ms(),
        )
        await finish_scale(ctx, await begin_scale(ctx, view, following))
        ctx.attention.dirty(name)
        return True

    async with exclusive(ctx, name):
        return await changing(attempt)
