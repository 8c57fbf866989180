"""Random streams that remember each of their events, so that a rule can be held against single events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from retention_world import World

from penstock.core.retention.planner import StreamCutRecord


@dataclass(frozen=True)
class Event:
    segment: int
    end: int
    size: int
    time_ms: int


class LivingWorld(World):
    """A world that remembers each event, and where it ended after each step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.events: list[Event] = []
        self.moments = [self.tail()]

    def step(self, random: Random) -> None:
        before = dict(self.lengths)
        super().step(random)
        for segment, length in sorted(self.lengths.items()):
            if length > before.get(segment, 0):
                self.events.append(Event(segment, length, length - before.get(segment, 0), self.now_ms))
        self.moments.append(self.tail())

    def boundary(self, moment: StreamCutRecord, records: Sequence[StreamCutRecord]) -> StreamCutRecord:
        """Where the stream ended once, as a boundary: of the age of the record behind it, which nobody can know better."""
        behind = next((item for item in records if item.size_bytes >= moment.size_bytes), self.tail())
        return replace(moment, time_ms=behind.time_ms)

    def some_cut(self, random: Random) -> dict[int, int]:
        """A reader's position, between events."""
        positions = super().some_cut(random)
        ends = {segment: [0] for segment in self.lengths}
        for event in self.events:
            ends[event.segment].append(event.end)
        return {s: at if at < 0 else max(end for end in ends[s] if end <= at) for s, at in positions.items()}
