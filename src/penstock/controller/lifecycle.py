"""Beginning and end of a stream: creation, sealing, deletion, each performed from wherever it stands."""

from __future__ import annotations

from dataclasses import replace

from penstock.codec.metadata import (
    CounterRecord,
    EpochEntry,
    MarkerRecord,
    StreamRecord,
    StreamState,
    TransactionRecord,
    TransactionState,
)
from penstock.controller import keys, retention_keys
from penstock.controller.commits import drain, remove_transaction_segments
from penstock.controller.context import Context, StreamView
from penstock.controller.decisions import abort_if_open
from penstock.controller.epochs import FINAL, end_work, lengths_put, put_stream, seal_segments
from penstock.controller.metadata import create, overwrite
from penstock.controller.numbers import forget_numbers_sometimes
from penstock.model.names import MARK_PREFIX, StreamName, segment_name
from penstock.model.policies import StreamConfig
from penstock.model.segments import SegmentRange, even_ranges, make_segment_id
from penstock.ports.segment_service import TablePut


def mark_stream(name: StreamName) -> StreamName | None:
    """The stream in which Pravega's clients keep watermarks of ``name``; internal streams have none."""
    if name.is_internal:
        return None
    return StreamName(name.scope, MARK_PREFIX + name.stream)


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
    """Create the segments of the stream and of its mark stream, then let both be seen, in one step."""
    views = [view]
    mark = mark_stream(view.name)
    if mark is not None:
        mark_view = await ctx.any_stream(mark)
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
    await ctx.create_segments(names, rollover_bytes=view.record.config.rollover_bytes)
    others = [item.put(replace(item.record, state=StreamState.ACTIVE)) for item in views[1:]]
    if view.record.config.retention is not None:
        others.append(overwrite(keys.policy(view.name), MarkerRecord()))
    return await end_work(ctx, view, replace(view.record, state=StreamState.ACTIVE), *others)


async def finish_sealing(ctx: Context, view: StreamView) -> StreamView:
    """Abort what is open, finish what was decided, then seal the active segments.

    The state is durable before the open transactions are looked for, and whoever begins one looks at the state after its
    record is durable: one of the two meets the other.
    """
    async for entry in ctx.metadata.scan_all(keys.transactions(view.name)):
        record = ctx.set_aside.read(entry, TransactionRecord)
        # A transaction that cannot be read can never be committed; it is deleted with the stream.
        txn = ctx.set_aside.key(entry, keys.txn_of)
        if record is not None and txn is not None and record.state is TransactionState.OPEN:
            await abort_if_open(ctx, view.name, txn)
    # Nothing that anybody has decided may be left behind.
    ctx.queues.forget(view.name)
    view = await drain(ctx, view)
    history = await ctx.histories.remaining(view)
    sealed = await seal_segments(ctx, view.name, [item.segment for item in history.active.segments])
    lengths = lengths_put(view.name, view.record.epoch + FINAL, sealed)
    if view.record.ending:
        # On to the deletion in the same step: nobody finds the stream sealed, and the marker of the work stays.
        return await put_stream(ctx, view, replace(view.record, state=StreamState.DELETING), lengths)
    return await end_work(ctx, view, replace(view.record, state=StreamState.SEALED), lengths)


async def finish_deletion(ctx: Context, view: StreamView) -> None:
    """Delete the mark stream, all segments and all records; the stream's own record goes last.

    The number of the next segment stays, so that no stream created under this name uses the name of a segment again.
    """
    name = view.name
    mark = mark_stream(name)
    if mark is not None:
        mark_view = await ctx.any_stream(mark)
        if mark_view is not None:
            await finish_deletion(ctx, mark_view)
    segments = [
        segment_name(name, segment.segment)
        async for entry in ctx.metadata.scan_all(keys.epochs(name))
        for segment in EpochEntry.decode(entry.value).segments
    ]
    # Some transactions without a usable record still have segments: a controller died while it began one during sealing,
    # or a repair removed the record.
    begun = [
        ctx.set_aside.key(entry, keys.txn_of)
        for prefix in (keys.transactions(name), keys.kept_transactions(name))
        async for entry in ctx.metadata.scan_all(prefix)
    ]
    if segments:
        await remove_transaction_segments(ctx, name, [txn for txn in begun if txn is not None])
    await ctx.delete_segments(segments)
    await ctx.metadata.put(overwrite(keys.number(name), CounterRecord(value=view.record.next_number)))
    for prefix in (*keys.owned_by(name), *retention_keys.owned_by(name)):
        await ctx.metadata.remove_prefix(prefix)
    ctx.histories.forget(name)
    ctx.sets.forget(name)
    ctx.queues.forget(name)
    ctx.unpruned.pop(name, None)
    await ctx.metadata.remove_keys([*keys.owned_singly(name), keys.stream(name)])
    await ctx.metadata.remove_keys([keys.work(name)])
    await forget_numbers_sometimes(ctx)
