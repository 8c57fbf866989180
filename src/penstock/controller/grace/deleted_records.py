"""Records of deleted streams that can be restored. They are kept under other keys, so the name is free at once.

A deletion with a grace leaves ``deleted/<stream>/<incarnation>`` and moves the stream's records below
``deleted-row/<stream>/<incarnation>/``. Its segments stay, but readers find them empty; no stream ever uses their names
again. Restoring moves the records back and makes the data readable. The end of the grace deletes both.
Source: docs/design/0037-deleted-streams.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from penstock.codec.audit import AuditEntry, AuditKind
from penstock.codec.control.readers import GroupRecord, SubscriberRecord
from penstock.codec.control.record import dump_positions
from penstock.codec.control.streams import CounterRecord, EpochEntry, HeadRecord, StreamRecord, StreamState
from penstock.codec.control.truncations import DeletedRecord, DeletedState
from penstock.controller import keys, retention_keys
from penstock.controller.context import Context
from penstock.controller.grace.left_tables import forget_left_tables
from penstock.controller.groups.moved_subscribers import why_left
from penstock.controller.metadata import CHUNK, Stored, changing, overwrite, stored
from penstock.controller.segments import create_segments, delete_segments
from penstock.controller.stream_view import StreamView
from penstock.controller.streams.epochs import end_work, load_epoch
from penstock.controller.streams.numbers import first_number
from penstock.controller.streams.tails import head_positions
from penstock.controller.tasks import each
from penstock.controller.transactions.commits import remove_transaction_segments
from penstock.core.cuts.order import segments_to_delete
from penstock.model.callers import current_caller
from penstock.model.errors import InternalError, SegmentNotFoundError
from penstock.model.names import MARK_PREFIX, StreamName, segment_name
from penstock.model.policies import LONG_MAX
from penstock.model.segments import SegmentId, SegmentRange, make_segment_id
from penstock.ports.data.tables import ANY_VERSION, KEY_ABSENT, TableCheck, TableEntry, TablePut

_COPIED_BYTES = 4 << 20
"""Size of a batch of copied records: a quarter of the largest append."""


def mark_stream(name: StreamName) -> StreamName | None:
    """The stream in which Pravega's clients keep watermarks of ``name``; internal streams have none."""
    if name.is_internal:
        return None
    return StreamName(name.scope, MARK_PREFIX + name.stream)


def with_mark(name: StreamName) -> list[StreamName]:
    """The mark stream, if the stream can have one, and the stream."""
    mark = mark_stream(name)
    return [name] if mark is None else [mark, name]


async def kept_puts(ctx: Context, view: StreamView, *, rule: str, size_bytes: int | None) -> list[TablePut]:
    """The record that keeps the data of a stream whose deletion is being decided; empty if deletions are final."""
    grace_ms = ctx.settings.deletion_grace_ms
    if grace_ms <= 0:
        return []
    caller = current_caller()
    now_ms = await ctx.retention_clock.lasting_ms()
    record = DeletedRecord(
        deleted_ms=ctx.clock.now_ms(),
        due_ms=min(now_ms + grace_ms, LONG_MAX),
        rule=rule,
        size_bytes=size_bytes,
        sealed=view.record.state is StreamState.SEALED,
        caller={} if caller is None else caller.as_fields(),
    )
    return [overwrite(retention_keys.deleted(view.name, view.record.incarnation), record)]


async def load_deleted(ctx: Context, name: StreamName, incarnation: int) -> Stored[DeletedRecord]:
    return await ctx.metadata.get(retention_keys.deleted(name, incarnation), DeletedRecord)


async def to_be_kept(ctx: Context, view: StreamView) -> bool:
    """Whether the stream that is being deleted is kept for a grace."""
    found = (await load_deleted(ctx, view.name, view.record.incarnation)).value
    return found is not None and found.state is DeletedState.KEPT


async def keep_rows(ctx: Context, view: StreamView, incarnation: int) -> None:
    """Move all records of the stream away; its own record is only copied. Repeatable."""
    name = view.name

    def kept(entry: TableEntry) -> TablePut:
        key = retention_keys.deleted_row(name, incarnation, entry.key)
        return TablePut(key=key, value=entry.value, version=ANY_VERSION)

    for prefix in (*keys.owned_by(name), *retention_keys.owned_by(name)):
        while page := await ctx.metadata.scan(prefix, limit=CHUNK):
            await _put_all(ctx, map(kept, page))
            await ctx.metadata.remove_keys([entry.key for entry in page])
    single = await ctx.metadata.entries(keys.owned_singly(name))
    await _put_all(ctx, [kept(entry) for entry in single if entry.version != KEY_ABSENT])
    state = StreamState.SEALED if view.record.state is StreamState.DELETING else view.record.state
    own = retention_keys.deleted_row(name, incarnation, keys.stream(name))
    await ctx.metadata.put(overwrite(own, replace(view.record, state=state, ending=False)))


