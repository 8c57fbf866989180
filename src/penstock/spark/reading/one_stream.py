"""What a streaming query does with one of its streams: where it stands, what a batch reads of it, and what it publishes.

Plain values and no connection: all calls get the services. ``stream.StreamReader`` has the order of the calls.
Source: docs/design/0009-spark.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from itertools import pairwise
from uuid import UUID

from penstock.client.moments import entered
from penstock.model.cuts import StreamCut
from penstock.model.errors import (
    InvalidArgumentError,
    InvalidCutError,
    NotFoundError,
    ScopeNotFoundError,
    SegmentNotFoundError,
    StreamNotFoundError,
)
from penstock.model.names import StreamName, segment_name
from penstock.model.queries import QuerySource
from penstock.model.segments import KeyRange, SegmentId, epoch_of
from penstock.model.values.dataclass import dataclass
from penstock.ports.control.layout import Successor
from penstock.ports.data.segments import SegmentInfo
from penstock.spark.connect import Services
from penstock.spark.options import ReadOptions
from penstock.spark.reading.boundaries import Boundaries, Limit, Places
from penstock.spark.reading.following import Bound, later, repaired
from penstock.spark.reading.losses import DELETED, between, say
from penstock.spark.reading.peers import Seen, seen_of
from penstock.spark.reading.plan import Share
from penstock.spark.reading.planning import (
    check_loss,
    check_reached,
    holder_of,
    infos,
    left_of,
    plan_shares,
    positions_of,
    resolve,
)
from penstock.spark.reading.positions import Loss, Offset, Positions, in_turn, ranges_of, to_cut
from penstock.spark.reading.segment_reads import segment_infos
from penstock.spark.reading.subscription import Subscription, of_another, subscribe, subscribe_all

_ROUNDS_MAX = 256  # scalings that one batch spans; each costs a few calls
_FINISHED_MAX = 4096  # segments after which a batch spans no further scaling: its offset names them, in 100 KB
Infos = dict[SegmentId, SegmentInfo | None]
GONE = (StreamNotFoundError, ScopeNotFoundError)


@dataclass(slots=True, kw_only=True)
class Step:
    """A batch of one stream while it is made. ``at``: how far it goes by now; ``ends``: how far it can go; ``finished``: what
    it has read to the end, with its length."""

    at: Positions
    ends: Positions
    known: Infos
    lost: tuple[Loss, ...]
    ahead: Positions
    finished: Positions = field(default_factory=dict)


@dataclass(slots=True)
class OneStream:
    """One stream of a query.

    ``options``: those of the read, for this stream alone. ``is_one``: the query reads no other. ``sound``: positions that are
    known to be a cut. ``late``: losses that a plan found, which the next offset reports. ``known``: its segments as the last
    step saw them; ``seen``: up to where it could be read.
    """

    options: ReadOptions
    is_one: bool
    bounds: list[Bound] = field(default_factory=list)
    subscription: Subscription | None = None
    sound: Positions | None = None
    late: tuple[Loss, ...] = ()
    known: dict[str, Seen] = field(default_factory=dict)
    seen: Offset | None = None

    @property
    def stream(self) -> StreamName:
        return self.options.stream

    # --- where to start ---

    async def start_cut(self, services: Services) -> StreamCut | None:
        """The cut that the options name. None: a subscriber continues where it is."""
        options, stream = self.options, self.stream
        named = options.start if isinstance(options.start, StreamCut) else None
        if named is not None and not await services.controller.cuts.is_valid(stream, named):
            check_reached(stream, named.positions, await infos(services, stream, list(named.positions)))
            # If the cut were used as it is, keys that none of its segments holds would be skipped silently.
            raise InvalidCutError(
                "option start_stream_cut is not a position of this stream: it lacks segments, or has those of another one",
                stream=stream,
                segments=", ".join(str(segment) for segment in sorted(named.positions)),
            )
        if options.subscriber is not None and options.start is None:
            return None
        cut = await resolve(services, stream, options.start, "latest")
        if options.subscriber is not None:
            check_reached(stream, cut.positions, await infos(services, stream, list(cut.positions)))
        return cut

    async def begin(self, services: Services, cut: StreamCut | None) -> Positions:
        """The positions at which the query starts, once its subscriber is registered."""
        if self.subscription is None:
            return await positions_of(services, cut or await services.controller.cuts.tail(self.stream))
        start = await positions_of(services, cut or self.subscription.cut)
        if self.options.start in ("earliest", "unbounded"):
            # The head may have moved between asking for it and holding it.
            start, _ = await self._above_head(services, start)
        return start

    async def add_bound(self, services: Services) -> None:
        """End the query at what is there now."""
        try:
            self.bounds.append(Bound(await services.controller.cuts.tail(self.stream)))
        except GONE:
            if self.is_one:
                raise  # else the next step drops the stream, or refuses to

    # --- where a batch ends ---

    async def logged(self, services: Services, offset: Offset) -> Offset:
        """Return an offset from Spark's log as a valid cut. This version writes only cuts; an earlier one may not have."""
        if offset.positions == self.sound:
            return offset
        right = await repaired(services.controller, self.stream, offset)
        if right is offset:
            self.sound = offset.positions
        return right

    async def learn_bounds(self, services: Services, start: Positions) -> None:
        """Find the segments before the bounds, once."""
        if all(bound.is_learned for bound in self.bounds):
            return
        # A stream that was deleted and created again never had these segments: take the bound of the new one.
        there, _, _ = await self._existing(services, start)
        for bound in self.bounds:
            await bound.learn(services, to_cut(self.stream, there))

    async def step(self, services: Services, begin: Offset, known: Infos | None = None) -> Step:
        """What could be read now from ``begin``. ``known``: the present state of its segments, where it was asked already.

        Raises: StreamNotFoundError, ScopeNotFoundError, TruncatedError, InvalidCutError.
        """
        stream, controller = self.stream, services.controller
        start, found, lost = await self._existing(services, begin.positions, known)
        start, ahead = in_turn(start, begin.ahead)
        at = await entered(controller, stream, start, await self._successors(services, start, found), ahead)
        found |= await infos(services, stream, [segment for segment in at if segment not in found])
        # A successor can itself be truncated already.
        if at != start:
            at, found, more = await self._existing(services, at)
            lost += more
        ends = self._ends(at, found)
        self.seen = Offset(at | ends)
        self.known = {segment_name(stream, segment): seen_of(found.get(segment)) for segment in at}
        return Step(at=at, ends=ends, known=found, lost=lost, ahead=ahead)

    async def follow(self, services: Services, step: Step, reached: Positions) -> bool:
        """Note in the step that the batch reads up to ``reached``. Segments that it finishes are replaced by their
        successors at once, so that they may be truncated after the commit.

        Returns whether there are successors that the same batch may read on.
        """
        followed = await self._successors(services, reached, step.known)
        behind = await entered(services.controller, self.stream, reached, followed, step.ahead)
        step.finished |= {item: reached[item] for item in reached if item not in behind}
        step.at, fresh = behind, [item for item in behind if item not in reached]
        # An offset of an earlier version puts its segments in order first.
        if not fresh or step.ahead:
            _, step.ahead = in_turn(behind, step.ahead)
            return False
        found = await infos(services, self.stream, fresh)
        if any(info is None or info.start_offset > max(0, behind[item]) for item, info in found.items()):
            return False  # truncated: the next batch reports it
        step.known |= found
        step.ends = {item: end for item, end in step.ends.items() if item in behind} | self._ends(
            {item: behind[item] for item in fresh}, found
        )
        return True

    async def _existing(
        self, services: Services, start: Positions, known: Infos | None = None
    ) -> tuple[Positions, Infos, tuple[Loss, ...]]:
        """The positions whose segments still exist, the state of these segments, and what was skipped."""
        options = self.options
        known = await infos(services, options.stream, list(start)) if known is None else dict(known)
        check_reached(options.stream, start, known)
        if all(info is not None and info.start_offset <= max(0, start[item]) for item, info in known.items()):
            # A deleted stream that can be restored keeps its segments, sealed and empty. Another stream may have its
            # name.
            empty = [item for item, info in known.items() if info and info.sealed and info.start_offset == info.length]
            try:
                if empty:
                    await services.controller.layout.ranges(options.stream, empty)
            except SegmentNotFoundError:
                return await self._made_again(services, start)
            return start, known, ()
        try:
            positions, passed = await self._above_head(services, start)
        except SegmentNotFoundError:
            return await self._made_again(services, start)
        for segment, info in known.items():
            # A waiting segment is checked when it is started. Before that, an offset in it would not be a cut.
            if info is not None and 0 <= positions.get(segment, -1) < info.start_offset:
                positions[segment] = info.start_offset
                passed.append(segment)
        for segment in sorted(set(passed)):
            begin = positions.get(segment)
            check_loss(
                options.stream,
                segment,
                max(0, start[segment]),
                min(positions.values()) if begin is None else begin,
                fail=options.fail_on_data_loss,
            )
        lost = await between(services, options.stream, start, positions)
        return positions, await infos(services, options.stream, list(positions)), lost

    async def _made_again(self, services: Services, start: Positions) -> tuple[Positions, Infos, tuple[Loss, ...]]:
        """As ``_existing``, if the stream has none of the segments: it was deleted, and another one has its name."""
        options = self.options
        if options.subscriber is not None:
            raise of_another(f"{options.stream.scope}/{options.subscriber}", options.stream)
        if options.fail_on_data_loss:
            raise InvalidCutError(
                "the stream was deleted and made again; use a new checkpoint location, or fail_on_data_loss=false to go on "
                "at the head of the new one",
                stream=options.stream,
                segments=", ".join(str(segment) for segment in sorted(start)),
            )
        positions = await positions_of(services, await services.controller.cuts.head(options.stream))
        lost = all_lost(start)
        lost += [Loss(segment=item, start=0, end=offset) for item, offset in positions.items() if offset > 0]
        return positions, await infos(services, options.stream, list(positions)), tuple(lost)

    async def _above_head(self, services: Services, start: Positions) -> tuple[Positions, list[SegmentId]]:
        """The later of ``start`` and the head, and which segments of ``start`` lie before the head."""
        head = await positions_of(services, await services.controller.cuts.head(self.stream))
        return await later(services.controller, self.stream, start, head)

    async def _successors(
        self, services: Services, positions: Positions, known: Mapping[SegmentId, SegmentInfo | None]
    ) -> dict[SegmentId, Sequence[Successor]]:
        """What follows each segment that is read to its end and sealed, as far as the query's bounds reach."""
        found: dict[SegmentId, Sequence[Successor]] = {}
        for segment, offset in positions.items():
            info = known.get(segment)
            ended = info is not None and info.sealed and offset >= info.length
            if ended and all(bound.goes_on_behind(segment) for bound in self.bounds):
                found[segment] = await services.controller.layout.successors(self.stream, segment)
        return found

    def _ends(self, positions: Positions, known: Mapping[SegmentId, SegmentInfo | None]) -> Positions:
        """How far each started segment can be read now."""
        ends: Positions = {}
        for segment, offset in positions.items():
            info = known[segment]
            if offset >= 0 and info is not None:
                end = min([info.length, *(bound.end_of(segment, info.length) for bound in self.bounds)])
                ends[segment] = max(offset, end)
        return ends

    # --- what a batch reads ---

    async def ranges(self, services: Services, start: Offset, end: Offset) -> Sequence[tuple[SegmentId, int, int]]:
        """What is left of the batch between two offsets: (segment, from, to), oldest segment first."""
        options = self.options
        kept, lost = await left_of(services, self.stream, ranges_of(start, end), fail=options.fail_on_data_loss)
        say(self.stream, lost)
        # Deleted after the batch was planned. Its offset is in the log already, so the next batch reports the loss.
        self.late += lost
        return kept

    async def shares(
        self,
        services: Services,
        ranges: Sequence[tuple[SegmentId, int, int]],
        *,
        lease: UUID,
        with_times: bool,
        min_shares: int,
    ) -> Sequence[Share]:
        """Divide the ranges into shares for tasks. One share if some ranges follow others, because tasks run side by
        side."""
        return await plan_shares(
            services,
            replace(self.options, min_partitions=min_shares),
            ranges,
            lease=lease,
            holder=holder_of(self.options, "query"),
            with_times=with_times,
            fresh=True,
            in_one=await self._is_chain(services, [segment for segment, _, _ in ranges]),
        )

    async def _is_chain(self, services: Services, segments: Sequence[SegmentId]) -> bool:
        """Whether one of the segments follows another."""
        if len({epoch_of(segment) for segment in segments}) == 1:
            return False
        try:
            ranges = await services.controller.layout.ranges(self.stream, segments)
        except NotFoundError:
            return True  # deleted since: then nothing shows that they may be read side by side
        return any_overlap(ranges.values())

    # --- what is committed ---

    async def publish(self, services: Services, offset: Offset, source: QuerySource) -> None:
        """Publish what is committed, if the query is a subscriber. Registers it where this process has not yet."""
        options, committed = self.options, offset.positions
        if options.subscriber is None:
            return
        try:
            if self.subscription is None:
                check_reached(self.stream, committed, await infos(services, self.stream, list(committed)))
                cut = to_cut(self.stream, committed)
                self.subscription = await self._subscribe(services, cut, source)
            if offset.query:
                await self.subscription.publish(services, committed, source)
            else:
                # An id that is in no checkpoint yet may be lost with this process. It must not become the owner, nor move a
                # subscriber that another query may own later. Its first batch publishes.
                await self.subscription.check(services, source)
        except (NotFoundError, InvalidArgumentError):
            # A deleted stream holds nothing for the query. The next step decides whether the query goes on without it.
            if self.is_one or await exists(services, self.stream):
                raise
            self.subscription = None

    async def renew(self, services: Services) -> None:
        """Keep the subscriber of a query that has read everything. Raises as ``Subscription.renew``."""
        try:
            if self.subscription is not None:
                await self.subscription.renew(services)
        except NotFoundError:
            if self.is_one or await exists(services, self.stream):
                raise
            self.subscription = None

    async def _subscribe(self, services: Services, cut: StreamCut, source: QuerySource) -> Subscription:
        name = self.options.subscriber or ""
        if self.is_one:
            return await subscribe(services, self.stream, name, cut, source)
        return (await subscribe_all(services, name, {self.stream: cut}, source))[self.stream]


