"""Input and output of the retention planner. Plain data; the rules are in ``planner``."""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from itertools import islice
from typing import Any, overload

from penstock.core.cuts.order import Positions
from penstock.core.streams.history import StreamHistory
from penstock.model.errors import CorruptDataError
from penstock.model.retention import EffectivePolicy
from penstock.model.values.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCutRecord:
    """A cut at the tail, as it was at ``time_ms``: all data before it was appended by then, all data behind it later.

    ``size_bytes`` counts from the beginning of history, including truncated bytes (``cuts.order.size_till``); so does
    ``event_count``, if counted.
    """

    time_ms: int
    size_bytes: int
    positions: Positions
    event_count: int | None = None


class RecordColumns(Sequence[StreamCutRecord]):
    """Records as columns, for callers with very many streams: a record object is created on demand.

    ``cuts`` are mappings in any spelling that ``positions`` turns into positions. Raises: CorruptDataError (out of order).
    """

    __slots__ = ("_counts", "_cuts", "_made", "_positions", "sizes", "times")

    def __init__(
        self,
        times: Sequence[int],
        sizes: Sequence[int],
        cuts: Sequence[Any],
        counts: Sequence[int | None] | None = None,
        *,
        positions: Callable[[Any], Positions],
    ) -> None:
        ordered = all(map(operator.lt, times, islice(times, 1, None)))
        if not ordered or not all(map(operator.le, sizes, islice(sizes, 1, None))):
            raise CorruptDataError("records of the retention set are out of order")
        self.times = times
        self.sizes = sizes
        self._cuts = cuts
        self._counts = counts
        self._positions = positions
        self._made: dict[int, Positions] = {}

    def plus(self, record: StreamCutRecord) -> RecordColumns:
        """The same columns with one more record. Raises CorruptDataError."""
        own = self._positions
        more = RecordColumns(
            (), (), (), positions=lambda cut: cut.positions if isinstance(cut, StreamCutRecord) else own(cut)
        )
        if self.times and (record.time_ms <= self.times[-1] or record.size_bytes < self.sizes[-1]):
            raise CorruptDataError("records of the retention set are out of order")
        more.times = [*self.times, record.time_ms]
        more.sizes = [*self.sizes, record.size_bytes]
        more._cuts = [*self._cuts, record]
        if self._counts is not None or record.event_count is not None:
            more._counts = [*(self._counts or [None] * len(self.times)), record.event_count]
        return more

    def since(self, place: int) -> RecordColumns:
        """The records from that place on."""
        found = RecordColumns((), (), (), positions=self._positions)
        found.times, found.sizes, found._cuts = self.times[place:], self.sizes[place:], self._cuts[place:]
        found._counts = None if self._counts is None else self._counts[place:]
        return found

    def __len__(self) -> int:
        return len(self.times)

    @overload
    def __getitem__(self, place: int) -> StreamCutRecord: ...
    @overload
    def __getitem__(self, place: slice) -> list[StreamCutRecord]: ...
    def __getitem__(self, place: int | slice) -> StreamCutRecord | list[StreamCutRecord]:
        if isinstance(place, slice):
            return [self[item] for item in range(*place.indices(len(self)))]
        return StreamCutRecord(
            time_ms=self.times[place],
            size_bytes=self.sizes[place],
            positions=self.cut_at(place),
            event_count=self.count_at(place),
        )

    def count_at(self, place: int) -> int | None:
        """Events before the record, None if not counted."""
        return None if self._counts is None else self._counts[place]

    def cut_at(self, place: int) -> Positions:
        """The cut of a record: the same object each time."""
        made = self._made.get(place)
        if made is None:
            made = self._made[place] = self._positions(self._cuts[place])
        return made

    @property
    def counts_events(self) -> bool:
        """Whether the newest record has an event count."""
        return bool(self._counts) and self._counts is not None and self._counts[-1] is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberActivity:
    """Known facts about a subscriber besides its cut. None means unknown, and no rule guesses it.

    ``oldest_unacked_ms``: when its oldest unread event was appended; also None if it has read everything.
    ``backlog_events``: the exact number of unread events up to the tail. ``backlog_bytes``: the same in bytes, which
    the planner computes from the cut. ``last_active_ms``: when it last acknowledged.
    """

    oldest_unacked_ms: int | None = None
    backlog_bytes: int | None = None
    backlog_events: int | None = None
    last_active_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Data behind ``positions`` (None: the whole stream) stays while ``now < until_ms`` (None: forever)."""

    id: str
    owner: str = ""
    reason: str = ""
    until_ms: int | None = None
    positions: Positions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionFacts:
    """A stream, as input for retention.

    ``policy``: its effective policy; None, or one that does not truncate, keeps all data. ``unreadable``: why the
    policy, or a part of it, could not be read; if not empty, no rule acts at all, whatever ``policy`` says. ``head``:
    the cut of the last truncation, None for the beginning of history; ``head_event_count``: events before it, if known.
    ``truncating``: one is in flight. ``retention_set``: recorded cuts, oldest first. ``boundaries``: further cuts between
    events, in any order: TTL and eviction may move a subscriber there, and limits of bytes choose among them and the
    records; ``time_ms`` of each is such that all data before it was appended by then. ``subscribers``: what each has
    acknowledged, empty if nothing was published. ``tail``: the current end of the stream; None: the newest record.
    ``frequency_ms``: how often to record. ``last_append_ms``: when the stream last received an event, or was created;
    None: unknown, and the stream never counts as idle.
    Raises: CorruptDataError (records out of order in time or size).
    """

    history: StreamHistory
    policy: EffectivePolicy | None
    head: Positions | None = None
    truncating: bool = False
    retention_set: Sequence[StreamCutRecord] = ()
    subscribers: Mapping[str, Positions] = field(default_factory=dict)
    tail: StreamCutRecord | None = None
    frequency_ms: int = 0
    holds: Sequence[Hold] = ()
    activity: Mapping[str, SubscriberActivity] = field(default_factory=dict)
    boundaries: Sequence[StreamCutRecord] = ()
    last_append_ms: int | None = None
    head_event_count: int | None = None
    unreadable: str = ""

    def __post_init__(self) -> None:
        if type(self.retention_set) is RecordColumns:
            return
        before: StreamCutRecord | None = None
        for record in self.retention_set:
            if before is not None and (record.time_ms <= before.time_ms or record.size_bytes < before.size_bytes):
                # A search in such a set could find a cut far ahead of the limit: better no truncation than a wrong one.
                raise CorruptDataError(
                    "records of the retention set are out of order",
                    time_ms=record.time_ms,
                    size_bytes=record.size_bytes,
                    before_time_ms=before.time_ms,
                    before_size_bytes=before.size_bytes,
                )
            before = record


class _Word(enum.Enum):
    """A word of the planner's answer. ``word`` is its value, and cheap: an answer has a dozen of them, and the ``value``
    and the hash of an enumeration are calls into Python."""

    word: str

    def __init__(self, word: str) -> None:
        self.word = word

    # Unpickling returns the one existing object of each word.
    __hash__ = object.__hash__


class RetentionRule(_Word):
    """The rule that chose, or why none did. Numbers in brackets are the cases of the source document.

    The last ones move or drop subscribers, stop writers, or delete the stream; they never choose a cut.
    """

    NO_POLICY = "no-policy"
    UNREADABLE_POLICY = "unreadable-policy"
    NO_RECORD = "no-record"
    BELOW_MINIMUM = "below-minimum"
    MINIMUM = "minimum"
    MAXIMUM = "maximum"
    SUBSCRIBERS = "subscribers"  # (i)
    SUBSCRIBERS_MINIMUM = "subscribers-minimum"  # (ii)
    SUBSCRIBERS_MAXIMUM = "subscribers-maximum"  # (iii)
    OVERLAP_MINIMUM = "overlap-minimum"  # (iv)
    OVERLAP_MAXIMUM = "overlap-maximum"  # (v)
    UNSUBSCRIBED = "unsubscribed"
    TTL = "ttl"
    BACKLOG_BYTES = "backlog-bytes"
    BACKLOG_EVENTS = "backlog-events"
    BACKLOG_AGE = "backlog-age"
    IDLE_SUBSCRIBER = "idle-subscriber"
    IDLE_STREAM = "idle-stream"


class HolderKind(_Word):
    """Why bytes are kept. ``DUE`` bytes are deleted in the next cycle."""

    DUE = "due"
    HOLD = "hold"
    LOCK = "lock"
    NO_POLICY = "no-policy"
    UNREADABLE_POLICY = "unreadable-policy"
    SUBSCRIBER = "subscriber"
    MINIMUM = "minimum"
    UNSUBSCRIBED = "unsubscribed"
    TRUNCATING = "truncating"
    UNRECORDED = "unrecorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A holder, and how many bytes it keeps. ``name``: of the subscriber or hold, the end of a lock, else empty."""

    kind: HolderKind
    name: str
    bytes: int

    def in_words(self) -> str:
        """Why the bytes are kept, as the end of a sentence: ``by hold case-7``."""
        return _KEPT[self.kind].format(name=self.name)