async def hide_data(ctx: Context, name: StreamName, incarnation: int) -> None:
    """Hide the data of a sealed stream from readers and keep it on disk, as a truncation with grace does.
    Repeatable."""
    found = dict.fromkeys(
        [*await _segments(ctx, name, lambda key: key), *await _segments(ctx, name, placed_at(name, incarnation))]
    )

    async def hide(segment: SegmentId) -> None:
        text = segment_name(name, segment)
        try:
            await ctx.segments.truncate(text, (await ctx.segments.info(text)).length, keep=True)
        except SegmentNotFoundError:
            # The segment was truncated away before the deletion.
            return

    await each(found, hide)


async def _show_data(ctx: Context, view: StreamView) -> None:
    """Make the data readable again, from the head on."""
    history = await ctx.histories.remaining(view)
    head = await ctx.metadata.get(keys.head(view.name), HeadRecord)
    first = head_positions(history, head.value)
    passed = set(segments_to_delete(history, None, first))

    async def show(segment: SegmentId) -> None:
        await ctx.segments.restore(segment_name(view.name, segment), max(first.get(segment, 0), 0))

    await each([segment for segment in history.index.ids if segment not in passed], show)


async def delete_data(ctx: Context, name: StreamName, *, place: Callable[[bytes], bytes] = lambda key: key) -> None:
    """Delete all segments of a stream and of its transactions. ``place``: maps a key to where its record is now."""
    segments = await _segments(ctx, name, place)
    # Some transactions without a usable record still have segments: a controller died while it began one during sealing,
    # or a repair removed the record.
    begun = [
        ctx.set_aside.key(entry, keys.txn_of)
        for prefix in (keys.transactions(name), keys.kept_transactions(name))
        async for entry in ctx.metadata.scan_all(place(prefix))
    ]
    if segments:
        await remove_transaction_segments(ctx, name, [txn for txn in begun if txn is not None], place=place)
    await delete_segments(ctx.segments, [segment_name(name, segment) for segment in segments])


async def _segments(ctx: Context, name: StreamName, place: Callable[[bytes], bytes]) -> list[SegmentId]:
    return [
        item.segment
        async for entry in ctx.metadata.scan_all(place(keys.epochs(name)))
        for item in EpochEntry.decode(entry.value).segments
    ]


async def kept_segments(ctx: Context, name: StreamName, incarnation: int) -> list[SegmentId]:
    """Segments of a deleted stream whose data is kept, including those that were truncated away; else empty."""
    return await _segments(ctx, name, placed_at(name, incarnation))


def placed_at(name: StreamName, incarnation: int) -> Callable[[bytes], bytes]:
    """Map the keys of a deleted stream's records to where they are kept."""
    return lambda key: retention_keys.deleted_row(name, incarnation, key)


async def forget_deleted(ctx: Context, name: StreamName, incarnation: int) -> None:
    """Remove all records of a deleted stream whose segments are deleted."""
    for item in with_mark(name):
        await ctx.metadata.remove_prefix(retention_keys.deleted_rows(item, incarnation))
    await ctx.metadata.remove_keys([retention_keys.deleted(name, incarnation)])


# --- restoring ---------------------------------------------------------------------------------------------------


async def finish_restoration(ctx: Context, view: StreamView, dropped: list[str] | None = None) -> StreamView:
    """Start or continue a restoration: first the records, then what has changed since, then one step makes it visible.

    A stream that was not sealed before its deletion gets new segments. The old ones stay sealed, because their writers
    have seen the seal. Subscribers that cannot be restored are added to ``dropped``.
    """
    name, incarnation = view.name, view.record.incarnation
    found = await load_deleted(ctx, name, incarnation)
    if found.value is None:
        raise InternalError("there is no restoration to finish", stream=str(name))
    for item in with_mark(name):
        await _put_back(ctx, item, incarnation)
        record, _ = await restored_record(ctx, item, incarnation)
        if item != name and record is not None:
            await ctx.metadata.put(overwrite(keys.stream(item), record))
    for item in with_mark(name):
        # A client may still be removing a segment of this name, which was allowed before. Wait until it ends.
        await ctx.removals_passed(str(item))
        await ctx.metadata.remove_prefix(retention_keys.deleted_rows(item, incarnation))
    await _show_data(ctx, view)
    lost = await _restore_subscribers(ctx, name)
    if dropped is not None:
        dropped += lost
    await forget_left_tables(ctx, view)
    # The idle time starts again, so that an idle stream is not deleted again at once.
    puts = [overwrite(keys.left(name), CounterRecord(value=ctx.clock.now_ms()))]
    record = replace(view.record, state=StreamState.SEALED)
    if not found.value.sealed:
        record, epoch = await _reopened(ctx, view)
        puts.append(epoch)
    ctx.histories.forget(name)
    ctx.sets.forget(name)
    ctx.transactions.queues.forget(name)
    ended = await end_work(ctx, view, record, *puts)
    # If another controller deleted the stream again, this is the record of the new deletion.
    await ctx.metadata.remove_if_unchanged([found.remove()])
    ctx.attention.kept(name)
    ctx.attention.dirty(name)
    return ended


