"""What the slow model of retention knows of a stream: cuts as tuples of positions, events, and the minimum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from retention_living import Event
from retention_world import Cut, covers, keys_of, position_at

from penstock.core.retention.planner import RetentionFacts
from penstock.core.streams.history import StreamHistory
from penstock.model.retention import Combine, EffectivePolicy, Measure, OnExceed

Place = tuple[tuple[int, int], ...]
"""A cut: segment and offset at each run of keys."""


@dataclass
class Recorded:
    time_ms: int
    place: Place


class ModelStream:
    """One stream at one time, without any rule: its cuts, its bytes, and what the minimum wants."""

    def __init__(self, facts: RetentionFacts, events: Sequence[Event], now_ms: int) -> None:
        assert facts.policy is not None
        assert facts.tail is not None
        self.facts = facts
        self.policy: EffectivePolicy = facts.policy
        self.history: StreamHistory = facts.history
        self.now_ms = now_ms
        self._sums: dict[object, int] = {}
        self.keys = keys_of(facts.history)
        self.events = events
        self.segments = sorted({item.segment for epoch in self.history.epochs for item in epoch.segments})
        self.own = {s: [i for i, key in enumerate(self.keys) if covers(self.history, s, key)] for s in self.segments}
        self.tail = self.place(facts.tail.positions)
        start = {item.segment: 0 for item in self.history.epochs[0].segments}
        self.head = self.place(facts.head or start)
        self.records = [Recorded(item.time_ms, self.place(item.positions)) for item in facts.retention_set]
        newest = facts.retention_set[-1].time_ms if facts.retention_set else None
        if self.wants_records() and (
            newest is None or (now_ms - newest > facts.frequency_ms and facts.tail.time_ms > newest)
        ):
            self.records.append(Recorded(facts.tail.time_ms, self.tail))
        self.boundaries = [Recorded(b.time_ms, self.place(b.positions)) for b in facts.boundaries]
        self.candidates = self.records + self.boundaries

    def wants_records(self) -> bool:
        policy = self.policy
        limits = {"bytes": policy.backlog_bytes, "events": policy.backlog_events, "age": policy.backlog_age_ms}
        evicts = any(limit is not None and self.action(name) is OnExceed.EVICT for name, limit in limits.items())
        truncates = policy.truncates and not self.keeps_all()
        return truncates or policy.ttl_ms is not None or policy.backlog_age_ms is not None or evicts

    def action(self, quota: str) -> OnExceed:
        """What the quota of ``bytes``, ``events`` or ``age`` does."""
        own = getattr(self.policy, f"on_exceed_{quota}")
        return self.policy.on_exceed if own is None else own

    # --- cuts ---------------------------------------------------------------------------------------------------

    def place(self, positions: Cut) -> Place:
        found = [position_at(self.history, positions, key) for key in self.keys]
        assert all(found)
        return tuple(found)  # type: ignore[arg-type]

    def passed(self, place: Place, event: Event) -> bool:
        return all(place[i] >= (event.segment, event.end) for i in self.own[event.segment])

    def bytes_before(self, place: Place, segments: Sequence[int] | None = None) -> int:
        key = (place, None if segments is None else tuple(segments))
        if key not in self._sums:
            own = self.segments if segments is None else segments
            passed = [event.size for event in self.events if event.segment in own and self.passed(place, event)]
            self._sums[key] = sum(passed)
        return self._sums[key]

    def left(self, place: Place) -> int:
        return self.bytes_before(self.tail) - self.bytes_before(place)

    def events_left(self, place: Place) -> int:
        return sum(not self.passed(place, event) for event in self.events)

    @staticmethod
    def meet(*places: Place) -> Place:
        return tuple(min(column) for column in zip(*places, strict=True))

    @staticmethod
    def join(*places: Place) -> Place:
        return tuple(max(column) for column in zip(*places, strict=True))

    @staticmethod
    def reaches(a: Place, b: Place) -> bool:
        """Whether ``a`` is behind ``b`` nowhere."""
        return all(here >= there for here, there in zip(a, b, strict=True))

    def valid_part(self, place: Place) -> Place:
        """The latest valid cut at or before: lower whatever is ahead of a segment that is not passed everywhere."""
        now = list(place)
        while True:
            before = list(now)
            for segment in self.segments:
                own = [now[i] for i in self.own[segment]]
                here = min(own)
                if here[0] > segment:
                    continue
                most = here if here[0] == segment else (segment, 0)
                for i in self.own[segment]:
                    now[i] = min(now[i], most)
            if now == before:
                return tuple(now)

    # --- the minimum --------------------------------------------------------------------------------------------

    def minimums(self) -> dict[str, int | None]:
        policy = self.policy
        given = {"bytes": policy.min_bytes, "age": policy.min_age_ms}
        names = {"bytes": "retain.min_bytes", "age": "retain.min_age_s"}
        return {kind: value for kind, value in given.items() if policy.given(names[kind])}

    def keeps_all(self) -> bool:
        values = list(self.minimums().values())
        if self.policy.combine is Combine.ALL:
            return None in values
        return bool(values) and all(value is None for value in values)

    def lets_all_go(self) -> bool:
        values = list(self.minimums().values())
        return not values or (0 in values if self.policy.combine is Combine.ANY else all(v == 0 for v in values))

    def sources(self) -> tuple[list[Recorded], list[Recorded]]:
        return self.records, self.boundaries

    def old(self, age_ms: int) -> list[Recorded]:
        return [item for item in self.records if self.now_ms - item.time_ms >= age_ms]

    def tails(self) -> list[int]:
        assert self.facts.tail is not None
        return sorted(self.facts.tail.positions, key=lambda s: self.own[s][0])

    def inside(self, segment: int) -> list[int]:
        return [s for s in self.segments if s <= segment and set(self.own[s]) <= set(self.own[segment])]

    def left_of(self, segment: int, place: Place) -> int:
        own = self.inside(segment)
        return self.bytes_before(self.tail, own) - self.bytes_before(place, own)

    def furthest(self, records: Sequence[Recorded], boundaries: Sequence[Recorded]) -> Recorded | None:
        """The newest record, or a boundary with more before it."""
        best = records[-1] if records else None
        for item in boundaries:
            if best is None or self.bytes_before(item.place) > self.bytes_before(best.place):
                best = item
        return best

    def nearest(self, records: Sequence[Recorded], boundaries: Sequence[Recorded]) -> Recorded | None:
        """The oldest record, or a boundary with less before it."""
        best = records[0] if records else None
        for item in boundaries:
            if best is None or self.bytes_before(item.place) < self.bytes_before(best.place):
                best = item
        return best

    def each_segment(self, choose: Callable[[int], Place]) -> Place:
        """Each segment at the tail where ``choose`` says, as far as that can be cut."""
        result = list(self.head)
        for segment in self.tails():
            chosen = choose(segment)
            for i in self.own[segment]:
                result[i] = chosen[i]
        return self.valid_part(tuple(result))

    def byte_floor(self, limit: int) -> Place | None:
        if self.policy.measure is Measure.STREAM:
            above = [[item for item in items if self.left(item.place) >= limit] for items in self.sources()]
            best = self.furthest(*above)
            return None if best is None else best.place

        def choose(segment: int) -> Place:
            fits = [item for item in self.records if self.left_of(segment, item.place) >= limit]
            best = fits[-1].place if fits else self.head
            for item in self.boundaries:
                if limit <= self.left_of(segment, item.place) < self.left_of(segment, best):
                    best = item.place
            return best

        place = self.each_segment(choose)
        return None if self.reaches(self.head, place) else place

    def leaves_bytes(self, place: Place, limit: int) -> bool:
        if self.policy.measure is Measure.STREAM:
            return self.left(place) >= limit
        floor = self.byte_floor(limit)
        if floor is not None and self.reaches(floor, place):
            return True
        return all(self.left_of(s, place) >= limit for s in self.tails())

    def leaves_minimum(self, place: Place) -> bool:
        if self.lets_all_go():
            return True
        met = []
        for kind, limit in self.minimums().items():
            if limit == 0 and self.policy.combine is Combine.ALL:
                continue
            if limit is None:
                met.append(False)
            elif kind == "bytes":
                met.append(self.leaves_bytes(place, limit))
            else:
                met.append(any(self.reaches(item.place, place) for item in self.old(limit)))
        return any(met) if self.policy.combine is Combine.ANY else all(met)

    def floor(self) -> Place | None:
        if self.lets_all_go():
            return self.tail
        found: list[Place | None] = []
        for kind, limit in self.minimums().items():
            if limit is None or (limit == 0 and self.policy.combine is Combine.ALL):
                continue
            if kind == "bytes":
                found.append(self.byte_floor(limit))
            else:
                old = self.old(limit)
                found.append(old[-1].place if old else None)
        known = [place for place in found if place is not None]
        if self.policy.combine is Combine.ALL:
            return self.meet(*known) if known and len(known) == len(found) else None
        return max(known, key=self.bytes_before, default=None)
