"""The mark stream of a stream: its one segment holds a watermark an event, as Pravega's readers expect."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

from penstock.codec.events import cut_events, event_bounds, frame_events
from penstock.codec.watermarks import StoredMark, decode_mark, encode_mark
from penstock.controller.context import Context
from penstock.controller.grace.deleted_records import mark_stream
from penstock.core.segments.writer_memory import FIXED_IDS
from penstock.core.streams.history import StreamHistory
from penstock.core.streams.watermarks import Watermark
from penstock.model.errors import (
    ConditionFailedError,
    CorruptDataError,
    SegmentNotFoundError,
    StreamNotFoundError,
    WriterFencedError,
)
from penstock.model.names import StreamName, segment_name
from penstock.model.segments import SegmentId, SegmentRange
from penstock.model.values.dataclass import dataclass
from penstock.ports.data.segments import NO_EVENT, READ_MAX_BYTES, Append

WRITER = UUID(int=FIXED_IDS << 64 | 0x6D_61_72_6B_73_00_00_01)

KEPT_BYTES = 64 << 10
"""Watermarks from before the head that stay: a reader that the truncation overtakes still reads on behind its last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkSegment:
    """The segment, as it was when this was read."""

    id: SegmentId
    name: str
    start: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedMark:
    """A watermark, where it begins, and where the next one will."""

    mark: StoredMark
    start: int
    end: int


async def find_segment(ctx: Context, stream: StreamName) -> MarkSegment | None:
    """The segment with the stream's watermarks; None for a stream that has none: an internal one."""
    name = mark_stream(stream)
    view = None if name is None else await ctx.streams.find(name)
    if name is None or view is None:
        return None
    (active,) = (await ctx.histories.remaining(view)).active.segments
    text = segment_name(name, active.segment)
    try:
        info = await ctx.segments.info(text)
    except (SegmentNotFoundError, StreamNotFoundError):
        # Deleted since its record was read.
        return None
    return MarkSegment(id=active.segment, name=text, start=info.start_offset, length=info.length)


async def marks_from(ctx: Context, segment: MarkSegment, place: int) -> AsyncIterator[PlacedMark]:
    """The watermarks from ``place`` on, which is 0 or where one begins. Raises TruncatedError, CorruptDataError."""
    at = max(place, segment.start)
    rest = b""
    while at + len(rest) < segment.length:
        room = min(READ_MAX_BYTES, segment.length - at - len(rest))
        found = await ctx.segments.read(segment.name, at + len(rest), room, wait=False)
        rest += b"".join(bytes(part) for part in found.parts)
        bounds = event_bounds(rest, segment=segment.name, offset=at)
        for event, start, end in zip(cut_events(rest, bounds), bounds, bounds[1:], strict=False):
            yield PlacedMark(mark=decode_mark(event), start=at + start, end=at + end)
        at += bounds[-1]
        rest = rest[bounds[-1] :]
    if rest:
        raise CorruptDataError("no watermark begins here", segment=segment.name, offset=at)


async def append_mark(ctx: Context, segment: MarkSegment, history: StreamHistory, watermark: Watermark) -> int | None:
    """Append the watermark at the end that ``segment`` knows; returns the end behind it. None: another one is there."""
    ranges = history.index.ranges
    cut = {SegmentRange(segment=item, keys=ranges[item]): offset for item, offset in watermark.cut.items()}
    event = encode_mark(StoredMark(lower_ms=watermark.lower_ms, upper_ms=watermark.upper_ms, cut=cut))
    last = await ctx.segments.setup_append(segment.name, WRITER)
    request = Append(
        segment=segment.name,
        writer=WRITER,
        data=frame_events([event]),
        event_number=1 if last == NO_EVENT else last + 1,
        previous=last,
        expected_offset=segment.length,
    )
    try:
        return (await ctx.segments.append(request)).end_offset
    except (ConditionFailedError, WriterFencedError):
        # Another controller has appended: its watermark is read first.
        return None