async def _put_back(ctx: Context, name: StreamName, incarnation: int) -> None:
    """Copy the records back to their keys, except the stream's own."""
    prefix = retention_keys.deleted_rows(name, incarnation)
    own = keys.stream(name)
    after: bytes | None = None
    while page := await ctx.metadata.scan(prefix, after=after, limit=CHUNK):
        after = page[-1].key
        puts = [
            TablePut(key=retention_keys.live_row(name, incarnation, entry.key), value=entry.value, version=ANY_VERSION)
            for entry in page
        ]
        await _put_all(ctx, [put for put in puts if put.key != own])


async def _put_all(ctx: Context, puts: Iterable[TablePut]) -> None:
    """Write in batches that fit into one append of the table, for records of any size."""
    batch: list[TablePut] = []
    size_bytes = 0
    for put in puts:
        if batch and size_bytes + len(put.value) > _COPIED_BYTES:
            await ctx.metadata.put_many(batch)
            batch, size_bytes = [], 0
        batch.append(put)
        size_bytes += len(put.value)
    await ctx.metadata.put_many(batch)


async def _restore_subscribers(ctx: Context, name: StreamName) -> list[str]:
    """End the subscriptions that ``why_left`` says have ended, and give the others their groups' generations.

    Returns those that end. The records of the subscriptions are back before the groups are read. If a group is deleted
    at the same time, it first marks its own record and then looks for its subscriptions. So one of the two sees the
    other.
    """
    prefix = keys.subscribers(name)
    found = [ctx.set_aside.text(entry, prefix) async for entry in ctx.metadata.scan_all(prefix)]
    groups = [group for group in found if group is not None]
    # A group that is being deleted may end its subscription at the same time.
    return [group for group in groups if not await changing(partial(_restore_subscriber, ctx, name, group))]


async def _restore_subscriber(ctx: Context, name: StreamName, group: str) -> bool:
    """Whether the subscription stays, or had ended before."""
    (entry, of) = await ctx.metadata.entries([keys.subscriber(name, group), keys.group(group)])
    record = None if entry.version == KEY_ABSENT else ctx.set_aside.read(entry, SubscriberRecord)
    if record is None or record.dropped:
        return True
    known = Stored(key=entry.key, value=record, version=entry.version)
    current = None if of.version == KEY_ABSENT else ctx.set_aside.read(of, GroupRecord)
    if current is None and of.version != KEY_ABSENT:
        return True  # A group whose record cannot be read keeps its subscription, so that no data is freed by mistake.
    if current is not None and not why_left(current, record, name):
        if current.generation > record.generation:
            # The group was changed while the stream was deleted. Its readers publish with the new generation.
            await ctx.metadata.put(known.put(replace(record, generation=current.generation)))
        return True
    fields: dict[str, Any] = {
        "rule": "left",
        "subscriber": group,
        "cut": dump_positions(record.cut or {}),
        "last_active_ms": record.updated_ms,
    }
    audit_entry = AuditEntry(kind=AuditKind.DROP, target=str(name), fields=fields)
    gone = replace(record, dropped=True)
    versions = await ctx.metadata.put(known.put(gone), *ctx.audit.puts([audit_entry]))
    await ctx.metadata.remove_if_unchanged([Stored(key=entry.key, value=gone, version=versions[0]).remove()])
    return False


async def _reopened(ctx: Context, view: StreamView) -> tuple[StreamRecord, TablePut]:
    """The stream's record with a new epoch over the same keys, and the put of that epoch. Its segments exist
    already."""
    name, record = view.name, view.record
    before = await load_epoch(ctx, name, record.epoch)
    epoch = record.epoch + 1
    fresh = tuple(
        SegmentRange(segment=make_segment_id(epoch, record.next_number + place), keys=item.keys)
        for place, item in enumerate(before.segments)
    )
    names = [segment_name(name, item.segment) for item in fresh]
    await create_segments(ctx.segments, names, rollover_bytes=record.config.rollover_bytes)
    entry = EpochEntry(epoch=epoch, segments=fresh, created_ms=ctx.clock.now_ms())
    reopened = replace(
        record, state=StreamState.ACTIVE, epoch=epoch, next_number=record.next_number + len(fresh), ending=False
    )
    return reopened, overwrite(keys.epoch(name, epoch), entry)


async def restored_record(
    ctx: Context, name: StreamName, incarnation: int
) -> tuple[StreamRecord | None, Sequence[TableCheck]]:
    """A deleted stream's own record, and the checks of the step that restores it. None: it is restored already.

    Later streams of the name may have used higher segment numbers; none of them is used again.
    """
    own = retention_keys.deleted_row(name, incarnation, keys.stream(name))
    entries = await ctx.metadata.entries([own, keys.number(name), keys.NUMBER_FLOOR])
    record = stored(entries[0], StreamRecord).value
    first, conditions = first_number(entries[1], entries[2])
    if record is None:
        return None, ()
    return replace(record, next_number=max(record.next_number, first)), conditions