_KEPT = {
    HolderKind.DUE: "until the next cycle",
    HolderKind.HOLD: "by hold {name}",
    HolderKind.LOCK: "by the retention that is locked until {name}",
    HolderKind.NO_POLICY: "because no retention rule applies",
    HolderKind.UNREADABLE_POLICY: "because the policy cannot be read",
    HolderKind.SUBSCRIBER: "until subscriber {name} acknowledges them",
    HolderKind.MINIMUM: "by the retention minimum",
    HolderKind.UNSUBSCRIBED: "because nobody subscribes",
    HolderKind.TRUNCATING: "until the running truncation ends",
    HolderKind.UNRECORDED: "by the retention minimum, up to the nearest recorded position",
}
_WORDS = {
    "due": "nobody: the next cycle deletes it",
    "minimum": "the retention minimum",
    "no-policy": "no retention rule applies: everything is kept",
    "unreadable-policy": "the policy cannot be read: everything is kept",
    "unsubscribed": "the policy, while nobody subscribes",
    "due ttl": "nobody: it expired unread, and the next cycle deletes it",
    "due backlog-bytes": "nobody: the backlog quota deletes it unread in the next cycle",
    "due backlog-events": "nobody: the backlog quota deletes it unread in the next cycle",
    "due backlog-age": "nobody: the backlog quota deletes it unread in the next cycle",
    "due idle-subscriber": "nobody: the next cycle drops its last subscriber",
    "due subscribers-maximum": "nobody: the maximum deletes it unread in the next cycle",
    "due overlap-maximum": "nobody: the maximum deletes it unread in the next cycle",
    "truncating": "nobody: a truncation is deleting it",
    "unrecorded": "the retention minimum, up to the nearest recorded position",
    "": "nobody: the stream is empty",
}


