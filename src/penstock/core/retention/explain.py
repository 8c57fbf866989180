"""What holds the bytes that a decision leaves: ranges from head to tail with one holder each.

Source: docs/design/0034-settling-and-explaining.md, "Explaining".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from penstock.codec.control.policy_document import text_of_ms
from penstock.core.cuts.order import CutOrder, Positions, at_or_after, compare, lower_bound, size_till, upper_bound
from penstock.core.retention.facts import HeldRange, HolderKind, RetentionRule, StreamCutRecord
from penstock.core.retention.limits import GeneralRule
from penstock.core.retention.moves import Moves
from penstock.core.retention.outlook import Outlook, PolicyShape
from penstock.model.retention import Combine
from penstock.model.values.dataclass import dataclass

_TAKING = (RetentionRule.SUBSCRIBERS_MAXIMUM, RetentionRule.OVERLAP_MAXIMUM)


@dataclass(slots=True)
class Situation:
    """A stream after a cycle's decision. ``bound``: the lower bound of subscribers after the rules moved them;
    ``truncate``: the new head, None if it stays; ``rule``: the rule that chose; ``general``: the general rule, if it
    was used, with its floor."""

    outlook: Outlook
    moves: Moves
    bound: Positions | None
    truncate: Positions | None
    rule: RetentionRule
    general: GeneralRule | None = None


class _Piece(NamedTuple):
    """A range under construction: the fields of ``HeldRange``, in their order."""

    kind: HolderKind
    name: str
    start_bytes: int
    end_bytes: int
    start: Positions | None
    end: Positions | None
    release_ms: int | None


def held_ranges(situation: Situation) -> tuple[HeldRange, ...]:
    """Non-empty ranges from head to tail, in order, adding up to the stream's size; none if the tail is unknown."""
    tail = situation.outlook.tail
    if tail is None:
        return ()
    walk = _Walk(situation, tail, timed=True)
    _take_what_stays(walk, situation, tail)
    if situation.truncate is not None:
        _take_due(walk, situation)
    return tuple(
        HeldRange(
            kind=item.kind,
            name=item.name,
            start_bytes=item.start_bytes,
            end_bytes=item.end_bytes,
            start=item.start,
            end=item.end,
            release_ms=item.release_ms,
        )
        for item in reversed(walk.found)
    )


def held_bytes(situation: Situation) -> dict[tuple[HolderKind, str], int]:
    """Bytes of each holder after the decision, nearest to the head first: the ranges without their times, which are the
    costly part."""
    tail = situation.outlook.tail
    if tail is None:
        return {}
    walk = _Walk(situation, tail, timed=False)
    _take_what_stays(walk, situation, tail)
    total: dict[tuple[HolderKind, str], int] = {}
    for kind, name, start_bytes, end_bytes, _, _, _ in reversed(walk.found):
        total[kind, name] = total.get((kind, name), 0) + end_bytes - start_bytes
    return total


def _take_what_stays(walk: _Walk, situation: Situation, tail: StreamCutRecord) -> None:
    outlook = situation.outlook
    for hold in outlook.holds:
        walk.take(HolderKind.HOLD, hold.id, walk.base if hold.positions is None else hold.positions, hold.until_ms)
    shape = outlook.shape
    if outlook.facts.unreadable:
        walk.take(HolderKind.UNREADABLE_POLICY, "", walk.base)
    elif shape is None or not shape.policy.truncates:
        walk.take(*(_of_lock(outlook) or (HolderKind.NO_POLICY, "")), walk.base)
    else:
        _take_by_policy(walk, situation, shape, tail)


def range_at(situation: Situation, position: Positions) -> HeldRange | None:
    """The range that contains the position, from the position on, with the release time of the data that begins there;
    None if the position lies before the head, or nothing is behind it. Raises as ``compare``."""
    outlook = situation.outlook
    if not at_or_after(outlook.history, position, outlook.head):
        return None
    size = size_till(outlook.history, position)
    found = next((item for item in held_ranges(situation) if item.start_bytes <= size < item.end_bytes), None)
    if found is None:
        return None
    return replace(found, start=position, start_bytes=size, release_ms=_release_at(situation, found, position))


