"""Epochs of a stream: its history, and scaling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.codec.control.streams import (
    EpochEntry,
    LengthsRecord,
    MarkerRecord,
    StreamRecord,
    Work,
    WorkKind,
)
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.metadata import create, overwrite
from penstock.controller.segments import create_segments
from penstock.controller.stream_view import StreamView
from penstock.controller.tasks import collect
from penstock.core.streams.history import EpochRecord
from penstock.model.errors import InternalError
from penstock.model.names import StreamName, segment_name
from penstock.model.segments import SegmentId, number_of
from penstock.ports.data.tables import TableCheck, TablePut

FINAL = 1
"""Added to the last epoch, it gives the key for the lengths of a sealed stream's last segments."""


def epoch_put(name: StreamName, record: EpochRecord) -> TablePut:
    entry = EpochEntry(epoch=record.epoch, segments=record.segments, created_ms=record.created_ms)
    return create(keys.epoch(name, record.epoch), entry)


def lengths_put(name: StreamName, epoch: int, sealed: LengthsRecord) -> TablePut:
    return overwrite(keys.lengths_sealed_by(name, epoch), sealed)


async def load_epoch(ctx: Context, name: StreamName, epoch: int) -> EpochRecord:
    """One epoch, decided or active. Raises InternalError if it is missing."""
    found = await ctx.metadata.get(keys.epoch(name, epoch), EpochEntry)
    if found.value is None:
        raise InternalError("epoch of a stream is missing", stream=str(name), epoch=epoch)
    item = found.value
    return EpochRecord(epoch=item.epoch, segments=item.segments, created_ms=item.created_ms)


async def begin_scale(
    ctx: Context, view: StreamView, following: EpochRecord, *puts: TablePut | TableCheck
) -> StreamView:
    """Write the intent to scale to the epoch ``following``, with further ``puts``, as one step."""
    record = view.record
    highest = max(number_of(item.segment) for item in following.segments)
    changed = replace(
        record,
        work=Work(kind=WorkKind.SCALE, base_epoch=record.epoch),
        next_number=max(record.next_number, highest + 1),
    )
    versions = await ctx.metadata.put(
        view.put(changed), ctx.work.put(view.name), epoch_put(view.name, following), *puts
    )
    return view.changed(changed, versions[0], marker=versions[1])


async def finish_scale(ctx: Context, view: StreamView) -> StreamView:
    """Perform a scale, or resume it.

    New segments first, then the epoch that names them, and only then are the old ones sealed: a client that finds a
    sealed segment also finds its successors.
    """
    work = view.record.work
    if work is None or work.kind is not WorkKind.SCALE:
        raise InternalError("there is no scale to finish", stream=str(view.name))
    before = await load_epoch(ctx, view.name, work.base_epoch)
    after = await load_epoch(ctx, view.name, work.base_epoch + 1)
    old = {item.segment for item in before.segments}
    if view.record.epoch == work.base_epoch:
        fresh = [segment_name(view.name, item.segment) for item in after.segments if item.segment not in old]
        await create_segments(ctx.segments, fresh, rollover_bytes=view.record.config.rollover_bytes)
        view = await put_stream(ctx, view, replace(view.record, epoch=after.epoch))
    kept = {item.segment for item in after.segments}
    sealed = await seal_segments(ctx, view.name, [item.segment for item in before.segments if item.segment not in kept])
    return await end_work(ctx, view, replace(view.record, work=None), lengths_put(view.name, after.epoch, sealed))


async def seal_segments(ctx: Context, name: StreamName, segments: Sequence[SegmentId]) -> LengthsRecord:
    """Seal all the segments, and return their final lengths and numbers of events."""

    async def seal(segment: SegmentId) -> tuple[int, int]:
        length = await ctx.segments.seal(segment_name(name, segment))
        return length, (await ctx.segments.info(segment_name(name, segment))).event_count

    found = await collect(segments, seal)
    return LengthsRecord(
        lengths={segment: length for segment, (length, _) in found.items()},
        events={segment: events for segment, (_, events) in found.items()},
    )


async def put_stream(ctx: Context, view: StreamView, record: StreamRecord, *puts: TablePut | TableCheck) -> StreamView:
    """Replace the stream's record, with further ``puts``, as one step. Raises as ``Metadata.put``."""
    versions = await ctx.metadata.put(view.put(record), *puts)
    return view.changed(record, versions[0])


async def end_work(ctx: Context, view: StreamView, record: StreamRecord, *puts: TablePut) -> StreamView:
    """The last step of a workflow: as ``put_stream``, and release its marker."""
    marker = view.marker
    if marker is None:
        marker = (await ctx.metadata.get(keys.work(view.name), MarkerRecord)).version
    done = await put_stream(ctx, view, record, *puts)
    ctx.work.done(view.name, marker)
    return done
