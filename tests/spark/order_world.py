"""A stream that is written, scaled and truncated at random, and readers of all kinds on it, by their real decisions.

Nothing here waits, and no event has bytes: an event is its place, and one byte long. Each reader gives the events of each key in
some order; the order of Pravega's Java client, which starts a successor when all its predecessors are done, is what they
are compared with.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol, cast
from unittest import mock

from penstock.client.reading.blocks import Block
from penstock.client.reading.fetching import SegmentEnd
from penstock.client.reading.group_state import GroupState, initial_state
from penstock.client.reading.reader import AsyncReader
from penstock.core.cuts.order import Positions, check_cut, segments_between, segments_to_delete, successors, upper_bound
from penstock.core.cuts.read_order import enter_successors
from penstock.core.streams.history import EpochRecord, StreamHistory
from penstock.model.answers.explanation import Explanation
from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidCutError, SegmentNotFoundError
from penstock.model.names import StreamName, segment_name
from penstock.model.segments import KeyRange, SegmentId, SegmentRange, make_segment_id
from penstock.ports.control.cuts import SegmentSpan
from penstock.ports.control.layout import Successor
from penstock.ports.data.segments import SegmentInfo
from penstock.spark.connect import Services
from penstock.spark.options import parse_read
from penstock.spark.reading import one_stream
from penstock.spark.reading.boundaries import Limit, Places
from penstock.spark.reading.following import check_offset
from penstock.spark.reading.one_stream import OneStream
from penstock.spark.reading.planning import batch_ranges, left_of
from penstock.spark.reading.positions import Offset, ranges_of
from tests.example_answers import explanation
from tests.flat_control import FlatControl

STREAM = StreamName("s", "t")
PARTS = 8
"""Keys, and places where ranges may meet: scalings cross wherever they like."""

_IDLE_STEPS = 12
"""A step of a group is that of one of its readers, drawn at random: it may be the one without a segment."""

Place = tuple[SegmentId, int]


class World(FlatControl):
    """The stream, as a controller and a store that answer at once."""

    def __init__(self, rng: random.Random, *, truncated: bool) -> None:
        self.rng = rng
        self.may_truncate = truncated
        self.epochs: list[EpochRecord] = []
        self.keys: dict[SegmentId, list[int]] = {}
        self.sealed: set[SegmentId] = set()
        self.starts: dict[SegmentId, int] = {}
        self.deleted: set[SegmentId] = set()
        self._numbers = 0
        self._open(0, [], self._tiling(0, PARTS))
        self.head_positions: dict[SegmentId, int] = {item.segment: 0 for item in self.epochs[0].segments}

    # --- what happens to the stream ---

    def _tiling(self, low: int, high: int) -> list[tuple[int, int]]:
        inner = sorted(self.rng.sample(range(low + 1, high), self.rng.randrange(min(4, high - low))))
        edges = [low, *inner, high]
        return list(zip(edges, edges[1:], strict=False))

    def _open(self, epoch: int, kept: Sequence[SegmentRange], tiling: Sequence[tuple[int, int]]) -> None:
        fresh = []
        for low, high in tiling:
            segment = make_segment_id(epoch, self._numbers)
            self._numbers += 1
            self.keys[segment], self.starts[segment] = [], 0
            fresh.append(SegmentRange(segment=segment, keys=KeyRange(low=low / PARTS, high=high / PARTS)))
        together = sorted([*kept, *fresh], key=lambda item: item.keys.low)
        self.epochs.append(EpochRecord(epoch=epoch, segments=together))
        self._history: StreamHistory | None = None

    @property
    def history(self) -> StreamHistory:
        if self._history is None:
            lengths = {item: len(self.keys[item]) for item in self.sealed}
            self._history = StreamHistory(epochs=tuple(self.epochs), sealed_lengths=lengths)
        return self._history

    def write(self) -> None:
        for item in self.epochs[-1].segments:
            low, high = int(item.keys.low * PARTS), int(item.keys.high * PARTS)
            events = self.rng.randrange(5)
            self.keys[item.segment] += [self.rng.randrange(low, high) for _ in range(events)]

    def scale(self) -> None:
        active = self.epochs[-1].segments
        first = self.rng.randrange(len(active))
        last = self.rng.randrange(first, len(active))
        replaced = active[first : last + 1]
        self.sealed |= {item.segment for item in replaced}
        kept = [item for item in active if item not in replaced]
        edges = int(replaced[0].keys.low * PARTS), int(replaced[-1].keys.high * PARTS)
        self._open(len(self.epochs), kept, self._tiling(*edges))

    def truncate(self) -> None:
        """Up to a cut at random, where it is further than the head."""
        cut = _some_cut(self)
        check_cut(self.history, cut)
        self.head_positions = upper_bound(self.history, [self.head_positions, cut])
        for segment, offset in self.head_positions.items():
            self.starts[segment] = max(self.starts[segment], offset)
        self.deleted |= set(segments_to_delete(self.history, None, self.head_positions))

    def exists(self, place: Place) -> bool:
        return place[0] not in self.deleted and place[1] >= self.starts[place[0]]

    def tail_positions(self) -> dict[SegmentId, int]:
        return {item.segment: len(self.keys[item.segment]) for item in self.epochs[-1].segments}

    # --- ControlPlane ---

    async def cuts_head(self, stream: StreamName) -> StreamCut:
        return StreamCut(stream, dict(self.head_positions))

    async def cuts_tail(self, stream: StreamName) -> StreamCut:
        return StreamCut(stream, self.tail_positions())

    async def layout_ranges(self, stream: StreamName, segments: Sequence[SegmentId]) -> Mapping[SegmentId, KeyRange]:
        return {item: self.history.index.ranges[item] for item in segments}

    async def layout_successors(self, stream: StreamName, segment: SegmentId) -> Sequence[Successor]:
        return [Successor(range=item, predecessors=tuple(old)) for item, old in successors(self.history, segment)]

    async def cuts_segments_between(self, stream: StreamName, start: StreamCut, end: StreamCut) -> Sequence[SegmentId]:
        return segments_between(self.history, start.positions, end.positions)

    async def cuts_is_valid(self, stream: StreamName, cut: StreamCut) -> bool:
        try:
            check_cut(self.history, cut.positions)
        except InvalidCutError:
            return False
        return all(offset <= len(self.keys[item]) for item, offset in cut.positions.items())

    async def cuts_measure(self, stream: StreamName, start: StreamCut, end: StreamCut) -> Sequence[SegmentSpan]:
        for cut in (start, end):
            check_cut(self.history, cut.positions)
        found = []
        for item in segments_between(self.history, start.positions, end.positions):
            low = max(0, start.positions.get(item, 0))
            high = max(0, end.positions.get(item, len(self.keys[item])))
            if low < high:
                found.append(SegmentSpan(segment=item, start=low, end=high, events=None))
        return found

    async def retention_explain(self, stream: StreamName, *, position: StreamCut) -> Explanation:
        return explanation()

    # --- SegmentService ---

    def _info(self, segment: SegmentId) -> SegmentInfo:
        return SegmentInfo(
            name=segment_name(STREAM, segment),
            start_offset=self.starts[segment],
            length=len(self.keys[segment]),
            sealed=segment in self.sealed,
            last_modified_ms=0,
        )

    async def infos(self, names: Sequence[str]) -> Mapping[str, SegmentInfo]:
        known = {segment_name(STREAM, item): item for item in self.keys if item not in self.deleted}
        return {name: self._info(known[name]) for name in names if name in known}

    async def info(self, name: str) -> SegmentInfo:
        found = await self.infos([name])
        if name not in found:
            raise SegmentNotFoundError("no such segment", segment=name)
        return found[name]


class Reader(Protocol):
    """One kind of reader. ``seen``: the places that it has returned, in order."""

    seen: list[Place]

    async def step(self) -> bool:
        """Read some. False where there is nothing to be read now."""
        ...

    async def restart(self) -> None:
        """Go on from what is stored."""
        ...


class JavaReader:
    """The rule of Pravega's reader group: a segment is started when all its predecessors are done."""

    def __init__(self, world: World) -> None:
        self.seen: list[Place] = []
        self._world = world
        self._open = dict(world.head_positions)
        self._missing: dict[SegmentId, set[SegmentId]] = {}

    async def step(self) -> bool:
        world, moved = self._world, False
        for segment in world.rng.sample(sorted(self._open), len(self._open)):
            end = len(world.keys[segment])
            if self._open[segment] < end:
                until = world.rng.randrange(self._open[segment], end) + 1
                self.seen += [place for place in _places(segment, self._open[segment], until) if world.exists(place)]
                self._open[segment] = until
                return True
            if segment in world.sealed:
                moved = True
                del self._open[segment]
                for item, before in successors(world.history, segment):
                    missing = self._missing.setdefault(item.segment, set(before))
                    missing.discard(segment)
                    if not missing:
                        self._open[item.segment] = 0
        return moved

    async def restart(self) -> None:
        """Its state is all there is."""


