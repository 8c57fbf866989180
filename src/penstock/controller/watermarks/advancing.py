"""Advancing watermarks: from the marks of writers to the mark stream, in steps that may be repeated.

The watermark is appended first, where the last known one ends, and recorded afterwards. A controller that finds more
data there takes it for the last watermark. So a crash in between loses nothing and appends nothing twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace

from penstock.codec.control.streams import HeadRecord
from penstock.codec.control.watermarks import WatermarkRecord, WriterMarkRecord
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.metadata import Stored, changing, stored
from penstock.controller.stream_view import StreamView
from penstock.controller.watermarks.mark_segment import KEPT_BYTES, MarkSegment, append_mark, find_segment, marks_from
from penstock.core.cuts.order import at_or_after
from penstock.core.streams.history import StreamHistory
from penstock.core.streams.watermarks import Watermark, WriterMark, advance, timeout_of
from penstock.model.errors import NotFoundError, PenstockError
from penstock.model.names import StreamName
from penstock.model.values.dataclass import dataclass

log = logging.getLogger(__name__)

_AGAIN_MS = 5000  # pause before a look that failed is repeated


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    view: StreamView
    history: StreamHistory
    segment: MarkSegment
    last: Stored[WatermarkRecord]
    watermark: Watermark | None


class Advancing:
    """Looks at the streams that are due. One pass at a time; ``run`` lives in a task of the controller's."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    async def start(self) -> None:
        """Plan a look at every stream with marks of writers."""
        async for entry in self._ctx.metadata.scan_all(keys.WRITER_MARKS):
            name = self._ctx.set_aside.key(entry, keys.stream_of_mark)
            if name is not None:
                self._ctx.watermarks.soon(name)

    async def run(self) -> None:
        """A pass in each period."""
        pause_ms = self._ctx.settings.watermark_ms
        while pause_ms is not None:
            await asyncio.sleep(pause_ms / 1000)
            await self.run_once()

    async def run_once(self) -> int:
        """Look at all streams that are due; returns how many watermarks advanced. A failure stops no other stream."""
        advanced = 0
        for name in self._ctx.watermarks.take(self._ctx.clock.now_ms()):
            try:
                advanced += await changing(lambda name=name: self._advance(name))  # type: ignore[misc]
            except NotFoundError:
                # Deleted; its marks are deleted with it.
                continue
            except PenstockError as error:
                log.warning("watermark does not advance", extra={"stream": str(name), "error": str(error)})
                self._ctx.watermarks.at(name, self._ctx.clock.now_ms() + _AGAIN_MS)
            except Exception:
                log.exception("advancing a watermark failed with an unexpected error", extra={"stream": str(name)})
                self._ctx.watermarks.at(name, self._ctx.clock.now_ms() + _AGAIN_MS)
        return advanced

    async def _advance(self, name: StreamName) -> bool:
        ctx = self._ctx
        known = await self._known(name)
        if known is None:
            return False
        rows = await self._rows(name)
        marks = {writer: _mark(item.value) for writer, item in rows.items() if item.value is not None}
        now_ms = ctx.clock.now_ms()
        decided = advance(
            known.history,
            marks,
            known.watermark,
            now_ms=now_ms,
            timeout_ms=timeout_of(known.view.record.config.timestamp_aggregation_ms),
        )
        if decided.watermark is not None:
            place = await append_mark(ctx, known.segment, known.history, decided.watermark)
            if place is None:
                ctx.watermarks.soon(name)
                return False
            record = _record(known.segment, place, decided.watermark)
            await ctx.metadata.put(known.last.put(record), known.view.check())
            ctx.telemetry.add("watermarks")
        await ctx.metadata.remove_if_unchanged([rows[writer].remove() for writer in decided.forgotten])
        for writer in decided.redated:
            mark = rows[writer].value
            if writer not in decided.forgotten and mark is not None:
                await ctx.metadata.put(rows[writer].put(replace(mark, noted_ms=now_ms)), known.view.check())
        if decided.due_ms is not None:
            ctx.watermarks.at(name, decided.due_ms)
        await self._truncate(known)
        return decided.watermark is not None

    async def _known(self, name: StreamName) -> _Known | None:
        """What is stored, with a watermark that was appended and not remembered. None: the stream has no mark stream."""
        ctx = self._ctx
        view = await ctx.streams.get(name)
        history = await ctx.histories.of(view)
        segment = await find_segment(ctx, name)
        if segment is None:
            return None
        last = await ctx.metadata.get(keys.watermark(name), WatermarkRecord)
        found = last.value
        watermark, place = None, 0
        if found is not None:
            watermark = Watermark(lower_ms=found.lower_ms, upper_ms=found.upper_ms, cut=found.cut)
            place = found.place if found.segment == segment.id else 0
        async for item in marks_from(ctx, segment, place):
            mark = item.mark
            watermark = Watermark(lower_ms=mark.lower_ms, upper_ms=mark.upper_ms, cut=mark.positions)
        return _Known(view=view, history=history, segment=segment, last=last, watermark=watermark)

    async def _rows(self, name: StreamName) -> Mapping[str, Stored[WriterMarkRecord]]:
        prefix = keys.writer_marks(name)
        found: dict[str, Stored[WriterMarkRecord]] = {}
        async for entry in self._ctx.metadata.scan_all(prefix):
            if self._ctx.set_aside.read(entry, WriterMarkRecord) is not None:
                found[entry.key[len(prefix) :].decode("utf-8", "replace")] = stored(entry, WriterMarkRecord)
        return found

    async def _truncate(self, known: _Known) -> None:
        """Free watermarks from before the stream's head, but for the last of them and ``KEPT_BYTES``."""
        ctx, name = self._ctx, known.view.name
        head = (await ctx.metadata.get(keys.head(name), HeadRecord)).value
        if head is None or not head.cut or known.segment.length - known.segment.start <= KEPT_BYTES:
            return
        starts = []
        async for item in marks_from(ctx, known.segment, 0):
            if not at_or_after(known.history, head.cut, item.mark.positions):
                break
            starts.append(item.start)
        kept_from = starts[-1] - KEPT_BYTES if starts else 0
        upto = max((start for start in starts if start <= kept_from), default=0)
        if upto > known.segment.start:
            await ctx.segments.truncate(known.segment.name, upto)


def _mark(record: WriterMarkRecord) -> WriterMark:
    return WriterMark(time_ms=record.time_ms, position=record.position, noted_ms=record.noted_ms, left=record.left)


def _record(segment: MarkSegment, place: int, watermark: Watermark) -> WatermarkRecord:
    return WatermarkRecord(
        segment=segment.id,
        place=place,
        lower_ms=watermark.lower_ms,
        upper_ms=watermark.upper_ms,
        cut=watermark.cut,
    )
