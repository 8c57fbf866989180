"""Choose the cut at which a stream is truncated, for any policy: minimums and maximums of bytes and age, per stream or
segment.

The rule deletes consumed data down to the floor: the latest cut that still satisfies the minimums. Consumed is what all
subscribers have acknowledged; without subscribers, it is everything, if the policy releases it. If more than a
maximum would be left, the rule deletes up to the cap. The cap overrides subscribers, but never the floor. Source:
docs/design/0007-retention.md, "The general rule".
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

from penstock.core.cuts.compose import Counted, compose, counted_segments
from penstock.core.cuts.order import Positions, at_or_after, size_till, upper_bound
from penstock.core.retention.candidates import ByteCuts
from penstock.core.retention.facts import RetentionRule, StreamCutRecord
from penstock.core.retention.outlook import Outlook, PolicyShape
from penstock.core.retention.pravega_rules import Choice
from penstock.model.cuts import NOT_STARTED
from penstock.model.policies import LONG_MAX
from penstock.model.retention import Combine
from penstock.model.segments import KeyRange, SegmentId


class ByteMeter(Protocol):
    """Compares bytes with limits. Returned cuts are valid. They consist of recorded cuts and boundaries."""

    def floor(self, limit: int) -> Positions | None:
        """The latest cut that leaves at least ``limit`` bytes. None: only the head does."""
        ...

    def leaves(self, cut: Positions, limit: int) -> bool:
        """Whether truncating at the cut leaves at least ``limit`` bytes, or deletes nothing."""
        ...

    def cap(self, cut: Positions, limit: int) -> Positions | None:
        """The earliest cut that leaves at most ``limit`` bytes, else the closest one. None if ``cut`` already does."""
        ...


class StreamMeter:
    """Bytes of the stream as a whole."""

    def __init__(self, outlook: Outlook, tail: StreamCutRecord) -> None:
        self._outlook = outlook
        self._end = tail.size_bytes
        self._cuts = ByteCuts(outlook, outlook.facts.boundaries)

    def floor(self, limit: int) -> Positions | None:
        spot = self._cuts.latest(self._end - limit)
        return None if spot is None else self._cuts.cut(spot)

    def leaves(self, cut: Positions, limit: int) -> bool:
        return self._end - size_till(self._outlook.history, cut) >= limit

    def cap(self, cut: Positions, limit: int) -> Positions | None:
        if self._end - size_till(self._outlook.history, cut) <= limit:
            return None
        spot = self._cuts.earliest(self._end - limit)
        if spot is None:
            spot = self._cuts.latest(LONG_MAX)
        return None if spot is None else self._cuts.cut(spot)


class SegmentMeter:
    """Counts bytes for each segment at the tail separately, including earlier segments that held only its keys.

    Bytes of an earlier segment whose keys belong to several tail segments count for none of them, so more is kept,
    never less. If those bytes cannot be separated, the cut stays before the shared segment.
    """

    def __init__(self, outlook: Outlook, tail: StreamCutRecord) -> None:
        self._outlook = outlook
        self._floors: dict[int, Positions | None] = {}
        self._counted: Sequence[Counted] = ()
        # A tail with a segment that is not started is invalid. Then no segment is known to exceed a limit.
        if NOT_STARTED not in tail.positions.values():
            self._counted = counted_segments(outlook.history, tail.positions)

    def _left(self, item: Counted, cut: Positions) -> int:
        return item.end - item.before(self._outlook.history, cut)

    def _leaving(self, item: Counted, limit: int) -> int:
        """Number of records, counted from the oldest, that leave the segment at least ``limit`` bytes."""
        cut_at, segment, most = self._outlook.cut_at, item.segments[-1], item.end - item.earlier - limit

        def leaves_less(place: int) -> bool:
            cut = cut_at(place)
            offset = cut.get(segment, NOT_STARTED)
            return offset > most if offset >= 0 else self._left(item, cut) < limit

        return bisect_left(range(len(self._outlook.records)), True, key=leaves_less)

    def floor(self, limit: int) -> Positions | None:
        if limit not in self._floors:
            self._floors[limit] = self._floor(limit)
        return self._floors[limit]

    def _floor(self, limit: int) -> Positions | None:
        head = self._outlook.head
        pieces = [(item.keys, self._floor_of(item, limit)) for item in self._counted]
        if all(piece is head for _, piece in pieces):
            return None
        floor = self._composed(pieces)
        return floor if self._outlook.behind(head, floor) else None

    def _floor_of(self, item: Counted, limit: int) -> Positions:
        count = self._leaving(item, limit)
        piece = self._outlook.cut_at(count - 1) if count else self._outlook.head
        for other in self._outlook.facts.boundaries:
            if limit <= self._left(item, other.positions) < self._left(item, piece):
                piece = other.positions
        return piece

    def leaves(self, cut: Positions, limit: int) -> bool:
        if self._counted and all(self._left(item, cut) >= limit for item in self._counted):
            return True
        floor = self.floor(limit)
        return floor is not None and at_or_after(self._outlook.history, floor, cut)

    def cap(self, cut: Positions, limit: int) -> Positions | None:
        # If no more is left, the maximum requires nothing beyond ``cut``.
        pieces = [
            (item.keys, self._cap_of(item, cut, limit) if self._left(item, cut) > limit else cut)
            for item in self._counted
        ]
        return None if all(piece is cut for _, piece in pieces) else self._composed(pieces)

    def _composed(self, pieces: Sequence[tuple[KeyRange, Positions]]) -> Positions:
        """Combine the pieces, one for each segment at the tail, into one cut."""
        positions: dict[SegmentId, int] = {}
        for item, (_, cut) in zip(self._counted, pieces, strict=True):
            offset = cut.get(item.segments[-1], NOT_STARTED)
            if offset < 0:
                return compose(self._outlook.history, pieces)
            positions[item.segments[-1]] = offset
        # All segments of one epoch, all started: any offsets are a valid cut.
        return dict(sorted(positions.items()))

    def _cap_of(self, item: Counted, cut: Positions, limit: int) -> Positions:
        """The cut that leaves the most within the limit. If all leave more, the one that leaves the least."""
        records = self._outlook.records
        if records and not self._outlook.facts.boundaries:
            return self._outlook.cut_at(min(self._leaving(item, limit + 1), len(records) - 1))
        found: list[Positions] = []
        if records:
            found.append(self._outlook.cut_at(min(self._leaving(item, limit + 1), len(records) - 1)))
        found += [other.positions for other in self._outlook.facts.boundaries]

        def rank(piece: Positions) -> tuple[bool, int]:
            left = self._left(item, piece)
            return (True, left) if left <= limit else (False, -left)

        return max(found, key=rank, default=cut)


def meter_of(outlook: Outlook, shape: PolicyShape, tail: StreamCutRecord) -> ByteMeter:
    """The meter for the policy's measure."""
    return SegmentMeter(outlook, tail) if shape.by_segment else StreamMeter(outlook, tail)


