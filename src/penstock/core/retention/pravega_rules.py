"""Which cut a stream is truncated at, by Pravega's rules, wherever a policy can be said in Pravega's words.

Source: docs/design/0007-retention.md, rules R1 to R10; "low", "top", "edge" and "bound" are its words.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.core.cuts.order import CutOrder, Positions, at_or_after, compare, size_till
from penstock.core.retention.candidates import ByteCuts, Spot
from penstock.core.retention.facts import RetentionRule
from penstock.core.retention.outlook import Outlook, PravegaForm


class Choice(NamedTuple):
    """The cut that the rules choose, the rule, the time of the record where it is one (a boundary is none), and the size till
    the cut where it is known already."""

    rule: RetentionRule
    cut: Positions | None = None
    record_time_ms: int | None = None
    size: int | None = None


class PravegaRules:
    """The rules for one stream at one time. ``bound``: the lower bound of subscribers, None where nobody has published.

    Limits of bytes choose among records and boundaries, limits of age among records alone.
    """

    __slots__ = ("allowed", "allowed_bytes", "bound", "cuts", "form", "history", "now_ms", "outlook", "tail_bytes")

    def __init__(self, outlook: Outlook, form: PravegaForm, bound: Positions | None, tail_bytes: int) -> None:
        self.outlook = outlook
        self.form = form
        self.bound = bound
        self.tail_bytes = tail_bytes
        self.history = outlook.history
        self.now_ms = outlook.now_ms
        self.cuts = ByteCuts(outlook, outlook.facts.boundaries)
        # What leaves the minimum: so many records from the oldest on, and by size boundaries of no more bytes.
        self.allowed_bytes = tail_bytes - form.minimum if form.by_size else None
        if self.allowed_bytes is None:
            self.allowed = outlook.place_aged(form.minimum) + 1
        else:
            self.allowed = outlook.until_size(self.allowed_bytes)

    def choose(self) -> Choice:
        """The choice of rules R3 to R10."""
        low, top = self._low_and_top()
        if self.bound is None:
            return self._without_bound(low, top)
        if self.form.by_size:
            return self._by_size(self.bound, low, top)
        return self._by_time(self.bound, low, top)

    def _low_and_top(self) -> tuple[Spot | None, Spot | None]:
        """The newest cut that leaves at least the minimum, and the one that leaves most within minimum and maximum, ``low``
        where none does. Of equal ones the newest counts. Both None where nothing leaves the minimum."""
        maximum = self.form.maximum
        if self.allowed_bytes is not None:
            low = self.cuts.latest(self.allowed_bytes)
            if maximum is None or low is None:
                return low, low
            top = self.cuts.earliest(self.tail_bytes - maximum)
            if top is None or self.cuts.size(top) > self.allowed_bytes:
                return low, low
            if isinstance(top, int):
                top = self.outlook.until_size(self.outlook.size_at(top)) - 1
            return low, top
        place = self.allowed - 1
        if place < 0:
            return None, None
        if maximum is None:
            return place, place
        return place, min(place, self.outlook.until_time(self.now_ms - maximum - 1))

    def _at(self, rule: RetentionRule, spot: Spot) -> Choice:
        if not isinstance(spot, int):
            return Choice(rule, spot.positions, size=spot.size_bytes)
        outlook = self.outlook
        return Choice(rule, outlook.cut_at(spot), outlook.time_at(spot), outlook.size_at(spot))

    def _without_bound(self, low: Spot | None, top: Spot | None) -> Choice:
        if low is None or top is None:
            return Choice(RetentionRule.BELOW_MINIMUM)
        size, maximum = self.tail_bytes - self.outlook.head_bytes, self.form.maximum
        if self.form.by_size and maximum is not None and size > maximum:
            return self._at(RetentionRule.MAXIMUM, top)
        return self._at(RetentionRule.MINIMUM, low)

    def _by_size(self, bound: Positions, low: Spot | None, top: Spot | None) -> Choice:
        read = size_till(self.history, bound)
        left = self.tail_bytes - read
        if left < self.form.minimum:
            return Choice(RetentionRule.BELOW_MINIMUM) if low is None else self._at_low(bound, low)
        if self.form.maximum is None or left <= self.form.maximum:
            return Choice(RetentionRule.SUBSCRIBERS, bound, size=read)
        if top is None or self.tail_bytes - self.cuts.size(top) >= left:
            # No cut frees more than what is acknowledged anyway.
            return Choice(RetentionRule.SUBSCRIBERS, bound, size=read)
        if compare(self.history, bound, self.cuts.cut(top)) is CutOrder.OVERLAPS:
            return self._past_overlap(bound, top)
        return self._at(RetentionRule.SUBSCRIBERS_MAXIMUM, top)

    def _by_time(self, bound: Positions, low: Spot | None, top: Spot | None) -> Choice:
        if low is None or top is None:
            return Choice(RetentionRule.BELOW_MINIMUM)
        order = compare(self.history, self.cuts.cut(low), bound)
        if order in (CutOrder.BEFORE, CutOrder.OVERLAPS):
            return self._at_low(bound, low)
        edge = -1 if self.form.maximum is None else self.outlook.place_aged(self.form.maximum)
        if edge < 0:
            return Choice(RetentionRule.SUBSCRIBERS, bound)
        order = compare(self.history, bound, self.outlook.cut_at(edge))
        if order is CutOrder.BEFORE:
            return self._at(RetentionRule.SUBSCRIBERS_MAXIMUM, top)
        if order is CutOrder.OVERLAPS:
            return self._past_overlap(bound, top)
        return Choice(RetentionRule.SUBSCRIBERS, bound)

    def _at_low(self, bound: Positions, low: Spot) -> Choice:
        """The bound leaves less than the minimum: at ``low``, or, where that passes the bound at some key, at the newest
        cut that does not."""
        if at_or_after(self.history, bound, self.cuts.cut(low)):
            return self._at(RetentionRule.SUBSCRIBERS_MINIMUM, low)
        spot = self.cuts.latest_within(bound, self.allowed, self.allowed_bytes)
        if spot is None:
            return Choice(RetentionRule.OVERLAP_MINIMUM)
        return self._at(RetentionRule.OVERLAP_MINIMUM, spot)

    def _past_overlap(self, bound: Positions, top: Spot) -> Choice:
        """The bound leaves more than the maximum at some keys only: at the oldest cut that is behind it nowhere.

        Where only cuts below the minimum are, the minimum wins: at ``top``, which keeps both limits.
        """
        spot = self.cuts.earliest_past(bound, self.allowed, self.allowed_bytes)
        if spot is None:
            return self._at(RetentionRule.SUBSCRIBERS_MAXIMUM, top)
        return self._at(RetentionRule.OVERLAP_MAXIMUM, spot)
