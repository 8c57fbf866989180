"""Cuts between events, close to the position that a byte or event limit wants. Records alone would meet it only
roughly.

Source: docs/design/0036-retention-in-the-controller.md.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence

from penstock.controller.streams.boundary_finder import BoundaryFinder
from penstock.core.cuts.between import cut_between
from penstock.core.cuts.compose import Counted, compose, counted_segments
from penstock.core.cuts.order import Positions, lower_bound, size_till
from penstock.core.policies.levels import floor_of
from penstock.core.retention.facts import StreamCutRecord, SubscriberActivity
from penstock.model.cuts import NOT_STARTED
from penstock.model.retention import EffectivePolicy, Measure, OnExceed
from penstock.model.segments import KeyRange, SegmentId

_GAP_SHARE = 100  # part of a limit, 1/100: how far apart known boundaries may lie
_GAP_MIN = 64
"""Records are close enough if the gap between them is at most a hundredth of the limit, or a few small events."""

_COMPOSED_MAX = 256
"""Up to this many segments, per-segment limits are followed into earlier epochs: the work grows with the square."""


async def boundaries_of(
    finder: BoundaryFinder,
    policy: EffectivePolicy,
    records: Sequence[StreamCutRecord],
    cuts: Mapping[str, Positions],
    activity: Mapping[str, SubscriberActivity],
) -> list[StreamCutRecord]:
    """Cuts at event boundaries for all rules that need one, as close as events allow.

    Raises: SegmentNotFoundError if the stream has changed; other errors of the store. They are not ignored: without the
    boundary for a maximum, the tail could be the only cut that meets it, and all data would be deleted.
    """
    published = {name: cut for name, cut in cuts.items() if cut}
    found = await _of_quotas(finder, policy, published, activity)
    if policy.measure is Measure.SEGMENT:
        found += await _of_segments(finder, policy, records, published)
    else:
        found += await _of_stream(finder, policy, published)
    return found


async def _of_quotas(
    finder: BoundaryFinder,
    policy: EffectivePolicy,
    published: Mapping[str, Positions],
    activity: Mapping[str, SubscriberActivity],
) -> list[StreamCutRecord]:
    """The cut to which an exceeded quota moves subscribers. None if nobody loses data by it."""
    evicts_bytes = policy.backlog_bytes is not None and policy.bytes_action is OnExceed.EVICT
    evicts_events = policy.backlog_events is not None and policy.events_action is OnExceed.EVICT
    if not (evicts_bytes or evicts_events) or not published:
        return []
    tail = finder.tail
    found: list[StreamCutRecord | None] = []
    slowest = min(size_till(finder.history, cut) for cut in published.values())
    if evicts_bytes and policy.backlog_bytes is not None and tail.size_bytes - slowest >= policy.backlog_bytes:
        found.append(await finder.leaving_bytes(math.floor(policy.backlog_bytes * policy.evict_to)))
    if evicts_events and policy.backlog_events is not None and tail.event_count is not None:
        behind = max((activity[name].backlog_events or 0 for name in published if name in activity), default=0)
        if behind >= policy.backlog_events:
            found.append(await finder.leaving_events(math.floor(policy.backlog_events * policy.evict_to)))
    return [item for item in found if item is not None]


def _limits(policy: EffectivePolicy) -> tuple[int | None, int | None]:
    """The minimum and the maximum of bytes that can affect a cut; a minimum of 0 never does."""
    floor = floor_of(policy)
    if not policy.truncates or floor.unlimited:
        return None, None
    return floor.size_bytes or None, policy.max_bytes


def _is_coarse(gap: int, limit: int) -> bool:
    return gap > max(limit // _GAP_SHARE, _GAP_MIN)


# --- limits of the stream --------------------------------------------------------------------------------------------


async def _of_stream(
    finder: BoundaryFinder, policy: EffectivePolicy, published: Mapping[str, Positions]
) -> list[StreamCutRecord]:
    """The latest cut that leaves the minimum, and the earliest that leaves no more than the maximum."""
    minimum, maximum = _limits(policy)
    live = finder.tail.size_bytes - size_till(finder.history, finder.head)
    above = maximum is not None and live > maximum
    found: list[StreamCutRecord | None] = []
    if minimum is not None and live > minimum and (above or _reaches(finder, policy, published, minimum)):
        found.append(await _near(finder, minimum, down=True))
    if maximum is not None and above:
        found.append(await _near(finder, maximum, down=False))
    return [item for item in found if item is not None]


def _reaches(finder: BoundaryFinder, policy: EffectivePolicy, published: Mapping[str, Positions], minimum: int) -> bool:
    """Whether the minimum may keep data that all subscribers have read, or that rules take from them."""
    moves = policy.ttl_ms is not None or policy.limits_backlog or policy.subscriber_idle_ms is not None
    if moves or not published:
        return True
    read = size_till(finder.history, lower_bound(finder.history, published.values()))
    return finder.tail.size_bytes - read < minimum


async def _near(finder: BoundaryFinder, limit: int, *, down: bool) -> StreamCutRecord | None:
    size = finder.tail.size_bytes - limit
    low, high = finder.around(size)
    if high.size_bytes == size or not _is_coarse(high.size_bytes - size_till(finder.history, low), limit):
        return None
    return await finder.at_size(size, down=down)


# --- limits of each segment ------------------------------------------------------------------------------------------


async def _of_segments(
    finder: BoundaryFinder,
    policy: EffectivePolicy,
    records: Sequence[StreamCutRecord],
    published: Mapping[str, Positions],
) -> list[StreamCutRecord]:
    """One cut for the minimum and one for the maximum. In each, every segment at the tail meets its own limit, as far
    as epochs allow."""
    minimum, maximum = _limits(policy)
    items = counted_segments(finder.history, finder.tail.positions)
    head = [item.before(finder.history, finder.head) for item in items]
    found: list[StreamCutRecord | None] = []
    for limit, down in ((minimum, True), (maximum, False)):
        if limit is None:
            continue
        coarse = any(
            item.end - before > limit and _is_coarse(_gap(finder, item, before, records, item.end - limit), limit)
            for item, before in zip(items, head, strict=True)
        )
        if coarse:
            found.append(await _composed(finder, items, head, limit, down=down))
    return [item for item in found if item is not None]


def _gap(finder: BoundaryFinder, item: Counted, head: int, records: Sequence[StreamCutRecord], target: int) -> int:
    """Distance between the segment's positions in the records around the target; 0 if one is at the target."""
    history = finder.history
    place = bisect_left(records, target, key=lambda record: item.before(history, record.positions))
    high = item.before(history, records[place].positions) if place < len(records) else item.end
    low = max(head, item.before(history, records[place - 1].positions)) if place else head
    return 0 if high == target else high - low