class GeneralRule:
    """The rule for one stream at one time. ``bound``: the lower bound of subscribers, None if no subscriber has
    published."""

    def __init__(self, outlook: Outlook, shape: PolicyShape, bound: Positions | None, tail: StreamCutRecord) -> None:
        self.outlook = outlook
        self.shape = shape
        self.bound = bound
        self.tail = tail
        self.meter = meter_of(outlook, shape, tail)
        self._floor: tuple[Positions | None] | None = None

    def choose(self) -> Choice:
        """The cut, with the rule that decided its furthest part."""
        choice = self._choose()
        outlook, cut = self.outlook, choice.cut
        if cut is None or at_or_after(outlook.history, cut, outlook.head):
            return choice
        # Someone has truncated beyond the choice for some keys. Free the other keys too if the minimum allows it.
        both = upper_bound(outlook.history, [cut, outlook.head])
        return Choice(choice.rule, both) if self._permitted(both) else choice

    def _choose(self) -> Choice:
        if self.shape.floor.unlimited:
            return Choice(RetentionRule.BELOW_MINIMUM)
        consumed, rule = self._consumed()
        permitted = consumed is None or self._permitted(consumed)
        if permitted and not self.shape.has_maximum:
            return Choice(rule, consumed)
        floor = self.floor()
        start: Positions | None = consumed
        if consumed is not None and not permitted:
            start = None if floor is None else self.outlook.lower(consumed, floor)
            rule = RetentionRule.MINIMUM if self.bound is None else RetentionRule.SUBSCRIBERS_MINIMUM
            if start is None:
                rule = RetentionRule.BELOW_MINIMUM
        cap = None if floor is None else self._cap(start, floor)
        if cap is not None and (start is None or self.outlook.behind(start, cap)):
            return Choice(self._capped_rule(), self._past(start, cap, floor))
        return Choice(rule, start)

    def _consumed(self) -> tuple[Positions | None, RetentionRule]:
        if self.bound is not None:
            return self.bound, RetentionRule.SUBSCRIBERS
        if self.shape.releases:
            return self.tail.positions, RetentionRule.MINIMUM
        return None, RetentionRule.UNSUBSCRIBED

    def _capped_rule(self) -> RetentionRule:
        return RetentionRule.MAXIMUM if self.bound is None else RetentionRule.SUBSCRIBERS_MAXIMUM

    def _past(self, start: Positions | None, cap: Positions, floor: Positions | None) -> Positions:
        """The cut that a maximum requires: the upper bound of both cuts if the minimum allows it, else with ``start``
        limited to the floor."""
        if start is None:
            return cap
        history = self.outlook.history
        both = upper_bound(history, [start, cap])
        if floor is None or self._permitted(both):
            return both
        return upper_bound(history, [self.outlook.lower(start, floor), cap])

    def floor(self) -> Positions | None:
        """The latest cut that the minimums allow; for bytes it may be a boundary. The tail if all data may be deleted.
        None if none of it may."""
        if self._floor is None:
            self._floor = (self._worked_out_floor(),)
        return self._floor[0]

    def _worked_out_floor(self) -> Positions | None:
        limits, outlook = self.shape.floor, self.outlook
        if limits.unlimited:
            return None
        if limits.is_none:
            return self.tail.positions
        found: list[Positions | None] = []
        if limits.size_bytes is not None:
            found.append(self.meter.floor(limits.size_bytes))
        if limits.age_ms is not None:
            place = outlook.place_aged(limits.age_ms)
            found.append(outlook.cut_at(place) if place >= 0 else None)
        known = [cut for cut in found if cut is not None]
        if not known or (limits.combine is Combine.ALL and len(known) < len(found)):
            return None
        if len(known) == 1:
            return known[0]
        if limits.combine is Combine.ALL:
            return outlook.lower(*known)
        # Either cut alone is allowed, but not their upper bound, which may be ahead of each of them for some keys.
        return max(known, key=lambda cut: size_till(outlook.history, cut))

    def _permitted(self, cut: Positions) -> bool:
        """Whether truncating at the cut satisfies the minimums."""
        limits = self.shape.floor
        if limits.is_none:
            return True
        enough = limits.combine is Combine.ANY
        # Stop at the first minimum that decides alone: for ANY one that is satisfied, for ALL one that is not.
        if limits.size_bytes is not None and self.meter.leaves(cut, limits.size_bytes) is enough:
            return enough
        if limits.age_ms is not None and self._is_aged(cut, limits.age_ms) is enough:
            return enough
        return not enough

    def _is_aged(self, cut: Positions, age_ms: int) -> bool:
        """Whether all data before the cut is certainly at least ``age_ms`` old."""
        place = self.outlook.place_aged(age_ms)
        return place >= 0 and at_or_after(self.outlook.history, self.outlook.cut_at(place), cut)

    def _cap(self, start: Positions | None, floor: Positions) -> Positions | None:
        """The earliest head that satisfies the maximums, limited to the floor. None if the head need not move."""
        outlook, policy = self.outlook, self.shape.policy
        wanted: list[Positions] = []
        if policy.max_bytes is not None:
            after = outlook.head
            if start is not None:
                after = upper_bound(outlook.history, [start, outlook.head])
            cut = self.meter.cap(after, policy.max_bytes)
            if cut is not None:
                wanted.append(cut)
        if policy.max_age_ms is not None:
            place = outlook.place_aged(policy.max_age_ms)
            if place >= 0:
                wanted.append(outlook.cut_at(place))
        if not wanted:
            return None
        cap = outlook.lower(upper_bound(outlook.history, wanted), floor)
        return cap if outlook.behind(outlook.head, cap) else None
