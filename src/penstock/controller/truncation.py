"""Truncation: moving a stream's head, decided in one step and performed in the order that survives a crash anywhere."""

from __future__ import annotations

from dataclasses import replace

from penstock.codec.metadata import HeadRecord, Positions, Work, WorkKind
from penstock.controller import keys
from penstock.controller.context import Context, StreamView
from penstock.controller.epochs import end_work
from penstock.controller.metadata import Stored
from penstock.controller.tasks import collect, each
from penstock.core.cut_order import (
    CutOrder,
    at_or_after,
    bytes_between,
    check_cut,
    check_within,
    compare,
    head_of,
    segments_to_delete,
    storage_offsets,
)
from penstock.core.history import StreamHistory
from penstock.model.cuts import StreamCut
from penstock.model.errors import InternalError, InvalidCutError
from penstock.model.names import segment_name
from penstock.model.segments import SegmentId
from penstock.ports.segment_service import TablePut


async def begin_truncation(ctx: Context, view: StreamView, cut: StreamCut, *puts: TablePut) -> StreamView | None:
    """Check the cut and write the intent, with further ``puts``, as one step. None where the head is there already.

    Raises: InvalidCutError (not a cut of the stream, behind the head, or beyond the tail).
    """
    history = await ctx.histories.of(view)
    head = await ctx.metadata.get(keys.head(view.name), HeadRecord)
    current = (head.value or HeadRecord()).cut or head_of(history)
    check_positions(view, history, cut)
    if compare(history, cut.positions, current) is CutOrder.EQUAL:
        return None
    if not at_or_after(history, cut.positions, current):
        raise InvalidCutError(
            "cut lies behind the head of the stream", stream=str(view.name), head=dict(current), cut=dict(cut.positions)
        )
    await _check_tail(ctx, view, history, cut.positions)
    # A segment that has not started is kept as such in the head: it tells readers where to wait.
    pending = replace(head.value or HeadRecord(), pending=dict(cut.positions))
    work = Work(kind=WorkKind.TRUNCATE, base_epoch=view.record.epoch)
    changed = replace(view.record, work=work)
    versions = await ctx.metadata.put(view.put(changed), ctx.work_put(view.name), head.put(pending), *puts)
    return view.changed(changed, versions[0], marker=versions[1])


def check_positions(view: StreamView, history: StreamHistory, cut: StreamCut) -> None:
    """Raises InvalidCutError unless ``cut`` is a cut of this stream, within the lengths of its sealed segments."""
    if cut.stream != view.name:
        raise InvalidCutError("cut belongs to another stream", stream=str(view.name), cut_of=str(cut.stream))
    check_cut(history, cut.positions)
    check_within(history, cut.positions)


async def _check_tail(ctx: Context, view: StreamView, history: StreamHistory, positions: Positions) -> None:
    """Sealed lengths are known from history; how long the others are only the store can tell."""
    open_ended = [
        segment for segment, offset in positions.items() if offset > 0 and segment not in history.sealed_lengths
    ]
    infos = await collect(open_ended, lambda segment: ctx.segments.info(segment_name(view.name, segment)))
    for segment, info in infos.items():
        if positions[segment] > info.length:
            raise InvalidCutError(
                "cut lies beyond the tail of the stream", segment=segment, offset=positions[segment], tail=info.length
            )


async def finish_truncation(ctx: Context, view: StreamView) -> StreamView:
    """Perform a truncation from wherever it stands: heads of segments, whole segments, then the record.

    Segments are truncated before any is deleted, so that a reader who finds one gone finds the rest at the new head.
    """
    head: Stored[HeadRecord] = await ctx.metadata.get(keys.head(view.name), HeadRecord)
    if head.value is None or head.value.pending is None:
        raise InternalError("there is no truncation to finish", stream=str(view.name))
    pending = head.value.pending
    history = await ctx.histories.of(view)
    offsets = storage_offsets(pending)

    async def truncate(segment: SegmentId) -> None:
        await ctx.segments.truncate(segment_name(view.name, segment), offsets[segment])

    await each([segment for segment, offset in offsets.items() if offset > 0], truncate)
    gone = segments_to_delete(history, head.value.cut or None, pending)
    await ctx.delete_segments([segment_name(view.name, segment) for segment in gone])
    freed = bytes_between(history, head.value.cut or None, pending)
    done = HeadRecord(cut=pending, pending=None, truncated_bytes=head.value.truncated_bytes + freed)
    ctx.telemetry.add("truncated_bytes", freed)
    return await end_work(ctx, view, replace(view.record, work=None), head.put(done))