async def exists(services: Services, stream: StreamName) -> bool:
    """Whether the stream exists; False also if its scope does not."""
    try:
        return await services.controller.streams.exists(stream)
    except ScopeNotFoundError:
        return False


def any_overlap(ranges: Iterable[KeyRange]) -> bool:
    """Whether two of the ranges share a key."""
    # In the order of their first keys, a range that overlaps any later one overlaps the next one.
    return any(one.overlaps(other) for one, other in pairwise(sorted(ranges, key=lambda keys: keys.low)))


def all_lost(start: Positions) -> list[Loss]:
    """What is lost after the positions of a stream that was deleted. Its length is not known any more."""
    return [Loss(segment=item, start=max(0, start[item]), end=None, rule=DELETED) for item in sorted(start)]


async def advance(
    services: Services,
    streams: Mapping[StreamName, OneStream],
    begins: Mapping[StreamName, Offset],
    limit: Limit,
    *,
    turn: int,
) -> dict[StreamName, Offset]:
    """Where a batch of all these streams ends; they share ``limit``. The offset of a deleted stream ``is_over``.

    Raises: TruncatedError, InvalidCutError; StreamNotFoundError where a deleted stream is the only one, or is data loss.
    """
    known = await _all_infos(services, begins)
    async with asyncio.TaskGroup() as group:
        asked = {
            stream: group.create_task(_step(services, streams[stream], begin, known[stream]))
            for stream, begin in begins.items()
        }
    steps = {stream: step for stream, task in asked.items() if (step := task.result()) is not None}
    await _read_on(services, streams, steps, limit, turn=turn)
    over = {stream: Offset({}, lost=tuple(all_lost(begins[stream].positions))) for stream in begins.keys() - steps}
    return over | {stream: Offset(step.at, step.finished, step.lost, step.ahead) for stream, step in steps.items()}