def _release_at(situation: Situation, found: HeldRange, position: Positions) -> int | None:
    outlook, shape = situation.outlook, situation.outlook.shape
    if found.release_ms is None or shape is None:
        return found.release_ms
    if found.kind is HolderKind.SUBSCRIBER:
        return _expires_ms(outlook, shape, found.name, position)
    if found.kind is HolderKind.UNSUBSCRIBED:
        return _aged_ms(outlook, position, shape.policy.max_age_ms)
    if found.kind is HolderKind.MINIMUM or (found.kind is HolderKind.LOCK and shape.policy.truncates):
        return _aged_ms(outlook, position, _minimum_age_ms(shape))
    return found.release_ms


def _minimum_age_ms(shape: PolicyShape) -> int | None:
    # By Pravega's rules an age of 0 is an age too: unrecorded data is not deleted.
    of_age = shape.floor.age_ms is None and shape.pravega is not None and not shape.pravega.by_size
    return 0 if of_age else shape.floor.age_ms


def _take_by_policy(walk: _Walk, situation: Situation, shape: PolicyShape, tail: StreamCutRecord) -> None:
    outlook = situation.outlook
    for name, cut in _furthest_behind_first(situation):
        release_ms = _expires_ms(outlook, shape, name, walk.reached(cut)) if walk.timed else None
        walk.take(HolderKind.SUBSCRIBER, name, cut, release_ms)
    _take_minimum(walk, situation, shape, tail)
    if situation.bound is None and not shape.releases:
        release_ms = _aged_ms(outlook, walk.base, shape.policy.max_age_ms) if walk.timed else None
        walk.take(HolderKind.UNSUBSCRIBED, "", walk.base, release_ms)
    rest = HolderKind.TRUNCATING if outlook.facts.truncating else HolderKind.UNRECORDED
    walk.take(rest, "", walk.base)


def _take_minimum(walk: _Walk, situation: Situation, shape: PolicyShape, tail: StreamCutRecord) -> None:
    outlook, limits = situation.outlook, shape.floor
    holder = _of_lock(outlook) or (HolderKind.MINIMUM, "")
    if limits.unlimited:
        walk.take(*holder, walk.base)
        return
    size = None if limits.size_bytes is None else tail.size_bytes - limits.size_bytes
    cut: Positions | None = None
    age_ms = _minimum_age_ms(shape)
    if age_ms is not None:
        place = outlook.place_aged(age_ms)
        cut = outlook.cut_at(place) if place >= 0 else walk.base
    if shape.by_segment and size is not None:
        rule = situation.general or GeneralRule(outlook, shape, situation.bound, tail)
        floor = rule.floor()
        walk.take(*holder, walk.base if floor is None else floor)
    elif cut is None:
        if size is not None:
            walk.take_down_to(*holder, size)
    elif size is None or (size_till(outlook.history, cut) >= size) == (limits.combine is Combine.ANY):
        release_ms = _aged_ms(outlook, walk.reached(cut), age_ms) if walk.timed else None
        walk.take(*holder, cut, release_ms)
    else:
        # If either minimum suffices, age alone will release these bytes; if both are required, only new data behind
        # them will.
        record = outlook.records[place] if (place := outlook.until_size(size)) < len(outlook.records) else tail
        release_ms = record.time_ms + (age_ms or 0) if limits.combine is Combine.ANY else None
        walk.take_down_to(*holder, size, release_ms)


def _of_lock(outlook: Outlook) -> tuple[HolderKind, str] | None:
    """The lock in force as a holder, with its end as name: nobody can shorten what the policy keeps before."""
    policy = outlook.facts.policy
    until_ms = None if policy is None else policy.lock_until_ms
    return None if until_ms is None or outlook.now_ms >= until_ms else (HolderKind.LOCK, text_of_ms(until_ms))


def _aged_ms(outlook: Outlook, cut: Positions, age_ms: int | None) -> int | None:
    """When the first data behind the cut is known to have this age; None: never."""
    if age_ms is None or outlook.tail is None:
        return None
    start = outlook.records_passed(cut)
    record = outlook.records[start] if start < len(outlook.records) else outlook.tail
    if at_or_after(outlook.history, cut, record.positions):
        return None
    return record.time_ms + age_ms