class _Idle(Exception):
    """Nothing to read for now."""


class _Fetcher:
    """Gives what is there of the segments that a Python reader has begun, some at a time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._at: dict[SegmentId, tuple[int, int | None]] = {}

    def add(self, stream: StreamName, segment: SegmentId, offset: int, limit: int | None = None) -> None:
        self._at[segment] = offset, limit

    def take(self) -> Block | SegmentEnd | None:
        world = self._world
        for segment in world.rng.sample(sorted(self._at), len(self._at)):
            offset = max(self._at[segment][0], world.starts[segment])
            length = len(world.keys[segment])
            if segment in world.deleted or (offset >= length and segment in world.sealed):
                del self._at[segment]
                return SegmentEnd(STREAM, segment, length, truncated=segment in world.deleted)
            if offset < length:
                count = world.rng.randrange(length - offset) + 1
                self._at[segment] = offset + count, None
                return Block(STREAM, segment, offset, b"", range(count + 1))
        return None

    async def arrived(self) -> None:
        raise _Idle

    async def close(self) -> None:
        self._at.clear()


class PythonReader:
    def __init__(self, world: World) -> None:
        self.seen: list[Place] = []
        self._world = world
        self._start(StreamCut(STREAM, dict(world.head_positions)))

    def _start(self, cut: StreamCut) -> None:
        world = cast(Any, self._world)
        self._reader = AsyncReader(STREAM, world, world, cast(Any, None), start=cut, on_truncated="skip")
        self._reader._fetcher = cast(Any, _Fetcher(self._world))

    async def step(self) -> bool:
        try:
            block = await self._reader.next_block()
        except _Idle:
            return False
        if block is None:
            return False
        self.seen += [
            place for place in _places(block.segment, block.offset, block.end_offset) if self._world.exists(place)
        ]
        block.finish()
        return True

    async def restart(self) -> None:
        cut = self._reader.position()
        if cut.is_unbounded:
            return  # It has not begun.
        check_cut(self._world.history, cut.positions)
        self._start(cut)


class GroupReaders:
    """Two readers of a group, which come and go, over the state that they share."""

    def __init__(self, world: World) -> None:
        self.seen: list[Place] = []
        self._world = world
        ranges = {(STREAM, item): keys for item, keys in world.history.index.ranges.items()}
        self._state = initial_state("g", {STREAM: StreamCut(STREAM, dict(world.head_positions))}, ranges)
        self._state.join("a")

    async def step(self) -> bool:
        world, state = self._world, self._state
        reader = world.rng.choice(sorted(state.members))
        state.acquire(reader)
        for key in world.rng.sample(sorted(state.members[reader].held), len(state.members[reader].held)):
            segment, offset = key[1], state.members[reader].held[key]
            end = len(world.keys[segment])
            if offset < end:
                until = world.rng.randrange(offset, end) + 1
                self.seen += [place for place in _places(segment, offset, until) if world.exists(place)]
                state.report(reader, {key: until})
                return True
            if segment in world.sealed:
                found = await world.layout_successors(STREAM, segment)
                state.finish(reader, key, [item.range for item in found])
                return True
        return len(state.members) > 1 and state.free != {}

    async def restart(self) -> None:
        self._state = GroupState.decode(self._state.encode())
        name = self._world.rng.choice(["a", "b"])
        if name in self._state.members and len(self._state.members) > 1:
            self._state.leave(name)
        else:
            self._state.join(name)
        for cut in self._state.cuts().values():
            check_cut(self._world.history, cut.positions)


class BatchReads:
    """One batch read after another, each from where the last one has ended."""

    def __init__(self, world: World) -> None:
        self.seen: list[Place] = []
        self._world = world
        self._at = StreamCut(STREAM, dict(world.head_positions))

    async def step(self) -> bool:
        world = self._world
        services = _services(world)
        begin = StreamCut(STREAM, upper_bound(world.history, [self._at.positions, world.head_positions]))
        end = await world.cuts_tail(STREAM)
        if begin == end:
            return False
        ranges = await batch_ranges(services, STREAM, begin, end)
        kept, _ = await left_of(services, STREAM, ranges, fail=False)
        self.seen += [place for item in kept for place in _places(*item)]
        self._at = end
        return bool(kept)

    async def restart(self) -> None:
        """A batch read stores nothing."""


class _Boundaries:
    """Ends a micro-batch anywhere."""

    rng: random.Random

    def __init__(self, segments: Any) -> None:
        self._segments = segments

    async def advance(
        self, start: Places, ends: Places, limit: Limit, *, turn: int, passes_one: bool = True
    ) -> tuple[Places, Limit]:
        some = {item: self.rng.randrange(start[item], end + 1) for item, end in ends.items()}
        return {**start, **(ends if self.rng.random() < 0.2 else some)}, limit


class StreamingSource:
    """The source of a streaming query: offsets go through Spark's log, and batches are read from two of them."""

    def __init__(self, world: World) -> None:
        self.seen: list[Place] = []
        self._world = world
        self._start()
        self._log = [Offset(dict(world.head_positions))]

    def _start(self) -> None:
        given = {"path": str(STREAM), "fail_on_data_loss": "false"}
        self._streams = {STREAM: OneStream(parse_read(given), is_one=True)}

    async def step(self) -> bool:
        world, begin = self._world, self._log[-1]
        services = _services(world)
        end = (await one_stream.advance(services, self._streams, {STREAM: begin}, Limit(), turn=0))[STREAM]
        if end.positions == begin.positions:
            return False
        await check_offset(services.controller, STREAM, end.positions)
        self._log.append(Offset.from_json(STREAM, json.loads(json.dumps(end.to_json(STREAM)))))
        if world.may_truncate and world.rng.random() < 0.1:
            world.truncate()
        kept, _ = await left_of(services, STREAM, ranges_of(begin, self._log[-1]), fail=False)
        self.seen += [place for item in kept for place in _places(*item)]
        return True

    async def restart(self) -> None:
        self._start()


