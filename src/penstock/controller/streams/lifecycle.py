"""Creation, sealing and deletion of a stream. Each can be resumed after a crash."""

from __future__ import annotations

from dataclasses import replace

from penstock.codec.control.streams import (
    CounterRecord,
    EpochEntry,
    MarkerRecord,
    StreamRecord,
    StreamState,
    TransactionRecord,
    TransactionState,
)
from penstock.controller import keys, retention_keys
from penstock.controller.context import Context
from penstock.controller.grace.deleted_records import delete_data, hide_data, keep_rows, mark_stream, to_be_kept
from penstock.controller.grace.left_tables import note_left_tables
from penstock.controller.metadata import create, overwrite
from penstock.controller.segments import create_segments
from penstock.controller.stream_view import StreamView
from penstock.controller.streams.epochs import FINAL, end_work, lengths_put, put_stream, seal_segments
from penstock.controller.streams.numbers import forget_numbers_sometimes
from penstock.controller.transactions.commits import drain
from penstock.controller.transactions.decisions import abort_if_open
from penstock.model.names import StreamName, segment_name
from penstock.model.policies import StreamConfig
from penstock.model.segments import SegmentRange, even_ranges, make_segment_id
from penstock.ports.data.tables import TablePut


def creation_puts(name: StreamName, config: StreamConfig, *, number: int, now_ms: int) -> list[TablePut]:
    """The intent to create a stream whose segments are numbered from ``number`` on. The stream's own record is first."""
    count = config.scaling.min_segments
    segments = tuple(
        SegmentRange(segment=make_segment_id(0, number + place), keys=keys_of)
        for place, keys_of in enumerate(even_ranges(count))
    )
    record = StreamRecord(
        state=StreamState.CREATING,
        config=config,
        incarnation=number,
        epoch=0,
        next_number=number + count,
        created_ms=now_ms,
    )
    epoch = EpochEntry(epoch=0, segments=segments, created_ms=now_ms)
    return [create(keys.stream(name), record), overwrite(keys.epoch(name, 0), epoch)]


async def finish_creation(ctx: Context, view: StreamView) -> StreamView:
    """Create the segments of the stream and of its mark stream, then make both visible in one step."""
    views = [view]
    mark = mark_stream(view.name)
    if mark is not None:
        mark_view = await ctx.streams.find(mark)
        if mark_view is not None and mark_view.record.state is StreamState.CREATING:
            views.append(mark_view)
    entries = await ctx.metadata.entries([keys.epoch(item.name, 0) for item in views])
    names = [
        segment_name(item.name, segment.segment)
        for item, entry in zip(views, entries, strict=True)
        for segment in EpochEntry.decode(entry.value).segments
    ]
    for item in views:
        # A client may still remove a segment of this name, allowed before the stream existed. Wait for it to end.
        await ctx.removals_passed(str(item.name))
    await create_segments(ctx.segments, names, rollover_bytes=view.record.config.rollover_bytes)
    others = [item.put(replace(item.record, state=StreamState.ACTIVE)) for item in views[1:]]
    if view.record.config.retention is not None:
        others.append(overwrite(keys.policy(view.name), MarkerRecord()))
    return await end_work(ctx, view, replace(view.record, state=StreamState.ACTIVE), *others)


async def finish_sealing(ctx: Context, view: StreamView) -> StreamView:
    """Abort open transactions, finish decided ones, then seal the active segments.

    The state is durable before open transactions are listed. A call that begins one checks the state after its
    record is durable. So one of the two sees the other.
    """
    async for entry in ctx.metadata.scan_all(keys.transactions(view.name)):
        record = ctx.set_aside.read(entry, TransactionRecord)
        # A transaction that cannot be read can never be committed; it is deleted with the stream.
        txn = ctx.set_aside.key(entry, keys.txn_of)
        if record is not None and txn is not None and record.state is TransactionState.OPEN:
            await abort_if_open(ctx, view.name, txn)
    # No decision may be left unperformed.
    ctx.transactions.queues.forget(view.name)
    view = await drain(ctx, view)
    history = await ctx.histories.remaining(view)
    sealed = await seal_segments(ctx, view.name, [item.segment for item in history.active.segments])
    lengths = lengths_put(view.name, view.record.epoch + FINAL, sealed)
    if view.record.ending:
        # Continue with the deletion in the same step: nobody sees the stream as sealed, and the work marker stays.
        return await put_stream(ctx, view, replace(view.record, state=StreamState.DELETING), lengths)
    return await end_work(ctx, view, replace(view.record, state=StreamState.SEALED), lengths)


async def finish_deletion(ctx: Context, view: StreamView) -> None:
    """Delete the mark stream, all segments and all records; the stream's own record is removed last.

    With a grace, only the name is freed: the records are moved, and the segments stay until the grace ends.
    The number of the next segment stays, so that no stream created under this name uses the name of a segment again.
    """
    name = view.name
    await note_left_tables(ctx, view)
    is_kept = await to_be_kept(ctx, view)
    if is_kept:
        await hide_data(ctx, name, view.record.incarnation)
    mark = mark_stream(name)
    views = [view]
    if mark is not None and (mark_view := await ctx.streams.find(mark)) is not None:
        views.insert(0, mark_view)
    for item in views:
        if is_kept:
            await keep_rows(ctx, item, view.record.incarnation)
        else:
            await delete_data(ctx, item.name)
        await _forget_stream(ctx, item)
    await forget_numbers_sometimes(ctx)


async def _forget_stream(ctx: Context, view: StreamView) -> None:
    """Remove all records of a stream whose segments are deleted or whose records were moved; its own record last."""
    name = view.name
    await ctx.metadata.put(overwrite(keys.number(name), CounterRecord(value=view.record.next_number)))
    for prefix in (*keys.owned_by(name), *retention_keys.owned_by(name)):
        await ctx.metadata.remove_prefix(prefix)
    ctx.histories.forget(name)
    ctx.sets.forget(name)
    ctx.transactions.forget(name)
    await ctx.metadata.remove_keys([*keys.owned_singly(name), keys.stream(name)])
    await ctx.metadata.remove_keys([keys.work(name)])
