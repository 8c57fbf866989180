"""Input of all retention rules: the policy in the form that they need, and values derived from the facts.

Source: docs/design/0007-retention.md. This module decides nothing.
"""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from functools import lru_cache

from penstock.core.cuts.order import Positions, at_or_after, head_of, lower_bound, size_till
from penstock.core.policies.levels import Floor, floor_of
from penstock.core.retention.facts import Hold, RecordColumns, RetentionFacts, StreamCutRecord
from penstock.model.policies import LONG_MAX, RetentionType
from penstock.model.retention import EffectivePolicy, Measure, OnExceed, Unsubscribed
from penstock.model.values.dataclass import dataclass

_SHAPES_MAX = 256  # policy shapes in the cache

_size_of = operator.attrgetter("size_bytes")
_time_of = operator.attrgetter("time_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class PravegaForm:
    """Limits on one dimension of the whole stream, in bytes or milliseconds. Pravega's rules support no others."""

    by_size: bool
    minimum: int
    maximum: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ages:
    """The policy's ages with which records are compared, in milliseconds."""

    minimum: int | None
    maximum: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyShape:
    """A policy in the form that the planner uses.

    ``pravega``: the same limits as a Pravega policy, None if Pravega cannot express them. ``releases``: without
    subscribers, data is deleted down to the floor. ``moves``: the policy has rules about subscribers, writers or
    idleness. ``records``: some rule uses recorded cuts. ``ages``: ages of records at which the truncation may change.
    None: age never changes it.
    """

    policy: EffectivePolicy
    pravega: PravegaForm | None
    floor: Floor
    releases: bool
    moves: bool
    records: bool
    ages: Ages | None
    has_maximum: bool

    @property
    def by_segment(self) -> bool:
        return self.policy.measure is Measure.SEGMENT

    @property
    def kind(self) -> RetentionType | None:
        """The dimension that a policy in Pravega's form limits."""
        if self.pravega is None:
            return None
        return RetentionType.SIZE if self.pravega.by_size else RetentionType.TIME


@lru_cache(maxsize=_SHAPES_MAX)
def shape_of(policy: EffectivePolicy) -> PolicyShape:
    """The form that the rules use. Cached, because a server has few policies, and this takes half as long as a
    decision."""
    floor = floor_of(policy)
    evicts = OnExceed.EVICT in policy.quota_actions
    pravega = _pravega(policy)
    ages: Ages | None = Ages(minimum=floor.age_ms, maximum=policy.max_age_ms)
    if pravega is not None and not pravega.by_size:
        # In Pravega's rules an age of 0 also counts: after the clock is set back, the newest record has to wait for it.
        ages = Ages(minimum=pravega.minimum, maximum=pravega.maximum)
    if ages == Ages(minimum=None, maximum=None) or not policy.truncates or floor.unlimited:
        ages = None
    return PolicyShape(
        policy=policy,
        pravega=pravega,
        floor=floor,
        releases=policy.unsubscribed is Unsubscribed.RELEASE,
        moves=policy.ttl_ms is not None
        or policy.limits_backlog
        or policy.subscriber_idle_ms is not None
        or policy.stream_idle_ms is not None,
        records=(policy.truncates and not floor.unlimited)
        or policy.ttl_ms is not None
        or policy.backlog_age_ms is not None
        or evicts,
        ages=ages,
        has_maximum=policy.max_bytes is not None or policy.max_age_ms is not None,
    )


def _pravega(policy: EffectivePolicy) -> PravegaForm | None:
    if not policy.truncates:
        return None
    sizes = policy.given("retain.min_bytes") or policy.given("retain.max_bytes")
    sizes = sizes or policy.min_bytes != 0 or policy.max_bytes is not None
    ages = policy.given("retain.min_age_s") or policy.given("retain.max_age_s")
    ages = ages or policy.min_age_ms != 0 or policy.max_age_ms is not None
    if sizes and ages:
        return None
    if ages:
        # A record has the same age for all segments, so ages do not depend on the policy's measure.
        least, most = policy.min_age_ms, policy.max_age_ms
    elif policy.measure is Measure.SEGMENT:
        return None
    else:
        least, most = policy.min_bytes, policy.max_bytes
    return None if least is None else PravegaForm(by_size=not ages, minimum=least, maximum=most)


class Outlook:
    """A stream at one time: values derived from its facts before any rule is applied.

    ``records``: the retention set, including a record that is due. ``tail``: the end of the stream, None if unknown.
    ``published``: the acknowledged cuts of the subscribers that have published one. ``holds``: the holds in force.
    """

    __slots__ = (
        "_aged",
        "facts",
        "head",
        "head_bytes",
        "history",
        "holds",
        "now_ms",
        "policy",
        "published",
        "record",
        "record_due_ms",
        "records",
        "shape",
        "tail",
    )

    def __init__(self, facts: RetentionFacts, now_ms: int) -> None:
        self.facts = facts
        self.now_ms = now_ms
        self.history = facts.history
        self.policy = None if facts.unreadable else facts.policy
        self.shape = None if self.policy is None else shape_of(self.policy)
        self.record_due_ms: int | None = None
        self._aged: dict[int, int] = {}
        given = facts.retention_set
        self.records: Sequence[StreamCutRecord] = given
        self.record = self._due_record()
        if self.record is not None:
            self.records = given.plus(self.record) if type(given) is RecordColumns else [*given, self.record]
        self.tail = facts.tail or (self.records[-1] if self.records else None)
        self.head: Positions = facts.head or head_of(facts.history)
        self.head_bytes = size_till(facts.history, self.head) if facts.head else 0
        self.published: Mapping[str, Positions] = {name: cut for name, cut in facts.subscribers.items() if cut}
        self.holds: Sequence[Hold] = ()
        if facts.holds:
            self.holds = [hold for hold in facts.holds if hold.until_ms is None or now_ms < hold.until_ms]

    def _due_record(self) -> StreamCutRecord | None:
        facts, tail = self.facts, self.facts.tail
        # Recording continues while a policy cannot be read, because the policy needs the records once it is readable.
        wanted = bool(facts.unreadable) or (self.shape is not None and self.shape.records)
        if tail is None or not wanted:
            return None
        if not facts.retention_set:
            return tail
        newest_ms, newest_bytes = self.time_at(-1), self.size_at(-1)
        # If the clock was set back, or the size shrank, a new record would break the order of the set.
        if tail.time_ms <= newest_ms or tail.size_bytes < newest_bytes:
            return None
        due_ms = newest_ms + facts.frequency_ms + 1
        if self.now_ms >= due_ms:
            return tail
        # This value is later than any clock: the caller wants no records.
        self.record_due_ms = due_ms if due_ms <= LONG_MAX else None
        return None

    @property
    def counts_events(self) -> bool:
        """Whether cuts have event counts. If the tail has none, events are not counted."""
        if self.tail is not None and self.tail.event_count is not None:
            return True
        records = self.records
        if type(records) is RecordColumns:
            return records.counts_events
        return bool(records) and records[-1].event_count is not None

    # A large set builds each record on access. The methods below read single values and avoid building the record.

    def time_at(self, place: int) -> int:
        records = self.records
        return records.times[place] if type(records) is RecordColumns else records[place].time_ms

    def size_at(self, place: int) -> int:
        records = self.records
        return records.sizes[place] if type(records) is RecordColumns else records[place].size_bytes

    def count_at(self, place: int) -> int | None:
        """Number of events before the record. None if they were not counted."""
        records = self.records
        return records.count_at(place) if type(records) is RecordColumns else records[place].event_count

    def cut_at(self, place: int) -> Positions:
        records = self.records
        if type(records) is RecordColumns:
            return records.cut_at(place if place >= 0 else len(records) + place)
        return records[place].positions

    def place_aged(self, age_ms: int) -> int:
        """Index of the newest record that is at least ``age_ms`` old; -1 if there is none. Searched once per age."""
        place = self._aged.get(age_ms)
        if place is None:
            place = self._aged[age_ms] = self.until_time(self.now_ms - age_ms) - 1
        return place

    def until_time(self, time_ms: int) -> int:
        """Number of records at or before this time."""
        records = self.records
        if type(records) is RecordColumns:
            return bisect_right(records.times, time_ms)
        return bisect_right(records, time_ms, key=_time_of)

    def until_size(self, size: int) -> int:
        """Number of records with at most this size."""
        records = self.records
        if type(records) is RecordColumns:
            return bisect_right(records.sizes, size)
        return bisect_right(records, size, key=_size_of)

    def records_till(self, cut: Positions, size: int | None = None) -> int:
        """Number of records that are at or before the cut for all keys. ``size``: bytes of the history before the cut,
        if known."""
        history = self.history
        # A record with more bytes before it than the cut cannot qualify. Usually all records with fewer bytes do.
        upto = self.until_size(size_till(history, cut) if size is None else size)
        if not upto or at_or_after(history, cut, self.cut_at(upto - 1)):
            return upto
        return bisect_left(range(upto), True, key=lambda i: not at_or_after(history, cut, self.cut_at(i)))

    def records_passed(self, cut: Positions) -> int:
        """Number of records, counted from the oldest, that the cut has reached for all keys. Only positions are
        compared.

        Sizes only decide where the search begins: they are wrong if the length of a sealed segment is missing.
        """
        history, count = self.history, len(self.records)
        guess = self.until_size(size_till(history, cut))
        behind_none = guess == 0 or at_or_after(history, cut, self.cut_at(guess - 1))
        if behind_none and (guess == count or not at_or_after(history, cut, self.cut_at(guess))):
            return guess
        return bisect_left(range(count), True, key=lambda place: not at_or_after(history, cut, self.cut_at(place)))

    def behind(self, cut: Positions, other: Positions) -> bool:
        """Whether ``cut`` is behind ``other`` for at least one key."""
        return not at_or_after(self.history, cut, other)

    def lower(self, *cuts: Positions) -> Positions:
        """The latest cut that is ahead of none of them. If it equals one of two given cuts, that same object is
        returned."""
        first, second = cuts
        if at_or_after(self.history, second, first):
            return first
        return second if at_or_after(self.history, first, second) else lower_bound(self.history, cuts)