def _some_cut(world: World) -> Positions:
    """A cut at random: that of a reader that starts from the head and stops anywhere."""
    history, rng = world.history, world.rng
    ranges = history.index.ranges
    at = dict(world.head_positions)
    for _ in range(rng.randrange(6)):
        for segment in list(at):
            if at[segment] < 0:
                continue
            at[segment] = rng.randrange(at[segment], len(world.keys[segment]) + 1)
        done = {item for item, offset in at.items() if item in world.sealed and offset >= len(world.keys[item])}
        followers = {item: successors(history, item) for item in done}
        at = enter_successors(at, followers, ranges)
    return at


def _services(world: World) -> Services:
    return Services(cast(Any, world), cast(Any, world), cast(Any, None))


def _places(segment: SegmentId, start: int, end: int) -> list[Place]:
    return [(segment, offset) for offset in range(start, end)]


READERS = (JavaReader, PythonReader, GroupReaders, BatchReads, StreamingSource)


async def play(seed: int) -> None:
    """One history with all readers on it, to its end. Raises AssertionError where one breaks the order of a key.

    Every other history is truncated as well: there each reader loses what was gone before it came, and nothing else.
    """
    rng = random.Random(seed)
    world = World(rng, truncated=seed % 2 == 1)
    _Boundaries.rng = rng
    readers: list[Reader] = [kind(world) for kind in READERS]
    with mock.patch.object(one_stream, "Boundaries", _Boundaries):
        for _ in range(rng.randrange(4, 40)):
            choice = rng.random()
            if choice < 0.25:
                world.write()
            elif choice < 0.45:
                world.scale()
            elif choice < 0.5 and world.may_truncate:
                world.truncate()
            elif choice < 0.6:
                await rng.choice(readers).restart()
            else:
                await rng.choice(readers).step()
        for reader in readers:
            idle = 0
            while idle < _IDLE_STEPS:
                idle = 0 if await reader.step() else idle + 1
    java = _by_key(world, readers[0].seen)
    for reader in readers:
        for key, found in enumerate(_by_key(world, reader.seen)):
            where = f"seed {seed}, {type(reader).__name__}, key {key}: {found}"
            assert all(a < b for a, b in pairwise(found)), f"out of order or repeated: {where}"
            missing = [place for place in _all(world, key) if place not in found and world.exists(place)]
            assert not missing, f"missing {missing}: {where}"
            assert world.may_truncate or found == java[key], f"not the order of Java's rule, {java[key]}: {where}"


def _all(world: World, key: int) -> list[Place]:
    return [(item, at) for item in sorted(world.keys) for at, of in enumerate(world.keys[item]) if of == key]


def _by_key(world: World, seen: Sequence[Place]) -> list[list[Place]]:
    found: list[list[Place]] = [[] for _ in range(PARTS)]
    for segment, offset in seen:
        found[world.keys[segment][offset]].append((segment, offset))
    return found
