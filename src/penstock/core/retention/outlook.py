"""What every rule of retention looks at: the policy in the form that the rules take, and what follows from the facts.

Source: docs/design/0007-retention.md. Nothing here decides anything.
"""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.core.cuts.order import Positions, at_or_after, head_of, lower_bound, size_till
from penstock.core.policies.levels import Floor, floor_of
from penstock.core.retention.facts import Hold, RecordColumns, RetentionFacts, StreamCutRecord
from penstock.model.policies import LONG_MAX, RetentionType
from penstock.model.retention import EffectivePolicy, Measure, OnExceed, Unsubscribed

_SHAPES_MAX = 256  # shapes of policies that stay decoded

_size_of = operator.attrgetter("size_bytes")
_time_of = operator.attrgetter("time_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class PravegaForm:
    """Limits of one dimension of the whole stream, the only ones that Pravega's rules know. Bytes or milliseconds."""

    by_size: bool
    minimum: int
    maximum: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ages:
    """Ages of a policy that records are held against, milliseconds."""

    minimum: int | None
    maximum: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyShape:
    """A policy as the planner takes it.

    ``pravega`` is None where Pravega could not say the same; ``releases``: data without subscribers goes down to the floor;
    ``moves``: there are rules about subscribers, writers or idleness; ``records``: some rule looks at recorded cuts;
    ``ages``: those of records at which truncation may change its mind; None where it never does.
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
        """The one dimension of a policy in Pravega's form."""
        if self.pravega is None:
            return None
        return RetentionType.SIZE if self.pravega.by_size else RetentionType.TIME


_shapes: dict[int, PolicyShape] = {}


def shape_of(policy: EffectivePolicy) -> PolicyShape:
    """The form that the rules take. Worked out once for each policy object, of which a server has few."""
    shape = _shapes.get(id(policy))
    # The shape holds its policy, so that the id cannot pass to another one meanwhile.
    if shape is None or shape.policy is not policy:
        if len(_shapes) >= _SHAPES_MAX:
            _shapes.clear()
        shape = _shapes[id(policy)] = _shape(policy)
    return shape


def _shape(policy: EffectivePolicy) -> PolicyShape:
    floor = floor_of(policy)
    evicts = OnExceed.EVICT in policy.quota_actions
    pravega = _pravega(policy)
    ages: Ages | None = Ages(minimum=floor.age_ms, maximum=policy.max_age_ms)
    if pravega is not None and not pravega.by_size:
        # By Pravega's rules an age of 0 is an age too: a clock that went back makes the newest record wait for it.
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
        # A record's age is the same for all segments, whichever way it is measured.
        least, most = policy.min_age_ms, policy.max_age_ms
    elif policy.measure is Measure.SEGMENT:
        return None
    else:
        least, most = policy.min_bytes, policy.max_bytes
    return None if least is None else PravegaForm(by_size=not ages, minimum=least, maximum=most)


class Outlook:
    """A stream at one time: what follows from its facts before any rule has spoken.

    ``records``: the retention set with the record that is due; ``tail``: the end of the stream, None where it is not known;
    ``published``: what subscribers have acknowledged, without those that have published nothing; ``holds``: those in force.
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
        # While a policy cannot be read, records go on: it must find them once it can.
        wanted = bool(facts.unreadable) or (self.shape is not None and self.shape.records)
        if tail is None or not wanted:
            return None
        if not facts.retention_set:
            return tail
        newest_ms, newest_bytes = self.time_at(-1), self.size_at(-1)
        # A clock that went back, or a size that shrank, would break the order of the set.
        if tail.time_ms <= newest_ms or tail.size_bytes < newest_bytes:
            return None
        due_ms = newest_ms + facts.frequency_ms + 1
        if self.now_ms >= due_ms:
            return tail
        # Beyond every clock: the caller wants none.
        self.record_due_ms = due_ms if due_ms <= LONG_MAX else None
        return None

    @property
    def counts_events(self) -> bool:
        """Whether cuts come with event counts: where the end has none, nobody counts."""
        if self.tail is not None and self.tail.event_count is not None:
            return True
        records = self.records
        if type(records) is RecordColumns:
            return records.counts_events
        return bool(records) and records[-1].event_count is not None

    # A record of a large set is made when it is asked for: where one of its values will do, only that is taken.

    def time_at(self, place: int) -> int:
        records = self.records
        return records.times[place] if type(records) is RecordColumns else records[place].time_ms

    def size_at(self, place: int) -> int:
        records = self.records
        return records.sizes[place] if type(records) is RecordColumns else records[place].size_bytes

    def count_at(self, place: int) -> int | None:
        """Events before the record, None where nobody counted."""
        records = self.records
        return records.count_at(place) if type(records) is RecordColumns else records[place].event_count

    def cut_at(self, place: int) -> Positions:
        records = self.records
        if type(records) is RecordColumns:
            return records.cut_at(place if place >= 0 else len(records) + place)
        return records[place].positions

    def place_aged(self, age_ms: int) -> int:
        """Place of the newest record that is at least so old; -1: none is. Searched once for each age."""
        place = self._aged.get(age_ms)
        if place is None:
            place = self._aged[age_ms] = self.until_time(self.now_ms - age_ms) - 1
        return place

    def until_time(self, time_ms: int) -> int:
        """How many records are no later."""
        records = self.records
        if type(records) is RecordColumns:
            return bisect_right(records.times, time_ms)
        return bisect_right(records, time_ms, key=_time_of)

    def until_size(self, size: int) -> int:
        """How many records are no larger."""
        records = self.records
        if type(records) is RecordColumns:
            return bisect_right(records.sizes, size)
        return bisect_right(records, size, key=_size_of)

    def records_till(self, cut: Positions, size: int | None = None) -> int:
        """How many records are ahead of the cut nowhere. ``size``: of the history till the cut, if it is known."""
        history = self.history
        # No record with more bytes before it can be one of them, and mostly all with fewer are.
        upto = self.until_size(size_till(history, cut) if size is None else size)
        if not upto or at_or_after(history, cut, self.cut_at(upto - 1)):
            return upto
        return bisect_left(range(upto), True, key=lambda i: not at_or_after(history, cut, self.cut_at(i)))

    def records_passed(self, cut: Positions) -> int:
        """How many records, from the oldest on, the cut is behind nowhere, by the cuts alone.

        Sizes say where to look first, and no more: where the length of a sealed segment is not given they are off.
        """
        history, count = self.history, len(self.records)
        guess = self.until_size(size_till(history, cut))
        behind_none = guess == 0 or at_or_after(history, cut, self.cut_at(guess - 1))
        if behind_none and (guess == count or not at_or_after(history, cut, self.cut_at(guess))):
            return guess
        return bisect_left(range(count), True, key=lambda place: not at_or_after(history, cut, self.cut_at(place)))

    def behind(self, cut: Positions, other: Positions) -> bool:
        """Whether ``cut`` is behind ``other`` at some key."""
        return not at_or_after(self.history, cut, other)

    def lower(self, *cuts: Positions) -> Positions:
        """The latest cut ahead of none, and the very same object where it is one of two."""
        first, second = cuts
        if at_or_after(self.history, second, first):
            return first
        return second if at_or_after(self.history, first, second) else lower_bound(self.history, cuts)
