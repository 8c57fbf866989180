"""Random streams for the tests of cuts and retention, and a slow second opinion that looks at single keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from hypothesis import strategies as st

from penstock.core.policies.levels import effective_of
from penstock.core.retention.planner import RetentionDecision, RetentionFacts, StreamCutRecord, decide
from penstock.core.streams.history import EpochRecord, StreamHistory
from penstock.model.policies import RetentionPolicy, RetentionType
from penstock.model.retention import EffectivePolicy
from penstock.model.segments import KeyRange, SegmentId, SegmentRange, even_ranges, make_segment_id

Cut = Mapping[SegmentId, int]


def history_of(*epochs: Mapping[str, tuple[float, float]], sealed: Mapping[str, int] | None = None) -> StreamHistory:
    """Epochs as ``{"number#epoch": (low, high)}``."""
    records = []
    for number, segments in enumerate(epochs):
        ranges = [
            SegmentRange(segment=seg(name), keys=KeyRange(low=low, high=high)) for name, (low, high) in segments.items()
        ]
        records.append(EpochRecord(epoch=number, segments=tuple(sorted(ranges, key=lambda r: r.keys.low))))
    return StreamHistory(epochs=tuple(records), sealed_lengths={seg(name): n for name, n in (sealed or {}).items()})


def seg(name: str) -> SegmentId:
    number, epoch = name.split("#")
    return make_segment_id(int(epoch), int(number))


def cut(**offsets: int) -> dict[SegmentId, int]:
    """``cut(s0e0=5)``: segment 0 of epoch 0 at 5."""
    positions = {}
    for name, offset in offsets.items():
        number, epoch = name[1:].split("e")
        positions[make_segment_id(int(epoch), int(number))] = offset
    return positions


def even(count: int) -> StreamHistory:
    ranges = [
        SegmentRange(segment=make_segment_id(0, place), keys=keys) for place, keys in enumerate(even_ranges(count))
    ]
    return StreamHistory(epochs=(EpochRecord(epoch=0, segments=tuple(ranges)),))


# --- small streams -----------------------------------------------------------------------------------------------

ONE = even(1)
TWO = even(2)


def size(minimum: int, maximum: int | None = None) -> EffectivePolicy:
    return pravega(RetentionType.SIZE, minimum, maximum)


def age(minimum: int, maximum: int | None = None) -> EffectivePolicy:
    return pravega(RetentionType.TIME, minimum, maximum)


def pravega(kind: RetentionType, minimum: int = 0, maximum: int | None = None) -> EffectivePolicy:
    return effective_of(RetentionPolicy(type=kind, minimum=minimum, maximum=maximum))


def record(time_ms: int, *offsets: int) -> StreamCutRecord:
    positions = dict(enumerate(offsets))
    return StreamCutRecord(time_ms=time_ms, size_bytes=sum(offsets), positions=positions)  # type: ignore[arg-type]


def one_segment(policy: EffectivePolicy | None, *sizes: int, **more: object) -> RetentionFacts:
    """A stream of one segment with a cut recorded at 1000, 2000, … ms at these sizes; the last one is the tail."""
    records = [record(1000 * (place + 1), at) for place, at in enumerate(sizes)]
    return RetentionFacts(history=ONE, policy=policy, retention_set=records, **more)  # type: ignore[arg-type]


def at(offset: int) -> dict[int, int]:
    return {0: offset}


def aged(policy: EffectivePolicy, subscriber: int | None = None) -> RetentionDecision:
    """Cuts at 1000 … 5000 ms at 20, 40, 60, 80, 100 bytes, asked at 5000."""
    subscribers = {} if subscriber is None else {"a": at(subscriber)}
    return decide(one_segment(policy, 20, 40, 60, 80, 100, subscribers=subscribers), now_ms=5000)  # type: ignore[arg-type]


# --- the slow second opinion --------------------------------------------------------------------------------------


def keys_of(history: StreamHistory) -> list[float]:
    """One key inside each run of keys over which nothing in the history changes."""
    bounds = {0.0, 1.0}
    for record in history.epochs:
        for item in record.segments:
            bounds |= {item.keys.low, item.keys.high}
    order = sorted(bounds)
    return [(low + high) / 2 for low, high in zip(order, order[1:], strict=False)]


def covers(history: StreamHistory, segment: SegmentId, key: float) -> bool:
    for record in history.epochs:
        for item in record.segments:
            if item.segment == segment:
                return item.keys.low <= key < item.keys.high
    raise AssertionError(segment)


def position_at(history: StreamHistory, positions: Cut, key: float) -> tuple[SegmentId, int] | None:
    here = [segment for segment in positions if covers(history, segment, key)]
    return (min(here), max(positions[min(here)], 0)) if here else None


def brute_is_valid(history: StreamHistory, positions: Cut) -> bool:
    everything = {item.segment for record in history.epochs for item in record.segments}
    if not positions or not set(positions) <= everything:
        return False
    keys = keys_of(history)
    at = {key: position_at(history, positions, key) for key in keys}
    if any(value is None for value in at.values()):
        return False
    for segment in everything:
        own = [at[key][0] for key in keys if covers(history, segment, key)]
        if positions.get(segment, -1) >= 0 and any(other != segment for other in own):
            return False
        if any(other > segment for other in own) and not all(other > segment for other in own):
            return False
    return True


def brute_passed(history: StreamHistory, positions: Cut) -> set[SegmentId]:
    everything = {item.segment for record in history.epochs for item in record.segments}
    keys = keys_of(history)
    return {
        segment
        for segment in everything
        if all(position_at(history, positions, key)[0] > segment for key in keys if covers(history, segment, key))
    }


def brute_size(history: StreamHistory, positions: Cut) -> int:
    passed = sum(history.sealed_lengths.get(segment, 0) for segment in brute_passed(history, positions))
    return passed + sum(max(offset, 0) for offset in positions.values())


# --- random streams -----------------------------------------------------------------------------------------------


@dataclass
class World:
    """A stream that has lived: its history, its current lengths, and the cuts recorded on the way."""

    epochs: list[list[SegmentRange]]
    lengths: dict[SegmentId, int] = field(default_factory=dict)
    records: list[StreamCutRecord] = field(default_factory=list)
    now_ms: int = 1000
    next_number: int = 0

    def __post_init__(self) -> None:
        self.next_number = len(self.epochs[0])
        self.lengths = {item.segment: 0 for item in self.epochs[0]}

    @property
    def history(self) -> StreamHistory:
        active = {item.segment for item in self.epochs[-1]}
        sealed = {segment: length for segment, length in self.lengths.items() if segment not in active}
        records = [EpochRecord(epoch=n, segments=tuple(items)) for n, items in enumerate(self.epochs)]
        return StreamHistory(epochs=tuple(records), sealed_lengths=sealed)

    def tail(self) -> StreamCutRecord:
        positions = {item.segment: self.lengths[item.segment] for item in self.epochs[-1]}
        return StreamCutRecord(time_ms=self.now_ms, size_bytes=sum(self.lengths.values()), positions=positions)

    def step(self, random: Random) -> None:
        action = random.randrange(10)
        if action < 4:
            for item in self.epochs[-1]:
                self.lengths[item.segment] += random.choice([0, 0, 1, 3, 10])
        elif action < 7:
            self.now_ms += random.choice([1, 5, 20])
            if not self.records or self.records[-1].time_ms < self.now_ms:
                self.records.append(self.tail())
        elif action == 7:
            self._split(random)
        elif action == 8:
            self._merge(random)
        else:
            self._roll(random)

    def _fresh(self, low: float, high: float) -> SegmentRange:
        item = SegmentRange(
            segment=make_segment_id(len(self.epochs), self.next_number), keys=KeyRange(low=low, high=high)
        )
        self.next_number += 1
        self.lengths[item.segment] = 0
        return item

    def _split(self, random: Random) -> None:
        active = self.epochs[-1]
        old = random.choice(active)
        count = random.choice([2, 3])
        width = (old.keys.high - old.keys.low) / count
        bounds = [self._known_bound(old.keys.low + width * i) for i in range(count)] + [old.keys.high]
        new = [self._fresh(low, high) for low, high in zip(bounds, bounds[1:], strict=False)]
        self._replace([old], new)

    def _known_bound(self, bound: float) -> float:
        """The bound, or one of an earlier epoch that rounding has kept from being the same: between two doubles that follow
        each other there is no key for the second opinion to look at."""
        known = [item.keys.low for items in self.epochs for item in items]
        return min((item for item in known if abs(item - bound) < 1e-9), default=bound)

    def _merge(self, random: Random) -> None:
        active = self.epochs[-1]
        if len(active) < 2:
            return
        first = random.randrange(len(active) - 1)
        last = random.randrange(first + 1, min(len(active), first + 3))
        self._replace(active[first : last + 1], [self._fresh(active[first].keys.low, active[last].keys.high)])

    def _replace(self, old: list[SegmentRange], new: list[SegmentRange]) -> None:
        kept = [item for item in self.epochs[-1] if item not in old]
        self.epochs.append(sorted([*kept, *new], key=lambda item: item.keys.low))

    def _roll(self, random: Random) -> None:
        if len(self.epochs) < 2:
            return
        for source in (random.choice(self.epochs[:-1]), self.epochs[-1]):
            items = []
            for item in source:
                segment = make_segment_id(len(self.epochs), item.segment & 0xFFFFFFFF)
                self.lengths[segment] = random.choice([0, 2])
                items.append(SegmentRange(segment=segment, keys=item.keys))
            self.epochs.append(items)

    def some_cut(self, random: Random) -> dict[SegmentId, int]:
        """A position that a reader group could be at: it finishes segments only after all that came before them."""
        everything = {item.segment: item.keys for items in self.epochs for item in items}
        active = {item.segment for item in self.epochs[-1]}
        eager = random.choice([0.3, 0.7, 0.95, 1.0])
        finished: set[SegmentId] = set()
        for segment in sorted(everything):
            before = [s for s in everything if s < segment and everything[s].overlaps(everything[segment])]
            if segment not in active and finished.issuperset(before) and random.random() < eager:
                finished.add(segment)
        positions: dict[SegmentId, int] = {}
        history = self.history
        for key in keys_of(history):
            first = min(s for s in everything if s not in finished and covers(history, s, key))
            before = [s for s in everything if s < first and everything[s].overlaps(everything[first])]
            if first not in positions:
                started = finished.issuperset(before)
                positions[first] = random.randint(0, self.lengths[first]) if started else -1
        return positions


@st.composite
def worlds(draw: st.DrawFn, *, steps: int = 25) -> tuple[World, Random]:
    random = draw(st.randoms(use_true_random=False))
    count = draw(st.integers(1, 4))
    items = [SegmentRange(segment=make_segment_id(0, i), keys=keys) for i, keys in enumerate(even_ranges(count))]
    world = World([items])
    for _ in range(draw(st.integers(0, steps))):
        world.step(random)
    return world, random
