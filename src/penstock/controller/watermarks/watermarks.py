"""``ports.control.watermarks.Watermarks`` of all streams."""

from __future__ import annotations

from dataclasses import replace

from penstock.codec.control.watermarks import WriterMarkRecord
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.grace.deleted_records import mark_stream
from penstock.controller.metadata import changing
from penstock.controller.streams.cuts import check_given, retry_if_moved
from penstock.controller.streams.tails import load_tail
from penstock.controller.watermarks.mark_segment import find_segment, marks_from
from penstock.controller.watermarks.notes import note_time
from penstock.core.cuts.check import check_same_stream
from penstock.core.cuts.order import Positions, at_or_after
from penstock.core.streams.history import StreamHistory
from penstock.core.streams.watermarks import writer_position
from penstock.model.cuts import StreamCut
from penstock.model.errors import CorruptDataError, InvalidArgumentError, TruncatedError
from penstock.model.names import StreamName
from penstock.ports.control.transactions import WRITER_NAME_MAX
from penstock.ports.control.watermarks import TimeWindow


class Watermarks:
    """Notes of writers go into the table; the watermark itself is advanced in the background (``advancing``)."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    async def note_time(
        self, stream: StreamName, writer: str, time_ms: int, *, position: StreamCut | None = None
    ) -> None:
        """See ``ports.control.watermarks.Watermarks.note_time``."""
        _check_writer(stream, writer)
        if position is None:
            view, _, _, tail = await load_tail(self._ctx, stream)
            await note_time(self._ctx, stream, writer, time_ms, tail, incarnation=view.record.incarnation)
            return
        check_same_stream(stream, position)
        given = position.positions
        await retry_if_moved(stream, lambda: self._note_given(stream, writer, time_ms, given))

    async def _note_given(self, stream: StreamName, writer: str, time_ms: int, given: Positions) -> None:
        view = await self._ctx.streams.get(stream)
        history = await self._ctx.histories.of(view)
        reached = writer_position(history, given)
        await check_given(self._ctx.segments, view, history, StreamCut(stream, reached))
        await note_time(self._ctx, stream, writer, time_ms, reached, incarnation=view.record.incarnation)

    async def remove_writer(self, stream: StreamName, writer: str) -> None:
        """See ``ports.control.watermarks.Watermarks.remove_writer``."""
        _check_writer(stream, writer)

        async def attempt() -> None:
            view = await self._ctx.streams.get(stream)
            found = await self._ctx.metadata.get(keys.writer_mark(stream, writer), WriterMarkRecord)
            if found.value is not None and not found.value.left:
                await self._ctx.metadata.put(found.put(replace(found.value, left=True)), view.check())

        await changing(attempt)
        self._ctx.watermarks.soon(stream)

    async def _checked(self, position: StreamCut) -> StreamHistory:
        view = await self._ctx.streams.get(position.stream)
        history = await self._ctx.histories.of(view)
        await check_given(self._ctx.segments, view, history, position)
        return history

    async def time_window(self, position: StreamCut, *, place: int = 0) -> TimeWindow:
        """See ``ports.control.watermarks.Watermarks.time_window``."""
        if place < 0:
            raise InvalidArgumentError("a place must be from an earlier answer, or 0", place=place)
        ctx, stream = self._ctx, position.stream
        history = await retry_if_moved(stream, lambda: self._checked(position))
        segment = await find_segment(ctx, stream)
        lower: int | None = None
        if segment is None:
            return TimeWindow(lower_ms=None, upper_ms=None)
        begin = place if segment.start <= place < segment.length else 0
        try:
            async for item in marks_from(ctx, segment, begin):
                # The mark may be in segments that are newer than the history, if the stream was scaled meanwhile.
                later = not item.mark.positions.keys() <= history.index.ranges.keys()
                if later or not at_or_after(history, position.positions, item.mark.positions):
                    return TimeWindow(lower_ms=lower, upper_ms=item.mark.upper_ms, place=begin)
                lower, begin = item.mark.lower_ms, item.start
        except TruncatedError:
            # Truncated since its start was read: only what remains can be passed.
            return await self.time_window(position)
        except CorruptDataError:
            if not place:
                raise
            # No watermark begins at this place.
            return await self.time_window(position)
        return TimeWindow(lower_ms=lower, upper_ms=None, place=begin)


def _check_writer(stream: StreamName, writer: str) -> None:
    if mark_stream(stream) is None:
        raise InvalidArgumentError("an internal stream has no watermarks", stream=str(stream))
    if not 0 < len(writer) <= WRITER_NAME_MAX:
        raise InvalidArgumentError(
            "a writer needs a name of 1 to 255 characters", stream=str(stream), characters=len(writer)
        )