def _expires_ms(outlook: Outlook, shape: PolicyShape, name: str, cut: Positions) -> int | None:
    """The first time at which age alone moves or drops the subscriber."""
    policy = shape.policy
    times = [_aged_ms(outlook, cut, policy.ttl_ms), _aged_ms(outlook, cut, policy.max_age_ms)]
    activity = outlook.facts.activity.get(name)
    if policy.subscriber_idle_ms is not None and activity is not None and activity.last_active_ms is not None:
        times.append(activity.last_active_ms + policy.subscriber_idle_ms)
    known = [time_ms for time_ms in times if time_ms is not None]
    return min(known, default=None)


def _take_due(walk: _Walk, situation: Situation) -> None:
    """Data that this decision deletes, named by the rule if a subscriber had not read it."""
    outlook, moves = situation.outlook, situation.moves
    taken: list[tuple[RetentionRule, Mapping[str, Positions]]] = [(item.rule, item.before) for item in moves.stages]
    if situation.rule in _TAKING:
        taken.append((situation.rule, moves.cuts))
    now_ms = outlook.now_ms
    walk.rebase(outlook.head, outlook.head_bytes)
    for rule, before in reversed(taken):
        slowest = lower_bound(outlook.history, before.values())
        if slowest:
            walk.take(HolderKind.DUE, rule.value, slowest, now_ms)
    walk.take(HolderKind.DUE, "", walk.base, now_ms)


def _furthest_behind_first(situation: Situation) -> list[tuple[str, Positions]]:
    if situation.bound is None:
        return []
    cuts = situation.moves.cuts
    slowest = [(name, cut) for name, cut in cuts.items() if cut == situation.bound]
    if slowest:
        # It is not ahead of any other at any key, so it holds everything that others hold.
        return [min(slowest, key=lambda item: item[0])]
    history = situation.outlook.history
    return sorted(cuts.items(), key=lambda item: (size_till(history, item[1]), item[0]))


class _Walk:
    """Walks from the tail to the head: each holder takes what lies behind its cut and is not taken yet.

    ``timed``: whether release times are needed.
    """

    __slots__ = ("at", "at_bytes", "at_cut", "base", "base_bytes", "found", "history", "outlook", "timed")

    def __init__(self, situation: Situation, tail: StreamCutRecord, *, timed: bool) -> None:
        outlook = situation.outlook
        self.timed = timed
        self.outlook = outlook
        self.history = outlook.history
        self.base: Positions = outlook.head
        self.base_bytes = outlook.head_bytes
        if situation.truncate is not None:
            self.rebase(situation.truncate, size_till(self.history, situation.truncate))
        self.at: Positions | None = tail.positions
        self.at_cut: Positions = tail.positions
        self.at_bytes = tail.size_bytes
        self.found: list[_Piece] = []

    def rebase(self, base: Positions, base_bytes: int) -> None:
        """Walk down to this cut from here on."""
        self.base, self.base_bytes = base, base_bytes

    def reached(self, cut: Positions) -> Positions:
        """The cut, limited to at least the base."""
        return cut if at_or_after(self.history, cut, self.base) else upper_bound(self.history, [cut, self.base])

    def take(self, kind: HolderKind, name: str, cut: Positions, release_ms: int | None = None) -> None:
        """Assign the holder everything left behind ``cut``, but nothing before the base."""
        if cut is not self.base:
            order = compare(self.history, cut, self.at_cut)
            if order is CutOrder.AFTER or order is CutOrder.EQUAL:
                return
            if order is CutOrder.OVERLAPS:
                cut = lower_bound(self.history, [cut, self.at_cut])
            if not at_or_after(self.history, cut, self.base):
                cut = upper_bound(self.history, [cut, self.base])
        size = self.base_bytes if cut is self.base else size_till(self.history, cut)
        self._give(kind, name, min(size, self.at_bytes), cut, release_ms)
        self.at_cut = cut

    def take_down_to(self, kind: HolderKind, name: str, size: int, release_ms: int | None = None) -> None:
        """Assign the holder what is left above ``size`` bytes since the beginning of history: a bound that is not a
        cut."""
        if size <= self.base_bytes:
            self.take(kind, name, self.base, release_ms)
        elif size < self.at_bytes:
            self._give(kind, name, size, None, release_ms)

    def _give(self, kind: HolderKind, name: str, size: int, cut: Positions | None, release_ms: int | None) -> None:
        if size < self.at_bytes:
            self.found.append(_Piece(kind, name, size, self.at_bytes, cut, self.at, release_ms))
        self.at, self.at_bytes = cut, size
