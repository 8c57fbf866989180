"""How far a position is behind the tail of its stream: in bytes, events and time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.client.moments import Services
from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidCutError, leaves
from penstock.model.names import StreamName, segment_name
from penstock.model.values.dataclass import dataclass
from penstock.ports.control.cuts import SegmentSpan
from penstock.ports.control.plane import ControlPlane
from penstock.ports.data.service import SegmentService


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """The data after a position. ``events``: None if the store no longer knows their number. ``oldest_ms``: when the
    oldest of it was appended, in milliseconds since the Unix epoch, exact to one block; None if nothing is unread, or no
    time was kept."""

    bytes: int
    events: int | None
    oldest_ms: int | None


async def unread_after(services: Services, position: StreamCut) -> Unread:
    """What lies between the position and the tail now.

    Raises StreamNotFoundError, InvalidCutError (not a position of the stream), UnavailableError.
    """
    stream = position.stream
    spans = await services.controller.cuts.measure(stream, position, StreamCut(stream, {}))
    counts = [item.events for item in spans]
    known = [count for count in counts if count is not None]
    return Unread(
        bytes=sum(item.end - item.start for item in spans),
        events=sum(known) if len(known) == len(counts) else None,
        oldest_ms=await _oldest_ms(services.segments, stream, spans),
    )


async def readable_from(controller: ControlPlane, cut: StreamCut) -> StreamCut:
    """The head where the cut is before it: data there was truncated. A cut that is partly before it stays."""
    head = await controller.cuts.head(cut.stream)
    try:
        await controller.cuts.measure(cut.stream, cut, head)
    except InvalidCutError:
        return cut
    return head


async def _oldest_ms(segments: SegmentService, stream: StreamName, spans: Sequence[SegmentSpan]) -> int | None:
    # The oldest unread event begins a span; later segments of a key are younger than their predecessors.
    try:
        async with asyncio.TaskGroup() as group:
            asked = [
                group.create_task(_came_ms(segments, segment_name(stream, item.segment), item.start)) for item in spans
            ]
    except ExceptionGroup as errors:
        raise next(leaves(errors)) from None
    return min((at for task in asked if (at := task.result()) is not None), default=None)


async def _came_ms(segments: SegmentService, name: str, offset: int) -> int | None:
    """When the first event of the offset's block was appended. If no block holds the offset yet, the time of the segment's
    last append. None if the segment is deleted."""
    info = (await segments.infos([name])).get(name)
    if info is None or offset < info.start_offset:
        return None
    for chunk in await segments.chunk_ranges(name, offset, offset + 1):
        for block in chunk.blocks:
            if block.start_offset <= offset < block.end_offset:
                return block.first_ms
    return info.last_modified_ms
