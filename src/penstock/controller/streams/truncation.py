"""Truncation: moves a stream's head. Decided in one step, then performed in an order that is safe against crashes.

A truncation with a grace period moves the head for readers at once and keeps the bytes; ``controller.grace.kept`` frees
them later, or makes them readable again. Source: docs/design/0006-controller.md.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.codec.control.record import Positions
from penstock.codec.control.streams import HeadRecord, Work, WorkKind
from penstock.codec.control.truncations import GraceRecord
from penstock.controller import keys, retention_keys
from penstock.controller.context import Context
from penstock.controller.metadata import Stored, create
from penstock.controller.segments import delete_segments
from penstock.controller.stream_view import StreamView
from penstock.controller.streams.cuts import check_given
from penstock.controller.streams.epochs import end_work
from penstock.controller.tasks import each
from penstock.core.cuts.check import check_not_before_head
from penstock.core.cuts.order import (
    CutOrder,
    bytes_between,
    compare,
    head_of,
    segments_to_delete,
    storage_offsets,
)
from penstock.core.streams.history import StreamHistory
from penstock.model.cuts import StreamCut
from penstock.model.errors import InternalError
from penstock.model.names import segment_name
from penstock.model.policies import LONG_MAX
from penstock.model.segments import SegmentId
from penstock.ports.data.tables import TableCheck, TablePut


async def begin_truncation(
    ctx: Context, view: StreamView, cut: StreamCut, *puts: TablePut | TableCheck, grace_ms: int = 0
) -> StreamView | None:
    """Check the cut and write the intent, with further ``puts``, as one step. None if the head is already there.

    ``grace_ms``: how long the bytes are kept and can be restored. While the bytes of an earlier truncation are kept,
    those of later ones are kept too.
    Raises: InvalidCutError (not a cut of the stream, before the head, or beyond the tail).
    """
    history = await ctx.histories.of(view)
    head = await ctx.metadata.get(keys.head(view.name), HeadRecord)
    known = head.value or HeadRecord()
    current = known.cut or head_of(history)
    await check_given(ctx.segments, view, history, cut)
    if compare(history, cut.positions, current) is CutOrder.EQUAL:
        return None
    check_not_before_head(view.name, history, cut.positions, current)
    # The head keeps a segment that has not started: it shows readers where to wait.
    pending = replace(known, pending=dict(cut.positions), grace_ms=None)
    grace = await _grace(ctx, view, known, history, cut.positions, grace_ms)
    if grace is not None:
        pending = replace(pending, grace_ms=grace.at_ms)
        puts = (*puts, create(retention_keys.grace(view.name, grace.at_ms), grace))
    work = Work(kind=WorkKind.TRUNCATE, base_epoch=view.record.epoch)
    changed = replace(view.record, work=work)
    versions = await ctx.metadata.put(view.put(changed), ctx.work.put(view.name), head.put(pending), *puts)
    return view.changed(changed, versions[0], marker=versions[1])


async def _grace(
    ctx: Context, view: StreamView, head: HeadRecord, history: StreamHistory, cut: Positions, grace_ms: int
) -> GraceRecord | None:
    """The record that keeps the bytes of the truncation, or None if they are freed at once."""
    last: GraceRecord | None = None
    async for entry in ctx.metadata.scan_all(retention_keys.graces(view.name)):
        last = GraceRecord.decode(entry.value)
    if last is None and grace_ms <= 0:
        return None
    now_ms = await ctx.retention_clock.lasting_ms()
    return GraceRecord(
        before=dict(head.cut),
        after=dict(cut),
        # Keys are times: two truncations in one millisecond need two different keys, in order.
        at_ms=now_ms if last is None else max(now_ms, last.at_ms + 1),
        due_ms=min(now_ms + max(grace_ms, 0), LONG_MAX),
        size_bytes=bytes_between(history, head.cut or None, cut),
        wall_ms=ctx.clock.now_ms(),
    )


async def finish_truncation(ctx: Context, view: StreamView) -> StreamView:
    """Perform or resume a truncation: truncate segments, delete whole segments, then write the record.

    Segments are truncated before any is deleted, so that a reader who finds one deleted finds the rest at the new head.
    """
    head: Stored[HeadRecord] = await ctx.metadata.get(keys.head(view.name), HeadRecord)
    if head.value is None or head.value.pending is None:
        raise InternalError("there is no truncation to finish", stream=str(view.name))
    pending, keep = head.value.pending, head.value.grace_ms is not None
    history = await ctx.histories.of(view)
    offsets = storage_offsets(pending)
    gone = segments_to_delete(history, head.value.cut or None, pending)
    if keep:
        # They stay sealed and empty for readers until the grace period ends.
        offsets |= {segment: history.sealed_lengths[segment] for segment in gone}

    async def truncate(segment: SegmentId) -> None:
        await ctx.segments.truncate(segment_name(view.name, segment), offsets[segment], keep=keep)

    await each([segment for segment, offset in offsets.items() if offset > 0], truncate)
    if not keep:
        await delete_segments(ctx.segments, [segment_name(view.name, segment) for segment in gone])
    freed = bytes_between(history, head.value.cut or None, pending)
    done = HeadRecord(cut=pending, pending=None, truncated_bytes=head.value.truncated_bytes + freed)
    ctx.telemetry.add("truncated_bytes", freed)
    ended = await end_work(ctx, view, replace(view.record, work=None), head.put(done))
    ctx.watermarks.soon(view.name)
    if keep:
        ctx.attention.kept(view.name)
    return ended
