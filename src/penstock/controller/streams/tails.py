"""The current heads and tails of streams."""

from __future__ import annotations

from penstock.codec.control.record import Positions
from penstock.codec.control.streams import HeadRecord, StreamState
from penstock.controller.context import Context
from penstock.controller.stream_view import StreamView
from penstock.controller.tasks import collect
from penstock.core.cuts.order import head_of
from penstock.core.streams.history import StreamHistory
from penstock.model.errors import SegmentNotFoundError, UnavailableError
from penstock.model.names import StreamName, segment_name
from penstock.model.segments import SegmentId
from penstock.model.values.dataclass import dataclass
from penstock.ports.data.segments import SegmentInfo

_TRIES = 8  # times that the epoch may change during one answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The exact end of a stream.

    ``events``: of the whole history, truncated ones included, without those that were never counted. Differences are
    exact, because uncounted ones stay uncounted. ``open_events``: those of segments that still accept events.
    ``last_append_ms``: time of the last append or of the creation; None for a sealed stream, whose segments may be
    deleted.
    """

    positions: dict[SegmentId, int]
    events: int
    open_events: dict[SegmentId, int]
    last_append_ms: int | None


async def tail_of(ctx: Context, view: StreamView, history: StreamHistory) -> Tail:
    """The end of each segment of the last epoch, requested from the store unless it is known to be sealed.

    Raises: SegmentNotFoundError if the stream has changed since ``view`` was read.
    """
    segments = [item.segment for item in history.active.segments]
    counted = ctx.histories.events_of(view.name)
    infos: dict[SegmentId, SegmentInfo] = {}
    if view.record.state is StreamState.SEALED:
        positions = {segment: history.sealed_lengths[segment] for segment in segments}
    else:
        infos = await collect(segments, lambda segment: ctx.segments.info(segment_name(view.name, segment)))
        positions = {segment: info.length for segment, info in infos.items()}
        for info in infos.values():
            ctx.events.learn(info)
    open_events = {segment: info.event_count for segment, info in infos.items()}
    total = sum(open_events.get(segment, counted.get(segment, 0)) for segment in history.index.ids)
    last_ms = max((info.last_modified_ms for info in infos.values()), default=None)
    return Tail(
        positions=positions,
        events=total,
        open_events=open_events,
        last_append_ms=None if last_ms is None else max(last_ms, view.record.created_ms),
    )


async def tail_positions(ctx: Context, view: StreamView, history: StreamHistory) -> dict[SegmentId, int]:
    """As ``tail_of``, only the positions."""
    return (await tail_of(ctx, view, history)).positions


def head_positions(history: StreamHistory, head: HeadRecord | None) -> Positions:
    """The first readable position."""
    visible = {} if head is None else head.visible
    return visible or head_of(history)


async def load_whole(ctx: Context, name: StreamName) -> tuple[StreamView, HeadRecord | None, StreamHistory, Tail]:
    """A stream, its head and history, and its tail, consistent, as if read at one moment.

    Raises: ScopeNotFoundError, StreamNotFoundError; UnavailableError if it scales faster than it can be read.
    """
    for _ in range(_TRIES):
        view, head = await ctx.streams.get_with_head(name)
        history = await ctx.histories.of(view)
        try:
            return view, head.value, history, await tail_of(ctx, view, history)
        except SegmentNotFoundError:
            # The stream was scaled and truncated since its record was read: read again.
            continue
    raise UnavailableError("stream changes faster than its tail can be read", stream=str(name))


async def load_tail(ctx: Context, name: StreamName) -> tuple[StreamView, HeadRecord | None, StreamHistory, Positions]:
    """As ``load_whole``, with only the positions of the tail."""
    view, head, history, tail = await load_whole(ctx, name)
    return view, head, history, tail.positions
