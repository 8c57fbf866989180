"""Which data a stream may have lost: a slow model that knows every single event, and checks each move of a head against
all guarantees about them.

It shares no code with the planner. Whether a cut passes an event is decided for each event. Ages are in the
simulation's own time. If a moment is not known exactly, everything that was possible in between is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from itertools import takewhile

from penstock.model.names import StreamName
from penstock.model.retention import Combine, EffectivePolicy, OnExceed, Unsubscribed
from penstock.model.segments import KeyRange, SegmentId
from penstock.model.values.dataclass import dataclass

Positions = Mapping[SegmentId, int]
FOREVER = float("inf")
QUOTA_SLACK_S = 5.0
"""How long until a new policy or subscriber stops writers: the documented lag of a check, and what a slow disk adds."""


@dataclass(slots=True, eq=False)
class Event:
    """A stored event: appended between two moments, at a position that the store has returned."""

    number: int
    segment: SegmentId
    start: int
    end: int
    began_s: float
    acked_s: float
    data: bytes

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Span:
    """A condition: possibly true from ``since_s``, certainly from ``sure_s`` to ``ends_s``, and not after
    ``over_s``."""

    since_s: float
    sure_s: float
    ends_s: float = FOREVER
    over_s: float = FOREVER

    def possible(self, start_s: float, end_s: float) -> bool:
        """Whether it may have been true at some moment."""
        return self.since_s <= end_s and start_s <= self.over_s

    def throughout(self, start_s: float, end_s: float) -> bool:
        """Whether it was certainly true all the time."""
        return self.sure_s <= start_s and end_s <= self.ends_s


@dataclass(slots=True, eq=False)
class Held:
    """A hold. ``cut=None``: the whole stream."""

    id: str
    cut: Positions | None
    span: Span


@dataclass(slots=True, eq=False)
class Policied:
    policy: EffectivePolicy
    span: Span


@dataclass(slots=True, eq=False)
class Reading:
    """A subscriber, and each cut that it has published: since when the store may know it, and since when it does."""

    name: str
    span: Span
    cuts: list[tuple[float, float, Positions]] = field(default_factory=list)

    def surely(self, at_s: float) -> Positions | None:
        """The latest cut that the store certainly knew by then."""
        return next((cut for _, sure_s, cut in reversed(self.cuts) if sure_s <= at_s), None)

    def possibly(self, at_s: float) -> Positions | None:
        """The latest cut that the store may have known by then."""
        return next((cut for since_s, _, cut in reversed(self.cuts) if since_s <= at_s), None)

    def progress_s(self) -> float:
        """When it first published its latest cut: repeating a cut does not count as activity while data is unread."""
        latest = self.cuts[-1][2]
        repeated = takewhile(lambda item: item[2] == latest, reversed(self.cuts))
        return min(since_s for since_s, _, _ in repeated)


@dataclass(frozen=True, slots=True)
class Forced:
    """A forced advance as the store recorded it."""

    subscriber: str
    start: Positions
    end: Positions
    rule: str


class StreamModel:
    """One stream. ``violation`` is called with each broken guarantee."""

    def __init__(self, name: StreamName, violation: Callable[[str, str], None]) -> None:
        self.name = name
        self._violation = violation
        self.events: list[Event] = []
        self.ranges: dict[SegmentId, KeyRange] = {}
        self.policies: list[Policied] = []
        self.holds: list[Held] = []
        self.subscribers: dict[str, list[Reading]] = {}
        self.by_hand: list[Positions] = []
        self.head: Positions | None = None
        self.observed_s = 0.0
        self.undo_since_s: float | None = None
        self.heads: list[Positions] = []
        self.moves = 0
        self.advances = 0

    # --- what a cut passes ---------------------------------------------------------------------------------------

    def passes(self, cut: Positions, event: Event) -> bool:
        """Whether the event is before the cut: in its own segment, or in a segment that the cut has passed."""
        offset = cut.get(event.segment)
        keys = self.ranges[event.segment]
        over = [segment for segment in cut if self.ranges[segment].overlaps(keys)]
        if offset is not None:
            return offset >= event.end
        return all(segment > event.segment for segment in over)

    def passed(self, cut: Positions) -> list[Event]:
        return [event for event in self.events if self.passes(cut, event)]

    def left(self, cut: Positions) -> list[Event]:
        """What readers must find from the cut on."""
        return [event for event in self.events if not self.passes(cut, event)]

    def policies_between(self, start_s: float, end_s: float) -> list[EffectivePolicy]:
        """All policies that may have been in force."""
        return [item.policy for item in self.policies if item.span.possible(start_s, end_s)]

    # --- the laws ------------------------------------------------------------------------------------------------

    def observe(self, head: Positions, asked_s: float, now_s: float, forced: Sequence[Forced]) -> None:
        """The head was seen at some moment between the two. ``forced``: forced advances recorded by ``now_s``."""
        before, self.head = self.head, head
        since_s, self.observed_s = self.observed_s, asked_s
        if before is None or dict(before) == dict(head):
            return
        self.moves += 1
        self.heads.append(head)
        back = [event for event in self.passed(before) if not self.passes(head, event)]
        if back:
            if self.undo_since_s is None or self.undo_since_s < since_s - 1e-9:
                self._violation("head moved back", f"{self.name} {dict(before)} to {dict(head)}")
            return
        gone = [event for event in self.passed(head) if not self.passes(before, event)]
        # If it passed no event, it may also have moved back: an undo crosses segments that were sealed empty.
        self.advances += bool(gone)
        self.check_gone(gone, head, since_s, now_s, forced)

    def check_gone(
        self, gone: Sequence[Event], head: Positions, since_s: float, now_s: float, forced: Sequence[Forced]
    ) -> None:
        """Check the removal of some events, at an unknown moment between two, against all laws."""
        if not gone:
            return
        for hold in self.holds:
            if hold.span.throughout(since_s, now_s):
                lost = [event for event in gone if hold.cut is None or not self.passes(hold.cut, event)]
                self._report("hold broken", lost, f"hold {hold.id}")
        if any(all(self.passes(cut, event) for event in gone) for cut in self.by_hand):
            return
        policies = self.policies_between(since_s, now_s)
        if not any(policy.truncates for policy in policies):
            self._report("deleted without a policy", gone, "")
            return
        if not any(self._leaves_minimum(policy, gone, head, now_s) for policy in policies):
            self._report("below the minimum", gone, f"{[_limits(policy) for policy in policies]}")
        self._check_subscribers(gone, since_s, now_s, policies, forced)

    def _leaves_minimum(self, policy: EffectivePolicy, gone: Sequence[Event], head: Positions, now_s: float) -> bool:
        given = []
        if policy.given("retain.min_bytes"):
            left = sum(event.size for event in self.left(head))
            given.append(policy.min_bytes is not None and left >= policy.min_bytes)
        if policy.given("retain.min_age_s"):
            oldest = policy.min_age_ms
            given.append(oldest is not None and all((now_s - event.began_s) * 1000 >= oldest for event in gone))
        if not policy.truncates:
            return False
        if not given:
            return True
        return any(given) if policy.combine is Combine.ANY else all(given)

    def _check_subscribers(
        self,
        gone: Sequence[Event],
        since_s: float,
        now_s: float,
        policies: Sequence[EffectivePolicy],
        forced: Sequence[Forced],
    ) -> None:
        may_force = any(policy.max_bytes is not None or policy.max_age_ms is not None for policy in policies)
        alive = [
            reading
            for readings in self.subscribers.values()
            for reading in readings
            if reading.span.possible(since_s, now_s)
        ]
        if not alive and not may_force and all(policy.unsubscribed is Unsubscribed.KEEP for policy in policies):
            self._report("deleted although nobody subscribes and everything is kept", gone, "")
        for reading in alive:
            if not reading.span.throughout(since_s, now_s):
                continue
            read = reading.possibly(now_s)
            if read is None:
                continue
            moved = [item.end for item in forced if item.subscriber == reading.name]
            lost = [
                event
                for event in gone
                if not self.passes(read, event) and not any(self.passes(end, event) for end in moved)
            ]
            self._report("taken from a subscriber without a record", lost, reading.name)

    def check_forced(self, item: Forced, since_s: float, now_s: float) -> None:
        """A forced advance was recorded at some moment between the two: its rule must have been in force, and due."""
        policies = self.policies_between(since_s, now_s)
        events = [event for event in self.passed(item.end) if not self.passes(item.start, event)]
        if item.rule == "ttl":
            limits = [policy.ttl_ms for policy in policies if policy.ttl_ms is not None]
            young = [event for event in events if not any((now_s - event.began_s) * 1000 >= limit for limit in limits)]
            self._report("expired early", young, f"{item.subscriber} {limits}")
        elif item.rule.startswith("backlog"):
            if not any(
                policy.backlog_bytes is not None and policy.bytes_action is OnExceed.EVICT for policy in policies
            ):
                self._report("evicted although no quota evicts", events, item.subscriber)
        elif not any(policy.max_bytes is not None or policy.max_age_ms is not None for policy in policies):
            self._report("overruled without a maximum", events, f"{item.subscriber} {item.rule}")

    def quota_passed(self, appended: Event, forced: Sequence[Forced]) -> list[str]:
        """An append was accepted. Returns the subscribers whose backlog is now over a quota that was certainly in
        force."""
        began_s, acked_s = appended.began_s - QUOTA_SLACK_S, appended.acked_s
        limits = [
            item.policy.backlog_bytes
            for item in self.policies
            if item.policy.backlog_bytes is not None
            and item.policy.bytes_action is not OnExceed.EVICT
            and item.span.throughout(began_s, acked_s)
        ]
        if not limits:
            return []
        found = []
        for reading in (reading for readings in self.subscribers.values() for reading in readings):
            if reading.span.throughout(began_s, acked_s):
                unread = self._unread(reading, acked_s, forced)
                if unread > min(limits):
                    found.append(f"{self.name} {reading.name}: {unread} of {min(limits)} bytes unread")
        return found

    def _unread(self, reading: Reading, at_s: float, forced: Sequence[Forced]) -> int:
        cuts = [item.end for item in forced if item.subscriber == reading.name]
        cuts += [cut for cut in (reading.possibly(at_s), self.head) if cut is not None]
        return sum(event.size for event in self.events if not any(self.passes(cut, event) for cut in cuts))

    def _report(self, what: str, events: Iterable[Event], more: str) -> None:
        broken = list(events)
        if broken:
            first = broken[0]
            self._violation(
                what, f"{self.name}: {len(broken)} events, first {first.number} of {first.began_s:.0f} s. {more}"
            )


def _limits(policy: EffectivePolicy) -> str:
    return f"min {policy.min_bytes} B {policy.min_age_ms} ms {policy.combine.value}"
