"""Decides the streams from which the planner would remove nothing, many at once. These are most streams of a fleet.

The result is exact. For a row that is settled here, the planner would choose no cut, move, drop or stop no one, delete
nothing, and give the same rule; a test compares each row with the planner. The planner decides all other rows.
Source: docs/formats/fleet.md, "Settled rows"; the rules are those of docs/design/0007-retention.md. Pure.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.core.policies.levels import Floor
from penstock.core.retention.facts import RetentionRule
from penstock.core.retention.moves import PRUNE_BATCH
from penstock.core.retention.outlook import PolicyShape
from penstock.model.policies import LONG_MAX
from penstock.model.retention import Combine
from penstock.spark.fleet.rows import ABSENT, FactsRows, Flags, Ints

RULES = tuple(RetentionRule)
CODES = {rule: code for code, rule in enumerate(RULES)}

ASK = -1
"""Code of a row that only the planner can decide."""

Codes = npt.NDArray[np.int16]


class Screen:
    """The inputs of the rules as columns: a number or a flag for each row. They are valid only for plain rows."""

    __slots__ = (
        "bound_bytes",
        "counts_unread",
        "first_bytes",
        "first_ms",
        "has_tail",
        "heard_ms",
        "last_append_ms",
        "no_bound",
        "no_boundaries",
        "now_ms",
        "plain",
        "records",
        "slowest_bytes",
        "tail_bytes",
        "tail_cut_bytes",
        "unread_ms",
        "unreadable",
    )

    def __init__(self, rows: FactsRows, at_ms: Ints) -> None:
        """``at_ms``: the time to decide for, of each row."""
        self.plain = rows.plain
        self.now_ms = at_ms
        self.unreadable = rows.is_unreadable
        self.has_tail = rows.has_tail
        self.tail_bytes = rows.tail_bytes
        self.last_append_ms = rows.last_append_ms
        self.records = rows.records.counts()
        self.no_boundaries: Flags = rows.boundaries.counts() == 0
        # The oldest record. If there is none, the tail, because a policy that uses records then records the tail.
        first = rows.records.starts[:-1]
        some: Flags = self.records > 0
        self.first_ms = _first(rows.records.times, first, some, rows.tail_ms)
        self.first_bytes = _first(rows.records.sizes, first, some, rows.tail_bytes)
        # For a plain row, these are all bytes before a cut.
        self.tail_cut_bytes = rows.tail_cuts.added(rows.tail_cuts.offsets)
        self._look_at_subscribers(rows)

    def _look_at_subscribers(self, rows: FactsRows) -> None:
        """Find the slowest subscriber and the lower bound of all, in bytes, the last activity, and the oldest unread data."""
        owners, cuts = rows.subscribers.owners, rows.subscriber_cuts
        published = cuts.counts() > 0
        self.no_bound: Flags = rows.subscribers.sums(published) == 0
        self.slowest_bytes = _least(cuts.added(cuts.offsets)[published], owners[published], rows.rows)
        self.bound_bytes = _bound_bytes(rows, self.slowest_bytes)
        oldest, events, heard = rows.activity
        self.unread_ms = _least(oldest[oldest >= 0], owners[oldest >= 0], rows.rows)
        self.heard_ms = _least(heard[heard >= 0], owners[heard >= 0], rows.rows)
        self.counts_unread: Flags = rows.subscribers.sums(events >= 0) > 0

    def only(self, places: Ints) -> Screen:
        """The same values for these rows only."""
        other = object.__new__(Screen)
        for name in Screen.__slots__:
            setattr(other, name, getattr(self, name)[places])
        return other

    def settle(self, shape: PolicyShape | None) -> Codes:
        """For each row, as if it had this policy: the code of the rule by which nothing is removed, or ``ASK``."""
        codes: Codes = np.full(len(self.plain), ASK, np.int16)
        if shape is None:
            # No subscriber is moved and no record is used, so the result is the same for all rows.
            codes[self.plain] = CODES[RetentionRule.NO_POLICY]
        else:
            settled = self.plain & self.has_tail & self._moves_nobody(shape)
            for rule, rows in self._rules(shape):
                codes[settled & rows & (codes == ASK)] = CODES[rule]
        codes[self.plain & self.unreadable] = CODES[RetentionRule.UNREADABLE_POLICY]
        return codes

    def _moves_nobody(self, shape: PolicyShape) -> Flags:
        """Rows where time-to-live, quotas and idle limits do not move, drop or stop anyone and do not delete the stream."""
        policy, now_ms = shape.policy, self.now_ms
        still: Flags = np.ones(len(self.plain), np.bool_)
        if policy.ttl_ms is not None:
            still &= self.no_bound | self._all_younger(policy.ttl_ms)
        if policy.backlog_bytes is not None:
            unread = np.maximum(0, self.tail_bytes - self.slowest_bytes)
            still &= self.no_bound | (unread < policy.backlog_bytes)
        if policy.backlog_events is not None:
            still &= self.no_bound | ~self.counts_unread
        if policy.backlog_age_ms is not None:
            unread_young = self.unread_ms > now_ms - policy.backlog_age_ms
            still &= self.no_bound | (self._all_younger(policy.backlog_age_ms) & unread_young)
        if policy.subscriber_idle_ms is not None:
            still &= self.heard_ms > now_ms - policy.subscriber_idle_ms
        if policy.stream_idle_ms is not None:
            still &= (self.last_append_ms == ABSENT) | (now_ms < self.last_append_ms + policy.stream_idle_ms)
        return still

    def _all_younger(self, age_ms: int) -> Flags:
        """Rows where all records and boundaries are younger than this."""
        younger: Flags = self.no_boundaries & (self.first_ms > self.now_ms - age_ms)
        return younger

    def _rules(self, shape: PolicyShape) -> list[tuple[RetentionRule, Flags]]:
        """Each rule with the rows where it chooses no cut. If several rules match a row, the planner gives the first."""
        every = np.ones(len(self.plain), np.bool_)
        # Only the planner can decide rows with many records, because it may prune those that no rule needs.
        few: Flags = every if not shape.records else self.records < PRUNE_BATCH
        if not shape.policy.truncates:
            return [(RetentionRule.NO_POLICY, few)]
        if shape.floor.unlimited:
            return [(RetentionRule.BELOW_MINIMUM, few)]
        # Pravega has no policy that keeps the data of streams without subscribers.
        kept: Flags = ~every if shape.releases else self.no_bound
        found = [(RetentionRule.UNSUBSCRIBED, ~every if shape.has_maximum else kept)]
        if shape.pravega is not None:
            below = self.first_ms > self.now_ms - shape.pravega.minimum
            if shape.pravega.by_size:
                below = self._too_small(shape.pravega.minimum, tail=False)
            found.append((RetentionRule.BELOW_MINIMUM, below & ~kept))
        elif not shape.by_segment and not shape.floor.is_none:
            found.append((RetentionRule.BELOW_MINIMUM, self._below(shape.floor) & ~kept))
        return found

    def _too_small(self, minimum: int, *, tail: bool) -> Flags:
        """Rows where no cut and not the acknowledged position leaves this much. With ``tail``, also not the tail of a stream
        without subscribers."""
        no_cut: Flags = self.no_boundaries & (self.first_bytes > self.tail_bytes - minimum)
        read = self.bound_bytes
        if tail:
            # Its size may be more than what its cut counts.
            read = np.where(self.no_bound, self.tail_cut_bytes, read)
        enough: Flags = self.tail_bytes - read >= minimum
        return no_cut & ~(enough if tail else enough & ~self.no_bound)

    def _below(self, floor: Floor) -> Flags:
        """Rows where neither the consumed position nor any cut leaves the required minimums."""
        below: list[Flags] = []
        if floor.size_bytes is not None:
            below.append(self._too_small(floor.size_bytes, tail=True))
        if floor.age_ms is not None:
            below.append(self.first_ms > self.now_ms - floor.age_ms)
        together = np.logical_and if floor.combine is Combine.ANY else np.logical_or
        found: Flags = together.reduce(below)
        return found


def _first(values: Ints, places: Ints, some: Flags, otherwise: Ints) -> Ints:
    if not len(values):
        return otherwise
    return np.where(some, values[np.minimum(places, len(values) - 1)], otherwise)


def _least(values: Ints, owners: Ints, rows: int) -> Ints:
    """The least value of each row; ``LONG_MAX`` if it has none."""
    least: Ints = np.full(rows, LONG_MAX, np.int64)
    np.minimum.at(least, owners, values)
    return least


def _bound_bytes(rows: FactsRows, otherwise: Ints) -> Ints:
    """Bytes before the lower bound of all cuts of subscribers, of plain rows: at each segment the least offset."""
    cuts = rows.subscriber_cuts
    owners = rows.subscribers.owners[cuts.owners]
    plain = rows.plain[owners]
    owners, offsets = owners[plain], cuts.offsets[plain]
    places = (np.arange(len(cuts.offsets)) - cuts.starts[:-1][cuts.owners])[plain]
    found = otherwise.copy()
    if len(owners):
        width = int(places.max()) + 1
        slots, of_slot = np.unique(owners * width + places, return_inverse=True)
        bound = _least(offsets, of_slot, len(slots))
        rows_of = slots // width
        sums = np.zeros(rows.rows, np.int64)
        np.add.at(sums, rows_of, bound)
        found[rows_of] = sums[rows_of]
    return found