async def _composed(
    finder: BoundaryFinder, items: Sequence[Counted], head: Sequence[int], limit: int, *, down: bool
) -> StreamCutRecord | None:
    history, tail = finder.history, finder.tail
    wide = len(items) > _COMPOSED_MAX
    own: dict[SegmentId, int] = {}
    deeper: list[tuple[Counted, int]] = []
    for item, before in zip(items, head, strict=True):
        # Data before the head is deleted; a minimum that is not reached allows no deletion.
        target = max(item.end - limit, before)
        segment = item.segments[-1]
        if target >= item.earlier and (target > before or finder.head.get(segment, NOT_STARTED) >= 0):
            own[segment] = target - item.earlier
        elif not wide:
            deeper.append((item, target))
        elif down:
            # If earlier epochs were not examined, none of their data is deleted.
            return None
        else:
            own[segment] = 0
    low = {segment: max(finder.head.get(segment, 0), 0) for segment in own}
    own = await finder.aligned(own, low, tail.positions, down=down)
    if not deeper:
        return finder.record(own, tail.time_ms)
    pieces: list[tuple[KeyRange, Positions]] = []
    earlier = {item.segments[-1]: await _walked(finder, item, target, down=down) for item, target in deeper}
    for item in items:
        segment = item.segments[-1]
        pieces.append(
            (item.keys, earlier[segment] if segment in earlier else {**tail.positions, segment: own[segment]})
        )
    return finder.record(compose(history, pieces), tail.time_ms)


async def _walked(finder: BoundaryFinder, item: Counted, target: int, *, down: bool) -> Positions:
    """A cut after ``target`` bytes of the segment, each earlier segment at a boundary. The head if the path there is
    unknown, or if none of the segment's own bytes are to be deleted."""
    history, tail = finder.history, finder.tail
    if down and target <= item.before(history, finder.head):
        return finder.head
    wanted = cut_between(history, finder.head, tail.positions, target, item.segments)
    if wanted is None:
        return finder.head
    moved = {segment: offset for segment, offset in wanted.items() if segment in item.segments}
    return {**wanted, **await finder.aligned(moved, finder.head, tail.positions, down=down)}
