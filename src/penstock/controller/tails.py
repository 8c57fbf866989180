"""Where streams begin and end right now."""

from __future__ import annotations

from penstock.codec.metadata import HeadRecord, Positions, StreamState
from penstock.controller.context import Context, StreamView
from penstock.controller.tasks import collect
from penstock.core.cut_order import head_of
from penstock.core.history import StreamHistory
from penstock.model.errors import SegmentNotFoundError, UnavailableError
from penstock.model.names import StreamName, segment_name
from penstock.model.segments import SegmentId

_TRIES = 8


async def tail_positions(ctx: Context, view: StreamView, history: StreamHistory) -> dict[SegmentId, int]:
    """The exact end of each segment of the last epoch, asked from the store unless it is known to be sealed.

    Raises: SegmentNotFoundError where the stream has moved on since ``view`` was read.
    """
    segments = [item.segment for item in history.active.segments]
    if view.record.state is StreamState.SEALED:
        return {segment: history.sealed_lengths[segment] for segment in segments}
    infos = await collect(segments, lambda segment: ctx.segments.info(segment_name(view.name, segment)))
    return {segment: info.length for segment, info in infos.items()}


def head_positions(history: StreamHistory, head: HeadRecord | None) -> Positions:
    """The first position that may be read."""
    visible = {} if head is None else head.visible
    return visible or head_of(history)


async def load_tail(ctx: Context, name: StreamName) -> tuple[StreamView, HeadRecord | None, StreamHistory, Positions]:
    """A stream, its head and history, and its tail, all of one moment as far as anybody can tell.

    Raises: ScopeNotFoundError, StreamNotFoundError; UnavailableError where it scales faster than it can be looked at.
    """
    for _ in range(_TRIES):
        view, head = await ctx.stream_and_head(name)
        history = await ctx.histories.of(view)
        try:
            return view, head.value, history, await tail_positions(ctx, view, history)
        except SegmentNotFoundError:
            # Scaled and truncated since the record was read: look again.
            continue
    raise UnavailableError("stream changes faster than its tail can be read", stream=str(name))
