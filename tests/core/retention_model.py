"""The retention rules a second time: slow, obvious, event by event, out of the documents' words, without the planner's code.

A cut is a tuple of positions, one for each run of keys, ordered run by run. A stream is a list of events. Nothing is
searched: every record, every event and every run of keys is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from retention_model_stream import ModelStream, Place, Recorded

from penstock.model.retention import Combine, IdleWhen, Measure, OnExceed, Unsubscribed

STATES = {OnExceed.HOLD: "hold", OnExceed.REJECT: "reject", OnExceed.EVICT: "notify"}


@dataclass
class Decided:
    """What the model says, in its own terms."""

    acked: dict[str, Place]
    expired: list[tuple[str, int, int]] = field(default_factory=list)
    evicted: list[tuple[str, int, int, str]] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    candidate: Place | None = None
    head: Place = ()
    total_bytes: int | None = None
    total_events: int | None = None
    bytes_state: str = "open"
    events_state: str = "open"
    deletes: bool = False
    truncated: bool = False


class Model(ModelStream):
    """One stream at one time, with all rules."""

    # --- before truncation --------------------------------------------------------------------------------------

    def decide(self) -> Decided:
        facts = self.facts
        acked = {name: self.place(cut) for name, cut in facts.subscribers.items() if cut}
        done = Decided(acked=acked, head=self.head)
        known = {name: facts.activity.get(name) for name in acked}
        counts = {name: self.events_left(place) for name, place in acked.items()}
        oldest = {
            n: min((e.time_ms for e in self.events if not self.passed(p, e)), default=None) for n, p in acked.items()
        }
        assert all(item is not None for item in known.values())
        self._ttl(done, counts, oldest)
        self._quotas(done, counts, oldest)
        self._drops(done)
        done.deletes = self._deletes(done)
        self._truncation(done)
        after = Decided(acked=dict(done.acked))
        for name in sorted(done.acked):
            # Only a maximum goes past a subscriber; for all others there is nothing to move.
            if done.truncated:
                self._move(after, name, done.head, counts, oldest)
        self._writers(after, counts, oldest)
        done.total_bytes, done.total_events = after.total_bytes, after.total_events
        done.bytes_state, done.events_state = after.bytes_state, after.events_state
        return done

    def _lost(self, place: Place, target: Place) -> tuple[int, int]:
        lost = [
            event
            for event in self.events
            if self.passed(target, event) and not self.passed(place, event) and not self.passed(self.head, event)
        ]
        return sum(event.size for event in lost), len(lost)

    def _move(self, done: Decided, name: str, target: Place, counts: dict, oldest: dict) -> tuple[int, int] | None:
        size, count = self._lost(done.acked[name], target)
        if not size:
            return None
        done.acked[name] = self.join(done.acked[name], target)
        counted = [item.place for item in self.candidates] + [self.tail, self.head]
        counts[name] = self.events_left(done.acked[name]) if done.acked[name] in counted else None
        oldest[name] = None
        return size, count

    def _ttl(self, done: Decided, counts: dict, oldest: dict) -> None:
        ttl_ms = self.policy.ttl_ms
        target = None if ttl_ms is None else self._newest_aged(ttl_ms)
        if target is None:
            return
        for name in sorted(done.acked):
            lost = self._move(done, name, target, counts, oldest)
            if lost:
                done.expired.append((name, *lost))

    def _newest_aged(self, age_ms: int) -> Place | None:
        """The newest record of that age, or a boundary further on."""
        found = self.old(age_ms)[-1].place if self.old(age_ms) else None
        for item in self.candidates[len(self.records) :]:
            aged = self.now_ms - item.time_ms >= age_ms
            if aged and (found is None or self.bytes_before(item.place) > self.bytes_before(found)):
                found = item.place
        return found

    def _quotas(self, done: Decided, counts: dict, oldest: dict) -> None:
        policy = self.policy
        evicts = {name for name in ("bytes", "events", "age") if self.action(name) is OnExceed.EVICT}
        if policy.backlog_bytes is not None and "bytes" in evicts:
            sizes = {name: self.left(place) for name, place in done.acked.items()}
            self._evict(done, "backlog-bytes", policy.backlog_bytes, sizes, self.left, counts, oldest)
        if policy.backlog_events is not None and "events" in evicts:
            sizes = {name: count for name, count in counts.items() if count is not None}
            self._evict(done, "backlog-events", policy.backlog_events, sizes, self.events_left, counts, oldest)
        aged = policy.backlog_age_ms is not None and "age" in evicts
        if aged and self._too_old(done, policy.backlog_age_ms, oldest):
            age_ms = math.ceil(policy.backlog_age_ms * policy.evict_to)
            target = self._newest_aged(age_ms)
            if target is not None:
                for name in sorted(done.acked, key=lambda n: (-self.left(done.acked[n]), n)):
                    lost = self._move(done, name, target, counts, oldest)
                    if lost:
                        done.evicted.append((name, *lost, "backlog-age"))

    def _evict(
        self,
        done: Decided,
        rule: str,
        limit: int,
        sizes: Mapping[str, int],
        left: Callable[[Place], int],
        counts: dict,
        oldest: dict,
    ) -> None:
        if not sizes or max(sizes.values()) < limit:
            return
        share = math.floor(limit * self.policy.evict_to)
        places = [item.place for item in self.candidates] + [self.tail]
        enough = max((p for p in places if left(p) <= share), key=left)
        if left(enough) == 0 < share:
            below = [p for p in places if share < left(p) < limit]
            enough = min(below, key=left, default=enough)
        for name in sorted(sizes, key=lambda n: (-sizes[n], n)):
            if sizes[name] > share:
                lost = self._move(done, name, enough, counts, oldest)
                if lost:
                    done.evicted.append((name, *lost, rule))

    def _too_old(self, done: Decided, age_ms: int, oldest: dict) -> bool:
        for name, place in done.acked.items():
            known_ms = oldest.get(name)
            if known_ms is not None and self.left(place) and self.now_ms - known_ms >= age_ms:
                return True
            for item in self.candidates:
                if self.now_ms - item.time_ms >= age_ms and self._lost(place, item.place)[0]:
                    return True
        return False

    def _drops(self, done: Decided) -> None:
        idle_ms = self.policy.subscriber_idle_ms
        for name in sorted(self.facts.subscribers):
            activity = self.facts.activity.get(name)
            if idle_ms is None or activity is None or activity.last_active_ms is None:
                continue
            if self.now_ms - activity.last_active_ms >= idle_ms:
                done.dropped.append(name)
                done.acked.pop(name, None)

    def _writers(self, done: Decided, counts: dict, oldest: dict) -> None:
        policy, facts = self.policy, self.facts
        if not done.acked:
            return
        end = self.bytes_before(self.tail)
        if policy.backlog_bytes is not None:
            done.total_bytes = min(self.bytes_before(place) for place in done.acked.values()) + policy.backlog_bytes
            done.bytes_state = STATES[self.action("bytes")]
        known = [counts[name] for name in done.acked if counts[name] is not None]
        if policy.backlog_events is not None and known:
            done.total_events = len(self.events) - max(known) + policy.backlog_events
            done.events_state = STATES[self.action("events")]
        waits = policy.backlog_age_ms is not None and self.action("age") is not OnExceed.EVICT
        if waits and facts.tail is not None and self._too_old(done, policy.backlog_age_ms or 0, oldest):
            # A bound that only evicts gives way to one that stops writers.
            evicts = done.total_bytes is None or self.action("bytes") is OnExceed.EVICT
            if evicts or end < done.total_bytes:
                done.total_bytes, done.bytes_state = end, STATES[self.action("age")]

    def _deletes(self, done: Decided) -> bool:
        policy, facts = self.policy, self.facts
        if policy.stream_idle_ms is None or facts.last_append_ms is None or facts.truncating or self._holds():
            return False
        if self.now_ms - facts.last_append_ms < policy.stream_idle_ms:
            return False
        left = [name for name in facts.subscribers if name not in done.dropped]
        if policy.stream_idle_when is IdleWhen.NO_SUBSCRIBERS:
            unused = not left
        else:
            unused = all(name in done.acked and self.reaches(done.acked[name], self.tail) for name in left)
        if not unused:
            return False
        if self.left(self.head) == 0 or not policy.truncates or self.lets_all_go():
            explicit = policy.given("unsubscribed") and policy.unsubscribed is Unsubscribed.KEEP
            return self.left(self.head) == 0 or not (policy.truncates and explicit and not done.acked)
        if policy.given("unsubscribed") and policy.unsubscribed is Unsubscribed.KEEP and not done.acked:
            return False
        met = []
        for kind, limit in self.minimums().items():
            if limit == 0 and policy.combine is Combine.ALL:
                continue
            aged = limit is not None and self.now_ms - facts.last_append_ms >= limit
            met.append(kind == "age" and aged)
        return any(met) if policy.combine is Combine.ANY else all(met)

    # --- truncation ---------------------------------------------------------------------------------------------

    def _holds(self) -> list[Place]:
        """Where each hold in force begins; the head for one on the whole stream."""
        return [
            self.head if hold.positions is None else self.place(hold.positions)
            for hold in self.facts.holds
            if hold.until_ms is None or self.now_ms < hold.until_ms
        ]

    def _truncation(self, done: Decided) -> None:
        if not self.policy.truncates:
            return
        bound = self.meet(*done.acked.values()) if done.acked else None
        done.candidate = self._chosen(bound)
        if done.candidate is None or self.facts.truncating:
            return
        target = self.meet(done.candidate, self.tail, *self._holds())
        if self.reaches(target, self.head):
            done.head = target
            done.truncated = True

    def _chosen(self, bound: Place | None) -> Place | None:
        policy = self.policy
        sizes = policy.given("retain.min_bytes") or policy.given("retain.max_bytes")
        ages = policy.given("retain.min_age_s") or policy.given("retain.max_age_s")
        released = bound is not None or policy.unsubscribed is Unsubscribed.RELEASE
        if released and sizes and not ages and policy.measure is Measure.STREAM and policy.min_bytes is not None:
            return self._by_size(bound, policy.min_bytes, policy.max_bytes)
        if released and ages and not sizes and policy.min_age_ms is not None:
            return self._by_time(bound, policy.min_age_ms, policy.max_age_ms)
        return self._general(bound)

    def _by_size(self, bound: Place | None, minimum: int, maximum: int | None) -> Place | None:
        """Pravega's document, "Size Based Retention" and the five relations."""
        above, exact = [[r for r in items if self.left(r.place) >= minimum] for items in self.sources()]
        low = self.furthest(above, exact)
        within = [r for r in above if maximum is None or self.left(r.place) <= maximum]
        most = [max(reversed(within), key=lambda r: self.left(r.place))] if within else []
        top = self.nearest(most, [r for r in exact if maximum is None or self.left(r.place) <= maximum]) or low
        if bound is None:
            if low is None or top is None:
                return None
            over = maximum is not None and self.left(self.head) > maximum
            return top.place if over else low.place
        if self.left(bound) < minimum:
            return self._before_overlap(bound, low, above, exact)
        if maximum is None or self.left(bound) <= maximum or top is None or self.left(top.place) >= self.left(bound):
            return bound
        if self._overlap(bound, top.place):
            return self._behind_overlap(bound, top, above, exact)
        return top.place

    def _by_time(self, bound: Place | None, minimum: int, maximum: int | None) -> Place | None:
        above = self.old(minimum)
        if not above:
            return None
        low = above[-1]
        if bound is None:
            return low.place
        if not self.reaches(low.place, bound):
            return self._before_overlap(bound, low, above, [])
        edges = [] if maximum is None else self.old(maximum)
        if not edges or self.reaches(bound, edges[-1].place):
            return bound
        within = [r for r in above if maximum is None or self.now_ms - r.time_ms <= maximum]
        top = within[0] if within else low
        if self._overlap(bound, edges[-1].place):
            return self._behind_overlap(bound, top, above, [])
        return top.place

    def _overlap(self, a: Place, b: Place) -> bool:
        return not self.reaches(a, b) and not self.reaches(b, a)

    def _before_overlap(
        self, bound: Place, low: Recorded | None, above: Sequence[Recorded], exact: Sequence[Recorded]
    ) -> Place | None:
        if low is None or self.reaches(bound, low.place):
            return None if low is None else low.place
        before = [[r for r in items if self.reaches(bound, r.place)] for items in (above, exact)]
        best = self.furthest(*before)
        return None if best is None else best.place

    def _behind_overlap(
        self, bound: Place, top: Recorded, above: Sequence[Recorded], exact: Sequence[Recorded]
    ) -> Place:
        ahead = [[r for r in items if self.reaches(r.place, bound)] for items in (above, exact)]
        best = self.nearest(*ahead)
        return top.place if best is None else best.place

    def _general(self, bound: Place | None) -> Place | None:
        """Consumed, up to the floor; where a maximum is passed, up to the cap, and never past the floor."""
        if self.keeps_all():
            return None
        releases = self.policy.unsubscribed is Unsubscribed.RELEASE
        consumed = bound if bound is not None else self.tail if releases else None
        floor = self.floor()
        start = consumed
        if consumed is not None and not self.leaves_minimum(consumed):
            start = None if floor is None else self.meet(consumed, floor)
        chosen = start
        caps = [] if floor is None else self._caps(start)
        if floor is not None and caps:
            cap = self.meet(self.join(*caps), floor)
            if not self.reaches(self.head, cap) and (start is None or not self.reaches(start, cap)):
                chosen = cap if start is None else self.join(start, cap)
                if start is not None and not self.leaves_minimum(chosen):
                    chosen = self.join(self.meet(start, floor), cap)
        if (
            chosen is not None
            and not self.reaches(chosen, self.head)
            and self.leaves_minimum(self.join(chosen, self.head))
        ):
            return self.join(chosen, self.head)
        return chosen

    def _caps(self, start: Place | None) -> list[Place]:
        policy = self.policy
        after = self.head if start is None else self.join(start, self.head)
        caps: list[Place] = []
        if policy.max_bytes is not None and self.candidates:
            most = policy.max_bytes
            if policy.measure is Measure.STREAM:
                if self.left(after) > most:
                    fits = [[r for r in items if self.left(r.place) <= most] for items in self.sources()]
                    best = self.nearest(*fits) or self.furthest(*self.sources())
                    assert best is not None
                    caps.append(best.place)
            else:

                def choose(segment: int) -> Place:
                    def left(item: Recorded) -> int:
                        return self.left_of(segment, item.place)

                    if self.left_of(segment, after) <= most:
                        return after
                    fits = [item for item in self.candidates if left(item) <= most]
                    # Of what leaves too much the newest record, or what leaves even less.
                    rest = [*reversed(self.records), *self.boundaries]
                    return max(fits, key=left).place if fits else min(rest, key=left).place

                caps.append(self.each_segment(choose))
        if policy.max_age_ms is not None and self.old(policy.max_age_ms):
            caps.append(self.old(policy.max_age_ms)[-1].place)
        return caps