def holder_in_words(held_by: str) -> str:
    """A kind of holder in readable form: subscribers and holds with their name."""
    return _WORDS.get(held_by, held_by)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRange:
    """Bytes of a stream and their one holder.

    ``start_bytes`` and ``end_bytes`` count from the beginning of history. ``start`` and ``end`` are the cuts there,
    None if the bound is only a number of bytes. ``name``: of the subscriber or hold; of a lock, its end; for unread
    ``DUE`` bytes, the rule that deletes them; else empty. ``release_ms``: the earliest time at which this holder
    releases the first of these bytes through time alone; None: never through time alone.
    """

    kind: HolderKind
    name: str
    start_bytes: int
    end_bytes: int
    start: Positions | None
    end: Positions | None
    release_ms: int | None = None

    @property
    def bytes(self) -> int:
        return self.end_bytes - self.start_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """A subscriber moved by a rule from ``start`` to ``end``, losing ``bytes`` unacknowledged bytes, none of them
    before the head. ``events``: their number of events, None if the cuts have no event counts."""

    subscriber: str
    start: Positions
    end: Positions
    bytes: int
    rule: RetentionRule
    events: int | None = None


Eviction = Advance


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """A silent subscriber to remove. ``start``: its cut, after the advances of the same decision; empty where it has
    published nothing."""

    subscriber: str
    start: Positions
    last_active_ms: int
    rule: RetentionRule = RetentionRule.IDLE_SUBSCRIBER


class WriterState(_Word):
    """The effect on an append beyond the totals of a verdict: none, a wait, a refusal, or eviction soon after."""

    OPEN = "open"
    HOLD = "hold"
    REJECT = "reject"
    NOTIFY = "notify"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterVerdict:
    """How far writers may append after this decision.

    ``total_bytes`` and ``total_events`` bound the whole history's bytes and events, truncated ones included; None: no bound;
    both None exactly if ``state`` is ``OPEN``. ``bytes_state`` and ``events_state``: what happens to an append that
    passes this bound; ``OPEN`` if there is none. ``exceeded``: a quota is already reached. ``rule``: that quota,
    preferring one that stops writers to one that evicts; otherwise the one that will be reached first, bytes before
    events before age. ``state``: its effect; ``subscriber``: the one furthest behind. Both empty if there is no quota
    or nobody has acknowledged.
    """

    state: WriterState = WriterState.OPEN
    total_bytes: int | None = None
    total_events: int | None = None
    bytes_state: WriterState = WriterState.OPEN
    events_state: WriterState = WriterState.OPEN
    exceeded: bool = False
    rule: RetentionRule | None = None
    subscriber: str = ""


OPEN = WriterVerdict()