async def _read_on(
    services: Services,
    streams: Mapping[StreamName, OneStream],
    steps: Mapping[StreamName, Step],
    limit: Limit,
    *,
    turn: int,
) -> None:
    """Move the steps to the end of the batch.

    A batch that finishes segments goes on in their successors while all of it is small enough for one task. So the
    number of batches for a backlog depends on its size, not on the scalings that it spans.
    """
    boundaries, total = Boundaries(services.segments), 0
    going, room = dict(steps), limit
    for number in range(_ROUNDS_MAX):
        at: Places = {(stream, item): offset for stream, step in going.items() for item, offset in step.at.items()}
        ends: Places = {(stream, item): offset for stream, step in going.items() for item, offset in step.ends.items()}
        reached, room = await boundaries.advance(at, ends, room, turn=turn, passes_one=number == 0)
        total += sum(reached[place] - max(0, offset) for place, offset in at.items() if reached[place] > offset)
        by_stream = _by_stream(reached)
        async with asyncio.TaskGroup() as group:
            asked = {
                stream: group.create_task(streams[stream].follow(services, step, by_stream.get(stream, {})))
                for stream, step in going.items()
            }
        going = {stream: going[stream] for stream, task in asked.items() if task.result()}
        if not going or sum(len(step.finished) for step in steps.values()) >= _FINISHED_MAX:
            return
        left = min(streams[stream].options.target_partition_bytes for stream in going) - total
        room = room.at_most(left)
        if left <= 0 or room.is_used:
            return


def _by_stream(places: Places) -> dict[StreamName, Positions]:
    found: dict[StreamName, Positions] = {}
    for (stream, segment), offset in places.items():
        found.setdefault(stream, {})[segment] = offset
    return found


async def _step(services: Services, one: OneStream, begin: Offset, known: Infos) -> Step | None:
    """The step of one stream; None if the stream was deleted, and the query may go on without it."""
    try:
        return await one.step(services, begin, known)
    except GONE:
        if one.is_one:
            raise
        if one.options.fail_on_data_loss:
            raise StreamNotFoundError(
                "a stream was deleted while the query reads it; fail_on_data_loss=false goes on with the other streams",
                stream=one.stream,
            ) from None
        return None


async def _all_infos(services: Services, begins: Mapping[StreamName, Offset]) -> dict[StreamName, Infos]:
    """The state of all segments that the query stands in."""
    names = {
        (stream, segment): segment_name(stream, segment)
        for stream, begin in begins.items()
        for segment in begin.positions
    }
    found = await segment_infos(services.segments, list(names.values()))
    known: dict[StreamName, Infos] = {stream: {} for stream in begins}
    for (stream, segment), name in names.items():
        known[stream][segment] = found.get(name)
    return known
