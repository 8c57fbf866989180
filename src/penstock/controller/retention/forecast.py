"""The forecast of a stream: when each limit, each quota and the disk is reached at the recent rates."""

from __future__ import annotations

from penstock.controller.context import Context
from penstock.controller.retention.cycle import load_subscribers
from penstock.controller.retention.points import load_points
from penstock.controller.retention.policies import load_levels
from penstock.controller.streams.cuts import asked_again
from penstock.controller.streams.tails import head_positions, load_tail
from penstock.core.cuts.order import at_or_after, size_till
from penstock.core.retention.forecast import POINTS_MAX, Filling, Point, rates
from penstock.model.answers.forecast import Forecast, HistoryPoint, ReachedLimit
from penstock.model.errors import UnsupportedError
from penstock.model.names import StreamName
from penstock.model.retention import EffectivePolicy


@asked_again
async def forecast(ctx: Context, name: StreamName) -> Forecast:
    """Return the rates, what they fill and when, and the history for plots.

    Times are of the retention clock. A quota is compared with the subscriber that is furthest behind. Raises:
    ScopeNotFoundError, StreamNotFoundError, UnavailableError.
    """
    view, head, history, tail = await load_tail(ctx, name)
    now_ms = ctx.retention_clock.now_ms()
    start = head_positions(history, head)
    tail_bytes, head_bytes = size_till(history, tail), size_till(history, start)
    stored = [
        Point(time_ms=item.time_ms, size_bytes=item.size_bytes, head_bytes=item.head_bytes)
        for item in await load_points(ctx, name)
        if item.time_ms < now_ms and item.size_bytes <= tail_bytes
    ]
    points = [*stored, Point(time_ms=now_ms, size_bytes=tail_bytes, head_bytes=head_bytes)]
    speed = rates(points)
    policy = (await load_levels(ctx, view)).effective
    slowest = ("", tail_bytes)
    for group, item in (await load_subscribers(ctx, view)).items():
        cut = item.cut
        if cut is not None:
            acknowledged = size_till(history, cut) if at_or_after(history, cut, start) else head_bytes
            slowest = min(slowest, (group, acknowledged), key=lambda pair: (pair[1], pair[0]))
    growth = speed.append_bytes_per_s - speed.release_bytes_per_s
    fillings = _limits(policy, tail_bytes - head_bytes, growth)
    if policy.backlog_bytes is not None and slowest[0]:
        fillings.append(
            Filling(
                what="backlog.max_bytes",
                limit=policy.backlog_bytes,
                used=tail_bytes - slowest[1],
                per_s=growth,
                subscriber=slowest[0],
            )
        )
    fillings += await _disk(ctx, growth)
    return Forecast(
        version=1,
        stream=str(name),
        at_ms=now_ms,
        size_bytes=tail_bytes - head_bytes,
        append_bytes_per_s=speed.append_bytes_per_s,
        release_bytes_per_s=speed.release_bytes_per_s,
        window_ms=speed.window_ms,
        reaches=[
            ReachedLimit(
                what=item.what,
                limit_bytes=item.limit,
                used_bytes=item.used,
                bytes_per_s=item.per_s,
                subscriber=item.subscriber,
                at_ms=item.reached_ms(now_ms),
            )
            for item in fillings
        ],
        history=[HistoryPoint(item.time_ms, item.size_bytes, item.head_bytes) for item in points[-POINTS_MAX:]],
    )


def _limits(policy: EffectivePolicy, size: int, growth: float) -> list[Filling]:
    found = []
    for what, limit in (("retain.min_bytes", policy.min_bytes), ("retain.max_bytes", policy.max_bytes)):
        if limit:
            found.append(Filling(what=what, limit=limit, used=size, per_s=growth))
    return found


async def _disk(ctx: Context, growth: float) -> list[Filling]:
    """The disk, if this stream alone filled it."""
    try:
        disk = await ctx.segments.disk()
    except UnsupportedError:
        return []
    limit = disk.used_bytes + disk.free_bytes
    if disk.budget_bytes is not None:
        limit = min(limit, disk.budget_bytes)
    return [Filling(what="disk", limit=limit, used=disk.used_bytes, per_s=growth)]
