"""Undo of a truncation whose bytes are kept: decided in one step, then performed, and resumed after a crash."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.codec.audit import AuditEntry, AuditKind
from penstock.codec.control.readers import PastTruncationsRecord
from penstock.codec.control.record import dump_positions
from penstock.codec.control.streams import HeadRecord, Work, WorkKind
from penstock.codec.control.truncations import GraceRecord, GraceState
from penstock.controller import keys, retention_keys
from penstock.controller.context import Context
from penstock.controller.grace.records import load_grace
from penstock.controller.groups.moved_subscribers import Restoring
from penstock.controller.metadata import Stored
from penstock.controller.stream_view import StreamView
from penstock.controller.streams.epochs import end_work
from penstock.controller.tasks import collect
from penstock.core.cuts.order import head_of, segments_to_delete, storage_offsets
from penstock.model.answers.undo import RestoredSubscriber
from penstock.model.errors import ConflictError, InternalError
from penstock.model.names import segment_name
from penstock.model.segments import SegmentId
from penstock.ports.data.tables import TablePut


async def begin_undo(ctx: Context, view: StreamView) -> StreamView:
    """Write the intent to undo. Raises ConflictError."""
    grace = await load_grace(ctx.metadata, view.name)
    last = next((item for item in reversed(grace.values) if item.state is not GraceState.UNDONE), None)
    head = await ctx.metadata.get(keys.head(view.name), HeadRecord)
    if last is None or last.state is not GraceState.KEPT or head.value is None or head.value.cut != last.after:
        raise ConflictError("no truncation of the stream can be undone", stream=str(view.name))
    entry = AuditEntry(
        kind=AuditKind.UNDO,
        target=str(view.name),
        fields={
            "before": dump_positions(last.after),
            "after": dump_positions(last.before),
            "bytes": last.size_bytes,
            "truncated_at_ms": last.at_ms,
        },
    )
    changed = replace(view.record, work=Work(kind=WorkKind.UNDO, base_epoch=view.record.epoch))
    versions = await ctx.metadata.put(
        view.put(changed),
        ctx.work.put(view.name),
        head.put(replace(head.value, grace_ms=last.at_ms)),
        *ctx.audit.puts([entry]),
    )
    return view.changed(changed, versions[0], marker=versions[1])


async def finish_undo(ctx: Context, view: StreamView, moved_back: list[RestoredSubscriber] | None = None) -> StreamView:
    """Start or continue an undo: restore the bytes first, then subscribers, then the head.

    ``moved_back`` gets the outcome for each subscriber that rules had moved.
    """
    head: Stored[HeadRecord] = await ctx.metadata.get(keys.head(view.name), HeadRecord)
    if head.value is None or head.value.grace_ms is None:
        raise InternalError("there is no undo to finish", stream=str(view.name))
    found = await ctx.metadata.get(retention_keys.grace(view.name, head.value.grace_ms), GraceRecord)
    record = found.value
    if record is None:
        raise InternalError("grace record of an undo is missing", stream=str(view.name), at_ms=head.value.grace_ms)
    history = await ctx.histories.of(view)
    before = record.before or head_of(history)
    wanted = dict.fromkeys(segments_to_delete(history, record.before or None, record.after), 0)
    wanted |= {segment: 0 for segment, offset in storage_offsets(record.after).items() if offset > 0}
    wanted |= {segment: offset for segment, offset in storage_offsets(before).items() if segment in wanted}

    async def restore(segment: SegmentId) -> int:
        return await ctx.segments.restore(segment_name(view.name, segment), wanted[segment])

    starts = await collect(wanted, restore)
    # A store may have kept less than requested and returns how much: the head must not promise missing data.
    cut = {
        # A segment that had not been started then is not started now, though its bytes are restored from 0 on.
        segment: offset if starts.get(segment, 0) <= max(offset, 0) else starts[segment]
        for segment, offset in before.items()
    }
    done = HeadRecord(
        cut=record.before if cut == record.before else cut,
        truncated_bytes=head.value.truncated_bytes - record.size_bytes,
    )
    restoring = Restoring(ctx, view, history, record.at_ms)
    found_again = await restoring.restore()
    if moved_back is not None:
        moved_back += found_again
    ctx.telemetry.add("undone_bytes", record.size_bytes)
    ended = await end_work(
        ctx,
        view,
        replace(view.record, work=None),
        head.put(done),
        found.put(replace(record, state=GraceState.UNDONE)),
        *await _forget_truncation(ctx, view, record),
    )
    await restoring.finish()
    ctx.attention.kept(view.name)
    ctx.attention.dirty(view.name)
    return ended


async def _forget_truncation(ctx: Context, view: StreamView, record: GraceRecord) -> Sequence[TablePut]:
    """Remove the truncation from those that ``explain`` reports: it deleted nothing."""
    past = await ctx.metadata.get(keys.past_truncations(view.name), PastTruncationsRecord)
    kept = () if past.value is None else past.value.truncations
    if past.value is None or not kept or kept[-1].cut != record.after:
        return []
    return [past.put(replace(past.value, truncations=kept[:-1]))]
