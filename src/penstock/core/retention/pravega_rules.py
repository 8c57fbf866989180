"""Choose the cut at which a stream is truncated by Pravega's rules, for policies that Pravega can express.

Source: docs/design/0007-retention.md, rules R1 to R10, which define "low", "top", "edge" and "bound".
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.core.cuts.order import CutOrder, Positions, at_or_after, compare, size_till
from penstock.core.retention.candidates import ByteCuts, Spot
from penstock.core.retention.facts import RetentionRule
from penstock.core.retention.outlook import Outlook, PravegaForm


class Choice(NamedTuple):
    """The chosen cut and the rule that chose it. ``time_ms``: time of the record, if the cut is a record and not a
    boundary. ``size``: bytes of the history before the cut, if already known."""

    rule: RetentionRule
    cut: Positions | None = None
    record_time_ms: int | None = None
    size: int | None = None


class PravegaRules:
    """The rules for one stream at one time. ``bound``: the lower bound of subscribers, None if none has published.

    Byte limits choose among records and boundaries, age limits among records only.
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
        # Cuts that leave the minimum: this many records from the oldest, and, for byte limits, boundaries up to this
        # size.
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
        """``low``: the newest cut that leaves at least the minimum. ``top``: the cut between minimum and maximum that
        leaves the most, else ``low``. Of equal cuts the newest is taken. Both are None if no cut leaves the minimum."""
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
            # No cut frees more than the bound, up to which everything is acknowledged.
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
        """The cut if the bound leaves less than the minimum: ``low``, or, if that passes the bound for some key, the
        newest cut that does not."""
        if at_or_after(self.history, bound, self.cuts.cut(low)):
            return self._at(RetentionRule.SUBSCRIBERS_MINIMUM, low)
        spot = self.cuts.latest_within(bound, self.allowed, self.allowed_bytes)
        if spot is None:
            return Choice(RetentionRule.OVERLAP_MINIMUM)
        return self._at(RetentionRule.OVERLAP_MINIMUM, spot)

    def _past_overlap(self, bound: Positions, top: Spot) -> Choice:
        """If ``top`` passes the bound for some keys only: the oldest cut at or after the bound for all keys.

        If each such cut leaves less than the minimum: ``top``, which satisfies both limits.
        """
        spot = self.cuts.earliest_past(bound, self.allowed, self.allowed_bytes)
        if spot is None:
            return self._at(RetentionRule.SUBSCRIBERS_MAXIMUM, top)
        return self._at(RetentionRule.OVERLAP_MAXIMUM, spot)
