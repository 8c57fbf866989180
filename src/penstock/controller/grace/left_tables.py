"""Tables that a deleted stream leaves behind.

A table is a subscriber of its stream, and its rows are copies of the stream's events. The deletion removes the
subscriber, but not the rows. So a record of the tables stays: cases of erasure must know where events may still be.
Source: docs/design/0056-erasure-cases.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from penstock.codec.control.cases import LeftTablesRecord
from penstock.codec.control.readers import SubscriberRecord
from penstock.codec.control.streams import HIDDEN
from penstock.controller import keys, retention_keys
from penstock.controller.context import Context
from penstock.controller.metadata import overwrite
from penstock.controller.stream_view import StreamView
from penstock.core.streams.query_source import TABLE_PREFIX
from penstock.model.names import StreamName, segment_name


async def note_left_tables(ctx: Context, view: StreamView) -> None:
    """Record the tables of a stream that is being deleted, before its subscribers and bytes go. Repeatable: after a crash
    some of them may be gone, so the first record stays."""
    name, incarnation = view.name, view.record.incarnation
    tables: set[str] = set()
    async for entry in ctx.metadata.scan_all(keys.subscribers(name)):
        record = ctx.set_aside.read(entry, SubscriberRecord)
        if record is not None and record.incarnation == incarnation and record.query.startswith(TABLE_PREFIX):
            tables.add(record.query.removeprefix(TABLE_PREFIX))
    key = retention_keys.left_tables(name, incarnation)
    if not tables or (await ctx.metadata.get(key, LeftTablesRecord)).value is not None:
        return
    history = await ctx.histories.of(view)
    names = {segment: segment_name(name, segment) for segment in history.index.ids}
    infos = await ctx.segments.infos(list(names.values()))
    bounds = {
        segment: (infos[text].start_offset, infos[text].length) for segment, text in names.items() if text in infos
    }
    await ctx.metadata.put(overwrite(key, LeftTablesRecord(tables=sorted(tables), bounds=bounds)))


async def forget_left_tables(ctx: Context, view: StreamView) -> None:
    """Remove the record of a stream that is restored: its tables are subscribers again."""
    await ctx.metadata.remove_keys([retention_keys.left_tables(view.name, view.record.incarnation)])


async def left_tables(ctx: Context, name: StreamName, incarnation: int) -> LeftTablesRecord | None:
    """The tables that a deleted stream has left behind. None: it had none, or is not deleted."""
    return (await ctx.metadata.get(retention_keys.left_tables(name, incarnation), LeftTablesRecord)).value


async def all_left_tables(ctx: Context) -> AsyncIterator[tuple[StreamName, int, LeftTablesRecord]]:
    """Those of all deleted streams, with name and incarnation, in the order of names. A stream that is being restored
    counts as deleted until that is done."""
    async for entry in ctx.metadata.scan_all(retention_keys.LEFT_TABLES):
        place = ctx.set_aside.key(entry, retention_keys.left_tables_of)
        record = ctx.set_aside.read(entry, LeftTablesRecord)
        if place is None or record is None:
            continue
        name, incarnation = place
        view = await ctx.streams.find(name)
        if view is None or view.record.incarnation != incarnation or view.record.state in HIDDEN:
            yield name, incarnation, record
